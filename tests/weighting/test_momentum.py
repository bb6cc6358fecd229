"""Momentum on coefficients: both rules by hand, and how far weights can drift."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


HALF = vector(0.5, 0.5)
TCH = eq.Tchebycheff()


def alphas(weighting: eq.Momentum[Any], losses: list[Tensor], w: Tensor = HALF) -> list[list[float]]:
    state, found = weighting.init(losses[0]), []
    for f in losses:
        c, state = weighting.update(f, state, w)
        torch.testing.assert_close(c, state.weights * w, rtol=1e-15, atol=0)
        found.append(state.weights.tolist())
    return found


# With TCH the inner weights are vertices: α̂ = (1, 0) while f = (2, 1), and (0, 1) while f = (1, 2).
FIRST, SECOND = vector(2.0, 1.0), vector(1.0, 2.0)


def test_bounded_drift_by_hand():
    # δ = 1, a_1 = 1 − .25; δ = .75, a_2 = 1 − .25/1.5; then δ = 1.375 to the other vertex, a_3 = 1 − .25/(3·1.375).
    found = alphas(eq.Momentum(TCH, rate=0.25), [FIRST, FIRST, SECOND])
    assert found[0] == pytest.approx([0.625, 0.375])
    assert found[1] == pytest.approx([0.6875, 0.3125])
    assert found[2] == pytest.approx([0.6875 - 0.25 / 6, 0.3125 + 0.25 / 6])


def test_weights_drift_by_at_most_rate_over_t():
    weighting = eq.Momentum(eq.SmoothTchebycheff(0.05), rate=0.3)
    losses = [torch.rand(2, generator=torch.Generator().manual_seed(t), dtype=torch.float64) for t in range(30)]
    found = torch.tensor([[0.5, 0.5], *alphas(weighting, losses)])
    drift = found.diff(dim=0).abs().sum(-1)
    assert (drift <= 0.3 / torch.arange(1, 31) + 1e-6).all()
    assert (drift[1:] > 0.01).any()


def test_constant_by_hand():
    found = alphas(eq.Momentum(TCH, rule="constant", rate=0.6), [FIRST, SECOND])
    assert found[0] == pytest.approx([0.7, 0.3])
    assert found[1] == pytest.approx([0.42, 0.58])


def test_released_by_hand():
    # a_t = max(0, 1 − t δ): no smoothing when weights jump.
    released = eq.Momentum(TCH, rule="released")
    assert alphas(released, [FIRST, SECOND]) == [[1.0, 0.0], [0.0, 1.0]]
    # STCH at nearly equal losses: α̂ = σ(±.05), δ = tanh(.05) = .05; a_1 = .95 and then a_2 = 1 − 2·.95·δ.
    close = eq.Momentum(eq.SmoothTchebycheff(0.5), rule="released")
    delta = math.tanh(0.05)
    one, two = alphas(close, [vector(1.1, 1.0), vector(1.1, 1.0)])
    assert one[0] == pytest.approx(0.5 + delta * delta / 2)
    rest = delta - delta * delta
    assert two[0] == pytest.approx(0.5 + delta * delta / 2 + 2 * rest * rest / 2)


def test_the_preference_is_not_smoothed():
    # α is what is smoothed: c = α∘w.
    c, state = (weighting := eq.Momentum(TCH, rule="constant", rate=0.5)).update(
        vector(1.0, 3.0), weighting.init(HALF), vector(0.2, 0.8)
    )
    assert state.weights.tolist() == pytest.approx([0.25, 0.75])
    assert c.tolist() == pytest.approx([0.05, 0.6])


def test_an_objective_without_preference_keeps_its_weight():
    found = alphas(eq.Momentum(TCH, rule="constant", rate=0.5), [FIRST], vector(0.0, 1.0))
    assert found == [[0.5, 0.75]]


def test_an_absent_objective_keeps_its_weight():
    weighting = eq.Momentum(TCH, rule="constant", rate=0.5)
    c, state = weighting.update(SECOND, weighting.init(HALF), HALF, mask=torch.tensor([True, False]))
    assert state.weights.tolist() == [0.75, 0.5]
    assert c.tolist() == [0.375, 0.0]


def test_inclusion_divides_the_coefficients_once():
    weighting, pi = eq.Momentum(TCH, rule="constant", rate=0.5), vector(0.5, 0.5)
    c, state = weighting.update(FIRST, weighting.init(HALF), HALF, inclusion=pi)
    assert state.weights.tolist() == pytest.approx([0.75, 0.25])
    assert c.tolist() == pytest.approx([0.75, 0.25])


def test_a_non_finite_loss_is_no_step():
    weighting = eq.Momentum(TCH, rate=0.25)
    state = weighting.init(HALF)
    _, state = weighting.update(FIRST, state, HALF)
    _, state = weighting.update(vector(math.nan, 1.0), state, HALF)
    assert state.step.tolist() == [1.0]
    _, state = weighting.update(FIRST, state, HALF)
    assert state.weights.tolist() == pytest.approx([0.6875, 0.3125])


def test_a_pool_shares_the_drift():
    # Drifts δ = 1 and 0 (α̂ = α for uniform STCH at equal losses): pooled Σδ = 1 for both.
    inner = eq.SmoothTchebycheff(1e-6)
    losses = torch.stack([FIRST, vector(1.0, 1.0)]).unsqueeze(0).expand(3, 2, 2)
    for pool, expected in (((), 0.25), ((1,), 0.25), ((0,), 0.25 / 3), ((0, 1), 0.25 / 3)):
        weighting = eq.Momentum(inner, rate=0.25, pool=pool)
        _, state = weighting.update(losses, weighting.init(losses), HALF)
        torch.testing.assert_close(state.weights[0, 0], vector(0.5 + expected / 2, 0.5 - expected / 2))
        torch.testing.assert_close(state.weights[0, 1], HALF)
    released = eq.Momentum(eq.SmoothTchebycheff(0.5), rule="released", pool=(0,))
    near = torch.stack([vector(1.1, 1.0)] * 4)
    _, state = released.update(near, released.init(near), HALF)
    delta = math.tanh(0.05)
    assert state.weights[0, 0].item() == pytest.approx(0.5 + 4 * delta * delta / 2)


def test_it_is_as_its_inner_weighting_is():
    weighting = eq.Momentum(eq.OMD(1.0))
    assert weighting.needs == eq.OMD.needs
    assert weighting.traceable is True
    assert weighting.rows(weighting.init(HALF)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "nesterov"}, r"rule must be one of \['bounded_drift', 'constant', 'released'\]; found nesterov"),
        ({"rate": -0.1}, r"rate must be non-negative; found -0\.1"),
        ({"rate": math.nan}, r"rate must be non-negative; found nan"),
        ({"rule": "constant", "rate": 1.0}, r"rate must be below 1 for a constant rule; found 1\.0"),
        ({"rule": "constant"}, r"rate must be below 1 for a constant rule; found 1\.0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        eq.Momentum(TCH, **settings)


@pytest.mark.parametrize("pool", [(1,), (-1,), (0, 2)])
def test_a_pool_that_is_no_batch_axis_is_refused(pool: tuple[int, ...]):
    losses = torch.ones(3, 2)
    weighting = eq.Momentum(TCH, pool=pool)
    with pytest.raises(ValueError, match=r"pool must .*; found \("):
        weighting.update(losses, weighting.init(losses), HALF)
