"""Section 4.1 and appendix B.1 of the paper: the synthetic problems (tab:hv, fig:2, fig:4, fig:8 to fig:10).

The settings are data. Two presets: `published`, what produced the paper's table, and `text`, what the
paper's text says. Where they differ is explained in docs/synthetic.md.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from equipoise import metrics, preference
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.experiments import paper
from equipoise.experiments import workers as workers_
from equipoise.experiments.cells import CellStore, Result, Spec
from equipoise.problems import F6, KnownFront, problems
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

Preset = Literal["published", "text"]

SEEDS = (0, 19, 42)
STEPS = 1000
PREFERENCES = 10
PROBLEMS = ("VLMOP2", "F1", "F2", "F3", "F4", "F5", "F6")

PAPER = paper.HYPERVOLUMES
"""In the order of PROBLEMS."""

_FIRST_TOLERANCES = {"TCH": (0.001, 0.02), "FERERO": (0.002, 0.02), "Moco": (0.003, 0.003)}


def tolerance(method: str, problem: str) -> float | None:
    """How far a cell's mean may be from the paper's; None where nothing is claimed."""
    if method == "ExcessMTL":
        return None
    on_vlmop2, elsewhere = _FIRST_TOLERANCES.get(method, (0.001, 0.001))
    return on_vlmop2 if problem == "VLMOP2" else elsewhere


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        method: The paper's name.
        weighting: The weighting.
        conversion: The output that is reported.
        step_size: η_θ.
    """

    method: str
    weighting: Weighting[Any]
    conversion: Conversion[Any]
    step_size: float


def settings(preset: Preset) -> tuple[Setting, ...]:
    """The rows of tab:hv, in its order."""
    gd, eg = OMD(1.0, Euclidean()), OMD(1.0, Entropic())
    shared = (
        Setting("OMDgd-TCH", gd, Average(), 0.02),
        Setting("AdaOMDgd-TCH", gd, Adaptive(), 0.02),
        Setting("OMDeg-TCH", eg, Average(), 0.02),
        Setting("AdaOMDeg-TCH", eg, Adaptive(), 0.02),
    )
    references = tuple(tuple(row) for row in preference.linspace(PREFERENCES).tolist())
    if preset == "published":
        classical = MGDA(margin=0.001)
        epo = EPO(target="direct", normalize=False, scale=False, floor=1e-3, fallback="preference")
        return (
            Setting("LS", Linear(), Last(), 0.01),
            Setting("TCH", Tchebycheff(scale="unit"), Last(), 0.01),
            Setting("STCH", SmoothTchebycheff(0.01), Last(), 0.01),
            *shared,
            Setting("ExcessMTL", ExcessRisk(1.0, weigh="gradients"), Last(), 0.02),
            Setting("EPO", Reweighted(epo), Last(), 0.01),
            Setting(
                "FERERO", Reweighted(FERERO(solver=DualDescent(), target="direct"), coefficients=False), Last(), 0.01
            ),
            Setting("MGDA", classical, Last(), 0.02),
            Setting("CR-MOGM", Momentum(classical, rule="released", pool=(-2,)), Last(), 0.02),
            Setting("Moco", MoCo(1.0), Last(), 0.02),
            Setting("PMTL", Reweighted(PMTL(references, wait=True, target="direct")), Last(), 0.01),
        )
    return (
        Setting("LS", Linear(), Last(), 0.01),
        Setting("TCH", Tchebycheff(), Last(), 0.01),
        Setting("STCH", SmoothTchebycheff(0.01), Last(), 0.02),
        *shared,
        Setting("ExcessMTL", ExcessRisk(1.0), Last(), 0.02),
        Setting("EPO", EPO(), Last(), 0.01),
        Setting("FERERO", FERERO(), Last(), 0.01),
        Setting("MGDA", MGDA(), Last(), 0.02),
        Setting("CR-MOGM", Momentum(MGDA()), Last(), 0.02),
        Setting("Moco", MoCo(1.0), Last(), 0.02),
        Setting("PMTL", PMTL(references), Last(), 0.01),
    )


def both_step_sizes(preset: Preset) -> list[Setting]:
    """Every row with either step size, for the claim that it makes no difference."""
    return [
        replace(row, method=f"{row.method} η={eta}", step_size=eta) for row in settings(preset) for eta in (0.01, 0.02)
    ]


def excess_settings() -> list[Setting]:
    """ExcessMTL with many settings, for the claim that its result is no artefact of them."""
    return [
        Setting(f"η_λ={lam:g}, η={eta}", ExcessRisk(lam), Last(), eta)
        for lam in (0.01, 0.1, 1.0, 10.0)
        for eta in (0.01, 0.02)
    ]


def problem_of(name: str, preset: Preset) -> KnownFront:
    """A problem as the preset has it."""
    return F6(quartic=True) if preset == "published" and name == "F6" else problems()[name]


def cell_spec(preset: Preset, problem: str, row: Setting, seed: int) -> Spec:
    """Everything that decides a cell's result."""
    return {
        "experiment": "synthetic",
        "problem": repr(problem_of(problem, preset)),
        "weighting": repr(row.weighting),
        "conversion": repr(row.conversion),
        "step_size": row.step_size,
        "steps": STEPS,
        "preferences": PREFERENCES,
        "seed": seed,
    }


class Task(NamedTuple):
    """What one process computes: some rows on one problem."""

    preset: Preset
    problem: str
    rows: tuple[Setting, ...]
    seeds: tuple[int, ...] = SEEDS


