"""The default method of a run whose trainer knows its length."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from equipoise.conversion import Average
from equipoise.registry import default

__all__ = ["with_length"]


def with_length(settings: Mapping[str, Any], steps: int | None) -> dict[str, Any]:
    """Arguments of a `MultiObjective`, in which `method=None` becomes the default for a run of this many steps.

    Args:
        settings: The arguments, among them `method`.
        steps: The length of the run in optimizer steps; None: unknown.
    """
    if steps is None or settings["method"] is not None:
        return dict(settings)
    method = default(steps=steps)
    limited = settings.get("limits") is not None
    return {**settings, "method": replace(method, conversion=Average(power=8.0)) if limited else method}
