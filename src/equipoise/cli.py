"""The command line: `equipoise methods`, `problems`, `solve`, `fl`, `reproduce`, `report`, `runs`, `data`."""

import dataclasses
import json
import math
import re
import sys
import warnings
import webbrowser
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column
except ImportError as missing:  # pragma: no cover
    raise SystemExit("the command line needs: pip install 'equipoise[experiments]'") from missing

import torch

from equipoise import __version__, datasets, metrics, preference
from equipoise.errors import IdealPointWarning, require
from equipoise.experiments import catalogue, everything, federated, fl, runs
from equipoise.experiments.cells import COMMITTED, CellStore, CellWarning, write_atomically
from equipoise.experiments.request import Request, say, wrote_json
from equipoise.experiments.sheets import add_words, fitted, grid, listing
from equipoise.federated import Participation, Precision
from equipoise.problems import KnownFront, problems
from equipoise.registry import methods, unknown
from equipoise.solver import solve as solve_problem

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
console = Console()
data = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and fetching it.")
app.add_typer(data, name="data")
runs_app = typer.Typer(no_args_is_help=True, help="Finished runs: what there is, and taking them from elsewhere.")
app.add_typer(runs_app, name="runs")

# Options that several commands have.
Preset = Annotated[
    str | None, typer.Option(help="published, if not given: what made the paper's numbers; text: what its text says.")
]
Out = Annotated[Path, typer.Option(help="Folder for pictures and for the cells of finished work.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; cpu if not given.")]
Kind = Annotated[str | None, typer.Option(help="float32, tf32 or bfloat16; tf32 on a GPU, else float32.")]
Data = Annotated[Path | None, typer.Option("--data", help="Look here for data first.")]
JSONFile = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds; the task's own if not given.")]


def main() -> None:
    """Entry point; bad input ends with its message, not with a traceback."""
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    try:
        with warnings.catch_warnings(), _plain_warnings():
            app()
    except (ValueError, OSError) as error:
        say(Console(stderr=True), f"error: {error}", style="red")
        sys.exit(2)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """What is said of cells and losses is for users: a line without a file and a line of code."""
    usual, said = warnings.showwarning, set[str]()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, CellWarning | IdealPointWarning):
            usual(message, category, filename, lineno, file, line)
        elif str(message) not in said:
            said.add(str(message))
            say(Console(stderr=True), f"warning: {message}")

    warnings.showwarning = show
    yield


def named(kind: str, name: str, known: Iterable[str]) -> str:
    """The known name that was meant, whatever its case, or an UnknownNameError that lists the nearest ones."""
    known = list(known)
    for key in known:
        if key.casefold() == name.casefold():
            return key
    raise unknown(f"{kind} must be a known name", name, known)


def brief(value: object) -> str:
    """A weighting or conversion with what is not its default, its step size, and numbers that one tunes.

    These are floats other than 0, 1 and infinity, which mostly leave something out, and larger than a tolerance.
    """
    if isinstance(value, float):
        return f"{value:g}"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    parts = []
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        number = isinstance(setting, float) and 1e-3 < setting < math.inf and setting != 1.0
        tuned = field.name == "step_size" or number
        if setting != default or tuned:
            many = isinstance(setting, tuple) and len(setting) > 3
            shown = f"<{len(setting)} of them>" if many else brief(setting)
            parts.append(shown if field.name == "inner" else f"{field.name}={shown}")
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
    """List every method: its weighting and conversion with their settings in brief, and what it needs."""
    table = listing(*(Column(head, overflow="fold") for head in ("method", "weighting", "conversion", "needs")))
    for name, method in methods().items():
        needs = ", ".join(sorted(method.weighting.needs)) or "losses"
        weighting = brief(method.weighting)
        # What the losses go through first, as in PropFair.
        whole = weighting if method.transform is None else f"{weighting} of {brief(method.transform)}"
        table.add_row(name, whole, brief(method.conversion), needs)
    console.print(fitted(console, table))
    say(console, "FedAvg is LS by another name. ALMO is AFL until one confines its weights,")
    say(console, "as in OMD(step_size=1.0, dual_set=Box(upper=0.5)).")


