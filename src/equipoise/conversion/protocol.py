"""The base class of all conversions: plans for copies of the parameters, and their shares in the answer."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from equipoise.batch import fit_mask
from equipoise.conversion import store
from equipoise.conversion.plan import Params, Plan, check, check_record
from equipoise.errors import require

__all__ = ["Conversion", "archive_size", "check_planned", "records_before", "with_slots"]

C = TypeVar("C")


class Conversion(ABC, Generic[C]):
    """Turns the trajectory θ⁽¹⁾, θ⁽²⁾, … into the answer (online-to-batch conversion).

    To write your own, derive from this class and define `copies`, `begin`, `plan` and `shares`. You get everything
    else: recording, all stores, sharded parameters, checkpoints. A conversion is a frozen dataclass; it never sees
    gradients. Its state is a NamedTuple of tensors with a field `slots`, which holds copies, never the parameters
    themselves. Only the code that executes the plans uses `slots`.

    Attributes:
        records: Which model a server records with the losses f(θ⁽ᵗ⁾). "before" its step: θ⁽ᵗ⁾, for an answer that
            depends on the losses. "after" it: the newest model. "either": as the task says.

    Examples:
        >>> from typing import NamedTuple
        >>> from equipoise.conversion import Conversion, Plan
        >>> class Best(NamedTuple):
        ...     slots: dict[str, torch.Tensor]
        ...     least: torch.Tensor
        >>> class BestSum(Conversion[Best]):  # the iterate with the least sum of losses
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

    records: ClassVar[Literal["before", "after", "either"]] = "after"

    @property
    @abstractmethod
    def copies(self) -> int | None:
        """The number of slots; None if it grows with the run."""

    @abstractmethod
    def begin(self, losses: Tensor) -> C:
        """The state before the first iterate, with no slots.

        Args:
            losses: Shape (*B, m); only shape, dtype and device are used.
        """

    @abstractmethod
    def plan(self, losses: Tensor, state: C, mask: Tensor | None = None) -> tuple[Plan, C]:
        """The plan for an iterate, and the state after it, with `slots` unchanged.

        Args:
            losses: f(θ⁽ᵗ⁾), shape (*B, m). An instance with a non-finite loss is not recorded.
            state: With room for the iterate, see `grown`.
            mask: False for objectives that are absent, broadcastable to (*B, m); they keep their last observed value.
        """

    @abstractmethod
    def shares(self, state: C, preference: Tensor | None = None) -> Tensor:
        """The share of every slot in the answer, (*B, slots), of sum 1; slot 0 has all before the first iterate.

        Args:
            state: The state.
            preference: w, broadcastable to (*B, m); None if it is unknown.
        """

    def bounded(self, capacity: int) -> "Conversion[C]":  # noqa: ARG002
        """The same conversion with at most `capacity` copies, if their number grows; by default itself."""
        return self

    def used(self, state: C) -> Tensor:  # noqa: ARG002
        """The slots whose copies are still needed, broadcastable to (*B, slots); by default all."""
        assert self.copies is not None  # noqa: S101
        return torch.ones(self.copies, dtype=torch.bool)

    def grown(self, state: C) -> C:
        """The same state with room for another iterate; by default unchanged."""
        return state

    def init(self, params: Params, losses: Tensor) -> C:
        """The state with nothing recorded: slot 0 holds the parameters, the answer before the first iterate."""
        check(params, losses)
        state = self.begin(losses)
        return with_slots(state, store.open_store(params, losses.ndim - 1, self.used(state).shape[-1]))

    def update(self, params: Params, losses: Tensor, state: C, *, mask: Tensor | None = None) -> C:
        """Record one iterate.

        Consumes the given state: its copies are updated in place, so that a step needs no second copy of the model.

        Args:
            params: θ⁽ᵗ⁾, a tensor (*B, ...) per name.
            losses: f(θ⁽ᵗ⁾), shape (*B, m).
            state: What `init` or the last `update` returned.
            mask: See `plan`.
        """
        check(params, losses)
        check_record(params, _slots(state), losses.ndim - 1)
        plan, after = self.plan(losses, self.grown(state), fit_mask(mask, losses))
        store.execute(plan, params, store.Stacked(_slots(after), losses.ndim - 1))
        return after

    def output(self, state: C, preference: Tensor | None = None) -> dict[str, Tensor]:
        """The answer, Σ share_j slot_j; tensors that cannot be averaged come from the slot with the largest share.

        Args:
            state: What `init` or the last `update` returned.
            preference: w, broadcastable to (*B, m), for a conversion whose answer depends on it. None: it is unknown.

        Returns:
            A tensor (*B, ...) per name, in the dtype it was recorded in.
        """
        return store.mean(_slots(state), self.shares(state, preference))


def check_planned(conversion: Conversion[Any]) -> None:
    """Raise ValueError for a conversion whose class overrides `update` or `output`, where only plans are used."""
    own = [
        name for name in ("init", "update", "output") if getattr(type(conversion), name) != getattr(Conversion, name)
    ]
    rule = "conversion must be defined by plan and shares, as its update and output are not called here"
    require(not own, rule, lambda: f"{type(conversion).__name__} with its own {' and '.join(own)}")


def _slots(state: Any) -> store.Copies:  # noqa: ANN401
    slots: store.Copies = state.slots
    return slots


def with_slots(state: C, slots: Any) -> C:  # noqa: ANN401
    """The same state with other copies."""
    return state._replace(slots=slots)  # type: ignore[attr-defined, no-any-return]


def records_before(conversion: Conversion[Any], choice: Literal["before", "after"]) -> bool:
    """Whether a server records the model before its step; `choice` decides for conversions with "either"."""
    return (choice if conversion.records == "either" else conversion.records) == "before"


def archive_size(conversion: Conversion[Any], state: Any) -> Tensor | None:  # noqa: ANN401
    """Copies in use, (*B,), for a conversion with a method `size`; None for the others."""
    size = getattr(conversion, "size", None)
    return None if size is None else size(state)
