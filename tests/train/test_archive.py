"""Plans carried out by their numbers: the same archive, in place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise.train.archive import Archive, Numbers, carry_out

POINTS = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=25)


def params(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(3, 2, generator=generator),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "count": torch.tensor(step),
    }


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@given(points=POINTS, capacity=st.integers(1, 4), power=st.sampled_from([0.0, 2.0]))
def test_the_archive_is_that_of_the_conversion_bit_for_bit(late, points, capacity, power):
    conversion = eq.Adaptive(power=power, capacity=capacity)
    archive = Archive(conversion, late=late)
    ours, theirs = (conversion.init(params(0), torch.zeros(3)) for _ in range(2))
    for step, point in enumerate(points):
        losses = torch.tensor(point, dtype=torch.float32)
        live = params(step)
        ours = archive.update(live, losses, ours)
        theirs = conversion.update(live, losses, theirs)
        for tensor in live.values():
            tensor.zero_()  # what was put aside is a copy
    archive.settle(ours)
    archive.settle(ours)
    left, right = eq.state.flatten(ours), eq.state.flatten(theirs)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_diverged_iterate_leaves_no_trace(late):
    conversion = eq.Adaptive(capacity=2)
    archive = Archive(conversion, late=late)
    state = conversion.init(params(0), torch.zeros(3))
    state = archive.update(params(1), torch.ones(3), state)
    lost = {name: torch.full_like(x, torch.nan) if x.is_floating_point() else x for name, x in params(2).items()}
    state = archive.update(lost, torch.tensor([1.0, torch.nan, 1.0]), state)
    archive.settle(state)
    expected = {name: x.float() if x.is_floating_point() else x for name, x in params(1).items()}
    torch.testing.assert_close(conversion.output(state), expected, rtol=0, atol=0)


def test_a_run_that_reads_its_plans_late_is_the_same_run(toy, preference):
    """As on an accelerator: whoever looks at the archive looks at one that has caught up."""
    late, now = toy(), toy()
    conversion = eq.Adaptive(power=1, capacity=3)
    left = eq.MultiObjective(late.model, eq.OMD(), preference, conversion, late.optimizer)
    right = eq.MultiObjective(now.model, eq.OMD(), preference, conversion, now.optimizer)
    left._archive = Archive(conversion, late=True)
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
    again = eq.MultiObjective(other.model, eq.OMD(), preference, conversion, other.optimizer)
    again._archive = Archive(conversion, late=True)
    other.run(again, 5)  # leaves a plan behind that must not reach what is loaded
    again.load_state_dict(saved)
    torch.testing.assert_close(again.solution(), right.solution(), rtol=0, atol=0)
    assert again.metrics() == right.metrics()


def test_only_the_slots_of_the_plan_are_touched():
    slots = {"x": torch.tensor([[0.0], [10.0], [20.0]]), "n": torch.tensor([1, 2, 3])}
    theta = {"x": torch.tensor([100.0]), "n": torch.tensor(7)}
    carry_out(Numbers(into=0, other=1, mix=0.25, write=1, gain=1.0), theta, slots)
    assert slots["x"].flatten().tolist() == [2.5, 100.0, 20.0]
    assert slots["n"].tolist() == [2, 7, 3]
    carry_out(Numbers(into=2, other=0, mix=0.0, write=2, gain=0.5), theta, slots)
    assert slots["x"].flatten().tolist() == [2.5, 100.0, 60.0]
    carry_out(Numbers(into=0, other=0, mix=0.0, write=0, gain=0.0), theta, slots)
    assert slots["x"].flatten().tolist() == [2.5, 100.0, 60.0]
