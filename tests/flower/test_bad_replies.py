"""Invalid replies: each is rejected with its reason, and the round continues with the rest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import equipoise as eq
from equipoise.flower import LocalGrid, LossCap
from equipoise.flower.arrays import Part
from equipoise.flower.client_limits import limit_weights

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


COUNT = r"num-examples must be positive and at most 2\^53"

BAD: list[tuple[Change, str]] = [
    (without("loss"), "a reply must report loss; found"),
    (metric("loss", float("nan")), r"loss must be finite and at most 3.4e\+38 in size; found nan"),
    (metric("loss", float("inf")), r"loss must be finite and at most 3.4e\+38 in size; found inf"),
    (metric("loss", float("-inf")), r"loss must be finite and at most 3.4e\+38 in size; found -inf"),
    (metric("loss", 1.7e308), r"loss must be finite and at most 3.4e\+38 in size; found 1.7e\+308"),
    (metric("loss", -3.5e38), r"loss must be finite and at most 3.4e\+38 in size; found -3.5e\+38"),
    (metric("loss", [1.0, 2.0]), "loss must be one number; found a list of 2"),
    (without("partition-id"), "a reply must report partition-id"),
    (metric("partition-id", 7), "partition-id must be one of the 4 objectives' clients; found 7"),
    (metric("partition-id", -1), "partition-id must be one of the 4 objectives' clients; found -1"),
    (metric("partition-id", 0.5), r"partition-id must be one of the 4 objectives' clients; found 0\.5"),
    (without("num-examples"), "a reply must report num-examples"),
    (metric("partition-id", float("nan")), "partition-id must be one of the 4 objectives' clients; found nan"),
    (metric("partition-id", float("inf")), "partition-id must be one of the 4 objectives' clients; found inf"),
    *((metric("num-examples", n), f"{COUNT}; found {n}") for n in (0, -1, 2**53 + 1, float("nan"), float("-inf"))),
    (metric("num-examples", 1e308), rf"{COUNT}; found 1e\+308"),
    (metric("accuracy", 93.0), r"accuracy must lie in \[0, 1\]; found 93\.0"),
    (no_record("metrics"), "a reply must have one MetricRecord; found 0"),
    (no_record("arrays"), "a reply must have one ArrayRecord; found 0"),
    (array("weight", np.zeros((2, 4))), r"array 'weight' must have the shape \(3, 4\); found \(2, 4\)"),
    (array("weight", np.zeros((3, 4), np.int64)), "array 'weight' must be float64; found int64"),
    (array("weight", np.full((3, 4), np.nan)), "array 'weight' must be finite"),
    (array("weight", Array("float64", (3, 4), "numpy.ndarray", b"nonsense")), "array 'weight' must be the bytes of a"),
    (array("weight", np.full((3, 4), 1e300)), "array 'weight' must be finite, its distance from the model sent too"),
    (array("weight", -np.full((3, 4), np.inf)), "array 'weight' must be finite, its distance from the model sent too"),
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
        (1, "partition-id 0 must be in one reply only; found others from [3]"),
        (3, "partition-id 0 must be in one reply only; found others from [1]"),
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


def test_without_limits_a_liar_takes_all_the_weight_and_the_log_says_so(town: Maker, log: list[str]):
    own = town()
    strategy = own.strategy(cap=None, max_weight=1.0)
    told = strategy.start(own.grid(liar(own.train(), 1e6)), own.arrays(), num_rounds=2).train_metrics_clientapp
    assert strategy.weights[3] > 0.999
    assert any("objective 3 takes 100.0 % of the weight: loss 1e+06" in line for line in log)
    assert (told[2]["largest-weight"], told[2]["largest-weight-client"]) == (pytest.approx(1.0), 3)
    assert told[2]["weights-limited"] == 0


@pytest.mark.parametrize("loss", [1e6, 3e38])
def test_nobody_has_more_than_half_of_the_weight(town: Maker, loss: float):
    own = town()
    strategy = own.strategy(cap=None)
    told = strategy.start(own.grid(liar(own.train(), loss)), own.arrays(), num_rounds=5).train_metrics_clientapp
    for t in range(2, 6):
        assert told[t]["coefficients"] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
        assert (told[t]["largest-weight"], told[t]["largest-weight-client"]) == (pytest.approx(0.5), 3)
        assert told[t]["weights-limited"] == 1


def test_with_a_cap_a_liar_gets_no_more_than_the_worst_of_the_others(town: Maker, log: list[str]):
    own = town()
    strategy = own.strategy(cap=LossCap(1.0, 1.0))
    result = strategy.start(own.grid(liar(own.train(), 1e6)), own.arrays(), num_rounds=1)
    weights = strategy.weights
    assert weights[3] == pytest.approx(float(weights[:3].max()))
    assert result.train_metrics_clientapp[1]["capped"] == 1
    assert any("loss 1e+06 of objective 3, from nodes [4], is capped" in line for line in log)
    assert not any("takes" in line for line in log)


@pytest.mark.parametrize("loss", [3e38, -3e38])
def test_by_default_a_loss_beyond_a_hundred_medians_counts_as_the_median(town: Maker, loss: float):
    own = town()
    losses: list[float] = []

    def told_losses(contents: list[RecordDict], key: str) -> MetricRecord:  # noqa: ARG001
        losses.extend(float(one.metric_records["metrics"]["loss"]) for one in contents)  # type: ignore[arg-type]
        return MetricRecord({})

    strategy = own.strategy(train_metrics_aggr_fn=told_losses)
    told = strategy.start(own.grid(liar(own.train(), loss)), own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert told["loss"] == pytest.approx((sum(losses[:3]) + np.median(losses[:3])) / 4)
    assert told["capped"] == 1


def test_the_cap_compares_what_the_preference_makes_of_losses(town: Maker):
    """Losses of 1 and 100 with weights 0.99 and 0.01 are about equal: nothing is capped."""
    own = town((6, 6))

    def client(message: Message, context: Context) -> Any:
        answer = own.train()(message, context)
        metric("loss", [1.0, 100.0][int(context.node_config["partition-id"])])(answer.content)
        return answer

    strategy = own.strategy(preference=[0.99, 0.01])
    told = strategy.start(own.grid(client), own.arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert (told["capped"], told["agnostic-loss"]) == (0, 100.0)


def test_a_move_of_over_ten_medians_counts_as_one_of_the_median(town: Maker, log: list[str]):
    """A model of 1e15 counts as one in the same direction at the median distance."""
    own = town()
    sent = {name: x.numpy() for name, x in own.arrays().items()}
    train = own.train()
    lengths: dict[int, float] = {}

    def client(scale: float | None) -> Any:
        def answer(message: Message, context: Context) -> Any:
            found, p = train(message, context), int(context.node_config["partition-id"])
            arrays = found.content.array_records["arrays"]
            if p == 3:
                at = float(np.median(list(lengths.values()))) if scale is None else scale
                size = sum(x.size for x in sent.values()) ** 0.5
                for name, x in sent.items():
                    arrays[name] = Array(x + at / size)
            elif scale is None:
                moves = (arrays[name].numpy() - x for name, x in sent.items())
                lengths[p] = sum(float((move**2).sum()) for move in moves) ** 0.5
            return found

        return answer

    # The lower median of four is the second shortest, of the three honest ones the middle.
    expected = own.strategy().start(own.grid(client(None)), own.arrays(), num_rounds=1)
    found = own.strategy().start(own.grid(client(1e15)), own.arrays(), num_rounds=1)
    np.testing.assert_allclose(found.arrays["weight"].numpy(), expected.arrays["weight"].numpy(), rtol=1e-6, atol=1e-6)
    assert found.train_metrics_clientapp[1]["shortened"] == 1
    assert any("move of node 4 is too long" in line for line in log)


def test_an_id_belongs_to_a_node_while_that_is_connected(town: Maker):
    own = town()
    train = own.train()

    def client(message: Message, context: Context) -> Any:
        answer = train(message, context)
        t = message.content.config_records["config"]["server-round"]
        if t != 1 and context.node_config["partition-id"] == 2:
            metric("partition-id", 1)(answer.content)
        return answer

    class Leaving(LocalGrid):
        def get_node_ids(self) -> Any:
            return [1, 3, 4] if gone else super().get_node_ids()

    gone = False
    strategy = own.strategy()
    told = strategy.start(Leaving(client, 4), own.arrays(), num_rounds=2).train_metrics_clientapp[2]
    assert (told["objectives-heard"], told["rejected"]) == (3, 1)  # the owner counts, the other does not
    assert strategy.rejected[0].node == 3
    assert strategy.rejected[0].reason == "partition-id 1 belongs to node 2; found it in a reply of node 3"
    # The owner left: its id is free, but node 3 keeps the one it had.
    gone = True
    strategy.configure_train(3, own.arrays(), ConfigRecord({}), Leaving(client, 4))
    assert strategy._owners == {0: 1, 2: 3, 3: 4}


def test_a_restarted_node_takes_its_id_again(town: Maker):
    own = town()
    train = own.train()

    class Restarted(LocalGrid):
        """Node 4 is node 9 from round 2."""

        def get_node_ids(self) -> Any:
            if 4 in self.contexts and getattr(self, "asked", False):
                self.contexts[9] = self.contexts.pop(4)
            self.asked = True
            return list(self.contexts)

    strategy = own.strategy()
    told = strategy.start(Restarted(train, 4), own.arrays(), num_rounds=3).train_metrics_clientapp
    assert [told[t]["objectives-heard"] for t in (1, 2, 3)] == [4, 4, 4]
    assert strategy._owners[3] == 9


def test_a_cap_leaves_losses_alone_that_are_not_far_out(town: Maker):
    own = town()
    free, capped = own.strategy(cap=None), own.strategy(cap=LossCap(quantile=1.0, factor=10.0))
    for strategy in (free, capped):
        strategy.start(own.grid(), own.arrays(), num_rounds=3)
    assert torch.equal(free.weights, capped.weights)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_limit_is_the_quantile_of_the_others(quantile: float, n: int):
    losses = torch.from_numpy(np.random.default_rng(n).normal(size=n))
    losses[-1] = losses[0]  # a tie
    naive = [np.quantile(np.delete(losses.numpy(), i), quantile) for i in range(n)]
    np.testing.assert_allclose(LossCap(quantile).quantiles(losses).numpy(), naive, atol=1e-12)
    once, doubled = LossCap(quantile, 1.0).capped(losses).numpy(), LossCap(quantile, 2.0).capped(losses).numpy()
    size = np.abs(naive)
    for found, low, high in ((once, -size, naive), (doubled, -2 * size, naive + size)):
        believed = (losses.numpy() >= low) & (losses.numpy() <= high)
        np.testing.assert_allclose(found, np.where(believed, losses.numpy(), naive), atol=1e-12)


def test_alone_or_beside_zeros_there_is_no_cap():
    assert LossCap().capped(torch.tensor([3.0])).tolist() == [3.0]
    assert LossCap().capped(torch.tensor([3.0, 0.0, 0.0])).tolist() == [3.0, 0.0, 0.0]


# --- the limit on weights


def parts_of(shares: list[list[float]]) -> list[Part]:
    return [Part({}, j, share) for j, own in enumerate(shares) for share in own]


@pytest.mark.parametrize(
    ("c", "w", "shares", "most", "expected"),
    [
        ([0.7, 0.2, 0.1], [1 / 3] * 3, [[1.0]] * 3, 0.5, [2 / 3, 0.2 + 1 / 60, 0.1 + 1 / 60]),  # 2/n for three clients
        ([1.0, 0.0, 0.0, 0.0], [0.25] * 4, [[1.0]] * 4, 0.5, [0.5, 1 / 6, 1 / 6, 1 / 6]),
        ([1.0, 0.0, 0.0, 0.0], [0.25, 0.5, 0.125, 0.125], [[1.0]] * 4, 0.5, [0.5, 1 / 3, 1 / 12, 1 / 12]),
        ([0.8, 0.1, 0.1, 0.0], [0.8, 0.1, 0.1, 0.0], [[1.0]] * 4, 0.5, [0.8, 0.1, 0.1, 0.0]),  # its preference
        ([1.0, 0.0], [0.5, 0.5], [[0.4, 0.3, 0.3], [1.0]], 0.5, [1.0, 0.0]),  # many clients: none has half
        ([1.0, 0.0], [0.5, 0.5], [[0.8, 0.2], [0.5, 0.5]], 0.5, [0.625, 0.375]),  # one has 80 % of its objective
        ([1.0, 0.0, 0.0, 0.0], [0.25] * 4, [[1.0]] * 3 + [[]], 0.5, [2 / 3, 1 / 6, 1 / 6, 0.0]),  # one is absent
        ([-1.0, 0.0, 0.0, 0.0], [0.25] * 4, [[1.0]] * 4, 0.5, [-0.5, 1 / 6, 1 / 6, 1 / 6]),
        ([0.5, 0.5, 0.0, 0.0, 0.0], [0.2] * 5, [[1.0]] * 5, 0.1, [0.4, 0.4, 1 / 15, 1 / 15, 1 / 15]),
        ([0.0] * 4, [0.25] * 4, [[1.0]] * 4, 0.5, [0.0] * 4),
    ],
)
def test_weights_are_limited_by_client(
    c: list[float], w: list[float], shares: list[list[float]], most: float, expected: list[float]
):
    found = limit_weights(torch.tensor(c).double(), torch.tensor(w).double(), parts_of(shares), most)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("settings", [{"max_weight": 0.0}, {"max_weight": 1.1}, {"max_move": 0.5}])
def test_bad_limits(town: Maker, settings: dict[str, float]):
    with pytest.raises(ValueError, match="must"):
        town().strategy(**settings)


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
