"""The point of smallest norm in the convex hull of gradients, from their Gramian alone."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.batch import wide_dtype
from equipoise.errors import require

__all__ = ["min_norm", "min_norm_at"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_EPS = float(np.finfo(np.float64).eps)
_RIDGE = 5 * _EPS
_SLACK = 5e3 * _EPS


def min_norm(gramian: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Solve min αᵀKα over the simplex: Jᵀα is the shortest vector in the hull of the rows of J, K = JJᵀ.

    Exact for any m and any spread of row lengths, up to the accuracy of the Gramian: the closed form for m = 2, else
    an active set (Wolfe 1976) on the cosines of the rows. The vector Jᵀα is unique; α need not be. If some rows are
    zero, α is uniform on those.

    The solution is a constant for autograd. For m > 2 the batch is solved on the host, until its slowest
    instance is done; about m iterations are usual.

    Args:
        gramian: K, symmetric positive semi-definite, shape (*B, m, m).
        mask: False for rows to ignore, broadcastable to (*B, m); their α is 0. If all rows are ignored, α is 0.

    Returns:
        α in float64, shape (*B, m). Where K is not finite it is some point of the simplex.

    Examples:
        >>> from equipoise.minnorm import min_norm
        >>> [round(value, 6) for value in min_norm(torch.tensor([[1.0, 0.0], [0.0, 4.0]])).tolist()]
        [0.8, 0.2]
    """
    require(
        gramian.ndim >= 2 and gramian.shape[-1] == gramian.shape[-2] >= 1,
        "gramian must have shape (*B, m, m) with m ≥ 1",
        tuple(gramian.shape),
    )
    K, shape, m = gramian.detach(), gramian.shape[:-1], gramian.shape[-1]
    wide = wide_dtype(K.device)
    part = None if mask is None else mask.to(device=K.device, dtype=torch.bool).expand(shape)
    if m == 2:
        return _pair(K.to(wide), part)
    rows = np.ones(shape, np.bool_) if part is None else part.cpu().numpy()
    alpha = _active_set(K.cpu().to(torch.float64).numpy().reshape(-1, m, m), rows.reshape(-1, m))
    return torch.from_numpy(alpha).reshape(shape).to(device=K.device, dtype=wide)


