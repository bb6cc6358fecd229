"""The vectorised solver against a plain loop, and its errors for bad input."""

import dataclasses
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.problems import F1, VLMOP2
from equipoise.solver import Run, Step, solve, solve_many
from equipoise.weighting import MGDA, MoCo

W = eq.preference.linspace(4)


def plain_loop(problem, w, weighting, *, step_size, steps, start):
    """One preference and one seed at a time; returns every iterate."""
    x, state, path = start, None, []
    for _ in range(steps):
        x = x.detach().requires_grad_()
        losses = problem.losses(x)
        rows = torch.stack([torch.autograd.grad(f, x, retain_graph=True)[0] for f in losses])
        given = {"gramian": rows @ rows.T, "jacobian": rows}
        extra = {need: given[need] for need in weighting.needs}
        state = weighting.init(losses, **extra) if state is None else state
        path.append(x.detach())
        c, state = weighting.update(losses, state, w, **extra)
        tracked = weighting.rows(state)
        direction = c @ (rows if tracked is None else tracked.to(rows))
        x = (x - step_size * direction).clamp(problem.lower + 1e-5, problem.upper - 1e-5)
    return torch.stack(path)


@pytest.mark.parametrize(
    "weighting",
    [
        eq.Linear(),
        eq.Tchebycheff(),
        eq.SmoothTchebycheff(0.1),
        eq.OMD(1.0, eq.Euclidean()),
        eq.OMD("adaptive", eq.Entropic(), optimism=2.0),
        MGDA(),
        MoCo(1.0),
        MoCo(1.0, tracking=0.5),
    ],
    ids=repr,
)
def test_is_the_plain_loop_for_every_preference_and_seed(weighting):
    problem, seeds, steps = F1(), (0, 7), 12
    outputs: dict[str, eq.Conversion[Any]] = {"last": eq.Last(), "mean": eq.Average()}
    run = Run(weighting, outputs, 0.05)
    found = solve_many(problem, W, {"a": run}, seeds=seeds, steps=steps, dtype=torch.float64)["a"]
    assert found.losses["last"].shape == (2, 4, 2)
    for s, seed in enumerate(seeds):
        starts = problem.initial(len(W), seed).double()
        for k, w in enumerate(W):
            path = plain_loop(problem, w, weighting, step_size=0.05, steps=steps, start=starts[k])
            torch.testing.assert_close(found.params["last"][s, k], path[-1], atol=1e-9, rtol=0)
            torch.testing.assert_close(found.params["mean"][s, k], path.mean(0), atol=1e-9, rtol=0)
            torch.testing.assert_close(found.losses["last"][s, k], problem.losses(path[-1]), atol=1e-9, rtol=0)


def test_stacked_runs_do_not_see_each_other():
    runs = {
        "gramian": Run(MGDA(), {"x": eq.Last()}, 0.01),
        "losses": Run(eq.OMD(1.0), {"x": eq.Last(), "y": eq.Adaptive()}, 0.02),
        "other": Run(eq.Linear(), {"x": eq.Last()}, 0.03),
    }
    together = solve_many(VLMOP2(), W, runs, steps=30, dtype=torch.float64)
    for name, run in runs.items():
        alone = solve_many(VLMOP2(), W, {name: run}, steps=30, dtype=torch.float64)[name]
        for key, x in alone.params.items():
            torch.testing.assert_close(together[name].params[key], x, atol=1e-12, rtol=0)


def test_a_sweep_is_the_settings_one_by_one():
    steps = torch.tensor([0.1, 1.0, 5.0])
    eta = torch.tensor([0.01, 0.02, 0.04])
    swept = solve(
        VLMOP2(),
        W,
        eq.OMD(steps.reshape(-1, 1, 1)),
        step_size=eta.reshape(-1, 1, 1),
        sweep=(3,),
        seeds=(1, 2),
        steps=25,
        dtype=torch.float64,
    )
    assert swept.losses["solution"].shape == (3, 2, 4, 2)
    for k in range(3):
        one = solve(
            VLMOP2(), W, eq.OMD(float(steps[k])), step_size=float(eta[k]), seeds=(1, 2), steps=25, dtype=torch.float64
        )
        torch.testing.assert_close(swept.params["solution"][k], one.params["solution"], atol=1e-7, rtol=0)


