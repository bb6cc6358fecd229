"""Validation and grids of preferences."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import preference
from equipoise.preference import grid, linspace, ray, through, validate


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


# Validation -----------------------------------------------------------------------------------


def test_a_sound_preference_comes_back_as_it_is():
    w = vector(0.2, 0.3, 0.5)
    assert validate(w) is w
    assert validate(w, 3) is w
    assert torch.equal(validate([0.2, 0.8]), torch.tensor([0.2, 0.8]))
    assert torch.equal(validate((0.25, 0.75)), torch.tensor([0.25, 0.75]))
    assert torch.equal(validate([0, 1]), torch.tensor([0.0, 1.0]))
    assert validate(torch.tensor([[1, 0], [0, 1]])).is_floating_point()
    assert validate(torch.full((4, 5, 10), 0.1)).shape == (4, 5, 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("m", [2, 3, 7, 100])
def test_rounding_is_not_an_error(dtype: torch.dtype, m: int):
    assert validate(torch.full((m,), 1 / m, dtype=torch.float64).to(dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("w", "found"),
    [
        ([0.5, -0.5, 1.0], "entry -0.5"),
        ([1.2, -0.2], "entry -0.2"),
        ([math.nan, 1.0], "entry nan"),
        ([0.7, 0.6], "sum 1.30"),
        ([0.0, 0.0], "sum 0.00"),
        ([math.inf, 0.0], "sum inf"),
        ([[0.5, 0.5], [0.5, 0.25]], "sum 0.75"),
    ],
)
def test_what_is_not_on_the_simplex_is_refused(w: list[float], found: str):
    message = re.escape(f"preference must be non-negative and sum to 1; found {found}")
    with pytest.raises(ValueError, match=message):
        validate(w)


@pytest.mark.parametrize("excess", [5e-4, -2e-3])
def test_the_message_shows_what_is_wrong_with_the_sum(excess: float):
    with pytest.raises(ValueError, match=r"found sum \d\.\d+") as error:
        validate(vector(0.5, 0.5 + excess))
    assert float(str(error.value).partition("found sum ")[2].split()[0]) != 1.0
    assert str(error.value).endswith("(divide the entries by it)")


@pytest.mark.parametrize("length", [1, 3])
def test_a_wrong_length_is_refused(length: int):
    message = rf"preference must have 2 entries, one per objective; found {length}"
    with pytest.raises(ValueError, match=message):
        validate([1 / length] * length, 2)


def test_a_number_is_not_a_preference():
    with pytest.raises(ValueError, match=r"preference must have shape \(\*B, m\) with m ≥ 1; found \(\)"):
        validate(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"preference must have shape \(\*B, m\) with m ≥ 1; found \(0,\)"):
        validate([])


# Grids ----------------------------------------------------------------------------------------


def test_grids_by_hand():
    assert grid(2, 2).tolist() == [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    assert grid(1, 3).tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert grid(2, 3).tolist()[3] == [0.5, 0.0, 0.5]
    assert grid(2, 2, margin=0.1).tolist() == [[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]]


def test_a_grid_for_one_objective():
    assert grid(3, 1).tolist() == [[1.0]]


@pytest.mark.parametrize(("n", "m"), [(5, 2), (4, 3), (3, 5), (2, 10)])
def test_a_grid_is_every_composition_of_n(n: int, m: int):
    points = grid(n, m)
    assert points.dtype == torch.float64
    compositions = [k for k in itertools.product(range(n + 1), repeat=m) if sum(k) == n]
    assert len(points) == math.comb(n + m - 1, m - 1)
    torch.testing.assert_close(points, torch.tensor(compositions, dtype=torch.float64) / n, rtol=0, atol=0)
    validate(points, m)


@given(st.integers(1, 6), st.integers(2, 5), st.floats(0, 0.15))
def test_a_margin_shrinks_the_grid(n: int, m: int, margin: float):
    points = grid(n, m, margin)
    torch.testing.assert_close(points.sum(-1), torch.ones(len(points), dtype=torch.float64), rtol=0, atol=1e-14)
    assert points.min().item() == pytest.approx(margin, abs=1e-15)
    assert points.max().item() == pytest.approx(1 - (m - 1) * margin, abs=1e-15)


def test_the_grid_of_the_paper():
    w = linspace(10)
    torch.testing.assert_close(w[:, 0], torch.linspace(0.01, 0.99, 10, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(w.sum(-1), torch.ones(10, dtype=torch.float64), rtol=0, atol=1e-15)
    assert linspace(2, margin=0.0).tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("n", "m", "margin", "message"),
    [
        (0, 2, 0.0, r"n must be at least 1; found 0"),
        (2, 0, 0.0, r"m must be at least 1; found 0"),
        (2, 4, 0.25, r"margin must lie in \[0, 1/m\) = \[0, 0\.25\); found 0\.25"),
        (2, 2, -0.1, r"margin must lie in \[0, 1/m\) = \[0, 0\.5\); found -0\.1"),
        (2, 2, math.nan, r"margin must lie in .*; found nan"),
    ],
)
def test_a_bad_grid_is_refused(n: int, m: int, margin: float, message: str):
    with pytest.raises(ValueError, match=message):
        grid(n, m, margin)


def test_a_bad_linspace_is_refused():
    with pytest.raises(ValueError, match=r"n must be at least 2; found 1"):
        linspace(1)
    with pytest.raises(ValueError, match=r"margin must lie in .*; found 0\.6"):
        linspace(4, margin=0.6)


# Rays, and back -------------------------------------------------------------------------------


def test_rays_by_hand():
    torch.testing.assert_close(ray(vector(0.5, 0.5)), vector(1, 1) / math.sqrt(2), rtol=0, atol=1e-15)
    torch.testing.assert_close(ray(vector(0.2, 0.8)), vector(4, 1) / math.sqrt(17), rtol=0, atol=1e-15)
    assert ray(torch.full((3, 2, 4), 0.25)).shape == (3, 2, 4)


positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6)


@given(positive)
def test_on_its_ray_the_weighted_objectives_are_equal(values: list[float]):
    w = vector(*values) / sum(values)
    direction = ray(w)
    assert torch.linalg.vector_norm(direction).item() == pytest.approx(1)
    level = w * direction
    torch.testing.assert_close(level, level[:1].expand_as(level), rtol=1e-12, atol=0)


@given(positive)
def test_the_preference_through_a_point_of_its_ray_is_itself(values: list[float]):
    w = vector(*values) / sum(values)
    torch.testing.assert_close(through(3.7 * ray(w)), w, rtol=1e-11, atol=0)
    ideal = vector(*range(len(values)))
    w = vector(*(1 + v / max(values) for v in values))
    w = w / w.sum()
    torch.testing.assert_close(through(ideal + 2 * ray(w), ideal), w, rtol=1e-11, atol=0)


def test_rays_of_extreme_preferences_are_finite():
    direction = ray(vector(1e-300, 1.0 - 1e-300))
    assert direction.tolist() == [1.0, 1e-300]


def test_through_by_hand():
    # f = (2, 1, 4): w ∝ (1/2, 1, 1/4) = (2, 4, 1)/7.
    torch.testing.assert_close(through(vector(2, 1, 4)), vector(2, 4, 1) / 7, rtol=0, atol=1e-15)
    torch.testing.assert_close(through(vector(3, 2, 5), 1.0), vector(2, 4, 1) / 7, rtol=0, atol=1e-15)
    batch = torch.stack([vector(2, 1, 4), vector(1, 1, 1)])
    torch.testing.assert_close(through(batch)[1], vector(1, 1, 1) / 3, rtol=0, atol=1e-15)


def test_through_recovers_the_paper_s_preferences_from_the_exact_front():
    # TCH points of VLMOP2 for the first five of w_1 = linspace(.01, .99, 10).
    points = [(0.973011, 0.009828), (0.930672, 0.125576), (0.878658, 0.259173), (0.803732, 0.407924)]
    torch.testing.assert_close(through(torch.tensor(points, dtype=torch.float64)), linspace(10)[:4], rtol=0, atol=2e-6)


def test_bad_points_are_refused():
    for w, found in ((vector(0.0, 1.0), "0.0"), (vector(0.5, 0.7), "sum 1.20")):
        with pytest.raises(ValueError, match=rf"preference must be .*; found {found}"):
            ray(w)
    message = "point must be finite and above the ideal point in every objective; found difference"
    for point, ideal, found in (
        (vector(1.0, 0.0), 0.0, "0"),
        (vector(1.0, -2.0), 0.0, "-2"),
        (vector(1.0, 2.0), 1.5, "-0.5"),
        (vector(1.0, math.nan), 0.0, "nan"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{message} {found}")):
            through(point, ideal)


def test_an_infinite_point_is_named():
    with pytest.raises(ValueError, match=r"point must be finite .*; found difference inf"):
        through(vector(1.0, math.inf))


def test_the_module_says_what_it_offers():
    assert set(preference.__all__) == {"grid", "linspace", "ray", "through", "validate"}
