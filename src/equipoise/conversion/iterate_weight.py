"""The weights tᵖ of iterates, in a unit that grows with the run so that nothing overflows float32."""

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, known

__all__ = ["Weighed", "weigh"]


class Weighed(NamedTuple):
    """The weight of one iterate, and the factor of the weights before it."""

    weight: Tensor
    """(t/unit)ᵖ, from 1 to 2ᵖ."""
    fade: Tensor | None
    """The factor of older weights: 2⁻ᵖ where the unit has doubled, else 1. None: 1 everywhere."""
    unit: Tensor
    """The step whose weight is the unit of all weights from now on."""


def weigh(count: Tensor, unit: Tensor, power: Number) -> Weighed:
    """The weight of iterate t = `count`; every tensor has the shape of `count`.

    The unit doubles whenever t reaches twice the unit. Rescaling in every step instead would round the factor
    ((t − 1)/t)ᵖ in float32: at 10⁷ steps the exponent would be wrong by a third.

    Args:
        count: t, the iterates recorded including this one. If it has not changed, nothing is rescaled.
        unit: The unit of the weights so far, 1 before the first iterate.
        power: p, a number or a tensor that broadcasts with `count`.
    """
    if not isinstance(power, Tensor) and power == 0:
        return Weighed(torch.ones_like(count), None, unit)
    ratio = count / unit
    doubled = ratio >= 2
    weight = ratio ** (power.to(count) if isinstance(power, Tensor) else power)
    if known(doubled.any()) is False:
        return Weighed(weight, None, unit)
    one = torch.ones_like(weight)
    fade = torch.where(doubled, 1 / weight, one)
    return Weighed(torch.where(doubled, one, weight), fade, torch.where(doubled, count, unit))