def test_reports_trajectory_and_calls_back():
    seen: list[Step] = []
    found = solve(VLMOP2(), W, eq.OMD(1.0), steps=5, trajectory=True, callback=seen.append)
    assert found.trajectory is not None
    assert found.trajectory.losses.shape == (5, 1, 4, 2)
    assert [step.step for step in seen] == [1, 2, 3, 4, 5]
    torch.testing.assert_close(seen[-1].losses, found.trajectory.losses[-1])
    torch.testing.assert_close(found.losses["solution"], found.trajectory.losses[-1])
    first = found.trajectory.coefficients[0]
    torch.testing.assert_close(first, (W / 2).float().expand_as(first))


def test_the_jacobian_is_computed_only_for_runs_that_need_it(monkeypatch):
    sizes = []
    original = torch.autograd.grad

    def counted(outputs, inputs, **options):
        sizes.append(len(inputs))
        return original(outputs, inputs, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    runs = {"a": Run(eq.Linear(), {"x": eq.Last()}), "b": Run(MGDA(), {"x": eq.Last()})}
    solve_many(VLMOP2(), W, {"a": runs["a"]}, steps=3)
    assert sizes == [4, 4]  # one backward pass for each of the two moves
    sizes.clear()
    solve_many(VLMOP2(), W, runs, steps=2)
    # Two objectives at each of the two points for b alone, one backward pass for the move of a.
    assert sizes == [4] * 5


def test_iterates_stay_in_the_box():
    seen = []
    solve(F1(), W, eq.Linear(), steps=40, step_size=5.0, callback=lambda step: seen.append(step.params))
    inside = torch.stack(seen[1:])
    assert inside.min() >= 1e-5 - 1e-9
    assert inside.max() <= 1 - 1e-5 + 1e-9
    assert torch.isclose(inside.min(), torch.tensor(1e-5))


def test_is_deterministic():
    method = eq.methods()["AdaOMDeg-TCH"]
    a, b = (solve(F1(), W, method, seeds=(3,), steps=50).params["solution"] for _ in range(2))
    assert torch.equal(a, b)


@dataclasses.dataclass(frozen=True)
class Breaks(VLMOP2):
    """VLMOP2 that fails where the first variable has come below a level."""

    level: float = 0.0

    def losses(self, x):
        f = super().losses(x)
        bad = (x[..., :1] < self.level) & torch.tensor([False, True])
        return torch.where(bad, torch.nan, f)


def test_a_non_finite_loss_names_problem_preference_seed_and_step():
    problem = Breaks(level=-0.1)
    start = problem.initial(4, 5)[:, 0]
    first_bad = int((start < -0.1).to(torch.uint8).argmax())
    assert start[first_bad] < -0.1
    message = rf"objective 1 of VLMOP2, run 'run', preference {first_bad} \(.*\), seed 5, step 1"
    with pytest.raises(eq.NonFiniteLossError, match=message):
        solve(problem, W, eq.OMD(1.0), seeds=(5,), steps=3)


def test_keep_lets_the_instance_go_and_counts_it():
    problem = Breaks(level=-0.1)
    found = solve(problem, W, eq.OMD(1.0), seeds=(5,), steps=3, on_nonfinite="keep")
    start = problem.initial(4, 5)[:, 0]
    assert torch.equal(found.diverged[0], start < -0.1) or found.diverged[0].sum() >= (start < -0.1).sum()
    assert found.losses["solution"][found.diverged].isnan().all()
    assert found.losses["solution"][~found.diverged].isfinite().all()
    assert not found.diverged.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"steps must be a whole number of at least 1; found 0"),
        ({"steps": 2.5}, r"steps must be a whole number of at least 1; found 2\.5"),
        ({"seeds": ()}, r"seeds must hold at least one seed; found 0"),
        ({"seeds": 3}, r"seeds must be a sequence of whole numbers, such as \(0, 1\); found 3"),
        ({"seeds": [0.5]}, r"seeds must be a non-negative whole number; found 0\.5"),
        ({"seeds": [-1]}, r"seeds must be a non-negative whole number; found -1"),
        ({"on_nonfinite": "ignore"}, r'on_nonfinite must be "raise" or "keep"; found \'ignore\''),
        ({"conversions": {"a": "last"}}, r"conversion 'a' must be a conversion such as Last\(\); found 'last'"),
        ({"step_size": torch.ones(3)}, r"step_size must broadcast to .* = \(1, \d+\); found shape \(3,\)"),
        ({"margin": 2.0}, r"bounds must not cross.*found \(1\.0, -1\.0\)"),
        ({"preferences": [[0.2, 0.3, 0.5]]}, r"preference must have 2 entries, one per objective; found 3"),
        ({"preferences": [[0.2, 0.3]]}, r"preference must be non-negative and sum to 1; found sum 0\.50"),
        ({"preferences": [0.5, 0.5]}, r"found \(2,\); a single preference is \[\[0\.5, 0\.5\]\]"),
        ({"preferences": "0.5,0.5"}, r"preference must be numbers, one per objective, such as .*; found '0\.5,0\.5'"),
    ],
)
def test_bad_input(change, message):
    arguments = {"preferences": W, "steps": 2, **change}
    with pytest.raises(ValueError, match=message):
        solve(VLMOP2(), method=eq.OMD(1.0), **arguments)


