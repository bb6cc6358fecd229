"""Gradient normalization: gradients of equal length, longer ones for losses that lag behind (GradNorm)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, per_instance
from equipoise.simplex import Entropic
from equipoise.weighting.protocol import Seen, Weighting, keep, working_dtype
from equipoise.weighting.reweighted import weigh_gramian

_HUGE = 1e30
"""The largest f/f⁽⁰⁾."""


class GradNormState(NamedTuple):
    """The weights, and the losses that progress is measured against."""

    log_weights: Tensor
    """log v/m, (*B, m)."""
    baseline: Tensor
    """f⁽⁰⁾, the first positive loss of each objective, 0 before it, (*B, m)."""


@dataclass(frozen=True)
class GradNorm(Weighting[GradNormState]):
    r"""GradNorm (Chen et al. 2018): weighted gradients get equal lengths, longer ones for losses that lag behind.

    With v = (1, …, 1) at first, G_i = v_i ‖∇f_i‖ and the progress r_i = (f_i/f_i⁽⁰⁾)/mean_j (f_j/f_j⁽⁰⁾), v descends
    Σ |G_i − mean(G) r_i^α| in which mean(G) r^α is held fixed:

        c = v∘w,   v_i ← v_i exp(−η sign(G_i − mean(G) r_i^α) ‖∇f_i‖/mean_j ‖∇f_j‖),   renormalised to Σ v_i = m.

    Two departures from the publication: the step is relative to the mean length, so that η has no unit, and it is taken
    on log v, so that no weight becomes negative. At v = 1 both agree to first order in η. As in the publication, the
    weight of a short gradient moves slowly.

    Lengths come from the diagonal of the Gramian. The publication measures them at the last shared layer;
    `MultiObjective` measures them over all trained parameters, heads included. If you call `update` yourself, you
    choose the rows, for example those of one layer.

    The preference weights the losses after lengths are balanced: where r = 1, the summands have lengths
    c_i ‖∇f_i‖ ∝ w_i. Applied to w∘f, the method would cancel w. Equal lengths are not a trade-off: there is no target
    f ∝ 1/w.

    For uniform w, c sums to 1. Losses must be positive. Objectives that are absent or have w_i = 0 are left out of the
    means and keep v_i up to the renormalisation. Inclusion probabilities divide only the coefficients.

    Attributes:
        alpha: α ≥ 0, how much longer the gradients of lagging losses become; 0: equal lengths.
        step_size: η ≥ 0.

    Examples:
        >>> J, w = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.GradNorm(step_size=0.01)
        >>> state = weighting.init(losses)
        >>> for _ in range(200):
        ...     c, state = weighting.update(losses, state, w, gramian=J @ J.mT)
        >>> [round(value, 2) for value in (c @ J).tolist()]  # in the ratio 1 : 1
        [0.75, 0.75]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    alpha: Number = 1.5
    step_size: Number = 0.025

    def __post_init__(self) -> None:
        check_non_negative("alpha", self.alpha)
        check_non_negative("step_size", self.step_size)

    def init(self, losses: Tensor, **extra: Tensor) -> GradNormState:
        """All v_i = 1."""
        zeros = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        return GradNormState(Entropic().start(zeros), zeros)

    def step(self, seen: Seen, state: GradNormState) -> tuple[Tensor, GradNormState]:
        """Coefficients v∘w, shape (*B, m), and one step of v."""
        v, part = state.log_weights.exp() * seen.weight.shape[-1], seen.weight > 0
        square = weigh_gramian(seen.gramian, part.to(seen.weight)).diagonal(dim1=-2, dim2=-1)
        length = square.clamp_min(0.0).sqrt()
        valid = seen.valid & torch.isfinite(length.sum(-1, keepdim=True))

        started = (state.baseline <= 0) & part & (seen.losses > 0)
        baseline = torch.where(started, seen.losses, state.baseline)
        left = torch.where(baseline > 0, seen.losses / torch.where(baseline > 0, baseline, 1.0), 1.0)
        r = _over_mean(left.clamp(0.0, _HUGE), part)
        target = _mean(v * length, part) * r ** per_instance("alpha", self.alpha, r)
        slope = torch.where(part, (v * length - target).sign(), 0.0) * _over_mean(length, part)
        log_weights = Entropic().step(state.log_weights, -slope, per_instance("step_size", self.step_size, slope))
        return v * seen.weight, keep(valid, GradNormState(log_weights, baseline), state)


def _mean(x: Tensor, part: Tensor) -> Tensor:
    """The mean over the objectives in `part`, 0 if there are none, (*B, 1)."""
    return torch.where(part, x, 0.0).sum(-1, keepdim=True) / part.sum(-1, keepdim=True).clamp_min(1)


def _over_mean(x: Tensor, part: Tensor) -> Tensor:
    """Divide x by its mean over the objectives in `part`; 1 where that mean is 0, (*B, m)."""
    mean = _mean(x, part)
    return torch.where(mean > 0, x / torch.where(mean > 0, mean, 1.0), 1.0)
