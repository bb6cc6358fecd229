"""`equipoise fl`: one method on one federated task, all its outputs."""

from collections.abc import Callable
from dataclasses import replace
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
    request = shared.read_request(
        out,
        yes=yes,
        preset=preset,
        device=device,
        precision=precision,
        data=data_folder,
        seeds=shared.read_seeds(seeds),
        rounds=rounds,
        own=own,
    )
    free = value is None or name in TRIED
    require(free, f"value must not be given: {name} has no setting in tab:2", value)
    task_name = named("task", task, settings.tasks())
    usual = settings.sized(settings.tasks(request.settings)[task_name], rounds)
    where = task_name, replace(usual, participation=Participation(fraction, dropout))
    tried = {}
    if tune:
        require(value is None, "value must not be given together with tune", value)
        value, losses = _tune(request, *where, name)
        tried = {"tried": losses}
    run = table_tuned.valued(request, *where, name, value)
    chosen = settings.tuned(name, task_name) if value is None else value
    wrote_json(console, json_file, {**_report(request, run, name, chosen), **tried})


def _described(request: Request) -> str:
    seeds = request.seeds or ()
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _stopped(failed: list[NonFiniteLossError]) -> Exception:
    """Why there are no results: the first error, or the user did not agree to compute them."""
    return failed[0] if failed else typer.Exit(1)


def _report(request: Request, run: Run, name: str, value: float | None) -> dict[str, Any]:
    """Run a method with its value, print all its outputs, and return them as plain records."""
    failed = provide_jobs(request, [run])
    found = run.found(request.store)
    if len(found) < len(run.to_run):
        raise _stopped([error for _, error in failed])
    entry = Entry(run.task_name, name, run.output, tuple(found), tuple(found.values()), {}, claimed=False)
    shown = "" if value is None else f" ({value:g})"
    where = f"preset {request.settings}, {run.task.rounds} rounds, {_described(request)}"
    say(console, f"{run.task_name}, {name}{shown}, {where}")
    console.print(_summary(entry))
    over = "" if len(found) == 1 else "; mean ± standard deviation over the seeds"
    own = f"; own: {run.method.conversion}" if entry.output == "own" else ""
    say(console, f"* what {name} reports{own}{over}")

    def scores(of: Callable[..., float]) -> dict[str, Any]:
        """A number for every output, part and metric."""
        return {o: {p: {m: of(m, o, p) for m in METRICS} for p in PARTS} for o in entry.outputs}

    def of_seed(seed: int, result: dict[str, Any]) -> dict[str, Any]:
        found = scores(lambda metric, output, part: result["outputs"][output][part][metric])
        return {"seed": seed, **found, "archive": result["archive"][-1] if result["archive"] else None}

    return {
        "task": run.task_name,
        "method": name,
        "preset": request.settings,
        "rounds": run.task.rounds,
        "value": value,
        "weighting": identity(run.method.weighting),
        "output": entry.output,
        "seeds": list(run.to_run),
        "results": [of_seed(*one) for one in found.items()],
        "mean": scores(lambda *of: entry.score(*of).mean),
        "std": scores(lambda *of: entry.score(*of).std),
        "seconds_per_round": entry.seconds,
        "devices": sorted({result["made"]["device"] for result in found.values()}),
    }


def _tune(request: Request, task_name: str, task: Task, name: str) -> tuple[float, dict[str, float | None]]:
    """The value with the smallest worst-client training loss, and the loss of each; None where it was not finite."""
    require(name in TRIED, f"method must have a setting to tune: one of {', '.join(TRIED)}", name)
    losses, failed = table_tuned.search(request, task_name, task, name)
    best = table_tuned.best(losses)
    if best is None:
        raise _stopped(failed)
    say(console, f"{task_name}, {name}: worst client's training loss, {_described(request)}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("")
    for value, loss in losses.items():
        text = "not finite" if loss is None else f"{loss:.4f}"
        table.add_row(f"{value:g}", text, "smallest" if value == best else "")
    console.print(table)
    known = settings.tuned(name, task_name)
    where = "" if task_name.startswith("digits") or known is None else f"; tab:2 has {known:g}"
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
