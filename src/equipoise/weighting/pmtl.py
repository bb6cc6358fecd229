"""Pareto multi-task learning (PMTL)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.batch import apply
from equipoise.errors import require
from equipoise.minnorm import min_norm
from equipoise.weighting.protocol import Ideal, Seen, Weighting, keep
from equipoise.weighting.restricted import Local, Target, ray, restrict


class PMTLState(NamedTuple):
    """Which of the two phases a run is in."""

    step: Tensor
    """Steps taken, (*B, 1)."""
    arrived: Tensor
    """Whether the first phase ended because the cone was reached, (*B, 1)."""


@dataclass(frozen=True)
class PMTL(Weighting[PMTLState]):
    r"""PMTL (Lin et al. 2019): reach the cone of the run's own preference, then descend without leaving it.

    A set of preferences gives unit vectors u_j; the cone of a run with the vector u is where u·f is the
    largest of all u_j·f. Reference j is active where (u_j − u)·f > 0. With the rows (u_j − u)ᵀJ of the active ones,

        first phase:  β the min-norm point of these rows, c = Σ β_j (u_j − u), and c = 0 inside the cone;
        second phase:  α the min-norm point of these rows and those of J, c = α_{1..m} + Σ α_j (u_j − u).

    Entries of c may be negative. A run ends anywhere on the front inside its cone: the more references,
    the narrower the cones.

    Attributes:
        references: The set of preferences, each a tuple of m numbers. The run's own preference, passed to `update`, may
            be among them.
        phase_steps: The most steps of the first phase. A run that has not reached its cone by then often never does.
        wait: Whether the second phase begins after exactly `phase_steps` steps, as published; if not, it begins as soon
            as the cone is reached.
        rescale: Whether c is multiplied by m/Σ|c_i|, as the released code for networks does.
        target: "inverse": u ∝ 1/w, as for Tchebycheff; "direct": u ∝ w.
        ideal: The ideal point z, where the cones begin; f − z should be positive.

    Examples:
        >>> losses, w = torch.tensor([3.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.PMTL(references=((0.1, 0.9), (0.5, 0.5), (0.9, 0.1)))
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> [round(value, 2) for value in c.tolist()]  # towards the middle cone: f_1 down, f_2 up
        [0.29, -0.6]
    """

    references: tuple[tuple[float, ...], ...]
    phase_steps: int = 200
    wait: bool = False
    rescale: bool = False
    target: Target = "inverse"
    ideal: Ideal = 0.0

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(len(self.references) >= 1, "references must have at least one preference", self.references)
        lengths = sorted({len(w) for w in self.references})
        require(len(lengths) == 1, "references must all have the same number of entries", lengths)
        preferences.validate(torch.tensor(self.references, dtype=torch.float64))
        require(self.phase_steps >= 0, "phase_steps must be non-negative", self.phase_steps)
        require(self.target in {"inverse", "direct"}, 'target must be "inverse" or "direct"', self.target)

    def init(self, losses: Tensor, **extra: Tensor) -> PMTLState:
        """Before the first phase."""
        step = torch.zeros((*losses.shape[:-1], 1), dtype=torch.int64, device=losses.device)
        return PMTLState(step, torch.zeros_like(step, dtype=torch.bool))

    def step(self, seen: Seen, state: PMTLState) -> tuple[Tensor, PMTLState]:
        """Coefficients c, shape (*B, m)."""
        m = seen.losses.shape[-1]
        require(len(self.references[0]) == m, f"references must have {m} entries each", len(self.references[0]))
        here = restrict(seen)
        apart = self._apart(here)
        active = apply(apart, here.losses) > 0
        searching = ~state.arrived & (state.step < self.phase_steps)
        arrived = state.arrived
        if not self.wait:
            arrived = arrived | (searching & ~active.any(-1, keepdim=True))
            searching = searching & ~arrived
        unit = torch.eye(m, dtype=apart.dtype, device=apart.device).expand(*here.losses.shape, m)
        A = torch.cat((unit, apart), -2)
        rows = torch.cat((here.present & ~searching, active), -1)
        plane = m == 2 and bool((here.losses > 0).all())
        alpha = (_on_pairs if plane else min_norm)(A @ here.gramian @ A.mT, rows).to(A)
        c = (alpha.unsqueeze(-2) @ A).squeeze(-2)
        if self.rescale:
            total = c.abs().sum(-1, keepdim=True)
            c = c * here.present.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return here.coefficients(c), keep(here.valid, PMTLState(state.step + 1, arrived), state)

    def _apart(self, here: Local) -> Tensor:
        """u_j − u for every reference, (*B, references, m), exactly 0 for the run's own preference."""
        references = torch.tensor(self.references, dtype=here.weight.dtype, device=here.weight.device)
        present = here.present.unsqueeze(-2)
        u = ray(here.weight, self.target, here.present).unsqueeze(-2)
        apart = ray(torch.where(present, references, 0.0), self.target, present) - u
        # The preference may have another dtype: ignore differences from rounding.
        return torch.where(apart.abs().amax(-1, keepdim=True) > _SAME, apart, 0.0)


_SAME = 1e-6
"""Unit vectors this close count as equal."""


def _on_pairs(gramian: Tensor, mask: Tensor) -> Tensor:
    """Like `min_norm`, for rows in a half-plane: the best point over all segments.

    Every row A_i of PMTL has A_i·f > 0 where f > 0, so 0 is never inside the hull of the A_i, and the
    min-norm point lies on an edge. This closed form takes half the time of the active set.
    """
    n = gramian.shape[-1]
    i, j = torch.triu_indices(n, n, device=gramian.device)
    a, b, x = gramian[..., i, i], gramian[..., j, j], gramian[..., i, j]
    apart = a + b - 2 * x
    s = torch.where(apart > 0, (b - x) / torch.where(apart > 0, apart, 1.0), 0.5).clamp(0.0, 1.0)
    norm = s.square() * a + 2 * s * (1 - s) * x + (1 - s).square() * b
    best = torch.where(mask[..., i] & mask[..., j], norm, torch.inf).argmin(-1, keepdim=True)
    share = s.gather(-1, best)
    at, shares = torch.cat((i[best], j[best]), -1), torch.cat((share, 1 - share), -1)
    alpha = torch.zeros_like(gramian[..., 0]).scatter_add(-1, at, shares)
    return torch.where(mask.any(-1, keepdim=True), alpha, 0.0)
