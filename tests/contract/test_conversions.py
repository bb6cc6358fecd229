"""The contract of every conversion.

A conversion joins by its line in the registry; settings that no method of the registry has are in `SETTINGS`.
"""

import dataclasses
import io
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.conversion.own import LastEpoch
from tests.torch_versions import compiles
from torch import Tensor

import equipoise as eq
from equipoise.conversion import Conversion

M, D = 3, 5
BATCHES = [(), (3,), (2, 3)]
DEVICES = ["meta", *(["cuda"] if torch.cuda.is_available() else [])]
SETTINGS: dict[str, Conversion[Any]] = {
    "last": eq.Last(),
    "average": eq.Average(),
    "average power 1": eq.Average(power=1.0),
    "average power 2.5": eq.Average(power=2.5),
    "adaptive": eq.Adaptive(),
    "adaptive keep": eq.Adaptive(ties="keep"),
    "adaptive power 1": eq.Adaptive(power=1.0),
    "adaptive capacity 1": eq.Adaptive(capacity=1),
    "adaptive capacity 2": eq.Adaptive(capacity=2, ties="keep"),
    "adaptive capacity 4 power 4": eq.Adaptive(capacity=4, power=4.0),
    "suffix": eq.Suffix(),
    "suffix capacity 2 power 0": eq.Suffix(power=0.0, capacity=2),
    "suffix capacity 3 power 2.5 z 0": eq.Suffix(power=2.5, capacity=3, z=0.0),
    "a user's own": LastEpoch(),
}
REGISTRY = {method.conversion: name for name, method in reversed(eq.methods().items())}
ALL: dict[str, Any] = {
    **{name: c for c, name in reversed(REGISTRY.items()) if c not in SETTINGS.values()},
    **SETTINGS,
}


