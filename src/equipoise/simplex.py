"""The probability simplex: exact batched projections, and the mirror maps that move a dual on it.

Every function works over any leading batch shape `*B`; the last dimension holds the m coordinates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.batch import Number, constant, floating, per_instance
from equipoise.errors import require

__all__ = [
    "Box",
    "Entropic",
    "Euclidean",
    "Mirror",
    "PNorm",
    "local_step",
    "project",
    "project_box",
    "project_kl",
]

Array = NDArray[np.float64]


# ------------------------------------------------------------------------------- projections
def project(x: Tensor) -> Tensor:
    """Euclidean projection on the simplex, exact.

    Args:
        x: Points of any finite size, shape (*B, m).

    Returns:
        The nearest points of the simplex, shape (*B, m), in the dtype of `x`.

    Examples:
        >>> x = torch.tensor([[0.5, 1.0], [2.0, 0.0]])
        >>> eq.simplex.project(x).tolist()
        [[0.25, 0.75], [1.0, 0.0]]
    """
    return _project(_points("x", x))


def project_box(x: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    """Euclidean projection on the box-simplex {l ≤ y ≤ u, Σy = 1}, exact.

    Args:
        x: Points of any finite size, shape (*B, m).
        lower: Lower bounds l, broadcastable to `x`, with Σl ≤ 1.
        upper: Upper bounds u, broadcastable to `x`, with Σu ≥ 1.

    Returns:
        The nearest points of the box-simplex, shape (*B, m).

    Examples:
        >>> eq.simplex.project_box(torch.tensor([2.0, 0.0, 0.0]), 0.0, 0.5).tolist()
        [0.5, 0.25, 0.25]
    """
    x = _points("x", x)
    low, high = _bounds(x, lower, upper)
    return _project_box(x, low, high)


def project_kl(log_x: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    """KL projection on the box-simplex {l ≤ y ≤ u, Σy = 1}, exact, in log space.

    The minimiser of KL(y ‖ x) is y_i = clip(c·x_i, l_i, u_i) for the one scale c that sums to one.

    Args:
        log_x: Logarithms of positive points, not necessarily normalised, shape (*B, m).
        lower: Lower bounds l, broadcastable to `log_x`, with Σl ≤ 1.
        upper: Upper bounds u, broadcastable to `log_x`, with Σu ≥ 1.

    Returns:
        log y, shape (*B, m).

    Examples:
        >>> x = torch.tensor([8.0, 1.0, 1.0])
        >>> log_y = eq.simplex.project_kl(x.log(), 0.0, 0.5)
        >>> [round(value, 6) for value in log_y.exp().tolist()]
        [0.5, 0.25, 0.25]
    """
    log_x = _points("log_x", log_x)
    low, high = _bounds(log_x, lower, upper)
    return _project_kl(log_x, low, high)


def local_step(y: Tensor, push: Tensor, lower: Tensor | None = None) -> Tensor:
    """A step in the local geometry of y: argmin over {λ ≥ l, Σλ = 1} of Σ (λ_i − y_i − h_i u_i)²/(2h_i), exact.

    With h_i = max(y_i, 1/m) this is a Euclidean step near the uniform vector and an entropic one, to first order, for
    entries that have grown.

    Args:
        y: A point of the simplex, shape (*B, m).
        push: u, finite, shape (*B, m).
        lower: l, with Σl ≤ 1, shape (*B, m); None: 0.

    Returns:
        λ, shape (*B, m).

    Examples:
        >>> y, push = torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.0])
        >>> eq.simplex.local_step(y, push).tolist()  # half of 0.4 · ½ up, half down
        [0.6000000238418579, 0.4000000059604645]
    """
    h = y.clamp_min(1.0 / y.shape[-1])
    if y.shape[-1] == 2:
        moved = y + (h.prod(-1, keepdim=True) / h.sum(-1, keepdim=True)) * (push - push.flip(-1))
        return moved.clamp(0.0, 1.0) if lower is None else torch.clamp(moved, lower, 1.0 - lower.flip(-1))
    above = y + h * push if lower is None else y + h * push - lower
    spare = 1.0 if lower is None else 1.0 - lower.sum(-1, keepdim=True)
    order = torch.sort(above / h, -1, descending=True)
    sums = torch.stack([above, h]).gather(-1, order.indices.expand(2, *h.shape)).cumsum(-1, dtype=_sum_dtype(y))
    level = (sums[0] - spare) / sums[1]
    used = (order.values > level).sum(-1, keepdim=True).clamp_min(1)
    found = (above - h * level.gather(-1, used - 1).to(h.dtype)).clamp_min(0.0)
    return found if lower is None else lower + found


def local_step_single(y: Array, push: Array, lower: Array | None = None) -> Array:
    """`local_step` for one vector (m,) on the host: numpy takes a tenth of the time of small tensor operations."""
    m = len(y)
    if m == 2:
        (y1, y2), (u1, u2), (l1, l2) = y.tolist(), push.tolist(), (0.0, 0.0) if lower is None else lower.tolist()
        h1, h2 = max(y1, 0.5), max(y2, 0.5)
        step = h1 * h2 / (h1 + h2) * (u1 - u2)
        return np.array((min(max(y1 + step, l1), 1.0 - l2), min(max(y2 - step, l2), 1.0 - l1)))
    h = np.maximum(y, uniform(m))
    above, spare = y + h * push, 1.0
    if lower is not None:
        above, spare = above - lower, 1.0 - m * float(uniform(m).dot(lower))
    order = (-above / h).argsort()
    sums = above[order]
    sums[0] -= spare
    level = np.add.accumulate(sums) / np.add.accumulate(h[order])
    # `level` rises up to the last entry that stays positive and falls after it, so its maximum is the right one.
    found = np.maximum(above - h * level.item(level.argmax()), 0.0)
    return found if lower is None else lower + found


@lru_cache(maxsize=64)
def uniform(m: int) -> Array:
    """The vector with all entries 1/m. Its dot product with a vector is the mean, at half the cost of `numpy.mean`."""
    weights = np.full(m, 1.0 / m)
    weights.flags.writeable = False
    return weights


def _points(name: str, x: Tensor) -> Tensor:
    x = floating(name, x)
    require(x.ndim >= 1 and x.shape[-1] >= 1, f"{name} must have shape (*B, m) with m ≥ 1", tuple(x.shape))
    finite = torch.isfinite(x)
    require(bool(finite.all()), f"{name} must be finite", x[~finite][:1].tolist())
    return x


def _bounds(x: Tensor, lower: Tensor | float, upper: Tensor | float) -> tuple[Tensor, Tensor]:
    low = torch.as_tensor(lower, dtype=x.dtype, device=x.device).expand_as(x)
    high = torch.as_tensor(upper, dtype=x.dtype, device=x.device).expand_as(x)
    slack = 1e-6 * max(1.0, x.shape[-1] ** 0.5)
    require(bool((low >= 0).all()), "lower must be non-negative", lambda: low.min().item())
    require(bool((low <= high).all()), "lower must not exceed upper", lambda: (low - high).max().item())
    require(
        bool((low.sum(-1) <= 1 + slack).all()),
        "lower must sum to at most 1",
        lambda: low.sum(-1).max().item(),
    )
    require(
        bool((high.sum(-1) >= 1 - slack).all()),
        "upper must sum to at least 1",
        lambda: high.sum(-1).min().item(),
    )
    return low, high


def _project(x: Tensor) -> Tensor:
    # Shifting by the maximum changes nothing (the projection is translation invariant) and keeps
    # the sums free of cancellation however large x is.
    wide = _sum_dtype(x)
    shifted = x - x.amax(-1, keepdim=True)
    ordered = torch.sort(shifted, dim=-1, descending=True).values
    excess = torch.cumsum(ordered, -1, dtype=wide).sub_(1.0)
    rank = torch.arange(1, x.shape[-1] + 1, dtype=wide, device=x.device)
    support = (ordered * rank > excess).sum(-1, keepdim=True).clamp_min(1)
    threshold = excess.gather(-1, support - 1) / support
    y = torch.clamp_min(shifted - threshold.to(x.dtype), 0.0)
    return y / y.sum(-1, keepdim=True)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.device.type == "mps" else torch.float64


def _project_box(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # y_i(τ) = clip(x_i + τ, l_i, u_i); its sum rises with τ, linear between the breakpoints l − x
    # (coordinate i leaves its lower bound) and u − x (it reaches its upper one). Coordinates more
    # than 1 apart are never free together, so larger distances can be shortened.
    wide = x.to(_sum_dtype(x))
    low, high, near = low.to(wide), high.to(wide), _closer(wide, 2.0)
    enters, leaves = low - near, high - near
    left = _last_below_one(enters, leaves, (low, high), lambda tau: near + tau)
    free = (enters <= left) & (left < leaves)
    held = torch.where(left < enters, low, high)
    top = torch.where(free, wide, -torch.inf).amax(-1, keepdim=True)
    beyond = torch.where(free, wide - top, 0.0)
    rest = 1.0 - torch.where(free, beyond, held).sum(-1, keepdim=True)
    y = torch.where(free, beyond + rest / free.sum(-1, keepdim=True), held)
    return torch.clamp(y, low, high).to(x.dtype)


def _project_kl(log_x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # y_i(c) = clip(x_i e^c, l_i, u_i); its sum rises with c, and between the breakpoints
    # log l − log x and log u − log x it is A e^c + B. Beyond a factor e^800 a coordinate adds nothing.
    wide = log_x.to(_sum_dtype(log_x))
    wide = wide.clamp_min(torch.finfo(wide.dtype).min / 4)  # a weight of exactly 0 is a very small one
    low, high, near = low.to(wide), high.to(wide), _closer(wide, 800.0)
    log_low, log_high = low.log(), high.log()
    enters, leaves = log_low - near, log_high - near
    left = _last_below_one(enters, leaves, (low, high), lambda c: (near + c).exp())
    free = (enters <= left) & (left < leaves)
    held = torch.where(left < enters, low, high)
    top = torch.where(free, wide, -torch.inf).amax(-1, keepdim=True)
    beyond = torch.where(free, wide - top, -torch.inf)
    rest = torch.log1p(-torch.where(free, 0.0, held).sum(-1, keepdim=True).clamp_max(1.0))
    y = torch.where(free, beyond + rest - torch.logsumexp(beyond, -1, keepdim=True), held.log())
    return torch.clamp(y, log_low, log_high).to(log_x.dtype)


def _closer(x: Tensor, gap: float) -> Tensor:
    """The same points, shifted so that the least is 0 and sorted neighbours are at most `gap` apart."""
    ordered, order = torch.sort(x, dim=-1)
    steps = ordered.diff(dim=-1, prepend=ordered[..., :1]).clamp_max(gap)
    return torch.zeros_like(x).scatter(-1, order, steps.cumsum(-1))


def _last_below_one(
    enters: Tensor, leaves: Tensor, bounds: tuple[Tensor, Tensor], between: Callable[[Tensor], Tensor]
) -> Tensor:
    """The largest breakpoint at which the coordinates sum to less than one, else the least, (*B, 1).

    By binary search among the sorted breakpoints: the sum is evaluated, not accumulated, and a
    coordinate at a bound has exactly that value, so that nothing cancels however far apart they are.

    Args:
        enters: Where each coordinate leaves its lower bound, (*B, m).
        leaves: Where it reaches its upper one, (*B, m).
        bounds: The two bounds, (*B, m).
        between: The coordinates at a parameter (*B, 1) if they had no bounds.
    """
    low, high = bounds
    limits = torch.finfo(enters.dtype)
    ordered = torch.sort(torch.cat([enters, leaves], -1), dim=-1).values.clamp(limits.min, limits.max)
    n = ordered.shape[-1]
    first = torch.zeros_like(ordered[..., :1], dtype=torch.long)
    below, above = first, first + n
    for _ in range(n.bit_length()):
        middle = (below + above) // 2
        at = ordered.gather(-1, middle.clamp_max(n - 1))
        y = torch.where(at >= leaves, high, torch.where(at < enters, low, between(at)))
        under = (middle < n) & (y.sum(-1, keepdim=True) < 1.0)
        below, above = torch.where(under, middle + 1, below), torch.where(under, above, middle)
    return ordered.gather(-1, (below - 1).clamp_min(0))


# ------------------------------------------------------------------------------- the dual's set
@dataclass(frozen=True)
class Box:
    """The set {λ in the simplex, lower ≤ λ ≤ upper} that a dual may be confined to.

    Attributes:
        lower: One bound for all coordinates, or one for each.
        upper: Likewise.

    Examples:
        >>> eq.Box.cvar(0.5, m=4)  # no objective has more than the worst half would give it
        Box(lower=0.0, upper=0.5)
        >>> weighting = eq.OMD(step_size=1.0, dual_set=eq.Box(upper=0.75))
        >>> losses, w = torch.tensor([9.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> _, state = weighting.update(losses, weighting.init(losses), w)
        >>> (weighting.update(losses, state, w)[0] / w).tolist()  # λ
        [0.75, 0.25]
    """

    lower: float | tuple[float, ...] = 0.0
    upper: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        low, high = torch.as_tensor(self.lower), torch.as_tensor(self.upper)
        require(bool((low >= 0).all() & (low <= 1).all()), "lower must lie in [0, 1]", self.lower)
        require(bool((high >= 0).all()), "upper must be non-negative", self.upper)
        require(
            low.ndim == 0 or high.ndim == 0 or low.shape == high.shape,
            "lower and upper must have the same length",
            (self.lower, self.upper),
        )
        require(bool((low <= high).all()), "lower must not exceed upper", (self.lower, self.upper))

    @classmethod
    def ball(cls, centre: tuple[float, ...], radius: float) -> "Box":
        """The sup-norm ball around a point of the simplex: λ within `radius` of `centre`."""
        require(radius >= 0, "radius must be non-negative", radius)
        return cls(
            lower=tuple(max(0.0, c - radius) for c in centre),
            upper=tuple(min(1.0, c + radius) for c in centre),
        )

    @classmethod
    def cvar(cls, fraction: float, m: int) -> "Box":
        """The set over which max Σ λ_i f_i is the mean of the worst `fraction` of m objectives (CVaR)."""
        require(0 < fraction <= 1, "fraction must lie in (0, 1]", fraction)
        return cls(upper=min(1.0, 1.0 / (fraction * m)))

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The two bounds as tensors of shape (m,), after checking that they fit m coordinates."""
        m = like.shape[-1]
        return constant(self.lower, like).expand(m), constant(self.upper, like).expand(m)

    def check(self, m: int, floor: Number = 0.0) -> None:
        """Raise ValueError unless the set, above floor/m, is a non-empty part of the simplex of m coordinates."""
        for name in ("lower", "upper"):
            value = getattr(self, name)
            require(
                not isinstance(value, tuple) or len(value) == m,
                f"dual_set.{name} must have {m} entries",
                value,
            )
        low, high = self.bounds(torch.zeros(m, dtype=torch.float64))
        require(float(low.sum()) <= 1 + 1e-9, "dual_set.lower must sum to at most 1", float(low.sum()))
        require(float(high.sum()) >= 1 - 1e-9, "dual_set.upper must sum to at least 1", float(high.sum()))
        raised = low.clamp_min(float(torch.as_tensor(floor).max()) / m)
        fits = bool((raised <= high).all()) and float(raised.sum()) <= 1 + 1e-9
        require(fits, "floor must leave something of dual_set", floor)


# ------------------------------------------------------------------------------- mirror maps
@runtime_checkable
class Mirror(Protocol):
    """A geometry on the simplex. `dual` is a point in the coordinates of the mirror map.

    Examples:
        >>> gain = torch.tensor([1.0, 0.5])
        >>> for mirror in (eq.Euclidean(), eq.Entropic(), eq.PNorm(p=1.5)):
        ...     dual = mirror.step(mirror.start(gain), gain)
        ...     print([round(value, 3) for value in mirror.weights(dual).tolist()])
        [0.75, 0.25]
        [0.622, 0.378]
        [0.847, 0.153]
    """

    def start(self, like: Tensor) -> Tensor:
        """The dual of the uniform vector, shape of `like` (*B, m)."""
        ...

    def step(self, dual: Tensor, gain: Tensor, size: Number = 1.0, dual_set: Box | None = None) -> Tensor:
        """One step of mirror ascent: argmax size·⟨gain, x⟩ − B(x; current) over the set; size (*B, 1)."""
        ...

    def weights(self, dual: Tensor) -> Tensor:
        """λ, the point of the simplex that `dual` represents."""
        ...

    @property
    def lazy(self) -> bool:
        """Whether adaptive steps run as dual averaging (B is unbounded), not as mirror descent."""
        ...

    def step_scale(self, m: int) -> Number:
        """√(μD), the numerator of the adaptive step: μ strong convexity, D Bregman radius (may be infinite)."""
        ...

    def dual_norm(self, gain: Tensor) -> Tensor:
        """‖gain‖_* in the norm dual to the one the map is strongly convex in, shape (*B, 1)."""
        ...


@dataclass(frozen=True)
class Euclidean:
    """ψ(x) = ½‖x‖₂²: projected gradient ascent (PGD, eq:9 of the paper), λ ← Π(λ + gain). The dual is λ itself.

    Examples:
        >>> mirror, gain = eq.Euclidean(), torch.tensor([1.0, 0.5])
        >>> mirror.step(mirror.start(gain), gain).tolist()  # Π((½, ½) + (1, ½))
        [0.75, 0.25]
    """

    lazy: ClassVar[bool] = False

    def start(self, like: Tensor) -> Tensor:
        """The uniform vector, shape (*B, m)."""
        return torch.full_like(like, 1.0 / like.shape[-1])

    def step(self, dual: Tensor, gain: Tensor, size: Number = 1.0, dual_set: Box | None = None) -> Tensor:
        """λ ← Π(λ + size·gain), shapes (*B, m)."""
        moved = _add(dual, gain, size)
        if dual_set is None:
            return _project(moved)
        low, high = dual_set.bounds(moved)
        return _project_box(moved, low, high)

    def weights(self, dual: Tensor) -> Tensor:
        """λ, shape (*B, m)."""
        return dual

    def step_scale(self, m: int) -> Number:
        """√(μD) = 1: μ = 1 and D = max ½‖u − v‖² over the simplex."""
        return 1.0 if m > 1 else 0.0

    def dual_norm(self, gain: Tensor) -> Tensor:
        """‖gain‖₂, shape (*B, 1), with no overflow in the squares."""
        return _norm(gain, 2.0)


@dataclass(frozen=True)
class Entropic:
    """ψ(x) = Σ x_i log x_i: exponentiated gradient (EG, eq:10 of the paper), λ_i ∝ λ_i exp(gain_i). The dual is log λ.

    Attributes:
        floor: g in [0, 1]: λ is kept in {λ_i ≥ g/m} by the exact KL projection, so that a weight
            that became small returns within log(m/g) instead of never.

    Examples:
        >>> mirror, gain = eq.Entropic(), torch.tensor([3.0, 1.0]).log()
        >>> dual = mirror.step(mirror.start(gain), gain)
        >>> [round(value, 6) for value in mirror.weights(dual).tolist()]  # in the ratio 3 : 1
        [0.75, 0.25]
    """

    floor: Number = 0.0
    lazy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        floor = torch.as_tensor(self.floor)
        require(bool(((floor >= 0) & (floor <= 1)).all()), "floor must lie in [0, 1]", self.floor)

    def start(self, like: Tensor) -> Tensor:
        """The logarithm of the uniform vector, shape (*B, m)."""
        return torch.full_like(like, -math.log(like.shape[-1]))

    def step(self, dual: Tensor, gain: Tensor, size: Number = 1.0, dual_set: Box | None = None) -> Tensor:
        """Log λ ← log Π_KL(λ ∘ exp(size·gain)), shapes (*B, m)."""
        moved = _add(dual, gain, size)
        if dual_set is None and isinstance(self.floor, float | int) and self.floor == 0:
            return torch.log_softmax(moved, -1)
        low, high = (dual_set or Box()).bounds(moved)
        floor = per_instance("floor", self.floor, moved) / moved.shape[-1]
        low = torch.maximum(low, constant(floor, moved))
        return _project_kl(moved, low.expand_as(moved), high.expand_as(moved))

    def weights(self, dual: Tensor) -> Tensor:
        """λ = exp(dual), shape (*B, m)."""
        return dual.exp()

    def step_scale(self, m: int) -> Number:
        """√(μD) = √log m: μ = 1 and D = max KL(u ‖ uniform), all that dual averaging needs."""
        return math.sqrt(math.log(m))

    def dual_norm(self, gain: Tensor) -> Tensor:
        """‖gain‖_∞, shape (*B, 1)."""
        return gain.abs().amax(-1, keepdim=True)


@dataclass(frozen=True)
class PNorm:
    """ψ(x) = ½‖x‖_p² with 1 < p ≤ 2: between Euclidean (p = 2) and Entropic (p → 1).

    With G_p = ∇ψ and q = p/(p−1), a step solves λ' = G_q([G_p(λ) + gain + ν]₊) for the shift ν
    that makes the sum one. Zeros are allowed and can grow again, unlike in Entropic.

    Attributes:
        p: The exponent; None takes the q ≥ 2 with the smallest regret bound, which grows with m^(1/q)·√(q−1):
            q = ln m + √(ln m (ln m − 2)) from m = 8 on, and q = 2, which is Euclidean, up to m = 7.

    Examples:
        >>> eq.PNorm().exponents(2)  # with few objectives it is Euclidean
        (2.0, 2.0)
        >>> p, q = eq.PNorm().exponents(1000)
        >>> round(p, 3), round(q, 3)
        (1.085, 12.73)
    """

    p: Number | None = None
    lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.p is not None:
            p = torch.as_tensor(self.p)
            require(bool(((p > 1) & (p <= 2)).all()), "p must lie in (1, 2]", self.p)

    def exponents(self, m: int) -> tuple[Number, Number]:
        """(p, q) for m coordinates, 1/p + 1/q = 1."""
        if self.p is None:
            log = math.log(m)
            q = 2.0 if log <= 2.0 else log + math.sqrt(log * (log - 2.0))
            return q / (q - 1.0), q
        return self.p, self.p / (self.p - 1.0)

    def start(self, like: Tensor) -> Tensor:
        """The uniform vector, shape (*B, m)."""
        return torch.full_like(like, 1.0 / like.shape[-1])

    def step(self, dual: Tensor, gain: Tensor, size: Number = 1.0, dual_set: Box | None = None) -> Tensor:
        """λ ← G_q([G_p(λ) + size·gain + ν]₊), shapes (*B, m)."""
        require(dual_set is None, "dual_set needs mirror Euclidean or Entropic, not PNorm", dual_set)
        m = dual.shape[-1]
        p, q = (per_instance("p", e, dual) for e in self.exponents(m))
        norm = _norm(dual, p)
        z = _add(norm ** (2.0 - p) * dual ** (p - 1.0), gain, size)
        z = z - z.amax(-1, keepdim=True)
        # The sum of G_q([z + ν]₊) rises in ν, is ≤ 1 at m^(−2/q) and ≥ 1 at 1.
        like = torch.ones_like(norm)
        low, high = like * m ** (-2.0 / q), like
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            over = _inverse_gradient(z + middle, q).sum(-1, keepdim=True) > 1.0
            low, high = torch.where(over, low, middle), torch.where(over, middle, high)
        y = _inverse_gradient(z + 0.5 * (low + high), q)
        return y / y.sum(-1, keepdim=True)

    def weights(self, dual: Tensor) -> Tensor:
        """λ, shape (*B, m)."""
        return dual

    def step_scale(self, m: int) -> Number:
        """√(μD) = √(p−1): μ = p − 1 and D = max B(u; v) = 1 over the simplex."""
        p, _ = self.exponents(m)
        return (p - 1.0) ** 0.5 if m > 1 else 0.0

    def dual_norm(self, gain: Tensor) -> Tensor:
        """‖gain‖_q, shape (*B, 1), with no overflow in the powers."""
        q = per_instance("p", self.exponents(gain.shape[-1])[1], gain)
        return _norm(gain, q)


_BISECTIONS = 54
"""Bisection steps: enough for the last bit of a float64 in the bracket (0, 1]."""


def _add(x: Tensor, gain: Tensor, size: Number) -> Tensor:
    """Compute x + size·gain, in one pass where `size` is a number."""
    return x + size * gain if isinstance(size, Tensor) else torch.add(x, gain, alpha=size)


def _norm(x: Tensor, q: Number) -> Tensor:
    largest = x.abs().amax(-1, keepdim=True)
    unit = x.abs() / torch.where(largest > 0, largest, torch.ones_like(largest))
    return largest * (unit**q).sum(-1, keepdim=True) ** (1.0 / q)


def _inverse_gradient(y: Tensor, q: Number) -> Tensor:
    """G_q([y]₊), scaled by the largest entry so that no power under- or overflows."""
    y = y.clamp_min(0.0)
    largest = y.amax(-1, keepdim=True)
    unit = y / torch.where(largest > 0, largest, torch.ones_like(largest))
    power = unit ** (q - 1.0)
    return largest * power * (power * unit).sum(-1, keepdim=True) ** ((2.0 - q) / q)
