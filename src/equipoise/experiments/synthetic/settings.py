"""Section 4.1 and appendix B.1 of the paper: the runs on the synthetic problems, and their numbers.

The settings are data. There are two presets: `published`, the settings that produced the paper's table, and `text`,
those that its text gives. docs/synthetic.md explains the differences.
"""

import math
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise import metrics, preference
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.errors import UnknownNameError, require
from equipoise.experiments import paper
from equipoise.experiments.comparison import Number
from equipoise.experiments.item import Request
from equipoise.experiments.paper import Preset, Score
from equipoise.experiments.results import CellStore, Finished, Result, Spec
from equipoise.identity import digest
from equipoise.identity import spec as identity
from equipoise.problems import F6, KnownFront, problems
from equipoise.registry import Method, default
from equipoise.simplex import Entropic, Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import (
    EPO,
    FERERO,
    MGDA,
    OMD,
    PMTL,
    DualDescent,
    ExcessRisk,
    Linear,
    MoCo,
    Momentum,
    Reweighted,
    SmoothTchebycheff,
    Tchebycheff,
    Weighting,
)

SEEDS = (0, 19, 42)
STEPS = 1000
PREFERENCES = 10
PROBLEMS = ("VLMOP2", "F1", "F2", "F3", "F4", "F5", "F6")

DEFAULT = "equipoise"
"""The library's default method, which can be named beside the rows."""

STEP_SIZE = 0.02
"""The step size of methods that are not in the paper."""

_FIRST_TOLERANCES = {"TCH": (0.001, 0.02), "FERERO": (0.002, 0.02), "Moco": (0.003, 0.003)}


def tolerance(method: str, problem: str) -> float | None:
    """How far a cell's mean may be from the paper's; None if there is no claim."""
    if method == "ExcessMTL":
        return None
    on_vlmop2, elsewhere = _FIRST_TOLERANCES.get(method, (0.001, 0.001))
    return on_vlmop2 if problem == "VLMOP2" else elsewhere


@dataclass(frozen=True)
class Setting:
    """One row of the table: a method, the conversion of the output that it reports, and η_θ."""

    method: str
    weighting: Weighting[Any]
    conversion: Conversion[Any]
    step_size: float


def settings(preset: Preset) -> tuple[Setting, ...]:
    """The rows of tab:hv, in its order."""
    published = preset == "published"
    gd, eg = OMD(1.0, Euclidean()), OMD(1.0, Entropic())
    mgda = MGDA(margin=0.001) if published else MGDA()
    references = tuple(tuple(row) for row in preference.linspace(PREFERENCES).tolist())
    epo = EPO(target="direct", normalize=False, scale=False, floor=1e-3, fallback="preference")
    ferero = FERERO(solver=DualDescent(), target="direct")
    pmtl = PMTL(references, wait=True, target="direct")
    return (
        Setting("LS", Linear(), Last(), 0.01),
        Setting("TCH", Tchebycheff(scale="unit") if published else Tchebycheff(), Last(), 0.01),
        Setting("STCH", SmoothTchebycheff(0.01), Last(), 0.01 if published else 0.02),
        Setting("OMDgd-TCH", gd, Average(), 0.02),
        Setting("AdaOMDgd-TCH", gd, Adaptive(), 0.02),
        Setting("OMDeg-TCH", eg, Average(), 0.02),
        Setting("AdaOMDeg-TCH", eg, Adaptive(), 0.02),
        Setting("ExcessMTL", ExcessRisk(1.0, weigh="gradients") if published else ExcessRisk(1.0), Last(), 0.02),
        Setting("EPO", Reweighted(epo) if published else EPO(), Last(), 0.01),
        Setting("FERERO", Reweighted(ferero, coefficients=False) if published else FERERO(), Last(), 0.01),
        Setting("MGDA", mgda, Last(), 0.02),
        Setting("CR-MOGM", Momentum(mgda, rule="released", pool=(-2,)) if published else Momentum(mgda), Last(), 0.02),
        Setting("Moco", MoCo(1.0), Last(), 0.02),
        Setting("PMTL", Reweighted(pmtl) if published else PMTL(references), Last(), 0.01),
    )


def chosen(request: Request, rows: Sequence[Setting] | None = None) -> list[Setting]:
    """The requested rows: those named, or all of the table, then the user's own methods.

    `equipoise`, the default, is no row of the paper but can be named.

    Raises:
        UnknownNameError: The table has no row of this name.
    """
    usual = {row.method: row for row in (settings(request.settings) if rows is None else rows)}
    known = usual | {DEFAULT: own_row(DEFAULT, default())}
    own = dict(request.own)
    named = [name for name in request.methods or () if name not in own]
    for name in named:
        if name not in known:
            rule = "method must be a row of the table, or module:name of your own"
            raise UnknownNameError(f"{rule}; found {name!r}; rows: {', '.join(known)}")
    return [*(known[name] for name in named or usual), *(own_row(name, method) for name, method in own.items())]


