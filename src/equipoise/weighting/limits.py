"""Limits: minimise some losses while others stay below, above or between given numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import check_positive, constant
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Stateless, Weighting, keep, working_dtype
from equipoise.weighting.self_tuned import SelfTuned

__all__ = ["Limit", "Limits", "LimitsState", "link", "proxy"]

Limit = float | tuple[float, float] | None
"""The upper bound of a loss, a pair (lower, upper), or None for a loss without a limit."""

FAR, NEAR = 2.0, 1.0
"""Relative violations are clipped to these values: in the integral and in the proportional part."""
WIDE, HUGE = 6.0, 1e6
"""In the integral, a violation is clipped at WIDE times its usual change, but not below FAR or above HUGE.

The mean of a few samples is skewed: clipped at FAR, a noisy violation would look smaller than it is."""


class LimitsState(NamedTuple):
    """The multipliers, and the measurements that they depend on."""

    prices: Tensor
    """μ of the next step, summed over the limits of a loss, 0 for a free one, (*B, m)."""
    among: Any
    """The state of the weighting of the free losses."""
    integral: Tensor
    """z, (*B, k)."""
    multipliers: Tensor
    """ν of the next step, (*B, k)."""
    total: Tensor
    """Σ (αv)², (*B, k)."""
    violation: Tensor
    """v when its loss was last present, (*B, k)."""
    reach: Tensor
    """max(1, |f|/s) when its loss was last present, (*B, k)."""
    mean: Tensor
    """The mean of the violation over the last eighth of the run, (*B, k)."""
    noise: Tensor
    """The mean square of the changes of v, (*B, k)."""
    scale: Tensor
    """s, the unit of each limit, (*B, k); 0: not known yet."""
    size: Tensor
    """S, the mean size of the free part over the run, (*B, 1)."""
    steps: Tensor
    """t, (*B, 1)."""


@dataclass(frozen=True)
class Limits(Weighting[LimitsState]):
    r"""min over θ of the free losses, subject to f_j ≤ ε_j, or a_j ≤ f_j ≤ b_j, for the others.

    With the relative violations v_j = (f_j − ε_j)/s_j, s_j = |ε_j|, and S the size of the free part F, the step is one
    on the Lagrangian

        α (F + Σ μ_j f_j),   μ_j = ν_j S/s_j,   α = 1/(1 + Σ ν_j r_j),

    with r_j = max(1, |f_j|/s_j) of the previous step, so that the step length does not grow with the multipliers. The
    multipliers follow the violations:

        z ← [z + η α v]₊,   ν = e([z + ρ v]₊),   η = pace/√(Σ α²v²),   ρ = min(gain, jitter/σ).

    The integral part z moves by mirror descent with an adaptive step. The proportional part ρv damps the rotation of
    the two players, as far as the noise σ of the violations allows. The link e(z) is z/10 up to z = 1 and exp(z − 1)/10
    beyond, so that large multipliers move in relative steps. No setting has the unit of a loss or of a limit.

    `among` combines several free losses into F, by default for the point where their weighted losses are equal. The
    preference of losses with a limit is ignored. A loss with two limits has two multipliers.

    Violation and suboptimality of the averaged answer are O(1/√T) for convex losses (docs/theory.md).

    Attributes:
        limits: For each objective its upper bound, a pair (least, most), or None if it is free.
        among: The weighting of the free losses, if there are several.
        pace: How fast the integral part moves.
        gain: ρ where there is no noise.
        jitter: How far the noise of one step may move z.
        most: The largest ν.
        size: S; by default the mean of |F| over the run. Give it if F gets close to 0 before the limits are met: the
            multipliers are proportional to S and would vanish with F.

    Examples:
        >>> limits = eq.Limits((None, 0.25))  # min x² subject to (x − 2)² ≤ 1/4: x = 3/2
        >>> x = torch.full((1,), 0.5, requires_grad=True)
        >>> w, state = torch.tensor([1.0, 0.0]), limits.init(torch.zeros(2))
        >>> for _ in range(400):
        ...     losses = torch.cat([x**2, (x - 2) ** 2])
        ...     c, state = limits.update(losses.detach(), state, w)
        ...     (gradient,) = torch.autograd.grad((c * losses).sum(), x)
        ...     x = (x - 0.1 * gradient).detach().requires_grad_()
        >>> round(x.item(), 2), round(limits.multipliers(state).item(), 1)  # 2x = μ·2(2 − x): μ = 3
        (1.5, 3.0)
    """

    revision: ClassVar[int] = 2

    limits: tuple[Limit, ...]
    among: Weighting[Any] = SelfTuned()  # noqa: RUF009
    pace: float = 0.3
    gain: float = 1.0
    jitter: float = 0.1
    most: float = 1e8
    size: float | None = None

    def __post_init__(self) -> None:
        given: Any = self.limits
        require(isinstance(given, Sequence) and not isinstance(given, str), "limits must be one entry each", given)
        object.__setattr__(self, "limits", tuple(_limit(one) for one in given))
        require(self.where != (), "limits must limit at least one loss", self.limits)
        require(self.free != (), "limits must leave at least one loss free: the one to make small", self.limits)
        require(not self.among.needs, "among must be a weighting by losses", self.among)
        for name in ("pace", "gain", "jitter", "most"):
            check_positive(name, getattr(self, name))
        if self.size is not None:
            check_positive("size", self.size)

    @cached_property
    def free(self) -> tuple[int, ...]:
        """The objectives without a limit."""
        return tuple(i for i, limit in enumerate(self.limits) if limit is None)

    @cached_property
    def _sides(self) -> tuple[tuple[int, float, float], ...]:
        """For every single bound: its objective, 1 for an upper and −1 for a lower bound, and the number."""
        both = [(i, *one) for i, one in enumerate(self.limits) if isinstance(one, tuple)]
        pairs = [(i, sign, at) for i, low, high in both for sign, at in ((-1.0, low), (1.0, high))]
        single = [(i, 1.0, one) for i, one in enumerate(self.limits) if isinstance(one, float)]
        return tuple(sorted([*pairs, *single]))

    @property
    def where(self) -> tuple[int, ...]:
        """The objective of every bound; one with two bounds appears twice."""
        return tuple(i for i, _, _ in self._sides)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The value of every bound, in the order of `where`."""
        return tuple(at for _, _, at in self._sides)

    @property
    def signs(self) -> tuple[float, ...]:
        """1 for an upper bound, −1 for a lower one."""
        return tuple(sign for _, sign, _ in self._sides)

    def init(self, losses: Tensor, **extra: Tensor) -> LimitsState:
        """No multipliers, nothing measured."""
        m = losses.shape[-1]
        require(len(self.limits) == m, f"limits must have {m} entries, one per objective", len(self.limits))
        price = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        zeros, one = price @ self._signed(price).mT, price[..., :1]
        return LimitsState(
            prices=price,
            among=Stateless() if len(self.free) == 1 else self.among.init(price @ self._unlimited(price).mT),
            integral=zeros,
            multipliers=zeros.clone(),
            total=zeros.clone(),
            violation=zeros.clone(),
            reach=zeros + 1.0,
            mean=zeros.clone(),
            noise=zeros.clone(),
            scale=zeros + constant(self._scales, zeros),
            size=one + (self.size or 0.0),
            steps=one.clone(),
        )

    def step(self, seen: Seen, state: LimitsState) -> tuple[Tensor, LimitsState]:
        """The coefficients α(c, μ), c for the free losses, and the state with the next multipliers."""
        to_limits, to_free, odds = self._signed(state.prices), self._unlimited(state.prices), seen.inclusion
        c, among = self._free_part(seen, state, to_free)
        alpha = _share(state)
        found = alpha * (c + (state.prices if odds is None else state.prices / odds))

        t = state.steps + 1
        now, tiny = t.reciprocal(), torch.finfo(t.dtype).tiny
        size = state.size
        if self.size is None:
            size = torch.lerp(size, (c * seen.losses).sum(-1, keepdim=True).abs(), now)
        f, scale = seen.losses @ to_limits.mT, state.scale
        if 0.0 in self._scales:  # a limit of 0 has no scale: use the first loss
            scale = torch.where(scale > 0, scale, torch.where(f != 0, f.abs(), 1.0))
        exact = (f - constant(self._signed_bounds, f)) / scale
        cap = (WIDE * state.noise.sqrt()).clamp(FAR, HUGE)
        v = torch.clamp(exact, -cap, cap)
        reach = (f / scale).abs().clamp(1.0, 1e9)
        push = alpha * v
        if seen.present is not None:
            there = seen.present.to(f) @ to_limits.abs().mT > 0
            v, scale = torch.where(there, v, state.violation), torch.where(there, scale, state.scale)
            reach, exact = torch.where(there, reach, state.reach), torch.where(there, exact, state.mean)
            push = torch.where(there, push if odds is None else push / (odds @ to_limits.abs().mT), 0.0)
            size = torch.where((seen.present.to(f) @ to_free.mT > 0).any(-1, keepdim=True), size, state.size)
        change = torch.where(t > 1, v - state.violation, 0.0)
        noise = torch.lerp(state.noise, change.square(), (4 * now).clamp_max(1.0))
        mean = torch.lerp(state.mean, exact.clamp(-1e9, 1e9), (8 * now).clamp_max(1.0))
        total, top = state.total + push.square(), 1 + math.log(max(10 * self.most, 1.0))
        z = state.integral
        if self.size is None:  # keep the multipliers μ unchanged when S moves
            z = _unlink(link(z) * (state.size.clamp_min(tiny) / size.clamp_min(tiny)))
        z = (z + push * (self.pace * total.clamp_min(tiny).rsqrt())).clamp(0.0, top)
        rho = (self.jitter * noise.clamp_min(tiny).rsqrt()).clamp_max(self.gain)
        nu = link((z + rho * v.clamp(-NEAR, NEAR)).clamp(0.0, top))
        new = LimitsState(
            prices=(nu * size / scale.clamp_min(tiny)) @ to_limits,
            among=among,
            integral=z,
            multipliers=nu,
            total=total,
            violation=v,
            reach=reach,
            mean=mean,
            noise=noise,
            scale=scale,
            size=size,
            steps=t,
        )
        return found, new if seen.present is None else keep(seen.present.any(-1, keepdim=True), new, state)

    def foreseen(self, state: LimitsState, preference: Tensor) -> Tensor | None:
        """α(c, μ), if the weighting of the free losses foresees c."""
        to_free = self._unlimited(state.prices)
        if len(self.free) == 1:
            return _share(state) * (to_free[0] + state.prices)
        w = self._share_of_free(preference, to_free).expand(*state.prices.shape[:-1], len(self.free))
        c = self.among.foreseen(state.among, w)
        return None if c is None else _share(state) * (c * self._factor @ to_free + state.prices)

    def exceeded(self, losses: Tensor, state: LimitsState) -> Tensor:
        """How far losses (*B, m) exceed each limit, in its scale, (*B, k); negative where the limit is met."""
        f = losses.to(state.prices)
        f = f @ self._signed(f).mT
        return (f - constant(self._signed_bounds, f)) / torch.where(state.scale > 0, state.scale, 1.0)

    def multipliers(self, state: LimitsState) -> Tensor:
        """μ, the price of each limit: how much the free part would fall per unit of relaxation, (*B, k)."""
        return state.multipliers * state.size / torch.where(state.scale > 0, state.scale, 1.0)

    @property
    def _factor(self) -> int:
        """The factor that makes uniform λ the weighted sum, as in a training loop."""
        return len(self.free) if len(self.free) > 1 and self.among.uses_duals else 1

    def _free_part(self, seen: Seen, state: LimitsState, to_free: Tensor) -> tuple[Tensor, Any]:
        """Coefficients of the free losses, 0 for the others, (*B, m), and the state of their weighting."""
        if len(self.free) == 1:
            return to_free[0] if seen.inclusion is None else to_free[0] / seen.inclusion, state.among
        odds = None if seen.inclusion is None else seen.inclusion @ to_free.mT
        w = self._share_of_free(seen.preference, to_free).expand(*seen.losses.shape[:-1], len(self.free))
        present = None if seen.present is None else seen.present.to(to_free) @ to_free.mT > 0
        c, among = self.among.update(seen.losses @ to_free.mT, state.among, w, mask=present, inclusion=odds)
        return c * self._factor @ to_free, among

    def _share_of_free(self, preference: Tensor, to_free: Tensor) -> Tensor:
        """The preference among the free losses, of sum 1; uniform if it is 0 for all of them."""
        w = preference.detach().to(to_free) @ to_free.mT
        total = w.sum(-1, keepdim=True)
        return torch.where(total > 0, w / total, 1 / len(self.free))

    @cached_property
    def _scales(self) -> tuple[float, ...]:
        sizes = {i: max(abs(at) for j, _, at in self._sides if j == i) for i in self.where}
        return tuple(sizes[i] for i in self.where)

    @cached_property
    def _signed_bounds(self) -> tuple[float, ...]:
        return tuple(sign * at for _, sign, at in self._sides)

    def _signed(self, like: Tensor) -> Tensor:
        """The matrix that maps losses to ± those with limits, (k, m)."""
        return constant(self._signed_rows, like).view(-1, len(self.limits))

    def _unlimited(self, like: Tensor) -> Tensor:
        """The matrix that maps losses to the free ones, (n, m)."""
        return constant(self._free_rows, like).view(-1, len(self.limits))

    @cached_property
    def _signed_rows(self) -> tuple[float, ...]:
        return tuple(sign * (i == j) for i, sign, _ in self._sides for j in range(len(self.limits)))

    @cached_property
    def _free_rows(self) -> tuple[float, ...]:
        return tuple(float(i == j) for i in self.free for j in range(len(self.limits)))