@app.command("problems")
def list_problems() -> None:
    """List the synthetic problems."""
    table = listing("problem", "objectives", "variables", "bounds", "reference point")
    for name, problem in problems().items():
        bounds = f"[{problem.lower:g}, {problem.upper:g}]"
        table.add_row(name, str(problem.m), str(problem.d), bounds, str(problem.reference))
    console.print(fitted(console, table))


@app.command("solve")
def solve_command(
    problem: Annotated[str, typer.Argument(help="A problem of `equipoise problems`.")],
    method: Annotated[str, typer.Option(help="A method of `equipoise methods`.")] = "equipoise",
    preferences: Annotated[
        int | None, typer.Option(help="How many preferences, evenly spread; at most, if m > 2. 10 if not given.")
    ] = None,
    preference_: Annotated[
        list[str] | None,
        typer.Option("--preference", help="A preference of your own, such as 0.3,0.7; may be repeated."),
    ] = None,
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
    weights = _wanted_preferences(preference_ or [], preferences, target.m)
    _check_files(Path("out"), plot=plot, json=json_file)
    require(plot is None or target.m == 2, "plot must not be given unless the problem has two objectives", target.m)
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
    table = grid(f"{target.name}, {name}, seeds {seeds}", ())
    for head in ("w", "f, mean of seeds", "w∘f", "imbalance"):
        table.add_column(head, justify="right")
    spreads = metrics.imbalance(losses.mean(0), weights)
    for w, f, spread in zip(weights, losses.mean(0), spreads.tolist(), strict=True):
        shown = f"{spread:.2%}" if spread < 10 else "> 999 %"
        table.add_row(*(_numbers(v) for v in (w, f, w * f)), shown if bool((w > 0).all()) else "no ray")
    console.print(fitted(console, table))
    say(console, "imbalance: largest/smallest w∘f − 1")
    _note_missed(weights, spreads, name, follows=chosen.weighting.origin is not None)
    volume = metrics.hypervolume(losses, target.reference)
    spread_of_seeds = f" ± {volume.std(correction=0):.4f}" if len(wanted) > 1 else ""
    console.print(f"hypervolume {volume.mean():.4f}{spread_of_seeds}", highlight=False)
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
        say(console, f"wrote {json_file}")
    if plot is not None:
        _plot(plot, target, weights, losses, name)


@app.command("fl")
def federated_command(
    task: Annotated[str, typer.Option(help=f"One of {', '.join(federated.tasks())}.")] = "digits-rotation",
    method: Annotated[str, typer.Option(help="A row of the paper's table, or a method of `equipoise methods`.")] = (
        "equipoise"
    ),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    rounds: Rounds = None,
    value: Annotated[float | None, typer.Option(help="The method's setting; the paper's best if not given.")] = None,
    tune: Annotated[  # noqa: FBT002
        bool, typer.Option("--tune", help="Try the paper's values; the smallest worst-client training loss wins.")
    ] = False,
    fraction: Annotated[float, typer.Option(help="Share of the clients drawn in every round.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Probability that a drawn client does not answer.")] = 0.0,
    preset: Preset = None,
    device: Device = None,
    precision: Kind = None,
    data_folder: Data = None,
    out: Out = Path("out"),
    json_file: JSONFile = None,
) -> None:
    """Federated learning on one machine: a method on a task, all outputs of its run."""
    _check_files(out, json=json_file)
    order = fl.Order(
        console,
        CellStore(out / "cells"),
        named("task", task, federated.tasks()),
        named("method", method, federated.known_names()),
        tuple(_integers("seeds", seeds)),
        _preset(preset) or "published",
        rounds,
        Participation(fraction, dropout),
        value,
        _device(device) or "cpu",
        _precision(precision),
        _folder(data_folder),
    )
    tried = None
    if tune:
        require(value is None, "value must not be given together with tune", value)
        order, tried = fl.tune(order)
    record = fl.report(order)
    wrote_json(console, json_file, record if tried is None else {**record, "tried": tried})


@app.command("reproduce")
def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure, see --list; or all.")] = "",
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,  # noqa: FBT002
    quick: Annotated[  # noqa: FBT002
        bool, typer.Option("--quick", help="With all: digits for twenty rounds, and no long sweeps.")
    ] = False,
    preset: Preset = None,
    out: Out = Path("out"),
    json_file: JSONFile = None,
    workers: Annotated[int | None, typer.Option(help="Processes, one thread each; 2 if not given.")] = None,
    task: Annotated[str | None, typer.Option(help="Federated tasks, separated by commas.")] = None,
    methods_: Annotated[str | None, typer.Option("--methods", help="Methods, separated by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    rounds: Rounds = None,
    device: Device = None,
    precision: Kind = None,
    data_folder: Data = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a federated table as a page of Markdown.")] = None,
) -> None:
    """Reproduce a table or a figure of the paper. Finished work is kept and not repeated."""
    items = catalogue.items()
    if list_all or not name:
        table = listing("name", "label", "in the paper", "what")
        for key, item in items.items():
            table.add_row(key, item.label, item.number, item.caption)
        console.print(fitted(console, table))
        return
    name = named("table or figure", name, [*items, "all"])
    require(name == "all" or not quick, f"{name} does not take --quick; only all does", quick)
    request = Request(
        console,
        out,
        _preset(preset),
        json_file,
        workers,
        None if task is None else _names("task", task, federated.tasks()),
        None if methods_ is None else _names("method", methods_, federated.known_names()),
        None if seeds is None else tuple(_integers("seeds", seeds)),
        rounds,
        _device(device),
        _precision(precision),
        _folder(data_folder),
        markdown,
    )
    require(workers is None or workers >= 1, "workers must be at least 1", workers)
    takes = {"preset", "workers", "device", "precision", "data"} if name == "all" else items[name].takes
    for option in dataclasses.fields(Request):
        given = option.default is None and getattr(request, option.name) is not None
        heeded = option.name in takes
        flag = option.name.removesuffix("_file")
        takers = ", ".join(key for key, item in items.items() if option.name in item.takes)
        found = f"{getattr(request, option.name)}; these take it: {takers}"
        require(heeded or not given, f"{name} does not take --{flag}", found)
    _check_files(out, json=json_file, markdown=markdown)
    if name != "all":
        items[name].run(request)
    elif everything.reproduce_all(items, request, quick=quick):
        raise typer.Exit(1)


@app.command("report")
def report_command(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("out/report.html"),
    results: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of results, or a file; may be repeated. The folder out if not given."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,  # noqa: FBT002
) -> None:
    """Write one HTML page of all results: a front explorer, tables beside the paper's, training curves."""
    from equipoise.experiments import report  # noqa: PLC0415
    from equipoise.experiments.report import sources  # noqa: PLC0415

    given = results or [Path("out")]
    for path in results or ():
        require(path.exists(), "results must exist", path)
    found = sources.read(given, [COMMITTED])
    where = ", ".join(map(str, given))
    require(
        bool(found),
        "there must be results to report: `equipoise reproduce table-hv` makes some in a minute, and so do "
        "`equipoise solve VLMOP2 --json out/solved.json` and `equipoise fl`",
        f"none in {where}",
    )
    record = report.gather(found, __version__)
    page = report.render(record)
    try:
        write_atomically(out, page)
    except OSError as error:
        raise OSError(error.errno, f"{out} could not be written: {error.strerror}; nothing was left of it") from error
    say(console, f"wrote {out} ({len(page.encode()) / 1e6:.1f} MB): {report.sections(record)}")
    say(console, f"open it in a browser: {out.resolve().as_uri()}")
    if show:
        webbrowser.open(out.resolve().as_uri())


@runs_app.command("import")
def runs_import(
    folder: Annotated[Path, typer.Argument(help="A folder of cells.")],
    out: Out = Path("out"),
) -> None:
    """Take the cells of another machine. What is not a whole cell is refused."""
    store = CellStore(out / "cells")
    found = runs.import_cells(folder, store)
    say(console, f"{found.new} new, {found.known} known, {len(found.refused)} refused; cells are in {store.folder}")
    for file, reason in found.refused.items():
        say(console, f"refused: {file}: {reason}")
    if found.refused:
        raise typer.Exit(1)


@runs_app.command("list")
def runs_list(
    out: Out = Path("out"),
    every: Annotated[bool, typer.Option("--all", help="One line for every method, not every task.")] = False,  # noqa: FBT002
) -> None:
    """Count the cells, by experiment and task; with --all by method too."""
    for folder in (out / "cells", COMMITTED):
        found = runs.count(folder)
        if not found:
            say(console, f"{folder}: no cells")
            continue
        heads = ("experiment", "task", "method" if every else "methods", "cells", "used", "by tables")
        table = listing(*heads)
        for row in _by_method(found) if every else _by_task(found):
            add_words(table, *row)
        console.print(fitted(console, table))
        others = sum(number for group, number in found.items() if not group.in_tables)
        why = "made by equipoise fl, by a table with methods, seeds or rounds of your own, or by another version"
        say(console, f"{folder}: {found.total()} cells" + (f"; {others} of them {why}" if others else ""))


def _by_method(found: Counter[runs.Group]) -> Iterator[tuple[str, ...]]:
    for group, number in sorted(found.items()):
        used = number if group.in_tables else 0
        yield group.experiment, group.task, group.method, str(number), str(used), _short(group.table)


def _by_task(found: Counter[runs.Group]) -> Iterator[tuple[str, ...]]:
    """A line for every task: how many methods and cells, and how many of these are used."""
    for experiment, task in sorted({(group.experiment, group.task) for group in found}):
        groups = [group for group in found if (group.experiment, group.task) == (experiment, task)]
        used = sum(found[group] for group in groups if group.in_tables)
        methods_ = len({group.method for group in groups})
        tables = [table for table in catalogue.items() if any(group.table == table for group in groups)]
        names = ", ".join(map(_short, tables)) or "-"
        yield experiment, task, str(methods_), str(sum(found[group] for group in groups)), str(used), names


def _short(table: str) -> str:
    return table.removeprefix("table-") or "-"


@data.command("list")
def data_list(
    folder: Annotated[Path | None, typer.Option(help="Look here first.")] = None,
) -> None:
    """List the data sets, and where each was found."""
    table = listing("name", "what", Column("found in", overflow="fold"), "can be fetched")
    for name, source in datasets.sources().items():
        found = str(datasets.locate(name, folder) or "not found") if source.layouts else "scikit-learn"
        add_words(table, name, source.description, found, "yes" if source.home else "no")
    console.print(fitted(console, table))


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
    say(console, f"{name} is in {where}")


def _wanted_preferences(own: Sequence[str], count: int | None, m: int) -> torch.Tensor:
    """The preferences that were typed, or a grid, (preferences, m); says so if the grid has another size."""
    if own:
        require(count is None, "preferences must not be given together with preference", count)
        rows = [_floats("preference", text) for text in own]
        return torch.stack([preference.validate(torch.tensor(row, dtype=torch.float64), m) for row in rows])
    weights = _spread(10 if count is None else count, m)
    if count is not None and len(weights) != count:
        number = f"{len(weights)} preference{'s' if len(weights) > 1 else ''}"
        say(console, f"{number}: the largest grid of at most {count} for m = {m}")
    return weights


def _note_missed(weights: torch.Tensor, spreads: torch.Tensor, name: str, *, follows: bool) -> None:
    """Name every preference that is missed by far, and say why if that is known: it is extreme.

    Args:
        weights: The preferences, (preferences, m).
        spreads: How far each is missed, (preferences,).
        name: The method's.
        follows: Whether the method asks for equal w∘f.
    """
    far = (spreads >= 10) & (weights.amin(-1) > 0)
    end = far & (weights.amin(-1) <= 0.05) & follows
    if bool(end.any()):
        one = int(end.sum()) == 1
        say(
            console,
            f"> 999 %: the ray{'' if one else 's'} of {_listed(weights[end])} meet{'s' if one else ''} the front close "
            f"to its end{'' if one else 's'}, where a loss is almost 0, and the steps did not come near enough; more "
            "--steps may",
        )
    rest = far & ~end
    if bool(rest.any()):
        other = "" if name == "equipoise" else ", or another method such as equipoise,"
        far_off = f"the largest w∘f is far above the smallest for {_listed(weights[rest])}"
        say(console, f"> 999 %: {far_off}; more --steps{other} may come nearer")


def _listed(weights: torch.Tensor) -> str:
    """Preferences (n, m) in words."""
    rows = [f"w = {', '.join(f'{entry:g}' for entry in row)}" for row in weights.tolist()]
    return rows[0] if len(rows) == 1 else f"{'; '.join(rows[:-1])} and {rows[-1]}"


def _spread(count: int, m: int) -> torch.Tensor:
    """The finest even grid of at most count preferences; exactly count for two objectives. A single one is uniform.

    For more than two the uniform preference comes first where the grid lacks it, and a grid of nothing but corners is
    drawn halfway to the middle: the corners themselves ask for one objective each, and for no trade-off.
    """
    require(count >= 1, "preferences must be at least 1", count)
    centre = torch.full((1, m), 1.0 / m, dtype=torch.float64)
    if count < m:
        return centre

    def size(divisions: int) -> int:
        return math.comb(divisions + m - 1, m - 1) + (m > 2 and divisions % m > 0)

    divisions = 1
    while size(divisions + 1) <= count:
        divisions += 1
    corners = m > 2 and divisions == 1
    weights = preference.grid(divisions, m, margin=0.5 / m if corners else 0.01)
    return torch.cat([centre, weights]) if len(weights) < size(divisions) <= count else weights


def _folder(path: Path | None) -> Path | None:
    require(path is None or path.is_dir(), "data must be a folder that exists", path)
    return path


def _check_files(out: Path, **files: Path | None) -> None:
    """Refuse a file in a folder that is not there, unless it is in the folder for results, which is made."""
    for option, path in files.items():
        there = path is None or path.parent.is_dir() or path.absolute().is_relative_to(out.absolute())
        require(there, f"{option} must be a file in a folder that exists, or in {out}", path)


def _floats(argument: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{argument} must be numbers separated by commas; found {text!r}") from None


def _integers(argument: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{argument} must be whole numbers separated by commas; found {text!r}") from None
    require(len(set(numbers)) == len(numbers), f"{argument} must differ from each other", repr(text))
    return numbers


def _names(kind: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    known = list(known)
    return tuple(named(kind, part.strip(), known) for part in text.split(","))


def _preset(name: str | None) -> federated.Preset | None:
    known: dict[str, federated.Preset] = {"published": "published", "text": "text"}
    require(name is None or name in known, "preset must be one of published, text", repr(name))
    return None if name is None else known[name]


def _precision(name: str | None) -> Precision | None:
    known: dict[str, Precision] = {"float32": "float32", "tf32": "tf32", "bfloat16": "bfloat16"}
    return None if name is None else known[named("precision", name, known)]


def _device(name: str | None) -> str | None:
    if name is None:
        return None
    require(re.fullmatch(r"cpu|cuda(:\d+)?", name) is not None, "device must be cpu, cuda or cuda:N", repr(name))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = name == "cpu" or int(name.partition(":")[2] or 0) < count
    require(there, f"device must be there: torch finds {count or 'no'} GPU{'s' if count > 1 else ''}", name)
    return name


def _numbers(values: torch.Tensor) -> str:
    return " ".join(f"{value:.4f}" for value in values.tolist())


def _plot(path: Path, problem: KnownFront, weights: torch.Tensor, losses: torch.Tensor, name: str) -> None:
    from equipoise.experiments import figures  # noqa: PLC0415

    figure = figures.front_grid([[(problem, name, losses)]], weights, {name: f"{problem.name}, {name}"}, size=3.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    say(console, f"wrote {path}")


if __name__ == "__main__":
    main()
