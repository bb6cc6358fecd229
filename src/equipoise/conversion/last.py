"""The last iterate."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import fit_mask
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


class LastState(NamedTuple):
    """The newest iterate.

    Examples:
        >>> state = eq.Last().init({"x": torch.zeros(3)}, torch.ones(2))
        >>> state.params["x"].tolist()
        [0.0, 0.0, 0.0]
    """

    params: dict[str, Tensor]
    """A copy (*B, ...) per name."""


@dataclass(frozen=True)
class Last(Conversion[LastState]):
    """The last iterate that was recorded; before the first, the parameters that `init` was given.

    Examples:
        >>> conversion, losses = eq.Last(), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for value in (1.0, 2.0, 6.0):
        ...     state = conversion.update({"x": torch.tensor([value])}, losses, state)
        >>> conversion.output(state)["x"].item()
        6.0
    """

    def init(self, params: Params, losses: Tensor) -> LastState:
        """A copy of the parameters."""
        check(params, losses)
        return LastState({name: snapshot(tensor) for name, tensor in params.items()})

    def update(self, params: Params, losses: Tensor, state: LastState, *, mask: Tensor | None = None) -> LastState:
        """Replace the iterate."""
        check(params, losses)
        check_record(params, state.params, losses.ndim - 1, slots=False)
        plan, after = self.plan(losses, state, mask)
        enter(plan, params, state.params)
        return after

    def plan(self, losses: Tensor, state: LastState, mask: Tensor | None = None) -> tuple[Plan, LastState]:
        """What an iterate with these losses (*B, m) does to the last one, and the state, which has no numbers."""
        return entry(recordable(losses, fit_mask(mask, losses)).to(torch.float32)), state

    def output(self, state: LastState) -> dict[str, Tensor]:
        """The iterate."""
        return {name: tensor.clone() for name, tensor in state.params.items()}
