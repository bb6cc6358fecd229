"""Conversions that say what happens to their copies, as plans; one executor carries the plans out."""

from abc import abstractmethod
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor

from equipoise.conversion import store
from equipoise.conversion.protocol import Conversion, Params, Plan, check, check_record

__all__ = ["PlannedConversion", "is_planned"]

S = TypeVar("S")


class PlannedConversion(Conversion[S]):
    """A conversion as plans for its copies, and the shares that they have in the answer.

    Derive from it to write a conversion of your own: say what `begin`, `plan`, `shares` and `copies` are. Recording,
    stores in host memory or in folders, sharded parameters and checkpoints follow. The state is a NamedTuple of tensors
    with a field `slots`, which belongs to whoever carries the plans out.

    A subclass that changes `init`, `update` or `output` besides keeps its copies on the device of the parameters.

    Examples:
        >>> from typing import NamedTuple
        >>> from equipoise.conversion import Plan, PlannedConversion
        >>> class Best(NamedTuple):
        ...     slots: dict[str, torch.Tensor]
        ...     least: torch.Tensor
        >>> class BestSum(PlannedConversion[Best]):  # the iterate with the least sum of losses
        ...     records = "before"
        ...     copies = 1
        ...     def begin(self, losses):
        ...         return Best({}, losses.new_full(losses.shape[:-1], torch.inf))
        ...     def plan(self, losses, state, mask=None):
        ...         better = losses.sum(-1) < state.least
        ...         slot = torch.zeros_like(better, dtype=torch.int64)
        ...         gain = better.to(losses.dtype)
        ...         least = torch.minimum(losses.sum(-1), state.least)
        ...         return Plan(slot, slot, torch.zeros_like(gain), slot, gain), state._replace(least=least)
        ...     def shares(self, state, preference=None):
        ...         return torch.ones_like(state.least).unsqueeze(-1)
        >>> conversion, losses = BestSum(), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for x in (1.0, 2.0, 3.0):
        ...     state = conversion.update({"x": torch.tensor([x])}, losses * (x - 2) ** 2, state)
        >>> conversion.output(state)["x"].item()
        2.0
    """

    @property
    @abstractmethod
    def copies(self) -> int | None:
        """How many slots it needs; None if their number grows with the run."""

    @abstractmethod
    def begin(self, losses: Tensor) -> S:
        """The state before the first iterate, with no slots.

        Args:
            losses: Shape (*B, m); looked at for shape, dtype and device only.
        """

    @abstractmethod
    def plan(self, losses: Tensor, state: S, mask: Tensor | None = None) -> tuple[Plan, S]:
        """What an iterate does to the slots, and the state after it, with the slots of `state` as they are.

        Args:
            losses: f(θ⁽ᵗ⁾), shape (*B, m).
            state: With room for the iterate, see `grown`.
            mask: False for absent objectives, broadcastable to (*B, m).
        """

    @abstractmethod
    def shares(self, state: S, preference: Tensor | None = None) -> Tensor:
        """The share of every slot in the answer, (*B, slots), of sum 1; all for slot 0 before the first iterate.

        Args:
            state: The state.
            preference: w, broadcastable to (*B, m); None if it is unknown.
        """

    def used(self, state: S) -> Tensor:  # noqa: ARG002
        """The slots whose copies are still needed, broadcastable to (*B, slots); by default all."""
        assert self.copies is not None  # noqa: S101
        return torch.ones(self.copies, dtype=torch.bool)

    def grown(self, state: S) -> S:
        """The same state with room for another iterate; by default there always is."""
        return state

    def init(self, params: Params, losses: Tensor) -> S:
        """Records nothing: slot 0 holds the parameters, the answer before the first iterate."""
        check(params, losses)
        state = self.begin(losses)
        return with_slots(state, store.open_store(params, losses.ndim - 1, self.used(state).shape[-1]))

    def update(self, params: Params, losses: Tensor, state: S, *, mask: Tensor | None = None) -> S:
        """Record one iterate; the copies in `state` are changed in place."""
        check(params, losses)
        check_record(params, slots_of(state), losses.ndim - 1)
        plan, after = self.plan(losses, self.grown(state), mask)
        store.execute(plan, params, slots_of(after))
        return after

    def output(self, state: S, preference: Tensor | None = None) -> dict[str, Tensor]:
        """Σ share_j slot_j; what cannot be averaged comes from the slot with the largest share."""
        return store.mean(slots_of(state), self.shares(state, preference))


def is_planned(conversion: object) -> TypeGuard[PlannedConversion[Any]]:
    """Whether its plans say all that happens: False for a class that changes `init`, `update` or `output`."""
    methods = ("init", "update", "output")
    kind, base = type(conversion), PlannedConversion
    return isinstance(conversion, base) and all(getattr(kind, name) is getattr(base, name) for name in methods)


def slots_of(state: Any) -> store.Slots:  # noqa: ANN401
    """The copies that a state holds."""
    slots: store.Slots = state.slots
    return slots


def with_slots(state: S, slots: Any) -> S:  # noqa: ANN401
    """The same state with other copies."""
    return state._replace(slots=slots)  # type: ignore[attr-defined, no-any-return]
