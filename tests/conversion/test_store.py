"""The store of a batch of conversions: slots are blended as a plan says."""

import torch
from torch import Tensor

from equipoise.conversion.plan import Plan
from equipoise.conversion.store import Stacked, execute, mean, open_store, resize, shares


def plan(into: list[int], other: list[int], mix: list[float], write: list[int], gain: list[float]) -> Plan:
    a, b, w = (torch.tensor(index) for index in (into, other, write))
    return Plan(a, b, torch.tensor(mix, dtype=torch.float64), w, torch.tensor(gain, dtype=torch.float64))


def filled() -> dict[str, Tensor]:
    """Two problems, three slots, of one and of two dimensions."""
    x = torch.arange(12.0).reshape(2, 3, 2)
    return {"x": x, "n": torch.arange(6).reshape(2, 3)}


def new() -> dict[str, Tensor]:
    return {"x": torch.tensor([[100.0, 200.0], [300.0, 400.0]]), "n": torch.tensor([70, 80])}


def test_a_new_store_holds_the_parameters_given_in_its_first_slot():
    params = {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16), "n": torch.tensor([5, 6])}
    store = open_store(params, 1, 3)
    assert store["x"].shape == (2, 3, 2)
    assert store["x"].dtype == torch.float32
    assert store["x"][:, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert store["n"].tolist() == [[5, 0, 0], [6, 0, 0]]


def test_a_resized_store_holds_the_same():
    store = filled()
    larger = resize(store, 1, 5)
    assert larger["x"].shape == (2, 5, 2)
    assert torch.equal(larger["x"][:, :3], store["x"])
    assert not larger["x"][:, 3:].any()
    assert torch.equal(larger["n"][:, :3], store["n"])


def test_nothing_happens_at_gain_and_mix_zero():
    store, before = filled(), filled()
    execute(plan([0, 1], [1, 2], [0.0, 0.0], [2, 0], [0.0, 0.0]), new(), Stacked(store, 1))
    assert torch.equal(store["x"], before["x"])
    assert torch.equal(store["n"], before["n"])


def test_a_gain_of_one_overwrites():
    store, before = filled(), filled()
    execute(plan([0, 0], [0, 0], [0.0, 0.0], [2, 0], [1.0, 0.0]), new(), Stacked(store, 1))
    assert store["x"][0, 2].tolist() == [100.0, 200.0]
    assert store["n"][0].tolist() == [0, 1, 70]
    assert torch.equal(store["x"][0, :2], before["x"][0, :2])
    assert torch.equal(store["x"][1], before["x"][1])
    assert torch.equal(store["n"][1], before["n"][1])


def test_a_gain_of_one_overwrites_whatever_was_there():
    for stale in (torch.inf, torch.nan):
        store = filled()
        store["x"][0, 2] = stale
        execute(plan([0, 0], [0, 0], [0.0, 0.0], [2, 0], [1.0, 0.0]), new(), Stacked(store, 1))
        assert store["x"][0, 2].tolist() == [100.0, 200.0]


def test_the_merge_comes_first():
    """slot[0] ← ¾ slot[0] + ¼ slot[1], and then slot[1] ← θ: the slot that the merge frees takes the newcomer."""
    store = filled()
    execute(plan([0, 2], [1, 2], [0.25, 0.0], [1, 2], [1.0, 0.5]), new(), Stacked(store, 1))
    assert store["x"][0].tolist() == [[0.5, 1.5], [100.0, 200.0], [4.0, 5.0]]
    assert store["x"][1, 2].tolist() == [155.0, 205.5]  # half of (10, 11) and half of the newcomer


def test_problems_without_a_batch():
    store = {"x": torch.arange(6.0).reshape(3, 2), "scale": torch.arange(3.0)}
    params = {"x": torch.tensor([8.0, 9.0]), "scale": torch.tensor(7.0)}
    one = Plan(*(torch.tensor(value) for value in (0, 0, 0.0, 1, 1.0)))
    execute(one, params, Stacked(store, 0))
    assert store["x"].tolist() == [[0.0, 1.0], [8.0, 9.0], [4.0, 5.0]]
    assert store["scale"].tolist() == [0.0, 7.0, 2.0]


def test_the_weighted_mean():
    weights = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]], dtype=torch.float64)
    found = mean(filled(), shares(weights))
    assert found["x"].tolist() == [[3.0, 4.0], [8.0, 9.0]]
    assert found["n"].tolist() == [2, 4]  # of the heaviest slot


def test_the_mean_of_nothing_is_the_first_slot():
    found = mean(filled(), shares(torch.zeros(2, 3, dtype=torch.float64)))
    assert found["x"].tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert found["n"].tolist() == [0, 3]


def test_a_slot_without_weight_does_not_count_whatever_it_holds():
    store = filled()
    store["x"][0, 1] = torch.inf
    found = mean(store, shares(torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]], dtype=torch.float64)))
    assert found["x"][0].tolist() == [3.0, 4.0]


def test_the_mean_of_numbers():
    store = {"scale": torch.tensor([1.0, 2.0, 3.0]), "batches": torch.tensor([4, 5, 6])}
    found = mean(store, shares(torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64)))
    assert found["scale"].shape == ()
    assert found["scale"].item() == 2.5
    assert found["batches"].item() == 6
