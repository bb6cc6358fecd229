"""Tchebycheff scalarization (TCH)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.weighting.protocol import Ideal, Seen, Stateless, Weighting, see


@dataclass(frozen=True)
class Tchebycheff(Weighting[Stateless]):
    r"""Tchebycheff scalarization: min max_i w_i (f_i − z_i), by subgradients.

    c = w_{i*} e_{i*} with i* = argmax_i w_i (f_i − z_i), the first index on ties.

    Attributes:
        scale: "preference" is the true subgradient; "unit" drops the factor w_{i*}, as the
            released code of the paper's baselines does.
        ideal: The ideal point z.

    Examples:
        >>> losses, w = torch.tensor([4.0, 2.0]), torch.tensor([0.25, 0.75])
        >>> weighting = eq.Tchebycheff()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w)  # w∘f = (1, 1.5)
        >>> c.tolist(), weighting.value(losses, w).item()
        ([0.0, 0.75], 1.5)
    """

    scale: Literal["preference", "unit"] = "preference"
    ideal: Ideal = 0.0

    def __post_init__(self) -> None:
        require(self.scale in {"preference", "unit"}, 'scale must be "preference" or "unit"', self.scale)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients w_{i*} e_{i*}, shape (*B, m)."""
        gain = seen.gain if seen.present is None else seen.gain.masked_fill(~seen.present, -torch.inf)
        chosen = torch.arange(gain.shape[-1], device=gain.device) == gain.argmax(-1, keepdim=True)
        carried = seen.weight
        if self.scale == "unit":
            carried = torch.where(carried > 0, carried / seen.w, carried)
        return torch.where(chosen, carried, 0.0), state

    @property
    def uses_duals(self) -> bool:
        """Whether the coefficients are λ∘w: unless the factor w is dropped."""
        return self.scale == "preference"

    @property
    def origin(self) -> Ideal:
        """The ideal point."""
        return self.ideal

    def value(self, losses: Tensor, preference: Tensor) -> Tensor:
        """max_i w_i (f_i − z_i), shape (*B,)."""
        return see(losses, preference, self.ideal).gain.amax(-1)
