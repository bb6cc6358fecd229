"""Limits without a dual rate to tune, against Cooper with ten settings: six tasks, two units of the limits.

    python benchmarks/limits.py [--check] [--data FOLDER] [--tasks adult,compas] [--times 2] [--json FILE]

Every method has the same start, optimizer, batches and steps. `eq.MultiObjective(..., limits=...)` has no setting that
was changed for a task. Cooper (`cooper-optim` 1.0.1) takes gradient steps of its multipliers with six rates, and
steps of its PI controller (nuPI, Kp = 10) with four. Its last iterate and the average of its iterates by the weights
of `eq.Average(8)` both count. The best of these 20 answers that misses no limit by more than 1 % is what ours is held
against.

All numbers are of the exact losses, on all training data. A violation is the largest over the limits, as a share of
the limit. Claims, PASS or FAIL: our violation is at most 5 %, and our objective is at most 1 % above Cooper's best.
`--check` exits with 1 if one is missed. "× 100": the limited losses and the limits are 100 times as large.

The constants of `eq.Limits` were chosen on other problems, and on Adult with another limit, batch and seed. Adult and
COMPAS need files (docs/datasets.md); tasks without their data are left out, and named. About five minutes on one core.
"""

import argparse
import functools
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import cooper
import torch
from scipy.optimize import brentq, minimize
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import equipoise as eq
from equipoise.datasets import Dataset, MissingDataError, load, standardize
from equipoise.errors import LimitWarning

RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
PI_RATES = RATES[:4]
UNITS = (1.0, 100.0)
POWER = 8
"""Of the averages."""
MET, MISSED_AT_MOST, ABOVE_AT_MOST = 0.01, 0.05, 0.01
"""What counts as met by Cooper; the two claims."""


# ------------------------------------------------------------------------------- tasks
Draw = torch.Generator | None
"""Of a batch; None for all training data, exactly."""


@dataclass(frozen=True)
class Task:
    """One loss to make small, and limits of others.

    Attributes:
        name: Of the task.
        steps: Of every method.
        limits: By name.
        model: Makes the start, the same each time.
        optimizer: Of the parameters.
        losses: The objective, then the limited losses.
        best: The least objective within the limits, where it is known.
        test: The losses on test data, if there are any.
    """

    name: str
    steps: int
    limits: dict[str, float]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    losses: Callable[[Any, Draw], Tensor]
    best: float | None = None
    test: Callable[[Any], Tensor] | None = None


