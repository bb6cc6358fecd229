"""The shortest combination of gradients with weights in a box on the simplex, from their Gramian alone."""

import torch
from torch import Tensor

from equipoise.batch import apply, wide_dtype
from equipoise.errors import require
from equipoise.simplex import project_box

__all__ = ["box_min_norm"]

_RIDGES = (1e-9, 1e-12, 1e-15)
"""Ridges: they make the search strictly convex and prefer the most uniform of equally short combinations.

`_polish` removes their effect. The first is enough unless rows differ in length by about 1e3."""
_SLACK = 1e-13
"""Tolerance of derivatives on the scaled Gramian: far below the ridge, so that ties are detected."""
_RANK = 1e-13
"""Eigenvalues below this fraction of the largest count as 0."""
_WARM = 32
"""With more objectives than this, a first-order method finds a start for the active set."""
_STEPS = 200


def box_min_norm(gramian: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    r"""Solve min αᵀKα over {l ≤ α ≤ u, Σα = 1}; of several solutions the one with the smallest ‖α‖₂.

    An active-set method finds the active bounds; for many objectives it starts from accelerated projected gradients
    with restarts (FISTA). On the remaining face, linear algebra gives the solution of smallest norm. The optimality
    conditions hold to about 1e-13 of the largest K_ii. Without a box, `min_norm` is more accurate for rows of very
    different lengths.

    The solution is a constant for autograd. The batch is solved on the host, until its slowest instance is done.

    Args:
        gramian: K, symmetric positive semi-definite, finite, shape (*B, m, m).
        lower: l ≥ 0, broadcastable to (*B, m), with Σl ≤ 1.
        upper: u, broadcastable to (*B, m), with Σu ≥ 1.

    Returns:
        α in float64, shape (*B, m).

    Examples:
        >>> from equipoise.boxqp import box_min_norm
        >>> [round(value, 6) for value in box_min_norm(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), 0.3, 0.7).tolist()]
        [0.7, 0.3]
    """
    require(
        gramian.ndim >= 2 and gramian.shape[-1] == gramian.shape[-2] >= 1,
        "gramian must have shape (*B, m, m) with m ≥ 1",
        tuple(gramian.shape),
    )
    K, shape, m = gramian.detach().cpu().to(torch.float64), gramian.shape[:-1], gramian.shape[-1]
    finite = torch.isfinite(K)
    require(bool(finite.all()), "gramian must be finite", K[~finite][:1].tolist())
    low, high = (torch.as_tensor(x, dtype=K.dtype, device="cpu").detach().expand(shape) for x in (lower, upper))
    start = project_box(torch.full(shape, 1.0 / m, dtype=K.dtype), low, high).reshape(-1, m)
    K, low, high = K.reshape(-1, m, m), low.reshape(-1, m), high.reshape(-1, m)
    size = K.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None]
    K = K / torch.where(size > 0, size, 1.0)

    alpha = _approach(K, start, low, high) if m > _WARM else start
    solved = torch.zeros_like(alpha[:, :1], dtype=torch.bool)
    for ridge in _RIDGES:
        found, free = _active_set(K + ridge * torch.eye(m, dtype=K.dtype), alpha, low, high)
        alpha = torch.where(solved, alpha, _polish(K, found, free, low, high))
        solved = _gap(K, alpha, low, high) <= _SLACK
        if bool(solved.all()):
            break
    return alpha.reshape(shape).to(device=gramian.device, dtype=wide_dtype(gramian.device))


