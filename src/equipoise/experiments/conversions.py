"""What every conversion makes of one trajectory, and the former default on problems it was not chosen on.

A family is a mirror map with a step size of λ, run for all amounts of optimism at once. Every trajectory
feeds all outputs. The former default, `OptOMD-TCH`, was chosen on F1 to F6, its smoothing also by noise and momentum;
docs/notes/former-default.md has the results. The bench of today's default is benchmarks/defaults.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise import metrics, preference
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.experiments import federated, plan
from equipoise.experiments import workers as workers_
from equipoise.experiments.cells import CellStore, Result, Spec
from equipoise.federated import simulate
from equipoise.problems import DTLZ1, DTLZ2, DTLZ3, DTLZ4, F6, KnownFront, Needle, Planted, problems
from equipoise.registry import methods
from equipoise.simplex import Entropic, Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import OMD

SEEDS = tuple(range(10))
STEPS = 1000
STEP_SIZE = 0.02
OPTIMISM = (0.0, 30.0, 100.0)
FLOOR = 0.01
CHOSEN_ON = ("F1", "F2", "F3", "F4", "F5", "F6", "F6 published")
"""The problems that the former default was chosen on."""
PAPER = (*CHOSEN_ON, "VLMOP2")
"""The problems of the paper's hypervolume table."""
DIGITS = ("digits-rotation", "digits-class2")
"""Federated tasks of ten clients, each an objective."""
FORMER = methods()[plan.FORMER]
"""The former default."""
FORMER_ROW = "PGD adaptive τ=3 c=30"
"""The row that has its weighting: its horizon is no shorter than these runs."""
FORMER_OUTPUT = "p=8 K=8"
"""The column that has its conversion."""


def outputs() -> dict[str, Conversion[Any]]:
    """What is read off every trajectory, by the head of its column; the former default's comes last."""
    return {
        "last": Last(),
        "uniform": Average(),
        "adaptive": Adaptive(),
        "p=4": Adaptive(power=4.0),
        "p=4 K=8": Adaptive(power=4.0, capacity=8),
        FORMER_OUTPUT: FORMER.conversion,
    }


# ------------------------------------------------------------------------------- trajectories
@dataclass(frozen=True)
class AgileEntropic(Entropic):
    """EG above a floor, whose adaptive step runs as mirror descent, not as dual averaging.

    With a floor the divergence is bounded by log(m/floor), which is all that mirror descent with an adaptive
    step asks for (docs/theory.md, section 8).
    """

    lazy: ClassVar[bool] = False

    def step_scale(self, m: int) -> float:
        """√(μD) with μ = 1 and D = log(m/floor)."""
        return math.sqrt(math.log(m / float(self.floor)))


@dataclass(frozen=True)
class Family:
    """Trajectories that differ in their optimism alone.

    Attributes:
        name: What they share, for tables.
        weighting: The weighting, whatever its optimism.
        optimism: The amounts.
    """

    name: str
    weighting: OMD
    optimism: tuple[float, ...] = OPTIMISM

    def members(self) -> "list[Configuration]":
        """One configuration for every amount."""
        return [Configuration(f"{self.name} c={c:g}", replace(self.weighting, optimism=c)) for c in self.optimism]


class Configuration(NamedTuple):
    """One trajectory's settings and their name."""

    name: str
    weighting: OMD


def families(problem: str) -> list[Family]:
    """The grid of the table; on the paper's problems also three ways to keep EG above a floor."""
    grid = [
        Family("PGD η=1", OMD(1.0, Euclidean())),
        Family("PGD adaptive", OMD("adaptive", Euclidean())),
        Family("EG η=1", OMD(1.0, Entropic())),
        Family("EG adaptive", OMD("adaptive", Entropic())),
        Family("PGD adaptive τ=3", OMD("adaptive", Euclidean(), smoothing=3.0), (30.0,)),
    ]
    floors = [
        Family("EG floor η=1", OMD(1.0, Entropic(FLOOR)), (30.0,)),
        Family("EG floor adaptive", OMD("adaptive", Entropic(FLOOR)), (30.0,)),
        Family("EG floor agile", OMD("adaptive", AgileEntropic(FLOOR)), (30.0,)),
    ]
    if problem in crowds():
        return [replace(family, optimism=(30.0,)) for family in (grid[4], grid[1], grid[3], floors[2])]
    return [*grid, *floors] if problem in PAPER else grid


def configurations(problem: str) -> list[Configuration]:
    """The rows of a problem's table."""
    return [member for family in families(problem) for member in family.members()]


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
    divisions = {2: 9, 3: 3, 5: 2}
    return preference.grid(divisions[m], m, margin=0.01)


def on_front(setting: Setting) -> Tensor:
    """Which preferences have a ray that meets the front, (preferences,)."""
    return metrics.imbalance(setting.problem.solution(setting.preferences), setting.preferences) < 1e-6


