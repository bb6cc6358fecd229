"""Work of a step that another thread does, while the thread of the training waits for its backward pass."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.host import Fetched, fetch

__all__ = ["Arriving", "Clerk", "Later", "arriving", "enter"]

T = TypeVar("T")


class Later(Generic[T]):
    """What a function gives, once some thread has run it.

    Args:
        function: Run once, under `no_grad`.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function: Callable[[], T] | None = function
        self._future: Future[T] = Future()

    def run(self) -> None:
        """Run it, by the thread that is to do so; what it raises, `result` raises."""
        function, self._function = self._function, None
        assert function is not None  # noqa: S101
        try:
            with torch.no_grad():
                self._future.set_result(function())
        except BaseException as error:
            self._future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """It will not be run."""
        self._function = None
        self._future.set_exception(error)

    def wait(self) -> bool:
        """Wait until it was run; whether it went well."""
        return self._future.exception() is None

    def result(self) -> T:
        """Wait for it; raises what it raised."""
        return self._future.result()


class Clerk:
    """One thread that runs what it is given in order; it is there from the first work on.

    Args:
        device: What the thread takes for the current one, if it is a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread: ThreadPoolExecutor | None = None

    def rest(self) -> None:
        """End the thread, once it has done its work; more work begins another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def take(self, works: Sequence[Later[Any]]) -> None:
        """Run these, one after the other."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise")
        try:
            self._thread.submit(_run_all, works, self._device)
        except BaseException as error:
            _fail_all(works, error)
            raise


def _run_all(works: Sequence[Later[Any]], device: torch.device) -> None:
    try:
        enter(device)
    except BaseException as error:
        _fail_all(works, error)
        return
    for work in works:
        work.run()


def _fail_all(works: Sequence[Later[Any]], error: BaseException) -> None:
    """Nobody must wait for them."""
    for work in works:
        work.fail(error)


def enter(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread, which is else on the first, and would take memory there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


class Arriving(NamedTuple):
    """Losses (m,) on their way to the host, and who is present, (m,) or None for all."""

    values: Fetched
    mask: Fetched | None

    def wait(self) -> tuple[Tensor, Tensor | None]:
        """Both, on the host."""
        return self.values.wait(), None if self.mask is None else self.mask.wait()


def arriving(values: Tensor, mask: Tensor | None) -> Arriving:
    """Send losses to the host."""
    return Arriving(fetch(values), None if mask is None else fetch(mask))
