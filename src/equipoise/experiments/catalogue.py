"""What `equipoise reproduce` can reproduce: every item with the paper's label and number."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from equipoise import preference
from equipoise.conversion import Adaptive, Average, Last
from equipoise.experiments import figures, synthetic
from equipoise.experiments.cells import CellStore, write_atomically
from equipoise.problems import VLMOP2
from equipoise.simplex import Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import OMD, ExcessRisk, Linear, Tchebycheff


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        console: Where to print.
        out: Folder for pictures, and for cells in its `cells`.
        preset: Which settings.
        workers: Processes.
        json_file: Where a table is to be written besides.
    """

    console: Console
    out: Path
    preset: synthetic.Preset
    workers: int
    json_file: Path | None


@dataclass(frozen=True)
class Item:
    """A table or a figure.

    Attributes:
        label: Its LaTeX label in the paper.
        number: Its printed number.
        caption: What it shows.
        run: What makes it.
    """

    label: str
    number: str
    caption: str
    run: Callable[[Request], None]


def items() -> dict[str, Item]:
    """Everything that can be reproduced, by the name on the command line."""
    return {
        "table-hv": Item("tab:hv", "appendix B", "Hypervolumes of 14 methods on 7 problems", _table_hv),
        "table-step-size": Item("-", "appendix B.1", "Claim: η_θ = 0.01 or 0.02 makes no difference", _table_step_size),
        "table-excess": Item(
            "-", "section 4.1", "Claim: ExcessMTL's result is no artefact of its settings", _table_excess
        ),
        "fig-adaptive": Item("fig:1", "Figure 1", "A sample run of the adaptive conversion", _fig_adaptive),
        "fig-vlmop2": Item("fig:2", "Figure 2", "Ten methods on VLMOP2", _fig_vlmop2),
        "fig-fronts": Item("fig:4, fig:8, fig:10", "appendix B", "All methods on all problems", _fig_fronts),
        "fig-middle-ground": Item("fig:9", "appendix B", "From LS to TCH by the step of λ", _fig_middle_ground),
    }


# ------------------------------------------------------------------------------- tab:hv
def _ensure(request: Request, names: Sequence[str], rows: Sequence[synthetic.Setting]) -> CellStore:
    """Compute what is missing, with a progress bar."""
    store = CellStore(request.out / "cells")
    tasks = synthetic.missing(store, request.preset, names, rows)
    started = time.perf_counter()
    with _progress(request.console) as bar:
        job = bar.add_task("computing", total=len(tasks))
        for _ in synthetic.compute(store, tasks, request.workers):
            bar.advance(job)
    if tasks:
        request.console.print(
            f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}", highlight=False
        )
    return store


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _table_hv(request: Request) -> None:
    preset = request.preset
    store = _ensure(request, synthetic.PROBLEMS, synthetic.settings(preset))
    cells = synthetic.table(store, preset)
    console = request.console
    console.print(_hv_table(cells, preset))
    claimed = [cell for cell in cells if cell.within is not None]
    if preset == "published":
        outside = [cell for cell in claimed if not cell.within]
        console.print(
            f"{len(claimed) - len(outside)} of {len(claimed)} cells within tolerance of the paper", highlight=False
        )
        for cell in outside:
            allowed = synthetic.tolerance(cell.method, cell.problem)
            console.print(
                f"outside: {cell.method} on {cell.problem}: {cell.mean:.4f}, paper {cell.paper[0]:.3f}, "
                f"difference {cell.mean - cell.paper[0]:+.4f}, tolerance {allowed}",
                highlight=False,
            )
    console.print(_imbalance_table(cells))
    gone = {cell.method: 0 for cell in cells}
    for cell in cells:
        gone[cell.method] += cell.diverged
    for method, number in gone.items():
        if number:
            console.print(f"{method}: {number} solutions diverged and do not count", highlight=False)
    if request.json_file is not None:
        write_atomically(request.json_file, json.dumps(synthetic.as_json(cells, preset), indent=1))
        console.print(f"wrote {request.json_file}", highlight=False)


def _hv_table(cells: Sequence[synthetic.TableCell], preset: synthetic.Preset) -> Table:
    seeds = ", ".join(map(str, synthetic.SEEDS))
    table = _grid(f"tab:hv, preset {preset}: hypervolume, mean and std over seeds {seeds}")
    for method, row in _rows(cells):
        table.add_row(
            f"{method}\n[dim]std\npaper\nours − paper[/dim]",
            *(
                f"{cell.mean:.4f}{_MARKS[cell.within if preset == 'published' else None]}\n"
                f"[dim]{cell.std:.3f} \n{cell.paper[0]:.3f} \n{cell.mean - cell.paper[0]:+.3f} [/dim]"
                for cell in row
            ),
        )
    return table


_MARKS = {True: "✓", False: "✗", None: " "}


def _imbalance_table(cells: Sequence[synthetic.TableCell]) -> Table:
    table = _grid("preference accuracy: median of largest/smallest w_i f_i − 1")
    for method, row in _rows(cells):
        table.add_row(method, *(f"{c.imbalance:.1%}" if c.imbalance < 10 else "> 999%" for c in row))
    return table


