"""The ideal point as a floor: below it a preference does not mean what it says."""

from typing import Any

import torch
from torch import Tensor

from equipoise.batch import constant

__all__ = ["below", "floor", "lowered"]

SLACK = 1e-6
"""How far below the ideal point rounding may take a loss, relative to 1 + |z|."""


def floor(weighting: Any, preference: Tensor) -> Tensor | None:  # noqa: ANN401
    """The least losses for which a preference means what it says; None if all do.

    A weighting with an `origin` z lets max_i w_i (f_i − z_i) fall. Where f_i < z_i a larger w_i asks for less of
    objective i, not for more, and w_i = 0 asks for most. With equal w only differences of losses count, whatever
    their sign, and an objective of weight 0 has no loss to speak of: these have no floor.

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
        return None  # the first step says what is wrong with it
    heeded = (w > 0) & (w.amax(-1, keepdim=True) - w.amin(-1, keepdim=True) > SLACK)
    if not bool(heeded.any()):
        return None
    return torch.where(heeded, z, -torch.inf)


def lowered(least: Tensor) -> Tensor:
    """A floor less what rounding may do."""
    return least - SLACK * (1.0 + least.abs())


def below(value: float, least: float, objective: str) -> str:
    """What to say of a loss below its floor.

    Args:
        value: The loss.
        least: Its floor.
        objective: Whose loss, and where.
    """
    return (
        f"losses must not lie below the ideal point, {least:.4g}; found {value:.4g} for {objective}. There a larger "
        "weight asks for less, and the solution is not the one that the preference names. Give ideal= a point below "
        "every loss, or add a constant to the losses"
    )
