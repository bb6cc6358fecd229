"""A data set in memory, and a seeded split for sets that have none."""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["Dataset", "divide", "standardize"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one data set, on the CPU.

    `load` returns the same tensors every time within a process: do not change them in place.

    Attributes:
        name: Its name in `load`.
        train_inputs: (n, channels, height, width) uint8 for images, (n, columns) float32 for tables.
        train_labels: (n,) int64, numbers of `class_names`.
        test_inputs: As train_inputs.
        test_labels: As train_labels.
        class_names: One name per class.
        scale: Images: the largest value a pixel can have, so that inputs / scale lies in [0, 1]. Tables: 1.
        columns: Tables: one name per input column; `name=value` for an indicator. Images: empty.
        train_groups: Tables: (n,) int64, numbers of `group_names`. Images: None.
        test_groups: As train_groups.
        group_names: Tables: one name per group. Images: empty.

    Examples:
        >>> data = eq.datasets.load("digits")
        >>> data
        Dataset('digits', train (1347, 1, 8, 8), test (450, 1, 8, 8), 10 classes)
        >>> (data.train_inputs / data.scale).max().item(), data.train_labels.dtype
        (1.0, torch.int64)
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    scale: int = 1
    columns: tuple[str, ...] = ()
    train_groups: Tensor | None = None
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
            given: object = getattr(self, name)
            rule = f"{name} must be a tensor: torch.from_numpy makes one of an array"
            require(isinstance(given, Tensor), rule, f"a {type(given).__name__}")

    def __repr__(self) -> str:
        train, test = tuple(self.train_inputs.shape), tuple(self.test_inputs.shape)
        return f"Dataset({self.name!r}, train {train}, test {test}, {len(self.class_names)} classes)"


def standardize(dataset: Dataset) -> Dataset:
    """A table whose numeric columns have mean 0 and deviation 1 over the training rows; indicators stay 0 and 1.

    Args:
        dataset: A table; its tensors are not changed.

    Examples:
        >>> rows, labels = torch.tensor([[1.0, 0.0], [3.0, 1.0]]), torch.tensor([0, 1])
        >>> table = eq.datasets.Dataset(
        ...     "table", rows, labels, rows, labels, class_names=("no", "yes"), columns=("age", "job=clerk")
        ... )
        >>> eq.datasets.standardize(table).train_inputs.tolist()
        [[-1.0, 0.0], [1.0, 1.0]]
    """
    require(bool(dataset.columns), "dataset must be a table with named columns", dataset.name)
    numeric = torch.tensor(["=" not in column for column in dataset.columns])
    train = dataset.train_inputs.to(torch.float64)
    deviation, mean = torch.std_mean(train, dim=0, correction=0)
    mean = torch.where(numeric, mean, 0.0)
    deviation = torch.where(numeric & (deviation > 0), deviation, 1.0)
    return replace(
        dataset,
        train_inputs=((train - mean) / deviation).to(torch.float32),
        test_inputs=((dataset.test_inputs.to(torch.float64) - mean) / deviation).to(torch.float32),
    )


def divide(count: int, test: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the test samples, each ascending.

    The draw uses `random.Random.random`, whose sequence Python guarantees, so the split does not depend on the versions
    of numpy and torch.

    Args:
        count: Number of samples.
        test: How many of them are for testing.
        seed: Seed of the draw.
    """
    require(0 <= test <= count, f"test must lie in 0..{count}", test)
    generator = random.Random(seed)  # noqa: S311
    draws = [generator.random() for _ in range(count)]
    order = sorted(range(count), key=draws.__getitem__)
    return torch.tensor(sorted(order[test:]), dtype=torch.int64), torch.tensor(sorted(order[:test]), dtype=torch.int64)
