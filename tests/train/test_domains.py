"""Batches drawn by λ: exact expectations, prefetching, resuming, ranks, overlapping domains, streams, bad input."""

import itertools
import os
import subprocess
import sys
import warnings
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.train import domains as module
from equipoise.train.mixture import allot, bounded

SIZES = [30, 9, 3]
DOMAINS = torch.tensor([0] * 30 + [1] * 9 + [2] * 3)
METHOD = (eq.OMD(0.3), eq.Suffix())
"""λ moves from the first step on."""
PROBABILITIES = st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=8).map(lambda x: np.array(x) / sum(x))


@pytest.mark.parametrize("room", [2**20, 50], ids=["blocks of 32 steps", "blocks of 8"])
def test_the_random_part_of_a_step_depends_on_seed_and_step_alone(room, monkeypatch):
    monkeypatch.setattr(module, "ROOM", room)
    sampler = eq.DomainSampler(DOMAINS, 6, steps=100, seed=5)
    for step in (0, 31, 32, 63, 64, 33, 31, 0):
        sampler._drawn = step
        generator, (shift, order) = np.random.default_rng((5, 0, step)), sampler._chance()
        assert shift == generator.random()
        assert order.tolist() == generator.permutation(6).tolist()


# Whole numbers with given means --------------------------------------------------------------------
@given(PROBABILITIES, st.integers(1, 50))
def test_numbers_have_their_means_exactly(q, n):
    expected = n * q
    # Between the fractional parts of these sums the numbers do not depend on the shift.
    ends = np.cumsum(expected - np.floor(expected + 1e-9))
    cuts = np.unique(np.concatenate([[0.0, 1.0], np.clip(ends % 1.0, 0.0, 1.0)]))
    mean = sum((b - a) * allot(expected, (a + b) / 2) for a, b in itertools.pairwise(cuts))
    np.testing.assert_allclose(mean, expected, atol=1e-6)


@given(PROBABILITIES, st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_numbers_are_rounded_up_or_down_and_their_sum_is_kept(q, n, shift):
    numbers = allot(n * q, shift)
    assert numbers.sum() == n
    assert (numbers >= np.floor(n * q + 1e-9)).all()
    assert (numbers <= np.floor(n * q + 1e-9) + 1).all()


@given(PROBABILITIES, st.floats(0, 1), st.floats(1, 4))
def test_bounded_probabilities_keep_their_bounds_and_ratios(q, low, high):
    m = len(q)
    low, high = low / m, high / m
    found = bounded(q, low, high)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= low).all()
    assert (found <= high).all()
    free = (found > low * (1 + 1e-9)) & (found < high * (1 - 1e-9))
    ratios = found[free] / q[free]
    np.testing.assert_allclose(ratios, np.full(len(ratios), ratios.mean() if len(ratios) else 1.0), rtol=1e-6)


# Exact expectations --------------------------------------------------------------------------------
class Scripted:
    """A generator whose numbers are given: the shift of every step, and the order of every pass."""

    shifts: dict[int, float]
    orders: dict[int, tuple[int, ...]]

    def __init__(self, key: tuple[int, int, int]) -> None:
        _, self.purpose, self.number = key

    def random(self) -> float:
        return self.shifts.get(self.number, 0.3)

    def permutation(self, what: Any) -> Any:
        return np.array(self.orders[self.purpose - 1]) if self.purpose else np.arange(what)


TARGETS = [(0.5, 0.3, 0.2), (0.1, 0.1, 0.8), (0.8, 0.1, 0.1), (0.2, 0.7, 0.1)]
"""Coefficients of successive steps."""
BASE = [0.5, 0.25, 0.25]


def gradient(sampler: eq.DomainSampler, n: int, *, step: int, ahead: int, accumulate: int = 1) -> Tensor:
    """What multiplies the gradient of every sample's loss in a step that was drawn `ahead` steps before."""
    batches = iter(sampler)
    drawn = deque(list(itertools.islice(batches, accumulate)) for _ in range(ahead))
    for number in range(step + 1):
        drawn.append(list(itertools.islice(batches, accumulate)))
        calls, c = drawn.popleft(), torch.tensor(TARGETS[number], dtype=torch.float64)
        total = torch.zeros(n, dtype=torch.float64)
        for batch in calls:
            values = torch.ones(len(batch), dtype=torch.float64, requires_grad=True)
            domains = torch.tensor([draw.domain for _, draw in batch])
            weights = torch.tensor([draw.weight for _, draw in batch], dtype=torch.float64)
            f, _ = eq.group_losses(values, domains, 3, weights=weights)
            ((c * f).sum() / accumulate).backward()
            assert values.grad is not None
            total.index_add_(0, torch.tensor([i for i, _ in batch]), values.grad)
        sampler.follow(c)
    return total


