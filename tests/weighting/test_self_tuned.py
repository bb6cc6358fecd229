"""SelfTuned: hand-computed steps, its two implementations against each other, and what it promises."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.simplex import local_step, local_step_single
from equipoise.weighting.protocol import Ideal
from equipoise.weighting.self_tuned import ARRIVED, TRAVELS, SelfTunedState

HALF = torch.tensor([0.5, 0.5])


def run(weighting: eq.SelfTuned, losses: Tensor, w: Tensor, **extra: Tensor) -> tuple[Tensor, SelfTunedState]:
    """All coefficients (T, *B, m) and the last state for losses (T, *B, m)."""
    state, found = weighting.init(losses[0]), []
    for t, f in enumerate(losses):
        c, state = weighting.update(f, state, w, **{name: value[t] for name, value in extra.items()})
        found.append(c)
    return torch.stack(found), state


def test_a_first_step_by_hand():
    # g = (0.55, 0.45), s = 0.5, d = (0.1, −0.1), ρ = 2: y = ½ + ¼·0.1·0.2, λ = y + (h₁h₂/(h₁ + h₂))·2·0.2
    weighting = eq.SelfTuned(youth=0)
    losses = torch.tensor([1.1, 0.9], dtype=torch.float64)
    c, state = weighting.update(losses, weighting.init(losses), HALF)
    assert c.tolist() == [0.25, 0.25]
    assert state.anchor[0].item() == pytest.approx(0.505)
    assert state.dual[0].item() == pytest.approx(0.505 + 0.505 * 0.5 / 1.005 * 0.4)


def test_while_training_is_young_it_is_a_weighted_sum():
    losses = torch.stack([torch.full((40,), 3.0), torch.linspace(1.0, 0.4, 40)], -1)  # one has not begun to fall
    found, _ = run(eq.SelfTuned(), losses, HALF)
    assert torch.equal(found, torch.full((40, 2), 0.25))


def test_losses_at_rest_end_youth():
    found, _ = run(eq.SelfTuned(), torch.tensor([3.0, 1.0]).expand(100, 2), HALF)
    assert found[-1].tolist() == [0.5, 0.0]


def test_youth_ends_with_progress_not_with_a_number_of_steps():
    fast, slow = (torch.tensor([3.0, 1.0]) * 0.98 ** (k * torch.arange(400.0)).unsqueeze(-1) for k in (4, 1))
    ends = [next(t for t, c in enumerate(run(eq.SelfTuned(), f, HALF)[0]) if c[0] > 0.26) for f in (fast, slow)]
    assert ends[0] < ends[1] / 2 < 100


def test_a_loss_that_rises_ends_youth():
    falls = torch.stack([torch.linspace(1.0, 0.9, 60), torch.linspace(0.5, 0.9, 60)], -1)
    found, _ = run(eq.SelfTuned(), falls, HALF)
    assert found[-1, 0] != 0.25


def test_a_model_that_was_trained_before_is_not_young():
    """If one of three losses still falls, by 10 %, λ is free after 50 steps; if all do, as from scratch, it is not."""
    falls, stays, w = 1 - 0.025 * torch.arange(1.0, 61).log(), torch.ones(60), torch.full((3,), 1 / 3)
    noise = 1 + 0.003 * torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    trained, scratch = (
        run(eq.SelfTuned(), noise * torch.stack([3 * others, falls, others], -1), w)[0][..., 0]
        for others in (stays, falls)
    )
    assert trained[:50].min() > 0.09
    assert trained[:50].max() < 0.13
    assert trained[50:].min() > 0.3
    assert torch.allclose(scratch, torch.tensor(1 / 9))


@pytest.mark.parametrize("batch", [(), (1,)], ids=["one run", "a batch"])
def test_short_steps_with_exact_losses_need_no_floor(batch):
    """After 50 steps: from then on feedback alone keeps every objective in the run."""
    fall = 1 - 0.025 * torch.arange(1.0, 61).log()
    exact, noisy = (
        run(eq.SelfTuned(), torch.stack([3 * fall, fall * spoilt], -1).reshape(60, *batch, 2), HALF)[0][..., 0]
        for spoilt in (torch.ones(60), 1 + 0.05 * torch.randn(60, generator=torch.Generator().manual_seed(1)))
    )
    assert torch.allclose(exact[:49], torch.tensor(0.25))
    assert exact[50:].min() > 0.4
    assert noisy[49:].max() < 0.3


def test_an_objective_that_starts_far_below_the_largest_is_let_go_sooner():
    """At 0.8 of its start where that is a 40th of the largest gain, not at a quarter."""
    fall = torch.linspace(1.0, 0.3, 30).square()
    near, far = (
        run(eq.SelfTuned(), torch.stack([torch.linspace(1.0, 0.96, 30), share * fall], -1), HALF)[0][..., 1]
        for share in (1 / 5, 1 / 40)
    )
    assert near[10].item() == 0.25
    assert far[10].item() == 0.0


# The brake -------------------------------------------------------------------------------------


def alternating(steps: int) -> Tensor:
    """Losses (steps, 2) of which the first is far the larger and goes up and down."""
    return torch.stack([10.0 + (-1.0) ** torch.arange(steps), torch.full((steps,), 0.1)], -1).double()


def test_losses_that_alternate_at_a_corner_halve_the_coefficients():
    weighting = eq.SelfTuned(youth=0)
    found, state = run(weighting, alternating(200), HALF)
    assert torch.allclose(found.sum(-1)[:47], HALF[:1].double())  # 1 − 0.98⁴⁵ < 0.6: never before 46 turns
    ratio = found.sum(-1)[1:] / found.sum(-1)[:-1]
    cuts = (ratio < 0.9).nonzero().flatten()
    assert cuts.diff().tolist() == [46, 46, 46]  # each takes the evidence of another 46 steps
    assert torch.allclose(ratio[cuts], HALF[:1].double())
    torch.testing.assert_close(weighting.foreseen(state, HALF), state.dual * state.brake / 2)


def test_the_brake_is_released_and_never_below_its_least():
    found, state = run(eq.SelfTuned(youth=0), alternating(2_000), HALF)
    assert found.amax(-1).min().item() >= 0.5e-3
    weighting, calm = eq.SelfTuned(youth=0), torch.tensor([10.0, 0.1], dtype=torch.float64)
    for _ in range(3_500):
        c, state = weighting.update(calm, state, HALF)
    assert c.tolist() == [0.5, 0.0]


def test_neither_noise_at_a_corner_nor_turns_elsewhere_brake():
    noise = torch.randn(1_000, 2, generator=torch.Generator().manual_seed(1)).double()
    _, noisy = run(eq.SelfTuned(youth=0), torch.tensor([10.0, 0.1]) * (1 + 0.05 * noise), HALF)
    balanced = torch.stack([1 + 0.1 * (-1.0) ** torch.arange(1_000), torch.ones(1_000)], -1).double()
    _, inner = run(eq.SelfTuned(youth=0), balanced, HALF)
    assert noisy.used[0] > 0.9 > inner.used.max()
    assert noisy.brake.item() == inner.brake.item() == 1.0


def test_steps_too_long_for_one_objective_are_shortened():
    """F4, an extreme preference and a rate of 0.1: without the brake the losses jump up and down for ever."""
    problem, w = eq.problems.F4(), torch.tensor([[0.01, 0.99]], dtype=torch.float64)
    losses = eq.solve(problem, w, seeds=(5, 6), steps=1_000, step_size=0.1).losses["solution"]
    best = (w * problem.solution(w)).amax(-1)
    assert ((w * losses).amax(-1) / best).max().item() < 1.1  # 7.1 without it


def sawtooth(steps: int) -> Tensor:
    """Losses (steps, 2) that fall in four steps and jump back in one."""
    falls = 1.0 - 0.2 * (torch.arange(steps) % 5)
    return torch.stack([falls, falls], -1).double()


def test_a_jump_after_several_falls_shortens_steps_for_a_trial():
    """If the jumps go on, steps are as long as before after 100 steps, and jumps of that size are no reason again."""
    weighting = eq.SelfTuned(youth=0)
    found, _ = run(weighting, sawtooth(2_000), HALF)
    total = found.sum(-1) / 0.5
    assert torch.equal(total[:301], torch.ones(301).double())  # the first step that could be shortened is the 302nd
    assert total[301:401].min() == 0.25
    assert (total[301:401] <= 0.25 * 1.002**100).all()
    assert torch.equal(total[401:], torch.ones(1_599).double())


def test_shorter_steps_stay_where_they_end_the_jumps():
    calm = torch.full((400, 2), 0.5).double()
    found, _ = run(eq.SelfTuned(youth=0), torch.cat([sawtooth(301), calm]), HALF)
    total = found.sum(-1) / 0.5
    assert torch.allclose(total[301:], 0.25 * 1.002 ** torch.arange(400).double())


@pytest.mark.parametrize("batch", [(), (1,)], ids=["one run", "a batch"])
def test_a_trial_that_ends_is_judged_before_another_begins(batch):
    """Jumps that have grown in it by a tenth are reason enough for another one; their steps would be shorter still."""
    losses = sawtooth(1_000)
    losses[301:] = 1 - 1.1 * (1 - losses[301:])
    found, _ = run(eq.SelfTuned(youth=0), losses.reshape(1_000, *batch, 2), HALF)
    total = found.sum(-1).flatten() / 0.5
    assert total[301:401].min() == 0.25
    assert torch.equal(total[401:], torch.ones(599).double())


@pytest.mark.parametrize("turned", [1, -1], ids=["up and down alike", "rises and drops"])
def test_neither_noise_nor_drops_are_a_reason_for_shorter_steps(turned):
    skewed = torch.empty(2_000, 1).exponential_(generator=torch.Generator().manual_seed(2)).expand(-1, 2).double()
    losses = 1 + skewed if turned > 0 else 2 - sawtooth(2_000)
    found, _ = run(eq.SelfTuned(youth=0), losses, HALF)
    assert torch.equal(found.sum(-1), torch.full((2_000,), 0.5).double())


def test_steps_that_throw_the_run_back_are_shortened():
    """F3 has an infinite derivative at one end: a rate of 0.1 throws the run back there, again and again."""
    problem, w = eq.problems.F3(), eq.preference.linspace(10)[6:9].double()
    losses = eq.solve(problem, w, seeds=(5, 6, 7), steps=2_000, step_size=0.1).losses["solution"]
    best = (w * problem.solution(w)).amax(-1)
    assert ((w * losses).amax(-1) / best).max().item() < 1.03  # 1.27 without a trial


# Small weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (1,)], ids=["one run", "a batch"])
def test_steps_are_longer_where_duals_lie_on_small_weights(batch):
    """Half of the way to a sum of 1/m, at most three times as long; for equal weights not at all."""
    weighting = eq.SelfTuned(youth=0)
    for w, factor in (([0.25, 0.75], 2**0.5), ([0.01, 0.99], 3.0), ([0.75, 0.25], 1.0), ([0.5, 0.5], 1.0)):
        preference = torch.tensor(w, dtype=torch.float64)
        state = weighting.init(torch.ones(*batch, 2))
        state = state._replace(dual=torch.tensor([1.0, 0.0]).double().expand_as(state.dual).clone())
        c, _ = weighting.update(torch.ones(*batch, 2).double(), state, preference)
        expected = torch.tensor([factor * w[0], 0.0], dtype=torch.float64).expand(*batch, 2)
        torch.testing.assert_close(c, expected, rtol=1e-15, atol=0)
        torch.testing.assert_close(weighting.foreseen(state, preference), expected, rtol=1e-15, atol=0)


# After a change of the preference --------------------------------------------------------------


def travelling(*losses: float) -> SelfTunedState:
    """A state after a change of the preference, with λ in the corner of the largest of losses that stayed the same."""
    f = torch.tensor(losses, dtype=torch.float64)
    _, state = run(eq.SelfTuned(), f.expand(1_000, -1), torch.full_like(f, 1 / len(f)))
    assert state.anchor.max() > 0.99
    return eq.SelfTuned().restarted(state)


def travel(state: SelfTunedState, losses: list[float], speeds: list[float]) -> list[SelfTunedState]:
    """The states of 60 more steps, in which the losses change in a line."""
    start, speed = torch.tensor([losses, speeds], dtype=torch.float64)
    states = []
    for t in range(60):
        _, state = eq.SelfTuned().update(start + t * speed, state, torch.full_like(start, 1 / len(start)))
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("losses", "speeds", "anchor"),
    [
        ([1.0, 3.0], [0.01, -0.05], [5 / 6, 1 / 6]),  # they meet after 33 steps; 0.01·⅚ = 0.05·⅙
        ([9.0, 1.0], [-0.3, 0.02], [1 / 16, 15 / 16]),
        ([1.0, 0.5, 3.0], [0.01, 0.02, -0.05], [5 / 6, 0.0, 1 / 6]),
    ],
)
def test_where_losses_meet_lambda_is_normal_to_their_way(losses, speeds, anchor):
    states = travel(travelling(*losses), losses, speeds)
    arrival = next(t for t, state in enumerate(states) if state.youth != TRAVELS)
    assert arrival in range(20, 35)
    assert states[arrival].youth.item() == states[-1].youth.item() == ARRIVED
    assert states[arrival - 1].anchor.max().item() == 1.0
    assert torch.allclose(states[arrival].anchor, torch.tensor(anchor, dtype=torch.float64), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("losses", "speeds", "corner"),
    [
        ([1.0, 3.0], [-0.01, -0.07], True),  # both fall: it is not the way along a front
        ([1.0, 1.03], [0.0005, -0.001], True),  # hardly any way
        ([1.0, 1.6], [0.02, -0.05], False),  # λ is not in a corner when they meet
    ],
)
def test_else_lambda_goes_on_as_before(losses, speeds, corner):
    state = travelling(*losses)
    if not corner:
        state = state._replace(anchor=torch.full_like(state.anchor, 0.5))
    states = travel(state, losses, speeds)
    assert states[-1].youth.item() == 0.0
    others = travel(state._replace(youth=torch.zeros_like(state.youth)), losses, speeds)
    assert all(torch.equal(one.dual, other.dual) for one, other in zip(states, others, strict=True))


def test_after_an_arrival_the_gain_is_at_most_the_first():
    state = travelling(1.0, 3.0)
    state = state._replace(noise=0 * state.noise, response=torch.ones_like(state.response))  # λ makes things worse
    for weighting, most in ((eq.SelfTuned(), 2.0), (eq.SelfTuned(initial=100.0), 32.0)):
        gains = [weighting._gain(state._replace(youth=0 * state.youth + youth)).item() for youth in (TRAVELS, ARRIVED)]
        assert gains == [32.0, most]


# One run by numpy, a batch by torch ------------------------------------------------------------


def batched(state: SelfTunedState) -> SelfTunedState:
    """The same state as a batch of one, for which `update` takes torch."""
    return SelfTunedState(*(tensor.clone().unsqueeze(0) for tensor in state))


def assert_same(alone: SelfTunedState, together: SelfTunedState, rtol: float) -> None:
    """Every tensor, relative to its largest entry; to 1 where it has no unit."""
    for name, a, b in zip(alone._fields, alone, together, strict=True):
        size = max(b.abs().max().item(), 0.0 if name in {"level", "means", "size", "start", "pace"} else 1.0)
        assert torch.allclose(a, b[0], rtol=0, atol=rtol * size), (name, a, b[0])
        assert (a.shape, a.dtype) == (b[0].shape, b.dtype)


def draws(m: int, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A preference, and by step losses that fall with noise, spikes and holes, masks, and inclusions."""
    g = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.rand(shape, generator=g, dtype=torch.float64)  # noqa: E731
    base, fall, noise = 1.5 * random(m) - 0.2, 1 - 0.02 * random(1), random(1)
    losses = base * fall ** torch.arange(steps).unsqueeze(-1) * (1 + noise * (random(steps, m) - 0.5))
    losses = torch.where(random(steps, m) < 0.3 / m / 10, 10 ** (30 * random(steps, m)), losses)
    losses = torch.where(random(steps, m) < 0.3 / m / 10, math.nan, losses)
    w = random(m) + 0.05
    return w / w.sum(), losses, random(steps, m) < 0.7, 0.9 * random(steps, m) + 0.1


