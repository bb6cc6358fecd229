"""Groups as objectives: the mean loss of each, and mini-batches that hold as much of each."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from equipoise.errors import require

__all__ = ["GroupBalancedSampler", "group_losses"]


def group_losses(values: Tensor, groups: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The mean loss of every group of a batch, for `mol(losses, counts)`.

    No device is waited for. A group number out of range is named on the CPU; on an accelerator, and in what is
    compiled, it is left to torch's own assertions.

    Args:
        values: The loss of every sample, with its graph, (n,).
        groups: The group of every sample, whole numbers in 0..m−1, (n,).
        m: The number of groups.

    Returns:
        The mean losses in at least float32, 0 for a group that is not in the batch, (m,); and the samples of each
        group, 0 there, which masks it, (m,).

    Examples:
        >>> values, groups = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 0])
        >>> losses, counts = eq.group_losses(values, groups, m=3)
        >>> losses.tolist(), counts.tolist()
        ([3.0, 0.0, 1.0], [2.0, 0.0, 1.0])
    """
    require(type(m) is int and m >= 1, "m must be a whole number of at least 1", m)
    require(values.ndim == 1, "values must be one loss per sample, of shape (n,)", lambda: tuple(values.shape))
    require(values.is_floating_point(), "values must be floating-point numbers", values.dtype)
    require(
        groups.shape == values.shape,
        f"groups must be one number per sample, of shape {tuple(values.shape)}",
        lambda: tuple(groups.shape),
    )
    require(len(values) >= 1, "values must hold at least one sample", "an empty batch")
    _check_whole(groups)
    require(groups.device == values.device, f"groups must be on the device {values.device} of values", groups.device)
    if groups.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_range(groups, m)
    numbers = groups.long()
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    zeros = wide.new_zeros(m)
    counts = zeros.index_add(0, numbers, torch.ones_like(wide))
    return zeros.index_add(0, numbers, wide) / counts.clamp_min(1.0), counts


class GroupBalancedSampler(Sampler[int]):
    """Sample numbers for a DataLoader, of each group as many.

    The groups take turns: samples 1..m of an epoch are one of each group, in random order, so are the next m, and so
    on; no numbers of two groups differ by more than one. Each group goes through its samples in random order, and
    through all of them before one comes again. The order is a function of seed and epoch alone, whatever the number
    of workers; with several ranks each takes its part of one order, the same number of samples each.

    A run that is resumed after s steps of an epoch goes on by `sampler.set_epoch(epoch, start=s * batch_size)`.

    Args:
        groups: The group of every sample of the data set, whole numbers in 0..m−1, (n,).
        m: The number of groups; by default as many as `groups` shows.
        samples: How many samples an epoch has over all ranks, rounded up to a multiple of them; by default n.
        seed: Of the order.
        rank: Which part of the order this process takes; by default its rank in the process group, if there is one.
        world_size: In how many parts the order is divided; by default the number of ranks.

    Raises:
        ValueError: If a group has no samples; the message has its number.

    Examples:
        >>> groups = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        >>> sampler = eq.GroupBalancedSampler(groups)
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(groups), batch_size=4, sampler=sampler)
        >>> for epoch in range(2):
        ...     sampler.set_epoch(epoch)
        ...     print([batch.tolist().count(1) for (batch,) in loader])  # of group 1 in every batch
        [2, 2]
        [2, 2]
    """

    def __init__(
        self,
        groups: Tensor | Sequence[int],
        m: int | None = None,
        *,
        samples: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        numbers = torch.as_tensor(groups).detach().cpu()
        require(numbers.ndim == 1, "groups must be one number per sample, of shape (n,)", tuple(numbers.shape))
        require(len(numbers) >= 1, "groups must hold at least one sample", "none")
        _check_whole(numbers)
        m = int(numbers.max()) + 1 if m is None else m
        require(type(m) is int and m >= 1, "m must be a whole number of at least 1", m)
        _check_range(numbers, m)
        self._members = [torch.nonzero(numbers == group).squeeze(1) for group in range(m)]
        empty = [group for group, members in enumerate(self._members) if len(members) == 0]
        which = f"group{'s' if len(empty) > 1 else ''} {', '.join(map(str, empty))}"
        require(not empty, f"groups must hold a sample of each of the {m} groups", f"none of {which}")
        samples = len(numbers) if samples is None else samples
        require(type(samples) is int and samples >= 1, "samples must be a whole number of at least 1", samples)
        grouped = dist.is_available() and dist.is_initialized()
        self.world_size = (dist.get_world_size() if grouped else 1) if world_size is None else world_size
        self.rank = (dist.get_rank() if grouped else 0) if rank is None else rank
        require(self.world_size >= 1, "world_size must be at least 1", self.world_size)
        require(0 <= self.rank < self.world_size, f"rank must lie in 0..{self.world_size - 1}", self.rank)
        require(type(seed) is int and seed >= 0, "seed must be a non-negative whole number", seed)
        self.seed, self.per_rank = seed, math.ceil(samples / self.world_size)
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of an epoch.

        Args:
            epoch: Its number.
            start: How many of this rank's samples to leave out, for a run that is resumed within the epoch.
        """
        require(epoch >= 0, "epoch must be non-negative", epoch)
        require(0 <= start <= self.per_rank, f"start must lie in 0..{self.per_rank}", start)
        self.epoch, self.start = epoch, start

    def __len__(self) -> int:
        return self.per_rank - self.start

    def __iter__(self) -> Iterator[int]:
        yield from self._order()[self.rank :: self.world_size][self.start :].tolist()

    def _order(self) -> Tensor:
        """The epoch over all ranks."""
        total = self.per_rank * self.world_size
        m, turns = len(self._members), math.ceil(total / len(self._members))
        mixed = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(mixed[0]))
        who = torch.rand(turns, m, generator=generator).argsort(1)
        which = torch.stack([_shuffled(members, turns, generator) for members in self._members], 1)
        return which.gather(1, who).flatten()[:total]


def _shuffled(members: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many of the members, all of them in random order again and again, (count,)."""
    passes = math.ceil(count / len(members))
    order = torch.rand(passes, len(members), generator=generator).argsort(1)
    return members[order.flatten()[:count]]


def _check_whole(groups: Tensor) -> None:
    whole = not (groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool)
    require(whole, "groups must be whole numbers", groups.dtype)


def _check_range(groups: Tensor, m: int) -> None:
    low, high = (int(end) for end in torch.aminmax(groups))
    require(low >= 0 and high < m, f"groups must lie in 0..{m - 1}", lambda: low if low < 0 else high)
