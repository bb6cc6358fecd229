"""Work of a step that another thread does, while the thread of the training waits for its backward pass."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.host import Fetched, fetch

__all__ = ["Arriving", "Clerk", "Later", "arriving"]

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
        if function is None:
            return
        try:
            with torch.no_grad():
                self._future.set_result(function())
        except BaseException as error:
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
        begin = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise", initializer=begin)

    def take(self, works: Sequence[Later[Any]]) -> None:
        """Run these, one after the other."""
        self._thread.submit(_run_all, works)


def _run_all(works: Sequence[Later[Any]]) -> None:
    for work in works:
        work.run()


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
