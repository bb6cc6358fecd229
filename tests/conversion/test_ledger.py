"""The ledger against the paper's Algorithm 2 and against bounded memory, both written naively."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import equipoise as eq
from equipoise.conversion.ledger import Ledger, LedgerState

Ties = Literal["stored", "keep"]
Array = NDArray[np.float64]


# The oracles ----------------------------------------------------------------------------------


def dominates(a: Array, b: Array, *, weakly: bool = False) -> bool:
    """a ⪯ b: nowhere worse and somewhere better; `weakly`, or the same."""
    return bool((a <= b).all() and (weakly or (a < b).any()))


def algorithm_2(f: Array, power: float, ties: Ties) -> dict[int, float]:
    """Lines 2 to 20 of the paper's Algorithm 2 with t^p for the unit weight: γ by t, of losses f (T, m)."""
    members: set[int] = set()
    gamma: dict[int, float] = {}
    for t in range(1, len(f) + 1):
        unit = float(t) ** power
        A = {tau for tau in members if dominates(f[tau - 1], f[t - 1], weakly=ties == "stored")}
        if A:
            for tau in A:
                gamma[tau] += unit / len(A)
        else:
            B = {tau for tau in members if dominates(f[t - 1], f[tau - 1])}
            members |= {t}
            gamma[t] = unit
            if B:
                gamma[t] += sum(gamma[tau] for tau in B)
                members -= B
                gamma = {tau: weight for tau, weight in gamma.items() if tau not in B}
    return gamma


@dataclass
class Member:
    f: Array
    gamma: float
    theta: Array
    guard: Array
    """What must be dominated for its weight: the geometric mean of its iterates, where f is the arithmetic one."""


class BoundedMemory:
    """The archive with capacity K: a list, and the rules one after another."""

    def __init__(self, capacity: int, ties: Ties = "stored", heavy: float = math.inf) -> None:
        self.capacity, self.ties, self.heavy = capacity, ties, heavy
        self.members: list[Member] = []
        self.happened: set[str] = set()

    def record(self, f: Array, weight: float, theta: Array) -> None:
        newcomer = Member(f, weight, theta, f)
        self.enter(newcomer)
        if len(self.members) > self.capacity:
            a, b = self.closest(newcomer)
            self.members = [member for member in self.members if member is not a and member is not b]
            gamma = a.gamma + b.gamma
            f_hat = (a.gamma * a.f + b.gamma * b.f) / gamma
            theta_hat = (a.gamma * a.theta + b.gamma * b.theta) / gamma
            self.happened.add("merged")
            before = len(self.members)
            guard = a.guard ** (a.gamma / gamma) * b.guard ** (b.gamma / gamma)
            entered = self.enter(Member(f_hat, gamma, theta_hat, np.minimum(f_hat, guard)))
            if not entered:
                self.happened.add("merged was dominated")
            elif len(self.members) <= before:
                self.happened.add("merged dominates")

    def enter(self, new: Member) -> bool:
        """The dominance step; whether the member stays."""
        weakly = self.ties == "stored"
        above = [member for member in self.members if dominates(member.f, new.guard, weakly=weakly)]
        for member in above:
            member.gamma += new.gamma / len(above)
        if above:
            return False
        below = [member for member in self.members if dominates(new.f, member.guard)]
        if any(dominates(new.f, member.f) and not dominates(new.f, member.guard) for member in self.members):
            self.happened.add("only the mean is dominated")
        new.gamma += sum(member.gamma for member in below)
        self.members = [member for member in self.members if not any(member is other for other in below)] + [new]
        return True

    def closest(self, newcomer: Member) -> tuple[Member, Member]:
        """Ward: least γ_a γ_b/(γ_a + γ_b) ‖(f̂_a − f̂_b)/s‖², but no newcomer with a member that is far heavier."""
        points = np.stack([member.f for member in self.members])
        spread = points.max(0) - points.min(0)
        spread[spread == 0] = 1.0
        pairs = [(a, b) for i, a in enumerate(self.members) for b in self.members[i + 1 :]]
        if self.capacity > 1:
            light = [(a, b) for a, b in pairs if b is not newcomer or a.gamma <= self.heavy * b.gamma]
            if len(light) < len(pairs):
                self.happened.add("too light")
            pairs = light
        costs = [a.gamma * b.gamma / (a.gamma + b.gamma) * (((a.f - b.f) / spread) ** 2).sum() for a, b in pairs]
        return pairs[int(np.argmin(costs))]


