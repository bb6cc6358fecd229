"""The convergence theorems, measured on convex problems whose constants and optimum are known.

Every run uses the step sizes of `equipoise.theory` for both players, starts in the corner of the box
that is farthest from the solution, and sees noisy losses and gradients. The gap of its output is held
against the bound of docs/theory.md. What came out is in docs/convergence.md.

    python benchmarks/convergence.py [--quick] [--seed N] [--out DIR]

Prints tables, writes pictures and `results.json` to DIR, and returns 1 if a check that should pass
fails or a control that should fail passes.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from equipoise import OMD, Adaptive, Average, Conversion, Entropic, Euclidean, Last, PNorm
from equipoise.batch import Number
from equipoise.problems import Needle, Planted
from equipoise.problems.convex import Bounds
from equipoise.simplex import Mirror
from equipoise.theory import Geometry, Guarantee, best_p, sample_objectives, suffix_confidence, suffix_excess

SLOPE = -0.45
"""The check: the gap falls at least like T^SLOPE, where the theorems say T^(-1/2)."""
FIT_FROM = 100
"""The slope is fitted from this T on; before it the runs are still on their way from the corner."""
CURVATURES = {"affine": 0.0, "curved": 0.02, "bowl": 0.3, "needle": 0.0}
NAMES: dict[Geometry, str] = {"pgd": "PGD", "eg": "EG", "pnorm": "p-norm"}


# ------------------------------------------------------------------------------- problems
class Glimpse(NamedTuple):
    """What one round sees of the objectives."""

    exact: Tensor
    """f(θ), (problems, *B, m)."""
    noisy: Tensor
    """One draw of the stochastic oracle at θ, (problems, *B, m)."""
    pull: Callable[[Tensor], Tensor]
    """From coefficients (problems, *B, m) to Σ c_i ∇f_i of the same draw, (problems, *B, d)."""


class Ensemble:
    """Problems of one family side by side; the leading dimension of every tensor is the problem.

    U and L are the largest of the members, so that a theorem with them holds for each.
    """

    def __init__(self, members: Sequence[Planted]) -> None:
        first = members[0]
        self.members = tuple(members)
        self.m, self.d, self.w, self.value, self.noise = first.m, first.d, first.w, first.value, first.noise
        self.curvature, self.lower, self.upper = first.curvature, first.lower, first.upper
        U, L = (max(getattr(member.bounds, name) for member in members) for name in "UL")
        self.bounds = Bounds(U, L, first.radius)
        self.optimum = torch.stack([member.optimum for member in members])
        self.slopes = torch.stack([member.slopes for member in members])
        self.level = first.value / first.w

    def corners(self) -> Tensor:
        """The corner of the box farthest from each solution, (problems, d)."""
        return torch.where(self.optimum > 0, self.lower, self.upper).to(torch.float64)

    def look(self, theta: Tensor, generator: torch.Generator) -> Glimpse:
        """Objectives and stochastic feedback at θ (problems, *B, d): that of `Planted.sample`."""
        step, exact = self._evaluate(theta)
        coin = torch.randint(2, exact.shape, generator=generator, dtype=exact.dtype)
        factor = 1.0 + self.noise * (2.0 * coin - 1.0)

        def pull(coefficients: Tensor) -> Tensor:
            noisy = coefficients * factor
            linear = (noisy.flatten(1, -2) @ self.slopes).reshape(step.shape)
            return torch.addcmul(linear, noisy.sum(-1, keepdim=True), step, value=self.curvature)

        return Glimpse(exact, exact * factor, pull)

    def gap(self, theta: Tensor) -> Tensor:
        """The gap of θ (problems, *B, d) in units of the optimal value, (problems, *B)."""
        _, exact = self._evaluate(theta)
        return (self.w * exact).amax(-1) / self.value - 1.0

    def _evaluate(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        step = (theta.flatten(1, -2) - self.optimum.unsqueeze(1)).view(theta.shape)
        linear = (step.flatten(1, -2) @ self.slopes.mT).view(*theta.shape[:-1], self.m)
        bowl = self.curvature / 2 * step.square().sum(-1, keepdim=True)
        return step, linear + (self.level + bowl)


# ------------------------------------------------------------------------------- one way to play
@dataclass(frozen=True)
class Arm:
    """One way to play the game; it is run on every problem for every T.

    Attributes:
        geometry: Mirror map of λ.
        scale: Multiplies the step size of λ. The controls: 0 freezes λ, −1 lets it descend.
        optimism: c.
        power: Iterate t has the weight tᵖ; EG then keeps λ above the floor 1/√T, as theory demands.
        sampling: Whether a round looks at all objectives or at one.
        adaptive: `step_size="adaptive"` for λ.
    """

    geometry: Geometry
    scale: float = 1.0
    optimism: float = 0.0
    power: float = 0.0
    sampling: Literal["full", "single"] = "full"
    adaptive: bool = False

    @property
    def floored(self) -> bool:
        """Whether λ keeps above 1/√T."""
        return self.geometry == "eg" and self.power > 0

    def guarantee(self, problem: Ensemble, T: int) -> Guarantee:
        """The theorem for T rounds, with the tight constants: U and L bound w∘f and w_i ∇f_i."""
        w = float(problem.w.max())
        U, L, R = problem.bounds
        return Guarantee(
            m=problem.m,
            d=problem.d,
            U=w * U,
            L=w * L,
            R=R,
            geometry=self.geometry,
            power=self.power,
            floor=T**-0.5 if self.floored else 0.0,
            sampling=self.sampling,
        )

    def bound(self, problem: Ensemble, T: int) -> float:
        """Bound on the expected gap after T rounds with scale 1; NaN where nothing is proved."""
        theorem = self.guarantee(problem, T)
        if not self.adaptive and self.optimism == 0.0:
            return theorem.expectation(T)
        mixed = self.adaptive or self.geometry == "pnorm"
        if self.power > 0 or self.sampling == "single" or (mixed and self.optimism > 0):
            return math.nan
        # The corollary of section 7 of docs/theory.md: regret/T of λ, and what the noise adds.
        noise = theorem.U * math.sqrt(8.0 * math.log(problem.m) / T) if problem.noise > 0 else 0.0
        return theorem.theta.regret(theorem.L, T) + self._regret(theorem, T) / T + noise

    def _regret(self, theorem: Guarantee, T: int) -> float:
        """Lemmas 6 and 6′ for optimism, Lemmas 7 and 8 for the adaptive step; PGD and EG only."""
        U, player = theorem.U, theorem.lam
        if self.adaptive:
            total = math.sqrt(player.C * T) * U
            if self.geometry == "eg":
                return (1.0 + math.sqrt(2.0)) * (math.sqrt(math.log(theorem.m)) + 1.0) * total
            return 2.0 * total / math.sqrt(player.mu)
        eta, c = theorem.step_size_lambda(T), self.optimism
        if self.geometry == "eg":
            return player.D / eta + eta / 2.0 * T * (max(1.0, c) * U) ** 2
        # Lemma 6′ for PGD with equal weights: D = 1, diameter √2, a push of at most 1 + c gains.
        gain = math.sqrt(player.C) * U
        push = (1.0 + c) * gain
        return 1.0 / eta + c * math.sqrt(2.0) * gain + eta / 2.0 * T * (push**2 + 2.0 * c * gain * push)


def mirror_of(arm: Arm, m: int, horizons: Sequence[int]) -> Mirror:
    if arm.geometry == "pgd":
        return Euclidean()
    if arm.geometry == "pnorm":
        return PNorm(best_p(m))
    return Entropic(floor=_tensor([T**-0.5 for T in horizons]) if arm.floored else 0.0)


def weighting_of(problem: Ensemble, arms: Sequence[Arm], horizons: Sequence[int]) -> OMD:
    """One OMD for arms with the same mirror map; what differs between them is a tensor (arms, T)."""
    steps = [[abs(arm.scale) * arm.guarantee(problem, T).step_size_lambda(T) for T in horizons] for arm in arms]
    optimism = _tensor([[arm.optimism] for arm in arms])
    return OMD(
        step_size="adaptive" if arms[0].adaptive else _tensor(steps),
        mirror=mirror_of(arms[0], problem.m, horizons),
        optimism=optimism if bool(optimism.any()) else 0.0,
    )


def _tensor(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _mirror_key(arm: Arm) -> tuple[Geometry, bool, bool]:
    return arm.geometry, arm.adaptive, arm.floored


# ------------------------------------------------------------------------------- the game
Output = Callable[[Number], Conversion[Any]]
"""A conversion for a power, which may be a tensor with one entry for each arm."""

AVERAGE: dict[str, Output] = {"average": Average}
BOTH: dict[str, Output] = {"average": Average, "adaptive": partial(Adaptive, capacity=8)}
AND_LAST: dict[str, Output] = {"average": Average, "last": lambda _: Last()}
_WIDE = 50  # from this m on the arithmetic, not the call, is what a step costs


def measure(
    problem: Ensemble, arms: Sequence[Arm], horizons: Sequence[int], outputs: Mapping[str, Output] = AVERAGE
) -> dict[str, Tensor]:
    """The gaps that the arms end with, in units of the optimal value.

    Args:
        problem: The problems; each has a run of its own.
        arms: The ways to play; those with the same mirror map side by side.
        horizons: The numbers of rounds T; each has a run of its own, with its own step sizes.
        outputs: What is read off a run.

    Returns:
        A tensor (problems, arms, T) for every output.
    """
    if problem.m < _WIDE:
        return _play(problem, arms, horizons, outputs)
    parts = [_play(problem, arms, (T,), outputs) for T in horizons]
    return {name: torch.cat([part[name] for part in parts], -1) for name in outputs}


def _play(
    problem: Ensemble, arms: Sequence[Arm], horizons: Sequence[int], outputs: Mapping[str, Output]
) -> dict[str, Tensor]:
    """Algorithm 1 on the batch (problems, arms, T). A run goes on after its T; what it gave by then is kept."""
    batch = (len(problem.members), len(arms), len(horizons))
    generator = torch.Generator().manual_seed(problem.members[0].seed)
    theta = problem.corners()[:, None, None].expand(*batch, problem.d).contiguous()
    eta = _tensor([[arm.guarantee(problem, T).step_size_theta(T) for T in horizons] for arm in arms]).unsqueeze(-1)
    sign = _tensor([-1.0 if arm.scale < 0 else 1.0 for arm in arms])[:, None, None]
    exact = problem.look(theta, generator).exact
    players = _players(problem, arms, horizons, exact)
    powers: Number = _tensor([[arm.power] for arm in arms]) if any(arm.power for arm in arms) else 0.0
    conversions = {name: output(powers) for name, output in outputs.items()}
    states = {name: conversion.init({"θ": theta}, exact) for name, conversion in conversions.items()}
    gaps = {name: torch.full(batch, torch.nan, dtype=torch.float64) for name in outputs}

    for t in range(1, max(horizons) + 1):
        exact, noisy, pull = problem.look(theta, generator)
        for name, conversion in conversions.items():
            states[name] = conversion.update({"θ": theta}, exact, states[name])
        if t in horizons:
            k = horizons.index(t)
            for name, conversion in conversions.items():
                gaps[name][..., k] = problem.gap(conversion.output(states[name])["θ"])[..., k]
        coefficients = players(sign * noisy, _presence(problem.m, arms, batch, generator))
        theta = (theta - eta * pull(coefficients)).clamp_(problem.lower, problem.upper)
    return gaps


def _players(
    problem: Ensemble, arms: Sequence[Arm], horizons: Sequence[int], losses: Tensor
) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    """The λ of all arms: a function from losses to coefficients, (problems, arms, T, m)."""
    groups = [list(group) for _, group in groupby(arms, _mirror_key)]
    sizes = [len(group) for group in groups]
    weightings = [weighting_of(problem, group, horizons) for group in groups]
    states = [omd.init(part) for omd, part in zip(weightings, losses.split(sizes, 1), strict=True)]

    def play(noisy: Tensor, presence: dict[str, Tensor]) -> Tensor:
        split = {name: tensor.split(sizes, 1) for name, tensor in presence.items()}
        coefficients = []
        for i, (omd, part) in enumerate(zip(weightings, noisy.split(sizes, 1), strict=True)):
            here = {name: tensors[i] for name, tensors in split.items()}
            moved, states[i] = omd.update(part, states[i], problem.w, **here)
            coefficients.append(moved)
        return torch.cat(coefficients, 1)

    return play


def _presence(m: int, arms: Sequence[Arm], batch: tuple[int, ...], generator: torch.Generator) -> dict[str, Tensor]:
    """Mask and inclusion probabilities, if some arm does not look at all objectives."""
    if all(arm.sampling == "full" for arm in arms):
        return {}
    single = torch.tensor([arm.sampling == "single" for arm in arms])[:, None, None]
    drawn, inclusion = sample_objectives(m, 1, batch=batch, generator=generator)
    share = torch.where(single, inclusion.to(torch.float64), 1.0)
    return {"mask": drawn | ~single, "inclusion": share.expand(1, *share.shape)}


# ------------------------------------------------------------------------------- curves and checks
Must = Literal["pass", "fail", "bound", "none"]


@dataclass(frozen=True)
class Curve:
    """Gap against T, with what is expected of it.

    Attributes:
        problem: Family of the problem, such as "affine".
        m: Number of objectives.
        label: What was run.
        horizons: T.
        gaps: Mean gap over the problems, in units of the optimal value.
        errors: Standard errors of these means.
        bounds: Bound on its expectation, in the same unit.
        must: "pass" and "fail" the check; "bound": keep below the bound, at any slope.
    """

    problem: str
    m: int
    label: str
    horizons: tuple[int, ...]
    gaps: tuple[float, ...]
    errors: tuple[float, ...]
    bounds: tuple[float, ...]
    must: Must = "pass"

    @property
    def ratios(self) -> tuple[float, ...]:
        """Gap over bound."""
        return tuple(gap / bound for gap, bound in zip(self.gaps, self.bounds, strict=True))

    @property
    def slope(self) -> float:
        """Least-squares slope of log gap in log T, from T = FIT_FROM on."""
        points = [(T, gap) for T, gap in zip(self.horizons, self.gaps, strict=True) if T >= FIT_FROM]
        if len(points) < 2:
            return math.nan
        log = np.log(np.array(points))
        return float(np.polyfit(log[:, 0], log[:, 1], 1)[0])

    @property
    def below(self) -> bool:
        """Whether the gap is at most the bound at every T."""
        return all(ratio <= 1.0 for ratio in self.ratios)

    @property
    def passes(self) -> bool:
        """The check: below the bound, with the slope that the bound has."""
        return self.below and self.slope <= SLOPE

    @property
    def sound(self) -> bool:
        """Whether it did what was expected of it."""
        return {"pass": self.passes, "fail": not self.passes, "bound": self.below, "none": True}[self.must]


def curves(
    problem: Ensemble,
    family: str,
    arms: Mapping[str, Arm],
    horizons: Sequence[int],
    must: Must = "pass",
    **options: Any,
) -> Iterator[Curve]:
    """Run arms and pair every gap with its bound; `options` go to `measure`."""
    measured = measure(problem, list(arms.values()), horizons, **options)
    for a, (label, arm) in enumerate(arms.items()):
        for output, gaps in measured.items():
            proved = output != "last"
            bounds = tuple(arm.bound(problem, T) / problem.value if proved else math.nan for T in horizons)
            error = gaps[:, a].std(0, correction=0) / len(gaps) ** 0.5
            yield Curve(
                problem=family,
                m=problem.m,
                label=label if output == "average" else f"{label}, {output}",
                horizons=tuple(horizons),
                gaps=tuple(gaps[:, a].mean(0).tolist()),
                errors=tuple(error.tolist()),
                bounds=bounds,
                must="fail" if arm.scale <= 0 else "none" if math.isnan(bounds[0]) else must,
            )


# ------------------------------------------------------------------------------- experiments
@dataclass(frozen=True)
class Plan:
    """How much is run.

    Attributes:
        problems: The numbers of objectives m, and how many problems each gets.
        horizons: The numbers of rounds T.
        costly: The largest T from 100 objectives on where a round is slow: the archive and the p-norm.
        extent: The largest T for powers and optimism.
        fixed: The T at which numbers of objectives and step sizes are compared.
        seed: Of the first problem, and of the noise.
    """

    problems: Mapping[int, int] = field(default_factory=lambda: {2: 16, 10: 16, 100: 8, 1000: 4})
    horizons: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000, 10_000)
    costly: int = 3000
    extent: int = 3000
    fixed: int = 1000
    seed: int = 0

    def ensemble(self, family: str, m: int, *, noise: float = 1.0) -> Ensemble:
        """The problems of a family with m objectives, in four dimensions."""
        make = Needle if family == "needle" else Planted
        seeds = range(self.seed, self.seed + self.problems[m])
        return Ensemble([make(m, 4, CURVATURES[family], seed, noise=noise) for seed in seeds])

    def until(self, last: int) -> tuple[int, ...]:
        """The horizons up to one."""
        return tuple(T for T in self.horizons if last >= T)

    def slow(self, m: int) -> tuple[int, ...]:
        """The horizons where a round is slow."""
        return self.horizons if m < 100 else self.until(self.costly)


QUICK = Plan({10: 8}, horizons=(10, 30, 100, 300, 1000, 3000), extent=300, fixed=300)

PLAYERS = {"PGD": Arm("pgd"), "EG": Arm("eg")}
CONTROLS = {
    "λ frozen": Arm("pgd", scale=0.0),
    "λ flipped, PGD": Arm("pgd", scale=-1.0),
    "λ flipped, EG": Arm("eg", scale=-1.0),
}


def rates(plan: Plan) -> Iterator[Curve]:
    """Th:4 to th:8 and the p-norm: the rate in T for every m, with the controls that must fail."""
    for m in plan.problems:
        affine, curved = plan.ensemble("affine", m), plan.ensemble("curved", m)
        yield from curves(affine, "affine", PLAYERS | CONTROLS, plan.horizons)
        if best_p(m) < 2.0:  # else it is PGD
            yield from curves(affine, "affine", {"p-norm": Arm("pnorm")}, plan.slow(m))
        yield from curves(curved, "curved", PLAYERS, plan.slow(m), outputs=BOTH)
        yield from curves(curved, "curved", CONTROLS, plan.slow(m))


def archives(plan: Plan) -> Iterator[Curve]:
    """Algorithm 2 with and without a capacity, where iterates do dominate one another."""
    outputs = BOTH | {"adaptive, no capacity": Adaptive}
    for m in [m for m in plan.problems if m <= 10]:
        problem, horizons = plan.ensemble("bowl", m), plan.until(plan.fixed)
        yield from curves(problem, "bowl", PLAYERS, horizons, "bound", outputs=outputs)


def needles(plan: Plan) -> Iterator[Curve]:
    """One objective against m − 1: what the geometry is worth when λ has far to go."""
    arms = PLAYERS | {"p-norm": Arm("pnorm")}
    for m in plan.problems:
        yield from curves(plan.ensemble("needle", m), "needle", arms, (plan.fixed,), "bound")


def samplings(plan: Plan) -> Iterator[Curve]:
    """All objectives in every round against one."""
    kinds: tuple[Literal["full", "single"], ...] = ("full", "single")
    arms = {f"{name}, {kind}": replace(arm, sampling=kind) for name, arm in PLAYERS.items() for kind in kinds}
    yield from curves(plan.ensemble("affine", 10), "affine", arms, plan.horizons, "bound")


def powers(plan: Plan) -> Iterator[Curve]:
    """Later iterates count more."""
    arms = {f"{name}, power {p}": replace(arm, power=p) for name, arm in PLAYERS.items() for p in (0, 1, 4)}
    yield from curves(plan.ensemble("curved", 10), "curved", arms, plan.until(plan.extent), "bound")


def optimisms(plan: Plan) -> Iterator[Curve]:
    """Optimism, with noise and without."""
    arms = {f"{name}, c = {c}": replace(arm, optimism=c) for name, arm in PLAYERS.items() for c in (0, 1, 5, 50)}
    exact = plan.ensemble("affine", 10, noise=0.0)
    yield from curves(plan.ensemble("affine", 10), "affine", arms, plan.until(plan.extent), "bound")
    yield from curves(exact, "affine, exact", arms, plan.until(plan.extent), "bound", outputs=AND_LAST)


@dataclass(frozen=True)
class Sweep:
    """The adaptive step of λ against fixed ones.

    Attributes:
        geometry: Name of the mirror map.
        m: Number of objectives.
        T: Number of rounds.
        scales: Multiples of the theoretical step.
        gaps: The gap with each of them, in units of the optimal value.
        adaptive: The gap with `step_size="adaptive"`.
        bound: On the expectation of the latter.
    """

    geometry: str
    m: int
    T: int
    scales: tuple[float, ...]
    gaps: tuple[float, ...]
    adaptive: float
    bound: float

    @property
    def best(self) -> float:
        """The smallest gap of the sweep."""
        return min(self.gaps)

    @property
    def sound(self) -> bool:
        """Whether the adaptive step keeps its bound."""
        return self.adaptive <= self.bound


def sweeps(plan: Plan) -> Iterator[Sweep]:
    """The adaptive step against the best fixed one of four decades around the theoretical step."""
    scales = tuple(10.0 ** (k / 2) for k in range(-4, 5))
    for m in [m for m in plan.problems if m < 1000]:
        problem = plan.ensemble("affine", m)
        for geometry, name in NAMES.items():
            if geometry == "pnorm" and best_p(m) == 2.0:  # PGD once more
                continue
            arms = [Arm(geometry, scale=scale) for scale in scales] + [Arm(geometry, adaptive=True)]
            gaps = measure(problem, arms, (plan.fixed,))["average"].mean(0).squeeze(-1).tolist()
            bound = arms[-1].bound(problem, plan.fixed) / problem.value
            yield Sweep(name, m, plan.fixed, scales, tuple(gaps[:-1]), gaps[-1], bound)


# ------------------------------------------------------------------------------- Suffix and Adaptive under noise
DELTA = 0.05
"""The bound of Theorem S may be exceeded in this share of the runs."""


def block_starts(T: int, capacity: int, power: float) -> list[int]:
    """The first steps of the time blocks of `Suffix` after T steps, counted from 1, written naively."""
    weights: list[float] = []
    starts: list[int] = []
    for t in range(1, T + 1):
        weights.append(float(t) ** power)
        starts.append(t)
        if len(weights) > capacity:
            costs = [
                ((weights[i] + weights[i + 1]) / (weights[-1] + sum(weights[i + 2 :])), i)
                for i in range(len(weights) - 1)
            ]
            i = min(costs)[1]
            weights[i] += weights.pop(i + 1)
            starts.pop(i + 1)
    return starts


class Noisy(NamedTuple):
    """Runs on two convex objectives with noisy losses; R runs of T steps."""

    points: Tensor
    """θ⁽ᵗ⁾, (R, T, 2)."""
    exact: Tensor
    """f(θ⁽ᵗ⁾), (R, T, 2)."""
    measured: Tensor
    """f(θ⁽ᵗ⁾) with Gaussian noise of standard deviation σ, (R, T, 2)."""
    adaptive: Tensor
    """What Algorithm 2 returns if dominance is on the measured losses, (R, 2)."""


def bowls(theta: Tensor) -> Tensor:
    """The objectives ½|θ − (∓1, 0)|²; with equal weights TCH is smallest at 0, where it is ¼."""
    centres = theta.new_tensor([[-1.0, 0.0], [1.0, 0.0]])
    return 0.5 * (theta.unsqueeze(-2) - centres).square().sum(-1)


def play_noisy(T: int, runs: int, sigma: float, power: float, seed: int = 0) -> Noisy:
    """OMD from the solution, where only noise tells one iterate from another."""
    generator = torch.Generator().manual_seed(seed)
    theta, w = torch.zeros(runs, 2, dtype=torch.float64), _tensor([0.5, 0.5])
    centres = _tensor([[-1.0, 0.0], [1.0, 0.0]])
    omd, archive = OMD(step_size=0.1), Adaptive(power, capacity=8)
    dual, kept = omd.init(bowls(theta)), archive.init({"θ": theta}, bowls(theta))
    points, losses = [], []
    for _ in range(T):
        noisy = bowls(theta) + sigma * torch.randn(runs, 2, generator=generator, dtype=torch.float64)
        kept = archive.update({"θ": theta}, noisy, kept)
        points.append(theta)
        losses.append(noisy)
        c, dual = omd.update(noisy, dual, w)
        gradient = (c.unsqueeze(-1) * (theta.unsqueeze(-2) - centres)).sum(-2)
        noise = sigma / 2 * torch.randn(runs, 2, generator=generator, dtype=torch.float64)
        theta = (theta - 0.1 * (gradient + noise)).clamp(-2.0, 2.0)
    stacked = torch.stack(points, 1)
    return Noisy(stacked, bowls(stacked), torch.stack(losses, 1), archive.output(kept)["θ"])


@dataclass(frozen=True)
class Coverage:
    """How often TCH of an answer exceeds what is claimed of it.

    Attributes:
        T: Steps.
        runs: Runs.
        sigma: Standard deviation of the noise; the losses are 0.5 at the solution.
        power: p of the weights tᵖ.
        lemma: Share of the runs in which Algorithm 2 exceeds the bound of its lemma, max_i w_i a_i.
        suffix: Share in which `Suffix` exceeds the first bound of Theorem S.
        rate: Share in which it exceeds the second, max_i w_i a_i + 2zκσ/√T.
        usual: Share in which `Suffix` as it is used, z = 2 and noise estimated, exceeds its upper confidence bound.
        blind: The same with z = 0: the control.
        excess: Mean TCH excess over the optimal value, of Algorithm 2 and of `Suffix` as it is used.
    """

    T: int
    runs: int
    sigma: float
    power: float
    lemma: float
    suffix: float
    rate: float
    usual: float
    blind: float
    excess: tuple[float, float]

    @property
    def sound(self) -> bool:
        """Theorem S holds, and the two claims that need exact losses do not."""
        return max(self.suffix, self.rate) <= DELTA < min(self.lemma, self.blind)


def coverage(T: int, runs: int, sigma: float, power: float, *, capacity: int = 8, seed: int = 0) -> Coverage:
    """Theorem S and the lemma of Algorithm 2 on the same runs."""
    game = play_noisy(T, runs, sigma, power, seed)
    weights = torch.arange(1, T + 1, dtype=torch.float64) ** power
    steps = 0.5 * game.measured.diff(dim=1).square()
    deviation = _mean(steps, weights[1:]).sqrt()  # what `Suffix` takes for σ
    z = suffix_confidence(capacity, 2, DELTA)
    suffixes = [slice(start - 1, None) for start in block_starts(T, capacity, power)]
    spread = [float(weights[k].square().sum()) ** 0.5 / float(weights[k].sum()) for k in suffixes]
    points, exact, measured = (
        torch.stack([_mean(x[:, k], weights[k]) for k in suffixes]) for x in (game.points, game.exact, game.measured)
    )
    width = _tensor(spread)[:, None, None]
    true = _tch(bowls(points))

    def answer(bound: Tensor) -> tuple[Tensor, Tensor]:
        """TCH of the suffix of the least bound, and that bound; both (R,)."""
        least, k = bound.min(0)
        return true.gather(0, k.unsqueeze(0))[0], least

    def share(exceeded: Tensor) -> float:
        return float(exceeded.double().mean())

    lemma, archive = _tch(_mean(game.exact, weights)), _tch(bowls(game.adaptive))
    found, _ = answer(_tch(measured + z * sigma * width))
    usual, certificate = answer(_tch(measured + 2.0 * deviation * width))
    hasty, naive = answer(_tch(measured))
    return Coverage(
        T=T,
        runs=runs,
        sigma=sigma,
        power=power,
        lemma=share(archive > lemma),
        suffix=share(found > _tch(exact + 2.0 * z * sigma * width).amin(0)),
        rate=share(found > lemma + suffix_excess(0.5 * sigma, T, z=z, power=power)),
        usual=share(usual > certificate),
        blind=share(hasty > naive),
        excess=(float(archive.mean()) / 0.25 - 1.0, float(usual.mean()) / 0.25 - 1.0),
    )


def _mean(x: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over the steps: (R, T, k) to (R, k)."""
    return torch.einsum("t,rtk->rk", weights / weights.sum(), x)


