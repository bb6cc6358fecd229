"""Unconflicting projections of gradients (UPGrad)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.minnorm import min_norm_at
from equipoise.weighting.local import observe_local
from equipoise.weighting.protocol import Stateless, Weighting


@dataclass(frozen=True)
class UPGrad(Weighting[Stateless]):
    r"""UPGrad (Quinton and Rey 2024): the mean of the gradients, each projected to where none of them is hurt.

    The projection of g_i on the dual cone {x : g_j·x ≥ 0 for all j} is Jᵀv with

        v⁽ⁱ⁾ = argmin vᵀKv   subject to   v ≥ e_i,   then   c = Σ w_i v⁽ⁱ⁾,

    so that d = Jᵀc decreases every objective or leaves it as it is. At the optimum v_i = 1: these are m searches
    for the shortest vector, by an exact active set. The preference w weighs the mean; objectives of weight 0 are
    protected all the same. For two objectives it is PCGrad.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

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
        """Coefficients Σ w_i v⁽ⁱ⁾, shape (*B, m)."""
        seen = observe_local(losses, preference, 0.0, gramian=gramian, mask=mask, inclusion=inclusion, **extra)
        K, m = seen.gramian, losses.shape[-1]
        unit = torch.eye(m, dtype=K.dtype, device=K.device)
        problems = K.unsqueeze(-3).expand(*K.shape[:-2], m, m, m)
        # A gradient of length 0 is its own projection: it has no search, and keeps v = e_i.
        v = torch.where(unit > 0, unit, min_norm_at(problems, unit).to(K))
        c = (seen.weight.unsqueeze(-2) @ v).squeeze(-2)
        return seen.coefficients(c.clamp_max(torch.finfo(losses.dtype).max), losses), state