def test_a_run_that_is_no_run_is_named():
    with pytest.raises(ValueError, match=r"run 'a' must be a Run, .*; found 'TCH'"):
        solve_many(VLMOP2(), W, {"a": "TCH"})  # type: ignore[dict-item]


@pytest.mark.parametrize("method", ["LS", "EPO"])
def test_losses_of_another_number_are_named(method):
    class Three(VLMOP2):
        def losses(self, x):
            two = super().losses(x)
            return torch.cat([two, two[..., :1]], -1)

    with pytest.raises(ValueError, match=r"losses of VLMOP2 must have shape \(\*B, m\), \(1, 2\) .*; found \(1, 3\)"):
        solve(Three(), [[0.5, 0.5]], method)


def test_without_a_method_the_default_knows_the_length_of_the_run():
    w = eq.preference.linspace(10)

    def imbalance(method):
        return eq.metrics.imbalance(solve(VLMOP2(), w, method, steps=300).losses["solution"][0], w).median().item()

    assert imbalance(None) == imbalance(eq.default(steps=300)) < 0.02
    assert imbalance("equipoise") > 0.2  # a name is a method with fixed settings


def test_a_problem_comes_by_name_too():
    by_name, given = (solve(problem, W, steps=3).losses["solution"] for problem in ("VLMOP2", VLMOP2()))
    assert torch.equal(by_name, given)
    with pytest.raises(ValueError, match="problem must be a known name; found 'VLMOP3'; nearest: VLMOP2, VLMOP1"):
        solve("VLMOP3", W)
    with pytest.raises(ValueError, match=r"problem must be a problem such as problems\.VLMOP2\(\), or its name"):
        solve(VLMOP2, W)  # type: ignore[arg-type]


def test_a_statistic_that_the_solver_cannot_give_is_refused_before_the_first_step():
    class Odd(eq.Linear):
        needs = frozenset({"hessian"})

    with pytest.raises(
        ValueError, match=r"run 'run' needs a statistic that the solver cannot give; found \['hessian'\]"
    ):
        solve(VLMOP2(), W, Odd())
