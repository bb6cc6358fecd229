"""Flexible preference-guided multi-objective learning (FERERO)."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.batch import Number, apply, check_non_negative, per_instance
from equipoise.errors import require
from equipoise.simplex import Euclidean
from equipoise.weighting.protocol import Ideal, Seen, Weighting, working_dtype
from equipoise.weighting.restricted import Local, Target, ray, restrict

Array = NDArray[np.floating]


class FEREROState(NamedTuple):
    """The multipliers of the last direction; an absent objective keeps its earlier ones."""

    descent: Tensor
    """λ_f, (*B, m)."""
    ray: Tensor
    """Bᵀλ_h minus its initial value, (*B, m): unlike λ_h it does not depend on the choice of B."""
    capped: Tensor
    """How many directions were shortened to the trust radius, (*B,)."""


class DualProblem(NamedTuple):
    """The dual problem of one direction, over λ_f in the simplex and ν = Bᵀλ_h orthogonal to the ray.

    min ½ ‖Jᵀ(λ_f + ν)‖² − c_h ν·f, everything restricted to the objectives that are present.
    """

    seen: Local
    ray: Tensor
    """p, of unit length, (*B, m)."""
    decay: Number
    """c_h, a number or (*B, 1)."""
    dtype: torch.dtype
    """The dtype of the losses."""


class Multipliers(NamedTuple):
    """What a solver of the dual returns."""

    coefficients: Tensor
    """c, (*B, m)."""
    descent: Tensor
    """λ_f, (*B, m)."""
    ray: Tensor
    """ν minus its initial value, (*B, m)."""
    capped: Tensor
    """Whether c was shortened, (*B,)."""


@runtime_checkable
class DualSolver(Protocol):
    """How the multipliers of a direction are found."""

    def solve(self, problem: DualProblem, state: FEREROState) -> Multipliers:
        """The multipliers, given those of the last step."""
        ...


def complement(p: Tensor) -> Tensor:
    """An orthonormal basis B of the vectors orthogonal to p; (p₂, −p₁) for two objectives.

    The first m − 1 rows of the Householder reflection that takes p to −e_m.

    Args:
        p: Unit vectors with p_m ≥ 0, shape (*B, m).

    Returns:
        Shape (*B, m − 1, m).
    """
    m = p.shape[-1]
    unit = torch.eye(m, dtype=p.dtype, device=p.device)
    v = p + unit[-1]
    reflection = unit - v.unsqueeze(-1) * (v / (1.0 + p[..., -1:])).unsqueeze(-2)
    return reflection[..., :-1, :]


@dataclass(frozen=True)
class ExactDual:
    """The exact minimiser, in closed form.

    With M = BKBᵀ and L = KBᵀ, λ_h = M⁻¹(c_h H − Lᵀλ_f), and what remains to be minimised over the simplex is
    ½κ(p·λ_f)² + q·λ_f with κ = pᵀ(K − LM⁻¹Lᵀ)p and q = c_h LM⁻¹H. Only two numbers, p·λ_f and q·λ_f, matter, so
    the minimum is attained on a pair of coordinates, and every pair is a parabola on [0, 1]: O(m²) in
    all, no iteration. Directions in which M is singular, as with parallel gradients, cannot be controlled; H is
    ignored there.

    Attributes:
        trust: The direction is shortened to ‖Jᵀc‖ ≤ trust·max_i ‖∇f_i‖.

    Examples:
        >>> from equipoise.weighting import ExactDual
        >>> losses, w = torch.tensor([2.0, 1.5]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.FERERO(solver=ExactDual(trust=0.5))
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> [round(value, 3) for value in c.tolist()]  # (0.75, 0.25) without the trust region
        [0.474, 0.158]
    """

    trust: float = 1.0

    def __post_init__(self) -> None:
        require(self.trust > 0, "trust must be positive", self.trust)

    def solve(self, problem: DualProblem, state: FEREROState) -> Multipliers:
        """The multipliers; ignores those of the last step."""
        seen, p = problem.seen, problem.ray
        absent = ~seen.present
        # In units of the mean squared gradient norm, and with a unit gradient for what is absent.
        square = seen.gramian.diagonal(dim1=-2, dim2=-1)
        unit = square.sum(-1, keepdim=True) / seen.present.sum(-1, keepdim=True)
        unit = torch.where(unit > torch.finfo(unit.dtype).tiny ** 0.5, unit, 1.0)
        K = seen.gramian / unit.unsqueeze(-1) + torch.diag_embed(absent.to(unit))
        B = complement(p)
        H = B @ (problem.decay * seen.losses / unit).unsqueeze(-1)
        L = K @ B.mT
        limits = torch.finfo(problem.dtype)
        norm = K.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
        inverse = _pseudo_inverse(B @ L, B, norm, max(1e-12, p.shape[-1] * limits.eps))
        LM = L @ inverse
        Q = K - LM @ L.mT
        kappa = (p.unsqueeze(-2) @ Q @ p.unsqueeze(-1)).squeeze(-1).clamp_min(0.0)
        q = (LM @ H).squeeze(-1)
        descent = _best_pair(kappa, p, q, absent)
        along = (B.mT @ inverse @ (H - L.mT @ descent.unsqueeze(-1))).squeeze(-1)
        along = along.masked_fill(absent, 0.0)
        c = descent + along
        cut = self._cut(c, seen.gramian)
        c = (cut * c).nan_to_num(0.0).clamp(-limits.max, limits.max)
        return Multipliers(c, descent, along, (cut < 1).squeeze(-1))

    def _cut(self, c: Tensor, K: Tensor) -> Tensor:
        """The factor that brings c inside the trust radius, (*B, 1)."""
        square = (c * apply(K, c)).sum(-1, keepdim=True)
        largest = K.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        return torch.where(square > self.trust**2 * largest, self.trust * (largest / square).sqrt(), 1.0)


def _pseudo_inverse(M: Tensor, B: Tensor, norm: Tensor, tolerance: float) -> Tensor:
    """M⁺ for M = BKBᵀ, without the eigenvectors v along which vᵀMv = ‖JᵀBᵀv‖² is only rounding error.

    Σ_i |Bᵀv|_i ‖g_i‖ is the size of the terms of JᵀBᵀv before they cancel.
    """
    eigen = torch.linalg.eigh(M)
    value, vector = eigen.eigenvalues, eigen.eigenvectors
    reach = (norm.unsqueeze(-2) @ (B.mT @ vector).abs()).squeeze(-2)
    kept = value > tolerance * reach.square()
    inverse: Tensor = (vector * (kept / torch.where(kept, value, 1.0)).unsqueeze(-2)) @ vector.mT
    return inverse


def _best_pair(kappa: Tensor, p: Tensor, q: Tensor, absent: Tensor) -> Tensor:
    """The minimiser of ½κ(p·λ)² + q·λ over the simplex, κ ≥ 0 (*B, 1): s e_i + (1 − s) e_j for the best i, j."""
    kappa = kappa.unsqueeze(-1)
    dp, dq = (x.unsqueeze(-1) - x.unsqueeze(-2) for x in (p, q))
    pj, qj = p.unsqueeze(-2), q.unsqueeze(-2)
    curvature = kappa * dp.square()
    bent = curvature > 0
    # If the parabola is a line, an end is best, and each end is covered by its own pair.
    s = torch.where(bent, -(dq + kappa * pj * dp) / torch.where(bent, curvature, 1.0), 0.0).clamp(0.0, 1.0)
    value = 0.5 * kappa * (pj + s * dp).square() + qj + s * dq
    value = value.masked_fill(absent.unsqueeze(-1) | absent.unsqueeze(-2), torch.inf)
    best = value.flatten(-2).argmin(-1, keepdim=True)
    share = s.flatten(-2).gather(-1, best)
    m = p.shape[-1]
    where = torch.cat((best // m, best % m), -1)
    return torch.zeros_like(p).scatter_add(-1, where, torch.cat((share, 1.0 - share), -1))


@dataclass(frozen=True)
class DualDescent:
    """Projected gradient descent on the dual, as in the released code.

        λ_f ← Π(λ_f − γ Kc),   λ_h ← λ_h − γ (BKc − c_h H),   c = λ_f + Bᵀλ_h,

    until ‖Δλ_f‖₁ + ‖Δλ_h‖₂ is below the tolerance, in the dtype of the losses. It is inexact for short gradients, and
    it diverges if γ‖K‖ > 2: the coefficients are then huge or not finite. This is the only weighting that may return
    non-finite coefficients; it is kept because the published results use it.

    Attributes:
        rate: γ.
        steps: The most iterations.
        tolerance: An instance stops at the first change smaller than this.
        start_ray: The initial λ_h, in every coordinate.
        carry: What is warm-started from the last step: "nothing", λ_h ("ray"), or both ("all"; with steps=1 the
            single-loop method).
        normalize: Whether c is divided by its sum.

    Examples:
        >>> from equipoise.weighting import DualDescent
        >>> losses, w = torch.tensor([2.0, 1.5]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.FERERO(solver=DualDescent(steps=5))
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> [round(value, 2) for value in c.tolist()]  # the exact minimiser is (0.75, 0.25)
        [0.82, 0.18]
    """

    rate: float = 0.1
    steps: int = 200
    tolerance: float = 1e-3
    start_ray: float = 1.0
    carry: Literal["nothing", "ray", "all"] = "nothing"
    normalize: bool = False

    def __post_init__(self) -> None:
        require(0 < self.rate < math.inf, "rate must be positive and finite", self.rate)
        require(self.steps >= 1, "steps must be at least 1", self.steps)
        require(self.tolerance >= 0, "tolerance must be non-negative", self.tolerance)
        require(math.isfinite(self.start_ray), "start_ray must be finite", self.start_ray)
        carries = {"nothing", "ray", "all"}
        require(self.carry in carries, 'carry must be "nothing", "ray" or "all"', self.carry)

    def solve(self, problem: DualProblem, state: FEREROState) -> Multipliers:
        """The multipliers after at most `steps` iterations."""
        p, present = problem.ray, problem.seen.present
        first = self.start_ray * complement(p).sum(-2)
        first = _orthogonal(torch.where(present, first, 0.0), p)
        descent = state.descent if self.carry == "all" else torch.ones_like(p)
        descent = _project(descent, present)
        along = first
        if self.carry != "nothing":
            along = first + _orthogonal(torch.where(present, state.ray, 0.0), p)
        pair = p.shape[-1] == 2 and bool(present.all())
        descent, along = (self._iterate_pair if pair else self._iterate)(problem, descent, along)
        c = descent + along
        if self.normalize:
            total = c.sum(-1, keepdim=True)
            c = c / torch.where(total == 0, 1.0, total)
        return Multipliers(c, descent, along - first, torch.zeros_like(state.capped, dtype=torch.bool))

    def _iterate(self, problem: DualProblem, descent: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        seen, dtype = problem.seen, torch.promote_types(problem.dtype, torch.float32)
        K, p, push = (x.to(dtype) for x in (seen.gramian, problem.ray, problem.decay * seen.losses))
        descent, along = descent.to(dtype), along.to(dtype)
        going = seen.valid
        for _ in range(self.steps):
            slope = apply(K, descent + along)
            moved = _project(descent - self.rate * slope, seen.present)
            turned = along + self.rate * _orthogonal(push - slope, p)
            change = (moved - descent).abs().sum(-1, keepdim=True)
            change = change + torch.linalg.vector_norm(turned - along, dim=-1, keepdim=True)
            descent, along = torch.where(going, moved, descent), torch.where(going, turned, along)
            going = going & ~(change < self.tolerance)
            if not bool(going.any()):
                break
        return descent, along

    def _iterate_pair(self, problem: DualProblem, descent: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """As `_iterate`, for m = 2: an affine map of x = (λ_f1, λ_h), and λ_f1 clipped to [0, 1]."""
        seen, gamma = problem.seen, self.rate
        K11, K12, _, K22 = seen.gramian.flatten(-2).unbind(-1)
        p1, p2 = problem.ray.unbind(-1)
        push1, push2 = (problem.decay * seen.losses).unbind(-1)
        along1, along2 = along.unbind(-1)
        e1, e2 = p2 * K11 - p1 * K12, p2 * K12 - p1 * K22
        keep = torch.stack((1 - gamma / 2 * (K11 + K22 - 2 * K12), 1 - gamma * (p2 * e1 - p1 * e2)))
        cross = torch.stack((-gamma / 2 * (e1 - e2), -gamma * (e1 - e2)))
        shift = torch.stack((gamma / 2 * (K22 - K12), gamma * (p2 * push1 - p1 * push2 - e2)))
        x = torch.stack((descent[..., 0], p2 * along1 - p1 * along2))
        dtype = torch.promote_types(problem.dtype, torch.float32)
        arrays = (t.reshape(2, -1).to("cpu", dtype).numpy() for t in (keep, cross, shift, x))
        still = ~seen.valid.reshape(-1).cpu().numpy()
        last = _orbit(*arrays, still=still, steps=self.steps, tolerance=self.tolerance)
        share, h = torch.from_numpy(last).to(x).reshape(x.shape)
        return torch.stack((share, 1 - share), -1), torch.stack((p2 * h, -p1 * h), -1)


_BLOCK = 20
"""Iterations between two checks for instances that have stopped."""


def _orbit(
    keep: Array, cross: Array, shift: Array, x: Array, *, still: NDArray[np.bool_], steps: int, tolerance: float
) -> Array:
    """Iterate x ← keep∘x + cross∘(x₂, x₁) + shift, x₁ clipped to [0, 1], until 2|Δx₁| + |Δx₂| < tolerance; x (2, n).

    In numpy, which takes a fifth of torch's time on few numbers. Changes are checked once per block of iterations; an
    instance is reset to where it stopped.
    """
    path = np.empty((_BLOCK + 1, *x.shape), x.dtype)
    path[0] = x
    product, zero, one = np.empty_like(x), np.zeros_like(x[0]), np.ones_like(x[0])
    views = [(path[k], path[k, ::-1], path[k + 1], path[k + 1, 0]) for k in range(_BLOCK)]
    column = np.arange(x.shape[1])
    with np.errstate(all="ignore"):  # a diverging instance may overflow
        for begun in range(0, steps, _BLOCK):
            count = min(_BLOCK, steps - begun)
            for now, swapped, then, clipped in views[:count]:
                np.multiply(keep, now, out=then)
                np.multiply(cross, swapped, out=product)
                np.add(then, product, out=then)
                np.add(then, shift, out=then)
                np.maximum(clipped, zero, out=clipped)
                np.minimum(clipped, one, out=clipped)
            change = np.abs(np.diff(path[: count + 1], axis=0))
            small = 2 * change[:, 0] + change[:, 1] < tolerance
            stops = small.any(0)
            last = np.where(still, 0, np.where(stops, small.argmax(0) + 1, count))
            path[0] = path[last, :, column].T
            still = still | stops
            if still.all():
                break
    end: Array = path[0]
    return end


def _project(x: Tensor, present: Tensor) -> Tensor:
    """The nearest point of the simplex of the objectives that are present, (*B, m); NaN where x is."""
    return Euclidean().step(torch.where(present, x, -torch.inf), torch.zeros_like(x))


def _orthogonal(x: Tensor, p: Tensor) -> Tensor:
    """The part of x orthogonal to the unit vector p."""
    return x - p * (p * x).sum(-1, keepdim=True)


@dataclass(frozen=True)
class FERERO(Weighting[FEREROState]):
    r"""FERERO (Chen et al. 2024): descends while the distance from the preferred ray decays at a given rate.

    The ray is f ∝ p. With B an orthonormal basis of its complement, H = Bf is the distance from it. The
    direction d = −Jᵀc solves

        min_{d, t} t + ½‖d‖²   subject to   Jd ≤ t1,   BJd = −c_h H,

    by its dual, min ½‖Jᵀc‖² − c_h λ_h·H over λ_f in the simplex and any λ_h, with c = λ_f + Bᵀλ_h. Entries of c may
    be negative. Along the flow H decays as exp(−c_h t).

    Attributes:
        c_h: The rate at which the distance from the ray decays, per unit of step size.
        solver: `ExactDual()`, or `DualDescent()` as in the released code.
        target: "inverse": p ∝ 1/w, as for Tchebycheff; "direct": p ∝ w.
        ideal: The ideal point z, where the ray begins.

    Examples:
        >>> losses, w, weighting = torch.tensor([2.0, 1.5]), torch.tensor([0.5, 0.5]), eq.FERERO()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> [round(value, 3) for value in c.tolist()]  # c_1 − c_2 = c_h (f_1 − f_2): at the rate asked for
        [0.75, 0.25]
    """

    c_h: Number = 1.0
    solver: DualSolver = field(default_factory=ExactDual)
    target: Target = "inverse"
    ideal: Ideal = 0.0

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_non_negative("c_h", self.c_h)
        require(isinstance(self.solver, DualSolver), "solver must be ExactDual() or DualDescent()", self.solver)
        require(self.target in {"inverse", "direct"}, 'target must be "inverse" or "direct"', self.target)

    def init(self, losses: Tensor, **extra: Tensor) -> FEREROState:
        """λ_f uniform."""
        zeros = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        capped = torch.zeros(losses.shape[:-1], dtype=torch.int64, device=losses.device)
        return FEREROState(zeros + 1.0 / losses.shape[-1], zeros, capped)

    def step(self, seen: Seen, state: FEREROState) -> tuple[Tensor, FEREROState]:
        """Coefficients λ_f + Bᵀλ_h, shape (*B, m)."""
        here = restrict(seen)
        p = ray(here.weight, self.target, here.present)
        found = self.solver.solve(DualProblem(here, p, per_instance("c_h", self.c_h, p), seen.dtype), state)
        moved = here.valid & here.present
        new = FEREROState(
            torch.where(moved, found.descent, state.descent),
            torch.where(moved, found.ray, state.ray),
            state.capped + (found.capped & here.valid.squeeze(-1)),
        )
        return torch.where(here.valid, found.coefficients * here.scale, 0.0), new
