"""Shared by gradient-based weightings: one step restricted to the objectives that are present."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import apply
from equipoise.preference import inverse
from equipoise.weighting.protocol import Seen
from equipoise.weighting.reweighted import weigh_gramian

__all__ = ["Local", "Target", "norm", "ray", "restrict"]

Target = Literal["inverse", "direct"]
"""Where a preference points: f ∝ 1/w, as for Tchebycheff scalarization, or f ∝ w."""


class Local(NamedTuple):
    """The input of a gradient-based weighting in one step: all finite, and 0 where absent."""

    losses: Tensor
    """(f − z)/π, (*B, m)."""
    weight: Tensor
    """w, (*B, m)."""
    gramian: Tensor
    """K = JJᵀ of the objectives f/π, (*B, m, m)."""
    present: Tensor
    """Which objectives take part, (*B, m); at least one."""
    valid: Tensor
    """False where the above are placeholders: a value was not finite or no objective present, (*B, 1)."""
    scale: Tensor
    """1/π, by which losses and gradients are multiplied, (*B, m)."""
    precision: float
    """The relative precision with which the Gramian was measured."""
    largest: float
    """The largest coefficient that `update` can return."""

    def coefficients(self, c: Tensor) -> Tensor:
        """The coefficients of f for those of f/π, (*B, m); 0 where nothing was observed."""
        return torch.where(self.valid, c.clamp_max(self.largest) * self.scale, 0.0)


def restrict(seen: Seen) -> Local:
    """Restrict a step to the objectives that are present, each divided by its inclusion probability."""
    w = seen.w
    present = torch.ones_like(w, dtype=torch.bool) if seen.present is None else seen.present
    scale = present.to(w) if seen.inclusion is None else torch.where(present, 1.0 / seen.inclusion, 0.0)
    K = weigh_gramian(seen.gramian, scale)
    valid = seen.valid & torch.isfinite(K.sum((-2, -1))).unsqueeze(-1) & present.any(-1, keepdim=True)
    unit = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return Local(
        torch.where(valid, scale * seen.losses, 1.0),
        torch.where(valid, w, 1.0),
        torch.where(valid.unsqueeze(-1), K, unit),
        present | ~valid,
        valid,
        scale,
        torch.finfo(seen.gramian.dtype).eps,
        torch.finfo(seen.dtype).max,
    )


def ray(weight: Tensor, target: Target, present: Tensor) -> Tensor:
    """The unit vector that a preference w asks the losses to lie along, 0 where absent, shape (*B, m).

    For "inverse" that is 1/w; a zero in w gives the axis, not an infinite ray.
    """
    along = weight if target == "direct" else inverse(torch.where(present, weight, torch.inf))
    along = torch.where(present, along, 0.0)
    length: Tensor = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    return along / torch.where(length > 0, length, 1.0)


def norm(gramian: Tensor, c: Tensor) -> Tensor:
    """The norm of Σ c_i g_i, (*B, 1), from K (*B, m, m) and c (*B, m)."""
    return (c * apply(gramian, c)).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
