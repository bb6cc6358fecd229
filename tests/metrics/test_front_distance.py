"""Non-dominated points, and distances from a front."""

import math

import moocore
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.metrics import igd, igd_plus, non_dominated


def random_points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def naive_mask(points: list[list[float]]) -> list[bool]:
    def dominates(q: list[float], p: list[float]) -> bool:
        pairs = list(zip(q, p, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return [not any(dominates(q, p) for q in points) for p in points]


def test_non_dominated_by_hand():
    points = torch.tensor([[1.0, 3.0], [2.0, 2.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0], [3.0, 2.0]])
    assert non_dominated(points).tolist() == [True, True, True, False, True, False]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4), st.integers(0, 12), st.integers(0, 10_000))
def test_non_dominated_against_the_definition(m: int, n: int, seed: int):
    points = torch.randint(0, 4, (n, m), generator=torch.Generator().manual_seed(seed)).double()
    assert non_dominated(points).tolist() == naive_mask(points.tolist())


@pytest.mark.parametrize("m", [2, 3, 5])
def test_non_dominated_against_moocore(m: int):
    points = random_points(80, m).round(decimals=1)
    expected = moocore.is_nondominated(points.numpy(), keep_weakly=True)
    assert non_dominated(points).tolist() == list(expected)


def test_points_that_are_not_finite_are_never_kept_and_dominate_nothing():
    inf, nan = torch.inf, torch.nan
    points = torch.tensor([[1.0, 1.0], [-inf, 0.0], [nan, 0.0], [0.0, nan], [inf, 0.0], [-inf, nan]])
    assert non_dominated(points).tolist() == [True, False, False, False, False, False]


def test_batches_do_not_mix():
    points = random_points(2, 3, 15, 3)
    masks = non_dominated(points)
    assert masks.shape == (2, 3, 15)
    for i in range(2):
        for j in range(3):
            assert masks[i, j].tolist() == naive_mask(points[i, j].tolist())


def test_igd_by_hand():
    front = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    points = torch.tensor([[3.0, 4.0], [2.0, 1.0]])
    # Nearest to (0, 2) is (2, 1) at √5, nearest to (2, 0) is (2, 1) at 1.
    assert igd(points, front).item() == pytest.approx((math.sqrt(5) + 1) / 2)
    # Only what is worse counts: (2, 1) is 2 worse than (0, 2) in f1 and better in f2.
    assert igd_plus(points, front).item() == pytest.approx((2 + 1) / 2)
    assert igd(front, front).item() == 0
    assert igd_plus(front - 1, front).item() == 0
    assert igd(front - 1, front).item() == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("m", [1, 2, 4])
def test_igd_against_moocore(m: int):
    points, front = random_points(40, m), random_points(70, m, seed=1)
    assert igd(points, front).item() == pytest.approx(float(moocore.igd(points.numpy(), front.numpy())), rel=1e-12)
    assert igd_plus(points, front).item() == pytest.approx(
        float(moocore.igd_plus(points.numpy(), front.numpy())), rel=1e-12
    )


@pytest.mark.parametrize("metric", [igd, igd_plus])
def test_batched_is_looped(metric):
    points, front = random_points(2, 3, 8, 2), random_points(2, 3, 5, 2, seed=1)
    looped = [[metric(points[i, j], front[i, j]).item() for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(metric(points, front), looped, rtol=1e-13)
    shared = [[metric(points[i, j], front[0, 0]).item() for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(metric(points, front[0, 0]), shared, rtol=1e-13)


@pytest.mark.parametrize("metric", [igd, igd_plus])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_points_that_are_not_finite_are_absent(metric, bad: float):
    points, front = random_points(6, 2), random_points(9, 2, seed=1)
    broken = torch.cat((points, torch.tensor([[bad, 0.0]], dtype=torch.float64)))
    assert metric(broken, front) == metric(points, front)
    assert metric(broken[-1:], front).item() == math.inf


@pytest.mark.parametrize("metric", [igd, igd_plus])
def test_gradients(metric):
    points, front = random_points(2, 4, 3).requires_grad_(), random_points(7, 3, seed=1)
    assert torch.autograd.gradcheck(lambda p: metric(p, front), (points,))
    touching = front[:1].clone().requires_grad_()
    metric(torch.cat((touching, front[1:])), front).backward()
    assert touching.grad is not None
    assert touching.grad.isfinite().all()


@pytest.mark.parametrize("metric", [igd, igd_plus])
def test_dtype_is_kept(metric):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        points, front = random_points(4, 2).to(dtype), random_points(3, 2, seed=1).to(dtype)
        assert metric(points, front).dtype == dtype


def test_results_stay_on_the_device():
    # Mixing in a tensor of another device would raise.
    points = torch.empty(3, 4, 2, device="meta")
    assert non_dominated(points).device.type == "meta"
    assert igd(points, points[0]).device.type == "meta"
    assert igd_plus(points, points[0]).device.type == "meta"


def test_whole_numbers_are_points_too():
    points, front = torch.tensor([[3, 0]]), torch.tensor([[0, 4], [3, 0]])
    assert (igd(points, front).item(), igd_plus(points, front).item()) == (2.5, 1.5)
    assert non_dominated(front).tolist() == [True, True]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="front must be a tensor; found list"):
        igd(torch.zeros(1, 2), [[0, 4]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"points must have shape .* found \[3\]"):
        non_dominated(torch.zeros(3))
    for metric in (igd, igd_plus):
        with pytest.raises(ValueError, match=r"points must have shape .* n ≥ 1; found \[0, 2\]"):
            metric(torch.zeros(0, 2), torch.zeros(3, 2))
        with pytest.raises(ValueError, match=r"front must have shape .* n ≥ 1; found \[0, 2\]"):
            metric(torch.zeros(3, 2), torch.zeros(0, 2))
        with pytest.raises(ValueError, match="same number of objectives; found 2 and 3"):
            metric(torch.zeros(4, 2), torch.zeros(3, 3))
