"""Engines agree: the fast one, the sequential one, and a loop written out here."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from equipoise import PropFair
from equipoise.federated import ClientData, Dense, LocalWork, Model, Sent
from equipoise.federated.local_work import draw_batches
from equipoise.federated.models import initial
from equipoise.federated.sequential import Sequential
from equipoise.federated.splits import Samples, deal
from equipoise.federated.stacked import Stacked

SEEDS = (0, 7)
MLP, LOGISTIC = Dense((9, 6, 3)), Dense((9, 3))
EVEN, UNEVEN = (6, 6, 6), (2, 11, 5)


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def same_sent(a: Sent, b: Sent) -> None:
    same(a.params, b.params)
    same(a.mean, b.mean)
    same(a.first, b.first)
    assert (a.probed is None) == (b.probed is None)
    if a.probed is not None:
        same(a.probed, b.probed)


def both(model: Dense, work: LocalWork, data: ClientData) -> tuple[Stacked, Sequential]:
    return Stacked(model, work, data, "float32"), Sequential(model, work, data, "float32", "batch")


def round_of(
    toy, model: Dense, work: LocalWork, counts: tuple[int, ...], *, clients=None, transform=None, probe=False
) -> tuple[Sent, Sent, dict[str, Tensor], Tensor | None]:
    """One round from the first model by both engines."""
    data = deal(toy(counts).dataset, toy(counts).split, SEEDS)
    if probe:
        data = data._replace(validation=data.test)
    params, _ = initial(model, SEEDS)
    batches = draw_batches(work, data.train.counts, clients, SEEDS, 1)
    fast, plain = (
        engine.train(params, {}, clients, batches, transform, probe=probe) for engine in both(model, work, data)
    )
    return fast, plain, params, batches


def by_hand(
    model: Model, params: dict[str, Tensor], steps: list[tuple[Tensor, Tensor]], eta: float, transform=None, held=None
) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """SGD as everybody writes it: the model at last, the losses before the steps, and those on held-out samples."""
    module = model.module()
    module.load_state_dict(params)
    losses, probes = [], []
    for x, y in steps:
        if held is not None:
            with torch.no_grad():
                probes.append(nn.functional.cross_entropy(module(held[0]), held[1]).item())
        loss = nn.functional.cross_entropy(module(x), y)
        losses.append(loss.item())
        module.zero_grad()
        (loss if transform is None else transform(loss)).backward()
        with torch.no_grad():
            for p in module.parameters():
                assert p.grad is not None
                p.sub_(eta * p.grad)
    return {name: p.detach() for name, p in module.named_parameters()}, losses, probes


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# --- training


@pytest.mark.parametrize("transform", [None, PropFair(1.5, 0.5, "linear")], ids=["plain", "PropFair"])
@pytest.mark.parametrize("size", [None, 1, 3, 4, 20])
@pytest.mark.parametrize("counts", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("model", [MLP, LOGISTIC], ids=["MLP", "logistic"])
def test_engines_and_a_plain_loop_agree(toy, model: Dense, counts: tuple[int, ...], size: int | None, transform):
    work = LocalWork(2, size, 0.5)
    fast, plain, params, batches = round_of(toy, model, work, counts, transform=transform)
    same_sent(fast, plain)
    for s in range(2):
        for i, count in enumerate(counts):
            x, y = toy(counts).train(i)
            steps = [(x, y)] * 2
            if batches is not None:
                rows = [[k for k in row if k >= 0] for row in batches[s, i].tolist()]
                steps = [(x[row], y[row]) for row in rows if row]
                assert len(steps) == 2 * -(-count // (size or count))  # a small client takes fewer steps
            theta, losses, _ = by_hand(model, {n: t[s] for n, t in params.items()}, steps, 0.5, transform)
            same({n: t[s, i] for n, t in fast.params.items()}, theta)
            assert fast.mean[s, i].item() == pytest.approx(mean(losses), rel=1e-5)
            assert fast.first[s, i].item() == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("size", [None, 4])
def test_both_branches_of_propfair_occur(toy, size: int | None):
    # ln 3 = 1.10 at first: above M − ε, so linear with slope 1/M; below it after some steps.
    transform = PropFair(1.5, 0.5, "linear")
    work = LocalWork(12, size, 0.5)
    fast, plain, _, _ = round_of(toy, MLP, work, UNEVEN, transform=transform)
    same_sent(fast, plain)
    assert bool((fast.first > 1.0).any())
    assert bool((fast.mean < 1.0).any())


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("counts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_drawn_clients_do_what_they_do_among_all(toy, counts: tuple[int, ...], size: int | None):
    work, clients = LocalWork(2, size), torch.tensor([[2, 0], [0, 1]])
    fast, plain, _, _ = round_of(toy, MLP, work, counts, clients=clients)
    everyone, _, _, _ = round_of(toy, MLP, work, counts)
    same_sent(fast, plain)
    for s in range(2):
        for k, i in enumerate(clients[s].tolist()):
            same({n: t[s, k] for n, t in fast.params.items()}, {n: t[s, i] for n, t in everyone.params.items()})
            same(fast.mean[s, k], everyone.mean[s, i])


@pytest.mark.parametrize("clients", [None, torch.tensor([[2, 0], [0, 1]])], ids=["all", "drawn"])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("counts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_the_validation_loss_along_the_way(toy, counts: tuple[int, ...], size: int | None, clients: Tensor | None):
    """The mean over a client's own steps, each taken before the step."""
    work = LocalWork(2, size, 0.5)
    fast, plain, params, batches = round_of(toy, MLP, work, counts, clients=clients, probe=True)
    assert plain.probed is not None
    for s in range(2):
        for k, i in enumerate(range(3) if clients is None else clients[s].tolist()):
            x, y = toy(counts).train(i)
            steps = [(x, y)] * 2
            if batches is not None:
                rows = [[j for j in row if j >= 0] for row in batches[s, k].tolist()]
                steps = [(x[row], y[row]) for row in rows if row]
            start = {n: t[s] for n, t in params.items()}
            _, _, probes = by_hand(MLP, start, steps, 0.5, held=toy(counts).test(i))
            assert plain.probed[s, k].item() == pytest.approx(mean(probes), rel=1e-5)
    same_sent(fast, plain)


