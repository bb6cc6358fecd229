"""A step: the calls whose gradients it uses, and the hooks on its optimizer."""

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.errors import require, warn
from equipoise.host import Fetched
from equipoise.train.distributed import Seen
from equipoise.units import Scale

__all__ = ["Attached", "Call", "Chosen", "Mean", "Pending", "attach", "detach", "mean_of_calls", "release"]


class Chosen(NamedTuple):
    """The coefficients of a call, and what belongs to them."""

    coefficients: Tensor
    """c, on the device of the losses, (m,)."""
    scale: Scale | None
    """The units of the losses, on their device; None: no units."""
    rows: Tensor | None = None
    """Rows that c multiplies instead of this step's gradients, (m, d)."""
    after: Any = None
    """The state of a weighting that has already been updated with these losses."""
    told: Fetched | None = None
    """c on the host or on its way there, (m,); together with λ after the step if that is computed on device, (2, m)."""


class Call(NamedTuple):
    """One micro-batch, over all ranks."""

    seen: Seen
    """The losses, on their device."""
    values: Fetched
    """The same on the host, 0 where absent, (m,)."""
    counts: Fetched | None
    """Samples of each, (m,); None: the same in every call."""
    jacobian: Tensor | None
    """Gradients of the losses, (m, d), for weightings that need them."""
    chosen: Chosen
    wave: int
    """Calls made before any of them was differentiated share a number."""


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
class Pending:
    """The calls of the next step. A call counts once it was differentiated, until its gradients are cleared.

    So a step that a gradient scaler skips, or a loss that is never used, leaves nothing behind: if the next backward
    pass finds no gradients, the calls before it no longer count.
    """

    waiting: list[Call] = field(default_factory=list)
    """Calls that are not differentiated yet."""
    calls: list[Call] = field(default_factory=list)
    """Calls that count."""
    rows: Tensor | None = None
    """Σ n∘J over them if there are several, (m, d)."""
    found: Mean | None = None
    """The cached result of `mean`."""
    largest: Fetched | None = None
    """The largest derivative that their step uses, if an objective may be absent."""
    begun: bool = False
    """Whether their step has begun. Hooks run twice for an optimizer whose `step` calls its parent's `step`."""
    _wave: int = 0

    def add(self, seen: Seen, values: Fetched, counts: Fetched | None, rows: Tensor | None, chosen: Chosen) -> Call:
        """A new call."""
        if not self.waiting:
            self._wave += 1
        call = Call(seen, values, counts, rows, chosen, self._wave)
        self.waiting.append(call)
        return call

    def differentiated(self, call: Call, cleared: Callable[[], bool]) -> bool:
        """Note that the call's backward pass begins; `cleared` says whether all gradients are None.

        Returns:
            Whether earlier calls no longer count because their gradients were cleared.
        """
        for k, other in enumerate(self.waiting):
            if other is call:
                del self.waiting[k]
                break
        else:
            return False  # a second backward pass of one call
        lost = False
        if self.calls and self.calls[-1].wave != call.wave and cleared():
            self.calls, self.rows, lost = [], None, True
        self.calls.append(call)
        self.begun, self.found = False, None
        if call.jacobian is not None and len(self.calls) > 1:
            self._add_rows(call)
        return lost

    def has_arrived(self) -> bool:
        """Whether the losses of the calls that count have been copied from their device to the host."""
        return all(c.values.arrived is not None and c.values.arrived.query() for c in self.calls)

    def mean(self) -> Mean:
        """The losses of the calls that count, on the host; waits for them."""
        if len(self.calls) == 1 and self.calls[0].counts is None:  # the usual case
            values = self.calls[0].values
            self.found = Mean(values.tensor if values.arrived is None else values.wait(), None)
        else:
            self.found = mean_of_calls([(c.values.wait(), c.counts and c.counts.wait()) for c in self.calls])
        return self.found

    def jacobian(self) -> Tensor | None:
        """The mean of the gradients of the calls that count, (m, d)."""
        if len(self.calls) == 1 or self.rows is None:
            return self.calls[0].jacobian
        samples = torch.stack([_samples(call) for call in self.calls]).sum(0)
        return self.rows / torch.where(samples > 0, samples, 1.0).to(self.rows).unsqueeze(-1)

    def _add_rows(self, call: Call) -> None:
        first, new = self.calls[0].jacobian, call.jacobian
        assert first is not None  # noqa: S101
        assert new is not None  # noqa: S101
        rule = "parameters that require grad must stay the same between the calls of a step"
        require(first.shape == new.shape, rule, lambda: f"gradients of {first.shape[1]} and {new.shape[1]} numbers")
        with torch.no_grad():
            total = _samples(self.calls[0]).to(first).unsqueeze(-1) * first if self.rows is None else self.rows
            self.rows = total + _samples(call).to(new).unsqueeze(-1) * new


def _samples(call: Call) -> Tensor:
    return torch.ones_like(call.seen.values) if call.seen.counts is None else call.seen.counts


# The optimizer ------------------------------------------------------------------------------

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Follower(Protocol):
    """A run that is notified of its optimizer's steps."""

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def _within_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]: ...

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def close(self) -> None: ...


class Attached:
    """Hooks that notify a run of its optimizer's steps; a weak reference, as an optimizer may outlive the run."""

    def __init__(self, optimizer: torch.optim.Optimizer, run: _Follower) -> None:
        self.optimizer = optimizer
        self.run = weakref.ref(run)
        self.handles = (optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Attached":
        """Attach the copy of the run to the copy of the optimizer, which has no hooks yet."""
        run = self.run()
        assert run is not None  # noqa: S101
        return attach(copy.deepcopy(run, memo), copy.deepcopy(self.optimizer, memo))

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Arguments | None:
        run = self.run()
        if run is None or optimizer is not self.optimizer:  # a copied optimizer has copied hooks
            return None
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else next(iter(args[1:]), None)  # the first is the optimizer
        if closure is None:
            run._before_step(optimizer)
            return None
        within = run._within_step(optimizer, closure)
        return (args, {**kwargs, "closure": within}) if named else ((args[0], within), kwargs)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        run = self.run()
        if run is not None and optimizer is self.optimizer:
            run._after_step(optimizer)


_ATTACHED: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[_Follower]] = weakref.WeakKeyDictionary()
"""The run that follows each optimizer, by weak references to both."""


def release(optimizer: torch.optim.Optimizer) -> None:
    """Close any earlier MultiObjective on this optimizer, for example from a re-run notebook cell."""
    holder = _ATTACHED.get(optimizer)
    earlier = None if holder is None else holder()
    if earlier is not None:
        text = "an earlier MultiObjective on this optimizer was closed: its solution stays, but it no longer records"
        warn(text)
        earlier.close()


def attach(run: _Follower, optimizer: torch.optim.Optimizer) -> Attached:
    """Notify a run of the optimizer's steps."""
    _ATTACHED[optimizer] = weakref.ref(run)
    return Attached(optimizer, run)


def detach(attached: Attached) -> None:
    """Undo `attach`."""
    for handle in attached.handles:
        handle.remove()
    _ATTACHED.pop(attached.optimizer, None)
