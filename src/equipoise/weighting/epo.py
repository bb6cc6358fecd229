"""Exact Pareto optimal search (EPO)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.batch import apply
from equipoise.errors import require
from equipoise.minnorm import min_norm
from equipoise.weighting.protocol import Ideal, Seen, Weighting
from equipoise.weighting.restricted import Local, Target, restrict


class EPOState(NamedTuple):
    """The cost of the search so far."""

    programs: Tensor
    """Linear programs given to HiGHS, (*B,)."""


@dataclass(frozen=True)
class EPO(Weighting[EPOState]):
    r"""Exact Pareto optimal search (Mahapatra and Rajan 2020): towards r_1 f_1 = … = r_m f_m, then down.

    With f̂ = r∘f/Σ r_i f_i, the non-uniformity μ = Σ f̂_i ln(m f̂_i) and a_i = r_i (ln(m f̂_i) − μ), its
    gradient up to a positive factor, the coefficients α of the simplex solve one linear program:

        balance, if μ > tolerance:  max αᵀKa subject to (Kα)_j ≥ 0 where r_j f_j is largest, and
            (Kα)_j ≥ (Ka)_j for the other j with (Ka)_j ≤ 0; where no (Ka)_j is positive, Kα ≥ 0;
        descent, otherwise:  max 1ᵀKα subject to Kα ≥ 0 and αᵀKa ≥ min(0, max_j (Ka)_j).

    Two objectives have a closed form. From three on, scipy's HiGHS solves one program per instance on the CPU, one
    after another, at one or two milliseconds each; `EPOState.programs` counts them. Solutions of linear programs are
    vertices, so directions jump: take small steps.

    Attributes:
        target: "inverse": r = w, so f ∝ 1/w as for Tchebycheff; "direct": r = 1/w, so f ∝ w.
        ideal: The ideal point z; f − z should be positive.
        tolerance: The μ below which the trade-off counts as met.
        descent: "restricted" as above; "relaxed" drops the last constraint of the descent program, which keeps μ from
            growing.
        normalize: Whether r is scaled to unit length. The programs depend on that length.
        scale: Whether to divide K by its largest entry and to set (Ka)_j to 0 where they are only rounding error.
        floor: The least m f̂_i in the logarithm.
        fallback: The α if a program is infeasible, as the restricted descent program may be for m > 2: the min-norm
            point, which decreases every objective, or w.

    Examples:
        >>> losses, w, weighting = torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.5]), eq.EPO()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> c.tolist()  # w_1 f_1 is too large
        [1.0, 0.0]
        >>> c, _ = weighting.update(torch.ones(2), weighting.init(losses), w, gramian=torch.eye(2))
        >>> c.tolist()  # the trade-off is met: both down
        [0.5, 0.5]
    """

    target: Target = "inverse"
    ideal: Ideal = 0.0
    tolerance: float = 1e-4
    descent: Literal["restricted", "relaxed"] = "restricted"
    normalize: bool = True
    scale: bool = True
    floor: float = 2.0**-52
    fallback: Literal["min_norm", "preference"] = "min_norm"

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.target in {"inverse", "direct"}, 'target must be "inverse" or "direct"', self.target)
        require(self.tolerance >= 0, "tolerance must be non-negative", self.tolerance)
        descents = {"restricted", "relaxed"}
        require(self.descent in descents, 'descent must be "restricted" or "relaxed"', self.descent)
        require(self.floor > 0, "floor must be positive", self.floor)
        fallbacks = {"min_norm", "preference"}
        require(self.fallback in fallbacks, 'fallback must be "min_norm" or "preference"', self.fallback)

    def init(self, losses: Tensor, **extra: Tensor) -> EPOState:
        """No program solved yet."""
        return EPOState(torch.zeros(losses.shape[:-1], dtype=torch.int64, device=losses.device))

    def step(self, seen: Seen, state: EPOState) -> tuple[Tensor, EPOState]:
        """Coefficients α in the simplex, shape (*B, m)."""
        here = restrict(seen)
        program = self._program(here)
        if here.losses.shape[-1] <= 2:
            alpha, solved = _interval(program, here.present)
        else:
            alpha, solved, posed = _highs(program, here.present & here.valid)
            state = EPOState(state.programs + posed)
        if not bool(solved.all()):
            instead = min_norm(here.gramian, here.present) if self.fallback == "min_norm" else here.weight
            alpha = torch.where(solved, alpha, instead)
        return here.coefficients(alpha), state

    def _program(self, seen: Local) -> "Program":
        m = seen.present.sum(-1, keepdim=True)
        r = seen.weight if self.target == "inverse" else 1.0 / seen.weight.clamp_min(torch.finfo(seen.weight.dtype).eps)
        r = r * seen.present
        if self.normalize:
            r = r / torch.linalg.vector_norm(r, dim=-1, keepdim=True)
        weighted = r * seen.losses.clamp_min(0.0)
        largest = weighted.amax(-1, keepdim=True)
        worst = weighted == largest
        weighted = weighted / torch.where(largest > 0, largest, 1.0)
        total = weighted.sum(-1, keepdim=True)
        share = torch.where(total > 0, weighted / total, 1.0 / m)
        logs = (m * share).clamp_min(self.floor).log()
        mu = (share * logs).sum(-1, keepdim=True)
        a = r * (logs - mu)
        C = seen.gramian
        if self.scale:
            size = C.abs().amax((-2, -1), keepdim=True)
            C = C / torch.where(size > 0, size, 1.0)
        Ca = apply(C, a)
        if self.scale:
            Ca = torch.where(Ca.abs() <= _ROUNDING * r.amax(-1, keepdim=True), 0.0, Ca)
        balance = mu > self.tolerance
        rising = (Ca > 0) & seen.present
        controlled = torch.where(worst, 0.0, torch.where(rising, -torch.inf, Ca))
        bound = torch.where(balance & rising.any(-1, keepdim=True), controlled, 0.0)
        limit = Ca.masked_fill(~seen.present, -torch.inf).amax(-1, keepdim=True).clamp_max(0.0)
        free = balance if self.descent == "restricted" else torch.ones_like(balance)
        return Program(
            torch.where(balance, Ca, C.sum(-2)),
            torch.cat((C, Ca.unsqueeze(-2)), -2),
            torch.cat((bound, limit.masked_fill(free, -torch.inf)), -1),
        )


class Program(NamedTuple):
    """The linear program max oᵀα subject to Rα ≥ b, α in the simplex."""

    objective: Tensor
    """o, (*B, m)."""
    rows: Tensor
    """R, (*B, n, m)."""
    bound: Tensor
    """b, (*B, n); −∞ for a row that does not bind."""


_ROUNDING = 1e-9
"""Values below this fraction of the Gramian's largest entry count as zero."""


