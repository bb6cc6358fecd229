"""DTLZ1 to DTLZ4 and DTLZ7 (Deb, Thiele, Laumanns and Zitzler, 2002), for any number of objectives."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.preference import inverse, validate
from equipoise.problems import box
from equipoise.problems.pieces import Pieces, inside, snap, spread

_HALVINGS = 60  # of an interval no longer than some ten times the root: below the spacing of float64


@dataclass(frozen=True)
class DTLZ(ABC):
    """What the DTLZ problems share, in d = m + k - 1 variables on [0, 1]^d.

    The first m - 1 variables set the position along the front, the last k the distance from it, g(x_m..x_d) ≥ 0.
    The reference point is 1.1 times the nadir point.

    For two objectives `pareto_set` and `front` go evenly from one end to the other, f1 increasing. For more
    they are spread over the front by a Sobol sequence of m - 1 dimensions, always the same.

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.
    """

    m: int = 3
    k: int = 10

    name: ClassVar[str]
    lower: ClassVar[float] = 0.0
    upper: ClassVar[float] = 1.0
    optimal: ClassVar[float] = 0.5
    """Value of the last k variables on the Pareto set."""

    def __post_init__(self) -> None:
        require(self.m >= 2, "m must be at least 2", self.m)
        require(self.k >= 1, "k must be at least 1", self.k)

    @property
    def d(self) -> int:
        """Number of variables, m + k - 1."""
        return self.m + self.k - 1

    @property
    @abstractmethod
    def reference(self) -> tuple[float, ...]:
        """Reference point for the hypervolume, 1.1 times the nadir point."""

    def losses(self, x: Tensor) -> Tensor:
        """Objective values: x (*B, d) to (*B, m)."""
        box.require_points(x, self.d)
        return self._objectives(x[..., : self.m - 1], self._distance(x[..., self.m - 1 :]).unsqueeze(-1))

    @abstractmethod
    def _distance(self, rest: Tensor) -> Tensor:
        """g: (*B, k) to (*B,)."""

    @abstractmethod
    def _objectives(self, x: Tensor, g: Tensor) -> Tensor:
        """The point of the front at x (*B, m-1), moved away from it by g (*B, 1): (*B, m)."""

    def initial(self, count: int, seed: int) -> Tensor:
        """Start points (count, d), uniform on [0, 1]^d."""
        return box.uniform(count, self.d, seed, lower=self.lower, upper=self.upper)

    def pareto_set(self, n: int) -> Tensor:
        """Pareto-optimal variables (n, d); for two objectives f1 is increasing."""
        require(n >= 2, "n must be at least 2", n)
        if self.m == 2:
            u = torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1)
        else:
            sobol = torch.quasirandom.SobolEngine(self.m - 1)  # type: ignore[no-untyped-call]
            u = sobol.draw(n, dtype=torch.float64)
        return torch.cat((self._positions(u), u.new_full((n, self.k), self.optimal)), -1)

    @abstractmethod
    def _positions(self, u: Tensor) -> Tensor:
        """Spread [0, 1]^{m-1} over the Pareto set: (n, m-1) to (n, m-1)."""

    def front(self, n: int) -> Tensor:
        """The front (n, m); for two objectives f1 is increasing."""
        return self.losses(self.pareto_set(n))

    @abstractmethod
    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, m) to objective values (*B, m), in float64."""


