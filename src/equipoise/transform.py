"""Transforms that a client applies to its loss before differentiating it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["PropFair"]


@dataclass(frozen=True)
class PropFair:
    r"""The loss of PropFair (Zhang et al. 2022): proportional fairness of the utilities M − l.

        l ↦ −log(1 − l/M),   with slope 1/(M − l),

    as long as M − l ≥ ε; a larger loss takes another branch. M must exceed most losses for the
    logarithm to apply: an untrained classifier of ten classes has a loss of 2.3.

    Attributes:
        M: The baseline M > 0 that the losses are to stay below.
        epsilon: ε in (0, M].
        mode: The branch where M − l < ε. "huber": −log(ε/M) + (l − M + ε)/ε, the tangent;
            "linear": l/M, which drops in value and in slope, as the authors' code has it.

    Examples:
        >>> loss = eq.PropFair(M=2.0)(torch.tensor([0.0, 1.0]))
        >>> [round(value, 3) for value in loss.tolist()]  # 0 and log 2
        [0.0, 0.693]
    """

    M: float = 2.0
    epsilon: float = 0.2
    mode: Literal["huber", "linear"] = "huber"

    def __post_init__(self) -> None:
        require(0 < self.M < float("inf"), "M must be positive and finite", self.M)
        require(0 < self.epsilon <= self.M, f"epsilon must lie in (0, M] = (0, {self.M}]", self.epsilon)
        require(self.mode in {"huber", "linear"}, 'mode must be "huber" or "linear"', self.mode)

    def __call__(self, loss: Tensor) -> Tensor:
        """The transformed losses, one entry per mini-batch: any shape, differentiable."""
        require(loss.is_floating_point(), "loss must be floating-point numbers", loss.dtype)
        within = loss.clamp_max(self.M - self.epsilon)
        logarithm = -torch.log1p(-within / self.M)
        if self.mode == "huber":
            return logarithm + (loss - within) / self.epsilon
        return torch.where(self.M - loss >= self.epsilon, logarithm, loss / self.M)
