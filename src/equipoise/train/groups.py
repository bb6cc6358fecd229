"""Groups as objectives: the mean loss of each, and mini-batches with equally many samples of each."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler

from equipoise.batch import whole
from equipoise.errors import require
from equipoise.train.distributed import place

__all__ = [
    "GroupBalancedSampler",
    "Groups",
    "check_range",
    "counts_of",
    "group_losses",
    "means",
    "read_groups",
    "read_membership",
    "weigh_gradient",
    "with_counts",
]

Groups = Tensor | ArrayLike
"""Whole numbers (n,) or fractions (n, m): a tensor, an array, a list, or a Series or DataFrame of pandas."""


def group_losses(values: Tensor, groups: Groups, m: int, *, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean loss of every group of a batch, for `mol(losses, counts)`.

    Does not synchronise with the device. A group number out of range raises an error on the CPU; on an accelerator,
    and in compiled code, torch's own assertions catch it.

    Args:
        values: The loss of every sample, with its graph, (n,).
        groups: The group of every sample, whole numbers in 0..m−1, (n,). Or, where groups overlap, the fraction of a
            sample that belongs to each, in [0, 1], (n, m): f_g = Σ_k a_kg ℓ_k / Σ_k a_kg. Arrays and lists are copied
            to the device of `values`.
        m: The number of groups.
        weights: Factors of the samples' gradients, (n,), such as `Draw.weight`. The losses stay plain means.

    Returns:
        The mean losses in at least float32, (m,), and the number of samples of each group, (m,). Both are 0 for a
        group that is not in the batch, which masks it.

    Examples:
        >>> values, groups = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 0])
        >>> losses, counts = eq.group_losses(values, groups, m=3)
        >>> losses.tolist(), counts.tolist()
        ([3.0, 0.0, 1.0], [2.0, 0.0, 1.0])
        >>> both = torch.tensor([[1, 0], [1, 1], [0, 1]])  # the second sample is in both groups
        >>> losses, counts = eq.group_losses(values, both, m=2)
        >>> losses.tolist(), counts.tolist()
        ([1.5, 3.0], [2.0, 2.0])
    """
    m = whole("m", m)
    rule = "values must be a tensor, the loss of every sample with its graph"
    require(isinstance(values, Tensor), rule, lambda: f"a {type(values).__name__}")
    require(values.ndim == 1, "values must be one loss per sample, of shape (n,)", lambda: tuple(values.shape))
    require(values.is_floating_point(), "values must be floating-point numbers", values.dtype)
    groups = groups if isinstance(groups, Tensor) else read_groups(groups).to(values.device)
    overlap = groups.ndim == 2
    shape = (len(values), m) if overlap else tuple(values.shape)
    what = "one row per sample and one column per group" if overlap else "one number per sample"
    require(tuple(groups.shape) == shape, f"groups must be {what}, of shape {shape}", lambda: tuple(groups.shape))
    require(len(values) >= 1, "values must hold at least one sample", "an empty batch")
    require(groups.device == values.device, f"groups must be on the device {values.device} of values", groups.device)
    if not overlap:
        _check_whole(groups)
    if groups.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_parts(groups) if overlap else check_range(groups, m)
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    if weights is not None:
        rule = f"weights must be one number per sample, of shape {tuple(values.shape)}"
        require(weights.shape == values.shape, rule, lambda: tuple(weights.shape))
        wide = weigh_gradient(wide, weights)
    found = _overlapping_means(wide, groups) if overlap else means(wide, torch.ones_like(wide), groups.long(), m)
    return with_counts(*found)


def weigh_gradient(values: Tensor, weights: Tensor) -> Tensor:
    """The same values, with gradients multiplied by weights that broadcast to them."""
    weighed: Tensor = _Weighed.apply(values, weights.detach().to(values))  # type: ignore[no-untyped-call]
    return weighed


class _Weighed(torch.autograd.Function):
    """See `weigh_gradient`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
        """The values."""
        ctx.save_for_backward(weights)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """The gradient times the weights."""
        (weights,) = ctx.saved_tensors
        return gradients[0] * weights, None


def means(sums: Tensor, numbers: Tensor, groups: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Σ sums / Σ numbers of each of m groups, and Σ numbers, (m,) both, from one entry per sample, (n,)."""
    zeros = sums.new_zeros(m)
    counts = zeros.index_add(0, groups, numbers)
    return zeros.index_add(0, groups, sums) / counts.clamp_min(1.0), counts


