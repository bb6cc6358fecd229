"""Unconflicting projections of gradients (UPGrad)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.minnorm import min_norm_at
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import restrict


@dataclass(frozen=True)
class UPGrad(Weighting[Stateless]):
    r"""UPGrad (Quinton and Rey 2024): the mean of the gradients, each projected so that no objective increases.

    The projection of g_i on the dual cone {x : g_j·x ≥ 0 for all j} is Jᵀv with

        v⁽ⁱ⁾ = argmin vᵀKv   subject to   v ≥ e_i,   then   c = Σ w_i v⁽ⁱ⁾,

    so that d = Jᵀc does not increase any objective. At the optimum v_i = 1: these are m min-norm problems, solved by an
    exact active set. The preference w weights the mean; objectives of weight 0 are still protected. For two objectives
    it is PCGrad.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.UPGrad()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> c.tolist(), (J @ (c @ J)).tolist()  # no objective is hurt
        ([1.0, 0.75], [0.25, 0.5])
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients Σ w_i v⁽ⁱ⁾, shape (*B, m)."""
        here = restrict(seen)
        K, m = here.gramian, here.weight.shape[-1]
        unit = torch.eye(m, dtype=K.dtype, device=K.device)
        problems = K.unsqueeze(-3).expand(*K.shape[:-2], m, m, m)
        # A zero gradient is its own projection and keeps v = e_i.
        v = torch.where(unit > 0, unit, min_norm_at(problems, unit).to(K))
        return here.coefficients((here.weight.unsqueeze(-2) @ v).squeeze(-2)), state
