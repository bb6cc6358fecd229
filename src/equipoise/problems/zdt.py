"""ZDT1 to ZDT4 and ZDT6 (Zitzler, Deb and Thiele, 2000): one variable along the front, the others towards it."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.preference import validate
from equipoise.problems import box, root_front
from equipoise.problems.pieces import Pieces, inside, snap, spread

_HALVINGS = 60  # of an interval shorter than 1: below the spacing of float64


@dataclass(frozen=True)
class ZDT(ABC):
    """What the ZDT problems share, in d variables on [0, 1]^d.

        f1 = f1(x_1),   f2 = g h(f1, g)   with g = g(x_2..x_d) ≥ 1

    The Pareto set is g = 1, and the front is the descending part of f2 = h(f1, 1). Where a root has an infinite
    derivative, at x_1 = 0 and for ZDT6 at g = 1, its gradient is taken as 0, so that gradients are finite on the
    whole box. The reference point is (1.1, 1.1), as usual.
    """

    d: int = 30

    name: ClassVar[str]
    m: ClassVar[int] = 2
    lower: ClassVar[float] = 0.0
    upper: ClassVar[float] = 1.0
    reference: ClassVar[tuple[float, ...]] = (1.1, 1.1)
    optimal: ClassVar[float] = 0.0
    """Value of x_2..x_d on the Pareto set."""

    def __post_init__(self) -> None:
        require(self.d >= 2, "d must be at least 2", self.d)

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, 2)."""
        box.require_points(x, self.d)
        f1, g = self._first(x[..., 0]), self._distance(x[..., 1:])
        return torch.stack((f1, self._second(f1, g)), -1)

    def _first(self, x1: Tensor) -> Tensor:
        return x1

    def _distance(self, rest: Tensor) -> Tensor:
        return 1 + 9 * rest.mean(-1)

    @abstractmethod
    def _second(self, f1: Tensor, g: Tensor) -> Tensor:
        """f2 = g h(f1, g): (*B,) and (*B,) to (*B,)."""

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on [0, 1]^d."""
        return box.uniform(count, self.d, seed, lower=self.lower, upper=self.upper)

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d), f1 increasing."""
        x1 = self._variable(self._firsts(n)).unsqueeze(-1)
        return torch.cat((x1, x1.new_full((n, self.d - 1), self.optimal)), -1)

    def front(self, n: int) -> Tensor:
        """The front (n, 2), f1 increasing."""
        f1 = self._firsts(n)
        return torch.stack((f1, self._second(f1, torch.ones_like(f1))), -1)

    def _firsts(self, n: int) -> Tensor:
        """Values (n,) of f1 along the front."""
        return box.line(n, 0, 1).square()

    def _variable(self, f1: Tensor) -> Tensor:
        """The x_1 that has this f1."""
        return f1

    @abstractmethod
    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64."""


@dataclass(frozen=True)
class ZDT1(ZDT):
    """A convex front, f2 = 1 - √f1.

    f1 = x_1,   g = 1 + 9 mean_{i≥2} x_i,   f2 = g (1 - √(f1/g))

    Attributes:
        d: Number of variables, at least 2.

    Examples:
        >>> problem = eq.problems.ZDT1(d=3)
        >>> problem.losses(torch.tensor([0.25, 0.0, 0.0])).tolist()  # on the front
        [0.25, 0.5]
        >>> [round(value, 3) for value in problem.losses(torch.tensor([0.4, 1.0, 1.0])).tolist()]  # g = 10
        [0.4, 8.0]
    """

    name: ClassVar[str] = "ZDT1"

    def _second(self, f1: Tensor, g: Tensor) -> Tensor:
        return g - _sqrt(f1) * g.sqrt()

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64."""
        return root_front.solution(preference)


