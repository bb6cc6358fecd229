"""FERERO: both solvers by hand, and the decay it promises."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, minimize
from torch import Tensor

from equipoise import preference
from equipoise.metrics import hypervolume
from equipoise.problems import VLMOP2
from equipoise.solver import solve
from equipoise.weighting.ferero import FERERO, DualDescent, DualSolver, ExactDual, FEREROState, complement
from equipoise.weighting.reweighted import Reweighted

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
FREE = ExactDual(trust=math.inf)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def coefficients(weighting: FERERO, losses: Tensor, w: Tensor, gramian: Tensor, **extra: Tensor) -> Tensor:
    return weighting.update(losses, weighting.init(losses), w, gramian=gramian, **extra)[0]


def instances(count: int, m: int, seed: int, d: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, preferences and Jacobians."""
    g = torch.Generator().manual_seed(seed)
    w = 0.05 + torch.rand(count, m, generator=g, dtype=torch.float64)
    losses = 0.1 + torch.rand(count, m, generator=g, dtype=torch.float64)
    J = torch.randn(count, m, d, generator=g, dtype=torch.float64)
    return losses, w / w.sum(-1, keepdim=True), J


def rays(w: Tensor) -> Tensor:
    return preference.ray(w)


def test_by_hand():
    losses, gramian = vector(0.8, 0.2), torch.eye(2, dtype=torch.float64)
    weighting = FERERO()
    c, state = weighting.update(losses, weighting.init(losses), HALF, gramian=gramian)
    assert c.tolist() == pytest.approx([0.8, 0.2], abs=1e-12)
    assert state.descent.tolist() == [0, 1]
    B = vector(1, -1) / math.sqrt(2)
    # The change of Bf along the direction is −c_h H, H = 0.6/√2.
    assert (B @ -c).item() == pytest.approx(-0.42426407, abs=1e-8)
    assert state.capped.item() == 0


@pytest.mark.parametrize("m", [2, 3, 7])
def test_the_complement_is_an_orthonormal_basis(m):
    p = rays(instances(20, m, seed=1)[1])
    B = complement(p)
    assert torch.allclose(B @ B.mT, torch.eye(m - 1, dtype=torch.float64).expand(20, m - 1, m - 1), atol=1e-14)
    assert torch.allclose(B @ p.unsqueeze(-1), torch.zeros(20, m - 1, 1, dtype=torch.float64), atol=1e-14)
    if m == 2:
        assert torch.allclose(B[:, 0], torch.stack((p[:, 1], -p[:, 0]), -1), atol=1e-15)


@pytest.mark.parametrize("m", [2, 3, 6])
@pytest.mark.parametrize("c_h", [0.3, 1.0])
def test_the_distance_from_the_ray_decays_at_the_given_rate(m, c_h):
    losses, w, J = instances(50, m, seed=2)
    K = J @ J.mT
    c = coefficients(FERERO(c_h=c_h, solver=FREE), losses, w, K)
    B = complement(rays(w))
    decay, H = B @ K @ c.unsqueeze(-1), B @ losses.unsqueeze(-1)
    assert torch.allclose(decay, c_h * H, rtol=1e-9, atol=1e-12)


def dual_value(x, basis, gramian, linear) -> float:
    return float(0.5 * (basis.T @ x) @ gramian @ (basis.T @ x) - linear @ x)


