"""States as flat dictionaries, for checkpoints."""

import io
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.state import flatten, unflatten


class Inner(NamedTuple):
    x: Tensor
    empty: "Empty"


class Empty(NamedTuple):
    pass


class Outer(NamedTuple):
    inner: Inner
    params: dict[str, Tensor]
    total: Tensor


def example(value: float = 1.0, m: int = 3) -> Outer:
    params = {"layer.weight": torch.full((2, m), value), "layer.bias": torch.full((m,), value)}
    return Outer(Inner(torch.full((m,), value), Empty()), params, torch.tensor(int(value)))


def test_names_are_joined_by_dots():
    state = example()
    tensors = flatten(state)
    assert list(tensors) == ["inner.x", "params.layer.weight", "params.layer.bias", "total"]
    assert tensors["inner.x"] is state.inner.x
    assert tensors["params.layer.bias"] is state.params["layer.bias"]
    assert flatten(Empty()) == {}


def test_unflatten_undoes_flatten():
    state = example(2.0)
    back = unflatten(flatten(state), example(7.0))
    assert type(back) is Outer
    assert type(back.inner) is Inner
    assert back.inner.empty == Empty()
    assert back.inner.x is state.inner.x
    assert back.total is state.total
    assert list(back.params) == ["layer.weight", "layer.bias"]
    assert back.params["layer.weight"] is state.params["layer.weight"]
    assert unflatten({}, Empty()) == Empty()


def test_the_order_of_names_does_not_matter():
    state = example(2.0)
    shuffled = dict(reversed(flatten(state).items()))
    assert list(flatten(unflatten(shuffled, example()))) == list(flatten(state))


def test_sizes_may_differ_as_in_a_grown_archive():
    conversion, losses = eq.Adaptive(), torch.ones(2)
    params = {"x": torch.ones(3)}
    state = conversion.init(params, losses)
    for t in range(20):
        state = conversion.update(params, torch.tensor([float(t), -float(t)]), state)
    fresh = conversion.init(params, losses)
    assert fresh.slots["x"].shape != state.slots["x"].shape
    assert torch.equal(unflatten(flatten(state), fresh).slots["x"], state.slots["x"])


def change(tensors: dict[str, Tensor], **new: Any) -> dict[str, Tensor]:
    return {**tensors, **{name.replace("__", "."): value for name, value in new.items()}}


def test_another_configuration_is_refused_and_the_difference_is_named():
    tensors = flatten(example())
    lacking = {name: tensor for name, tensor in tensors.items() if name not in {"total", "inner.x"}}
    with pytest.raises(eq.StateMismatchError, match=r"missing \['inner\.x', 'total'\], unknown \[\]"):
        unflatten(lacking, example())
    with pytest.raises(eq.StateMismatchError, match=r"missing \[\], unknown \['inner\.y'\]"):
        unflatten(change(tensors, inner__y=torch.ones(1)), example())
    message = r"inner\.x must be torch\.float32 with 1 dimensions; found torch\.float64 with 1"
    with pytest.raises(eq.StateMismatchError, match=message):
        unflatten(change(tensors, inner__x=torch.ones(3, dtype=torch.float64)), example())
    message = r"inner\.x must be torch\.float32 with 1 dimensions; found torch\.float32 with 2"
    with pytest.raises(eq.StateMismatchError, match=message):
        unflatten(change(tensors, inner__x=torch.ones(3, 1)), example())
    assert issubclass(eq.StateMismatchError, eq.EquipoiseError)
    assert issubclass(eq.EquipoiseError, ValueError)


@pytest.mark.parametrize(
    ("saved", "loaded", "difference"),
    [
        (eq.OMD(1.0), eq.Linear(), "unknown"),
        (eq.Linear(), eq.OMD(1.0), "missing"),
        (eq.Momentum(eq.OMD(1.0)), eq.OMD(1.0), r"missing \['dual', .*unknown \['inner\.dual'"),
        (eq.Relative(eq.OMD(1.0)), eq.Momentum(eq.OMD(1.0)), r"missing \['step', 'weights'\].*\['first', 'seen'\]"),
    ],
)
def test_a_weighting_refuses_the_state_of_another(saved: Any, loaded: Any, difference: str):
    losses = torch.ones(3)
    with pytest.raises(eq.StateMismatchError, match=f"state belongs to another configuration: .*{difference}"):
        unflatten(flatten(saved.init(losses)), loaded.init(losses))


def test_a_checkpoint_needs_no_pickle():
    file = io.BytesIO()
    torch.save(flatten(example(3.0)), file)
    file.seek(0)
    back = unflatten(torch.load(file, weights_only=True), example())
    for name, tensor in flatten(example(3.0)).items():
        assert torch.equal(flatten(back)[name], tensor)
