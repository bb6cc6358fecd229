"""The models of the experiments: their sizes, their first parameters, and many of them at once."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.federated import Dense, Model, ResNet18, ResNet20
from equipoise.federated.models import initial


def size(model: Model) -> int:
    return sum(p.numel() for p in model.module().parameters())


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (Dense(), 159_010),  # 784·200 + 200 + 200·10 + 10
        (Dense((64, 10)), 650),
        (ResNet20(), 272_474),
        (ResNet18(), 11_173_962),
    ],
)
def test_sizes(model: Model, parameters: int):
    assert size(model) == parameters


def test_resnet20_layer_by_layer():
    module = ResNet20().module()
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    shapes = [(layer.in_channels, layer.out_channels, layer.kernel_size[0]) for layer in convolutions]
    # The stem, eighteen 3×3 layers in three stages, and a 1×1 projection where the shape changes.
    stages = [(16, 16, 3)] * 6, [(16, 32, 3), (32, 32, 3), (16, 32, 1), *[(32, 32, 3)] * 4]
    last = [(32, 64, 3), (64, 64, 3), (32, 64, 1), *[(64, 64, 3)] * 4]
    assert shapes == [(3, 16, 3), *stages[0], *stages[1], *last]
    assert all(layer.bias is None for layer in convolutions)
    assert [layer.stride[0] for layer in convolutions].count(2) == 4
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in module.modules()) == 21
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    sizes: list[int] = []
    assert isinstance(module, nn.Sequential)
    module[-3].register_forward_hook(lambda _m, x, _y: sizes.append(x[0].shape[-1]))
    module(torch.zeros(2, 3, 32, 32))
    assert sizes == [8]  # what the average is taken over


def test_convolutions_of_resnet20_start_as_normal_numbers():
    params, _ = initial(ResNet20(), (0, 1))
    checked = 0
    for weight in params.values():
        if weight.ndim == 5:
            out, k = weight.shape[1], weight.shape[-1]
            expected = math.sqrt(2.0 / (k * k * out))
            n = weight.numel()
            assert abs(weight.mean().item()) < 4 * expected / math.sqrt(n)
            assert weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * n))
            checked += 1
    assert checked == 21


def test_the_other_models_start_as_pytorch_has_it():
    torch.manual_seed(25)
    linear = nn.Linear(9, 5), nn.Linear(5, 3)
    params, buffers = initial(Dense((9, 5, 3)), (0, 25))
    assert buffers == {}
    for layer, name in zip(linear, ("1", "3"), strict=True):
        assert torch.equal(params[f"{name}.weight"][1], layer.weight)
        assert torch.equal(params[f"{name}.bias"][1], layer.bias)


def test_a_seed_has_its_own_model_whoever_else_is_there():
    together, statistics = initial(ResNet20(), (3, 4))
    alone, _ = initial(ResNet20(), (4,))
    assert all(torch.equal(together[name][1], alone[name][0]) for name in alone)
    assert not torch.equal(together["0.weight"][0], together["0.weight"][1])
    assert statistics["1.running_mean"].shape == (2, 16)


def test_torch_s_own_generator_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initial(Dense((4, 2)), (0, 1))
    assert torch.equal(torch.rand(3), expected)


@given(sizes=st.lists(st.integers(1, 7), min_size=2, max_size=4), n=st.integers(1, 4), seed=st.integers(0, 100))
def test_many_parameter_sets_at_once_are_as_many_modules(sizes: list[int], n: int, seed: int):
    model = Dense(tuple(sizes))
    params, _ = initial(model, tuple(range(seed, seed + 3)))
    inputs = torch.randn(3, n, sizes[0], 1, generator=torch.Generator().manual_seed(seed))
    found = model.apply(params, inputs)
    module = model.module()
    for k in range(3):
        module.load_state_dict({name: t[k] for name, t in params.items()})
        torch.testing.assert_close(found[k], module(inputs[k]).detach())


@pytest.mark.parametrize("sizes", [(), (4,), (4, 0, 2)])
def test_sizes_that_make_no_network(sizes: tuple[int, ...]):
    with pytest.raises(ValueError, match="sizes must be two or more positive numbers"):
        Dense(sizes)
