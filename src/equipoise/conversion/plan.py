"""Plans for the copies of a conversion, and functions on losses and parameters that all conversions share."""

import operator
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import known
from equipoise.errors import require

__all__ = [
    "Numbers",
    "Params",
    "Plan",
    "batch_mask",
    "can_average",
    "check",
    "check_record",
    "marks",
    "mixed",
    "observe",
    "record_dtype",
    "recordable",
]

_version = operator.attrgetter("_version")

Params = Mapping[str, Tensor]
"""Parameters by name; every tensor has the leading batch shape *B of the losses."""


class Plan(NamedTuple):
    """The changes of the slots in one step. Every tensor has shape (*B,).

    First slot[into] ← lerp(slot[into], slot[other], mix), then slot[write] ← lerp(slot[write], θ, gain).
    A `mix` or `gain` of 0 changes nothing; a `gain` of 1 overwrites.

    Examples:
        >>> from equipoise.conversion import Ledger
        >>> ledger, losses = Ledger(capacity=2), torch.tensor([1.0, 2.0])
        >>> plan, _ = ledger.update(losses, ledger.init(losses))
        >>> plan.write.item(), plan.gain.item()  # the first iterate overwrites slot 0
        (0, 1.0)
    """

    into: Tensor
    other: Tensor
    mix: Tensor
    write: Tensor
    gain: Tensor

    def numbers(self) -> "Numbers":
        """The plan of a single run as Python numbers; reads it on the host."""
        into, other, mix, write, gain = map(Tensor.item, self)
        return Numbers(int(into), int(other), mix, int(write), gain)


class Numbers(NamedTuple):
    """A plan for one run, as numbers on the host."""

    into: int
    other: int
    mix: float
    write: int
    gain: float


def check(params: Params, losses: Tensor) -> None:
    """Raise ValueError unless every parameter has the batch shape of the losses."""
    require(len(params) > 0, "params must hold at least one tensor", 0)
    batch = losses.shape[:-1]
    for name, tensor in params.items():
        require(
            tensor.shape[: len(batch)] == batch,
            f"params[{name!r}] must have the leading batch shape {tuple(batch)} of the losses",
            tuple(tensor.shape),
        )


def check_record(params: Params, held: Mapping[str, Tensor], batch_ndim: int, *, slots: bool = True) -> None:
    """Raise ValueError unless the parameters have the names and shapes of a state's copies.

    Args:
        params: Tensors (*B, ...) by name.
        held: Copies of the same shape, or (*B, slots, ...).
        batch_ndim: Dimensions of *B.
        slots: Whether the copies have the dimension of slots.
    """
    require(params.keys() == held.keys(), f"params must have the names {sorted(held)}", lambda: sorted(params))
    for name, tensor in params.items():
        shape = held[name].shape
        wanted = (*shape[:batch_ndim], *shape[batch_ndim + slots :])
        require(tensor.shape == wanted, f"params[{name!r}] must have the shape {wanted} it had", tuple(tensor.shape))


def recordable(losses: Tensor, present: Tensor | None) -> Tensor:
    """Whether every present loss is finite, shape (*B,)."""
    seen = losses if present is None else torch.where(present, losses, 0.0)
    return seen.abs().amax(-1) < torch.inf  # amax propagates NaN, which is not below infinity


def observe(losses: Tensor, observed: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The newest value of every objective; an absent objective keeps its last observed value.

    Args:
        losses: The losses of this step, (*B, m).
        observed: The last observed values, (*B, m); +∞ before the first.
        present: False for absent objectives, (*B, m); None for none.

    Returns:
        The newest values (*B, m), in the dtype of `observed`, +∞ where an objective was never observed. Whether all
        present losses are finite, (*B,). And the observed values after this step, (*B, m).
    """
    newest = losses.detach().to(observed.dtype, copy=True)  # the caller may overwrite its losses
    sound = recordable(newest, present)
    if present is not None:
        newest = torch.where(present, newest, observed)
    elif sound.ndim == 0 and known(sound):
        return newest, sound, newest
    return newest, sound, torch.where(sound.unsqueeze(-1), newest, observed)


def mixed(old: Tensor, new: Tensor, mix: Tensor) -> Tensor:
    """Compute old + mix (new − old): exactly `old` for mix 0, exactly `new` for mix 1, even if the other is not finite.

    Tensors that cannot be averaged (integer buffers) take the new value unless `mix` is 0.
    """
    between = new
    if can_average(old):
        between = torch.where(mix < 1, torch.lerp(old, new, mix.to(old.dtype)), new)
    return torch.where(mix > 0, between, old)


def can_average(tensor: Tensor) -> bool:
    """Whether a parameter is averaged: integers and flags are not."""
    return tensor.is_floating_point() or tensor.is_complex()


def record_dtype(tensor: Tensor) -> torch.dtype:
    """At least float32 for tensors that are averaged; others keep their dtype."""
    return torch.promote_types(tensor.dtype, torch.float32) if can_average(tensor) else tensor.dtype


def marks(params: Params) -> tuple[list[int], list[int]]:
    """Pointers and versions: they change when a parameter is moved or written to (unless through `.data`)."""
    tensors = list(params.values())
    return list(map(Tensor.data_ptr, tensors)), list(map(_version, tensors))


def batch_mask(flag: Tensor, tensor: Tensor) -> Tensor:
    """A tensor (*B,) reshaped to broadcast with a parameter (*B, ...)."""
    return flag.reshape(flag.shape + (1,) * (tensor.ndim - flag.ndim))