@pytest.mark.parametrize("youth", [0.0, 30.0, 400.0])
@pytest.mark.parametrize("m", [1, 2, 3, 10, 300])
def test_one_run_by_numpy_is_one_of_a_batch(m, youth):
    """Every step from the same state."""
    ideals: tuple[Ideal, ...] = (0.0, -0.5, tuple([-0.5] * m), -torch.ones(m))
    for seed, ideal in enumerate(ideals):
        weighting, steps = eq.SelfTuned(youth=youth, ideal=ideal), 60 if m < 100 else 20
        w, losses, masks, inclusions = draws(m, steps, 10 * m + seed)
        state = weighting.init(losses[0])
        for f, mask, inclusion in zip(losses, masks, inclusions, strict=True):
            given = {"mask": mask, "inclusion": inclusion} if seed % 2 else {}
            other, expected = weighting.update(f[None], batched(state), w, **given)
            c, state = weighting.update(f, state, w, **given)
            torch.testing.assert_close(c, other[0], rtol=1e-12, atol=1e-14)
            assert_same(state, expected, 1e-12)
        assert state.steps.item() > steps / 2


@pytest.mark.parametrize("m", [2, 3, 10])
def test_one_run_by_numpy_is_one_of_a_batch_after_changes_of_the_preference(m):
    """The losses move in lines, with noise, between points that differ by the preference; some are absent."""
    weighting, w, g = eq.SelfTuned(), torch.full((m,), 1 / m), torch.Generator().manual_seed(m)
    points = 4.0 ** torch.randn(20, m, generator=g, dtype=torch.float64)
    state, ends = weighting.init(points[0]), set()
    for k, (start, end) in enumerate(itertools.pairwise(points)):
        state = weighting.restarted(state)
        for part in torch.linspace(0, 1, 60, dtype=torch.float64):
            f = torch.lerp(start, end, part) * (1 + 0.02 * torch.randn(m, generator=g))
            given = {"mask": torch.rand(m, generator=g) < 0.9} if k % 2 else {}
            _, expected = weighting.update(f[None], batched(state), w, **given)
            _, state = weighting.update(f, state, w, **given)
            assert_same(state, expected, 1e-12)
        ends.add(state.youth.item())
    assert {0.0, ARRIVED} <= ends


