"""One contract for every problem that knows its front."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.metrics import angle, hypervolume, imbalance, tch
from equipoise.problems import F1, F2, F3, F4, F5, F6, VLMOP2, KnownFront, Problem, problems

PROBLEMS: list[KnownFront] = [
    *problems().values(),
    VLMOP2(d=1),
    VLMOP2(d=3),
    F2(d=3),
    F3(d=7),
    F4(d=9),
    F5(d=4),
    F6(quartic=True),
]
F_PROBLEMS: list[KnownFront] = [F1(), F2(), F3(), F4(), F5(), F6(), F6(quartic=True)]

every = pytest.mark.parametrize("problem", PROBLEMS, ids=repr)


def box(problem: Problem, *shape: int, seed: int = 0, margin: float = 0.0) -> Tensor:
    unit = torch.rand(*shape, problem.d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = problem.lower + margin, problem.upper - margin
    return low + (high - low) * unit


def ten_preferences() -> Tensor:
    w1 = torch.linspace(0.01, 0.99, 10, dtype=torch.float64)
    return torch.stack((w1, 1 - w1), -1)


def test_the_registry_has_the_problems_of_the_table_in_order():
    table = problems()
    assert list(table) == ["VLMOP2", "F1", "F2", "F3", "F4", "F5", "F6"]
    assert all(name == problem.name for name, problem in table.items())
    assert [p.d for p in table.values()] == [10, 6, 6, 6, 6, 6, 6]
    assert [p.reference for p in table.values()] == [(1.0, 1.0)] + 6 * [(1.2, 1.2)]
    assert F6() != F6(quartic=True)


@every
def test_the_pareto_set_maps_on_the_front(problem: KnownFront):
    x = problem.pareto_set(101)
    assert x.shape == (101, problem.d)
    assert x.min() >= problem.lower - 1e-12
    assert x.max() <= problem.upper + 1e-12
    front = problem.front(101)
    torch.testing.assert_close(problem.losses(x), front, rtol=0, atol=1e-12)
    assert (front[:, 0].diff() > 0).all()
    assert (front[:, 1].diff() < 0).all()


@every
def test_no_point_is_below_the_front(problem: KnownFront):
    anywhere = box(problem, 4000)
    optimal = problem.pareto_set(4000)
    wobble = 0.05 * (box(problem, 4000, seed=1) - (problem.lower + problem.upper) / 2)
    near = (optimal + wobble).clamp(problem.lower, problem.upper)
    front = problem.front(20_001)
    for x in (anywhere, near):
        f1, f2 = problem.losses(x).unbind(-1)
        # The lowest f2 of the front at an f1 that is no larger.
        place = torch.searchsorted(front[:, 0].contiguous(), f1.contiguous(), right=True) - 1
        lowest = front[(place + 1).clamp_max(len(front) - 1), 1]
        assert (f1 >= front[0, 0]).all()
        assert (f2 >= lowest - 1e-12).all()
    assert (problem.losses(near) - problem.front(4000)).abs().max() > 1e-4


@every
def test_gradients_agree_with_finite_differences(problem: KnownFront):
    x = box(problem, 5, margin=0.05).requires_grad_()
    assert torch.autograd.gradcheck(problem.losses, (x,), atol=1e-6, rtol=1e-4)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_up_to_the_edge_of_the_clamped_box(problem: KnownFront, dtype: torch.dtype):
    low, high = problem.lower + 1e-5, problem.upper - 1e-5
    corners = torch.tensor(list(itertools.product((low, high), repeat=problem.d)), dtype=dtype)
    x = torch.cat((corners, box(problem, 200, margin=1e-5).to(dtype))).requires_grad_()
    losses = problem.losses(x)
    for objective in losses.sum(0):
        (gradient,) = torch.autograd.grad(objective, x, retain_graph=True)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("problem", F_PROBLEMS, ids=repr)
def test_the_slope_at_the_clamp_is_the_one_that_shapes_the_dynamics(problem: KnownFront):
    x = problem.pareto_set(2)[:1].clone()
    x[:, 0] = 1e-5
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(problem.losses(x)[:, 1].sum(), x)
    # -1/(2√x1) at g2 = 1; what the curve adds is far smaller than the tolerance.
    assert gradient[0, 0].item() == pytest.approx(-158.1, abs=1.5)


@every
def test_batched_is_looped(problem: KnownFront):
    x = box(problem, 2, 3, 4)
    looped = torch.stack([problem.losses(row) for row in x.reshape(24, -1)]).reshape(2, 3, 4, 2)
    torch.testing.assert_close(problem.losses(x), looped, rtol=0, atol=1e-14)
    w = ten_preferences()
    looped = torch.stack([problem.solution(row) for row in w])
    torch.testing.assert_close(problem.solution(w), looped, rtol=0, atol=1e-14)
    assert problem.solution(w.reshape(5, 1, 2, 2)).shape == (5, 1, 2, 2)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_losses_keep_the_dtype(problem: KnownFront, dtype: torch.dtype):
    x = box(problem, 50, margin=0.01).to(dtype)
    losses = problem.losses(x)
    assert losses.dtype == dtype
    # The same rounded point, in full precision; the steepest curve turns 12π per unit of x1.
    tolerance = 300 * torch.finfo(dtype).eps
    torch.testing.assert_close(losses.double(), problem.losses(x.double()), rtol=tolerance, atol=tolerance)


@every
def test_losses_stay_on_the_device(problem: KnownFront):
    # Mixing in a tensor of another device would raise.
    losses = problem.losses(torch.empty(3, 4, problem.d, device="meta"))
    assert (losses.device.type, losses.shape) == ("meta", (3, 4, 2))


@every
def test_vmap_is_the_same(problem: KnownFront):
    x = box(problem, 7)
    torch.testing.assert_close(torch.func.vmap(problem.losses)(x), problem.losses(x))


@every
@pytest.mark.parametrize("seed", [0, 19, 42])
def test_initial_is_the_draw_of_the_global_generator(problem: KnownFront, seed: int):
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        expected = torch.rand(10, problem.d)
        if isinstance(problem, VLMOP2):
            expected = expected * (2 / problem.d**0.5) - 1 / problem.d**0.5
        before = torch.random.get_rng_state()
        found = problem.initial(10, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
    finally:
        torch.random.set_rng_state(state)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


VLMOP2_POINTS = [
    (0.973011, 0.009828),
    (0.930672, 0.125576),
    (0.878658, 0.259173),
    (0.803732, 0.407924),
    (0.697422, 0.560454),
]


@pytest.mark.parametrize("d", [1, 2, 10])
def test_exact_solutions_of_vlmop2(d: int):
    found = VLMOP2(d).solution(ten_preferences())
    half = torch.tensor(VLMOP2_POINTS, dtype=torch.float64)
    expected = torch.cat((half, half.flip(0, 1)))
    torch.testing.assert_close(found, expected, rtol=0, atol=6e-7)
    middle = VLMOP2(d).solution(torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(middle, torch.full((2,), 1 - torch.e**-1, dtype=torch.float64), rtol=0, atol=1e-15)
    assert hypervolume(found, (1, 1)).item() == pytest.approx(0.2951851, abs=6e-8)


@pytest.mark.parametrize("problem", F_PROBLEMS, ids=repr)
def test_exact_solutions_of_f1_to_f6(problem: KnownFront):
    middle = problem.solution(torch.tensor([0.5, 0.5]))
    golden = (3 - 5**0.5) / 2
    torch.testing.assert_close(middle, torch.full((2,), golden, dtype=torch.float64), rtol=0, atol=1e-15)
    found = problem.solution(ten_preferences())
    torch.testing.assert_close(found[:, 1], 1 - found[:, 0].sqrt(), rtol=0, atol=1e-15)
    assert hypervolume(found, (1.2, 1.2)).item() == pytest.approx(1.0527142, abs=6e-8)


@every
def test_the_whole_front_has_the_hypervolume_of_the_integral(problem: KnownFront):
    coarse, fine = (hypervolume(problem.front(n), problem.reference) for n in (20_001, 40_001))
    # VLMOP2: ∫ exp(-(t+1)²) df1 along the front, and the strip right of it.
    bumps = 2 * math.exp(-2) * math.sqrt(math.pi / 2) * math.erf(math.sqrt(2)) + math.exp(-4)
    expected = {"V": bumps, "F": 0.2 + 2 / 3 + 0.24}[problem.name[0]]
    assert fine < expected
    # The staircase under the front misses an area that is linear in the spacing.
    assert (2 * fine - coarse).item() == pytest.approx(expected, abs=1e-8)


def test_the_front_of_vlmop2_in_a_hundred_thousand_steps():
    assert hypervolume(VLMOP2().front(100_001), (1, 1)).item() == pytest.approx(0.3421104, abs=6e-8)


@every
def test_the_two_ends_alone_have_little_hypervolume(problem: KnownFront):
    ends = problem.front(2)
    expected = {"V": 0.0362958, "F": 0.44}[problem.name[0]]
    assert hypervolume(ends, problem.reference).item() == pytest.approx(expected, abs=6e-8)


@every
@settings(max_examples=40, deadline=None)
@given(first=st.floats(1e-6, 1 - 1e-6))
def test_the_solution_is_balanced_and_best_on_the_front(problem: KnownFront, first: float):
    w = torch.tensor([first, 1 - first], dtype=torch.float64)
    f = problem.solution(w)
    assert imbalance(f, w) < 1e-9
    assert angle(f, w) < 1e-9
    assert tch(f, w) <= tch(problem.front(501), w).min() + 1e-15


@every
def test_a_zero_in_the_preference_gives_the_end_of_the_front(problem: KnownFront):
    ends = problem.solution(torch.eye(2))
    torch.testing.assert_close(ends, problem.front(2), rtol=0, atol=1e-15)
    assert ends.dtype == torch.float64


@every
def test_the_solution_is_differentiable_in_the_preference(problem: KnownFront):
    first = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)

    def solution(first: Tensor) -> Tensor:
        return problem.solution(torch.stack((first, 1 - first), -1))

    assert torch.autograd.gradcheck(solution, (first,))


@every
def test_bad_input_is_named(problem: KnownFront):
    d = problem.d
    with pytest.raises(ValueError, match=rf"x must have {d} variables .* found shape \[3, {d + 1}\]"):
        problem.losses(torch.zeros(3, d + 1))
    with pytest.raises(ValueError, match=r"preference must have 2 entries, .* found 3"):
        problem.solution(torch.full((3,), 1 / 3))
    with pytest.raises(ValueError, match=r"must be non-negative and sum to 1; found sum 1\.30"):
        problem.solution(torch.tensor([[0.5, 0.5], [0.5, 0.8]]))
    with pytest.raises(ValueError, match=r"non-negative and sum to 1; found entry -0\.5"):
        problem.solution(torch.tensor([-0.5, 1.5]))
    with pytest.raises(ValueError, match=r"non-negative and sum to 1; found .*nan"):
        problem.solution(torch.tensor([torch.nan, 1.0]))
    with pytest.raises(ValueError, match="count must be at least 1; found 0"):
        problem.initial(0, 0)
    for call in (problem.front, problem.pareto_set):
        with pytest.raises(ValueError, match="n must be at least 2; found 1"):
            call(1)


def test_bad_dimensions_are_named():
    with pytest.raises(ValueError, match="d must be at least 1; found 0"):
        VLMOP2(d=0)
    with pytest.raises(ValueError, match="d must be at least 3; found 2"):
        F4(d=2)
