"""EPO: balance and ascent by hand, and the program it solves."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from equipoise import preference
from equipoise.metrics import hypervolume
from equipoise.minnorm import min_norm
from equipoise.problems import VLMOP2
from equipoise.solver import solve
from equipoise.weighting.epo import EPO, EPOState
from equipoise.weighting.reweighted import Reweighted

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
CONFLICT = torch.tensor([[1, -0.5], [-0.5, 1.25]], dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def alpha(weighting: EPO, losses: Tensor, w: Tensor, gramian: Tensor, **extra: Tensor) -> Tensor:
    return weighting.update(losses, weighting.init(losses), w, gramian=gramian, **extra)[0]


def instances(count: int, m: int, seed: int, d: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, preferences and Gramians; a third of the losses are close to balance."""
    g = torch.Generator().manual_seed(seed)
    w = 0.05 + torch.rand(count, m, generator=g, dtype=torch.float64)
    w = w / w.sum(-1, keepdim=True)
    losses = 0.1 + torch.rand(count, m, generator=g, dtype=torch.float64)
    noise = torch.randn(count, m, generator=g, dtype=torch.float64)
    losses = torch.where(torch.arange(count).unsqueeze(-1) % 3 == 0, (1 + 1e-3 * noise) / w, losses)
    J = torch.randn(count, m, d, generator=g, dtype=torch.float64)
    return losses, w, J @ J.mT


def program(losses: Tensor, w: Tensor, gramian: Tensor, descent: str = "restricted"):
    """The linear program of one instance, written as the method is described: objective, rows, bounds."""
    f, C = losses.numpy(), gramian.numpy() / gramian.abs().max().item()
    r = w.numpy() / np.linalg.norm(w.numpy())
    m = len(f)
    share = r * f / (r @ f)
    mu = share @ np.log(m * share)
    a = r * (np.log(m * share) - mu)
    Ca = C @ a
    if mu <= 1e-4:
        if descent == "relaxed":
            return C.sum(0), C, np.zeros(m)
        return C.sum(0), np.vstack((C, Ca)), np.append(np.zeros(m), min(0.0, Ca.max()))
    worst, rising = r * f == (r * f).max(), Ca > 0
    if not rising.any():
        return Ca, C, np.zeros(m)
    bound = np.where(worst, 0.0, Ca)
    binds = worst | ~rising
    return Ca, C[binds], bound[binds]


@pytest.mark.parametrize(
    ("losses", "gramian", "expected"),
    [
        (vector(0.8, 0.2), torch.eye(2, dtype=torch.float64), (1, 0)),
        (vector(0.8, 0.2), CONFLICT, (1, 0)),
        (vector(0.5, 0.5), CONFLICT, (1 / 3, 2 / 3)),
        (vector(0.2, 0.8), CONFLICT, (0, 1)),
    ],
)
def test_by_hand(losses: Tensor, gramian: Tensor, expected: tuple[float, float]):
    assert alpha(EPO(), losses, HALF, gramian).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_tolerance_is_on_the_non_uniformity():
    # For f = (.8, .2) it is .8 ln 1.6 + .2 ln .4 = .19274476; at balance the second gradient is the larger gain.
    losses, gramian = vector(0.8, 0.2), torch.diag(vector(1, 4))
    assert alpha(EPO(tolerance=0.1927), losses, HALF, gramian).tolist() == [1, 0]
    # αᵀKa = t·a₁ + 4(1 − t)·a₂ ≥ 0 with a = (ln 1.6 − μ, ln .4 − μ) keeps the share of the first objective up.
    a1, a2 = np.log(1.6) - 0.19274476, np.log(0.4) - 0.19274476
    share = -4 * a2 / (a1 - 4 * a2)
    restricted = alpha(EPO(tolerance=0.1928), losses, HALF, gramian)
    assert restricted.tolist() == pytest.approx([share, 1 - share], abs=1e-7)
    assert alpha(EPO(tolerance=0.1928, descent="relaxed"), losses, HALF, gramian).tolist() == [0, 1]