def test_one_run_of_a_batch_may_arrive_and_another_not():
    runs = [travelling(1.0, 3.0), travelling(1.0, 3.0)._replace(youth=torch.zeros(1, dtype=torch.float64))]
    both = SelfTunedState(*(torch.stack(pair) for pair in zip(*runs, strict=True)))
    f, w = torch.tensor([1.0, 3.0], dtype=torch.float64), HALF
    for t in range(60):
        now = f + t * torch.tensor([0.01, -0.05])
        runs = [eq.SelfTuned().update(now, state, w)[1] for state in runs]
        _, both = eq.SelfTuned().update(now.expand(2, -1), both, w)
    assert both.youth.flatten().tolist() == [ARRIVED, 0.0]
    torch.testing.assert_close(both.dual, torch.stack([state.dual for state in runs]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("m", "youth"), [(2, 0.0), (10, 400.0)])
def test_a_long_run_by_numpy_is_one_of_a_batch(m, youth):
    w, losses, _, _ = draws(m, 1000, m)
    alone, _ = run(eq.SelfTuned(youth=youth), losses, w)
    together, _ = run(eq.SelfTuned(youth=youth), losses.unsqueeze(1), w)
    torch.testing.assert_close(alone, together.squeeze(1), rtol=0, atol=1e-9)


@given(st.integers(2, 5), st.data())
@settings(max_examples=100, deadline=None)
def test_one_step_by_numpy_is_one_of_a_batch_for_any_losses(m, data):
    numbers = st.floats(-1e100, 1e100, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-100 else x)
    weighting, w = eq.SelfTuned(youth=data.draw(st.sampled_from([0.0, 400.0]))), torch.full((m,), 1 / m)
    state = weighting.init(w)
    for row in data.draw(st.lists(st.lists(numbers, min_size=m, max_size=m), min_size=1, max_size=15)):
        f = torch.tensor(row, dtype=torch.float64)
        _, expected = weighting.update(f[None], batched(state), w)
        _, state = weighting.update(f, state, w)
        assert_same(state, expected, 1e-9)


def test_a_state_may_be_used_twice_changed_in_place_and_copied():
    """The arrays that are kept of the newest state must not outlive a change of it."""
    weighting, w = eq.SelfTuned(), torch.full((3,), 1 / 3)
    losses = torch.rand(30, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    _, state = run(weighting, losses, w)
    first, again = (weighting.update(losses[0], state, w)[1] for _ in range(2))
    copied = weighting.update(
        losses[0], SelfTunedState(*(x.clone(memory_format=torch.contiguous_format) for x in state)), w
    )[1]
    for other in (again, copied):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    for name in first._fields:
        _, newest = weighting.update(losses[1], first, w)
        getattr(newest, name).mul_(0.5)
        _, expected = weighting.update(losses[2][None], batched(newest), w)
        assert_same(weighting.update(losses[2], newest, w)[1], expected, 1e-12)


def naive_step(y: Tensor, push: Tensor, low: Tensor) -> Tensor:
    """By bisection on the multiplier."""
    h = y.clamp_min(1 / len(y))
    below, above = -1e3, 1e3
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if (y + h * (push - middle)).maximum(low).sum() > 1 else (below, middle)
    return (y + h * (push - below)).maximum(low)


@given(st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.1, 1.0, 100.0]))
@settings(max_examples=100, deadline=None)
def test_a_local_step_is_its_definition(m, seed, floor, size):
    g = torch.Generator().manual_seed(seed)
    y, share, push = torch.rand(3, m, generator=g, dtype=torch.float64)
    y, share = (y**4 + 1e-9).div((y**4 + 1e-9).sum()), floor * share / share.sum()
    low = torch.minimum(share, y) if floor < 1 else y
    expected = naive_step(y, size * (push - 0.5), low)
    arguments = y, size * (push - 0.5), low
    torch.testing.assert_close(local_step(*arguments), expected, rtol=0, atol=1e-12)
    alone = local_step_single(*(x.numpy() for x in arguments))
    torch.testing.assert_close(torch.from_numpy(alone), expected, rtol=0, atol=1e-12)
    if floor == 0:
        alone = local_step_single(*(x.numpy() for x in arguments[:2]))
        torch.testing.assert_close(torch.from_numpy(alone), expected, rtol=0, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 6), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_coefficients_are_finite_for_all_finite_losses(m, dtype, data):
    number = st.floats(allow_nan=False, allow_infinity=False, width=32 if dtype == torch.float32 else 64)
    rows = data.draw(st.lists(st.lists(number, min_size=m, max_size=m), min_size=1, max_size=12))
    losses = torch.tensor(rows, dtype=dtype)
    for f in (losses, losses.unsqueeze(1)):
        found, state = run(eq.SelfTuned(), f, torch.full((m,), 1 / m))
        assert torch.isfinite(found).all()
        assert torch.isfinite(state.dual).all()
        torch.testing.assert_close(state.dual.sum(), torch.ones((), dtype=torch.float64))
        assert (state.dual >= 0).all()


