"""A few clients with a linear classifier, in float64: a round takes milliseconds."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


@dataclass
class Town:
    """Clients whose classes lie differently, so that their losses conflict."""

    sizes: tuple[int, ...] = (12, 12, 12, 12)
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        draws = torch.Generator().manual_seed(3)
        for k, n in enumerate(self.sizes):
            inputs = torch.randn(n, 4, generator=draws, dtype=torch.float64)
            turn = torch.randn(4, 3, generator=draws, dtype=torch.float64) * (1 + k)
            self.held.append((inputs, (inputs @ turn).argmax(-1)))

    @staticmethod
    def model() -> nn.Module:
        return nn.Linear(4, 3, dtype=torch.float64)

    def samples(self, context: Any) -> tuple[Tensor, Tensor]:
        return self.held[int(context.node_config["partition-id"])]

    @staticmethod
    def arrays() -> Any:
        from flwr.app import ArrayRecord

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return ArrayRecord(dict(Town.model().state_dict()))

    def train(self, **settings: Any) -> Any:
        from equipoise.federated import LocalWork
        from equipoise.flower import train_function

        work = LocalWork(epochs=2, batch_size=5, step_size=0.3)
        return train_function(self.model, self.samples, **{"work": work, **settings})

    def app(self, **settings: Any) -> Any:
        """A ClientApp that trains and evaluates."""
        from flwr.clientapp import ClientApp

        from equipoise.flower import evaluate_function

        app = ClientApp()
        app.train()(self.train(**settings))
        app.evaluate()(evaluate_function(self.model, self.samples))
        return app

    def grid(self, client: Any = None, **settings: Any) -> Any:
        from equipoise.flower import LocalGrid

        return LocalGrid(self.app() if client is None else client, len(self.sizes), **settings)

    def strategy(self, weighting: Any = None, conversion: Any = None, **settings: Any) -> Any:
        import equipoise as eq
        from equipoise.flower import PreferenceStrategy

        chosen = eq.OMD(2.0, eq.Entropic()) if weighting is None else weighting
        given = {"objectives": len(self.sizes), "step_size": 0.3, "fraction_evaluate": 0.0, **settings}
        return PreferenceStrategy(chosen, given.pop("preference", None), conversion, **given)


@pytest.fixture
def town() -> Callable[..., Town]:
    return Town


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What Flower's log is told."""
    told: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    keep = Keep()
    logging.getLogger("flwr").addHandler(keep)
    yield told
    logging.getLogger("flwr").removeHandler(keep)
