"""Where a batch of conversions keeps its copies, one stacked tensor per parameter, and the executor of plans."""

from collections.abc import Iterable

import torch
from torch import Tensor

from equipoise.batch import known
from equipoise.conversion.protocol import Params, Plan, batch_mask, mixed, record_dtype

__all__ = ["execute", "mean", "mean_of", "open_store", "resize", "shares"]

Slots = dict[str, Tensor]
"""The copies: a tensor (*B, slots, ...) per parameter."""


def open_store(params: Params, batch_ndim: int, slots: int) -> Slots:
    """A store whose first slot holds the parameters given, the answer while nothing is recorded."""
    store = {}
    for name, tensor in params.items():
        shape = (*tensor.shape[:batch_ndim], slots, *tensor.shape[batch_ndim:])
        store[name] = torch.zeros(shape, dtype=record_dtype(tensor), device=tensor.device)
        store[name].select(batch_ndim, 0).copy_(tensor.detach())
    return store


def resize(store: Slots, batch_ndim: int, slots: int) -> Slots:
    """The same copies with room for more."""
    grown = {}
    for name, held in store.items():
        shape = (
            *held.shape[:batch_ndim],
            slots - held.shape[batch_ndim],
            *held.shape[batch_ndim + 1 :],
        )
        grown[name] = torch.cat([held, held.new_zeros(shape)], batch_ndim)
    return grown


def execute(plan: Plan, params: Params, store: Slots) -> None:
    """Carry a plan out, in place; on an accelerator without reading it on the host."""
    batch = plan.write.ndim
    row = torch.arange(plan.write.numel(), device=plan.write.device)
    into, other, write = (index.flatten() for index in (plan.into, plan.other, plan.write))
    mix, gain = plan.mix.reshape(-1, 1), plan.gain.reshape(-1, 1)
    merges = known((plan.mix > 0).any()) is not False
    for name, held in store.items():
        slots = held.view(row.numel(), held.shape[batch], -1)
        theta = params[name].detach().reshape(row.numel(), -1).to(held.dtype)
        if slots.shape[1] == 1:
            slots[:, 0] = mixed(slots[:, 0], theta, gain)
            continue
        if merges:
            slots[row, into] = mixed(slots[row, into], slots[row, other], mix)
        slots[row, write] = mixed(slots[row, write], theta, gain)


def mean(store: Slots, share: Tensor) -> dict[str, Tensor]:
    """Σ share_j slot_j.

    Args:
        store: Copies (*B, slots, ...).
        share: Of each, (*B, slots).

    Returns:
        A tensor (*B, ...) per name. What cannot be averaged comes from the slot with the largest share.
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
    """Σ share_j slot_j, slot by slot: nothing is kept but the sum.

    Args:
        slots: Copies one after the other, tensors (*B, ...) by name.
        share: Of each, (*B, slots). What the slots without a share hold plays no part.

    Returns:
        A tensor (*B, ...) per name. What cannot be averaged comes from the slot with the largest share.
    """
    heaviest = share.argmax(-1)
    result: dict[str, Tensor] = {}
    scratch: dict[torch.dtype, Tensor] = {}
    for j, slot in enumerate(slots):
        if not result:
            result = {name: torch.zeros_like(held) for name, held in slot.items()}
            # Memory that is asked for again and again in pieces of many sizes is not always given back.
            for held in sorted(slot.values(), key=Tensor.numel):
                scratch[held.dtype] = held.new_empty(held.numel())
        for name, held in slot.items():
            answer, portion = result[name], batch_mask(share[..., j], held)
            if held.is_floating_point():
                part = scratch[held.dtype][: held.numel()].view(held.shape)
                torch.mul(held, portion.to(held.dtype), out=part)
                answer += part.masked_fill_(portion <= 0, 0.0)
            else:
                answer.copy_(torch.where(batch_mask(heaviest == j, held), held, answer))
    return result
