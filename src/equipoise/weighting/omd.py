"""Online mirror descent for Tchebycheff scalarization (OMD-TCH, Algorithm 1)."""

import math
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, per_instance
from equipoise.errors import require
from equipoise.simplex import Box, Euclidean, Mirror
from equipoise.weighting.protocol import Ideal, Seen, Weighting, working_dtype


class OMDState(NamedTuple):
    """The state of the dual player."""

    dual: Tensor
    """λ in the coordinates of the mirror map, (*B, m)."""
    total: Tensor
    """The sum of all gains, for dual averaging; else 0, (*B, m)."""
    norm: Tensor
    """√Σ‖w∘f⁽ˢ⁾‖²_*, for the adaptive step; else 0, (*B, 1)."""
    previous: Tensor
    """w∘f when each objective was last observed, or its running mean, for optimism; else 0, (*B, m)."""
    steps: Tensor
    """Steps, for an adaptive step with a horizon; else 0, (*B, 1)."""


@dataclass(frozen=True)
class OMD(Weighting[OMDState]):
    r"""OMD-TCH: min_θ max_{λ in the simplex} Σ λ_i w_i (f_i(θ) − z_i), both players by mirror descent.

    With the gain g⁽ᵗ⁾ = w ∘ (f(θ⁽ᵗ⁾) − z) the dual player moves by (eq:9, eq:10 of the paper)

        λ⁽ᵗ⁺¹⁾ = argmax_λ η ⟨g⁽ᵗ⁾ + c (ḡ⁽ᵗ⁾ − ḡ⁽ᵗ⁻¹⁾), λ⟩ − B(λ; λ⁽ᵗ⁾),   λ⁽¹⁾ uniform, ḡ⁽⁰⁾ = 0,

    and the coefficients of the θ-step are λ⁽ᵗ⁾ ∘ w (eq:8). The paper's method has c = 0. For τ = 1 the mean
    ḡ⁽ᵗ⁾ = ḡ⁽ᵗ⁻¹⁾ + (g⁽ᵗ⁾ − ḡ⁽ᵗ⁻¹⁾)/τ is the gain itself.

    Algorithm 1 of the paper, by its lines, is `OMD(step_size=η)` in a loop such as that of `solve_many`:

        1   λ⁽¹⁾ = (1/m, …, 1/m)        `init`
        3   f(θ⁽ᵗ⁾) and its gradients   what the loop measures
        4   λ⁽ᵗ⁺¹⁾ by PGD or EG         `mirror.step` from λ⁽ᵗ⁾, in the state that `update` returns
        5   θ⁽ᵗ⁺¹⁾ by PGD               the loop's step along Σ c_i ∇f_i, with the c = λ⁽ᵗ⁾ ∘ w that `update` returns
        7   the mean of all θ⁽ᵗ⁾        the conversion `Average()`

    Attributes:
        step_size: η. "adaptive" takes η_t = √(μD / Σ_{s≤t} ‖g⁽ˢ⁾‖²_*), which needs no tuning: as
            mirror descent for Euclidean and PNorm, as dual averaging for Entropic, the forms for which
            the O(√T) regret bound holds (docs/theory.md).
        mirror: `Euclidean()` (PGD), `Entropic()` (EG) or `PNorm()`.
        optimism: c ≥ 0. 0 is the paper's method, 1 optimistic mirror descent; with Entropic, η → 0
            at ηc = 1/μ is STCH.
        smoothing: τ ≥ 1: optimism follows the running mean ḡ of the gains over about τ steps. Noise of the losses
            enters with the factor c/τ instead of c; a trend of the gains enters in full.
        horizon: H ≥ 1: the memory of the adaptive step. After H steps the sum of ‖g⁽ˢ⁾‖² decays by 1/H before every new
            term, so it covers about H steps: η_t no longer falls with t, and adapts when gains become smaller. The
            regret bound is for H = ∞. Optimism then fades with η_t, and in long runs on non-convex objectives the
            players begin to rotate (docs/notes/former-default.md).
        order: "simultaneous": the θ-step uses λ⁽ᵗ⁾, as in the paper; "alternating": it uses λ⁽ᵗ⁺¹⁾,
            as in GroupDRO.
        dual_set: The part of the simplex λ is confined to (ALMO, CVaR); None is all of it.
        ideal: The ideal point z. Minus C/√n_g is the generalisation adjustment of GroupDRO.

    Examples:
        >>> losses, w = torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.OMD(step_size=1.0)
        >>> c, state = weighting.update(losses, weighting.init(losses), w)
        >>> c.tolist()  # λ = (½, ½)
        [0.25, 0.25]
        >>> c, state = weighting.update(losses, state, w)
        >>> c.tolist()  # λ = Π((½, ½) + w∘f) = (¾, ¼)
        [0.375, 0.125]
    """

    step_size: Number | Literal["adaptive"] = "adaptive"
    mirror: Mirror = field(default_factory=Euclidean)
    optimism: Number = 0.0
    smoothing: Number = field(default=1.0, kw_only=True)
    horizon: Number = field(default=math.inf, kw_only=True)
    order: Literal["simultaneous", "alternating"] = "simultaneous"
    dual_set: Box | None = None
    ideal: Ideal = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.step_size, str):
            require(
                self.step_size == "adaptive",
                'step_size must be a number or "adaptive"',
                self.step_size,
            )
        else:
            check_non_negative("step_size", self.step_size)
        mirror: object = self.mirror
        sound = isinstance(mirror, Mirror) and not isinstance(mirror, type)
        require(sound, "mirror must be Euclidean(), Entropic() or PNorm()", mirror)
        check_non_negative("optimism", self.optimism)
        tau = torch.as_tensor(self.smoothing)
        sound = bool(((tau >= 1) & torch.isfinite(tau)).all())
        require(sound, "smoothing must be at least 1 and finite", self.smoothing)
        require(bool((torch.as_tensor(self.horizon) >= 1).all()), "horizon must be at least 1", self.horizon)
        adaptive = isinstance(self.step_size, str)
        require(adaptive or _is(math.inf, self.horizon), "horizon is for the adaptive step alone", self.horizon)
        orders = {"simultaneous", "alternating"}
        require(self.order in orders, 'order must be "simultaneous" or "alternating"', self.order)

    def __repr__(self) -> str:
        """The dataclass repr without `smoothing` and `horizon` where they have no effect: results are named by it."""
        idle = {name for name, value in (("smoothing", 1), ("horizon", math.inf)) if _is(value, getattr(self, name))}
        shown = [f.name for f in fields(self) if f.name not in idle]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def init(self, losses: Tensor, **extra: Tensor) -> OMDState:
        """λ⁽¹⁾ uniform, or the point of `dual_set` nearest to it."""
        zeros = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        if isinstance(self.step_size, str):
            scale = torch.as_tensor(self.mirror.step_scale(losses.shape[-1]))
            require(
                bool(torch.isfinite(scale).all()),
                "mirror must have a bounded diameter for an adaptive step: give step_size a number, or let the mirror "
                "average duals (lazy), which needs only the distance from the start",
                self.mirror,
            )
        if self.dual_set is not None:
            self.dual_set.check(losses.shape[-1], getattr(self.mirror, "floor", 0.0))
        return OMDState(
            self._move(self.mirror.start(zeros), zeros),
            zeros,
            zeros[..., :1].clone(),
            zeros.clone(),
            zeros[..., :1].clone(),
        )

    def step(self, seen: Seen, state: OMDState) -> tuple[Tensor, OMDState]:
        """Coefficients λ⁽ᵗ⁾ ∘ w (λ⁽ᵗ⁺¹⁾ ∘ w if alternating), shape (*B, m), and the state with λ⁽ᵗ⁺¹⁾."""
        new = self._ascend(state, seen.gain, seen.present)
        dual = torch.where(seen.valid, new.dual, state.dual) if self.order == "alternating" else state.dual
        return self.mirror.weights(dual) * seen.weight, new

    def foreseen(self, state: OMDState, preference: Tensor) -> Tensor | None:
        """λ⁽ᵗ⁾ ∘ w; None if alternating."""
        if self.order == "alternating":
            return None
        weights = self.mirror.weights(state.dual)
        return weights * preference.to(weights)

    @property
    def uses_duals(self) -> bool:
        """True: the coefficients are λ∘w."""
        return True

    @property
    def origin(self) -> Ideal:
        """The ideal point."""
        return self.ideal

    def weights(self, state: OMDState) -> Tensor:
        """λ, shape (*B, m)."""
        return self.mirror.weights(state.dual)

    def _ascend(self, state: OMDState, gain: Tensor, present: Tensor | None) -> OMDState:
        """The step of the dual player."""
        push, new = gain, state
        if not _is(0, self.optimism):
            push, mean = self._foresee(state, gain, present)
            new = new._replace(previous=mean)
        if not isinstance(self.step_size, str):  # line 4 of Algorithm 1
            return new._replace(dual=self._move(state.dual, push, per_instance("step_size", self.step_size, gain)))
        before, length = state.norm, self.mirror.dual_norm(gain)
        if not _is(math.inf, self.horizon):
            horizon, felt = per_instance("horizon", self.horizon, gain), length > 0
            steps = state.steps + felt
            before = torch.where(felt & (steps > horizon), before * (1 - 1 / horizon) ** 0.5, before)
            new = new._replace(steps=steps)
        norm = torch.hypot(before, length)
        scale = per_instance("p", self.mirror.step_scale(gain.shape[-1]), gain)
        eta = torch.where(norm > 0, scale / norm, torch.zeros_like(norm))
        if self.mirror.lazy:
            total = state.total + push
            dual = self._move(self.mirror.start(gain), total, eta)
            new = new._replace(total=total)
        else:
            dual = self._move(state.dual, push, eta)
        return new._replace(dual=dual, norm=norm)

    def _foresee(self, state: OMDState, gain: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
        """g⁽ᵗ⁾ + c (ḡ⁽ᵗ⁾ − ḡ⁽ᵗ⁻¹⁾), and ḡ⁽ᵗ⁾; an absent objective keeps its ḡ."""
        mean = gain if present is None else torch.where(present, gain, state.previous)
        trend = mean - state.previous
        if not _is(1, self.smoothing):
            trend = trend / per_instance("smoothing", self.smoothing, gain)
            mean = state.previous + trend
        return gain + per_instance("optimism", self.optimism, gain) * trend, mean

    def _move(self, dual: Tensor, gain: Tensor, size: Number = 1.0) -> Tensor:
        return self.mirror.step(dual, gain, size, self.dual_set)


def _is(number: float, value: Number) -> bool:
    return not isinstance(value, Tensor) and value == number
