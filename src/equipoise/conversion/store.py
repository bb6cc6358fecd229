"""The executor of plans, and the copies of a batch of conversions: one stacked tensor per parameter."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise.batch import known
from equipoise.conversion.plan import Numbers, Params, Plan, batch_mask, can_average, mixed, record_dtype

__all__ = ["Copies", "Slots", "Stacked", "execute", "mean", "mean_of", "open_store", "resize", "shares"]

Copies = dict[str, Tensor]
"""A tensor (*B, slots, ...) per parameter."""


class Slots(Protocol):
    """Copies of parameters by slot, in any kind of storage. A slot is a number, or numbers (*B,) for a batch."""

    def read(self, slot: Any) -> Params:  # noqa: ANN401
        """The tensors of a slot, without a copy where possible."""
        ...

    def blend(self, slot: Any, new: Params, mix: Any) -> None:  # noqa: ANN401
        """Set a slot to old + mix (new − old); a mix of 1 overwrites."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A transaction: all changes are made or, if one fails, none."""
        ...


def execute(plan: Plan | Numbers, params: Params, slots: Slots) -> None:
    """slot[into] ← lerp(slot[into], slot[other], mix), then slot[write] ← lerp(slot[write], θ, gain)."""
    if isinstance(plan, Numbers):
        mixes, gains = plan.mix > 0, plan.gain > 0
    else:
        mixes, gains = _may_be_positive(plan.mix), _may_be_positive(plan.gain)
    if not (mixes or gains):
        return
    with slots.together():
        if mixes:
            slots.blend(plan.into, slots.read(plan.other), plan.mix)
        if gains:
            slots.blend(plan.write, params, plan.gain)


def _may_be_positive(part: Tensor) -> bool:
    return known((part > 0).any()) is not False


class Stacked:
    """The copies of a batch; never reads values on the host.

    Args:
        copies: Tensors (*B, slots, ...), changed in place.
        batch_ndim: Dimensions of *B.
    """

    def __init__(self, copies: Copies, batch_ndim: int) -> None:
        self.copies, self.batch_ndim = copies, batch_ndim

    def read(self, slot: Tensor) -> Params:
        """Copies (*B, ...) of the slots (*B,)."""
        return {name: self._rows(held)[self._each(slot), slot.flatten()] for name, held in self.copies.items()}

    def blend(self, slot: Tensor, new: Params, mix: Tensor) -> None:
        """Blend in place; slot and mix have shape (*B,)."""
        at, share = slot.flatten(), mix.reshape(-1, 1)
        for name, held in self.copies.items():
            rows, each = self._rows(held), self._each(slot)
            theta = new[name].detach().reshape(len(each), -1).to(held.dtype)
            if rows.shape[1] == 1:
                rows[:, 0] = mixed(rows[:, 0], theta, share)
            else:
                rows[each, at] = mixed(rows[each, at], theta, share)

    def together(self) -> AbstractContextManager[None]:
        """No transaction: writes to memory do not fail halfway."""
        return nullcontext()

    def _rows(self, held: Tensor) -> Tensor:
        batch = held.shape[: self.batch_ndim]
        return held.view(batch.numel(), held.shape[self.batch_ndim], -1)

    def _each(self, slot: Tensor) -> Tensor:
        return torch.arange(slot.numel(), device=slot.device)


def open_store(params: Params, batch_ndim: int, slots: int) -> Copies:
    """A store whose first slot holds the given parameters, the answer while nothing is recorded."""
    store = {}
    for name, tensor in params.items():
        shape = (*tensor.shape[:batch_ndim], slots, *tensor.shape[batch_ndim:])
        store[name] = torch.zeros(shape, dtype=record_dtype(tensor), device=tensor.device)
        store[name].select(batch_ndim, 0).copy_(tensor.detach())
    return store


def resize(store: Copies, batch_ndim: int, slots: int) -> Copies:
    """The same copies, in a store with this many slots."""
    grown = {}
    for name, held in store.items():
        shape = (
            *held.shape[:batch_ndim],
            slots - held.shape[batch_ndim],
            *held.shape[batch_ndim + 1 :],
        )
        grown[name] = torch.cat([held, held.new_zeros(shape)], batch_ndim)
    return grown


def mean(store: Copies, share: Tensor) -> dict[str, Tensor]:
    """Σ share_j slot_j.

    Args:
        store: Copies (*B, slots, ...).
        share: The share of each slot, (*B, slots).

    Returns:
        A tensor (*B, ...) per name. Tensors that cannot be averaged come from the slot with the largest share.
    """
    dim = share.ndim - 1
    slots = ({name: held.select(dim, j) for name, held in store.items()} for j in range(share.shape[-1]))
    return mean_of(slots, share)


def shares(weights: Tensor) -> Tensor:
    """γ_j / Σ γ_j; 1 for the first slot where nothing has a weight, (*B, slots)."""
    total = weights.sum(-1, keepdim=True)
    first = torch.zeros_like(weights)
    first[..., 0] = 1.0
    return torch.where(total > 0, weights / total, first)


def mean_of(slots: Iterable[Params], share: Tensor) -> dict[str, Tensor]:
    """Σ share_j slot_j, slot by slot: only the sum is kept in memory.

    Args:
        slots: Copies one after the other, tensors (*B, ...) by name.
        share: The share of each slot, (*B, slots). Slots with share 0 are ignored, whatever they hold.

    Returns:
        A tensor (*B, ...) per name. Tensors that cannot be averaged come from the slot with the largest share.
    """
    heaviest = share.argmax(-1)
    result: dict[str, Tensor] = {}
    scratch: dict[torch.dtype, Tensor] = {}
    for j, slot in enumerate(slots):
        if not result:
            result = {name: torch.zeros_like(held) for name, held in slot.items()}
            # Repeated allocations of many sizes fragment memory.
            for held in sorted(slot.values(), key=Tensor.numel):
                scratch[held.dtype] = held.new_empty(held.numel())
        for name, held in slot.items():
            answer, portion = result[name], batch_mask(share[..., j], held)
            if can_average(held):
                part = scratch[held.dtype][: held.numel()].view(held.shape)
                torch.mul(held, portion.to(held.dtype), out=part)
                answer += part.masked_fill_(portion <= 0, 0.0)
            else:
                answer.copy_(torch.where(batch_mask(heaviest == j, held), held, answer))
    return result
