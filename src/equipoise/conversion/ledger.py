"""The ledger of the adaptive conversion (Algorithm 2, lines 4 to 20): which iterates are kept, and their weights.

Pure arithmetic on objective vectors. It returns a `Plan` for the copies of the parameters, which a store
executes.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_state, fit_mask, known, wide_dtype
from equipoise.conversion.iterate_weight import weigh
from equipoise.conversion.plan import Plan, observe, record_dtype
from equipoise.errors import require

__all__ = ["Ledger", "LedgerState"]


class LedgerState(NamedTuple):
    """The archive's objective vectors and weights.

    A free slot has weight 0 and +∞ as its first objective, so that it dominates nothing; if it counts as
    dominated, it has no weight to pass on.

    Examples:
        >>> from equipoise.conversion import Ledger
        >>> state = Ledger(capacity=4).init(torch.ones(10, 2))
        >>> tuple(state.values.shape), tuple(state.weights.shape)  # (m, *B, slots) and (*B, slots)
        ((2, 10, 4), (10, 4))
    """

    values: Tensor
    """f̂ of every slot, (m, *B, slots): comparisons accumulate over m, along the fast axes."""
    weights: Tensor
    """γ of every slot, in units of unitᵖ, (*B, slots)."""
    recorded: Tensor
    """Iterates recorded, (*B,)."""
    observed: Tensor
    """The last observed value of every objective, (*B, m); +∞ before the first."""
    guards: Tensor
    """The guard: a point that takes over a slot's weight must dominate it, (m, *B, slots); (m, *B, 0) if unbounded."""
    unit: Tensor
    """The step whose weight is the unit of the weights, (*B,)."""


