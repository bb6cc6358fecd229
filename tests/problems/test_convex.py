"""Convex problems with a planted solution."""

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from equipoise.problems import KnownFront, Needle, Planted, Problem

UNEVEN = (0.1, 0.2, 0.3, 0.4)
CASES = [
    Planted(1, 4),
    Planted(1, 4, curvature=0.5),
    Planted(2, 4),
    Planted(3, 4, curvature=0.3, seed=5),
    Planted(4, 5, preference=UNEVEN, seed=1),
    Planted(4, 5, curvature=2.0, preference=UNEVEN, radius=3.0, noise=0.5, seed=2),
    Planted(30, 6, noise=1.0),
    Planted(1000, 10),
]
every = pytest.mark.parametrize("problem", CASES, ids=lambda p: f"m{p.m}-d{p.d}-k{p.curvature}")


def corners(problem: Planted) -> Tensor:
    signs = list(itertools.product((-1.0, 1.0), repeat=problem.d))
    return problem.radius * torch.tensor(signs, dtype=torch.float64)


def inside(problem: Planted, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(count, problem.d, generator=generator, dtype=torch.float64)
    return problem.radius * (2 * unit - 1)


def jacobian(problem: Planted, x: Tensor) -> Tensor:
    rows: Tensor = torch.func.vmap(torch.func.jacrev(problem.losses))(x)
    return rows


@every
def test_it_is_a_problem_without_a_front(problem: Planted):
    assert isinstance(problem, Problem)
    assert not isinstance(problem, KnownFront)
    assert (problem.lower, problem.upper) == (-problem.radius, problem.radius)


@every
def test_saddle_point(problem: Planted):
    assert (problem.optimum.abs() <= problem.radius / 2).all()
    assert (problem.dual > 0).all()
    assert problem.dual.sum().item() == pytest.approx(1, abs=1e-14)
    # All weighted objectives are equal at θ*, and their λ*-combination is flat there.
    level = problem.w * problem.losses(problem.optimum)
    torch.testing.assert_close(level, torch.full_like(level, problem.value), rtol=1e-14, atol=0)
    gradients = jacobian(problem, problem.optimum[None])[0]
    torch.testing.assert_close(gradients, problem.slopes, rtol=0, atol=1e-14)
    flat = (problem.dual * problem.w) @ gradients
    assert flat.abs().max() <= 1e-14 * problem.value
    assert problem.gap(problem.optimum).abs() <= 1e-14


@every
def test_nothing_is_better_than_the_planted_solution(problem: Planted):
    far = inside(problem, 3000)
    reach = torch.logspace(-6, 0, 3000, dtype=torch.float64)[:, None]
    near = problem.optimum + reach * (inside(problem, 3000, seed=1) - problem.optimum)
    gaps = problem.gap(torch.cat((far, near, corners(problem))))
    assert gaps.min() >= -1e-14
    if (problem.m, problem.curvature) != (1, 0.0):
        assert gaps.max() > 0.1 * problem.value


@pytest.mark.parametrize("m", [2, 5, 60])
def test_linear_programming_finds_the_same_value(m: int):
    w = torch.arange(1, m + 1, dtype=torch.float64)
    w = w / w.sum()
    problem = Planted(m, 7, seed=m, preference=tuple(w.tolist()))
    slopes, optimum = problem.slopes.numpy(), problem.optimum.numpy()
    levels = problem.losses(problem.optimum).numpy() - slopes @ optimum
    # min s subject to w_i (level_i + <b_i, θ>) ≤ s on the box.
    rows = np.hstack((w[:, None].numpy() * slopes, -np.ones((m, 1))))
    result: Any = linprog(
        np.append(np.zeros(7), 1.0),
        A_ub=rows / problem.value,
        b_ub=-(w.numpy() * levels) / problem.value,
        bounds=[(-1, 1)] * 7 + [(None, None)],
    )
    assert result.fun == pytest.approx(problem.value, rel=1e-7)


@every
def test_bounds_are_the_largest_values_on_the_box(problem: Planted):
    U, L, R = problem.bounds
    x = torch.cat((corners(problem), inside(problem, 500)))
    losses, gradients = problem.losses(x), jacobian(problem, x[::40])
    ends = jacobian(problem, corners(problem)[[0, -1]])
    loud = 1 + problem.noise
    assert problem.radius == R
    # Convex: the maximum over the box is at a corner, so the bound is attained there.
    assert loud * losses.max().item() == pytest.approx(U, rel=1e-13)
    assert loud * ends.abs().max().item() == pytest.approx(L, rel=1e-13, abs=1e-13)
    assert loud * gradients.abs().max().item() <= L * (1 + 1e-13)
    assert losses.min() > 0


@pytest.mark.parametrize("m", [1, 2, 3, 10, 100, 1000])
def test_the_scale_does_not_depend_on_the_number_of_objectives(m: int):
    U, L, R = Planted(m, seed=m).bounds
    assert 0.5 <= U <= 0.9500001
    assert R == 1
    assert (L == 0) if m == 1 else (0.03 < L < 0.3)
    assert Planted(m).value == 0.5 / m


def test_losses_stay_positive_in_float32():
    problem = Planted(200, 8)
    losses = problem.losses(corners(problem).float())
    assert losses.dtype == torch.float32
    assert losses.min() > 0


def test_a_thousand_objectives_are_cheap():
    begin = time.perf_counter()
    problem = Planted(1000, 10, curvature=0.1, noise=0.5)
    assert problem.gap(inside(problem, 100)).shape == (100,)
    assert problem.bounds.U > 0
    assert time.perf_counter() - begin < 1


@every
def test_samples_are_bounded(problem: Planted):
    U, L, _ = problem.bounds
    x = torch.cat((corners(problem)[:64], inside(problem, 64))).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        sample = problem.sample(x, generator)
        assert sample.shape == (len(x), problem.m)
        assert sample.min() >= 0
        assert sample.max() <= U * (1 + 1e-13)
        for objective in sample.sum(0)[:5]:
            (gradient,) = torch.autograd.grad(objective, x, retain_graph=True)
            assert gradient.abs().max() <= L * (1 + 1e-13) + 1e-15


def test_samples_are_unbiased_in_value_and_gradient():
    problem = Planted(3, 4, curvature=0.3, noise=0.8, seed=5)
    draws = 40_000
    point = inside(problem, 1)
    x = point.expand(draws, -1).clone().requires_grad_()
    sample = problem.sample(x, torch.Generator().manual_seed(7))
    sigma = 0.8 * problem.losses(point)[0]
    error = sample.mean(0) - problem.losses(point)[0]
    assert (error.abs() <= 4.5 * sigma / math.sqrt(draws)).all()
    torch.testing.assert_close(sample.std(0, correction=0), sigma, rtol=1e-3, atol=0)
    # Independent over objectives: otherwise the covariance would be of the order of sigma².
    scaled = ((sample - problem.losses(point)) / sigma).detach()
    covariance = scaled.T @ scaled / draws - torch.eye(3, dtype=torch.float64)
    assert covariance.abs().max() < 4.5 / math.sqrt(draws)
    exact = jacobian(problem, point)[0]
    for i, objective in enumerate(sample.mean(0)):
        (gradient,) = torch.autograd.grad(objective, x, retain_graph=True)
        noise = 0.8 * exact[i].abs()
        assert ((gradient.sum(0) - exact[i]).abs() <= 4.5 * noise / math.sqrt(draws)).all()


def test_samples_follow_the_generator_and_vanish_without_noise():
    problem = Planted(5, noise=0.3)
    x = inside(problem, 6)
    one, two = (problem.sample(x, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, problem.sample(x, torch.Generator().manual_seed(2)))
    quiet = Planted(5)
    assert torch.equal(quiet.sample(x, torch.Generator().manual_seed(1)), quiet.losses(x))


@every
def test_batched_is_looped(problem: Planted):
    x = inside(problem, 6)
    looped = torch.stack([problem.losses(row) for row in x]).reshape(2, 3, problem.m)
    torch.testing.assert_close(problem.losses(x.reshape(2, 3, -1)), looped, rtol=1e-13, atol=0)
    gaps = torch.stack([problem.gap(row) for row in x]).reshape(2, 3)
    torch.testing.assert_close(problem.gap(x.reshape(2, 3, -1)), gaps, rtol=0, atol=1e-14)
    assert problem.sample(x.reshape(2, 3, -1), torch.Generator()).shape == (2, 3, problem.m)


def test_gradients_agree_with_finite_differences():
    problem = Planted(4, 5, curvature=0.7, preference=UNEVEN)
    assert torch.autograd.gradcheck(problem.losses, (inside(problem, 3).requires_grad_(),))


def test_losses_stay_on_the_device():
    # Mixing in a tensor of another device would raise.
    x = torch.empty(3, 5, device="meta")
    problem = Planted(4, 5, curvature=0.7)
    assert problem.losses(x).device.type == "meta"
    assert problem.gap(x).device.type == "meta"


def test_fields_are_the_identity():
    assert Planted(3) == Planted(3, 10, 0.0, 0)
    assert hash(Planted(3)) == hash(Planted(3))
    assert Planted(3) != Planted(3, seed=1)
    assert not torch.equal(Planted(3).slopes, Planted(3, seed=1).slopes)
    assert "tensor" not in repr(Planted(3))


def test_initial_covers_the_box():
    problem = Planted(2, 3, radius=2.5)
    expected = torch.rand(400, 3, generator=torch.Generator().manual_seed(4)) * 5 - 2.5
    assert torch.equal(problem.initial(400, 4), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"m": 0}, "m must be at least 1; found 0"),
        ({"m": 2, "d": 0}, "d must be at least 1; found 0"),
        ({"m": 2, "curvature": -1.0}, "curvature must be non-negative and finite; found -1.0"),
        ({"m": 2, "curvature": math.inf}, "curvature must be non-negative and finite; found inf"),
        ({"m": 2, "radius": 0.0}, "radius must be positive and finite; found 0.0"),
        ({"m": 2, "noise": 1.5}, r"noise must lie in \[0, 1\]; found 1.5"),
        ({"m": 2, "noise": math.nan}, r"noise must lie in \[0, 1\]; found nan"),
        ({"m": 2, "preference": (0.0, 1.0)}, "preference must be positive; found 0.0"),
        ({"m": 2, "preference": (0.5, 0.6)}, r"sum to 1; found sum 1\.1"),
        ({"m": 3, "preference": (0.5, 0.5)}, r"preference must have 3 entries, .* found 2"),
    ],
)
def test_bad_input_is_named(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Planted(**settings)


def test_a_needle_needs_others():
    with pytest.raises(ValueError, match="m must be at least 2; found 1"):
        Needle(1)


def test_points_of_the_wrong_length_are_named():
    with pytest.raises(ValueError, match=r"x must have 10 variables .* found shape \[4\]"):
        Planted(2).losses(torch.zeros(4))