def _interval(program: Program, present: Tensor) -> tuple[Tensor, Tensor]:
    """α and whether it exists, for m ≤ 2: α = (t, 1 − t) with t at an end of the feasible part of [0, 1]."""
    if present.shape[-1] == 1:
        return present.to(program.objective.dtype), torch.ones_like(present)
    slope = program.rows[..., 0] - program.rows[..., 1]
    need = program.bound - program.rows[..., 1]
    slack = _ROUNDING * program.rows.abs().amax((-2, -1)).unsqueeze(-1)
    at = need / torch.where(slope == 0, 1.0, slope)
    lower = torch.where(slope > 0, at, 0.0).amax(-1, keepdim=True).clamp_min(0.0)
    upper = torch.where(slope < 0, at, 1.0).amin(-1, keepdim=True).clamp_max(1.0)
    gain = (program.objective[..., :1] - program.objective[..., 1:]).sign()
    t = torch.where(lower > upper, 0.0, gain) * (upper - lower) / 2 + (upper + lower) / 2
    solved = ((need - slope * t).amax(-1, keepdim=True) <= slack) & (t >= 0) & (t <= 1)
    alpha = torch.cat((t, 1.0 - t), -1)
    both = present.all(-1, keepdim=True)
    return torch.where(both, alpha, present.to(alpha.dtype)), solved | ~both


def _highs(program: Program, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """α (*B, m), whether it exists (*B, 1), and how many programs were solved (*B,), by scipy's HiGHS."""
    from scipy.optimize import linprog  # noqa: PLC0415 - slow to import, and two objectives do without

    part = present.cpu().numpy()
    objective, rows, bound = (tensor.cpu().numpy() for tensor in program)
    alpha = np.zeros(part.shape)
    failed = np.zeros((*part.shape[:-1], 1), dtype=bool)
    posed = part.sum(-1) > 1
    alpha[~posed] = part[~posed]
    for at in np.argwhere(posed):
        here = tuple(at)
        columns, binds = part[here], np.isfinite(bound[here])
        answer = linprog(
            -objective[here][columns],
            A_ub=-rows[here][binds][:, columns],
            b_ub=-bound[here][binds],
            A_eq=np.ones((1, columns.sum())),
            b_eq=[1.0],
            method="highs",
        )
        if answer.status == 0 and answer.x is not None:
            vertex = answer.x.clip(0.0)
            alpha[here][columns] = vertex / vertex.sum()
        else:
            failed[here] = True
    like = program.objective
    solved, count = ~torch.as_tensor(failed), torch.as_tensor(posed.astype(np.int64))
    return torch.as_tensor(alpha).to(like), solved.to(like.device), count.to(like.device)
