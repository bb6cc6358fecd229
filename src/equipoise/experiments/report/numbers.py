"""Rounded numbers for the page."""

import math
from typing import Any

import torch

__all__ = ["short"]

DIGITS = 6


def short(values: torch.Tensor | float, digits: int = DIGITS) -> Any:  # noqa: ANN401
    """A number or nested lists of numbers, rounded to significant digits; None for non-finite ones.

    JSON has no NaN, and a page of full precision is three times as large.
    """
    return _cut(values.tolist() if isinstance(values, torch.Tensor) else values, digits)


def _cut(x: Any, digits: int) -> Any:  # noqa: ANN401
    if isinstance(x, list):
        return [_cut(y, digits) for y in x]
    if not math.isfinite(x):
        return None
    return float(f"{x:.{digits}g}")
