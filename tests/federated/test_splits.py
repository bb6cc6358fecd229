"""Splits: the counts of the experiments, the order of the draws, and bad input."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.datasets import Dataset, load
from equipoise.federated import Deal, Dirichlet, PartialClass, Rotation, Split, deal

TRAIN = (592, 674, 595, 613, 584, 542, 591, 626, 585, 594)
TEST = (98, 113, 103, 101, 98, 89, 95, 102, 97, 100)
"""What a client gets of the MNIST digits 0..9 if there are ten clients."""


def table(train: list[int], test: list[int], side: int = 2) -> Dataset:
    """Images whose pixels are unique: (4 k, 4 k + 1, …) for sample k of the whole set."""
    pixels = torch.arange((len(train) + len(test)) * side * side, dtype=torch.float32).reshape(-1, 1, side, side)
    x, held = pixels[: len(train)], pixels[len(train) :]
    return Dataset("table", x, torch.tensor(train), held, torch.tensor(test), tuple(map(str, range(10))))


def by_the_text(
    train: list[int], test: list[int], m: int, seed: int, classes: int | None
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """The split as it is described: classes drawn client by client and sorted, then training, then test samples."""
    stream = np.random.RandomState(seed)
    own = [list(range(10)) for _ in range(m)]
    if classes is not None:
        own = [sorted(int(c) for c in stream.choice(10, classes, replace=False)) for _ in range(m)]
    dealt = []
    for labels in (train, test):
        appearance: list[int] = []
        for label in labels:
            if label not in appearance:
                appearance.append(label)
        clients: list[list[int]] = [[] for _ in range(m)]
        for c in appearance:
            places = np.array([k for k, label in enumerate(labels) if label == c])
            stream.shuffle(places)
            chunk = len(places) // m
            for i in range(m):
                if c in own[i]:
                    clients[i] += places[i * chunk : (i + 1) * chunk].tolist()
        dealt.append(clients)
    return own, dealt[0], dealt[1]


def shuffled_labels(counts: list[int], seed: int) -> list[int]:
    labels = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(labels)
    return [int(label) for label in labels]


# --- the draws


@pytest.mark.parametrize("seed", [0, 25, 2003])
@pytest.mark.parametrize("split", [Rotation((0,) * 4), PartialClass(2, 4), PartialClass(5, 4)], ids=repr)
def test_one_stream_of_the_legacy_generator_in_the_described_order(split: Split, seed: int):
    train, test = shuffled_labels([23, 30, 8, 17, 25, 40, 9, 12, 31, 20], 1), shuffled_labels([9] * 10, 2)
    classes = split.classes if isinstance(split, PartialClass) else None
    own, of_train, of_test = by_the_text(train, test, 4, seed, classes)
    found = split.deal(np.array(train), np.array(test), seed)
    for i in range(4):
        assert sorted(np.concatenate(found.train[i])) == sorted(of_train[i])
        assert sorted(np.concatenate(found.test[i])) == sorted(of_test[i])
        assert sorted({train[k] for k in of_train[i]}) == own[i]


def test_a_split_written_out():
    # Class 1 appears first, and so is permuted first; of the three samples of class 0 one is dropped.
    stream = np.random.RandomState(0)
    ones, zeros = stream.permutation([0, 2, 4, 6]), stream.permutation([1, 3, 5])
    found = Rotation((0, 0)).deal(np.array([1, 0, 1, 0, 1, 0, 1]), np.array([0, 0]), 0)
    assert [part.tolist() for part in found.train[0]] == [ones[:2].tolist(), zeros[:1].tolist()]
    assert [part.tolist() for part in found.train[1]] == [ones[2:].tolist(), zeros[1:2].tolist()]
    assert ones.tolist() == [4, 6, 2, 0]


@given(
    counts=st.lists(st.integers(4, 30), min_size=2, max_size=6),
    m=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(1, 2),
)
def test_chunks_are_disjoint_and_of_equal_size(counts: list[int], m: int, seed: int, classes: int):
    labels = np.array(shuffled_labels(counts, 0))
    for split in (Rotation((0,) * m), PartialClass(classes, m)):
        found = split.deal(labels, labels, seed)
        everyone = np.concatenate([part for own in found.train for part in own])
        assert len(set(everyone.tolist())) == len(everyone)
        for own in (*found.train, *found.test):
            assert len(own) == (len(counts) if isinstance(split, Rotation) else classes)
            for part in own:
                (c,) = set(labels[part].tolist())
                assert len(part) == counts[c] // m


@given(m=st.integers(1, 5), alpha=st.floats(0.05, 20.0), seed=st.integers(0, 1000))
def test_dirichlet_deals_every_sample_once_and_tests_in_the_same_proportions(m: int, alpha: float, seed: int):
    train, test = np.array(shuffled_labels([60, 40], 0)), np.array(shuffled_labels([600, 400], 1))
    found = Dirichlet(alpha, m).deal(train, test, seed)
    for own, labels in ((found.train, train), (found.test, test)):
        everyone = np.concatenate([part for client in own for part in client])
        assert sorted(everyone.tolist()) == list(range(len(labels)))
    for i in range(m):
        for c in range(2):
            few, many = (
                sum(int((labels[part] == c).sum()) for part in own[i])
                for own, labels in ((found.train, train), (found.test, test))
            )
            assert abs(10 * few - many) <= 10  # both are rounded


def test_a_small_alpha_gives_clients_with_few_classes():
    labels = np.repeat(np.arange(10), 50)
    largest = {}
    for alpha in (0.05, 100.0):
        found = Dirichlet(alpha, 5).deal(labels, labels, 0)
        shares = np.array([[len(part) for part in own] for own in found.train]) / 50
        largest[alpha] = shares.max(0).mean()
    assert largest[0.05] > 0.8
    assert largest[100.0] < 0.3


# --- what clients hold


def test_turns_are_those_of_rot90_for_training_and_test_samples_alike():
    data = table([0, 0, 0, 0], [0, 0, 0, 0])
    data.train_inputs[:] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    data.test_inputs[:] = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    found = deal(data, Rotation((0, 1, 2, 5)), (0,))
    assert found.train.inputs[0, :, 0, 0].tolist() == [
        [[1, 2], [3, 4]],
        [[2, 4], [1, 3]],  # counter-clockwise
        [[4, 3], [2, 1]],
        [[2, 4], [1, 3]],
    ]
    assert found.test.inputs[0, 1, 0, 0].tolist() == [[6, 8], [5, 7]]
    assert found.test.inputs[0, 2, 0, 0].tolist() == [[8, 7], [6, 5]]


def test_clients_of_different_sizes_are_padded(toy):
    small = toy((2, 5, 3), (1, 1, 4))
    found = deal(small.dataset, small.split, (0, 1))
    assert found.train.inputs.shape == (2, 3, 5, 1, 3, 3)
    assert found.train.counts.tolist() == [[2, 5, 3]] * 2
    assert not found.train.even
    assert found.train.real()[0].tolist() == [[k < n for k in range(5)] for n in (2, 5, 3)]
    for i in range(3):
        x, y = small.train(i)
        torch.testing.assert_close(found.train.inputs[1, i, : len(y)] / 255, x)
        assert found.train.labels[1, i].tolist() == y.tolist() + [0] * (5 - len(y))
    taken = found.train.take(torch.tensor([[2, 0], [1, 1]]))
    assert taken.counts.tolist() == [[3, 2], [5, 5]]
    assert torch.equal(taken.inputs[0, 1], found.train.inputs[0, 0])


def test_inputs_stay_as_they_were_stored(toy):
    small = toy((4, 4))
    found = deal(small.dataset, small.split, (0,))
    assert found.train.inputs.dtype == torch.uint8
    assert found.scale == 255
    assert found.train.even
    assert found.validation is None


def test_held_out_samples_are_the_same_half_of_every_class_block():
    train, test = [0, 1, 2] * 20, [0, 1, 2] * 40
    data = table(train, test)
    plain = deal(data, Rotation((0, 0)), (3,))
    found = deal(data, Rotation((0, 0)), (3,), validation=True)
    assert found.validation is not None
    assert torch.equal(found.train.inputs, plain.train.inputs)
    sets: list[Any] = [plain.test, found.test, found.validation]
    for i in range(2):
        whole, kept, held = ([int(x) for x in part.inputs[0, i, :, 0, 0, 0]] for part in sets)
        assert len(held) == len(kept) == 30
        assert sorted(kept + held) == sorted(whole)
        positions = [{whole[20 * c : 20 * c + 20].index(x) for x in held[10 * c : 10 * c + 10]} for c in range(3)]
        assert positions[0] == positions[1] == positions[2]
        assert positions[0] not in (set(range(10)), set(range(10, 20)))


# --- the counts of the experiments


def test_mnist_rotation(real: Path):
    found = deal(load("mnist", real), Rotation(), (0,))
    assert found.train.counts.tolist() == [[5996] * 10]
    assert found.test.counts.tolist() == [[996] * 10]
    assert found.train.even
    assert [Rotation().turn(i) for i in range(10)] == [0] * 7 + [1, 1, 2]
    for labels, sizes in ((found.train.labels, TRAIN), (found.test.labels, TEST)):
        for i in range(10):
            assert torch.bincount(labels[0, i]).tolist() == list(sizes)
    data = load("mnist", real)
    places = Rotation().deal(data.train_labels.numpy(), data.test_labels.numpy(), 0).train[9]
    first = data.train_inputs[places[0][0], 0].numpy()
    assert np.array_equal(found.train.inputs[0, 9, 0, 0].numpy(), first[::-1, ::-1])


@pytest.mark.parametrize("classes", [2, 5])
def test_mnist_partial_class(real: Path, classes: int):
    data = load("mnist", real)
    train, test = data.train_labels.numpy(), data.test_labels.numpy()
    for seed in (0, 1201):
        found = PartialClass(classes).deal(train, test, seed)
        stream = np.random.RandomState(seed)
        for i in range(10):
            own = sorted(stream.choice(10, classes, replace=False))
            assert [len(part) for part in found.train[i]] == [TRAIN[c] for c in own]
            assert [len(part) for part in found.test[i]] == [TEST[c] for c in own]
            assert [train[part[0]] for part in found.train[i]] == own


@pytest.mark.parametrize(
    ("split", "train", "test"),
    [
        (Rotation((0,) * 7 + (2, 2, 2)), 5000, 1000),
        (Rotation((0, 2)), 25000, 5000),
        (PartialClass(2), 1000, 200),
        (PartialClass(5), 2500, 500),
    ],
    ids=repr,
)
def test_cifar(split: Split, train: int, test: int):
    # CIFAR-10 has 5,000 training and 1,000 test images of each class.
    labels, held = np.array(shuffled_labels([5000] * 10, 0)), np.array(shuffled_labels([1000] * 10, 1))
    found = split.deal(labels, held, 0)
    assert {sum(map(len, own)) for own in found.train} == {train}
    assert {sum(map(len, own)) for own in found.test} == {test}


# --- what is refused


@dataclass(frozen=True)
class Own:
    """A split of the user's own."""

    dealt: Any
    clients: int = 2

    def deal(self, train: Any, test: Any, seed: int) -> Any:  # noqa: ARG002
        return self.dealt

    def turn(self, client: int) -> int:  # noqa: ARG002
        return 0


