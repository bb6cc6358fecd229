"""Replies that cannot be used: each is rejected by name and reason, and the round goes on with the rest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

import equipoise as eq
from equipoise.flower import LossCap

Maker = Callable[..., Any]
Change = Callable[[RecordDict], object]


def metric(name: str, value: Any) -> Change:
    def change(content: RecordDict) -> None:
        content.metric_records["metrics"][name] = value

    return change


def without(name: str) -> Change:
    return lambda content: content.metric_records["metrics"].pop(name)


def array(name: str, value: Any) -> Change:
    def change(content: RecordDict) -> None:
        content.array_records["arrays"][name] = value if isinstance(value, Array) else Array(value)

    return change


def no_record(name: str) -> Change:
    return lambda content: content.pop(name)


BAD: list[tuple[Change, str]] = [
    (without("loss"), "a reply must report loss; found"),
    (metric("loss", float("nan")), "loss must be finite; found nan"),
    (metric("loss", float("inf")), "loss must be finite; found inf"),
    (metric("loss", [1.0, 2.0]), "loss must be one number; found a list of 2"),
    (without("partition-id"), "a reply must report partition-id"),
    (metric("partition-id", 7), "partition-id must be one of the 4 objectives' clients; found 7"),
    (metric("partition-id", -1), "partition-id must be one of the 4 objectives' clients; found -1"),
    (metric("partition-id", 0.5), r"partition-id must be one of the 4 objectives' clients; found 0\.5"),
    (without("num-examples"), "a reply must report num-examples"),
    (metric("num-examples", 0), "num-examples must be positive and finite; found 0"),
    (metric("accuracy", 93.0), r"accuracy must lie in \[0, 1\]; found 93\.0"),
    (no_record("metrics"), "a reply must have one MetricRecord; found 0"),
    (no_record("arrays"), "a reply must have one ArrayRecord; found 0"),
    (array("weight", np.zeros((2, 4))), r"array 'weight' must have the shape \(3, 4\); found \(2, 4\)"),
    (array("weight", np.zeros((3, 4), np.int64)), "array 'weight' must be float64; found int64"),
    (array("weight", np.full((3, 4), np.nan)), "array 'weight' must be finite"),
    (array("weight", Array("float64", (3, 4), "numpy.ndarray", b"nonsense")), "array 'weight' must be a numpy array"),
    (array("more", np.zeros(1)), r"arrays must have the names \['bias', 'weight'\]; found"),
]


def spoilt(good: Any, change: Change, who: int) -> Any:
    def client(message: Message, context: Context) -> Any:
        answer = good(message, context)
        if context.node_config["partition-id"] == who:
            change(answer.content)
        return answer

    return client


@pytest.mark.parametrize(("change", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_reply_is_rejected_and_the_round_goes_on(town: Maker, log: list[str], change: Change, reason: str):
    own = town()
    strategy = own.strategy()
    grid = own.grid(spoilt(own.train(), change, 2))
    told = strategy.start(grid, own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert (told["rejected"], told["objectives-heard"]) == (1, 3)
    [one] = strategy.rejected
    assert (one.round, one.node) == (1, 3)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(one.reason)
    assert any(f"round 1: reply of node 3 rejected: {one.reason}" in line for line in log)
    # The others count as if the client had been silent.
    silent = own.strategy()
    masked = silent.start(own.grid(lost=lambda node, _: node == 3), own.arrays(), num_rounds=1)
    assert masked.train_metrics_clientapp[1]["lambda"] == told["lambda"]


def test_of_two_replies_for_one_client_none_counts(town: Maker):
    own = town()
    strategy = own.strategy()
    grid = own.grid(spoilt(own.train(), metric("partition-id", 0), 2))
    told = strategy.start(grid, own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert told["objectives-heard"] == 2
    assert [(one.node, one.reason) for one in strategy.rejected] == [
        (1, "partition-id 0 must be that of one reply; found others from [3]"),
        (3, "partition-id 0 must be that of one reply; found others from [1]"),
    ]


def test_if_all_are_bad_the_round_is_skipped(town: Maker, log: list[str]):
    own = town()
    good = own.train()

    def client(message: Message, context: Context) -> Any:
        answer = good(message, context)
        if message.content.config_records["config"]["server-round"] == 2:
            metric("loss", float("nan"))(answer.content)
        return answer

    one, two = own.strategy(), own.strategy()
    first = one.start(own.grid(client), own.arrays(), num_rounds=1)
    second = two.start(own.grid(client), own.arrays(), num_rounds=2)
    assert first.arrays["weight"].data == second.arrays["weight"].data
    assert one.solution()["weight"].data == two.solution()["weight"].data
    assert torch.equal(one.weights, two.weights)
    assert list(second.train_metrics_clientapp) == [1]
    skipped = "round 2 skipped: no reply counts; model, weights and archive stay as they are"
    assert any(skipped in line for line in log)
    assert {reply.node for reply in two.rejected} == {1, 2, 3, 4}


def test_bad_evaluations_are_rejected_too(town: Maker):
    own = town()
    strategy = own.strategy(fraction_evaluate=1.0)
    app = own.app()

    def client(message: Message, context: Context) -> Any:
        answer = app(message, context)
        if message.metadata.message_type == "evaluate" and context.node_config["partition-id"] == 1:
            metric("loss", float("nan"))(answer.content)
        return answer

    result = strategy.start(own.grid(client), own.arrays(), num_rounds=1)
    assert "agnostic-loss" in result.evaluate_metrics_clientapp[1]
    assert [one.node for one in strategy.rejected] == [2]


# --- an enormous loss


def liar(good: Any, loss: float) -> Any:
    return spoilt(good, metric("loss", loss), 3)


def test_a_liar_takes_all_the_weight_and_the_log_says_so(town: Maker, log: list[str]):
    own = town()
    strategy = own.strategy()
    strategy.start(own.grid(liar(own.train(), 1e6)), own.arrays(), num_rounds=1)
    assert strategy.weights[3] > 0.999
    assert any("objective 3 takes 100.0 % of the weight: loss 1e+06" in line for line in log)


def test_with_a_cap_a_liar_gets_no_more_than_the_worst_of_the_others(town: Maker, log: list[str]):
    own = town()
    strategy = own.strategy(cap=LossCap(quantile=1.0))
    result = strategy.start(own.grid(liar(own.train(), 1e6)), own.arrays(), num_rounds=1)
    weights = strategy.weights
    assert weights[3] == pytest.approx(float(weights[:3].max()))
    assert result.train_metrics_clientapp[1]["capped"] == 1
    assert any("loss 1e+06 of objective 3, from nodes [4], is capped" in line for line in log)
    assert not any("takes" in line for line in log)


def test_a_cap_leaves_losses_alone_that_are_not_far_out(town: Maker):
    own = town()
    free, capped = own.strategy(), own.strategy(cap=LossCap(quantile=1.0, factor=10.0))
    for strategy in (free, capped):
        strategy.start(own.grid(), own.arrays(), num_rounds=3)
    assert torch.equal(free.weights, capped.weights)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_limit_is_the_quantile_of_the_others(quantile: float, n: int):
    losses = torch.from_numpy(np.random.default_rng(n).normal(size=n))
    losses[-1] = losses[0]  # a tie
    naive = [np.quantile(np.delete(losses.numpy(), i), quantile) for i in range(n)]
    np.testing.assert_allclose(LossCap(quantile).limits(losses).numpy(), naive, atol=1e-12)
    doubled = LossCap(quantile, 2.0).limits(losses).numpy()
    np.testing.assert_allclose(doubled, naive + np.abs(naive), atol=1e-12)


def test_alone_there_is_no_cap():
    assert LossCap().limits(torch.tensor([3.0])).tolist() == [float("inf")]


@pytest.mark.parametrize("settings", [{"quantile": 1.1}, {"quantile": -0.1}, {"factor": 0.5}])
def test_bad_caps(settings: dict[str, float]):
    with pytest.raises(ValueError, match="must"):
        LossCap(**settings)


def test_losses_may_have_any_number_type(town: Maker):
    own = town()
    strategy = own.strategy(eq.Linear())
    grid = own.grid(spoilt(own.train(), metric("loss", 2), 0))
    strategy.start(grid, own.arrays(), num_rounds=1)
    assert strategy.rejected == []


def test_arrays_of_another_precision_are_taken(town: Maker):
    own = town()

    def halve(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord(
            {n: Array(a.numpy().astype(np.float32)) for n, a in content.array_records["arrays"].items()}
        )

    strategy = own.strategy()
    result = strategy.start(own.grid(spoilt(own.train(), halve, 1)), own.arrays(), num_rounds=1)
    assert strategy.rejected == []
    assert result.arrays["weight"].dtype == "float64"
