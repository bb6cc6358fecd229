"""Numbers on their way from a device to the host, which need not wait for them."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Fetched", "beside_the_host", "done", "fetch", "reach"]


class Fetched(NamedTuple):
    """A copy on the host, there or on its way."""

    tensor: Tensor
    """Not to be read before `wait`."""
    arrived: torch.Event | torch.cuda.Event | None
    """When it is there; None: it is."""

    def wait(self) -> Tensor:
        """The copy, once it is there."""
        reach(self.arrived)
        return self.tensor


def reach(event: torch.Event | torch.cuda.Event | None) -> None:
    """Wait for what is not there yet; a look is sooner done than a wait that is none."""
    if event is not None and not event.query():
        event.synchronize()


def fetch(tensor: Tensor) -> Fetched:
    """Copy a small tensor to the host, after what its device was given to do so far; the host goes on meanwhile."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return Fetched(tensor.clone(), None)
    cuda = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
    host.copy_(tensor, non_blocking=True)
    if cuda:
        return Fetched(host, done(torch.cuda.current_stream(tensor.device)))
    arrived = torch.Event(tensor.device)
    arrived.record()
    return Fetched(host, arrived)


def done(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """When the stream has done what it was given so far; who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def beside_the_host(device: torch.device) -> bool:
    """Whether a device works beside the host, which should not wait for it."""
    return device.type not in {"cpu", "meta"}
