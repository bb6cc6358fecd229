"""Smooth Tchebycheff scalarization (STCH), and TERM, which is the same thing scaled."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.batch import Number, per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Ideal, Seen, Stateless, Weighting, see


@dataclass(frozen=True)
class SmoothTchebycheff(Weighting[Stateless]):
    r"""Smooth Tchebycheff scalarization (Lin et al. 2024): min μ log Σ exp(w_i (f_i − z_i)/μ).

    c_i = w_i softmax(w ∘ (f − z)/μ)_i. The value lies between TCH and TCH + μ log m.

    Attributes:
        mu: The smoothing μ > 0.
        normalize: "sum" takes w as it is; "mean" scales it to mean one, m·w, so that with uniform w
            c = softmax(f/μ): TERM with tilt t = 1/μ.
        ideal: The ideal point z.

    Examples:
        >>> losses, w = torch.tensor([4.0, 2.0]), torch.tensor([0.25, 0.75])
        >>> weighting = eq.SmoothTchebycheff(mu=0.5)
        >>> c, _ = weighting.update(losses, weighting.init(losses), w)  # w ∘ softmax(2, 3)
        >>> [round(value, 3) for value in c.tolist()]
        [0.067, 0.548]
        >>> round(weighting.value(losses, w).item(), 3)  # between 1.5 and 1.5 + 0.5 log 2
        1.657
    """

    mu: Number = 0.01
    normalize: Literal["sum", "mean"] = "sum"
    ideal: Ideal = 0.0

    def __post_init__(self) -> None:
        require(bool((torch.as_tensor(self.mu) > 0).all()), "mu must be positive", self.mu)
        require(self.normalize in {"sum", "mean"}, 'normalize must be "sum" or "mean"', self.normalize)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients w ∘ softmax(w ∘ (f − z)/μ), shape (*B, m)."""
        most = torch.finfo(seen.gain.dtype).max
        gain = seen.gain.clamp(-most, most)  # a loss divided by a small π may overflow
        scale = self._scale(gain)
        # Subtract the largest first: then dividing by μ can only overflow to −∞, whose exponential is 0.
        alpha = torch.softmax(scale * (gain - gain.amax(-1, keepdim=True)) / per_instance("mu", self.mu, gain), -1)
        return scale * seen.weight * alpha, state

    @property
    def uses_duals(self) -> bool:
        """Whether the coefficients are λ∘w: unless w is scaled to mean one."""
        return self.normalize == "sum"

    @property
    def origin(self) -> Ideal:
        """The ideal point."""
        return self.ideal

    def value(self, losses: Tensor, preference: Tensor) -> Tensor:
        """μ log Σ exp(w_i (f_i − z_i)/μ), for "mean" minus μ log m (TERM), shape (*B,)."""
        gain = see(losses, preference, self.ideal).gain
        mu = per_instance("mu", self.mu, gain)
        shift = 0.0 if self.normalize == "sum" else math.log(losses.shape[-1])
        return (mu * (torch.logsumexp(self._scale(losses) * gain / mu, -1, keepdim=True) - shift)).squeeze(-1)

    def _scale(self, losses: Tensor) -> float:
        return 1.0 if self.normalize == "sum" else float(losses.shape[-1])
