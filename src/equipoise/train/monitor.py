"""What a logger shows of a step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.batch import constant, wide_dtype
from equipoise.metrics import preference as trade_off
from equipoise.weighting.protocol import duals

__all__ = ["describe_step", "scaled", "slack"]


def scaled(weighting: Any, state: Any, losses: Tensor) -> Tensor:  # noqa: ANN401
    """The losses less the ideal point as the weighting sees them, in the widest dtype, (m,).

    Over the first losses where it is relative.
    """
    losses = losses.to(wide_dtype(losses.device))
    first = getattr(state, "first", None)
    losses = losses if first is None else losses / first
    inner = getattr(weighting, "inner", None)
    if inner is not None:
        return scaled(inner, getattr(state, "inner", state), losses)
    return losses - constant(getattr(weighting, "ideal", 0.0), losses)


def slack(weighted: Tensor) -> Tensor:
    """How far each weighted loss (m,) lies below the largest, as a share of that; NaN where it is not positive."""
    largest = weighted.amax(-1, keepdim=True)
    return 1 - weighted / torch.where(largest > 0, largest, torch.nan)


def describe_step(
    names: Sequence[str],
    weighting: Any,  # noqa: ANN401
    state: Any,  # noqa: ANN401
    preference: Tensor,
    losses: Mapping[str, Tensor],
    above: Tensor,
    coefficients: Tensor,
) -> dict[str, float]:
    """Losses, weighted losses, coefficients and λ by name, and how well the preference is met.

    Args:
        names: The objectives.
        weighting: The weighting.
        state: Its state.
        preference: w, (m,).
        losses: What is shown as it is, by its key, (m,) each.
        above: See `scaled`, (m,).
        coefficients: c, (m,).
    """
    weighted = preference.to(coefficients) * above
    vectors = {
        **losses,
        "weighted": weighted,
        "slack": slack(weighted),
        "coefficient": coefficients,
        "lambda": duals(weighting, state),
    }
    entries = {
        f"{key}/{name}": value
        for key, vector in vectors.items()
        if vector is not None
        for name, value in zip(names, vector.tolist(), strict=True)
    }
    # Nothing is asked of an objective of weight 0: it is not out of balance, whatever its loss.
    asked = preference > 0
    f, w = above[asked], preference.to(above)[asked]
    measures = {"imbalance": trade_off.imbalance(f, w), "angle": trade_off.angle(f, w)}
    entries["tch"] = float(trade_off.tch(above, preference.to(above)))
    return entries | {name: float(measure) for name, measure in measures.items()}
