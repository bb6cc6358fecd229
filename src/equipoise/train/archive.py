"""The record of a training run: the arithmetic of a conversion on a few numbers, its copies in slots.

On the CPU a plan is made and carried out at once. On an accelerator the host would wait for the losses: there they
travel, a thread of the host makes the plan from them, and a courier has a copy of θ for it. The plan is carried out by
the time the next one comes.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion import Adaptive, AdaptiveState, Average, Conversion, Last
from equipoise.conversion.protocol import Params, check_record, marks, record_dtype
from equipoise.conversion.store import mean_of, shares
from equipoise.errors import StoreError
from equipoise.state import flatten, unflatten
from equipoise.train.courier import Courier, Held, Job
from equipoise.train.later import Arriving, Clerk, Later, arriving
from equipoise.train.slots import Numbers, Slots, carry_out

__all__ = ["Archive", "Direct", "Planned", "Record", "capacity"]

Planned = Adaptive | Average | Last
"""Conversions that say what happens to the copies instead of doing it."""


def capacity(conversion: Planned) -> int:
    """How many slots it needs."""
    return (conversion.capacity or 0) if isinstance(conversion, Adaptive) else 1


class Live(Protocol):
    """Gives θ as it is."""

    def __call__(self) -> Params:
        """The parameters."""
        ...

    def still(self, params: Params) -> bool:
        """Whether what it gave is in its place, changed or not."""
        ...


class Record(Protocol):
    """What a run has recorded."""

    recorded: int
    """Iterates."""

    def poll(self) -> None:
        """Raise what is known to have gone wrong, without waiting."""
        ...

    def begin(self, params: Live, losses: Tensor, on_host: Arriving) -> Sequence[Later[Any]]:
        """What another thread may do for an iterate that is likely to be recorded next, unchanged.

        Args:
            params: θ.
            losses: Those that it is likely to be recorded with, (m,).
            on_host: The same, with their mask.
        """
        ...

    def update(self, params: Callable[[], Params], losses: Tensor, mask: Tensor | None = None) -> None:
        """Enter one iterate with its losses (m,)."""
        ...

    def settle(self) -> None:
        """Catch up with what was put off."""
        ...

    def output(self) -> dict[str, Tensor]:
        """The answer; copies, on the device."""
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

    def to(self, device: torch.device, courier: Courier | None, clerk: Clerk | None) -> None:
        """Go on with parameters on another device, by this courier and this clerk if they are needed."""
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

    def __init__(self, conversion: Conversion[Any], params: Params, losses: Tensor) -> None:
        self.conversion, self.recorded = conversion, 0
        self._state = conversion.init(params, losses)

    def poll(self) -> None:
        """Nothing is put off."""

    def begin(self, params: Live, losses: Tensor, on_host: Arriving) -> Sequence[Later[Any]]:  # noqa: ARG002
        """There is nothing to begin with."""
        return ()

    def update(self, params: Callable[[], Params], losses: Tensor, mask: Tensor | None = None) -> None:
        """In place."""
        self._state = self.conversion.update(params(), losses, self._state, mask=mask)
        self.recorded += 1

    def settle(self) -> None:
        """Nothing is put off."""

    def output(self) -> dict[str, Tensor]:
        """The conversion's."""
        return self.conversion.output(self._state)

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

    def to(self, device: torch.device, courier: Courier | None, clerk: Clerk | None) -> None:  # noqa: ARG002
        """Move all."""
        self._state = _moved(self._state, device)

    def close(self) -> None:
        """There is nothing to let go of."""


class _Ready(NamedTuple):
    """θ, which was looked at, and its copy if the courier makes one ahead."""

    live: Params
    copy: Held | None
    marks: list[tuple[int, int]]
    """What tells whether θ is still what was copied."""


class _Plan(NamedTuple):
    """What happens to the copies, and the conversion's numbers after it."""

    plan: Numbers
    after: Any


class _Begun(NamedTuple):
    """An iterate that is likely to be recorded."""

    params: Live
    losses: Tensor
    ready: Later[_Ready]
    plan: Later[_Plan]


class _Queued(NamedTuple):
    """An iterate that was recorded, but for the copies."""

    plan: Later[_Plan]
    held: Held
    job: Job