def with_counts(losses: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The same; a call of `mol` that leaves the counts out finds them by `counts_of`."""
    if not torch.compiler.is_compiling():
        losses.__dict__["_counts"] = counts
    return losses, counts


def counts_of(losses: Tensor) -> Tensor | None:
    """The counts that `group_losses` or `token_losses` returned with these losses."""
    return losses.__dict__.get("_counts")


def _overlapping_means(values: Tensor, membership: Tensor) -> tuple[Tensor, Tensor]:
    parts = membership.to(values)
    counts = parts.sum(0)
    # 0 · ∞ would spoil the groups that a sample is not in.
    sums = torch.where(parts > 0, parts * values.unsqueeze(1), 0.0).sum(0)
    return sums / torch.where(counts > 0, counts, 1.0), counts


class GroupBalancedSampler(Sampler[int]):
    """Sample indices for a DataLoader, equally many from each group.

    The groups take turns: the first m samples of an epoch are one of each group, in random order, and so are the next
    m. The counts of two groups never differ by more than one. Each group is traversed in random order, without
    replacement, again and again. The order depends on seed and epoch alone, not on the number of workers. With several
    ranks, each takes an equal part of one order.

    To resume after s steps of an epoch, call `sampler.set_epoch(epoch, start=s * batch_size)`.

    Args:
        groups: The group of every sample of the data set, whole numbers in 0..m−1, (n,). For other ids, such as text,
            take `numpy.unique(ids, return_inverse=True)[1]`.
        m: The number of groups; by default as many as `groups` shows.
        samples: Samples of an epoch over all ranks, rounded up to a multiple of the number of ranks; by default n.
        seed: The seed of the order.
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
        groups: Groups,
        m: int | None = None,
        *,
        samples: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        numbers = read_groups(groups).detach().cpu()
        rule = "groups must be one number per sample, of shape (n,), or taken by DomainSampler where they overlap"
        require(numbers.ndim == 1, rule, tuple(numbers.shape))
        self._members = read_membership(numbers, m)[0]
        samples = len(numbers) if samples is None else whole("samples", samples)
        self.rank, self.world_size = place(rank, world_size)
        self.seed, self.per_rank = whole("seed", seed, least=0), math.ceil(samples / self.world_size)
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of an epoch.

        Args:
            epoch: Its number.
            start: How many of this rank's samples to skip, to resume within the epoch.
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
    """`count` members: permutations of all of them, one after the other, (count,)."""
    passes = math.ceil(count / len(members))
    order = torch.rand(passes, len(members), generator=generator).argsort(1)
    return members[order.flatten()[:count]]


def read_groups(given: Groups, name: str = "groups") -> Tensor:
    """Groups or memberships as a tensor."""
    if isinstance(given, Tensor):
        return given
    try:
        found = np.array(given)
        found = np.array(found.tolist()) if found.dtype == object else found  # as in a column of pandas
    except ValueError:
        raise ValueError(f"{name} must have rows of one length; found several lengths") from None
    rule = f"{name} must be whole numbers, such as numpy.unique(ids, return_inverse=True)[1]"
    other = (repr(x) for x in found.ravel().tolist() if not isinstance(x, int | float))
    require(found.dtype.kind in "biuf", rule, lambda: next(other, found.dtype))
    kinds = {"b": np.bool_, "f": np.float64}
    return torch.from_numpy(found.astype(kinds.get(found.dtype.kind, np.int64)))


def read_membership(
    groups: Tensor, m: int | None, name: str = "groups"
) -> tuple[list[Tensor], list[Tensor | None], int]:
    """The members of each group of a data set.

    Args:
        groups: One number per sample, (n,), or one row of fractions per sample, (n, m).
        m: The number of groups; None: as many as occur.
        name: What the groups are called in messages.

    Returns:
        For each group, the indices of its samples; for each group, the fraction of each sample that belongs to it, or
        None if samples belong to one group each; and n.

    Raises:
        ValueError: If a group has no samples; the message has its number.
    """
    rule = f"{name} must be one number per sample, (n,), or one row per sample, (n, m)"
    require(groups.ndim in {1, 2}, rule, tuple(groups.shape))
    require(len(groups) >= 1, f"{name} must hold at least one sample", "none")
    if groups.ndim == 1:
        _check_whole(groups, name)
    shown = groups.shape[1] if groups.ndim == 2 else int(groups.max()) + 1
    m = whole("m", shown if m is None else m)
    parts: list[Tensor | None] = [None] * m
    if groups.ndim == 1:
        check_range(groups, m, name)
        members = [torch.nonzero(groups == group).squeeze(1) for group in range(m)]
    else:
        require(m == shown, f"{name} must have a column for each of the {m} {name}", shown)
        _check_parts(groups, name)
        members = [torch.nonzero(column > 0).squeeze(1) for column in groups.T]
        chosen = [column[one] for column, one in zip(groups.T, members, strict=True)]
        parts = [None if bool((one == 1).all()) else one for one in chosen]
    empty = [group for group, one in enumerate(members) if len(one) == 0]
    which = f"{name[:-1]}{'s' if len(empty) > 1 else ''} {', '.join(map(str, empty))}"
    require(not empty, f"{name} must hold a sample of each of the {m} {name}", f"none of {which}")
    return members, parts, len(groups)


def _check_parts(membership: Tensor, name: str = "groups") -> None:
    parts = membership.to(torch.float64)
    wrong = parts[~((parts >= 0) & (parts <= 1))]  # NaN too
    require(len(wrong) == 0, f"{name} must have parts in [0, 1]", lambda: float(wrong[0]))
    lost = torch.nonzero(parts.sum(1) == 0).flatten()
    rule = f"{name} must have a part above 0 for every sample"
    require(len(lost) == 0, rule, lambda: f"none for sample {int(lost[0])}")


def _check_whole(groups: Tensor, name: str = "groups") -> None:
    whole = not (groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool)
    require(whole, f"{name} must be whole numbers", groups.dtype)


def check_range(groups: Tensor, m: int, name: str = "groups") -> None:
    """Raise ValueError unless all numbers lie in 0..m−1."""
    low, high = (int(end) for end in torch.aminmax(groups))
    require(low >= 0 and high < m, f"{name} must lie in 0..{m - 1}", lambda: low if low < 0 else high)
