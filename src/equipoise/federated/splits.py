"""How the samples of a data set are distributed over clients.

Every split is stratified: the samples of a class are permuted and cut into one chunk per client. Training and
test samples are split in the same way, so a client is tested on the distribution it trains on. The draws come from
numpy's legacy `RandomState`, whose sequence numpy guarantees.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.datasets import Dataset
from equipoise.errors import require

__all__ = ["ClientData", "Deal", "Dirichlet", "PartialClass", "Rotation", "Samples", "Split", "deal"]

Indices = NDArray[np.int64]


class Deal(NamedTuple):
    """The samples of every client, as a split deals them: for each client a list of arrays of positions.

    One array per class, or one with all: only `deal(..., validation=True)` looks at them, and halves each.

    Examples:
        >>> import numpy as np
        >>> site = np.array([0, 1, 1, 0])  # whose sample it is
        >>> parts = [[np.flatnonzero(site == k)] for k in range(2)]
        >>> dealt = eq.federated.Deal(train=parts, test=parts)
        >>> [[block.tolist() for block in own] for own in dealt.train]
        [[[0, 3]], [[1, 2]]]
    """

    train: list[list[Indices]]
    """Positions in the training set, (clients, blocks, n)."""
    test: list[list[Indices]]
    """Positions in the test set."""


@runtime_checkable
class Split(Protocol):
    """A way to distribute a data set over clients.

    Examples:
        >>> labels = eq.datasets.load("digits").train_labels.numpy()
        >>> for split in (eq.federated.Rotation((0, 0)), eq.federated.PartialClass(classes=3, clients=2)):
        ...     dealt = split.deal(labels, labels, seed=0)
        ...     print(split.clients, [len(parts) for parts in dealt.train])  # classes of each client
        2 [10, 10]
        2 [3, 3]
    """

    @property
    def clients(self) -> int:
        """m, the number of clients."""
        ...

    def deal(self, train: Indices, test: Indices, seed: int) -> Deal:
        """Distribute samples, given the labels of the training and of the test set."""
        ...

    def turn(self, client: int) -> int:
        """The number of quarter turns that a client's images are rotated by."""
        ...


@dataclass(frozen=True)
class Rotation:
    """Every client has the same number of samples of every class, and rotated images.

    The numbers are exactly equal: samples that are left over when a class is divided are not used.

    Attributes:
        turns: Quarter turns (counter-clockwise, as `torch.rot90`) of every client: as many entries as clients.

    Examples:
        >>> data = eq.federated.deal(eq.datasets.load("digits"), eq.federated.Rotation((0, 0, 1)), seeds=(0,))
        >>> data.train.counts.tolist()
        [[445, 445, 445]]
    """

    turns: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2)

    def __post_init__(self) -> None:
        require(len(self.turns) >= 1, "turns must have an entry for every client, at least one", self.turns)

    @property
    def clients(self) -> int:
        """The number of clients, m."""
        return len(self.turns)

    def deal(self, train: Indices, test: Indices, seed: int) -> Deal:
        """One of the m chunks of every class for each client."""
        draws = np.random.RandomState(seed)
        chunks = [_chunks(labels, self.clients, draws) for labels in (train, test)]
        parts = [[[of[c][i] for c in of] for i in range(self.clients)] for of in chunks]
        return Deal(*parts)

    def turn(self, client: int) -> int:
        """The entry of `turns`."""
        return self.turns[client] % 4


@dataclass(frozen=True)
class PartialClass:
    """Every client has `classes` classes, drawn without replacement and independently of the other clients.

    A client gets its own chunk of each of its classes, as if every client had every class: with C of 10 classes, C/10
    of the data are used. Chunks are exactly equal: samples that are left over are not used.

    Attributes:
        classes: C.
        clients: m.

    Examples:
        >>> split = eq.federated.PartialClass(classes=2, clients=5)
        >>> data = eq.federated.deal(eq.datasets.load("digits"), split, seeds=(0,))
        >>> [len(set(labels[:n])) for labels, n in zip(data.train.labels[0].tolist(), data.train.counts[0].tolist())]
        [2, 2, 2, 2, 2]
    """

    classes: int = 2
    clients: int = 10

    def __post_init__(self) -> None:
        require(self.classes >= 1, "classes must be at least 1", self.classes)
        require(self.clients >= 1, "clients must be at least 1", self.clients)

    def deal(self, train: Indices, test: Indices, seed: int) -> Deal:
        """Draw all clients' classes, then the training split, then the test split."""
        known = np.unique(train)
        require(
            self.classes <= len(known),
            f"classes must be at most {len(known)}, the number of classes in the data",
            self.classes,
        )
        draws = np.random.RandomState(seed)
        own = [sorted(draws.choice(known, self.classes, replace=False)) for _ in range(self.clients)]
        chunks = [_chunks(labels, self.clients, draws) for labels in (train, test)]
        parts = [[[of[c][i] for c in own[i] if c in of] for i in range(self.clients)] for of in chunks]
        return Deal(*parts)

    def turn(self, client: int) -> int:  # noqa: ARG002
        """Nothing is rotated."""
        return 0


