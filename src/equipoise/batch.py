"""The batch shape as a law: what comes with losses (*B, m) must fit their shape."""

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["fit", "fit_mask"]


def fit(name: str, tensor: Tensor, losses: Tensor) -> Tensor:
    """A tensor expanded to the losses' shape (*B, m), or a ValueError that names it."""
    shape = (1,) * (losses.ndim - tensor.ndim) + tensor.shape
    fits = len(shape) == losses.ndim and all(a in {1, b} for a, b in zip(shape, losses.shape, strict=True))
    require(fits, f"{name} must broadcast to the losses' shape {tuple(losses.shape)}", tuple(tensor.shape))
    return tensor.detach().expand(losses.shape)


def fit_mask(mask: Tensor | None, losses: Tensor) -> Tensor | None:
    """A mask expanded to the losses' shape and brought to their device; None stays None."""
    return None if mask is None else fit("mask", mask, losses).to(device=losses.device, dtype=torch.bool)
