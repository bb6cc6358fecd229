"""Loss transforms of clients (PropFair)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.transform import PropFair


def value_and_slope(transform: PropFair, loss: float) -> tuple[float, float]:
    x = torch.tensor(loss, dtype=torch.float64, requires_grad=True)
    y = transform(x)
    (slope,) = torch.autograd.grad(y, x)
    return y.item(), slope.item()


@pytest.mark.parametrize(
    ("mode", "loss", "value", "slope"),
    [
        ("huber", 1.0, math.log(2), 1.0),
        ("linear", 1.0, math.log(2), 1.0),
        ("huber", 1.9, 2.80258509, 5.0),
        ("linear", 1.9, 0.95, 0.5),
        ("huber", 0.0, 0.0, 0.5),
        ("huber", 100.0, math.log(10) + 98.2 / 0.2, 5.0),
        ("linear", 100.0, 50.0, 0.5),
    ],
)
def test_by_hand(mode, loss: float, value: float, slope: float):
    assert value_and_slope(PropFair(2.0, 0.2, mode), loss) == pytest.approx((value, slope), abs=1e-8)


def test_the_huber_branch_is_the_tangent():
    transform, edge = PropFair(M=3.0, epsilon=0.5), 2.5
    below, above = value_and_slope(transform, edge - 1e-9), value_and_slope(transform, edge + 1e-9)
    assert below == pytest.approx(above, abs=1e-7)
    assert value_and_slope(transform, edge) == pytest.approx((math.log(6), 2.0), abs=1e-12)


@given(st.floats(0.0, 1e6), st.floats(0.1, 10.0), st.floats(0.01, 1.0), st.sampled_from(["huber", "linear"]))
def test_the_formulas(loss: float, M: float, share: float, mode):
    epsilon = share * M
    gap = M - loss
    if gap >= epsilon:
        expected = math.log(M) - math.log(gap), 1 / gap
    elif mode == "huber":
        expected = math.log(M / epsilon) + (epsilon - gap) / epsilon, 1 / epsilon
    else:
        expected = loss / M, 1 / M
    if abs(gap - epsilon) > 1e-9 * M:
        assert value_and_slope(PropFair(M, epsilon, mode), loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mode", ["huber", "linear"])
def test_entries_are_decided_one_by_one(mode):
    losses = torch.tensor([[0.3, 1.5], [2.5, 40.0]], dtype=torch.float64)
    transform = PropFair(2.0, 1.0, mode)
    together = transform(losses)
    assert together.shape == losses.shape
    for at, loss in enumerate(losses.flatten()):
        assert torch.equal(together.flatten()[at], transform(loss))


@pytest.mark.parametrize("mode", ["huber", "linear"])
def test_gradients_are_finite_beyond_the_baseline(mode):
    losses = torch.tensor([1.8, 2.0, 3.0, 1e30], requires_grad=True)
    PropFair(2.0, 0.2, mode)(losses).sum().backward()
    assert losses.grad is not None
    assert torch.isfinite(losses.grad).all()
    assert (losses.grad > 0).all()


def test_small_losses_keep_their_digits():
    assert PropFair(2.0)(torch.tensor(1e-6)).item() == pytest.approx(5e-7, rel=1e-6)


@pytest.mark.parametrize("mode", ["huber", "linear"])
def test_a_nan_stays_one(mode):
    assert torch.isnan(PropFair(mode=mode)(torch.tensor(torch.nan)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"M": 0.0}, r"M must be positive and finite; found 0\.0"),
        ({"M": math.inf}, r"M must be positive and finite; found inf"),
        ({"epsilon": 0.0}, r"epsilon must lie in \(0, M\] = \(0, 2\.0\]; found 0\.0"),
        ({"epsilon": 2.5}, r"epsilon must lie in \(0, M\] = \(0, 2\.0\]; found 2\.5"),
        ({"mode": "hubert"}, r'mode must be "huber" or "linear"; found hubert'),
    ],
)
def test_bad_settings_are_refused(settings, message: str):
    with pytest.raises(ValueError, match=message):
        PropFair(**settings)


def test_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"loss must be floating-point numbers; found torch\.int64"):
        PropFair()(torch.tensor([1]))
