"""What a conversion is, and how its states hold the trajectory."""

import operator
from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = [
    "Conversion",
    "Params",
    "Plan",
    "batch_mask",
    "check",
    "check_record",
    "enter",
    "entry",
    "marks",
    "mixed",
    "record_dtype",
    "recordable",
    "snapshot",
]

C = TypeVar("C")

_version = operator.attrgetter("_version")

Params = Mapping[str, Tensor]
"""Parameters by name; every tensor has the leading batch shape *B of the losses."""


class Plan(NamedTuple):
    """What happens to the slots in one step. Every tensor has shape (*B,).

    First slot[into] ← lerp(slot[into], slot[other], mix), then slot[write] ← lerp(slot[write], θ, gain).
    A `mix` or `gain` of 0 means nothing; a `gain` of 1 overwrites.

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


class Conversion(Protocol[C]):
    """Turns the trajectory θ⁽¹⁾, θ⁽²⁾, … into the answer (online-to-batch conversion).

    A conversion is a frozen dataclass; it never sees gradients. Its state holds copies, never the
    parameters themselves. `update` consumes the state that it is given: the copies are changed in
    place, so that a step costs no second copy of the model. Use the state it returns.

    Examples:
        >>> class First(eq.Conversion[dict[str, torch.Tensor]]):
        ...     def init(self, params, losses):
        ...         return {name: tensor.clone() for name, tensor in params.items()}
        ...     def update(self, params, losses, state, *, mask=None):
        ...         return state
        ...     def output(self, state):
        ...         return state
        >>> both = {"first": First(), "last": eq.Last()}
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], eq.Linear(), step_size=0.5, steps=2, conversions=both)
        >>> {name: round(losses.amax().item(), 3) for name, losses in found.losses.items()}
        {'first': 1.045, 'last': 1.0}
    """

    def init(self, params: Params, losses: Tensor) -> C:
        """The state before the first iterate. Records nothing; shapes are those of `params`."""
        ...

    def update(self, params: Params, losses: Tensor, state: C, *, mask: Tensor | None = None) -> C:
        """Record one iterate.

        Args:
            params: θ⁽ᵗ⁾, a tensor (*B, ...) per name.
            losses: f(θ⁽ᵗ⁾), shape (*B, m). An instance with a non-finite loss is not recorded.
            state: What `init` or the last `update` returned.
            mask: False for objectives that are absent this step, broadcastable to (*B, m); their
                last observed value stands in for them.

        Returns:
            The new state.
        """
        ...

    def output(self, state: C) -> dict[str, Tensor]:
        """The answer: one tensor (*B, ...) per name, in the dtype it was recorded in."""
        ...


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


def check_record(params: Params, held: Mapping[str, Tensor], batch_ndim: int, *, slots: bool) -> None:
    """Raise ValueError unless the parameters have the names and shapes of what a state holds.

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


def entry(gain: Tensor) -> Plan:
    """The plan of a record of one slot: slot ← lerp(slot, θ, gain), with gain (*B,)."""
    nothing = torch.zeros_like(gain, dtype=torch.int64)
    return Plan(nothing, nothing, torch.zeros_like(gain), nothing, gain)


def enter(plan: Plan, params: Params, held: Mapping[str, Tensor]) -> None:
    """Carry such a plan out, in place: copies (*B, ...) by name."""
    for name, tensor in held.items():
        tensor.copy_(mixed(tensor, params[name].detach().to(tensor.dtype), batch_mask(plan.gain, tensor)))


def recordable(losses: Tensor, present: Tensor | None) -> Tensor:
    """Whether every present loss is finite, shape (*B,)."""
    seen = losses if present is None else torch.where(present, losses, 0.0)
    return seen.abs().amax(-1) < torch.inf  # a NaN is the largest of all, and not below


def mixed(old: Tensor, new: Tensor, mix: Tensor) -> Tensor:
    """Mix old + mix (new − old), where 0 leaves the old and 1 gives the new, bit for bit and whatever the other is.

    What cannot be averaged (integer buffers) takes the new value unless `mix` is 0.
    """
    between = new
    if old.is_floating_point():
        between = torch.where(mix < 1, torch.lerp(old, new, mix.to(old.dtype)), new)
    return torch.where(mix > 0, between, old)


def record_dtype(tensor: Tensor) -> torch.dtype:
    """At least float32 for what is averaged; what cannot be averaged keeps its dtype."""
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype


def marks(params: Params) -> tuple[list[int], list[int]]:
    """What changes when a parameter is put elsewhere or written to (unless through `.data`)."""
    tensors = list(params.values())
    return list(map(Tensor.data_ptr, tensors)), list(map(_version, tensors))


def snapshot(tensor: Tensor) -> Tensor:
    """A copy of a parameter for the record, of its own memory."""
    return tensor.detach().to(record_dtype(tensor), copy=True)


def batch_mask(flag: Tensor, tensor: Tensor) -> Tensor:
    """A tensor (*B,) ready to meet a parameter (*B, ...)."""
    return flag.reshape(flag.shape + (1,) * (tensor.ndim - flag.ndim))
