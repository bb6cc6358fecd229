"""Nash-MTL by hand, and the equation that it solves."""

import math

import pytest
import torch
from tests.weighting.gradients import INTEGERS, coefficients, direction, jacobians, random, vector
from torch import Tensor

from equipoise.weighting.nash_mtl import NashMTL

ORTHOGONAL = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
FREE = NashMTL(max_norm=math.inf)
# Gradients, and the direction of TorchJD 0.18 without a clip, where its alternating solver converged.
FROZEN = {
    "two": [0.123333, -1.096769, 0.884243],
    "three": [-1.291987, 0.087607, -1.150259],
    "duplicates": [0.847361, -0.847361, -0.45111, -1.166387],
    "four": [0.925332, -1.641853, -0.593543, 0.309492],
    "four dependent": [0.243176, -1.251142, -1.541269],
    "five, duplicates": [0.779304, -1.779404, -0.006311, -1.106148, -0.052928],
    "six": [-0.702915, 0.839753, -0.61936, 0.570298, 1.95116, 0.533717],
    "six dependent": [-1.139825, 0.481307, -1.154533, -0.915647, -1.515846],
}


def residual(rows: Tensor, w: Tensor) -> float:
    """Of α_i (Kα)_i = m w_i."""
    alpha = coefficients(FREE, rows, w)
    assert (alpha > 0).all()
    gain = alpha * (rows @ (alpha.unsqueeze(-2) @ rows).mT).squeeze(-1)
    return (gain - rows.shape[-2] * w).abs().max().item()


def test_orthogonal_gradients_by_hand():
    torch.testing.assert_close(coefficients(FREE, ORTHOGONAL), vector(1, 0.5))
    torch.testing.assert_close(coefficients(NashMTL(), ORTHOGONAL), vector(1, 0.5) / math.sqrt(2))
    # Powers (1/2, 3/2).
    torch.testing.assert_close(
        coefficients(FREE, ORTHOGONAL, vector(0.25, 0.75)), vector(math.sqrt(0.5), math.sqrt(1.5) / 2)
    )


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6, 20])
def test_every_gain_is_its_power(m: int):
    rows, uniform = random(6, m, m + 6, seed=m), torch.full((m,), 1 / m, dtype=torch.float64)
    assert residual(rows, uniform) < 1e-9
    assert residual(rows, torch.softmax(random(m, seed=m), -1)) < 1e-9
    rows[:, -1] = rows[:, 0]
    assert residual(rows, uniform) < 1e-9


def test_powers_may_differ_by_any_factor():
    w = vector(1e-9, 1e-6, 1e-3, 1 - 1e-3 - 1e-6 - 1e-9)
    assert residual(random(6, 4, 9, seed=1), w) < 1e-11


def test_rows_may_differ_in_length_by_any_factor():
    rows, lengths = random(6, 5, 8, seed=2), 10.0 ** torch.linspace(-9, 9, 5, dtype=torch.float64)
    alpha = coefficients(FREE, rows)
    torch.testing.assert_close(coefficients(FREE, rows * lengths.unsqueeze(-1)) * lengths, alpha, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", FROZEN)
def test_it_is_torchjd_s(name: str):
    rows, expected = INTEGERS[name], FROZEN[name]
    found = direction(FREE, torch.tensor(rows, dtype=torch.float64))
    torch.testing.assert_close(found, vector(*expected), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")  # those of cvxpy
@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s_where_its_own_solver_converges(m: int):
    pytest.importorskip("cvxpy")
    pytest.importorskip("ecos")
    from torchjd.aggregation import NashMTL as Theirs

    compared = 0
    for batch in jacobians(m).values():
        for rows in batch:
            solver = Theirs(m, max_norm=0.0)
            expected = solver(rows)
            alpha = torch.as_tensor(solver.weighting.prvs_alpha, dtype=torch.float64)
            if (alpha * (rows @ expected) - 1).abs().max() < 1e-5:
                torch.testing.assert_close(direction(FREE, rows), expected, rtol=1e-5, atol=1e-5)
                compared += 1
    assert compared >= 6


@pytest.mark.parametrize("limit", [0.3, 1.0])
def test_the_direction_is_as_long_as_the_limit(limit: float):
    rows = random(7, 4, 6, seed=3)
    free, clipped = direction(FREE, rows), direction(NashMTL(limit), rows)
    torch.testing.assert_close(free.norm(dim=-1), torch.full((7,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(clipped, free * limit / 2)
    torch.testing.assert_close(direction(NashMTL(3.0), rows), free)


def test_zero_weights_and_zero_gradients_take_no_part():
    rows = torch.cat([ORTHOGONAL, torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(coefficients(FREE, rows), vector(1, 0.5, 0))
    torch.testing.assert_close(coefficients(FREE, ORTHOGONAL, vector(0, 1)), vector(0, math.sqrt(2) / 2))
    assert coefficients(NashMTL(), 0 * rows).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opposed_gradients_give_finite_coefficients_and_a_short_step(dtype: torch.dtype):
    for gap in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        rows = torch.tensor([[1.0, gap], [-1.0, gap], [0.3, -gap]], dtype=torch.float64)
        losses, K = torch.ones(3, dtype=dtype), (rows @ rows.mT).to(dtype)
        c, _ = NashMTL().update(losses, NashMTL().init(losses), torch.full((3,), 1 / 3), gramian=K)
        assert c.isfinite().all()
        assert (c.double() @ rows).norm() <= 1.001


def test_tiny_gradients_give_finite_coefficients_in_single_precision():
    losses, K = torch.ones(2), 1e-90 * torch.eye(2, dtype=torch.float64)
    c, _ = FREE.update(losses, FREE.init(losses), torch.full((2,), 0.5), gramian=K)
    assert c.isfinite().all()


def test_absent_objectives_are_as_if_there_were_none():
    rows, mask = random(5, 6, seed=3), torch.tensor([True, False, True, True, False])
    c = coefficients(FREE, rows, mask=mask)  # uniform powers stay 1
    assert c[~mask].tolist() == [0, 0]
    torch.testing.assert_close(c[mask], coefficients(FREE, rows[mask]))


def test_probabilities_of_inclusion_do_not_matter():
    rows = random(4, 6, seed=4)
    found = coefficients(NashMTL(), rows, inclusion=vector(0.5, 1.0, 0.25, 0.8))
    torch.testing.assert_close(found, coefficients(NashMTL(), rows))


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_bad_limits_are_refused(limit: float):
    with pytest.raises(ValueError, match=f"max_norm must be positive, inf for no clip; found {limit}"):
        NashMTL(limit)
