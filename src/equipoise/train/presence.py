"""Warnings about objectives that are missing from batches, for runs with `counts`."""

import math

import torch
from torch import Tensor

from equipoise.errors import BalanceWarning, warn
from equipoise.train.groups import counts_of
from equipoise.train.nonfinite import spoken

__all__ = ["Presence"]

EVERY, DRAWS = 100, 20
"""Steps between two checks. An objective is missed once the others were present this often on average."""
LITTLE = 0.01
"""A step in which absent objectives have all but this fraction of the coefficients has hardly any gradient."""


class Presence:
    """Warns about objectives without samples, each once.

    If one never comes, if steps have hardly any gradient because it is not there, and if its counts are left out.

    Args:
        names: The objectives.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.explain = names, _explain
        """`explain` has the words for objectives that never came, from their names and the steps."""
        self._steps = self._faint = 0
        self._present = torch.zeros(len(names))
        """Steps in which each objective was present."""
        self._missed = torch.zeros(len(names))
        """Coefficients of absent objectives, summed over the steps with hardly any gradient since the last check."""
        self._told_absent = self._told_faint = self._told_counts = False
        self._calls = 0
        """Calls that left out counts."""

    def look(self, present: Tensor, coefficients: Tensor, losses: Tensor) -> None:
        """Count a step: which objectives are present, c, and the latest losses, on the host, (m,)."""
        self._steps += 1
        self._present += present
        absent = torch.where(present, 0.0, coefficients.abs())
        total = float(coefficients.abs().sum())
        if total - float(absent.sum()) < LITTLE * total:
            self._faint += 1
            self._missed += absent
        if self._steps % EVERY == 0:
            self._warn_of_faint()
            if float(self._present.mean()) >= DRAWS:
                self.warn_of_absent(losses)

    def warn_of_absent(self, losses: Tensor) -> None:
        """Warn once if objectives never came: their latest losses are NaN."""
        never = [name for name, loss in zip(self.names, losses.tolist(), strict=True) if math.isnan(loss)]
        if never and self._steps > 0 and not self._told_absent:
            self._told_absent = True
            warn(f"{self.explain(never, self._steps)}; this is said once", BalanceWarning)

    def look_for_counts(self, losses: Tensor, *, waits: bool) -> None:
        """Warn once of losses that are passed without their counts, and are 0 for a group without samples.

        Args:
            losses: What was passed in.
            waits: Whether the host would wait for a device; then a few calls are looked at.
        """
        counts = counts_of(losses)
        if counts is None or self._told_counts:
            return
        self._calls += 1
        if waits and self._calls % EVERY != 1:
            return
        absent = (counts == 0).nonzero().flatten().tolist()
        if absent:
            self._told_counts = True
            warn(
                f"{spoken(self.names[absent[0]])} has no samples in this batch, and without counts its loss is taken "
                "for 0: pass both values that eq.group_losses or eq.token_losses returns, mol(losses, counts); this is "
                "said once",
                BalanceWarning,
            )

    def _warn_of_faint(self) -> None:
        faint, missed = self._faint, self._missed
        self._faint, self._missed = 0, torch.zeros_like(missed)
        worst = int(missed.argmax())
        if faint > EVERY // 2 and not self._told_faint and float(self._present[worst]) > 0:
            self._told_faint = True
            warn(
                f"{faint} of the last {EVERY} steps had hardly any gradient: nearly all weight is on "
                f"{spoken(self.names[worst])}, which was not in these batches. Take balanced batches "
                "(eq.GroupBalancedSampler), or batches drawn by λ (eq.DomainSampler); this is said once",
                BalanceWarning,
            )


def _explain(never: list[str], steps: int) -> str:
    others = f" (nor had {len(never) - 1} more)" if len(never) > 1 else ""
    found = f"{spoken(never[0])} had no samples in {steps} steps{others}"
    return f"{found}: leave it out of the preference, or see that batches have it"