@dataclass(frozen=True)
class ZDT2(ZDT):
    """A concave front, f2 = 1 - f1².

    f1 = x_1,   g = 1 + 9 mean_{i≥2} x_i,   f2 = g (1 - (f1/g)²)

    Attributes:
        d: Number of variables, at least 2.

    Examples:
        >>> problem = eq.problems.ZDT2(d=3)
        >>> problem.losses(torch.tensor([0.5, 0.0, 0.0])).tolist()  # on the front
        [0.5, 0.75]
        >>> [round(value, 3) for value in problem.solution(torch.tensor([0.6, 0.4])).tolist()]  # 0.6 f1 = 0.4 f2
        [0.5, 0.75]
    """

    name: ClassVar[str] = "ZDT2"

    def _second(self, f1: Tensor, g: Tensor) -> Tensor:
        return g - f1.square() / g

    def _firsts(self, n: int) -> Tensor:
        return box.line(n, 0, 1)

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

        f1 is the positive root of w1 f1 = w2 (1 - f1²), that is f1 = 2w2/q with q = w1 + √(w1² + 4w2²);
        then f2 = 2w1/q.
        """
        w = validate(preference, self.m).to(torch.float64)
        w1, w2 = w[..., :1], w[..., 1:]
        q = w1 + (w1.square() + 4 * w2.square()).sqrt()
        return 2 * w.flip(-1) / q


@dataclass(frozen=True)
class ZDT3(ZDT):
    """A front in five pieces: the points of f2 = 1 - √f1 - f1 sin(10πf1) that are lower than all to their left.

        f1 = x_1,   g = 1 + 9 mean_{i≥2} x_i,   f2 = g (1 - √(f1/g) - (f1/g) sin(10πf1))

    f2 falls below zero, to -0.773. Tchebycheff scalarization with the ideal point 0 cannot target a negative
    objective: positive preferences lead only to the part of the front with f2 > 0, f1 < 0.4297.

    Attributes:
        d: Number of variables, at least 2.

    Examples:
        >>> problem = eq.problems.ZDT3(d=3)
        >>> [round(value, 3) for value in problem.losses(torch.tensor([0.25, 0.0, 0.0])).tolist()]  # 1 − ½ − ¼ sin 2.5π
        [0.25, 0.25]
    """

    name: ClassVar[str] = "ZDT3"
    pieces: ClassVar[Pieces] = (
        (0.0, 0.083001534926911633),
        (0.18222872802939978, 0.25776236338783022),
        (0.40931367480865684, 0.45388210408883017),
        (0.61839679443926579, 0.65251170380466252),
        (0.82333179832663274, 0.8518328654364139),
    )
    """The intervals of f1 that form the front: f2 has a local minimum at the end of each, and the next starts
    where f2 falls to that minimum again."""

    def _second(self, f1: Tensor, g: Tensor) -> Tensor:
        return g - _sqrt(f1) * g.sqrt() - f1 * torch.sin(10 * math.pi * f1)

    def _firsts(self, n: int) -> Tensor:
        roots = [(math.sqrt(start), math.sqrt(end)) for start, end in self.pieces]
        return spread(box.line(n, 0, 1), roots).square()

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

        With s(t) the last point of the front up to f1 = t, w2 f2(s(t)) - w1 t decreases in t, and bisection
        finds its root. If the root is in a piece, the ray meets the front there. If it is in a gap, the
        solution is the end of the piece before the gap: nothing up to the root has a smaller f2, and beyond
        it w1 f1 is larger. The Newton step at the end makes the result differentiable. If w1 = 0, the result is
        the point with the smallest f2, although any f2 ≤ 0 has the same Tchebycheff value.
        """
        w = validate(preference, self.m).to(torch.float64)
        w1, w2 = w.unbind(-1)

        def excess(t: Tensor) -> Tensor:
            return w2 * self._on_front(snap(t, self.pieces))[..., 1] - w1 * t

        last = self.pieces[-1][1]
        with torch.no_grad():
            low, high = torch.zeros_like(w1), torch.full_like(w1, last)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                right = excess(middle) >= 0
                low, high = torch.where(right, middle, low), torch.where(right, high, middle)
            t = (low + high) / 2
            phase = 10 * math.pi * t
            steepness = 0.5 / t.sqrt() + phase.sin() + phase * phase.cos()
            slope = w1 + w2 * torch.where(inside(t, self.pieces), steepness, 0)
            slope = torch.where((slope > 0) & (w1 > 0), slope, torch.inf)
            t = torch.where(w1 > 0, t, last)
        return self._on_front(snap(t + excess(t) / slope, self.pieces))

    def _on_front(self, f1: Tensor) -> Tensor:
        return torch.stack((f1, self._second(f1, torch.ones_like(f1))), -1)


