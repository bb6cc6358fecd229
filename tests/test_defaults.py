"""The defaults that apply when no method is named."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from benchmarks.defaults import networks

import equipoise as eq
from equipoise import metrics, preference, registry
from equipoise.errors import UnknownNameError
from equipoise.problems import F1, VLMOP2


def test_the_default_is_a_method_of_the_registry():
    assert eq.methods()["equipoise"] == registry.default()
    assert registry.default() == eq.Method(eq.SelfTuned(), eq.Suffix())
    assert registry.default().weighting.needs == frozenset()  # one backward pass
    assert eq.Suffix().copies == 8


def test_the_former_default_has_a_name():
    weighting = eq.OMD("adaptive", eq.Euclidean(), optimism=30, smoothing=3, horizon=1000)
    assert eq.methods()["OptOMD-TCH"] == eq.Method(weighting, eq.Adaptive(power=8, capacity=8))


def test_solve_uses_it_when_no_method_is_given():
    w = preference.linspace(3)
    found = eq.solve(F1(), w, steps=30)
    named = eq.solve(F1(), w, eq.default(steps=30), steps=30)
    assert torch.equal(found.losses["solution"], named.losses["solution"])


def test_it_is_on_the_ray_and_above_the_paper_on_vlmop2():
    problem, w = VLMOP2(), preference.linspace(10)
    losses = eq.solve(problem, w, seeds=(0, 19, 42)).losses["solution"].to(torch.float64)
    assert float(metrics.hypervolume(losses, problem.reference).mean()) > 0.292  # AdaOMDgd-TCH
    off = metrics.imbalance(losses, w)
    assert float(off.median()) < 0.001
    assert float(off[:, 2:8].max()) < 0.001


def test_the_outermost_preferences_need_more_steps():
    w = preference.linspace(10)
    losses = eq.solve(VLMOP2(), w, steps=2000).losses["solution"]
    assert float(metrics.imbalance(losses, w).max()) < 0.1  # 0.5 after 1,000 steps


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


def test_noise_hardly_moves_it():
    w = preference.linspace(10)
    off = {}
    for name in ("equipoise", "OptOMD-TCH"):
        found = eq.solve(Noisy(), w, name)
        losses = VLMOP2().losses(found.params["solution"]).to(torch.float64)
        off[name] = float(metrics.imbalance(losses, w).median())
    assert off["equipoise"] < 0.1
    assert off["equipoise"] < off["OptOMD-TCH"]


def test_the_floor_of_youth_keeps_a_weighted_sum_from_being_better_in_both_losses():
    """Digits through two shared units: classify and reconstruct, Adam on mini-batches of 32."""
    ours = registry.default()
    bold = dataclasses.replace(ours, weighting=eq.SelfTuned(youth=0.0))
    methods = {"equipoise": ours, "no floor": bold, "LS": eq.methods()["LS"]}
    records = networks.run("2 units", methods, seeds=(2, 3, 4), steps=600, preferences=[(0.3, 0.7)])
    losses = {record.column: torch.tensor(record.train).squeeze(1) for record in records}  # (seeds, 2)
    behind = {name: (losses["LS"] < 0.99 * f).all(-1) for name, f in losses.items()}
    assert not behind["equipoise"].any()
    assert behind["no floor"].any()
    worst = {name: (torch.tensor([0.3, 0.7]) * f).amax(-1).mean() for name, f in losses.items()}
    assert worst["equipoise"] < worst["LS"]


def train(
    mol: eq.MultiObjective,
    model: torch.nn.Linear,
    optimizer: torch.optim.Optimizer,
    factor: torch.Tensor | float = 1.0,
) -> None:
    target = torch.tensor([1.0, -1.0])
    for _ in range(300):
        mol(factor * (model.weight.squeeze() - target).square()).backward()
        optimizer.step()
        optimizer.zero_grad()


def shell(preference: Any, **options: Any) -> eq.MultiObjective:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, optimizer, preference, **options)
    train(mol, model, optimizer)
    return mol


def test_multi_objective_uses_its_weighting_and_its_conversion():
    method = registry.default()
    mine = shell([0.3, 0.7])
    assert (mine.weighting, mine.conversion) == (method.weighting, method.conversion)
    ways: list[Any] = [method, (method.weighting, method.conversion), "equipoise"]
    for same in ways:
        assert torch.equal(mine.solution()["weight"], shell([0.3, 0.7], method=same).solution()["weight"])
    # (0.3 (x − 1)² = 0.7 (x + 1)²: x = −0.209.)
    assert mine.solution()["weight"].item() == pytest.approx(-0.209, abs=0.01)


def test_multi_objective_takes_the_conversion_that_is_given():
    assert shell([0.5, 0.5], method=(eq.SelfTuned(), eq.Average())).conversion == eq.Average()


def test_the_unit_of_one_loss_does_not_matter_with_units_start():
    def answer(factor: float) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mol = eq.MultiObjective(model, optimizer, [0.3, 0.7], units="start")
        train(mol, model, optimizer, torch.tensor([factor, 1.0]))
        return mol.solution()["weight"]

    torch.testing.assert_close(answer(300.0), answer(1.0), rtol=1e-4, atol=1e-6)


def test_a_run_of_known_length_is_young_for_at_most_a_third_of_it():
    assert eq.default(steps=300) == eq.default(youth=100.0)
    assert eq.default(steps=10**6) == eq.default()
    assert eq.default(steps=300, youth=5, power=4) == eq.default(youth=5, power=4)
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match="steps must be a whole number of at least 1; found"):
            eq.default(steps=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("task", "steps", "at_most"), [("digits MLP", 200, 0.9), ("4 units", 200, 1.0)])
def test_a_short_run_of_known_length_is_no_weighted_sum(task, steps, at_most):
    """Its largest weighted loss over that of a weighted sum, which the default without a length is near."""
    methods = {"LS": eq.methods()["LS"], "known": eq.default(steps=steps)}
    values: dict[str, float] = {}
    for record in networks.run(task, methods, seeds=(20, 21), steps=steps, optimizers=networks.ADAM):
        w, f = (torch.tensor(x, dtype=torch.float64) for x in (record.preferences, record.train))
        values[record.column] = values.get(record.column, 0.0) + float(metrics.tch(f, w).mean())
    assert values["known"] < at_most * values["LS"]


def test_one_constant_of_the_default_can_be_changed():
    method: Any = registry.default()
    assert eq.default() == method
    sharper = eq.default(power=4)
    assert sharper == eq.Method(eq.SelfTuned(), eq.Suffix(power=4))
    calmer = eq.default(jitter=0.1, capacity=3)
    assert calmer == eq.Method(eq.SelfTuned(jitter=0.1), eq.Suffix(capacity=3))
    by_hand = dataclasses.replace(method, weighting=dataclasses.replace(method.weighting, jitter=0.1))
    assert by_hand == eq.default(jitter=0.1)
    assert eq.solve(F1(), preference.linspace(2), calmer, steps=3).losses["solution"].shape == (1, 2, 2)
    assert shell([0.3, 0.7], method=sharper).conversion == eq.Suffix(power=4)


def test_a_change_that_the_default_does_not_have():
    with pytest.raises(
        UnknownNameError, match=r"a change of the default must be one of .*; found 'powr'; nearest: power"
    ):
        eq.default(powr=4)
    with pytest.raises(ValueError, match="step_size"):
        eq.default(power=4, step_size=1.0)


def test_the_constants_of_the_default_have_names_of_their_own():
    """Or a change would be ambiguous."""
    weighting, conversion = (
        {field.name for field in dataclasses.fields(part)} for part in (eq.SelfTuned(), eq.Suffix())
    )
    assert not weighting & conversion
