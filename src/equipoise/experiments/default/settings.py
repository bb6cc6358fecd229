"""Many methods on many problems with all their outputs: the comparison of the default method beyond the paper.

Twenty-six problems with known fronts or ten clients, and eight convex ones with up to a thousand objectives. A cell is
one trajectory on one problem: all seeds, all outputs. `OptOMD-TCH`, the former default, was chosen on F1 to F6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise import metrics, preference
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.results import CellStore, Finished, Result, Spec, short
from equipoise.federated import simulate
from equipoise.identity import spec as identity
from equipoise.problems import DTLZ1, DTLZ2, DTLZ3, DTLZ4, F6, KnownFront, Needle, Planted, problems
from equipoise.registry import Method, methods
from equipoise.simplex import Entropic, Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import EPO, FERERO, OMD, FedMGDAPlus, SmoothTchebycheff, Tchebycheff, Weighting

SEEDS = tuple(range(10))
STEPS = 1000
STEP_SIZE = 0.02
FLOOR = 0.01
PAPER = ("F1", "F2", "F3", "F4", "F5", "F6", "F6 published", "VLMOP2")
"""The problems of the paper's hypervolume table."""
DIGITS = ("digits-rotation", "digits-class2")
"""Federated tasks of ten clients, each an objective."""
DEFAULT = "equipoise"
SMOOTHED = ("STCH 0.01", "STCH 0.03", "STCH 0.1")


def outputs() -> dict[str, Conversion[Any]]:
    """The outputs of every OMD trajectory, by column head."""
    return {
        "last": Last(),
        "uniform": Average(),
        "adaptive": Adaptive(),
        "p=4": Adaptive(power=4.0),
        "p=4 K=8": Adaptive(power=4.0, capacity=8),
        "p=8 K=8": Adaptive(power=8.0, capacity=8),
    }


# ------------------------------------------------------------------------------- trajectories
@dataclass(frozen=True)
class AgileEntropic(Entropic):
    """EG above a floor, whose adaptive step runs as mirror descent, not as dual averaging.

    With a floor the divergence is bounded by log(m/floor), which is all that mirror descent with an adaptive
    step needs (docs/theory.md, section 8).
    """

    lazy: ClassVar[bool] = False

    def step_scale(self, m: int) -> float:
        """√(μD) with μ = 1 and D = log(m/floor)."""
        return math.sqrt(math.log(m / float(self.floor)))


@dataclass(frozen=True)
class Row:
    """A trajectory with its outputs by name, and the one that the method reports."""

    name: str
    weighting: Weighting[Any]
    outputs: dict[str, Conversion[Any]] = field(default_factory=lambda: {"last": Last()})
    answer: str = "last"


def rows(problem: str, own: Sequence[tuple[str, Method]] = ()) -> list[Row]:
    """The rows of a problem's table: OMD with many settings, other methods, the default, the user's own."""
    crowd = problem in crowds()
    of = {name: output for name, output in outputs().items() if not crowd or name in {"last", "p=8 K=8"}}

    def omd(name: str, step: Any, mirror: Entropic | Euclidean, c: float, answer: str = "p=8 K=8", **more: Any) -> Row:  # noqa: ANN401
        return Row(f"{name} c={c:g}", OMD(step, mirror, optimism=c, **more), of, answer)

    former = omd("PGD adaptive τ=3", "adaptive", Euclidean(), 30.0, smoothing=3.0)
    agile = omd("EG floor agile", "adaptive", AgileEntropic(FLOOR), 30.0)
    mirrors, steps = (("PGD", Euclidean()), ("EG", Entropic())), (("η=1", 1.0), ("adaptive", "adaptive"))
    if crowd:
        some = (omd(f"{name} adaptive", "adaptive", mirror, 30.0) for name, mirror in mirrors)
        return [former, *some, agile, _answering(DEFAULT, methods()[DEFAULT])]
    grid = [
        omd(f"{name} {label}", step, mirror, c, "adaptive")
        for name, mirror in mirrors
        for label, step in steps
        for c in (0.0, 30.0, 100.0)
    ]
    grid.append(former)
    if problem in PAPER:
        grid += [*(omd(f"EG floor {label}", step, Entropic(FLOOR), 30.0) for label, step in steps), agile]
    others = [Row("TCH", Tchebycheff()), *(Row(f"STCH {mu:g}", SmoothTchebycheff(mu)) for mu in (0.01, 0.03, 0.1))]
    if problem in DIGITS:
        others.append(Row("FedMGDA+", FedMGDAPlus(0.5, "models")))
    if not problem.endswith("m=5"):  # there their programs would take a quarter of an hour each
        others += [Row("EPO", EPO()), Row("FERERO", FERERO())]
    answering = (_answering(name, method) for name, method in ((DEFAULT, methods()[DEFAULT]), *own))
    return [*grid, *others, *answering]