@dataclass(frozen=True)
class Ledger:
    """Algorithm 2 of the paper on a batch of problems, with bounded memory and weights tᵖ.

    A merged member uses the arithmetic mean f̂ of its iterates' objectives to dominate others. To take over its weight,
    a point must dominate their geometric mean, its guard, which is no greater. Mini-batch losses are skewed: most lie
    below their arithmetic mean, which would be dominated far more easily than the iterates that it stands for.

    The guarantee does not depend on which two are merged. The ledger merges the closest two (Ward), but never a
    newcomer with a member of more than 256 times its weight, which it could not move in float32.

    Attributes:
        power: Iterate t has the weight tᵖ.
        capacity: Slots; None lets the archive grow.
        ties: An iterate with exactly the objectives of a stored one is credited to it ("stored") or
            kept beside it ("keep", Algorithm 2 to the letter).

    Examples:
        >>> from equipoise.conversion import Ledger
        >>> ledger = Ledger(capacity=4)
        >>> state = ledger.init(torch.ones(2))
        >>> for losses in ([3.0, 3.0], [2.0, 2.0], [1.0, 4.0]):
        ...     plan, state = ledger.update(torch.tensor(losses), state)
        >>> ledger.size(state).item(), state.weights.tolist()  # the second has the weight of the first
        (2, [2.0, 1.0, 0.0, 0.0])
    """

    power: Number = 0.0
    capacity: int | None = None
    ties: Literal["stored", "keep"] = "stored"

    def init(self, losses: Tensor) -> LedgerState:
        """No members. Only shape, dtype and device of `losses` (*B, m) are used."""
        require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
        slots = _FIRST_SLOTS if self.capacity is None else self.capacity
        batch, m = losses.shape[:-1], losses.shape[-1]
        observed = torch.full(losses.shape, torch.inf, dtype=record_dtype(losses), device=losses.device)
        weights = torch.zeros((*batch, slots), dtype=wide_dtype(losses.device), device=losses.device)
        values = torch.full((m, *batch, slots), torch.inf, dtype=observed.dtype, device=losses.device)
        guards = values[..., : 0 if self.capacity is None else slots].clone()
        count = torch.zeros_like(weights[..., 0])
        return LedgerState(values, weights, count, observed, guards, count + 1)

    def grown(self, state: LedgerState) -> LedgerState:
        """The same members with room for a newcomer in every problem; only without a capacity."""
        if self.capacity is not None:
            return state
        slots = state.weights.shape[-1]
        if bool((state.recorded < slots).all()) or bool((state.weights == 0).any(-1).all()):
            return state
        more = slots // 2
        values = torch.nn.functional.pad(state.values, (0, more), value=torch.inf)
        return state._replace(values=values, weights=torch.nn.functional.pad(state.weights, (0, more)))

    def update(self, losses: Tensor, state: LedgerState, mask: Tensor | None = None) -> tuple[Plan, LedgerState]:
        """Add one iterate.

        Args:
            losses: f(θ⁽ᵗ⁾), shape (*B, m).
            state: With a free slot in every problem, or a capacity.
            mask: False for absent objectives, broadcastable to (*B, m).

        Returns:
            The plan for the slots, and the new state. A problem whose newest losses are not finite, or with an
            objective that was never observed, is left unchanged.
        """
        check_state(state.observed, losses)
        present = fit_mask(mask, losses)
        newest, valid, observed = observe(losses, state.observed, present)
        if present is not None:
            valid = valid & newest.isfinite().all(-1)
        count = state.recorded + valid
        share, fade, unit = weigh(count, state.unit, self.power)
        gammas = state.weights if fade is None else state.weights * fade.unsqueeze(-1)

        f = newest.movedim(-1, 0).unsqueeze(-1)
        guards = state.values if self.capacity is None else state.guards
        entry = self._enter(_Members(state.values, guards, gammas), _Point(f, f, share), valid)
        values, weights = entry.values, entry.weights
        # The newcomer takes the first free slot; a free one has the least weight, 0.
        slot = weights.argmin(-1, keepdim=True)
        held = weights.gather(-1, slot)
        placed = entry.enters.unsqueeze(-1) & (held == 0)
        if known(placed.any()) is not False:
            weights.scatter_(-1, slot, torch.where(placed, entry.weight.unsqueeze(-1), held))
            place = slot.expand(f.shape)
            values.scatter_(-1, place, torch.where(placed, f, values.gather(-1, place)))
            if self.capacity is not None:
                guards = torch.where(_one_hot(slot.squeeze(-1), weights) & placed, f, guards)
        slot, placed = slot.squeeze(-1), placed.squeeze(-1)
        nothing = torch.zeros_like(slot)
        plan = Plan(nothing, nothing, torch.zeros_like(share), slot, placed.to(share))
        if self.capacity is None:
            return plan, LedgerState(values, weights, count, observed, state.guards, unit)
        kept, full = _Members(values, guards, weights), entry.enters & ~placed
        if known(full.any()) is not False:
            plan, kept = self._overflow(plan, kept, (f, share), full)
        return plan, LedgerState(kept.values, kept.weights, count, observed, kept.guards, unit)

    def size(self, state: LedgerState) -> Tensor:
        """Members, shape (*B,)."""
        return (state.weights > 0).sum(-1)

    def _enter(self, members: "_Members", point: "_Point", valid: Tensor) -> "_Entry":
        """The dominance step of Algorithm 2, where `valid`.

        By the paper's lines: A is `below` (5), and the point enters if it is empty (6, 12); else each member of A is
        given an equal share of the point's weight, `credit` (8 to 10). B is `above` (14); if the point enters, it has
        its own weight and that of B, `inherited` (13, 16), and B is `cleared` (17, 18).
        """
        values, guards, weights = members
        f, guard, share = point
        below, above = _all(values <= guard), _all(guards >= f)
        if self.ties == "keep":
            below, above = below & ~above, above & ~below
        number = below.sum(-1)
        enters = valid & (number == 0)
        credit = (share / number.clamp_min(1) * valid).unsqueeze(-1)
        inherited = share + (weights * above).sum(-1)
        cleared = above & enters.unsqueeze(-1)
        remaining = values.clone()
        remaining[0].masked_fill_(cleared, torch.inf)
        return _Entry(remaining, (weights + below * credit).masked_fill_(cleared, 0.0), enters, inherited)

    def _overflow(
        self, plan: Plan, members: "_Members", newcomer: tuple[Tensor, Tensor], full: Tensor
    ) -> tuple[Plan, "_Members"]:
        """Where `full`, merge the closest two of the K members and the newcomer, and enter the result."""
        values, guards, weights = members
        f, share = newcomer
        k = weights.shape[-1]
        points = torch.cat([values, f.expand(*values.shape[:-1], 1)], -1)
        gammas = torch.cat([weights, share.unsqueeze(-1)], -1)
        pair = _closest(points, gammas)
        a, b = pair.unbind(-1)
        with_newcomer = b == k
        gamma_a, gamma_b = gammas.gather(-1, pair).unbind(-1)
        gamma = gamma_a + gamma_b
        mix = gamma_b / gamma
        places, part = pair.expand(*values.shape[:-1], 2), mix.to(points.dtype)
        value_a, value_b = points.gather(-1, places).unbind(-1)
        merged = torch.lerp(value_a, value_b, part).unsqueeze(-1)
        guard_a, guard_b = torch.cat([guards, f], -1).gather(-1, places).unbind(-1)
        guard = torch.minimum(_geometric_mean(guard_a, guard_b, part).unsqueeze(-1), merged)

        # The newcomer takes the slot that b leaves. Slot a is cleared while the merged member, which
        # will occupy it, passes through the dominance step as if it were new.
        in_a, in_b = _one_hot(pair, weights).unbind(-2)
        others = torch.where(in_b, share.unsqueeze(-1), weights).masked_fill_(in_a, 0.0)
        rest, marks = torch.where(in_b, f, values), torch.where(in_b, f, guards)
        rest[0].masked_fill_(in_a, torch.inf)
        entry = self._enter(_Members(rest, marks, others), _Point(merged, guard, gamma), full)
        stays = entry.enters
        here = in_a & stays.unsqueeze(-1)
        others = torch.where(here, entry.weight.unsqueeze(-1), entry.weights)
        rest, marks = torch.where(here, merged, entry.values), torch.where(here, guard, marks)

        newcomer_lives = (in_b & (others > 0)).any(-1)
        other, mixed = torch.where(with_newcomer, a, b), mix * stays
        gain = torch.where(with_newcomer, mixed, newcomer_lives.to(mix))
        merge_plan = Plan(into=a, other=other, mix=mixed * ~with_newcomer, write=other, gain=gain)
        if known(full.all()) is True:
            return merge_plan, _Members(rest, marks, others)
        wide = full.unsqueeze(-1)
        chosen = Plan(*(torch.where(full, new, old) for new, old in zip(merge_plan, plan, strict=True)))
        found = zip((rest, marks, others), members, strict=True)
        return chosen, _Members(*(torch.where(wide, new, old) for new, old in found))


