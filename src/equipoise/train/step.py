"""A step: the calls whose gradients it uses, and the coefficients that they were given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.host import Fetched
from equipoise.train.distributed import Seen
from equipoise.units import Scale

__all__ = ["Call", "Chosen", "Mean", "Step", "mean_of_calls"]


class Chosen(NamedTuple):
    """The coefficients of a call, and what belongs to them."""

    coefficients: Tensor
    """c, on the device of the losses, (m,)."""
    scale: Scale | None
    """The units of the losses, on their device; None: no units."""
    told: Fetched[Tensor]
    """c on the host or on its way there, (m,); together with λ after the step if that is computed on device, (2, m)."""
    rows: Tensor | None = None
    """Rows that c multiplies instead of this step's gradients, (m, d)."""
    after: Any = None
    """The state of a weighting that has already been updated with these losses."""


@dataclass(eq=False)
class Call:
    """One micro-batch, over all ranks."""

    seen: Seen
    """The losses, on their device."""
    values: Fetched[Tensor]
    """The same on the host, 0 where absent, (m,)."""
    counts: Fetched[Tensor] | None = None
    """Samples of each, (m,); None: the same in every call."""
    jacobian: Tensor | None = None
    """Gradients of the losses, (m, d), for weightings that need them."""
    chosen: Chosen = field(init=False)
    wave: int = 0
    """Calls made before any of them was differentiated share a number."""
    outdated: bool = False
    """Whether the preference was changed before it was differentiated."""

    def present(self) -> Tensor | None:
        """Which objectives are present, on the host, (m,); None for all."""
        return None if self.counts is None else self.counts.wait() > 0

    def samples(self) -> Tensor:
        """The samples of each, on the device of the losses, (m,)."""
        return torch.ones_like(self.seen.values) if self.seen.counts is None else self.seen.counts


class Mean(NamedTuple):
    """The count-weighted mean of the losses of several calls."""

    values: Tensor
    """f, (m,)."""
    mask: Tensor | None
    """Which objectives are present, (m,); None for all."""


def mean_of_calls(calls: Sequence[tuple[Tensor, Tensor | None]]) -> Mean:
    """The mean of losses (m,) weighted by counts (m,); for one call its own losses, bit for bit."""
    if len(calls) == 1:
        values, counts = calls[0]
        return Mean(values, None if counts is None else counts > 0)
    numbers = [torch.ones_like(values) if counts is None else counts for values, counts in calls]
    samples = torch.stack(numbers).sum(0)
    total = torch.stack([n * values for n, (values, _) in zip(numbers, calls, strict=True)]).sum(0)
    present = samples > 0
    return Mean(total / torch.where(present, samples, 1.0), present)


@dataclass
class Step:
    """The calls of the next step, and what else is known of it before it is taken.

    A call counts once it was differentiated, until its gradients are cleared. So a step that a gradient scaler skips,
    or a loss that is never used, leaves nothing behind: if the next backward pass finds no gradients, the calls before
    it no longer count.
    """

    waiting: list[Call] = field(default_factory=list)
    """Calls that are not differentiated yet."""
    calls: list[Call] = field(default_factory=list)
    """Calls that count."""
    left_out: bool = False
    """Whether a call was left out because its losses were not finite."""
    nonfinite: Tensor | None = None
    """The last losses that were not finite, on the host, (m,)."""
    units: Scale | None = None
    """Units of the calls while some are not known yet."""
    moved: bool = False
    """Whether `record` or `steer` has set units since the calls."""
    within: Chosen | None = None
    """The coefficients for evaluations of a closure after the first."""
    begun: bool = False
    """Whether θ⁽ᵗ⁾ was held. Hooks run twice for an optimizer whose `step` calls its parent's `step`."""
    largest: Fetched[Tensor] | None = None
    """The largest derivative that the step uses, if it is still to be checked."""
    skipped: Fetched[Tensor] | None = None
    """> 0 if the optimizer itself skipped the step."""
    rows: Tensor | None = None
    """Σ n∘J over the calls that count if there are several, (m, d)."""
    found: Mean | None = None
    """The cached result of `mean`."""
    _wave: int = 0

    def add(self, call: Call) -> None:
        """Add a call."""
        if not self.waiting:
            self._wave += 1
        call.wave = self._wave
        self.waiting.append(call)

    def differentiated(self, call: Call, cleared: Callable[[], bool]) -> bool:
        """Note that the call's backward pass begins; `cleared` says whether all gradients are None.

        Returns:
            Whether earlier calls no longer count because their gradients were cleared.
        """
        if call not in self.waiting:
            return False  # a second backward pass of one call
        self.waiting.remove(call)
        lost = False
        if self.calls and self.calls[-1].wave != call.wave and cleared():
            self.calls, self.rows, lost = [], None, True
        self.calls.append(call)
        self.begun, self.found = False, None
        if call.jacobian is not None and len(self.calls) > 1:
            self._add_rows(call)
        return lost

    def outdate(self) -> None:
        """The preference changes: calls that are not differentiated yet must not be any more."""
        for call in self.waiting:
            call.outdated = True
        self.waiting.clear()

    def has_arrived(self) -> bool:
        """Whether the losses of the calls that count have been copied from their device to the host."""
        return all(c.values.arrived is not None and c.values.arrived.query() for c in self.calls)

    def mean(self) -> Mean:
        """The losses of the calls that count, on the host; waits for them."""
        if len(self.calls) == 1 and self.calls[0].counts is None:  # the usual case
            values = self.calls[0].values
            self.found = Mean(values.value if values.arrived is None else values.wait(), None)
        else:
            self.found = mean_of_calls([(c.values.wait(), c.counts and c.counts.wait()) for c in self.calls])
        return self.found

    def jacobian(self) -> Tensor | None:
        """The mean of the gradients of the calls that count, (m, d)."""
        if len(self.calls) == 1 or self.rows is None:
            return self.calls[0].jacobian
        samples = torch.stack([call.samples() for call in self.calls]).sum(0)
        return self.rows / torch.where(samples > 0, samples, 1.0).to(self.rows).unsqueeze(-1)

    def _add_rows(self, call: Call) -> None:
        first, new = self.calls[0].jacobian, call.jacobian
        assert first is not None  # noqa: S101
        assert new is not None  # noqa: S101
        rule = "parameters that require grad must stay the same between the calls of a step"
        require(first.shape == new.shape, rule, lambda: f"gradients of {first.shape[1]} and {new.shape[1]} numbers")
        with torch.no_grad():
            total = self.calls[0].samples().to(first).unsqueeze(-1) * first if self.rows is None else self.rows
            self.rows = total + call.samples().to(new).unsqueeze(-1) * new
