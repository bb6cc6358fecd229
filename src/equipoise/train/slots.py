"""Where the copies of a training run live, and how a plan is carried out on them.

One model at a time, the host can know which slots a plan speaks of. Nothing but these is touched then, in place: a
step costs one copy of the model, not one of several.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, Plan
from equipoise.train.copies import Copy, Layout
from equipoise.train.gradients import ungraphed

__all__ = ["InMemory", "Numbers", "Slots", "blend", "carry_out", "on_device", "on_host"]

K = TypeVar("K", bound=Hashable)

LARGE = 1 << 20
"""Elements from which on a tensor keeps a device busy; a launch for several has too few threads for such."""


class Numbers(NamedTuple):
    """A plan for one model, as numbers on the host."""

    into: int
    other: int
    mix: float
    write: int
    gain: float

    @classmethod
    def of(cls, plan: Plan) -> "Numbers":
        """A plan without batch shape; reads it on the host."""
        return cls(*(number.item() for number in plan))  # type: ignore[arg-type]


class Slots(Protocol):
    """Copies of the recorded parameters, by number and name."""

    device: torch.device
    """Where `read` gives them."""

    def read(self, slot: int) -> Params:
        """A slot as it is: what is in use, no copy of it."""
        ...

    def blend(self, slot: int, new: Params, mix: float) -> None:
        """In a slot old + mix (new − old), inside `together`."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Changes that are all made or, if one fails, none."""
        ...

    def fill(self, copies: Iterable[Params]) -> None:
        """Replace all slots."""
        ...

    def check(self) -> None:
        """Raise ValueError unless the slots are those of this run."""
        ...

    def to(self, device: torch.device) -> None:
        """The parameters are on another device now."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


def carry_out(plan: Numbers, params: Params, slots: Slots) -> None:
    """slot[into] ← lerp(slot[into], slot[other], mix), then slot[write] ← lerp(slot[write], θ, gain)."""
    if plan.mix == 0 and plan.gain == 0:
        return
    with slots.together():
        if plan.mix > 0:
            slots.blend(plan.into, slots.read(plan.other), plan.mix)
        if plan.gain > 0:
            slots.blend(plan.write, params, plan.gain)


def blend(old: Mapping[K, Tensor], new: Mapping[K, Tensor], mix: float) -> None:
    """In place old + mix (new − old); what cannot be averaged becomes the new."""
    averaged = [name for name, tensor in old.items() if tensor.is_floating_point()] if mix < 1 else []
    replaced = list(old.keys() - averaged) if len(averaged) < len(old) else []
    together: list[K] = []
    alone: list[K] = []
    for name in averaged:
        alike = new[name].dtype == old[name].dtype
        (together if alike and old[name].numel() < LARGE else alone).append(name)
    with ungraphed():
        if together:
            torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], mix)
        for name in alone:  # no second copy of all of them
            old[name].lerp_(new[name].to(old[name].dtype), mix)
        if replaced:
            torch._foreach_copy_([old[name] for name in replaced], [new[name] for name in replaced])


class InMemory:
    """Slots in memory, of a device or of the host.

    Args:
        copies: The slots.
        follows: Whether they are to be on the device of the parameters.
    """

    def __init__(self, copies: Sequence[Params], *, follows: bool) -> None:
        self.copies, self.follows = list(copies), follows
        self.device = next(iter(copies[0].values())).device
        self._known: Layout | None = None

    def read(self, slot: int) -> Params:
        """The tensors in use."""
        return self.copies[slot]

    def blend(self, slot: int, new: Params, mix: float) -> None:
        """In place; a courier's memory is taken where θ only has to be moved, and as much is given for it."""
        old = self.copies[slot]
        if not (isinstance(old, Copy) and isinstance(new, Copy) and self._fits(old, new)):
            blend(old, new, mix)
        elif mix == 1 and all(new is not copy for copy in self.copies):
            old.exchange(new)
        else:
            blend(dict(enumerate(old.blocks)), dict(enumerate(new.blocks)), mix)

    def together(self) -> AbstractContextManager[None]:
        """Nothing fails here that could be undone."""
        return nullcontext()

    def fill(self, copies: Iterable[Params]) -> None:
        """In place."""
        for old, new in zip(self.copies, copies, strict=True):
            blend(old, new, 1.0)

    def check(self) -> None:
        """Slots in memory are always those of this run."""

    def to(self, device: torch.device) -> None:
        """Move the slots, or pin them, since memory is exchanged with what θ is copied to."""
        if self.follows:
            self.copies, self.device = [_moved(copy, lambda x: x.to(device)) for copy in self.copies], device
        elif device.type == "cuda":
            self.copies = [_moved(copy, Tensor.pin_memory) for copy in self.copies]

    def close(self) -> None:
        """There is nothing to let go of."""

    def _fits(self, old: Copy, new: Copy) -> bool:
        if new.layout is old.layout or new.layout is self._known:  # as nearly always: no need to compare them
            return True
        if new.layout != old.layout or new.blocks[0].device != self.device:
            return False
        self._known = new.layout
        return True


def on_device(params: Params, number: int, *, apart: bool = False) -> InMemory:
    """Slots on the device of the parameters, which the first of them holds.

    Args:
        params: The parameters.
        number: How many slots.
        apart: See `Layout`.
    """
    layout, device = Layout(params, apart=apart), next(iter(params.values())).device
    return _slots([layout.make(device) for _ in range(number)], params, follows=True)


def on_host(params: Params, number: int, *, apart: bool = False) -> InMemory:
    """Slots in host memory; pinned where θ comes from a CUDA device, whose copies are exchanged with them."""
    layout, pinned = Layout(params, apart=apart), next(iter(params.values())).is_cuda
    return _slots([layout.make(torch.device("cpu"), pinned=pinned) for _ in range(number)], params, follows=False)


def _slots(copies: list[Copy], params: Params, *, follows: bool) -> InMemory:
    blend(copies[0], params, 1.0)
    return InMemory(copies, follows=follows)


def _moved(copy: Params, move: Callable[[Tensor], Tensor]) -> Params:
    return copy.moved(move) if isinstance(copy, Copy) else {name: move(tensor) for name, tensor in copy.items()}