def test_gains_that_begin_below_zero_and_end_above():
    losses = torch.tensor([[0.0, -1.0], [0.0, -2.0], [0.0, -12.0], [0.0, 39.0], [1.0, 39.0]])
    for f in (losses, losses.double(), losses.unsqueeze(1)):
        found, state = run(eq.SelfTuned(), f, HALF)
        assert torch.isfinite(found).all()
        assert torch.isfinite(state.dual).all()


def test_extremes_in_float32_and_with_a_million_objectives():
    m = 1_000_000
    w = torch.full((m,), 1 / m)
    losses = torch.rand(3, m, generator=torch.Generator().manual_seed(0))
    losses[1, 7] = 3e38
    found, state = run(eq.SelfTuned(youth=0), losses, w)
    assert torch.isfinite(found).all()
    assert state.dual.dtype == torch.float32
    assert state.dual.double().sum().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("scale", [0.01, 100.0, 1024.0])
def test_the_unit_of_all_losses_does_not_matter(scale):
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(200, 4, generator=generator, dtype=torch.float64) + 0.1
    w = torch.tensor([0.1, 0.2, 0.3, 0.4])
    plain, scaled = (run(eq.SelfTuned(), f, w)[0] for f in (losses, scale * losses))
    torch.testing.assert_close(plain, scaled, rtol=1e-9, atol=1e-12)


