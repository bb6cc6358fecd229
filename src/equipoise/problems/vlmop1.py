"""VLMOP1: two parabolas, the smallest problem with a front."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.preference import validate
from equipoise.problems import box


@dataclass(frozen=True)
class VLMOP1:
    """VLMOP1 on [-2, 4]^d; one variable as published, the mean over the variables if there are more.

        f1 = mean_i x_i²,   f2 = mean_i (x_i - 2)²

    The Pareto set is the segment x_i = t, t in [0, 2], and the front is √f1 + √f2 = 2. The published
    box, [-10⁵, 10⁵], is too wide for gradient steps; this one has the Pareto set in its middle third.
    The reference point is 1.1 times the nadir point (4, 4).

    Attributes:
        d: Number of variables.

    Examples:
        >>> problem = eq.problems.VLMOP1()
        >>> problem.losses(torch.tensor([0.5])).tolist()
        [0.25, 2.25]
        >>> problem.m, problem.lower, problem.upper
        (2, -2.0, 4.0)
    """

    d: int = 1

    name: ClassVar[str] = "VLMOP1"
    m: ClassVar[int] = 2
    lower: ClassVar[float] = -2.0
    upper: ClassVar[float] = 4.0
    reference: ClassVar[tuple[float, ...]] = (4.4, 4.4)

    def __post_init__(self) -> None:
        require(self.d >= 1, "d must be at least 1", self.d)

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, 2)."""
        box.require_points(x, self.d)
        return torch.stack((x.square().mean(-1), (x - 2).square().mean(-1)), -1)

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on [-2, 4]^d."""
        return box.uniform(count, self.d, seed, lower=self.lower, upper=self.upper)

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d), f1 increasing."""
        return box.line(n, 0, 2).unsqueeze(-1).expand(n, self.d).contiguous()

    def front(self, n: int) -> Tensor:
        """The front (n, 2), f1 increasing from 0; √f1 is equally spaced."""
        t = box.line(n, 0, 2)
        return torch.stack((t, 2 - t), -1).square()

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

        √w1 t = √w2 (2 - t) gives t = 2√w2/q with q = √w1 + √w2; then f1 = t² = 4w2/q² and
        f2 = (2 - t)² = 4w1/q².
        """
        w = validate(preference, self.m).to(torch.float64)
        return 4 * w.flip(-1) / w.sqrt().sum(-1, keepdim=True).square()