def _tch(losses: Tensor) -> Tensor:
    """max_i w_i f_i for two objectives of equal weight."""
    return 0.5 * losses.amax(-1)


def coverages(plan: Plan) -> Iterator[Coverage]:
    """Noise of a fifth of the losses, and as large as they are."""
    for sigma in (0.1, 0.5):
        for power in (0.0, 8.0):
            yield coverage(plan.fixed, 400, sigma, power, seed=plan.seed)


# ------------------------------------------------------------------------------- tables
VERDICTS = {
    ("pass", True): "passes",
    ("fail", True): "fails, as it should",
    ("bound", True): "below its bound",
    ("none", True): "nothing is proved",
}


def show(title: str, found: Sequence[Curve]) -> None:
    """A Markdown table: the gap and, in brackets, gap/bound at every T."""
    horizons = sorted({T for curve in found for T in curve.horizons})
    print(f"\n### {title}\n")
    print("| problem | m | run |", " | ".join(f"T = {T:,}" for T in horizons), "| slope | check |")
    print("|---|---|---|" + "---|" * (len(horizons) + 2))
    for curve in found:
        cells = dict(zip(curve.horizons, zip(curve.gaps, curve.ratios, strict=True), strict=True))
        row = [_cell(*cells[T]) if T in cells else "" for T in horizons]
        verdict = VERDICTS.get((curve.must, curve.sound), "UNEXPECTED")
        slope = "" if math.isnan(curve.slope) else f"{curve.slope:.2f}"
        print(f"| {curve.problem} | {curve.m} | {curve.label} |", " | ".join(row), f"| {slope} | {verdict} |")


