"""What the weightings on gradients share: one step restricted to the objectives that are present."""

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import apply, constant, fit
from equipoise.preference import inverse
from equipoise.weighting.protocol import Ideal, Stateless, Weighting, emit, observe
from equipoise.weighting.reweighted import weigh_gramian

__all__ = ["Local", "OnGramian", "Target", "norm", "observe_local", "ray"]

Target = Literal["inverse", "direct"]
"""Where a preference points: f ∝ 1/w, as for Tchebycheff scalarization, or f ∝ w."""


class Local(NamedTuple):
    """What a weighting on gradients sees of one step: finite throughout, and 0 where absent."""

    losses: Tensor
    """f − z, (*B, m)."""
    weight: Tensor
    """w, (*B, m)."""
    gramian: Tensor
    """K = JJᵀ, (*B, m, m)."""
    present: Tensor
    """Which objectives take part, (*B, m); never none."""
    valid: Tensor
    """Whether the above were observed; made up where a value was not finite or no objective present. (*B, 1)."""
    scale: Tensor
    """1/π, by which losses and gradients are multiplied, (*B, m)."""

    def coefficients(self, c: Tensor, losses: Tensor) -> Tensor:
        """What `update` returns for the solution c (*B, m)."""
        return emit(torch.where(self.valid, c * self.scale, 0.0), losses)


def observe_local(
    losses: Tensor,
    preference: Tensor,
    ideal: Ideal,
    *,
    gramian: Tensor,
    mask: Tensor | None,
    inclusion: Tensor | None,
    **extra: Tensor,
) -> Local:
    """Check the arguments of `update` and restrict them to the objectives that are present."""
    seen = observe(losses, preference, 0.0, mask, **extra)
    w = seen.weight
    present = torch.ones_like(w, dtype=torch.bool) if seen.present is None else seen.present
    scale = present.to(w) if inclusion is None else present / fit("inclusion", inclusion, losses).to(w)
    K = weigh_gramian(gramian, scale)
    values = losses.detach().to(w) - fit("ideal", constant(ideal, w), losses)
    values = torch.where(present, scale * values, 0.0)
    valid = seen.valid & torch.isfinite(K.sum((-2, -1))).unsqueeze(-1) & present.any(-1, keepdim=True)
    unit = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return Local(
        torch.where(valid, values, 1.0),
        torch.where(valid, w, 1.0),
        torch.where(valid.unsqueeze(-1), K, unit),
        present | ~valid,
        valid,
        scale,
    )


class OnGramian(Weighting[Stateless]):
    """A weighting without memory that looks at the Gramian of the objectives which are present."""

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    def init(self, losses: Tensor, **extra: Tensor) -> Stateless:
        """No state."""
        return Stateless()

    def update(  # type: ignore[override]
        self,
        losses: Tensor,
        state: Stateless,
        preference: Tensor,
        *,
        gramian: Tensor,
        mask: Tensor | None = None,
        inclusion: Tensor | None = None,
        **extra: Tensor,
    ) -> tuple[Tensor, Stateless]:
        """Coefficients of the objectives, shape (*B, m)."""
        seen = observe_local(losses, preference, 0.0, gramian=gramian, mask=mask, inclusion=inclusion, **extra)
        c = self.combine(seen, torch.finfo(gramian.dtype).eps)
        return seen.coefficients(c.clamp_max(torch.finfo(losses.dtype).max), losses), state

    def combine(self, seen: Local, precision: float) -> Tensor:
        """The coefficients (*B, m) for what is seen, of which the Gramian was measured with this relative precision."""
        raise NotImplementedError


def ray(weight: Tensor, target: Target, present: Tensor) -> Tensor:
    """The unit vector along which a preference w wants the losses, 0 where absent, shape (*B, m).

    For "inverse" that is 1/w; a zero in w gives the axis, not an infinite ray.
    """
    along = weight if target == "direct" else inverse(torch.where(present, weight, torch.inf))
    along = torch.where(present, along, 0.0)
    length: Tensor = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    return along / torch.where(length > 0, length, 1.0)


def norm(gramian: Tensor, c: Tensor) -> Tensor:
    """The norm of Σ c_i g_i, (*B, 1), from K (*B, m, m) and c (*B, m)."""
    return (c * apply(gramian, c)).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
