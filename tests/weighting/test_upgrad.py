"""UPGrad by hand, as a mean of projections, and against TorchJD."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from tests.weighting.gradients import coefficients, direction, jacobians, random, vector
from torch import Tensor
from torchjd.aggregation import UPGradWeighting
from torchjd.linalg import DualConeProjector

from equipoise.weighting.pcgrad import PCGrad
from equipoise.weighting.upgrad import UPGrad

CONFLICT = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)


def projected(rows: Tensor, g: Tensor) -> Tensor:
    """The projection of g on {x : Jx ≥ 0}: g less its projection on the polar cone, by least squares."""
    unit = torch.nn.functional.normalize(rows, dim=-1)
    x, _ = nnls(unit.numpy().T, -g.numpy())
    return g + torch.from_numpy(x) @ unit


def test_two_gradients_by_hand():
    torch.testing.assert_close(coefficients(UPGrad(), CONFLICT), vector(1.0, 0.75))
    torch.testing.assert_close(direction(UPGrad(), CONFLICT), vector(0.25, 0.75))
    torch.testing.assert_close(direction(UPGrad(), CONFLICT, vector(0.25, 0.75)), vector(0.125, 0.875))


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6, 12])
def test_it_is_the_mean_of_projections(m: int):
    for kind, batch in jacobians(m).items():
        w = torch.softmax(random(m, seed=m), -1)
        expected = torch.stack(
            [torch.stack([p * projected(rows, g) for p, g in zip(w, rows, strict=True)]).sum(0) for rows in batch]
        )
        torch.testing.assert_close(direction(UPGrad(), batch, w), expected, rtol=1e-9, atol=1e-9, msg=kind)


def test_rows_may_differ_in_length_by_any_factor():
    unit = torch.nn.functional.normalize(random(8, 5, 7, seed=2), dim=-1)
    rows = unit * 10.0 ** torch.linspace(-6, 6, 5, dtype=torch.float64).unsqueeze(-1)
    for J, d in zip(rows, direction(UPGrad(), rows), strict=True):
        expected = torch.stack([projected(J, g) for g in J]).mean(0)
        torch.testing.assert_close(d, expected, rtol=1e-9, atol=1e-9)


class LeastSquares(DualConeProjector):
    """What TorchJD's own projectors do without their ridge and their solver: min vᵀGv over v ≥ u."""

    def __call__(self, U: Tensor, G: Tensor) -> Tensor:
        value, vector = np.linalg.eigh(G.numpy())
        root = np.sqrt(value.clip(0))[:, None] * vector.T
        return torch.stack([u + torch.from_numpy(nnls(root, -root @ u.numpy())[0]) for u in U])


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s(m: int):
    w = torch.softmax(random(m, seed=m), -1)
    for batch in jacobians(m).values():
        for rows in batch:
            theirs = UPGradWeighting(w, projector=LeastSquares())(rows @ rows.mT) @ rows
            torch.testing.assert_close(direction(UPGrad(), rows, w), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s_with_its_own_solver(m: int):
    pytest.importorskip("quadprog")
    from torchjd.linalg import QuadprogProjector

    for batch in jacobians(m).values():
        for rows in batch:
            theirs = UPGradWeighting(projector=QuadprogProjector(reg_eps=1e-13))(rows @ rows.mT) @ rows
            torch.testing.assert_close(direction(UPGrad(), rows), theirs, rtol=1e-6, atol=1e-6)


def test_no_objective_is_hurt():
    rows, w = random(30, 6, 4, seed=7), torch.softmax(random(30, 6, seed=8), -1)
    d = direction(UPGrad(), rows, w)
    assert ((rows @ d.unsqueeze(-1)).squeeze(-1) >= -1e-12).all()


def test_for_two_objectives_it_is_pcgrad():
    rows, w = random(20, 2, 3, seed=9), torch.softmax(random(20, 2, seed=1), -1)
    losses = torch.ones(20, 2, dtype=torch.float64)
    expected, _ = PCGrad().update(losses, PCGrad().init(losses), w, gramian=rows @ rows.mT)
    torch.testing.assert_close(coefficients(UPGrad(), rows, w), expected)


def test_a_zero_gradient_is_its_own_projection():
    rows = torch.cat([CONFLICT, torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(coefficients(UPGrad(), rows), vector(2.0, 1.5, 1.0) / 3)


def test_opposed_gradients_cancel():
    rows = torch.stack([CONFLICT[0], -3 * CONFLICT[0]])
    torch.testing.assert_close(direction(UPGrad(), rows), vector(0, 0))
    for gap in (1e-4, 1e-8, 1e-12):
        near = rows + gap * random(2, 2, seed=1)
        c = coefficients(UPGrad(), near)
        assert c.isfinite().all()
        assert ((near @ (c @ near)) >= -1e-12).all()


def test_absent_objectives_are_as_if_there_were_none():
    rows, w = random(5, 6, seed=3), vector(0.1, 0.2, 0.3, 0.15, 0.25)
    mask = torch.tensor([True, False, True, True, False])
    c = coefficients(UPGrad(), rows, w, mask=mask)
    assert c[~mask].tolist() == [0, 0]
    rest = w[mask].sum()  # nothing is rescaled
    torch.testing.assert_close(c[mask], rest * coefficients(UPGrad(), rows[mask], w[mask] / rest))


def test_inclusion_divides_the_projections():
    rows, pi, w = random(4, 6, seed=4), vector(0.5, 1.0, 0.25, 0.8), vector(0.1, 0.2, 0.3, 0.4)
    odd = w / pi
    expected = odd.sum() * coefficients(UPGrad(), rows, odd / odd.sum())
    torch.testing.assert_close(coefficients(UPGrad(), rows, w, inclusion=pi), expected)
