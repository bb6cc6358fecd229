"""STCH and TERM by hand, and their limits."""

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def step(weighting: eq.SmoothTchebycheff, f: torch.Tensor, w: torch.Tensor, **given: torch.Tensor) -> list[float]:
    coefficients: list[float] = weighting.update(f, weighting.init(f), w, **given)[0].tolist()
    return coefficients


HALF = vector(0.5, 0.5)


def test_stch_by_hand():
    # By hand.
    stch = eq.SmoothTchebycheff(mu=0.1)
    assert stch.value(vector(1.0, 2.0), HALF).item() == pytest.approx(1.00067153, abs=5e-9)
    expected = [0.5 * 0.00669285, 0.5 * 0.99330715]
    assert step(stch, vector(1.0, 2.0), HALF) == pytest.approx(expected, abs=5e-9)
    shifted = eq.SmoothTchebycheff(mu=0.1, ideal=(3.0, 3.0))
    assert step(shifted, vector(4.0, 5.0), HALF) == pytest.approx(expected, abs=5e-9)
    assert shifted.value(vector(4.0, 5.0), HALF).item() == pytest.approx(1.00067153, abs=5e-9)


def test_term_by_hand():
    # A tilt of one.
    term = eq.SmoothTchebycheff(mu=1.0, normalize="mean")
    assert term.value(vector(1.0, 2.0), HALF).item() == pytest.approx(1.62011451, abs=5e-9)
    assert step(term, vector(1.0, 2.0), HALF) == pytest.approx([0.26894142, 0.73105858], abs=5e-9)


def test_term_is_the_mean_for_a_small_tilt():
    term = eq.SmoothTchebycheff(mu=1e7, normalize="mean")
    assert step(term, vector(1.0, 2.0), HALF) == pytest.approx([0.5, 0.5], abs=1e-6)
    assert term.value(vector(1.0, 2.0), HALF).item() == pytest.approx(1.5, abs=1e-6)


@pytest.mark.parametrize("mu", [0.1, 0.3, 7.0])
def test_the_value_of_term_is_computed_in_double(mu: float):
    f = (1.0, 2.0, 3.0)
    expected = mu * math.log(sum(math.exp(x / mu) for x in f) / 3)
    exact = eq.SmoothTchebycheff(mu=mu, normalize="mean").value(vector(*f), vector(1 / 3, 1 / 3, 1 / 3))
    assert exact.item() == pytest.approx(expected, rel=1e-13)


entries = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.05, 1)), min_size=1, max_size=6)


@given(entries, st.sampled_from([0.01, 0.5, 3.0]))
def test_the_value_lies_between_tch_and_tch_plus_mu_log_m(pairs: list[tuple[float, float]], mu: float):
    f, w = vector(*(a for a, _ in pairs)), vector(*(b for _, b in pairs))
    w = w / w.sum()
    value, tch = eq.SmoothTchebycheff(mu).value(f, w).item(), eq.Tchebycheff().value(f, w).item()
    assert tch - 1e-12 <= value <= tch + mu * math.log(len(f)) + 1e-12


@given(entries, st.sampled_from([0.3, 3.0]), st.sampled_from(["sum", "mean"]))
def test_the_coefficients_are_the_gradient_of_the_value(pairs: list[tuple[float, float]], mu: float, how: str):
    f, w = vector(*(a for a, _ in pairs)), vector(*(b for _, b in pairs))
    w = w / w.sum()
    stch = eq.SmoothTchebycheff(mu, normalize=how)  # type: ignore[arg-type]
    h = 1e-5 * torch.eye(len(f), dtype=torch.float64)
    slope = (stch.value(f + h, w) - stch.value(f - h, w)) / 2e-5
    assert step(stch, f, w) == pytest.approx(slope.tolist(), abs=1e-7)


def test_an_absent_objective_keeps_its_place_in_the_sum():
    """Gain 0, and nothing else is rescaled: c_1 = w_1 e^{g_1}/(e^{g_1} + e^0)."""
    c = step(eq.SmoothTchebycheff(mu=0.5), vector(2.0, 7.0), HALF, mask=torch.tensor([True, False]))
    assert c == pytest.approx([0.5 * math.e**2 / (math.e**2 + 1.0), 0.0])


def test_inclusion_divides_gain_and_coefficient():
    # Half the presence is half the smoothing and twice the coefficient.
    f, w = vector(1.0, 2.0), vector(0.4, 0.6)
    half = step(eq.SmoothTchebycheff(mu=0.5), f, w, inclusion=torch.tensor(0.5))
    assert half == pytest.approx([2 * c for c in step(eq.SmoothTchebycheff(mu=0.25), f, w)])


def test_values_of_a_sweep():
    f = torch.stack([vector(1.0, 2.0), vector(3.0, 1.0)])
    for how in ("sum", "mean"):
        swept = eq.SmoothTchebycheff(mu=vector(0.1, 2.0), normalize=how)
        alone = [eq.SmoothTchebycheff(mu=mu, normalize=how).value(f[i], HALF) for i, mu in enumerate((0.1, 2.0))]
        torch.testing.assert_close(swept.value(f, HALF), torch.stack(alone), rtol=1e-8, atol=0)


@pytest.mark.parametrize("mu", [0.0, -0.1, math.nan])
def test_a_smoothing_that_is_not_positive_is_refused(mu: float):
    with pytest.raises(ValueError, match=rf"mu must be positive; found {mu}"):
        eq.SmoothTchebycheff(mu=mu)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"mu must be positive; found tensor\(\[1\., 0\.\]\)"):
        eq.SmoothTchebycheff(mu=torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=r'normalize must be "sum" or "mean"; found max'):
        eq.SmoothTchebycheff(normalize="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("normalize", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pi", [None, 0.5])
def test_a_huge_finite_loss_gets_the_weight_and_no_nan(normalize: Literal["sum", "mean"], dtype: torch.dtype, pi: Any):
    """f/μ is beyond the largest number: the softmax is its limit, one for the largest."""
    weighting = eq.SmoothTchebycheff(0.1, normalize=normalize)
    huge = 0.95 * torch.finfo(dtype).max
    w = torch.full((3,), 1 / 3, dtype=dtype)
    extra = {} if pi is None else {"inclusion": torch.full_like(w, pi)}
    one = 1.0 if normalize == "mean" else 1 / 3
    for losses, share in (([1.0, huge, 2.0], [0, 1, 0]), ([huge] * 3, [1 / 3] * 3), ([-huge, -huge, huge], [0, 0, 1])):
        c, _ = weighting.update(torch.tensor(losses, dtype=dtype), weighting.init(w), w, **extra)
        assert c.tolist() == pytest.approx([one * s / (pi or 1.0) for s in share])
