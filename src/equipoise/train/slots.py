"""Slots: copies of the parameters in memory, updated in place, so that a step copies the model once."""

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.conversion.plan import Numbers, Params, can_average, record_dtype
from equipoise.host import Fetched

__all__ = ["Aside", "Held", "InMemory", "blend", "copy_aside", "in_memory"]

K = TypeVar("K", bound=Hashable)
_dtype, _version = operator.attrgetter("dtype"), operator.attrgetter("_version")


class Aside(dict[str, Tensor]):
    """A copy of θ that may become a slot."""


Held = Fetched[dict[str, Tensor]]
"""θ, or a copy of it that is complete or in flight."""


@torch.no_grad()
def blend(old: Mapping[K, Tensor], new: Mapping[K, Tensor], mix: float) -> None:
    """Set old ← old + mix (new − old) in place; tensors that cannot be averaged are replaced by the new ones."""
    replaced = list(old)
    if mix < 1:
        averaged = [name for name, held in old.items() if can_average(held)]
        together = [name for name in averaged if new[name].dtype == old[name].dtype]
        if together:
            torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], mix)
        for name in set(averaged) - set(together):  # one at a time, to avoid a second copy of all of them
            old[name].lerp_(new[name].to(old[name].dtype), mix)
        replaced = [name for name in old if name not in averaged]
    if replaced:
        torch._foreach_copy_([old[name] for name in replaced], [new[name] for name in replaced])


class InMemory:
    """Slots in the memory of a device or of the host.

    Args:
        copies: The slots.
        on_host: Whether they stay in host memory while θ is on a device.
    """

    def __init__(self, copies: Sequence[dict[str, Tensor]], *, on_host: bool = False) -> None:
        self.copies, self.on_host = list(copies), on_host
        self.device = next(iter(copies[0].values())).device
        self.free: list[dict[str, Tensor]] = []
        """Free buffers for copies of θ: one, or two while the thread still reads the other."""
        self._dtypes = [x.dtype for x in copies[0].values()] if all(map(can_average, copies[0].values())) else None
        """The dtypes of the tensors, if all of them can be averaged."""
        self.begun: list[list[int]] = []
        """For every blend of the current plan, the version counters of its slot's tensors; they show what was done."""

    def read(self, slot: int) -> Params:
        """The tensors in use."""
        return self.copies[slot]

    def blend(self, slot: int, new: Params, mix: float) -> None:
        """Blend in place. If `mix` is 1, a copy set aside is swapped in, and the old buffer is freed for reuse."""
        tensors = list(new.values())
        self.begun.append(list(map(_version, self.copies[slot].values())))
        if mix == 1 and isinstance(new, Aside) and all(new is not copy for copy in self.copies):
            old, self.copies[slot] = self.copies[slot], new
            self.free.append(old)
        elif list(map(_dtype, tensors)) != self._dtypes:
            blend(self.copies[slot], new, mix)
        elif mix == 1:  # the usual case
            torch._foreach_copy_(list(self.copies[slot].values()), tensors)
        else:
            torch._foreach_lerp_(list(self.copies[slot].values()), tensors, mix)

    together = staticmethod(nullcontext)
    """No transaction: writes to memory do not fail halfway."""

    def finish(self, plan: Numbers, params: Params) -> bool:
        """Complete an interrupted plan; False if it had not begun."""
        changes = [(plan.into, self.copies[plan.other], plan.mix), (plan.write, params, plan.gain)]
        begun = list(self.begun)
        for k, (slot, new, mix) in enumerate(change for change in changes if begun and change[-1] > 0):
            if k == len(begun):
                self.blend(slot, new, mix)
            elif self.copies[slot] is not new:
                old = zip(self.copies[slot].items(), begun[k], strict=True)
                blend({name: x for (name, x), version in old if x._version == version}, new, mix)
        return bool(begun)

    def fill(self, copies: Iterable[Params]) -> None:
        """Overwrite the slots in place."""
        for old, new in zip(self.copies, copies, strict=True):
            blend(old, new, 1.0)

    def to(self, device: torch.device) -> None:
        """Move the slots to the device, or pin them if they stay on the host."""
        if not self.on_host:
            self.copies = [{name: x.to(device) for name, x in copy.items()} for copy in self.copies]
            self.device = device
        elif device.type == "cuda":
            self.copies = [{name: x.pin_memory() for name, x in copy.items()} for copy in self.copies]


def in_memory(params: Params, number: int, *, on_host: bool = False) -> InMemory:
    """Slots for parameters: the first holds them, the others are zero.

    Args:
        params: The parameters.
        number: How many slots.
        on_host: Whether the slots are in host memory, pinned where θ comes from a CUDA device.
    """
    slots = InMemory([_empty(params, on_host=on_host) for _ in range(number)], on_host=on_host)
    for copy in slots.copies[1:]:
        torch._foreach_zero_(list(copy.values()))
    blend(slots.copies[0], params, 1.0)
    return slots


@torch.no_grad()
def copy_aside(params: Params, free: list[dict[str, Tensor]], *, on_host: bool, like: Params | None = None) -> Held:
    """Copy θ in stream order: later kernels may overwrite it, and the host does not wait.

    Args:
        params: θ.
        free: Free buffers, if any.
        on_host: Whether the copy is in host memory.
        like: The dtypes of the copy, as θ may have got others since; None: those in which θ is recorded.
    """
    to = Aside(free.pop() if free else _empty(params, on_host=on_host, like=like))
    torch._foreach_copy_(list(to.values()), list(params.values()), non_blocking=True)
    if not (on_host and next(iter(params.values())).is_cuda):
        return Fetched(to, None)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record()
    return Fetched(to, copied)


def _empty(params: Params, *, on_host: bool, like: Params | None = None) -> dict[str, Tensor]:
    """Uninitialised buffers with the parameters' shapes and layouts, in the dtypes of `like` or that are recorded."""
    found = {}
    for name, p in params.items():
        dtype = record_dtype(p) if like is None else like[name].dtype
        memory = torch.empty_like(p, dtype=dtype, device="cpu" if on_host else None, requires_grad=False)
        found[name] = memory.pin_memory() if on_host and p.is_cuda else memory
    return found