@pytest.mark.parametrize("descent", ["restricted", "relaxed"])
def test_the_closed_form_solves_the_program(descent):
    losses, w, K = instances(450, 2, seed=1, d=2)
    weighting = EPO(descent=descent)
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    assert state.programs.sum() == 0
    compared = 0
    for x, f, p, k in zip(found.numpy(), losses, w, K, strict=True):
        objective, rows, bound = program(f, p, k, descent)
        answer = linprog(-objective, A_ub=-rows, b_ub=-bound, A_eq=[[1, 1]], b_eq=[1], method="highs")
        assert answer.status == 0
        assert (rows @ x - bound).min() > -1e-8
        assert objective @ x == pytest.approx(objective @ answer.x, abs=1e-6)
        if abs(objective[0] - objective[1]) > 1e-3:
            compared += 1
            assert x == pytest.approx(answer.x, abs=1e-5)
    assert compared > 350


@pytest.mark.parametrize("m", [3, 5])
def test_more_objectives_are_one_program_each(m):
    losses, w, K = instances(30, m, seed=2, d=6)
    weighting = EPO()
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    assert state.programs.tolist() == [1] * 30
    assert torch.allclose(found.sum(-1), torch.ones(30, dtype=torch.float64))
    solved = 0
    for x, f, p, k in zip(found.numpy(), losses, w, K, strict=True):
        objective, rows, bound = program(f, p, k)
        answer = linprog(-objective, A_ub=-rows, b_ub=-bound, A_eq=np.ones((1, m)), b_eq=[1], method="highs")
        assert x.min() >= 0
        if answer.status != 0:  # no common descent without loss of balance
            assert x == pytest.approx(min_norm(k).numpy())
            continue
        solved += 1
        assert (rows @ x - bound).min() > -1e-6
        assert objective @ x == pytest.approx(objective @ answer.x, abs=1e-6)
    assert solved > 20
    assert weighting.update(losses, state, w, gramian=K)[1].programs.tolist() == [2] * 30


def test_where_no_objective_would_rise_all_must_fall():
    # Ka = (−.19, −.17, −.28): by the rule for the others the first could rise; (Kα)₁ = 10α₁ − 4α₂ ≥ 0 forbids it.
    losses, third = vector(3, 8, 2), torch.full((3,), 1 / 3, dtype=torch.float64)
    J = torch.tensor([[-1, 3], [-2, -2], [-3, -2]], dtype=torch.float64)
    assert alpha(EPO(), losses, third, J @ J.mT).tolist() == pytest.approx([2 / 7, 5 / 7, 0], abs=1e-7)


def test_an_absent_objective_leaves_a_smaller_problem():
    losses, w, K = instances(30, 3, seed=3)
    losses[:, 1], K[:, 1], K[:, :, 1] = torch.nan, torch.nan, torch.nan
    rest = [0, 2]
    # The scale of r does not matter where it is normalised, so that w may be.
    two = w[:, rest] / w[:, rest].sum(-1, keepdim=True)
    expected = alpha(EPO(), losses[:, rest], two, K[:, rest][:, :, rest])
    mask = torch.tensor([True, False, True])
    found = alpha(EPO(), losses, w, K, mask=mask)
    assert (found[:, 1] == 0).all()
    assert torch.allclose(found[:, rest], expected, atol=1e-5)
    alone = alpha(EPO(), losses, w, K, mask=torch.tensor([False, False, True]))
    assert alone.tolist() == [[0, 0, 1]] * 30
    assert alpha(EPO(), losses, w, K, mask=torch.zeros(3, dtype=torch.bool)).tolist() == [[0, 0, 0]] * 30
    pair = alpha(EPO(), losses[:, :2], HALF, K[:, :2, :2], mask=torch.tensor([True, False]))
    assert pair.tolist() == [[1, 0]] * 30


