"""A run with some hostile clients finishes, stays finite, and serves the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message
from tests.flower.hostile import KINDS, hostile_replies

import equipoise as eq
from equipoise.federated import LocalWork
from equipoise.flower import LocalGrid, LossCap, PreferenceStrategy, train_function

Maker = Callable[..., Any]


def finite(arrays: ArrayRecord) -> bool:
    return all(bool(np.isfinite(array.numpy()).all()) for array in arrays.values())


@pytest.mark.parametrize(
    ("weighting", "number"),
    [(eq.SelfTuned(), 360), (eq.OMD(2.0, eq.Entropic()), len(KINDS)), (eq.SmoothTchebycheff(0.1), len(KINDS))],
    ids=["default", "omd", "stch"],
)
def test_hostile_replies_are_refused_or_harmless(town: Maker, weighting: Any, number: int, log: list[str]):
    """One after the other in one run: after each of them the model and the weights are finite."""
    own = town()
    strategy, replies, train = own.strategy(weighting), list(hostile_replies(0, number)), own.train()
    arrays = own.arrays()

    def client(message: Message, context: Context) -> Message:
        answer: Message = train(message, context)
        if context.node_config["partition-id"] != 3:
            return answer
        return replies[int(message.content.config_records["config"]["server-round"]) - 1].spoil(message, answer)  # type: ignore[arg-type]

    def check(t: int, arrays: ArrayRecord) -> None:
        assert finite(arrays), replies[t - 1].name
        assert finite(strategy.solution()), replies[t - 1].name
        assert strategy.weights is None or bool(torch.isfinite(strategy.weights).all()), replies[t - 1].name

    result = strategy.start(own.grid(client), arrays, num_rounds=number, evaluate_fn=check)
    refused = {one.round for one in strategy.rejected}
    for t, one in enumerate(replies, 1):
        told = result.train_metrics_clientapp[t]
        assert one.refused is None or one.refused == (t in refused), one.name
        assert (told["rejected"], told["objectives-heard"]) == ((1, 3) if t in refused else (0, 4)), one.name
        assert told["largest-weight"] <= 2 / 3 + 1e-9  # of three clients; of four it is 1/2
        assert all(np.isfinite(value).all() for value in told.values()), one.name
    assert {one.node for one in strategy.rejected} == {4}
    assert all(one.reason.isprintable() and len(one.reason) <= 500 for one in strategy.rejected)
    assert sum("reply of node 4 rejected" in line for line in log) == 1  # said once
    assert len(refused) >= 0.7 * number


# --- forty rounds, three of ten clients hostile


def clients(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Ten linear classifications of the same kind, each somewhat different."""
    draws = torch.Generator().manual_seed(seed)
    common = torch.randn(8, 3, generator=draws, dtype=torch.float64)
    held = []
    for _ in range(10):
        inputs = torch.randn(60, 8, generator=draws, dtype=torch.float64)
        own = common + 0.3 * torch.randn(8, 3, generator=draws, dtype=torch.float64)
        held.append((inputs, (inputs @ own).argmax(-1)))
    return held


def model() -> nn.Module:
    return nn.Linear(8, 3, dtype=torch.float64)


def spoilt(held: list[tuple[Tensor, Tensor]], lie: float) -> Any:
    """Client 7 sends NaN and malformed replies, client 8 huge numbers; client 9 lies, and undoes the training."""
    good = train_function(
        model, lambda context: held[int(context.node_config["partition-id"])], LocalWork(5, 20, step_size=0.3)
    )
    malformed = [one for one in hostile_replies(1, 200) if one.refused][:40]

    def client(message: Message, context: Context) -> Message:
        k, t = int(context.node_config["partition-id"]), int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        answer = good(message, context)
        if k == 7:
            return malformed[t - 1].spoil(message, answer)
        told, arrays = answer.content.metric_records["metrics"], answer.content.array_records["arrays"]
        for name, sent in message.content.array_records["arrays"].items():
            if k == 8:
                arrays[name] = Array(sent.numpy() + 1e15)
            elif k == 9:
                arrays[name] = Array(2 * sent.numpy() - arrays[name].numpy())
        if k == 8:
            told["loss"], told["num-examples"] = 3e38, 2**53
        elif k == 9:
            told["loss"] = lie * float(told["loss"])  # type: ignore[arg-type]
        return answer

    return client


