"""Where the copies of a training run live, and how a plan is carried out on them.

One model at a time, the host can know which slots a plan speaks of. Nothing but these is touched then, in place: a
step costs one copy of the model, not one of several.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, Plan, record_dtype

__all__ = ["Given", "InMemory", "Numbers", "Slots", "blend", "carry_out", "on_device", "on_host"]


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


class Given(dict[str, Tensor]):
    """θ in memory that a store may keep, if it leaves as much in its place."""

    def __init__(self, tensors: Params) -> None:
        super().__init__(tensors)
        self.kinds = _kinds(self)


class Slots(Protocol):
    """Copies of the recorded parameters, by number and name."""

    device: torch.device
    """Where `read` gives them."""

    def read(self, slot: int) -> dict[str, Tensor]:
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


@torch.no_grad()
def blend(old: Mapping[str, Tensor], new: Mapping[str, Tensor], mix: float) -> None:
    """In place old + mix (new − old); what cannot be averaged becomes the new."""
    averaged = [name for name, tensor in old.items() if tensor.is_floating_point()] if mix < 1 else []
    replaced = list(old.keys() - averaged) if len(averaged) < len(old) else []
    alike: list[str] = []
    other: list[str] = []
    for name in averaged:
        (alike if new[name].dtype == old[name].dtype else other).append(name)
    if alike:
        torch._foreach_lerp_([old[name] for name in alike], [new[name] for name in alike], mix)
    for name in other:  # one by one: no second copy of all of them
        old[name].lerp_(new[name].to(old[name].dtype), mix)
    if replaced:
        torch._foreach_copy_([old[name] for name in replaced], [new[name] for name in replaced])


class InMemory:
    """Slots in memory, of a device or of the host.

    Args:
        copies: The slots.
        follows: Whether they are to be on the device of the parameters.
    """

    def __init__(self, copies: list[dict[str, Tensor]], *, follows: bool) -> None:
        self.copies, self.follows = copies, follows
        self.device = next(iter(copies[0].values())).device
        self._kinds = _kinds(copies[0])
        self._averaged = all(tensor.is_floating_point() for tensor in copies[0].values())

    def read(self, slot: int) -> dict[str, Tensor]:
        """The tensors in use."""
        return self.copies[slot]

    def blend(self, slot: int, new: Params, mix: float) -> None:
        """In place; θ that was given is taken as it is where it only has to be moved."""
        old = self.copies[slot]
        if isinstance(new, Given):
            alike = new.kinds == self._kinds
            if alike and mix == 1:
                mine = dict(old)
                old.update(new)
                new.update(mine)
                return
        else:
            alike = any(new is copy for copy in self.copies)
        if alike and mix < 1 and self._averaged:  # as nearly always: no need to look at each
            torch._foreach_lerp_(list(old.values()), list(new.values()), mix)
        else:
            blend(old, new, mix)

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
        """Move the slots, or pin them, since memory is swapped with what θ is copied to."""
        if self.follows:
            self.copies = [{name: tensor.to(device) for name, tensor in copy.items()} for copy in self.copies]
            self.device, self._kinds = device, _kinds(self.copies[0])
        elif device.type == "cuda":
            self.copies = [{name: tensor.pin_memory() for name, tensor in copy.items()} for copy in self.copies]

    def close(self) -> None:
        """There is nothing to let go of."""


def on_device(params: Params, number: int) -> InMemory:
    """Slots on the device of the parameters, which the first of them holds."""
    # Each tensor in memory of its own: torch cannot save a shard that begins in the middle of some.
    copies = [
        {name: torch.zeros(p.shape, dtype=record_dtype(p), device=p.device) for name, p in params.items()}
        for _ in range(number)
    ]
    blend(copies[0], params, 1.0)
    return InMemory(copies, follows=True)


def on_host(params: Params, number: int) -> InMemory:
    """Slots in host memory, the first with the parameters; pinned where θ comes from a CUDA device, to be swapped."""
    copies = [
        {
            name: torch.zeros_like(p, dtype=record_dtype(p), device="cpu", pin_memory=p.device.type == "cuda")
            for name, p in params.items()
        }
        for _ in range(number)
    ]
    blend(copies[0], params, 1.0)
    return InMemory(copies, follows=False)


def _kinds(copy: Params) -> list[tuple[object, ...]]:
    """What memory must have in common to be exchanged, name by name."""
    return [(name, t.dtype, t.stride(), t.device) for name, t in copy.items()]
