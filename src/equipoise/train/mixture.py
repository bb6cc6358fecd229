"""How many samples of each domain a step draws: bounded probabilities, and unbiased rounding to whole numbers."""

import math
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Numbers", "allot", "bounded"]

Numbers = NDArray[np.float64]
"""One number per domain, (m,)."""


def bounded(q: Numbers, low: float, high: float | Numbers) -> Numbers:
    """Probabilities within bounds: min(max(s·q, low), high), with s such that the sum is 1.

    Args:
        q: Positive, of sum 1, (m,).
        low: The lower bound of all; at most 1/m.
        high: Upper bounds, not below `low`; their sum is at least 1.

    Examples:
        >>> import numpy as np
        >>> from equipoise.train.mixture import bounded
        >>> bounded(np.array([0.9, 0.08, 0.02]), low=0.1, high=0.6).round(3).tolist()
        [0.6, 0.3, 0.1]
    """
    if q.min() >= low and (q <= high).all():
        return q
    # The sum grows with s and is linear between the values of s at which an entry meets a bound.
    factors = np.sort(np.concatenate([low / q, high / q]))
    sums: Numbers = np.clip(factors[:, None] * q, low, high).sum(1)
    found: Numbers = np.clip(np.interp(1.0, sums, factors) * q, low, high)
    return found


def allot(expected: Numbers, shift: float) -> NDArray[np.int64]:
    """Whole numbers k with E k = `expected` for a `shift` that is uniform on [0, 1): each is rounded up or down.

    The fractional parts are laid end to end; the points shift, shift + 1, … mark those that are rounded up.

    Args:
        expected: Non-negative numbers whose sum is a whole number, (m,).
        shift: In [0, 1).

    Examples:
        >>> import numpy as np
        >>> from equipoise.train.mixture import allot
        >>> expected = np.array([1.5, 2.25, 0.25])
        >>> [allot(expected, shift).tolist() for shift in (0.1, 0.6, 0.9)]
        [[2, 2, 0], [1, 3, 0], [1, 2, 1]]
    """
    # Plain loops: between training steps, array operations on few numbers take twice as long.
    given = expected.tolist()
    sure = [math.floor(x + 1e-9) for x in given]  # a cumulated sum such as 0.9999999999 is a rounded 1
    rest = round(sum(given)) - sum(sure)
    ends = accumulate(max(x - k, 0.0) for x, k in zip(given, sure, strict=True))
    marks = [0, *(math.ceil(min(end, rest) - shift) for end in ends)]
    marks[-1] = rest
    return np.array([k + b - a for k, (a, b) in zip(sure, pairwise(marks), strict=True)], np.int64)
