"""Batch shapes: everything passed along with losses (*B, m) must broadcast to their shape."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = [
    "Number",
    "apply",
    "check_non_negative",
    "check_positive",
    "check_state",
    "constant",
    "fit",
    "fit_mask",
    "floating",
    "known",
    "per_instance",
    "whole",
    "wide_dtype",
]

Number = float | Tensor
"""A setting: a float, or in a sweep a tensor that broadcasts over the batch shape."""


def floating(name: str, value: Tensor) -> Tensor:
    """A tensor, whole numbers as floating-point ones, or a ValueError that names what is no tensor."""
    given: object = value
    require(isinstance(given, Tensor), f"{name} must be a tensor", lambda: type(given).__name__)
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def whole(name: str, given: int, least: int = 1) -> int:
    """A whole number of any type, such as numpy's, as an int; or a ValueError that names it."""
    if type(given) is int and given >= least:  # all that torch.compile needs to follow
        return given
    rule = f"{name} must be a {'whole number of at least 1' if least else 'non-negative whole number'}"
    require(not isinstance(given, bool) and hasattr(given, "__index__"), rule, lambda: repr(given))
    number = operator.index(given)
    require(number >= least, rule, given)
    return number


def fit(name: str, tensor: Tensor, losses: Tensor) -> Tensor:
    """A tensor expanded to the losses' shape (*B, m), or a ValueError that names it."""
    if tensor.shape == losses.shape:
        return tensor.detach()
    shape = (1,) * (losses.ndim - tensor.ndim) + tensor.shape
    fits = len(shape) == losses.ndim and all(a in {1, b} for a, b in zip(shape, losses.shape, strict=True))
    require(fits, f"{name} must broadcast to the losses' shape {tuple(losses.shape)}", tuple(tensor.shape))
    return tensor.detach().expand(losses.shape)


def fit_mask(mask: Tensor | None, losses: Tensor) -> Tensor | None:
    """A mask expanded to the losses' shape, on their device; None stays None."""
    return None if mask is None else fit("mask", mask, losses).to(device=losses.device, dtype=torch.bool)


def known(flag: Tensor) -> bool | None:
    """The value of a flag, or None if reading it would need a device synchronisation or a graph break."""
    if torch.compiler.is_compiling() or flag.device.type != "cpu":
        return None
    try:
        return bool(flag)
    except RuntimeError:  # under vmap values cannot be read
        return None


def check_state(held: Tensor, losses: Tensor, width: int | None = None) -> None:
    """Raise ValueError unless a state's tensor (*B, width) was made for losses of this shape; width None is m."""
    shape = tuple(losses.shape)
    wanted = shape if width is None else (*shape[:-1], width)
    require(held.shape == wanted, f"state must be of losses of shape {shape}", tuple(held.shape))


def check_non_negative(name: str, value: Number) -> None:
    """Raise ValueError unless a setting, or every value of a sweep, is non-negative and finite."""
    x = torch.as_tensor(value)
    require(bool(((x >= 0) & torch.isfinite(x)).all()), f"{name} must be non-negative and finite", value)


def check_positive(name: str, value: Number) -> None:
    """Raise ValueError unless a setting, or every value of a sweep, is positive and finite."""
    x = torch.as_tensor(value)
    require(bool(((x > 0) & torch.isfinite(x)).all()), f"{name} must be positive and finite", value)


def per_instance(name: str, value: Number, like: Tensor) -> Number:
    """A setting that broadcasts with tensors (*B, m): a swept one gets a last dimension.

    Raises:
        ValueError: If a swept setting does not broadcast to *B.
    """
    if not isinstance(value, Tensor):
        return value
    batch = like.shape[:-1]
    fits = value.ndim <= len(batch) and all(a in {1, b} for a, b in zip(value.shape[::-1], batch[::-1], strict=False))
    require(fits, f"{name} must broadcast to the batch shape {tuple(batch)}", tuple(value.shape))
    return value.to(dtype=like.dtype, device=like.device).unsqueeze(-1)


def constant(value: float | Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A setting as a tensor with the dtype and device of `like`, without synchronising with that device.

    Copying from host memory would synchronise in every step. So a number is filled in on the device, and a tuple is
    copied once and cached.
    """
    if isinstance(value, Tensor):
        return value.detach().to(like)
    if isinstance(value, Sequence):
        value = tuple(value)
    else:
        return torch.full((), value, dtype=like.dtype, device=like.device)
    if torch.compiler.is_compiling():
        return torch.tensor(value, dtype=like.dtype, device=like.device)
    key = (value, like.dtype, like.device)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = torch.tensor(value, dtype=like.dtype, device=like.device)
    return _CONSTANTS[key]


_CONSTANTS: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}


def wide_dtype(device: torch.device) -> torch.dtype:
    """float64 if the device supports it, else float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    """A matrix (*B, n, m) times a vector (*B, m), shape (*B, n)."""
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)
