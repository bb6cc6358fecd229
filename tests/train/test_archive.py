"""Plans as plain numbers give the same archive, in place."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.conversion import Conversion, Plan
from equipoise.conversion.plan import Numbers
from equipoise.conversion.store import execute
from equipoise.state import flatten
from equipoise.train.archive import Archive
from equipoise.train.slots import InMemory, in_memory

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


WAYS = ["at once", "late", "host", "host, late"]
CONVERSIONS = st.one_of(
    st.builds(eq.Adaptive, st.sampled_from([0.0, 2.0]), st.integers(1, 4)),
    st.builds(eq.Suffix, st.sampled_from([0.0, 2.0]), st.integers(2, 4)),
    st.builds(eq.Average, st.sampled_from([0.0, 2.0])),
    st.just(eq.Last()),
)


@pytest.fixture
def made(as_accelerator) -> Callable[[Any, str], Archive]:
    """An archive of `params`, in one of the ways."""

    def made(conversion: Any, way: str) -> Archive:
        slots = in_memory(params(0), conversion.copies, on_host="host" in way)
        with as_accelerator() if "late" in way else nullcontext():
            return Archive(conversion, params(0), torch.zeros(3), slots, CPU)

    return made


def enter(archive: Archive, live: dict[str, Tensor], losses: Tensor) -> None:
    """On an accelerator θ has moved when its losses arrive: what was put aside is a copy."""
    archive.hold(live)
    if archive._aside:
        for tensor in live.values():
            tensor.zero_()
    archive.commit(losses)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(points=POINTS, conversion=CONVERSIONS, drops=st.booleans())
def test_the_archive_is_that_of_the_conversion_bit_for_bit(way, made, points, conversion, drops):
    archive, theirs = made(conversion, way), conversion.init(params(0), torch.zeros(3))
    for step, point in enumerate(points):
        losses = torch.tensor(point, dtype=torch.float32)
        live = params(step)
        if drops:
            archive.hold(params(step + 1))
            archive.drop()  # as a step that did not count
        theirs = conversion.update(live, losses, theirs)
        enter(archive, live, losses)
        for tensor in live.values():
            tensor.zero_()
    archive.settle()
    archive.settle()
    assert archive.recorded == len(points)
    left, right = flatten(archive.numbers), flatten(theirs._replace(slots={}))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], tensor) for name, tensor in right.items())
    copies = archive.state().slots
    assert len(copies) == conversion.copies
    for j, copy in copies.items():
        assert list(copy) == list(theirs.slots)
        assert all(torch.equal(tensor, theirs.slots[name][int(j)]) for name, tensor in copy.items())
    torch.testing.assert_close(archive.output(W), conversion.output(theirs, W), rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_diverged_iterate_leaves_no_trace(way, made):
    archive = made(eq.Adaptive(capacity=2), way)
    expected = {name: x.float() if x.is_floating_point() else x for name, x in params(1).items()}
    enter(archive, params(1), torch.ones(3))
    lost = {name: torch.full_like(x, torch.nan) if x.is_floating_point() else x for name, x in params(2).items()}
    enter(archive, lost, torch.tensor([1.0, torch.nan, 1.0]))
    archive.settle()
    torch.testing.assert_close(archive.output(W), expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_how_many_copies_there_are(way, made):
    """As many as there are slots, and where θ is put aside one more; a thread may still read another."""
    archive, seen = made(eq.Suffix(capacity=3), way), set()
    for step in range(12):
        archive.hold(params(step))
        assert archive.held is not None
        seen |= {id(x) for copy in archive.slots.copies for x in copy.values()}
        seen |= {id(x) for x in archive.held.value.values()} if archive._aside else set()
        archive.commit(torch.ones(3))
        archive.settle()
    spare = {"at once": 0, "late": 1, "host": 0, "host, late": 1}[way]
    assert len(seen) == (3 + spare) * len(params(0))


def test_a_run_that_reads_its_plans_late_is_the_same_run(toy, preference, as_accelerator):
    """As on an accelerator: reading the archive first waits for pending writes."""
    late, now = toy(), toy()
    conversion = eq.Adaptive(power=1, capacity=3)
    with as_accelerator():
        left = eq.MultiObjective(late.model, late.optimizer, preference, method=(eq.OMD(), conversion))
    right = eq.MultiObjective(now.model, now.optimizer, preference, method=(eq.OMD(), conversion))
    for step in range(12):
        late.run(left, 1, step)
        now.run(right, 1, step)
        if step % 3 == 0:
            torch.testing.assert_close(left.solution(), right.solution(), rtol=0, atol=0)
        if step % 4 == 0:
            ours, theirs = left.state_dict()["tensors"], right.state_dict()["tensors"]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    saved = right.state_dict()
    other = toy()
    with as_accelerator():
        again = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), conversion))
    other.run(again, 5)  # leaves a plan behind that must not reach what is loaded
    again.load_state_dict(saved)
    torch.testing.assert_close(again.solution(), right.solution(), rtol=0, atol=0)
    assert again.metrics() == right.metrics()


def test_only_the_slots_of_the_plan_are_touched():
    held = {"x": torch.tensor([[0.0], [10.0], [20.0]]), "n": torch.tensor([1, 2, 3])}
    slots = InMemory([{name: tensor[j] for name, tensor in held.items()} for j in range(3)])
    theta = {"x": torch.tensor([100.0]), "n": torch.tensor(7)}
    execute(Numbers(into=0, other=1, mix=0.25, write=1, gain=1.0), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 20.0]
    assert held["n"].tolist() == [2, 7, 3]
    execute(Numbers(into=2, other=0, mix=0.0, write=2, gain=0.5), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 60.0]
    execute(Numbers(into=0, other=0, mix=0.0, write=0, gain=0.0), theta, slots)
    assert held["x"].flatten().tolist() == [2.5, 100.0, 60.0]


class Best(NamedTuple):
    slots: dict[str, Tensor]
    least: Tensor


@dataclass(frozen=True)
class BestSum(Conversion[Best]):
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


class Doubled(eq.Last):
    """The last iterate, in its own way."""

    def update(self, params: Any, losses: Any, state: Any, *, mask: Any = None) -> Any:
        return super().update({name: 2 * p for name, p in params.items()}, losses, state, mask=mask)


def test_a_conversion_that_does_what_it_does_outside_its_plans_is_refused(toy, preference):
    """It would be silently ignored."""
    message = "must be defined by plan and shares, .* not called here; found Doubled with its own update"
    with pytest.raises(ValueError, match=message):
        eq.MultiObjective(toy().model, None, preference, method=(eq.OMD(), Doubled()))


@pytest.mark.parametrize("store", ["device", "host", "folder"])
def test_a_conversion_of_a_user_has_stores_and_checkpoints(store, toy, preference, tmp_path, as_accelerator):
    runs = []
    for k, late in enumerate((False, True)):
        run = toy()
        where = tmp_path / f"first-{k}" if store == "folder" else store
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), BestSum()), store=where)
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
    resumed = eq.MultiObjective(again.model, again.optimizer, preference, method=(eq.OMD(), BestSum()), store=where)
    resumed.load_state_dict({**mol.state_dict(), "tensors": {n: x.clone() for n, x in copies.items()}})
    again.model.load_state_dict(run.model.state_dict())
    run.run(mol, 3, 7)
    again.run(resumed, 3, 7)
    assert_same(resumed.solution(), mol.solution())


def test_other_dtypes_are_converted_one_by_one():
    old = in_memory({"a": torch.zeros(3), "b": torch.ones(2)}, 1)
    new = {"a": torch.ones(3).bfloat16(), "b": torch.zeros(2)}
    execute(Numbers(0, 0, 0.0, 0, 0.25), new, old)
    assert old.read(0)["a"].tolist() == [0.25] * 3
    assert old.read(0)["b"].tolist() == [0.75] * 2


@pytest.mark.parametrize("mix", [0.3, 0.8, 1.0])
def test_tensors_of_any_kind_are_blended(mix):
    slots = in_memory(params(0), 1)
    execute(Numbers(0, 0, 0.0, 0, mix), params(1), slots)
    found = slots.read(0)
    assert found["count"].item() == 1
    for name in ("weight", "half"):
        expected = torch.lerp(params(0)[name].float(), params(1)[name].float(), mix)
        torch.testing.assert_close(found[name], expected, rtol=0, atol=0)
