"""The adaptive online-to-batch conversion (AdaOMD-TCH, Algorithm 2)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from equipoise.batch import Number, check_non_negative
from equipoise.conversion import store
from equipoise.conversion.ledger import Ledger, LedgerState
from equipoise.conversion.protocol import Conversion, Params, Plan, check, check_record
from equipoise.errors import require


class AdaptiveState(NamedTuple):
    """The ledger, and the copies of the parameters that it speaks of.

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

    Each iterate has the weight tᵖ. One that is dominated hands it on to those that dominate it, in
    equal parts, so that Σγ = Σ tᵖ and the answer is Σ γ_τ θ⁽τ⁾ / Σ γ_τ over the non-dominated ones.
    For convex objectives compared exactly (not by mini-batch losses) this loses nothing of the
    guarantee of the plain average, whatever the capacity (docs/theory.md).

    Algorithm 2 of the paper, by its lines, is `Adaptive()` beside the weighting `OMD(step_size=η)`:

        1         no iterates and no γ yet    `init`
        4 to 20   the iterates kept and γ     `update`: the arithmetic by `Ledger.update`, the copies by `store.execute`
        21        λ⁽ᵗ⁺¹⁾ and θ⁽ᵗ⁺¹⁾           the weighting and the loop, as in Algorithm 1
        23        the mean weighted by γ      `output`; T is Σγ

    Attributes:
        power: p ≥ 0; 0 is the paper's algorithm.
        capacity: At most this many copies: the closest two are merged when there would be more.
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

    def init(self, params: Params, losses: Tensor) -> AdaptiveState:
        """An empty archive."""
        check(params, losses)
        ledger = self.ledger.init(losses)
        return AdaptiveState(ledger, store.open_store(params, losses.ndim - 1, ledger.weights.shape[-1]))

    def update(
        self, params: Params, losses: Tensor, state: AdaptiveState, *, mask: Tensor | None = None
    ) -> AdaptiveState:
        """Enter one iterate; the copies in `state` are changed in place."""
        check(params, losses)
        check_record(params, state.slots, losses.ndim - 1, slots=True)
        plan, after = self.plan(losses, self.grown(state), mask)
        store.execute(plan, params, after.slots, merges=self.capacity is not None)
        return after

    def grown(self, state: AdaptiveState) -> AdaptiveState:
        """The same archive with room for another iterate; with a capacity there always is."""
        ledger, slots = self.ledger.grown(state.ledger), state.slots
        number = ledger.weights.shape[-1]
        if number != state.ledger.weights.shape[-1]:
            slots = store.resize(slots, ledger.weights.ndim - 1, number)
        return AdaptiveState(ledger, slots)

    def plan(self, losses: Tensor, state: AdaptiveState, mask: Tensor | None = None) -> tuple[Plan, AdaptiveState]:
        """What an iterate with these losses (*B, m) does to the copies, which are left as they are, and the new state.

        The ledger must have a capacity, or a free slot.
        """
        plan, ledger = self.ledger.update(losses, state.ledger, mask)
        return plan, AdaptiveState(ledger, state.slots)

    def output(self, state: AdaptiveState) -> dict[str, Tensor]:
        """Σ γ_τ θ⁽τ⁾ / Σ γ_τ."""
        return store.weighted_mean(state.slots, state.ledger.weights)

    def size(self, state: AdaptiveState) -> Tensor:
        """Copies in use, shape (*B,)."""
        return self.ledger.size(state.ledger)
