"""Another preference in a run that goes on: what `eq.sweep` and `mol.set_preference` cost, against cold runs.

    python benchmarks/preferences.py [--check] [--data FOLDER] [--tasks vlmop2,adult] [--seeds 0,1] [--json FILE]
    python benchmarks/preferences.py --no-sweep --restart cosine --tasks two-targets    # other tasks and schedules

Three tasks: VLMOP2 with 10 % noise on every loss; Multi-MNIST with a sixth of the pictures, so that it takes minutes on
one core; Adult. The last two are those of `examples/`, with their networks, optimizers and schedules: the learning rate
falls to 0 in a line. On VLMOP2 it is constant. `--tasks two-targets` is a fourth, to see what a recipe is worth
elsewhere: one output of a small network for two targets.

Sweep: ten rays, cold and by `eq.sweep`. All rays share 70 % of the steps of a cold run; a falling rate falls to 0.4 of
its start there. Each ray then has 33 % of its own, in which the rate falls to 0. Both are compared by the largest
weighted loss max w_i f_i of the answer of each ray, on all training data and, where there are any, on all test data.
Claims: a sweep takes at most 4 times the steps of one cold run; in the median over the rays its largest weighted loss
is at most 2 % above that of the cold run.

Change: a cold run for one preference, then `set_preference` for another and 20 % of the steps, with a fresh state of
the optimizer. A falling rate begins anew at half its start and falls exponentially, to 1/55 of that; this was chosen on
seeds 2 to 7. With `--restart cosine` the state is kept, and the rate falls to 0 from 0.75 of its start. Claim: the
imbalance of the answer on all training data, largest over smallest weighted loss less 1, is below 5 %. Beside it: the
imbalance of a cold run of all steps, and of one that has 20 % of the steps.

`--check` exits with 1 if a claim is missed. Multi-MNIST and Adult need files (docs/datasets.md); tasks without their
data are left out, and named.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from examples import adult as adult_example
from examples import multi_mnist as digits_example
from torch import Tensor, nn

import equipoise as eq
from equipoise.datasets import MissingDataError

RAYS, COST_AT_MOST, ABOVE_AT_MOST = 10, 4.0, 0.02
SHARED, OWN, FALLEN = 0.7, 0.33, 0.4
"""Of a cold run: the steps that all rays share, those of each ray, and the learning rate between them."""
SHARE, IMBALANCE_AT_MOST = 0.2, 0.05
RESTARTS: dict[str, Callable[[float], float]] = {
    "exponential": lambda done: 0.5 * math.exp(-4 * done),
    "cosine": lambda done: 0.75 * (1 + math.cos(math.pi * done)) / 2,
}
"""The learning rate after a change, over its start, by the share of steps that are done."""


class Point(nn.Module):
    """Parameters that are a point."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x)


Draw = torch.Generator
Losses = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Task:
    """Losses to trade off.

    Attributes:
        name: Of the task.
        steps: Of a cold run.
        margin: The least weight of the ten rays.
        changes: Pairs of preferences, before and after.
        model: Makes the start, by a seed.
        optimizer: Of the parameters.
        decays: Whether the learning rate falls.
        batch: The losses of a step, (m,).
        train: The exact losses, (m,).
        test: Those of test data, (m,).
    """

    name: str
    steps: int
    margin: float
    changes: tuple[tuple[float, float], ...]
    model: Callable[[int], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    decays: bool
    batch: Callable[[Any, Draw], Tensor]
    train: Losses
    test: Losses | None = None


def vlmop2() -> Task:
    """VLMOP2 in ten variables, noise of 10 % on both losses."""
    problem = eq.problems.VLMOP2()

    def noisy(model: Point, draw: Draw) -> Tensor:
        return problem.losses(model.x) * (1 + 0.1 * torch.randn(2, generator=draw))

    return Task(
        "VLMOP2",
        steps=1000,
        margin=0.1,
        changes=((0.5, 0.8), (0.2, 0.7), (0.7, 0.4), (0.9, 0.1)),
        model=lambda seed: Point(problem.initial(1, seed)[0].float()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02),
        decays=False,
        batch=noisy,
        train=lambda model: problem.losses(model.x),
    )


def multi_mnist(folder: str | None) -> Task:
    """Two digits in one picture: 10,000 of 60,000 pictures, batches of 256, 10 epochs."""
    train, test = digits_example.pairs("mnist", 10_000, folder)

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return digits_example.TwoHeads()

    def batch(model: nn.Module, draw: Draw) -> Tensor:
        some = torch.randint(len(train.labels), (digits_example.BATCH,), generator=draw)
        return digits_example.losses(model, digits_example.Pairs(train.inputs[some], train.labels[some]))

    def exact(model: nn.Module, data: digits_example.Pairs) -> Tensor:
        return torch.tensor(digits_example.evaluate(model, data)["loss"])

    return Task(
        "Multi-MNIST",
        steps=800,
        margin=0.3,
        changes=((0.5, 0.65), (0.3, 0.6), (0.7, 0.4)),
        model=model,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=digits_example.STEP_SIZE),
        decays=True,
        batch=batch,
        train=lambda model: exact(model, train),
        test=lambda model: exact(model, test),
    )


