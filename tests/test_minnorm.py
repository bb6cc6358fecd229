"""The shortest vector in a hull, against its optimality conditions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from equipoise import minnorm
from equipoise.minnorm import min_norm, min_norm_at

SIZES = [2, 3, 4, 7, 12, 20, 40]


def gramian(rows: list[list[float]]) -> Tensor:
    J = torch.tensor(rows, dtype=torch.float64)
    return J @ J.mT


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scales(n: int, m: int) -> Tensor:
    """Row lengths over six decades."""
    generator = torch.Generator().manual_seed(7)
    return 10 ** (6 * torch.rand(n, m, 1, generator=generator, dtype=torch.float64) - 3)


def duplicates(n: int, m: int) -> Tensor:
    J = randn(n, m, m + 3, seed=3)
    J[:, m // 2 :] = J[:, : m - m // 2].clone()
    return J


def around_zero(n: int, m: int) -> Tensor:
    J = randn(n, m, m + 3, seed=5)
    mix = torch.rand(n, 1, m - 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    J[:, -1] = -(mix @ J[:, :-1]).squeeze(-2)
    return J


FAMILIES = {
    "independent": lambda n, m: randn(n, m, m + 3, seed=0),
    "one half-space": lambda n, m: randn(n, m, m + 3, seed=1) + 1,
    "rank-deficient": lambda n, m: randn(n, m, max(1, m // 2), seed=2) + 0.7,
    "plane": lambda n, m: randn(n, m, 2, seed=8) + 1,
    "duplicates": duplicates,
    "lengths over 1e6": lambda n, m: randn(n, m, m + 3, seed=4) * scales(n, m),
    "rank-deficient, lengths over 1e6": lambda n, m: (randn(n, m, max(1, m // 2), seed=2) + 0.7) * scales(n, m),
    "zero in the hull": around_zero,
}


def by_nnls(K: Tensor) -> Tensor:
    """min ‖Fx‖² + (cᵀx − 1)² over x ≥ 0 with FᵀF the cosines: its solution lies on the ray of b = α∘s."""
    gram = K.numpy()
    s = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(s, s))
    c = s.min() / s
    F = (vectors * np.sqrt(values.clip(0))).T
    x, _ = nnls(np.vstack([F, c]), np.append(np.zeros(len(c)), 1.0))
    return torch.from_numpy(x * c / (x * c).sum())


def combine(alpha: Tensor, J: Tensor) -> Tensor:
    return (alpha.unsqueeze(-2) @ J).squeeze(-2)


def assert_optimal(alpha: Tensor, J: Tensor) -> None:
    """The conditions under which Jᵀα is the shortest vector of the hull, in units that know no scale."""
    assert (alpha >= 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]), rtol=0, atol=1e-14)
    length = torch.linalg.vector_norm(J, dim=-1)
    d = combine(alpha, J)
    norm = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
    # The Gramian has ‖d‖² to its rounding, so ‖d‖ to the root of that.
    stationary = (norm <= 3e-8 * length.amin(-1, keepdim=True)).squeeze(-1)
    value, along = norm.square(), (J @ d.unsqueeze(-1)).squeeze(-1)
    gap = ((value - along) / (length * norm))[~stationary]
    assert gap.numel() == 0 or gap.max() <= 1e-10
    # Rows that carry weight meet the condition with equality.
    carried = (alpha * length / norm > 1e-6)[~stationary]
    assert gap[carried].numel() == 0 or gap[carried].abs().max() <= 1e-9


@pytest.mark.parametrize(
    ("rows", "alpha"),
    [
        ([[1, 0], [0, 2]], [0.8, 0.2]),
        ([[1, 0], [2, 0], [0, 1]], [0.5, 0, 0.5]),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [1 / 3, 1 / 3, 1 / 3]),
        ([[1, 0], [-1, 0], [0, 1]], [0.5, 0.5, 0]),
        ([[1, 0], [-1, 0.5], [-1, -0.5]], [0.5, 0.25, 0.25]),
        ([[1, 2], [0, 0], [3, 1]], [0, 1, 0]),
        ([[0, 0], [1, 2], [0, 0]], [0.5, 0, 0.5]),
        ([[0, 0], [0, 0], [0, 0]], [1 / 3, 1 / 3, 1 / 3]),
        ([[0, 0], [1, 2]], [1, 0]),
        ([[0, 0], [0, 0]], [0.5, 0.5]),
        ([[3, 1], [3, 1]], [0.5, 0.5]),
        ([[5, 5]], [1]),
        ([[0, 0]], [1]),
    ],
)
def test_by_hand(rows: list[list[float]], alpha: list[float]):
    expected = torch.tensor(alpha, dtype=torch.float64)
    torch.testing.assert_close(min_norm(gramian(rows)), expected, rtol=0, atol=1e-15)


def test_squared_norm_by_hand():
    K = gramian([[1, 0], [0, 2]])
    alpha = min_norm(K)
    assert (alpha @ K @ alpha).item() == pytest.approx(0.8, rel=1e-15)


@pytest.mark.parametrize("rows", [[[1, 0], [2, 0.5]], [[1, 0], [1, 1]], [[1e-9, 0], [1, 1]], [[1, 0], [1 + 1e-9, 0]]])
def test_end_points_of_a_pair_are_exact(rows: list[list[float]]):
    K = gramian(rows)
    assert min_norm(K).tolist() == [1, 0]
    assert min_norm(K.flip(-1, -2)).tolist() == [0, 1]


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_optimal_and_equal_to_nnls(family: str, m: int):
    J = FAMILIES[family](6, m)
    K = J @ J.mT
    alpha = min_norm(K)
    assert_optimal(alpha, J)
    shortest = K.diagonal(dim1=-2, dim2=-1).amin(-1)
    oracle = torch.stack([by_nnls(k) for k in K])
    found, expected = (combine(a, J).square().sum(-1) for a in (alpha, oracle))
    assert ((found - expected).abs() <= 1e-13 * expected + 1e-15 * shortest).all()
    if family == "zero in the hull":
        assert (found <= 1e-15 * shortest).all()


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("family", ["independent", "one half-space", "rank-deficient", "plane", "duplicates"])
def test_dual_gap_in_plain_units(family: str, m: int):
    J = FAMILIES[family](6, m)
    K = J @ J.mT
    alpha = min_norm(K)
    pull = (K @ alpha.unsqueeze(-1)).squeeze(-1)
    value = (alpha * pull).sum(-1)
    largest = K.diagonal(dim1=-2, dim2=-1).amax(-1)
    assert (value - pull.amin(-1) <= torch.maximum(1e-10 * value, 1e-15 * largest)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_is_short(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    # Also where rounding leaves a Gramian indefinite, and a search that trusts it would go in circles.
    m, solves, solve = 12, itertools.count(), minnorm._solve
    monkeypatch.setattr(minnorm, "_solve", lambda A, y: (next(solves), solve(A, y))[1])
    J = FAMILIES[family](100, m).to(dtype)
    min_norm(J @ J.mT)
    assert next(solves) <= 2 * m


def test_a_row_that_hardly_matters_counts():
    # Without the last row d = (1/2, 1/2, 0), which that row misses the condition for by 5e-9.
    J = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5 - 1e-8, 0.5, 5]], dtype=torch.float64)
    alpha = min_norm(J @ J.mT)
    assert_optimal(alpha, J)
    assert 0 < alpha[2] < 1e-9


@pytest.mark.parametrize("m", [2, 3, 9])
@pytest.mark.parametrize("factor", [1e-150, 1e-3, 1e3, 1e140])
def test_a_common_scale_changes_nothing(m: int, factor: float):
    J = randn(5, m, m, seed=11)
    torch.testing.assert_close(min_norm(factor * J @ (factor * J).mT), min_norm(J @ J.mT), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("m", [2, 3, 9])
def test_permutations_carry_over(m: int):
    J = randn(5, m, m + 2, seed=12)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(0))
    K = J @ J.mT
    torch.testing.assert_close(min_norm(K[:, order][:, :, order]), min_norm(K)[:, order], rtol=1e-10, atol=1e-14)


@given(
    st.integers(2, 6).flatmap(
        lambda m: st.integers(1, 4).flatmap(
            lambda d: st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=m, max_size=m)
        )
    )
)
def test_degenerate_geometry(rows: list[list[int]]):
    J = torch.tensor(rows, dtype=torch.float64)
    length = torch.linalg.vector_norm(J, dim=-1)
    alpha = min_norm(J @ J.mT)
    if (length == 0).any():
        zero = (length == 0).double()
        torch.testing.assert_close(alpha, zero / zero.sum(), rtol=0, atol=1e-15)
    else:
        assert_optimal(alpha, J)
        oracle = combine(by_nnls(J @ J.mT), J)
        torch.testing.assert_close(combine(alpha, J), oracle, rtol=0, atol=1e-7)


@pytest.mark.parametrize("m", [2, 5])
def test_a_batch_is_its_instances(m: int):
    J = randn(3, 4, m, 3, seed=13)
    J[0, 1, 0] = 0
    J[2, 3, 1] = J[2, 3, 0]
    K = J @ J.mT
    alpha = min_norm(K)
    assert alpha.shape == (3, 4, m)
    for i in range(3):
        for j in range(4):
            torch.testing.assert_close(alpha[i, j], min_norm(K[i, j]), rtol=1e-13, atol=1e-15)
    assert min_norm(K[:0]).shape == (0, 4, m)


@pytest.mark.parametrize("m", [2, 3, 6])
def test_a_mask_leaves_the_problem_of_the_rest(m: int):
    J = randn(m, 4, seed=14)
    K = J @ J.mT
    for mask in itertools.product([True, False], repeat=m):
        part = torch.tensor(mask)
        # What is left out may hold anything.
        broken = K.masked_fill(~(part.unsqueeze(-1) & part), math.nan)
        alpha = min_norm(broken, part)
        assert torch.equal(alpha[~part], torch.zeros(m - sum(mask), dtype=torch.float64))
        if any(mask):
            torch.testing.assert_close(alpha[part], min_norm(K[part][:, part]), rtol=1e-12, atol=1e-15)


def test_a_mask_broadcasts_over_the_batch():
    J = randn(4, 3, 5, seed=15)
    K, mask = J @ J.mT, torch.tensor([True, False, True])
    expected = min_norm(K[:, [0, 2]][:, :, [0, 2]])
    torch.testing.assert_close(min_norm(K, mask)[:, [0, 2]], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_instance_spoils_no_other(m: int, bad: float):
    J = randn(3, m, 5, seed=16)
    K = J @ J.mT
    broken = K.clone()
    broken[1, 0, m - 1] = broken[1, m - 1, 0] = bad
    alpha = min_norm(broken)
    assert torch.equal(alpha[[0, 2]], min_norm(K)[[0, 2]])
    assert (alpha[1] >= 0).all()
    assert alpha[1].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("m", [2, 5, 12])
def test_the_rounding_of_float32_costs_no_more_than_itself(family: str, m: int):
    # Such a Gramian is not positive semi-definite: the search has to end all the same.
    J = FAMILIES[family](50, m)
    single = J.float() @ J.float().mT
    found, best = (combine(min_norm(K), J).square().sum(-1) for K in (single, J @ J.mT))
    shortest = J.square().sum(-1).amin(-1)
    assert ((found - best) <= 1e-5 * shortest).all()


def test_the_answer_is_a_constant_in_float64():
    for m in (2, 3):
        K = (randn(m, 4, seed=17).float() @ randn(m, 4, seed=17).float().mT).requires_grad_()
        alpha = min_norm(K)
        assert alpha.dtype == torch.float64
        assert not alpha.requires_grad


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 2, 3), (2, 0, 0)])
def test_bad_shapes_are_named(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"gramian must have shape \(\*B, m, m\)"):
        min_norm(torch.ones(shape))


# --- on another plane than the simplex's


@pytest.mark.parametrize("m", [2, 3, 5, 9])
def test_on_the_plane_of_ones_it_is_min_norm(m: int):
    for J in (randn(8, m, m + 2, seed=m), scales(8, m) * randn(8, m, m + 2, seed=m), randn(8, m, m - 1, seed=m)):
        found = min_norm_at(J @ J.mT, torch.ones(m))
        d, expected = ((a.unsqueeze(-2) @ J).squeeze(-2) for a in (found, min_norm(J @ J.mT)))
        torch.testing.assert_close(found.sum(-1), torch.ones(8, dtype=torch.float64), rtol=1e-12, atol=0)
        torch.testing.assert_close(d, expected, rtol=1e-9, atol=1e-9 * J.norm(dim=-1).amin().item())


@pytest.mark.parametrize("m", [2, 3, 5, 9])
def test_a_level_of_any_signs_by_its_optimality_conditions(m: int):
    J, level = scales(20, m) * randn(20, m, m + 2, seed=m), randn(20, m, seed=m + 1)
    level[:, 0] = level[:, 0].abs() + 0.1
    alpha = min_norm_at(J @ J.mT, level)
    assert (alpha >= 0).all()
    torch.testing.assert_close((alpha * level).sum(-1), torch.ones(20, dtype=torch.float64), rtol=1e-9, atol=0)
    d = (alpha.unsqueeze(-2) @ J).squeeze(-2)
    slack = (J @ d.unsqueeze(-1)).squeeze(-1) - d.square().sum(-1, keepdim=True) * level
    size = J.norm(dim=-1) * d.norm(dim=-1, keepdim=True)
    assert (slack >= -1e-9 * size).all()
    assert (torch.where(alpha > 0, slack, 0.0).abs() <= 1e-9 * size).all()


def test_where_no_level_is_positive_there_is_no_solution():
    K = torch.eye(3, dtype=torch.float64)
    assert min_norm_at(K, torch.tensor([0.0, -1.0, -2.0])).tolist() == [0, 0, 0]
    K[0, 0] = 0
    assert min_norm_at(K, torch.tensor([1.0, 0.0, 0.0])).tolist() == [0, 0, 0]
    assert min_norm_at(K, torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, True, False])).tolist() == [0, 0.5, 0]
