"""Objectives by number or by name."""

from collections.abc import Sequence

from equipoise.errors import require

__all__ = ["read_objectives"]


def read_objectives(objectives: int | Sequence[str]) -> tuple[int, tuple[str, ...] | None]:
    """Their number, and their names if they have any."""
    if isinstance(objectives, int) and not isinstance(objectives, bool):
        require(objectives >= 2, "objectives must be at least 2", objectives)
        return objectives, None
    named = not isinstance(objectives, str | bool) and all(isinstance(name, str) for name in objectives)
    require(named, "objectives must be a number or a list of names", lambda: f"{objectives!r:.80}")
    assert not isinstance(objectives, int)  # noqa: S101
    names = tuple(objectives)
    require(len(names) >= 2, "objectives must be at least 2", len(names))
    require(len(set(names)) == len(names), "objectives must have names that differ from one another", names)
    return len(names), names