def exact(setting: Setting) -> tuple[float, float]:
    """Hypervolume of the exact TCH solutions, and their mean TCH value."""
    losses = setting.problem.solution(setting.preferences)
    volume = metrics.hypervolume(losses, setting.problem.reference)
    return float(volume), float(metrics.tch(losses, setting.preferences).mean())


# ------------------------------------------------------------------------------- many objectives
@cache
def crowds() -> dict[str, Planted]:
    """Convex problems of many objectives, with λ* spread over all of them or half on one."""
    return {f"{kind.name} m={m}": kind(m, 4, 0.02) for kind in (Planted, Needle) for m in (2, 10, 100, 1000)}


def crowd_outputs() -> dict[str, Conversion[Any]]:
    """What is read off their trajectories."""
    return {"last": Last(), FORMER_OUTPUT: FORMER.conversion}


# ------------------------------------------------------------------------------- cells
def cell_spec(problem: str, configuration: Configuration) -> Spec:
    """Everything that decides a cell's result."""
    spec: Spec = {
        "experiment": "conversions",
        "weighting": repr(configuration.weighting),
        "outputs": {name: repr(conversion) for name, conversion in outputs().items()},
        "seeds": list(SEEDS),
    }
    if problem in DIGITS:
        return {**spec, "problem": repr(federated.tasks()[problem])}
    if problem in crowds():
        kept = {name: repr(conversion) for name, conversion in crowd_outputs().items()}
        return {**spec, "problem": repr(crowds()[problem]), "outputs": kept, "step_size": STEP_SIZE, "steps": STEPS}
    setting = settings()[problem]
    return {
        **spec,
        "problem": repr(setting.problem),
        "preferences": len(setting.preferences),
        "step_size": STEP_SIZE,
        "steps": STEPS,
    }


class Task(NamedTuple):
    """What one process computes at a time: a family on a problem, for all seeds."""

    problem: str
    family: Family


def run_task(task: Task) -> list[tuple[Spec, Result]]:
    """The cells of a task."""
    results = (_federated if task.problem in DIGITS else _crowd if task.problem in crowds() else _synthetic)(task)
    return [
        (cell_spec(task.problem, member), result) for member, result in zip(task.family.members(), results, strict=True)
    ]


def _synthetic(task: Task) -> list[Result]:
    setting, family = settings()[task.problem], task.family
    sweep = torch.tensor(family.optimism, dtype=torch.float64).reshape(-1, 1, 1)
    run = Run(replace(family.weighting, optimism=sweep), outputs(), STEP_SIZE, sweep=(len(sweep),))
    found = solve_many(
        setting.problem, setting.preferences, {"run": run}, seeds=SEEDS, steps=STEPS, on_nonfinite="keep"
    )["run"]
    met = on_front(setting)
    results: list[Result] = []
    for k in range(len(sweep)):
        result: Result = {"diverged": int(found.diverged[k].sum())}
        for name, answers in found.losses.items():
            losses = answers[k].to(torch.float64)
            values = metrics.tch(losses, setting.preferences)
            result[name] = {
                "hypervolume": _short(metrics.hypervolume(losses, setting.problem.reference)),
                "tch": _short(values.nanmean(-1)),
                "imbalance": _quantiles(metrics.imbalance(losses, setting.preferences)[:, met]),
            }
        results.append(result)
    return results


def _federated(task: Task) -> list[Result]:
    results: list[Result] = []
    for member in task.family.members():
        found = simulate(federated.tasks()[task.problem], member.weighting, seeds=SEEDS, conversions=outputs())
        result: Result = {"diverged": 0}
        for name, train in found.train.items():
            losses, test = train.losses.to(torch.float64), found.test[name].losses.to(torch.float64)
            w = torch.full((losses.shape[-1],), 1.0 / losses.shape[-1], dtype=torch.float64)
            result[name] = {
                "tch": _short(metrics.tch(losses, w)),
                "test": _short(metrics.tch(test, w)),
                "imbalance": _quantiles(metrics.imbalance(losses, w)),
            }
        results.append(result)
    return results


def _crowd(task: Task) -> list[Result]:
    problem = crowds()[task.problem]
    # The coefficients λ∘w sum to 1/m: with m times the step size θ moves as far for every m.
    eta = STEP_SIZE * problem.m
    runs = {row.name: Run(row.weighting, crowd_outputs(), eta) for row in task.family.members()}
    found = solve_many(problem, problem.w.unsqueeze(0), runs, seeds=SEEDS, steps=STEPS)
    return [
        {
            output: {"gap": _short(problem.gap(x.to(torch.float64)).squeeze(-1) / problem.value)}
            for output, x in found[row.name].params.items()
        }
        for row in task.family.members()
    ]


