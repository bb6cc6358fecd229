"""The archive of a run: the conversion's numbers on the host, and copies of the parameters in slots.

On the CPU an iterate is recorded at once. On an accelerator θ is copied when the optimizer steps and recorded when its
losses have arrived on the host, so the host never synchronises with the device. One background thread writes slots
that are in host memory or in a folder.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.conversion import Conversion
from equipoise.conversion.plan import Numbers, Params, check_record, record_dtype
from equipoise.conversion.protocol import with_slots
from equipoise.conversion.store import execute, mean_of
from equipoise.errors import StoreError, warn
from equipoise.host import Fetched, is_asynchronous
from equipoise.train.disk import OnDisk
from equipoise.train.inputs import Store
from equipoise.train.slots import Aside, Held, InMemory, copy_aside, in_memory

__all__ = ["Archive", "open_slots"]

Slots = InMemory | OnDisk


def open_slots(store: Store, params: Params, number: int) -> Slots:
    """Slots where `store=` says; the first holds the parameters."""
    if isinstance(store, str):
        return in_memory(params, number, on_host=store == "host")
    return OnDisk(store, params, number)


class Archive:
    """What a conversion has recorded of a run.

    Args:
        conversion: With a bounded number of copies.
        params: θ at the start; only names, shapes and dtypes are used.
        losses: Of shape (m,), on the host; only the dtype is used.
        slots: As many as the conversion's `copies`; the first holds θ.
        device: Where θ is.
        on_error: What to do on a StoreError: "raise" it (in the next call if the background thread hit it), or "keep"
            the archive as it is and warn the first time. In both cases the iterate is not recorded.
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
        self.numbers = conversion.begin(losses)
        """The conversion's state without copies."""
        self.held: Held | None = None
        """The iterate that waits to be recorded."""
        self._folder = slots if isinstance(slots, OnDisk) else None
        self.busy = self._folder is not None
        """Whether `poll` may have an error to raise."""
        self._job: Future[None] | None = None
        """The plan that the background thread executes."""
        self._before: Any = None
        """The numbers before that plan."""
        self._thread: ThreadPoolExecutor | None = None
        self._follow(device)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the thread: a copy starts its own."""
        self.settle()
        return {**self.__dict__, "_thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow(self._device)

    def hold(self, params: Params, *, aside: bool = False) -> None:
        """Hold the current θ until `commit` or `drop`. On the CPU call one of them before θ changes, unless `aside`."""
        if list(map(Tensor.size, params.values())) != self._sizes or params.keys() != self._like.keys():
            check_record(params, self._like, 0, slots=False)
        if self._folder is not None:
            self._folder.check()
        if self.held is not None:
            self.drop()
        if aside or self._aside:
            self.held = copy_aside(params, self.slots.free, on_host=self.slots.on_host, like=self._like)
        else:
            self.held = Fetched(dict(params), None)

    def drop(self) -> None:
        """Forget what is held."""
        held, self.held = self.held, None
        if held is not None:
            _release(held, self.slots)

    def commit(self, losses: Tensor, mask: Tensor | None = None) -> None:
        """Record the iterate that is held, with its losses on the host, (m,), and a mask of those that are present."""
        if self._job is not None:
            self.settle()
        held, self.held = self.held, None
        assert held is not None  # noqa: S101
        job = None
        found, after = self.conversion.plan(losses, self.numbers, mask)
        plan, self.slots.begun = found.numbers(), []
        try:
            if self._thread is not None:
                job = self._thread.submit(_carry_out, plan, held, self.slots, self._device)
            else:
                execute(plan, held.value, self.slots)
            self.numbers, self._before, self._job, self.recorded = after, self.numbers, job, self.recorded + 1
        except BaseException as error:
            if not isinstance(error, StoreError):
                self._catch_up(plan, held, after)
            self._report(error)
        if job is not None:
            self.busy = True
        elif isinstance(held.value, Aside):
            _release(held, self.slots)

    def _catch_up(self, plan: Numbers, held: Held, after: Any) -> None:  # noqa: ANN401
        """Recover from an interrupt such as Ctrl-C: numbers and slots both have the iterate, or neither has."""
        if self._thread is not None:
            self._thread.submit(int).result()
        if self.numbers is not after and self.slots.finish(plan, held.value):
            self.numbers, self.recorded = after, self.recorded + 1

    def settle(self) -> None:
        """Wait until the thread has finished the last plan; raises its error, if any."""
        if self._job is None:
            return
        error = self._job.exception()
        if error is None:
            self._job = None
        else:
            self.numbers, self._job, self.recorded = self._before, None, self.recorded - 1
        self.busy = self._folder is not None
        if error is not None:
            self._report(error)

    def poll(self) -> None:
        """Raise the thread's error if it has already failed; does not wait."""
        if self._folder is not None:
            self._folder.check()
        if self._job is not None and self._job.done():
            self.settle()

    def output(self, preference: Tensor) -> dict[str, Tensor]:
        """The answer for w (m,), as copies on the device of θ. Reads one slot at a time to save memory."""
        share = self.conversion.shares(self.numbers, preference)
        used = share.nonzero().flatten().tolist()
        found = mean_of((self.slots.read(j) for j in used), share[used].to(self.slots.device))
        return {name: tensor.to(self._device) for name, tensor in found.items()}

    def state(self) -> Any:  # noqa: ANN401
        """The state with copies by slot number, then by name: clones on the host, or memory-mapped files."""
        copies = [self.slots.read(j) for j in range(self.conversion.copies or 0)]
        if self._folder is None:
            copies = [{name: x.detach().to("cpu", copy=True) for name, x in copy.items()} for copy in copies]
        return self._with(copies)

    def like(self) -> Any:  # noqa: ANN401
        """A state of the same shapes, dtypes and names, without values."""
        return self._with([self._like] * (self.conversion.copies or 0))

    def load(self, state: Any) -> None:  # noqa: ANN401
        """Replace numbers and copies."""
        self.drop()
        with suppress(StoreError):  # the slots are overwritten below anyway
            self.settle()
        self.slots.fill(state.slots.values())
        self.numbers = with_slots(state, {})

    def forget(self, params: Params, losses: Tensor) -> None:
        """Start afresh with these parameters; only the dtype of the losses (m,) is used."""
        self.drop()
        self.settle()
        self.slots.fill([params] * (self.conversion.copies or 0))
        self.numbers, self.recorded = self.conversion.begin(losses), 0

    def to(self, device: torch.device) -> None:
        """Continue with the parameters on another device."""
        self.settle()
        self.slots.free.clear()
        if isinstance(self.slots, InMemory):
            self.slots.to(device)
        self._follow(device)

    def close(self) -> None:
        """Release the store's lock and spare memory; the slots stay readable."""
        self.drop()
        try:
            self.settle()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
            self.slots.free.clear()
            if self._folder is not None:
                self._folder.close()

    def _follow(self, device: torch.device) -> None:
        self._device, self._aside = device, is_asynchronous(device)
        elsewhere = self._aside and self.slots.on_host
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store") if elsewhere else None

    def _report(self, error: BaseException) -> None:
        """Raise the error that kept an iterate from being recorded, or warn if `on_error` is "keep"."""
        if not (self._keeps and isinstance(error, StoreError)):
            raise error
        if not self._warned:
            text = f"{error}. Training goes on, and nothing is recorded until the store can be written to again"
            warn(text, RuntimeWarning)
        self._warned = True

    def _with(self, copies: list[Params]) -> Any:  # noqa: ANN401
        # By slot, each tensor with the shape of its parameter: a slot may be a file, and files cannot be stacked.
        return with_slots(self.numbers, {str(j): copy for j, copy in enumerate(copies)})


@torch.no_grad()
def _carry_out(plan: Numbers, held: Held, slots: Slots, device: torch.device) -> None:
    """Execute a plan; runs in the background thread."""
    if device.type == "cuda":  # a new thread starts on device 0 and would allocate memory there
        torch.cuda.set_device(device)
    try:
        execute(plan, held.wait(), slots)
    finally:
        _release(held, slots)


def _release(held: Held, slots: Slots) -> None:
    """Keep the buffer of a copy for the next one, unless it has become a slot."""
    if isinstance(held.value, Aside) and all(held.value is not copy for copy in slots.copies):
        slots.free.append(held.value)
