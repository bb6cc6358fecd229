"""Streams of a CUDA device beside the one that is trained on, and work captured for them: many kernels, one launch."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

__all__ = ["Beside", "capture", "capture_at_once", "captures"]


def captures(device: torch.device) -> bool:
    """Whether the work of a device can be captured."""
    return device.type == "cuda"


_STREAMS: dict[tuple[int, torch.device, str], torch.cuda.Stream] = {}
"""A thread needs few streams, however many runs it makes, and a device has few queues for them."""


def _stream(device: torch.device, purpose: str, make: Callable[[torch.device], torch.cuda.Stream]) -> torch.cuda.Stream:
    key = threading.get_ident(), device, purpose
    if key not in _STREAMS:
        _STREAMS[key] = make(device)
    return _STREAMS[key]


def _introduced(device: torch.device) -> torch.cuda.Stream:
    """A stream of high priority whose first work comes while the current one is busy.

    Many small kernels of one stream may be done in turn with the large ones of another, although neither waits for the
    other: probably since streams share the few queues of a device, and nothing tells which. With streams that began
    beside a busy one this was seen once, with others often: docs/training.md has the numbers.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.no_grad():
        large, small = torch.zeros(1 << 23, device=device), torch.zeros(1, device=device)

        def many() -> None:
            for _ in range(200):
                small.add_(1)

        def long(times: int) -> None:
            for _ in range(times):
                large.add_(1)

        small.add_(1)
        graph = capture_at_once(many, device)
        graph.replay()
        for _ in range(3):
            torch.cuda.synchronize()
            long(24)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.replay()
            long(32)
        torch.cuda.synchronize()
    return stream


class Beside:
    """A stream beside the current one of a CUDA device. What it is given in a `with` comes after what that has so far.

    A step has no time for `torch.cuda.current_stream` and `torch.cuda.stream`, which make new objects.

    Args:
        device: The device.
        purpose: All of one purpose that a thread makes are the same stream.
    """

    def __init__(self, device: torch.device, purpose: Literal["numbers", "copies"]) -> None:
        self.stream = _stream(device, purpose, _introduced)
        self._index: int = self.stream.device_index
        self._given = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._known: tuple[int, torch.cuda.Stream] | None = None
        self._before: tuple[int, torch.cuda.Stream] | None = None

    def current(self) -> torch.cuda.Stream:
        """The current stream of the device."""
        number = torch._C._cuda_getCurrentRawStream(self._index)
        if self._known is None or self._known[0] != number:
            self._known = number, torch.cuda.current_stream(self._index)
        return self._known[1]

    def __enter__(self) -> torch.cuda.Stream:
        now = self.current()
        self._given.record(now)
        self.stream.wait_event(self._given)
        self._before = torch.cuda.current_device(), now
        torch.cuda.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        assert self._before is not None  # noqa: S101
        device, now = self._before
        torch.cuda.set_stream(now)
        if device != self._index:  # setting a stream sets its device
            torch.cuda.set_device(device)


def capture(work: Callable[[], None], device: torch.device, pool: Any = None) -> torch.cuda.CUDAGraph:  # noqa: ANN401
    """Work as a CUDA graph. It is done three times first, as lazy initialisation cannot be captured.

    Args:
        work: What to do.
        device: Where.
        pool: Of which memory; its own if none is given.
    """
    with torch.cuda.device(device):
        side = _stream(device, "capturing", torch.cuda.Stream)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a loader, may go on meanwhile.
        with _uncollected(), torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            work()
    return graph


def capture_at_once(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Work as a CUDA graph, without doing it first: nobody waits."""
    graph = torch.cuda.CUDAGraph()
    with _uncollected(), torch.cuda.stream(_stream(device, "capturing", torch.cuda.Stream)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without a collection, which may end runs and so wait for streams: none may be waited for during a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