# What is compared -----------------------------------------------------------------------------


def run(conversion: eq.Adaptive, f: Array) -> tuple[LedgerState, Tensor]:
    """Of losses (T, *B, m): the ledger with weights γ in units of 1, and what the slots hold, (*B, slots, T).

    θ⁽ᵗ⁾ is the t-th unit vector, so that a copy shows from which iterates it is made.
    """
    losses, T = torch.from_numpy(f), len(f)
    batch = losses.shape[1:-1]
    unit = torch.eye(T, dtype=torch.float64)
    state = conversion.init({"x": unit[0].expand(*batch, T)}, losses[0])
    for t in range(T):
        state = conversion.update({"x": unit[t].expand(*batch, T)}, losses[t], state)
    share = conversion.output(state)["x"]
    held, gamma = state.slots["x"], state.ledger.weights
    mixture = (gamma.unsqueeze(-1) * held).sum(-2) / gamma.sum(-1, keepdim=True)
    torch.testing.assert_close(share, mixture, rtol=1e-12, atol=1e-14)
    unit = state.ledger.unit.unsqueeze(-1) ** conversion.power
    return state.ledger._replace(weights=gamma * unit), held


def members(ledger: LedgerState, held: Tensor, at: tuple[int, ...] = ()) -> list[tuple[Array, float, Array]]:
    """(f̂, γ, θ) of every member of one problem, in lexicographic order of f̂, γ and θ."""
    gamma, values, theta = ledger.weights[at], ledger.values.movedim(0, -1)[at], held[at]
    used = gamma > 0
    found = zip(values[used].numpy(), gamma[used].tolist(), theta[used].numpy(), strict=True)
    return sorted(found, key=lambda member: (member[0].round(9).tolist(), round(member[1], 9), member[2].tolist()))


def check_free_slots(ledger: LedgerState) -> None:
    free = ledger.weights == 0
    assert torch.isposinf(ledger.values[0, free]).all()  # so that it dominates nothing
    assert torch.isfinite(ledger.values[:, ~free]).all()


def check_mutually_non_dominated(found: list[tuple[Array, float, Array]], ties: Ties) -> None:
    for i, (a, _, _) in enumerate(found):
        for j, (b, _, _) in enumerate(found):
            assert i == j or not dominates(a, b, weakly=ties == "stored"), (a, b)


def integers(T: int, m: int, levels: int, seed: int, *batch: int) -> Array:
    """Losses of few levels, so that exact ties and dominance are frequent."""
    found: Array = np.random.default_rng(seed).integers(0, levels, (T, *batch, m)).astype(float)
    return found


# Algorithm 2 ----------------------------------------------------------------------------------


@given(
    T=st.integers(1, 40),
    m=st.integers(1, 12),
    levels=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    power=st.sampled_from([0.0, 1.0, 0.5, 4.0]),
    ties=st.sampled_from(["stored", "keep"]),
)
@example(T=40, m=2, levels=5, seed=3, power=0.0, ties="keep")
@example(T=40, m=12, levels=2, seed=0, power=1.0, ties="stored")
@example(T=40, m=1, levels=5, seed=0, power=1.0, ties="keep")
def test_it_is_algorithm_2(T: int, m: int, levels: int, seed: int, power: float, ties: Ties):
    f = integers(T, m, levels, seed, 2)
    ledger, held = run(eq.Adaptive(power, ties=ties), f)
    check_free_slots(ledger)
    for at in range(2):
        gamma = algorithm_2(f[:, at], power, ties)
        found = members(ledger, held, (at,))
        by_iterate = {int(theta.argmax()) + 1: (weight, values, theta) for values, weight, theta in found}
        assert by_iterate.keys() == gamma.keys()
        assert len(found) == len(gamma)
        for t, (weight, values, theta) in by_iterate.items():
            assert weight == pytest.approx(gamma[t], rel=1e-12)
            assert values.tolist() == f[t - 1, at].tolist()
            assert theta.tolist() == np.eye(T)[t - 1].tolist()
        check_mutually_non_dominated(found, ties)
        assert sum(weight for _, weight, _ in found) == pytest.approx(sum(t**power for t in range(1, T + 1)))
        size = eq.Adaptive().ledger.size(ledger)
        assert size[at].item() == len(gamma)
    assert ledger.recorded.tolist() == [T, T]


