"""Dynamic weight average: more weight for losses that fall slowly (DWA)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_positive, per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting, working_dtype

_STEEPEST = 1e6
"""The largest |r|; the softmax saturates long before."""


class DWAState(NamedTuple):
    """The current epoch and the two before it."""

    total: Tensor
    """The sum of the losses in the current epoch, (*B, m)."""
    observed: Tensor
    """The number of losses in that sum, (*B, m)."""
    newer: Tensor
    """The mean loss of the last complete epoch, 0 before there is one, (*B, m)."""
    older: Tensor
    """The mean loss of the epoch before that, likewise, (*B, m)."""


@dataclass(frozen=True)
class DWA(Weighting[DWAState]):
    r"""Dynamic weight average (Liu, Johns and Davison 2019): the slower a loss falls, the larger its weight.

    With f̄_i⁽ᵉ⁾ the mean of f_i over epoch e, in every step of epoch e

        r_i = f̄_i⁽ᵉ⁻¹⁾/f̄_i⁽ᵉ⁻²⁾,   λ = m · softmax(r/T),   c = λ∘w.

    In the first two epochs λ_i = 1, which is the weighted sum. For uniform w, c is 1/m of the published weights and
    sums to 1.

    The preference weights the losses; the ratios of w∘f are those of f. Ratios of falling losses lie in [0, 1], so with
    T = 2 no weight exceeds e^½ = 1.65 times another: the answer stays near that of the weighted sum, and there is no
    target f ∝ 1/w.

    Losses must be positive: a ratio to a mean of 0 or less counts as 1. Each objective counts its own epochs: one epoch
    is `epoch` observed losses.

    Attributes:
        epoch: The steps of an epoch. With mini-batches give at least the number of batches in the data: ratios of
            single batches are noise. Give 1 if every step uses all data, or is a round of federated learning.
        temperature: T > 0; the larger, the closer to the weighted sum.

    Examples:
        >>> w, weighting = torch.tensor([0.5, 0.5]), eq.DWA(epoch=1)
        >>> state = weighting.init(w)
        >>> for losses in ([2.0, 2.0], [1.0, 2.0], [1.0, 2.0]):  # the first was halved, the second stays
        ...     c, state = weighting.update(torch.tensor(losses), state, w)
        >>> [round(value, 4) for value in (2 * c).tolist()]
        [0.8756, 1.1244]
    """

    epoch: int
    temperature: Number = 2.0

    def __post_init__(self) -> None:
        whole = self.epoch >= 1 and self.epoch == int(self.epoch)
        require(whole, "epoch must be a whole number of steps, at least 1", self.epoch)
        check_positive("temperature", self.temperature)

    def init(self, losses: Tensor, **extra: Tensor) -> DWAState:
        """No epoch yet."""
        shape, dtype, device = losses.shape, working_dtype(losses), losses.device
        return DWAState(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(4)))

    def step(self, seen: Seen, state: DWAState) -> tuple[Tensor, DWAState]:
        """Coefficients λ∘w, shape (*B, m); adds the losses to the current epoch."""
        total, observed = state.total + seen.losses, state.observed + (1.0 if seen.present is None else seen.present)
        over = observed >= self.epoch
        new = DWAState(
            torch.where(over, 0.0, total),
            torch.where(over, 0.0, observed),
            torch.where(over, total / observed, state.newer),
            torch.where(over, state.newer, state.older),
        )
        return self._weights(state) * seen.weight, new

    def foreseen(self, state: DWAState, preference: Tensor) -> Tensor | None:
        """λ∘w: the weights of an epoch are known when it begins."""
        weights = self._weights(state)
        return weights * preference.to(weights)

    def _weights(self, state: DWAState) -> Tensor:
        """λ, (*B, m)."""
        known = state.older > 0
        r = torch.where(known, state.newer / torch.where(known, state.older, 1.0), 1.0).clamp(-_STEEPEST, _STEEPEST)
        return r.shape[-1] * torch.softmax(r / per_instance("temperature", self.temperature, r), -1)