@given(
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    size=st.integers(1, 8),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 100),
)
def test_engines_agree_on_clients_of_any_size(counts: list[int], size: int, epochs: int, seed: int):
    draws = torch.Generator().manual_seed(seed)
    shape = (1, len(counts), max(counts))
    samples = Samples(
        torch.rand(*shape, 4, generator=draws),
        torch.randint(0, 2, shape, generator=draws),
        torch.tensor([counts]),
        len(set(counts)) == 1,
    )
    data = ClientData(samples, samples, None, 1, (seed,))
    model, work = Dense((4, 2)), LocalWork(epochs, size)
    params, _ = initial(model, (seed,))
    batches = draw_batches(work, samples.counts, None, (seed,), 1)
    fast, plain = (e.train(params, {}, None, batches, None, probe=False) for e in both(model, work, data))
    same_sent(fast, plain)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("at_once", [1, 100, 200])
def test_blocks_of_clients_are_all_clients(toy, monkeypatch, at_once: int, size: int | None):
    """Six clients one by one, and in blocks that do not divide them."""
    data = deal(toy(UNEVEN).dataset, toy(UNEVEN).split, SEEDS)
    data = data._replace(validation=data.test)
    work, (params, _) = LocalWork(2, size), initial(MLP, SEEDS)
    batches = draw_batches(work, data.train.counts, None, SEEDS, 1)
    engine = Stacked(MLP, work, data, "float32")
    whole = engine.train(params, {}, None, batches, None, probe=True)
    monkeypatch.setattr("equipoise.federated.stacked._AT_ONCE", at_once)
    same_sent(engine.train(params, {}, None, batches, None, probe=True), whole)


def test_what_padding_holds_plays_no_part(toy):
    data = deal(toy(UNEVEN).dataset, toy(UNEVEN).split, SEEDS)
    work, (params, _) = LocalWork(2, 4), initial(MLP, SEEDS)
    batches = draw_batches(work, data.train.counts, None, SEEDS, 1)
    before = [
        Stacked(MLP, work, data, "float32").train(params, {}, None, b, None, probe=False) for b in (batches, None)
    ]
    data.train.inputs[~data.train.real()] = 99
    data.train.labels[~data.train.real()] = 2
    after = [Stacked(MLP, work, data, "float32").train(params, {}, None, b, None, probe=False) for b in (batches, None)]
    for a, b in zip(before, after, strict=True):
        same_sent(a, b)


def test_the_server_s_model_is_left_alone(toy):
    data = deal(toy(EVEN).dataset, toy(EVEN).split, SEEDS)
    params, _ = initial(MLP, SEEDS)
    copies = {name: t.clone() for name, t in params.items()}
    for engine in both(MLP, LocalWork(3), data):
        engine.train(params, {}, None, None, None, probe=False)
        assert all(torch.equal(params[name], copies[name]) for name in params)