@dataclass(frozen=True)
class Dirichlet:
    """Every class is split in proportions drawn from a symmetric Dirichlet distribution.

    Attributes:
        alpha: Its parameter: small values give clients with few classes and very different sizes.
        clients: m.

    Examples:
        >>> split = eq.federated.Dirichlet(alpha=0.5, clients=4)
        >>> data = eq.federated.deal(eq.datasets.load("digits"), split, seeds=(0,))
        >>> data.train.counts.sum().item(), len(set(data.train.counts[0].tolist()))  # all samples, in four sizes
        (1347, 4)
    """

    alpha: float = 0.5
    clients: int = 10

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "alpha must be positive and finite", self.alpha)
        require(self.clients >= 1, "clients must be at least 1", self.clients)

    def deal(self, train: Indices, test: Indices, seed: int) -> Deal:
        """Training and test samples of a class in the same proportions."""
        draws = np.random.RandomState(seed)
        shares = {c: draws.dirichlet([self.alpha] * self.clients) for c in _order(train)}
        parts = []
        for labels in (train, test):
            own: list[list[Indices]] = [[] for _ in range(self.clients)]
            for c in _order(labels):
                places = draws.permutation(np.flatnonzero(labels == c))
                cuts = np.rint(np.cumsum(shares[c])[:-1] * len(places)).astype(int)
                for i, part in enumerate(np.split(places, cuts)):
                    own[i].append(part)
            parts.append(own)
        return Deal(*parts)

    def turn(self, client: int) -> int:  # noqa: ARG002
        """Nothing is rotated."""
        return 0


class Samples(NamedTuple):
    """Samples of every client of every seed, padded to the same number.

    Examples:
        >>> data = eq.federated.deal(eq.datasets.load("digits"), eq.federated.Rotation((0, 2)), seeds=(0, 1, 2))
        >>> tuple(data.test.inputs.shape), data.test.counts[0].tolist()  # (S, m, n, ...), n the larger count
        ((3, 2, 223, 1, 8, 8), [223, 223])
    """

    inputs: Tensor
    """(S, m, n, ...), as stored in the data set: uint8 for images."""
    labels: Tensor
    """(S, m, n) int64; 0 where padded."""
    counts: Tensor
    """(S, m) int64: the first `counts` samples of a client are real."""
    even: bool
    """Whether all counts are n."""

    def to(self, device: torch.device) -> "Samples":
        """The same on another device."""
        return Samples(self.inputs.to(device), self.labels.to(device), self.counts.to(device), self.even)

    def real(self) -> Tensor:
        """Which samples are real, (S, m, n)."""
        return torch.arange(self.labels.shape[-1], device=self.labels.device) < self.counts.unsqueeze(-1)

    def take(self, clients: Tensor) -> "Samples":
        """The samples of some clients of every seed, given as indices (S, k)."""
        row = torch.arange(len(clients), device=clients.device).unsqueeze(-1)
        at = (row, clients)
        return Samples(self.inputs[at], self.labels[at], self.counts[at], self.even)


class ClientData(NamedTuple):
    """The data of the clients of every seed.

    Examples:
        >>> data = eq.federated.deal(
        ...     eq.datasets.load("digits"), eq.federated.Rotation((0, 2)), seeds=(0,), validation=True
        ... )
        >>> [part.counts.sum().item() for part in (data.train, data.test, data.validation)]
        [1342, 230, 216]
    """

    train: Samples
    test: Samples
    validation: Samples | None
    """The other half of the test samples, if requested."""
    scale: int
    """The divisor of the inputs."""
    seeds: tuple[int, ...]
    """The seed of each split."""

    def to(self, device: torch.device) -> "ClientData":
        """The same on another device."""
        held = None if self.validation is None else self.validation.to(device)
        return ClientData(self.train.to(device), self.test.to(device), held, self.scale, self.seeds)


