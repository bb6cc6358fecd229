"""Copies that may still be in flight, such as of small tensors from a device to the host."""

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = ["Fetched", "fetch", "is_asynchronous"]

T = TypeVar("T")


class Fetched(NamedTuple, Generic[T]):
    """A copy, complete or in flight."""

    value: T
    """Do not read it before `wait`."""
    arrived: torch.Event | torch.cuda.Event | None
    """The event that marks its arrival; None: it has arrived."""

    def wait(self) -> T:
        """Wait for the copy and return it. Queries first: cheaper if it has already arrived."""
        if self.arrived is not None and not self.arrived.query():
            self.arrived.synchronize()
        return self.value


def fetch(tensor: Tensor) -> Fetched[Tensor]:
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
