"""`Average`: a weighted mean of the iterates, accurate over long runs."""

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq


def average(conversion: eq.Average, path: list[Tensor], losses: Tensor | None = None) -> Tensor:
    f = torch.ones(2) if losses is None else losses
    state = conversion.init({"x": path[0]}, f)
    for x in path:
        state = conversion.update({"x": x}, f, state)
    return conversion.output(state)["x"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand():
    path = [torch.tensor([1.0, 0.0]), torch.tensor([4.0, 3.0]), torch.tensor([1.0, 6.0])]
    assert average(eq.Average(), path).tolist() == pytest.approx([2.0, 3.0])
    # Weights 1, 2, 3 and 1, 4, 9.
    assert average(eq.Average(power=1.0), path).tolist() == pytest.approx([2.0, 4.0])
    assert average(eq.Average(power=2.0), path).tolist() == pytest.approx([26 / 14, 66 / 14])


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 4.0])
def test_it_is_the_weighted_mean(power: float):
    path = list(draw(50, 3))
    weights = torch.arange(1, 51, dtype=torch.float64) ** power
    expected = (weights.unsqueeze(-1) * torch.stack(path)).sum(0) / weights.sum()
    torch.testing.assert_close(average(eq.Average(power), path), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("power", [0.0, 4.0])
def test_float32_parameters_stay_accurate_over_many_iterates(power: float):
    """The weights are counted in double: Σ t⁴ is beyond what float32 counts after 100 steps."""
    path = [1000.0 + x for x in draw(3000, 2).float()]
    weights = torch.arange(1, 3001, dtype=torch.float64) ** power
    expected = (weights.unsqueeze(-1) * torch.stack(path).double()).sum(0) / weights.sum()
    torch.testing.assert_close(average(eq.Average(power), path).double(), expected, rtol=2e-6, atol=0)


def test_what_is_counted():
    conversion = eq.Average(power=2.0)
    x, f = {"x": torch.ones(3, 1)}, torch.ones(3, 2)
    state = conversion.init(x, f)
    for t in range(4):
        f[1, 0] = math.nan if t == 1 else 1.0
        state = conversion.update(x, f, state)
    # The second problem has not seen its second iterate, and its next is its second: 1 + 4 + 9.
    assert state.recorded.tolist() == [4.0, 3.0, 4.0]
    assert state.unit.tolist() == [4.0, 2.0, 4.0]
    assert (state.weights.sum(-1) * state.unit**2).tolist() == [30.0, 14.0, 30.0]
    assert state.weights.dtype == torch.float64


def test_half_precision_is_averaged_in_float32():
    path = [torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16)]
    found = average(eq.Average(), path)
    assert found.dtype == torch.float32
    assert found.item() == 1.00390625  # no bfloat16 between the two


def test_buffers_that_cannot_be_averaged_take_the_newest_value_of_the_heavier_part():
    conversion, f = eq.Average(), torch.ones(2)
    state = conversion.init({"n": torch.tensor(0)}, f)
    found = []
    for n in (3, 9, 4, 5, 6):  # the first two are joined when the third comes
        state = conversion.update({"n": torch.tensor(n)}, f, state)
        found.append(conversion.output(state)["n"].item())
    assert found == [3, 9, 9, 9, 6]


@pytest.mark.parametrize("power", [0.0, 3.0])
def test_the_newest_part_has_about_the_root_of_all_iterates(power: float):
    conversion, f = eq.Average(power), torch.ones(2)
    state = conversion.begin(f)
    longest = 0
    for t in range(1, 2001):
        plan, state = conversion.plan(f, state)
        assert state.length.item() <= math.sqrt(t) + 1
        longest = max(longest, int(state.length.item()))
        if plan.mix > 0:
            assert plan.gain.item() == 1.0  # the part begins anew
    assert longest == 45  # the least number whose square is 2,000 or more


def test_a_mask_hides_losses_and_nothing_else():
    conversion = eq.Average()
    state = conversion.init({"x": torch.zeros(1)}, torch.ones(2))
    for x, mask in ((1.0, [True, False]), (3.0, [False, False])):
        losses = torch.tensor([1.0, math.nan]) if x == 1.0 else torch.tensor([math.inf, math.nan])
        state = conversion.update({"x": torch.tensor([x])}, losses, state, mask=torch.tensor(mask))
    assert conversion.output(state)["x"].tolist() == [2.0]
