"""Weights from estimated excess risks (ExcessMTL)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, per_instance
from equipoise.errors import require
from equipoise.simplex import Entropic
from equipoise.weighting.protocol import Seen, Weighting, keep, working_dtype
from equipoise.weighting.reweighted import row_dtype, weigh_jacobian
from equipoise.weighting.seen import check_jacobian

_DAMPING = 1e-7
_BASELINE_FLOOR = 1e-12


class ExcessRiskState(NamedTuple):
    """The weights, and what the excess risks are estimated from."""

    log_weights: Tensor
    """log λ, (*B, m)."""
    squares: Tensor
    """S, the sum of squared gradients, (*B, m, d)."""
    baseline: Tensor
    """e⁽⁰⁾, the first positive estimate of each objective, 0 before it, (*B, m)."""


@dataclass(frozen=True)
class ExcessRisk(Weighting[ExcessRiskState]):
    r"""ExcessMTL (He et al. 2024): exponentiated gradient on estimated excess risks f_i − min f_i.

    The estimate is a Taylor expansion with the AdaGrad diagonal as curvature: with g_i = ∇f_i,

        S_i ← S_i + g_i²,   e_i = Σ_k g_ik²/√(S_ik + 10⁻⁷),   λ_i ∝ λ_i exp(η w_i e_i/e_i⁽⁰⁾),   c = λ∘w,

    λ uniform at first. The first step sets e⁽⁰⁾ and leaves λ unchanged; an objective with zero gradient sets its
    e_i⁽⁰⁾ at its first nonzero one.

    e is a first-order quantity. For a constant gradient it falls as 1/√t although nothing is learned, and it vanishes
    where a non-convex objective is flat. So the method need not find the Tchebycheff point.

    Attributes:
        step_size: η ≥ 0.
        order: "alternating": the θ-step uses the new λ, as in the publication; "simultaneous": the old one.
        weigh: Where w enters λ. "excess" as above; "gradients": g_i = w_i ∇f_i with the exponent η e_i/e_i⁽⁰⁾, in which
            w nearly cancels; the paper's synthetic table uses that.

    Examples:
        >>> w, losses, weighting = torch.tensor([0.5, 0.5]), torch.ones(2), eq.ExcessRisk(step_size=10.0)
        >>> state = weighting.init(losses, jacobian=torch.eye(2))
        >>> c, state = weighting.update(losses, state, w, jacobian=torch.eye(2))
        >>> c.tolist()  # λ = (½, ½)
        [0.25, 0.25]
        >>> c, state = weighting.update(losses, state, w, jacobian=torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        >>> [round(value, 3) for value in c.tolist()]  # only the second is still being learned
        [0.014, 0.486]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"jacobian"})

    step_size: Number = 1.0
    order: Literal["alternating", "simultaneous"] = "alternating"
    weigh: Literal["excess", "gradients"] = "excess"

    def __post_init__(self) -> None:
        check_non_negative("step_size", self.step_size)
        orders = {"simultaneous", "alternating"}
        require(self.order in orders, 'order must be "simultaneous" or "alternating"', self.order)
        require(self.weigh in {"excess", "gradients"}, 'weigh must be "excess" or "gradients"', self.weigh)

    def init(self, losses: Tensor, *, jacobian: Tensor, **extra: Tensor) -> ExcessRiskState:  # type: ignore[override]
        """λ uniform, S = 0."""
        check_jacobian(jacobian, losses)
        zeros = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        squares = torch.zeros(jacobian.shape, dtype=row_dtype(jacobian), device=losses.device)
        return ExcessRiskState(Entropic().start(zeros), squares, zeros)

    def step(self, seen: Seen, state: ExcessRiskState) -> tuple[Tensor, ExcessRiskState]:
        """Coefficients λ∘w, shape (*B, m)."""
        shapes = tuple(seen.losses.shape), tuple(seen.jacobian.shape)
        rule = "state must be of losses of shape {} and a jacobian of {}".format(*shapes)
        require(state.squares.shape == shapes[1], rule, tuple(state.squares.shape))
        w, by_excess = seen.w, self.weigh == "excess"
        power = weigh_jacobian(seen.jacobian, (w > 0) if by_excess else w).square()
        squares = state.squares + power
        excess = (power / (squares + _DAMPING).sqrt()).sum(-1, dtype=state.baseline.dtype)
        valid = seen.valid & torch.isfinite(excess.sum(-1, keepdim=True))

        baseline = torch.where(state.baseline > 0, state.baseline, excess)
        floor = (_BASELINE_FLOOR * baseline.amax(-1, keepdim=True)).clamp_min(torch.finfo(baseline.dtype).tiny)
        relative = excess / torch.maximum(baseline, floor)
        gain = relative * (seen.weight if by_excess else torch.where(w > 0, seen.weight / w, 0.0))
        started = (state.baseline > 0).any(-1, keepdim=True)
        gain = torch.where(valid & started, gain, 0.0)
        log_weights = Entropic().step(state.log_weights, gain, per_instance("step_size", self.step_size, gain))

        new = keep(valid, ExcessRiskState(log_weights, squares, baseline), state)
        used = new if self.order == "alternating" else state
        return used.log_weights.exp() * seen.weight, new

    @property
    def uses_duals(self) -> bool:
        """True: the coefficients are λ∘w."""
        return True

    def weights(self, state: ExcessRiskState) -> Tensor:
        """λ, shape (*B, m)."""
        return state.log_weights.exp()
