"""The columns of the bench: the methods that are compared."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from benchmarks.defaults.optimizers import Optimizer, OptimizerState
from torch import Tensor

import equipoise as eq
from equipoise.weighting.protocol import Seen, working_dtype

OURS = "equipoise"
BASE = "LS"
"""What the answers are compared with: a weighted sum that is better in every objective shows an objective forgotten."""
TUNED = {"STCH best": ("STCH 0.1", "STCH 0.01", "STCH 0.001")}
"""Columns that stand for the best of others, chosen for every row after the fact."""


class UncertaintyState(NamedTuple):
    """The log-variances s (*B, m), and what their optimizer remembers."""

    log_variances: Tensor
    optimizer: OptimizerState


@dataclass(frozen=True)
class Uncertainty(eq.Weighting[UncertaintyState]):
    """Uncertainty weighting (Kendall, Gal and Cipolla 2018): Σ w_i (½ exp(−s_i) f_i + ½ s_i), s learned with θ.

    Attributes:
        optimizer: The rule that moves s. The bench puts in the one that moves θ.
    """

    optimizer: Optimizer

    def init(self, losses: Tensor, **extra: Tensor) -> UncertaintyState:  # noqa: ARG002
        """All s = 0."""
        zeros = torch.zeros_like(losses, dtype=working_dtype(losses))
        return UncertaintyState(zeros, self.optimizer.init(zeros))

    def step(self, seen: Seen, state: UncertaintyState) -> tuple[Tensor, UncertaintyState]:
        """Coefficients ½ w ∘ exp(−s), shape (*B, m), and one step of s."""
        precision = 0.5 * torch.exp(-state.log_variances)
        slope = 0.5 * seen.weight - precision * seen.gain
        s, inner = self.optimizer.step(state.log_variances, slope, state.optimizer)
        return seen.weight * precision, UncertaintyState(s, inner)


def columns(m: int = 2) -> dict[str, eq.Method]:
    """Every column by name, for m objectives; `TUNED` has those that are made from them.

    AdaOMD holds 16 copies. The paper's archive has no limit, and its time grows with the square of the steps. On VLMOP2
    with 1,000 steps both have the same mean excess to 0.1 %, but for Adam without noise (10.0 against 10.9 %).
    """
    known = eq.methods()
    archive = eq.Adaptive(capacity=16)
    old = eq.OMD("adaptive", optimism=30.0, smoothing=3.0, horizon=1000.0)
    return {
        OURS: known[OURS],
        "old default": eq.Method(old, eq.Adaptive(power=8.0, capacity=8)),
        "old Average(8)": eq.Method(old, eq.Average(power=8.0)),
        "AdaOMDgd": replace(known["AdaOMDgd-TCH"], conversion=archive),
        "AdaOMDeg": replace(known["AdaOMDeg-TCH"], conversion=archive),
        BASE: known["LS"],
        "TCH": known["TCH"],
        **{f"STCH {mu:g}": eq.Method(eq.SmoothTchebycheff(mu), eq.Last()) for mu in (0.1, 0.01, 0.001)},
        "GroupDRO": eq.Method(eq.OMD(0.01 * m, eq.Entropic(), order="alternating"), eq.Last()),
        "UPGrad": known["UPGrad"],
        "uncertainty": eq.Method(Uncertainty(Optimizer()), eq.Last()),
        **{name: known[name] for name in ("UW", "DWA", "FAMO", "GradNorm", "RLW")},
    }


def ready(weighting: eq.Weighting[Any], optimizer: Optimizer) -> eq.Weighting[Any]:
    """The weighting for a run with this optimizer."""
    return replace(weighting, optimizer=optimizer) if isinstance(weighting, Uncertainty) else weighting
