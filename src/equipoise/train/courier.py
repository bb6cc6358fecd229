"""How θ reaches the slots when the plan for it is not known yet.

On an accelerator, reading a plan would make the host wait. So θ is copied and its plan read when it has arrived.
"""

import operator
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, marks
from equipoise.host import done, reach
from equipoise.streams import Beside, capture_at_once, captures
from equipoise.train.copies import Copy, Layout
from equipoise.train.gradients import ungraphed

__all__ = ["Aside", "Courier", "Held", "Job", "ToHost"]

_dtype = operator.attrgetter("dtype")


class Held(NamedTuple):
    """A copy of θ, there or on its way."""

    params: Copy
    copied: torch.cuda.Event | None

    def wait(self) -> Copy:
        """The copy, once it is there."""
        reach(self.copied)
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

    sends: bool
    """Whether `send` does something."""

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
    """θ is put aside on its own device, and plans are carried out there when the next one comes.

    Args:
        apart: See `Layout`.
    """

    sends = False

    def __init__(self, *, apart: bool = False) -> None:
        self._spare: Copy | None = None
        self._apart = apart

    def send(self, params: Params) -> None:
        """A copy on the device is quick: it is made when it is needed."""

    def hold(self, params: Params) -> Held:
        """A copy on the device; work that it is given later comes after it."""
        to, self._spare = self._spare, None
        if to is None:  # like the slots, which may keep it
            to = Layout(params, apart=self._apart).make(next(iter(params.values())).device)
        _copy(to.tensors, params)
        return Held(to, None)

    def run(self, job: Callable[[], None]) -> Job:
        """Later, by whoever asks for the result."""
        return _Waiting(job)

    def release(self, held: Held) -> None:
        """For the next."""
        self._spare = held.params


class _Waiting(NamedTuple):
    job: Callable[[], None]

    def done(self) -> bool:
        return False

    def result(self) -> None:
        self.job()


class _Sent(NamedTuple):
    """A copy that was begun, and what tells whether it is still one."""

    held: Held
    params: Params
    marks: tuple[list[int], list[int]]


class ToHost:
    """θ travels to the host beside the work of the device, and one thread carries plans out there.

    On a CUDA device, in order: the copy waits for what the device was given before (the last step wrote θ), the next
    step waits for the copy (it overwrites θ), and the thread waits for the copy before it reads. Memory for two copies:
    one may be on its way while the thread still reads the other. A copy is a command for each large tensor and two for
    the small ones of a block, which are put together first, as are those with gaps. They are captured as one graph for
    each memory that they go to.

    Args:
        device: Where θ is.
        apart: See `Layout`.
    """

    def __init__(self, device: torch.device, *, apart: bool = False) -> None:
        self.sends = device.type in {"cpu", "cuda"}
        self._device, self._apart = device, apart
        self._beside = Beside(device, "copies") if captures(device) else None
        self._free: list[Copy] = []
        self._layout: Layout | None = None
        self._packs: list[Tensor] = []
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._source: object = None
        self._kept: list[Tensor] = []
        self._sent: _Sent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")
        if self._beside is not None:
            # What is on its way needs its memory, also if nobody asks for it.
            weakref.finalize(self, self._beside.stream.synchronize).atexit = False

    def send(self, params: Params) -> None:
        """Begin to copy θ; whatever is written to it before `hold` is noticed there, unless through `.data`."""
        if self.sends:
            self._drop()
            now = marks(params)
            self._sent = _Sent(self._begin(params, now[0]), params, now)

    def hold(self, params: Params) -> Held:
        """The copy that was sent, if θ is still the same; else one made now."""
        now = marks(params)
        if self._sent is not None and (self._sent.params is not params or self._sent.marks != now):
            self._drop()
        sent, self._sent = self._sent, None
        held = self._begin(params, now[0]) if sent is None else sent.held
        if self._beside is not None and held.copied is not None:  # from here on θ may be overwritten
            self._beside.current().wait_event(held.copied)
        return held

    def run(self, job: Callable[[], None]) -> Job:
        """At once, by the thread."""
        return self._thread.submit(_on_device, self._device, job)

    def release(self, held: Held) -> None:
        """Its memory is free for the next, if that is of the same kind."""
        if held.params.layout is self._layout:
            self._free.append(held.params)

    def _drop(self) -> None:
        """Forget a copy that was sent in vain."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self.release(sent.held)

    def _begin(self, params: Params, addresses: list[int]) -> Held:
        """A copy on its way, beside the current stream and after what that was given so far."""
        tensors = list(params.values())
        source = [addresses, list(map(Tensor.stride, tensors)), list(map(_dtype, tensors))]
        if self._layout is None or source != self._source:
            self._move_to(params)
            # Kept: memory that is in use is at no other's address, which so tells whose it is.
            self._source, self._kept = source, [tensor.detach() for tensor in tensors]
        assert self._layout is not None  # noqa: S101
        pinned = self._device.type == "cuda"
        to = self._free.pop() if self._free else self._layout.make(torch.device("cpu"), pinned=pinned)
        if self._beside is None:
            _copy(to.tensors, params)
            return Held(to, None)
        with self._beside as stream:
            key = tuple(block.data_ptr() for block in to.blocks)
            if key not in self._graphs:
                # Slots take such memory and leave theirs, so that it comes again.
                memory = Copy(to.layout, list(to.blocks))
                self._graphs[key] = capture_at_once(partial(self._travel, memory, dict(params)), self._device)
            self._graphs[key].replay()
            return Held(to, done(stream))

    def _move_to(self, params: Params) -> None:
        """θ is elsewhere, or something else."""
        # In the dtype of θ, so that nothing is converted, and put down, on the device.
        layout = Layout(params, _dtype, apart=self._apart)
        if self._layout is None or layout != self._layout:
            self._layout, self._free = layout, []
        if self._beside is not None:
            self._beside.stream.synchronize()
            self._graphs = {}
            with self._beside:
                self._packs = [torch.zeros(b.small, dtype=b.dtype, device=self._device) for b in layout.blocks]

    def _travel(self, to: Copy, params: Params) -> None:
        """The commands of a copy from one device to another."""
        large = dict(to)
        for k, pack in enumerate(self._packs):
            small = {name: to.layout.parts[name] for name in to.layout.small(k)}
            _copy({name: pack.as_strided(p.shape, p.stride, p.offset) for name, p in small.items()}, params)
            to.blocks[k][: len(pack)].copy_(pack, non_blocking=True)
            large = {name: tensor for name, tensor in large.items() if name not in small}
        _copy(large, params, non_blocking=True)


def _on_device(device: torch.device, job: Callable[[], None]) -> None:
    """A thread is else on the first device, and would take memory there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    job()


def _copy(to: Mapping[str, Tensor], params: Params, *, non_blocking: bool = False) -> None:
    if not to:
        return
    with ungraphed():
        torch._foreach_copy_(list(to.values()), list(map(params.__getitem__, to)), non_blocking)
