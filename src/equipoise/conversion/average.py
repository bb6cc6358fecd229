"""The weighted average of all iterates (for power 0, the output of Algorithm 1)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, fit_mask, wide_dtype
from equipoise.conversion.protocol import (
    Conversion,
    Params,
    Plan,
    check,
    check_record,
    enter,
    entry,
    recordable,
    snapshot,
)


class AverageState(NamedTuple):
    """The running average.

    Examples:
        >>> conversion, params, losses = eq.Average(power=1), {"x": torch.ones(1)}, torch.ones(2)
        >>> state = conversion.update(params, losses, conversion.init(params, losses))
        >>> state = conversion.update(params, losses, state)
        >>> state.weight.item(), state.recorded.item()  # 1 + 2, of two iterates
        (3.0, 2.0)
    """

    params: dict[str, Tensor]
    """The average (*B, ...) per name."""
    weight: Tensor
    """Σ tᵖ, (*B,)."""
    recorded: Tensor
    """Iterates recorded, (*B,)."""


@dataclass(frozen=True)
class Average(Conversion[AverageState]):
    r"""Σ tᵖ θ⁽ᵗ⁾ / Σ tᵖ: the traditional conversion for p = 0, later iterates counting more for p > 0.

    Attributes:
        power: p ≥ 0. The rate stays O(1/√T); step sizes are to be tuned for (p + 1)·D (docs/theory.md).

    Examples:
        >>> conversion, losses = eq.Average(power=1), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for value in (1.0, 2.0, 6.0):
        ...     state = conversion.update({"x": torch.tensor([value])}, losses, state)
        >>> round(conversion.output(state)["x"].item(), 3)  # (1·1 + 2·2 + 3·6)/6
        3.833
    """

    power: Number = 0.0

    def __post_init__(self) -> None:
        check_non_negative("power", self.power)

    def init(self, params: Params, losses: Tensor) -> AverageState:
        """An average of nothing, which is the parameters given."""
        check(params, losses)
        # Σ tᵖ grows beyond what float32 counts.
        weight = torch.zeros(losses.shape[:-1], dtype=wide_dtype(losses.device), device=losses.device)
        return AverageState({name: snapshot(tensor) for name, tensor in params.items()}, weight, weight.clone())

    def update(
        self, params: Params, losses: Tensor, state: AverageState, *, mask: Tensor | None = None
    ) -> AverageState:
        """Add one iterate."""
        check(params, losses)
        check_record(params, state.params, losses.ndim - 1, slots=False)
        plan, after = self.plan(losses, state, mask)
        enter(plan, params, state.params)
        return after

    def plan(self, losses: Tensor, state: AverageState, mask: Tensor | None = None) -> tuple[Plan, AverageState]:
        """What an iterate with these losses (*B, m) does to the average, which is left as it is, and the new state."""
        valid = recordable(losses, fit_mask(mask, losses))
        count = state.recorded + valid
        share = torch.where(valid, iterate_weight(count, self.power), torch.zeros_like(count))
        weight = state.weight + share
        return entry(torch.where(valid, share / weight, share)), AverageState(state.params, weight, count)

    def output(self, state: AverageState) -> dict[str, Tensor]:
        """The average."""
        return {name: tensor.clone() for name, tensor in state.params.items()}


def iterate_weight(count: Tensor, power: Number) -> Tensor:
    """tᵖ for the t-th iterate, shape of `count` (*B,)."""
    if isinstance(power, Tensor):
        return count ** power.to(count)
    return torch.ones_like(count) if power == 0 else count**power
