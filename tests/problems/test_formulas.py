"""The formulas written out once more, one point and one index at a time."""

import math
from collections.abc import Callable

import pytest
import torch

from equipoise.problems import F1, F2, F3, F4, F5, F6, VLMOP2, KnownFront

Deviation = Callable[[float, float, int, int], float]


def wave(i: int, argument: float, odd_divisor: float = 1) -> float:
    return math.sin(argument) if i % 2 == 0 else math.cos(argument / odd_divisor)


def f6_deviation(x: float, x1: float, i: int, n: int) -> float:
    width = 0.3 * x1**2 * math.cos(12 * math.pi * x1 + 4 * i * math.pi / n) + 0.6 * x1
    return (2 * x - 1) - width * wave(i, 6 * math.pi * x1 + i * math.pi / n)


DEVIATIONS: dict[str, Deviation] = {
    "F1": lambda x, x1, i, n: x - (2 * x1 - 1) ** 2,  # noqa: ARG005
    "F2": lambda x, x1, i, n: x - x1 ** (0.5 * (1 + 3 * (i - 2) / (n - 2))),
    "F3": lambda x, x1, i, n: x - (math.sin(4 * math.pi * x1 + i * math.pi / n) + 1) / 2,
    "F4": lambda x, x1, i, n: (2 * x - 1) - 0.8 * x1 * wave(i, 4 * math.pi * x1 + i * math.pi / n),
    "F5": lambda x, x1, i, n: (2 * x - 1) - 0.8 * x1 * wave(i, 4 * math.pi * x1 + i * math.pi / n, odd_divisor=3),
    "F6": f6_deviation,
}


def naive(problem: KnownFront, x: list[float]) -> list[float]:
    n = len(x)
    if problem.name == "VLMOP2":
        signs = (-1, 1)
        return [1 - math.exp(-sum((v + s / math.sqrt(n)) ** 2 for v in x)) for s in signs]
    y = {i: DEVIATIONS[problem.name](x[i - 1], x[0], i, n) for i in range(2, n + 1)}
    odd = [y[i] ** 2 for i in y if i % 2 == 1]
    power = 4 if problem == F6(quartic=True) else 2
    even = [y[i] ** power for i in y if i % 2 == 0]
    g1, g2 = 1 + sum(odd) / len(odd), 1 + sum(even) / len(even)
    root = math.sqrt(x[0] if problem.name == "F3" else x[0] / g2)
    return [g1 * x[0], g2 * (1 - root)]


@pytest.mark.parametrize(
    "problem",
    [VLMOP2(), VLMOP2(3), F1(), F2(), F3(), F4(), F5(), F6(), F6(quartic=True), F2(d=3), F5(d=7)],
    ids=repr,
)
def test_losses_are_the_written_formulas(problem: KnownFront):
    unit = torch.rand(40, problem.d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = problem.lower + (problem.upper - problem.lower) * unit
    expected = torch.tensor([naive(problem, row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(problem.losses(x), expected, rtol=1e-13, atol=1e-13)


def test_hand_computed_values():
    centre = torch.zeros(10, dtype=torch.float64)
    torch.testing.assert_close(VLMOP2().losses(centre), torch.full((2,), 1 - math.exp(-1), dtype=torch.float64))
    # x1 = 1/4: the curve of F1 is 1/4 and all other variables are 3/4, so y = 1/2 and g = 5/4.
    x = torch.tensor([0.25, 0.75, 0.75, 0.75, 0.75, 0.75], dtype=torch.float64)
    expected = torch.tensor([0.3125, 1.25 * (1 - math.sqrt(0.2))], dtype=torch.float64)
    torch.testing.assert_close(F1().losses(x), expected)
    # x1 = 0: the curves of F4 to F6 vanish, y = 1 at the upper bound, and g = 2 in either variant.
    x = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    for problem in (F4(), F5(), F6(), F6(quartic=True)):
        assert problem.losses(x).tolist() == [0.0, 2.0]
    # y = 1/2 tells the variants apart: g2 = 1 + 1/4 or 1 + 1/16.
    x = torch.tensor([0.0, 0.75, 0.75, 0.75, 0.75, 0.75], dtype=torch.float64)
    assert F6().losses(x).tolist() == [0.0, 1.25]
    assert F6(quartic=True).losses(x).tolist() == [0.0, 1.0625]