def _approach(K: Tensor, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """FISTA, restarted where its momentum points uphill, from `start` (n, m)."""
    # The largest eigenvalue is at most the largest absolute row sum.
    rate = 1.0 / K.abs().sum(-1).amax(-1, keepdim=True).clamp_min(1.0)
    x = ahead = start
    age = torch.ones_like(rate)
    for _ in range(_STEPS):
        new = project_box(ahead - rate * apply(K, ahead), low, high)
        uphill = ((ahead - new) * (new - x)).sum(-1, keepdim=True) > 0
        age = torch.where(uphill, 1.0, age)
        older = 0.5 * (1.0 + (1.0 + 4.0 * age.square()).sqrt())
        ahead = new + (age - 1.0) / older * (new - x)
        x, age = new, older
    return x


def _active_set(K: Tensor, alpha: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The minimiser (n, m) for a positive definite K from a feasible α, and which coordinates are free.

    A step goes towards the minimiser over the free coordinates. If it meets a bound, it stops there and the coordinate
    is held. At the minimiser, the held coordinate whose release helps most is freed. Each step lowers αᵀKα, so no
    active set occurs twice.
    """
    m = alpha.shape[-1]
    index, unit = torch.arange(m), torch.eye(m, dtype=K.dtype)
    movable = low < high
    free = movable & (alpha > low) & (alpha < high)
    for _ in range(16 * (m + 4)):
        move = _towards_minimum(K, alpha, free, unit)
        room = torch.where(move < 0, low - alpha, high - alpha) / torch.where(move == 0, 1.0, move)
        room = torch.where(free & (move != 0), room, torch.inf)
        nearest = room.amin(-1, keepdim=True)
        blocked = nearest < 1
        hit = blocked & (room <= nearest)
        alpha = alpha + torch.where(free, nearest.clamp(0.0, 1.0) * move, 0.0)
        alpha = torch.where(hit, torch.where(move < 0, low, high), torch.clamp(alpha, low, high))
        free = free & ~hit

        pull = apply(K, alpha)
        level = torch.where(free, pull, 0.0).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp_min(1)
        down, up = movable & (alpha > low), movable & (alpha < high)
        highest = torch.where(down, pull, -torch.inf)
        lowest = torch.where(up, pull, torch.inf)
        # With no free coordinate, weight can only move between two held ones: free both.
        nothing = ~free.any(-1, keepdim=True)
        over, under = highest.amax(-1, keepdim=True), lowest.amin(-1, keepdim=True)
        gain = torch.where(nothing, over - under, torch.maximum(over - level, level - under))
        release = ~blocked & (gain > _SLACK)
        if not bool((blocked | release).any()):
            break
        from_above = nothing | (over - level >= level - under)
        from_below = nothing | ~from_above
        chosen = (from_above & (index == highest.argmax(-1, keepdim=True))) | (
            from_below & (index == lowest.argmin(-1, keepdim=True))
        )
        free = free | (release & chosen)
    return alpha, free


def _towards_minimum(K: Tensor, alpha: Tensor, free: Tensor, unit: Tensor) -> Tensor:
    """From α to the minimiser over its free coordinates with the same sum; 0 elsewhere, (n, m)."""
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    sides = torch.stack([torch.where(free, apply(K, alpha), 0.0), free.to(K)], -1)
    along, even = torch.linalg.solve_ex(torch.where(both, K, unit), sides).result.unbind(-1)
    total = even.sum(-1, keepdim=True)
    move = along.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total) * even - along
    move = move - move.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(free & torch.isfinite(move).all(-1, keepdim=True), move, 0.0)


def _polish(K: Tensor, alpha: Tensor, free: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The shortest of the minimisers on the face of α, without the ridge; α where that is not a solution."""
    share = free.to(K) / free.sum(-1, keepdim=True).clamp_min(1)
    face = torch.diag_embed(free.to(K)) - share.unsqueeze(-1) * free.to(K).unsqueeze(-2)
    values, vectors = torch.linalg.eigh(face @ K @ face)
    real = values > _RANK * values[:, -1:].clamp_min(torch.finfo(K.dtype).tiny)
    inverse = torch.where(real, 1.0, 0.0) / torch.where(real, values, 1.0)
    pull = apply(face, apply(K, alpha))
    step = apply(face, apply(vectors, inverse * apply(vectors.mT, pull)))
    # The part of α in the null space of K on the face.
    idle = apply(face, apply(vectors, torch.where(real, 0.0, 1.0) * apply(vectors.mT, apply(face, alpha))))
    found = alpha - torch.where(free, step + idle, 0.0)
    fits = ((found >= low - _SLACK) & (found <= high + _SLACK)).all(-1, keepdim=True)
    found = torch.clamp(found, low, high)
    better = fits & (_gap(K, found, low, high) <= _gap(K, alpha, low, high) + _SLACK)
    return torch.where(better, found, alpha)


def _gap(K: Tensor, alpha: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How much moving weight between two coordinates still helps: 0 at a solution, (n, 1)."""
    pull = apply(K, alpha)
    over = torch.where(alpha > low, pull, -torch.inf).amax(-1, keepdim=True)
    under = torch.where(alpha < high, pull, torch.inf).amin(-1, keepdim=True)
    return (over - under).clamp_min(0.0)