def closed_loop(steps: int, spike_at: int | None, size: float = 1e4) -> Tensor:
    """λ₁ of every step while x follows 0.3 (x² + 0.1) against 0.7 ((x − 2)² + 0.1)."""
    weighting, w = eq.SelfTuned(youth=0), torch.tensor([0.3, 0.7], dtype=torch.float64)
    x, state, found = torch.tensor(0.0, dtype=torch.float64), weighting.init(w), []
    for t in range(steps):
        f = torch.stack([x**2 + 0.1, (x - 2) ** 2 + 0.1])
        seen = f * torch.tensor([size, 1.0]) if t == spike_at else f
        c, state = weighting.update(seen, state, w)
        x = x - 0.1 * (c[0] * 2 * x + c[1] * 2 * (x - 2))
        found.append(state.dual[0])
    return torch.stack(found)


@pytest.mark.parametrize("at", [300, 2000])
def test_one_loss_of_ten_thousand_times_its_size_costs_some_tens_of_steps(at):
    usual, hit = closed_loop(at + 100, None), closed_loop(at + 100, at)
    apart = (usual - hit).abs()
    assert apart[at] > 0.1  # it is seen
    assert apart[at + 50 :].max() < 0.02


def test_it_meets_the_ray_of_a_convex_problem():
    w, x = torch.tensor([0.3, 0.7]), torch.tensor(0.0)
    weighting = eq.SelfTuned()
    state = weighting.init(w)
    for _ in range(600):
        c, state = weighting.update(torch.stack([x**2, (x - 2) ** 2]), state, w)
        x = x - 0.1 * (c[0] * 2 * x + c[1] * 2 * (x - 2))
    gain = w * torch.stack([x**2, (x - 2) ** 2])
    assert gain.max() / gain.min() < 1.01


