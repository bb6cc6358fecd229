"""The record of a training run: the arithmetic of a conversion where the losses are, its copies in slots.

On the CPU a plan is read at once. On an accelerator, where that would make the host wait, a courier holds θ and the
plan is carried out by the time the next one comes. On a CUDA device the arithmetic, some hundred small kernels, is a
captured graph on a stream beside the training.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion import Conversion, PlannedConversion
from equipoise.conversion.planned import with_slots
from equipoise.conversion.protocol import Params, answer, check_record, record_dtype
from equipoise.conversion.store import mean_of
from equipoise.errors import StoreError
from equipoise.host import Fetched
from equipoise.replay import Eager, Resident, Stepper
from equipoise.state import flatten, unflatten
from equipoise.streams import captures
from equipoise.train.courier import Courier, Held, Job
from equipoise.train.slots import Numbers, Slots, carry_out

__all__ = ["Archive", "Direct", "Record"]


class Record(Protocol):
    """What a run has recorded."""

    recorded: int
    """Iterates."""

    @property
    def sends(self) -> bool:
        """Whether `send` does something."""
        ...

    def poll(self) -> None:
        """Raise what is known to have gone wrong, without waiting."""
        ...

    def send(self, params: Params) -> None:
        """Parameters that are likely to be recorded next, unchanged."""
        ...

    def update(self, params: Params, losses: Tensor, mask: Tensor | None = None) -> None:
        """Enter one iterate with its losses (m,)."""
        ...

    def settle(self) -> None:
        """Catch up with what was put off."""
        ...

    def output(self, preference: Tensor) -> dict[str, Tensor]:
        """The answer for w (m,); copies, on the device."""
        ...

    def numbers(self) -> Any:  # noqa: ANN401
        """The conversion's state; its copies may be left out."""
        ...

    def state(self) -> Any:  # noqa: ANN401
        """The conversion's state with its copies: what is in use."""
        ...

    def like(self) -> Any:  # noqa: ANN401
        """A state of the same shapes, dtypes and names; what it holds is of no matter."""
        ...

    def load(self, state: Any) -> None:  # noqa: ANN401
        """Take a state's numbers and copies over."""
        ...

    def to(self, device: torch.device, courier: Courier | None) -> None:
        """Go on with parameters on another device, by this courier if one is needed."""
        ...

    def close(self) -> None:
        """Record no more in a store that others may want."""
        ...


class Direct:
    """A record that the conversion keeps itself, on the device of the parameters.

    Args:
        conversion: Any.
        params: θ at the start.
        losses: Of shape (m,); looked at for dtype and device only.
    """

    sends = False

    def __init__(self, conversion: Conversion[Any], params: Params, losses: Tensor) -> None:
        self.conversion, self.recorded = conversion, 0
        self._state = conversion.init(params, losses)

    def poll(self) -> None:
        """Nothing is put off."""

    def send(self, params: Params) -> None:
        """Nothing travels."""

    def update(self, params: Params, losses: Tensor, mask: Tensor | None = None) -> None:
        """In place."""
        self._state = self.conversion.update(params, losses, self._state, mask=mask)
        self.recorded += 1

    def settle(self) -> None:
        """Nothing is put off."""

    def output(self, preference: Tensor) -> dict[str, Tensor]:
        """The conversion's."""
        return answer(self.conversion, self._state, preference)

    def numbers(self) -> Any:  # noqa: ANN401
        """The state."""
        return self._state

    def state(self) -> Any:  # noqa: ANN401
        """The state."""
        return self._state

    def like(self) -> Any:  # noqa: ANN401
        """The state."""
        return self._state

    def load(self, state: Any) -> None:  # noqa: ANN401
        """In place: a record may be large, and no second one is made."""
        found = flatten(state)
        for name, tensor in flatten(self._state).items():
            tensor.copy_(found[name])

    def to(self, device: torch.device, courier: Courier | None) -> None:  # noqa: ARG002
        """Move all."""
        self._state = _moved(self._state, device)

    def close(self) -> None:
        """There is nothing to let go of."""


class _Queued(NamedTuple):
    """A plan on its way."""

    job: Job
    held: Held
    before: Any
    """The numbers without it."""