def test_the_weight_is_split_among_all_that_dominate():
    f = np.array([[0.0, 2.0], [2.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    ledger, _ = run(eq.Adaptive(), f)
    assert ledger.weights[:3].tolist() == pytest.approx([4 / 3] * 3)


def test_ties():
    f = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    stored, held = run(eq.Adaptive(), f)
    assert [(weight, theta.tolist()) for _, weight, theta in members(stored, held)] == [
        (3.0, [1.0, 0.0, 0.0, 0.0]),
        (1.0, [0.0, 1.0, 0.0, 0.0]),
    ]
    keep, held = run(eq.Adaptive(ties="keep"), f)
    assert [weight for _, weight, _ in members(keep, held)] == [1.0] * 4
    # What dominates the equal ones takes over all of them; what they dominate is shared.
    after, held = run(eq.Adaptive(ties="keep"), np.concatenate([f, [[1.5, 2.0]], [[1.0, 1.5]]]))
    assert [weight for _, weight, _ in members(after, held)] == pytest.approx([5.0, 1.0])


def test_the_archive_grows_as_needed():
    T = 70
    front = np.stack([np.arange(T), -np.arange(T)], -1).astype(float)
    ledger, held = run(eq.Adaptive(), front)
    slots = held.shape[0]
    assert T <= slots <= 2 * T
    assert ledger.weights.shape == (slots,)
    assert ledger.values.shape == (2, slots)
    assert [theta.argmax() for _, _, theta in members(ledger, held)] == list(range(T))
    same = np.zeros((T, 2))
    assert run(eq.Adaptive(), same)[1].shape == (16, T)


def test_slots_are_used_again():
    """A long run of iterates of which few are kept needs no more slots than are kept."""
    T = 60
    f = np.stack([np.arange(T, 0, -1), np.arange(T, 0, -1)], -1).astype(float)  # each dominates the one before
    ledger, held = run(eq.Adaptive(), f)
    assert held.shape[0] == 16
    assert ledger.weights.tolist() == [60.0] + [0.0] * 15


def test_weights_are_counted_in_double_and_in_a_unit_that_grows():
    ledger = Ledger(power=4.0, capacity=2)
    losses = torch.ones(2, dtype=torch.float32)
    state = ledger.init(losses)
    for _ in range(300):
        _, state = ledger.update(losses, state)
    assert state.unit.item() == 256.0  # the last power of two
    assert state.weights.sum().item() == sum(t**4 for t in range(1, 301)) / 256**4
    assert state.weights.dtype == torch.float64


# Bounded memory -------------------------------------------------------------------------------


@given(
    T=st.integers(1, 40),
    m=st.integers(1, 6),
    capacity=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    power=st.sampled_from([0.0, 1.0, 4.0]),
    clustered=st.booleans(),
)
def test_bounded_memory_is_the_naive_one(T: int, m: int, capacity: int, seed: int, power: float, clustered: bool):
    f = continuous(T, m, seed, clustered=clustered)
    ledger, held = run(eq.Adaptive(power, capacity), f)
    assert held.shape == (3, capacity, T)
    assert ledger.weights.shape == (3, capacity)
    check_free_slots(ledger)
    for at in range(3):
        archive = BoundedMemory(capacity)
        for t in range(T):
            archive.record(f[t, at], float(t + 1) ** power, np.eye(T)[t])
        found = members(ledger, held, (at,))
        expected = sorted(archive.members, key=lambda member: member.f.round(9).tolist())
        assert len(found) == len(expected)
        for (values, weight, theta), member in zip(found, expected, strict=True):
            np.testing.assert_allclose(values, member.f, rtol=1e-9)
            assert weight == pytest.approx(member.gamma, rel=1e-9)
            np.testing.assert_allclose(theta, member.theta, atol=1e-9)
        assert sum(weight for _, weight, _ in found) == pytest.approx(sum(t**power for t in range(1, T + 1)))


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_a_newcomer_is_not_merged_with_a_member_that_is_far_heavier(capacity: int, monkeypatch):
    """Three times as heavy here: the naive one has the same rule."""
    monkeypatch.setattr("equipoise.conversion.ledger.HEAVY", 3)
    happened: set[str] = set()
    for seed in range(6):
        f = continuous(40, 4, seed, clustered=seed % 2 == 0)
        ledger, held = run(eq.Adaptive(1.0, capacity), f)
        for at in range(3):
            archive = BoundedMemory(capacity, heavy=3)
            for t in range(40):
                archive.record(f[t, at], float(t + 1), np.eye(40)[t])
            found = members(ledger, held, (at,))
            expected = sorted(archive.members, key=lambda member: member.f.round(9).tolist())
            assert [weight for _, weight, _ in found] == pytest.approx([member.gamma for member in expected])
            for (_, _, theta), member in zip(found, expected, strict=True):
                np.testing.assert_allclose(theta, member.theta, atol=1e-9)
            happened |= archive.happened
    assert ("too light" in happened) == (capacity > 1)


def continuous(T: int, m: int, seed: int, *, clustered: bool) -> Array:
    """Losses (T, 3, m) without ties, in units that differ by up to 10⁴."""
    random = np.random.default_rng(seed)
    f: Array = random.random((T, 3, m))
    if clustered:
        f = random.integers(0, 3, (T, 3, m)) + 0.05 * f
    return f * 10.0 ** random.integers(-2, 3, m)


def test_the_naive_one_meets_every_case():
    """Or the comparison above would be worth little."""
    happened: set[str] = set()
    for seed in range(20):
        f = continuous(40, 4, seed, clustered=seed % 2 == 0)
        archive = BoundedMemory(3)
        for t in range(40):
            archive.record(f[t, 0], float(t + 1), np.zeros(1))
        happened |= archive.happened
    assert happened == {"merged", "merged was dominated", "merged dominates", "only the mean is dominated"}


@settings(max_examples=25)
@given(m=st.integers(1, 4), capacity=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_copies_are_made_of_the_iterates_that_the_ledger_says(m: int, capacity: int, seed: int):
    """For θ = f, linear, every merge is exact: each copy is its own f̂, ties and all."""
    f = torch.from_numpy(integers(40, m, 4, seed, 3))
    for conversion in (eq.Adaptive(capacity=capacity), eq.Adaptive(1.0, capacity, "keep"), eq.Adaptive()):
        state = conversion.init({"f": f[0]}, f[0])
        for losses in f:
            state = conversion.update({"f": losses}, losses, state)
        used = state.ledger.weights > 0
        values = state.ledger.values.movedim(0, -1)
        torch.testing.assert_close(state.slots["f"][used], values[used], rtol=1e-12, atol=1e-12)


@given(
    m=st.integers(1, 5),
    capacity=st.sampled_from([None, 1, 2, 4]),
    seed=st.integers(0, 10**6),
    power=st.sampled_from([0.0, 1.0, 4.0]),
    ties=st.sampled_from(["stored", "keep"]),
)
def test_what_is_held_never_exceeds_what_was_handed_in(
    m: int, capacity: int | None, seed: int, power: float, ties: Ties
):
    """Σ γ f̂ ≤ Σ_t tᵖ f⁽ᵗ⁾ in every objective: all that the lemma needs besides convexity."""
    f = integers(30, m, 5, seed, 2)
    ledger, _ = run(eq.Adaptive(power, capacity, ties), f)
    unit = np.arange(1, 31) ** power
    given_in = np.einsum("t,tbm->bm", unit, f)
    values = torch.where(ledger.weights > 0, ledger.values, 0.0)
    held = (ledger.weights * values).sum(-1).movedim(0, -1).numpy()
    assert (held <= given_in * (1 + 1e-12) + 1e-12).all()
    np.testing.assert_allclose(ledger.weights.sum(-1).numpy(), unit.sum(), rtol=1e-12)


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_without_dominance_nothing_is_lost_nor_gained(capacity: int | None):
    T = 30
    front = np.stack([np.arange(T) ** 1.1, -np.arange(T) * 1.0], -1)
    ledger, _ = run(eq.Adaptive(1.0, capacity), front)
    values = torch.where(ledger.weights > 0, ledger.values, 0.0)
    held = (ledger.weights * values).sum(-1).numpy()
    np.testing.assert_allclose(held, np.arange(1, T + 1) @ front, rtol=1e-12)


# One case of a merge after the other, with c of weight 4 where it has to be heavy: three iterates that it dominates.
HALVES = [0.5, 0.5]
FAR = [9.0] * 3


def archive_of(f: list[list[float]], capacity: int) -> list[tuple[list[float], float, list[float]]]:
    ledger, held = run(eq.Adaptive(capacity=capacity), np.array(f, dtype=float))
    return [(values.tolist(), weight, theta.tolist()) for values, weight, theta in members(ledger, held)]


def test_merge_with_the_newcomer():
    assert archive_of([[0, 10], [10, 0], [9, 0.5]], 2) == [
        ([0.0, 10.0], 1.0, [1.0, 0.0, 0.0]),
        ([9.5, 0.25], 2.0, [0.0, 0.5, 0.5]),
    ]


def test_merge_of_two_stored():
    assert archive_of([[0, 10], [1, 9], [10, 0]], 2) == [
        ([0.5, 9.5], 2.0, [0.5, 0.5, 0.0]),
        ([10.0, 0.0], 1.0, [0.0, 0.0, 1.0]),
    ]


def test_the_merged_member_is_dominated_by_a_stored_one():
    f = [[0.8, 0.8, 0.0], FAR, FAR, FAR, [0.5, 1.5, 1.0], [1.5, 0.5, 1.0]]
    assert archive_of(f, 2) == [([0.8, 0.8, 0.0], 6.0, [1.0, 0, 0, 0, 0, 0])]


def test_the_merged_member_dominates_a_stored_one():
    f = [[1.1, 1.1, 3.0], FAR, FAR, FAR, [0.5, 1.5, 1.0], [1.5, 0.5, 1.0]]
    assert archive_of(f, 2) == [([1.0, 1.0, 1.0], 6.0, [0, 0, 0, 0, *HALVES])]


def test_the_merged_member_dominates_the_newcomer():
    f = [[0.5, 1.5, 1.0, 1.0, 1.0], [1.5, 0.5, 1.0, 1.0, 1.0], [1.1, 1.1, 3.0, 3.0, 3.0]]
    assert archive_of(f, 2) == [([1.0] * 5, 3.0, [*HALVES, 0.0])]


def test_the_merged_member_is_dominated_by_the_newcomer():
    f = [[0.5, 1.5, 1.0, 1.0, 1.0], [1.5, 0.5, 1.0, 1.0, 1.0], [0.8, 0.8, -1.0, -1.0, -1.0]]
    assert archive_of(f, 2) == [([0.8, 0.8, -1.0, -1.0, -1.0], 3.0, [0.0, 0.0, 1.0])]


@pytest.mark.parametrize(("first", "kept"), [(0.85, 1), (0.9, 2)])
def test_for_its_weight_the_geometric_mean_must_be_dominated(first: float, kept: int):
    # (1, 1, ...) is the arithmetic mean of the first two, (√¾, √¾, ...) the geometric one: √¾ ≈ 0.866.
    f = [[0.5, 1.5, 1.0, 1.0, 1.0], [1.5, 0.5, 1.0, 1.0, 1.0], [first, 0.8, -1.0, -1.0, -1.0]]
    assert len(archive_of(f, 2)) == kept


def test_guards_of_objectives_that_are_not_positive():
    """They are finite and nowhere above f̂; where all are negative they are f̂."""
    f = torch.from_numpy(integers(60, 3, 5, 0, 4)) - torch.tensor([0.0, 2.0, 9.0])
    ledger = Ledger(capacity=2)
    state = ledger.init(f[0])
    for losses in f:
        _, state = ledger.update(losses, state)
    used = state.weights > 0
    values, guards = state.values[:, used], state.guards[:, used]
    assert torch.isfinite(guards).all()
    assert (guards <= values).all()
    assert torch.equal(guards[2], values[2])


def test_heavy_members_are_merged_last():
    """Equal distances, γ = (3, 1, 1): Ward merges the two light ones."""
    f = [[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [2.0, 2.0], [4.0, 0.0]]
    assert [weight for _, weight, _ in archive_of(f, 2)] == [3.0, 2.0]


def test_the_lowest_indices_on_ties():
    """Five points evenly spaced by a quarter of their spread: four pairs cost the same."""
    found = archive_of([[0, 4], [1, 3], [2, 2], [3, 1], [4, 0]], 4)
    assert [values for values, _, _ in found] == [[0.5, 3.5], [2.0, 2.0], [3.0, 1.0], [4.0, 0.0]]


def test_units_do_not_matter():
    f = continuous(40, 3, 5, clustered=False)[:, 0]
    plain, scaled = (run(eq.Adaptive(capacity=3), units * f) for units in (np.ones(3), np.array([1e-6, 1.0, 1e6])))
    for (_, weight, theta), (_, other_weight, other) in zip(members(*plain), members(*scaled), strict=True):
        assert weight == pytest.approx(other_weight)
        np.testing.assert_allclose(theta, other, atol=1e-9)


def test_an_objective_that_never_changes_does_not_matter():
    f = continuous(40, 3, 5, clustered=False)[:, 0]
    padded = np.concatenate([f, np.full((40, 1), 7.0)], -1)
    plain, more = run(eq.Adaptive(capacity=3), f), run(eq.Adaptive(capacity=3), padded)
    for (_, weight, theta), (_, other_weight, other) in zip(members(*plain), members(*more), strict=True):
        assert weight == pytest.approx(other_weight)
        np.testing.assert_allclose(theta, other, atol=1e-9)


@pytest.mark.parametrize("m", [16, 17, 40])
def test_many_objectives(m: int):
    """Comparisons are accumulated one by one up to 16 objectives, and at once beyond."""
    f = integers(30, m, 2, 1) * (np.arange(m) == m - 1) + integers(30, m, 2, 2) * (np.arange(m) == 0)
    ledger, held = run(eq.Adaptive(), f)
    gamma = algorithm_2(f, 0.0, "stored")
    assert {int(theta.argmax()) + 1: weight for _, weight, theta in members(ledger, held)} == pytest.approx(gamma)


# The plan -------------------------------------------------------------------------------------


def test_plans_have_the_batch_shape():
    for batch in ((), (3,), (2, 3)):
        ledger = Ledger(capacity=2)
        losses = torch.ones(*batch, 2)
        plan, state = ledger.update(losses, ledger.init(losses))
        assert all(tensor.shape == batch for tensor in plan)
        assert all(not tensor.is_floating_point() for tensor in (plan.into, plan.other, plan.write))
        assert (plan.gain == 1).all()
        assert (plan.mix == 0).all()
        assert state.values.shape == (2, *batch, 2)
        plan, _ = ledger.update(losses + 1, state)  # dominated: nothing happens
        assert (plan.gain == 0).all()
        assert (plan.mix == 0).all()


def last_plan(f: list[list[float]], capacity: int) -> dict[str, float]:
    ledger = Ledger(capacity=capacity)
    losses = torch.tensor(f, dtype=torch.float64)
    state = ledger.init(losses[0])
    for row in losses:
        plan, state = ledger.update(row, state)
    return {name: tensor.item() for name, tensor in plan._asdict().items()}


def test_a_plan_copies_no_more_than_it_must():
    """A store that keeps its copies on disk reads nothing else than the plan."""
    wide = [[0.5, 1.5, 1.0, 1.0, 1.0], [1.5, 0.5, 1.0, 1.0, 1.0]]
    heavy = [[0.8, 0.8, 0.0], FAR, FAR, FAR, [0.5, 1.5, 1.0], [1.5, 0.5, 1.0]]
    # Two stored are merged into slot 0, and the newcomer takes slot 1.
    assert last_plan([[0, 10], [1, 9], [10, 0]], 2) == {"into": 0, "other": 1, "mix": 0.5, "write": 1, "gain": 1.0}
    # The newcomer is mixed into slot 1.
    plan = last_plan([[0, 10], [10, 0], [9, 0.5]], 2)
    assert (plan["mix"], plan["write"], plan["gain"]) == (0.0, 1, 0.5)
    # The merged member dominates the newcomer, which is not written.
    plan = last_plan([*wide, [1.1, 1.1, 3.0, 3.0, 3.0]], 2)
    assert (plan["into"], plan["other"], plan["mix"], plan["gain"]) == (0, 1, 0.5, 0.0)
    # The newcomer dominates the merged member, which is not made.
    plan = last_plan([*wide, [0.8, 0.8, -1.0, -1.0, -1.0]], 2)
    assert (plan["mix"], plan["write"], plan["gain"]) == (0.0, 1, 1.0)
    # A stored one dominates what would be made of another and the newcomer.
    plan = last_plan(heavy, 2)
    assert (plan["mix"], plan["gain"]) == (0.0, 0.0)


# Absent objectives ----------------------------------------------------------------------------


def observed(ledger: Ledger, steps: list[tuple[list[float], list[bool]]]) -> LedgerState:
    state = ledger.init(torch.ones(len(steps[0][0]), dtype=torch.float64))
    for losses, mask in steps:
        _, state = ledger.update(torch.tensor(losses, dtype=torch.float64), state, torch.tensor(mask))
    return state


@pytest.mark.parametrize("capacity", [None, 4])
def test_the_last_observed_value_stands_in(capacity: int | None):
    both, first, second = [True, True], [True, False], [False, True]
    steps = [([3.0, 3.0], both), ([2.0, 99.0], first), ([99.0, 5.0], second), ([1.0, math.nan], first)]
    state = observed(Ledger(capacity=capacity), steps)
    # (3, 3), then (2, 3) which dominates it, then (2, 5) which is dominated, then (1, 5).
    assert state.observed.tolist() == [1.0, 5.0]
    used = state.weights > 0
    assert sorted(zip(state.values[:, used].T.tolist(), state.weights[used].tolist(), strict=True)) == [
        ([1.0, 5.0], 1.0),
        ([2.0, 3.0], 3.0),
    ]


@pytest.mark.parametrize("capacity", [None, 4])
def test_nothing_is_recorded_before_every_objective_was_observed(capacity: int | None):
    ledger = Ledger(capacity=capacity)
    state = observed(ledger, [([3.0, math.nan], [True, False]), ([2.0, 9.0], [True, False])])
    assert state.recorded.item() == 0
    assert not state.weights.any()
    assert state.observed.tolist() == [2.0, math.inf]
    _, state = ledger.update(torch.tensor([9.0, 4.0], dtype=torch.float64), state, torch.tensor([False, True]))
    assert state.recorded.item() == 1
    assert state.values[:, 0].tolist() == [2.0, 4.0]


def test_a_non_finite_loss_does_not_stand_in():
    both, first = [True, True], [True, False]
    ledger = Ledger(capacity=4)
    steps = [([3.0, 3.0], both), ([1.0, math.inf], both), ([math.nan, 1.0], both)]
    assert observed(ledger, steps).observed.tolist() == [3.0, 3.0]
    assert observed(ledger, [*steps, ([2.0, 7.0], first)]).observed.tolist() == [2.0, 3.0]


def test_a_first_loss_of_infinity_does_not_let_the_others_stand_in():
    state = observed(Ledger(capacity=4), [([1.0, math.inf], [True, True])])
    assert state.observed.tolist() == [math.inf, math.inf]
