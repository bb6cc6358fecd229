"""The record of a run: the numbers of its conversion on the host, its copies of the parameters in slots.

On the CPU an iterate is entered at once. On an accelerator θ is copied when the optimizer steps, and entered when its
losses have arrived on the host, so that the host never waits for the device. Slots in host memory or in a folder are
then written by one background thread.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.conversion import Conversion
from equipoise.conversion.plan import Numbers, Params, check_record, record_dtype
from equipoise.conversion.protocol import with_slots
from equipoise.conversion.store import execute, mean_of
from equipoise.errors import StoreError, warn
from equipoise.host import is_asynchronous
from equipoise.state import flatten, unflatten
from equipoise.train.disk import OnDisk
from equipoise.train.inputs import Store
from equipoise.train.slots import Aside, Held, InMemory, in_memory

__all__ = ["Archive", "open_slots"]

Slots = InMemory | OnDisk


def open_slots(store: Store, params: Params, number: int) -> Slots:
    """Slots at the place that `store=` names; the first holds the parameters."""
    if isinstance(store, str):
        return in_memory(params, number, on_host=store == "host")
    return OnDisk(store, params, number)


class _Job(NamedTuple):
    """A plan that the thread carries out."""

    future: Future[None]
    before: Any
    """The numbers without it."""


class Archive:
    """What a conversion has recorded of a run.

    Args:
        conversion: The conversion, with a bounded number of copies.
        params: θ at the start; looked at for names, shapes and dtypes only.
        losses: Of shape (m,), on the host; looked at for dtype only.
        slots: As many as the conversion's `copies`; the first holds θ.
        device: Where θ is.
        on_error: What a StoreError does: "raise" it, at the next call where the thread wrote, or "keep" the archive as
            it is, and warn the first time. Neither numbers nor copies have the iterate then.
    """

    def __init__(
        self,
        conversion: Conversion[Any],
        params: Params,
        losses: Tensor,
        slots: Slots,
        device: torch.device,
        on_error: Literal["raise", "keep"] = "raise",
    ) -> None:
        self.conversion, self.slots, self.recorded = conversion, slots, 0
        self._keeps, self._warned = on_error == "keep", False
        self._like = {n: torch.empty_like(p, dtype=record_dtype(p), device="meta") for n, p in params.items()}
        self._sizes = [p.shape for p in self._like.values()]
        self._numbers = conversion.begin(losses)
        self.held: Held | None = None
        """The iterate that waits to be entered."""
        self.busy = isinstance(slots, OnDisk)
        """Whether `poll` may have something to say."""
        self._job: _Job | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._follow(device)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: it has a thread of its own."""
        self.settle()
        return {**self.__dict__, "_thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow(self._device)

    def hold(self, params: Params, *, aside: bool = False) -> None:
        """Keep θ as it is now until `commit` or `drop`; on the CPU that must come before θ changes, unless `aside`."""
        if list(map(Tensor.size, params.values())) != self._sizes or params.keys() != self._like.keys():
            check_record(params, self._like, 0, slots=False)
        if self.busy:
            self.slots.check()
        if self.held is not None:
            self.drop()
        self.held = self.slots.aside(params) if aside or self._aside else Held(dict(params), None)

    def drop(self) -> None:
        """Forget what is held."""
        held, self.held = self.held, None
        if held is not None:
            self.slots.release(held)

    def commit(self, losses: Tensor, mask: Tensor | None = None) -> None:
        """Enter the iterate that is held.

        Args:
            losses: Its losses, on the host, (m,).
            mask: Which objectives are present, (m,); None for all.
        """
        if self._job is not None:
            self.settle()
        held, self.held = self.held, None
        assert held is not None  # noqa: S101
        before, job = self._numbers, None
        found, after = self.conversion.plan(losses, before, mask)
        plan, self.slots.begun = found.numbers(), []
        try:
            if self._thread is not None:
                job = _Job(self._thread.submit(_carry_out, plan, held, self.slots, self._device), before)
            else:
                execute(plan, held.params, self.slots)
            self._numbers, self._job, self.recorded = after, job, self.recorded + 1
        except BaseException as error:
            if not isinstance(error, StoreError):
                self._catch_up(plan, held, after)
            self._report(error)
        if job is not None:
            self.busy = True
        elif isinstance(held.params, Aside):
            self.slots.release(held)

    def _catch_up(self, plan: Numbers, held: Held, after: Any) -> None:  # noqa: ANN401
        """After an interrupt, such as by Ctrl-C: numbers and slots have the iterate, or neither has it."""
        if self._thread is not None:
            self._thread.submit(int).result()
        if self._numbers is not after and self.slots.finish(plan, held.params):
            self._numbers, self.recorded = after, self.recorded + 1

    def settle(self) -> None:
        """Wait until the last plan was carried out; raises what went wrong."""
        if self._job is None:
            return
        job, error = self._job, self._job.future.exception()
        if error is None:
            self._job = None
        else:
            self._numbers, self._job, self.recorded = job.before, None, self.recorded - 1
        self.busy = isinstance(self.slots, OnDisk)
        if error is not None:
            self._report(error)

    def poll(self) -> None:
        """Raise what is known to have gone wrong, without waiting."""
        self.slots.check()
        if self._job is not None and self._job.future.done():
            self.settle()

    def output(self, preference: Tensor) -> dict[str, Tensor]:
        """The answer for w (m,), slot after slot: no two of them need be in memory. Copies, on the device of θ."""
        share = self.conversion.shares(self._numbers, preference)
        used = share.nonzero().flatten().tolist()
        found = mean_of((self.slots.read(j) for j in used), share[used].to(self.slots.device))
        return {name: tensor.to(self._device) for name, tensor in found.items()}

    def numbers(self) -> Any:  # noqa: ANN401
        """The conversion's state without copies."""
        return self._numbers

    def state(self) -> Any:  # noqa: ANN401
        """With copies that stay as they are, on the host or in files, by the number of their slot, then by name."""
        copies = [self.slots.read(j) for j in range(self.conversion.copies or 0)]
        if isinstance(self.slots, InMemory):
            copies = [{name: x.detach().to("cpu", copy=True) for name, x in copy.items()} for copy in copies]
        return self._with(copies)

    def like(self) -> Any:  # noqa: ANN401
        """A state of the same shapes, dtypes and names, without values."""
        return self._with([self._like] * (self.conversion.copies or 0))

    def load(self, state: Any) -> None:  # noqa: ANN401
        """Replace numbers and copies."""
        self.drop()
        with suppress(StoreError):  # what could not be written is replaced
            self.settle()
        held = flatten(self._numbers)
        found = {name: tensor.to(held[name], copy=True) for name, tensor in flatten(with_slots(state, {})).items()}
        numbers = unflatten(found, self._numbers)
        self.slots.fill(state.slots.values())
        self._numbers = numbers

    def forget(self, params: Params, losses: Tensor) -> None:
        """Begin anew with these parameters; of the losses (m,) only the dtype counts."""
        self.drop()
        self.settle()
        self.slots.fill([params] * (self.conversion.copies or 0))
        self._numbers, self.recorded = self.conversion.begin(losses), 0

    def to(self, device: torch.device) -> None:
        """Go on with parameters on another device."""
        self.settle()
        self.slots.to(device)
        self._follow(device)

    def close(self) -> None:
        """Let go of the slots' place and of spare memory; the slots stay readable."""
        self.drop()
        try:
            self.settle()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
            self.slots.close()

    def _follow(self, device: torch.device) -> None:
        self._device, self._aside = device, is_asynchronous(device)
        elsewhere = self._aside and (isinstance(self.slots, OnDisk) or self.slots.on_host)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store") if elsewhere else None

    def _report(self, error: BaseException) -> None:
        """Raise what kept an iterate from being recorded, unless the run goes on without it."""
        if not (self._keeps and isinstance(error, StoreError)):
            raise error
        if not self._warned:
            text = f"{error}. Training goes on, and nothing is recorded until the store can be written to again"
            warn(text, RuntimeWarning)
        self._warned = True

    def _with(self, copies: list[Params]) -> Any:  # noqa: ANN401
        # By slot, each tensor with the shape of its parameter: a slot may be a file, and files cannot be stacked.
        return with_slots(self._numbers, {str(j): copy for j, copy in enumerate(copies)})


@torch.no_grad()
def _carry_out(plan: Numbers, held: Held, slots: Slots, device: torch.device) -> None:
    """The work of the thread."""
    if device.type == "cuda":  # a new thread is on the first device, and would take memory there
        torch.cuda.set_device(device)
    try:
        execute(plan, held.wait(), slots)
    finally:
        slots.release(held)
