"""Hypervolumes by hand and against moocore, also in batches."""

import sys

import moocore
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.metrics import hypervolume, non_dominated


def random_points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def by_counting(points: Tensor, reference: tuple[int, ...]) -> int:
    """Unit cells of an integer grid that some point dominates."""
    cells = torch.cartesian_prod(*(torch.arange(r) for r in reference))
    covered = (points.unsqueeze(0) <= cells.unsqueeze(1)).all(-1).any(-1)
    return int(covered.sum())


@pytest.mark.parametrize(
    ("points", "reference", "expected"),
    [
        ([(5, 5), (4, 6), (2, 7), (7, 4)], (10, 10), 38),
        ([(1, 1)], (2, 3), 2),
        ([(0, 0, 0)], (1, 1, 1), 1),
        ([(0, 0, 0, 0), (0, 0, 0, 0)], (1, 2, 3, 4), 24),
        ([(1, 2), (2, 1)], (3, 3), 3),
        ([(1, 2), (2, 1), (1, 2), (2, 2)], (3, 3), 3),
        ([(1, 1), (1, 2), (2, 1)], (3, 3), 4),
        ([(-1, 0)], (1, 1), 2),
    ],
)
def test_by_hand(points: list[tuple[float, ...]], reference: tuple[float, ...], expected: float):
    found = hypervolume(torch.tensor(points, dtype=torch.float64), reference)
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("m", [2, 3])
def test_points_that_do_not_count(m: int):
    nan, inf = torch.nan, torch.inf
    rest = [0.0] * (m - 1)
    outside = [[1.0, *rest], [7.0, *rest], [nan, *rest], [inf, *rest], [-inf, *rest]]
    points = torch.tensor(outside, dtype=torch.float64)
    assert hypervolume(points, [1.0] * m).item() == 0
    assert hypervolume(points.flip(-1), [1.0] * m).item() == 0
    with_one = torch.cat((points, torch.full((1, m), 0.5, dtype=torch.float64)))
    assert hypervolume(with_one, [1.0] * m).item() == pytest.approx(0.5**m)
    assert hypervolume(points[:0], [1.0] * m).item() == 0


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 7, 60])
def test_against_moocore(m: int, n: int):
    points = random_points(5, n, m, seed=n)
    points[1] = points[1, :1]  # all the same
    points[2] = points[2].round(decimals=1)  # ties and dominated points
    points[3] *= 2  # some beyond the reference
    points[4] = points[4] / points[4].norm(dim=-1, keepdim=True)  # all on a front
    expected = [moocore.hypervolume(p.numpy(), ref=np.ones(m)) for p in points]
    np.testing.assert_allclose(hypervolume(points, [1.0] * m), expected, rtol=1e-12, atol=1e-14)
    broken = points.clone()
    broken[:, ::3, 0] = torch.nan
    intact = [p[p.isfinite().all(-1)].numpy() for p in broken]
    expected = [moocore.hypervolume(p, ref=np.ones(m)) if len(p) else 0.0 for p in intact]
    np.testing.assert_allclose(hypervolume(broken, [1.0] * m), expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=8))
def test_sweep_against_counting_cells(points: list[tuple[int, int]]):
    grid = torch.tensor(points, dtype=torch.float64).reshape(-1, 2)
    assert hypervolume(grid, (6, 5)).item() == by_counting(grid, (6, 5))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_only_non_dominated_points_matter_and_order_does_not(seed: int, n: int):
    points = random_points(n, 2, seed=seed).round(decimals=1)
    whole = hypervolume(points, (1.05, 1.05))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(hypervolume(points[order], (1.05, 1.05)), whole)
    torch.testing.assert_close(hypervolume(points[non_dominated(points)], (1.05, 1.05)), whole)
    torch.testing.assert_close(hypervolume(torch.cat((points, points)), (1.05, 1.05)), whole)


@pytest.mark.parametrize("m", [2, 3])
def test_batched_is_looped(m: int):
    points = 1.2 * random_points(2, 3, 9, m)
    references = 1 + random_points(2, 3, m, seed=1) / 2
    volumes = hypervolume(points, references)
    assert volumes.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = hypervolume(points[i, j], tuple(references[i, j].tolist()))
            assert volumes[i, j].item() == pytest.approx(alone.item(), rel=1e-13)


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtype_is_kept(m: int, dtype: torch.dtype):
    points = random_points(10, m).to(dtype)
    found = hypervolume(points, [1.0] * m)
    assert found.dtype == dtype
    tolerance = 10 * torch.finfo(dtype).eps
    assert found.item() == pytest.approx(hypervolume(points.double(), [1.0] * m).item(), rel=tolerance)


def test_gradient_of_the_sweep():
    points = random_points(3, 6, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: hypervolume(p, (0.9, 0.9)), (points,))
    broken = torch.tensor([[torch.nan, 0.0], [0.25, 0.5]], requires_grad=True)
    hypervolume(broken, (1.0, 1.0)).backward()
    assert broken.grad is not None
    assert broken.grad.tolist() == [[0.0, 0.0], [-0.5, -0.75]]


def test_the_sweep_stays_on_the_device():
    # Mixing in a tensor of another device would raise.
    volumes = hypervolume(torch.empty(3, 4, 2, device="meta"), (1.0, 1.0))
    assert (volumes.device.type, volumes.shape) == ("meta", (3,))


@pytest.mark.parametrize(("m", "volume"), [(2, 6.25), (3, 15.625)])
def test_whole_numbers_do_not_cut_the_reference(m: int, volume: float):
    assert hypervolume(torch.ones(1, m, dtype=torch.int64), (3.5,) * m).item() == volume


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"points must be a tensor; found list"):
        hypervolume([[1, 2]], (3, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"points must have shape .* m ≥ 2; found \[4\]"):
        hypervolume(torch.zeros(4), (1.0, 1.0))
    with pytest.raises(ValueError, match=r"points must have shape .* m ≥ 2; found \[4, 1\]"):
        hypervolume(torch.zeros(4, 1), (1.0,))
    with pytest.raises(ValueError, match=r"reference must have 2 coordinates.* found shape \[3\]"):
        hypervolume(torch.zeros(4, 2), (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"reference must have 2 coordinates.* found shape \[\]"):
        hypervolume(torch.zeros(4, 2), torch.tensor(1.0))


def test_without_moocore(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "moocore", None)
    assert hypervolume(torch.zeros(1, 2), (1.0, 1.0)).item() == 1
    with pytest.raises(ImportError, match=r"needs moocore: pip install moocore$"):
        hypervolume(torch.zeros(1, 3), (1.0, 1.0, 1.0))