def _cell(gap: float, ratio: float) -> str:
    return f"{gap:.3g}" if math.isnan(ratio) else f"{gap:.3g} ({ratio:.2g})"


def show_sweeps(title: str, found: Sequence[Sweep]) -> None:
    """A Markdown table of the step sizes."""
    print(f"\n### {title}\n")
    print("| m | geometry | best fixed step | its gap | theoretical step | adaptive (gap/bound) | adaptive/best |")
    print("|---|---|---|---|---|---|---|")
    for sweep in found:
        scale, usual = sweep.scales[sweep.gaps.index(sweep.best)], sweep.gaps[sweep.scales.index(1.0)]
        cells = (
            f"× {scale:.2g}",
            f"{sweep.best:.3g}",
            f"{usual:.3g}",
            f"{sweep.adaptive:.3g} ({sweep.adaptive / sweep.bound:.2g})",
            f"{sweep.adaptive / sweep.best:.2f}",
        )
        print(f"| {sweep.m} | {sweep.geometry} |", " | ".join(cells), "|")


def show_coverages(title: str, found: Sequence[Coverage]) -> None:
    """A Markdown table of how often each claim fails."""
    print(f"\n### {title}\n")
    columns = "Algorithm 2, lemma | Suffix, Theorem S | its rate | z = 2, noise estimated | z = 0 | excess"
    print(f"| T | noise σ | power | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for item in found:
        shares = " | ".join(f"{100 * x:.1f} %" for x in (item.lemma, item.suffix, item.rate, item.usual, item.blind))
        excess = " / ".join(f"{100 * x:.1f} %" for x in item.excess)
        print(f"| {item.T:,} | {item.sigma:g} | {item.power:g} | {shares} | {excess} |")


# ------------------------------------------------------------------------------- pictures
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito: told apart by all eyes
COLOURS = {"PGD": BLUE, "EG": VERMILION, "p-norm": GREEN}
SHADES = {"PGD": ("#08306B", BLUE, "#56B4E9", "#A6A6A6"), "EG": ("#6B2C00", VERMILION, "#E69F00", "#A6A6A6")}
GREY = "#888888"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E8E8E8",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}
DASHED: dict[str, Any] = {"ls": "--", "lw": 1.0, "alpha": 0.8}


def draw(path: Path, found: "Results") -> None:
    """All pictures, as PNG files in the folder `path`."""
    with mpl.rc_context(STYLE):
        pictures = {
            "rates": draw_rates(found.curves["rates"]),
            "objectives": draw_objectives(found),
            "archives": draw_archives(found.curves["archives"]),
            "extensions": draw_extensions(found),
            "steps": draw_steps(found.sweeps),
        }
        for name, figure in pictures.items():
            figure.savefig(path / f"convergence-{name}.png", dpi=100, pil_kwargs={"optimize": True})
            plt.close(figure)


def plot(axes: Axes, curve: Curve, *, per_round: int = 1, bound: bool = True, **style: Any) -> None:
    """One curve, and its bound as a dashed line in the same colour."""
    x = [per_round * T for T in curve.horizons]
    axes.loglog(x, curve.gaps, **{"marker": "o", **style})
    if bound:
        axes.loglog(x, curve.bounds, color=style["color"], **DASHED)


def draw_rates(found: Sequence[Curve]) -> Figure:
    """Gap against T: a row for each family, a column for each m."""
    families, objectives = ("affine", "curved"), sorted({curve.m for curve in found})
    size = (2.75 * len(objectives) + 0.4, 6.2)
    figure, grid = plt.subplots(
        2, len(objectives), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    looks: dict[str, dict[str, Any]] = {name: {"color": colour} for name, colour in COLOURS.items()}
    for name in PLAYERS:
        looks[f"{name}, adaptive"] = {"color": COLOURS[name], "marker": "s", "mfc": "none", "ms": 7.5, "ls": ""}
        looks[f"λ flipped, {name}"] = {"color": COLOURS[name], "marker": "", "ls": ":"}
    looks["λ frozen"] = {"color": GREY, "marker": "", "lw": 2.0}
    for curve in found:
        axes = grid[families.index(curve.problem), objectives.index(curve.m)]
        plot(axes, curve, bound=curve.label in COLOURS, label=curve.label, **looks[curve.label])
    for (row, column), axes in np.ndenumerate(grid):
        axes.set_title(f"{families[row]}, m = {objectives[column]:,}")
        axes.set_ylim(3e-3, 300)
    for axes in grid[1]:
        axes.set_xlabel("rounds T")
    for axes in grid[:, 0]:
        axes.set_ylabel("gap / optimal value")
    handles = {h.get_label(): h for axes in grid.flat for h in axes.get_legend_handles_labels()[0]}
    handles["bound of the theorem"] = Line2D([], [], color="black", **DASHED)
    order = [name for name in (*looks, "bound of the theorem") if name in handles]
    figure.legend([handles[name] for name in order], order, loc="outside lower center", ncols=5)
    return figure


def draw_objectives(found: "Results") -> Figure:
    """Gap against m at one T: where λ* is spread out, and where one objective counts for half."""
    figure, grid = plt.subplots(1, 2, figsize=(8.2, 3.6), sharey=True, layout="constrained")
    needle = found.curves["needles"]
    T = needle[0].horizons[0]
    families = ((grid[0], found.curves["rates"], "affine"), (grid[1], needle, "needle"))
    titles = {"affine": "affine: λ* spread over all objectives", "needle": "needle: one objective against the rest"}
    for axes, curves_, family in families:
        for name, colour in COLOURS.items():
            chosen = [curve for curve in curves_ if (curve.problem, curve.label) == (family, name)]
            at = [curve.horizons.index(T) for curve in chosen]
            x = [curve.m for curve in chosen]
            axes.loglog(x, [c.gaps[k] for c, k in zip(chosen, at, strict=True)], "o-", color=colour, label=name)
            axes.loglog(x, [c.bounds[k] for c, k in zip(chosen, at, strict=True)], color=colour, **DASHED)
        axes.set(title=titles[family], xlabel="objectives m")
    grid[0].set_ylabel(f"gap / optimal value at T = {T:,}")
    grid[0].plot([], [], color="black", label="bound", **DASHED)
    grid[0].legend(ncols=2, loc="upper left")
    return figure


def draw_archives(found: Sequence[Curve]) -> Figure:
    """The two outputs where iterates dominate one another."""
    objectives = sorted({curve.m for curve in found})
    figure, grid = _row(objectives, 4.1)
    looks: dict[str, dict[str, Any]] = {
        "average": {},
        "adaptive": {"mfc": "white", "lw": 1.0},
        "no capacity": {"ls": "", "marker": "x", "ms": 7},
    }
    for curve in found:
        name, *rest = curve.label.split(", ")
        output = rest[-1] if rest else "average"
        label = {"adaptive": "adaptive, capacity 8", "no capacity": "adaptive, no capacity"}.get(output, output)
        axes = grid[objectives.index(curve.m)]
        plot(axes, curve, bound=not rest, color=COLOURS[name], label=f"{name}, {label}", **looks[output])
        axes.set(title=f"bowl, m = {curve.m}", xlabel="rounds T")
    grid[0].set_ylabel("gap / optimal value")
    grid[-1].plot([], [], color="black", label="bound", **DASHED)
    grid[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw_extensions(found: "Results") -> Figure:
    """Sampling, power and optimism: a row for each geometry."""
    figure, grid = plt.subplots(2, 4, figsize=(12.2, 6.2), sharey=True, layout="constrained")
    panels = (
        ("samplings", "affine", "sampling", "objectives looked at"),
        ("powers", "curved", "weights tᵖ", "rounds T"),
        ("optimisms", "affine", "optimism with noise", "rounds T"),
        ("optimisms", "affine, exact", "optimism without noise", "rounds T"),
    )
    for row, name in enumerate(PLAYERS):
        for axes, (section, family, title, label) in zip(grid[row], panels, strict=True):
            mine = [c for c in found.curves[section] if c.problem == family and c.label.startswith(name + ",")]
            outputs = [curve for curve in mine if not curve.label.endswith("last")]
            for curve, colour in zip(outputs, SHADES[name], strict=False):
                per_round = curve.m if curve.label.endswith("full") else 1
                plot(axes, curve, per_round=per_round, color=colour, label=curve.label.removeprefix(name + ", "))
            lasts = [curve for curve in mine if curve not in outputs]
            for curve, colour in zip(lasts, SHADES[name], strict=False):
                plot(axes, curve, bound=False, color=colour, ls=":", marker="")
            if lasts:
                axes.plot([], [], color=GREY, ls=":", label="last iterate")
            axes.set_title(f"{name}: {title}, m = 10")
            axes.set_ylim(2e-4, 200)
            axes.legend(loc="lower left", ncols=2)
            axes.set_xlabel(label)
        grid[row, 0].set_ylabel("gap / optimal value")
    return figure


def draw_steps(found: Sequence[Sweep]) -> Figure:
    """Gap against the step size of λ, with the adaptive step as a level."""
    objectives = sorted({sweep.m for sweep in found})
    figure, grid = _row(objectives, 3.4)
    for sweep in found:
        axes, colour = grid[objectives.index(sweep.m)], COLOURS[sweep.geometry]
        axes.loglog(sweep.scales, sweep.gaps, "o-", color=colour, label=f"{sweep.geometry}, fixed step")
        axes.axhline(sweep.adaptive, color=colour, ls="-.", lw=1.0, label=f"{sweep.geometry}, adaptive step")
        axes.set(title=f"affine, m = {sweep.m}, T = {sweep.T:,}", xlabel="step of λ / theoretical step")
    grid[0].set_ylabel("gap / optimal value")
    grid[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _row(objectives: Sequence[int], width: float) -> tuple[Figure, Any]:
    size = (width * len(objectives) + 1.8, 3.6)
    figure, grid = plt.subplots(1, len(objectives), figsize=size, sharey=True, squeeze=False, layout="constrained")
    return figure, grid[0]


# ------------------------------------------------------------------------------- the whole
@dataclass
class Results:
    """Everything measured, by section."""

    curves: dict[str, list[Curve]] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)
    coverages: list[Coverage] = field(default_factory=list)

    @property
    def unexpected(self) -> list[Curve | Sweep | Coverage]:
        """What did not do what it should."""
        every: list[Curve | Sweep | Coverage] = [curve for section in self.curves.values() for curve in section]
        return [item for item in (*every, *self.sweeps, *self.coverages) if not item.sound]

    def to_json(self) -> str:
        """All numbers, with slopes and verdicts; what is not proved or not fitted is null."""
        curves_ = {
            name: [_plain(asdict(curve) | {"slope": curve.slope, "sound": curve.sound}) for curve in section]
            for name, section in self.curves.items()
        }
        sweeps_ = [_plain(asdict(sweep)) for sweep in self.sweeps]
        coverages_ = [_plain(asdict(item) | {"sound": item.sound}) for item in self.coverages]
        found = {"curves": curves_, "sweeps": sweeps_, "coverages": coverages_}
        return json.dumps(found, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


SECTIONS: dict[str, tuple[str, Callable[[Plan], Iterator[Curve]]]] = {
    "rates": ("Rates, and controls", rates),
    "archives": ("Uniform and adaptive output where iterates dominate one another", archives),
    "needles": ("One objective against the rest", needles),
    "samplings": ("All objectives in a round, or one", samplings),
    "powers": ("Later iterates count more", powers),
    "optimisms": ("Optimism", optimisms),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer objectives, rounds and seeds")
    parser.add_argument("--seed", type=int, default=0, help="of the problems and of the noise")
    parser.add_argument("--out", type=Path, default=Path("out/convergence"), help="folder for pictures and numbers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    plan = replace(QUICK if options.quick else Plan(), seed=options.seed)

    print("Gap in units of the optimal value and, in brackets, gap/bound.")
    print(f"Check: gap ≤ bound at every T, and slope of log gap in log T ≤ {SLOPE} from T = {FIT_FROM} on.")
    found, started = Results(), time.perf_counter()
    for name, (title, experiment) in SECTIONS.items():
        found.curves[name] = list(experiment(plan))
        show(title, found.curves[name])
    found.sweeps = list(sweeps(plan))
    show_sweeps("The adaptive step against the best fixed one", found.sweeps)
    found.coverages = list(coverages(plan))
    show_coverages("How often a claim about noisy losses fails", found.coverages)

    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(found.to_json() + "\n", encoding="utf-8")
    draw(options.out, found)
    for item in found.unexpected:
        print(f"\nunexpected: {item}")
    print(f"\n{time.perf_counter() - started:.0f} s; pictures and numbers in {options.out}")
    return 1 if found.unexpected else 0


if __name__ == "__main__":
    mpl.use("Agg")
    sys.exit(main())