@dataclass(frozen=True)
class DTLZ1(DTLZ):
    """A flat front, Σ_i f_i = 1/2, behind 11^k - 1 local ones.

    With j = 2..m:

        g = 100 [k + Σ_{i≥m} ((x_i - 1/2)² - cos(20π(x_i - 1/2)))]
        f_1 = (1 + g)/2 · x_1 ⋯ x_{m-1},   f_j = (1 + g)/2 · x_1 ⋯ x_{m-j} (1 - x_{m-j+1})

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.

    Examples:
        >>> problem = eq.problems.DTLZ1(m=3)
        >>> problem.losses(torch.full((problem.d,), 0.5)).tolist()  # on the front: they sum to ½
        [0.125, 0.125, 0.25]
    """

    k: int = 5

    name: ClassVar[str] = "DTLZ1"

    @property
    def reference(self) -> tuple[float, ...]:
        """Reference point for the hypervolume, 1.1 times the nadir point."""
        return self.m * (0.55,)

    def _distance(self, rest: Tensor) -> Tensor:
        return _rugged(rest)

    def _objectives(self, x: Tensor, g: Tensor) -> Tensor:
        return (1 + g) / 2 * _products(x, 1 - x)

    def _positions(self, u: Tensor) -> Tensor:
        return _sticks(u)

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, m) to objective values (*B, m), in float64.

        f_i ∝ 1/w_i with Σ_i f_i = 1/2. Objectives of weight zero share the 1/2 equally.
        """
        ray = _ray(preference, self.m)
        return ray / (2 * ray.sum(-1, keepdim=True))


@dataclass(frozen=True)
class DTLZ2(DTLZ):
    """A spherical front, Σ_i f_i² = 1.

    With θ_i = x_i π/2 and j = 2..m:

        g = Σ_{i≥m} (x_i - 1/2)²
        f_1 = (1 + g) cos θ_1 ⋯ cos θ_{m-1},   f_j = (1 + g) cos θ_1 ⋯ cos θ_{m-j} sin θ_{m-j+1}

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.

    Examples:
        >>> problem = eq.problems.DTLZ2(m=3)
        >>> losses = problem.losses(torch.full((problem.d,), 0.5))
        >>> [round(value, 3) for value in losses.tolist()]  # cos² 45°, cos 45° sin 45°, sin 45°
        [0.5, 0.5, 0.707]
    """

    name: ClassVar[str] = "DTLZ2"

    @property
    def reference(self) -> tuple[float, ...]:
        """Reference point for the hypervolume, 1.1 times the nadir point."""
        return self.m * (1.1,)

    def _distance(self, rest: Tensor) -> Tensor:
        return (rest - 0.5).square().sum(-1)

    def _objectives(self, x: Tensor, g: Tensor) -> Tensor:
        theta = x * (math.pi / 2)
        return (1 + g) * _products(theta.cos(), theta.sin())

    def _positions(self, u: Tensor) -> Tensor:
        # Beyond two objectives, the squares f_i² are spread like the objectives of DTLZ1.
        return 1 - u if self.m == 2 else _sticks(u).sqrt().acos() * (2 / math.pi)

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, m) to objective values (*B, m), in float64.

        f_i ∝ 1/w_i with Σ_i f_i² = 1. Objectives of weight zero are equal, and the others zero.
        """
        ray = _ray(preference, self.m)
        length: Tensor = torch.linalg.vector_norm(ray, dim=-1, keepdim=True)
        return ray / length


@dataclass(frozen=True)
class DTLZ3(DTLZ2):
    """DTLZ2 with the g of DTLZ1: a spherical front behind many local ones.

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.

    Examples:
        >>> problem = eq.problems.DTLZ3(m=2, k=1)
        >>> x = torch.tensor([[0.0, 0.5], [0.0, 0.6]])
        >>> [round(value, 3) for value in problem.losses(x)[:, 0].tolist()]  # the front, and a local one behind it
        [1.0, 2.0]
    """

    name: ClassVar[str] = "DTLZ3"

    def _distance(self, rest: Tensor) -> Tensor:
        return _rugged(rest)


@dataclass(frozen=True)
class DTLZ4(DTLZ2):
    """DTLZ2 with x_i^α in place of x_i, i < m: most of the box lies over a small part of the front.

    For α = 100 the derivative of the power is below 10⁻⁷ wherever x_i < 0.8, and 0 where the power underflows:
    a gradient method that starts there does not move along the front.

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.
        alpha: α ≥ 1.

    Examples:
        >>> x = torch.tensor([0.9, *(10 * [0.5])])
        >>> [round(value, 3) for value in eq.problems.DTLZ4(m=2).losses(x).tolist()]  # almost the end (1, 0)
        [1.0, 0.0]
        >>> [round(value, 3) for value in eq.problems.DTLZ2(m=2).losses(x).tolist()]
        [0.156, 0.988]
    """

    alpha: float = 100.0

    name: ClassVar[str] = "DTLZ4"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.alpha < math.inf, "alpha must be at least 1 and finite", self.alpha)

    def _objectives(self, x: Tensor, g: Tensor) -> Tensor:
        return super()._objectives(x**self.alpha, g)

    def _positions(self, u: Tensor) -> Tensor:
        return super()._positions(u) ** (1 / self.alpha)