def adult(folder: str | None) -> Task:
    """Cross-entropy against the gap between the sexes: all people in every step."""
    train, test = adult_example.people(folder, share=1)
    units, _ = adult_example.find_units(train, 0, adult_example.STEPS)

    def model(seed: int) -> nn.Module:
        return adult_example.network(train.inputs.shape[1], seed)

    def losses(model: nn.Module, data: adult_example.People) -> Tensor:
        entropy, gap = adult_example.measure(model, data)
        return torch.stack([(entropy - units.best) / (units.constant - units.best), gap / units.gap])

    return Task(
        "Adult",
        steps=adult_example.STEPS,
        margin=0.1,
        changes=((0.5, 0.8), (0.2, 0.7), (0.7, 0.4), (0.9, 0.1)),
        model=model,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=adult_example.STEP_SIZE),
        decays=True,
        batch=lambda model, _: losses(model, train),
        train=lambda model: losses(model, train),
        test=lambda model: losses(model, test),
    )


def two_targets() -> Task:
    """One output for two targets: mini-batches of 64 of 512 samples."""
    generator = Draw().manual_seed(0)
    x = torch.randn(512, 6, generator=generator)
    y = torch.sin(x @ torch.randn(6, 2, generator=generator))

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def batch(model: nn.Module, draw: Draw) -> Tensor:
        some = torch.randint(len(x), (64,), generator=draw)
        found: Tensor = (model(x[some]) - y[some]).square().mean(0)
        return found

    return Task(
        "two targets",
        steps=1500,
        margin=0.1,
        changes=((0.2, 0.7), (0.7, 0.2), (0.1, 0.9)),
        model=model,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        decays=True,
        batch=batch,
        train=lambda model: (model(x) - y).square().mean(0),
    )