def expectation(make: Any, monkeypatch: Any, members: list[int], n: int, *, step: int, **how: Any) -> Tensor:
    """The mean over every order of each domain and over a grid of shifts, on which the numbers are constant."""
    monkeypatch.setattr(np.random, "default_rng", Scripted)
    grid = 20  # n q are multiples of 0.1
    found = []
    for k in range(grid):
        Scripted.shifts = {step: (k + 0.5) / grid}
        for rotation in range(6):  # of orders in which each member is at each place as often
            Scripted.orders = {i: tuple(np.roll(range(size), rotation)) for i, size in enumerate(members)}
            found.append(gradient(make(), n, step=step, **how))
    return torch.stack(found).mean(0)


@pytest.mark.parametrize(("step", "ahead"), [(0, 0), (2, 0), (2, 2), (3, 1), (3, 3)])
def test_the_gradient_is_right_in_expectation_however_far_ahead_a_batch_was_drawn(monkeypatch, step, ahead):
    domains = [0, 0, 0, 1, 1, 2]

    def make() -> eq.DomainSampler:
        return eq.DomainSampler(domains, 10, base=BASE, steps=20)

    found = expectation(make, monkeypatch, [3, 2, 1], 6, step=step, ahead=ahead)
    c = TARGETS[step]
    expected = torch.tensor([c[i] / domains.count(i) for i in domains], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ahead", [0, 2])
def test_so_it_is_with_accumulation_and_where_domains_overlap(monkeypatch, ahead):
    membership = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]])

    def make() -> eq.DomainSampler:
        return eq.DomainSampler(membership, 5, accumulate=2, base=BASE, steps=20)

    found = expectation(make, monkeypatch, [3, 2, 2], 4, step=2, ahead=ahead, accumulate=2)
    c = torch.tensor(TARGETS[2], dtype=torch.float64)
    parts = membership.double()
    torch.testing.assert_close(found, (parts / parts.sum(0)) @ c, rtol=1e-12, atol=1e-12)


def test_weights_of_another_step_would_be_wrong(monkeypatch):
    """The check above can fail: with the q of the step that comes instead of the one drawn with, it does."""
    kept = module._Domains._draw

    def careless(self: Any) -> Any:
        (batch,) = kept(self)
        q = self._probabilities(np.array(TARGETS[self._drawn % 4]))
        counts = Counter(draw.domain for _, draw in batch)
        return [[(k, d._replace(weight=counts[d.domain] / (10 * q[d.domain]))) for k, d in batch]]

    monkeypatch.setattr(module._Domains, "_draw", careless)
    found = expectation(
        lambda: eq.DomainSampler([0, 0, 1, 2], 10, base=BASE, steps=20), monkeypatch, [2, 1, 1], 4, step=2, ahead=2
    )
    assert abs(float(found[3]) - TARGETS[2][2]) > 0.01


def test_a_part_of_a_sample_is_drawn_as_often_as_it_says():
    parts = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0], [1.0, 0.5]])
    sampler = eq.DomainSampler(parts, 2)
    mean = np.zeros((3, 5))
    for k, order in itertools.product(range(12), itertools.permutations(range(4))):
        Scripted.shifts, Scripted.orders = {0: (k + 0.5) / 12}, {0: order}
        found = sampler._shuffled(0, 3, Scripted((0, 1, 0)))  # type: ignore[arg-type]
        mean[range(3), found] += 1 / (12 * 24)
    np.testing.assert_allclose(mean, np.tile(np.array([1, 0.75, 0.25, 0, 1]) / 3, (3, 1)), atol=1e-12)