def _grid(title: str) -> Table:
    """A table with a column per problem, narrow enough for eighty characters."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in synthetic.PROBLEMS:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rows(cells: Sequence[synthetic.TableCell]) -> Iterator[tuple[str, list[synthetic.TableCell]]]:
    for method in dict.fromkeys(cell.method for cell in cells):
        yield method, [cell for cell in cells if cell.method == method]


# ------------------------------------------------------------------------------- two claims of the appendix
def _table_step_size(request: Request) -> None:
    rows = []
    for row in synthetic.settings(request.preset):
        rows += [replace(row, method=f"{row.method} η={eta}", step_size=eta) for eta in (0.01, 0.02)]
    _sweep(request, rows, "step-size")


def _table_excess(request: Request) -> None:
    rows = [
        synthetic.Setting(f"η_λ={lam:g}, η={eta}", ExcessRisk(lam), Last(), eta)
        for lam in (0.01, 0.1, 1.0, 10.0)
        for eta in (0.01, 0.02)
    ]
    _sweep(request, rows, "excess")


def _sweep(request: Request, rows: Sequence[synthetic.Setting], name: str) -> None:
    store = _ensure(request, synthetic.PROBLEMS, rows)
    cells = synthetic.table(store, request.preset, rows=rows)
    table = _grid(f"hypervolume, preset {request.preset}, {name}")
    for setting, row in _rows(cells):
        table.add_row(setting, *(f"{cell.mean:.4f}" for cell in row))
    request.console.print(table)
    if request.json_file is not None:
        records = [{"setting": c.method, "problem": c.problem, "mean": c.mean, "std": c.std} for c in cells]
        write_atomically(request.json_file, json.dumps(records, indent=1))
        request.console.print(f"wrote {request.json_file}", highlight=False)


# ------------------------------------------------------------------------------- figures
def _fig_adaptive(request: Request) -> None:
    # θ is its own objective vector here, so that the output can be drawn among the iterates.
    iterates = torch.tensor([[2.0, 2.0], [2.6, 2.5], [1.4, 1.5], [2.2, 0.8]])
    _say(request, figures.save(figures.conversion_steps(Adaptive(), iterates), request.out, "fig-adaptive"))


_FIG2 = (
    ("LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH"),
    ("MGDA", "PMTL", "ExcessMTL", "EPO", "FERERO"),
)
_FRONTS = {
    "fig-4": ("LS", "TCH", "MGDA", "CR-MOGM", "Moco"),
    "fig-8": ("STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH"),
    "fig-10": ("ExcessMTL", "PMTL", "EPO", "FERERO"),
}


def _fig_vlmop2(request: Request) -> None:
    wanted = {name for row in _FIG2 for name in row}
    rows = [row for row in synthetic.settings(request.preset) if row.method in wanted]
    store = _ensure(request, ["VLMOP2"], rows)
    found = {cell.method: figures.tensor(cell.losses) for cell in synthetic.table(store, request.preset, ["VLMOP2"])}
    problem = VLMOP2()
    panels = [[(problem, method, found[method]) for method in row] for row in _FIG2]
    titles = {"OMDgd-TCH": "OMD-TCH", "AdaOMDgd-TCH": "AdaOMD-TCH"}
    figure = figures.front_grid(panels, preference.linspace(synthetic.PREFERENCES), titles)
    _say(request, figures.save(figure, request.out, f"fig-vlmop2-{request.preset}"))


def _fig_fronts(request: Request) -> None:
    store = _ensure(request, synthetic.PROBLEMS, synthetic.settings(request.preset))
    found = {(c.method, c.problem): figures.tensor(c.losses) for c in synthetic.table(store, request.preset)}
    for name, names in _FRONTS.items():
        panels = [
            [(synthetic.problem_of(problem, request.preset), method, found[method, problem]) for method in names]
            for problem in synthetic.PROBLEMS
        ]
        figure = figures.front_grid(panels, preference.linspace(synthetic.PREFERENCES), size=1.6)
        for row, problem in zip(figure.axes[:: len(names)], synthetic.PROBLEMS, strict=True):
            row.set_ylabel(f"{problem}\n$f_2$")
        _say(request, figures.save(figure, request.out, f"{name}-{request.preset}"))


def _fig_middle_ground(request: Request) -> None:
    steps = (0.001, 0.01, 0.03, 0.1, 1.0)
    eta = torch.tensor(steps).reshape(-1, 1, 1)
    runs = {
        "LS": Run(Linear(), {"x": Last()}, 0.01),
        "OMD": Run(OMD(eta, Euclidean()), {"x": Average()}, 0.02, sweep=(len(steps),)),
        "TCH": Run(Tchebycheff(), {"x": Last()}, 0.01),
    }
    problem, weights = VLMOP2(), preference.linspace(synthetic.PREFERENCES)
    found = solve_many(problem, weights, runs, seeds=synthetic.SEEDS, progress=request.console.is_terminal)
    losses = {name: solution.losses["x"].to(torch.float64) for name, solution in found.items()}
    row = [(problem, "LS", losses["LS"])]
    row += [(problem, f"$\\eta_\\lambda$ = {value:g}", losses["OMD"][k]) for k, value in enumerate(steps)]
    row.append((problem, "TCH", losses["TCH"]))
    figure = figures.front_grid([row], weights)
    _say(request, figures.save(figure, request.out, "fig-middle-ground"))


def _say(request: Request, paths: Sequence[Path]) -> None:
    request.console.print("wrote " + ", ".join(str(path) for path in paths), highlight=False)