def test_a_batch_is_its_instances():
    losses = torch.rand(50, 3, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    w = torch.tensor([0.1, 0.2, 0.3, 0.4])
    together, _ = run(eq.SelfTuned(youth=20), losses, w)
    for k in range(3):
        torch.testing.assert_close(together[:, k], run(eq.SelfTuned(youth=20), losses[:, k], w)[0])


def test_an_absent_objective_has_no_coefficient_and_a_gain_that_follows_the_others():
    weighting = eq.SelfTuned(youth=0)
    losses = torch.tensor([1.0, 2.0, 3.0])
    w = torch.full((3,), 1 / 3)
    _, state = weighting.update(losses, weighting.init(losses), w)
    mask = torch.tensor([True, True, False])
    c, after = weighting.update(torch.tensor([1.0, 2.0, float("nan")]), state, w, mask=mask)
    assert c[2] == 0
    torch.testing.assert_close(after.means[2], state.means[2], rtol=1e-12, atol=0)  # the others have not moved
    everything, _ = weighting.update(losses, state, w)
    assert torch.equal(c[:2], everything[:2])


@pytest.mark.parametrize("batch", [(), (1,)], ids=["one run", "a batch"])
@pytest.mark.parametrize("first", [True, False], ids=["seen once", "never seen"])
def test_weight_does_not_flow_to_an_absent_objective_while_the_others_fall(first, batch):
    weighting, w = eq.SelfTuned(), torch.full((3,), 1 / 3)
    state = weighting.init(torch.ones(*batch, 3))
    for t in range(400):
        losses = (0.98**t * torch.tensor([1.0, 1.1, 1.0])).expand(*batch, 3)
        mask = torch.tensor([True, True, first and t == 0])
        c, state = weighting.update(losses, state, w, mask=mask)
    assert weighting.weights(state).flatten()[2] < 0.4
    assert c.sum() > 0.6 / 3


def test_an_objective_that_was_never_seen_counts_as_average():
    weighting = eq.SelfTuned(youth=0)
    losses, mask = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False])
    _, state = weighting.update(losses, weighting.init(losses), torch.full((3,), 1 / 3), mask=mask)
    assert state.deviation[2].item() == pytest.approx(0.0, abs=1e-12)