def _answering(name: str, method: Method) -> Row:
    """A row of a method with a conversion of its own."""
    return Row(name, method.weighting, {"last": Last(), "answer": method.conversion}, "answer")


# ------------------------------------------------------------------------------- problems
class Setting(NamedTuple):
    """A problem with the preferences it is solved for."""

    problem: KnownFront
    preferences: Tensor
    """(preferences, m)."""


@cache
def settings() -> dict[str, Setting]:
    """The synthetic problems by their name in the table: first those of the paper, F6 also as it was published."""
    named = problems()
    named["F6 published"] = F6(quartic=True)
    paper = {name: named[name] for name in PAPER}
    others = {name: named[name] for name in ("VLMOP1", "ZDT1", "ZDT2", "ZDT3", "ZDT4", "ZDT6")}
    many: dict[str, KnownFront] = {
        f"{kind.name} m={m}": kind(m=m) for kind in (DTLZ1, DTLZ2, DTLZ3, DTLZ4) for m in (2, 3, 5)
    }
    return {name: Setting(problem, spread(problem.m)) for name, problem in (paper | others | many).items()}


def spread(m: int) -> Tensor:
    """The paper's ten preferences for two objectives; even grids of ten for three and of fifteen for five."""
    return preference.grid({2: 9, 3: 3, 5: 2}[m], m, margin=0.01)


def on_front(setting: Setting) -> Tensor:
    """Which preferences have a ray that meets the front, (preferences,)."""
    return metrics.imbalance(setting.problem.solution(setting.preferences), setting.preferences) < 1e-6


def exact(setting: Setting) -> tuple[float, float]:
    """Hypervolume of the exact TCH solutions, and their mean TCH value."""
    losses = setting.problem.solution(setting.preferences)
    volume = metrics.hypervolume(losses, setting.problem.reference)
    return float(volume), float(metrics.tch(losses, setting.preferences).mean())


@cache
def crowds() -> dict[str, Planted]:
    """Convex problems of many objectives, with λ* spread over all of them or half on one."""
    return {f"{kind.name} m={m}": kind(m, 4, 0.02) for kind in (Planted, Needle) for m in (2, 10, 100, 1000)}


def names_of_problems() -> tuple[str, ...]:
    """All problems, in the order in which they are run."""
    return (*settings(), *DIGITS, *crowds())


# ------------------------------------------------------------------------------- cells
def cell_spec(problem: str, row: Row) -> Spec:
    """Everything that determines a cell's result."""
    spec: Spec = {
        "experiment": "conversions",
        "weighting": identity(row.weighting),
        "outputs": identity(row.outputs),
        "seeds": list(SEEDS),
    }
    if problem in DIGITS:
        return {**spec, "problem": identity(federated.tasks()[problem])}
    of = {"step_size": STEP_SIZE, "steps": STEPS}
    if problem in crowds():
        return {**spec, **of, "problem": identity(crowds()[problem])}
    setting = settings()[problem]
    return {**spec, **of, "problem": identity(setting.problem), "preferences": len(setting.preferences)}


class Task(NamedTuple):
    """A unit of work for one process: some rows on a problem, for all seeds."""

    problem: str
    rows: tuple[Row, ...]

    @property
    def seconds(self) -> float:
        """About how long it takes one process."""
        slow = 60.0 if self.problem in DIGITS else 3.0
        return sum(slow * (8.0 if row.name in _SLOW else 1.0) for row in self.rows)

    @property
    def specs(self) -> list[Spec]:
        """The specifications of its cells."""
        return [cell_spec(self.problem, row) for row in self.rows]


