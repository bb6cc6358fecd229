"""The weightings without a target, in a training loop and in the solver."""

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.problems import VLMOP1

NAMES = ["UW", "DWA", "FAMO", "GradNorm", "RLW"]
every = pytest.mark.parametrize("name", NAMES)
W = (0.2, 0.3, 0.5)


class Loop:
    """A shared layer with three heads whose losses have units of 1, 10 and 0.1, on batches that can be repeated."""

    def __init__(self, name: str, preference: tuple[float, ...] = W) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        weighting = eq.DWA(epoch=5) if name == "DWA" else eq.methods()[name].weighting
        self.mol = eq.MultiObjective(self.model, self.optimizer, preference, method=(weighting, eq.Last()))

    def losses(self, step: int, part: slice = slice(None)) -> Tensor:
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))[part]
        target = torch.stack([x.sum(-1), x[:, 0] - x[:, 1], x.square().sum(-1) / 4], -1)
        error: Tensor = self.model(x) - target
        return error.square().mean(0) * torch.tensor([1.0, 10.0, 0.1])

    def run(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            self.mol(self.losses(step)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def measured(self) -> Tensor:
        with torch.no_grad():
            return torch.stack([self.losses(step) for step in range(1000, 1020)]).mean(0)


@every
def test_a_training_loop_learns_every_objective(name: str):
    loop = Loop(name)
    before = loop.measured()
    loop.run(0, 300)
    left = loop.measured() / before
    assert (left < 1).all()
    assert left.log().mean().exp() < 0.8
    c = loop.mol.history.coefficients
    assert c.isfinite().all()
    assert c.std(0).amin() > 1e-4  # the weights move


@every
def test_for_uniform_w_the_learning_rate_is_that_of_the_weighted_sum(name: str):
    """Coefficients sum to 1, as those of "LS" do; those of uncertainty weighting begin so."""
    loop = Loop(name, (1 / 3, 1 / 3, 1 / 3))
    loop.run(0, 30)
    total = loop.mol.history.coefficients.sum(1)
    assert total[0].item() == pytest.approx(1, abs=1e-6)
    if name != "UW":
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)


@every
def test_a_loop_that_is_resumed_goes_on_as_if_it_had_not_stopped(name: str):
    whole, half, rest = Loop(name), Loop(name), Loop(name)
    whole.run(0, 24)
    half.run(0, 13)
    rest.model.load_state_dict(half.model.state_dict())
    rest.optimizer.load_state_dict(half.optimizer.state_dict())
    rest.mol.load_state_dict(half.mol.state_dict())
    rest.run(13, 24)
    for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(whole.mol.coefficients, rest.mol.coefficients)


@every
def test_gradients_can_be_accumulated(name: str):
    loop = Loop(name)
    for step in range(6):
        for part in (slice(0, 8), slice(8, 16)):
            loop.mol(loop.losses(step, part)).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    assert loop.mol.step == 6
    assert loop.mol.history.coefficients.isfinite().all()


@every
def test_the_solver_lowers_the_weighted_sum_for_every_preference(name: str):
    w = eq.preference.linspace(4, margin=0.1)
    first, last = (eq.solve(VLMOP1(), w, name, steps=steps).losses["solution"][0] for steps in (1, 250))
    assert ((w * last).sum(-1) < 0.7 * (w * first).sum(-1)).all()
