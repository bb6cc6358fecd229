"""Ratios to the first losses instead of losses."""

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


HALF = vector(0.5, 0.5)


def test_by_hand():
    """TCH at f = (10, 1) takes the first; at f/f⁽⁰⁾ = (1, 2) the second. The coefficient is that of the raw f."""
    weighting = eq.Relative(eq.Tchebycheff())
    state = weighting.init(HALF)
    c, state = weighting.update(vector(10.0, 0.5), state, HALF)
    assert state.first.tolist() == [10.0, 0.5]
    assert c.tolist() == [0.5, 0.0]  # ratios (1, 1): the first index
    c, state = weighting.update(vector(10.0, 1.0), state, HALF)
    assert c.tolist() == [0.0, 0.5]
    assert state.first.tolist() == [10.0, 0.5]


def test_the_weight_update_sees_the_ratios():
    weighting = eq.Relative(eq.OMD(0.2, eq.Euclidean()))
    state = weighting.init(HALF)
    for f in (vector(10.0, 0.5), vector(10.0, 1.0)):
        _, state = weighting.update(f, state, HALF)
    # gains (.5, .5), then (.5, 1): λ = (.45, .55)
    assert weighting.inner.mirror.weights(state.inner.dual).tolist() == pytest.approx([0.45, 0.55])  # type: ignore[attr-defined]


def test_every_objective_has_its_own_first_time():
    weighting = eq.Relative(eq.Linear())
    state = weighting.init(vector(1.0, 1.0, 1.0))
    w = vector(0.2, 0.3, 0.5)
    _, state = weighting.update(vector(2.0, 3.0, 4.0), state, w, mask=torch.tensor([True, False, False]))
    assert state.seen.tolist() == [True, False, False]
    assert state.first.tolist() == [2.0, 1.0, 1.0]
    _, state = weighting.update(vector(7.0, 3.0, math.nan), state, w, mask=torch.tensor([True, True, False]))
    assert state.seen.tolist() == [True, True, False]
    assert state.first.tolist() == [2.0, 3.0, 1.0]


def test_a_start_at_or_below_zero_is_not_scaled():
    weighting = eq.Relative(eq.Tchebycheff())
    state = weighting.init(vector(1.0, 1.0, 1.0))
    _, state = weighting.update(vector(0.0, -2.0, 4.0), state, torch.full((3,), 1 / 3))
    assert state.first.tolist() == [1.0, 1.0, 4.0]
    assert state.seen.all()  # a positive loss later does not count as a first one
    _, state = weighting.update(vector(5.0, 6.0, 7.0), state, torch.full((3,), 1 / 3))
    assert state.first.tolist() == [1.0, 1.0, 4.0]


def test_a_non_finite_loss_is_not_a_first_one():
    weighting = eq.Relative(eq.OMD(1.0))
    losses = torch.stack([vector(math.inf, 2.0), vector(3.0, 2.0)])
    state = weighting.init(losses)
    _, state = weighting.update(losses, state, HALF)
    assert state.seen.tolist() == [[False, False], [True, True]]
    assert state.first.tolist() == [[1.0, 1.0], [3.0, 2.0]]


def test_beyond_ten_thousand_objectives_the_ratios_do_not_overflow():
    m = 10_001
    weighting, w = eq.Relative(eq.OMD("adaptive")), torch.full((m,), 1 / m)
    state = weighting.init(torch.ones(m))
    losses = torch.ones(m)
    losses[0] = 1e-30
    _, state = weighting.update(losses, state, w)
    losses[0] = 1e30
    _, state = weighting.update(losses, state, w)
    assert state.inner.dual[0].item() == pytest.approx(1.0, abs=1e-3)


def test_it_is_as_its_inner_weighting_is():
    weighting = eq.Relative(eq.OMD(1.0))
    assert weighting.needs == eq.OMD.needs
    assert weighting.traceable is True
    assert weighting.rows(weighting.init(HALF)) is None


def test_only_the_first_loss_is_a_ratio():
    """λ ← Π(λ + η w∘(1, 1)), then with the raw losses: the row of a table that has it so."""
    weighting = eq.Relative(eq.OMD(0.2, eq.Euclidean()), span="first")
    state = weighting.init(HALF)
    for f in (vector(10.0, 0.5), vector(2.0, 1.0)):
        _, state = weighting.update(f, state, HALF)
    # gains (.5, .5), then (1, .5): λ = (.55, .45)
    assert weighting.inner.mirror.weights(state.inner.dual).tolist() == pytest.approx([0.55, 0.45])  # type: ignore[attr-defined]
    tch = eq.Relative(eq.Tchebycheff(), span="first")
    late = tch.init(HALF)
    c, late = tch.update(vector(0.3, 5.0), late, HALF, mask=torch.tensor([True, False]))
    c, late = tch.update(vector(3.0, 5.0), late, HALF)  # 3 raw, and 1 for what is seen for the first time
    assert c.tolist() == [0.5, 0.0]
    c, _ = tch.update(vector(3.0, 5.0), late, HALF)
    assert c.tolist() == [0.0, 0.5]


def test_span_has_two_values():
    with pytest.raises(ValueError, match='span must be "always" or "first"; found later'):
        eq.Relative(eq.OMD(1.0), span="later")  # type: ignore[arg-type]
