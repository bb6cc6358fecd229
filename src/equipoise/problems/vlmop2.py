"""VLMOP2: two Gaussian bumps, a concave front."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.preference import validate
from equipoise.problems import box

_HALVINGS = 60  # of an interval of length 2: below the spacing of float64


@dataclass(frozen=True)
class VLMOP2:
    """VLMOP2 in d variables on [-1, 1]^d.

        f1 = 1 - exp(-Σ_i (x_i - 1/√d)²),   f2 = 1 - exp(-Σ_i (x_i + 1/√d)²)

    The Pareto set is the segment x_i = t/√d, t in [-1, 1]; on it f1 = 1 - exp(-(t-1)²) and
    f2 = 1 - exp(-(t+1)²). Runs start in the box around that segment.

    Attributes:
        d: Number of variables.

    Examples:
        >>> problem = eq.problems.VLMOP2()
        >>> problem.m, problem.d, problem.lower, problem.upper
        (2, 10, -1.0, 1.0)
        >>> [round(value, 3) for value in problem.losses(torch.zeros(10)).tolist()]  # 1 − 1/e, in the middle
        [0.632, 0.632]
        >>> [round(value, 3) for value in problem.solution(torch.tensor([0.5, 0.5])).tolist()]
        [0.632, 0.632]
    """

    d: int = 10

    name: ClassVar[str] = "VLMOP2"
    m: ClassVar[int] = 2
    lower: ClassVar[float] = -1.0
    upper: ClassVar[float] = 1.0
    reference: ClassVar[tuple[float, ...]] = (1.0, 1.0)

    def __post_init__(self) -> None:
        require(self.d >= 1, "d must be at least 1", self.d)

    @property
    def _end(self) -> float:
        return 1 / math.sqrt(self.d)

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, 2)."""
        box.require_points(x, self.d)
        to_ends = (x - self._end).square().sum(-1), (x + self._end).square().sum(-1)
        return 1 - torch.exp(-torch.stack(to_ends, -1))

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on [-1/√d, 1/√d]^d."""
        return box.uniform(count, self.d, seed, lower=-self._end, upper=self._end)

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d), f1 increasing."""
        return (box.line(n, 1, -1) * self._end).unsqueeze(-1).expand(n, self.d).contiguous()

    def front(self, n: int) -> Tensor:
        """The front (n, 2), f1 increasing from 0."""
        return _on_front(box.line(n, 1, -1))

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

        Solves w1 f1(t) = w2 f2(t) by bisection, which has one root in [-1, 1] since the difference
        is monotone and changes sign. The Newton step at the end makes the result differentiable.
        """
        w = validate(preference, self.m).to(torch.float64)
        w1, w2 = w.unbind(-1)

        def excess(t: Tensor) -> Tensor:
            f1, f2 = _on_front(t).unbind(-1)
            return w2 * f2 - w1 * f1

        with torch.no_grad():
            low, high = -torch.ones_like(w1), torch.ones_like(w1)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                right = excess(middle) >= 0
                low, high = torch.where(right, low, middle), torch.where(right, middle, high)
            t = (low + high) / 2
            slope = 2 * (w1 * (1 - t) * torch.exp(-((t - 1) ** 2)) + w2 * (1 + t) * torch.exp(-((t + 1) ** 2)))
            # At an end of the front (a zero in the preference) the slope may vanish.
            slope = torch.where(slope > 0, slope, torch.inf)
        return _on_front(t - excess(t) / slope)


def _on_front(t: Tensor) -> Tensor:
    return -torch.expm1(-torch.stack(((t - 1) ** 2, (t + 1) ** 2), -1))
