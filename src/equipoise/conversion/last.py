"""The last iterate."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import fit_mask
from equipoise.conversion.protocol import Conversion, Params, batch_mask, check, check_record, recordable, snapshot


class LastState(NamedTuple):
    """The newest iterate."""

    params: dict[str, Tensor]


@dataclass(frozen=True)
class Last(Conversion[LastState]):
    """The last iterate that was recorded; before the first, the parameters that `init` was given."""

    def init(self, params: Params, losses: Tensor) -> LastState:
        """A copy of the parameters."""
        check(params, losses)
        return LastState({name: snapshot(tensor) for name, tensor in params.items()})

    def update(self, params: Params, losses: Tensor, state: LastState, *, mask: Tensor | None = None) -> LastState:
        """Replace the iterate."""
        check(params, losses)
        check_record(params, state.params, losses.ndim - 1, slots=False)
        valid = recordable(losses, fit_mask(mask, losses))
        for name, held in state.params.items():
            held.copy_(torch.where(batch_mask(valid, held), params[name].detach(), held))
        return state

    def output(self, state: LastState) -> dict[str, Tensor]:
        """The iterate."""
        return {name: tensor.clone() for name, tensor in state.params.items()}
