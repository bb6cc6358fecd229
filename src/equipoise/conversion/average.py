"""The weighted average of all iterates."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, fit_mask
from equipoise.conversion.protocol import (
    Conversion,
    Params,
    batch_mask,
    check,
    check_record,
    mixed,
    recordable,
    snapshot,
)
from equipoise.errors import require


class AverageState(NamedTuple):
    """The running average."""

    params: dict[str, Tensor]
    weight: Tensor
    """Σ tᵖ, (*B,)."""
    recorded: Tensor
    """Iterates recorded, (*B,)."""


@dataclass(frozen=True)
class Average(Conversion[AverageState]):
    r"""Σ tᵖ θ⁽ᵗ⁾ / Σ tᵖ: the traditional conversion for p = 0, later iterates counting more for p > 0.

    Attributes:
        power: p ≥ 0. The rate stays O(1/√T); step sizes are to be tuned for (p + 1)·D (docs/theory.md).
    """

    power: Number = 0.0

    def __post_init__(self) -> None:
        power = torch.as_tensor(self.power)
        require(bool(((power >= 0) & torch.isfinite(power)).all()), "power must be non-negative and finite", self.power)

    def init(self, params: Params, losses: Tensor) -> AverageState:
        """An average of nothing, which is the parameters given."""
        check(params, losses)
        weight = torch.zeros(losses.shape[:-1], dtype=weight_dtype(losses), device=losses.device)
        return AverageState({name: snapshot(tensor) for name, tensor in params.items()}, weight, weight.clone())

    def update(
        self, params: Params, losses: Tensor, state: AverageState, *, mask: Tensor | None = None
    ) -> AverageState:
        """Add one iterate."""
        check(params, losses)
        check_record(params, state.params, losses.ndim - 1, slots=False)
        valid = recordable(losses, fit_mask(mask, losses))
        count = state.recorded + valid
        share = torch.where(valid, iterate_weight(count, self.power), torch.zeros_like(count))
        weight = state.weight + share
        mix = torch.where(valid, share / weight, share)
        for name, held in state.params.items():
            held.copy_(mixed(held, params[name].detach().to(held.dtype), batch_mask(mix, held)))
        return AverageState(state.params, weight, count)

    def output(self, state: AverageState) -> dict[str, Tensor]:
        """The average."""
        return {name: tensor.clone() for name, tensor in state.params.items()}


def weight_dtype(losses: Tensor) -> torch.dtype:
    """float64 where the device has it: Σ tᵖ grows beyond what float32 counts."""
    return torch.float32 if losses.device.type == "mps" else torch.float64


def iterate_weight(count: Tensor, power: Number) -> Tensor:
    """tᵖ for the t-th iterate, shape of `count` (*B,)."""
    if isinstance(power, Tensor):
        return count ** power.to(count)
    return torch.ones_like(count) if power == 0 else count**power
