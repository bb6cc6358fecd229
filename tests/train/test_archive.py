"""Plans carried out by their numbers: the same archive, in place."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.state import flatten
from equipoise.train.archive import Archive
from equipoise.train.courier import Aside, ToHost
from equipoise.train.slots import InMemory, Numbers, blend, carry_out, on_device, on_host

CPU = torch.device("cpu")

POINTS = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=25)


def params(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(3, 2, generator=generator),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "count": torch.tensor(step),
    }


WAYS = {
    "at once": lambda conversion: (on_device(params(0), conversion.capacity), None),
    "late": lambda conversion: (on_device(params(0), conversion.capacity), Aside()),
    "host": lambda conversion: (on_host(params(0), conversion.capacity), None),
    "host, late": lambda conversion: (on_host(params(0), conversion.capacity), ToHost(CPU)),
}


def made(conversion: eq.Adaptive, way: str) -> Archive:
    return Archive(conversion, params(0), torch.zeros(3), *WAYS[way](conversion))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(points=POINTS, capacity=st.integers(1, 4), power=st.sampled_from([0.0, 2.0]), sends=st.booleans())
def test_the_archive_is_that_of_the_conversion_bit_for_bit(way, points, capacity, power, sends):
    conversion = eq.Adaptive(power=power, capacity=capacity)
    archive, theirs = made(conversion, way), conversion.init(params(0), torch.zeros(3))
    for step, point in enumerate(points):
        losses = torch.tensor(point, dtype=torch.float32)
        live = params(step)
        if sends:
            archive.send(live)
        archive.update(live, losses)
        theirs = conversion.update(live, losses, theirs)
        for tensor in live.values():
            tensor.zero_()  # what was put aside is a copy
    archive.settle()
    archive.settle()
    left, right = flatten(archive.numbers()), flatten(theirs.ledger)
    assert all(torch.equal(left[f"ledger.{name}"], tensor) for name, tensor in right.items())
    copies = archive.state().slots
    assert len(copies) == capacity
    for j, copy in copies.items():
        assert list(copy) == list(theirs.slots)
        assert all(torch.equal(tensor, theirs.slots[name][int(j)]) for name, tensor in copy.items())
    torch.testing.assert_close(archive.output(), conversion.output(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_diverged_iterate_leaves_no_trace(way):
    archive = made(eq.Adaptive(capacity=2), way)
    archive.update(params(1), torch.ones(3))
    lost = {name: torch.full_like(x, torch.nan) if x.is_floating_point() else x for name, x in params(2).items()}
    archive.update(lost, torch.tensor([1.0, torch.nan, 1.0]))
    archive.settle()
    expected = {name: x.float() if x.is_floating_point() else x for name, x in params(1).items()}
    torch.testing.assert_close(archive.output(), expected, rtol=0, atol=0)


def test_a_run_that_reads_its_plans_late_is_the_same_run(toy, preference, beside_the_host):
    """As on an accelerator: whoever looks at the archive looks at one that has caught up."""
    late, now = toy(), toy()
    conversion = eq.Adaptive(power=1, capacity=3)
    with beside_the_host():
        left = eq.MultiObjective(late.model, eq.OMD(), preference, conversion, late.optimizer)
    right = eq.MultiObjective(now.model, eq.OMD(), preference, conversion, now.optimizer)
    for step in range(12):
        late.run(left, 1, step)
        now.run(right, 1, step)
        if step % 3 == 0:
            torch.testing.assert_close(left.solution(), right.solution(), rtol=0, atol=0)
        if step % 4 == 0:
            ours, theirs = left.state_dict()["tensors"], right.state_dict()["tensors"]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    saved = right.state_dict()
    other = toy()
    with beside_the_host():
        again = eq.MultiObjective(other.model, eq.OMD(), preference, conversion, other.optimizer)
    other.run(again, 5)  # leaves a plan behind that must not reach what is loaded
    again.load_state_dict(saved)
    torch.testing.assert_close(again.solution(), right.solution(), rtol=0, atol=0)
    assert again.metrics() == right.metrics()


def test_only_the_slots_of_the_plan_are_touched():
    held = {"x": torch.tensor([[0.0], [10.0], [20.0]]), "n": torch.tensor([1, 2, 3])}
    slots = InMemory([{name: tensor[j] for name, tensor in held.items()} for j in range(3)], follows=True)
    theta = {"x": torch.tensor([100.0]), "n": torch.tensor(7)}
    carry_out(Numbers(into=0, other=1, mix=0.25, write=1, gain=1.0), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 20.0]
    assert held["n"].tolist() == [2, 7, 3]
    carry_out(Numbers(into=2, other=0, mix=0.0, write=2, gain=0.5), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 60.0]
    carry_out(Numbers(into=0, other=0, mix=0.0, write=0, gain=0.0), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 60.0]


class Doubled(eq.Last):
    """The last iterate, in its own way."""

    def update(self, params: Any, losses: Any, state: Any, *, mask: Any = None) -> Any:
        return super().update({name: 2 * p for name, p in params.items()}, losses, state, mask=mask)


def test_a_conversion_that_changes_what_is_done_does_it_itself(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, eq.OMD(), preference, Doubled(), run.optimizer)
    run.run(mol, 3)
    before = {name: 2 * p.detach() for name, p in run.model.named_parameters()}
    run.run(mol, 1)
    torch.testing.assert_close({name: mol.solution()[name] for name in before}, before)
    with pytest.raises(ValueError, match="store must be"):
        eq.MultiObjective(run.model, eq.OMD(), preference, Doubled(), store="host")


def test_other_dtypes_are_converted_one_by_one():
    old = on_device({"a": torch.zeros(3), "b": torch.ones(2)}, 1)
    new = {"a": torch.ones(3).bfloat16(), "b": torch.zeros(2)}
    carry_out(Numbers(0, 0, 0.0, 0, 0.25), new, old)
    assert old.read(0)["a"].tolist() == [0.25] * 3
    assert old.read(0)["b"].tolist() == [0.75] * 2


@pytest.mark.parametrize("mix", [0.3, 0.8, 1.0])
def test_large_tensors_are_blended_as_small_ones_are(mix, monkeypatch):
    found = []
    for large in (1, 5, 1 << 20):
        monkeypatch.setattr("equipoise.train.slots.LARGE", large)
        old = {name: tensor.float() if name == "half" else tensor for name, tensor in params(0).items()}
        blend(old, params(1), mix)
        found.append(old)
    assert all(torch.equal(old[name], found[0][name]) for old in found for name in old)
    assert found[0]["count"].item() == 1
    expected = torch.lerp(params(0)["weight"], params(1)["weight"], mix)
    torch.testing.assert_close(found[0]["weight"], expected, rtol=0, atol=0)