@pytest.mark.parametrize("m", [2, 4])
def test_the_order_of_objectives_does_not_matter(m):
    losses, w, K = instances(24, m, seed=4, d=6)
    order = torch.arange(m).flip(0)
    found = alpha(EPO(), losses, w, K)
    turned = alpha(EPO(), losses[:, order], w[:, order], K[:, order][:, :, order])
    assert torch.allclose(found[:, order], turned, atol=1e-5)


@pytest.mark.parametrize("m", [2, 3])
def test_batches_of_any_shape(m):
    losses, w, K = instances(6, m, seed=5)
    found = alpha(EPO(), losses.view(2, 3, m), w.view(2, 3, m), K.view(2, 3, m, m))
    each = [alpha(EPO(), f, p, k) for f, p, k in zip(losses, w, K, strict=True)]
    assert torch.allclose(found.view(6, m), torch.stack(each), atol=1e-12)


@pytest.mark.parametrize("m", [2, 3])
def test_units_do_not_matter(m):
    losses, w, K = instances(12, m, seed=6)
    assert torch.allclose(alpha(EPO(), losses, w, K), alpha(EPO(), 1e-9 * losses, w, 1e-12 * K), atol=1e-6)


def test_rounding_near_balance_does_not_bind():
    # Balanced up to rounding, Ka is noise: with it the restricted constraint would forbid the descent.
    losses, gramian = vector(0.5 * (1 + 4e-16), 0.5), torch.diag(vector(1, 4))
    assert alpha(EPO(), losses, HALF, gramian).tolist() == [0, 1]
    assert alpha(EPO(scale=False), losses, HALF, gramian)[0] > 0.1


def test_direct_targets_the_preference_itself():
    losses, w, K = instances(30, 2, seed=7)
    assert torch.allclose(alpha(EPO(target="direct"), losses, w, K), alpha(EPO(), losses, w.flip(-1), K), atol=1e-9)


def test_the_length_of_r_matters_unless_normalised():
    # (Ka)₂ < 0 bounds the ascent of the second objective: the longer a, the more of it.
    losses, gramian = vector(0.6, 0.4), torch.tensor([[1, -0.8], [-0.8, 1]], dtype=torch.float64)
    objective, rows, bound = program(losses, HALF, gramian)
    assert bound[1] < 0
    unit, half = alpha(EPO(), losses, HALF, gramian), alpha(EPO(normalize=False), losses, HALF, gramian)
    assert rows[1] @ unit.numpy() == pytest.approx(bound[1])
    assert rows[1] @ half.numpy() == pytest.approx(bound[1] * 0.5 / 0.5**0.5)
    assert objective @ unit.numpy() > objective @ half.numpy()


@pytest.mark.parametrize("floor", [2.0**-52, 1e-3])
def test_the_floor_keeps_logarithms_finite(floor):
    # f̂ = (1, 0) and μ = ln 2, so a = (0, r₂(ln floor − ln 2)) = (Ka)₂, which bounds the second row: 1 − 1.8t ≥ a₂.
    losses, w = vector(1.0, 0.0), vector(0.99, 0.01)
    gramian = torch.tensor([[1, -0.8], [-0.8, 1]], dtype=torch.float64)
    t = (1 - 0.01 * np.log(floor / 2)) / 1.8
    found = alpha(EPO(floor=floor, normalize=False), losses, w, gramian)
    assert found.tolist() == pytest.approx([t, 1 - t], abs=1e-12)
    assert alpha(EPO(floor=floor), vector(-1.0, -2.0), w, gramian).sum() == 1


