"""The command line: `equipoise methods`, `problems`, `solve`, `reproduce`, `data`."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column, Table
except ImportError as missing:  # pragma: no cover
    raise SystemExit("the command line needs: pip install 'equipoise[experiments]'") from missing

import torch

from equipoise import __version__, datasets, metrics, preference
from equipoise.errors import require
from equipoise.experiments import catalogue
from equipoise.experiments.cells import write_atomically
from equipoise.problems import KnownFront, problems
from equipoise.registry import methods, nearest
from equipoise.solver import solve as solve_problem

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
console = Console()
data = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and fetching it.")
app.add_typer(data, name="data")


def main() -> None:
    """Entry point; bad input ends with its message, not with a traceback."""
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    try:
        app()
    except ValueError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


def named(kind: str, name: str, known: Iterable[str]) -> str:
    """The known name that was meant, whatever its case, or a ValueError that lists the nearest ones."""
    known = list(known)
    for key in known:
        if key.casefold() == name.casefold():
            return key
    raise ValueError(f"{kind} must be a known name; found {name!r}; nearest: {nearest(name, known)}")


def brief(value: object) -> str:
    """A weighting or conversion with the settings that are not its defaults."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    parts = []
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if setting != default:
            many = isinstance(setting, tuple) and len(setting) > 3
            parts.append(f"{field.name}={f'<{len(setting)} of them>' if many else brief(setting)}")
    return f"{type(value).__name__}({', '.join(parts)})"


def _version(value: bool) -> None:  # noqa: FBT001
    if value:
        console.print(f"equipoise {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Preference-guided multi-objective learning: name a trade-off, get the Pareto point that has it."""


@app.command("methods")
def list_methods() -> None:
    """List every method: its weighting and conversion with what is not their default, and what it needs."""
    table = Table(Column("method", overflow="fold"), Column("weighting", overflow="fold"), "conversion", "needs")
    for name, method in methods().items():
        needs = ", ".join(sorted(method.weighting.needs)) or "losses"
        table.add_row(name, brief(method.weighting), brief(method.conversion), needs)
    console.print(table)


@app.command("problems")
def list_problems() -> None:
    """List the synthetic problems."""
    table = Table("problem", "objectives", "variables", "bounds", "reference point")
    for name, problem in problems().items():
        bounds = f"[{problem.lower:g}, {problem.upper:g}]"
        table.add_row(name, str(problem.m), str(problem.d), bounds, str(problem.reference))
    console.print(table)


@app.command("solve")
def solve_command(
    problem: Annotated[str, typer.Argument(help="A problem of `equipoise problems`.")],
    method: Annotated[str, typer.Option(help="A method of `equipoise methods`.")] = "AdaOMDgd-TCH",
    preferences: Annotated[int, typer.Option(help="How many preferences, evenly spread.")] = 10,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    steps: Annotated[int, typer.Option(help="Iterations.")] = 1000,
    step_size: Annotated[float, typer.Option(help="Step size of the gradient step.")] = 0.02,
    plot: Annotated[Path | None, typer.Option(help="Draw the solutions into this picture.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the solutions to this file.")] = None,
) -> None:
    """Solve a problem for many preferences at once."""
    target = problems()[named("problem", problem, problems())]
    name = named("method", method, methods())
    chosen = methods()[name]
    wanted = _integers("seeds", seeds)
    require(preferences >= 2, "preferences must be at least 2", preferences)
    weights = preference.linspace(preferences)
    found = solve_problem(
        target,
        weights,
        chosen,
        seeds=wanted,
        steps=steps,
        step_size=step_size,
        progress=console.is_terminal,
    )
    losses = found.losses["solution"].to(torch.float64)
    table = Table(title=f"{target.name}, {name}, seeds {seeds}", title_justify="left")
    for head in ("w", "f (mean over the seeds)", "w∘f", "largest/smallest w∘f − 1"):
        table.add_column(head, justify="right")
    for w, f in zip(weights, losses.mean(0), strict=True):
        spread = float(metrics.imbalance(f, w))
        table.add_row(*(_numbers(v) for v in (w, f, w * f)), f"{spread:.2%}")
    console.print(table)
    volume = metrics.hypervolume(losses, target.reference)
    console.print(f"hypervolume {volume.mean():.4f} ± {volume.std(correction=0):.4f}", highlight=False)
    if json_file is not None:
        record = {
            "problem": target.name,
            "method": name,
            "weighting": repr(chosen.weighting),
            "conversion": repr(chosen.conversion),
            "seeds": wanted,
            "steps": steps,
            "step_size": step_size,
            "preferences": weights.tolist(),
            "losses": losses.tolist(),
            "parameters": found.params["solution"].tolist(),
            "hypervolume": volume.tolist(),
        }
        write_atomically(json_file, json.dumps(record))
        console.print(f"wrote {json_file}", highlight=False)
    if plot is not None:
        _plot(plot, target, weights, losses, name)


@app.command("reproduce")
def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure; see --list.")] = "",
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,  # noqa: FBT002
    preset: Annotated[
        str, typer.Option(help="published: what made the paper's numbers; text: what its text says.")
    ] = "published",
    out: Annotated[Path, typer.Option(help="Folder for pictures and for the cells of finished work.")] = Path("out"),
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
) -> None:
    """Reproduce a table or a figure of the paper. Finished work is kept and not repeated."""
    items = catalogue.items()
    if list_all or not name:
        table = Table("name", "label", "in the paper", "what")
        for key, item in items.items():
            table.add_row(key, item.label, item.number, item.caption)
        console.print(table)
        return
    presets = ("published", "text")
    if preset not in presets:
        raise ValueError(f"preset must be one of {', '.join(presets)}; found {preset!r}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1; found {workers}")
    item = items[named("name", name, items)]
    request = catalogue.Request(console, out, "published" if preset == "published" else "text", workers, json_file)
    item.run(request)


@data.command("list")
def data_list(
    folder: Annotated[Path | None, typer.Option(help="Look here first.")] = None,
) -> None:
    """List the data sets, and where each was found."""
    table = Table("name", "what", Column("found in", overflow="fold"), "can be fetched")
    for name, source in datasets.sources().items():
        found = str(datasets.locate(name, folder) or "not found") if source.layouts else "scikit-learn"
        table.add_row(name, source.description, found, "yes" if source.home else "no")
    console.print(table)


@data.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set of `equipoise data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Data folder; the user's cache folder if not given.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A mirror, instead of the set's public home.")] = None,
) -> None:
    """Download a data set from its public home and check it."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name)

        def show(file: str, size: int, total: int | None) -> None:
            bar.update(task, description=file, completed=size, total=total)

        where = datasets.fetch(name, folder, base_url, progress=show)
    console.print(f"{name} is in {where}", highlight=False)


def _integers(argument: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{argument} must be whole numbers separated by commas; found {text!r}") from None


def _numbers(values: torch.Tensor) -> str:
    return "  ".join(f"{value:.4f}" for value in values.tolist())


def _plot(path: Path, problem: KnownFront, weights: torch.Tensor, losses: torch.Tensor, name: str) -> None:
    from equipoise.experiments import figures  # noqa: PLC0415

    figure = figures.front_grid([[(problem, name, losses)]], weights, {name: f"{problem.name}, {name}"}, size=3.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    console.print(f"wrote {path}", highlight=False)


if __name__ == "__main__":
    main()