def test_a_split_of_ones_own():
    toy = table([0, 1, 1, 0, 1], [1, 0, 0])
    train, test = [[np.array([0, 3])], [np.array([1]), np.array([4])]], [[np.array([2])], [np.array([0, 1])]]
    data = deal(toy, Own(Deal(train, test)), (0,))
    assert data.train.labels.tolist() == [[[0, 0], [1, 1]]]
    assert data.test.counts.tolist() == [[1, 2]]
    for wrong, found in (((train, test), "a tuple"), (Deal(train, test[:1]), "2 and 1")):
        with pytest.raises(
            ValueError, match=rf"split\.deal must return a federated\.Deal with .* lists of 2 clients; found {found}"
        ):
            deal(toy, Own(wrong), (0,))
    rule = r"a client's training samples must be a list of arrays of positions; found array\(\[0, 3\]\) for client 0"
    with pytest.raises(ValueError, match=rule):
        deal(toy, Own(Deal([own[0] for own in train], test)), (0,))  # type: ignore[misc]


def test_more_clients_than_samples():
    with pytest.raises(ValueError, match=r"clients must be at most the number of training samples, 4; found 5"):
        deal(table([0, 0, 1, 1], [0] * 9), PartialClass(1, 5), (0,))
    with pytest.raises(ValueError, match=r"clients must be at most the number of test samples, 3; found 4"):
        deal(table([0, 0, 1, 1], [0] * 3), PartialClass(1, 4), (0,))


