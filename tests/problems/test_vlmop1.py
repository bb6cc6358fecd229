"""VLMOP1: formulas, front, exact solutions."""

import pytest
import torch

from equipoise import preference
from equipoise.metrics import hypervolume
from equipoise.problems import VLMOP1
from equipoise.solver import solve


def test_hand_computed_values():
    assert VLMOP1().losses(torch.tensor([[-2.0], [0.5], [4.0]])).tolist() == [[4, 16], [0.25, 2.25], [16, 4]]
    # Means of 0, 1, 9 and of 4, 1, 1.
    assert VLMOP1(d=3).losses(torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)).tolist() == [10 / 3, 2]


@pytest.mark.parametrize("d", [1, 5])
def test_the_front_is_the_curve_of_the_roots(d: int):
    front = VLMOP1(d).front(50)
    torch.testing.assert_close(front.sqrt().sum(-1), torch.full((50,), 2.0, dtype=torch.float64))
    assert front[[0, -1]].tolist() == [[0, 4], [4, 0]]


def test_exact_solutions():
    # √w1 : √w2 = 1 : 2 divides the segment [0, 2] at 4/3.
    found = VLMOP1().solution(torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.8, 0.2]], dtype=torch.float64))
    expected = torch.tensor([[1, 1], [16 / 9, 4 / 9], [4 / 9, 16 / 9]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_the_front_has_the_hypervolume_of_the_integral():
    coarse, fine = (hypervolume(VLMOP1().front(n), VLMOP1().reference) for n in (20_001, 40_001))
    # 4.4 · 0.4 right of the front, and ∫ 4.4 - (2 - √t)² dt over [0, 4] above it.
    assert (2 * fine - coarse).item() == pytest.approx(1.76 + 17.6 - 8 / 3, abs=1e-7)


def test_a_run_ends_at_the_exact_solutions():
    w = preference.linspace(5, margin=0.1)
    found = solve(VLMOP1(d=2), w, "AdaOMDgd-TCH", steps=2000).losses["solution"][0].double()
    torch.testing.assert_close(found, VLMOP1().solution(w), rtol=0.1, atol=0.02)
