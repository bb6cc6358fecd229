"""Losses that are not finite, or too low: errors and warnings that name the objective and the step."""

import math

import torch
from torch import Tensor

from equipoise.errors import IdealPointWarning, NonFiniteLossError, warn
from equipoise.host import Fetched
from equipoise.units import Scale, Units
from equipoise.weighting.floor import below, lowered

__all__ = ["Floor", "check_gradients", "check_start", "is_finite", "nonfinite", "refuse", "spoken"]


def is_finite(values: Tensor) -> bool:
    """Whether all are finite; reads them on the host."""
    # A finite sum needs finite terms, and reading one number is faster than reading m.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def refuse(values: Tensor, names: tuple[str, ...], step: int) -> None:
    """Raise the NonFiniteLossError for the losses (m,) of a step."""
    raise NonFiniteLossError(f"losses must be finite; found {nonfinite(values, names)} in step {step}")


def nonfinite(values: Tensor, names: tuple[str, ...]) -> str:
    """The losses (m,) that are not finite, in words."""
    pairs = zip(names, values.tolist(), strict=True)
    return ", ".join(f"{value} for {spoken(name)}" for name, value in pairs if not math.isfinite(value))


def check_gradients(largest: float, step: int) -> None:
    """Raise NonFiniteLossError if the largest derivative of a step with counts is not finite."""
    if not math.isfinite(largest):
        raise NonFiniteLossError(
            f"gradients must be finite; found {largest} in step {step}, where counts were given. The coefficient of an "
            "absent objective is 0, and 0 times an infinite derivative is NaN: guard its loss where it has no samples, "
            "as by sum / count.clamp_min(1)"
        )


def check_start(
    units: Units, values: Tensor, scale: Scale, mask: Tensor | None, names: tuple[str, ...], step: int
) -> None:
    """Raise ValueError for an objective whose first loss, its unit, is at or below the ideal point.

    The losses (m,) and the units so far are on the host; absent objectives do not count.
    """
    low = units.too_low(values, scale, mask).tolist()
    for name, is_low, value in zip(names, low, values.tolist(), strict=True):
        if is_low:
            units.refuse(value, f"{spoken(name)} in step {step}")


class Floor:
    """Warns once about a loss below the ideal point, where the preference loses its meaning.

    Args:
        names: The objectives, for the message.
        least: See `weighting.floor`, (m,); None: no floor.
        rule: What a value below the floor breaks, for the message.
    """

    def __init__(self, names: tuple[str, ...], least: Tensor | None, rule: str = "") -> None:
        self.names, self.least, self._rule = names, least, rule
        self._limits = torch.empty(0) if least is None else lowered(least)
        self._most = -math.inf if least is None else float(self._limits.max())

    def look(self, values: Tensor, counts: Fetched[Tensor] | None, step: int) -> None:
        """Check losses (m,) on the host, 0 where absent; counts (m,) are None if all are present."""
        if self.least is None or float(values.min()) >= self._most:
            return
        low = values < self._limits
        if counts is not None:
            low = low & (counts.wait() > 0)
        if bool(low.any()):
            worst = int(torch.where(low, values - self.least, torch.inf).argmin())
            where = f"objective {self.names[worst]} in step {step}"
            text = below(float(values[worst]), float(self.least[worst]), where, self._rule)
            self.least = None
            warn(f"{text}; this is said once", IdealPointWarning)


def spoken(name: str) -> str:
    """The name of an objective in messages; unnamed ones are numbered."""
    return f"objective {name}" if name.isdecimal() else name