@pytest.mark.parametrize("engine", [0, 1])
def test_bfloat16_products_are_near_those_of_float32(toy, engine: int):
    data = deal(toy(EVEN).dataset, toy(EVEN).split, SEEDS)
    params, _ = initial(MLP, SEEDS)
    work = LocalWork(3)
    exact = both(MLP, work, data)[engine].train(params, {}, None, None, None, probe=False)
    rough = (Stacked(MLP, work, data, "bfloat16"), Sequential(MLP, work, data, "bfloat16", "batch"))[engine].train(
        params, {}, None, None, None, probe=False
    )
    assert rough.mean.dtype == rough.params["1.weight"].dtype == torch.float32
    torch.testing.assert_close(rough.mean, exact.mean, rtol=2e-2, atol=2e-2)
    assert not torch.equal(rough.mean, exact.mean)


# --- evaluation


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("counts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_evaluation(toy, monkeypatch, counts: tuple[int, ...], own: bool):
    monkeypatch.setattr("equipoise.federated.stacked._EVALUATED", 12)  # two samples of the six sets at a time
    data = deal(toy(counts).dataset, toy(counts).split, SEEDS)
    params, _ = initial(MLP, SEEDS)
    if own:
        noise = torch.Generator().manual_seed(1)
        params = {n: t.unsqueeze(1) + 0.3 * torch.randn(2, 3, *t.shape[1:], generator=noise) for n, t in params.items()}
    module = MLP.module()
    for part in ("train", "test"):
        fast, plain = (engine.evaluate(params, {}, part, own=own) for engine in both(MLP, LocalWork(), data))
        assert fast.counts.tolist() == plain.counts.tolist() == [list(counts)] * 2
        assert torch.equal(fast.correct, plain.correct)
        same(fast.losses, plain.losses)
        for s in range(2):
            for i in range(3):
                module.load_state_dict({n: t[s, i] if own else t[s] for n, t in params.items()})
                x, y = toy(counts).train(i) if part == "train" else toy(counts).test(i)
                logits = module(x).detach()
                same(fast.losses[s, i], nn.functional.cross_entropy(logits, y))
                assert fast.correct[s, i] == (logits.argmax(-1) == y).sum()


# --- BatchNorm


@dataclass(frozen=True)
class Normalized:
    """A convolution, BatchNorm, a classifier."""

    def module(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )


SIDE = 5
Choice = Literal["batch", "running", "recalibrated"]


def normalized(
    toy, counts: tuple[int, ...], choice: Choice
) -> tuple[Any, Sequential, dict[str, Tensor], dict[str, Tensor]]:
    small = toy(counts, side=SIDE)
    data = deal(small.dataset, small.split, (4,))
    params, buffers = initial(Normalized(), (4,))
    draws = torch.Generator().manual_seed(0)
    buffers["1.running_mean"] = torch.randn(1, 4, generator=draws) / 4
    buffers["1.running_var"] = torch.rand(1, 4, generator=draws) + 0.5
    return small, Sequential(Normalized(), LocalWork(1, 5, 0.3), data, "float32", choice), params, buffers


def loaded(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> nn.Sequential:
    module = Normalized().module()
    module.load_state_dict({name: t[0] for name, t in {**params, **buffers}.items()})
    assert isinstance(module, nn.Sequential)
    return module


def rest(module: nn.Sequential, x: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    """The module with these statistics, BatchNorm written out."""
    z = module[0](x)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm2d)
    z = (z - centre[:, None, None]) / (variance[:, None, None] + norm.eps).sqrt()
    z = z * norm.weight[:, None, None] + norm.bias[:, None, None]
    logits: Tensor = module[3:](torch.relu(z))
    return logits.detach()


@pytest.mark.parametrize("choice", ["batch", "running", "recalibrated"])
def test_statistics_of_batch_norm(toy, choice: Choice):
    small, engine, params, buffers = normalized(toy, (7, 12), choice)
    module = loaded(params, buffers)
    found = engine.evaluate(params, buffers, "test")
    firsts = [module[0](small.train(i)[0]).detach() for i in range(2)]
    for i in range(2):
        x, y = small.test(i)
        here = module[0](x).detach()
        centre, variance = {
            "batch": (here.mean((0, 2, 3)), here.var((0, 2, 3), correction=0)),
            "running": (buffers["1.running_mean"][0], buffers["1.running_var"][0]),
            "recalibrated": (
                sum(z.mean((0, 2, 3)) for z in firsts) / 2,  # one batch per client
                sum(z.var((0, 2, 3)) for z in firsts) / 2,
            ),
        }[choice]
        logits = rest(module, x, centre, variance)
        same(found.losses[0, i], nn.functional.cross_entropy(logits, y))
        assert found.correct[0, i] == (logits.argmax(-1) == y).sum()


def test_a_model_is_recalibrated_once_for_all_samples_it_is_evaluated_on(toy, monkeypatch):
    _, engine, params, buffers = normalized(toy, (7, 12), "recalibrated")
    passes: list[int] = []
    recalibrate = engine._recalibrate

    def counted(seed: int) -> None:
        passes.append(seed)
        recalibrate(seed)

    monkeypatch.setattr(engine, "_recalibrate", counted)
    test = engine.evaluate(params, buffers, "test")
    engine.evaluate(params, buffers, "train")
    assert torch.equal(engine.evaluate(params, buffers, "test").losses, test.losses)
    assert len(passes) == 1
    params["0.weight"].mul_(2.0)  # another model in the same place
    changed = engine.evaluate(params, buffers, "test")
    assert len(passes) == 2
    _, fresh, _, _ = normalized(toy, (7, 12), "recalibrated")
    assert torch.equal(fresh.evaluate(params, buffers, "test").losses, changed.losses)
    batches = draw_batches(engine.work, engine.data.train.counts, None, (4,), 1)
    engine.train(params, buffers, None, batches, None, probe=False)  # which leaves other statistics in the module
    assert torch.equal(engine.evaluate(params, buffers, "test").losses, changed.losses)
    assert len(passes) == 2


def test_batches_of_a_hundred_shuffled_samples_of_one_client(toy):
    """The loss is then the mean of the batches' means, and does not depend on when it is asked for."""
    small, engine, params, buffers = normalized(toy, (130, 100), "batch")
    module = loaded(params, buffers).train()
    found = engine.evaluate(params, buffers, "test")
    again = engine.evaluate(params, buffers, "test")
    assert torch.equal(found.losses, again.losses)
    x, y = small.test(0)
    order = engine._shuffled(engine.data.test, (0, 0))
    assert sorted(order.tolist()) == list(range(130))
    assert order.tolist() != list(range(130))
    halves = [nn.functional.cross_entropy(module(x[k]), y[k]) for k in (order[:100], order[100:])]
    same(found.losses[0, 0], sum(halves) / 2)
    x, y = small.test(1)
    same(found.losses[0, 1], nn.functional.cross_entropy(module(x), y).detach())


def test_clients_train_with_batch_statistics_and_send_their_running_ones(toy):
    small, engine, params, buffers = normalized(toy, (7, 12), "running")
    batches = draw_batches(engine.work, engine.data.train.counts, None, (4,), 1)
    assert batches is not None
    sent = engine.train(params, buffers, None, batches, None, probe=False)
    for i in range(2):
        module = copy.deepcopy(loaded(params, buffers)).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
        x, y = small.train(i)
        for row in batches[0, i]:
            k = row[row >= 0]
            if len(k):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[k]), y[k]).backward()
                optimizer.step()
        same({n: t[0, i] for n, t in sent.params.items()}, {n: p.detach() for n, p in module.named_parameters()})
        same({n: t[0, i] for n, t in sent.buffers.items()}, dict(module.named_buffers()))
    assert sent.buffers["1.num_batches_tracked"].tolist() == [[2, 3]]