@dataclass(frozen=True)
class DTLZ7(DTLZ):
    """A front in 2^{m-1} pieces.

        g = 1 + 9 mean_{i≥m} x_i
        f_i = x_i, i < m,   f_m = (1 + g) (m - Σ_{i<m} f_i/(1 + g) (1 + sin(3πf_i)))

    On the Pareto set, where g = 1, f_m = 2m - Σ_{i<m} φ(f_i) with φ(t) = t (1 + sin(3πt)). A point is
    optimal if each φ(f_i) is larger than φ at any smaller f_i.

    Attributes:
        m: Number of objectives, at least 2.
        k: Number of variables that measure the distance, at least 1.

    Examples:
        >>> problem = eq.problems.DTLZ7(m=3)
        >>> problem.d, problem.losses(torch.zeros(problem.d)).tolist()  # f_3 = 2m at this corner of the front
        (22, [0.0, 0.0, 6.0])
    """

    k: int = 20

    name: ClassVar[str] = "DTLZ7"
    optimal: ClassVar[float] = 0.0
    pieces: ClassVar[Pieces] = ((0.0, 0.25141183608891712), (0.6316265307000612, 0.85940085664472392))
    """The intervals of f_i, i < m, that form the front: φ has a local maximum at the end of each, and the
    second starts where φ reaches the first maximum again."""

    @property
    def reference(self) -> tuple[float, ...]:
        """Reference point for the hypervolume, 1.1 times the nadir point, to four digits."""
        return (*(self.m - 1) * (0.9453,), round(2.2 * self.m, 1))

    def _distance(self, rest: Tensor) -> Tensor:
        return 1 + 9 * rest.mean(-1)

    def _objectives(self, x: Tensor, g: Tensor) -> Tensor:
        return torch.cat((x, (1 + g) * self.m - _rise(x).sum(-1, keepdim=True)), -1)

    def _positions(self, u: Tensor) -> Tensor:
        return spread(u, self.pieces)

    def solution(self, preference: Tensor) -> Tensor:
        """Exact TCH solution: preference (*B, m) to objective values (*B, m), in float64.

        Of all points with w_i f_i ≤ v, i < m, f_m is smallest where each f_i is the last point of the front
        up to v/w_i. So v is the optimal value if w_m f_m = v there, and since w_m f_m - v decreases in v,
        bisection finds it. All w_i f_i are v if the ray meets the front; otherwise those whose v/w_i is in
        the gap, or beyond the end, of the front are below. The Newton step at the end makes the result
        differentiable. An objective of weight zero takes the end of the front.
        """
        w = validate(preference, self.m).to(torch.float64)
        others, w_m = w[..., :-1], w[..., -1:]
        free = others == 0
        others = others.where(~free, 1)

        def reach(v: Tensor) -> Tensor:
            return (v / others).where(~free, 1)

        def on_front(v: Tensor) -> Tensor:
            return self._objectives(snap(reach(v), self.pieces), torch.ones_like(v))

        def excess(v: Tensor) -> Tensor:
            return w_m * on_front(v)[..., -1:] - v

        with torch.no_grad():
            low, high = torch.zeros_like(w_m), 2 * self.m * w_m
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                right = excess(middle) >= 0
                low, high = torch.where(right, middle, low), torch.where(right, high, middle)
            v = (low + high) / 2
            t = reach(v)
            phase = 3 * math.pi * t
            steepness = (1 + phase.sin() + phase * phase.cos()) / others
            slope = 1 + w_m * steepness.where(inside(t, self.pieces) & ~free, 0).sum(-1, keepdim=True)
        return on_front(v + excess(v) / slope)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """f_1 = a_1 ⋯ a_{m-1} and f_j = a_1 ⋯ a_{m-j} b_{m-j+1}: (*B, m-1) and (*B, m-1) to (*B, m)."""
    one = torch.ones_like(a[..., :1])
    return (torch.cat((one, a.cumprod(-1)), -1) * torch.cat((b, one), -1)).flip(-1)


def _rugged(rest: Tensor) -> Tensor:
    """The g of DTLZ1 and DTLZ3: (*B, k) to (*B,)."""
    y = rest - 0.5
    # 1 - cos(20πy) = 2 sin²(10πy) has no cancellation.
    return 100 * (y.square() + 2 * torch.sin(10 * math.pi * y).square()).sum(-1)


def _rise(t: Tensor) -> Tensor:
    """φ of DTLZ7, elementwise."""
    return t * (1 + torch.sin(3 * math.pi * t))


def _sticks(u: Tensor) -> Tensor:
    """Variables (n, m-1) of DTLZ1 for which uniform u give uniform objectives on the simplex."""
    return u ** (1 / torch.arange(u.shape[-1], 0, -1, dtype=u.dtype))


def _ray(preference: Tensor, m: int) -> Tensor:
    """1/w up to scale, (*B, m) in float64."""
    return inverse(validate(preference, m).to(torch.float64))
