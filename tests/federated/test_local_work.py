"""A client's local work: its batches, and the precision of its products."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.federated import LocalWork
from equipoise.federated.local_work import casting, draw_batches, layer_products

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def drawn(work: LocalWork, counts: list[list[int]], seeds: tuple[int, ...] = (0,), round_: int = 1) -> torch.Tensor:
    batches = draw_batches(work, torch.tensor(counts), None, seeds, round_)
    assert batches is not None
    return batches


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    epochs=st.integers(1, 3),
    size=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_epoch_visits_every_sample_of_a_client_once(counts: list[int], epochs: int, size: int, seed: int):
    batches = drawn(LocalWork(epochs, size), [counts], (seed,))
    per_epoch = -(-max(counts) // size)
    assert batches.shape == (1, len(counts), epochs * per_epoch, size)
    for count, own in zip(counts, batches[0], strict=True):
        for epoch in own.reshape(epochs, per_epoch * size).tolist():
            assert sorted(epoch[:count]) == list(range(count))  # real ones first: all but one batch are full
            assert epoch[count:] == [-1] * (per_epoch * size - count)


def test_every_epoch_and_client_has_an_order_of_its_own():
    batches = drawn(LocalWork(2, 30), [[30, 30]], (0,))
    orders = [tuple(order) for order in batches[0].flatten(0, 1).tolist()]
    assert len(set(orders)) == 4
    assert tuple(range(30)) not in orders


def test_a_draw_depends_on_seed_and_round_alone():
    work = LocalWork(1, 4)
    first = drawn(work, [[8, 8], [8, 8]], (3, 5), 2)
    assert torch.equal(drawn(work, [[8, 8]], (5,), 2)[0], first[1])
    assert torch.equal(drawn(work, [[8, 8], [8, 8]], (3, 5), 2), first)
    assert not torch.equal(drawn(work, [[8, 8], [8, 8]], (3, 5), 3), first)
    assert not torch.equal(first[0], first[1])


def test_clients_that_were_drawn_have_the_batches_they_would_have_had():
    work, counts = LocalWork(2, 3), torch.tensor([[7, 5, 6, 2]])
    everyone = draw_batches(work, counts, None, (1,), 4)
    some = draw_batches(work, counts, torch.tensor([[3, 1]]), (1,), 4)
    assert everyone is not None
    assert some is not None
    assert torch.equal(some[0], everyone[0, [3, 1]])


def test_orders_are_uniform():
    seen: Counter[tuple[int, ...]] = Counter()
    for round_ in range(600):
        seen[tuple(drawn(LocalWork(1, 3), [[3]], (0,), round_).flatten().tolist())] += 1
    assert set(seen) == set(itertools.permutations(range(3)))
    assert max(abs(n - 100) for n in seen.values()) < 4 * (600 * 5 / 36) ** 0.5


def test_full_batches_need_no_draw():
    assert draw_batches(LocalWork(3), torch.tensor([[4]]), None, (0,), 1) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1; found 0"),
        ({"batch_size": 0}, "batch_size must be at least 1; found 0"),
        ({"step_size": 0.0}, "step_size must be positive and finite; found 0.0"),
        ({"step_size": float("inf")}, "step_size must be positive and finite; found inf"),
        ({"step_size": float("nan")}, "step_size must be positive and finite; found nan"),
    ],
)
def test_settings(settings: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        LocalWork(**settings)  # type: ignore[arg-type]


# --- precision


def flags() -> tuple[str, str]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")])
def test_precision_holds_within_and_nothing_changes_outside(precision, expected: str):
    before = flags()
    with layer_products(precision, CUDA):
        assert flags() == (expected, expected)
    assert flags() == before
    with pytest.raises(RuntimeError, match="stop"), layer_products(precision, CUDA):
        raise RuntimeError("stop")
    assert flags() == before


def test_on_a_cpu_float32_is_float32():
    before = flags()
    with layer_products("float32", CPU):
        assert flags() == before
        assert not torch.is_autocast_enabled("cpu")


def test_bfloat16_is_a_matter_of_the_forward_products_within():
    a, b = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    with casting("bfloat16", CPU):
        inside = a @ b
        total = (a + b).dtype
    assert inside.dtype == torch.bfloat16
    assert total == torch.float32
    assert (a @ b).dtype == torch.float32
    torch.testing.assert_close(inside.float(), a @ b, rtol=2e-2, atol=5e-2)
    with casting("float32", CPU):
        assert (a @ b).dtype == torch.float32
