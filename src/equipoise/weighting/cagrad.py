"""Conflict-averse gradient descent (CAGrad)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.batch import Number, apply, check_non_negative, per_instance
from equipoise.minnorm import min_norm_at
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import norm, restrict

_STEPS = 50
"""The most iterations; the search converges quadratically, in about five."""
_ROUNDING = 2e-15


@dataclass(frozen=True)
class CAGrad(Weighting[Stateless]):
    r"""CAGrad (Liu et al. 2021): near the mean gradient, the direction that helps the worst-off objective most.

    With g₀ = Σ w_i g_i, it solves max over ‖d − g₀‖ ≤ c‖g₀‖ of min_i g_i·d, through its dual

        α = argmin over the simplex of F(α) = g_α·g₀ + c‖g₀‖‖g_α‖,   g_α = Σ α_i g_i,   d = g₀ + c‖g₀‖ g_α/‖g_α‖.

    c = 0 is the weighted sum; for c → ∞ the direction is MGDA's. The preference w defines g₀, which is the mean in the
    publication; objectives of weight 0 are still protected. Where g_α = 0, at a Pareto-stationary point, d = 0.
    Objectives with zero gradient are ignored. Unlike the released code, d is not rescaled by 1/(1 + c²).

    F is minimised exactly by Dinkelbach's iteration: for a level μ above the minimum, finding the α with the largest
    (μ − g_α·g₀)/‖g_α‖ is a min-norm problem; then μ ← F(α).

    Attributes:
        c: The radius of the ball around g₀, relative to ‖g₀‖.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> (J @ (w @ J)).tolist()  # the mean gradient does not help the first objective
        [0.0, 0.5]
        >>> losses, weighting = torch.ones(2), eq.CAGrad(c=0.5)
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in (J @ (c @ J)).tolist()]
        [0.25, 0.25]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    c: Number = 0.5

    def __post_init__(self) -> None:
        check_non_negative("c", self.c)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients w + c‖g₀‖ α/‖g_α‖, shape (*B, m)."""
        here = restrict(seen)
        K, w = here.gramian, here.weight
        s = K.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
        mean = norm(K, w)
        radius = per_instance("c", self.c, w) * mean
        alpha = _least(K, apply(K, w), radius, s)
        length, reach = norm(K, alpha), (alpha * s).sum(-1, keepdim=True)
        # A shorter g_α is only rounding error of the Gramian.
        real = length.square() > here.weight.shape[-1] * here.precision * reach.square()
        found = w + torch.where(real, radius / torch.where(real, length, 1.0), 0.0) * alpha
        return here.coefficients(torch.where(real | (radius == 0), found, 0.0)), state


def _least(K: Tensor, slope: Tensor, radius: Tensor, s: Tensor) -> Tensor:
    """The minimiser (*B, m) of b·α + r √(αᵀKα) over the simplex of rows of length s > 0: b (*B, m), r (*B, 1)."""
    ends = torch.where(s > 0, slope + radius * s, torch.inf)
    level, best = ends.min(-1, keepdim=True)
    alpha = torch.zeros_like(slope).scatter(-1, best, 1.0)
    for _ in range(_STEPS):
        found = min_norm_at(K, torch.where(s > 0, level - slope, 0.0)).to(K)
        total = found.sum(-1, keepdim=True)
        found = found / torch.where(total > 0, total, 1.0)
        value = (slope * found).sum(-1, keepdim=True) + radius * norm(K, found)
        blur = _ROUNDING * ((found * slope.abs()).sum(-1, keepdim=True) + radius * (found * s).sum(-1, keepdim=True))
        lower = (total > 0) & (value < level - blur)
        # F is flat at its minimum: among α of equal value, the one found for the lowest level is the most accurate.
        alpha = torch.where((total > 0) & (value <= level + blur), found, alpha)
        level = torch.where(lower, value, level)
        if not bool(lower.any()):
            break
    return alpha
