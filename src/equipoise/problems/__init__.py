"""Synthetic problems that know their bounds, front and reference point."""

from equipoise.problems.convex import Bounds, Planted
from equipoise.problems.f_family import F1, F2, F3, F4, F5, F6
from equipoise.problems.protocol import KnownFront, Problem
from equipoise.problems.vlmop2 import VLMOP2

__all__ = [
    "F1",
    "F2",
    "F3",
    "F4",
    "F5",
    "F6",
    "VLMOP2",
    "Bounds",
    "KnownFront",
    "Planted",
    "Problem",
    "problems",
]


def problems() -> dict[str, KnownFront]:
    """The problems of the paper's hypervolume table, by name and in its order."""
    table: list[KnownFront] = [VLMOP2(), F1(), F2(), F3(), F4(), F5(), F6()]
    return {problem.name: problem for problem in table}
