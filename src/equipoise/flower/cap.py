"""A cap on what a client can report: no one takes all the weight with one enormous number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["LossCap"]


@dataclass(frozen=True)
class LossCap:
    """A reported loss counts at most as a multiple of a quantile of the other objectives' losses.

    With quantile 1 and factor 1 the largest loss counts as the second largest: no lie gains more than that. Such a
    cap also takes from an honest objective what sets it apart from the others; a larger factor leaves it that.

    Attributes:
        quantile: q in [0, 1], interpolated linearly.
        factor: At least 1.

    Examples:
        >>> from equipoise.flower import LossCap
        >>> losses = torch.tensor([1.0, 2.0, 100.0])
        >>> torch.minimum(losses, LossCap(quantile=1.0).limits(losses)).tolist()  # the largest counts as the second
        [1.0, 2.0, 2.0]
    """

    quantile: float = 0.9
    factor: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.quantile <= 1, "quantile must lie in [0, 1]", self.quantile)
        require(1 <= self.factor < float("inf"), "factor must be at least 1 and finite", self.factor)

    def limits(self, losses: Tensor) -> Tensor:
        """The most that each loss may count, (n,); without others there is no limit."""
        n = len(losses)
        if n == 1:
            return torch.full_like(losses, torch.inf)
        ordered, order = losses.sort(stable=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(n))
        place = self.quantile * (n - 2)
        low = int(place)
        high = min(low + 1, n - 2)
        # The k-th of the others is the k-th of all, or the next if one's own comes before it.
        below, above = (ordered[k + (rank <= k).to(torch.int64)] for k in (low, high))
        quantile = torch.lerp(below, above, place - low)
        return quantile + (self.factor - 1.0) * quantile.abs()
