"""How θ reaches the slots when the plan for it is not known yet.

On an accelerator, a plan is made on the host from losses that are still on their way. So θ is copied, and the plan is
carried out on the copy when it is known.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, record_dtype
from equipoise.train.slots import Given

__all__ = ["Aside", "Courier", "Held", "Job", "ToHost"]


class Held(NamedTuple):
    """A copy of θ, there or on its way."""

    params: dict[str, Tensor]
    copied: torch.cuda.Event | None
    sources: tuple[Tensor, ...] = ()
    """Kept, so that their memory is not used for something else while it is read."""

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

    spare: ClassVar[bool]
    """Whether θ can be copied while the plan for the last copy is still to be carried out."""

    def hold(self, params: Params) -> Held:
        """A copy of θ as it is after what the current stream was given; `guard` must follow before θ is written to."""
        ...

    def guard(self, held: Held) -> None:
        """Whatever the current stream is given from now on comes after the copy."""
        ...

    def run(self, job: Callable[[], None]) -> Job:
        """Have a job done, now or when its result is asked for."""
        ...

    def release(self, held: Held) -> None:
        """The copy is needed no more."""
        ...


class Aside:
    """θ is put aside on its own device, and plans are carried out there when the next one comes."""

    spare: ClassVar[bool] = False

    def __init__(self) -> None:
        self._aside: dict[str, Tensor] = {}

    def hold(self, params: Params) -> Held:
        """A copy on the device; work that it is given later comes after it."""
        if not self._aside:
            self._aside = {name: torch.empty_like(p, dtype=record_dtype(p)) for name, p in params.items()}
        _copy(self._aside, params, non_blocking=False)
        return Held(self._aside, None)

    def guard(self, held: Held) -> None:
        """The stream has the copy in its order."""

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


class ToHost:
    """θ travels to the host beside the work of the device, and one thread carries plans out there.

    On a CUDA device, in order: the copy waits for what the device was given before (the last step wrote θ), the next
    step waits for the copy (it overwrites θ), and the thread waits for the copy before it reads. Memory for two copies:
    one may be on its way while the thread still reads the other.

    Args:
        device: Where θ is.
    """

    spare: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._side = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._free: list[Given] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")

    def hold(self, params: Params) -> Held:
        """A copy on the host, on its way."""
        # In the dtype of θ, so that nothing is converted, and put down, on the device.
        to = (
            self._free.pop()
            if self._free
            else Given({n: torch.empty_like(p, device="cpu", pin_memory=self._cuda) for n, p in params.items()})
        )
        sources = tuple(p.detach() for p in params.values())
        if self._side is None:
            _copy(to, params, non_blocking=False)
            return Held(to, None, sources)
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            _copy(to, params, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # a thread waits for it asleep
            copied.record(self._side)
        return Held(to, copied, sources)

    def guard(self, held: Held) -> None:
        """The stream waits for it."""
        if held.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(held.copied)

    def run(self, job: Callable[[], None]) -> Job:
        """At once, by the thread."""
        return self._thread.submit(job)

    def release(self, held: Held) -> None:
        """Its memory is free for the next."""
        assert isinstance(held.params, Given)  # noqa: S101
        self._free.append(held.params)


@torch.no_grad()
def _copy(to: Mapping[str, Tensor], params: Params, *, non_blocking: bool) -> None:
    torch._foreach_copy_([to[name] for name in params], list(params.values()), non_blocking)
