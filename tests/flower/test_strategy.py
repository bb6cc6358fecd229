"""A round of the strategy: groups, masks, sampling, logs and metrics, and the answer."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import equipoise as eq
from equipoise.federated import LocalWork
from equipoise.flower import LocalGrid, PreferenceStrategy, reply
from equipoise.flower.arrays import combined, gramian, jacobian, view
from equipoise.flower.client_groups import Groups, inclusion

Maker = Callable[..., Any]


def scripted(losses: dict[int, float], moves: dict[int, float], examples: dict[int, int] | None = None) -> Any:
    """Clients that answer with a given loss and the model received plus a given number."""

    def client(message: Message, context: Context) -> Any:
        p = int(context.node_config["partition-id"])
        model = nn.Linear(2, 1, dtype=torch.float64)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        with torch.no_grad():
            for x in model.parameters():
                x.add_(moves[p])
        return reply(message, context, model, loss=losses[p], examples=(examples or {}).get(p, 10), accuracy=p / 10)

    return client


def zeros() -> ArrayRecord:
    return ArrayRecord({"weight": torch.zeros(1, 2, dtype=torch.float64), "bias": torch.zeros(1, dtype=torch.float64)})


def test_one_round_by_hand():
    # λ = (1/2, 1/2) moves to ∝ (e^(0.3·1), e^(0.7·2)); the model moves by m λ∘w = (0.3, 0.7) of the clients' moves.
    strategy = PreferenceStrategy(
        eq.OMD(1.0, eq.Entropic()), [0.3, 0.7], eq.Last(), objectives=2, fraction_evaluate=0.0
    )
    grid = LocalGrid(scripted({0: 1.0, 1: 2.0}, {0: 1.0, 1: -1.0}), 2)
    result = strategy.start(grid, zeros(), num_rounds=1)
    told = result.train_metrics_clientapp[1]
    assert told["coefficients"] == pytest.approx([0.3, 0.7])
    growth = np.exp([0.3, 1.4])
    assert told["lambda"] == pytest.approx(growth / growth.sum())
    assert result.arrays["weight"].numpy().tolist() == [[pytest.approx(-0.4)] * 2]
    assert (told["agnostic-loss"], told["loss"], told["objectives-heard"]) == (2.0, 1.5, 2)
    assert told["accuracy-parity"] == pytest.approx(5.0)  # accuracies 0 and 10 %
    assert "archive-size" not in told


def test_without_a_weighting_it_is_the_default_for_so_many_rounds(tmp_path: Path, town: Maker):
    def strategy(**options: Any) -> PreferenceStrategy:
        return PreferenceStrategy(objectives=4, fraction_evaluate=0.0, **options)

    here = town()
    parts = strategy(checkpoint=tmp_path)
    assert parts.conversion == eq.Suffix()
    parts.start(LocalGrid(here.train(), 4), here.arrays(), num_rounds=60)
    assert parts.weighting == eq.default(steps=60).weighting
    resumed = strategy(resume=tmp_path)
    resumed.start(LocalGrid(here.train(), 4), here.arrays(), num_rounds=66)
    assert (resumed.rounds, resumed.weighting) == (60, parts.weighting)  # as it began
    whole = strategy(weighting=eq.default(steps=60).weighting, conversion=eq.Suffix())
    whole.start(LocalGrid(here.train(), 4), here.arrays(), num_rounds=66)
    for name, array in whole.solution().items():
        assert np.array_equal(array.numpy(), resumed.solution()[name].numpy())


@pytest.mark.parametrize("method", ["TCH", eq.group_dro([1] * 4), eq.methods()["OMDgd-TCH"]])
def test_methods_and_their_names_are_weightings_with_their_conversions(method: Any, town: Maker):
    here, parts = town(), eq.registry.resolve(method)
    strategy = here.strategy(method)
    assert (strategy.weighting, strategy.conversion) == (parts.weighting, parts.conversion)
    assert here.strategy(parts.weighting).conversion == eq.Adaptive(capacity=8)
    assert here.strategy(method, eq.Average(2)).conversion == eq.Average(2)
    result = strategy.start(here.grid(), here.arrays(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["objectives-heard"] == 4


@pytest.mark.parametrize("wrap", [eq.Relative, eq.Momentum])
def test_a_wrapped_weighting_tells_its_weights(wrap: Any):
    inner = eq.OMD(1.0, eq.Entropic())
    strategy = PreferenceStrategy(wrap(inner), [0.3, 0.7], eq.Last(), objectives=2, fraction_evaluate=0.0)
    grid = LocalGrid(scripted({0: 1.0, 1: 2.0}, {0: 1.0, 1: -1.0}), 2)
    told = strategy.start(grid, zeros(), num_rounds=1).train_metrics_clientapp[1]
    gains = np.array([0.3, 1.4]) if wrap is eq.Momentum else np.array([0.3, 0.7])  # ratios to the first losses are 1
    assert told["lambda"] == pytest.approx(np.exp(gains) / np.exp(gains).sum())


def test_groups_average_by_samples():
    # Objective 0 is clients 0 and 2, with 10 and 30 samples.
    client = scripted({0: 1.0, 1: 4.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 5.0}, {0: 10, 1: 10, 2: 30})
    strategy = PreferenceStrategy(eq.Linear(), None, eq.Last(), objectives=[[0, 2], [1]], fraction_evaluate=0.0)
    result = strategy.start(LocalGrid(client, 3), zeros(), num_rounds=1)
    told = result.train_metrics_clientapp[1]
    assert told["agnostic-loss"] == 4.0
    assert told["coefficients"] == [0.5, 0.5]
    assert result.arrays["bias"].numpy() == pytest.approx([0.5 * (0.25 * 1 + 0.75 * 5) + 0.5 * 2])
    worst = PreferenceStrategy(
        eq.Tchebycheff(), None, eq.Last(), objectives=[[0, 2], [1]], max_weight=1.0, fraction_evaluate=0.0
    )
    assert worst.start(LocalGrid(client, 3), zeros(), num_rounds=1).arrays["bias"].numpy() == pytest.approx([2.0])


def test_a_lost_client_is_masked():
    lost = LocalGrid(scripted({0: 1.0, 1: 2.0, 2: 9.0}, {0: 1.0, 1: 1.0, 2: 1.0}), 3, lost=lambda node, _: node == 3)
    strategy = PreferenceStrategy(eq.OMD(1.0, eq.Entropic()), None, eq.Last(), objectives=3, fraction_evaluate=0.0)
    told = strategy.start(lost, zeros(), num_rounds=1).train_metrics_clientapp[1]
    assert told["coefficients"] == pytest.approx([1 / 3, 1 / 3, 0.0])
    growth = np.exp([1 / 3, 2 / 3, 0.0])
    assert told["lambda"] == pytest.approx(growth / growth.sum())
    assert told["objectives-heard"] == 2
    assert told["agnostic-loss"] == 2.0


def test_a_client_that_raises_is_a_lost_one(town: Maker):
    own = town()
    good = own.train()

    def client(message: Message, context: Context) -> Any:
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("out of memory")
        return good(message, context)

    strategy = own.strategy()
    told = strategy.start(own.grid(client), own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert told["objectives-heard"] == 3
    assert [(one.node, "out of memory" in one.reason) for one in strategy.rejected] == [(3, True)]


@pytest.mark.parametrize(("sizes", "drawn", "dropout"), [((1, 1, 1, 1), 2, 0.0), ((1, 2, 3), 2, 0.3), ((4, 2), 3, 0.5)])
def test_inclusion_is_the_frequency_of_being_heard(sizes: tuple[int, ...], drawn: int, dropout: float):
    n, draws = sum(sizes), np.random.default_rng(0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    heard = np.zeros(len(sizes))
    for _ in range(20_000):
        asked = draws.permutation(n)[:drawn]
        heard[np.unique(owner[asked[draws.random(drawn) >= dropout]])] += 1
    pi = inclusion(torch.tensor(sizes), drawn, n, dropout)
    np.testing.assert_allclose(pi.numpy(), heard / 20_000, atol=0.012)  # three standard errors


def test_the_draw_depends_on_seed_and_round_alone(town: Maker):
    own = town((6,) * 10)

    def drawn(seed: int) -> list[list[int]]:
        strategy = own.strategy(fraction_train=0.3, seed=seed)
        arrays, grid = own.arrays(), own.grid()
        return [
            [m.metadata.dst_node_id for m in strategy.configure_train(t, arrays, ConfigRecord(), grid)]
            for t in (1, 2, 3)
        ]

    assert drawn(0) == drawn(0) != drawn(1)
    assert all(len(set(asked)) == 3 for asked in drawn(0))


def test_sampling_divides_by_the_probability(town: Maker):
    own = town((6,) * 10)
    strategy = own.strategy(eq.Linear(), eq.Last(), fraction_train=0.5)
    told = strategy.start(own.grid(), own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert sorted(told["coefficients"]) == pytest.approx([0.0] * 5 + [0.2] * 5)  # w/π = 0.1/0.5


def test_statistics_are_averaged_and_counters_kept():
    def client(message: Message, context: Context) -> Any:
        p = int(context.node_config["partition-id"])
        model = nn.BatchNorm1d(1, dtype=torch.float64)
        assert model.num_batches_tracked is not None
        with torch.no_grad():
            model.weight.fill_(p)
            model.running_mean.fill_(p)  # type: ignore[union-attr]
            model.num_batches_tracked.fill_(7 + p)
        return reply(message, context, model, loss=1.0 + p, examples=1)

    strategy = PreferenceStrategy(
        eq.Tchebycheff(), None, eq.Adaptive(), objectives=3, max_weight=1.0, fraction_evaluate=0.0
    )
    first = ArrayRecord(dict(nn.BatchNorm1d(1, dtype=torch.float64).state_dict()))
    arrays = strategy.start(LocalGrid(client, 3), first, num_rounds=1).arrays
    assert arrays["weight"].numpy().item() == 2.0  # the worst client's
    assert arrays["running_mean"].numpy().item() == 1.0
    assert arrays["num_batches_tracked"].numpy().item() == 8  # the median
    assert strategy.solution()["running_mean"].numpy().item() == 1.0


def test_a_server_optimizer_takes_the_move_for_a_gradient():
    def run(make: Any) -> list[float]:
        strategy = PreferenceStrategy(
            eq.Linear(), None, eq.Last(), objectives=2, server_optimizer=make, fraction_evaluate=0.0
        )
        grid = LocalGrid(scripted({0: 1.0, 1: 1.0}, {0: 1.0, 1: 3.0}), 2)
        return strategy.start(grid, zeros(), num_rounds=3).arrays["weight"].numpy().ravel().tolist()

    assert run(None) == [6.0, 6.0]
    assert run(lambda params: torch.optim.SGD(params, lr=1.0)) == [6.0, 6.0]
    assert run(lambda params: torch.optim.SGD(params, lr=0.5)) == [3.0, 3.0]
    # Momentum 1/2: moves of 2, 2 + 1, 2 + 1.5.
    assert run(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5)) == [8.5, 8.5]


def test_evaluation_of_the_solution_when_asked(town: Maker):
    own = town()
    seen = []

    def record(t: int, arrays: ArrayRecord) -> None:
        seen.append((t, arrays["weight"].numpy().tolist()))

    strategy = own.strategy(conversion=eq.Average(), evaluate_solution=True, fraction_evaluate=1.0)
    result = strategy.start(own.grid(), own.arrays(), num_rounds=3, evaluate_fn=record)
    answer = strategy.solution()["weight"].numpy().tolist()
    assert seen[-1] == (3, answer)
    assert answer != result.arrays["weight"].numpy().tolist()
    told = result.evaluate_metrics_clientapp[3]
    assert {"loss", "agnostic-loss", "accuracy", "accuracy-parity"} <= set(told)
    model = own.model()
    model.load_state_dict(strategy.solution().to_torch_state_dict())
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in own.held]
    assert told["agnostic-loss"] == pytest.approx(max(losses))
    assert told["loss"] == pytest.approx(sum(losses) / 4)


def test_functions_of_the_users_own_add_to_the_metrics(town: Maker):
    own = town()

    def largest(contents: list[RecordDict], key: str) -> MetricRecord:
        assert key == "num-examples"
        return MetricRecord({"most": max(float(c.metric_records["metrics"]["loss"]) for c in contents)})  # type: ignore[arg-type]

    strategy = own.strategy(fraction_evaluate=1.0, train_metrics_aggr_fn=largest, evaluate_metrics_aggr_fn=largest)
    result = strategy.start(own.grid(), own.arrays(), num_rounds=1)
    for told in (result.train_metrics_clientapp[1], result.evaluate_metrics_clientapp[1]):
        assert told["most"] == told["agnostic-loss"]


def test_with_many_objectives_lambda_is_not_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("equipoise.flower.strategy.LISTED", 2)
    strategy = PreferenceStrategy(eq.OMD(1.0, eq.Entropic()), None, eq.Last(), objectives=3, fraction_evaluate=0.0)
    client = scripted({0: 0.0, 1: 0.0, 2: 0.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    told = strategy.start(LocalGrid(client, 3), zeros(), num_rounds=1).train_metrics_clientapp[1]
    assert "lambda" not in told
    assert "coefficients" not in told
    assert told["lambda-largest"] == pytest.approx(1 / 3)
    assert told["lambda-effective"] == pytest.approx(3.0)


def test_the_loss_is_that_of_the_model_received_or_along_the_way(town: Maker):
    own = town()
    model = own.model()
    model.load_state_dict(own.arrays().to_torch_state_dict())
    with torch.no_grad():
        first = [nn.functional.cross_entropy(model(x), y).item() for x, y in own.held]
    for work in (LocalWork(3, 5, 0.3), LocalWork(3, None, 0.3)):
        strategy = own.strategy(eq.Linear())
        grid = own.grid(own.train(work=work, loss="received"))
        told = strategy.start(grid, own.arrays(), num_rounds=1).train_metrics_clientapp[1]
        assert told["loss"] == pytest.approx(sum(first) / 4)
        along = own.strategy(eq.Linear())
        grid = own.grid(own.train(work=work, loss="trajectory"))
        assert along.start(grid, own.arrays(), num_rounds=1).train_metrics_clientapp[1]["loss"] < told["loss"]


def test_the_order_of_replies_does_not_matter(town: Maker):
    own = town()

    class Shuffled(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return list(super().send_and_receive(messages, timeout=timeout))[::-1]

    runs = [
        own.strategy().start(kind(own.app(), 4), own.arrays(), num_rounds=3).arrays["weight"].data
        for kind in (LocalGrid, Shuffled)
    ]
    assert runs[0] == runs[1]


def test_messages_can_be_pushed_and_pulled(town: Maker):
    own = town()
    grid = own.grid()
    config = ConfigRecord({"seed": 0, "server-round": 1})
    content = RecordDict({"arrays": own.arrays(), "config": config})
    names = grid.push_messages([grid.create_message(content, "train", node, "1") for node in grid.get_node_ids()])
    assert [m.metadata.src_node_id for m in grid.pull_messages(names)] == [1, 2, 3, 4]
    assert grid.pull_messages(names) == []


def test_a_client_cannot_change_what_others_receive(town: Maker):
    own = town()
    good, seen = own.train(), []

    def client(message: Message, context: Context) -> Any:
        seen.append(dict(message.content.config_records["config"]))
        message.content.config_records["config"]["seed"] = 99
        return good(message, context)

    own.strategy().start(own.grid(client), own.arrays(), num_rounds=1)
    assert seen == [{"server-round": 1, "seed": 0}] * 4


# --- sums over arrays


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_combined_is_the_sum(kind: Any, size: int):
    draws = np.random.default_rng(0)
    theta, *others = (draws.normal(size=size).astype(kind) for _ in range(4))
    factors = [0.2, 0.5, 0.1]
    found = combined(theta, 0.2, list(zip(factors, others, strict=True)))
    assert found.dtype == kind
    assert not np.shares_memory(found, theta)
    exact = 0.2 * theta.astype(float) + sum(c * x.astype(float) for c, x in zip(factors, others, strict=True))
    np.testing.assert_allclose(found, exact, atol={np.float16: 2e-3, np.float32: 1e-6, np.float64: 1e-15}[kind])


def test_no_copy_of_a_client_is_made_beside_the_sum():
    theta = np.zeros(1_000_000, np.float32)
    parts = [(0.1, np.ones(1_000_000, np.float32)) for _ in range(10)]
    tracemalloc.start()
    combined(theta, 0.0, parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert theta.nbytes <= peak < 1.2 * theta.nbytes


def test_gramian_and_jacobian_of_groups():
    from equipoise.flower.arrays import Part

    draws = np.random.default_rng(0)
    theta = {"a": draws.normal(size=(300, 300)), "b": draws.normal(size=3)}
    models = [{n: draws.normal(size=x.shape) for n, x in theta.items()} for _ in range(3)]
    parts = [Part(models[0], 0, 0.25), Part(models[1], 2, 1.0), Part(models[2], 0, 0.75)]
    flat = [np.concatenate([(theta[n] - x[n]).ravel() for n in theta]) / 0.1 for x in models]
    rows = np.stack([0.25 * flat[0] + 0.75 * flat[2], np.zeros_like(flat[0]), flat[1]])
    np.testing.assert_allclose(jacobian(theta, parts, 3, 0.1).numpy(), rows)
    np.testing.assert_allclose(gramian(theta, parts, 3, 0.1).numpy(), rows @ rows.T, rtol=1e-10)


def test_arrays_are_read_where_they_lie():
    from flwr.app import Array

    for x in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(4), np.zeros(0)):
        array = Array(x)
        found = view(array, x)
        np.testing.assert_array_equal(found, x)
        assert found.shape == x.shape
        assert x.size == 0 or np.shares_memory(found, np.frombuffer(array.data, np.uint8))


# --- bad settings


def test_a_train_function_alone_says_that_it_cannot_evaluate(town: Maker):
    here = town()
    strategy = here.strategy(fraction_evaluate=1.0)
    result = strategy.start(here.grid(here.train()), here.arrays(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["objectives-heard"] == 4
    rule = "ValueError: a train function must get messages for training: give the strategy fraction_evaluate=0.0, or"
    assert [one.reason.startswith(f"the client failed: {rule}") for one in strategy.rejected] == [True] * 4
    assert {one.reason.rpartition("; ")[2] for one in strategy.rejected} == {"found one to evaluate"}


def test_a_client_without_samples_is_named(town: Maker):
    here = town(sizes=(12, 0, 12, 12))
    strategy = here.strategy(fraction_evaluate=1.0)
    strategy.start(here.grid(), here.arrays(), num_rounds=1)
    reason = "the client failed: ValueError: every client must have samples; found none for partition-id 1"
    assert [(one.node, one.reason) for one in strategy.rejected] == [(2, reason)] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preference": [0.5, 0.6, 0.1, 0.1]}, r"preference must be non-negative and sum to 1; found sum 1\.30"),
        ({"preference": [0.5, 0.5]}, "preference must have 4 entries, one per objective; found 2"),
        ({"objectives": 0}, "objectives must be at least 1"),
        ({"objectives": [[0], [0, 1]]}, "objectives must not share a client; found 3 entries"),
        ({"objectives": [[0], []]}, "objectives must have a client each"),
        (
            {"objectives": [0, 0, 1, 1]},
            r"objectives must be their number, or the clients \(partition ids\) of each, .*; found \[0, 0, 1, 1\]",
        ),
        ({"weighting": "FedAgv"}, "method must be a known name; found 'FedAgv'; nearest: FedAvg"),
        (
            {"weighting": eq.OMD},
            r'method must be a name such as "TCH", a Method, or a weighting such as OMD\(\); found <',
        ),
        ({"weighting": "PropFair"}, r"weighting must not be of a method with a transform: .*; found PropFair\("),
        ({"step_size": 0.0}, r"step_size must be positive and finite; found 0\.0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\); found 1\.0"),
        ({"average": "never"}, 'average must be "before" or "after"; found never'),
    ],
)
def test_bad_settings(town: Maker, settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        town().strategy(**settings)


def test_before_the_start_there_is_nothing_to_answer(town: Maker):
    with pytest.raises(RuntimeError, match="must be started"):
        town().strategy().solution()


def test_groups_are_told_apart():
    assert repr(Groups(3)) == "3"
    assert repr(Groups([range(2), [5]])) == "[[0, 1], [5]]"
    assert Groups([range(2), [5]]).objective(5) == 1
    assert Groups([range(2), [5]]).objective(3) is None
