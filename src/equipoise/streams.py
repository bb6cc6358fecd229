"""Streams of a CUDA device beside the one that is trained on, and work captured for them: many kernels, one launch."""

import gc
import statistics
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
CANDIDATES = 8
"""Of so many streams one is chosen."""


def _stream(device: torch.device, purpose: str, choose: Callable[[torch.device], torch.cuda.Stream]) -> Any:  # noqa: ANN401
    key = threading.get_ident(), device, purpose
    if key not in _STREAMS:
        _STREAMS[key] = choose(device)
    return _STREAMS[key]


def _any(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _independent(device: torch.device) -> torch.cuda.Stream:
    """A stream whose work does not hold up that of the current one, if there is such a one.

    Streams share the few queues of a device. In one queue the kernels of a stream that has many small ones and those of
    a training are done in turn, although neither needs the other. Which queue a stream gets depends on which were in
    use before, and nothing tells: so it is tried. The priority is for what is small to be done at once.
    """
    streams = [torch.cuda.Stream(device, priority=-1) for _ in range(CANDIDATES)]  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.no_grad():
        trial = _Trial(device)
        return next((stream for stream in streams if trial(stream)), streams[0])


class _Trial:
    """Whether a stream holds up the current one: large kernels there, and many small ones here, as a captured graph.

    Args:
        device: The current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._large, self._small = torch.zeros(1 << 23, device=device), torch.zeros(1, device=device)
        self._small.add_(1)
        self._graph = capture_at_once(self._chain, device)
        self._lasts = min(self._alone() for _ in range(3))
        self._usual = min(self._time(None) for _ in range(4))

    def __call__(self, stream: torch.cuda.Stream) -> bool:
        return statistics.median(self._time(stream) for _ in range(3)) - self._usual < self._lasts / 2

    def _chain(self) -> None:
        for _ in range(200):
            self._small.add_(1)

    def _alone(self) -> float:
        with _timed() as time:
            self._graph.replay()
        return time()

    def _time(self, stream: torch.cuda.Stream | None) -> float:
        self._enlarge(16)  # the host is ahead then
        with _timed() as time:
            self._enlarge(40)
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self._graph.replay()
            self._enlarge(100)  # beside which the small ones are done by then; or, in turn, a part of them
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
        return time()

    def _enlarge(self, times: int) -> None:
        for _ in range(times):
            self._large.add_(1)


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """How long the current stream takes for what it is given, in milliseconds."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()

    def time() -> float:
        torch.cuda.synchronize()
        return float(begun.elapsed_time(ended))

    yield time
    ended.record()


class Beside:
    """A stream beside the current one of a CUDA device. What it is given in a `with` comes after what that has so far.

    A step has no time for `torch.cuda.current_stream` and `torch.cuda.stream`, which make new objects.

    Args:
        device: The device.
        purpose: All of one purpose that a thread makes are the same stream.
    """

    def __init__(self, device: torch.device, purpose: Literal["numbers", "copies"]) -> None:
        self.stream: torch.cuda.Stream = _stream(device, purpose, _independent)
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
        side = _stream(device, "capturing", _any)
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
    with _uncollected(), torch.cuda.stream(_stream(device, "capturing", _any)):
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
