"""Preferences: vectors w of the simplex, for which Tchebycheff scalarization targets f ∝ 1/w.

They mean the same everywhere: w_i is the weight of objective i, so a larger w_i asks for a smaller
f_i, and at the solution the weighted objectives w_i (f_i − z_i) are all equal.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.batch import floating
from equipoise.errors import require

__all__ = ["grid", "linspace", "ray", "through", "validate"]


def validate(preference: Tensor | Sequence[float] | Sequence[Sequence[float]], m: int | None = None) -> Tensor:
    """Check that a preference lies in the simplex. It is never rescaled.

    Args:
        preference: Shape (*B, m).
        m: The number of objectives, if it is known.

    Returns:
        The preference as a floating-point tensor, shape (*B, m).

    Raises:
        ValueError: For an entry that is negative or not finite, a sum other than one, or a length other than m.

    Examples:
        >>> eq.preference.validate([0.25, 0.75]).tolist()
        [0.25, 0.75]
        >>> eq.preference.validate([1.0, 3.0])
        Traceback (most recent call last):
            ...
        ValueError: preference must be non-negative and sum to 1; found sum 4.00 (divide the entries by it)
    """
    w = floating("preference", read(preference))
    require(
        w.ndim >= 1 and w.shape[-1] >= 1,
        "preference must have shape (*B, m) with m ≥ 1",
        lambda: f"(), the one number {w.item():g}" if w.ndim == 0 else tuple(w.shape),
    )
    require(
        m is None or w.shape[-1] == m,
        f"preference must have {m} entries, one per objective",
        w.shape[-1],
    )
    require(
        bool((w >= 0).all()),
        "preference must be non-negative and sum to 1",
        lambda: f"entry {_worst(w):.4g}",
    )
    off = (w.sum(-1) - 1.0).abs()
    require(
        bool((off <= tolerance(w)).all()),
        "preference must be non-negative and sum to 1",
        lambda: f"sum {_shown(w.sum(-1).flatten()[off.flatten().argmax()].item())}",
    )
    return w


def tolerance(w: Tensor) -> float:
    """The tolerance for the sum of a preference, in its dtype."""
    return 1e-4 if w.dtype in {torch.float32, torch.float64} else 1e-2


def inverse(w: Tensor) -> Tensor:
    """1/w scaled to a largest entry of 1, (*B, m): a zero in w gives the axis, not an infinite vector."""
    least = w.detach().amin(-1, keepdim=True)
    return torch.where(w == 0, 1.0, least / torch.where(w == 0, 1.0, w))


def read(preference: object) -> Tensor:
    """Numbers as a tensor, or a ValueError; a tensor as it is."""
    if isinstance(preference, Tensor):
        return preference
    rule = "preference must be numbers, one per objective, such as [0.3, 0.7]"
    require(not isinstance(preference, str), rule, repr(preference))
    try:
        return torch.tensor(preference)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{rule}; found {preference!r:.80}") from None


def _shown(total: float) -> str:
    """The sum with two decimals, or as many as distinguish it from one, and the remedy."""
    number = f"{total:.2f}" if abs(total - 1.0) >= 0.005 else f"{total:.7g}"
    return f"{number} (divide the entries by it)" if 0.0 < total < math.inf else number


def _worst(w: Tensor) -> float:
    return float(w[~(w >= 0)].flatten()[0])


def grid(n: int, m: int, margin: float = 0.0) -> Tensor:
    """The uniform grid of Das and Dennis: all w with entries k/n, k = 0..n, that sum to one.

    Args:
        n: Divisions of each edge, at least 1. The grid has C(n + m − 1, m − 1) points.
        m: Objectives, at least 1.
        margin: The smallest entry: the grid is shrunk to {w_i ≥ margin}, so that no objective is left out.

    Returns:
        Shape (points, m), float64, in lexicographic order.

    Examples:
        >>> eq.preference.grid(2, 2).tolist()
        [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
        >>> tuple(eq.preference.grid(4, 3).shape)  # C(6, 2) points
        (15, 3)
    """
    require(n >= 1, "n must be at least 1", n)
    require(m >= 1, "m must be at least 1", m)
    require(0 <= margin * m < 1, f"margin must lie in [0, 1/m) = [0, {1 / m:.4g})", margin)
    # A point is a way to set m − 1 bars among n stars.
    chosen = list(itertools.combinations(range(n + m - 1), m - 1))
    bars = torch.tensor(chosen, dtype=torch.float64).reshape(len(chosen), m - 1)
    edge = torch.full((len(bars), 1), -1.0, dtype=torch.float64)
    stars = torch.cat([edge, bars, torch.full_like(edge, n + m - 1)], -1).diff(dim=-1) - 1.0
    return margin + (1.0 - m * margin) * stars / n


def linspace(n: int, margin: float = 0.01) -> Tensor:
    """The paper's grid for two objectives: w₁ evenly spaced from margin to 1 − margin, w₂ = 1 − w₁.

    Args:
        n: Points, at least 2.
        margin: The smallest entry.

    Returns:
        Shape (n, 2), float64.

    Examples:
        >>> eq.preference.linspace(3, margin=0.25).tolist()
        [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]
    """
    require(n >= 2, "n must be at least 2", n)
    return grid(n - 1, 2, margin)


def ray(preference: Tensor) -> Tensor:
    """The unit vector along f ∝ 1/w, on which the weighted objectives are equal.

    Args:
        preference: Positive, shape (*B, m).

    Returns:
        Shape (*B, m).

    Examples:
        >>> w = torch.tensor([4.0, 3.0]) / 7
        >>> [round(value, 3) for value in eq.preference.ray(w).tolist()]  # along (1/4, 1/3)
        [0.6, 0.8]
    """
    w = validate(preference)
    require(bool((w > 0).all()), "preference must be positive to have a ray", lambda: w.min().item())
    along = inverse(w)
    length: Tensor = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    return along / length


def through(point: Tensor | Sequence[float], ideal: Tensor | float = 0.0) -> Tensor:
    """The preference whose Tchebycheff solution is a given point of the front: w ∝ 1/(f − z).

    The converse of Theorem 1: with that w, the weighted objectives of the point are all equal, so only a point that
    dominates it can have a smaller maximum.

    Args:
        point: Objective values f, above the ideal point in every coordinate, shape (*B, m).
        ideal: The ideal point z, broadcastable to `point`.

    Returns:
        Shape (*B, m).

    Examples:
        >>> eq.preference.through([3.0, 1.0]).tolist()  # w∘f = (¾, ¾)
        [0.25, 0.75]
    """
    above = torch.as_tensor(point) - ideal
    sound = (above > 0) & torch.isfinite(above)
    require(
        bool(sound.all()),
        "point must be finite and above the ideal point in every objective",
        lambda: f"difference {above[~sound][0].item():.4g}",
    )
    w = inverse(above)
    return w / w.sum(-1, keepdim=True)
