"""IMTL-G by hand and against TorchJD."""

import pytest
import torch
from tests.weighting.gradients import coefficients, jacobians, random, vector
from torchjd.aggregation import IMTLGWeighting

from equipoise.weighting.imtl_g import IMTLG

ORTHOGONAL = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)


def test_orthogonal_gradients_by_hand():
    torch.testing.assert_close(coefficients(IMTLG(), ORTHOGONAL), vector(2 / 3, 1 / 3))
    # Projections (1/4, 3/4): (1/4, 3/8) over its sum.
    torch.testing.assert_close(coefficients(IMTLG(), ORTHOGONAL, vector(0.25, 0.75)), vector(0.4, 0.6))


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s(m: int):
    for batch in jacobians(m).values():
        for rows in batch:
            expected = IMTLGWeighting()(rows @ rows.mT)
            torch.testing.assert_close(coefficients(IMTLG(), rows), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spread", [0, 3, 6, 12])
def test_projections_are_as_the_preference_whatever_the_lengths(spread: int):
    """Over 24 decades, where a pseudo-inverse of the Gramian would not see the short ones."""
    unit = torch.nn.functional.normalize(random(4, 5, 9, seed=2), dim=-1)
    lengths = 10.0 ** torch.linspace(-spread, spread, 5, dtype=torch.float64)
    w = torch.softmax(random(4, 5, seed=3), -1)
    c = coefficients(IMTLG(), unit * lengths.unsqueeze(-1), w)
    d = ((c * lengths).unsqueeze(-2) @ unit).squeeze(-2)
    projections = (unit @ d.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(projections / projections.sum(-1, keepdim=True), w, rtol=1e-8, atol=0)
    torch.testing.assert_close(c.sum(-1), torch.ones(4, dtype=torch.float64), rtol=1e-9, atol=0)


def test_a_sum_of_zero_stops():
    # K = [[1, −1], [−1, 1]]: no direction has equal positive projections on opposed gradients.
    assert coefficients(IMTLG(), vector(1, -1).unsqueeze(-1)).tolist() == [0, 0]


def test_a_zero_gradient_takes_no_part():
    rows = torch.cat([ORTHOGONAL, torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(coefficients(IMTLG(), rows), vector(2 / 3, 1 / 3, 0))
    assert coefficients(IMTLG(), 0 * rows).tolist() == [0, 0, 0]


def test_nearly_dependent_gradients_give_finite_coefficients():
    base = random(3, 6, seed=5)
    for gap in (1e-6, 1e-8, 1e-12, 1e-15):
        rows = torch.cat([base, base[:1] + gap * random(1, 6, seed=6)])
        for dtype in (torch.float64, torch.float32):
            K, losses = (rows @ rows.mT).to(dtype), torch.ones(4, dtype=dtype)
            c, _ = IMTLG().update(losses, IMTLG().init(losses), torch.full((4,), 0.25), gramian=K)
            assert c.isfinite().all()


def test_absent_objectives_are_as_if_there_were_none():
    rows, w = random(5, 6, seed=3), vector(0.1, 0.2, 0.3, 0.15, 0.25)
    mask = torch.tensor([True, False, True, True, False])
    c = coefficients(IMTLG(), rows, w, mask=mask)
    assert c[~mask].tolist() == [0, 0]
    torch.testing.assert_close(c[mask], coefficients(IMTLG(), rows[mask], w[mask] / w[mask].sum()))
