"""Several processes: losses, counts and gradient rows averaged over all ranks.

Every rank updates its weighting and its archive with the same numbers, so λ, the archive and the coefficients are the
same everywhere. A call all-reduces 2m numbers and nothing else.
"""

from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.errors import require
from equipoise.weighting.protocol import working_dtype

__all__ = ["Group", "Seen", "everywhere", "mean_losses", "mean_rows", "place", "ranks"]

Group: TypeAlias = "dist.ProcessGroup | None"
"""The ranks that train together; None: all of them."""


class Seen(NamedTuple):
    """The losses of one batch over all ranks."""

    values: Tensor
    """f, 0 where absent, (m,)."""
    counts: Tensor | None
    """n, the samples of each objective over all ranks, (m,); None where nothing was counted."""
    share: Tensor | None
    """R·n_local/n, the factor of this rank's losses when R ranks average their gradients, (m,); None is 1."""
    mask: Tensor | None
    """Which objectives are present, (m,); None for all."""


def ranks(group: Group) -> int:
    """How many processes train together, R."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """A process's rank and the number of ranks, by default those of the process group; or ValueError."""
    world_size = ranks(None) if world_size is None else world_size
    rank = (dist.get_rank() if dist.is_available() and dist.is_initialized() else 0) if rank is None else rank
    require(world_size >= 1, "world_size must be at least 1", world_size)
    require(0 <= rank < world_size, f"rank must lie in 0..{world_size - 1}", rank)
    return rank, world_size


def everywhere(fact: bool, device: torch.device, group: Group) -> bool:  # noqa: FBT001
    """Whether `fact` is true on all ranks; all ranks must call."""
    if ranks(group) == 1:
        return fact
    worst = torch.tensor(float(fact), device=device)
    dist.all_reduce(worst, dist.ReduceOp.MIN, group=group)
    return bool(worst)


def mean_losses(values: Tensor, counts: Tensor | None, group: Group) -> Seen:
    """The mean of each objective over the samples of all ranks.

    Args:
        values: This rank's losses, detached, (m,).
        counts: This rank's samples of each, (m,); None: the same number on every rank.
        group: The ranks.
    """
    R = ranks(group)
    here = None if counts is None else counts > 0
    local = values if here is None else torch.where(here, values, 0.0)
    if R == 1:
        return Seen(local, counts, None, here)
    n = torch.ones_like(values) if counts is None else counts
    sums = torch.cat([local * n, n]).to(working_dtype(values))
    dist.all_reduce(sums, group=group)
    total, samples = sums.chunk(2)
    present = samples > 0
    divisor = torch.where(present, samples, 1.0)
    mean = torch.where(present, total / divisor, 0.0).to(values)
    if counts is None:
        return Seen(mean, None, None, None)
    share = torch.where(present, R * n / divisor, 0.0)
    return Seen(mean, samples.to(values), share.to(values), present)


def mean_rows(rows: Tensor, seen: Seen, group: Group) -> Tensor:
    """The gradients of the losses over all ranks, (m, d), from this rank's; 0 where an objective is absent."""
    R = ranks(group)
    if seen.counts is None and R == 1:
        return rows
    weight = torch.ones_like(rows[:, :1]) if seen.share is None else seen.share.to(rows).unsqueeze(-1)
    if seen.share is None and seen.mask is not None:
        weight = seen.mask.to(rows).unsqueeze(-1)
    rows = torch.where(weight > 0, rows * weight, 0.0)
    if R > 1:
        dist.all_reduce(rows, group=group)
        rows /= R
    return rows
