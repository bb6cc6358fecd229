"""What is used when nothing is named."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import metrics, preference, registry
from equipoise.problems import F1, VLMOP2


def test_the_default_is_a_method_of_the_registry():
    assert eq.methods()["equipoise"] == registry.default()
    weighting = registry.default().weighting
    assert weighting.needs == frozenset()  # one backward pass
    assert isinstance(weighting, eq.OMD)
    assert weighting.step_size == "adaptive"


def test_solve_uses_it_when_no_method_is_given():
    w = preference.linspace(3)
    found = eq.solve(F1(), w, steps=30)
    named = eq.solve(F1(), w, "equipoise", steps=30)
    assert torch.equal(found.losses["solution"], named.losses["solution"])


def test_it_is_on_the_ray_and_above_the_paper_on_vlmop2():
    problem, w = VLMOP2(), preference.linspace(10)
    losses = eq.solve(problem, w, seeds=(0, 19, 42)).losses["solution"].to(torch.float64)
    assert float(metrics.hypervolume(losses, problem.reference).mean()) > 0.292  # AdaOMDgd-TCH
    assert float(metrics.imbalance(losses, w).median()) < 0.005


def test_it_does_not_depend_on_the_unit_of_the_losses():
    # λ sees the same path if all losses are a thousand times as large; θ's step is scaled back by hand.
    weighting, w = registry.default().weighting, torch.tensor([0.3, 0.7])
    small, large = weighting.init(torch.zeros(2)), weighting.init(torch.zeros(2))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        losses = torch.rand(2, generator=generator)
        c, small = weighting.update(losses, small, w)
        d, large = weighting.update(1000.0 * losses, large, w)
        torch.testing.assert_close(c, d, rtol=1e-5, atol=1e-6)


class Noisy(VLMOP2):
    """Every loss is wrong by 20 %, and its gradient with it, anew at every look."""

    def losses(self, x: torch.Tensor) -> torch.Tensor:
        f = super().losses(x)
        return f * (1.0 + 0.2 * torch.randn(f.shape, generator=self.noise)).clamp_min(0.0)

    @functools.cached_property
    def noise(self) -> torch.Generator:
        return torch.Generator().manual_seed(0)


def test_smoothing_keeps_noise_out_of_it():
    method: Any = registry.default()
    rough = dataclasses.replace(method.weighting, smoothing=1.0)
    runs = {
        "smooth": eq.Run(method.weighting, {"x": method.conversion}),
        "rough": eq.Run(rough, {"x": method.conversion}),
    }
    w = preference.linspace(10)
    error, volume = {}, {}
    for name, found in eq.solve_many(Noisy(), w, runs, steps=500).items():
        losses = VLMOP2().losses(found.params["x"]).to(torch.float64)
        error[name] = float(metrics.imbalance(losses, w).median())
        volume[name] = float(metrics.hypervolume(losses, VLMOP2().reference).mean())
    assert error["smooth"] < 0.5
    assert error["rough"] > 1.0
    assert volume["smooth"] > volume["rough"] + 0.02


def train(mol: eq.MultiObjective, model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    target = torch.tensor([1.0, -1.0])
    for _ in range(300):
        mol((model.weight.squeeze() - target).square()).backward()
        optimizer.step()
        optimizer.zero_grad()


def shell(*arguments: Any, **options: Any) -> eq.MultiObjective:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, *arguments, **{"optimizer": optimizer, **options})
    train(mol, model, optimizer)
    return mol


def test_multi_objective_uses_its_weighting_and_its_conversion():
    method = registry.default()
    mine = shell(preference=[0.3, 0.7])
    assert (mine.weighting, mine.conversion) == (method.weighting, method.conversion)
    named = shell(method.weighting, [0.3, 0.7], method.conversion)
    by_position = shell(None, [0.3, 0.7])
    for other in (named, by_position):
        assert torch.equal(mine.solution()["weight"], other.solution()["weight"])
    # (0.3 (x − 1)² = 0.7 (x + 1)²: x = −0.209.)
    assert mine.solution()["weight"].item() == pytest.approx(-0.209, abs=0.01)


def test_multi_objective_takes_the_conversion_that_is_given():
    assert shell(preference=[0.5, 0.5], conversion=eq.Average()).conversion == eq.Average()
    assert shell(eq.Linear(), [0.5, 0.5]).conversion == eq.Last()  # as before: only the default brings its own


def test_multi_objective_needs_a_preference():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="preference must be given, one entry per objective; found None"):
        eq.MultiObjective(model)
    with pytest.raises(ValueError, match="preference must be given"):
        eq.MultiObjective(model, eq.OMD())


def test_the_default_can_be_changed_in_part():
    method: Any = registry.default()
    calmer = dataclasses.replace(method, weighting=dataclasses.replace(method.weighting, optimism=5.0))
    assert eq.solve(F1(), preference.linspace(2), calmer, steps=3).losses["solution"].shape == (1, 2, 2)
