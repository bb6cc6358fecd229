"""Aligned-MTL by hand and against TorchJD."""

import pytest
import torch
from tests.weighting.gradients import coefficients, direction, jacobians, random, vector
from torchjd.aggregation import AlignedMTLWeighting

from equipoise.weighting.aligned_mtl import AlignedMTL

ORTHOGONAL = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)


def test_orthogonal_gradients_by_hand():
    # K^(−1/2) = diag(1, 1/2), √ℓ_min = 1.
    torch.testing.assert_close(coefficients(AlignedMTL(), ORTHOGONAL), vector(0.5, 0.25))
    torch.testing.assert_close(coefficients(AlignedMTL(), ORTHOGONAL, vector(0.2, 0.8)), vector(0.2, 0.4))


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s(m: int):
    w = torch.softmax(random(m, seed=m), -1)
    for batch in jacobians(m).values():
        for rows in batch:
            for theirs, preference in ((AlignedMTLWeighting(), None), (AlignedMTLWeighting(w), w)):
                expected = theirs(rows @ rows.mT)
                found = coefficients(AlignedMTL(), rows, preference)
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_it_is_the_mean_of_the_nearest_orthonormal_vectors():
    rows, w = random(4, 5, 9, seed=2), torch.softmax(random(4, 5, seed=3), -1)
    U, sigma, Vh = torch.linalg.svd(rows, full_matrices=False)
    expected = sigma[:, -1:] * (w.unsqueeze(-2) @ (U @ Vh)).squeeze(-2)
    torch.testing.assert_close(direction(AlignedMTL(), rows, w), expected, rtol=1e-10, atol=1e-12)


def test_the_rounding_of_a_gramian_in_single_precision_is_no_eigenvalue():
    rows = random(6, 4, 3, seed=4)
    losses, K = torch.ones(6, 4), (rows @ rows.mT).float()
    c, _ = AlignedMTL().update(losses, AlignedMTL().init(losses), torch.full((4,), 0.25), gramian=K)
    torch.testing.assert_close(c.double(), coefficients(AlignedMTL(), rows), rtol=1e-4, atol=1e-5)


def test_gradients_that_are_all_zero_leave_the_preference():
    w = vector(0.2, 0.3, 0.5)
    assert torch.equal(coefficients(AlignedMTL(), torch.zeros(3, 2, dtype=torch.float64), w), w)


def test_absent_objectives_are_as_if_there_were_none():
    rows, w = random(5, 6, seed=3), vector(0.1, 0.2, 0.3, 0.15, 0.25)
    mask = torch.tensor([True, False, True, True, False])
    c = coefficients(AlignedMTL(), rows, w, mask=mask)
    assert c[~mask].tolist() == [0, 0]
    rest = w[mask].sum()  # nothing is rescaled
    torch.testing.assert_close(c[mask], rest * coefficients(AlignedMTL(), rows[mask], w[mask] / rest))
