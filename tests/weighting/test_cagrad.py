"""CAGrad by hand, at the ends of its radius, and against TorchJD."""

import pytest
import torch
from tests.weighting.gradients import INTEGERS, coefficients, direction, jacobians, random, vector
from torch import Tensor

from equipoise.minnorm import min_norm
from equipoise.weighting.cagrad import CAGrad

# Gradients, and the direction of TorchJD 0.18 for c = 1/2, whose conic solver is accurate to some 1e-4.
FROZEN = {
    "two": [0.047723, -1.0, 0.773861],
    "three": [-0.035181, 0.51759, -0.631486],
    "duplicates": [0.619932, -0.619932, -0.319909, -0.839833],
    "four": [0.566348, -1.625062, -0.683776, 0.669046],
    "four dependent": [0.0, -1.125, -0.875],
    "five, duplicates": [0.912782, -2.256218, -0.164589, -1.33496, 0.003884],
    "six": [-0.790256, 1.031783, -0.672154, 0.60826, 2.279446, 0.583415],
    "six dependent": [-1.046639, 0.691865, -0.851018, -0.930369, -1.83945],
}


def gap(rows: Tensor, c: float, w: Tensor) -> Tensor:
    """Of the problem max min_i g_i·d over the ball: how much better than d the dual α allows, relative; (*B,)."""
    x = coefficients(CAGrad(c), rows, w)
    moves = (x != 0).any(-1)  # the others are Pareto-stationary
    assert moves.any()
    x, rows = x[moves], rows[moves]
    alpha = (x - w) / (x - w).sum(-1, keepdim=True)
    d, mean, mixed = ((y.unsqueeze(-2) @ rows).squeeze(-2) for y in (x, w.expand_as(x), alpha))
    assert ((d - mean).norm(dim=-1) <= c * mean.norm(dim=-1) * (1 + 1e-9)).all()
    bound = (mixed * mean).sum(-1) + c * mean.norm(dim=-1) * mixed.norm(dim=-1)
    reached = (rows @ d.unsqueeze(-1)).squeeze(-1).amin(-1)
    missing: Tensor = (bound - reached) / (d.norm(dim=-1) * rows.norm(dim=-1).amax(-1))
    return missing


def test_an_orthonormal_pair_by_hand():
    # g_α = g₀, so d = 3/2 g₀.
    unit = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(direction(CAGrad(0.5), unit), vector(0.75, 0.75))


def test_without_a_radius_it_is_the_weighted_mean():
    rows, w = random(4, 5, 7, seed=1), torch.softmax(random(4, 5, seed=2), -1)
    assert torch.equal(coefficients(CAGrad(0.0), rows, w), w)


def test_with_a_large_radius_it_is_mgda():
    rows = random(4, 5, 9, seed=1)
    d = torch.nn.functional.normalize(direction(CAGrad(1e7), rows), dim=-1)
    mgda = (min_norm(rows @ rows.mT).unsqueeze(-2) @ rows).squeeze(-2)
    torch.testing.assert_close(d, torch.nn.functional.normalize(mgda, dim=-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [0.1, 0.4, 0.9, 2.0])
@pytest.mark.parametrize("m", [2, 3, 4, 5, 6, 12])
def test_no_direction_of_the_ball_is_better(m: int, c: float):
    w = torch.softmax(random(m, seed=m), -1)
    for kind, rows in jacobians(m).items():
        assert (gap(rows, c, w) < 1e-10).all(), kind


def test_rows_may_differ_in_length():
    lengths = 10.0 ** torch.linspace(-4, 4, 5, dtype=torch.float64).unsqueeze(-1)
    for seed in range(4):
        order = random(5, seed=seed).argsort()
        rows = random(6, 5, 7, seed=seed) * lengths[order]
        assert (gap(rows, 0.4, torch.full((5,), 0.2, dtype=torch.float64)) < 1e-10).all()


@pytest.mark.parametrize("name", FROZEN)
def test_it_is_torchjd_s(name: str):
    rows, expected = INTEGERS[name], FROZEN[name]
    found = direction(CAGrad(0.5), torch.tensor(rows, dtype=torch.float64))
    torch.testing.assert_close(found, vector(*expected), rtol=0, atol=2e-4)


@pytest.mark.filterwarnings("ignore")  # those of cvxpy
@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s_with_its_own_solver(m: int):
    pytest.importorskip("cvxpy")
    pytest.importorskip("clarabel")
    from torchjd.aggregation import CAGrad as Theirs

    for batch in jacobians(m).values():
        for rows in batch:
            expected = Theirs(0.4)(rows)
            torch.testing.assert_close(direction(CAGrad(0.4), rows), expected, rtol=1e-3, atol=1e-3)


def test_opposed_gradients_end_the_descent():
    for scale in (1.0, 1e-8, 1e8):
        rows = scale * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
        assert coefficients(CAGrad(), rows).tolist() == [0, 0, 0]
    # The mean is 0: there is no ball.
    assert direction(CAGrad(), rows[:2]).tolist() == [0, 0]


def test_a_zero_gradient_takes_no_part():
    rows = torch.cat([torch.eye(2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(direction(CAGrad(0.5), rows), vector(0.5, 0.5))
    assert coefficients(CAGrad(), 0 * rows).isfinite().all()


def test_nearly_opposed_gradients_give_finite_coefficients():
    for gap_ in (1e-3, 1e-6, 1e-9, 1e-12):
        rows = torch.tensor([[1.0, gap_], [-1.0, gap_], [0.3, -gap_]], dtype=torch.float64)
        assert coefficients(CAGrad(), rows).isfinite().all()
        losses, K = torch.ones(3), (rows @ rows.mT).float()
        assert CAGrad().update(losses, CAGrad().init(losses), torch.full((3,), 1 / 3), gramian=K)[0].isfinite().all()


def test_absent_objectives_are_as_if_there_were_none():
    rows, w = random(5, 6, seed=3), vector(0.1, 0.2, 0.3, 0.15, 0.25)
    mask = torch.tensor([True, False, True, True, False])
    c = coefficients(CAGrad(), rows, w, mask=mask)
    assert c[~mask].tolist() == [0, 0]
    rest = w[mask].sum()  # nothing is rescaled
    torch.testing.assert_close(c[mask], rest * coefficients(CAGrad(), rows[mask], w[mask] / rest))


def test_the_radius_may_be_swept():
    rows, radius = random(3, 2, 4, 6, seed=1), vector(0.0, 0.5, 0.9)
    swept = coefficients(CAGrad(radius.unsqueeze(-1)), rows)
    for i, c in enumerate(radius.tolist()):
        torch.testing.assert_close(swept[i], coefficients(CAGrad(c), rows[i]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("c", [-0.1, float("nan"), float("inf")])
def test_bad_radii_are_refused(c: float):
    with pytest.raises(ValueError, match=f"c must be non-negative and finite; found {c}"):
        CAGrad(c)
