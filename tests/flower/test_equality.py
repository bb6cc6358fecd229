"""The strategy on the in-process grid gives the numbers of the simulator, for every method.

The simulator computes in float32. For the comparison in float64 its vectorised engine and its server run with every
number a float64: the default dtype is float64, and the two places where the engine says float32 are replaced.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import ArrayRecord
from tests.conversion.own import LastEpoch

from equipoise.datasets import load
from equipoise.experiments.federated.settings import METHODS, Run, row, tasks
from equipoise.federated import ClientData, Participation, Task, deal, outputs, simulate, stacked
from equipoise.federated.models import initial
from equipoise.federated.server import Rounds, Server
from equipoise.flower import LocalGrid, PreferenceStrategy, train_function
from equipoise.registry import Method

ROUNDS = 10


class DoubleStacked(stacked.Stacked):
    def _decode(self, inputs: Tensor) -> Tensor:
        return inputs.to(torch.float64) / self.data.scale


def double_losses(logits: Tensor, batch: Any) -> Tensor:
    assert logits.dtype == torch.float64
    assert batch.weight is None
    flat = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
    return flat.reshape(batch.labels.shape).mean(-1)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stacked, "_losses", double_losses)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def federated(task: Task, data: ClientData, method: Method, **settings: Any) -> tuple[PreferenceStrategy, Any]:
    """Ten rounds of the strategy on the in-process grid."""
    m, kind = task.split.clients, torch.get_default_dtype()

    def samples(context: Any) -> tuple[Tensor, Tensor]:
        p = context.node_config["partition-id"]
        return data.train.inputs[0, p].to(kind) / data.scale, data.train.labels[0, p]

    loss: Any = task.loss
    client = train_function(task.model.module, samples, task.work, loss=loss, transform=method.transform)
    strategy = PreferenceStrategy(
        method.weighting,
        None,
        method.conversion,
        objectives=m,
        step_size=task.work.step_size,
        average=task.average,
        max_weight=1.0,
        fraction_evaluate=0.0,
        **settings,
    )
    params, _ = initial(task.model, (0,))
    first = ArrayRecord({name: t[0] for name, t in params.items()})
    return strategy, strategy.start(LocalGrid(client, m), first, num_rounds=ROUNDS)


def simulated(task: Task, data: ClientData, method: Method) -> tuple[Server, dict[str, Tensor]]:
    m = task.split.clients
    engine = DoubleStacked(task.model, task.work, data, "float32")  # type: ignore[arg-type]
    conversions = {"answer": method.conversion}
    uniform = torch.full((m,), 1.0 / m)
    run = Rounds(task, method.weighting, method.transform, conversions, data, engine, uniform)
    server = run.start()
    for _ in range(ROUNDS):
        run.advance(server)
    assert all(t.dtype == torch.float64 for t in server.params.values())
    return server, run.answers(server)["answer"]


def same(strategy: PreferenceStrategy, result: Any, server: Server, answer: dict[str, Tensor]) -> None:
    told = result.train_metrics_clientapp
    found = torch.tensor([told[t]["coefficients"] for t in range(1, ROUNDS + 1)])
    torch.testing.assert_close(found, torch.stack(server.coefficients)[:, 0], rtol=0, atol=1e-6)
    models = ((result.arrays, server.params), (strategy.solution(), answer))
    for record, params in models:
        for name, t in record.to_torch_state_dict().items():
            torch.testing.assert_close(t, params[name][0], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        *((name, "published") for name in METHODS),
        *((name, "text") for name in ("PropFair", "EPO", "FERERO", "Moco")),
    ],
)
def test_every_method_gives_the_numbers_of_the_simulator(name: str, preset: Any):
    task = tasks(preset)["digits-rotation"]
    data = deal(load("digits"), task.split, (0,))
    method = row(name, "digits-rotation", preset).method
    same(*federated(task, data, method), *simulated(task, data, method))


@pytest.mark.usefixtures("double")
def test_a_conversion_of_the_users_own_gives_the_numbers_of_the_simulator():
    task = tasks()["digits-rotation"]
    data = deal(load("digits"), task.split, (0,))
    method = replace(row("LS", "digits-rotation").method, conversion=LastEpoch(4))
    same(*federated(task, data, method), *simulated(task, data, method))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["OMDeg-TCH", "AdaOMDgd-TCH", "qFFL", "FedMGDA+", "ExcessMTL"])
def test_partial_participation_is_that_of_the_simulator(name: str):
    task = replace(tasks("text")["digits-rotation"], participation=Participation(fraction=0.4))
    data = deal(load("digits"), task.split, (0,))
    method = row(name, "digits-rotation", "text").method
    strategy, result = federated(task, data, method, fraction_train=0.4)
    assert {told["objectives-heard"] for told in result.train_metrics_clientapp.values()} == {4}
    same(strategy, result, *simulated(task, data, method))


@pytest.mark.parametrize("one", [row(name, "digits-rotation") for name in ("LS", "AdaOMDeg-TCH", "FedFV")])
def test_in_float32_it_is_the_simulator_up_to_rounding(one: Run):
    task = replace(tasks()["digits-rotation"], rounds=ROUNDS)
    data = deal(load("digits"), task.split, (0,))
    strategy, result = federated(task, data, one.method)
    found = simulate(task, one.method, conversions={one.output: outputs()[one.output]})
    told = torch.tensor([result.train_metrics_clientapp[t]["coefficients"] for t in range(1, ROUNDS + 1)])
    torch.testing.assert_close(told, found.history.coefficients[:, 0], rtol=0, atol=1e-4)
    for name, t in strategy.solution().to_torch_state_dict().items():
        assert t.dtype == torch.float32
        torch.testing.assert_close(t, found.params[one.output][name][0], rtol=0, atol=1e-4)
