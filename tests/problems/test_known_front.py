"""One contract for every problem that knows its front."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.metrics import angle, hypervolume, imbalance, tch
from equipoise.problems import (
    DTLZ1,
    DTLZ2,
    DTLZ3,
    DTLZ4,
    DTLZ7,
    F1,
    F2,
    F3,
    F4,
    F5,
    F6,
    VLMOP1,
    VLMOP2,
    ZDT1,
    ZDT2,
    ZDT3,
    ZDT4,
    ZDT6,
    KnownFront,
    Problem,
    problems,
)

PAPER: list[KnownFront] = [
    *list(problems().values())[:7],
    VLMOP2(d=1),
    VLMOP2(d=3),
    F2(d=3),
    F3(d=7),
    F4(d=9),
    F5(d=4),
    F6(quartic=True),
]
F_PROBLEMS: list[KnownFront] = [F1(), F2(), F3(), F4(), F5(), F6(), F6(quartic=True)]
MEETING: list[KnownFront] = [
    *PAPER,
    VLMOP1(),
    VLMOP1(d=4),
    ZDT1(),
    ZDT1(d=2),
    ZDT2(),
    ZDT4(),
    DTLZ1(m=2),
    DTLZ2(m=2),
    DTLZ3(m=2, k=1),
    DTLZ4(m=2),
]
"""Two objectives, and every ray meets the front."""
TWO: list[KnownFront] = [*MEETING, ZDT3(), ZDT3(d=5), ZDT6(), DTLZ7(m=2)]
MANY: list[KnownFront] = [
    DTLZ1(),
    DTLZ2(),
    DTLZ3(),
    DTLZ4(),
    DTLZ7(),
    DTLZ1(m=5),
    DTLZ4(m=4, k=2, alpha=3.0),
    DTLZ7(m=6),
    DTLZ1(m=20),
    DTLZ2(m=20),
    DTLZ3(m=20),
    DTLZ4(m=20),
    DTLZ7(m=20),
]

paper = pytest.mark.parametrize("problem", PAPER, ids=repr)
meeting = pytest.mark.parametrize("problem", MEETING, ids=repr)
two = pytest.mark.parametrize("problem", TWO, ids=repr)
many = pytest.mark.parametrize("problem", MANY, ids=repr)
every = pytest.mark.parametrize("problem", [*TWO, *MANY], ids=repr)


def box(problem: Problem, *shape: int, seed: int = 0, margin: float = 0.0) -> Tensor:
    unit = torch.rand(*shape, problem.d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = problem.lower + margin, problem.upper - margin
    return low + (high - low) * unit


def ten_preferences() -> Tensor:
    w1 = torch.linspace(0.01, 0.99, 10, dtype=torch.float64)
    return torch.stack((w1, 1 - w1), -1)


def preferences(m: int, count: int = 10, seed: int = 0) -> Tensor:
    """Preferences (count, m), some entries of them very small; the paper's ten for two objectives."""
    if m == 2:
        return ten_preferences()
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(count, m, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    return weight / weight.sum(-1, keepdim=True)


def test_the_registry_has_every_problem_by_its_name():
    table = problems()
    assert all(name == problem.name for name, problem in table.items())
    zdt, dtlz = [f"ZDT{i}" for i in (1, 2, 3, 4, 6)], [f"DTLZ{i}" for i in (1, 2, 3, 4, 7)]
    assert list(table)[7:] == ["VLMOP1", *zdt, *dtlz]
    assert [table[name].d for name in zdt] == [30, 30, 30, 10, 10]
    assert [(table[name].m, table[name].d) for name in dtlz] == [(3, 7), (3, 12), (3, 12), (3, 12), (3, 22)]
    assert all(isinstance(problem, KnownFront) for problem in table.values())
    assert all(len(problem.reference) == problem.m for problem in table.values())


def test_the_registry_has_the_problems_of_the_table_in_order():
    table = dict(list(problems().items())[:7])
    assert list(table) == ["VLMOP2", "F1", "F2", "F3", "F4", "F5", "F6"]
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
    assert (x.dtype, front.dtype) == (torch.float64, torch.float64)
    torch.testing.assert_close(problem.losses(x), front, rtol=0, atol=1e-12)


@two
def test_the_front_goes_from_one_end_to_the_other(problem: KnownFront):
    front = problem.front(101)
    assert (front[:, 0].diff() > 0).all()
    assert (front[:, 1].diff() < 0).all()


@every
def test_the_front_is_below_the_reference_point(problem: KnownFront):
    # The ends of VLMOP2 lie on it, within rounding, as the paper has it.
    front = problem.front(257)[1:-1]
    assert (front < torch.tensor(problem.reference, dtype=torch.float64)).all()


@many
def test_no_point_dominates_the_front(problem: KnownFront):
    optimal = problem.pareto_set(1000)
    wobble = torch.logspace(-4, 0, 1000, dtype=torch.float64)[:, None] * (box(problem, 1000, seed=1) - 0.5)
    near = (optimal + wobble).clamp(problem.lower, problem.upper)
    front = problem.front(1000)
    for x in (box(problem, 1000), near, optimal):
        f = problem.losses(x)
        better = torch.ones(1000, 1000, dtype=torch.bool)
        for i in range(problem.m):
            better &= f[:, i, None] <= front[:, i] - 1e-9
        assert not better.any()


@two
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
        assert (f1 >= front[0, 0] - 1e-15).all()
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
    if problem.d <= 10:
        corners = torch.tensor(list(itertools.product((low, high), repeat=problem.d)), dtype=dtype)
    else:
        corners = torch.where(box(problem, 1000) > 0.5, high, low).to(dtype)
    x = torch.cat((corners, box(problem, 200, margin=1e-5).to(dtype))).requires_grad_()
    losses = problem.losses(x)
    for objective in losses.sum(0):
        (gradient,) = torch.autograd.grad(objective, x, retain_graph=True)
        assert gradient.isfinite().all()


NEW: list[KnownFront] = [problem for problem in (*TWO, *MANY) if problem not in PAPER]


@pytest.mark.parametrize("problem", NEW, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_the_very_edge(problem: KnownFront, dtype: torch.dtype):
    low, high = torch.full((problem.d,), problem.lower), torch.full((problem.d,), problem.upper)
    middle = (problem.lower + problem.upper) / 2
    corners = torch.where(box(problem, 300) > middle, problem.upper, problem.lower)
    edges = box(problem, 300, seed=2).where(box(problem, 300) > middle, problem.lower)
    points = (low, high, corners, edges, problem.pareto_set(50))
    x = torch.cat([p.reshape(-1, problem.d).to(dtype) for p in points]).requires_grad_()
    losses = problem.losses(x)
    for objective in losses.sum(0):
        (gradient,) = torch.autograd.grad(objective, x, retain_graph=True)
        assert gradient.isfinite().all()
    # A coefficient 0, as many methods give, must not turn an infinite slope into NaN.
    (gradient,) = torch.autograd.grad((0 * losses).sum(), x)
    assert (gradient == 0).all()


@every
def test_jacobian_is_the_same_under_vmap(problem: KnownFront):
    x = torch.cat((box(problem, 3, margin=0.05), problem.pareto_set(3)[1:2].clamp(problem.lower + 0.01)))
    x.requires_grad_()
    rows = [torch.autograd.grad(f.sum(), x)[0] for f in (problem.losses(x)[:, i] for i in range(problem.m))]
    mapped = torch.func.vmap(torch.func.jacrev(problem.losses))(x)
    torch.testing.assert_close(mapped, torch.stack(rows, 1), rtol=1e-9, atol=1e-9)


@every
def test_a_point_that_is_not_a_number_stays_one(problem: KnownFront):
    losses = problem.losses(torch.full((2, problem.d), torch.nan))
    assert losses.isnan().all()


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
    looped = torch.stack([problem.losses(row) for row in x.reshape(24, -1)]).reshape(2, 3, 4, problem.m)
    torch.testing.assert_close(problem.losses(x), looped, rtol=1e-13, atol=1e-14)
    w = preferences(problem.m)
    looped = torch.stack([problem.solution(row) for row in w])
    torch.testing.assert_close(problem.solution(w), looped, rtol=0, atol=1e-14)
    shape = (5, 1, 2, problem.m)
    assert problem.solution(w.reshape(shape)).shape == shape


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
    assert (losses.device.type, losses.shape) == ("meta", (3, 4, problem.m))


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
        elif isinstance(problem, VLMOP1):
            expected = expected * 6 - 2
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


@paper
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


@paper
def test_the_two_ends_alone_have_little_hypervolume(problem: KnownFront):
    ends = problem.front(2)
    expected = {"V": 0.0362958, "F": 0.44}[problem.name[0]]
    assert hypervolume(ends, problem.reference).item() == pytest.approx(expected, abs=6e-8)


@meeting
@settings(max_examples=40, deadline=None)
@given(first=st.floats(1e-6, 1 - 1e-6))
def test_the_solution_is_balanced_and_best_on_the_front(problem: KnownFront, first: float):
    w = torch.tensor([first, 1 - first], dtype=torch.float64)
    f = problem.solution(w)
    assert imbalance(f, w) < 1e-9
    assert angle(f, w) < 1e-9
    assert tch(f, w) <= tch(problem.front(501), w).min() + 1e-15


@two
def test_a_zero_in_the_preference_gives_the_end_of_the_front(problem: KnownFront):
    ends = problem.solution(torch.eye(2))
    torch.testing.assert_close(ends, problem.front(2), rtol=0, atol=1e-15)
    assert ends.dtype == torch.float64


@every
def test_the_solution_is_best_on_the_front(problem: KnownFront):
    w = preferences(problem.m, 200)
    f = problem.solution(w)
    assert f.dtype == torch.float64
    least = tch(problem.front(4001), w.unsqueeze(-2)).amin(-1)
    assert (tch(f, w) <= least + 1e-14).all()


@many
def test_the_solution_of_many_objectives_is_differentiable_in_the_preference(problem: KnownFront):
    w = preferences(problem.m, 3)
    x = w.log().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: problem.solution(x.softmax(-1)), (x,), atol=1e-6)


@two
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
    m, rest = problem.m, [0.0] * (problem.m - 2)
    with pytest.raises(ValueError, match=rf"preference must have {m} entries, .* found {m + 1}"):
        problem.solution(torch.full((m + 1,), 1 / (m + 1)))
    with pytest.raises(ValueError, match=r"must be non-negative and sum to 1; found sum 1\.30"):
        problem.solution(torch.tensor([[0.5, 0.5, *rest], [0.5, 0.8, *rest]]))
    with pytest.raises(ValueError, match=r"non-negative and sum to 1; found entry -0\.5"):
        problem.solution(torch.tensor([-0.5, 1.5, *rest]))
    with pytest.raises(ValueError, match=r"non-negative and sum to 1; found .*nan"):
        problem.solution(torch.tensor([torch.nan, 1.0, *rest]))
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
    with pytest.raises(ValueError, match="d must be at least 1; found 0"):
        VLMOP1(d=0)
    with pytest.raises(ValueError, match="d must be at least 2; found 1"):
        ZDT3(d=1)
    with pytest.raises(ValueError, match="m must be at least 2; found 1"):
        DTLZ2(m=1)
    with pytest.raises(ValueError, match="k must be at least 1; found 0"):
        DTLZ7(k=0)
    with pytest.raises(ValueError, match=r"alpha must be at least 1 and finite; found 0\.5"):
        DTLZ4(alpha=0.5)
