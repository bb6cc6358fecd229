"""A small regression with conflicting objectives, and an ordinary training loop."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

M = 3


class Toy(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], tuple[Tensor, Tensor]]
    """Inputs (n, 4) and targets (n, m) of a step."""

    def losses(self, step: int) -> Tensor:
        x, y = self.batch(step)
        loss: Tensor = (self.model(x) - y).square().mean(0)
        return loss

    def run(self, mol: Any, steps: int, start: int = 0) -> None:
        for step in range(start, start + steps):
            mol(self.losses(step)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def params(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


def make_toy(
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, dtype: torch.dtype = torch.float32, **settings: Any
) -> Toy:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    x, mixing = draw(8, 16, 4), draw(4, M)
    y = torch.tanh(x @ mixing) + torch.arange(float(M)).to(dtype)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * draw(*p.shape))
    return Toy(model, optimizer(model.parameters(), **{"lr": 0.05, **settings}), lambda t: (x[t % 8], y[t % 8]))


@pytest.fixture
def toy() -> Callable[..., Toy]:
    return make_toy


@pytest.fixture
def preference() -> Tensor:
    return torch.tensor([0.2, 0.3, 0.5])


@pytest.fixture
def as_accelerator(monkeypatch) -> Callable[[], AbstractContextManager[None]]:
    """Runs that are made in this context treat the CPU as an accelerator, which the host must not wait for."""

    @contextmanager
    def as_accelerator() -> Iterator[None]:
        with monkeypatch.context() as patched:
            for module in ("archive", "run"):
                patched.setattr(f"equipoise.train.{module}.is_asynchronous", lambda device: device.type != "meta")
            yield

    return as_accelerator
