"""A conditioned model is the model at the start, takes any preference, and never that of another call."""

import copy
import io
import os
import pickle
import threading
from typing import Any

import pytest
import torch
from tests.torch_versions import compiles
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise as eq
from equipoise.pareto import Conditioned

KINDS = ["film", "low-rank", "hyper"]
W = torch.tensor([0.2, 0.8])


class LeNet(nn.Module):
    """Convolutions, a trunk, two heads."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular", bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(5 * 16, 6),
            nn.Tanh(),
        )
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        features = self.trunk(x)
        return torch.stack([head(features) for head in self.heads], -1)


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


class Tokens(nn.Module):
    """Linear layers on (n, t, d), one of them called by keyword."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 7), nn.Linear(7, 4, bias=False)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(input=x))))


MODELS = {
    "lenet": (LeNet, (1, 8, 8)),
    "mlp": (mlp, (3,)),
    "tokens": (Tokens, (5, 4)),
}
CASES = [pytest.param(kind, name, id=f"{kind}-{name}") for kind in KINDS for name in MODELS]


def make(name, kind, *, stirred=True, **kwargs):
    """A conditioned model in evaluation mode and six samples; stirred: every parameter is random, none is 0."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = eq.conditioned(build(), 2, kind=kind, rank=2, width=6, **kwargs).eval()
    if stirred:
        with torch.no_grad():
            for p in [*model.adapters.parameters(), *model.code.parameters()]:
                p.copy_(0.5 * torch.randn_like(p))
    return model, torch.randn(6, *shape)


def each(n, m=2, seed=1):
    torch.manual_seed(seed)
    return torch.distributions.Dirichlet(torch.ones(m)).sample((n,))


# What it computes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_at_the_start_it_is_the_model(kind, name, dtype):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = build().to(dtype)
    x = torch.randn(6, *shape).to(dtype)
    expected = copy.deepcopy(model)(x)
    names = set(model.state_dict())
    conditioned = eq.conditioned(model, 2, kind=kind)
    found = conditioned(x, preference=W)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    assert torch.equal(conditioned(x, preference=each(6)), expected)
    assert torch.equal(conditioned(x, preference=[1.0, 0.0]), expected)  # also in a corner
    assert set(conditioned.model.state_dict()) == names


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_preference_for_each_sample_is_a_loop_over_samples(kind, name):
    model, x = make(name, kind)
    w = each(6)
    expected = torch.cat([model(one[None], preference=v) for one, v in zip(x, w, strict=True)])
    torch.testing.assert_close(model(x, preference=w), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x, preference=W.expand(6, 2)), model(x, preference=W), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, model(x, preference=W), atol=1e-2)  # preferences differ in what they do


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_merged_weights_do_the_same(kind, name):
    model, x = make(name, kind)
    plain = model.at(W)
    assert not any(isinstance(module, Conditioned) for module in plain.modules())
    torch.testing.assert_close(plain(x), model(x, preference=W), atol=1e-5, rtol=1e-5)
    assert all(p.requires_grad for p in plain.parameters())
    assert not any(a is b for a in plain.parameters() for b in model.parameters())


def test_film_by_hand():
    model: Any = eq.conditioned(nn.Linear(1, 1, bias=False), 2, width=1)
    with torch.no_grad():
        model.model.weight.fill_(3.0)
        head = model.adapters["/"].head
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.5, 10.0]))
    assert model(torch.ones(1, 1), preference=W).item() == 3.0 * 1.5 + 10.0


def test_low_rank_by_hand():
    model: Any = eq.conditioned(nn.Linear(2, 2, bias=False), 2, kind="low-rank", rank=1, width=3)
    adapter = model.adapters["/"]
    with torch.no_grad():
        model.model.weight.copy_(torch.eye(2))
        adapter.down.weight.copy_(torch.tensor([[1.0, 2.0]]))
        adapter.up.copy_(torch.tensor([[1.0], [-1.0]]))
        adapter.strength.weight.zero_()
        adapter.strength.bias.fill_(0.5)
    # W + B s A = [[1.5, 1], [-0.5, 0]]
    assert model(torch.tensor([[2.0, 4.0]]), preference=W).tolist() == [[7.0, -1.0]]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 4, 3, groups=2),
        nn.Conv3d(2, 3, 2),
        nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2, bias=False),
        nn.ConvTranspose1d(2, 3, 3),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_film_on_every_kind_of_convolution(layer):
    torch.manual_seed(0)
    model = eq.conditioned(nn.Sequential(layer, nn.Tanh()), 2)
    with torch.no_grad():
        for p in model.adapters.parameters():
            p.normal_()
    x = torch.randn(4, 2, *(5,) * len(layer.kernel_size))
    w = each(4)
    loop = torch.cat([model(one[None], preference=v) for one, v in zip(x, w, strict=True)])
    torch.testing.assert_close(model(x, preference=w), loop)
    torch.testing.assert_close(model.at(w[0])(x), model(x, preference=w[0]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x[0], preference=w[0]), model(x[:1], preference=w[0])[0])  # without a batch


def test_preferences_near_a_corner_are_told_apart():
    code = eq.conditioned(mlp(), 2).code
    near = torch.tensor([[0.001, 0.999], [0.01, 0.99]])
    a, b = code(near)
    assert (a - b).abs().max() > 0.05
    assert torch.isfinite(code(torch.eye(2))).all()


@pytest.mark.parametrize("m", [2, 3, 10])
def test_features_are_bounded(m):
    code = eq.conditioned(mlp(), m).code
    seen = []
    code.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    code(torch.cat([torch.eye(m), torch.full((1, m), 1 / m)]))
    assert seen[0].abs().max() < 4


# Training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_gradients_reach_every_parameter(kind, name):
    model, x = make(name, kind)
    model(x, preference=each(6)).square().sum().backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.abs().sum() > 0, key


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_no_dead_end(kind):
    """From adapters that change nothing, training finds the answer of each preference."""
    torch.manual_seed(0)
    model = eq.conditioned(nn.Linear(1, 1), 2, kind=kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.ones(64, 1)
    for _ in range(400):
        w = torch.distributions.Dirichlet(torch.ones(2)).sample((64,))
        loss = (model(x, preference=w).squeeze(1) - 3 * w[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    grid = eq.preference.linspace(9, margin=0.1).float()
    found = model(torch.ones(9, 1), preference=grid).squeeze(1)
    assert (found - 3 * grid[:, 0]).abs().max() < 0.1


def test_a_frozen_model_with_trained_adapters():
    model, x = make("mlp", "low-rank")
    model.model.requires_grad_(requires_grad=False)
    model(x, preference=each(6)).sum().backward()
    assert all(p.grad is None for p in model.model.parameters())
    assert all(p.grad is not None for p in model.adapters.parameters())


def test_a_gradient_with_respect_to_the_preference():
    model, x = make("mlp", "film")
    w = W.clone().requires_grad_()
    model(x, preference=w).sum().backward()
    assert w.grad is not None
    assert w.grad.abs().sum() > 0


def test_multi_objective_trains_it():
    torch.manual_seed(0)
    model = eq.conditioned(mlp(), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, optimizer, [0.3, 0.7])
    x = torch.randn(16, 3)
    for _ in range(3):
        mol(model(x, preference=[0.3, 0.7]).square().mean(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.load_state_dict(mol.solution())
    assert torch.isfinite(model(x, preference=W)).all()


# Copies, files, compilers -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_state_round_trip(kind):
    model, x = make("lenet", kind)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(5)
    other = eq.conditioned(LeNet(), 2, kind=kind, rank=2, width=6).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, preference=W), model(x, preference=W))


def test_state_of_other_layers_is_refused():
    model, _ = make("lenet", "film", layers="heads.0")
    other, _ = make("lenet", "film", layers="heads.1")
    with pytest.raises(RuntimeError, match=r"adapters\./heads/0\.head\.weight"):
        other.load_state_dict(model.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])  # noqa: S301
def test_a_copy_is_on_its_own(copied):
    model, x = make("lenet", "film")
    twin = copied(model)
    before = model(x, preference=W)
    assert torch.equal(twin(x, preference=W), before)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(model(x, preference=W), before)
    assert not torch.equal(twin(x, preference=W), before)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.1)
    assert twin(x, preference=W).abs().max() == 0


def test_moving_moves_the_adapters():
    model, x = make("mlp", "low-rank")
    expected = model(x, preference=W)
    found = model.double()(x.double(), preference=W)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_the_layer_keeps_its_dtype(kind):
    model, x = make("mlp", kind)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x, preference=each(6)).dtype == torch.bfloat16


@compiles
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_compiled_without_a_break(kind, name):
    torch.compiler.reset()
    model, x = make(name, kind)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for w in (W, torch.tensor([0.6, 0.4]), each(6), each(6, seed=2)):
        torch.testing.assert_close(compiled(x, preference=w), model(x, preference=w))
    assert torch.isnan(compiled(x, preference=torch.tensor([0.6, 0.6]))).all()
    compiled(x, preference=W).sum().backward()
    assert all(p.grad is not None for p in model.adapters.parameters())


@compiles
def test_compiled_calls_alone():
    """No eager call comes first or between them: each would hide what a first compiled call leaves behind."""
    torch.compiler.reset()
    model, x = make("mlp", "film")
    twin = copy.deepcopy(model)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    cases = [(x, W), (x, each(6)), (x, each(6, seed=2)), (x[:4], each(4)), (x[:3], W)]
    found = [compiled(inputs, preference=w) for inputs, w in cases]
    sum(one.sum() for one in found).backward()
    assert all(p.grad is not None for p in model.adapters.parameters())
    compiled.eval()
    with torch.no_grad():
        found.append(compiled(x, preference=[0.3, 0.7]))
    for one, (inputs, w) in zip(found, [*cases, (x, [0.3, 0.7])], strict=True):
        torch.testing.assert_close(one, twin(inputs, preference=w))


class Broken(nn.Module):
    """A part that the compiler leaves to Python."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return x.tanh()


