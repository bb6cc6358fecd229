"""Section 4.1 and appendix B.1 of the paper: the synthetic problems (tab:hv, fig:2, fig:4, fig:8 to fig:10).

The settings are data. Two presets: `published`, what produced the paper's table, and `text`, what the
paper's text says. Where they differ is explained in docs/synthetic.md.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple

import torch

from equipoise import metrics, preference
from equipoise.conversion import Adaptive, Average, Conversion, Last
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

PAPER: dict[str, tuple[tuple[float, float], ...]] = {
    "LS": (
        (0.042, 0.001),
        (0.938, 0.065),
        (1.005, 0.005),
        (0.967, 0.018),
        (1.002, 0.013),
        (1.004, 0.019),
        (0.989, 0.038),
    ),
    "TCH": (
        (0.295, 0.000),
        (1.011, 0.009),
        (1.021, 0.009),
        (1.015, 0.003),
        (1.024, 0.016),
        (1.027, 0.003),
        (1.023, 0.006),
    ),
    "STCH": (
        (0.291, 0.000),
        (0.986, 0.007),
        (0.995, 0.007),
        (0.966, 0.004),
        (1.004, 0.014),
        (1.003, 0.007),
        (1.014, 0.007),
    ),
    "OMDgd-TCH": (
        (0.289, 0.001),
        (0.970, 0.007),
        (0.990, 0.003),
        (0.950, 0.003),
        (0.973, 0.003),
        (0.983, 0.010),
        (1.003, 0.004),
    ),
    "AdaOMDgd-TCH": (
        (0.292, 0.000),
        (0.992, 0.005),
        (1.008, 0.004),
        (0.970, 0.003),
        (1.006, 0.013),
        (1.014, 0.010),
        (1.015, 0.004),
    ),
    "OMDeg-TCH": (
        (0.269, 0.006),
        (0.960, 0.010),
        (0.992, 0.004),
        (0.926, 0.024),
        (0.942, 0.013),
        (0.962, 0.016),
        (0.977, 0.018),
    ),
    "AdaOMDeg-TCH": (
        (0.270, 0.006),
        (0.981, 0.009),
        (1.006, 0.004),
        (0.944, 0.021),
        (0.979, 0.015),
        (0.984, 0.026),
        (0.990, 0.014),
    ),
    "ExcessMTL": (
        (0.119, 0.011),
        (0.931, 0.022),
        (0.965, 0.026),
        (0.986, 0.012),
        (0.994, 0.005),
        (0.993, 0.018),
        (0.989, 0.016),
    ),
    "EPO": (
        (0.283, 0.003),
        (0.968, 0.003),
        (0.953, 0.007),
        (0.966, 0.003),
        (0.957, 0.014),
        (0.965, 0.024),
        (0.952, 0.020),
    ),
    "FERERO": (
        (0.289, 0.000),
        (1.010, 0.008),
        (1.001, 0.001),
        (0.993, 0.005),
        (0.996, 0.009),
        (1.002, 0.014),
        (0.995, 0.009),
    ),
    "MGDA": (
        (0.232, 0.006),
        (0.963, 0.015),
        (0.970, 0.015),
        (0.981, 0.013),
        (0.970, 0.014),
        (0.956, 0.018),
        (0.994, 0.010),
    ),
    "CR-MOGM": (
        (0.231, 0.006),
        (0.963, 0.015),
        (0.971, 0.014),
        (0.982, 0.013),
        (0.970, 0.014),
        (0.958, 0.017),
        (0.993, 0.010),
    ),
    "Moco": (
        (0.255, 0.011),
        (0.956, 0.023),
        (0.977, 0.014),
        (0.979, 0.021),
        (0.992, 0.034),
        (0.981, 0.024),
        (0.989, 0.035),
    ),
    "PMTL": (
        (0.208, 0.028),
        (0.883, 0.021),
        (0.892, 0.022),
        (0.884, 0.004),
        (0.887, 0.019),
        (0.880, 0.043),
        (0.884, 0.011),
    ),
}
"""tab:hv: mean and standard deviation of the hypervolume, in the order of PROBLEMS."""

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
    """What one process computes: some rows on one problem, for all seeds."""

    preset: Preset
    problem: str
    rows: tuple[Setting, ...]


def run_task(task: Task) -> list[tuple[Spec, Result]]:
    """The cells of a task. Rows that share a trajectory are run once."""
    problem = problem_of(task.problem, task.preset)
    w = preference.linspace(PREFERENCES)
    runs: dict[str, Run] = {}
    for row in task.rows:
        key = f"{row.weighting!r} {row.step_size}"
        known = runs[key].conversions if key in runs else {}
        runs[key] = Run(row.weighting, {**known, row.method: row.conversion}, row.step_size)
    found = solve_many(problem, w, runs, seeds=SEEDS, steps=STEPS, on_nonfinite="keep")
    cells = []
    for row in task.rows:
        solution = found[f"{row.weighting!r} {row.step_size}"]
        losses = solution.losses[row.method].to(torch.float64)
        for k, seed in enumerate(SEEDS):
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
    """What is still to be computed, as tasks of about the same length."""
    tasks = []
    for name in names:
        wanted = [row for row in rows if any(store.read(cell_spec(preset, name, row, seed)) is None for seed in SEEDS)]
        for slow in (True, False):
            part = tuple(row for row in wanted if (row.method in _SLOW) == slow)
            if part:
                tasks.append(Task(preset, name, part))
    return sorted(tasks, key=lambda task: task.rows[0].method not in _SLOW)


_SLOW = frozenset({"FERERO", "PMTL", "EPO"})


def compute(store: CellStore, tasks: Sequence[Task], workers: int) -> Iterable[Task]:
    """Run tasks and store their cells; yields each task when its cells are in place."""
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            for spec, result in run_task(task):
                store.write(spec, result)
            yield task
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        pending = {pool.submit(run_task, task): task for task in tasks}
        try:
            for future in as_completed(pending):
                for spec, result in future.result():
                    store.write(spec, result)
                yield pending[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_thread() -> None:
    torch.set_num_threads(1)


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


def _imbalance(losses: list[list[list[float]]]) -> float:
    """The median over seeds and preferences of largest/smallest w_i f_i − 1; what diverged does not count."""
    values = metrics.imbalance(torch.tensor(losses, dtype=torch.float64), preference.linspace(PREFERENCES))
    numbers: list[float] = [value for value in values.flatten().tolist() if not math.isnan(value)]
    return statistics.median(numbers)


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
