"""What a problem offers to the solver, and what one with a known front offers on top."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Problem(Protocol):
    """Objectives to minimise over a box: all that the solver needs."""

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
    """A problem whose Pareto front is known in closed form."""

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

        In float64. It is the point where the weighted objectives are equal, or, where no point of the front
        has them so, the end of it, or of one of its pieces, that is closest to it.
        """
        ...