def own_row(name: str, method: Method) -> Setting:
    """A row for a method that is not in the paper."""
    require(method.transform is None, f"{name} must have no transform: that is for clients", method.transform)
    return Setting(name, method.weighting, method.conversion, STEP_SIZE)


def both_step_sizes(preset: Preset) -> list[Setting]:
    """Every row with both step sizes, to check the claim that they make no difference."""
    return [
        replace(row, method=f"{row.method} η={eta}", step_size=eta) for row in settings(preset) for eta in (0.01, 0.02)
    ]


def excess_settings() -> list[Setting]:
    """ExcessMTL with many settings, to check the claim that its result does not depend on them."""
    return [
        Setting(f"η_λ={lam:g}, η={eta}", ExcessRisk(lam), Last(), eta)
        for lam in (0.01, 0.1, 1.0, 10.0)
        for eta in (0.01, 0.02)
    ]


def problem_of(name: str, preset: Preset) -> KnownFront:
    """A problem with the settings of the preset."""
    return F6(quartic=True) if preset == "published" and name == "F6" else problems()[name]


def cell_spec(preset: Preset, problem: str, row: Setting, seed: int) -> Spec:
    """Everything that determines a cell's result."""
    return {
        "experiment": "synthetic",
        "problem": identity(problem_of(problem, preset)),
        "weighting": identity(row.weighting),
        "conversion": identity(row.conversion),
        "step_size": row.step_size,
        "steps": STEPS,
        "preferences": PREFERENCES,
        "seed": seed,
    }


class Task(NamedTuple):
    """A unit of work for one process: some rows on one problem."""

    preset: Preset
    problem: str
    rows: tuple[Setting, ...]
    seeds: tuple[int, ...] = SEEDS

    @property
    def seconds(self) -> float:
        """About how long it takes one process; seeds are batched and cost almost nothing."""
        trajectories = {_trajectory(row): row for row in self.rows}
        return sum(_SLOW.get(row.method, 0.5) for row in trajectories.values())

    @property
    def specs(self) -> list[Spec]:
        """The specifications of its cells."""
        return [cell_spec(self.preset, self.problem, row, seed) for row in self.rows for seed in self.seeds]


def _trajectory(row: Setting) -> str:
    return digest([identity(row.weighting), row.step_size])


def run_task(task: Task) -> list[Finished]:
    """The cells of a task. Rows that share a trajectory are run once."""
    problem = problem_of(task.problem, task.preset)
    w = preference.linspace(PREFERENCES)
    runs: dict[str, Run] = {}
    for row in task.rows:
        key = _trajectory(row)
        known = runs[key].conversions if key in runs else {}
        runs[key] = Run(row.weighting, {**known, row.method: row.conversion}, row.step_size)
    found = solve_many(problem, w, runs, seeds=task.seeds, steps=STEPS, on_nonfinite="keep")
    cells = []
    for row in task.rows:
        solution = found[_trajectory(row)]
        losses = solution.losses[row.method].to(torch.float64)
        for k, seed in enumerate(task.seeds):
            result: Result = {
                "losses": losses[k].tolist(),
                "hypervolume": float(metrics.hypervolume(losses[k], problem.reference)),
                "diverged": int(solution.diverged[k].sum()),
            }
            names = {"task": task.problem, "method": row.method}
            cells.append(Finished(cell_spec(task.preset, task.problem, row, seed), result, names))
    return cells


class TableCell(NamedTuple):
    """A method on a problem, over the seeds."""

    method: str
    problem: str
    volume: Number
    """The hypervolume, beside the paper's."""
    tch: float
    """Mean over seeds and preferences of max_i w_i f_i."""
    imbalance: float
    """Median over seeds and preferences of largest/smallest w_i f_i − 1, without diverged runs."""
    diverged: int
    points: Tensor
    """The losses, (seeds, preferences, 2)."""

    @property
    def numbers(self) -> tuple[Number, ...]:
        """TCH value, hypervolume and imbalance."""
        of = self.problem, self.method
        tch, imbalance = (Score(value, math.nan) for value in (self.tch, self.imbalance))
        seeds = self.volume.seeds
        return Number(*of, "tch", seeds, tch), self.volume, Number(*of, "imbalance", seeds, imbalance)


