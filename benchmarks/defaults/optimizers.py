"""SGD, momentum and Adam for a whole batch of runs at once, each with its own rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

_SECOND, _EPSILON = 0.999, 1e-8


class Setting(NamedTuple):
    """One optimizer: its rate, its momentum (β₁ of Adam), and whether it is Adam."""

    rate: float
    momentum: float = 0.0
    adam: bool = False


class OptimizerState(NamedTuple):
    """Steps made, and the running first and second moments of the gradient, in the shape of θ."""

    steps: int
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Optimizer:
    """The rules of `torch.optim.SGD` and `torch.optim.Adam`, chosen for every run of a batch.

    Attributes:
        rate: Learning rates, broadcastable to θ (*B, d).
        momentum: β, or β₁ of Adam, likewise.
        adam: Which runs use Adam, likewise.
        decay: ℓ₂ regularisation, for all.
        horizon: Steps after which a cosine schedule has taken the rate to 0; None: a constant rate.
    """

    rate: Tensor = field(default_factory=lambda: torch.tensor(0.02))
    momentum: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    adam: Tensor = field(default_factory=lambda: torch.tensor(False))  # noqa: FBT003
    decay: float = 0.0
    horizon: int | None = None

    @classmethod
    def of(
        cls,
        settings: Sequence[Setting],
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: str = "cpu",
        decay: float = 0.0,
        horizon: int | None = None,
    ) -> "Optimizer":
        """The optimizer whose settings lie along one dimension of the batch: `shape` such as (1, 5, 1, 1)."""
        rate, momentum, adam = (torch.tensor(column).reshape(*shape, 1) for column in zip(*settings, strict=True))
        return cls(rate.to(device, dtype), momentum.to(device, dtype), adam.to(device), decay, horizon)

    def init(self, theta: Tensor) -> OptimizerState:
        """Nothing done yet."""
        return OptimizerState(0, torch.zeros_like(theta), torch.zeros_like(theta))

    def step(self, theta: Tensor, gradient: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        """θ after one step, and the new state."""
        t = state.steps + 1
        rate = self.rate
        if self.horizon is not None:
            rate = rate * (0.5 * (1 + math.cos(math.pi * (t - 1) / self.horizon)))
        if self.decay:
            gradient = gradient + self.decay * theta
        weight = torch.where(self.adam, 1 - self.momentum, 1.0)
        first = self.momentum * state.first + weight * gradient
        second = torch.lerp(state.second, gradient.square(), 1 - _SECOND)
        # Only Adam's first moment is corrected for its start at 0.
        mean = first / torch.where(self.adam, 1 - self.momentum**t, 1.0)
        length = (second / (1 - _SECOND**t)).sqrt() + _EPSILON
        move = torch.where(self.adam, mean / length, mean)
        return theta - rate * move, OptimizerState(t, first, second)
