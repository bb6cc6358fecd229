"""Projecting conflicting gradients (PCGrad)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting, keep
from equipoise.weighting.random_bits import mix
from equipoise.weighting.restricted import restrict


class PCGradState(NamedTuple):
    """The number of steps so far."""

    step: Tensor
    """t, counted from 0, (*B, 1)."""


@dataclass(frozen=True)
class PCGrad(Weighting[PCGradState]):
    r"""PCGrad (Yu et al. 2020): projects every gradient off those it conflicts with, one after the other.

    g̃_i starts as g_i and is projected for all other g_j, in a random order drawn for each i and each step:

        g̃_i ← g̃_i − (g̃_i·g_j/‖g_j‖²) g_j   where g̃_i·g_j < 0,   then   d = Σ w_i g̃_i.

    The preference w weights the sum: with uniform w, d is 1/m of the published one. Objectives of weight 0 are still
    protected from conflicts. A zero gradient conflicts with no other.

    The order depends only on `seed` and the step number and is the same for all problems of a batch, so a run can be
    repeated, batched and resumed. It goes by the positions of the objectives: for m > 2, listing them in another order
    gives another draw.

    Attributes:
        seed: The seed of the orders.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.PCGrad()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> c.tolist()  # of g_1 + g_2/2 and g_2 + g_1 the mean
        [1.0, 0.75]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    seed: int = 0

    def __post_init__(self) -> None:
        whole = 0 <= self.seed < 2**63 and self.seed == int(self.seed)
        require(whole, "seed must be a whole number in [0, 2^63)", self.seed)

    def init(self, losses: Tensor, **extra: Tensor) -> PCGradState:
        """Step 0."""
        return PCGradState(torch.zeros_like(losses[..., :1], dtype=torch.int64))

    def step(self, seen: Seen, state: PCGradState) -> tuple[Tensor, PCGradState]:
        """The coefficients of d over the objectives, shape (*B, m)."""
        here = restrict(seen)
        K, m = here.gramian, here.losses.shape[-1]
        index = torch.arange(m, device=K.device)
        square = K.diagonal(dim1=-2, dim2=-1)
        rows = torch.eye(m, dtype=K.dtype, device=K.device).expand_as(K)  # the g̃_i as coefficients
        for j in self.order(state.step, m).unbind(-1):  # (*B, m): which g_j each of them is projected off now
            dot = (rows * K.gather(-2, j.unsqueeze(-1).expand_as(K))).sum(-1)
            length = square.gather(-1, j)
            meets = (j != index) & (dot < 0) & (length > 0)
            share = torch.where(meets, dot / torch.where(meets, length, 1.0), 0.0)
            rows = rows - share.unsqueeze(-1) * (j.unsqueeze(-1) == index).to(K)
        c = (here.weight.unsqueeze(-2) @ rows).squeeze(-2)
        return here.coefficients(c), keep(here.valid, PCGradState(state.step + 1), state)

    def order(self, step: Tensor, m: int) -> Tensor:
        """One random order of m objectives for each of them, (*B, m, m), at the steps t (*B, 1)."""
        start = mix(mix(torch.full_like(step, self.seed)) + step).unsqueeze(-1)
        cell = torch.arange(m * m, device=step.device).view(m, m)
        return mix(start + cell).argsort(dim=-1, stable=True)
