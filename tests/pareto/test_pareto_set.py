"""One model for every trade-off, in one's own training loop."""

import copy
import io

import numpy as np
import pytest
import torch
from tests.torch_versions import compiles
from torch import nn

import equipoise as eq
from equipoise.errors import BalanceWarning, IdealPointWarning


class Point(nn.Module):
    """x(w) by a small network, with the two losses x² and (x − 2)²."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        x = self.net(w)
        return torch.cat([x**2, (x - 2) ** 2], -1)


def make(start: int = 0, **settings) -> tuple[Point, torch.optim.Optimizer, eq.ParetoSet]:
    model = Point(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, eq.ParetoSet(model, optimizer, 2, **{"nodes": 8, "margin": 0.05, **settings})


def train(model, optimizer, pareto, steps: int, rows: int = 16) -> None:
    for _ in range(steps):
        pareto(model(pareto.draw(rows))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_every_ray_is_met():
    model, optimizer, pareto = make()
    train(model, optimizer, pareto, 400)
    model.load_state_dict(pareto.solution())
    w = torch.tensor([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5], [0.7, 0.3]])
    exact = 2 * w[:, 1].sqrt() / (w[:, 0].sqrt() + w[:, 1].sqrt())  # √w₁ x = √w₂ (2 − x)
    torch.testing.assert_close(model.net(w).squeeze(-1), exact, rtol=0.05, atol=0)


def test_a_short_run_learns_the_front_of_vlmop2():
    front = eq.pareto.solve_set(eq.problems.VLMOP2(), steps=400).front
    exact = eq.problems.VLMOP2().solution(front.preferences)
    assert front.imbalance.median() < 0.1
    assert (front.tch / eq.metrics.tch(exact, front.preferences)).median() < 1.03


def test_noise_does_not_bias_it():
    """A Tchebycheff loss of noisy measurements is off by tens of percent: its maximum is that of the noise."""
    front = eq.pareto.solve_set(eq.problems.VLMOP2(), steps=400, noise=0.2).front
    assert front.imbalance.median() < 0.1


def test_the_first_scalar_is_the_weighted_sum():
    model, _, pareto = make()
    w = pareto.draw(5)
    f = model(w)
    torch.testing.assert_close(pareto(f), (w * f).sum(-1).mean())


def test_scalar_and_gains_by_hand():
    """Two nodes at (0.1, 0.9) and (0.9, 0.1), λ set by hand."""
    model, optimizer, pareto = make(
        nodes=2, margin=0.1, method=(eq.OMD(step_size=0.5, mirror=eq.Entropic()), eq.Last())
    )
    x = next(iter(model.parameters()))
    f = torch.tensor([[20.0, 0.0], [4.0, 4.0]]) + 0 * x.sum()
    w = torch.tensor([[0.1, 0.9], [0.5, 0.5]])
    pareto(f, w).backward()
    optimizer.step()
    # Gains (2, 0) and (2, 2); the first node has 1 and ½ of them, the second ½: means (2, ⅔) and (2, 2).
    left = torch.tensor([2.0, 2 / 3]).mul(0.5).softmax(-1)
    torch.testing.assert_close(pareto.node_duals.float(), torch.stack([left, torch.tensor([0.5, 0.5])]))
    optimizer.zero_grad()
    middle = pareto.duals([0.5, 0.5])
    torch.testing.assert_close(middle.float(), (left + 0.5) / 2)
    expected = (2 * pareto.duals(w).float() * w * f).sum(-1).mean()
    torch.testing.assert_close(pareto(f, w), expected)


def test_units_and_ideal_point():
    model, _, pareto = make(units=[2.0, 1.0], ideal=[1.0, 0.0], nodes=2)
    w = pareto.draw(3)
    f = model(w) + 2
    torch.testing.assert_close(
        pareto(f), (w * (f - torch.tensor([1.0, 0.0])) / torch.tensor([2.0, 1.0])).sum(-1).mean()
    )


def test_counts_leave_losses_out():
    model, _, pareto = make()
    w = pareto.draw(4)
    f = model(w)
    counts = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    spoilt = torch.where(counts > 0, f, torch.nan)
    expected = ((w * f * counts).sum(0) / counts.sum(0)).sum()
    torch.testing.assert_close(pareto(spoilt, counts=counts), expected)


def test_losses_by_name_and_in_a_list():
    model = Point()
    pareto = eq.ParetoSet(model, None, ["a", "b"], nodes=4)
    w = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    f = model(w)
    by_name = pareto({"b": f[:, 1], "a": f[:, 0]}, w)
    in_a_list = eq.ParetoSet(model, None, 2, nodes=4)([f[:, 0], f[:, 1]], w)
    assert torch.equal(by_name, in_a_list)
    assert "weighted/a" in pareto.metrics()


def test_every_loss_needs_a_graph():
    """λ would go to a loss that cannot fall; by counts it may be absent."""
    model = Point()
    w = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    f = model(w)
    named = eq.ParetoSet(model, None, ["a", "b"], nodes=4)
    with pytest.raises(ValueError, match=r"every loss must require grad; found \['b'\] without a graph"):
        named({"a": f[:, 0], "b": f[:, 1].detach()}, w)
    listed = eq.ParetoSet(model, None, 2, nodes=4)
    with pytest.raises(ValueError, match=r"every loss must require grad; found \[0\] without a graph"):
        listed([f[:, 0].detach(), f[:, 1]], w)
    parts, counts = [f[:, 0].detach(), f[:, 1]], torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"where its count is not 0; found \[0\]"):
        listed(parts, w, counts=counts)
    listed(parts, w, counts=counts * torch.tensor([0.0, 1.0])).backward()
    with torch.no_grad(), pytest.raises(ValueError, match=r"losses must .* gradients enabled; found torch.no_grad"):
        listed(f, w)


WRAPPED = {
    "itself": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "inside": nn.Sequential,
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_objectives_are_those_of_the_conditioned_model(wrap: str):
    model = WRAPPED[wrap](eq.conditioned(nn.Linear(1, 1), ["a", "b", "c"]))
    rule = r"objectives must be those of the conditioned model, \['a', 'b', 'c'\], in this order; found "
    for objectives, found in ((["c", "b", "a"], r"\['c', 'b', 'a'\]"), (["a", "b"], r"\['a', 'b'\]"), (2, "2 without")):
        with pytest.raises(ValueError, match=rule + found):
            eq.ParetoSet(model, None, objectives)
    eq.ParetoSet(model, None, ["a", "b", "c"])
    eq.ParetoSet(model, None, 3)
    numbered = eq.conditioned(nn.Linear(1, 1), 2)
    eq.ParetoSet(numbered, None, ["a", "b"])
    with pytest.raises(ValueError, match=r"conditioned model, 2 without names, in this order; found \['a', 'b', 'c'\]"):
        eq.ParetoSet(numbered, None, ["a", "b", "c"])


def test_accumulation_is_one_step_with_the_rows_of_all_calls():
    results = []
    for parts in (1, 2):
        model, optimizer, pareto = make(method=(eq.SelfTuned(), eq.Last()))
        for _ in range(3):
            w = torch.linspace(0.05, 0.95, 16)
            w = torch.stack([w, 1 - w], -1)
            for part in w.chunk(parts):
                (pareto(model(part), part) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert pareto.step == 3
        results.append(pareto.node_duals)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_a_step_that_is_skipped_leaves_lambda_alone():
    model, optimizer, pareto = make()
    train(model, optimizer, pareto, 3)
    before = pareto.node_duals
    pareto(model(pareto.draw(16))).backward()
    optimizer.zero_grad()
    assert torch.equal(pareto.node_duals, before)
    assert pareto.step == 3


def test_it_resumes_bit_for_bit():
    model, optimizer, pareto = make(start=1)
    train(model, optimizer, pareto, 20)
    file = io.BytesIO()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "pareto": pareto.state_dict()}
    torch.save(saved, file)
    train(model, optimizer, pareto, 20)

    other, second, again = make(start=2)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other.load_state_dict(loaded["model"])
    second.load_state_dict(loaded["optimizer"])
    again.load_state_dict(loaded["pareto"])
    train(other, second, again, 20)
    assert again.step == pareto.step == 40
    assert torch.equal(pareto.node_duals, again.node_duals)
    found = again.solution()
    assert all(torch.equal(x, found[name]) for name, x in pareto.solution().items())
    assert torch.equal(pareto.draw(4), again.draw(4))


def test_a_checkpoint_of_another_configuration_is_refused():
    state = make()[2].state_dict()
    for settings in ({"nodes": 9}, {"margin": 0.1}, {"seed": 3}, {"method": (eq.OMD(), eq.Last())}, {"ideal": -1.0}):
        _, _, other = make(**settings)
        with pytest.raises(eq.StateMismatchError, match="checkpoint belongs to another configuration"):
            other.load_state_dict(state)
    _, _, pareto = make(nodes=9)
    with pytest.raises(eq.StateMismatchError, match=r"mesh\.divisions .*, nodes= must be as in the run that was saved"):
        pareto.load_state_dict(state)
    _, _, pareto = make()
    with pytest.raises(eq.StateMismatchError, match="checkpoint must have the entries"):
        pareto.load_state_dict({"drawn": 1})
    with pytest.raises(eq.StateMismatchError, match="checkpoint must have drawn"):
        pareto.load_state_dict({**state, "drawn": -1})


def test_losses_that_are_not_finite_are_refused_before_the_step():
    model, optimizer, pareto = make()
    train(model, optimizer, pareto, 2)
    before, duals = copy.deepcopy(model.state_dict()), pareto.node_duals
    w = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    f = model(w) + torch.tensor([[0.0, 0.0], [torch.inf, 0.0]])
    with pytest.raises(eq.NonFiniteLossError, match=r"found inf for objective 0 at w = \(0.5, 0.5\) in step 3"):
        pareto(f, w)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(pareto.node_duals, duals)
    train(model, optimizer, pareto, 2)
    assert pareto.step == 4


def test_losses_that_are_not_finite_can_be_skipped():
    model, optimizer, pareto = make(on_nonfinite="skip")
    train(model, optimizer, pareto, 2)
    duals = pareto.node_duals
    pareto(model(pareto.draw(4)) * torch.nan).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert pareto.step == 2
    assert torch.equal(pareto.node_duals, duals)


def test_a_loss_below_the_ideal_point_is_noticed():
    model, _, pareto = make()
    with pytest.warns(
        IdealPointWarning,
        match=r"the mean of w \(f − z\)/u around a node must not be negative; found -.* turns the weight round",
    ):
        pareto(model(pareto.draw(4)) - 10)


def test_few_preferences_for_the_nodes_are_noticed():
    model, optimizer, pareto = make(nodes=8)
    train(model, optimizer, pareto, 100, rows=4)
    saved = pareto.state_dict()
    with pytest.warns(BalanceWarning, match=r"^4 preferences per step.*few for 8 nodes.*nodes=4"):
        pareto(model(pareto.draw(4)))
    model, optimizer, pareto = make(nodes=8)
    pareto.load_state_dict(saved)
    train(model, optimizer, pareto, 110, rows=5)


MISUSE = {
    "no draw": (lambda model, pareto: pareto(model(torch.full((1, 2), 0.5))), "must follow w = pareto.draw"),
    "rows": (lambda model, pareto: pareto(model(pareto.draw(4))[:3]), r"shape \(4, 2\), one row per preference"),
    "graph": (lambda model, pareto: pareto(model(pareto.draw(4)).detach()), "losses must require grad"),
    "simplex": (
        lambda model, pareto: pareto(model(torch.ones(1, 2)), torch.ones(1, 2)),
        "preference must be non-negative and sum to 1; found sum 2.00",
    ),
    "one preference": (
        lambda model, pareto: pareto(model(torch.full((1, 2), 0.5)), torch.full((2,), 0.5)),
        r"preference must have shape \(n, m\); found \(2,\)",
    ),
    "n": (lambda _, pareto: pareto.draw(0), "n must be a whole number of at least 1; found 0"),
    "names": (lambda model, pareto: pareto({"a": model(pareto.draw(1))[:, 0]}), "unless objectives= has names"),
    "list": (lambda model, pareto: pareto([model(pareto.draw(2))[:, 0]]), "losses must have 2 entries"),
    "counts": (
        lambda model, pareto: pareto(model(pareto.draw(2)), counts=torch.ones(2)),
        r"counts must have shape \(2, 2\)",
    ),
    "whole numbers": (lambda _, pareto: pareto(torch.ones(len(pareto.draw(2)), 2).long()), "floating-point"),
    "front": (lambda _, pareto: pareto.front(lambda w: w[:, 0]), r"losses_of must give a tensor of shape"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case: str):
    model, _, pareto = make()
    wrong, text = MISUSE[case]
    with pytest.raises(ValueError, match=text):
        wrong(model, pareto)


def test_a_draw_is_used_once():
    model, _, pareto = make()
    w = pareto.draw(4)
    pareto(model(w))
    with pytest.raises(ValueError, match="no draw since the last call"):
        pareto(model(w))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"margin": 0.5}, "margin must lie in"),
        ({"nodes": 1}, "nodes must be at least 2"),
        ({"draw": "uniform"}, "draw must be a function"),
        ({"seed": -1}, "seed must be a non-negative whole number; found -1"),
        ({"nodes": 8.5}, "nodes must be a whole number of at least 1; found 8.5"),
        ({"units": "start"}, "units must be None or numbers"),
        ({"method": "TCH"}, "method must have λ that is known before"),
        ({"method": (eq.OMD(), eq.Suffix())}, "conversion must be Average"),
    ],
)
def test_bad_settings_are_named(settings, text: str):
    with pytest.raises(ValueError, match=text):
        make(**settings)


@pytest.mark.parametrize("objectives", [1, True, "ab", ["a"], ["a", "a"], 2.0, None, [1, 2]])
def test_bad_objectives_are_named(objectives):
    with pytest.raises(ValueError, match="objectives must"):
        eq.ParetoSet(Point(), None, objectives)


class Normed(nn.Module):
    """BatchNorm of (x, w₁, w₂), recorded in evaluation mode as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, preference: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(self.norm(torch.cat([x, preference], -1)))
        return found


