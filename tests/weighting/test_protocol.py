"""What every weighting sees of its arguments."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.weighting.protocol import observe, working_dtype


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


W = vector(0.2, 0.3, 0.5)
F = vector(2.0, 4.0, 6.0)


def test_gain_and_weight_by_hand():
    seen = observe(F, W, 0.0, None)
    assert seen.gain.tolist() == pytest.approx([0.4, 1.2, 3.0])
    assert seen.weight.tolist() == [0.2, 0.3, 0.5]
    assert seen.valid.tolist() == [True]
    seen = observe(F, W, (1.0, 1.0, 2.0), torch.tensor([True, False, True]), vector(0.5, 0.5, 0.25))
    assert seen.gain.tolist() == pytest.approx([0.4, 0.0, 8.0])
    assert seen.weight.tolist() == pytest.approx([0.4, 0.0, 2.0])


def test_an_inclusion_of_zero_is_no_division_where_the_objective_is_absent():
    seen = observe(F, W, 0.0, torch.tensor([True, False, True]), vector(1.0, 0.0, 1.0))
    assert seen.weight.tolist() == [0.2, 0.0, 0.5]
    assert seen.gain.tolist() == pytest.approx([0.4, 0.0, 3.0])


@pytest.mark.parametrize("pi", [0.0, -0.5, 1.5, math.nan])
def test_an_inclusion_that_is_no_probability_is_refused(pi: float):
    with pytest.raises(ValueError, match=rf"inclusion must lie in \(0, 1\].*; found {pi}"):
        observe(F, W, 0.0, None, vector(1.0, pi, 1.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_valid_is_whether_every_present_loss_is_finite(bad: float, at: int):
    losses = torch.stack([F, F])
    losses[1, at] = bad
    assert observe(losses, W, 0.0, None).valid.tolist() == [[True], [False]]
    hidden = torch.arange(3) != at
    assert observe(losses, W, 0.0, hidden).valid.tolist() == [[True], [True]]


def test_work_is_done_in_double_up_to_ten_thousand_objectives():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert working_dtype(torch.ones(10_000, dtype=dtype)) == torch.float64
        assert working_dtype(torch.ones(10_001, dtype=dtype)) == torch.float32
    assert observe(F.half(), W, 0.0, None).gain.dtype == torch.float64


def test_losses_without_a_dimension_are_refused():
    with pytest.raises(ValueError, match=r"losses must have shape \(\*B, m\); found \(\)"):
        observe(torch.tensor(1.0), torch.ones(1), 0.0, None)


def test_integer_losses_are_refused():
    losses = torch.tensor([1, 2, 3])
    with pytest.raises(ValueError, match=r"losses must be floating.*; found torch\.int64"):
        eq.Linear().update(losses, eq.Linear().init(losses), W)


def test_a_preference_of_few_digits_is_accepted():
    for dtype in (torch.float16, torch.bfloat16):
        c, _ = eq.Linear().update(F, eq.Linear().init(F), W.to(dtype))
        torch.testing.assert_close(c, W, rtol=1e-2, atol=0)


def test_a_preference_may_hold_whole_numbers():
    c, _ = eq.Linear().update(F, eq.Linear().init(F), torch.tensor([0, 1, 0]))
    assert c.tolist() == [0.0, 1.0, 0.0]
