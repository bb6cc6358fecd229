"""Limits in which one weighting equals another: the ends of the OMD-TCH family."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.simplex import Mirror
from equipoise.weighting import Weighting

M = 5
MIRRORS: list[Mirror] = [eq.Euclidean(), eq.Entropic(), eq.Entropic(floor=0.3), eq.PNorm(), eq.PNorm(1.4)]
mirrored = pytest.mark.parametrize("mirror", MIRRORS, ids=repr)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 + 2.0 * torch.rand(*shape, generator=generator, dtype=torch.float64)


def prefer(*batch: int) -> Tensor:
    w = draw(*batch, M, seed=1)
    return w / w.sum(-1, keepdim=True)


LOSSES, W = draw(6, 3, M, seed=2), prefer(3)


def coefficients(weighting: Weighting[Any], losses: Tensor = LOSSES, w: Tensor = W) -> Tensor:
    """Of a whole run, (T, *B, m)."""
    state, steps = weighting.init(losses[0]), []
    for f in losses:
        c, state = weighting.update(f, state, w)
        steps.append(c)
    return torch.stack(steps)


@mirrored
def test_omd_with_step_zero_is_linear_up_to_the_factor_m(mirror: Mirror):
    torch.testing.assert_close(M * coefficients(eq.OMD(0.0, mirror)), coefficients(eq.Linear()), rtol=1e-13, atol=0)


def test_a_dual_set_of_one_point_is_linear_with_that_point():
    point = (0.1, 0.3, 0.2, 0.25, 0.15)
    expected = torch.tensor(point, dtype=torch.float64) * coefficients(eq.Linear())
    for mirror in (eq.Euclidean(), eq.Entropic()):
        held = coefficients(eq.OMD(5.0, mirror, dual_set=eq.Box.ball(point, 0.0)))
        torch.testing.assert_close(held, expected, rtol=1e-12, atol=0)


def test_a_floor_of_one_is_linear_up_to_the_factor_m():
    held = coefficients(eq.OMD(5.0, eq.Entropic(floor=1.0)))
    torch.testing.assert_close(M * held, coefficients(eq.Linear()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mu", [0.01, 0.3, 5.0])
def test_eg_reset_to_uniform_each_step_is_stch(mu: float):
    weighting = eq.OMD(1.0 / mu, eq.Entropic(), order="alternating", ideal=0.05)
    fresh = torch.stack([weighting.update(f, weighting.init(f), W)[0] for f in LOSSES])
    torch.testing.assert_close(fresh, coefficients(eq.SmoothTchebycheff(mu, ideal=0.05)), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("mirror", [eq.Euclidean(), eq.PNorm(), eq.Entropic()], ids=repr)
def test_an_endless_step_reset_to_uniform_is_tch(mirror: Mirror):
    weighting = eq.OMD(1e9, mirror, order="alternating")
    fresh = torch.stack([weighting.update(f, weighting.init(f), W)[0] for f in LOSSES])
    torch.testing.assert_close(fresh, coefficients(eq.Tchebycheff()), rtol=1e-12, atol=0)


def test_pgd_with_an_endless_step_is_tch_at_every_step():
    """A projection forgets where it started once the step is long: no reset is needed, unlike for EG."""
    weighting = eq.OMD(1e9, eq.Euclidean(), order="alternating")
    torch.testing.assert_close(coefficients(weighting), coefficients(eq.Tchebycheff()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mu", [0.05, 1.0])
def test_pure_optimism_is_stch(mu: float):
    """η → 0 with ηc = 1/μ: log λ⁽ᵗ⁺¹⁾ = η Σ_s g⁽ˢ⁾ + ηc g⁽ᵗ⁾ keeps only its proportional term."""
    eta = 1e-9
    weighting = eq.OMD(eta, eq.Entropic(), optimism=1.0 / (mu * eta), order="alternating")
    torch.testing.assert_close(coefficients(weighting), coefficients(eq.SmoothTchebycheff(mu)), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("c", [0.0, 1.0, 20.0])
def test_optimistic_eg_is_an_integral_and_a_proportional_term(c: float):
    eta = 0.1
    weighting = eq.OMD(eta, eq.Entropic(), optimism=c)
    state = weighting.init(LOSSES[0])
    for t, f in enumerate(LOSSES):
        _, state = weighting.update(f, state, W)
        gains = W * LOSSES[: t + 1]
        expected = torch.softmax(eta * gains.sum(0) + eta * c * gains[-1], -1)
        torch.testing.assert_close(weighting.weights(state), expected, rtol=1e-11, atol=1e-15)


def test_stch_tends_to_tch_and_to_linear():
    torch.testing.assert_close(
        coefficients(eq.SmoothTchebycheff(1e-6)), coefficients(eq.Tchebycheff()), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        M * coefficients(eq.SmoothTchebycheff(1e9)), coefficients(eq.Linear()), rtol=1e-8, atol=0
    )


def test_term_with_uniform_preference_is_the_tilted_softmax():
    uniform, t = torch.full((M,), 1 / M, dtype=torch.float64), 1.7
    term = coefficients(eq.SmoothTchebycheff(1 / t, normalize="mean"), w=uniform)
    torch.testing.assert_close(term, torch.softmax(t * LOSSES, -1), rtol=1e-12, atol=0)
    # the gradient of STCH is 1/m of that of TERM at the tilt t when its smoothing is 1/(m t).
    stch = coefficients(eq.SmoothTchebycheff(1 / (M * t)), w=uniform)
    torch.testing.assert_close(M * stch, term, rtol=1e-12, atol=0)


@pytest.mark.parametrize("step", [0.05, 1.0, "adaptive"])
def test_pnorm_2_is_pgd(step: Any):
    pgd = coefficients(eq.OMD(step, eq.Euclidean()))
    torch.testing.assert_close(coefficients(eq.OMD(step, eq.PNorm(2.0))), pgd, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mirror", MIRRORS[:3], ids=repr)
def test_a_box_that_does_not_bind_changes_nothing(mirror: Mirror):
    free = coefficients(eq.OMD(0.2, mirror))
    boxed = coefficients(eq.OMD(0.2, mirror, dual_set=eq.Box()))
    torch.testing.assert_close(boxed, free, rtol=1e-12, atol=1e-15)


@mirrored
def test_alternating_is_simultaneous_one_step_ahead(mirror: Mirror):
    now = coefficients(eq.OMD(0.2, mirror, optimism=1.0))
    ahead = coefficients(eq.OMD(0.2, mirror, optimism=1.0, order="alternating"))
    assert torch.equal(ahead[:-1], now[1:])
    torch.testing.assert_close(now[0], W / M, rtol=1e-13, atol=0)


def test_momentum_without_memory_is_the_inner_weighting():
    inner = eq.SmoothTchebycheff(0.2)
    for momentum in (eq.Momentum(inner, rule="constant", rate=0.0), eq.Momentum(inner, rate=math.inf)):
        torch.testing.assert_close(coefficients(momentum), coefficients(inner), rtol=1e-13, atol=0)


def test_momentum_without_drift_is_linear_up_to_the_factor_m():
    still = coefficients(eq.Momentum(eq.SmoothTchebycheff(0.2), rate=0.0))
    torch.testing.assert_close(M * still, coefficients(eq.Linear()), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "inner", [eq.Tchebycheff(), eq.SmoothTchebycheff(0.1), eq.OMD(0.5, eq.Entropic(), optimism=1.0)], ids=repr
)
def test_relative_is_the_inner_weighting_at_the_ratios(inner: Weighting[Any]):
    torch.testing.assert_close(
        coefficients(eq.Relative(inner)), coefficients(inner, LOSSES / LOSSES[0]), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_relative_does_not_see_units(scale: float):
    units = torch.tensor([1.0, scale, 1.0, scale, 1.0], dtype=torch.float64)
    for inner in (eq.Tchebycheff(), eq.OMD("adaptive", eq.Entropic())):
        torch.testing.assert_close(
            coefficients(eq.Relative(inner), LOSSES * units), coefficients(eq.Relative(inner)), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("mirror", MIRRORS, ids=repr)
def test_the_adaptive_step_does_not_see_the_scale_of_the_losses(mirror: Mirror):
    weighting = eq.OMD("adaptive", mirror)
    torch.testing.assert_close(coefficients(weighting, 1e-5 * LOSSES), coefficients(weighting), rtol=1e-9, atol=1e-12)