def test_batchnorm_of_a_model_that_takes_a_preference():
    model = Normed()
    pareto = eq.ParetoSet(model, None, 2, nodes=4, margin=0.1)
    x = torch.linspace(-1, 3, 500).unsqueeze(-1)
    pareto(model(x, pareto.draw(500)).square()).backward()
    drawn = pareto.drawn
    pareto.update_bn([(part, "labels") for part in x.split(250)])
    assert pareto.drawn == drawn
    assert not model._forward_pre_hooks
    norm = pareto.solution()
    # x has the mean 1; each w_i is uniform on (0.1, 0.9), of mean ½ and variance 0.8²/12.
    torch.testing.assert_close(norm["norm.running_mean"], torch.tensor([1.0, 0.5, 0.5]), atol=2e-3, rtol=0)
    torch.testing.assert_close(norm["norm.running_var"][1:], torch.full((2,), 0.64 / 12), atol=1e-3, rtol=0)
    other = eq.ParetoSet(Normed(), None, 2, nodes=4, margin=0.1)
    other.draw(1)
    assert torch.equal(pareto.draw(5), other.draw(5))  # training goes on as if there had been no draws


BATCHNORM = {
    "itself": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "parallel": nn.DataParallel,  # without a device it only passes calls on
}


@pytest.mark.parametrize("wrap", ["itself", pytest.param("compiled", marks=compiles), "parallel"])
def test_batchnorm_of_a_conditioned_model(wrap: str):
    torch.compiler.reset()
    torch.manual_seed(0)
    inner = eq.conditioned(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), 2)
    with torch.no_grad():
        for p in inner.adapters.parameters():
            p.normal_()
    seen: list[torch.Tensor] = []
    inner.get_submodule("model.1").register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model = BATCHNORM[wrap](inner)
    pareto = eq.ParetoSet(model, None, 2, nodes=4)
    x = torch.randn(16, 1)
    pareto(model(x, preference=pareto.draw(16)).expand(16, 2).square()).backward()
    seen.clear()
    pareto.update_bn(x.split(8))
    state = pareto.solution()
    mean, var = (next(v for name, v in state.items() if name.endswith(end)) for end in ("running_mean", "running_var"))
    torch.testing.assert_close(mean, torch.stack(seen).mean((0, 1)))
    torch.testing.assert_close(var, torch.stack(seen).var(1).mean(0))
    with torch.no_grad():
        inner(x[:8], preference=pareto.draw(8))
    torch.testing.assert_close(seen[2], seen[0])  # the preferences of the next draw


