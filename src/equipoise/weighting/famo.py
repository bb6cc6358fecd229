"""Fast adaptive multitask optimization: equal relative progress of all losses (FAMO)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, per_instance
from equipoise.weighting.protocol import Ideal, Seen, Weighting, keep, working_dtype

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
"""Adam's β₁, β₂ and ε."""
_FLOOR = 1e-8
"""The smallest loss whose logarithm is taken."""


class FAMOState(NamedTuple):
    """The logits, their Adam state, and the last losses."""

    logits: Tensor
    """ξ, (*B, m)."""
    mean: Tensor
    """The running mean of the gradient of ξ, (*B, m)."""
    square: Tensor
    """The running mean of its square, (*B, m)."""
    previous: Tensor
    """f − b when each objective was last observed, 0 before, (*B, m)."""
    step: Tensor
    """Steps of ξ, (*B, 1)."""


@dataclass(frozen=True)
class FAMO(Weighting[FAMOState]):
    r"""FAMO (Liu, Feng, Stone and Liu 2023): makes all losses fall by the same factor, from loss values alone.

    With b below all losses and z_i ∝ w_i exp(ξ_i), Σ z_i = 1, ξ = 0 at first,

        c_i = a z_i/(f_i − b_i),   a = 1/Σ z_j/(f_j − b_j),   so that Σ c_i = 1,

    a step along Σ z_i ∇log(f_i − b_i). Then ξ takes a step: with the progress p_i, by which the step lowered
    log(f_i − b_i),

        ξ ← Adam(ξ; z∘(p − Σ z_j p_j) + γ ξ),

    which takes weight from the losses that fell most; Adam is set as in the published code. For uniform w this is the
    published method, with one departure: the losses after a step are those of the next step, on its own batch. The
    publication evaluates the same batch again in a second forward pass. Here, with mini-batches, p has the noise of two
    batches.

    The method is invariant to the scale of a loss: w∘f gives the same as f. So w multiplies z instead: z starts at w
    and γ pulls it there, while feedback moves it to where all relative rates are equal, whatever w is. There is no
    target f ∝ 1/w. Because Σ c_i = 1, a loss in small units gets nearly all of c and the others move slowly: bring
    losses to similar units, with `units=` in a `MultiObjective`.

    Losses below b + 1e-8 are clamped to that. An absent objective has no p_i; its next one spans the steps in between.
    With inclusion probabilities π, w/π replaces w.

    Attributes:
        step_size: The rate of Adam, ≥ 0.
        decay: γ ≥ 0.
        ideal: b, a lower bound that the losses never reach.

    Examples:
        >>> w, weighting = torch.tensor([0.5, 0.5]), eq.FAMO(step_size=0.1)
        >>> c, state = weighting.update(torch.tensor([3.0, 1.0]), weighting.init(w), w)
        >>> c.tolist()  # in the ratio ⅓ : 1
        [0.25, 0.75]
        >>> c, state = weighting.update(torch.tensor([3.0, 0.5]), state, w)  # the second was halved
        >>> [round(value, 3) for value in torch.softmax(state.logits, -1).tolist()]
        [0.55, 0.45]
    """

    step_size: Number = 0.025
    decay: Number = 1e-3
    ideal: Ideal = 0.0

    def __post_init__(self) -> None:
        check_non_negative("step_size", self.step_size)
        check_non_negative("decay", self.decay)

    def init(self, losses: Tensor, **extra: Tensor) -> FAMOState:
        """All ξ = 0."""
        shape, dtype, device = losses.shape, working_dtype(losses), losses.device
        logits, mean, square, previous = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(4))
        return FAMOState(logits, mean, square, previous, torch.zeros_like(logits[..., :1]))

    def step(self, seen: Seen, state: FAMOState) -> tuple[Tensor, FAMOState]:
        """Coefficients that sum to 1, shape (*B, m), after updating ξ with the progress since the last step."""
        values = seen.losses.clamp_min(_FLOOR)
        part, log_weight = seen.weight > 0, seen.weight.log()
        known = part & (state.previous > 0)
        progress = torch.where(known, state.previous.log() - values.log(), 0.0)
        z = _softmax(state.logits + log_weight, known)
        slope = z * (progress - (z * progress).sum(-1, keepdim=True))
        slope = slope + per_instance("decay", self.decay, slope) * state.logits
        new = keep(known.any(-1, keepdim=True), self._adam(slope, state), state)
        previous = values if seen.present is None else torch.where(seen.present, values, state.previous)
        return _softmax(new.logits + log_weight - values.log(), part), new._replace(previous=previous)

    def _adam(self, slope: Tensor, state: FAMOState) -> FAMOState:
        """One step of ξ along its gradient (*B, m)."""
        t = state.step + 1.0
        mean = torch.lerp(slope, state.mean, _FIRST)
        square = torch.lerp(slope.square(), state.square, _SECOND)
        length = (square / (1.0 - _SECOND**t)).sqrt() + _EPSILON
        move = per_instance("step_size", self.step_size, slope) * mean / (1.0 - _FIRST**t) / length
        return FAMOState(state.logits - move, mean, square, state.previous, t)


def _softmax(logits: Tensor, part: Tensor) -> Tensor:
    """The softmax over the objectives in `part`, 0 for the others, (*B, m)."""
    return torch.where(part, torch.softmax(logits.masked_fill(~part, -torch.inf), -1), 0.0)