def _quantiles(values: Tensor) -> list[float]:
    """The tenth, the fiftieth and the ninetieth of a hundred, over what is a number; infinite if nothing is."""
    known = values.flatten()
    known = known[~known.isnan()].sort().values
    if len(known) == 0:
        return [math.inf] * 3
    return _short(torch.stack([known[round(q * (len(known) - 1))] for q in (0.1, 0.5, 0.9)]))


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def names_of_problems() -> tuple[str, ...]:
    """All problems, in the order in which they are run."""
    return (*settings(), *DIGITS, *crowds())


def missing(store: CellStore, names: Sequence[str] | None = None) -> list[Task]:
    """What is still to be computed."""
    return [
        Task(name, family)
        for name in names_of_problems() if names is None or name in names
        for family in families(name)
        if any(store.read(cell_spec(name, member)) is None for member in family.members())
    ]  # fmt: skip


def compute(
    store: CellStore,
    tasks: Sequence[Task],
    workers: int,
    run: Callable[[Task], list[tuple[Spec, Result]]] = run_task,
) -> Iterable[Task]:
    """Run tasks and store their cells; yields each task when its cells are in place."""
    return workers_.compute(store, tasks, run, workers)


# ------------------------------------------------------------------------------- the table
class Entry(NamedTuple):
    """One output of one trajectory on one problem, over the seeds."""

    problem: str
    configuration: str
    output: str
    hypervolume: float
    """Mean; NaN for digits."""
    deviation: float
    """Of the hypervolume, over the seeds."""
    tch: float
    """Mean over seeds and preferences."""
    imbalance: float
    """Median over seeds and the preferences whose ray meets the front of largest/smallest w_i f_i − 1."""
    diverged: int
    test: float
    """Digits: TCH value on the test samples; else NaN."""


def table(store: CellStore) -> list[Entry]:
    """All entries whose cells are there, problem by problem, row by row."""
    return [
        _entry(name, configuration.name, output, result)
        for name in (*settings(), *DIGITS)
        for configuration in configurations(name)
        if (result := store.read(cell_spec(name, configuration))) is not None
        for output in outputs()
    ]


def _entry(problem: str, configuration: str, output: str, result: Result) -> Entry:
    of = result[output]
    volumes = of.get("hypervolume", [math.nan])
    return Entry(
        problem,
        configuration,
        output,
        _mean(volumes),
        float(torch.tensor(volumes, dtype=torch.float64).std(correction=0)) if len(volumes) > 1 else math.nan,
        _mean(of["tch"]),
        of["imbalance"][1],
        result["diverged"],
        _mean(of.get("test", [math.nan])),
    )


def _mean(values: Sequence[float]) -> float:
    """Also of values that diverged."""
    return float(torch.tensor(values, dtype=torch.float64).mean())


def gaps(store: CellStore) -> dict[str, dict[str, dict[str, float]]]:
    """Mean gap relative to the optimal value, by problem of many objectives, row and output."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in crowds():
        for row in configurations(name):
            result = store.read(cell_spec(name, row))
            if result is not None:
                means = {output: _mean(of["gap"]) for output, of in result.items()}
                found.setdefault(name, {})[row.name] = means
    return found


class Verdict(NamedTuple):
    """The former default on one problem, beside what it is to be measured by."""

    problem: str
    exact: float
    """Hypervolume of the exact solutions."""
    gd: float
    """AdaOMDgd-TCH, with the paper's settings."""
    eg: float
    """AdaOMDeg-TCH, with the paper's settings."""
    best_last: Entry
    """The last iterate with the largest hypervolume (digits: the smallest TCH value) among the families without a
    floor."""
    best: Entry
    """Likewise among all entries of the problem."""
    former: Entry
    excess: float
    """The former default's mean TCH value over the exact one, minus 1."""


def verdicts(entries: Sequence[Entry]) -> list[Verdict]:
    """One for every synthetic problem that is complete."""
    found = []
    for name, setting in settings().items():
        of = {(e.configuration, e.output): e for e in entries if e.problem == name}
        if len(of) < len(configurations(name)) * len(outputs()):
            continue
        volume, value = exact(setting)
        chosen = of[FORMER_ROW, FORMER_OUTPUT]
        lasts = [e for e in of.values() if e.output == "last" and "floor" not in e.configuration]
        found.append(
            Verdict(
                name,
                volume,
                of["PGD η=1 c=0", "adaptive"].hypervolume,
                of["EG η=1 c=0", "adaptive"].hypervolume,
                max(lasts, key=lambda e: e.hypervolume),
                max(of.values(), key=lambda e: e.hypervolume),
                chosen,
                chosen.tch / value - 1.0,
            )
        )
    return found


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The table as a list of plain records; None for what is not a number."""
    return [
        {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in entry._asdict().items()}
        for entry in entries
    ]