def test_batchnorm_of_a_model_whose_input_is_the_preference():
    class Only(Normed):
        def forward(self, preference: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(preference[:, :1], preference)

    model = Only()
    pareto = eq.ParetoSet(model, None, 2, nodes=4)
    pareto(model(pareto.draw(8)).square()).backward()
    w = torch.tensor([[0.25, 0.75], [0.75, 0.25]])
    pareto.update_bn([w])
    torch.testing.assert_close(pareto.solution()["norm.running_mean"], torch.full((3,), 0.5))


def test_weights_of_objectives_are_not_dropped():
    with pytest.raises(ValueError, match=r"without weights: a preference is given in every call; found {'a': 0.5"):
        eq.ParetoSet(Point(), None, {"a": 0.5, "b": 0.5})  # type: ignore[arg-type]


def test_whole_numbers_of_numpy():
    pareto = eq.ParetoSet(Point(), None, np.int64(2), nodes=np.int64(4), seed=np.int64(3))  # type: ignore[arg-type]
    again = eq.ParetoSet(Point(), None, 2, nodes=4, seed=3)
    assert torch.equal(pareto.draw(np.int64(4)), again.draw(4))  # type: ignore[arg-type]
    again.load_state_dict(pareto.state_dict())


def test_the_number_of_rays_is_whole():
    _, _, pareto = make()
    with pytest.raises(ValueError, match=r"preferences must be a whole number of at least 1; found 10.0"):
        pareto.front(lambda w: w, 10.0)  # type: ignore[arg-type]
    assert len(pareto.front(lambda w: w, np.int64(10)).losses) == 10  # type: ignore[arg-type]


def test_metrics_of_a_run():
    model, optimizer, pareto = make()
    found = pareto.metrics()
    assert found["step"] == 0
    assert found["nodes"] == 0.0
    train(model, optimizer, pareto, 300)
    found = pareto.metrics()
    assert found["step"] == 300
    assert found["nodes"] == 1.0
    assert found["imbalance"] <= found["imbalance/largest"]
    assert found["imbalance"] < 0.2
    assert found["lambda/0"] + found["lambda/1"] == pytest.approx(1.0)
    assert repr(pareto) == "ParetoSet(Point, SelfTuned, Average, objectives=2, nodes=8, margin=0.05, step=300)"


def test_the_front_is_that_of_the_answer_and_the_model_stays_as_it_was():
    model, optimizer, pareto = make()
    train(model, optimizer, pareto, 100)
    before = copy.deepcopy(model.state_dict())
    model.net[1].eval()
    modes = []

    def losses_of(w: torch.Tensor) -> torch.Tensor:
        modes.append(model.training)
        losses: torch.Tensor = model(w)
        return losses

    front = pareto.front(losses_of, 11)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert modes == [False]
    assert [module.training for module in model.net] == [True, False, True]
    model.load_state_dict(pareto.solution())
    with torch.no_grad():
        expected = model(front.preferences.float()).double()
    torch.testing.assert_close(front.losses, expected)
    assert front.preferences[0].tolist() == pytest.approx([0.05, 0.95])


@pytest.mark.parametrize("m", [2, 3])
def test_the_picture_can_be_drawn(m: int):
    pytest.importorskip("matplotlib")
    w = eq.preference.grid(6, m, 0.02)
    losses = 3 + 2 * eq.preference.ray(w)
    figure = eq.pareto.Front(w, losses, (losses - 3) / 2).plot()
    left, right = figure.axes
    assert right.get_ylabel() == "imbalance, %"
    if m == 2:
        for line in left.lines[:3]:  # the rays begin in the ideal point
            assert np.asarray(line.get_xydata())[0].tolist() == pytest.approx([3.0, 3.0])
    figure.savefig(io.BytesIO())


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (0.0, ["0", "0.5", "1"]),
        (0.07, ["0", "0.5", "1", "2", "5", "10"]),
        (40.0, ["0", "0.5", "5", "50", "500", "5,000"]),
    ],
)
def test_the_imbalance_can_be_read_off(largest: float, labels: list[str]):
    pytest.importorskip("matplotlib")
    w = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    losses = torch.tensor([[1.0 + largest, 1.0], [1.0, 1.0]])
    right = eq.pareto.Front(w, losses, losses).plot().axes[1]
    assert [label.get_text() for label in right.get_yticklabels()] == labels
    assert right.get_ylim()[1] >= 100 * largest


