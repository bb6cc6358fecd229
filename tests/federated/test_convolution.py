"""Convolutions of many clients at once against one client at a time, and ResNet-20 built on them."""

import pytest
import torch
from torch import Tensor, nn

from equipoise.federated import LocalWork, ResNet20
from equipoise.federated.convolution import convolve
from equipoise.federated.local_work import draw_batches
from equipoise.federated.models import initial
from equipoise.federated.sequential import Sequential
from equipoise.federated.splits import ClientData, Samples
from equipoise.federated.stacked import Stacked


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("size", "stride", "height"), [(3, 1, 5), (3, 2, 6), (3, 2, 5), (1, 1, 4), (1, 2, 4)])
def test_convolve_is_conv2d_of_every_client(size, stride, height):
    x, w = random(2, 3, height, 4, 3).requires_grad_(), random(2, 5, size, size, 3, seed=1).requires_grad_()
    y = convolve(x, w, stride)
    expected = torch.stack(
        [
            nn.functional.conv2d(x[i].permute(0, 3, 1, 2), w[i].permute(0, 3, 1, 2), None, stride, size // 2)
            for i in range(2)
        ]
    ).permute(0, 1, 3, 4, 2)
    torch.testing.assert_close(y, expected)
    g = random(*y.shape, seed=2)
    ours = torch.autograd.grad((y * g).sum(), (x, w))
    theirs = torch.autograd.grad((expected * g).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)


def test_convolve_without_a_gradient_of_the_images():
    x, w = random(2, 1, 4, 4, 3), random(2, 2, 3, 3, 3).requires_grad_()
    torch.autograd.gradcheck(lambda w: convolve(x, w, 1), (w,))


def test_the_operation_obeys_what_torch_asks_of_operations():
    torch.library.opcheck(
        torch.ops.equipoise.convolve.default,
        (random(2, 1, 4, 4, 2).requires_grad_(), random(2, 3, 3, 3, 2).requires_grad_(), 2),
    )


def test_resnet20_of_several_clients_is_its_module():
    model = ResNet20()
    params, _ = initial(model, (0, 1))
    params = {name: t.double() for name, t in params.items()}
    inputs = random(2, 6, 3, 8, 8)
    logits = model.apply(params, inputs)
    for i in range(2):
        module = model.module().double().train()
        module.load_state_dict({name: t[i] for name, t in params.items()}, strict=False)
        torch.testing.assert_close(logits[i], module(inputs[i]))


def clients(n: int) -> ClientData:
    """Two seeds of two clients."""
    draws = torch.Generator().manual_seed(0)

    def samples(count: int) -> Samples:
        inputs = torch.randint(256, (2, 2, count, 3, 8, 8), generator=draws, dtype=torch.uint8)
        labels = torch.randint(10, (2, 2, count), generator=draws)
        return Samples(inputs, labels, torch.full((2, 2), count), even=True)

    return ClientData(samples(n), samples(n), samples(5), 255, (0, 7))


@pytest.mark.parametrize("probe", [False, True])
def test_a_round_of_resnet20_is_that_of_the_sequential_engine(probe):
    model, work, data = ResNet20(), LocalWork(epochs=1, batch_size=4, step_size=0.01), clients(8)
    params, buffers = initial(model, data.seeds)
    batches = draw_batches(work, data.train.counts, None, data.seeds, 1)
    sent = [
        engine.train(params, buffers, None, batches, None, probe=probe)
        for engine in (
            Stacked(model, work, data, "float32"),
            Sequential(model, work, data, "float32", "batch"),
        )
    ]
    torch.testing.assert_close(sent[0].params, sent[1].params, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(sent[0].mean, sent[1].mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(sent[0].first, sent[1].first)
    if probe:
        torch.testing.assert_close(sent[0].probed, sent[1].probed, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_resnet20_is_evaluated_in_the_same_batches_by_both_engines(own):
    model, work, data = ResNet20(), LocalWork(epochs=1, batch_size=4), clients(130)  # one whole batch and one of 30
    params, buffers = initial(model, data.seeds)
    if own:
        other, _ = initial(model, (3, 4))
        params = {name: torch.stack([t, other[name]], 1) for name, t in params.items()}
        buffers = {name: torch.stack([t, t], 1) for name, t in buffers.items()}
    fast = Stacked(model, work, data, "float32").evaluate(params, buffers, "test", own=own)
    plain = Sequential(model, work, data, "float32", "batch").evaluate(params, buffers, "test", own=own)
    torch.testing.assert_close(fast.losses, plain.losses)
    assert (fast.correct - plain.correct).abs().max() <= 1  # of two logits that agree to rounding, either may win
