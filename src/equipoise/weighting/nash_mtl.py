"""Multi-task learning as a bargaining game (Nash-MTL)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.batch import Number, apply, per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import norm, restrict

_RIDGE = 1e-12
_STEPS = 100
"""The most iterations; about ten are usual."""
_NEAR = 0.25
"""A Newton decrement below which full steps converge quadratically."""


@dataclass(frozen=True)
class NashMTL(Weighting[Stateless]):
    r"""Nash-MTL (Navon et al. 2022): the Nash bargaining solution, where relative gains of the objectives balance.

    d = Jᵀα maximises Σ m w_i log(g_i·d) over directions of a given length. With the Gramian K that is

        (Kα)_i = m w_i/α_i,   α > 0,

    the minimum of ½αᵀKα − Σ m w_i log α_i, found by Newton's method on the cosines of the gradients. w are the
    bargaining powers: uniform w is the published method, Kα = 1/α. Neither the lengths of the gradients nor inclusion
    probabilities affect d. ‖d‖² = m always, so clipping to `max_norm` is in fact a normalisation, and step sizes must
    decay. Objectives with zero weight or zero gradient are ignored.

    At a Pareto-stationary point there is no solution. There, and as close to such a point as the precision of the
    Gramian can tell, that precision is added to the diagonal of the cosines: α is finite and d short.

    Attributes:
        max_norm: d is shortened to this length; `math.inf` leaves α unchanged.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.NashMTL(max_norm=float("inf"))
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in c.tolist()]  # Kα = 1/α
        [1.0, 0.5]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    max_norm: Number = 1.0

    def __post_init__(self) -> None:
        positive = bool((torch.as_tensor(self.max_norm) > 0).all())
        require(positive, f"max_norm must be positive, {math.inf} for no clip", self.max_norm)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients α, shape (*B, m)."""
        here = restrict(seen)
        square, m = here.gramian.diagonal(dim1=-2, dim2=-1), here.weight.shape[-1]
        part = (square > torch.finfo(square.dtype).tiny) & (here.weight > 0)
        s = torch.where(part, square, 1.0).sqrt()
        both = part.unsqueeze(-1) & part.unsqueeze(-2)
        unit = torch.eye(m, dtype=s.dtype, device=s.device)
        cosines = torch.where(both, here.gramian / s.unsqueeze(-1) / s.unsqueeze(-2), unit)
        ridge = max(_RIDGE, here.precision)
        b = _bargain(cosines + ridge * unit, torch.where(part, m * here.weight, 1.0))
        b = torch.where(part, b, 0.0)
        length = norm(cosines, b)
        limit = per_instance("max_norm", self.max_norm, length)
        cut = torch.where(length > limit, limit / torch.where(length > 0, length, 1.0), 1.0)
        return here.coefficients(cut * b / s), state


def _bargain(C: Tensor, power: Tensor) -> Tensor:
    """The minimiser b > 0 of φ(b) = ½bᵀCb − p·log b, (*B, m), for C positive definite and p > 0.

    Newton's method with the best of several step lengths, among them the damping 1/(1 + decrement) that
    self-concordance makes safe. An instance ends when its decrement no longer falls: it is 0 up to rounding.
    """
    b = power.sqrt()
    b = b * (power.sum(-1, keepdim=True) / (b * apply(C, b)).sum(-1, keepdim=True)).sqrt()
    halves = 0.5 ** torch.arange(30, dtype=b.dtype, device=b.device)
    weakest = power.amin(-1, keepdim=True).sqrt()
    last = torch.full_like(weakest, torch.inf)
    live = torch.ones_like(weakest, dtype=torch.bool)
    for _ in range(_STEPS):
        # In units of b: y = Δb/b.
        pull = b * apply(C, b)
        hessian = b.unsqueeze(-1) * C * b.unsqueeze(-2)
        y = torch.linalg.solve_ex(hessian + torch.diag_embed(power), (power - pull).unsqueeze(-1)).result.squeeze(-1)
        decrement = (y * (power - pull)).sum(-1, keepdim=True).clamp_min(0.0).sqrt() / weakest
        near = decrement < _NEAR
        live = live & torch.isfinite(decrement) & ~(near & (decrement >= last)) & (decrement > 0)
        if not bool(live.any()):
            break
        last = torch.where(near, decrement, torch.inf)
        reach = 0.99 / (-y).amax(-1, keepdim=True).clamp_min(0.99 * halves[-1])
        steps = torch.cat((1.0 / (1.0 + decrement), reach.clamp_max(1.0), reach * halves), -1)  # (*B, n)
        slope = ((pull - power) * y).sum(-1, keepdim=True)
        bend = (y * apply(hessian, y)).sum(-1, keepdim=True)
        ahead = torch.log1p((steps.unsqueeze(-1) * y.unsqueeze(-2)).clamp_min(-0.999))
        rest = (ahead - steps.unsqueeze(-1) * y.unsqueeze(-2)) @ power.unsqueeze(-1)
        value = steps * slope + 0.5 * steps.square() * bend - rest.squeeze(-1)
        best = steps.gather(-1, value.argmin(-1, keepdim=True))
        b = torch.where(live, b * (1.0 + torch.where(near, 1.0, best) * y), b)
    return b
