"""Numbers on their way from a device to the host, which goes on meanwhile."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Fetched", "fetch", "is_asynchronous", "wait_for"]


class Fetched(NamedTuple):
    """A copy on the host, there or on its way."""

    tensor: Tensor
    """Not to be read before `wait`."""
    arrived: torch.Event | torch.cuda.Event | None
    """When it is there; None: it is."""

    def wait(self) -> Tensor:
        """The copy, once it is there."""
        if self.arrived is not None:
            wait_for(self.arrived)
        return self.tensor


def wait_for(event: torch.Event | torch.cuda.Event | None) -> None:
    """Query first: cheaper than synchronising on an event that has already finished."""
    if event is not None and not event.query():
        event.synchronize()


def fetch(tensor: Tensor) -> Fetched:
    """Copy a small tensor to the host, after what its device was given to do so far."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return Fetched(tensor.clone(), None)
    cuda = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
    host.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event() if cuda else torch.Event(tensor.device)  # type: ignore[no-untyped-call]
    arrived.record()
    return Fetched(host, arrived)


def is_asynchronous(device: torch.device) -> bool:
    """Whether a device works on while the host does something else."""
    return device.type not in {"cpu", "meta"}
