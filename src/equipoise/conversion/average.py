"""The weighted average of all iterates (for power 0, the output of Algorithm 1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, fit_mask, wide_dtype
from equipoise.conversion import store
from equipoise.conversion.iterate_weight import weigh
from equipoise.conversion.plan import Plan, recordable
from equipoise.conversion.protocol import Conversion


class AverageState(NamedTuple):
    """The average in two parts: a long one, and the newest iterates.

    Examples:
        >>> conversion, params, losses = eq.Average(), {"x": torch.ones(1)}, torch.ones(2)
        >>> state = conversion.init(params, losses)
        >>> for _ in range(8):
        ...     state = conversion.update(params, losses, state)
        >>> state.weights.tolist(), state.recorded.item()  # six iterates in the long part, the newest two beside it
        ([5.0, 3.0], 8.0)
    """

    slots: dict[str, Tensor]
    """The two averages (*B, 2, ...) per name: of the long part, of the newest iterates."""
    weights: Tensor
    """Σ tᵖ of the two, in units of unitᵖ, (*B, 2)."""
    length: Tensor
    """Iterates in the newest part, (*B,)."""
    recorded: Tensor
    """Iterates recorded, (*B,)."""
    unit: Tensor
    """The step whose weight is the unit of the weights, (*B,)."""


@dataclass(frozen=True)
class Average(Conversion[AverageState]):
    r"""Σ tᵖ θ⁽ᵗ⁾ / Σ tᵖ: the uniform average for p = 0; later iterates count more for p > 0.

    The newest iterates, about √t of them, are averaged separately and then merged with the rest. Otherwise rounding
    would stop a float32 average after about 10⁵ steps. This costs two copies of the parameters.

    Attributes:
        power: p ≥ 0. The rate stays O(1/√T); tune step sizes for (p + 1)·D (docs/theory.md).

    Examples:
        >>> conversion, losses = eq.Average(power=1), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for value in (1.0, 2.0, 6.0):
        ...     state = conversion.update({"x": torch.tensor([value])}, losses, state)
        >>> round(conversion.output(state)["x"].item(), 3)  # (1·1 + 2·2 + 3·6)/6
        3.833
    """

    records: ClassVar[Literal["before", "after", "either"]] = "either"

    power: Number = 0.0

    def __post_init__(self) -> None:
        check_non_negative("power", self.power)

    @property
    def copies(self) -> int:
        """Two."""
        return 2

    def begin(self, losses: Tensor) -> AverageState:
        """The average of no iterates."""
        count = torch.zeros(losses.shape[:-1], dtype=wide_dtype(losses.device), device=losses.device)
        return AverageState({}, count.new_zeros((*count.shape, 2)), count, count.clone(), count + 1)

    def plan(self, losses: Tensor, state: AverageState, mask: Tensor | None = None) -> tuple[Plan, AverageState]:
        """Add the iterate to the newest part, after merging a part of √t iterates with the long one."""
        valid = recordable(losses, fit_mask(mask, losses))
        count = state.recorded + valid
        weight, fade, unit = weigh(count, state.unit, self.power)
        weights = state.weights if fade is None else state.weights * fade.unsqueeze(-1)
        long, newest = weights.unbind(-1)
        full = valid & (state.length.square() >= count)
        joined, weight = newest * full, weight * valid
        long, newest = long + joined, newest - joined + weight
        zero, slot = torch.zeros_like(count), torch.zeros_like(count, dtype=torch.int64)
        mix, gain = torch.where(full, joined / long, zero), torch.where(valid, weight / newest, zero)
        plan = Plan(into=slot, other=slot + 1, mix=mix, write=slot + 1, gain=gain)
        length = torch.where(full, zero, state.length) + valid
        return plan, AverageState(state.slots, torch.stack([long, newest], -1), length, count, unit)

    def shares(self, state: AverageState, preference: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The two weights divided by their sum."""
        return store.shares(state.weights)