@compiles
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it while it compiles
def test_compiled_around_a_break():
    torch.compiler.reset()
    torch.manual_seed(0)
    model = stirred(eq.conditioned(nn.Sequential(nn.Linear(3, 4), Broken(), nn.Linear(4, 1)), 2))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(6, 3)
    cases = [(x, W), (x, each(6)), (x[:4], each(4)), (x, torch.tensor([0.6, 0.4]))]
    found = [compiled(inputs, preference=w) for inputs, w in cases]
    for one, (inputs, w) in zip(found, cases, strict=True):
        torch.testing.assert_close(one, twin(inputs, preference=w))


def test_in_ddp():
    import torch.distributed as dist

    model, x = make("lenet", "film")
    expected = model(x, preference=each(6))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        found = parallel(x, preference=each(6))
        assert torch.equal(found, expected)
        found.sum().backward()
    finally:
        dist.destroy_process_group()
    assert all(p.grad is not None for p in model.parameters())


def test_the_fast_path_of_a_transformer_layer_does_not_pass_it_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = eq.conditioned(layer, 2).eval()
    assert list(model.adapters) == ["/linear1", "/linear2"]  # the projection inside the attention is never called
    with torch.no_grad():
        for p in model.adapters.parameters():
            p.normal_()
        x = torch.randn(3, 4, 8)
        assert not torch.allclose(model(x, preference=[0.1, 0.9]), model(x, preference=[0.9, 0.1]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("w", [W, each(3)], ids=["one", "each"])
def test_nested_tensors_of_an_encoder_are_named(w):
    def encoder(**kwargs):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return eq.conditioned(nn.TransformerEncoder(layer, 1, **kwargs), 2).eval()

    x, mask = torch.randn(3, 4, 8), torch.tensor([[False] * 4, [False] * 4, [False, False, True, True]])
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"enable_nested_tensor=False; found one from layer 'layers.0.linear1'"):
            encoder()(x, src_key_padding_mask=mask, preference=w)
        found = encoder(enable_nested_tensor=False)(x, src_key_padding_mask=mask, preference=w)
    assert found.shape == x.shape


# Never the preference of another call ------------------------------------------------------------


def test_a_call_without_a_preference_is_refused_after_one_with():
    model, x = make("mlp", "film")
    model(x, preference=W)
    with pytest.raises(ValueError, match=r"must be given in every call.*model\(x, preference=w\); found none"):
        model(x)
    with pytest.raises(ValueError, match="layer '0' must be called through the conditioned model"):
        model.model(x)


def test_an_error_inside_the_model_leaves_no_preference():
    model, x = make("mlp", "film")
    with pytest.raises(RuntimeError):
        model(x[:, :2], preference=W)
    with pytest.raises(ValueError, match="must be called through"):
        model.model(x)


class Recomputed(nn.Module):
    """Two checkpointed layers."""

    def __init__(self, reentrant, **kwargs):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.reentrant, self.kwargs = reentrant, kwargs

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x.tanh(), use_reentrant=self.reentrant, **self.kwargs)
        return x


