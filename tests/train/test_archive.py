"""Plans carried out by their numbers: the same archive, in place."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.conversion import Plan, PlannedConversion
from equipoise.state import flatten
from equipoise.train.archive import Archive
from equipoise.train.courier import Aside, ToHost
from equipoise.train.slots import InMemory, Numbers, blend, carry_out, on_device, on_host

CPU = torch.device("cpu")

W = torch.tensor([0.2, 0.3, 0.5])

POINTS = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=25)


def params(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(3, 2, generator=generator),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "count": torch.tensor(step),
    }


WAYS = {
    "at once": lambda conversion: (on_device(params(0), conversion.copies), None),
    "late": lambda conversion: (on_device(params(0), conversion.copies), Aside()),
    "host": lambda conversion: (on_host(params(0), conversion.copies), None),
    "host, late": lambda conversion: (on_host(params(0), conversion.copies), ToHost(CPU)),
}
CONVERSIONS = st.one_of(
    st.builds(eq.Adaptive, st.sampled_from([0.0, 2.0]), st.integers(1, 4)),
    st.builds(eq.Suffix, st.sampled_from([0.0, 2.0]), st.integers(2, 4)),
    st.builds(eq.Average, st.sampled_from([0.0, 2.0])),
    st.just(eq.Last()),
)


def made(conversion: Any, way: str) -> Archive:
    return Archive(conversion, params(0), torch.zeros(3), *WAYS[way](conversion))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(points=POINTS, conversion=CONVERSIONS, sends=st.booleans())
def test_the_archive_is_that_of_the_conversion_bit_for_bit(way, points, conversion, sends):
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
    left, right = flatten(archive.numbers()), flatten(theirs._replace(slots={}))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], tensor) for name, tensor in right.items())
    copies = archive.state().slots
    assert len(copies) == conversion.copies
    for j, copy in copies.items():
        assert list(copy) == list(theirs.slots)
        assert all(torch.equal(tensor, theirs.slots[name][int(j)]) for name, tensor in copy.items())
    torch.testing.assert_close(archive.output(W), conversion.output(theirs, W), rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_diverged_iterate_leaves_no_trace(way):
    archive = made(eq.Adaptive(capacity=2), way)
    archive.update(params(1), torch.ones(3))
    lost = {name: torch.full_like(x, torch.nan) if x.is_floating_point() else x for name, x in params(2).items()}
    archive.update(lost, torch.tensor([1.0, torch.nan, 1.0]))
    archive.settle()
    expected = {name: x.float() if x.is_floating_point() else x for name, x in params(1).items()}
    torch.testing.assert_close(archive.output(W), expected, rtol=0, atol=0)


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


class Best(NamedTuple):
    slots: dict[str, Tensor]
    least: Tensor


@dataclass(frozen=True)
class BestSum(PlannedConversion[Best]):
    """The iterate of the least sum of weighted losses, as a user would write it; the other slot holds the last one."""

    copies = 2

    def begin(self, losses: Tensor) -> Best:
        return Best({}, losses.new_full(losses.shape[:-1], torch.inf))

    def plan(self, losses: Tensor, state: Best, mask: Tensor | None = None) -> tuple[Plan, Best]:  # noqa: ARG002
        better = losses.sum(-1) < state.least
        zero = torch.zeros_like(better, dtype=torch.int64)
        least = torch.where(better, losses.sum(-1), state.least)
        plan = Plan(zero, zero + 1, better.to(least), zero + 1, torch.ones_like(least))  # the last one moves over late
        return plan, state._replace(least=least)

    def shares(self, state: Best, preference: Tensor | None = None) -> Tensor:
        assert preference is not None
        first = 1 - (state.least < torch.inf).to(state.least) * preference[..., -1]
        return torch.stack([first, 1 - first], -1)


@pytest.mark.parametrize("store", ["device", "host", "folder"])
def test_a_planned_conversion_of_a_user_has_stores_and_checkpoints(store, toy, preference, tmp_path, beside_the_host):
    runs = []
    for k, late in enumerate((False, True)):
        run = toy()
        where = tmp_path / f"first-{k}" if store == "folder" else store
        with beside_the_host() if late else nullcontext():
            mol = eq.MultiObjective(run.model, eq.OMD(), preference, BestSum(), run.optimizer, store=where)
        run.run(mol, 7)
        runs.append((run, mol))
    (run, mol), (_, other) = runs
    assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)
    assert_same(mol.solution(), other.solution())
    copies = mol.state_dict()["tensors"]
    expected = {
        n: 0.5 * copies[f"conversion.slots.0.{n}"] + 0.5 * copies[f"conversion.slots.1.{n}"] for n in run.params()
    }
    torch.testing.assert_close({n: mol.solution()[n] for n in expected}, expected)  # w₃ = ½
    again = toy()
    where = tmp_path / "second" if store == "folder" else store
    resumed = eq.MultiObjective(again.model, eq.OMD(), preference, BestSum(), again.optimizer, store=where)
    resumed.load_state_dict({**mol.state_dict(), "tensors": {n: x.clone() for n, x in copies.items()}})
    again.model.load_state_dict(run.model.state_dict())
    run.run(mol, 3, 7)
    again.run(resumed, 3, 7)
    assert_same(resumed.solution(), mol.solution())


class Bare:
    """A conversion from before there were preferences, of no base class: it answers with the first iterate."""

    def init(self, params: Any, losses: Any) -> Any:
        return Best({name: p.detach().clone() for name, p in params.items()}, losses.new_full((), torch.inf))

    def update(self, params: Any, losses: Any, state: Any, *, mask: Any = None) -> Any:  # noqa: ARG002
        return state

    def output(self, state: Any) -> Any:
        return state.slots


def test_a_conversion_whose_output_takes_the_state_alone_goes_on_working(toy, preference):
    run = toy()
    begun = run.params()
    bare: Any = Bare()
    mol = eq.MultiObjective(run.model, eq.OMD(), preference, bare, run.optimizer)
    run.run(mol, 3)
    torch.testing.assert_close({name: mol.solution()[name] for name in begun}, begun, rtol=0, atol=0)
    assert "archive" not in mol.metrics()


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