@dataclass(frozen=True)
class ZDT4(ZDT1):
    """The front of ZDT1 behind 21^{d-1} local ones, in 10 variables.

        f1 = x_1,   g = 1 + 10(d - 1) + Σ_{i≥2} (y_i² - 10 cos(4πy_i)),   f2 = g (1 - √(f1/g))

    The published variables y_2..y_d lie in [-5, 5]. Here all lie in [0, 1], as x_1 does, and
    y_i = 10 x_i - 5: derivatives by x_i are ten times those by y_i.

    Attributes:
        d: Number of variables, at least 2.

    Examples:
        >>> problem = eq.problems.ZDT4(d=3)
        >>> problem.losses(torch.tensor([0.25, 0.5, 0.5])).tolist()  # y = 0: on the front of ZDT1
        [0.25, 0.5]
    """

    d: int = 10

    name: ClassVar[str] = "ZDT4"
    optimal: ClassVar[float] = 0.5

    def _distance(self, rest: Tensor) -> Tensor:
        y = 10 * rest - 5
        # 10 - 10 cos(4πy) = 20 sin²(2πy) has no cancellation.
        return 1 + (y.square() + 20 * torch.sin(2 * math.pi * y).square()).sum(-1)


_PEAK = math.atan(9 * math.pi) / (6 * math.pi)
_LEAST = 1 - math.exp(-4 * _PEAK) * math.sin(6 * math.pi * _PEAK) ** 6


@dataclass(frozen=True)
class ZDT6(ZDT):
    """A concave front with an uneven density of points, f2 = 1 - f1² for f1 ≥ 0.2808, in 10 variables.

        f1 = 1 - exp(-4x_1) sin⁶(6πx_1),   g = 1 + 9 (mean_{i≥2} x_i)^{1/4},   f2 = g (1 - (f1/g)²)

    Every f1 above 0.2808 belongs to several x_1; `pareto_set` gives the smallest.

    Attributes:
        d: Number of variables, at least 2.

    Examples:
        >>> problem = eq.problems.ZDT6(d=3)
        >>> problem.losses(torch.tensor([0.0, 0.0, 0.0])).tolist()  # the end of the front
        [1.0, 0.0]
        >>> [round(value, 3) for value in problem.front(5)[0].tolist()]  # the other end
        [0.281, 0.921]
    """

    d: int = 10

    name: ClassVar[str] = "ZDT6"

    def _first(self, x1: Tensor) -> Tensor:
        return 1 - torch.exp(-4 * x1) * torch.sin(6 * math.pi * x1) ** 6

    def _distance(self, rest: Tensor) -> Tensor:
        return 1 + 9 * _sqrt(_sqrt(rest.mean(-1)))

    def _second(self, f1: Tensor, g: Tensor) -> Tensor:
        return g - f1.square() / g

    def _firsts(self, n: int) -> Tensor:
        return box.line(n, _LEAST, 1)

    def _variable(self, f1: Tensor) -> Tensor:
        # f1 descends from 1 at 0 to its minimum at the first peak of the sine.
        low, high = torch.zeros_like(f1), torch.full_like(f1, _PEAK)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            right = self._first(middle) > f1
            low, high = torch.where(right, middle, low), torch.where(right, high, middle)
        return high

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

        That of ZDT2, or the end f1 = 0.2808 of the front if that would need a smaller f1.
        """
        found = ZDT2().solution(preference)
        end = found.new_tensor((_LEAST, 1 - _LEAST**2))
        return torch.where(found[..., :1] < _LEAST, end, found)


def _sqrt(x: Tensor) -> Tensor:
    """√x with derivative 0 instead of infinity at x = 0, so that a coefficient of 0 does not give NaN."""
    zero = x == 0
    return torch.where(zero, 0, torch.where(zero, 1, x).sqrt())
