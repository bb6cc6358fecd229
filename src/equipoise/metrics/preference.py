"""How well a solution meets its preference.

A preference w asks for the point of the front where all w_i (f_i - z_i) are equal, which is where
the ray f - z ∝ 1/w meets it. These functions do not synchronise with the device and take any leading
shapes of losses and preference that broadcast.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.batch import floating
from equipoise.errors import require
from equipoise.preference import inverse


def tch(losses: Tensor, preference: Tensor | Sequence[float], ideal: float | Tensor = 0.0) -> Tensor:
    """Tchebycheff value max_i w_i (f_i - z_i).

    Args:
        losses: f (*B, m).
        preference: w (m,) or (*B, m).
        ideal: z, a number or a tensor (m,) or (*B, m).

    Returns:
        The values (*B,).

    Examples:
        >>> eq.metrics.tch(torch.tensor([4.0, 2.0]), [0.25, 0.75]).item()  # the larger of 1 and 1.5
        1.5
    """
    return _weighted(losses, preference, ideal).amax(-1)


def imbalance(losses: Tensor, preference: Tensor | Sequence[float], ideal: float | Tensor = 0.0) -> Tensor:
    """Largest over smallest w_i (f_i - z_i), minus 1: 0 where the preference is met exactly.

    Infinite where the smallest is not positive, as with a zero in the preference, unless all are
    equal.

    Args:
        losses: f (*B, m).
        preference: w (m,) or (*B, m).
        ideal: z, a number or a tensor (m,) or (*B, m).

    Returns:
        The imbalances (*B,).

    Examples:
        >>> losses = torch.tensor([[4.0, 2.0], [3.0, 1.0]])
        >>> eq.metrics.imbalance(losses, [0.25, 0.75]).tolist()  # 1.5/1 − 1, and 0.75 = 0.75
        [0.5, 0.0]
    """
    weighted = _weighted(losses, preference, ideal)
    high, low = weighted.amax(-1), weighted.amin(-1)
    excess = high - low
    # The inner 1 is never used: it keeps a division by zero out of the gradient.
    ratio = (excess / low.where(low != 0, 1)).where(~(low <= 0), torch.inf)
    return ratio.where(excess != 0, 0)


def angle(losses: Tensor, preference: Tensor | Sequence[float], ideal: float | Tensor = 0.0) -> Tensor:
    """Angle in radians between f - z and the ray 1/w: 0 where the preference is met exactly.

    Accurate even for tiny angles. NaN where f = z, which lies on every ray.

    Args:
        losses: f (*B, m).
        preference: w (m,) or (*B, m).
        ideal: z, a number or a tensor (m,) or (*B, m).

    Returns:
        The angles (*B,).

    Examples:
        >>> losses = torch.tensor([[3.0, 1.0], [1.0, 0.0]])
        >>> [round(value, 3) for value in eq.metrics.angle(losses, [0.25, 0.75]).tolist()]  # the ray is (3, 1)
        [0.0, 0.322]
    """
    preference = _fitting(losses, preference)
    a, b = _unit(losses - ideal), _unit(inverse(preference))
    return 2 * torch.atan2(_norm(a - b), _norm(a + b))


def _norm(vector: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vector, dim=-1)
    return norm


def _unit(vector: Tensor) -> Tensor:
    return vector / _norm(vector).unsqueeze(-1)


def _weighted(losses: Tensor, preference: Tensor | Sequence[float], ideal: float | Tensor) -> Tensor:
    return _fitting(losses, preference) * (losses - ideal)


def _fitting(losses: Tensor, preference: Tensor | Sequence[float]) -> Tensor:
    """The preference as a tensor, or a ValueError if it is not for these losses."""
    losses = floating("losses", losses)
    w = torch.as_tensor(preference)
    require(
        losses.ndim > 0 and w.shape[-1:] == losses.shape[-1:],
        "preference must have one entry per objective in its last dimension",
        lambda: f"shape {[*w.shape]} for losses of shape {[*losses.shape]}",
    )
    return w
