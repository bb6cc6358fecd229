"""Limits: its arithmetic by hand, its units, limits on both sides, and Theorem L measured."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks.limits_rate import PROBLEMS, run
from torch import Tensor

import equipoise as eq
from equipoise.theory import limits_regret
from equipoise.weighting.limits import LimitsState, link


def descend(
    weighting: eq.Limits,
    losses: Callable[[Tensor], Tensor],
    start: float,
    steps: int,
    w: Tensor | None = None,
    rate: float = 0.1,
) -> tuple[float, LimitsState]:
    """Where gradient steps on the weighted losses of one number end."""
    x, m = torch.tensor(start, dtype=torch.float64), len(weighting.limits)
    w = torch.eye(m, dtype=torch.float64)[0] if w is None else w
    state = weighting.init(w)
    for _ in range(steps):
        f = losses(x.requires_grad_())
        c, state = weighting.update(f.detach(), state, w)
        (gradient,) = torch.autograd.grad((c * f).sum(), x)
        x = (x - rate * gradient).detach()
    return x.item(), state


def parabolas(unit: float) -> Callable[[Tensor], Tensor]:
    """x² and unit·(x − 2)²: with the limit unit/4 the answer is 3/2, at the price 3/unit."""
    return lambda x: torch.stack([x**2, unit * (x - 2) ** 2])


def test_two_steps_by_hand():
    weighting, w = eq.Limits((None, 0.5), jitter=1e9), torch.tensor([1.0, 0.0])
    state = weighting.init(w)
    c, state = weighting.update(torch.tensor([2.0, 0.75]), state, w)
    assert c.tolist() == [1.0, 0.0]
    # v = 0.5, z = 0.3·v/√v², and z + v is in the linear part of the link; S = 2, s = 0.5.
    nu = (0.3 + 0.5) / 10
    assert state.multipliers.item() == pytest.approx(nu)
    assert weighting.multipliers(state).item() == pytest.approx(4 * nu)
    alpha = 1 / (1 + nu * 1.5)  # the loss was 1.5 times its limit
    assert weighting.foreseen(state, w).tolist() == pytest.approx([alpha, alpha * 4 * nu])  # type: ignore[union-attr]
    c, state = weighting.update(torch.tensor([1.0, 0.25]), state, w)
    assert c.tolist() == pytest.approx([alpha, alpha * 4 * nu])
    # S is now 1.5, and z moves so that the price of the integral part stays; v = −0.5.
    z = 0.3 * 2 / 1.5 - 0.3 * alpha * 0.5 / np.sqrt(0.25 + 0.25 * alpha**2)
    assert state.integral.item() == pytest.approx(z)
    assert state.multipliers.item() == pytest.approx(max(z - 0.5, 0) / 10)


@pytest.mark.parametrize("unit", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("start", [0.3, 6.0], ids=["outside", "beyond"])
def test_the_unit_of_a_limit_does_not_matter(unit, start):
    x, state = descend(eq.Limits((None, 0.25 * unit)), parabolas(unit), start, 1000)
    assert x == pytest.approx(1.5, abs=1e-3)
    assert eq.Limits((None, 0.25 * unit)).multipliers(state).item() == pytest.approx(3 / unit, rel=1e-3)


def test_the_unit_of_the_free_loss_does_not_matter():
    x, state = descend(eq.Limits((None, 0.25)), lambda x: torch.stack([100 * x**2, (x - 2) ** 2]), 0.3, 2000, rate=1e-3)
    assert x == pytest.approx(1.5, abs=1e-3)
    assert eq.Limits((None, 0.25)).multipliers(state).item() == pytest.approx(300, rel=1e-3)


def test_a_limit_that_is_met_anyway_has_no_price():
    weighting = eq.Limits((None, 5.0))
    x, state = descend(weighting, parabolas(1.0), 1.0, 1000)
    assert x == pytest.approx(0.0, abs=1e-6)
    assert weighting.multipliers(state).item() == 0.0
    assert weighting.exceeded(torch.tensor([0.0, 4.0]), state).item() == pytest.approx(-0.2)


@pytest.mark.parametrize(("pair", "answer"), [((1.0, 4.0), 1.0), ((-3.0, -2.0), -2.0), ((-1.0, 1.0), 0.0)])
def test_a_pair_keeps_a_loss_between(pair, answer):
    """Min x² with x itself within bounds; a least has a negative price."""
    weighting = eq.Limits((None, pair), size=1.0)
    x, state = descend(weighting, lambda x: torch.stack([x**2, x]), 0.5, 4000)
    assert x == pytest.approx(answer, abs=1e-3)
    assert state.prices[1].item() == pytest.approx(-2 * answer, abs=1e-2)


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_a_limit_of_zero_is_measured_in_its_first_loss(unit):
    """Min (x − 1)² with x ≤ 0."""
    x, _ = descend(eq.Limits((None, 0.0), size=1.0), lambda x: torch.stack([(x - 1) ** 2, unit * x]), 2.0, 3000)
    assert x == pytest.approx(0.0, abs=1e-3)


def test_several_free_losses_are_balanced_within_the_limits():
    """X², (x − 4)² balance at 2; with (x − 1)² ≤ 1/4 the answer is 3/2."""
    w = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    for limit, answer in ((0.25, 1.5), (9.0, 2.0)):
        weighting = eq.Limits((None, None, limit))
        x, _ = descend(weighting, lambda x: torch.stack([x**2, (x - 4) ** 2, (x - 1) ** 2]), 0.2, 4000, w, rate=0.02)
        assert x == pytest.approx(answer, abs=1e-2)


def test_limits_that_contradict_leave_everything_finite():
    weighting = eq.Limits((None, -1.0, -1.0))
    x, state = descend(weighting, lambda x: torch.stack([x**2 + 1, x, -x]), 0.3, 5000)
    assert abs(x) < 10
    assert all(bool(torch.isfinite(part).all()) for part in state if isinstance(part, Tensor))


def test_noise_of_one_batch_moves_a_multiplier_little():
    weighting, w = eq.Limits((None, 1.0)), torch.tensor([1.0, 0.0], dtype=torch.float64)
    generator, state, found = torch.Generator().manual_seed(0), weighting.init(w), []
    for _ in range(3000):
        noise = torch.randn((), generator=generator, dtype=torch.float64)
        _, state = weighting.update(torch.stack([torch.ones_like(noise), 1 + 0.5 * noise]), state, w)
        found.append(state.multipliers.item())
    assert max(found[1000:]) < 0.5
    assert np.std(found[1000:]) < 0.05


def test_a_loss_far_beyond_its_limit_counts_as_twice_beyond():
    weighting, w = eq.Limits((None, 1.0)), torch.tensor([1.0, 0.0])
    near, far = (weighting.update(torch.tensor([1.0, f]), weighting.init(w), w)[1] for f in (3.0, 1e30))
    assert torch.equal(near.integral, far.integral)
    assert torch.equal(near.multipliers, far.multipliers)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.title)
@pytest.mark.parametrize("T", [10, 100, 1000, *(pytest.param(10**k, marks=pytest.mark.slow) for k in (4, 5))])
def test_theorem_l(problem, T):
    found = run(problem, T)
    assert found.excess <= found.excess_bound
    assert found.violation <= found.violation_bound


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.title)
def test_the_control_misses_the_bound(problem):
    assert run(problem, 1000, fixed=10.0).excess > run(problem, 1000).excess_bound


@pytest.mark.parametrize("u", [0.0, 0.05, 0.7, 12.0])
@pytest.mark.parametrize("seed", range(3))
def test_lemma_l_for_any_violations(u, seed):
    """Played against, whatever θ would do."""
    generator = np.random.default_rng(seed)
    weighting, w = eq.Limits((None, 1.0), size=1.0), torch.tensor([1.0, 0.0], dtype=torch.float64)
    state, largest, left, proportional, before = weighting.init(w), 0.0, 0.0, 0.0, 0.0
    for t in range(400):
        v = float(np.clip(np.sin(t / (5 + 20 * seed)) + generator.normal() * (seed > 0), -2, 2))
        nu, y = state.multipliers.item(), link(state.integral).item()
        alpha, largest = 1 / (1 + nu * state.reach.item()), max(largest, y)
        left += alpha * (u - nu) * v
        proportional += alpha * abs(nu - y) * abs(v - before)
        _, state = weighting.update(torch.tensor([1.0, 1 + v], dtype=torch.float64), state, w)
        before = v
    assert left <= limits_regret(u, largest, state.total.item()) + proportional


@pytest.mark.parametrize(
    ("limits", "settings", "message"),
    [
        ((None, None), {}, r"limits must limit at least one loss; found \(None, None\)"),
        ((0.5, 0.5), {}, r"limits must leave at least one loss free: the one to make small; found \(0\.5, 0\.5\)"),
        ((None, float("nan")), {}, "a limit must be a finite number, a pair .* or None; found nan"),
        ((None, (2.0, 1.0)), {}, r"with least < most, or None; found \(2\.0, 1\.0\)"),
        ((None, "0.5"), {}, "found '0.5'"),
        ("x", {}, "limits must be one entry each; found x"),
        ((None, 0.5), {"pace": 0.0}, "pace must be positive"),
        ((None, 0.5), {"size": -1.0}, "size must be positive"),
        ((None, 0.5), {"among": eq.MGDA()}, "among must be a weighting by losses; found MGDA"),
    ],
)
def test_bad_limits_are_refused(limits, settings, message):
    with pytest.raises(ValueError, match=message):
        eq.Limits(limits, **settings)


def test_other_losses_than_limits_are_refused():
    with pytest.raises(ValueError, match="limits must have 3 entries, one per objective; found 2"):
        eq.Limits((None, 0.5)).init(torch.zeros(3))


def test_solve_has_limits():
    """VLMOP2, whose front is concave: no weighted sum finds the point with f₂ = 0.4."""
    method = eq.Method(eq.Limits((None, 0.4)), eq.Average(power=8))
    found = eq.solve(eq.problems.VLMOP2(), [[1.0, 0.0]], method, seeds=range(4), steps=3000)
    f = found.losses["solution"]
    torch.testing.assert_close(f[..., 1], torch.full_like(f[..., 1], 0.4), rtol=0, atol=5e-3)
    torch.testing.assert_close(f[..., 0], torch.full_like(f[..., 0], 0.808), rtol=0, atol=5e-3)


def test_a_proxy_has_the_value_of_one_and_the_gradient_of_the_other():
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    found = eq.proxy(x.square().sum(), torch.tensor(0.25))
    assert found.item() == 0.25
    found.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, -2.0]
    with pytest.raises(ValueError, match=r"value must have the shape of the loss, \(\); found \(1,\)"):
        eq.proxy(x.sum(), torch.ones(1))
    assert eq.proxy(x.sum(), 0.25).item() == 0.25
    with pytest.raises(ValueError, match="loss must be a tensor with its graph; found a float"):
        eq.proxy(0.5, 0.25)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a limit must be a finite number, .*; found '2'"):
        eq.Limits((None, "2"))  # type: ignore[arg-type]