def test_inclusion_keeps_gains_and_divides_coefficients():
    weighting = eq.SelfTuned(youth=0)
    losses, w, half = torch.tensor([1.0, 2.0]), HALF, torch.tensor([0.5, 0.5])
    c, state = weighting.update(losses, weighting.init(losses), w, inclusion=half)
    plain, other = weighting.update(losses, weighting.init(losses), w)
    assert torch.equal(c, 2 * plain)
    assert torch.equal(state.means, other.means)


def test_the_inclusion_of_an_absent_objective_does_not_matter():
    weighting, w, losses = eq.SelfTuned(youth=0), torch.full((3,), 1 / 3), torch.tensor([1.0, 2.0, 3.0])
    mask, odds = torch.tensor([True, True, False]), torch.tensor([0.5, 0.5, math.nan])
    for f in (losses, losses.unsqueeze(0)):
        c, state = weighting.update(f, weighting.init(f), w, mask=mask, inclusion=odds)
        expected, other = weighting.update(f, weighting.init(f), w, mask=mask, inclusion=odds.nan_to_num(0.5))
        assert torch.equal(c, expected)
        assert all(torch.equal(a, b) for a, b in zip(state, other, strict=True))


def test_negative_losses_with_an_ideal_point_are_those_above_it():
    losses = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    above, _ = run(eq.SelfTuned(ideal=-3.0), losses - 3.0, HALF)
    torch.testing.assert_close(above, run(eq.SelfTuned(), losses, HALF)[0], rtol=1e-4, atol=1e-5)


