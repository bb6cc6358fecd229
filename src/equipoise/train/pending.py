"""The calls of one optimizer step: which of them count, and what they say together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.replay import Outcome
from equipoise.units import Scale

__all__ = ["Call", "Chosen", "Mean", "Pending"]


class Chosen(NamedTuple):
    """What a call is differentiated with."""

    coefficients: Tensor
    """c, (m,)."""
    state: Any
    """The state of the weighting that they go with."""
    scale: Scale | None
    """The units of the losses; None: as they are."""


class Call(NamedTuple):
    """One micro-batch, over all ranks."""

    values: Tensor
    """Losses, 0 where absent, (m,)."""
    counts: Tensor | None
    """Samples, (m,); None: as many as in any other call."""
    rows: Tensor | None
    """Their gradients, (m, d), for weightings that need them."""
    chosen: Chosen
    """What it is differentiated with."""
    ahead: Outcome[Any] | None
    """What follows if the step has no other call."""
    wave: int
    """Calls made before any of them was differentiated share a number."""


class Mean(NamedTuple):
    """The count-weighted mean of the calls of a step."""

    values: Tensor
    mask: Tensor | None
    rows: Tensor | None
    ahead: Outcome[Any] | None


@dataclass
class Pending:
    """Calls count once they were differentiated, as long as the gradients they left are there.

    A step that a gradient scaler skips, or a loss that is thrown away, so leaves nothing behind: when the
    next backward pass finds no gradients, they were cleared, and the calls before it no longer count.
    """

    waiting: list[Call] = field(default_factory=list)
    """Not differentiated yet."""
    calls: int = 0
    """That count."""
    first: Call | None = None
    """Of those that count."""
    total: Tensor | None = None
    """Σ n∘f over them if they are several, (m,)."""
    samples: Tensor | None = None
    rows: Tensor | None = None
    _wave: int = 0
    _last_wave: int = 0

    def add(
        self,
        values: Tensor,
        counts: Tensor | None,
        rows: Tensor | None,
        chosen: Chosen,
        ahead: Outcome[Any] | None,
    ) -> Call:
        """A new call."""
        if not self.waiting:
            self._wave += 1
        call = Call(values, counts, rows, chosen, ahead, self._wave)
        self.waiting.append(call)
        return call

    def differentiated(self, call: Call, cleared: Callable[[], bool]) -> None:
        """The call's backward pass begins; `cleared` tells whether no gradients are there."""
        remaining = [other for other in self.waiting if other is not call]
        if len(remaining) == len(self.waiting):
            return  # a second backward pass of one call
        self.waiting = remaining
        if self.calls > 0 and self._last_wave != call.wave and cleared():
            self.calls, self.first, self.total, self.samples, self.rows = 0, None, None, None, None
        self._last_wave = call.wave
        if self.first is None:
            self.first = call
        else:
            with torch.no_grad():
                self._sum(self.first, call)
        self.calls += 1

    def mean(self) -> Mean:
        """What the calls say together; one alone says what it said, bit for bit."""
        assert self.first is not None  # noqa: S101
        if self.total is None or self.samples is None:
            counts = self.first.counts
            return Mean(self.first.values, None if counts is None else counts > 0, self.first.rows, self.first.ahead)
        present = self.samples > 0
        n = torch.where(present, self.samples, 1.0)
        rows = None if self.rows is None else self.rows / n.to(self.rows).unsqueeze(-1)
        return Mean(self.total / n, present, rows, None)

    def _sum(self, first: Call, call: Call) -> None:
        if self.total is None or self.samples is None:
            self.samples = _samples(first)
            self.total = self.samples * first.values
            self.rows = _scaled(first)
        self.samples = self.samples + _samples(call)
        self.total = self.total + _samples(call) * call.values
        rows = _scaled(call)
        if self.rows is not None and rows is not None:
            rule = "parameters that require grad must stay the same between the calls of a step"
            before, now = self.rows.shape[1], rows.shape[1]
            require(before == now, rule, f"gradients of {before} and {now} numbers")
            self.rows += rows


def _samples(call: Call) -> Tensor:
    return torch.ones_like(call.values) if call.counts is None else call.counts


def _scaled(call: Call) -> Tensor | None:
    return None if call.rows is None else _samples(call).to(call.rows).unsqueeze(-1) * call.rows