def stirred(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.5)
    return model


def gradients(model, x):
    """Two calls with different preferences before either is differentiated."""
    model.zero_grad()
    a, b = (model(x, preference=w).square().sum() for w in ([0.9, 0.1], [0.1, 0.9]))
    (a + 2 * b).backward()
    return [p.grad.clone() for p in model.parameters()]


def plain_layers():
    return nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def test_recomputation_has_the_preference_of_its_own_call():
    x = torch.randn(4, 3)
    expected = gradients(stirred(eq.conditioned(plain_layers(), 2)), x)
    inner = Recomputed(False)
    model = stirred(eq.conditioned(inner, 2))
    inner.kwargs = {"context_fn": model.recomputation}
    for found, right in zip(gradients(model, x), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_recomputation_of_the_whole():
    x = torch.randn(4, 3)
    model = stirred(eq.conditioned(plain_layers(), 2))
    expected = gradients(model, x)

    def whole(x, preference):
        return checkpoint(model, x, preference=preference, use_reentrant=False)

    model.zero_grad()
    a, b = (whole(x, preference=w).square().sum() for w in ([0.9, 0.1], [0.1, 0.9]))
    (a + 2 * b).backward()
    for p, right in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, right)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_that_lost_its_preference_is_an_error(reentrant):
    model = stirred(eq.conditioned(Recomputed(reentrant), 2))
    x = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"context_fn=model.recomputation"):
        model(x, preference=W).sum().backward()


