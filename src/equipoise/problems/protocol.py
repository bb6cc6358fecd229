"""The interface of a problem, and of one with a known front."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Problem(Protocol):
    """Objectives to minimise over a box: all that the solver needs.

    Examples:
        >>> class Points:
        ...     name, m, d, lower, upper = "Points", 2, 1, -1.0, 3.0
        ...     def losses(self, x):
        ...         return torch.cat((x**2, (x - 2) ** 2), -1)
        ...     def initial(self, count, seed):
        ...         return torch.ones(count, 1)
        >>> found = eq.solve(Points(), [[0.1, 0.9]], step_size=0.1, steps=200)
        >>> round(found.params["solution"].item(), 1)  # 0.1 x² = 0.9 (x − 2)²
        1.5
    """

    @property
    def name(self) -> str:
        """Name for tables and the command line."""
        ...

    @property
    def m(self) -> int:
        """Number of objectives."""
        ...

    @property
    def d(self) -> int:
        """Number of variables."""
        ...

    @property
    def lower(self) -> float:
        """Lower bound of every variable."""
        ...

    @property
    def upper(self) -> float:
        """Upper bound of every variable."""
        ...

    def losses(self, x: Tensor) -> Tensor:
        """Objective values, differentiable: x (*B, d) to (*B, m)."""
        ...

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d) in float32 on the CPU, the same for the same seed."""
        ...


@runtime_checkable
class KnownFront(Problem, Protocol):
    """A problem whose Pareto front is known in closed form.

    Examples:
        >>> problem = eq.problems.ZDT1()
        >>> problem.front(3).tolist()  # f2 = 1 − √f1
        [[0.0, 1.0], [0.25, 0.5], [1.0, 0.0]]
        >>> eq.metrics.igd(problem.front(3), problem.front(3)).item()
        0.0
    """

    @property
    def reference(self) -> tuple[float, ...]:
        """Reference point for the hypervolume."""
        ...

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d) in float64: for two objectives from one end of the front to the other."""
        ...

    def front(self, n: int) -> Tensor:
        """The objective values (n, m) of `pareto_set(n)` in float64, row by row."""
        ...

    def solution(self, preference: Tensor) -> Tensor:
        """Point of the front with the smallest max_i w_i f_i: preference (*B, m) to (*B, m).

        In float64. It is the point where the weighted objectives are equal. If the front has no such point, it is
        the closest end of the front or of one of its pieces.
        """
        ...
