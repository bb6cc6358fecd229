"""What `equipoise reproduce` shows of the synthetic problems: tables and figures of section 4.1 and appendix B.1."""

import time
from collections.abc import Iterator, Sequence

import torch
from rich import box
from rich.table import Table

from equipoise import preference
from equipoise.conversion import Adaptive, Average, Last
from equipoise.experiments import figures, synthetic
from equipoise.experiments.cells import CellStore
from equipoise.experiments.request import Item, Request, bar, say, say_read, wrote, wrote_json
from equipoise.problems import VLMOP2
from equipoise.registry import methods
from equipoise.simplex import Entropic, Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import OMD, Linear, SmoothTchebycheff, Tchebycheff

WORKERS = 2


def items() -> dict[str, Item]:
    """Tables and figures by their names on the command line."""
    figure = frozenset({"preset", "workers"})
    table, sketch = figure | {"json_file"}, frozenset[str]()
    return {
        "table-hv": Item("tab:hv", "appendix B", "Hypervolumes of 14 methods on 7 problems", _table_hv, table),
        "table-step-size": Item(
            "-", "appendix B.1", "Claim: η_θ = 0.01 or 0.02 makes no difference", _table_step_size, table
        ),
        "table-excess": Item(
            "-", "section 4.1", "Claim: ExcessMTL's result is no artefact of its settings", _table_excess, table
        ),
        "fig-adaptive": Item("fig:1", "Figure 1", "A sample run of the adaptive conversion", _fig_adaptive, sketch),
        "fig-vlmop2": Item("fig:2", "Figure 2", "Ten methods on VLMOP2", _fig_vlmop2, figure),
        "fig-overview": Item(
            "-", "README", "LS, TCH, AdaOMD-TCH and the library's default on VLMOP2", _fig_overview, figure
        ),
        "fig-fronts": Item("fig:4, fig:8, fig:10", "appendix B", "All methods on all problems", _fig_fronts, figure),
        "fig-middle-ground": Item(
            "fig:9",
            "appendix B",
            "From LS to TCH by λ's step, from STCH to OMD by optimism",
            _fig_middle_ground,
            sketch,
        ),
    }


# ------------------------------------------------------------------------------- tab:hv
def _ensure(request: Request, names: Sequence[str], rows: Sequence[synthetic.Setting]) -> CellStore:
    """Compute what is missing, with a progress bar."""
    store = request.store
    tasks = synthetic.missing(store, request.settings, names, rows)
    lacking = {(task.problem, row, seed) for task in tasks for row in task.rows for seed in task.seeds}
    asked = [(name, row, seed) for name in names for row in rows for seed in synthetic.SEEDS]
    found = [synthetic.cell_spec(request.settings, *one) for one in asked if one not in lacking]
    say_read(request.console, store, found, len(asked), len(lacking))
    if tasks and not found:
        say(request.console, f"{len(lacking)} runs to make; what is finished is kept in {store.folder}")
    started = time.perf_counter()
    with bar(request.console) as shown:
        job = shown.add_task("computing", total=len(tasks))
        for _ in synthetic.compute(store, tasks, WORKERS if request.workers is None else request.workers):
            shown.advance(job)
    if tasks:
        request.console.print(
            f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}", highlight=False
        )
    return store


def _table_hv(request: Request) -> None:
    preset = request.settings
    store = _ensure(request, synthetic.PROBLEMS, synthetic.settings(preset))
    cells = synthetic.table(store, preset)
    console = request.console
    console.print(_hv_table(cells, preset))
    claimed = [cell for cell in cells if cell.within is not None]
    if preset == "published":
        outside = [cell for cell in claimed if not cell.within]
        count = f"{len(claimed) - len(outside)} of {len(claimed)} cells within tolerance of the paper"
        say(console, count + synthetic.without_claim(cells))
        for cell in outside:
            allowed = synthetic.tolerance(cell.method, cell.problem)
            console.print(
                f"outside: {cell.method} on {cell.problem}: {cell.mean:.4f}, paper {cell.paper[0]:.3f}, "
                f"difference {cell.mean - cell.paper[0]:+.4f}, tolerance {allowed}",
                highlight=False,
            )
    console.print(_imbalance_table(cells))
    note = synthetic.on_other_rays(preset)
    if note:
        say(console, note)
    gone = {cell.method: 0 for cell in cells}
    for cell in cells:
        gone[cell.method] += cell.diverged
    for method, number in gone.items():
        if number:
            console.print(f"{method}: {number} solutions diverged and do not count", highlight=False)
    wrote_json(console, request.json_file, synthetic.as_json(cells, preset))


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
    table = _grid("imbalance: median of largest/smallest w_i f_i − 1")
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
    _sweep(request, synthetic.both_step_sizes(request.settings), "step-size")


def _table_excess(request: Request) -> None:
    _sweep(request, synthetic.excess_settings(), "excess")


def _sweep(request: Request, rows: Sequence[synthetic.Setting], name: str) -> None:
    store = _ensure(request, synthetic.PROBLEMS, rows)
    cells = synthetic.table(store, request.settings, rows=rows)
    table = _grid(f"hypervolume, preset {request.settings}, {name}")
    for setting, row in _rows(cells):
        table.add_row(setting, *(f"{cell.mean:.4f}" for cell in row))
    request.console.print(table)
    records = [{"setting": c.method, "problem": c.problem, "mean": c.mean, "std": c.std} for c in cells]
    wrote_json(request.console, request.json_file, records)