def over(cases: Mapping[str, Conversion[Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("conversion", cases.values(), ids=cases.keys())


every = over(ALL)
comparing = over({name: c for name, c in ALL.items() if c.records == "before"})
averaging = over({name: c for name, c in ALL.items() if hasattr(c, "power")})
bounded = over({name: c for name, c in ALL.items() if c.copies is not None})


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def iterates(steps: int, *batch: int, seed: int = 0) -> list[tuple[dict[str, Tensor], Tensor]]:
    """θ⁽ᵗ⁾ with its losses; a matrix and a vector for each problem."""
    weight, bias = draw(steps, *batch, D, 2, seed=seed), draw(steps, *batch, 1, seed=seed + 1)
    losses = draw(steps, *batch, M, seed=seed + 2)
    return [({"layer.weight": weight[t], "bias": bias[t]}, losses[t]) for t in range(steps)]


def record(conversion: Conversion[Any], path: Any, state: Any = None, **given: Any) -> Any:
    state = conversion.init(path[0][0], path[0][1]) if state is None else state
    for params, losses in path:
        state = conversion.update(params, losses, state, **given)
    return state


def flat(state: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in eq.state.flatten(state).items()}


def batch_first(name: str, tensor: Tensor) -> Tensor:
    return tensor.movedim(0, -1) if name.endswith(("ledger.values", "ledger.guards")) else tensor


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Bit for bit, dtypes too."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


# What goes in, what comes out -----------------------------------------------------------------


@every
def test_it_is_a_frozen_description(conversion: Any):
    with pytest.raises(dataclasses.FrozenInstanceError):
        conversion.power = 3.0
    assert dataclasses.replace(conversion) == conversion
    assert repr(conversion).startswith(type(conversion).__name__)


@every
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_before_the_first_iterate_the_answer_is_where_it_began(conversion: Conversion[Any], batch: tuple[int, ...]):
    (params, losses), *_ = iterates(1, *batch)
    state = conversion.init(params, torch.full_like(losses, math.nan))
    assert_same(conversion.output(state), params)
    assert_same(flat(state), flat(conversion.init(params, losses)))


@every
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_one_iterate_is_the_answer(conversion: Conversion[Any], batch: tuple[int, ...]):
    first, second = iterates(2, *batch)
    state = conversion.init(*first)
    assert_same(conversion.output(conversion.update(*second, state)), second[0])


@every
def test_a_number_is_a_parameter_too(conversion: Conversion[Any]):
    path = [({"scale": draw(seed=t), "batches": torch.tensor(t)}, draw(M, seed=t)) for t in range(4)]
    output = conversion.output(record(conversion, path))
    assert output["scale"].shape == output["batches"].shape == ()
    assert min(p["scale"].item() for p, _ in path) <= output["scale"].item() <= max(p["scale"].item() for p, _ in path)
    assert output["batches"].item() in range(4)


@every
@pytest.mark.parametrize("template", [math.nan, math.inf, -3e38])
def test_init_records_nothing(conversion: Conversion[Any], template: float):
    path = iterates(2, 3)
    params, second = ({name: x.float() for name, x in p.items()} for p, _ in path)
    losses = path[0][1]
    blank = {name: torch.full_like(tensor, template) for name, tensor in params.items()}
    state = conversion.update(params, losses, conversion.init(blank, losses))
    assert_same(conversion.output(state), params)
    state = conversion.update(second, losses - 1.0, state)  # dominates the first
    assert all(torch.isfinite(tensor).all() for tensor in conversion.output(state).values())


@every
def test_what_is_recorded_keeps_its_shape_and_at_least_float32(conversion: Conversion[Any]):
    dtypes = {"half": torch.float16, "bf": torch.bfloat16, "single": torch.float32, "double": torch.float64}
    params = {name: draw(3, 2, 4).to(dtype) for name, dtype in dtypes.items()}
    params |= {"number": draw(3), "steps": torch.tensor([1, 2, 3]), "flag": torch.tensor([[True], [False], [True]])}
    losses = draw(3, M)
    state = record(conversion, [(params, losses), (params, losses + 1.0), (params, losses - 1.0)])
    output = conversion.output(state)
    assert output.keys() == params.keys()
    for name, tensor in output.items():
        assert tensor.shape == params[name].shape
        expected = torch.promote_types(dtypes.get(name, params[name].dtype), torch.float32)
        assert tensor.dtype == (expected if params[name].is_floating_point() else params[name].dtype)
        # All iterates were the same point.
        torch.testing.assert_close(tensor.double(), params[name].double(), rtol=1e-6, atol=0)


@every
def test_tensors_without_elements_are_carried_along(conversion: Conversion[Any]):
    path = [({"x": draw(2, D), "none": draw(2, 0)}, draw(2, M, seed=t)) for t in range(3)]
    assert conversion.output(record(conversion, path))["none"].shape == (2, 0)


@every
def test_buffers_that_cannot_be_averaged_come_from_one_iterate(conversion: Conversion[Any]):
    path = [({"x": draw(2, D), "steps": torch.tensor([t, 10 + t])}, draw(2, M, seed=t)) for t in range(6)]
    steps = conversion.output(record(conversion, path))["steps"]
    assert steps.dtype == torch.int64
    assert steps[0].item() in range(6)
    assert steps[1].item() in range(10, 16)


@bounded
@pytest.mark.parametrize("device", DEVICES)
def test_the_device_is_kept_and_no_value_is_read_on_the_host(conversion: Conversion[Any], device: str):
    # The meta device has no values: whatever reads one raises. A growing archive has to look whether it is full.
    path = [({k: x.to(device) for k, x in p.items()}, f.to(device)) for p, f in iterates(3, 2)]
    state = record(conversion, path, mask=torch.ones(M, dtype=torch.bool, device=device))
    assert all(tensor.device.type == device for tensor in eq.state.flatten(state).values())
    assert all(tensor.device.type == device for tensor in conversion.output(state).values())


@every
def test_nothing_that_is_given_changes(conversion: Conversion[Any]):
    path = iterates(8, 2)
    before = [({name: x.clone() for name, x in p.items()}, f.clone()) for p, f in path]
    record(conversion, path)
    for (params, losses), (params_before, losses_before) in zip(path, before, strict=True):
        assert_same(params, params_before)
        assert torch.equal(losses, losses_before)


@every
def test_the_numbers_of_a_state_stay_when_the_next_one_is_made(conversion: Conversion[Any]):
    """Copies are changed in place; numbers belong to their step. Losses fall: members of an archive are cleared."""
    state = record(conversion, iterates(6, 2))
    before = flat(state)
    (params, losses), *_ = iterates(1, 2)
    conversion.update(params, 0.01 * losses, state)
    for name, tensor in eq.state.flatten(state).items():
        assert "slots" in name or torch.equal(tensor, before[name]), name


@every
@pytest.mark.parametrize("batch", [(), (2,)])
def test_losses_may_be_overwritten_once_they_are_recorded(conversion: Conversion[Any], batch: tuple[int, ...]):
    path = iterates(4, *batch)
    state = record(conversion, path)
    before = flat(state)
    for _, losses in path:
        losses.fill_(9.0)
    assert_same(flat(state), before)


@every
def test_graphs_are_not_kept(conversion: Conversion[Any]):
    path = [({name: x.requires_grad_() for name, x in p.items()}, f.requires_grad_()) for p, f in iterates(4, 2)]
    state = record(conversion, path)
    assert not any(tensor.requires_grad for tensor in eq.state.flatten(state).values())
    assert not any(tensor.requires_grad for tensor in conversion.output(state).values())


# Snapshots are copies -------------------------------------------------------------------------


@every
def test_snapshots_do_not_follow_the_model(conversion: Conversion[Any]):
    """The released code keeps references, and with them the last iterate."""
    path = iterates(6, 2)
    expected = conversion.output(record(conversion, path))
    live = {name: tensor.clone() for name, tensor in path[0][0].items()}
    state = conversion.init(live, path[0][1])
    for params, losses in path:
        for name, tensor in live.items():
            tensor.copy_(params[name])
        state = conversion.update(live, losses, state)
        for tensor in live.values():
            tensor.fill_(math.nan)
    assert_same(conversion.output(state), expected)


@every
def test_init_does_not_follow_the_model(conversion: Conversion[Any]):
    (params, losses), *_ = iterates(1, 2)
    live = {name: tensor.clone() for name, tensor in params.items()}
    state = conversion.init(live, losses)
    for tensor in live.values():
        tensor.fill_(math.nan)
    assert_same(conversion.output(state), params)


@every
def test_the_answer_is_not_the_state(conversion: Conversion[Any]):
    path = iterates(6, 2)
    state = record(conversion, path[:4])
    for tensor in conversion.output(state).values():
        tensor.fill_(math.nan)
    assert_same(conversion.output(record(conversion, path[4:], state)), conversion.output(record(conversion, path)))


def test_one_trajectory_feeds_several_conversions():
    path = iterates(8, 2)
    states = {name: conversion.init(*path[0]) for name, conversion in ALL.items()}
    for params, losses in path:
        for name, conversion in ALL.items():
            states[name] = conversion.update(params, losses, states[name])
    for name, conversion in ALL.items():
        assert_same(conversion.output(states[name]), conversion.output(record(conversion, path)))


# The batch is a law ---------------------------------------------------------------------------


@every
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
def test_batched_is_looped(conversion: Conversion[Any], batch: tuple[int, ...]):
    path = iterates(30, *batch)
    masks = draw(30, *batch, M, seed=7) > 0.2
    state = conversion.init(*path[0])
    for (params, losses), mask in zip(path, masks, strict=True):
        state = conversion.update(params, losses, state, mask=mask)
    output = conversion.output(state)
    for at in itertools.product(*(range(n) for n in batch)):
        alone = conversion.init({name: x[at] for name, x in path[0][0].items()}, path[0][1][at])
        for (params, losses), mask in zip(path, masks, strict=True):
            one = {name: x[at] for name, x in params.items()}
            alone = conversion.update(one, losses[at], alone, mask=mask[at])
        assert_close({name: x[at] for name, x in output.items()}, conversion.output(alone))
        together = {name: batch_first(name, x)[at] for name, x in flat(state).items()}
        for name, tensor in flat(alone).items():
            expected = batch_first(name, tensor)
            if name.startswith(("slots.", "ledger.values", "ledger.weights")):
                # The batch has as many slots as its largest archive.
                used = expected.shape[0] if not name.endswith("values") else expected.shape[-2]
                together[name] = together[name][:used]
            torch.testing.assert_close(together[name], expected, rtol=1e-12, atol=1e-14)


@every
def test_the_order_of_the_objectives_does_not_matter(conversion: Conversion[Any]):
    path = iterates(30, 2)
    turned = [(params, losses[..., [2, 0, 1]]) for params, losses in path]
    assert_close(conversion.output(record(conversion, turned)), conversion.output(record(conversion, path)))


# Masks and non-finite losses ------------------------------------------------------------------


@every
def test_the_loss_of_an_absent_objective_is_not_seen(conversion: Conversion[Any]):
    path, mask = iterates(6, 2), torch.tensor([True, False, True])
    states = []
    for value in (0.5, math.nan, math.inf, -math.inf, -1e30):
        state = record(conversion, path[:3])
        for params, losses in path[3:]:
            hidden = losses.clone()
            hidden[..., 1] = value
            state = conversion.update(params, hidden, state, mask=mask)
        states.append(flat(state))
    for state in states[1:]:
        assert_same(state, states[0])


@every
def test_a_full_mask_is_no_mask(conversion: Conversion[Any]):
    path = iterates(6, 2)
    for mask in (torch.ones(M, dtype=torch.bool), torch.ones(2, M, dtype=torch.bool), torch.ones(M)):
        assert_same(flat(record(conversion, path, mask=mask)), flat(record(conversion, path)))


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("warm", [0, 5], ids=["first step", "later step"])
@pytest.mark.parametrize("absent", [None, 0], ids=["all present", "one absent"])
def test_a_non_finite_loss_leaves_the_state_as_it_was(
    conversion: Conversion[Any], bad: float, warm: int, absent: int | None
):
    path, mask = iterates(7, 2, 3), None if absent is None else torch.arange(M) != absent
    state = record(conversion, path[:warm], conversion.init(*path[0]))
    params, losses = path[-1]
    before = flat(state)
    same = record(conversion, path[:warm], conversion.init(*path[0]))
    clean = flat(conversion.update(params, losses, same, mask=mask))
    hurt = losses.clone()
    hurt[0, 1, 2] = bad
    after = flat(conversion.update(params, hurt, state, mask=mask))
    others = torch.ones(2, 3, dtype=torch.bool)
    others[0, 1] = False
    for name, tensor in after.items():
        new, old, free = (batch_first(name, x) for x in (tensor, before[name], clean[name]))
        assert torch.equal(new[0, 1], old[0, 1]), name
        assert torch.equal(new[others], free[others]), name


@every
def test_a_diverged_iterate_is_not_recorded(conversion: Conversion[Any]):
    """Parameters of NaN come with losses of NaN; neither may enter the answer."""
    path = iterates(5, 2)
    expected = conversion.output(record(conversion, path))
    lost = ({name: torch.full_like(x, math.nan) for name, x in path[0][0].items()}, torch.full((2, M), math.nan))
    assert_same(conversion.output(record(conversion, [*path[:3], lost, *path[3:]])), expected)


@every
def test_extreme_losses_do_not_overflow(conversion: Conversion[Any]):
    path = iterates(12, 2)
    scale = [1e30, 1e-30, 1.0, -1e30]
    losses = [(f * scale[t % 4] * torch.tensor([1.0, -1.0, 1.0])).float() for t, (_, f) in enumerate(path)]
    state = record(conversion, [(params, f) for (params, _), f in zip(path, losses, strict=True)])
    for name, tensor in conversion.output(state).items():
        assert ((tensor >= 0) & (tensor <= 1)).all(), name  # a mean of iterates, which are in [0, 1]
    if isinstance(conversion, eq.Adaptive):
        unit = 8.0 ** float(conversion.power)  # the weight of the eighth of twelve iterates
        expected = sum(t ** float(conversion.power) for t in range(1, 13)) / unit
        torch.testing.assert_close(state.ledger.weights.sum(-1), torch.full((2,), expected, dtype=torch.float64))


# Saved, swept, compiled -----------------------------------------------------------------------


@every
def test_a_saved_state_continues_bit_for_bit(conversion: Conversion[Any]):
    path = iterates(50, 2)
    expected = flat(record(conversion, path))
    file = io.BytesIO()
    torch.save(eq.state.flatten(record(conversion, path[:25])), file)
    file.seek(0)
    loaded = eq.state.unflatten(torch.load(file, weights_only=True), conversion.init(*path[0]))
    assert_same(flat(record(conversion, path[25:], loaded)), expected)


KINDS = [eq.Average, eq.Adaptive, lambda power: eq.Adaptive(power, capacity=2), lambda power: eq.Suffix(power, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_swept_power_is_looped_numbers(kind: Any):
    path, powers = iterates(20, 3, 2), [0.0, 1.0, 3.5]
    for swept in (torch.tensor(powers).unsqueeze(-1), torch.tensor(powers).unsqueeze(-1).expand(3, 2)):
        output = kind(swept).output(record(kind(swept), path))
        for row, power in enumerate(powers):
            alone = [({name: x[row] for name, x in params.items()}, losses[row]) for params, losses in path]
            assert_close({name: x[row] for name, x in output.items()}, kind(power).output(record(kind(power), alone)))


@compiles
@bounded
def test_plans_compile_to_one_graph(conversion: Any):
    torch.compiler.reset()
    compiled = torch.compile(conversion.plan, fullgraph=True, backend="eager")
    state = traced = conversion.begin(torch.ones(2, M, dtype=torch.float64))
    for t in range(12):
        losses, mask = draw(2, M, seed=t), draw(2, M, seed=100 + t) > 0.2
        plan, state = conversion.plan(losses, state, mask)
        plan_traced, traced = compiled(losses, traced, mask)
        assert_same(plan_traced._asdict(), plan._asdict())
        assert_same(flat(traced), flat(state))


# Bad input ------------------------------------------------------------------------------------


@every
def test_params_without_the_batch_shape_are_refused(conversion: Conversion[Any]):
    losses = draw(2, 3, M)
    good, bad = {"x": draw(2, 3, D)}, {"x": draw(2, 3, D), "late": draw(3, 2, D)}
    message = r"params\['late'\] must have the leading batch shape \(2, 3\) of the losses; found \(3, 2, 5\)"
    with pytest.raises(ValueError, match=message):
        conversion.init(bad, losses)
    with pytest.raises(ValueError, match=message):
        conversion.update(bad, losses, conversion.init(good, losses))
    with pytest.raises(ValueError, match=r"params\['x'\] must have the leading batch shape .* found \(5,\)"):
        conversion.update({"x": draw(D)}, losses, conversion.init(good, losses))


@every
def test_no_params_are_refused(conversion: Conversion[Any]):
    with pytest.raises(ValueError, match=r"params must hold at least one tensor; found 0"):
        conversion.init({}, draw(M))


@every
def test_params_of_other_names_are_refused(conversion: Conversion[Any]):
    losses = draw(M)
    state = conversion.init({"x": draw(D), "y": draw(D)}, losses)
    with pytest.raises(ValueError, match=r"params must .*'?x'?"):
        conversion.update({"y": draw(D), "z": draw(D)}, losses, state)


@every
def test_params_of_another_shape_than_the_state_s_are_refused(conversion: Conversion[Any]):
    losses = draw(M)
    with pytest.raises(ValueError, match=r"params\['x'\] must have the shape \(5,\).*; found \(1,\)"):
        conversion.update({"x": draw(1)}, losses, conversion.init({"x": draw(D)}, losses))


@every
@pytest.mark.parametrize("shape", [(2,), (3, M), (5, 2, M)], ids=str)
def test_a_mask_that_does_not_broadcast_is_refused(conversion: Conversion[Any], shape: tuple[int, ...]):
    ((params, losses),) = iterates(1, 2)
    with pytest.raises(ValueError, match=r"mask must broadcast to the losses' shape \(2, 3\); found \("):
        conversion.update(params, losses, conversion.init(params, losses), mask=torch.ones(shape, dtype=torch.bool))


@comparing
@pytest.mark.parametrize("shape", [(2, M + 1), (2, 1)], ids=str)
def test_a_state_of_another_m_is_refused(conversion: Conversion[Any], shape: tuple[int, ...]):
    ((params, losses),) = iterates(1, 2)
    state = conversion.init(params, torch.ones(shape))
    message = rf"state must be of losses of shape \(2, 3\); found \(2, {shape[-1]}\)"
    with pytest.raises(ValueError, match=message):
        conversion.update(params, losses, state)


@comparing
def test_integer_losses_are_refused(conversion: Conversion[Any]):
    with pytest.raises(ValueError, match=r"losses must be floating.*; found torch\.int64"):
        conversion.init({"x": draw(D)}, torch.tensor([1, 2, 3]))


@averaging
@pytest.mark.parametrize("power", [-1.0, math.nan, math.inf])
def test_a_power_out_of_range_is_refused(conversion: Any, power: float):
    with pytest.raises(ValueError, match=rf"power must be non-negative.*; found {power}"):
        dataclasses.replace(conversion, power=power)


@averaging
def test_a_swept_power_out_of_range_is_refused(conversion: Any):
    with pytest.raises(ValueError, match=r"power must be non-negative.*; found tensor\(\[ 1\., -1\.\]\)"):
        dataclasses.replace(conversion, power=torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize("capacity", [0, -3, 2.5, True])
def test_a_capacity_out_of_range_is_refused(capacity: Any):
    with pytest.raises(ValueError, match=rf"capacity must be None or .*at least 1; found {capacity}"):
        eq.Adaptive(capacity=capacity)
    with pytest.raises(ValueError, match=rf"capacity must be a whole number of at least 2; found {capacity}"):
        eq.Suffix(capacity=capacity)


def test_a_negative_z_is_refused():
    with pytest.raises(ValueError, match=r"z must be non-negative and finite; found -1"):
        eq.Suffix(z=-1.0)


def test_unknown_ties_are_refused():
    with pytest.raises(ValueError, match=r'ties must be "stored" or "keep"; found newest'):
        eq.Adaptive(ties="newest")  # type: ignore[arg-type]