def test_a_non_finite_loss_leaves_the_state():
    weighting = eq.SelfTuned()
    _, state = run(weighting, torch.rand(5, 2), HALF)
    _, after = weighting.update(torch.tensor([1.0, math.nan]), state, HALF)
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"target": 0.0}, "target must be positive"), ({"spike": 0.5}, "spike must be at least 1")],
)
def test_bad_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        eq.SelfTuned(**setting)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("at", [{0}, {3}, {0, 1, 2}, set(range(16))])
@pytest.mark.parametrize("who", [[2], [0, 1, 2, 3]])
@pytest.mark.parametrize("sign", [1, -1])
def test_huge_finite_losses_leave_a_finite_state(batch: tuple[int, ...], at: set[int], who: list[int], sign: int):
    draws = torch.Generator().manual_seed(0)
    weighting, w = eq.SelfTuned(), torch.full((*batch, 4), 0.25, dtype=torch.float64)
    state = weighting.init(w)
    for t in range(16):
        losses = torch.rand(w.shape, generator=draws, dtype=torch.float64)
        if t in at:
            losses[..., who] = sign * 1.7e308
        c, state = weighting.update(losses, state, w)
        assert bool(torch.isfinite(c).all())
        torch.testing.assert_close(state.dual.sum(-1), torch.ones(batch, dtype=torch.float64))
    assert all(bool(torch.isfinite(x).all()) for x in state)


@pytest.mark.parametrize("share", [0.5, 0.1], ids=["alternating", "a tenth"])
def test_objectives_that_are_never_in_the_same_step_are_balanced(share):
    """x² and 6 (x − 2)² for a number x, one of them a step: both are equal at x = 1.42."""
    weighting, w = eq.SelfTuned(), torch.tensor([0.5, 0.5], dtype=torch.float64)
    state, draw, x = weighting.init(w), torch.Generator().manual_seed(1), 0.0
    weighted = torch.zeros(2, dtype=torch.float64)
    for step in range(4000):
        second = step % 2 == 0 if share == 0.5 else bool(torch.rand((), generator=draw) < share)
        mask = torch.tensor([not second, second])
        gains = torch.tensor([x**2, 6 * (x - 2) ** 2], dtype=torch.float64)
        c, state = weighting.update(torch.where(mask, gains, 0.0), state, w, mask=mask)
        x -= 0.04 * (c[0].item() * 2 * x + c[1].item() * 12 * (x - 2))
        if step >= 2000:
            weighted += gains / 2000
    assert float(weighted.max() / weighted.min()) == pytest.approx(1.0, abs=0.1)


def test_an_objective_that_is_never_there_keeps_its_part():
    weighting, w = eq.SelfTuned(youth=0), torch.full((3,), 1 / 3, dtype=torch.float64)
    state, mask = weighting.init(w), torch.tensor([True, True, False])
    for _ in range(8):
        _, state = weighting.update(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), state, w, mask=mask)
    assert state.presence.tolist() == [1.0, 1.0, 0.0]
    assert state.anchor[2].item() == pytest.approx(1 / 3, abs=1e-9)
    assert state.anchor[0].item() > 0.4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["one run", "tensors"])
def test_losses_that_begin_at_zero_are_heeded_later(dtype):
    weighting, w = eq.SelfTuned(), torch.tensor([0.5, 0.5], dtype=dtype)
    state = weighting.init(w)
    for step in range(200):
        losses = torch.zeros(2, dtype=dtype) if step < 3 else torch.tensor([3.0, 1.0], dtype=dtype)
        _, state = weighting.update(losses, state, w)
    assert weighting.weights(state)[0].item() > 0.95