class Point(nn.Module):
    """Parameters that are a point."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x)


def sgd(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return functools.partial(torch.optim.SGD, lr=rate)


def adam(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return functools.partial(torch.optim.Adam, lr=rate)


def quadratic() -> Task:
    """Convex, exact losses: ½ (x − a)ᵀA(x − a) subject to ½ ‖x − b‖² ≤ 2, in 20 variables, condition number 10."""
    a, b = torch.randn(2, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    A = torch.logspace(-0.5, 0.5, 20, dtype=torch.float64)

    def at(x: Tensor) -> Tensor:
        return torch.stack([(A * (x - a).square()).sum() / 2, (x - b).square().sum() / 2])

    def solution(mu: float) -> Tensor:
        return at((A * a + mu * b) / (A + mu))

    mu = brentq(lambda mu: float(solution(mu)[1]) - 2.0, 0.0, 1e3, xtol=1e-10)
    return Task(
        "quadratic",
        1500,
        {"distance": 2.0},
        lambda: Point(torch.zeros(20)),
        sgd(0.1),
        lambda model, _: at(model.x).to(model.x),
        best=float(solution(mu)[0]),
    )


def logistic() -> Task:
    """Convex, batches of 128: log loss of 4,000 samples subject to that of a minority ≤ 0.5 and ‖θ‖² ≤ 3."""
    draw, n, d = torch.Generator().manual_seed(2), 4000, 10
    x = torch.randn(n, d, generator=draw)
    minority = torch.arange(n) % 8 == 0
    most = torch.randn(d, generator=draw)
    few = 0.3 * most + torch.randn(d, generator=draw)
    y = (torch.where(minority, x @ few, x @ most) + torch.randn(n, generator=draw) > 0).float()
    limits = {"minority": 0.5, "norm": 3.0}

    def losses(theta: Tensor, rows: Tensor) -> Tensor:
        values = binary_cross_entropy_with_logits(x[rows].to(theta) @ theta, y[rows].to(theta), reduction="none")
        return torch.stack([values.mean(), values[minority[rows]].mean(), theta.square().sum()])

    def exact(theta: Any, i: int) -> tuple[float, Any]:
        t = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        value = losses(t, torch.arange(n))[i]
        return value.item(), torch.autograd.grad(value, t)[0].numpy()

    within: Any = [
        {"type": "ineq", "fun": lambda t, i=i, at=at: at - exact(t, i)[0], "jac": lambda t, i=i: -exact(t, i)[1]}
        for i, at in enumerate(limits.values(), start=1)
    ]
    start = torch.zeros(d, dtype=torch.float64).numpy()
    precise: Any = {"ftol": 1e-12, "maxiter": 1000}
    found = minimize(exact, start, args=(0,), jac=True, method="SLSQP", constraints=within, options=precise)
    assert found.success, found.message

    def batch(model: Point, draw: Draw) -> Tensor:
        return losses(model.x, torch.arange(n) if draw is None else torch.randint(n, (128,), generator=draw))

    return Task(
        "logistic regression", 2000, limits, lambda: Point(torch.zeros(d)), sgd(0.1), batch, best=float(found.fun)
    )


def curved() -> Task:
    """Not convex: f₁ of F2 subject to f₂ ≤ 0.5, in six variables on [0, 1] by a sigmoid. On the front f₁ = 1/4."""
    problem = eq.problems.F2()
    start = problem.initial(1, seed=3)[0].clamp(0.05, 0.95).logit().float()
    return Task(
        "F2",
        1500,
        {"f2": 0.5},
        lambda: Point(start.clone()),
        adam(0.02),
        lambda model, _: problem.losses(model.x.sigmoid()),
        best=0.25,
    )


def network() -> Task:
    """Not convex: a tanh network, squared distance from one curve, that from another ≤ 0.2. Best: of all functions."""
    x = torch.linspace(-1, 1, 100)[:, None]
    near, other = torch.sin(3 * x), x.square() - 0.5

    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def losses(model: nn.Module, _: Draw) -> Tensor:
        found = model(x)
        return torch.stack([(found - near).square().mean(), (found - other).square().mean()])

    apart = float((near - other).square().mean())
    best = (apart**0.5 - 0.2**0.5) ** 2
    return Task("network", 2000, {"other": 0.2}, model, adam(0.003), losses, best=best)


Limited = Callable[[Tensor, Tensor], Tensor]
"""What is limited, from the logits and labels of the people of a group."""


def people(
    data: Dataset, name: str, hidden: int, limits: dict[str, float], who: list[tuple[str, int]], limited: Limited
) -> Task:
    """Cross-entropy of a perceptron; a batch has 256 people, and 64 of each group with a limit.

    Args:
        data: The table.
        name: Of the task.
        hidden: Units.
        limits: By name.
        who: For each limit the group and the label of its people.
        limited: What the limit is of.
    """

    def rows(groups: Tensor | None, labels: Tensor) -> list[Tensor]:
        assert groups is not None
        return [((groups == data.group_names.index(g)) & (labels == y)).nonzero().squeeze(1) for g, y in who]

    x, y, members = data.train_inputs, data.train_labels.float(), rows(data.train_groups, data.train_labels)
    test_members = rows(data.test_groups, data.test_labels)

    def exact(model: nn.Module, x: Tensor, y: Tensor, members: list[Tensor]) -> Tensor:
        logits = model(x)
        return torch.stack(
            [binary_cross_entropy_with_logits(logits, y), *(limited(logits[rows], y[rows]) for rows in members)]
        )

    def losses(model: nn.Module, draw: Draw) -> Tensor:
        if draw is None:
            return exact(model, x, y, members)
        some = torch.randint(len(y), (256,), generator=draw)
        theirs = [rows[torch.randint(len(rows), (64,), generator=draw)] for rows in members]
        batch = torch.cat([some, *theirs])
        places = torch.arange(256, len(batch)).split(64)
        logits, labels = model(x[batch]), y[batch]
        entropy = binary_cross_entropy_with_logits(logits[:256], labels[:256])
        return torch.stack([entropy, *(limited(logits[rows], labels[rows]) for rows in places)])

    def model() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0))

    def test(model: nn.Module) -> Tensor:
        return exact(model, data.test_inputs, data.test_labels.float(), test_members)

    return Task(name, 1200, limits, model, adam(2e-3), losses, test=test)


def adult(folder: str | None) -> Task:
    """Cross-entropy, at most 35 % of the high-earning women missed: a rate, with a smooth proxy for its gradient."""

    def missed(logits: Tensor, _: Tensor) -> Tensor:
        return eq.proxy(softplus(-logits).mean(), (logits < 0).float().mean())

    return people(standardize(load("adult", folder)), "Adult", 32, {"women missed": 0.35}, [("Female", 1)], missed)


def compas(folder: str | None) -> Task:
    """Cross-entropy; that of African-Americans not arrested again at most 0.6, of Caucasians arrested again 0.75."""
    limits = {"African-American, not again": 0.6, "Caucasian, again": 0.75}
    who = [("African-American", 0), ("Caucasian", 1)]
    return people(standardize(load("compas", folder)), "COMPAS", 16, limits, who, binary_cross_entropy_with_logits)


# ------------------------------------------------------------------------------- methods
class Answer(NamedTuple):
    """What a run ends with, by the exact losses."""

    label: str
    objective: float
    violation: float
    """The largest over the limits, as a share of the limit; below 0 where all are kept."""
    test: tuple[float, ...] = ()
    """The losses on test data, in plain units."""

    @property
    def meets(self) -> bool:
        """Whether no limit is missed by more than 1 %."""
        return math.isfinite(self.objective) and self.violation <= MET


def judge(task: Task, label: str, model: nn.Module) -> Answer:
    """The answer that a model is. Units make no difference to shares."""
    with torch.no_grad():
        objective, *limited = task.losses(model, None).tolist()
        test = None if task.test is None else task.test(model)
    shares = [value / limit - 1 for value, limit in zip(limited, task.limits.values(), strict=True)]
    violation = max(shares) if all(map(math.isfinite, shares)) else math.inf
    return Answer(label, objective, violation, () if test is None else tuple(test.tolist()))


def in_units(task: Task, unit: float, model: nn.Module, draw: torch.Generator) -> Tensor:
    """The losses of a batch, those with limits in the unit."""
    losses = task.losses(model, draw)
    return torch.cat([losses[:1], unit * losses[1:]])


def ours(task: Task, unit: float) -> tuple[Answer, Answer]:
    """The averaged answer, and the last iterate."""
    model, draw = task.model(), torch.Generator().manual_seed(0)
    optimizer = task.optimizer(model.parameters())
    limits = {name: unit * limit for name, limit in task.limits.items()}
    mol = eq.MultiObjective(model, optimizer, {"objective": 1.0}, limits=limits)
    for _ in range(task.steps):
        mol(in_units(task, unit, model, draw)).backward()
        optimizer.step()
        optimizer.zero_grad()
    last = judge(task, "last", model)
    model.load_state_dict(mol.solution())
    return judge(task, "averaged", model), last


class Problem(cooper.ConstrainedMinimizationProblem):
    """A task in Cooper's terms."""

    def __init__(self, task: Task, unit: float, model: nn.Module, draw: torch.Generator) -> None:
        super().__init__()
        self.task, self.unit, self.model, self.draw = task, unit, model, draw
        self.bound = unit * torch.tensor(list(task.limits.values()))
        multiplier = cooper.multipliers.DenseMultiplier(num_constraints=len(task.limits))
        self.within = cooper.Constraint(cooper.ConstraintType.INEQUALITY, multiplier=multiplier)

    def compute_cmp_state(self) -> cooper.CMPState:
        """Losses of the next batch, and by how much each limit is missed."""
        losses = in_units(self.task, self.unit, self.model, self.draw)
        state = cooper.ConstraintState(violation=losses[1:] - self.bound)
        return cooper.CMPState(loss=losses[0], observed_constraints={self.within: state})


