"""Counter-based random numbers: functions of a seed and a counter, for weightings that draw."""

import torch
from torch import Tensor

from equipoise.batch import wide_dtype

__all__ = ["mix", "normals"]


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit integers that looks random (after splitmix64).

    Unlike a generator it has no state, and gives the same numbers on every device, batched and compiled.
    """
    x = x + 0x1E3779B97F4A7C15
    x = (x ^ _right(x, 30)) * 0x3F58476D1CE4E5B9
    x = (x ^ _right(x, 27)) * 0x14D049BB133111EB
    return x ^ _right(x, 31)


def normals(bits: Tensor) -> Tensor:
    """Standard normal numbers from mixed 64-bit integers, by the inverse distribution function; the same shape."""
    dtype = wide_dtype(bits.device)
    share = (_right(bits, 11).to(dtype) + 0.5) * 2.0**-53
    tiny = torch.finfo(dtype).eps / 2
    found: Tensor = torch.special.ndtri(share.clamp(tiny, 1.0 - tiny))
    return found


def _right(x: Tensor, bits: int) -> Tensor:
    """A logical right shift: an arithmetic one would give x and ~x the same value."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
