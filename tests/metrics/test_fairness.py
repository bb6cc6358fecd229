"""Fairness metrics of three clients, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import metrics

# 9 of 10, 10 of 20 and 30 of 40 right: 90, 50 and 75 percent.
CORRECT, COUNTS = torch.tensor([9, 10, 30]), torch.tensor([10, 20, 40])
LOSSES, FIRST = torch.tensor([0.5, 1.2, 0.9]), torch.tensor([2.0, 2.4, 1.5])


def test_average_accuracy_counts_samples_not_clients():
    assert metrics.average_accuracy(CORRECT, COUNTS).item() == pytest.approx(70.0)  # 49 of 70; over clients 71.7


def test_accuracy_parity_is_the_deviation_of_the_population():
    mean = 215 / 3
    variance = ((90 - mean) ** 2 + (50 - mean) ** 2 + (75 - mean) ** 2) / 3
    assert metrics.accuracy_parity(CORRECT, COUNTS).item() == pytest.approx(math.sqrt(variance))
    assert math.sqrt(variance) == pytest.approx(16.4992, abs=1e-4)


def test_agnostic_loss_is_the_worst_client_s():
    assert metrics.agnostic_loss(LOSSES).item() == pytest.approx(1.2)


def test_ratios():
    ratios = LOSSES / FIRST  # 0.25, 0.5, 0.6
    assert metrics.agnostic_loss(ratios).item() == pytest.approx(0.6)
    assert metrics.ratio_parity(LOSSES, FIRST).item() == pytest.approx(0.147196, abs=1e-6)  # √(0.065/3)
    assert math.sqrt(0.065 / 3) == pytest.approx(0.147196, abs=1e-6)


def test_batches():
    correct, counts = torch.stack([CORRECT, COUNTS]), torch.stack([COUNTS, COUNTS])
    torch.testing.assert_close(metrics.average_accuracy(correct, counts), torch.tensor([70.0, 100.0]).double())
    parity = metrics.accuracy_parity(correct, counts)
    assert parity.shape == (2,)
    assert parity[0] == metrics.accuracy_parity(CORRECT, COUNTS)
    assert parity[1] == 0
    assert metrics.agnostic_loss(LOSSES.expand(4, 2, 3)).shape == (4, 2)
    assert metrics.ratio_parity(LOSSES.expand(4, 2, 3), FIRST).shape == (4, 2)


def test_one_client_is_even_with_itself():
    assert metrics.accuracy_parity(torch.tensor([3]), torch.tensor([4])).item() == 0.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 90)), min_size=1, max_size=6))
def test_bounds(clients: list[tuple[int, int]]):
    correct, counts = (torch.tensor(column) for column in zip(*clients, strict=True))
    accuracies = [100 * a / b for a, b in clients]
    average = metrics.average_accuracy(correct, counts).item()
    assert min(accuracies) - 1e-9 <= average <= max(accuracies) + 1e-9
    assert metrics.accuracy_parity(correct, counts).item() <= (max(accuracies) - min(accuracies)) / 2 + 1e-9


def test_shapes_that_do_not_match():
    with pytest.raises(ValueError, match=r"counts must have the shape \(3,\); found \(2,\)"):
        metrics.average_accuracy(CORRECT, COUNTS[:2])
    with pytest.raises(ValueError, match=r"counts must have the shape \(3,\); found \(1, 3\)"):
        metrics.accuracy_parity(CORRECT, COUNTS.unsqueeze(0))
