"""Synthetic problems that know their bounds, front and reference point."""

from equipoise.problems.convex import Bounds, Needle, Planted
from equipoise.problems.dtlz import DTLZ1, DTLZ2, DTLZ3, DTLZ4, DTLZ7
from equipoise.problems.f_family import F1, F2, F3, F4, F5, F6
from equipoise.problems.protocol import KnownFront, Problem
from equipoise.problems.vlmop1 import VLMOP1
from equipoise.problems.vlmop2 import VLMOP2
from equipoise.problems.zdt import ZDT1, ZDT2, ZDT3, ZDT4, ZDT6

__all__ = [
    "DTLZ1",
    "DTLZ2",
    "DTLZ3",
    "DTLZ4",
    "DTLZ7",
    "F1",
    "F2",
    "F3",
    "F4",
    "F5",
    "F6",
    "VLMOP1",
    "VLMOP2",
    "ZDT1",
    "ZDT2",
    "ZDT3",
    "ZDT4",
    "ZDT6",
    "Bounds",
    "KnownFront",
    "Needle",
    "Planted",
    "Problem",
    "problems",
]


def problems() -> dict[str, KnownFront]:
    """The problems by name: those of the paper's hypervolume table in its order, then the others.

    DTLZ problems have three objectives here; construct them for another number.

    Examples:
        >>> problems = eq.problems.problems()
        >>> problems["DTLZ2"].m, problems["DTLZ2"].d
        (3, 12)
        >>> list(problems)[:3]
        ['VLMOP2', 'F1', 'F2']
    """
    paper: list[KnownFront] = [VLMOP2(), F1(), F2(), F3(), F4(), F5(), F6()]
    others: list[KnownFront] = [VLMOP1(), ZDT1(), ZDT2(), ZDT3(), ZDT4(), ZDT6()]
    many: list[KnownFront] = [DTLZ1(), DTLZ2(), DTLZ3(), DTLZ4(), DTLZ7()]
    return {problem.name: problem for problem in (*paper, *others, *many)}