def deal(dataset: Dataset, split: Split, seeds: tuple[int, ...], *, validation: bool = False) -> ClientData:
    """Distribute a data set over the clients of every seed.

    Args:
        dataset: Its tensors are copied, and rotated if the split says so.
        split: The split.
        seeds: One split each.
        validation: Whether to hold out half of every client's test samples for comparing iterates: the same random
            half of the positions of every class.

    Raises:
        ValueError: There are more clients than samples, or a client got none.

    Examples:
        >>> data = eq.federated.deal(eq.datasets.load("digits"), eq.federated.Rotation((0, 2)), seeds=(0,))
        >>> tuple(data.train.inputs.shape), data.train.counts.tolist()  # (seeds, clients, samples, 1, 8, 8)
        ((1, 2, 671, 1, 8, 8), [[671, 671]])
    """
    m = split.clients
    train, test = dataset.train_labels.numpy(), dataset.test_labels.numpy()
    for name, labels in (("training", train), ("test", test)):
        require(m <= len(labels), f"clients must be at most the number of {name} samples, {len(labels)}", m)
    shares: dict[str, list[list[Indices]]] = {"train": [], "test": [], "validation": []}
    for seed in seeds:
        dealt = _checked(split.deal(train, test, seed), m)
        shares["train"].append([_whole(own, i, "training", seed) for i, own in enumerate(dealt.train)])
        if validation:
            kept, held = _halves(dealt.test, seed)
            shares["validation"].append([_whole(own, i, "validation", seed) for i, own in enumerate(held)])
        else:
            kept = dealt.test
        shares["test"].append([_whole(own, i, "test", seed) for i, own in enumerate(kept)])
    return ClientData(
        _gather(dataset.train_inputs, dataset.train_labels, shares["train"], split),
        _gather(dataset.test_inputs, dataset.test_labels, shares["test"], split),
        _gather(dataset.test_inputs, dataset.test_labels, shares["validation"], split) if validation else None,
        dataset.scale,
        seeds,
    )


def _checked(dealt: object, m: int) -> Deal:
    rule = f"split.deal must return a federated.Deal with train and test lists of {m} clients"
    require(isinstance(dealt, Deal), rule, lambda: f"a {type(dealt).__name__}")
    assert isinstance(dealt, Deal)  # noqa: S101
    numbers = [len(part) for part in dealt]
    require(numbers == [m, m], rule, f"{numbers[0]} and {numbers[1]}")
    return dealt


def _order(labels: Indices) -> list[int]:
    """The classes in the order in which they first appear."""
    known, first = np.unique(labels, return_index=True)
    return [int(known[k]) for k in np.argsort(first)]


def _chunks(labels: Indices, clients: int, draws: np.random.RandomState) -> dict[int, list[Indices]]:
    """Every class permuted and cut into consecutive chunks of equal length; the remainder is dropped."""
    chunks = {}
    for c in _order(labels):
        places = draws.permutation(np.flatnonzero(labels == c))
        size = len(places) // clients
        chunks[c] = [places[i * size : (i + 1) * size] for i in range(clients)]
    return chunks


def _halves(test: list[list[Indices]], seed: int) -> tuple[list[list[Indices]], list[list[Indices]]]:
    """Split every class block of every client in two: one half for testing, one held out."""
    longest = max((len(block) for own in test for block in own), default=0)
    order = np.random.RandomState(seed).permutation(longest)
    kept: list[list[Indices]] = []
    held: list[list[Indices]] = []
    for own in test:
        kept.append([])
        held.append([])
        for block in own:
            places = order[order < len(block)]
            held[-1].append(block[np.sort(places[: len(block) // 2])])
            kept[-1].append(block[np.sort(places[len(block) // 2 :])])
    return kept, held


def _whole(own: list[Indices], client: int, kind: str, seed: int) -> Indices:
    rule = f"a client's {kind} samples must be a list of arrays of positions"
    require(all(np.ndim(block) == 1 for block in own), rule, lambda: f"{own!r:.80} for client {client}")
    places = np.concatenate(own) if own else np.zeros(0, np.int64)
    require(len(places) > 0, f"every client must have {kind} samples", f"none for client {client} of seed {seed}")
    return places


def _gather(inputs: Tensor, labels: Tensor, shares: list[list[Indices]], split: Split) -> Samples:
    counts = torch.tensor([[len(own) for own in seed] for seed in shares])
    n = int(counts.max())
    shape = (*counts.shape, n)
    x = torch.zeros((*shape, *inputs.shape[1:]), dtype=inputs.dtype)
    y = torch.zeros(shape, dtype=torch.int64)
    for s, seed in enumerate(shares):
        for i, own in enumerate(seed):
            places = torch.from_numpy(own)
            mine = inputs[places]
            turn = split.turn(i)
            if turn:
                require(
                    mine.ndim == 4 and (mine.shape[-1] == mine.shape[-2] or turn == 2),
                    "inputs must be square images (n, channels, size, size) to be rotated",
                    tuple(inputs.shape),
                )
                mine = torch.rot90(mine, turn, (-2, -1))
            x[s, i, : len(own)] = mine
            y[s, i, : len(own)] = labels[places]
    return Samples(x, y, counts, bool((counts == n).all()))
