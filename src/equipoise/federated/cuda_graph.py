"""Work on a CUDA device as a captured graph: many kernels, one launch."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["capture"]

_STREAMS: dict[tuple[int, torch.device], torch.cuda.Stream] = {}
"""One stream for capturing per thread and device, however many graphs are made."""


def capture(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Capture work as a CUDA graph. Runs it three times first, as lazy initialisation cannot be captured.

    Args:
        work: A function that launches the kernels.
        device: The CUDA device.
    """
    key = threading.get_ident(), device
    with torch.cuda.device(device):
        if key not in _STREAMS:
            _STREAMS[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side = _STREAMS[key]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a loader, may continue meanwhile.
        with _uncollected(), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            work()
    return graph


@contextmanager
def _uncollected() -> Iterator[None]:
    """A context without garbage collection: freeing CUDA objects during a capture is an error."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