def test_where_no_program_can_be_solved():
    losses, gramian, w = vector(1, 3), -torch.eye(2, dtype=torch.float64), vector(0.75, 0.25)
    assert alpha(EPO(fallback="preference"), losses, w, gramian).tolist() == w.tolist()
    assert alpha(EPO(), losses, w, gramian).sum() == 1
    three, w3 = vector(1, 1, 1), torch.full((3,), 1 / 3, dtype=torch.float64)
    weighting = EPO(fallback="preference")
    found, state = weighting.update(three, weighting.init(three), w3, gramian=-torch.eye(3, dtype=torch.float64))
    assert found.tolist() == w3.tolist()
    assert state.programs.item() == 1


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("where", ["losses", "gramian"])
def test_an_instance_that_is_not_finite_stands_alone(m, where):
    losses, w, K = instances(4, m, seed=8)
    expected = alpha(EPO(), losses, w, K)
    if where == "losses":
        losses[1, 0] = torch.nan
    else:
        K[1, 0, 1] = torch.inf
    weighting = EPO()
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    assert torch.isfinite(found).all()
    rest = [0, 2, 3]
    assert torch.equal(found[rest], expected[rest])
    assert state.programs.tolist() == ([0] * 4 if m == 2 else [1, 0, 1, 1])


def test_the_ideal_point_and_the_inclusion_probability():
    losses, w, K = instances(9, 2, seed=9)
    assert torch.allclose(alpha(EPO(ideal=0.05), losses, w, K), alpha(EPO(), losses - 0.05, w, K), atol=1e-12)
    pi = vector(0.5, 0.25)
    estimated = alpha(EPO(), losses / pi, w, K / pi / pi.unsqueeze(-1)) / pi
    assert torch.allclose(alpha(EPO(), losses, w, K, inclusion=pi), estimated)


def test_coefficients_have_the_dtype_of_the_losses():
    losses, w, K = instances(3, 2, seed=10)
    found = alpha(EPO(), losses.float().requires_grad_(), w, K)
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_bad_input():
    losses, w, K = instances(3, 2, seed=11)
    weighting = EPO()
    state = weighting.init(losses)
    with pytest.raises(TypeError, match="gramian"):
        weighting.update(losses, state, w)
    with pytest.raises(ValueError, match=r"gramian must have shape .* = \(3, 2, 2\); found \(2, 2\)"):
        weighting.update(losses, state, w, gramian=K[0])
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(3, 2\); found \(4,\)"):
        weighting.update(losses, EPOState(torch.zeros(4, dtype=torch.int64)), w, gramian=K)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": "both"}, "target must be"),
        ({"tolerance": -1.0}, "tolerance must be non-negative"),
        ({"descent": "free"}, "descent must be"),
        ({"floor": 0.0}, "floor must be positive"),
        ({"fallback": "uniform"}, "fallback must be"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            EPO(**options)


def run_vlmop2(weighting, seeds: list[int], steps: int = 1000) -> Tensor:
    """f(θ⁽¹⁰⁰⁰⁾) of ten preferences, (seeds, 10, 2), by steps of 0.01 in float32."""
    found = solve(VLMOP2(), preference.linspace(10), weighting, step_size=0.01, seeds=seeds, steps=steps)
    return found.losses["solution"]


def test_vlmop2_reaches_the_preferred_points():
    losses = run_vlmop2(EPO(), [0, 19])
    assert hypervolume(losses, (1, 1)).tolist() == pytest.approx([0.2951, 0.2951], abs=2e-4)


def test_vlmop2_as_published():
    published = EPO(target="direct", normalize=False, scale=False, floor=1e-3, fallback="preference")
    losses = run_vlmop2(Reweighted(published), [0, 19, 42])
    assert hypervolume(losses, (1, 1)).mean().item() == pytest.approx(0.283, abs=1e-3)


@pytest.mark.slow
def test_on_three_targets_it_gets_stuck_and_the_default_does_not():
    page = (Path(__file__).parents[2] / "docs/howto/add-a-problem.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "block"}
    for code in re.findall(r"^```py\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(code, "block", "exec"), names)  # noqa: S102
    missed = {method: int((values > 1.05 * names["best"]).sum()) for method, values in names["tch"].items()}
    assert missed["equipoise"] == 0  # docs/results/index.md
    assert missed["EPO"] >= 1
    assert missed["FERERO"] >= 5
