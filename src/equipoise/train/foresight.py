"""Which weightings know the coefficients of a step before its losses."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["foresees", "looks_ahead"]


def looks_ahead(weighting: Any, preference: Tensor) -> bool:  # noqa: ANN401
    """Whether the coefficients of a step depend on the losses of that step; a wrapper is as what it wraps."""
    inner = getattr(weighting, "inner", None)
    return not foresees(weighting, preference) if inner is None else looks_ahead(inner, preference)


def foresees(weighting: Any, preference: Tensor) -> bool:  # noqa: ANN401
    """Whether the coefficients of a step are known before its losses."""
    if weighting.needs or getattr(weighting, "foreseen", None) is None:
        return False
    # One that updates otherwise than the class that it inherits `foreseen` from has not said so.
    update, foreseen = (_depth(type(weighting), name) for name in ("update", "foreseen"))
    return (
        foreseen <= update and weighting.foreseen(weighting.init(torch.zeros_like(preference)), preference) is not None
    )


def _depth(kind: type, name: str) -> int:
    """How far up something is defined; beyond all classes for what only an instance has."""
    line = kind.__mro__
    return next((k for k, c in enumerate(line) if name in vars(c)), len(line))
