"""Fronts in several pieces, each piece an interval of f1.

A front f2 = h(f1) consists of the f1 at which h is lower than anywhere to the left. Those f1 form intervals. Each ends
at a local minimum of h, which belongs to it. The next one begins where h falls below that level again; that end does
not belong to it.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

Pieces = Sequence[tuple[float, float]]
"""The intervals from left to right, as pairs of their ends."""


def snap(t: Tensor, pieces: Pieces) -> Tensor:
    """The largest point of the pieces that is not above t, elementwise; t must not be below all pieces."""
    point = t.clamp_max(pieces[-1][1])
    for (_, end), (start, _) in itertools.pairwise(pieces):
        point = torch.where((t > end) & (t <= start), end, point)
    return point


def inside(t: Tensor, pieces: Pieces) -> Tensor:
    """Whether t lies in a piece, elementwise."""
    return snap(t, pieces) == t


def spread(u: Tensor, pieces: Pieces) -> Tensor:
    """Map [0, 1] to the pieces, elementwise, from left to right at constant speed."""
    lengths = torch.tensor([end - start for start, end in pieces], dtype=u.dtype, device=u.device)
    walked = lengths.cumsum(0)
    way = u * walked[-1]
    # The end of a piece belongs to that piece.
    which = torch.searchsorted(walked, way.contiguous()).clamp_max(len(pieces) - 1)
    ends = torch.tensor([end for _, end in pieces], dtype=u.dtype, device=u.device)
    return ends[which] - (walked[which] - way)
