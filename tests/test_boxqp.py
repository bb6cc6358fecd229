"""The quadratic program with bounds, against its optimality conditions and a general solver."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from equipoise.boxqp import _approach, box_min_norm
from equipoise.minnorm import min_norm
from equipoise.simplex import project_box

SIZES = [1, 2, 3, 5, 10, 20, 40]
EPSILONS = [0.0, 0.05, 0.3, 1.0]


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def duplicates(n: int, m: int) -> Tensor:
    J = randn(n, m, m + 3, seed=3)
    J[:, m // 2 :] = J[:, : m - m // 2].clone()
    return J


FAMILIES = {
    "independent": lambda n, m: randn(n, m, m + 3, seed=0),
    "one half-space": lambda n, m: randn(n, m, m + 3, seed=1) + 1,
    "rank-deficient": lambda n, m: randn(n, m, max(1, m // 2), seed=2) + 0.7,
    "plane": lambda n, m: randn(n, m, 2, seed=8) + 1,
    "duplicates": duplicates,
    "lengths over 1e6": lambda n, m: randn(n, m, m + 3, seed=4) * 10 ** randn(n, m, 1, seed=5).clamp(-3, 3),
}


def ball(m: int, epsilon: float) -> tuple[Tensor, Tensor]:
    centre = torch.full((m,), 1.0 / m, dtype=torch.float64)
    return (centre - epsilon).clamp_min(0.0), (centre + epsilon).clamp_max(1.0)


def value(K: Tensor, alpha: Tensor) -> Tensor:
    return torch.einsum("...i,...ij,...j->...", alpha, K, alpha)


def largest(K: Tensor) -> Tensor:
    return K.diagonal(dim1=-2, dim2=-1).amax(-1)


def slsqp(start: Tensor, low: Tensor, high: Tensor, fun: Any, slope: Any, *constraints: Any) -> Any:
    total = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: a * 0 + 1}
    arguments: Any = {
        "jac": slope,
        "bounds": list(zip(low.tolist(), high.tolist(), strict=True)),
        "constraints": [total, *constraints],
        "method": "SLSQP",
        "options": {"ftol": 1e-14, "maxiter": 500},
    }
    return minimize(fun, start.numpy(), **arguments)


def assert_optimal(K: Tensor, alpha: Tensor, low: Tensor, high: Tensor, tolerance: float = 1e-12) -> None:
    """No weight can be moved from one coordinate to another with profit, and α is in the set."""
    assert alpha.dtype == torch.float64
    assert (alpha >= low).all()
    assert (alpha <= high).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]), rtol=0, atol=1e-12)
    pull = (K @ alpha.unsqueeze(-1)).squeeze(-1)
    over = torch.where(alpha > low + 1e-15, pull, -torch.inf).amax(-1)
    under = torch.where(alpha < high - 1e-15, pull, torch.inf).amin(-1)
    assert (over - under <= tolerance * largest(K)).all()


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_optimality_conditions_hold(family: str, m: int):
    J = FAMILIES[family](30, m)
    K = J @ J.mT
    for epsilon in EPSILONS:
        low, high = ball(m, epsilon)
        assert_optimal(K, box_min_norm(K, low, high), low, high)


@pytest.mark.parametrize("m", [2, 3, 7, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_general_solver_finds_less(family: str, m: int):
    J = FAMILIES[family](4, m)
    K = J @ J.mT
    K = K / largest(K)[:, None, None]
    draws = torch.rand(4, m, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    low = 0.5 * draws / draws.sum(-1, keepdim=True)
    high = low + 1.5 / m
    found = value(K, box_min_norm(K, low, high))
    for row in range(4):
        gram = K[row].numpy()
        start = project_box(torch.full((m,), 1.0 / m, dtype=torch.float64), low[row], high[row])
        other = slsqp(start, low[row], high[row], lambda a, gram=gram: a @ gram @ a, lambda a, gram=gram: 2 * gram @ a)
        assert found[row] <= other.fun + 1e-10
        assert found[row] >= other.fun - 1e-5  # SLSQP stops early where rows differ in length


@pytest.mark.parametrize("m", [2, 3, 6, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_box_it_is_min_norm(family: str, m: int):
    J = FAMILIES[family](20, m)
    K = J @ J.mT
    excess = value(K, box_min_norm(K, 0.0, 1.0)) - value(K, min_norm(K))
    assert (excess.abs() <= 1e-12 * largest(K)).all()


def test_by_hand():
    K = torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    for low, high, expected in ((0.0, 1.0, [0.8, 0.2]), (0.3, 0.7, [0.7, 0.3]), (0.5, 0.5, [0.5, 0.5])):
        alpha = box_min_norm(K, low, high)
        torch.testing.assert_close(alpha, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("epsilon", "third"), [(1.0, 0.5), (0.1, 1 / 3 + 0.1), (0.0, 1 / 3)])
def test_a_tie_is_split_evenly(epsilon: float, third: float):
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    alpha = box_min_norm(rows @ rows.mT, *ball(3, epsilon))
    half = (1 - third) / 2
    torch.testing.assert_close(alpha, torch.tensor([half, half, third], dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("m", [4, 9, 40])
def test_of_many_solutions_it_is_the_shortest(m: int):
    """In a plane with 0 in the hull many α give 0; the shortest of them solves another quadratic program."""
    J = randn(10, m, 2, seed=12)
    J = J - J.mean(-2, keepdim=True) + 0.05
    low, high = ball(m, 0.5 / m)
    alpha = box_min_norm(J @ J.mT, low, high)
    d = (alpha.unsqueeze(-2) @ J).squeeze(-2)
    for row in range(10):
        rows, target = J[row].numpy(), d[row].numpy()
        same = {"type": "eq", "fun": lambda a, rows=rows, target=target: a @ rows - target}
        shortest = slsqp(alpha[row], low, high, lambda a: a @ a, lambda a: 2 * a, same)
        assert alpha[row].square().sum() <= shortest.fun + 1e-9


@given(st.integers(2, 8), st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_permuting_rows_permutes_the_solution(m: int, seed: int, epsilon: float):
    J = randn(m, 4, seed=seed)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    K, (low, high) = J @ J.mT, ball(m, epsilon)
    turned = box_min_norm(K[order][:, order], low, high)
    torch.testing.assert_close(turned, box_min_norm(K, low, high)[order], rtol=0, atol=1e-8)


def test_many_objectives_start_near_the_solution():
    J = randn(3, 60, 40, seed=6) + 0.5
    K = J @ J.mT
    K = K / largest(K)[:, None, None]
    low, high = (bound.expand(3, 60) for bound in ball(60, 0.05))
    near = _approach(K, torch.full((3, 60), 1 / 60, dtype=torch.float64), low, high)
    assert (near >= low).all()
    assert (near <= high).all()
    torch.testing.assert_close(value(K, near), value(K, box_min_norm(K, low, high)), rtol=1e-6, atol=0)


def test_a_common_scale_changes_nothing():
    J = randn(5, 6, 9, seed=1)
    K = J @ J.mT
    for scale in (1e-200, 1e-6, 1e6, 1e200):
        torch.testing.assert_close(box_min_norm(scale * K, 0.05, 0.5), box_min_norm(K, 0.05, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [3, 35])
def test_batched_is_looped(m: int):
    J = randn(2, 3, m, m, seed=2)
    K, low = J @ J.mT, 0.5 * torch.rand(2, 3, m, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) / m
    alpha = box_min_norm(K, low, low + 2.0 / m)
    assert alpha.shape == (2, 3, m)
    for i in range(2):
        for j in range(3):
            alone = box_min_norm(K[i, j], low[i, j], low[i, j] + 2.0 / m)
            torch.testing.assert_close(alpha[i, j], alone, rtol=0, atol=1e-13)


def test_zero_rows_take_what_the_box_allows():
    K = torch.diag(torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    expected = torch.tensor([0.15, 0.35, 0.35, 0.15], dtype=torch.float64)
    torch.testing.assert_close(box_min_norm(K, *ball(4, 0.1)), expected)
    torch.testing.assert_close(box_min_norm(0 * K, *ball(4, 0.1)), torch.full((4,), 0.25, dtype=torch.float64))


def test_a_gramian_with_rounding_errors_is_solved_to_these():
    J = duplicates(20, 12)
    K = (J @ J.mT).float()  # no longer semi-definite
    low, high = ball(12, 0.1)
    exact = value(J @ J.mT, box_min_norm(J @ J.mT, low, high))
    alpha = box_min_norm(K, low, high)
    assert (value(J @ J.mT, alpha) <= exact + 1e-5 * largest(K)).all()


def test_the_solution_is_a_constant_in_float64():
    K = torch.eye(3).requires_grad_()
    alpha = box_min_norm(K, 0.0, 1.0)
    assert alpha.dtype == torch.float64
    assert not alpha.requires_grad


@pytest.mark.parametrize(
    ("gramian", "low", "high", "message"),
    [
        (torch.ones(3), 0.0, 1.0, r"gramian must have shape \(\*B, m, m\) with m ≥ 1; found \(3,\)"),
        (torch.ones(3, 2), 0.0, 1.0, r"gramian must have shape .*; found \(3, 2\)"),
        (torch.full((2, 2), torch.nan), 0.0, 1.0, r"gramian must be finite; found \[nan\]"),
        (torch.eye(2), 0.6, 1.0, r"lower must sum to at most 1; found 1\.2"),
        (torch.eye(2), 0.0, 0.4, r"upper must sum to at least 1; found 0\.8"),
        (torch.eye(2), 0.5, 0.4, r"lower must not exceed upper"),
        (torch.eye(2), -0.1, 1.0, r"lower must be non-negative; found -0\.1"),
    ],
)
def test_bad_input_is_refused(gramian: Tensor, low: float, high: float, message: str):
    with pytest.raises(ValueError, match=message):
        box_min_norm(gramian, low, high)
