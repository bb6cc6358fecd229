"""Losses that are not finite: found at once, or one step late where looking would make a device wait."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import NonFiniteLossError
from equipoise.host import Fetched, fetch

__all__ = ["Watch", "blame"]


class _Shown(NamedTuple):
    """Losses that are still to be looked at."""

    step: int
    values: Fetched


class Watch:
    """Raises NonFiniteLossError for the losses it is shown.

    Args:
        names: The objectives, for the message.
        when: "now": when they are shown. "deferred": the next time, so that the host need not wait for the
            device; the losses are copied asynchronously meanwhile.
    """

    def __init__(self, names: tuple[str, ...], when: Literal["now", "deferred"]) -> None:
        self.names, self.when = names, when
        self._shown: list[_Shown] = []

    def show(self, values: Tensor, step: int) -> None:
        """Look at losses (m,), now or later."""
        if self.when == "now":
            _refuse(values, self.names, step)
        else:
            self._shown.append(_Shown(step, fetch(values)))

    def settle(self) -> None:
        """Look at what was shown before."""
        shown, self._shown = self._shown, []
        for step, values in shown:
            _refuse(values.wait(), self.names, step)


def _refuse(values: Tensor, names: tuple[str, ...], step: int) -> None:
    if not sound(values):
        raise NonFiniteLossError(blame(values, names, step))


def sound(values: Tensor) -> bool:
    """Whether all are finite; reads them on the host."""
    # A finite sum needs finite terms, and one number is read sooner than m.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def blame(values: Tensor, names: tuple[str, ...], step: int) -> str:
    """Which losses are not finite."""
    found = [
        f"{value} for {name}" for name, value in zip(names, values.tolist(), strict=True) if not math.isfinite(value)
    ]
    return f"losses must be finite; found {', '.join(found)} in step {step}"
