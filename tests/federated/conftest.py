"""Small data with clients of given sizes, and real data if available."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.datasets import Dataset
from equipoise.federated.splits import Deal

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
REAL = Path(os.environ.get("EQUIPOISE_DATA") or SHARED)


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("no data: set EQUIPOISE_DATA to a folder that has them")
    return REAL


@dataclass(frozen=True)
class Blocks:
    """Client i has the next `train[i]` training and `test[i]` test samples, whatever the seed."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def clients(self) -> int:
        return len(self.train)

    def deal(self, train: Any, test: Any, seed: int) -> Deal:  # noqa: ARG002
        return Deal(*([[part] for part in _parts(sizes)] for sizes in (self.train, self.test)))

    def turn(self, client: int) -> int:  # noqa: ARG002
        return 0


def _parts(sizes: tuple[int, ...]) -> list[Any]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class Toy:
    dataset: Dataset
    split: Blocks

    def train(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs, divided by the scale, and labels of one client."""
        own = torch.from_numpy(_parts(self.split.train)[client])
        return self.dataset.train_inputs[own].float() / self.dataset.scale, self.dataset.train_labels[own]

    def test(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        own = torch.from_numpy(_parts(self.split.test)[client])
        return self.dataset.test_inputs[own].float() / self.dataset.scale, self.dataset.test_labels[own]


@pytest.fixture
def toy() -> Callable[..., Toy]:
    """Random images whose classes can be learned: a bright pixel says which."""

    def make(
        train: tuple[int, ...], test: tuple[int, ...] | None = None, side: int = 3, classes: int = 3, *, seed: int = 0
    ) -> Toy:
        test = train if test is None else test
        draws = np.random.default_rng(seed)
        parts: list[Any] = []
        for n in (sum(train), sum(test)):
            labels = draws.integers(0, classes, n)
            inputs = draws.integers(0, 128, (n, 1, side, side))
            inputs.reshape(n, -1)[np.arange(n), labels] += 127
            parts += [torch.from_numpy(inputs.astype(np.uint8)), torch.from_numpy(labels)]
        return Toy(
            Dataset("toy", parts[0], parts[1], parts[2], parts[3], tuple(map(str, range(classes))), scale=255),
            Blocks(train, test),
        )

    return make