def cooper_settings() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    """The dual optimizers, by name."""
    plain = {f"rate {rate:g}": functools.partial(torch.optim.SGD, lr=rate, maximize=True) for rate in RATES}
    nupi = functools.partial(cooper.optim.nuPI, Kp=torch.tensor(10.0), maximize=True)
    return {**plain, **{f"nuPI {rate:g}": functools.partial(nupi, lr=rate) for rate in PI_RATES}}


def coopers(task: Task, unit: float, label: str, dual: Callable[[Any], torch.optim.Optimizer]) -> list[Answer]:
    """The last iterate with one dual optimizer, and the average; none if the run leaves the finite numbers."""
    model, draw = task.model(), torch.Generator().manual_seed(0)
    problem = Problem(task, unit, model, draw)
    both = cooper.optim.SimultaneousOptimizer(
        problem, primal_optimizers=task.optimizer(model.parameters()), dual_optimizers=dual(problem.dual_parameters())
    )
    average = [p.detach().clone() for p in model.parameters()]
    total = 0.0
    for t in range(1, task.steps + 1):
        both.roll()
        total += t**POWER
        for mean, p in zip(average, model.parameters(), strict=True):
            mean.lerp_(p.detach(), t**POWER / total)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        return []
    last = judge(task, f"{label}, last", model)
    with torch.no_grad():
        for mean, p in zip(average, model.parameters(), strict=True):
            p.copy_(mean)
    return [last, judge(task, f"{label}, averaged", model)]


