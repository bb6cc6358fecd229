"""The theorems, measured: a small version of benchmarks/convergence.py, and the benchmark itself."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from equipoise import Adaptive

HORIZONS = (10, 30, 100, 300, 1000)


def load() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "convergence.py"
    spec = importlib.util.spec_from_file_location("convergence", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["convergence"] = module
    spec.loader.exec_module(module)
    return module


bench = load()
PLAN = bench.Plan({2: 4, 10: 4, 100: 8})


@pytest.fixture(scope="module")
def measured():
    problem = PLAN.ensemble("affine", 100)
    found = bench.curves(problem, "affine", bench.PLAYERS | bench.CONTROLS, HORIZONS)
    return {curve.label: curve for curve in found}


# The theorems ---------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["PGD", "EG"])
def test_gap_is_below_the_bound_at_every_horizon_and_falls_at_its_rate(measured, label):
    curve = measured[label]
    assert all(0 < gap <= bound for gap, bound in zip(curve.gaps, curve.bounds, strict=True))
    assert curve.slope <= -0.45
    assert curve.passes
    assert curve.sound


@pytest.mark.parametrize("label", ["λ frozen", "λ flipped, PGD", "λ flipped, EG"])
def test_the_same_check_fails_if_the_dual_stands_still_or_descends(measured, label):
    curve = measured[label]
    assert not curve.passes
    assert curve.slope > -0.2
    assert curve.sound  # a control that fails is what is wanted
    assert not dataclasses.replace(curve, must="pass").sound


def test_flipping_the_gain_is_worse_than_freezing(measured):
    for label in ("λ flipped, PGD", "λ flipped, EG"):
        assert measured[label].gaps[-1] > measured["λ frozen"].gaps[-1] > 3 * measured["PGD"].gaps[-1]


def test_adaptive_output_keeps_the_bound_where_iterates_dominate_one_another():
    outputs = bench.BOTH | {"capacity 1": lambda power: Adaptive(power, capacity=1)}
    found = list(bench.curves(PLAN.ensemble("bowl", 2), "bowl", bench.PLAYERS, (10, 100), "bound", outputs=outputs))
    assert len(found) == 6
    assert all(curve.sound for curve in found)
    average, adaptive, single = (curve.gaps[0] for curve in found[:3])
    assert adaptive < 0.7 * average  # dominated iterates on the way are left behind
    assert single <= average + 1e-12


def test_adaptive_output_is_the_average_where_no_iterate_dominates_another():
    # Affine with Σ λ*_i w_i f_i constant: every point is Pareto optimal.
    arms = list(bench.PLAYERS.values())
    measured = bench.measure(PLAN.ensemble("affine", 10), arms, (10, 50), bench.BOTH)
    torch.testing.assert_close(measured["adaptive"], measured["average"], rtol=0, atol=1e-12)


def test_p_norm_with_two_objectives_is_pgd():
    problem = PLAN.ensemble("affine", 2)
    gaps = [bench.measure(problem, [bench.Arm(geometry)], (30,))["average"] for geometry in ("pgd", "pnorm")]
    torch.testing.assert_close(gaps[0], gaps[1], rtol=0, atol=1e-9)


EXTENSIONS = {
    "single": {"sampling": "single"},
    "power": {"power": 4.0},
    "optimism": {"optimism": 5.0},
    "adaptive step": {"adaptive": True},
}


@pytest.mark.parametrize("changes", EXTENSIONS.values(), ids=EXTENSIONS)
def test_extensions_keep_their_bounds(changes):
    arms = {"EG": bench.Arm("eg", **changes)}
    (curve,) = bench.curves(PLAN.ensemble("affine", 10), "affine", arms, (10, 100), "bound")
    assert curve.must == "bound"
    assert curve.sound


# The instruments ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["affine", "bowl", "needle"])
def test_ensemble_is_its_members(family):
    problem = PLAN.ensemble(family, 10, noise=0.0)
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(4, 3, 2, problem.d, dtype=torch.float64, generator=generator).mul(2).sub(1).requires_grad_()
    exact, noisy, pull = problem.look(theta, generator)
    assert torch.equal(exact, noisy)
    coefficients = torch.rand(exact.shape, dtype=torch.float64, generator=generator)
    for k, member in enumerate(problem.members):
        losses = member.losses(theta[k])
        torch.testing.assert_close(exact[k], losses)
        torch.testing.assert_close(problem.gap(theta)[k] * member.value, member.gap(theta[k]))
        (gradient,) = torch.autograd.grad(losses, theta, coefficients[k])
        torch.testing.assert_close(pull(coefficients)[k], gradient[k])
        assert member.bounds.U <= problem.bounds.U
        assert member.bounds.L <= problem.bounds.L


def test_noise_is_unbiased_and_within_the_bounds():
    problem = PLAN.ensemble("curved", 2)
    theta = problem.corners()[:, None].expand(4, 20_000, problem.d)
    exact, noisy, pull = problem.look(theta, torch.Generator().manual_seed(0))
    assert torch.isclose(noisy, 2 * exact).logical_or(noisy == 0).all()
    torch.testing.assert_close(noisy.mean(1), exact[:, 0], rtol=0.05, atol=0)
    assert noisy.max() <= problem.bounds.U
    one = torch.zeros_like(exact)
    one[..., 0] = 1.0
    assert pull(one).abs().max() <= problem.bounds.L


def test_needle_has_its_saddle_at_the_origin():
    needle = bench.Needle(5, 3)
    assert needle.gap(torch.zeros(3, dtype=torch.float64)).item() == pytest.approx(0.0, abs=1e-15)
    torch.testing.assert_close((needle.dual * needle.w) @ needle.slopes, torch.zeros(3, dtype=torch.float64))
    assert (needle.gap(needle.initial(50, 0)) >= 0).all()


def test_controls_move_the_dual_as_they_say():
    problem = PLAN.ensemble("needle", 2)
    losses = torch.tensor([1.0, 3.0], dtype=torch.float64).expand(4, 2, 1, 2)
    frozen = bench.weighting_of(problem, [bench.Arm("pgd"), bench.Arm("pgd", scale=0.0)], (100,))
    _, state = frozen.update(losses, frozen.init(losses), problem.w)
    weights = frozen.weights(state)[0, :, 0]
    assert weights[0, 1] > 0.5
    assert torch.equal(weights[1], torch.tensor([0.5, 0.5], dtype=torch.float64))


def curve_of(*gaps, bound=1.0, must="pass"):
    horizons = tuple(100 * 10**k for k in range(len(gaps)))
    return bench.Curve("hand", 2, "made", horizons, gaps, (0.0,) * len(gaps), (bound,) * len(gaps), must)


def test_the_check_by_hand():
    assert curve_of(0.4, 0.1, 0.025).slope == pytest.approx(math.log10(0.25))
    assert curve_of(0.4, 0.1, 0.025).passes
    assert not curve_of(0.4, 0.2, 0.1).passes  # slope −0.30
    assert not curve_of(0.4, 0.1, 0.025, bound=0.3).passes  # above the bound at the first T
    assert curve_of(0.4, 0.2, 0.1, must="bound").sound
    assert not curve_of(0.4, 0.1, 0.025, must="fail").sound


def test_what_is_unexpected_is_counted_and_written_down():
    good, bad = curve_of(0.4, 0.1, 0.025), curve_of(0.4, 0.2, 0.1)
    sweep = bench.Sweep("EG", 2, 10, (1.0,), (0.1,), adaptive=0.3, bound=0.2)
    results = bench.Results({"rates": [good, bad]}, [sweep])
    assert results.unexpected == [bad, sweep]
    assert '"sound": false' in results.to_json()


def test_nothing_is_claimed_where_nothing_is_proved():
    problem = PLAN.ensemble("affine", 10)
    for arm in (bench.Arm("pnorm", optimism=1.0), bench.Arm("eg", adaptive=True, optimism=1.0)):
        assert math.isnan(arm.bound(problem, 100))


def test_optimism_up_to_one_costs_nothing_in_the_worst_case():
    problem = PLAN.ensemble("affine", 10)
    small, one, five = (bench.Arm("eg", optimism=c).bound(problem, 100) for c in (1e-9, 1.0, 5.0))
    assert small == one < five


# Noisy losses ---------------------------------------------------------------------------------


def test_theorem_s_holds_where_the_lemma_of_algorithm_2_does_not():
    for sigma, power in ((0.5, 0.0), (0.1, 8.0)):
        found = bench.coverage(300, 200, sigma, power)
        assert found.suffix <= bench.DELTA
        assert found.rate <= bench.DELTA
        assert found.usual <= 2 * bench.DELTA  # z = 2 and estimated noise: not proved
        assert found.lemma > 0.3
        assert found.blind > 0.5
        assert found.sound
        assert not dataclasses.replace(found, suffix=2 * bench.DELTA).sound


def test_time_blocks_by_hand():
    assert bench.block_starts(4, 8, 0.0) == [1, 2, 3, 4]
    # Of 1, 1, 1, 1 the pairs cost 2/3, 2/2 and 2/1: the oldest are joined.
    assert bench.block_starts(4, 3, 0.0) == [1, 3, 4]
    # Then 2, 1, 1, 1: 3/3, 2/2, 2/1; of equal costs the oldest pair.
    assert bench.block_starts(5, 3, 0.0) == [1, 4, 5]