class Archive:
    """A conversion's numbers on the device of the losses, and its copies in slots wherever they are.

    Args:
        conversion: The conversion.
        params: θ at the start; looked at for names, shapes and dtypes only.
        losses: Of shape (m,); looked at for dtype and device only.
        slots: As many as the conversion's `copies`; the first holds θ.
        courier: Carries plans out by the time the next one comes; `settle` waits for it. None: at once.
        on_error: What a StoreError of a plan does: "raise" it, at the next call where a courier was waited for, or
            "keep" the archive as it is, and warn the first time. Neither numbers nor copies have the iterate then.
    """

    def __init__(
        self,
        conversion: PlannedConversion[Any],
        params: Params,
        losses: Tensor,
        slots: Slots,
        courier: Courier | None = None,
        *,
        on_error: Literal["raise", "keep"] = "raise",
    ) -> None:
        self.conversion, self.slots, self.recorded = conversion, slots, 0
        self._keeps, self._warned = on_error == "keep", False
        self._like = {n: torch.empty_like(p, dtype=record_dtype(p), device="meta") for n, p in params.items()}
        self._sizes = [p.shape for p in self._like.values()]
        assert conversion.copies is not None  # noqa: S101
        self._copies, self._numbers = conversion.copies, conversion.begin(losses)
        self._queued: _Queued | None = None
        self._courier: Courier | None = None
        self._set_out(losses.device, courier)

    def poll(self) -> None:
        """Raise what went wrong meanwhile, and what is wrong with the slots."""
        self.slots.check()
        if self._queued is not None and self._queued.job.done():
            self.settle()

    @property
    def sends(self) -> bool:
        """Whether a courier begins early."""
        return self._courier is not None and self._courier.sends

    def send(self, params: Params) -> None:
        """Let the courier begin."""
        if self._courier is not None:
            self._courier.send(params)

    def update(self, params: Params, losses: Tensor, mask: Tensor | None = None) -> None:
        """Enter one iterate; the slots have it now, or by the next time."""
        if list(map(Tensor.size, params.values())) != self._sizes or params.keys() != self._like.keys():
            check_record(params, self._like, 0, slots=False)
        self.slots.check()
        self.settle()
        before = self._numbers
        if self._courier is None:
            plan, after = self.conversion.plan(losses, before, mask)
            job: Callable[[], None] = partial(carry_out, Numbers.of(plan), params, self.slots)
            self._numbers = after
            self.recorded += 1
            self._finish(job, before)
            return
        planned = self._plan(before, losses, mask)
        held = self._courier.hold(params)
        assert planned.told is not None  # noqa: S101
        job = partial(_carry_out_late, planned.told, held, self.slots)
        self._queued = _Queued(self._courier.run(job), held, before)
        self._numbers = planned.after
        self.recorded += 1

    def settle(self) -> None:
        """Wait until the last plan was carried out."""
        queued = self._queued
        if queued is None or self._courier is None:
            return
        self._queued = None
        try:
            self._finish(queued.job.result, queued.before)
        finally:
            self._courier.release(queued.held)

    def output(self, preference: Tensor) -> dict[str, Tensor]:
        """The conversion's answer, slot after slot: no two of them need be in memory."""
        share = self.conversion.shares(self.numbers(), preference)
        used = share.nonzero().flatten().tolist()
        found = mean_of((self.slots.read(j) for j in used), share[used].to(self.slots.device))
        return {name: tensor.to(self._device) for name, tensor in found.items()}

    def numbers(self) -> Any:  # noqa: ANN401
        """The conversion's state without copies."""
        return self._plan.own(self._numbers)

    def state(self) -> Any:  # noqa: ANN401
        """With the copies, by the number of their slot, then by name."""
        return self._with([self.slots.read(j) for j in range(self._copies)])

    def like(self) -> Any:  # noqa: ANN401
        """With copies on no device."""
        return self._with([self._like] * self._copies)

    def load(self, state: Any) -> None:  # noqa: ANN401
        """Replace numbers and copies; a plan that is still on its way leaves nothing behind."""
        with suppress(StoreError):  # what could not be written is replaced
            self.settle()
        self.slots.fill(state.slots.values())
        held = flatten(self._numbers)
        found = {name: tensor.to(held[name], copy=True) for name, tensor in flatten(with_slots(state, {})).items()}
        self._numbers = unflatten(found, self._numbers)

    def to(self, device: torch.device, courier: Courier | None) -> None:
        """Move the numbers, and the slots if they are on the device of the parameters."""
        self.settle()
        self._numbers = _moved(self.numbers(), device)
        self.slots.to(device)
        self._set_out(device, courier)

    def close(self) -> None:
        """Let go of the slots' place, and of the memory for copies on their way; the slots stay readable."""
        try:
            self.settle()
        finally:
            self._courier = None
            self.slots.close()

    def _set_out(self, device: torch.device, courier: Courier | None) -> None:
        """Compute there from now on."""
        self._device, self._courier = device, courier
        # No method of its own: whoever refers to himself goes late, and with him his copies.
        step = partial(_planned, self.conversion)
        self._plan: Stepper[Any] = Resident(step, device) if captures(device) else Eager(step)

    def _finish(self, job: Callable[[], None], before: Any) -> None:  # noqa: ANN401
        """Do a job; if it fails, the iterate was not recorded."""
        try:
            job()
        except Exception as error:
            self._numbers = before
            self.recorded -= 1
            if not (self._keeps and isinstance(error, StoreError)):
                raise
            if not self._warned:
                text = f"{error}. Training goes on, and nothing is recorded until the store can be written to again"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            self._warned = True

    def _with(self, copies: list[Params]) -> Any:  # noqa: ANN401
        # By slot, each tensor with the shape of its parameter: a slot may be a file, and files cannot be stacked.
        return with_slots(self.numbers(), {str(j): copy for j, copy in enumerate(copies)})


def _moved(state: Any, device: torch.device) -> Any:  # noqa: ANN401
    return unflatten({name: tensor.to(device) for name, tensor in flatten(state).items()}, state)


def _planned(
    conversion: PlannedConversion[Any],
    before: Any,  # noqa: ANN401
    losses: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Any]:
    """A plan as one tensor (5,), of which the host is told, and the state after it."""
    plan, after = conversion.plan(losses, before, mask)
    return torch.stack([number.to(plan.gain) for number in plan]), after


def _carry_out_late(plan: Fetched, held: Held, slots: Slots) -> None:
    into, other, mix, write, gain = plan.wait().tolist()
    carry_out(Numbers(int(into), int(other), mix, int(write), gain), held.wait(), slots)