class _Members(NamedTuple):
    """The slots: f̂ and guards (m, *B, slots), γ (*B, slots)."""

    values: Tensor
    guards: Tensor
    weights: Tensor


class _Point(NamedTuple):
    """A candidate: f̂ and its guard (m, *B, 1), γ (*B,)."""

    value: Tensor
    guard: Tensor
    weight: Tensor


class _Entry(NamedTuple):
    """The result of the dominance step for the members and for the candidate."""

    values: Tensor
    """Objectives of the members, (m, *B, slots)."""
    weights: Tensor
    """Their weights: dominators credited, the dominated cleared, (*B, slots)."""
    enters: Tensor
    """Whether no member dominates the candidate, (*B,)."""
    weight: Tensor
    """Its weight if it enters, including that of the members it clears, (*B,)."""


_FIRST_SLOTS = 16


def _all(comparison: Tensor) -> Tensor:
    """∀ over the leading dimension m: (m, *B, slots) → (*B, slots)."""
    if len(comparison) > _UNROLLED or comparison[0].numel() < _SMALL or comparison.is_cuda:
        return comparison.all(0)
    result = comparison[0]
    for row in comparison[1:]:
        result = result & row
    return result


_UNROLLED, _SMALL = 16, 2000
"""Up to this many objectives, and from this many entries on, a CPU is faster with a loop over the objectives."""


HEAVY = 256
"""A newcomer is not merged with a member of more than this many times its weight.

The newcomer would be below the last digit of a float32 copy. Newcomers gather in a light member instead, which is
merged with a heavy one later.
"""


def _geometric_mean(a: Tensor, b: Tensor, mix: Tensor) -> Tensor:
    """a^(1 − mix) b^mix, exactly a where they agree; values are clamped to at least the smallest positive number."""
    least = torch.finfo(a.dtype).tiny
    return torch.where(a == b, a, torch.lerp(a.clamp_min(least).log(), b.clamp_min(least).log(), mix).exp())


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device) == index.unsqueeze(-1)


def _closest(points: Tensor, gammas: Tensor) -> Tensor:
    """The pair a < b, (*B, 2), of least γ_a γ_b/(γ_a + γ_b) ‖(f̂_a − f̂_b)/s‖² (Ward), lowest indices on ties.

    s is the spread of each objective over the points, so that units do not matter. The last point, the newcomer, is not
    merged with a member that is far heavier, unless that is the only one.
    """
    spread = points.amax(-1, keepdim=True) - points.amin(-1, keepdim=True)
    scaled = (points / spread.masked_fill_(spread <= 0, 1.0)).movedim(0, -1)
    distance = torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist").square()
    row, column = gammas.unsqueeze(-1), gammas.unsqueeze(-2)
    cost = distance * (row * column / (row + column))
    n = gammas.shape[-1]
    if n > 2:
        cost[..., :-1, -1].masked_fill_(gammas[..., :-1] > HEAVY * gammas[..., -1:], torch.inf)
    later = torch.ones(n, n, dtype=torch.bool, device=gammas.device).triu(1)
    flat = torch.where(later, cost, torch.inf).flatten(-2).argmin(-1)
    return torch.stack([flat // n, flat % n], -1)
