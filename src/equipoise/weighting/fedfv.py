"""Federated averaging without conflicting gradients (FedFV)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, apply, per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting, keep, working_dtype
from equipoise.weighting.restricted import norm, restrict

_ROUNDING = 1e-12


class FedFVState(NamedTuple):
    """The number of rounds so far."""

    step: Tensor
    """t, counted from 0, (*B, 1)."""


@dataclass(frozen=True)
class FedFV(Weighting[FedFVState]):
    r"""FedFV (Wang et al. 2021): removes conflicts between gradients by projection before averaging them.

    Clients are ordered by loss, the smallest first. Those from position ⌈(m−1)(1−α)⌉ on keep their
    (pseudo-)gradient, none if α = 0. Every other g̃_i starts as g_i and is projected for all g_j in that order:

        g̃_i ← g̃_i − (g̃_i·g_j/‖g_j‖²) g_j   where g̃_i·g_j < 0,   then   ḡ = Σ w_i g̃_i.

    External conflicts, from round τ on: ḡ is projected off the sum of the g_j with ḡ·g_j < 0 in the same way. Finally ḡ
    is scaled to the length of the plain mean Σ w_i g_i. All of it works on coefficients over the clients, with the
    Gramian alone. The preference w weights the means: 1/m for every client in the publication.

    The published method also compares ḡ with the last gradients of clients that are now absent. That needs their
    gradients and is not done: only clients that are present conflict, as in the released code with full participation.
    m counts those present. Clients of equal loss are ordered by their number.

    Attributes:
        alpha: α in [0, 1], the fraction of clients, those with the largest losses, that keep their gradient.
        tau: τ ≥ 0: external conflicts are resolved from round τ on, counted from 0; never if τ = 0.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.tensor([1.0, 2.0]), eq.FedFV(alpha=0.0)
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in c.tolist()]
        [0.632, 0.474]
        >>> round((c @ J).norm().item(), 3), (w @ J).norm().item()  # as long as the mean
        (0.5, 0.5)
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    alpha: Number = 0.1
    tau: int = 1

    def __post_init__(self) -> None:
        alpha = torch.as_tensor(self.alpha)
        require(bool(((alpha >= 0) & (alpha <= 1)).all()), "alpha must lie in [0, 1]", self.alpha)
        require(self.tau >= 0 and self.tau == int(self.tau), "tau must be a non-negative whole number", self.tau)

    def init(self, losses: Tensor, **extra: Tensor) -> FedFVState:
        """Round 0."""
        return FedFVState(torch.zeros_like(losses[..., :1], dtype=working_dtype(losses)))

    def step(self, seen: Seen, state: FedFVState) -> tuple[Tensor, FedFVState]:
        """The coefficients of ḡ over the clients, shape (*B, m)."""
        here = restrict(seen)
        K, mean = here.gramian, here.weight
        height = torch.where(here.valid, seen.losses, 0.0)
        order = torch.where(here.present, height, torch.inf).argsort(dim=-1, stable=True)
        c = apply(self._free_of_conflicts(K, order, here.present).mT, mean)
        if self.tau > 0:
            c = torch.where(state.step >= self.tau, _off_conflicts(K, c), c)
        length, target = norm(K, c), norm(K, mean)
        # Below that, ḡ is only rounding error.
        spread = (c.abs() * K.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()).sum(-1, keepdim=True)
        real = length > 1e-7 * spread
        c = torch.where(real, target / torch.where(real, length, 1.0), 1.0) * c
        return here.coefficients(c), keep(here.valid, FedFVState(state.step + 1.0), state)

    def _free_of_conflicts(self, K: Tensor, order: Tensor, present: Tensor) -> Tensor:
        """The g̃_i, one in a row, as coefficients over the clients: (*B, m, m)."""
        m = K.shape[-1]
        alpha = per_instance("alpha", self.alpha, present.to(K))
        first = torch.ceil((present.sum(-1, keepdim=True).to(K) - 1.0) * (1.0 - alpha))
        position = order.argsort(dim=-1)
        moves = present & ~((position >= first) & (alpha > 0))
        index = torch.arange(m, device=K.device)
        rows = torch.eye(m, dtype=K.dtype, device=K.device).expand_as(K)
        for j in order.unsqueeze(-2).unbind(-1):  # (*B, 1): one client of every problem
            other = index == j
            column = K.gather(-1, j.unsqueeze(-2).expand(*K.shape[:-1], 1)).squeeze(-1)
            dot = apply(rows, column)
            square = torch.where(other, column, 0.0).sum(-1, keepdim=True)
            meets = moves & ~other & (dot < 0) & (square > 0)
            share = torch.where(meets, dot / torch.where(square > 0, square, 1.0), 0.0)
            rows = rows - share.unsqueeze(-1) * other.unsqueeze(-2).to(K)
        return rows


def _off_conflicts(K: Tensor, c: Tensor) -> Tensor:
    """ḡ = Σ c_i g_i projected off the sum of the g_j that point against it, (*B, m)."""
    dot = apply(K, c)
    size = norm(K, c) * K.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    # A gradient that ḡ was just projected off is orthogonal to it up to rounding: no conflict.
    against = (dot < -_ROUNDING * size).to(K)
    square = (against * apply(K, against)).sum(-1, keepdim=True)
    share = (against * dot).sum(-1, keepdim=True) / torch.where(square > 0, square, 1.0)
    return c - torch.where(square > 0, share, 0.0) * against
