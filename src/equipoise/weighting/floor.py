"""The ideal point as a floor: for losses below it, a preference has the opposite effect."""

from typing import Any

import torch
from torch import Tensor

from equipoise.batch import constant

__all__ = ["below", "floor", "lowered"]

SLACK = 1e-6
"""How far below the ideal point rounding may take a loss, relative to 1 + |z|."""


def floor(weighting: Any, preference: Tensor) -> Tensor | None:  # noqa: ANN401
    """The smallest losses for which a preference has its meaning; None if there is no such floor.

    A weighting with an `origin` z minimises max_i w_i (f_i − z_i). Where f_i < z_i, a larger w_i gives objective i less
    attention, not more. If all w are equal, only differences of losses matter, whatever their sign; and an objective
    of weight 0 does not count. These have no floor.

    Args:
        weighting: The weighting.
        preference: w, (*B, m), on the host.

    Returns:
        z, −∞ where there is no floor, in float64: a shape that broadcasts with (*B, m).
    """
    origin = getattr(weighting, "origin", None)
    if origin is None:
        return None
    w = preference.detach().to("cpu", torch.float64)
    z = constant(origin, w)
    if z.ndim > 0 and z.shape[-1] not in {1, w.shape[-1]}:
        return None  # the first step raises the error
    heeded = (w > 0) & (w.amax(-1, keepdim=True) - w.amin(-1, keepdim=True) > SLACK)
    if not bool(heeded.any()):
        return None
    return torch.where(heeded, z, -torch.inf)


def lowered(least: Tensor) -> Tensor:
    """A floor with a tolerance for rounding."""
    return least - SLACK * (1.0 + least.abs())


def below(value: float, least: float, objective: str, rule: str = "") -> str:
    """The warning for a loss below its floor.

    Args:
        value: The loss.
        least: Its floor.
        objective: Its name, and where it was found.
        rule: What is broken; by default that losses lie above the ideal point.
    """
    return (
        f"{rule or f'losses must not lie below the ideal point, {least:.4g}'}; found {value:.4g} for {objective}. "
        "A loss below the ideal point turns the weight round: a larger weight then asks for less. One noisy batch does "
        "no harm; if most are below, the solution is not the one that the preference names: give ideal= a point below "
        "every loss, or add a constant to the losses"
    )