# ------------------------------------------------------------------------------- runs
class Loop:
    """A user's loop around a task."""

    def __init__(self, task: Task, w: Tensor, seed: int) -> None:
        self.task, self.model, self.draw = task, task.model(seed), Draw().manual_seed(seed)
        self.optimizer = task.optimizer(self.model.parameters())
        self.mol = eq.MultiObjective(self.model, self.optimizer, w)
        self.rate = float(self.optimizer.param_groups[0]["lr"])

    def train(self, steps: int, rate: float = 1.0, end: float = 0.0) -> None:
        """Steps in which the learning rate falls in a line from `rate` to `end`, in units of its start."""
        self.follow(rate + (end - rate) * step / steps if self.task.decays else rate for step in range(steps))

    def change(self, w: Tensor, steps: int, restart: str = "exponential") -> None:
        """Steps for another preference."""
        self.mol.set_preference(w)
        if restart == "exponential":
            self.optimizer.state.clear()
        rate = RESTARTS[restart]
        self.follow(rate(step / steps) if self.task.decays else 1.0 for step in range(steps))

    def follow(self, rates: Iterable[float]) -> None:
        """A step for each learning rate, in units of its start."""
        for rate in rates:
            self.optimizer.param_groups[0]["lr"] = self.rate * rate
            self.mol(self.task.batch(self.model, self.draw)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def train_part(self, steps: int) -> None:
        """A part of a sweep, the shared one or that of a ray."""
        falls = (1.0, FALLEN) if self.mol.step == 0 else (FALLEN, 0.0)
        self.train(steps, *(falls if self.task.decays else ()))

    def judge(self, solution: dict[str, Tensor] | None = None) -> "Judged":
        """The exact losses of an answer; by default of that of `mol`."""
        model = self.task.model(0)
        model.load_state_dict(self.mol.solution() if solution is None else solution)
        with torch.no_grad():
            test = None if self.task.test is None else self.task.test(model).tolist()
            return Judged(self.task.train(model).tolist(), test)


class Judged(NamedTuple):
    """Exact losses, (m,)."""

    train: list[float]
    test: list[float] | None


def pair(weight: float) -> Tensor:
    return torch.tensor([weight, 1 - weight], dtype=torch.float64)


def largest(w: Tensor, losses: list[float]) -> float:
    """The largest w_i f_i."""
    return float(eq.metrics.tch(torch.tensor(losses, dtype=torch.float64), w))


def imbalance(w: Tensor, losses: list[float]) -> float:
    """Largest over smallest w_i f_i, less 1."""
    return float(eq.metrics.imbalance(torch.tensor(losses, dtype=torch.float64), w))


@dataclass(frozen=True)
class Sweep:
    """Ten rays of one task and seed, cold and warm.

    Attributes:
        task: Its name.
        seed: Of start and batches.
        preferences: (n, m).
        cold: Losses of each ray.
        warm: The same by `eq.sweep`.
        cost: Steps of the sweep, over those of one cold run.
    """

    task: str
    seed: int
    preferences: list[list[float]]
    cold: list[Judged]
    warm: list[Judged]
    cost: float

    def excess(self, part: str) -> list[float]:
        """How far the largest weighted loss of the warm answer lies above the cold one's, for each ray."""
        rows = zip(self.preferences, self.cold, self.warm, strict=True)
        found = ((torch.tensor(w), getattr(cold, part), getattr(warm, part)) for w, cold, warm in rows)
        return [largest(w, warm) / largest(w, cold) - 1 for w, cold, warm in found if cold is not None]

    @property
    def claims(self) -> dict[str, bool]:
        """Whether each claim holds."""
        parts = [self.excess(part) for part in ("train", "test")]
        near = all(statistics.median(part) <= ABOVE_AT_MOST for part in parts if part)
        return {"cost": self.cost <= COST_AT_MOST, "accuracy": near}


def run_sweep(task: Task, seed: int) -> Sweep:
    w = eq.preference.linspace(RAYS, task.margin)
    cold = []
    for one in w:
        loop = Loop(task, one, seed)
        loop.train(task.steps)
        cold.append(loop.judge())
    loop = Loop(task, pair(0.5), seed)
    first, then = round(SHARED * task.steps), round(OWN * task.steps)
    answers = eq.sweep(loop.mol, w, loop.train_part, first=first, then=then)
    warm = [loop.judge(answer.solution) for answer in answers]
    cost = (first + sum(answer.steps for answer in answers)) / task.steps
    return Sweep(task.name, seed, w.tolist(), cold, warm, cost)


@dataclass(frozen=True)
class Change:
    """A change of the preference in one task and seed: imbalances on all training data.

    Attributes:
        task: Its name.
        seed: Of start and batches.
        before: w₁ at first.
        after: w₁ then.
        changed: After 20 % of the steps.
        fresh: Of a cold run of all steps.
        short: Of a cold run that has as few steps as were taken after the change.
        excess: How far the largest weighted loss lies above that of the cold run of all steps.
    """

    task: str
    seed: int
    before: float
    after: float
    changed: float
    fresh: float
    short: float
    excess: float

    @property
    def claims(self) -> dict[str, bool]:
        """Whether the claim holds."""
        return {"imbalance": self.changed < IMBALANCE_AT_MOST}


def run_change(task: Task, seed: int, before: float, after: float, restart: str = "exponential") -> Change:
    few, w = round(SHARE * task.steps), pair(after)
    loop = Loop(task, pair(before), seed)
    loop.train(task.steps)
    loop.change(w, few, restart)
    fresh, short = Loop(task, w, seed), Loop(task, w, seed)
    fresh.train(task.steps)
    short.train(few)
    judged = [one.judge().train for one in (loop, fresh, short)]
    excess = largest(w, judged[0]) / largest(w, judged[1]) - 1
    changed, cold, few_steps = (imbalance(w, losses) for losses in judged)
    return Change(task.name, seed, before, after, changed, cold, few_steps, excess)


# ------------------------------------------------------------------------------- the tables
def show_sweep(row: Sweep) -> None:
    cells = ""
    for part in ("train", "test"):
        if found := row.excess(part):
            cells += f"  {part} {100 * statistics.median(found):+6.2f} %, largest {100 * max(found):+6.2f} %"
    print(f"{row.task:<14}seed {row.seed}  {row.cost:.2f} times{cells}  {verdict(row.claims)}", flush=True)


def as_line(row: Sweep) -> str:
    """A row of the table in docs/tutorial/5-no-trade-off-yet.md."""
    cells = [f"{row.task}, seed {row.seed}"]
    for part in ("train", "test"):
        found = row.excess(part)
        cells.append(f"{100 * statistics.median(found):+.1f} %, {100 * max(found):+.1f} %" if found else "")
    return f"| {' | '.join(cells)} | {'yes' if row.claims['accuracy'] else '**no**'} |"


def show_change(row: Change) -> None:
    numbers = "".join(f"{100 * x:>9.2f} %" for x in (row.changed, row.fresh, row.short, row.excess))
    name = f"{row.task:<14}seed {row.seed}  w₁ {row.before:.2f} → {row.after:.2f}"
    print(f"{name}{numbers}  {verdict(row.claims)}", flush=True)


def verdict(claims: dict[str, bool]) -> str:
    """PASS, or FAIL with the claims that are missed."""
    missed = [name for name, holds in claims.items() if not holds]
    return f"FAIL ({', '.join(missed)})" if missed else "PASS"


def tasks(folder: str | None) -> dict[str, Callable[[], Task]]:
    """What makes each task, by its name on the command line."""
    return {
        "vlmop2": vlmop2,
        "multi-mnist": lambda: multi_mnist(folder),
        "adult": lambda: adult(folder),
        "two-targets": two_targets,
    }


def found_tasks(names: str, folder: str | None) -> tuple[list[Task], list[str]]:
    """Those whose data is there, and what is said of the others."""
    found, absent = [], []
    for name in names.split(","):
        try:
            found.append(tasks(folder)[name]())
        except MissingDataError as missing:
            absent.append(f"{name}: {missing}")
    return found, absent


def measure(found: list[Task], seeds: list[int], restart: str, *, sweep: bool) -> tuple[list[Sweep], list[Change]]:
    """Run and print everything."""
    sweeps: list[Sweep] = []
    changes: list[Change] = []
    print("sweep: cost; excess of the largest weighted loss over that of cold runs, median and largest of ten rays")
    for task, seed in itertools.product(found if sweep else [], seeds):
        sweeps.append(run_sweep(task, seed))
        show_sweep(sweeps[-1])
    print("change: imbalance after it, of a cold run, of a cold run as short; largest weighted loss above cold")
    for task, seed in itertools.product(found, seeds):
        for before, after in task.changes:
            changes.append(run_change(task, seed, before, after, restart))
            show_change(changes[-1])
    return sweeps, changes


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say whether all claims hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    parser.add_argument("--tasks", default="vlmop2,multi-mnist,adult", help="some of " + ", ".join(tasks(None)))
    parser.add_argument("--seeds", default="0", help="of start and batches")
    parser.add_argument("--restart", choices=RESTARTS, default="exponential", help="after a change")
    parser.add_argument("--no-sweep", action="store_true", help="changes alone")
    parser.add_argument("--data", help="folder of the data files, if not EQUIPOISE_DATA or the cache folder")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begun = time.process_time()
    found, absent = found_tasks(args.tasks, args.data)
    sweeps, changes = measure(
        found, [int(seed) for seed in args.seeds.split(",")], args.restart, sweep=not args.no_sweep
    )
    held = [holds for row in sweeps for holds in row.claims.values()]
    held += [holds for row in changes for holds in row.claims.values()]
    print(f"{sum(held)} of {len(held)} claims hold; {time.process_time() - begun:.0f} s of processor time")
    for line in absent:
        print(f"left out, {line}")
    if args.json is not None:
        rows = {"sweep": [asdict(row) for row in sweeps], "change": [asdict(row) for row in changes]}
        args.json.write_text(json.dumps(rows) + "\n")
    return int(args.check and not all(held))


if __name__ == "__main__":
    sys.exit(main())