def test_recomputation_is_asked_for_inside_a_call():
    model, _ = make("mlp", "film")
    with pytest.raises(ValueError, match="recomputation must be asked for while the conditioned model is called"):
        model.recomputation()


def test_threads_do_not_see_each_others_preference():
    model, x = make("mlp", "film")
    barrier = threading.Barrier(2, timeout=20)
    # Both calls are under way before either reaches a layer.
    found = {}

    def meet(*_):
        barrier.wait()

    handle = model.model.register_forward_pre_hook(meet)

    def call(name, w):
        found[name] = model(x, preference=w)

    threads = [threading.Thread(target=call, args=(i, [w, 1 - w])) for i, w in enumerate((0.1, 0.9))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.remove()
    for i, w in enumerate((0.1, 0.9)):
        assert torch.equal(found[i], model(x, preference=[w, 1 - w]))


# Which layers, and misuse ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, ["/trunk/0", "/trunk/3", "/trunk/6", "/heads/0", "/heads/1"]),
        ("trunk.6", ["/trunk/6"]),
        (["heads.*", "trunk.0"], ["/trunk/0", "/heads/0", "/heads/1"]),
        ("trunk.*", ["/trunk/0", "/trunk/3", "/trunk/6"]),
    ],
)
def test_layers_by_name_and_pattern(layers, expected):
    model, _ = make("lenet", "film", layers=layers)
    assert list(model.adapters) == expected


