"""Dominance, and the distance of points from a front."""

import torch
from torch import Tensor

from equipoise.batch import floating
from equipoise.errors import require


def non_dominated(points: Tensor) -> Tensor:
    """Which points of each set are non-dominated, for minimisation.

    q dominates p if q ≤ p in every coordinate and q < p in one; so equal points do not dominate
    each other and all stay. A point that is not finite is never kept and dominates nothing. Memory
    grows with n².

    Args:
        points: Sets of n points (*B, n, m).

    Returns:
        A boolean mask (*B, n).

    Examples:
        >>> eq.metrics.non_dominated(torch.tensor([[1.0, 3.0], [2.0, 2.0], [3.0, 3.0]])).tolist()
        [True, True, False]
    """
    points = _sets("points", points)
    shape = (*points.shape[:-1], points.shape[-2])
    no_worse = torch.ones(shape, dtype=torch.bool, device=points.device)
    better = torch.zeros_like(no_worse)
    for f in points.unbind(-1):
        q, p = f.unsqueeze(-1), f.unsqueeze(-2)
        no_worse &= q <= p
        better |= q < p
    finite = points.isfinite().all(-1)
    dominated = (no_worse & better & finite.unsqueeze(-1)).any(-2)
    return finite & ~dominated


def igd(points: Tensor, front: Tensor) -> Tensor:
    """Inverted generational distance: mean over the front of the distance to the nearest point.

    Points that are not finite count as absent; with none left the distance is infinite.

    Args:
        points: Sets of n ≥ 1 points (*B, n, m).
        front: Points of the front (k, m) or (*B, k, m), k ≥ 1, all finite.

    Returns:
        The distances (*B,), differentiable.

    Examples:
        >>> front = torch.tensor([[0.0, 4.0], [3.0, 0.0]])
        >>> eq.metrics.igd(torch.tensor([[3.0, 0.0]]), front).item()  # mean of 5 and 0
        2.5
    """
    return _mean_distance(points, front, dominating=False)


def igd_plus(points: Tensor, front: Tensor) -> Tensor:
    """IGD+, which never prefers a dominated point: only coordinates in which a point is worse count.

    The distance of the point p from z on the front is ‖max(p - z, 0)‖. Otherwise like `igd`.

    Args:
        points: Sets of n ≥ 1 points (*B, n, m).
        front: Points of the front (k, m) or (*B, k, m), k ≥ 1, all finite.

    Returns:
        The distances (*B,), differentiable.

    Examples:
        >>> front = torch.tensor([[0.0, 4.0], [3.0, 0.0]])
        >>> eq.metrics.igd_plus(torch.tensor([[3.0, 0.0]]), front).item()  # mean of 3 and 0
        1.5
    """
    return _mean_distance(points, front, dominating=True)


def _mean_distance(points: Tensor, front: Tensor, *, dominating: bool) -> Tensor:
    points, front = _sets("points", points, least=1), _sets("front", front, least=1)
    ours, theirs = points.shape[-1], front.shape[-1]
    require(ours == theirs, "points and front must have the same number of objectives", f"{ours} and {theirs}")
    finite = points.isfinite().all(-1)
    offset = points.where(finite.unsqueeze(-1), 0).unsqueeze(-3) - front.unsqueeze(-2)
    if dominating:
        offset = offset.clamp_min(0)
    distance: Tensor = torch.linalg.vector_norm(offset, dim=-1)
    return distance.where(finite.unsqueeze(-2), torch.inf).amin(-1).mean(-1)


def _sets(name: str, value: Tensor, least: int = 0) -> Tensor:
    value = floating(name, value)
    fits = value.ndim >= 2 and value.shape[-2] >= least
    require(fits, f"{name} must have shape (*B, n, m) with n ≥ {least}", [*value.shape])
    return value
