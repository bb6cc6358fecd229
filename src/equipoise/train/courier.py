"""How θ reaches the slots when the plan for it is not known yet.

On an accelerator, reading a plan would make the host wait. So θ is copied and its plan read when it has arrived.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, record_dtype
from equipoise.train.slots import Given

__all__ = ["Aside", "Courier", "Held", "Job", "ToHost"]


class Held(NamedTuple):
    """A copy of θ, there or on its way."""

    params: dict[str, Tensor]
    copied: torch.cuda.Event | None

    def wait(self) -> dict[str, Tensor]:
        """The copy, once it is there."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.params


class Job(Protocol):
    """Work that was handed over."""

    def done(self) -> bool:
        """Whether it is over, well or badly."""
        ...

    def result(self) -> None:
        """Wait until it is over; raises what it raised."""
        ...


class Courier(Protocol):
    """Copies θ, and sees to it that plans are carried out. One plan at a time."""

    def send(self, params: Params) -> None:
        """Begin to copy θ, which is likely to be held next."""
        ...

    def hold(self, params: Params) -> Held:
        """A copy of θ as it is now, whatever the device writes to θ from now on."""
        ...

    def run(self, job: Callable[[], None]) -> Job:
        """Have a job done, now or when its result is asked for."""
        ...

    def release(self, held: Held) -> None:
        """The copy is needed no more."""
        ...


class Aside:
    """θ is put aside on its own device, and plans are carried out there when the next one comes."""

    def __init__(self) -> None:
        self._aside: dict[str, Tensor] = {}

    def send(self, params: Params) -> None:
        """A copy on the device is quick: it is made when it is needed."""

    def hold(self, params: Params) -> Held:
        """A copy on the device; work that it is given later comes after it."""
        if not self._aside:
            self._aside = {name: torch.empty_like(p, dtype=record_dtype(p)) for name, p in params.items()}
        _copy(self._aside, params, non_blocking=False)
        return Held(self._aside, None)

    def run(self, job: Callable[[], None]) -> Job:
        """Later, by whoever asks for the result."""
        return _Waiting(job)

    def release(self, held: Held) -> None:
        """There is one, for the next."""


class _Waiting(NamedTuple):
    job: Callable[[], None]

    def done(self) -> bool:
        return False

    def result(self) -> None:
        self.job()


class _Sent(NamedTuple):
    """A copy that was begun, and what tells whether it is still one."""

    held: Held
    marks: list[tuple[int, int]]
    sources: list[Tensor]
    """Kept, so that their memory is not used for something else while it is read."""


class ToHost:
    """θ travels to the host beside the work of the device, and one thread carries plans out there.

    On a CUDA device, in order: the copy waits for what the device was given before (the last step wrote θ), the next
    step waits for the copy (it overwrites θ), and the thread waits for the copy before it reads. Memory for two copies:
    one may be on its way while the thread still reads the other.

    Args:
        device: Where θ is.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._side = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._free: list[Given] = []
        self._sent: _Sent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")

    def send(self, params: Params) -> None:
        """Begin to copy θ; whatever is written to it before `hold` is noticed there, unless through `.data`."""
        if self._device.type not in {"cpu", "cuda"}:
            return
        to = self._free_memory(params)
        sources = [p.detach() for p in params.values()]
        copied = None
        if self._side is None:
            _copy(to, params, non_blocking=False)
        else:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._side):
                copied = _copy_in_order(to, params, self._side)
        self._sent = _Sent(Held(to, copied), _marks(params), sources)

    def hold(self, params: Params) -> Held:
        """The copy that was sent, if θ is still the same; else one made now."""
        sent = self._sent
        stream = torch.cuda.current_stream(self._device) if self._side is not None else None
        if stream is not None and self._side is not None:
            # From here on θ may be overwritten, and so may the memory of a copy that is made anew.
            stream.wait_stream(self._side)
        if sent is not None and sent.marks == _marks(params):
            self._sent = None
            return sent.held
        to = self._free_memory(params)
        if stream is not None:
            return Held(to, _copy_in_order(to, params, stream))
        _copy(to, params, non_blocking=False)
        return Held(to, None)

    def run(self, job: Callable[[], None]) -> Job:
        """At once, by the thread."""
        return self._thread.submit(job)

    def release(self, held: Held) -> None:
        """Its memory is free for the next."""
        assert isinstance(held.params, Given)  # noqa: S101
        self._free.append(held.params)

    def _free_memory(self, params: Params) -> Given:
        """Memory for a copy: that of a copy that was sent in vain, what was released, or new."""
        sent, self._sent = self._sent, None
        if sent is not None:
            assert isinstance(sent.held.params, Given)  # noqa: S101
            return sent.held.params
        if self._free:
            return self._free.pop()
        # In the dtype of θ, so that nothing is converted, and put down, on the device.
        return Given({n: torch.empty_like(p, device="cpu", pin_memory=self._cuda) for n, p in params.items()})


@torch.no_grad()
def _copy(to: Mapping[str, Tensor], params: Params, *, non_blocking: bool) -> None:
    torch._foreach_copy_([to[name] for name in params], list(params.values()), non_blocking)


def _copy_in_order(to: Mapping[str, Tensor], params: Params, stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Copy on the stream, which is the current one; the event is one that a thread can wait for asleep."""
    _copy(to, params, non_blocking=True)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record(stream)
    return copied


def _marks(params: Params) -> list[tuple[int, int]]:
    """What changes when a parameter is written to or put elsewhere."""
    return [(p.data_ptr(), p._version) for p in params.values()]
