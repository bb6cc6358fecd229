"""Long runs: averages that follow a small change of the parameters, with and without float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.conversion.store import execute, mean_of
from equipoise.train.slots import in_memory

CONVERSIONS: dict[str, Any] = {
    "Average(8)": eq.Average(power=8.0),
    "Average(0)": eq.Average(),
    "Suffix": eq.Suffix(),
    "Adaptive(8, 8)": eq.Adaptive(power=8.0, capacity=8),
}
CHANGES = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
"""By how much a parameter of size 1 changes over the run."""


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def numbers(request, monkeypatch) -> torch.dtype:
    """The widest dtype that the device has."""
    for module in ("average", "blocks", "last", "ledger"):
        monkeypatch.setattr(f"equipoise.conversion.{module}.wide_dtype", lambda _: request.param)
    dtype: torch.dtype = request.param
    return dtype


def missed(conversion: Any, steps: int) -> Tensor:
    """The error of the answer as a fraction of the change, for each of `CHANGES`.

    θ moves in a straight line, and one loss rises while the other falls: no iterate dominates another and no block is
    dropped, so the answer is the mean of all iterates weighted by tᵖ.
    """
    state, slots = conversion.begin(torch.ones(2)), in_memory({"x": torch.ones(len(CHANGES))}, conversion.copies)
    for t in range(1, steps + 1):
        at = t / steps
        plan, state = conversion.plan(torch.tensor([at, -at]), state)
        execute(plan.numbers(), {"x": (1 + CHANGES * at).to(torch.float32)}, slots)
    s = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    weight = s ** float(conversion.power)
    expected = 1 + CHANGES * (weight * s).sum() / weight.sum()
    found = mean_of((slots.read(j) for j in range(conversion.copies)), conversion.shares(state))["x"]
    return (found.double() - expected).abs() / CHANGES


every = pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS.keys())


@every
def test_averages_are_right_after_four_thousand_steps(conversion: Any, numbers: torch.dtype):
    assert missed(conversion, 4000).max() < 0.01, numbers


@every
@pytest.mark.slow
def test_averages_are_right_after_a_million_steps(conversion: Any, numbers: torch.dtype):
    found = missed(conversion, 1_000_000)
    print(f"{conversion}, {numbers}: misses {[f'{x:.2%}' for x in found.tolist()]} of {CHANGES.tolist()}")
    assert found.max() < 0.01


LATE: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    # All of the weight so far is at θ = 1, and t = 10⁶ iterates were recorded.
    "average": lambda state, t, weight: state._replace(
        weights=torch.stack([weight, torch.zeros_like(weight)], -1), recorded=t, unit=torch.full_like(t, 2.0**19)
    ),
    "suffix": lambda state, t, weight: state._replace(
        blocks=state.blocks._replace(
            table=torch.stack(
                [torch.cat([weight.unsqueeze(-1), torch.zeros(7)]), torch.zeros(8), torch.arange(8.0)]
            ).to(state.blocks.table),
            clock=torch.stack([t, torch.full_like(t, 2.0**19)]),
        ),
        observed=torch.ones_like(state.observed),
    ),
}


@pytest.mark.parametrize("conversion", [eq.Average(power=8.0), eq.Average(), eq.Suffix(), eq.Suffix(16.0)], ids=str)
def test_a_change_after_a_million_steps_is_not_lost(conversion: Any, numbers: torch.dtype):
    """θ jumps by 0.1 % after 10⁶ iterates: 3,000 steps later the mean of all has moved as it should."""
    T, more = 1_000_000, 3000
    p = float(conversion.power)
    before = (torch.arange(1, T + 1, dtype=torch.float64) / 2**19).pow(p).sum()
    after = (torch.arange(T + 1, T + more + 1, dtype=torch.float64) / 2**19).pow(p).sum()
    t, weight = torch.tensor(float(T), dtype=numbers), before.to(numbers)
    state = conversion.init({"x": torch.ones(1)}, torch.ones(2))
    state = LATE[type(conversion).__name__.lower()](state, t, weight)
    f, theta = torch.ones(2), {"x": torch.tensor([1.001])}
    for _ in range(more):
        state = conversion.update(theta, f, state)
    share = after / (before + after)
    found = whole(conversion, state).double()
    assert ((found - 1) / 0.001).item() == pytest.approx(share.item(), rel=0.1)


def whole(conversion: Any, state: Any) -> Tensor:
    """The mean of all iterates."""
    slots = state.slots["x"]
    if isinstance(conversion, eq.Suffix):
        weights = state.blocks.weights
        mean: Tensor = (weights / weights.sum()).to(slots) @ slots[state.blocks.slot]
        return mean
    answer: Tensor = conversion.output(state)["x"]
    return answer
