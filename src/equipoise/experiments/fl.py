"""`equipoise fl`: one method on one federated task, all its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from equipoise.errors import NonFiniteLossError, require
from equipoise.experiments import federated
from equipoise.experiments.cells import CellStore
from equipoise.experiments.computing import compute, say_found
from equipoise.experiments.federated import ATTEMPTED, Preset, Row
from equipoise.experiments.federated_items import HEADS
from equipoise.experiments.federated_tables import METRICS, PARTS, Entry
from equipoise.experiments.request import say
from equipoise.federated import Participation, Precision, Task

__all__ = ["Order", "report", "tune"]


@dataclass(frozen=True)
class Order:
    """What the user asked for.

    Attributes:
        console: Where to print.
        store: Where finished runs are kept.
        task_name: A federated task.
        method: A method.
        seeds: Seeds.
        preset: Which settings.
        rounds: Rounds, if not the task's own.
        participation: Who takes part in a round.
        value: The method's hyper-parameter, if not the best one of tab:2.
        device: Where runs happen.
        precision: Of the layers' products, if not the task's own.
        data: Where to look for data first.
    """

    console: Console
    store: CellStore
    task_name: str
    method: str
    seeds: tuple[int, ...]
    preset: Preset
    rounds: int | None = None
    participation: Participation = field(default_factory=Participation)
    value: float | None = None
    device: str = "cpu"
    precision: Precision | None = None
    data: Path | None = None

    def __post_init__(self) -> None:
        free = self.value is None or self.method in ATTEMPTED
        require(free, f"value must not be given: {self.method} has no setting in tab:2", self.value)

    @property
    def task(self) -> Task:
        """The task, as it is to be run."""
        task = federated.sized(federated.tasks(self.preset)[self.task_name], self.rounds)
        return replace(task, participation=self.participation)

    @property
    def row(self) -> Row:
        """The method with its settings."""
        return federated.row(self.method, self.task_name, self.preset, self.value)

    @property
    def setting(self) -> float | None:
        """The hyper-parameter that it runs with; None if it has none."""
        return federated.tuned(self.method, self.task_name) if self.value is None else self.value

    @property
    def _precision(self) -> Precision | None:
        return federated.precision_of(self.task_name, self.precision)

    def run(self, rows: Sequence[Row]) -> list[NonFiniteLossError]:
        """Make the cells that are missing; returns what went wrong."""
        jobs = federated.absent(self.store, self.task_name, self.task, rows, self.seeds, self._precision)
        specs = [federated.spec(self.task, row.method, seed, self._precision) for row in rows for seed in self.seeds]
        say_found(self.console, self.store, specs, jobs)
        failed = compute(self.console, self.store, jobs, device=self.device, folder=self.data)
        return [error for _, error in failed]

    def entry(self, row: Row) -> Entry | None:
        """The results of a row, or None if they are not all there."""
        found = [self.store.read(federated.spec(self.task, row.method, seed, self._precision)) for seed in self.seeds]
        whole = tuple(result for result in found if result is not None)
        return Entry(self.task_name, row, self.seeds, whole, None, claimed=False) if len(whole) == len(found) else None


def report(order: Order) -> dict[str, Any]:
    """Run a method, print all its outputs, and return them as plain records."""
    failed = order.run([order.row])
    entry = order.entry(order.row)
    if entry is None:
        raise failed[0]
    setting = "" if order.setting is None else f" ({order.setting:g})"
    where = f"preset {order.preset}, {order.task.rounds} rounds, {_seeds(order)}"
    say(order.console, f"{order.task_name}, {order.method}{setting}, {where}")
    order.console.print(_summary(entry))
    over = "" if len(order.seeds) == 1 else "; mean ± standard deviation over the seeds"
    own = f"; own: {order.row.method.conversion}" if entry.row.output == "own" else ""
    say(order.console, f"* what {order.method} reports{own}{over}")
    return _record(order, entry)


def tune(order: Order) -> tuple[Order, dict[str, float | None]]:
    """Search the values that the paper tried, by its rule: the smallest worst-client training loss.

    Returns:
        The order with the winning value, and the loss of every value; None where a run was not finite.
    """
    require(
        order.method in ATTEMPTED, f"method must have a setting to tune: one of {', '.join(ATTEMPTED)}", order.method
    )
    values = ATTEMPTED[order.method]
    rows = {value: federated.row(order.method, order.task_name, order.preset, value) for value in values}
    failed = order.run(list(rows.values()))
    losses: dict[float, float | None] = {}
    for value, row in rows.items():
        entry = order.entry(row)
        losses[value] = None if entry is None else entry.score("agnostic_loss", part="train").mean
    finite = {value: loss for value, loss in losses.items() if loss is not None}
    if not finite:
        raise failed[0]
    best = min(finite, key=finite.__getitem__)
    say(order.console, f"{order.task_name}, {order.method}: worst client's training loss, {_seeds(order)}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("")
    for value, loss in losses.items():
        text = "not finite" if loss is None else f"{loss:.4f}"
        table.add_row(f"{value:g}", text, "smallest" if value == best else "")
    order.console.print(table)
    known = federated.tuned(order.method, order.task_name)
    where = "" if order.task_name.startswith("digits") or known is None else f"; tab:2 has {known:g}"
    say(order.console, f"best value: {best:g}{where}")
    return replace(order, value=best), {f"{value:g}": loss for value, loss in losses.items()}


def _summary(entry: Entry) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("output", no_wrap=True)
    table.add_column("on")
    for head in HEADS.values():
        table.add_column(head, justify="right", no_wrap=True)
    for output in entry.outputs:
        reported = output == entry.row.output
        for part in PARTS:
            scores = (entry.score(metric, output, part) for metric in METRICS)
            name = f"{output}{' *' if reported else ''}" if part == "test" else ""
            one = len(entry.seeds) == 1
            cells = (f"{s.mean:.3f}" if one else f"{s.mean:.3f} ± {s.std:.3f}" for s in scores)
            table.add_row(name, part, *cells, style="bold" if reported else None)
    return table


def _record(order: Order, entry: Entry) -> dict[str, Any]:
    results = []
    for seed, result in zip(entry.seeds, entry.results, strict=True):
        own: dict[str, Any] = {
            output: {part: {m: result["outputs"][output][part][m] for m in METRICS} for part in PARTS}
            for output in entry.outputs
        }
        results.append({"seed": seed, **own, "archive": result["archive"][-1] if result["archive"] else None})
    return {
        "task": order.task_name,
        "method": order.method,
        "preset": order.preset,
        "rounds": order.task.rounds,
        "value": order.setting,
        "weighting": repr(entry.row.method.weighting),
        "output": entry.row.output,
        "seeds": list(order.seeds),
        "results": results,
        "mean": _over_seeds(entry, "mean"),
        "std": _over_seeds(entry, "std"),
        "seconds_per_round": entry.seconds,
        "devices": sorted({result["device"] for result in entry.results}),
    }


def _over_seeds(entry: Entry, what: str) -> dict[str, Any]:
    return {
        output: {part: {m: getattr(entry.score(m, output, part), what) for m in METRICS} for part in PARTS}
        for output in entry.outputs
    }


def _seeds(order: Order) -> str:
    return f"seed{'s' if len(order.seeds) > 1 else ''} {', '.join(map(str, order.seeds))}"