def test_each_layer_its_own_kind():
    kinds = {"trunk.*": "film", "heads.1": "hyper", "heads.0": "low-rank"}
    model, x = make("lenet", "film", layers=kinds)
    found = {name: type(adapter).__name__ for name, adapter in model.adapters.items()}
    assert list(found.values()) == ["Film", "Film", "Film", "LowRank", "Hyper"]
    w = each(6)
    loop = torch.cat([model(one[None], preference=v) for one, v in zip(x, w, strict=True)])
    torch.testing.assert_close(model(x, preference=w), loop, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"layers": "trunc.6"},
            r"must be names or patterns of .*; found 'trunc.6'; nearest: trunk.6",
        ),
        ({"layers": "tail.*"}, "found 'tail"),
        ({"layers": "trunk.1"}, "must be linear or convolution layers; found 'trunk.1', a BatchNorm2d"),
        ({"layers": "trunk"}, r"its layers are trunk\.\*; found 'trunk', a Sequential"),
        ({"layers": {"heads.*": "film", "heads.0": "hyper"}}, "one kind; found 'film' and 'hyper' for 'heads.0'"),
        ({"layers": {"heads.*": "lora"}}, "kind must be one of 'film', 'low-rank', 'hyper'; found 'lora'"),
        ({"layers": []}, "layers must name at least one layer"),
        ({"kind": "lora"}, "kind must be one of 'film', 'low-rank', 'hyper'; found 'lora'"),
        ({"rank": 0}, "rank must be a whole number of at least 1; found 0"),
        ({"width": 0}, "width must be a whole number of at least 1; found 0"),
        ({"width": 1.5}, "width must be a whole number of at least 1; found 1.5"),
        ({"objectives": None}, "objectives must be a number or a list of names; found None"),
        ({"objectives": 1}, "objectives must be at least 2; found 1"),
        ({"objectives": ["a", "a"]}, "objectives must have names that differ from one another"),
        ({"objectives": "ab"}, "objectives must be a number or a list of names; found 'ab'"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        eq.conditioned(LeNet(), **({"objectives": 2} | kwargs))


def test_layers_that_an_adapter_does_not_fit():
    with pytest.raises(ValueError, match=r"kind='low-rank' must be used on .* found the model itself, Conv2d\(4, 4"):
        eq.conditioned(nn.Conv2d(4, 4, 3, groups=4), 2, kind="low-rank")
    with pytest.raises(ValueError, match="choose kind='film'"):
        eq.conditioned(nn.ConvTranspose2d(4, 4, 3), 2, kind="hyper")
    with pytest.raises(ValueError, match="model must have a linear or convolution layer; found Tanh"):
        eq.conditioned(nn.Tanh(), 2)
    with pytest.raises(ValueError, match=r"call the model once on a batch before conditioning it; found LazyLinear"):
        eq.conditioned(nn.LazyLinear(3), 2)
    with pytest.raises(ValueError, match=r"model must be an nn.Module; found list"):
        eq.conditioned([nn.Linear(1, 1)], 2)  # type: ignore[arg-type]


def test_a_model_is_conditioned_once_and_first():
    model, _ = make("mlp", "film")
    with pytest.raises(ValueError, match=r"model must not be conditioned twice; found an adapter beside 'model.0'"):
        eq.conditioned(model, 2)
    with pytest.raises(ValueError, match=r"before it is compiled.*found OptimizedModule at the model itself"):
        eq.conditioned(torch.compile(mlp(), backend="eager"), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("w", "message"),
    [
        ([0.5, 0.6], "preference must be non-negative and sum to 1; found sum 1.10"),
        ([-0.5, 1.5], "preference must be non-negative and sum to 1; found entry -0.5"),
        ([float("nan"), 1.0], "preference must be non-negative"),
        ([0.2, 0.3, 0.5], r"must have shape \(2,\) for the whole batch, or \(n, 2\) for each sample; found \(3,\)"),
        (0.5, r"found \(\)"),
        (torch.full((2, 3, 2), 0.5), r"found \(2, 3, 2\)"),
        (torch.full((4, 2), 0.5), r"as many rows .*; found 4 rows, and shape \(6, 8\) from '0'"),
        (torch.full((1, 2), 0.5), "found 1 rows"),
        ("abc", r"preference must be numbers, one per objective, .*; found 'abc'"),
        ([[0.3, 0.7], [0.5]], r"preference must be numbers.*; found \[\[0.3, 0.7\], \[0.5\]\]"),
        ({"a": 0.5, "b": 0.5}, r"exactly the names of the objectives, \[\]; found \['a', 'b'\]"),
    ],
)
def test_bad_preferences(w, message):
    model, x = make("mlp", "film")
    with pytest.raises(ValueError, match=message):
        model(x, preference=w)


def test_names():
    torch.manual_seed(0)
    model = eq.conditioned(mlp(), ["left", "right"])
    with torch.no_grad():
        for p in model.adapters.parameters():
            p.normal_()
    x = torch.randn(2, 3)
    assert torch.equal(model(x, preference={"right": 0.8, "left": 0.2}), model(x, preference=W))
    with pytest.raises(ValueError, match=r"\['left', 'right'\]; found \['left'\]"):
        model(x, preference={"left": 1.0})


def test_names_with_a_preference_for_each_sample():
    model = stirred(eq.conditioned(mlp(), ["left", "right"]))
    x, w = torch.randn(6, 3), each(6).requires_grad_()
    found = model(x, preference={"right": w[:, 1], "left": w[:, 0]})
    assert torch.equal(found, model(x, preference=w))
    found.sum().backward()
    assert w.grad is not None
    for wrong, text in (({"left": w[:, 0], "right": 0.5}, r"\[\(6,\), \(\)\]"), ({"left": w, "right": w}, r"\(6, 2\)")):
        with pytest.raises(ValueError, match=f"one number for each objective, or one for each sample; found .*{text}"):
            model(x, preference=wrong)
    with pytest.raises(ValueError, match=r"preference must be numbers.*; found 'much'"):
        model(x, preference={"left": "much", "right": 0.5})


def test_samples_must_come_first():
    model, x = make("tokens", "film")
    with pytest.raises(ValueError, match=r"6 rows, and shape \(5, 6, 7\) from 'up'"):
        model(x.transpose(0, 1), preference=each(6))
    model(x.transpose(0, 1), preference=W)  # one preference for all fits any layout


def test_one_preference_is_merged_and_not_many():
    model, _ = make("mlp", "film")
    with pytest.raises(ValueError, match=r"preference must have shape \(m,\) to be merged; found \(3, 2\)"):
        model.at(each(3))
