"""`Suffix` and its time blocks against naive versions with lists."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.conversion.blocks import Blocks

W = torch.tensor([0.3, 0.7], dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The oracle -----------------------------------------------------------------------------------


@dataclass
class Block:
    first: int
    last: int


@dataclass
class Naive:
    """The definition, with every iterate kept."""

    power: float
    capacity: int
    z: float
    x: list[Tensor] = field(default_factory=list)
    f: list[Tensor] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    """Oldest first."""

    def omega(self, block: Block) -> Tensor:
        return torch.arange(block.first, block.last + 1, dtype=torch.float64) ** self.power

    def weight(self, block: Block) -> float:
        return float(self.omega(block).sum())

    def add(self, x: Tensor, f: Tensor) -> None:
        self.x.append(x)
        self.f.append(f)
        t = len(self.x)
        self.blocks.append(Block(t, t))
        if len(self.blocks) > self.capacity:
            weights = [self.weight(block) for block in self.blocks]
            pairs = range(len(weights) - 1)
            costs = [(weights[i] + weights[i + 1]) / (t**self.power + sum(weights[i + 2 :])) for i in pairs]
            i = min(pairs, key=lambda i: (round(costs[i], 9), -i))  # the newest of equal ones
            self.blocks[i : i + 2] = [Block(self.blocks[i].first, self.blocks[i + 1].last)]

    def mean(self, values: list[Tensor], block: Block) -> Tensor:
        omega, held = self.omega(block), torch.stack(values[block.first - 1 : block.last])
        return (omega.unsqueeze(-1) * held).sum(0) / omega.sum()

    def noise(self, block: Block) -> float:
        omega = self.omega(block)
        return float(omega.square().sum() / omega.sum().square())

    @property
    def variance(self) -> Tensor:
        changes = [torch.zeros_like(self.f[0]), *(0.5 * (b - a) ** 2 for a, b in zip(self.f, self.f[1:], strict=False))]
        return self.mean(changes, Block(1, len(self.f)))

    def suffix(self, k: int) -> Block:
        """The newest k blocks."""
        return Block(self.blocks[-k].first, self.blocks[-1].last)

    def bounds(self, w: Tensor) -> list[float]:
        found = []
        for k in range(1, len(self.blocks) + 1):
            block = self.suffix(k)
            error = (self.variance * self.noise(block)).sqrt()
            found.append(float((w * (self.mean(self.f, block) + self.z * error)).max()))
        return found

    def chosen(self, w: Tensor | None) -> int:
        """How many blocks the answer has."""
        if w is not None:
            bounds = self.bounds(w)
            return 1 + bounds.index(min(bounds))
        k = len(self.blocks)
        while k > 1:
            oldest, newer = self.blocks[-k], self.suffix(k - 1)
            error = (self.variance * (self.noise(oldest) + self.noise(newer))).sqrt()
            if not (self.mean(self.f, oldest) - self.mean(self.f, newer) >= self.z * error).all():
                break
            k -= 1
        return k

    def answer(self, w: Tensor | None) -> Tensor:
        return self.mean(self.x, self.suffix(self.chosen(w)))


def falling(T: int, noise: float, seed: int) -> Tensor:
    """Losses (T, 2) that fall and then stay, with noise."""
    level = 1 + 3 / torch.arange(1, T + 1, dtype=torch.float64)
    return level.unsqueeze(-1) * (1 + noise * (draw(T, 2, seed=seed) - 0.5))


def run(conversion: eq.Suffix, x: Tensor, f: Tensor, **given: Any) -> Any:
    state = conversion.init({"x": x[0]}, f[0])
    for point, losses in zip(x, f, strict=True):
        state = conversion.update({"x": point}, losses, state, **given)
    return state


@settings(max_examples=60, deadline=None)
@given(
    T=st.integers(1, 60),
    power=st.sampled_from([0.0, 0.5, 1.0, 8.0]),
    capacity=st.integers(2, 6),
    z=st.sampled_from([0.0, 0.5, 2.0]),
    noise=st.sampled_from([0.0, 0.3, 2.0]),
    seed=st.integers(0, 10**6),
)
def test_it_is_the_definition(T: int, power: float, capacity: int, z: float, noise: float, seed: int):
    f, x = falling(T, noise, seed), draw(T, 3, seed=seed + 1)
    naive, conversion = Naive(power, capacity, z), eq.Suffix(power, capacity, z)
    for point, losses in zip(x, f, strict=True):
        naive.add(point, losses)
    state = run(conversion, x, f)
    weights = state.blocks.weights * state.blocks.clock[1] ** power
    used = int(conversion.size(state))
    assert used == len(naive.blocks)
    expected = [naive.weight(block) for block in reversed(naive.blocks)]
    assert weights[:used].tolist() == pytest.approx(expected, rel=1e-9)
    assert not weights[used:].any()
    assert state.blocks.noise[:used].tolist() == pytest.approx([naive.noise(b) for b in reversed(naive.blocks)])
    for j, block in enumerate(reversed(naive.blocks)):
        torch.testing.assert_close(state.means[:2, j], naive.mean(naive.f, block))
        torch.testing.assert_close(state.slots["x"][state.blocks.slot[j]], naive.mean(naive.x, block))
    torch.testing.assert_close(conversion.output(state, W)["x"], naive.answer(W))
    bounds = naive.bounds(W)
    assert bounds[naive.chosen(W) - 1] == min(bounds)
    torch.testing.assert_close(conversion.output(state)["x"], naive.answer(None))


def test_the_naive_one_answers_with_short_and_with_long_suffixes():
    """Or the comparison above would be worth little."""
    lengths: dict[bool, set[int]] = {True: set(), False: set()}
    for seed, noise in enumerate((0.0, 0.3, 2.0, 2.0)):
        naive = Naive(1.0, 5, 0.5)
        for losses in falling(50, noise, seed):
            naive.add(losses, losses)
        lengths[True].add(naive.chosen(W))
        lengths[False].add(naive.chosen(None))
    assert len(lengths[True]) >= 2
    assert len(lengths[False]) >= 2


# Blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 2.5, 8.0, 16.0])
@pytest.mark.parametrize("number", [2, 3, 8])
def test_blocks_of_one_run_are_those_of_a_batch(power: float, number: int):
    blocks, losses, valid = Blocks(power, number), torch.ones(2), torch.tensor([True, False, True])
    alone, together = blocks.init(losses), blocks.init(losses.expand(3, 2))
    empty = blocks.init(losses)
    for _ in range(400):
        pair, part, mine, alone = blocks.advance_single(alone)
        plan, c, together = blocks.advance(together, valid)
        for a, b in zip(mine, plan, strict=True):
            torch.testing.assert_close(a, b[0], rtol=1e-12, atol=0)
        moves = torch.tensor([0.0] * pair + [part] + [1.0] * (number - pair - 1), dtype=torch.float64)
        torch.testing.assert_close(moves, c[0], rtol=1e-9, atol=0)
        assert plan.mix[1] == plan.gain[1] == 0
    for left, right, unused in zip(alone, together, empty, strict=True):
        torch.testing.assert_close(left, right[0], rtol=1e-9, atol=0)
        assert torch.equal(right[1], unused)


@pytest.mark.parametrize("m", [1, 2, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_a_plan_of_one_run_is_one_of_a_batch(m: int, dtype: torch.dtype):
    """With absent objectives, and with losses that are not finite or whose squares are not."""
    conversion, steps = eq.Suffix(power=2.0, capacity=4), 120
    losses = 2 * draw(steps, m) - 0.5
    losses = torch.where(draw(steps, m, seed=1) < 0.02 / m, math.inf, losses)
    losses = torch.where(draw(steps, m, seed=2) < 0.02 / m, 1e200, losses).to(dtype)
    for masks in (draw(steps, m, seed=3) < 0.6, [None] * steps):
        alone, together = conversion.begin(losses[0]), conversion.begin(losses[:1])
        for f, mask in zip(losses, masks, strict=True):
            mine, alone = conversion.plan(f, alone, mask)
            plan, together = conversion.plan(f[None], together, mask)
            assert mine.gain.item() == pytest.approx(plan.gain.item(), rel=1e-12)
            assert mine.mix.item() == pytest.approx(plan.mix.item(), rel=1e-12)
            if plan.gain > 0:
                assert mine.write.item() == plan.write.item()
            if plan.mix > 0:
                assert (mine.into.item(), mine.other.item()) == (plan.into.item(), plan.other.item())
            assert all(a.dtype == b.dtype and a.shape == b.shape[1:] for a, b in zip(mine, plan, strict=True))
            for a, b in zip(eq.state.flatten(alone).values(), eq.state.flatten(together).values(), strict=True):
                torch.testing.assert_close(a, b[0], rtol=1e-12, atol=1e-13)
        assert alone.blocks.clock[0] > 0.8 * steps


def test_plans_do_not_depend_on_the_losses():
    conversion = eq.Suffix(2.0, 3)
    left = right = conversion.begin(torch.ones(2))
    for t in range(200):
        plan, left = conversion.plan(draw(2, seed=t), left)
        other, right = conversion.plan(1e6 * draw(2, seed=1000 + t), right)
        assert all(torch.equal(a, b) for a, b in zip(plan, other, strict=True))


@pytest.mark.parametrize("power", [0.0, 8.0, 16.0])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_ten_million_steps_in_float32(power: float, batch: tuple[int, ...], monkeypatch):
    """Of a state whose counter is set forward: everything stays finite, and the shares are those of float64."""
    found = []
    for dtype in (torch.float32, torch.float64):
        monkeypatch.setattr("equipoise.conversion.blocks.wide_dtype", lambda _, dtype=dtype: dtype)
        conversion = eq.Suffix(power, 8)
        f = torch.ones(*batch, 2)
        state = conversion.begin(f)
        for _ in range(40):
            _, state = conversion.plan(f, state)
        clock, table = state.blocks.clock.clone(), state.blocks.table.clone()
        clock[..., 0], clock[..., 1] = 9_999_900, 2**23
        table[..., 0, :] = torch.tensor([1.0, 4, 20, 100, 1e3, 1e4, 1e5, 1e6])
        state = state._replace(blocks=state.blocks._replace(clock=clock, table=table))
        for _ in range(100):
            _, state = conversion.plan(f, state)
        assert state.blocks.clock[..., 0].eq(1e7).all()
        assert all(torch.isfinite(x).all() for x in eq.state.flatten(state).values())
        found.append(conversion.shares(state, W).double())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


# What it is for -------------------------------------------------------------------------------


def test_one_lucky_iterate_does_not_take_all():
    """Losses of 0 or 2 times the truth: dominance takes one iterate with losses (0, 0), a suffix averages many."""
    T, runs = 400, 100
    f = 2.0 * (draw(T, runs, 2) < 0.5).double()
    x = torch.eye(T, dtype=torch.float64).unsqueeze(1).expand(T, runs, T)
    found = {}
    rivals: list[Any] = [eq.Adaptive(capacity=8), eq.Suffix(power=0.0)]
    for conversion in rivals:
        state = conversion.init({"x": x[0]}, f[0])
        for point, losses in zip(x, f, strict=True):
            state = conversion.update({"x": point}, losses, state)
        found[type(conversion)] = (answer_of(conversion, state) > 0).sum(-1)  # how many iterates it is made of
    assert (found[eq.Adaptive] == 1).all()
    assert (found[eq.Suffix] >= 20).double().mean() > 0.8
    assert found[eq.Suffix].median() == T


def answer_of(conversion: Any, state: Any) -> Tensor:
    answer: Tensor = conversion.output(state, W)["x"]
    return answer


def test_each_preference_has_its_own_answer():
    """The first loss falls and the second rises: who cares for the second is given the whole run."""
    T = 200
    t = torch.arange(T, dtype=torch.float64) / T
    f, conversion = torch.stack([2 - t, 1 + t], -1), eq.Suffix(power=0.0, capacity=6)
    state = run(conversion, t.unsqueeze(-1), f)
    early, late = (conversion.output(state, torch.tensor(w))["x"].item() for w in ([0.01, 0.99], [0.99, 0.01]))
    assert early == pytest.approx(t.mean().item())
    assert late > 0.99
    both = conversion.shares(state, torch.tensor([[0.01, 0.99], [0.99, 0.01]])[0])
    assert both.sum().item() == pytest.approx(1)


def test_a_preference_of_another_shape_is_refused():
    conversion = eq.Suffix()
    state = conversion.init({"x": torch.zeros(1)}, torch.ones(2))
    with pytest.raises(ValueError, match=r"preference must broadcast to the losses' shape \(2,\); found \(3,\)"):
        conversion.output(state, torch.ones(3))


# Absent objectives ----------------------------------------------------------------------------


def test_the_last_observed_value_stands_in():
    conversion, x = eq.Suffix(power=0.0), {"x": torch.zeros(1)}
    state = conversion.init(x, torch.ones(2))
    steps = [([3.0, 3.0], [True, True]), ([2.0, 99.0], [True, False]), ([99.0, math.nan], [True, False])]
    for losses, mask in steps:
        state = conversion.update(x, torch.tensor(losses), state, mask=torch.tensor(mask))
    assert state.means[:2, :3].tolist() == [[99.0, 2.0, 3.0], [3.0, 3.0, 3.0]]
    assert state.observed.tolist() == [99.0, 3.0]


@pytest.mark.parametrize("batch", [(), (1,)], ids=["one run", "a batch"])
def test_an_objective_that_was_never_observed_does_not_hold_iterates_back(batch):
    """Until its first value it counts nowhere; then earlier blocks have that value too."""
    conversion, x = eq.Suffix(power=0.0), {"x": torch.zeros(*batch, 1)}
    state = conversion.init(x, torch.ones(*batch, 2))
    for step, (losses, mask) in enumerate([([9.0, math.nan], [1, 0]), ([1.0, math.nan], [1, 0]), ([1.0, 4.0], [1, 1])]):
        seen = torch.tensor(losses).expand(*batch, 2), torch.tensor(mask, dtype=torch.bool).expand(*batch, 2)
        state = conversion.update({"x": torch.full((*batch, 1), float(step))}, seen[0], state, mask=seen[1])
        if step == 1:
            assert state.observed.flatten().tolist() == [1.0, math.inf]
            assert conversion.output(state, torch.tensor([0.5, 0.5]))["x"].item() == 1.0  # after the loss of 9
    means = state.means.reshape(4, -1)
    assert means[:2, :3].tolist() == [[1.0, 1.0, 9.0], [4.0, 4.0, 4.0]]
    assert means[3, :3].tolist() == [0.0, 0.0, 0.0]  # no difference was measured


def test_an_objective_that_is_never_observed_leaves_no_infinity_behind():
    conversion, mask = eq.Suffix(), torch.tensor([True, False])
    single, batch = (conversion.begin(torch.ones(*shape, 2)) for shape in ((), (1,)))
    for step in range(40):
        losses = torch.tensor([1.0 + step % 3, 0.0])
        single = conversion.plan(losses, single, mask)[1]
        batch = conversion.plan(losses.unsqueeze(0), batch, mask.unsqueeze(0))[1]
    torch.testing.assert_close(single.means, batch.means[0])
    assert bool(single.means.isfinite().all())


def test_nothing_is_recorded_before_an_objective_was_observed():
    conversion = eq.Suffix()
    state = conversion.begin(torch.ones(2))
    plan, state = conversion.plan(torch.tensor([3.0, math.nan]), state, torch.tensor([False, False]))
    assert plan.gain.item() == 0
    assert conversion.size(state).item() == 0


def test_absence_does_not_lower_the_noise():
    """Half of the observations are missing; a value that stands in has not been measured again."""
    conversion, T = eq.Suffix(power=0.0), 2000
    noise, present = torch.randn(T, 2, generator=torch.Generator().manual_seed(0)), draw(T, 2) < 0.5
    full = part = conversion.begin(noise[0])
    for f, mask in zip(noise, present, strict=True):
        _, full = conversion.plan(f, full)
        _, part = conversion.plan(f, part, mask)
    for state in (full, part):
        weights = state.blocks.weights
        variance = 0.5 * (weights * state.means[2:]).sum(-1) / weights.sum(-1)
        assert ((variance - 1).abs() < 0.2).all(), variance
