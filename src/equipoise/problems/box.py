"""Points of the box [lower, upper]^d, and of a line."""

import torch
from torch import Tensor

from equipoise.errors import require


def require_points(x: Tensor, d: int) -> None:
    """Raise ValueError unless x has shape (*B, d)."""
    fits = x.ndim > 0 and x.shape[-1] == d
    require(fits, f"x must have {d} variables in its last dimension", lambda: f"shape {[*x.shape]}")


def uniform(count: int, d: int, seed: int, *, lower: float, upper: float) -> Tensor:
    """Points (count, d), uniform on the box, in float32 on the CPU.

    The same as `torch.manual_seed(seed)` followed by `torch.rand(count, d)`, without using the global generator.
    """
    require(count >= 1, "count must be at least 1", count)
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(count, d, generator=generator, dtype=torch.float32)
    return unit * (upper - lower) + lower


def line(n: int, start: float, end: float) -> Tensor:
    """Equally spaced numbers from one end to the other, (n,) in float64."""
    require(n >= 2, "n must be at least 2", n)
    return torch.linspace(start, end, n, dtype=torch.float64)
