"""How far a point is from the ray of its preference."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.metrics import angle, imbalance, tch

METRICS = [tch, imbalance, angle]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand():
    w = vector(0.25, 0.75)
    # w∘f = (1, 0.75): the larger is a third above the smaller.
    f = vector(4, 1)
    assert tch(f, w).item() == 1
    assert imbalance(f, w).item() == pytest.approx(1 / 3)
    # The ray of w is (3, 1).
    assert angle(f, w).item() == pytest.approx(math.atan2(1, 3) - math.atan2(1, 4), rel=1e-12)
    assert angle(vector(6, 2), w).item() == pytest.approx(0, abs=1e-15)
    assert imbalance(vector(6, 2), w).item() == 0
    assert angle(vector(0, 1), vector(0.5, 0.5)).item() == pytest.approx(math.pi / 4)
    assert angle(vector(-3, -1), w).item() == pytest.approx(math.pi)


def test_the_ideal_point_is_where_rays_begin():
    f, w, z = vector(5, 3), vector(0.25, 0.75), vector(1, 2)
    assert tch(f, w, z).item() == tch(f - z, w).item() == 1
    assert imbalance(f, w, z).item() == pytest.approx(1 / 3)
    assert angle(f, w, z).item() == angle(f - z, w).item()
    assert tch(f, w, ideal=1.0).item() == 1.5


def test_tiny_angles_are_not_lost():
    f = torch.tensor([1.0, 1.0 + 1e-5])
    assert angle(f, torch.tensor([0.5, 0.5])).item() == pytest.approx(0.5e-5, rel=0.02)


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    st.floats(1e-3, 1e3),
)
def test_the_ray_itself_is_balanced(raw: list[float], scale: float):
    w = vector(*raw) / sum(raw)
    f = scale / w
    assert imbalance(f, w).item() == pytest.approx(0, abs=1e-14)
    assert angle(f, w).item() == pytest.approx(0, abs=1e-14)
    assert tch(f, w).item() == pytest.approx(scale, rel=1e-14)
    if len(raw) > 1:
        f[0] *= 2
        assert imbalance(f, w).item() == pytest.approx(1, rel=1e-12)
        assert angle(f, w).item() > 1e-6


def test_limits_of_the_imbalance():
    half = vector(0.5, 0.5)
    assert imbalance(vector(1, 0), half).item() == math.inf
    assert imbalance(vector(1, -1), half).item() == math.inf
    assert imbalance(vector(-1, -2), half).item() == math.inf
    assert imbalance(vector(0, 0), half).item() == 0
    assert imbalance(vector(math.nan, 1), half).isnan()
    assert imbalance(vector(1, 1), vector(0, 1)).item() == math.inf


def test_a_zero_in_the_preference_makes_the_ray_an_axis():
    w = vector(0, 1)
    assert angle(vector(3, 0), w).item() == 0
    assert angle(vector(0, 3), w).item() == pytest.approx(math.pi / 2)
    assert tch(vector(3, 0), w).item() == 0
    two = vector(0, 0, 1)
    assert angle(vector(2, 2, 0), two).item() == pytest.approx(0, abs=1e-15)


def test_angle_is_undefined_at_the_ideal_point():
    assert angle(vector(0, 0), vector(0.5, 0.5)).isnan()


@pytest.mark.parametrize("metric", METRICS)
def test_batches_broadcast(metric):
    generator = torch.Generator().manual_seed(0)
    f = 0.1 + torch.rand(7, 5, 3, generator=generator, dtype=torch.float64)
    w = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    w = w / w.sum(-1, keepdim=True)
    z = 0.05 * torch.rand(7, 1, 3, generator=generator, dtype=torch.float64)
    found = metric(f, w, z)
    assert found.shape == (7, 5)
    for i in range(7):
        for j in range(5):
            assert found[i, j].item() == pytest.approx(metric(f[i, j], w[j], z[i, 0]).item())


@pytest.mark.parametrize("metric", METRICS)
def test_gradients(metric):
    generator = torch.Generator().manual_seed(1)
    f = (0.1 + torch.rand(4, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    w = vector(0.2, 0.3, 0.5).requires_grad_()
    assert torch.autograd.gradcheck(metric, (f, w))


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_are_finite_where_the_preference_is_met(metric):
    f = vector(2, 2).requires_grad_()
    metric(f, vector(0.5, 0.5)).backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtype_is_kept(metric, dtype: torch.dtype):
    f, w = torch.tensor([0.3, 0.9], dtype=dtype), torch.tensor([0.25, 0.75], dtype=dtype)
    found = metric(f, w)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(metric(f.double(), w.double()).item(), rel=0.02)


@pytest.mark.parametrize("metric", METRICS)
def test_results_stay_on_the_device(metric):
    # Mixing in a tensor of another device would raise.
    losses = torch.empty(3, 4, 2, device="meta")
    assert metric(losses, losses[0, 0]).device.type == "meta"


@pytest.mark.parametrize("metric", METRICS)
def test_bad_input_is_named(metric):
    with pytest.raises(ValueError, match=r"one entry per objective .* \[3\] .* \[5, 2\]"):
        metric(torch.ones(5, 2), torch.full((3,), 1 / 3))
    with pytest.raises(ValueError, match="one entry per objective"):
        metric(torch.tensor(1.0), torch.tensor(1.0))
