"""`equipoise fl`: one method on one federated task, all its outputs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from equipoise.cli import shared
from equipoise.cli.shared import console, named
from equipoise.errors import NonFiniteLossError, require
from equipoise.experiments.federated import settings, table_tuned
from equipoise.experiments.federated.compute import provide_jobs
from equipoise.experiments.federated.scores import HEADS, METRICS, PARTS, Entry
from equipoise.experiments.federated.settings import Run
from equipoise.experiments.item import Request
from equipoise.experiments.paper import TRIED
from equipoise.experiments.render import say, wrote_json
from equipoise.federated import Participation, Task
from equipoise.identity import spec as identity

__all__ = ["federated_command"]


def federated_command(
    task: Annotated[str, typer.Option(help=f"One of {', '.join(settings.tasks())}.")] = "digits-rotation",
    method: Annotated[
        str,
        typer.Option(help="A row of the paper's table, a method of `equipoise methods`, or module:name of your own."),
    ] = "equipoise",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    rounds: shared.Rounds = None,
    value: Annotated[float | None, typer.Option(help="The method's setting; the paper's best if not given.")] = None,
    tune: Annotated[  # noqa: FBT002
        bool, typer.Option("--tune", help="Try the paper's values; the smallest worst-client training loss wins.")
    ] = False,
    fraction: Annotated[float, typer.Option(help="Share of the clients drawn in every round.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Probability that a drawn client does not answer.")] = 0.0,
    preset: shared.PresetOption = None,
    device: shared.Device = None,
    precision: shared.PrecisionOption = None,
    data_folder: shared.Data = None,
    out: shared.Out = Path("out"),
    yes: shared.Yes = False,  # noqa: FBT002
    json_file: shared.JSONFile = None,
) -> None:
    """Federated learning on one machine: a method on a task, all outputs of its run."""
    shared.check_files(out, json=json_file)
    name, own = shared.read_method(method, settings.known_names())
    request = Request(
        console,
        out,
        yes,
        shared.read_preset(preset),
        device=shared.read_device(device),
        precision=shared.read_precision(precision),
        data=shared.read_folder(data_folder),
        seeds=shared.read_integers("seeds", seeds),
        rounds=rounds,
        own=own,
    )
    free = value is None or name in TRIED
    require(free, f"value must not be given: {name} has no setting in tab:2", value)
    order = _Order(request, named("task", task, settings.tasks()), name, Participation(fraction, dropout))
    tried = None
    if tune:
        require(value is None, "value must not be given together with tune", value)
        value, tried = _tune(order)
    record = _report(order, value)
    wrote_json(console, json_file, record if tried is None else {**record, "tried": tried})


@dataclass(frozen=True)
class _Order:
    """The user's choices."""

    request: Request
    task_name: str
    method: str
    participation: Participation

    @property
    def task(self) -> Task:
        """The task with the user's changes."""
        task = settings.sized(settings.tasks(self.request.settings)[self.task_name], self.request.rounds)
        return replace(task, participation=self.participation)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.request.seeds or (0,)

    @property
    def described(self) -> str:
        return f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"

    def run(self, value: float | None) -> tuple[Run, Entry]:
        """The method with a value, as a row of a table, and its results, after computing what is missing."""
        one = table_tuned.valued(self.request, self.task_name, self.task, self.method, value)
        failed = provide_jobs(self.request, [one])
        found = one.found(self.request.store)
        if len(found) < len(self.seeds):
            raise _stopped([error for _, error in failed])
        of = tuple(found), tuple(found.values())
        return one, Entry(self.task_name, self.method, one.output, *of, {}, claimed=False)


def _stopped(failed: list[NonFiniteLossError]) -> Exception:
    """Why there are no results: the first error, or the user did not agree to compute them."""
    return failed[0] if failed else typer.Exit(1)


def _report(order: _Order, value: float | None) -> dict[str, Any]:
    """Run a method, print all its outputs, and return them as plain records."""
    run, entry = order.run(value)
    chosen = settings.tuned(order.method, order.task_name) if value is None else value
    shown = "" if chosen is None else f" ({chosen:g})"
    where = f"preset {order.request.settings}, {order.task.rounds} rounds, {order.described}"
    say(console, f"{order.task_name}, {order.method}{shown}, {where}")
    console.print(_summary(entry))
    over = "" if len(order.seeds) == 1 else "; mean ± standard deviation over the seeds"
    method = run.method
    own = f"; own: {method.conversion}" if entry.output == "own" else ""
    say(console, f"* what {order.method} reports{own}{over}")

    def scores(of: Callable[..., float]) -> dict[str, Any]:
        """A number for every output, part and metric."""
        return {o: {p: {m: of(m, o, p) for m in METRICS} for p in PARTS} for o in entry.outputs}

    def of_seed(seed: int, result: dict[str, Any]) -> dict[str, Any]:
        found = scores(lambda metric, output, part: result["outputs"][output][part][metric])
        return {"seed": seed, **found, "archive": result["archive"][-1] if result["archive"] else None}

    return {
        "task": order.task_name,
        "method": order.method,
        "preset": order.request.settings,
        "rounds": order.task.rounds,
        "value": chosen,
        "weighting": identity(method.weighting),
        "output": entry.output,
        "seeds": list(order.seeds),
        "results": [of_seed(*one) for one in zip(entry.seeds, entry.results, strict=True)],
        "mean": scores(lambda *of: entry.score(*of).mean),
        "std": scores(lambda *of: entry.score(*of).std),
        "seconds_per_round": entry.seconds,
        "devices": sorted({result["made"]["device"] for result in entry.results}),
    }


def _tune(order: _Order) -> tuple[float, dict[str, float | None]]:
    """Search the values that the paper tried, by its rule: the smallest worst-client training loss.

    Returns:
        The winning value, and the loss of every value; None where a run was not finite.
    """
    name = order.method
    require(name in TRIED, f"method must have a setting to tune: one of {', '.join(TRIED)}", name)
    losses, failed = table_tuned.search(order.request, order.task_name, order.task, name)
    best = table_tuned.best(losses)
    if best is None:
        raise _stopped(failed)
    say(console, f"{order.task_name}, {name}: worst client's training loss, {order.described}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("")
    for value, loss in losses.items():
        text = "not finite" if loss is None else f"{loss:.4f}"
        table.add_row(f"{value:g}", text, "smallest" if value == best else "")
    console.print(table)
    known = settings.tuned(name, order.task_name)
    where = "" if order.task_name.startswith("digits") or known is None else f"; tab:2 has {known:g}"
    say(console, f"best value: {best:g}{where}")
    return best, {f"{value:g}": loss for value, loss in losses.items()}


def _summary(entry: Entry) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("output", no_wrap=True)
    table.add_column("on")
    for head in HEADS.values():
        table.add_column(head, justify="right", no_wrap=True)
    for output in entry.outputs:
        reported = output == entry.output
        for part in PARTS:
            scores = (entry.score(metric, output, part) for metric in METRICS)
            name = f"{output}{' *' if reported else ''}" if part == "test" else ""
            one = len(entry.seeds) == 1
            cells = (f"{s.mean:.3f}" if one else f"{s.mean:.3f} ± {s.std:.3f}" for s in scores)
            table.add_row(name, part, *cells, style="bold" if reported else None)
    return table
