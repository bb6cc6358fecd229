"""Objectives by number or by name."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

from equipoise.errors import require

__all__ = ["read_objectives"]


def read_objectives(objectives: int | Sequence[str]) -> tuple[int, tuple[str, ...] | None]:
    """Their number, and their names if they have any."""
    given: object = objectives
    if isinstance(given, Integral) and not isinstance(given, bool):
        m = int(given)
        require(m >= 2, "objectives must be at least 2", m)
        return m, None
    rule = "objectives must be a number or a list of names"
    weighted = isinstance(given, Mapping)
    require(not weighted, f"{rule}, without weights: a preference is given in every call", lambda: f"{given!r:.80}")
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    require(all(isinstance(name, str) for name in names), rule, lambda: f"{given!r:.80}")
    require(len(names) >= 2, "objectives must be at least 2", len(names))
    require(len(set(names)) == len(names), "objectives must have names that differ from one another", names)
    return len(names), tuple(map(str, names))