# In a loop -----------------------------------------------------------------------------------------
class Loop:
    """A regression whose domains look at different inputs."""

    def __init__(self, *, workers: int = 0, **settings: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(len(DOMAINS), 3, generator=generator)
        y = x[torch.arange(len(DOMAINS)), DOMAINS]
        torch.manual_seed(1)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.mol = eq.MultiObjective(self.model, self.optimizer, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, method=METHOD)
        self.sampler = eq.DomainSampler(DOMAINS, **{"batch_size": 6, "steps": 9, **settings})
        data = self.sampler.with_draws(TensorDataset(x, y, torch.arange(len(DOMAINS))))
        self.loader = DataLoader(data, batch_sampler=self.sampler, num_workers=workers)
        self.parts: list[Any] = [self.model, self.optimizer, self.mol, self.sampler]
        self.seen: list[list[int]] = []
        self.weights: list[Tensor] = []

    def run(self, steps: int) -> None:
        done = 0
        while done < steps:
            for (x, y, numbers), draw in self.loader:
                assert torch.equal(DOMAINS[numbers], draw.domain)
                values = (self.model(x).squeeze(1) - y).square()
                scalar = self.mol(*eq.group_losses(values, draw.domain, 3, weights=draw.weight))
                self.sampler.follow(self.mol)
                scalar.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.seen.append(numbers.tolist())
                self.weights.append(draw.weight)
                done += 1
                if done == steps:
                    break

    def save(self) -> dict[str, Any]:
        return {str(k): part.state_dict() for k, part in enumerate(self.parts)}

    def load(self, saved: dict[str, Any]) -> None:
        for k, part in enumerate(self.parts):
            part.load_state_dict(saved[str(k)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("repeats", [None, 8])
def test_a_run_that_is_resumed_within_an_epoch_is_the_same_bit_for_bit(workers, repeats, tmp_path):
    whole, first = Loop(workers=workers, repeats=repeats), Loop(workers=workers, repeats=repeats)
    whole.run(18)
    first.run(13)  # 4 steps into the second epoch
    eq.train.save(first.save(), tmp_path / "run.pt")
    resumed = Loop(workers=workers, repeats=repeats)
    resumed.load(eq.train.load(tmp_path / "run.pt"))
    assert len(resumed.loader) == 9  # of an epoch
    resumed.run(5)
    assert first.seen + resumed.seen == whole.seen
    assert torch.equal(torch.stack(first.weights + resumed.weights), torch.stack(whole.weights))
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))
    assert torch.equal(resumed.sampler.probabilities, whole.sampler.probabilities)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_left_early_goes_on_where_it_was(workers):
    whole, parts = Loop(workers=workers, repeats=8), Loop(workers=workers, repeats=8)
    whole.run(18)
    for steps in (4, 7, 7):  # within the first epoch, and within the second
        parts.run(steps)
    assert parts.seen == whole.seen
    assert parts.sampler.state_dict()["step"] == 18


def test_workers_see_a_later_lambda_and_weights_that_go_with_it():
    alone, ahead = Loop(), Loop(workers=2)
    alone.run(9)
    ahead.run(9)
    assert alone.seen[0] == ahead.seen[0]
    assert alone.seen != ahead.seen
    # Two of each were expected in the first step, and there were two of each.
    assert torch.equal(ahead.weights[0], torch.ones(6, dtype=torch.float64))
    # Four batches are drawn before the first step, one with each step after it.
    alike = [a == b for a, b in zip(alone.seen, ahead.seen, strict=True)]
    assert alike[0]
    uniform = eq.DomainSampler(DOMAINS, 6, steps=9)
    assert ahead.seen[:4] == [[i for i, _ in batch] for batch in itertools.islice(uniform, 4)]


def test_follow_reads_what_is_committed():
    loop = Loop()
    loop.run(3)
    (values,) = (
        x for x, _ in [eq.group_losses(loop.model.weight[0, :1].square() + k, torch.tensor([k]), 3) for k in [2]]
    )
    loop.sampler._draw()
    loop.mol(values, torch.tensor([0.0, 0.0, 1.0]))
    before = loop.mol.coefficients.clone()
    loop.sampler.follow(loop.mol)  # a call that no step has followed changes nothing
    expected = 0.8 * before.double() / before.double().sum() + 0.2 / 3
    torch.testing.assert_close(loop.sampler.probabilities, expected)


def test_every_domain_is_in_every_step_and_goes_through_all_its_samples():
    loop = Loop()
    loop.run(27)
    for step in loop.seen:
        assert {int(DOMAINS[i]) for i in step} == {0, 1, 2}
    small = [i for step in loop.seen for i in step if i >= 39]
    assert [sorted(small[k : k + 3]) for k in range(0, len(small) - 2, 3)] == [[39, 40, 41]] * (len(small) // 3)


def test_the_domain_that_counts_is_drawn_more():
    sampler = eq.DomainSampler(DOMAINS, 20, steps=100, explore=0.2)
    drawn: Counter[int] = Counter()
    for batch in sampler:
        drawn.update(draw.domain for _, draw in batch)
        sampler.follow(torch.tensor([0.0, 1.0, 3.0]))
    q = np.array([0.2 / 3, 0.2 + 0.2 / 3, 0.6 + 0.2 / 3])
    np.testing.assert_allclose(sampler.probabilities, q)
    np.testing.assert_allclose([drawn[i] / 2000 for i in range(3)], 0.99 * q + 0.01 / 3, atol=0.01)


@pytest.mark.parametrize("repeats", [3, 4.5, 20])
def test_no_domain_is_repeated_more_often_than_allowed(repeats):
    sampler = eq.DomainSampler(DOMAINS, 10, steps=9, repeats=repeats)
    for _ in range(3):
        drawn: Counter[int] = Counter()
        for batch in sampler:
            drawn.update(draw.domain for _, draw in batch)
            sampler.follow(torch.tensor([0.0, 0.0, 1.0]))
        assert all(drawn[i] <= repeats * size for i, size in enumerate(SIZES))
        assert drawn.total() == 90
        if repeats < 20:
            assert drawn[2] == int(repeats * 3)  # as much as is allowed
        assert float(sampler.probabilities[2]) == pytest.approx(
            min(repeats * 3 // 1 / 90, 0.8 + 0.2 / 3)
        )  # of the next


def test_seed_and_coefficients_decide_the_order_and_nothing_else():
    def order(seed: int) -> list[Any]:
        return list(eq.DomainSampler(DOMAINS, 6, seed=seed))

    before = torch.get_rng_state()
    assert order(0) == order(0) != order(1)
    assert torch.equal(torch.get_rng_state(), before)
    twice = eq.DomainSampler(DOMAINS, 6)
    assert list(twice) != list(twice)


def test_ranks_draw_disjointly_what_one_process_draws():
    whole = eq.DomainSampler(DOMAINS, 10, steps=4, accumulate=2)
    ranks = [eq.DomainSampler(DOMAINS, 5, steps=4, accumulate=2, rank=r, world_size=2) for r in range(2)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert [parts[k % 2][k // 2] for k in range(10)] == batch  # places take turns
    # 80 samples of 4 steps: a domain is gone through before one of its samples comes again, on whichever rank
    drawn = [
        i
        for sampler in ranks
        for batch in eq.DomainSampler(DOMAINS, 5, steps=4, rank=sampler.rank, world_size=2)
        for i, draw in batch
        if draw.domain == 0
    ]
    assert len(set(drawn)) == len(drawn) > 0


def test_two_processes_draw_disjointly_and_agree_on_lambda(tmp_path):
    script = Path(__file__).with_name("two_samplers.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen([*command, str(rank), "2", str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    subprocess.run([*command, "0", "1", str(tmp_path)], env=environment, check=True, timeout=120)
    first, second, single = (torch.load(tmp_path / f"{name}.pt") for name in ("0-2", "1-2", "0-1"))
    assert torch.equal(first["lambda"], second["lambda"])
    assert len(first["lambda"].unique(dim=0)) > 10  # it moves
    torch.testing.assert_close(first["lambda"], single["lambda"])
    torch.testing.assert_close(first["weight"], single["weight"])
    # Means over the tokens of all micro-batches and ranks.
    torch.testing.assert_close(first["accumulated"], single["accumulated"])
    assert torch.equal(first["accumulated"], second["accumulated"])
    for here, there, both in zip(first["seen"], second["seen"], single["seen"], strict=True):
        assert sorted(here + there) == sorted(both)
    # Within a pass of a domain no sample is on both ranks.
    large = [[i for step in found["seen"][:3] for i in step if i < 60] for found in (first, second)]
    assert not set(large[0]) & set(large[1])


def test_a_forgotten_follow_is_said_once():
    sampler = eq.DomainSampler(DOMAINS, 3, steps=1010)
    with pytest.warns(UserWarning, match="follow was not called in 1000 steps, .* by base alone: call follow") as said:
        list(sampler)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(eq.DomainSampler(DOMAINS, 3, steps=1010, explore=1))


# Streams -------------------------------------------------------------------------------------------
def streams(**settings: Any) -> eq.DomainStreams:
    return eq.DomainStreams([range(30), range(100, 109), range(200, 203)], 6, **{"steps": 9, **settings})


def test_streams_follow_the_rule_of_the_sampler():
    ours, sampler = streams(), eq.DomainSampler(DOMAINS, 6, steps=9)
    for number, ((samples, draw), batch) in enumerate(zip(ours, sampler, strict=True)):
        assert draw.domain.tolist() == [d.domain for _, d in batch]
        assert draw.weight.tolist() == [d.weight for _, d in batch]
        assert (samples // 100).tolist() == draw.domain.tolist()
        c = torch.tensor([1.0, 2.0, float(number % 3)])
        ours.follow(c)
        sampler.follow(c)


def test_a_stream_that_ends_begins_again_as_often_as_is_allowed():
    read = [int(x) for samples, _ in streams(explore=1) for x in samples if x >= 200]
    assert read == [200 + k % 3 for k in range(18)]
    assert len(list(streams(explore=1, repeats=2))) == 3  # of the third stream two samples a step


def test_streams_resume_where_they_were():
    def run(ours: eq.DomainStreams, steps: int) -> list[Any]:
        found = []
        for number, (samples, draw) in enumerate(ours):
            found.append((samples.tolist(), draw.weight.tolist()))
            ours.follow(torch.tensor([1.0, 1.0 + number, 3.0]))
            if number + 1 == steps:
                break
        return found

    whole, first, resumed = streams(), streams(), streams()
    expected = run(whole, 9)
    found = run(first, 4)
    resumed.load_state_dict(first.state_dict())
    rest = []
    for number, (samples, draw) in enumerate(resumed, start=4):
        rest.append((samples.tolist(), draw.weight.tolist()))
        resumed.follow(torch.tensor([1.0, 1.0 + number, 3.0]))
    assert found + rest == expected


def test_a_loader_takes_streams_whole():
    assert [d.domain.shape for _, d in DataLoader(streams(), batch_size=None)] == [(6,)] * 9
    with pytest.raises(ValueError, match=r"streams must be read in the main process: .*; found a worker process"):
        list(DataLoader(streams(), batch_size=None, num_workers=1))


def test_domains_may_be_arrays_lists_or_of_pandas():
    pandas = pytest.importorskip("pandas")
    rows = [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    for forms in (
        (torch.tensor(rows), rows, np.array(rows), pandas.DataFrame(rows, [7, 8, 9])),
        (torch.tensor([0, 1, 1]), [0, 1, 1], np.array([0, 1, 1]), pandas.Series([0, 1, 1], [7, 8, 9])),
    ):
        first, *others = ([*eq.DomainSampler(each, batch_size=4, steps=3)] for each in forms)
        assert others == [first] * 3


# Bad input -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("domains", "settings", "message"),
    [
        ([0, 2], {}, "domains must hold a sample of each of the 3 domains; found none of domain 1"),
        ([0, 1, 3], {"m": 3}, r"domains must lie in 0\.\.2; found 3"),
        ([[1, 0], [0, 0]], {}, "domains must have a part above 0 for every sample; found none for sample 1"),
        ([[1, 0], [1, 0]], {}, "domains must hold a sample of each of the 2 domains; found none of domain 1"),
        ([[1.0, 0.5], [1.5, 0.0]], {}, r"domains must have parts in \[0, 1\]; found 1\.5"),
        ([[1.0, 0.5], [float("nan"), 0.0]], {}, r"domains must have parts in \[0, 1\]; found nan"),
        ([[1, 1]], {"m": 3}, "domains must have a column for each of the 3 domains; found 2"),
        ([0, 1], {"batch_size": 1}, r"a step must have a place for each of the 2 domains: .* found 1 · 1 batches"),
        (["a", "b"], {}, r"domains must be whole numbers, such as numpy\.unique\(ids, .*\)\[1\]; found 'a'"),
        ([0, 1], {"batch_size": 0}, "batch_size must be a whole number of at least 1; found 0"),
        ([0, 1], {"explore": 1.5}, r"explore must lie in \[0, 1\]; found 1\.5"),
        ([0, 1], {"base": [1.0, 0.0]}, r"base must be positive and finite; found \[1\.0, 0\.0\]"),
        ([0, 1], {"base": [1.0]}, "base must have one number per domain, 2; found"),
        (
            [0, 1],
            {"repeats": 3, "steps": 4},
            r"repeats must leave every domain .* found 3 · 1 samples of domain 0 for 4",
        ),
        (
            [0] * 9 + [1],
            {"repeats": 3, "steps": 3, "batch_size": 20},
            "repeats must leave enough .* found 3 · 10 for 60",
        ),
        ([0, 1], {"steps": 0}, "steps must be a whole number of at least 1; found 0"),
        ([0, 1], {"rank": 2, "world_size": 2}, r"rank must lie in 0\.\.1; found 2"),
    ],
)
def test_a_bad_sampler_is_named(domains, settings, message):
    with pytest.raises(ValueError, match=message):
        eq.DomainSampler(domains, **{"batch_size": 4, **settings})


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [
        ([0.5, 0.5], r"coefficients must have shape \(3,\); found \(2,\)"),
        ([0.5, -0.1, 0.6], "coefficients must be non-negative and finite, and not all 0; found"),
        ([0.5, float("nan"), 0.6], "coefficients must be non-negative and finite, and not all 0; found"),
        ([0.0, 0.0, 0.0], "coefficients must be non-negative and finite, and not all 0; found"),
    ],
)
def test_bad_coefficients_are_named(coefficients, message):
    sampler = eq.DomainSampler(DOMAINS, 6)
    next(iter(sampler))
    with pytest.raises(ValueError, match=message):
        sampler.follow(torch.tensor(coefficients))


def test_follow_once_a_step():
    sampler = eq.DomainSampler(DOMAINS, 6)
    next(iter(sampler))
    sampler.follow(torch.ones(3))
    with pytest.raises(
        ValueError, match=r"follow must be called once for every step .* found 1 steps drawn, and followed"
    ):
        sampler.follow(torch.ones(3))


def test_a_loader_without_the_sampler_is_named():
    data = eq.DomainSampler(DOMAINS, 6).with_draws(TensorDataset(DOMAINS))
    with pytest.raises(ValueError, match="indices must be those of a DomainSampler: DataLoader"):
        next(iter(DataLoader(data, batch_size=2, sampler=[0, 1])))


def test_a_checkpoint_of_other_domains_is_named():
    saved = eq.DomainSampler(DOMAINS, 6).state_dict()
    with pytest.raises(eq.StateMismatchError, match=r"explore must be 0\.3; found 0\.2"):
        eq.DomainSampler(DOMAINS, 6, explore=0.3).load_state_dict(saved)
    with pytest.raises(eq.StateMismatchError, match=r"sizes must be \[30, 9, 4\]; found \[30, 9, 3\]"):
        eq.DomainSampler([*DOMAINS.tolist(), 2], 6).load_state_dict(saved)
    with pytest.raises(eq.StateMismatchError, match="state must have the entries"):
        eq.DomainSampler(DOMAINS, 6).load_state_dict({})
    with pytest.raises(eq.StateMismatchError, match="state must have the entry read"):
        streams().load_state_dict(saved)


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ([], {}, "streams must hold at least one stream; found none"),
        ([range(3), range(0)], {}, "streams must have samples, and begin again when iterated again; found none in 1"),
        ([range(3), iter(range(3))], {}, "streams must have samples, and begin again .*; found none in 1"),
        ([range(3)], {"repeats": 0.5}, "repeats must be None or a whole number of at least 1; found 0.5"),
    ],
)
def test_bad_streams_are_named(given, settings, message):
    with pytest.raises(ValueError, match=message):
        list(eq.DomainStreams(given, 4, steps=5, **settings))


def test_a_data_set_with_draws_has_the_length_of_the_data_set():
    data = TensorDataset(torch.ones(4, 1))
    assert len(eq.DomainSampler([0, 0, 1, 1], batch_size=2).with_draws(data)) == 4  # type: ignore[arg-type]
