"""Uncertainty weighting: a learned variance for every loss (UW)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, per_instance
from equipoise.weighting.protocol import Seen, Weighting, working_dtype

_LONGEST = 1.0
"""The longest step of a log-variance."""
_LIMIT = 20.0
"""The largest |s|: coefficients stay between w·2e-9 and w·5e8."""


class UncertaintyState(NamedTuple):
    """The learned log-variances."""

    log_variances: Tensor
    """s, (*B, m)."""


@dataclass(frozen=True)
class Uncertainty(Weighting[UncertaintyState]):
    r"""Uncertainty weighting (Kendall, Gal and Cipolla 2018): each loss is divided by a learned variance.

    With s_i = log σ_i², 0 at first, θ and s minimise

        Σ w_i (exp(−s_i) f_i + s_i),   so that   c_i = w_i exp(−s_i),   s_i ← s_i − η (1 − exp(−s_i) f_i).

    The publication trains s with the optimizer of the model. A weighting has no optimizer, so s has its own gradient
    step with the rate η. The factor ½ of the publication is left out, so that the first step is the weighted sum,
    c = w: a rate of η here is 2η there.

    The preference weights the losses and does not enter s: w_i would only change the speed of s_i. For a loss that has
    stopped moving, s_i = log f_i, and c_i = w_i/f_i is the gradient of Σ w_i log f_i: it minimises a geometric mean,
    not the Tchebycheff value. There is no target f ∝ 1/w, and an objective that can reach 0 takes over.

    Losses must be non-negative. A step of s_i is at most 1, and |s_i| at most 20, so that a loss of 0 or an outlier
    gives finite coefficients. An absent objective keeps its s_i; steps are divided by inclusion probabilities.

    Attributes:
        step_size: η ≥ 0: s follows the losses in about 1/η steps.

    Examples:
        >>> losses, w = torch.tensor([3.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.Uncertainty(step_size=0.1)
        >>> c, state = weighting.update(losses, weighting.init(losses), w)
        >>> c.tolist()  # the weighted sum
        [0.5, 0.5]
        >>> c, state = weighting.update(losses, state, w)
        >>> [round(value, 3) for value in c.tolist()]  # s = (0.2, 0)
        [0.409, 0.5]
    """

    step_size: Number = 0.01

    def __post_init__(self) -> None:
        check_non_negative("step_size", self.step_size)

    def init(self, losses: Tensor, **extra: Tensor) -> UncertaintyState:
        """All variances 1."""
        return UncertaintyState(torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device))

    def step(self, seen: Seen, state: UncertaintyState) -> tuple[Tensor, UncertaintyState]:
        """Coefficients w∘exp(−s), shape (*B, m), and one step of s."""
        precision = torch.exp(-state.log_variances)
        slope = 1.0 - precision * seen.losses
        if seen.inclusion is not None:
            slope = slope / seen.inclusion
        if seen.present is not None:
            slope = slope.masked_fill(~seen.present, 0.0)
        move = per_instance("step_size", self.step_size, slope) * slope
        s = state.log_variances - move.clamp(-_LONGEST, _LONGEST)
        return seen.weight * precision, UncertaintyState(s.clamp(-_LIMIT, _LIMIT))

    def foreseen(self, state: UncertaintyState, preference: Tensor) -> Tensor | None:
        """The coefficients w∘exp(−s)."""
        return preference.to(state.log_variances) * torch.exp(-state.log_variances)
