"""Independent component alignment (Aligned-MTL)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import restrict


@dataclass(frozen=True)
class AlignedMTL(Weighting[Stateless]):
    r"""Aligned-MTL (Senushkin et al. 2023): rotates and rescales the gradients to be orthogonal and of equal length.

    With the eigenvalues ℓ_k and eigenvectors v_k of the Gramian K, and ℓ_min the smallest nonzero eigenvalue,

        c = √ℓ_min Σ_k ℓ_k^(−1/2) v_k v_kᵀ w,

    so that Jᵀc = √ℓ_min Σ w_i q_i, the q_i being the orthonormal vectors nearest to the gradients. The publication
    has the same preference w. Entries of c may be negative. Where all gradients are 0, c = w.

    An eigenvalue counts as 0 if it is below m times the precision of the Gramian, relative to the largest.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.AlignedMTL()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in c.tolist()]  # both gradients as long as the shorter one
        [0.5, 0.25]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients √ℓ_min K^(−1/2) w, shape (*B, m)."""
        here = restrict(seen)
        value, vector = torch.linalg.eigh(here.gramian)
        kept = value > here.weight.shape[-1] * here.precision * value[..., -1:].clamp_min(0.0)
        value = torch.where(kept, value, torch.inf)
        least = value.amin(-1, keepdim=True)
        ratio = torch.where(kept, least / value, 0.0).sqrt()
        c = (vector @ (ratio.unsqueeze(-1) * (vector.mT @ here.weight.unsqueeze(-1)))).squeeze(-1)
        return here.coefficients(torch.where(kept.any(-1, keepdim=True), c, here.weight)), state
