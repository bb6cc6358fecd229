"""Limits on the influence of one client in a round: its loss, its move and its weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.flower.arrays import Part

__all__ = ["LossCap", "limit_moves", "limit_weights", "weight_shares"]

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LossCap:
    """Limits a reported loss to a multiple of a quantile of the other objectives' losses.

    A larger loss is replaced by the quantile, so that lying gains nothing. The strategy compares losses times
    preference, w∘f. With the median, a minority of objectives cannot raise the limit beyond the others' losses. An
    honest objective beyond the limit is treated as average, so choose the factor by how far apart honest losses can be.
    If the quantile is 0, there is no limit.

    Attributes:
        quantile: q in [0, 1], interpolated linearly.
        factor: At least 1.

    Examples:
        >>> from equipoise.flower import LossCap
        >>> LossCap().capped(torch.tensor([1.0, 2.0, 3.0, 150.0])).tolist()  # up to 100 times the median of the others
        [1.0, 2.0, 3.0, 150.0]
        >>> LossCap().capped(torch.tensor([1.0, 2.0, 3.0, 1e38])).tolist()
        [1.0, 2.0, 3.0, 2.0]
        >>> LossCap(1.0, 1.0).capped(torch.tensor([1.0, 2.0, 100.0])).tolist()  # the largest counts as the second
        [1.0, 2.0, 2.0]
    """

    quantile: float = 0.5
    factor: float = 100.0

    def __post_init__(self) -> None:
        require(0 <= self.quantile <= 1, "quantile must lie in [0, 1]", self.quantile)
        require(1 <= self.factor < float("inf"), "factor must be at least 1 and finite", self.factor)

    def capped(self, losses: Tensor) -> Tensor:
        """The losses (n,) with those outside [−factor |q|, q + (factor − 1)|q|] replaced by q."""
        q = self.quantiles(losses)
        low, high = -self.factor * q.abs(), q + (self.factor - 1.0) * q.abs()
        return torch.where((q == 0) | ((low <= losses) & (losses <= high)), losses, q)

    def quantiles(self, losses: Tensor) -> Tensor:
        """For each objective, the quantile of the others' losses, (n,); 0 without others."""
        n = len(losses)
        if n == 1:
            return torch.zeros_like(losses)
        ordered, order = losses.sort(stable=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(n))
        place = self.quantile * (n - 2)
        low = int(place)
        high = min(low + 1, n - 2)
        # The k-th of the others is the k-th of all, or the next one if its own loss comes before it.
        below, above = (ordered[k + (rank <= k).to(torch.int64)] for k in (low, high))
        return torch.lerp(below, above, place - low)


def limit_moves(lengths: Tensor, most: float) -> Tensor:
    """Factors that shorten moves of over `most` times the median length to the median, (n,).

    Args:
        lengths: |θ_i − θ|, (n,).
        most: At least 1.

    Returns:
        Factors in [0, 1]; all 1 if the median is 0.
    """
    median = lengths.median()
    return torch.where(lengths > most * median, median / lengths, 1.0) if median > 0 else torch.ones_like(lengths)


def weight_shares(c: Tensor, parts: Sequence[Part]) -> Tensor:
    """Every client's share of all coefficients, (n,)."""
    own = torch.tensor([abs(float(c[part.objective])) * part.share for part in parts], dtype=torch.float64)
    return own / own.sum().clamp_min(_TINY)


def limit_weights(c: Tensor, preference: Tensor, parts: Sequence[Part], most: float) -> Tensor:
    """Coefficients with no client's share above `most`.

    The excess of an objective goes to the others that replied, in proportion to their preference, up to the same limit.
    The sum of the sizes is unchanged if the limits allow it. An objective always keeps the share that its preference
    gives it. The limit is at least 2/n, as with two clients no limit below 1 makes sense.

    Args:
        c: (m,).
        preference: w, (m,).
        parts: The clients that replied.
        most: In (0, 1].

    Returns:
        (m,), c itself if no share exceeds the limit.
    """
    if most >= 1:
        return c
    size = c.abs().double()
    total = size.sum()
    largest = torch.zeros_like(size)  # the share of its largest client in an objective
    which = torch.tensor([part.objective for part in parts])
    largest.scatter_reduce_(0, which, torch.tensor([part.share for part in parts], dtype=size.dtype), "amax")
    present = largest > 0
    w = torch.where(present, preference.double(), 0.0)
    share = (w / w.sum().clamp_min(_TINY)).clamp_min(max(most, 2 / len(parts)))
    limits = torch.where(present, share * total / largest, 0.0)
    if bool((size <= limits * (1 + 1e-12)).all()):
        return c
    # The sum of min(limit, size + τ w) rises with τ until it is the old sum, or all that the limits allow.
    low, high = 0.0, float(total / w[w > 0].min()) if bool((w > 0).any()) else 0.0
    for _ in range(100):
        middle = (low + high) / 2
        enough = bool(torch.minimum(limits, size + middle * w).sum() >= total)
        low, high = (low, middle) if enough else (middle, high)
    limited = torch.minimum(limits, size + high * w)
    return torch.where(c < 0, -limited, limited).to(c)
