"""Convex problems with a planted saddle point, for testing the theorems."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.preference import validate
from equipoise.problems import box

_REACH = 0.9  # fraction of c_i that the linear part may move f_i by: below 1, so that f > 0 despite rounding


class Bounds(NamedTuple):
    """The bounds that the convergence theorems assume, including stochastic feedback.

    Attributes:
        U: Bound of the losses: 0 ≤ f_i ≤ U.
        L: Bound of the gradients: ‖∇f_i‖_∞ ≤ L.
        R: Bound of the variables: ‖θ‖_∞ ≤ R.

    Examples:
        >>> bounds = eq.problems.Needle(4).bounds
        >>> bounds.R, round(bounds.U, 3), round(bounds.L, 3)  # ½ + 90 % of it, and 0.45 in 10 variables
        (1.0, 0.95, 0.045)
    """

    U: float
    L: float
    R: float


@dataclass(frozen=True)
class Planted:
    """m convex objectives on the box ‖θ‖_∞ ≤ R whose TCH solution θ* is known.

        f_i(θ) = c_i + <b_i, θ - θ*> + (κ/2) ‖θ - θ*‖²

    with w_i c_i = v for all i and Σ_i λ*_i w_i b_i = 0 for a λ* inside the simplex. So
    max_i w_i f_i(θ) ≥ Σ_i λ*_i w_i f_i(θ) ≥ v, with equality at θ*: (θ*, λ*) is a saddle point and
    v the optimal value. For κ > 0 no other θ attains it.

    The level is v = min_i w_i / 2, so that c_i ≤ 1/2, and the b_i are scaled to let the linear part
    move f_i by at most 90 % of c_i: without curvature and noise 0 < f_i < 1, whatever m is. λ* is
    proportional to 1/1..1/m in random order, far from the uniform vector where a run starts. A
    single objective without curvature is constant.

    The stochastic oracle `sample` multiplies each objective by 1 ± σ.

    Attributes:
        m: Number of objectives.
        d: Number of variables.
        curvature: κ ≥ 0.
        seed: Seed of θ*, λ* and the b_i.
        radius: R > 0.
        noise: σ in [0, 1].
        preference: w, positive and summing to 1; uniform if not given.

    Examples:
        >>> problem = eq.problems.Planted(m=4, d=3)
        >>> problem.value, problem.gap(problem.optimum).item() < 1e-9
        (0.125, True)
        >>> bool((problem.gap(problem.initial(100, seed=0)) > 0).all())
        True
    """

    m: int
    d: int = 10
    curvature: float = 0.0
    seed: int = 0
    radius: float = field(default=1.0, kw_only=True)
    noise: float = field(default=0.0, kw_only=True)
    preference: tuple[float, ...] | None = field(default=None, kw_only=True)

    name: ClassVar[str] = "Planted"

    def __post_init__(self) -> None:
        require(self.m >= 1, "m must be at least 1", self.m)
        require(self.d >= 1, "d must be at least 1", self.d)
        curved, wide = 0 <= self.curvature < math.inf, 0 < self.radius < math.inf
        require(curved, "curvature must be non-negative and finite", self.curvature)
        require(wide, "radius must be positive and finite", self.radius)
        require(0 <= self.noise <= 1, "noise must lie in [0, 1]", self.noise)
        w = validate(self.w, self.m)
        require(bool((w > 0).all()), "preference must be positive", w.min().item())

    @property
    def lower(self) -> float:
        """Lower bound of every variable, -R."""
        return -self.radius

    @property
    def upper(self) -> float:
        """Upper bound of every variable, R."""
        return self.radius

    @cached_property
    def w(self) -> Tensor:
        """The preference (m,) as a float64 tensor."""
        if self.preference is None:
            return torch.full((self.m,), 1 / self.m, dtype=torch.float64)
        return torch.tensor(self.preference, dtype=torch.float64)

    @cached_property
    def value(self) -> float:
        """The optimal value v = min_θ max_i w_i f_i(θ)."""
        return float(self.w.min()) / 2

    @property
    def optimum(self) -> Tensor:
        """The planted solution θ* (d,), within [-R/2, R/2]^d."""
        return self._planted.optimum

    @property
    def dual(self) -> Tensor:
        """The planted dual solution λ* (m,)."""
        return self._planted.dual

    @property
    def slopes(self) -> Tensor:
        """The gradients b (m, d) at θ*."""
        return self._planted.slopes

    @cached_property
    def _planted(self) -> "_Planted":
        generator = torch.Generator().manual_seed(self.seed)
        unit = torch.rand(self.d, generator=generator, dtype=torch.float64)
        optimum = self.radius * (unit - 0.5)
        rank = torch.randperm(self.m, generator=generator).to(torch.float64)
        dual = 1 / (1 + rank)
        dual /= dual.sum()
        u = torch.rand(self.m, self.d, generator=generator, dtype=torch.float64) - 0.5
        u -= dual @ u
        moves = u.unsqueeze(1) * _ends(optimum, self.radius)
        # The largest |<u_i, θ - θ*>| over the box and all i; 0 for a single objective.
        farthest = torch.maximum(moves.amax(1).sum(-1), -moves.amin(1).sum(-1)).max()
        if farthest > 0:
            u *= _REACH / farthest
        return _Planted(optimum, dual, u * (self.value / self.w).unsqueeze(-1))

    @cached_property
    def bounds(self) -> Bounds:
        """U, L and R, attained on the box by some objective, noise included."""
        ends = _ends(self.optimum, self.radius)
        b = self.slopes.unsqueeze(1)
        # Convex and separable: every coordinate is at its largest at one of its two ends.
        rise = (b * ends + self.curvature / 2 * ends.square()).amax(1).sum(-1)
        highest = float((self.value / self.w + rise).max())
        steepest = float((b + self.curvature * ends).abs().max())
        return Bounds((1 + self.noise) * highest, (1 + self.noise) * steepest, self.radius)

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, m)."""
        box.require_points(x, self.d)
        level, slopes, optimum = (self.value / self.w).to(x), self.slopes.to(x), self.optimum.to(x)
        step = x - optimum
        bowl = self.curvature / 2 * step.square().sum(-1, keepdim=True)
        return level + step @ slopes.mT + bowl

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """One draw of the stochastic objectives: x (*B, d) to (*B, m), differentiable.

        f_i(x)(1 + σ ξ_i) with independent fair signs ξ: convex, unbiased in value and gradient,
        and within the bounds U and L everywhere on the box.

        Args:
            x: Points (*B, d).
            generator: Source of the signs, on the device of x.
        """
        losses = self.losses(x)
        coin = torch.randint(2, losses.shape, generator=generator, dtype=x.dtype, device=x.device)
        return losses * (1 + self.noise * (2 * coin - 1))

    def gap(self, x: Tensor) -> Tensor:
        """How far x is from optimal, max_i w_i f_i(x) - v ≥ 0: x (*B, d) to (*B,)."""
        return (self.w.to(x) * self.losses(x)).amax(-1) - self.value

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on the box."""
        return box.uniform(count, self.d, seed, lower=self.lower, upper=self.upper)


@dataclass(frozen=True)
class Needle(Planted):
    """One objective against the rest: λ* has half its weight on the first, and all others are equal.

    Here the factor log m in EG's bound, instead of m in PGD's, matters: a weight has to grow from 1/m to ½. It has the
    attributes of `Planted`; m must be at least 2.

    Examples:
        >>> problem = eq.problems.Needle(m=5)
        >>> problem.dual.tolist()
        [0.5, 0.125, 0.125, 0.125, 0.125]
        >>> problem.gap(problem.optimum).item() < 1e-9
        True
    """

    name: ClassVar[str] = "Needle"

    def __post_init__(self) -> None:
        require(self.m >= 2, "m must be at least 2", self.m)
        super().__post_init__()

    @property
    def optimum(self) -> Tensor:
        """The middle of the box, (d,)."""
        return torch.zeros(self.d, dtype=torch.float64)

    @property
    def dual(self) -> Tensor:
        """Half for the first objective, the rest in equal parts, (m,)."""
        return torch.tensor([0.5] + [0.5 / (self.m - 1)] * (self.m - 1), dtype=torch.float64)

    @property
    def slopes(self) -> Tensor:
        """Opposite gradients that move f by 90 % of its value at θ*, as in `Planted`, (m, d)."""
        sign = torch.ones(self.m, self.d, dtype=torch.float64)
        sign[0] = -1.0
        return 0.9 * sign * (self.value / self.w).unsqueeze(-1) / (self.d * self.radius)


class _Planted(NamedTuple):
    optimum: Tensor
    dual: Tensor
    slopes: Tensor


def _ends(optimum: Tensor, radius: float) -> Tensor:
    """The two ends (2, d) of every coordinate of θ - θ*."""
    return torch.stack((-radius - optimum, radius - optimum))