class Archive:
    """A conversion's numbers, and its copies in slots wherever they are.

    Args:
        conversion: The conversion.
        params: θ at the start; looked at for names, shapes and dtypes only.
        losses: Of shape (m,); looked at for dtype and device only. Without a courier the numbers are on their device.
        slots: As many as `capacity` says; the first holds θ.
        courier: Carries plans out by the time the next one comes; `settle` waits for it. None: at once.
        clerk: Makes plans, where there is a courier; by default one of its own.
        on_error: What a StoreError of a plan does: "raise" it, at the next call where a courier was waited for, or
            "keep" the archive as it is, and warn the first time. Neither numbers nor copies have the iterate then.
    """

    def __init__(
        self,
        conversion: Planned,
        params: Params,
        losses: Tensor,
        slots: Slots,
        courier: Courier | None = None,
        clerk: Clerk | None = None,
        *,
        on_error: Literal["raise", "keep"] = "raise",
    ) -> None:
        self.conversion, self.slots, self.recorded = conversion, slots, 0
        self._keeps, self._warned = on_error == "keep", False
        self._like = {n: torch.empty_like(p, dtype=record_dtype(p), device="meta") for n, p in params.items()}
        self._shapes = {name: p.shape for name, p in self._like.items()}
        self._numbers = _bare(conversion.init({"nothing": losses.new_zeros(())}, losses))
        self._courier: Courier | None = None
        self._begun: _Begun | None = None
        self._queued: _Queued | None = None
        self._lost = False
        """Whether what was begun is to follow an iterate that could not be recorded."""
        self._carried: torch.cuda.Event | None = None
        """When the device has done what another thread gave it."""
        self._failure: Exception | None = None
        """What went wrong with the last plan in another thread."""
        self._set_out(losses.device, courier, clerk)

    def poll(self) -> None:
        """Raise what went wrong meanwhile, and what is wrong with the slots."""
        self.slots.check()
        queued = self._queued
        if self._failure is not None or (queued is not None and queued.job.done()):
            self._catch_up()

    def begin(self, params: Live, losses: Tensor, on_host: Arriving) -> Sequence[Later[Any]]:
        """The last plan carried out, or a copy of θ; then the plan for it. Other devices are one thread's alone."""
        if self._courier is None or self._device.type not in {"cpu", "cuda"}:
            return ()
        earlier, stream = self._begun, _stream(self._device)
        if earlier is not None:
            earlier.ready.wait()  # the thread looks at the same things until then
        work = partial(self._copy_ahead, params, earlier) if self._courier.ahead else partial(self._clear, params)
        ready = Later(partial(work, stream))
        plan = self._new_plan(on_host)
        self._begun, self._lost = _Begun(params, losses, ready, plan), False
        return ready, plan

    def update(self, params: Callable[[], Params], losses: Tensor, mask: Tensor | None = None) -> None:
        """Enter one iterate; the slots have it now, or by the next time."""
        self.slots.check()
        if self._courier is None:
            live = self._looked_at(params)
            plan = _planned(self.conversion, losses, self._numbers, mask)
            self.recorded += 1
            if self._finish(partial(carry_out, plan.plan, live, self.slots)):
                self._numbers = plan.after
            return
        if self._begun is not None:
            self._begun.ready.wait()
        self._catch_up()
        begun, self._begun = self._begun, None
        held = self._held(begun, params)
        self._courier.guard(held)
        if begun is not None and begun.losses is losses and not self._lost:
            made = begun.plan
        else:
            made = self._new_plan(arriving(losses, mask))
            self._clerk.take([made])
        job = partial(_carry_out_late, made, held, self.slots)
        self._queued = _Queued(made, held, self._courier.run(job))
        self.recorded += 1

    def settle(self) -> None:
        """Wait until the last plan was carried out."""
        if self._begun is not None:
            self._begun.plan.wait()  # the thread looks at the same things until then
        self._catch_up()

    def output(self) -> dict[str, Tensor]:
        """The conversion's answer, slot after slot: no two of them need be in memory."""
        numbers = self._numbers
        if not isinstance(numbers, AdaptiveState):
            answer = {name: tensor.clone() for name, tensor in self.slots.read(0).items()}
        else:
            share = shares(numbers.ledger.weights)
            used = share.nonzero().flatten().tolist()
            answer = mean_of((self.slots.read(j) for j in used), share[used].to(self.slots.device))
        return {name: tensor.to(self._device) for name, tensor in answer.items()}

    def numbers(self) -> Any:  # noqa: ANN401
        """The conversion's state without copies."""
        return self._numbers

    def state(self) -> Any:  # noqa: ANN401
        """With the copies: of `Adaptive` by the number of their slot, then by name."""
        return self._with([self.slots.read(j) for j in range(capacity(self.conversion))])

    def like(self) -> Any:  # noqa: ANN401
        """With copies on no device."""
        return self._with([self._like] * capacity(self.conversion))

    def load(self, state: Any) -> None:  # noqa: ANN401
        """Replace numbers and copies; a plan that is still on its way leaves nothing behind."""
        with suppress(StoreError):  # what could not be written is replaced
            self.settle()
        self._drop()
        copies: Any = state.slots.values() if isinstance(state, AdaptiveState) else [state.params]
        self.slots.fill(copies)
        held = flatten(self._numbers)
        found = {name: tensor.to(held[name], copy=True) for name, tensor in flatten(_bare(state)).items()}
        self._numbers = unflatten(found, self._numbers)

    def to(self, device: torch.device, courier: Courier | None, clerk: Clerk | None) -> None:
        """Move the numbers, and the slots if they are on the device of the parameters."""
        self.settle()
        self._drop()
        self.slots.to(device)
        self._set_out(device, courier, clerk)

    def close(self) -> None:
        """Let go of the slots' place, and of the memory for copies on their way; the slots stay readable."""
        try:
            self.settle()
        finally:
            self._drop()
            self._courier = None
            self.slots.close()

    def _set_out(self, device: torch.device, courier: Courier | None, clerk: Clerk | None) -> None:
        """Record parameters of this device from now on."""
        self._device, self._courier = device, courier
        self._clerk = Clerk(device) if clerk is None else clerk
        self._numbers = _moved(self._numbers, device if courier is None else torch.device("cpu"))

    def _looked_at(self, params: Callable[[], Params]) -> Params:
        """θ, if it is still of the names and shapes of the start."""
        live = params()
        if {name: p.shape for name, p in live.items()} != self._shapes:
            check_record(live, self._like, 0, slots=False)
        return live

    def _copy_ahead(self, params: Live, earlier: _Begun | None, stream: torch.cuda.Stream | None) -> _Ready:
        """Begin to copy θ, in another thread.

        Args:
            params: θ.
            earlier: An iterate that was begun, and not recorded.
            stream: That of the training.
        """
        assert self._courier is not None  # noqa: S101
        self._release(earlier)
        live = self._looked_at(params)
        seen = marks(live)
        # In this order: whatever the marks know of was given to the stream before, and the copy waits for it.
        written = None if stream is None else stream.record_event()
        return _Ready(live, self._courier.hold(live, written), seen)

    def _clear(self, params: Live, stream: torch.cuda.Stream | None) -> _Ready:
        """Have the last plan carried out, in another thread, on the stream of the training."""
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            try:
                self._catch_up()
            except Exception as error:  # for the training, whatever becomes of what was begun
                self._failure = error
            self._carried = None if stream is None else stream.record_event()
        return _Ready(self._looked_at(params), None, [])

    def _held(self, begun: _Begun | None, params: Callable[[], Params]) -> Held:
        """The copy that was made ahead if θ is still the same; else one that is made now."""
        assert self._courier is not None  # noqa: S101
        if begun is None or not begun.ready.wait():  # what the thread stumbled over may be over
            return self._courier.hold(self._looked_at(params))
        ready = begun.ready.result()
        live = ready.live if begun.params.still(ready.live) else self._looked_at(params)
        if ready.copy is not None:
            if ready.marks == marks(live):
                return ready.copy
            self._courier.release(ready.copy)
        return self._courier.hold(live)

    def _new_plan(self, losses: Arriving) -> Later[_Plan]:
        """From losses that are on their way, and the numbers after what is queued."""
        numbers, queued = self._numbers, self._queued

        def make() -> _Plan:
            values, mask = losses.wait()
            return _planned(self.conversion, values, numbers if queued is None else queued.plan.result().after, mask)

        return Later(make)

    def _catch_up(self) -> None:
        """Have done what is queued."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        carried, self._carried = self._carried, None
        if carried is not None:
            torch.cuda.current_stream(self._device).wait_event(carried)
        queued, self._queued = self._queued, None
        if queued is None:
            return
        assert self._courier is not None  # noqa: S101
        self._lost = True
        try:
            if self._finish(queued.job.result):
                self._numbers, self._lost = queued.plan.result().after, False
        finally:
            self._courier.release(queued.held)

    def _drop(self) -> None:
        """Forget what was begun."""
        begun, self._begun = self._begun, None
        self._release(begun)

    def _release(self, begun: _Begun | None) -> None:
        copy = begun.ready.result().copy if begun is not None and begun.ready.wait() else None
        if copy is not None and self._courier is not None:
            self._courier.release(copy)

    def _finish(self, job: Callable[[], None]) -> bool:
        """Do a job; whether it was done. If not, the iterate was not recorded."""
        try:
            job()
        except Exception as error:
            self.recorded -= 1
            if not (self._keeps and isinstance(error, StoreError)):
                raise
            if not self._warned:
                text = f"{error}. Training goes on, and nothing is recorded until the store can be written to again"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            self._warned = True
            return False
        return True

    def _with(self, copies: list[dict[str, Tensor]]) -> Any:  # noqa: ANN401
        if isinstance(self._numbers, AdaptiveState):
            # By slot, each tensor with the shape of its parameter: a slot may be a file, and a stack of files is none.
            slots: Any = {str(j): copy for j, copy in enumerate(copies)}
            return self._numbers._replace(slots=slots)
        return self._numbers._replace(params=copies[0])


def _bare(state: Any) -> Any:  # noqa: ANN401
    """A state without copies."""
    return state._replace(slots={}) if isinstance(state, AdaptiveState) else state._replace(params={})


def _moved(state: Any, device: torch.device) -> Any:  # noqa: ANN401
    return unflatten({name: tensor.to(device) for name, tensor in flatten(state).items()}, state)


def _planned(conversion: Planned, losses: Tensor, before: Any, mask: Tensor | None) -> _Plan:  # noqa: ANN401
    plan, after = conversion.plan(losses, before, mask)
    return _Plan(Numbers.of(plan), after)


def _carry_out_late(plan: Later[_Plan], held: Held, slots: Slots) -> None:
    carry_out(plan.result().plan, held.wait(), slots)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