# ------------------------------------------------------------------------------- the table
@dataclass(frozen=True)
class Row:
    """One task in one unit.

    Attributes:
        task: Its name.
        unit: Of the limits.
        ours: The averaged answer.
        last: Our last iterate.
        rival: Cooper's best answer that meets the limits, if one does.
        met: How many of its settings meet them, by the last iterate or the average.
        settings: How many there are.
        cooper: All its answers.
        best: The least objective within the limits, where it is known.
    """

    task: str
    unit: float
    ours: Answer
    last: Answer
    rival: Answer | None
    met: int
    settings: int
    cooper: dict[str, list[Answer]]
    best: float | None

    @property
    def claims(self) -> dict[str, bool]:
        """Whether each claim holds."""
        allowed = math.inf
        if self.rival is not None:
            allowed = self.rival.objective + ABOVE_AT_MOST * abs(self.rival.objective)
        return {"violation": self.ours.violation <= MISSED_AT_MOST, "objective": self.ours.objective <= allowed}

    @property
    def verdict(self) -> str:
        """PASS, or FAIL with the claims that are missed."""
        missed = [name for name, holds in self.claims.items() if not holds]
        return f"FAIL ({', '.join(missed)})" if missed else "PASS"


def measure(task: Task, unit: float) -> Row:
    """Run all methods on a task."""
    mine, last = ours(task, unit)
    found = {label: coopers(task, unit, label, dual) for label, dual in cooper_settings().items()}
    good = [answer for answers in found.values() for answer in answers if answer.meets]
    met = sum(any(answer.meets for answer in answers) for answers in found.values())
    rival = min(good, key=lambda answer: answer.objective, default=None)
    return Row(task.name, unit, mine, last, rival, met, len(found), found, task.best)


def show(row: Row) -> None:
    """Print one line."""
    best = "" if row.best is None else f"{row.best:.4f}"
    rival = "none meets the limits"
    if row.rival is not None:
        rival = f"{row.rival.objective:.4f} {100 * row.rival.violation:+6.1f} %  {row.rival.label}"
    cells = [f"{answer.objective:.4f} {100 * answer.violation:+6.1f} %" for answer in (row.ours, row.last)]
    of = f"{row.met} of {row.settings}"
    print(f"{row.task:<20}× {row.unit:<4g}{best:>8}  {'  '.join(cells)}  {of:>8}  {rival:<44}{row.verdict}", flush=True)
    if row.ours.test:
        theirs = "" if row.rival is None else f"; Cooper's best {_numbers(row.rival.test)}"
        print(f"{'':<6}test data, objective and limited losses: ours {_numbers(row.ours.test)}{theirs}")


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def tasks(folder: str | None) -> dict[str, Callable[[], Task]]:
    """What makes each task, by its name on the command line."""
    return {
        "quadratic": quadratic,
        "logistic": logistic,
        "f2": curved,
        "network": network,
        "adult": lambda: adult(folder),
        "compas": lambda: compas(folder),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say whether all claims hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    parser.add_argument("--tasks", default=",".join(tasks(None)), help="some of them")
    parser.add_argument("--times", type=float, default=1.0, help="as many steps, times this")
    parser.add_argument("--data", help="folder of the data files, if not EQUIPOISE_DATA or the cache folder")
    parser.add_argument("--json", type=Path, help="write every answer to this file")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LimitWarning)
    begun, rows, absent = time.process_time(), [], []
    print(
        f"{'task':<20}{'unit':<6}{'exact':>8}  {'ours, averaged':<16}  {'ours, last':<16}  {'Cooper met':>8}  its best"
    )
    for name in args.tasks.split(","):
        try:
            task = tasks(args.data)[name]()
            task = replace(task, steps=round(args.times * task.steps))
        except MissingDataError as missing:
            absent.append(f"{name}: {missing}")
            continue
        for unit in UNITS:
            rows.append(measure(task, unit))
            show(rows[-1])
    held = [holds for row in rows for holds in row.claims.values()]
    print(f"{sum(held)} of {len(held)} claims hold; {time.process_time() - begun:.0f} s of processor time")
    for line in absent:
        print(f"left out, {line}")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows]))
    return int(args.check and not all(held))


if __name__ == "__main__":
    sys.exit(main())
