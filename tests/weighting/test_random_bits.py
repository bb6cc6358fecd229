"""Counter-based random numbers."""

import math

import torch
from tests.weighting.gradients import random

from equipoise.weighting.random_bits import mix, normals


def test_different_numbers_stay_different_when_they_are_mixed():
    x = random(5_000, seed=1).view(torch.int64)
    both = torch.cat([x, ~x])
    assert len(mix(both).unique()) == len(both)


def test_normals_have_the_moments_and_the_tails_of_a_normal_distribution():
    x = normals(mix(torch.arange(200_000)))
    assert abs(x.mean().item()) < 4 / math.sqrt(200_000)
    assert abs(x.var().item() - 1) < 4 * math.sqrt(2 / 200_000)
    for bound in (-2.0, -0.5, 0.0, 1.0, 2.5):
        share, expected = (x < bound).double().mean().item(), 0.5 * math.erfc(-bound / math.sqrt(2))
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 200_000)
    neighbours = (x[1:] * x[:-1]).mean().item()
    assert abs(neighbours) < 4 / math.sqrt(200_000)


def test_the_ends_are_finite_and_the_middle_is_zero():
    ends = normals(torch.tensor([0, -1, -(2**63)]))  # the least and the largest bits, and half of them
    assert ends.isfinite().all()
    assert ends[0] < -8
    assert ends[1] > 8
    assert abs(ends[2].item()) < 1e-15
