"""Asynchronous copies of small tensors from a device to the host."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Fetched", "fetch", "is_asynchronous", "wait_for"]


class Fetched(NamedTuple):
    """A copy on the host, complete or in flight."""

    tensor: Tensor
    """Do not read it before `wait`."""
    arrived: torch.Event | torch.cuda.Event | None
    """The event that marks its arrival; None: it has arrived."""

    def wait(self) -> Tensor:
        """Wait for the copy and return it."""
        if self.arrived is not None:
            wait_for(self.arrived)
        return self.tensor


def wait_for(event: torch.Event | torch.cuda.Event | None) -> None:
    """Synchronise on an event. Queries first: cheaper if it has already finished."""
    if event is not None and not event.query():
        event.synchronize()


def fetch(tensor: Tensor) -> Fetched:
    """Copy a small tensor to the host in stream order, without waiting."""
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
    """Whether a device runs asynchronously to the host."""
    return device.type not in {"cpu", "meta"}