def test_the_validation_loss_leaves_no_trace_in_the_running_statistics(toy):
    _, engine, params, buffers = normalized(toy, (7, 12), "running")
    engine.data = engine.data._replace(validation=engine.data.test)
    batches = draw_batches(engine.work, engine.data.train.counts, None, (4,), 1)
    plain = engine.train(params, buffers, None, batches, None, probe=False)
    probed = engine.train(params, buffers, None, batches, None, probe=True)
    assert probed.probed is not None
    assert bool(torch.isfinite(probed.probed).all())
    same(probed.params, plain.params)
    same(probed.buffers, plain.buffers)


def test_a_model_without_batch_norm_is_evaluated_at_once(toy):
    data = deal(toy((130,)).dataset, toy((130,)).split, (0,))
    params, _ = initial(MLP, (0,))
    for choice in ("batch", "running", "recalibrated"):
        found = Sequential(MLP, LocalWork(), data, "float32", choice).evaluate(params, {}, "test")
        same(found.losses, Stacked(MLP, LocalWork(), data, "float32").evaluate(params, {}, "test").losses)


def test_a_new_engine_leaves_torch_s_own_generator_as_it_was(toy):
    data = deal(toy(EVEN).dataset, toy(EVEN).split, SEEDS)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Sequential(MLP, LocalWork(), data, "float32", "batch")
    assert torch.equal(torch.rand(3), expected)