def run_task(task: Task) -> list[tuple[Spec, Result]]:
    """The cells of a task. Rows that share a trajectory are run once."""
    problem = problem_of(task.problem, task.preset)
    w = preference.linspace(PREFERENCES)
    runs: dict[str, Run] = {}
    for row in task.rows:
        key = f"{row.weighting!r} {row.step_size}"
        known = runs[key].conversions if key in runs else {}
        runs[key] = Run(row.weighting, {**known, row.method: row.conversion}, row.step_size)
    found = solve_many(problem, w, runs, seeds=task.seeds, steps=STEPS, on_nonfinite="keep")
    cells = []
    for row in task.rows:
        solution = found[f"{row.weighting!r} {row.step_size}"]
        losses = solution.losses[row.method].to(torch.float64)
        for k, seed in enumerate(task.seeds):
            result: Result = {
                "losses": losses[k].tolist(),
                "hypervolume": float(metrics.hypervolume(losses[k], problem.reference)),
                "diverged": int(solution.diverged[k].sum()),
            }
            cells.append((cell_spec(task.preset, task.problem, row, seed), result))
    return cells


class TableCell(NamedTuple):
    """A method on a problem, over the seeds."""

    method: str
    problem: str
    mean: float
    std: float
    imbalance: float
    diverged: int
    losses: list[list[list[float]]]

    @property
    def paper(self) -> tuple[float, float]:
        """The paper's mean and standard deviation."""
        return PAPER[self.method][PROBLEMS.index(self.problem)]

    @property
    def within(self) -> bool | None:
        """Whether the mean is as close to the paper's as is claimed; None where nothing is."""
        allowed = tolerance(self.method, self.problem)
        return None if allowed is None else abs(self.mean - self.paper[0]) <= allowed


def missing(store: CellStore, preset: Preset, names: Sequence[str], rows: Iterable[Setting]) -> list[Task]:
    """What is still to be computed, as tasks of about the same length: rows that lack the same seeds together."""
    tasks = []
    for name in names:
        parts: dict[tuple[bool, tuple[int, ...]], list[Setting]] = {}
        for row in rows:
            seeds = tuple(seed for seed in SEEDS if store.read(cell_spec(preset, name, row, seed)) is None)
            if seeds:
                parts.setdefault((row.method in _SLOW, seeds), []).append(row)
        tasks += [Task(preset, name, tuple(part), seeds) for (_, seeds), part in parts.items()]
    return sorted(tasks, key=lambda task: task.rows[0].method not in _SLOW)


_SLOW = frozenset({"FERERO", "PMTL", "EPO"})


def compute(store: CellStore, tasks: Sequence[Task], workers: int) -> Iterable[Task]:
    """Run tasks and store their cells; yields each task when its cells are in place."""
    return workers_.compute(store, tasks, run_task, workers)


def table(
    store: CellStore, preset: Preset, names: Sequence[str] = PROBLEMS, rows: Sequence[Setting] | None = None
) -> list[TableCell]:
    """The table from the cells, row by row; by default the rows of tab:hv."""
    cells = []
    for row in settings(preset) if rows is None else rows:
        for name in names:
            found = [store.read(cell_spec(preset, name, row, seed)) for seed in SEEDS]
            results = [result for result in found if result is not None]
            if len(results) < len(SEEDS):
                continue
            volumes = torch.tensor([r["hypervolume"] for r in results], dtype=torch.float64)
            cells.append(
                TableCell(
                    row.method,
                    name,
                    float(volumes.mean()),
                    float(volumes.std(correction=0)),
                    _imbalance([r["losses"] for r in results]),
                    sum(r["diverged"] for r in results),
                    [r["losses"] for r in results],
                )
            )
    return cells


def on_other_rays(preset: Preset) -> str:
    """Which methods a preset has look for another point than the one that is measured; empty if none does."""
    weightings = {row.method: row.weighting for row in settings(preset)}
    inner = {name: one.inner for name, one in weightings.items() if isinstance(one, Reweighted)}
    names = [name for name, one in inner.items() if getattr(one, "target", "inverse") == "direct"]
    if not names:
        return ""
    return (
        f"{', '.join(names[:-1])} and {names[-1]} look for f ∝ w in the preset {preset}, as in the paper's runs, not "
        "for f ∝ 1/w: they are far off the ray by their settings, not for want of steps; --preset text has f ∝ 1/w"
    )


def without_claim(cells: Sequence[TableCell]) -> str:
    """Which cells are not counted, and why; empty if all are."""
    free = [cell for cell in cells if cell.within is None]
    if not free:
        return ""
    far = max(free, key=lambda cell: abs(cell.mean - cell.paper[0]))
    return (
        f"; no claim is made for the {len(free)} of {', '.join(dict.fromkeys(cell.method for cell in free))}, which by "
        f"its definition gives {far.mean:.3f} on {far.problem}, where the paper has {far.paper[0]:.3f}, and no setting "
        "comes near that: equipoise reproduce table-excess"
    )


def _imbalance(losses: list[list[list[float]]]) -> float:
    """The median over seeds and preferences of largest/smallest w_i f_i − 1; what diverged does not count."""
    values = metrics.imbalance(torch.tensor(losses, dtype=torch.float64), preference.linspace(PREFERENCES))
    numbers: list[float] = [value for value in values.flatten().tolist() if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan


def as_json(cells: Sequence[TableCell], preset: Preset) -> list[dict[str, Any]]:
    """The table as a list of plain records."""
    return [
        {
            "method": cell.method,
            "problem": cell.problem,
            "mean": cell.mean,
            "std": cell.std,
            "paper_mean": cell.paper[0],
            "paper_std": cell.paper[1],
            "preset": preset,
            "within": cell.within,
            "imbalance": cell.imbalance if math.isfinite(cell.imbalance) else None,
            "diverged": cell.diverged,
        }
        for cell in cells
    ]
