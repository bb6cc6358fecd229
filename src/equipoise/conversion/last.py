"""The last iterate."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import fit_mask, wide_dtype
from equipoise.conversion.plan import Plan, recordable
from equipoise.conversion.protocol import Conversion


class LastState(NamedTuple):
    """The newest iterate.

    Examples:
        >>> state = eq.Last().init({"x": torch.zeros(3)}, torch.ones(2))
        >>> state.slots["x"].tolist()  # (*B, slots, ...), with one slot
        [[0.0, 0.0, 0.0]]
    """

    slots: dict[str, Tensor]
    """A copy (*B, 1, ...) per name."""
    recorded: Tensor
    """Iterates recorded, (*B,)."""


@dataclass(frozen=True)
class Last(Conversion[LastState]):
    """The last recorded iterate; before the first, the parameters given to `init`.

    Examples:
        >>> conversion, losses = eq.Last(), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for value in (1.0, 2.0, 6.0):
        ...     state = conversion.update({"x": torch.tensor([value])}, losses, state)
        >>> conversion.output(state)["x"].item()
        6.0
    """

    @property
    def copies(self) -> int:
        """One."""
        return 1

    def begin(self, losses: Tensor) -> LastState:
        """Nothing recorded."""
        return LastState({}, torch.zeros(losses.shape[:-1], dtype=wide_dtype(losses.device), device=losses.device))

    def plan(self, losses: Tensor, state: LastState, mask: Tensor | None = None) -> tuple[Plan, LastState]:
        """Overwrite the slot, unless a loss is not finite."""
        gain = recordable(losses, fit_mask(mask, losses)).to(state.recorded)
        slot = torch.zeros_like(gain, dtype=torch.int64)
        return Plan(slot, slot, torch.zeros_like(gain), slot, gain), LastState(state.slots, state.recorded + gain)

    def shares(self, state: LastState, preference: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """1 for the only slot."""
        return torch.ones_like(state.recorded).unsqueeze(-1)