_SLOW = frozenset({"EPO", "FERERO"})


def missing(store: CellStore, names: Sequence[str], own: Sequence[tuple[str, Method]] = ()) -> list[Task]:
    """The tasks that are still to be computed: four rows at a time, or one slow row."""
    tasks = []
    for name in names:
        left = [row for row in rows(name, own) if store.read(cell_spec(name, row)) is None]
        fast = [row for row in left if row.name not in _SLOW]
        tasks += [Task(name, tuple(fast[k : k + 4])) for k in range(0, len(fast), 4)]
        tasks += [Task(name, (row,)) for row in left if row.name in _SLOW]
    return sorted(tasks, key=lambda task: -task.seconds)


def run_task(task: Task) -> list[Finished]:
    """The cells of a task."""
    run = _federated if task.problem in DIGITS else _crowd if task.problem in crowds() else _synthetic
    return [
        Finished(cell_spec(task.problem, row), result, {"task": task.problem, "method": row.name, "output": row.answer})
        for row, result in zip(task.rows, run(task), strict=True)
    ]


def _synthetic(task: Task) -> list[Result]:
    setting = settings()[task.problem]
    runs = {row.name: Run(row.weighting, row.outputs, STEP_SIZE) for row in task.rows}
    found = solve_many(setting.problem, setting.preferences, runs, seeds=SEEDS, steps=STEPS, on_nonfinite="keep")
    met = on_front(setting)
    results: list[Result] = []
    for row in task.rows:
        result: Result = {"diverged": int(found[row.name].diverged.sum())}
        for name, answers in found[row.name].losses.items():
            losses = answers.to(torch.float64)
            result[name] = {
                "hypervolume": short(metrics.hypervolume(losses, setting.problem.reference)),
                "tch": short(metrics.tch(losses, setting.preferences).nanmean(-1)),
                "imbalance": _quantiles(metrics.imbalance(losses, setting.preferences)[:, met]),
            }
        results.append(result)
    return results


def _federated(task: Task) -> list[Result]:
    results: list[Result] = []
    for row in task.rows:
        found = simulate(federated.tasks()[task.problem], row.weighting, seeds=SEEDS, conversions=row.outputs)
        result: Result = {"diverged": 0}
        for name, train in found.train.items():
            losses, test = train.losses.to(torch.float64), found.test[name].losses.to(torch.float64)
            w = torch.full((losses.shape[-1],), 1.0 / losses.shape[-1], dtype=torch.float64)
            result[name] = {
                "tch": short(metrics.tch(losses, w)),
                "test": short(metrics.tch(test, w)),
                "imbalance": _quantiles(metrics.imbalance(losses, w)),
            }
        results.append(result)
    return results


def _crowd(task: Task) -> list[Result]:
    problem = crowds()[task.problem]
    # The coefficients λ∘w sum to 1/m: with m times the step size, θ moves equally far for every m.
    runs = {row.name: Run(row.weighting, row.outputs, STEP_SIZE * problem.m) for row in task.rows}
    found = solve_many(problem, problem.w.unsqueeze(0), runs, seeds=SEEDS, steps=STEPS)
    return [
        {
            output: {"gap": short(problem.gap(x.to(torch.float64)).squeeze(-1) / problem.value)}
            for output, x in found[row.name].params.items()
        }
        for row in task.rows
    ]


def _quantiles(values: Tensor) -> list[float]:
    """The 10 %, 50 % and 90 % quantiles without NaN; infinite if nothing is left."""
    known = values.flatten()
    known = known[~known.isnan()].sort().values
    if len(known) == 0:
        return [math.inf] * 3
    cut: list[float] = short(torch.stack([known[round(q * (len(known) - 1))] for q in (0.1, 0.5, 0.9)]))
    return cut


