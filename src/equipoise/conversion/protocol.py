"""What a conversion is, and how its states hold the trajectory."""

import inspect
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise.batch import known
from equipoise.errors import require

__all__ = [
    "Conversion",
    "Params",
    "Plan",
    "answer",
    "archive_size",
    "batch_mask",
    "check",
    "check_record",
    "marks",
    "mixed",
    "observe",
    "record_dtype",
    "recordable",
    "records_before",
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

    A conversion that derives from `PlannedConversion` writes none of the three methods below, and can keep its
    copies in every store of `MultiObjective`.

    Attributes:
        records: Which model a server records with the losses f(θ⁽ᵗ⁾). "before" its step: θ⁽ᵗ⁾, for an answer that
            depends on the losses. "after" it: the newest model. "either": what the task says.

    Examples:
        >>> class First(eq.Conversion[dict[str, torch.Tensor]]):
        ...     def init(self, params, losses):
        ...         return {name: tensor.clone() for name, tensor in params.items()}
        ...     def update(self, params, losses, state, *, mask=None):
        ...         return state
        ...     def output(self, state, preference=None):
        ...         return state
        >>> both = {"first": First(), "last": eq.Last()}
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], eq.Linear(), step_size=0.5, steps=2, conversions=both)
        >>> {name: round(losses.amax().item(), 3) for name, losses in found.losses.items()}
        {'first': 1.045, 'last': 1.0}
    """

    records: ClassVar[Literal["before", "after", "either"]] = "after"

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

    def output(self, state: C, preference: Tensor | None = None) -> dict[str, Tensor]:
        """The answer.

        Args:
            state: What `init` or the last `update` returned.
            preference: w, broadcastable to (*B, m), for a conversion whose answer depends on it. None: it is unknown.

        Returns:
            A tensor (*B, ...) per name, in the dtype it was recorded in.
        """
        ...


def answer(conversion: Conversion[Any], state: Any, preference: Tensor) -> dict[str, Tensor]:  # noqa: ANN401
    """The output of a conversion for a preference; one whose `output` takes the state alone is given that alone."""
    taken = inspect.signature(conversion.output).parameters
    if "preference" in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return conversion.output(state, preference=preference)
    return conversion.output(state)


def records_before(conversion: Conversion[Any], choice: Literal["before", "after"]) -> bool:
    """Whether a server records the model before its step; `choice` decides for conversions that leave it open."""
    records = getattr(conversion, "records", "after")
    return (choice if records == "either" else records) == "before"


def archive_size(conversion: Conversion[Any], state: Any) -> Tensor | None:  # noqa: ANN401
    """Copies in use, (*B,), of a conversion that counts them by a method `size`; None for the others."""
    size = getattr(conversion, "size", None)
    return None if size is None else size(state)


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


def recordable(losses: Tensor, present: Tensor | None) -> Tensor:
    """Whether every present loss is finite, shape (*B,)."""
    seen = losses if present is None else torch.where(present, losses, 0.0)
    return seen.abs().amax(-1) < torch.inf  # a NaN is the largest of all, and not below


def observe(losses: Tensor, observed: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The newest value of every objective: the last observed one stands in for an absent objective.

    Args:
        losses: Of this step, (*B, m).
        observed: The last observed values, (*B, m); +∞ before the first.
        present: False for absent objectives, (*B, m); None for none.

    Returns:
        The newest values (*B, m), in the dtype of `observed`. Whether to record the iterate, (*B,): all present losses
        are finite and every objective has a value. And the observed values after this step, (*B, m).
    """
    newest = losses.detach().to(observed.dtype, copy=True)  # the caller may change its losses
    sound = recordable(newest, present)
    if present is not None:
        newest = torch.where(present, newest, observed)
        return newest, sound & torch.isfinite(newest).all(-1), torch.where(sound.unsqueeze(-1), newest, observed)
    if sound.ndim == 0 and known(sound):
        return newest, sound, newest
    return newest, sound, torch.where(sound.unsqueeze(-1), newest, observed)


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


def batch_mask(flag: Tensor, tensor: Tensor) -> Tensor:
    """A tensor (*B,) ready to meet a parameter (*B, ...)."""
    return flag.reshape(flag.shape + (1,) * (tensor.ndim - flag.ndim))