def min_norm_at(gramian: Tensor, level: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Solve min αᵀKα over {α ≥ 0, l·α = 1}, as accurately as `min_norm`, which is l = (1, …, 1).

    Args:
        gramian: K, symmetric positive semi-definite, finite, shape (*B, m, m).
        level: l of any signs, broadcastable to (*B, m).
        mask: False for rows to ignore, broadcastable to (*B, m); rows of length 0 are ignored too.

    Returns:
        α in float64, shape (*B, m), 0 for ignored rows; all 0 where no other row has l_i > 0.

    Examples:
        >>> from equipoise.minnorm import min_norm_at
        >>> alpha = min_norm_at(torch.tensor([[1.0, -1.0], [-1.0, 2.0]]), torch.tensor([1.0, 0.0]))
        >>> [round(value, 6) for value in alpha.tolist()]
        [1.0, 0.5]
    """
    shape, m = gramian.shape[:-1], gramian.shape[-1]
    K = gramian.detach().cpu().to(torch.float64).numpy().reshape(-1, m, m)
    height = level.detach().to(device="cpu", dtype=torch.float64).expand(shape).numpy().reshape(-1, m)
    part = np.ones_like(height, np.bool_) if mask is None else mask.expand(shape).cpu().numpy().reshape(-1, m)
    square = np.diagonal(K, axis1=-2, axis2=-1)
    use = part & (square > np.finfo(np.float64).tiny)
    s = np.sqrt(np.where(use, square, 1.0))
    c = np.where(use, height / s, 0.0)
    top = c.max(-1, keepdims=True)
    use = use & (top > 0)
    top = np.where(top > 0, top, 1.0)
    C = np.where(use[:, :, None] & use[:, None, :], K / s[:, :, None] / s[:, None, :], np.eye(m))
    with np.errstate(all="ignore"):  # dependent rows, which the search discards
        b = _search(C, c / top, use)
    alpha = np.where(use, b / s / top, 0.0)
    return torch.from_numpy(alpha).reshape(shape).to(device=gramian.device, dtype=wide_dtype(gramian.device))


def _pair(K: Tensor, part: Tensor | None) -> Tensor:
    # α ∝ (K₂₂ − K₁₂, K₁₁ − K₁₂); a row with a negative entry is left out.
    left = (K.diagonal(dim1=-2, dim2=-1).flip(-1) - K[..., 0, 1:]).clamp_min(0.0)
    if part is not None:
        left = torch.where(part.all(-1, keepdim=True), left, part.to(K.dtype))
    total = left.sum(-1, keepdim=True)
    alpha = torch.where((total > 0) & (total < torch.inf), left / total, 0.5)
    return alpha if part is None else alpha * part


def _active_set(K: Floats, part: Bools) -> Floats:
    """α (n, m) for K (n, m, m), over the rows in `part` (n, m).

    With s_i = ‖g_i‖ and the cosines C = K/(s sᵀ), the problem in b = α∘s/s_min is min bᵀCb subject to
    cᵀb = 1, b ≥ 0 with c = s_min/s. This form is scale-free, so rows may have any lengths.
    """
    with np.errstate(all="ignore"):  # ignored rows may hold anything
        square = np.diagonal(K, axis1=-2, axis2=-1)
        sound = np.isfinite(np.where(part[:, :, None] & part[:, None, :], K, 0.0).sum((-2, -1)))[:, None]
        still = part & ~(sound & (square > np.finfo(np.float64).tiny))
        trivial = still.any(-1, keepdims=True) | ~part.any(-1, keepdims=True)
        use = part & ~trivial
        s = np.sqrt(np.where(use, square, np.inf))
        c = np.where(use, s.min(-1, keepdims=True) / s, 0.0)
        C = np.where(use[:, :, None] & use[:, None, :], K / s[:, :, None] / s[:, None, :], np.eye(K.shape[-1]))
        share = np.where(trivial, still, _search(C, c, use) * c)
        return np.asarray(share / np.maximum(share.sum(-1, keepdims=True), np.finfo(np.float64).tiny))


def _search(C: Floats, c: Floats, use: Bools) -> Floats:
    """The minimiser b (n, m) of bᵀCb over cᵀb = 1, b ≥ 0, with b = 0 outside `use`.

    A major cycle adds the row that violates the optimality condition Cb ≥ (bᵀCb) c most, and then drops rows until the
    minimiser on the support S, x ∝ C_SS⁻¹ c_S, is positive. In exact arithmetic each cycle lowers the value; a cycle
    that raises it, or returns to an earlier point, has reached rounding precision and ends the search. A violation of δ
    lowers the value by only about δ², which rounding can hide: up to m cycles in a row may leave the value unchanged,
    and the answer is the one among them with the smallest violation.
    """
    n, m = c.shape
    index, unit = np.arange(m), np.eye(m)
    ridged = C + _RIDGE * unit
    support = use & (index == c.argmax(-1)[:, None])
    b: Floats = support.astype(np.float64)
    best: Floats = b
    lowest, failing = np.full((2, n, 1), np.inf)
    stalls = np.zeros((n, 1), np.int64)
    live = use.any(-1, keepdims=True)
    inside = np.zeros_like(live)  # inside a major cycle: rows are still being dropped
    for _ in range(16 * (m + 4)):
        pull = (C @ b[:, :, None])[:, :, 0]
        value = (b * pull).sum(-1, keepdims=True)
        slack = np.where(support | ~use, np.inf, pull - value * c)
        fails = -slack.min(-1, keepdims=True)
        noise = 4 * _EPS * b.sum(-1, keepdims=True)  # the rounding error of an entry of `pull`
        blur = noise * b.sum(-1, keepdims=True)  # the rounding error of `value`
        arrived = live & ~inside
        lower = arrived & (value < lowest - blur)
        level = arrived & ~lower & (value <= lowest + blur) & (b != best).any(-1, keepdims=True)
        stalls = np.where(lower, 0, stalls + level)
        better = lower | (level & (fails < failing))
        best, failing = np.where(better, b, best), np.where(better, fails, failing)
        lowest = np.where(lower, value, lowest)
        # If the value is at most eps, 0 is in the hull within this precision.
        optimal = (value <= _EPS) | (fails <= np.maximum(_SLACK * np.sqrt(value), noise))
        enter = (lower | (level & (stalls <= m))) & ~optimal
        live = enter | (live & inside)
        if not live.any():
            break
        support = support | (enter & (index == slack.argmin(-1)[:, None]))
        x = _solve(np.where(support[:, :, None] & support[:, None, :], ridged, unit), c * support)
        x = x / (c * x).sum(-1, keepdims=True)
        # From b towards x as far as b ≥ 0 allows; the rows that stop it leave the support.
        room = np.where(support & ~(x > 0), b / np.maximum(b - x, _EPS**2), np.inf)
        step = room.min(-1, keepdims=True)
        inside = step <= 1
        drop = inside & (room <= step)
        b = np.where(drop, 0.0, np.where(inside, b + step * (x - b), x))
        support = support & ~drop
    return best


def _solve(A: Floats, y: Floats) -> Floats:
    """A⁻¹y for A (n, m, m), y (n, m); not finite where A is singular."""
    # numpy rejects the whole batch if one system is singular.
    return np.asarray(torch.linalg.solve_ex(torch.from_numpy(A), torch.from_numpy(y)[..., None]).result[..., 0].numpy())
