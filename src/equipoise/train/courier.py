"""How θ reaches the slots when the plan for it is not known yet.

On an accelerator, reading a plan would make the host wait. So θ is copied and its plan read when it has arrived.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, marks, record_dtype
from equipoise.host import done
from equipoise.train.slots import Given

__all__ = ["Aside", "Courier", "Held", "Job", "ToHost"]


class _Pack:
    """Memory for small tensors of one dtype side by side: each copy to the host costs a command, whatever its size."""

    def __init__(self, params: Params, device: torch.device, *, pinned: bool = False) -> None:
        sizes, dtype = [p.numel() for p in params.values()], next(iter(params.values())).dtype
        self.whole = torch.empty(sum(sizes), dtype=dtype, device=device, pin_memory=pinned)
        parts = zip(params, torch.split(self.whole, sizes), strict=True)
        self.parts = {name: part.view(params[name].shape) for name, part in parts}


class Held(NamedTuple):
    """A copy of θ, there or on its way."""

    params: dict[str, Tensor]
    copied: torch.cuda.Event | None
    packs: tuple[tuple[_Pack, _Pack], ...] = ()
    """Those of it that travel together: where they set out, and where they arrive."""

    def wait(self) -> dict[str, Tensor]:
        """The copy, once it is there."""
        if self.copied is not None:
            self.copied.synchronize()
        for _, there in self.packs:
            _copy({name: self.params[name] for name in there.parts}, there.parts)
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
        _copy(self._aside, params)
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
        self._free: list[Held] = []
        self._kinds: list[torch.dtype] = []
        self._sent: _Sent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")

    def send(self, params: Params) -> None:
        """Begin to copy θ; whatever is written to it before `hold` is noticed there, unless through `.data`."""
        if self._device.type not in {"cpu", "cuda"}:
            return
        self._drop()
        self._sent = _Sent(self._begin(params), marks(params), [p.detach() for p in params.values()])

    def hold(self, params: Params) -> Held:
        """The copy that was sent, if θ is still the same; else one made now."""
        if self._sent is not None and self._sent.marks != marks(params):
            self._drop()
        sent, self._sent = self._sent, None
        held = self._begin(params) if sent is None else sent.held
        if held.copied is not None:  # from here on θ may be overwritten
            torch.cuda.current_stream(self._device).wait_event(held.copied)
        return held

    def run(self, job: Callable[[], None]) -> Job:
        """At once, by the thread."""
        return self._thread.submit(_on_device, self._device, job)

    def release(self, held: Held) -> None:
        """Its memory is free for the next, if that is of the same kind."""
        if [t.dtype for t in held.params.values()] == self._kinds:
            self._free.append(held._replace(copied=None))

    def _drop(self) -> None:
        """Forget a copy that was sent in vain."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self.release(sent.held)

    def _begin(self, params: Params) -> Held:
        """A copy on its way, beside the current stream and after what that was given so far."""
        kinds = [p.dtype for p in params.values()]
        if kinds != self._kinds:  # other memory is needed
            self._kinds, self._free = kinds, []
        if self._side is None:
            return self._travel(params)
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):  # the memory of packs, too, is this stream's
            held = self._travel(params)
        return held._replace(copied=done(self._side))

    def _travel(self, params: Params) -> Held:
        to = self._free.pop() if self._free else self._memory(params)
        large = dict(to.params)
        for here, there in to.packs:
            _copy(here.parts, params)
            there.whole.copy_(here.whole, non_blocking=self._cuda)
            large = {name: t for name, t in large.items() if name not in here.parts}
        _copy(large, params, non_blocking=self._cuda)
        return to

    def _memory(self, params: Params) -> Held:
        """For one copy, in the dtype of θ, so that nothing is converted, and put down, on the device."""
        cpu = torch.device("cpu")
        given = Given({n: torch.empty_like(p, device=cpu, pin_memory=self._cuda) for n, p in params.items()})
        packs = [(_Pack(group, self._device), _Pack(group, cpu, pinned=self._cuda)) for group in _small(params)]
        return Held(given, None, tuple(packs))


def _on_device(device: torch.device, job: Callable[[], None]) -> None:
    """A thread is else on the first device, and would take memory there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    job()


SMALL = 1 << 16
"""Bytes up to which a tensor is copied together with others."""


def _small(params: Params) -> list[dict[str, Tensor]]:
    """The small ones by their dtype."""
    groups: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, p in params.items():
        if p.numel() * p.element_size() <= SMALL:
            groups.setdefault(p.dtype, {})[name] = p
    return list(groups.values())


@torch.no_grad()
def _copy(to: Mapping[str, Tensor], params: Params, *, non_blocking: bool = False) -> None:
    """Those of `to`."""
    if to:
        torch._foreach_copy_(list(to.values()), [params[name] for name in to], non_blocking)
