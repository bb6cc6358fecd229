"""Losses that are not finite: found at once, or one step late where looking would make a device wait."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import NonFiniteLossError

__all__ = ["Watch", "blame"]


class _Copy(NamedTuple):
    """Losses on their way to the host."""

    step: int
    values: Tensor
    arrived: torch.Event | None


class Watch:
    """Raises NonFiniteLossError for the losses it is shown.

    Args:
        names: The objectives, for the message.
        when: "now": when they are shown. "deferred": the next time, so that the host need not wait for the
            device; the losses are copied asynchronously meanwhile.
    """

    def __init__(self, names: tuple[str, ...], when: Literal["now", "deferred"]) -> None:
        self.names, self.when = names, when
        self._copies: list[_Copy] = []

    def show(self, values: Tensor, step: int) -> None:
        """Look at losses (m,), now or later."""
        if self.when == "now":
            _refuse(values, self.names, step)
        elif values.device.type == "cpu":
            self._copies.append(_Copy(step, values.clone(), None))
        else:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.device.type == "cuda")
            host.copy_(values, non_blocking=True)
            arrived = torch.Event(values.device)
            arrived.record()
            self._copies.append(_Copy(step, host, arrived))

    def settle(self) -> None:
        """Look at what was shown before."""
        copies, self._copies = self._copies, []
        for copy in copies:
            if copy.arrived is not None:
                copy.arrived.synchronize()
            _refuse(copy.values, self.names, copy.step)


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