def worst_of_honest(arrays: ArrayRecord, held: list[tuple[Tensor, Tensor]]) -> float:
    found = model()
    found.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        return max(nn.functional.cross_entropy(found(x), y).item() for x, y in held[:7])


STRICT = {"cap": LossCap(factor=3.0), "max_weight": 0.2, "max_move": 3.0}


@pytest.mark.parametrize(
    ("weighting", "limits", "lie"),
    [
        (None, STRICT, 10.0),
        (eq.OMD(5.0, eq.Entropic()), STRICT, 10.0),
        pytest.param(None, {}, 1e6, marks=pytest.mark.slow),
        pytest.param(eq.OMD(5.0, eq.Entropic()), {}, 1e6, marks=pytest.mark.slow),
        pytest.param(eq.Tchebycheff(), STRICT, 10.0, marks=pytest.mark.slow),
    ],
    ids=["default-strict", "omd-strict", "default-crude", "omd-crude", "tch-strict"],
)
def test_three_hostile_clients_of_ten_do_not_spoil_a_run(weighting: Any, limits: dict[str, Any], lie: float):
    held = clients(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = ArrayRecord(dict(model().state_dict()))
    worst: dict[bool, tuple[float, float]] = {}
    for hostile in (False, True):
        strategy = PreferenceStrategy(weighting, objectives=10, fraction_evaluate=0.0, **limits)
        grid = LocalGrid(spoilt(held, lie), 10, lost=None if hostile else lambda node, _: node > 7)
        result = strategy.start(grid, first, num_rounds=40)
        assert finite(result.arrays)
        assert len(result.train_metrics_clientapp) == 40
        worst[hostile] = worst_of_honest(strategy.solution(), held), worst_of_honest(result.arrays, held)
        assert max(worst[hostile]) < 0.6 * worst_of_honest(first, held)  # the answer is not the first model
    print("worst honest client, solution and last model:", worst)
    for without, with_them in zip(*worst.values(), strict=True):
        assert with_them <= 1.1 * without
    assert {one.node for one in strategy.rejected} == {8}
    assert len(strategy.rejected) == 40


def test_a_client_that_is_never_heard_does_not_hold_up_the_solution(town: Maker, log: list[str], tmp_path: Any):
    """The archive waits for every objective, but not for ever; a resumed run remembers how long."""
    own = town()
    settings = {"weighting": eq.SelfTuned(), "conversion": eq.Adaptive(capacity=8)}
    strategy = own.strategy(checkpoint=tmp_path, **settings)
    told = strategy.start(own.grid(lost=lambda node, _: node == 2), own.arrays(), num_rounds=9)
    assert told.train_metrics_clientapp[9]["never-heard"] == 0
    assert strategy.solution()["weight"].data == own.arrays()["weight"].data
    resumed = own.strategy(resume=tmp_path, **settings)
    told = resumed.start(own.grid(lost=lambda node, _: node == 2), own.arrays(), num_rounds=20)
    assert told.train_metrics_clientapp[10]["never-heard"] == 1
    assert any("round 10: objective 1 was never heard: the solution leaves it out" in line for line in log)
    assert resumed.solution()["weight"].data != own.arrays()["weight"].data
    again = own.strategy(resume=tmp_path, **settings)
    told = again.start(own.grid(), own.arrays(), num_rounds=21)  # it is back
    assert told.train_metrics_clientapp[21]["never-heard"] == 0
