"""Objectives without gradient: noticed on the host, now and then, and said once."""

import math
import warnings

import torch
from torch import Tensor

from equipoise.errors import BalanceWarning
from equipoise.host import Fetched, beside_the_host, fetch
from equipoise.train.monitor import slack
from equipoise.units import Units

__all__ = ["Balance"]

EVERY = 100
"""Steps between two looks."""
LOOKS = 10
"""Looks in a row that a warning needs after the first."""
SHARE = 1e-3
"""λ below this over m is none."""
LEAST = 0.1
"""An objective closer than this to the largest weighted loss is in balance, whatever its λ."""
UNITS = 10.0
"""How many times smaller than the largest a loss must be for its unit to be suspected."""


class Balance:
    """Warns, once, of an objective that has had no gradient for long.

    Every hundred steps it is shown λ and the losses. On an accelerator it looks at what it was shown the time before,
    so that nobody waits.

    Args:
        names: The objectives, for the message.
        preference: w, (m,), on the host.
        units: The units of the run.
        step: Where the run stands.
    """

    def __init__(self, names: tuple[str, ...], preference: Tensor, units: Units, step: int = 0) -> None:
        self.names, self.units = names, units
        self.due: float = step + EVERY
        """The step of the next look."""
        self._w = preference.detach().to("cpu", torch.float64)
        self._looks = torch.zeros_like(self._w)
        """In a row, without gradient."""
        self._mean = torch.zeros_like(self._w)
        """Of the losses, over some ten looks."""
        self._seen = 0
        self._shown: Fetched | None = None

    def again(self, step: int) -> "Balance":
        """One that has seen nothing, for a run that stands elsewhere."""
        fresh = Balance(self.names, self._w, self.units, step)
        if math.isinf(self.due):
            fresh.close()
        return fresh

    def close(self) -> None:
        """Look no more."""
        self.due, self._shown = math.inf, None

    def show(self, weights: Tensor, losses: Tensor, step: int) -> None:
        """Look at λ and f̃ (m,) after a step, or at those of the time before."""
        self.due = step + EVERY
        now = fetch(torch.stack([weights, losses.to(weights)]))
        shown, self._shown = (self._shown, now) if beside_the_host(weights.device) else (now, None)
        if shown is not None:
            text = self._look(*shown.wait().double())
            if text:
                self.close()
                warnings.warn(f"{text}; this is said once", BalanceWarning, stacklevel=4)

    def _look(self, weights: Tensor, losses: Tensor) -> str:
        """What is to be said, if anything."""
        if not bool(torch.isfinite(losses).all()):
            return ""
        self._seen += 1
        self._mean += (losses - self._mean) / min(self._seen, LOOKS)
        starved = (weights < SHARE / len(weights)) & (self._w > 0)
        self._looks = torch.where(starved, self._looks + 1, 0.0)
        below = slack(self._w * self._mean)
        found = (self._looks > LOOKS) & (below > LEAST)
        if not bool(found.any()):
            return ""
        worst = int(torch.where(found, below, -torch.inf).argmax())
        return self._describe(worst, float(below[worst]), others=int(found.sum()) - 1)

    def _describe(self, worst: int, below: float, others: int) -> str:
        name = self.names[worst]
        name = f"objective {name}" if name.isdecimal() else name
        more = f" ({others} more objectives are like it)" if others else ""
        text = (
            f"{name} has had no gradient for {LOOKS * EVERY} steps: its weight λ is below {SHARE / len(self._w):.2g}, "
            f"and its weighted loss is {100 * below:.0f} % below the largest{more}. "
        )
        loss, largest = float(self._mean[worst]), float(self._mean[self._w > 0].max())
        if self.units.units != "start" and loss > 0 and largest > UNITS * loss:
            return (
                f"{text}Its loss is {largest / loss:.3g} times smaller than the largest: "
                f'give units="start", or units= as {"" if self.units.units is None else "other "}numbers'
            )
        return (
            f"{text}The ray of the preference does not meet the front there: the objective is already better than "
            "asked for. Raise its weight in the preference, or accept it"
        )