def test_more_classes_than_there_are():
    with pytest.raises(ValueError, match="classes must be at most 2, the number of classes in the data; found 3"):
        deal(table([0, 0, 1, 1], [0, 1]), PartialClass(3, 2), (0,))


def test_a_client_without_data():
    few = table([0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="every client must have training samples; found none for client 0 of seed 7"):
        deal(few, Rotation((0,) * 4), (7,))
    with pytest.raises(ValueError, match="every client must have test samples; found none for client 0 of seed 7"):
        deal(table([0] * 8 + [1] * 8, [0, 0, 0, 1, 1]), Rotation((0,) * 4), (7,))
    with pytest.raises(
        ValueError, match="every client must have validation samples; found none for client 0 of seed 7"
    ):
        deal(few, Rotation((0,) * 3), (7,), validation=True)


def test_only_square_images_turn_by_a_quarter():
    wide = Dataset(
        "wide", torch.zeros(4, 1, 2, 3), torch.zeros(4).long(), torch.zeros(4, 1, 2, 3), torch.zeros(4).long(), ()
    )
    assert deal(wide, Rotation((0, 2)), (0,)).train.inputs.shape == (1, 2, 2, 1, 2, 3)
    with pytest.raises(ValueError, match=r"inputs must be square images .* found \(4, 1, 2, 3\)"):
        deal(wide, Rotation((0, 1)), (0,))
    rows = Dataset("rows", torch.zeros(4, 6), torch.zeros(4).long(), torch.zeros(4, 6), torch.zeros(4).long(), ())
    with pytest.raises(ValueError, match="inputs must be square images"):
        deal(rows, Rotation((0, 2)), (0,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotation(()), "turns must have an entry for every client, at least one"),
        (lambda: PartialClass(0), "classes must be at least 1; found 0"),
        (lambda: PartialClass(2, 0), "clients must be at least 1; found 0"),
        (lambda: Dirichlet(0.0), "alpha must be positive and finite; found 0.0"),
        (lambda: Dirichlet(float("inf")), "alpha must be positive and finite; found inf"),
        (lambda: Dirichlet(clients=0), "clients must be at least 1; found 0"),
    ],
)
def test_settings(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()