# ------------------------------------------------------------------------------- figures
def _fig_adaptive(request: Request) -> None:
    # θ is its own objective vector here, so that the output can be drawn among the iterates.
    iterates = torch.tensor([[2.0, 2.0], [2.6, 2.5], [1.4, 1.5], [2.2, 0.8]])
    wrote(request, figures.save(figures.conversion_steps(Adaptive(), iterates), request.out, "fig-adaptive"))


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
    rows = [row for row in synthetic.settings(request.settings) if row.method in wanted]
    store = _ensure(request, ["VLMOP2"], rows)
    found = {cell.method: figures.tensor(cell.losses) for cell in synthetic.table(store, request.settings, ["VLMOP2"])}
    problem = VLMOP2()
    panels = [[(problem, method, found[method]) for method in row] for row in _FIG2]
    titles = {"OMDgd-TCH": "OMD-TCH", "AdaOMDgd-TCH": "AdaOMD-TCH"}
    figure = figures.front_grid(panels, preference.linspace(synthetic.PREFERENCES), titles)
    wrote(request, figures.save(figure, request.out, f"fig-vlmop2-{request.settings}"))


_OVERVIEW = {
    "LS": "weighted sum (LS)",
    "TCH": "worst objective (TCH)",
    "AdaOMDgd-TCH": "AdaOMD-TCH (paper)",
    "equipoise": "equipoise (default)",
}


def _fig_overview(request: Request) -> None:
    ours = methods()["equipoise"]
    rows = [row for row in synthetic.settings(request.settings) if row.method in _OVERVIEW]
    rows.append(synthetic.Setting("equipoise", ours.weighting, ours.conversion, 0.02))
    store = _ensure(request, ["VLMOP2"], rows)
    problem, weights = VLMOP2(), preference.linspace(synthetic.PREFERENCES)
    cells = {cell.method: cell for cell in synthetic.table(store, request.settings, ["VLMOP2"], rows)}
    panels = [[(problem, method, figures.tensor(cells[method].losses)) for method in _OVERVIEW]]
    titles = {method: f"{title}\n{_off(cells[method].imbalance)}" for method, title in _OVERVIEW.items()}
    figure = figures.front_grid(panels, weights, titles, size=1.6)
    figure.axes[0].set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))  # shared by all panels
    wrote(request, figures.save(figure, request.out, f"fig-overview-{request.settings}"))


def _off(imbalance: float) -> str:
    """How far the median solution is from its ray, in words."""
    if imbalance < 0.001:
        return "off by < 0.1 %"
    return "off by > 999 %" if imbalance >= 10 else f"off by {100 * imbalance:.1f} %"


def _fig_fronts(request: Request) -> None:
    store = _ensure(request, synthetic.PROBLEMS, synthetic.settings(request.settings))
    found = {(c.method, c.problem): figures.tensor(c.losses) for c in synthetic.table(store, request.settings)}
    for name, names in _FRONTS.items():
        panels = [
            [(synthetic.problem_of(problem, request.settings), method, found[method, problem]) for method in names]
            for problem in synthetic.PROBLEMS
        ]
        figure = figures.front_grid(panels, preference.linspace(synthetic.PREFERENCES), size=1.6)
        for row, problem in zip(figure.axes[:: len(names)], synthetic.PROBLEMS, strict=True):
            row.set_ylabel(f"{problem}\n$f_2$")
        wrote(request, figures.save(figure, request.out, f"{name}-{request.settings}"))


def _fig_middle_ground(request: Request) -> None:
    steps = (0.001, 0.01, 0.03, 0.1, 1.0)
    eta = torch.tensor(steps).reshape(-1, 1, 1)
    # The second row holds ηc = 1/μ: the smaller η, the less is summed up, until only STCH's softmax is left.
    stch, gd, eg = SmoothTchebycheff(0.01), Euclidean(), Entropic()
    product = 1.0 / 0.01
    runs = {
        "LS": Run(Linear(), {"x": Last()}, 0.01),
        "OMDgd": Run(OMD(eta, gd), {"x": Average()}, 0.02, sweep=(len(steps),)),
        "TCH": Run(Tchebycheff(), {"x": Last()}, 0.01),
        "STCH": Run(stch, {"x": Last()}, 0.02),
        "optimistic": Run(OMD(eta, eg, optimism=product / eta), {"x": Last()}, 0.02, sweep=(len(steps),)),
        "OMDeg": Run(OMD(1.0, eg), {"x": Last()}, 0.02),
    }
    problem, weights = VLMOP2(), preference.linspace(synthetic.PREFERENCES)
    found = solve_many(problem, weights, runs, seeds=synthetic.SEEDS, progress=request.console.is_terminal)
    losses = {name: solution.losses["x"].to(torch.float64) for name, solution in found.items()}
    above = [(problem, f"$\\eta_\\lambda$ = {value:g}", losses["OMDgd"][k]) for k, value in enumerate(steps)]
    below = [(problem, f"$c$ = {product / value:,.0f}", losses["optimistic"][k]) for k, value in enumerate(steps)]
    rows = [
        [(problem, "LS", losses["LS"]), *above, (problem, "TCH", losses["TCH"])],
        [(problem, "STCH", losses["STCH"]), *below, (problem, "$c$ = 0", losses["OMDeg"])],
    ]
    figure = figures.front_grid(rows, weights)
    wrote(request, figures.save(figure, request.out, "fig-middle-ground"))