# ------------------------------------------------------------------------------- numbers
class Entry(NamedTuple):
    """One output of one trajectory on one problem, over the seeds."""

    problem: str
    method: str
    output: str
    answer: bool
    """Whether this is the output that the method reports."""
    tch: float
    """Mean over seeds and preferences of max_i w_i f_i."""
    hypervolume: float
    """Mean; NaN for digits."""
    deviation: float
    """The standard deviation of the hypervolume over the seeds."""
    imbalance: float
    """Median over seeds and the preferences whose ray meets the front of largest/smallest w_i f_i − 1."""
    diverged: int
    test: float
    """Digits: TCH value on the test samples; else NaN."""


def table(store: CellStore, own: Sequence[tuple[str, Method]] = ()) -> list[Entry]:
    """All entries that have cells, problem by problem, row by row."""
    entries = []
    for problem in (*settings(), *DIGITS):
        for row in rows(problem, own):
            result = store.read(cell_spec(problem, row)) or {}
            for output, of in ((name, result[name]) for name in row.outputs if result):
                tch, volumes, test = (_tensor(of.get(key, [math.nan])) for key in ("tch", "hypervolume", "test"))
                deviation = float(volumes.std(correction=0)) if len(volumes) > 1 else math.nan
                means = float(tch.mean()), float(volumes.mean()), deviation, of["imbalance"][1], result["diverged"]
                entries.append(Entry(problem, row.name, output, output == row.answer, *means, float(test.mean())))
    return entries


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gaps(store: CellStore) -> dict[str, dict[str, float]]:
    """The mean gap of every method's answer relative to the optimal value, by problem (many objectives) and method."""
    found: dict[str, dict[str, float]] = {}
    for name in crowds():
        for row in rows(name):
            result = store.read(cell_spec(name, row))
            if result is not None:
                found.setdefault(name, {})[row.name] = float(_tensor(result[row.answer]["gap"]).mean())
    return found


class Tally(NamedTuple):
    """How often the default is better or worse than another method, over the problems."""

    method: str
    tch: tuple[int, int]
    hypervolume: tuple[int, int]


RIVALS: dict[str, tuple[tuple[str, str], ...]] = {
    "STCH 0.01": (("STCH 0.01", "last"),),
    "STCH, best of three μ": tuple((name, "last") for name in SMOOTHED),
    "TCH": (("TCH", "last"),),
    "EPO": (("EPO", "last"),),
    "FERERO": (("FERERO", "last"),),
    "AdaOMDgd-TCH": (("PGD η=1 c=0", "adaptive"),),
    "AdaOMDeg-TCH": (("EG η=1 c=0", "adaptive"),),
    "OptOMD-TCH": (("PGD adaptive τ=3 c=30", "p=8 K=8"),),
}
"""The methods that the default is compared with; of several rows, the best on each problem for each measure."""


def tallies(entries: Sequence[Entry], threshold: float = 0.001) -> list[Tally]:
    """Wins and losses of the default; relative differences below `threshold` count as ties.

    A method that diverged has lost, unless both have.
    """
    by: dict[str, dict[tuple[str, str], Entry]] = {}
    for entry in entries:
        by.setdefault(entry.problem, {})[entry.method, entry.output] = entry

    def count(rivals: Sequence[tuple[str, str]], measure: str, sign: float) -> tuple[int, int]:
        won = [0, 0]
        for of in by.values():
            ours, theirs = of.get((DEFAULT, "answer")), [of[key] for key in rivals if key in of]
            if ours is None or not theirs:
                continue
            a, *others = (sign * getattr(entry, measure) for entry in (ours, *theirs))
            b = min(filter(math.isfinite, others), default=math.nan)
            if math.isfinite(a) != math.isfinite(b):
                won[0 if math.isfinite(a) else 1] += 1
            elif abs(a - b) > threshold * abs(b):
                won[0 if a < b else 1] += 1
        return won[0], won[1]

    return [Tally(name, count(of, "tch", 1.0), count(of, "hypervolume", -1.0)) for name, of in RIVALS.items()]


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The table as a list of plain records; None for NaN."""
    return [
        {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in entry._asdict().items()}
        for entry in entries
    ]
