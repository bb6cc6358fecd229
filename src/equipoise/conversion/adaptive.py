"""The adaptive online-to-batch conversion (AdaOMD-TCH, Algorithm 2)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from equipoise.batch import Number, check_non_negative
from equipoise.conversion import store
from equipoise.conversion.ledger import Ledger, LedgerState
from equipoise.conversion.plan import Plan
from equipoise.conversion.protocol import Conversion
from equipoise.errors import require


class AdaptiveState(NamedTuple):
    """The ledger, and the copies of the parameters that it refers to.

    Examples:
        >>> state = eq.Adaptive(capacity=8).init({"x": torch.zeros(4, 3)}, torch.ones(4, 2))
        >>> tuple(state.slots["x"].shape), tuple(state.ledger.weights.shape)  # (*B, slots, ...) and (*B, slots)
        ((4, 8, 3), (4, 8))
    """

    ledger: LedgerState
    slots: dict[str, Tensor]
    """A tensor (*B, slots, ...) per parameter."""


@dataclass(frozen=True)
class Adaptive(Conversion[AdaptiveState]):
    r"""The average of the iterates that no other iterate of the trajectory dominates.

    Each iterate has the weight tᵖ. A dominated iterate passes its weight on to those that dominate it, in
    equal parts, so that Σγ = Σ tᵖ and the answer is Σ γ_τ θ⁽τ⁾ / Σ γ_τ over the non-dominated ones.
    For convex objectives that are evaluated exactly (not on mini-batches) the guarantee of the plain
    average holds for every capacity (docs/theory.md).

    Algorithm 2 of the paper, by its lines, is `Adaptive()` beside the weighting `OMD(step_size=η)`:

        1         no iterates and no γ yet    `begin`
        4 to 20   the iterates kept and γ     `plan`, by `Ledger.update`; `store.execute` then changes the copies
        21        λ⁽ᵗ⁺¹⁾ and θ⁽ᵗ⁺¹⁾           the weighting and the loop, as in Algorithm 1
        23        the mean weighted by γ      `shares`; T is Σγ

    Attributes:
        power: p ≥ 0; 0 is the paper's algorithm.
        capacity: The most copies: if there would be more, the closest two are merged.
            None is the paper's algorithm, which keeps them all.
        ties: Whether an iterate with exactly the objectives of a stored one is credited to it
            ("stored") or kept beside it ("keep", Algorithm 2 to the letter).

    Examples:
        >>> conversion = eq.Adaptive()
        >>> state = conversion.init({"x": torch.zeros(1)}, torch.ones(2))
        >>> for value, losses in ((1.0, [3.0, 3.0]), (2.0, [2.0, 2.0]), (5.0, [1.0, 4.0])):
        ...     state = conversion.update({"x": torch.tensor([value])}, torch.tensor(losses), state)
        >>> conversion.size(state).item()  # the second dominates the first
        2
        >>> conversion.output(state)["x"].item()  # (2·2 + 1·5)/3
        3.0
    """

    records: ClassVar[Literal["before", "after", "either"]] = "before"

    power: Number = 0.0
    capacity: int | None = None
    ties: Literal["stored", "keep"] = "stored"

    def __post_init__(self) -> None:
        check_non_negative("power", self.power)
        require(
            self.capacity is None or (type(self.capacity) is int and self.capacity >= 1),
            "capacity must be None or a whole number of at least 1",
            self.capacity,
        )
        require(self.ties in {"stored", "keep"}, 'ties must be "stored" or "keep"', self.ties)

    @property
    def ledger(self) -> Ledger:
        """The arithmetic behind this conversion."""
        return Ledger(self.power, self.capacity, self.ties)

    @property
    def copies(self) -> int | None:
        """The capacity."""
        return self.capacity

    def bounded(self, capacity: int) -> "Adaptive":
        """The conversion with this capacity, unless it already has one."""
        return self if self.capacity is not None else replace(self, capacity=capacity)

    def begin(self, losses: Tensor) -> AdaptiveState:
        """An empty archive."""
        return AdaptiveState(self.ledger.init(losses), {})

    def grown(self, state: AdaptiveState) -> AdaptiveState:
        """The same archive with room for another iterate; unchanged if there is a capacity."""
        ledger, slots = self.ledger.grown(state.ledger), state.slots
        number = ledger.weights.shape[-1]
        if number != state.ledger.weights.shape[-1]:
            slots = store.resize(slots, ledger.weights.ndim - 1, number)
        return AdaptiveState(ledger, slots)

    def plan(self, losses: Tensor, state: AdaptiveState, mask: Tensor | None = None) -> tuple[Plan, AdaptiveState]:
        """The ledger's plan; the ledger must have a capacity, or a free slot."""
        plan, ledger = self.ledger.update(losses, state.ledger, mask)
        return plan, AdaptiveState(ledger, state.slots)

    def shares(self, state: AdaptiveState, preference: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """γ_τ / Σ γ_τ."""
        return store.shares(state.ledger.weights)

    def used(self, state: AdaptiveState) -> Tensor:
        """The slots of members."""
        return state.ledger.weights > 0

    def size(self, state: AdaptiveState) -> Tensor:
        """Members, shape (*B,)."""
        return self.ledger.size(state.ledger)
