"""Warnings about objectives that are missing from batches, for runs with `counts`."""

import torch
from torch import Tensor

from equipoise.errors import BalanceWarning, warn
from equipoise.train.nonfinite import spoken

__all__ = ["Presence"]

EVERY, DRAWS = 100, 20
"""Steps between two checks. An objective is missed once the others were present this often on average."""
LITTLE = 0.01
"""A step in which absent objectives have all but this fraction of the coefficients has hardly any gradient."""


class Presence:
    """Warns once about objectives without samples, and once about steps that have hardly any gradient for that reason.

    Args:
        names: The objectives.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._steps = self._faint = 0
        self._present = torch.zeros(len(names))
        """Steps in which each objective was present."""
        self._missed = torch.zeros(len(names))
        """Coefficients of absent objectives, summed over the steps with hardly any gradient since the last check."""
        self._told_absent = self._told_faint = False

    def look(self, present: Tensor, coefficients: Tensor) -> None:
        """Count a step: which objectives are present, and c, both on the host, (m,)."""
        self._steps += 1
        self._present += present
        absent = torch.where(present, 0.0, coefficients.abs())
        total = float(coefficients.abs().sum())
        if total - float(absent.sum()) < LITTLE * total:
            self._faint += 1
            self._missed += absent
        if self._steps % EVERY == 0:
            self._check()

    def _check(self) -> None:
        faint, missed = self._faint, self._missed
        self._faint, self._missed = 0, torch.zeros_like(missed)
        if not self._told_absent and float(self._present.mean()) >= DRAWS:
            self._told_absent = True
            never = [spoken(name) for name, n in zip(self.names, self._present.tolist(), strict=True) if n == 0]
            if never:
                others = f" (nor had {len(never) - 1} more)" if len(never) > 1 else ""
                warn(
                    f"{never[0]} had no samples in {self._steps} steps{others}: leave it out of the preference, or see "
                    "that batches have it; this is said once",
                    BalanceWarning,
                )
        worst = int(missed.argmax())
        if faint > EVERY // 2 and not self._told_faint and float(self._present[worst]) > 0:
            self._told_faint = True
            warn(
                f"{faint} of the last {EVERY} steps had hardly any gradient: nearly all weight is on "
                f"{spoken(self.names[worst])}, which was not in these batches. Take balanced batches "
                "(eq.GroupBalancedSampler), or batches drawn by λ (eq.DomainSampler); this is said once",
                BalanceWarning,
            )
