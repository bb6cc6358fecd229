"""Where the adaptive conversion keeps its copies: one stacked tensor per parameter, on its device."""

import torch
from torch import Tensor

from equipoise.conversion.ledger import Plan
from equipoise.conversion.protocol import Params, batch_mask, mixed, record_dtype

__all__ = ["execute", "open_store", "resize", "weighted_mean"]

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


def execute(plan: Plan, params: Params, store: Slots, *, merges: bool) -> None:
    """Carry a plan out, in place and without reading it on the host."""
    batch = plan.write.shape
    row = torch.arange(plan.write.numel(), device=plan.write.device)
    into, other, write = (index.flatten() for index in (plan.into, plan.other, plan.write))
    for name, held in store.items():
        slots = held.view(row.numel(), held.shape[len(batch)], -1)
        if merges:
            slots[row, into] = mixed(slots[row, into], slots[row, other], plan.mix.reshape(-1, 1))
        theta = params[name].detach().reshape(row.numel(), -1).to(held.dtype)
        slots[row, write] = mixed(slots[row, write], theta, plan.gain.reshape(-1, 1))


def weighted_mean(store: Slots, weights: Tensor) -> dict[str, Tensor]:
    """Σ γ_j slot_j / Σ γ_j; the first slot where nothing has a weight.

    Args:
        store: Copies (*B, slots, ...).
        weights: γ, shape (*B, slots).

    Returns:
        A tensor (*B, ...) per name. What cannot be averaged comes from the heaviest slot.
    """
    total = weights.sum(-1, keepdim=True)
    first = torch.zeros_like(weights)
    first[..., 0] = 1.0
    share = torch.where(total > 0, weights / total, first)
    heaviest = share.argmax(-1)
    dim = weights.ndim - 1
    result = {}
    for name, held in store.items():
        # Slot by slot: a second copy of the store is not made, and what a free slot holds plays no part.
        answer = torch.zeros_like(held.select(dim, 0))
        for j, slot in enumerate(held.unbind(dim)):
            portion = batch_mask(share[..., j], slot)
            if held.is_floating_point():
                answer += torch.where(portion > 0, portion.to(held.dtype) * slot, 0.0)
            else:
                answer = torch.where(batch_mask(heaviest == j, slot), slot, answer)
        result[name] = answer
    return result