def missing(
    store: CellStore, preset: Preset, names: Sequence[str], rows: Iterable[Setting], seeds: Sequence[int] = SEEDS
) -> list[Task]:
    """The missing work as tasks of about equal length, grouping rows that lack the same seeds."""
    tasks = []
    for name in names:
        parts: dict[tuple[bool, tuple[int, ...]], list[Setting]] = {}
        for row in rows:
            left = tuple(seed for seed in seeds if store.read(cell_spec(preset, name, row, seed)) is None)
            if left:
                parts.setdefault((row.method in _SLOW, left), []).append(row)
        tasks += [Task(preset, name, tuple(part), left) for (_, left), part in parts.items()]
    return sorted(tasks, key=lambda task: -task.seconds)


_SLOW = {"FERERO": 3.0, "PMTL": 3.0, "EPO": 3.0}
"""Seconds on one problem; methods that are not listed take half a second."""


def table(
    store: CellStore,
    preset: Preset,
    names: Sequence[str] = PROBLEMS,
    rows: Sequence[Setting] | None = None,
    seeds: Sequence[int] = SEEDS,
) -> list[TableCell]:
    """The table from the cells, row by row; by default the rows of tab:hv."""
    cells = []
    for row in settings(preset) if rows is None else rows:
        for name in names:
            found = [store.read(cell_spec(preset, name, row, seed)) for seed in seeds]
            results = [result for result in found if result is not None]
            if len(results) == len(seeds):
                cells.append(table_cell(row.method, name, seeds, results))
    return cells


def table_cell(method: str, problem: str, seeds: Sequence[int], results: Sequence[Result]) -> TableCell:
    """The numbers of a method on a problem, from one result per seed."""
    volumes = torch.tensor([r["hypervolume"] for r in results], dtype=torch.float64)
    ours = Score(float(volumes.mean()), float(volumes.std(correction=0)))
    theirs, allowed = paper.HYPERVOLUMES.get(method, {}).get(problem), tolerance(method, problem)
    claimed = allowed is not None and tuple(seeds) == SEEDS
    volume = Number(problem, method, "hypervolume", tuple(seeds), ours, theirs, claimed, allowed)
    points, w = torch.tensor([r["losses"] for r in results], dtype=torch.float64), preference.linspace(PREFERENCES)
    known = [value for value in metrics.imbalance(points, w).flatten().tolist() if not math.isnan(value)]
    imbalance = statistics.median(known) if known else math.nan
    diverged = sum(r["diverged"] for r in results)
    return TableCell(method, problem, volume, float(metrics.tch(points, w).nanmean()), imbalance, diverged, points)


def on_other_rays(preset: Preset, shown: Container[str] | None = None) -> str:
    """A note on the methods, of those shown, that in this preset target another point than the one measured; or ""."""
    weightings = {row.method: row.weighting for row in settings(preset) if shown is None or row.method in shown}
    inner = {name: one.inner for name, one in weightings.items() if isinstance(one, Reweighted)}
    names = [name for name, one in inner.items() if getattr(one, "target", "inverse") == "direct"]
    if not names:
        return ""
    them = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return (
        f"in the preset {preset}, the target of {them} is f ∝ w, as in the paper's runs, not f ∝ 1/w: this puts them "
        "far off the ray, not want of steps; --preset text has f ∝ 1/w"
    )


def without_claim(cells: Sequence[TableCell]) -> str:
    """Which cells are not counted, and why; empty if all are."""
    of = [cell.volume for cell in cells if cell.method == "ExcessMTL"]
    free = [(one.ours.mean, one.paper.mean, one.task) for one in of if one.paper is not None]
    if not free:
        return ""
    ours, theirs, problem = max(free, key=lambda one: abs(one[0] - one[1]))
    return (
        f"; no claim is made for the {len(free)} of ExcessMTL, which by its definition gives {ours:.3f} on {problem}, "
        f"where the paper has {theirs:.3f}, and no setting comes near that: equipoise reproduce table-excess"
    )


def as_json(cells: Sequence[TableCell], preset: Preset) -> list[dict[str, Any]]:
    """The table as a list of plain records."""
    return [
        {
            "method": cell.method,
            "problem": cell.problem,
            **cell.volume.ours._asdict(),
            "error": cell.volume.error,
            "seeds": list(cell.volume.seeds),
            "paper_mean": cell.volume.paper and cell.volume.paper.mean,
            "paper_std": cell.volume.paper and cell.volume.paper.std,
            "preset": preset,
            "within": cell.volume.within,
            "tch": cell.tch if math.isfinite(cell.tch) else None,
            "imbalance": cell.imbalance if math.isfinite(cell.imbalance) else None,
            "diverged": cell.diverged,
        }
        for cell in cells
    ]
