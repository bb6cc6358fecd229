"""Impartial multi-task learning on gradients (IMTL-G)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import restrict


@dataclass(frozen=True)
class IMTLG(Weighting[Stateless]):
    r"""IMTL-G (Liu et al. 2021): the direction whose projections on the unit gradients are equal.

    With s_i = ‖g_i‖ and the Gramian K,

        c ∝ K⁺(s∘w),   Σ c_i = 1,   so that for independent gradients   d·g_i/s_i ∝ w_i.

    A uniform w is the published method, which has no preference. Weighting the gradients instead would change nothing,
    because only their directions count. Entries of c may be negative. Where K⁺(s∘w) sums to 0, c = 0. Objectives with
    zero gradient are ignored.

    The matrix of cosines is inverted, not K, so gradients may have any lengths. They count as dependent if an
    eigenvalue of the cosines is below m times the precision of the Gramian; projections are then met in the
    least-squares sense of K⁺.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.IMTLG()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in c.tolist()], [round(value, 3) for value in (c @ J).tolist()]
        ([0.667, 0.333], [0.667, 0.667])
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients that sum to 1, shape (*B, m)."""
        here = restrict(seen)
        square = here.gramian.diagonal(dim1=-2, dim2=-1)
        part = square > torch.finfo(square.dtype).tiny
        longest = square.amax(-1, keepdim=True).sqrt()
        s = torch.where(part, square, 1.0).sqrt()
        target = torch.where(part, here.weight, 0.0)
        tolerance = here.weight.shape[-1] * here.precision
        both = part.unsqueeze(-1) & part.unsqueeze(-2)
        unit = torch.eye(here.weight.shape[-1], dtype=s.dtype, device=s.device)
        cosines = torch.where(both, here.gramian / s.unsqueeze(-1) / s.unsqueeze(-2), unit)
        shortest = torch.where(part, s, torch.inf).amin(-1, keepdim=True)
        along, independent = _solve(cosines, target, tolerance)
        scale = torch.where(part, longest, 1.0)
        relative = torch.where(both, here.gramian / scale.unsqueeze(-1) / scale.unsqueeze(-2), 0.0)
        nearest, _ = _solve(relative, s / scale * target, tolerance)
        v = torch.where(part, torch.where(independent, along * shortest / s, nearest), 0.0)
        total, size = v.sum(-1, keepdim=True), v.abs().sum(-1, keepdim=True)
        fits = total.abs() > 1e-12 * size
        return here.coefficients(torch.where(fits, v / torch.where(fits, total, 1.0), 0.0)), state


def _solve(matrix: Tensor, x: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """The pseudo-inverse of a matrix (*B, m, m) times x (*B, m), and whether it is the inverse, (*B, 1)."""
    value, vector = torch.linalg.eigh(matrix)
    kept = value > tolerance * value[..., -1:]
    inverse = torch.where(kept, 1.0, 0.0) / torch.where(kept, value, 1.0)
    found = (vector @ (inverse.unsqueeze(-1) * (vector.mT @ x.unsqueeze(-1)))).squeeze(-1)
    return found, kept.all(-1, keepdim=True)