def dual_slope(x, basis, gramian, linear):
    return basis @ gramian @ (basis.T @ x) - linear


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_the_reduction_solves_the_dual(m):
    losses, w, J = instances(12, m, seed=3)
    found = coefficients(FERERO(solver=FREE), losses, w, J @ J.mT)
    simplex = LinearConstraint(np.concatenate((np.ones(m), np.zeros(m - 1))), 1, 1)
    for c, f, p, rows in zip(found.numpy(), losses.numpy(), rays(w), J.numpy(), strict=True):
        B = complement(p).numpy()
        basis = np.vstack((np.eye(m), B))
        answer = minimize(
            dual_value,
            np.concatenate((np.full(m, 1 / m), np.zeros(m - 1))),
            args=(basis, rows @ rows.T, np.concatenate((np.zeros(m), B @ f))),
            jac=dual_slope,
            bounds=[(0, 1)] * m + [(None, None)] * (m - 1),
            constraints=simplex,
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        # The direction is unique, also where the multipliers are not.
        assert rows.T @ c == pytest.approx(rows.T @ basis.T @ answer.x, abs=1e-5)


def test_zero_distance_is_plain_descent_along_the_ray():
    # On the ray H = 0: d keeps f ∝ p and is the longest that does, K c ∝ p.
    _, w, J = instances(10, 3, seed=4)
    K = J @ J.mT
    c = coefficients(FERERO(), rays(w), w, K)
    change = (K @ c.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(torch.nn.functional.normalize(change, dim=-1), rays(w), atol=1e-9)


def test_the_direction_is_capped_and_counted():
    losses, w, J = instances(40, 3, seed=5)
    K = 0.3 * J @ J.mT
    norm = K.diagonal(dim1=-2, dim2=-1).sqrt().amax(-1)
    free = coefficients(FERERO(solver=FREE), losses, w, K)
    length = (free.unsqueeze(-2) @ K @ free.unsqueeze(-1)).squeeze().sqrt()
    over = length > 0.5 * norm
    assert 0 < over.sum() < 40
    weighting = FERERO(solver=ExactDual(trust=0.5))
    c, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    expected = torch.where(over, 0.5 * norm / length, 1.0).unsqueeze(-1) * free
    assert torch.allclose(c, expected, rtol=1e-9)
    assert torch.equal(state.capped, over.to(torch.int64))
    assert torch.equal(weighting.update(losses, state, w, gramian=K)[1].capped, 2 * over.to(torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [2, 4])
def test_parallel_gradients_give_bounded_steps(m, dtype):
    # The distance from the ray cannot be changed at all; what rounding makes of that must not be followed.
    losses, w, J = instances(20, m, seed=6)
    J = (J[:, :1] * (1 + torch.arange(m)).unsqueeze(-1)).to(dtype)
    losses = losses.to(dtype)
    c = coefficients(FERERO(), losses, w, J @ J.mT)
    step = (c.unsqueeze(-2) @ J).squeeze(-2)
    assert torch.isfinite(c).all()
    assert (step.norm(dim=-1) <= 1.001 * J.norm(dim=-1).amax(-1)).all()
    assert torch.equal(coefficients(FERERO(), losses, w, 0 * J @ J.mT).sum(-1), torch.ones(20, dtype=dtype))


def test_gradients_of_very_different_lengths():
    losses, w, J = instances(20, 3, seed=7)
    J = J * vector(1e-4, 1, 1e3).unsqueeze(-1)
    K = J @ J.mT
    c = coefficients(FERERO(solver=FREE), losses, w, K)
    B = complement(rays(w))
    error = B @ (K @ c.unsqueeze(-1) - losses.unsqueeze(-1))
    assert error.abs().max() < 1e-4


def descend(solver: DualDescent, losses, w, J, c_h):
    """One instance of the inner loop, written as the method is described; λ_f and c."""
    B, K, f, m = complement(rays(w)).numpy(), (J @ J.mT).numpy(), losses.numpy(), len(losses)
    descent, ray = np.full(m, 1 / m), np.full(m - 1, solver.start_ray)
    for _ in range(solver.steps):
        slope = K @ (descent + B.T @ ray)
        y = np.sort(descent - solver.rate * slope)[::-1]
        cut = max((y[:k].sum() - 1) / k for k in range(1, m + 1))
        moved = np.maximum(descent - solver.rate * slope - cut, 0)
        turned = ray - solver.rate * (B @ slope - c_h * B @ f)
        change = np.abs(moved - descent).sum() + np.linalg.norm(turned - ray)
        descent, ray = moved, turned
        if change < solver.tolerance:
            break
    return descent, descent + B.T @ ray


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("solver", [DualDescent(), DualDescent(steps=7, start_ray=-0.5), DualDescent(tolerance=0.05)])
def test_dual_descent_is_the_loop_of_the_method(m, solver):
    losses, w, J = instances(25, m, seed=8)
    J = 0.6 * J
    weighting = FERERO(c_h=0.7, solver=solver)
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
    for c, descent, f, p, rows in zip(found.numpy(), state.descent.numpy(), losses, w, J, strict=True):
        expected, combined = descend(solver, f, p, rows, 0.7)
        assert c == pytest.approx(combined, abs=1e-9)
        assert descent == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("m", [2, 4])
def test_dual_descent_tends_to_the_exact_solution(m):
    losses, w, J = instances(10, m, seed=9, d=30)
    K = J @ J.mT / 30
    solver = DualDescent(rate=0.3, steps=1000, tolerance=1e-12)
    exact = coefficients(FERERO(solver=FREE), losses, w, K)
    assert torch.allclose(coefficients(FERERO(solver=solver), losses, w, K), exact, atol=1e-5)


def test_dual_descent_diverges_where_the_gradients_are_long_and_there_only():
    losses, w, J = instances(3, 2, seed=10)
    losses, K = losses.float(), (J @ J.mT).float()
    long = vector(0.1, 100, 0.1).float()[:, None, None] * K
    found = coefficients(FERERO(solver=DualDescent()), losses, w, long)
    assert not torch.isfinite(found[1]).all()
    expected = coefficients(FERERO(solver=DualDescent()), losses, w, 0.1 * K)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert torch.isfinite(coefficients(FERERO(), losses, w, long)).all()


@pytest.mark.parametrize("m", [2, 3])
def test_what_is_carried(m):
    losses, w, J = instances(5, m, seed=11)
    K = 0.2 * J @ J.mT
    at_once = coefficients(FERERO(solver=DualDescent(steps=6, tolerance=0.0)), losses, w, K)
    weighting = FERERO(solver=DualDescent(steps=1, carry="all"))
    state = weighting.init(losses)
    for _ in range(6):
        c, state = weighting.update(losses, state, w, gramian=K)
    assert torch.allclose(c, at_once, atol=1e-12)
    anew = FERERO(solver=DualDescent(steps=1))
    first, state = anew.update(losses, anew.init(losses), w, gramian=K)
    assert torch.equal(anew.update(losses, state, w, gramian=K)[0], first)


def test_the_federated_variant_by_hand():
    # λ_f = (½, ½), B = (1, −1)/√2, H = 0.6/√2: λ_h ← λ_h − γ(λ_h − H), from 0.
    losses, gramian, gamma = vector(0.8, 0.2), torch.eye(2, dtype=torch.float64), 0.125
    solver = DualDescent(rate=gamma, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)
    weighting = FERERO(solver=solver)
    state, h = weighting.init(losses), 0.0
    for _ in range(3):
        c, state = weighting.update(losses, state, HALF, gramian=gramian)
        h += gamma * (0.6 / math.sqrt(2) - h)
        # λ_f moves with the descent, and starts anew.
        share = 0.5 - gamma * (h - gamma * 0.6 / math.sqrt(2)) / (1 - gamma) / math.sqrt(2)
        assert c.sum().item() == pytest.approx(1)
        assert state.descent[0].item() == pytest.approx(share)
        assert (c - state.descent).tolist() == pytest.approx([h / math.sqrt(2), -h / math.sqrt(2)])


def test_normalisation_divides_by_the_sum():
    losses, w, J = instances(5, 3, seed=12)
    K = 0.2 * J @ J.mT
    c = coefficients(FERERO(solver=DualDescent()), losses, w, K)
    normal = coefficients(FERERO(solver=DualDescent(normalize=True)), losses, w, K)
    assert torch.allclose(normal, c / c.sum(-1, keepdim=True))
    assert not torch.allclose(normal, c, atol=0.01)


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("solver", [ExactDual(), DualDescent(start_ray=0.0), DualDescent(start_ray=0.0, carry="all")])
def test_an_absent_objective_leaves_a_smaller_problem(solver: DualSolver, gone: int):
    losses, w, J = instances(10, 3, seed=13)
    K, rest = 0.2 * J @ J.mT, [i for i in range(3) if i != gone]
    two = w[:, rest] / w[:, rest].sum(-1, keepdim=True)
    weighting = FERERO(solver=solver)
    expected = coefficients(weighting, losses[:, rest], two, K[:, rest][:, :, rest])
    losses[:, gone], K[:, gone], K[:, :, gone] = torch.nan, torch.nan, torch.nan
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K, mask=torch.arange(3) != gone)
    assert (found[:, gone] == 0).all()
    assert torch.allclose(found[:, rest], expected, atol=1e-9)
    assert (state.descent[:, gone] == 1 / 3).all()
    nothing = coefficients(weighting, losses, w, K, mask=torch.zeros(3, dtype=torch.bool))
    assert nothing.tolist() == [[0, 0, 0]] * 10
    left = torch.arange(3) == rest[0]
    alone = coefficients(weighting, losses, w, K, mask=left)
    assert torch.allclose(alone, left.to(torch.float64).expand(10, 3))


@pytest.mark.parametrize("m", [2, 4])
def test_the_order_of_objectives_does_not_matter(m):
    losses, w, J = instances(20, m, seed=14)
    order, K = torch.arange(m).flip(0), J @ J.mT
    turned = coefficients(FERERO(), losses[:, order], w[:, order], K[:, order][:, :, order])
    assert torch.allclose(coefficients(FERERO(), losses, w, K)[:, order], turned, atol=1e-9)


@pytest.mark.parametrize("solver", [ExactDual(), DualDescent()])
@pytest.mark.parametrize("m", [2, 3])
def test_batches_of_any_shape(m, solver):
    losses, w, J = instances(6, m, seed=15)
    K = 0.1 * J @ J.mT
    weighting = FERERO(solver=solver)
    found = coefficients(weighting, losses.view(2, 3, m), w.view(2, 3, m), K.view(2, 3, m, m))
    each = [coefficients(weighting, f, p, k) for f, p, k in zip(losses, w, K, strict=True)]
    assert torch.allclose(found.view(6, m), torch.stack(each), atol=1e-12)
    rates = torch.linspace(0, 1, 3, dtype=torch.float64)
    swept = FERERO(c_h=rates.unsqueeze(-1), solver=solver)
    shape = (3, 6)
    found = coefficients(swept, losses.expand(*shape, m), w, K.expand(*shape, m, m))
    each = [coefficients(FERERO(c_h=c_h, solver=solver), losses, w, K) for c_h in rates.tolist()]
    assert torch.allclose(found, torch.stack(each), atol=1e-12)


def test_one_objective():
    losses = vector(2.0)
    for solver in (ExactDual(), DualDescent(rate=0.01)):
        assert coefficients(FERERO(solver=solver), losses, vector(1.0), vector(4.0).unsqueeze(0)).tolist() == [1]


def test_direct_targets_the_preference_itself():
    losses, w, J = instances(10, 2, seed=16)
    K = J @ J.mT
    direct = coefficients(FERERO(target="direct"), losses, w, K)
    assert torch.allclose(direct, coefficients(FERERO(), losses, w.flip(-1), K), atol=1e-9)


def test_a_zero_in_the_preference_is_an_axis():
    losses, K = vector(0.5, 0.5), torch.eye(2, dtype=torch.float64)
    almost = coefficients(FERERO(), losses, vector(1e-12, 1 - 1e-12), K)
    assert torch.allclose(coefficients(FERERO(), losses, vector(0, 1), K), almost, atol=1e-9)


@pytest.mark.parametrize("solver", [ExactDual(), DualDescent(carry="all")])
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("where", ["losses", "gramian"])
def test_an_instance_that_is_not_finite_stands_alone(m, where, solver):
    losses, w, J = instances(4, m, seed=17)
    K = 0.1 * J @ J.mT
    weighting = FERERO(solver=solver)
    expected, before = weighting.update(losses, weighting.init(losses), w, gramian=K)
    if where == "losses":
        losses[1, 0] = torch.nan
    else:
        K[1, 0, 1] = torch.inf
    rest = [0, 2, 3]
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    assert torch.isfinite(found).all()
    assert torch.equal(found[rest], expected[rest])
    again = weighting.update(losses, before, w, gramian=K)[1]
    for new, old, start in zip(again, before, weighting.init(losses), strict=True):
        assert torch.equal(new[1], old[1])
        assert start.shape == old.shape
    assert torch.equal(state.descent[rest], before.descent[rest])


def test_the_ideal_point_and_the_inclusion_probability():
    losses, w, J = instances(9, 2, seed=18)
    K = J @ J.mT
    shifted = coefficients(FERERO(ideal=0.05), losses, w, K)
    assert torch.allclose(shifted, coefficients(FERERO(), losses - 0.05, w, K), atol=1e-12)
    pi = vector(0.5, 0.25)
    estimated = coefficients(FERERO(), losses / pi, w, K / pi / pi.unsqueeze(-1)) / pi
    assert torch.allclose(coefficients(FERERO(), losses, w, K, inclusion=pi), estimated)


def test_coefficients_have_the_dtype_of_the_losses():
    losses, w, J = instances(3, 2, seed=19)
    for solver in (ExactDual(), DualDescent()):
        found = coefficients(FERERO(solver=solver), losses.float().requires_grad_(), w, 0.1 * J @ J.mT)
        assert found.dtype == torch.float32
        assert not found.requires_grad


def test_bad_input():
    losses, w, J = instances(3, 2, seed=20)
    weighting, K = FERERO(), J @ J.mT
    state = weighting.init(losses)
    with pytest.raises(TypeError, match="gramian"):
        weighting.update(losses, state, w)
    with pytest.raises(ValueError, match=r"gramian must have shape .* = \(3, 2, 2\); found \(2, 2\)"):
        weighting.update(losses, state, w, gramian=K[0])
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(3, 2\); found \(2,\)"):
        weighting.update(losses, FEREROState(*(t[0] for t in state)), w, gramian=K)
    cases: list[tuple[type, dict[str, object], str]] = [
        (FERERO, {"c_h": -1.0}, "c_h must be non-negative"),
        (FERERO, {"solver": "exact"}, "solver must be ExactDual"),
        (FERERO, {"target": "both"}, "target must be"),
        (ExactDual, {"trust": 0.0}, "trust must be positive"),
        (DualDescent, {"rate": 0.0}, "rate must be positive"),
        (DualDescent, {"steps": 0}, "steps must be at least 1"),
        (DualDescent, {"tolerance": -1.0}, "tolerance must be non-negative"),
        (DualDescent, {"start_ray": math.nan}, "start_ray must be finite"),
        (DualDescent, {"carry": "some"}, "carry must be"),
    ]
    for kind, options, message in cases:
        with pytest.raises(ValueError, match=message):
            kind(**options)


def run_vlmop2(weighting, seeds: list[int], steps: int = 1000) -> Tensor:
    """f(θ⁽¹⁰⁰⁰⁾) of ten preferences, (seeds, 10, 2), by steps of 0.01 in float32."""
    found = solve(VLMOP2(), preference.linspace(10), weighting, step_size=0.01, seeds=seeds, steps=steps)
    return found.losses["solution"]


@pytest.mark.parametrize(("solver", "volume", "within"), [(ExactDual(), 0.2952, 3e-4), (DualDescent(), 0.2948, 5e-4)])
def test_vlmop2_reaches_the_preferred_points(solver, volume, within):
    losses = run_vlmop2(FERERO(solver=solver), [0, 19])
    assert hypervolume(losses, (1, 1)).tolist() == pytest.approx([volume] * 2, abs=within)
    if isinstance(solver, ExactDual):
        exact = VLMOP2().solution(preference.linspace(10))
        assert (losses - exact).abs().max() < 5e-3


def test_vlmop2_as_published():
    published = Reweighted(FERERO(target="direct", solver=DualDescent()), coefficients=False)
    losses = run_vlmop2(published, [0, 19, 42])
    assert hypervolume(losses, (1, 1)).mean().item() == pytest.approx(0.289, abs=2e-3)
