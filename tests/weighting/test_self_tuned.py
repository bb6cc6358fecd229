"""SelfTuned: hand-computed steps, a naive oracle, and what it promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.weighting.self_tuned import CALM, FALLEN, LEAST, MOST, OUTLIER, PRIOR, REST, RISE, YOUNG, SelfTunedState

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


def naive(weighting: eq.SelfTuned, losses: list[list[float]], w: list[float]) -> list[list[float]]:
    """λ of every step, written with loops and lists."""
    m = len(w)
    lam, used, y, d = [1 / m] * m, [1 / m] * m, [1 / m] * m, [0.0] * m
    slow, fast, quick, size, start = [0.0] * m, [0.0] * m, [0.0] * m, [math.inf] * m, [0.0] * m
    mean_l, mean_c = [1 / m] * m, [0.0] * m
    noise = var = cov = 0.0
    pace, youth, out = math.inf, weighting.youth, []
    for t, f in enumerate(losses, 1):
        out.append(lam)
        g = [a * b for a, b in zip(w, f, strict=True)]
        cap = [weighting.spike * max(a, sum(size) / m) for a in size]
        g = [max(-c, min(c, a)) for a, c in zip(g, cap, strict=True)]
        mean = lambda old, new, rate: [  # noqa: E731
            b if rate >= 1 else a + rate * (b - a) for a, b in zip(old, new, strict=True)
        ]
        slow, fast = mean(slow, g, 2 / t), mean(fast, g, 8 / t)
        quick, size = mean(quick, g, max(1 / t, 0.3)), mean(size, [abs(a) for a in g], max(1 / t, 0.1))
        s = sum(size) / m
        change = [a / s - sum(g) / m / s - b for a, b in zip(g, d, strict=True)]
        energy = sum(a * a for a in change) / m
        kept = min(1.0, OUTLIER * max(noise, CALM) / energy) if energy and t > 2 else 1.0
        change = [a * kept**0.5 for a in change]
        memory, recent = min(1.0, 4 / t), 1.0 if t <= 2 else max(1 / (t - 1), 0.01)
        noise += memory * (energy * kept - noise)
        x, z = ([a - b for a, b in zip(u, v, strict=True)] for u, v in ((used, mean_l), (change, mean_c)))
        var = (1 - memory) * var + sum(a * a for a in x)
        cov = (1 - memory) * cov + sum(a * b for a, b in zip(x, z, strict=True))
        mean_l, mean_c = mean(mean_l, used, recent), mean(mean_c, change, recent)
        d = [a + b for a, b in zip(d, change, strict=True)]
        # the gain
        h = [max(a, 1 / m) for a in y]
        kappa = (PRIOR * weighting.target * m / weighting.initial - cov) / (var + PRIOR)
        reach = sum(a * a for a in h) / sum(h)
        rho = MOST if kappa <= 0 else min(MOST, weighting.target / (kappa * reach))
        rho = max(LEAST, min(rho, weighting.jitter * (2 / m) ** 0.5 / (noise / 2) ** 0.5 if noise else MOST))
        # the floor
        start = [max(a, b) for a, b in zip(start, quick, strict=True)] if t <= 3 else start
        if youth >= weighting.youth and all(a <= FALLEN * b for a, b in zip(quick, start, strict=True)):
            youth = max(YOUNG, min(weighting.youth, weighting.patience * t))
        trend = [a / b - 1 for a, b in zip(fast, slow, strict=True)]
        rise = max(trend) / (RISE + 2 * (noise * min(1, 8 / t)) ** 0.5)
        if t >= YOUNG and (rise > 1 or min(trend) > -REST):
            youth = min(youth, t)
        gate = 1.0 if t < YOUNG else min(1.0, max(0.0, (t < youth) - rise))
        full = min(1.0, youth / t) ** 2 * gate / m
        low = []
        for a, b in zip(quick, start, strict=True):
            share = a / max(quick) / (b / max(start)) / weighting.slack
            low.append(full * min(1.0, max(0.0, (share - 1) / 0.1)) if weighting.youth else 0.0)
        # the two steps
        pace = min(rho / (s * max(weighting.rest, 2 * t**0.5)), pace * (t / (t - 1)) ** 8 if t > 1 else math.inf)
        y = naive_step(y, [max(-0.25, min(0.25, pace * s * a)) for a in d], low)
        used, lam = lam, naive_step(y, [rho * a for a in d], low)
    return out


def naive_step(y: list[float], push: list[float], low: list[float]) -> list[float]:
    """By bisection on the multiplier."""
    h = [max(a, 1 / len(y)) for a in y]
    point = lambda nu: [  # noqa: E731
        max(c, a + b * (u - nu)) for a, b, u, c in zip(y, h, push, low, strict=True)
    ]
    below, above = -1e3, 1e3
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if sum(point(middle)) > 1 else (below, middle)
    return point((below + above) / 2)


@pytest.mark.parametrize(("m", "youth"), [(2, 0.0), (2, 400.0), (3, 30.0), (5, 0.0)])
def test_it_follows_a_naive_implementation(m, youth):
    generator = torch.Generator().manual_seed(m)
    trend = 0.99 ** torch.arange(120.0, dtype=torch.float64).unsqueeze(-1)
    losses = trend * (0.2 + torch.rand(120, m, generator=generator, dtype=torch.float64))
    w = torch.softmax(torch.randn(m, generator=generator, dtype=torch.float64), -1)
    weighting = eq.SelfTuned(youth=youth)
    found, _ = run(weighting, losses, w)
    expected = torch.tensor(naive(weighting, losses.tolist(), w.tolist()), dtype=torch.float64)
    torch.testing.assert_close(found / w, expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 6), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_coefficients_are_finite_for_all_finite_losses(m, dtype, data):
    number = st.floats(allow_nan=False, allow_infinity=False, width=32 if dtype == torch.float32 else 64)
    rows = data.draw(st.lists(st.lists(number, min_size=m, max_size=m), min_size=1, max_size=12))
    losses = torch.tensor(rows, dtype=dtype)
    found, state = run(eq.SelfTuned(), losses, torch.full((m,), 1 / m))
    assert torch.isfinite(found).all()
    assert torch.isfinite(state.dual).all()
    torch.testing.assert_close(state.dual.sum(), torch.ones((), dtype=torch.float64))
    assert (state.dual >= 0).all()


def test_gains_that_begin_below_zero_and_end_above():
    losses = torch.tensor([[0.0, -1.0], [0.0, -2.0], [0.0, -12.0], [0.0, 39.0], [1.0, 39.0]])
    for dtype in (torch.float32, torch.float64):
        found, state = run(eq.SelfTuned(), losses.to(dtype), HALF)
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


def test_an_absent_objective_has_no_coefficient_and_keeps_its_last_level():
    weighting = eq.SelfTuned(youth=0)
    losses = torch.tensor([1.0, 2.0, 3.0])
    w = torch.full((3,), 1 / 3)
    _, state = weighting.update(losses, weighting.init(losses), w)
    mask = torch.tensor([True, True, False])
    c, after = weighting.update(torch.tensor([1.0, 2.0, float("nan")]), state, w, mask=mask)
    assert c[2] == 0
    assert after.level[2] == state.level[2]
    everything, _ = weighting.update(losses, state, w)
    assert torch.equal(c[:2], everything[:2])


def test_an_objective_that_was_never_seen_counts_as_average():
    weighting = eq.SelfTuned(youth=0)
    losses, mask = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False])
    _, state = weighting.update(losses, weighting.init(losses), torch.full((3,), 1 / 3), mask=mask)
    assert state.deviation[2].item() == pytest.approx(0.0, abs=1e-12)


def test_inclusion_keeps_levels_and_divides_coefficients():
    weighting = eq.SelfTuned(youth=0)
    losses, w, half = torch.tensor([1.0, 2.0]), HALF, torch.tensor([0.5, 0.5])
    c, state = weighting.update(losses, weighting.init(losses), w, inclusion=half)
    plain, other = weighting.update(losses, weighting.init(losses), w)
    assert torch.equal(c, 2 * plain)
    assert torch.equal(state.level, other.level)


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
