"""Losses that are not finite, or too low: found at once, or one step late where looking would make a device wait."""

import math
import warnings
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import IdealPointWarning, NonFiniteLossError
from equipoise.host import Fetched, fetch
from equipoise.units import Scale, Units
from equipoise.weighting.floor import below, lowered

__all__ = ["Floor", "Start", "Watch", "sound"]


class _Shown(NamedTuple):
    """Losses that are still to be looked at."""

    step: int
    values: Fetched
    present: Fetched | None
    """The mask, where it is needed."""
    floor: "Floor | None"


class Floor:
    """Warns, once, of a loss that lies too low for the preference to mean what it says.

    Args:
        names: The objectives, for the message.
        least: See `weighting.floor`, (m,); None: nothing is too low.
    """

    def __init__(self, names: tuple[str, ...], least: Tensor | None) -> None:
        self.names, self.least = names, least
        self._limits = torch.empty(0) if least is None else lowered(least)
        self.most = -math.inf if least is None else float(self._limits.max())
        """A loss that is not below this is not too low."""

    @property
    def open(self) -> bool:
        """Whether there is still something to be said."""
        return self.least is not None

    @property
    def masks(self) -> bool:
        """Whether an absent objective, whose loss is 0 here, could be taken for one that is too low."""
        return self.most > 0

    def look(self, values: Tensor, present: Tensor | None, step: int) -> None:
        """Look at losses (m,) on the host, 0 where absent."""
        if self.least is None or float(values.min()) >= self.most:
            return
        low = values < self._limits
        if present is not None:
            low = low & present
        if bool(low.any()):
            worst = int(torch.where(low, values - self.least, torch.inf).argmin())
            where = f"objective {self.names[worst]} in step {step}"
            text = below(float(values[worst]), float(self.least[worst]), where)
            self.least = None
            warnings.warn(f"{text}; this is said once", IdealPointWarning, stacklevel=4)


class Start:
    """Raises ValueError for an objective that begins at or below its ideal point, and so has no loss for a unit.

    Args:
        names: The objectives, for the message.
        units: The units of the run.
    """

    def __init__(self, names: tuple[str, ...], units: Units) -> None:
        self.names, self.units = names, units
        self.open = units.units == "start"
        """Whether a unit may still be missing."""
        self._shown: list[tuple[int, Fetched]] = []

    def show(
        self, values: Tensor, scale: Scale, mask: Tensor | None, step: int, when: Literal["now", "deferred"]
    ) -> None:
        """Look at losses (m,), 0 where absent, now or by the next `settle`.

        Args:
            values: The losses.
            scale: The units before them.
            mask: Who is present, (m,).
            step: Of which step.
            when: "now", or "deferred", so that the host need not wait for the device.
        """
        if self.open:
            low = self.units.too_low(values, scale, mask)
            self._shown.append((step, fetch(torch.stack([low.to(values), scale.known.to(values), values]))))
            if when == "now":
                self.settle()

    def settle(self) -> None:
        """Look at what was shown before."""
        shown, self._shown = self._shown, []
        for step, fetched in shown:
            low, known, values = fetched.wait().tolist()
            for name, is_low, value in zip(self.names, low, values, strict=True):
                if is_low:
                    self.units.refuse(value, f"{_called(name)} in step {step}")
            self.open = self.open and not all(known)


class Watch:
    """Raises NonFiniteLossError for the losses it is shown, and lets a `Floor` look at them.

    Args:
        names: The objectives, for the message.
        when: "now": when they are shown. "deferred": the next time, so that the host need not wait for the
            device; the losses are copied asynchronously meanwhile.
    """

    def __init__(self, names: tuple[str, ...], when: Literal["now", "deferred"]) -> None:
        self.names, self.when = names, when
        self._shown: list[_Shown] = []

    def show(self, values: Tensor | Fetched, step: int, floor: Floor | None = None, mask: Tensor | None = None) -> None:
        """Look at losses (m,), now or later.

        Args:
            values: The losses, 0 where absent; later, they may be on their way already.
            step: Of which step.
            floor: What they must not lie below, if anything.
            mask: Who is present, (m,).
        """
        floor = floor if floor is not None and floor.open else None
        mask = mask if floor is not None and floor.masks else None
        if self.when == "now" and isinstance(values, Tensor):
            if floor is None:
                _refuse(values, self.names, step)
                return
            values = values.cpu()
            _refuse(values, self.names, step)
            floor.look(values, None if mask is None else mask.cpu(), step)
        else:
            fetched = values if isinstance(values, Fetched) else fetch(values)
            self._shown.append(_Shown(step, fetched, None if mask is None else fetch(mask), floor))

    def settle(self) -> None:
        """Look at what was shown before."""
        shown, self._shown = self._shown, []
        for step, fetched, present, floor in shown:
            values = fetched.wait()
            numbers: list[float] = values.tolist()
            if not math.isfinite(sum(numbers)):  # the quickest look at a few numbers
                _refuse(values, self.names, step)
            if floor is not None and min(numbers) < floor.most:
                floor.look(values, None if present is None else present.wait(), step)


def _refuse(values: Tensor, names: tuple[str, ...], step: int) -> None:
    if not sound(values):
        raise NonFiniteLossError(_blame(values, names, step))


def sound(values: Tensor) -> bool:
    """Whether all are finite; reads them on the host."""
    # A finite sum needs finite terms, and one number is read sooner than m.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def _called(name: str) -> str:
    """Objectives without names have numbers, which are no names."""
    return f"objective {name}" if name.isdecimal() else name


def _blame(values: Tensor, names: tuple[str, ...], step: int) -> str:
    """Which losses are not finite."""
    found = [
        f"{value} for {_called(name)}"
        for name, value in zip(names, values.tolist(), strict=True)
        if not math.isfinite(value)
    ]
    return f"losses must be finite; found {', '.join(found)} in step {step}"