def proxy(loss: Tensor, value: Tensor | float) -> Tensor:
    """A loss with the value of one quantity and the gradient of another.

    For a rate without a useful gradient, such as an error rate: the limit and its multiplier see the rate, and the
    parameters follow the gradient of a smooth surrogate loss.

    Args:
        loss: The smooth loss, with its graph.
        value: The quantity itself, of the same shape; a float where the loss is one number.

    Examples:
        >>> score = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)  # of positive samples
        >>> missed = eq.proxy(torch.relu(1 - score).mean(), (score < 0).float().mean())
        >>> round(missed.item(), 3)
        0.333
        >>> missed.backward()
        >>> [round(g, 3) for g in score.grad.tolist()]
        [-0.333, -0.333, -0.333]
    """
    require(isinstance(loss, Tensor), "loss must be a tensor with its graph", lambda: f"a {type(loss).__name__}")
    value = torch.as_tensor(value)
    require(
        value.shape == loss.shape, f"value must have the shape of the loss, {tuple(loss.shape)}", tuple(value.shape)
    )
    return loss + (value.to(loss) - loss).detach()


def _limit(given: Any) -> Limit:  # noqa: ANN401
    """A limit as numbers, or a ValueError."""
    if given is None:
        return None
    pair = isinstance(given, Sequence) and not isinstance(given, str)
    numbers = [_plain(x) for x in (given if pair else [given])]
    rule = "a limit must be a finite number, a pair (least, most) with least < most, or None"
    sound = all(isinstance(x, float | int) and not isinstance(x, bool) and math.isfinite(x) for x in numbers)
    require(sound and len(numbers) == 1 + pair and not (pair and numbers[0] >= numbers[1]), rule, lambda: repr(given))
    return (float(numbers[0]), float(numbers[1])) if pair else float(numbers[0])


def _plain(x: Any) -> Any:  # noqa: ANN401
    """The number in a numpy scalar or a tensor without dimensions; anything else unchanged."""
    return x.item() if getattr(x, "ndim", None) == 0 else x


def _share(state: LimitsState) -> Tensor:
    """α, (*B, 1)."""
    return 1 / (1 + (state.multipliers * state.reach).sum(-1, keepdim=True))


def link(z: Tensor) -> Tensor:
    """z/10 up to 1, then exp(z − 1)/10."""
    return torch.where(z > 1, (z - 1).exp(), z) / 10


def _unlink(nu: Tensor) -> Tensor:
    """The inverse of the link."""
    tenth = 10 * nu
    return torch.where(tenth > 1, 1 + tenth.clamp_min(1.0).log(), tenth)