def test_solve_set_takes_a_name_as_solve_does():
    with pytest.raises(eq.EquipoiseError, match="problem must be a known name; found 'VLMOP'; nearest: VLMOP2"):
        eq.pareto.solve_set("VLMOP")
    assert eq.pareto.solve_set("VLMOP2", steps=2).model(torch.tensor([[0.5, 0.5]])).shape == (1, 10)


def test_three_objectives():
    found = eq.pareto.solve_set(eq.problems.DTLZ2(), steps=150, nodes=28)
    assert found.front.losses.shape == (91, 3)
    assert found.front.preferences.min() == pytest.approx(0.02 / 3)


def test_a_preference_of_a_user_has_its_own_distribution():
    model, _, _ = make()
    pareto = eq.ParetoSet(model, None, 2, draw=lambda n, _: torch.full((n, 2), 0.5))
    assert pareto.draw(3).tolist() == [[0.5, 0.5]] * 3


def test_a_step_that_the_gradient_scaler_skips_leaves_lambda_alone():
    model, optimizer, pareto = make(method=(eq.SelfTuned(youth=0), eq.Average(8)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(6):
        before = pareto.node_duals
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(pareto.draw(16))
        scaler.scale(pareto(losses)).backward()
        if step == 4:
            for p in model.parameters():
                p.grad = torch.full_like(p, torch.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(pareto.node_duals, before) == (step == 4)
    assert pareto.step == 5
    assert all(p.dtype == torch.float32 for p in pareto.solution().values())


def test_a_checkpoint_stays_as_it_is_while_the_run_goes_on():
    model, optimizer, pareto = make()
    train(model, optimizer, pareto, 3)
    saved = pareto.state_dict()
    train(model, optimizer, pareto, 3)
    assert saved["drawn"] == 3
    assert saved["nodes"]["step"] == 3
