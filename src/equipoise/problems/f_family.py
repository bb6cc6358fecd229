"""F1 to F6: one convex front behind six curved Pareto sets."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.problems import box, root_front


@dataclass(frozen=True)
class FProblem(ABC):
    """What F1 to F6 share, in d variables on [0, 1]^d.

    With i = 2..d, J1 the odd and J2 the even i, and y_i the distance of x_i from a curve over x_1:

        g1 = 1 + mean_{J1} y_i²,   f1 = g1 x_1
        g2 = 1 + mean_{J2} y_i²,   f2 = g2 (1 - √(x_1/g2))

    The Pareto set is y = 0 and the front is f2 = 1 - √f1, f1 in [0, 1]. A problem is its `curve`.
    The derivative of f2 is unbounded at x_1 = 0; keep gradients away from there.
    """

    d: int = 6

    name: ClassVar[str]
    m: ClassVar[int] = 2
    lower: ClassVar[float] = 0.0
    upper: ClassVar[float] = 1.0
    reference: ClassVar[tuple[float, ...]] = (1.2, 1.2)
    centred: ClassVar[bool] = False
    """Whether the curve gives 2x_i - 1 (F4 to F6) or x_i."""

    def __post_init__(self) -> None:
        require(self.d >= 3, "d must be at least 3", self.d)

    @abstractmethod
    def curve(self, x1: Tensor) -> Tensor:
        """The curve that x_2..x_d are measured from: x1 (*B, 1) to (*B, d-1)."""

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, 2)."""
        box.require_points(x, self.d)
        x1, rest = x[..., :1], x[..., 1:]
        y = (2 * rest - 1 if self.centred else rest) - self.curve(x1)
        g1 = 1 + y[..., 1::2].square().mean(-1)
        g2 = 1 + self._even_term(y[..., 0::2]).mean(-1)
        x1 = x1.squeeze(-1)
        return torch.stack((g1 * x1, self._second(x1, g2)), -1)

    def _even_term(self, y: Tensor) -> Tensor:
        return y.square()

    def _second(self, x1: Tensor, g2: Tensor) -> Tensor:
        return g2 * (1 - torch.sqrt(x1 / g2))

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on [0, 1]^d."""
        return box.uniform(count, self.d, seed, lower=self.lower, upper=self.upper)

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d), f1 increasing."""
        x1 = box.line(n, 0, 1).square().unsqueeze(-1)
        curve = self.curve(x1)
        return torch.cat((x1, (1 + curve) / 2 if self.centred else curve), -1)

    def front(self, n: int) -> Tensor:
        """The front (n, 2), f1 increasing from 0; √f1 is equally spaced."""
        s = box.line(n, 0, 1)
        return torch.stack((s.square(), 1 - s), -1)

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64."""
        return root_front.solution(preference)

    def _index(self, x1: Tensor) -> Tensor:
        return torch.arange(2, self.d + 1, dtype=x1.dtype, device=x1.device)

    def _phase(self, x1: Tensor, frequency: int) -> Tensor:
        return frequency * math.pi * x1 + self._index(x1) * (math.pi / self.d)

    def _by_parity(self, even: Tensor, odd: Tensor) -> Tensor:
        return torch.where(self._index(even) % 2 == 0, even, odd)


@dataclass(frozen=True)
class F1(FProblem):
    """A convex front, f2 = 1 - √f1, behind a Pareto set that is a parabola over x_1.

    With i = 2..d, g1 over the odd and g2 over the even i:

        y_i = x_i - (2x_1 - 1)²
        g1 = 1 + mean y_i²,   f1 = g1 x_1,   g2 = 1 + mean y_i²,   f2 = g2 (1 - √(x_1/g2))

    Attributes:
        d: Number of variables, at least 3.

    Examples:
        >>> problem = eq.problems.F1()
        >>> problem.losses(torch.full((6,), 0.25)).tolist()  # y = 0: on the front
        [0.25, 0.5]
        >>> problem.m, problem.d, problem.lower, problem.upper
        (2, 6, 0.0, 1.0)
    """

    name: ClassVar[str] = "F1"

    def curve(self, x1: Tensor) -> Tensor:
        """(2x_1 - 1)² for every i."""
        return (2 * x1 - 1).square().expand(*x1.shape[:-1], self.d - 1)


@dataclass(frozen=True)
class F2(FProblem):
    """As F1 with y_i = x_i - x_1^{(1 + 3(i-2)/(d-2))/2}.

    Attributes:
        d: Number of variables, at least 3.

    Examples:
        >>> problem = eq.problems.F2(d=4)
        >>> x = problem.pareto_set(3)[1]
        >>> [round(value, 3) for value in x.tolist()]
        [0.25, 0.5, 0.177, 0.062]
        >>> [round(value, 3) for value in problem.losses(x).tolist()]  # f2 = 1 − √f1
        [0.25, 0.5]
    """

    name: ClassVar[str] = "F2"

    def curve(self, x1: Tensor) -> Tensor:
        """x_1 to a power that grows from 1/2 to 2 with i."""
        return x1 ** (0.5 * (1 + 3 * (self._index(x1) - 2) / (self.d - 2)))


@dataclass(frozen=True)
class F3(FProblem):
    """As F1 with y_i = x_i - (sin(4πx_1 + iπ/d) + 1)/2, and f2 = g2 (1 - √x_1).

    Attributes:
        d: Number of variables, at least 3.

    Examples:
        >>> problem = eq.problems.F3(d=4)
        >>> x = problem.pareto_set(3)[1]
        >>> [round(value, 3) for value in x.tolist()]
        [0.25, 0.0, 0.146, 0.5]
        >>> [round(value, 3) for value in problem.losses(x).tolist()]  # f2 = 1 − √f1
        [0.25, 0.5]
    """

    name: ClassVar[str] = "F3"

    def curve(self, x1: Tensor) -> Tensor:
        """Two turns of a sine, shifted with i."""
        return (torch.sin(self._phase(x1, 4)) + 1) / 2

    def _second(self, x1: Tensor, g2: Tensor) -> Tensor:
        return g2 * (1 - torch.sqrt(x1))


@dataclass(frozen=True)
class F4(FProblem):
    """As F1 with y_i = (2x_i - 1) - 0.8 x_1 {sin for even i | cos for odd i}(4πx_1 + iπ/d).

    Attributes:
        d: Number of variables, at least 3.

    Examples:
        >>> problem = eq.problems.F4(d=4)
        >>> x = problem.pareto_set(3)[1]
        >>> [round(value, 3) for value in x.tolist()]
        [0.25, 0.4, 0.571, 0.5]
        >>> [round(value, 3) for value in problem.losses(x).tolist()]  # f2 = 1 − √f1
        [0.25, 0.5]
    """

    name: ClassVar[str] = "F4"
    centred: ClassVar[bool] = True

    def curve(self, x1: Tensor) -> Tensor:
        """A spiral that widens with x_1."""
        phase = self._phase(x1, 4)
        return 0.8 * x1 * self._by_parity(phase.sin(), phase.cos())


@dataclass(frozen=True)
class F5(FProblem):
    """As F4, with the argument of the cosine divided by 3.

    Attributes:
        d: Number of variables, at least 3.

    Examples:
        >>> problem = eq.problems.F5(d=4)
        >>> x = problem.pareto_set(3)[1]
        >>> [round(value, 3) for value in x.tolist()]
        [0.25, 0.4, 0.474, 0.5]
        >>> [round(value, 3) for value in problem.losses(x).tolist()]  # f2 = 1 − √f1
        [0.25, 0.5]
    """

    name: ClassVar[str] = "F5"
    centred: ClassVar[bool] = True

    def curve(self, x1: Tensor) -> Tensor:
        """A spiral that widens with x_1, slower for odd i."""
        phase = self._phase(x1, 4)
        return 0.8 * x1 * self._by_parity(phase.sin(), (phase / 3).cos())


@dataclass(frozen=True)
class F6(FProblem):
    """As F1 with y_i = (2x_i - 1) - (0.3 x_1² cos(12πx_1 + 4iπ/d) + 0.6 x_1) {sin | cos}(6πx_1 + iπ/d).

    Sine for even i, cosine for odd i.

    Attributes:
        d: Number of variables.
        quartic: Take y_i⁴ instead of y_i² in g2, as in the published hypervolume table.

    Examples:
        >>> problem = eq.problems.F6(d=4)
        >>> x = problem.pareto_set(3)[1]
        >>> [round(value, 3) for value in x.tolist()]
        [0.25, 0.5, 0.56, 0.566]
        >>> [round(value, 3) for value in problem.losses(x).tolist()]  # f2 = 1 − √f1
        [0.25, 0.5]
    """

    quartic: bool = False

    name: ClassVar[str] = "F6"
    centred: ClassVar[bool] = True

    def curve(self, x1: Tensor) -> Tensor:
        """A spiral whose width oscillates too."""
        phase = self._phase(x1, 6)
        wave = torch.cos(12 * math.pi * x1 + self._index(x1) * (4 * math.pi / self.d))
        width = 0.3 * x1.square() * wave + 0.6 * x1
        return width * self._by_parity(phase.sin(), phase.cos())

    def _even_term(self, y: Tensor) -> Tensor:
        return y.square().square() if self.quartic else y.square()
