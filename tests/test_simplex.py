"""The projections and mirror maps of the simplex."""

import itertools
import math
import re
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.simplex import Box, Entropic, Euclidean, Mirror, PNorm, project, project_box, project_kl

MIRRORS: list[Mirror] = [Euclidean(), Entropic(), Entropic(floor=0.2), PNorm(), PNorm(1.2), PNorm(2.0)]
mirrored = pytest.mark.parametrize("mirror", MIRRORS, ids=repr)


def vector(*entries: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(entries, dtype=dtype)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact_box(x: list[float], low: list[float], high: list[float]) -> list[float]:
    """The projection on the box-simplex in rational arithmetic: y = clip(x + τ, l, u) with Σy = 1."""
    xs, ls, us = ([Fraction(v) for v in values] for values in (x, low, high))

    def point(tau: Fraction) -> list[Fraction]:
        return [min(max(v + tau, a), b) for v, a, b in zip(xs, ls, us, strict=True)]

    breaks = sorted([a - v for v, a in zip(xs, ls, strict=True)] + [b - v for v, b in zip(xs, us, strict=True)])
    below = max((tau for tau in breaks if sum(point(tau)) <= 1), default=breaks[0])
    above = min((tau for tau in breaks if sum(point(tau)) >= 1), default=breaks[-1])
    s, t = sum(point(below)), sum(point(above))
    tau = below if s == t else below + (above - below) * (1 - s) / (t - s)
    return [float(v) for v in point(tau)]


def exact_simplex(x: list[float]) -> list[float]:
    return exact_box(x, [0.0] * len(x), [1.0] * len(x))


def bisected_kl(log_x: list[float], low: list[float], high: list[float]) -> list[float]:
    """clip(x e^c, l, u) with c by bisection."""

    def point(c: float) -> list[float]:
        scaled = [math.exp(min(v + c, 1.0)) for v in log_x]
        return [min(max(v, a), b) for v, a, b in zip(scaled, low, high, strict=True)]

    small, large = -max(log_x) - 40.0, -min(log_x) + 1.0
    for _ in range(200):
        c = 0.5 * (small + large)
        small, large = (small, c) if math.fsum(point(c)) > 1 else (c, large)
    return point(0.5 * (small + large))


# The projection on the simplex ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ((0.6, 0.7), (0.45, 0.55)),
        ((1.1, 1.2), (0.45, 0.55)),
        ((2.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
        ((1.0, 1.0, 1.0), (1 / 3, 1 / 3, 1 / 3)),
        ((-5.0,), (1.0,)),
        ((0.2, 0.3, 0.5), (0.2, 0.3, 0.5)),
        ((0.5, 0.5, -1.0), (0.5, 0.5, 0.0)),
        ((1.0, 0.0), (1.0, 0.0)),
    ],
)
def test_projection_by_hand(x: tuple[float, ...], expected: tuple[float, ...]):
    torch.testing.assert_close(project(vector(*x)), vector(*expected), rtol=0, atol=1e-15)


numbers = st.one_of(st.integers(-8, 8).map(lambda k: k / 4), st.floats(-3, 3))


@given(st.lists(numbers, min_size=1, max_size=9))
def test_projection_is_exact(x: list[float]):
    y = project(vector(*x))
    torch.testing.assert_close(y, vector(*exact_simplex(x)), rtol=0, atol=1e-14)
    assert y.sum().item() == pytest.approx(1, abs=1e-15)
    assert (y >= 0).all()


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6))
def test_projection_is_exact_however_large_the_input(x: list[float]):
    torch.testing.assert_close(project(vector(*x)), vector(*exact_simplex(x)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_projection_keeps_dtype_and_shape_and_is_exact_to_rounding(dtype: torch.dtype):
    x = draw(2, 3, 7).to(dtype)
    y = project(x)
    assert y.dtype == dtype
    assert y.shape == x.shape
    expected = torch.tensor([[exact_simplex(row) for row in rows] for rows in x.double().tolist()], dtype=torch.float64)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_float32_far_from_the_origin():
    x = vector(1e8, 1e8 + 8, -3e38, 1e8 - 8, dtype=torch.float32)
    assert project(x).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert project(vector(3e38, -3e38, 3e38, dtype=torch.float32)).tolist() == [0.5, 0.0, 0.5]


@given(st.lists(numbers, min_size=2, max_size=8), st.integers(-64, 64))
def test_projection_properties(x: list[float], shift: int):
    y = project(vector(*x))
    torch.testing.assert_close(project(y), y, rtol=0, atol=1e-15)
    torch.testing.assert_close(project(vector(*x) + shift), y, rtol=0, atol=1e-13)
    order = vector(*x).argsort()
    assert (y[order].diff() >= 0).all()


def test_projection_is_batched():
    x = 2 * draw(4, 5, 6)
    looped = torch.stack([torch.stack([project(row) for row in rows]) for rows in x])
    assert torch.equal(project(x), looped)
    assert project(x[:0]).shape == (0, 5, 6)


def test_projection_leaves_its_input_alone():
    x = draw(3, 4)
    before = x.clone()
    project(x)
    project_box(x, 0.1, 0.5)
    project_kl(x, 0.1, 0.5)
    assert torch.equal(x, before)


def test_whole_numbers_are_projected():
    torch.testing.assert_close(project(torch.tensor([1, 1, 1])), torch.full((3,), 1 / 3))
    torch.testing.assert_close(project_box(torch.tensor([2, 0, 0]), 0.0, 0.5), torch.tensor([0.5, 0.25, 0.25]))
    torch.testing.assert_close(project_kl(torch.tensor([0, 0]), 0.0, 0.5), torch.tensor([0.5, 0.5]).log())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_input_is_refused(bad: float):
    for call in (project, lambda x: project_box(x, 0.0, 1.0), lambda x: project_kl(x, 0.0, 1.0)):
        with pytest.raises(ValueError, match=rf"x must be finite; found \[{bad}\]"):
            call(vector(0.1, bad, 0.3))


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_input_without_coordinates_is_refused(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=rf"x must have shape \(\*B, m\) with m ≥ 1; found {re.escape(str(shape))}"):
        project(torch.zeros(shape))


# The projections on a box-simplex -------------------------------------------------------------


@st.composite
def boxes(draws: st.DrawFn) -> tuple[list[float], list[float], list[float]]:
    """A point and feasible bounds in 64ths, so that sums of bounds are exact; often touching, often tight."""
    m = draws(st.integers(1, 7))
    inside = draws(st.lists(st.integers(0, 64), min_size=m - 1, max_size=m - 1))
    cuts = [0, *sorted(inside), 64]
    member = [b - a for a, b in itertools.pairwise(cuts)]  # a point of the box, so that it is feasible
    gap = st.sampled_from([0, 0, 1, 5, 64])
    low = [max(0, v - draws(gap)) / 64 for v in member]
    high = [min(64, v + draws(gap)) / 64 for v in member]
    return draws(st.lists(numbers, min_size=m, max_size=m)), low, high


@given(boxes())
def test_box_projection_is_exact(case: tuple[list[float], list[float], list[float]]):
    x, low, high = case
    y = project_box(vector(*x), vector(*low), vector(*high))
    torch.testing.assert_close(y, vector(*exact_box(x, low, high)), rtol=0, atol=1e-14)


@given(boxes())
def test_kl_projection_is_exact(case: tuple[list[float], list[float], list[float]]):
    log_x, low, high = case
    y = project_kl(vector(*log_x), vector(*low), vector(*high))
    torch.testing.assert_close(y.exp(), vector(*bisected_kl(log_x, low, high)), rtol=0, atol=1e-13)


@given(boxes(), st.lists(st.sampled_from([-1e4, -300.0, 0.0, 300.0, 1e4]), min_size=7, max_size=7))
def test_kl_projection_of_weights_that_underflow(case: tuple[list[float], list[float], list[float]], far: list[float]):
    log_x, low, high = case
    log_x = [a + b for a, b in zip(log_x, far, strict=False)]
    y = project_kl(vector(*log_x), vector(*low), vector(*high))
    torch.testing.assert_close(y.exp(), vector(*bisected_kl(log_x, low, high)), rtol=0, atol=1e-11)


@given(st.lists(st.tuples(st.floats(-45, 0), st.sampled_from([0.0, 1e-15, 1e-9, 1e-5])), min_size=1, max_size=6))
def test_kl_projection_on_small_floors(pairs: list[tuple[float, float]]):
    log_x, low = [x for x, _ in pairs], [floor for _, floor in pairs]
    y = project_kl(vector(*log_x), vector(*low), 1.0).exp()
    # The reference looks for a sum of 1, which it sees to its last digit only.
    torch.testing.assert_close(y, vector(*bisected_kl(log_x, low, [1.0] * len(low))), rtol=1e-12, atol=2.3e-16)


def test_kl_projection_keeps_the_order_of_weights_that_underflow():
    log_y = project_kl(vector(0.0, -1e4, -1e4 - 1, -2e4), 0.0, 1.0)
    torch.testing.assert_close(log_y, vector(0.0, -1e4, -1e4 - 1, -2e4), rtol=1e-15, atol=1e-12)


@pytest.mark.parametrize("upper", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("scale", [1.0, 20.0, 1e3])
def test_kl_projection_leaves_every_weight_a_way_back(upper: float, scale: float):
    log_x = scale * draw(400, 4)
    log_y = project_kl(log_x, 0.0, upper)
    assert torch.isfinite(log_y).all()
    torch.testing.assert_close(log_y.exp().sum(-1), torch.ones(400, dtype=torch.float64), rtol=0, atol=1e-12)
    assert ((log_y.gather(-1, log_x.argsort(-1))).diff(dim=-1) >= 0).all()  # in the order of x


def test_box_projection_by_hand():
    x, none, cap = vector(0.9, 0.3, 0.1), 0.0, vector(0.5, 1.0, 1.0)
    torch.testing.assert_close(project_box(x, none, cap), vector(0.5, 0.35, 0.15), rtol=0, atol=1e-15)
    torch.testing.assert_close(project_box(x, 0.2, 1.0), vector(0.6, 0.2, 0.2), rtol=0, atol=1e-15)
    # λ ∝ (0.7, 0.2, 0.1) with a cap of 0.4: the rest shares 0.6 in proportion 2 to 1.
    log_x = vector(0.7, 0.2, 0.1).log()
    torch.testing.assert_close(project_kl(log_x, 0.0, 0.4).exp(), vector(0.4, 0.4, 0.2), rtol=0, atol=1e-15)
    torch.testing.assert_close(project_kl(log_x, 0.15, 1.0).exp(), vector(0.7, 0.2, 0.1) @ FLOORED, rtol=0, atol=1e-15)


# 0.1 rises to 0.15, the others shrink by 0.85/0.9.
FLOORED = torch.diag(vector(0.85 / 0.9, 0.85 / 0.9, 1.5))


def test_a_box_that_is_the_simplex():
    x = draw(20, 5)
    torch.testing.assert_close(project_box(x, 0.0, 1.0), project(x), rtol=0, atol=1e-15)
    torch.testing.assert_close(project_kl(x, 0.0, 1.0), x.log_softmax(-1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("call", [project_box, project_kl])
def test_box_projections_are_batched(call: Any):
    x, low = draw(3, 4, 5), 0.15 * torch.rand(3, 4, 5, dtype=torch.float64)
    high = low + 0.3
    looped = torch.stack([torch.stack([call(x[i, j], low[i, j], high[i, j]) for j in range(4)]) for i in range(3)])
    torch.testing.assert_close(call(x, low, high), looped, rtol=0, atol=1e-15)


@pytest.mark.parametrize("call", [project_box, project_kl])
def test_bounds_that_sum_to_one(call: Any):
    bounds = vector(0.5, 0.25, 0.125, 0.125)
    wide = vector(0.0, 0.0, 0.0, 0.0)
    for x in (draw(4), 1e4 * draw(4), torch.zeros(4, dtype=torch.float64)):
        for low, high in ((bounds, wide + 1), (wide, bounds), (bounds, bounds)):
            y = call(x, low, high)
            y = y.exp() if call is project_kl else y
            torch.testing.assert_close(y, bounds, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_box_projections_far_from_the_origin(dtype: torch.dtype):
    shifted = vector(1e8 + 8, 1e8, 1e8 - 8, dtype=dtype)
    torch.testing.assert_close(project_box(shifted, 0.1, 0.6), vector(0.6, 0.3, 0.1, dtype=dtype))
    near = vector(1e4 + 0.5, 1e4, 1e4 - 0.5, dtype=dtype)
    expected = vector(*bisected_kl([0.5, 0.0, -0.5], [0.1] * 3, [0.5] * 3), dtype=dtype)
    torch.testing.assert_close(project_kl(near, 0.1, 0.5).exp(), expected)


@pytest.mark.parametrize("far", [1e4, 1e8, 1e17, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_box_projection_when_a_far_coordinate_is_held_at_its_bound(dtype: torch.dtype, far: float):
    y = project_box(vector(far, 0.3, 0.1, dtype=dtype), 0.0, vector(0.5, 1.0, 1.0))
    torch.testing.assert_close(y, vector(0.5, 0.35, 0.15, dtype=dtype))


@pytest.mark.parametrize("far", [1e4, 1e8, 1e17, 1e30])
def test_kl_projection_when_a_far_coordinate_is_held_at_its_bound(far: float):
    y = project_kl(vector(far, 0.3, 0.1), 0.0, vector(0.5, 1.0, 1.0)).exp()
    share = 0.5 / (1 + math.exp(-0.2))
    torch.testing.assert_close(y, vector(0.5, share, 0.5 - share), rtol=0, atol=1e-7)


@pytest.mark.parametrize("call", [project_box, project_kl])
@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (-0.1, 1.0, r"lower must be non-negative; found -0\.1"),
        (0.3, 0.2, r"lower must not exceed upper; found 0\.0?9?1?"),
        (0.6, 1.0, r"lower must sum to at most 1; found 1\.2"),
        (0.0, 0.3, r"upper must sum to at least 1; found 0\.6"),
    ],
)
def test_bad_bounds_are_refused(call: Any, low: float, high: float, message: str):
    with pytest.raises(ValueError, match=message):
        call(vector(0.1, 0.2), low, high)


# Box ------------------------------------------------------------------------------------------


def test_ball_and_cvar():
    assert Box.ball((0.1, 0.4, 0.5), 0.2) == Box(lower=(0.0, 0.2, 0.3), upper=(0.1 + 0.2, 0.4 + 0.2, 0.7))
    assert Box.ball((0.0, 1.0), 0.25) == Box(lower=(0.0, 0.75), upper=(0.25, 1.0))
    assert Box.cvar(0.5, 4) == Box(0.0, 0.5)
    assert Box.cvar(1.0, 4) == Box(0.0, 0.25)
    assert Box.cvar(0.1, 4) == Box(0.0, 1.0)


def test_a_ball_of_radius_zero_is_its_centre():
    box = Box.ball((1.0, 0.0), 0.0)
    weighting = eq.OMD(1.0, dual_set=box)
    assert weighting.weights(weighting.init(torch.ones(2))).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("fraction", "worst"), [(0.25, 2), (0.5, 4), (1.0, 8)])
def test_the_maximum_over_cvar_is_the_mean_of_the_worst(fraction: float, worst: int):
    f = draw(8)
    low, high = Box.cvar(fraction, 8).bounds(f)
    weights = project_box(1e6 * f, low, high)  # far up the gradient: the maximiser
    assert (weights @ f).item() == pytest.approx(f.topk(worst).values.mean().item(), abs=1e-8)


def test_bounds_as_tensors():
    low, high = Box(0.1, (0.5, 0.6, 0.7)).bounds(torch.ones(4, 3, dtype=torch.float32))
    assert low.dtype == high.dtype == torch.float32
    torch.testing.assert_close(low, torch.full((3,), 0.1))
    torch.testing.assert_close(high, torch.tensor([0.5, 0.6, 0.7]))


@pytest.mark.parametrize(
    ("given_bounds", "message"),
    [
        ({"lower": -0.1}, r"lower must lie in \[0, 1\]; found -0\.1"),
        ({"lower": (0.0, 1.2)}, r"lower must lie in \[0, 1\]; found \(0\.0, 1\.2\)"),
        ({"lower": math.nan}, r"lower must lie in \[0, 1\]; found nan"),
        ({"upper": -0.2}, r"upper must be .*; found -0\.2"),
        ({"upper": math.nan}, r"upper must be .*; found nan"),
        ({"lower": 0.5, "upper": 0.2}, r"lower must not exceed upper; found \(0\.5, 0\.2\)"),
        ({"lower": (0.1, 0.3), "upper": 0.2}, r"lower must not exceed upper; found \(\(0\.1, 0\.3\), 0\.2\)"),
        ({"lower": (0.0, 0.0), "upper": (1.0, 1.0, 1.0)}, r"lower and upper must have the same length; found \(\(0"),
    ],
)
def test_a_bad_box_is_refused(given_bounds: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Box(**given_bounds)


@pytest.mark.parametrize(
    ("box", "m", "message"),
    [
        (Box(lower=(0.1, 0.2)), 3, r"dual_set\.lower must have 3 entries; found \(0\.1, 0\.2\)"),
        (Box(upper=(0.5, 0.6)), 3, r"dual_set\.upper must have 3 entries; found \(0\.5, 0\.6\)"),
        (Box(lower=0.4), 3, r"dual_set\.lower must sum to at most 1; found 1\.2"),
        (Box(lower=(0.6, 0.5, 0.0)), 3, r"dual_set\.lower must sum to at most 1; found 1\.1"),
        (Box(upper=0.3), 3, r"dual_set\.upper must sum to at least 1; found 0\.8"),
        (Box(upper=(0.1, 0.2, 0.3)), 3, r"dual_set\.upper must sum to at least 1; found 0\.6"),
    ],
)
def test_a_box_that_does_not_fit_is_refused(box: Box, m: int, message: str):
    with pytest.raises(ValueError, match=message):
        box.check(m)
    for mirror in (Euclidean(), Entropic()):
        with pytest.raises(ValueError, match=message):
            eq.OMD(1.0, mirror, dual_set=box).init(torch.ones(2, m))


@pytest.mark.parametrize("radius", [-0.1, math.nan])
def test_a_ball_of_negative_radius_is_refused(radius: float):
    with pytest.raises(ValueError, match=rf"radius must be non-negative; found {radius}"):
        Box.ball((0.5, 0.5), radius)


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, math.nan])
def test_cvar_of_no_fraction_is_refused(fraction: float):
    with pytest.raises(ValueError, match=rf"fraction must lie in \(0, 1\]; found {fraction}"):
        Box.cvar(fraction, 4)


# Mirror maps ----------------------------------------------------------------------------------


def gradient(mirror: Mirror, dual: Tensor) -> Tensor:
    """∇ψ(λ), from the definition of ψ."""
    if isinstance(mirror, Entropic):
        return dual + 1
    if isinstance(mirror, PNorm):
        p = float(mirror.exponents(dual.shape[-1])[0])
        norm: Tensor = torch.linalg.vector_norm(dual, p, -1, keepdim=True)
        return norm ** (2 - p) * dual ** (p - 1)
    return dual


def least(r: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """min ⟨r, y⟩ over the box-simplex: fill the cheapest coordinates first."""
    order = r.argsort(-1)
    low, high = low.expand_as(r).gather(-1, order), high.expand_as(r).gather(-1, order)
    room = (high - low).cumsum(-1)
    left = 1 - low.sum(-1, keepdim=True)
    filled = room.clamp_max(left).diff(dim=-1, prepend=torch.zeros_like(left))
    return (r.gather(-1, order) * (low + filled)).sum(-1)


BOXES = {"box": Box(0.05, 0.4), "ball": Box.ball((0.1, 0.2, 0.3, 0.4), 0.15), "cvar": Box.cvar(0.5, 4)}


GEOMETRIES = [
    *[pytest.param(mirror, None, id=repr(mirror)) for mirror in MIRRORS],
    *[pytest.param(mirror, box, id=f"{mirror} {name}") for mirror in MIRRORS[:3] for name, box in BOXES.items()],
]


@pytest.mark.parametrize(("mirror", "dual_set"), GEOMETRIES)
@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_a_step_satisfies_its_variational_inequality(mirror: Mirror, dual_set: Box | None, size: float):
    """λ' maximises size⟨s, x⟩ − B(x; λ): r = ∇ψ(λ') − ∇ψ(λ) − size·s has ⟨r, y − λ'⟩ ≥ 0 for all y of the set."""
    low, high = (dual_set or Box()).bounds(draw(4))
    if isinstance(mirror, Entropic):
        low = low.clamp_min(mirror.floor / 4)
    dual = mirror.step(mirror.start(draw(50, 4)), draw(50, 4, seed=1), 0.2, dual_set)
    s = draw(50, 4, seed=2)
    new = mirror.step(dual, s, size, dual_set)
    weights = mirror.weights(new)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-13)
    assert (weights >= low - 1e-14).all()
    assert (weights <= high + 1e-14).all()
    r = gradient(mirror, new) - gradient(mirror, dual) - size * s
    gap = (r * weights).sum(-1) - least(r, low, high)
    assert gap.abs().max() < 1e-10


@mirrored
def test_the_start_is_uniform(mirror: Mirror):
    for m in (1, 2, 7):
        start = mirror.start(torch.zeros(3, m, dtype=torch.float64))
        assert start.shape == (3, m)
        torch.testing.assert_close(mirror.weights(start), torch.full((3, m), 1 / m, dtype=torch.float64))
        torch.testing.assert_close(mirror.step(start, torch.zeros(3, m)), start, rtol=1e-14, atol=0)


@mirrored
def test_a_single_objective_has_all_the_weight(mirror: Mirror):
    dual = mirror.start(torch.zeros(2, 1, dtype=torch.float64))
    for gain in (0.0, -3.0, 1e30):
        dual = mirror.step(dual, torch.full((2, 1), gain, dtype=torch.float64))
        assert mirror.weights(dual).tolist() == [[1.0], [1.0]]


@mirrored
def test_a_common_gain_changes_nothing(mirror: Mirror):
    dual = mirror.step(mirror.start(draw(9, 5)), draw(9, 5), 0.1)
    gain = draw(9, 5, seed=1)
    torch.testing.assert_close(mirror.step(dual, gain + 3.0), mirror.step(dual, gain), rtol=0, atol=1e-13)


@mirrored
def test_more_gain_gets_more_weight(mirror: Mirror):
    gain = draw(5)
    weights = mirror.weights(mirror.step(mirror.start(gain), gain, 0.1))
    assert torch.equal(weights.argsort(), gain.argsort())
    assert not torch.equal(weights, mirror.weights(mirror.start(gain)))


@mirrored
def test_a_size_for_each_problem(mirror: Mirror):
    dual, gain = mirror.start(draw(3, 4)), draw(3, 4)
    sizes = [0.0, 0.5, 4.0]
    together = mirror.step(dual, gain, vector(*sizes).unsqueeze(-1))
    alone = torch.stack([mirror.step(dual[i], gain[i], size) for i, size in enumerate(sizes)])
    torch.testing.assert_close(together, alone, rtol=1e-14, atol=1e-14)


def test_pgd_by_hand():
    # λ = (.5, .5), f = (1, 2), η = .1.
    new = Euclidean().step(vector(0.5, 0.5), vector(1.0, 2.0), 0.1)
    torch.testing.assert_close(new, vector(0.45, 0.55), rtol=0, atol=1e-15)


def test_eg_by_hand():
    # By hand.
    gain = vector(0.3, 0.7) * vector(2.0, 1.0)
    new = Entropic().step(Entropic().start(gain), gain)
    torch.testing.assert_close(new.exp(), vector(0.4750208, 0.5249792), rtol=0, atol=5e-8)


def test_eg_comes_back_from_underflow():
    eg = Entropic()
    far = eg.step(eg.start(vector(0.0, 0.0)), vector(1e4, 0.0))
    assert eg.weights(far).tolist() == [1.0, 0.0]
    assert torch.isfinite(far).all()
    torch.testing.assert_close(eg.weights(eg.step(far, vector(0.0, 1e4))), vector(0.5, 0.5), rtol=0, atol=1e-11)


def test_the_floor_by_hand():
    # λ ∝ (e^4, 1, 1) is (0.965, 0.018, 0.018); floor 0.3 holds the last two at 0.1 each.
    eg = Entropic(floor=0.3)
    new = eg.step(eg.start(vector(0.0, 0.0, 0.0)), vector(4.0, 0.0, 0.0))
    torch.testing.assert_close(eg.weights(new), vector(0.8, 0.1, 0.1), rtol=0, atol=1e-15)
    # and from the floor one step of log 8 is enough to draw level.
    level = eg.step(new, vector(0.0, math.log(8.0), 0.0))
    torch.testing.assert_close(eg.weights(level), vector(8 / 17, 8 / 17, 1 / 17).clamp_min(0.1), rtol=0, atol=0.03)
    expected = vector(*bisected_kl([math.log(0.8), math.log(0.8), math.log(0.1)], [0.1] * 3, [1.0] * 3))
    torch.testing.assert_close(eg.weights(level), expected, rtol=0, atol=1e-14)


def test_a_floor_that_does_not_fit_the_dual_set_is_refused():
    weighting = eq.OMD(1.0, Entropic(floor=1.0), dual_set=Box(lower=(0.9, 0.0, 0.0)))
    with pytest.raises(ValueError, match=r"(floor|lower).*; found"):
        weighting.init(torch.ones(3))


def test_pnorm_by_hand():
    # m = 4, uniform, s = e_1, η = .5, q = 2 ln 4.
    s = vector(1.0, 0.0, 0.0, 0.0)
    q = 2 * math.log(4)
    mirror = PNorm(q / (q - 1))
    assert mirror.exponents(4)[1] == pytest.approx(2.7725887, abs=1e-7)
    new = mirror.step(mirror.start(s), s, 0.5)
    torch.testing.assert_close(new, vector(0.71291776, *[0.09569408] * 3), rtol=0, atol=5e-9)


def test_pnorm_exponents():
    assert PNorm().exponents(7) == (2.0, 2.0)  # Euclidean has the smallest bound up to m = 7
    p, q = PNorm().exponents(8)
    assert q == pytest.approx(math.log(8) + math.sqrt(math.log(8) * (math.log(8) - 2)))
    assert 1 / p + 1 / q == pytest.approx(1)
    assert PNorm(1.25).exponents(9)[1] == pytest.approx(5.0)


@pytest.mark.parametrize("p", [1.0001, 1.01])
def test_pnorm_with_p_close_to_one(p: float):
    mirror = PNorm(p)
    dual = mirror.start(draw(5, 6))
    for seed in range(20):
        dual = mirror.step(dual, draw(5, 6, seed=seed), 0.3)
        assert torch.isfinite(dual).all()
        assert (dual >= 0).all()
        torch.testing.assert_close(dual.sum(-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("mirror", [Euclidean(), PNorm(1.5)], ids=repr)
def test_zeros_grow_again(mirror: Mirror):
    corner = mirror.step(mirror.start(vector(0.0, 0.0, 0.0)), vector(10.0, 0.0, 0.0))
    assert corner.tolist() == [1.0, 0.0, 0.0]
    assert (mirror.step(corner, vector(0.0, 0.5, 0.0))[1] > 0.1).item()


@pytest.mark.parametrize(
    ("mirror", "scale", "norm"),
    [
        (Euclidean(), 1.0, 5.0),
        (Entropic(), math.sqrt(math.log(2)), 4.0),
        (Entropic(floor=0.1), math.sqrt(math.log(2)), 4.0),
        (PNorm(1.5), math.sqrt(0.5), (27 + 64) ** (1 / 3)),
        (PNorm(), 1.0, 5.0),
    ],
    ids=repr,
)
def test_what_the_adaptive_step_is_made_of(mirror: Mirror, scale: float, norm: float):
    assert mirror.step_scale(2) == pytest.approx(scale)
    assert mirror.step_scale(1) == 0.0
    assert mirror.dual_norm(vector(3.0, -4.0)).item() == pytest.approx(norm)
    assert mirror.dual_norm(vector(3e200, -4e200)).item() == pytest.approx(norm * 1e200)
    assert mirror.dual_norm(vector(0.0, 0.0)).tolist() == [0.0]
    assert mirror.lazy == isinstance(mirror, Entropic)


@pytest.mark.parametrize("floor", [-0.1, 1.1, math.nan])
def test_a_floor_out_of_range_is_refused(floor: float):
    with pytest.raises(ValueError, match=rf"floor must lie in \[0, 1\]; found {floor}"):
        Entropic(floor=floor)


@pytest.mark.parametrize("p", [1.0, 0.5, 2.5, -2.0, math.nan, math.inf])
def test_an_exponent_out_of_range_is_refused(p: float):
    with pytest.raises(ValueError, match=rf"p must lie in \(1, 2\]; found {p}"):
        PNorm(p)


def test_one_bad_entry_of_a_sweep_is_found():
    with pytest.raises(ValueError, match=r"floor must lie in \[0, 1\]; found tensor\(\[0\.1000, 1\.5000\]\)"):
        Entropic(floor=torch.tensor([0.1, 1.5]))
    with pytest.raises(ValueError, match=r"p must lie in \(1, 2\]; found tensor\(\[1\.5000, 3\.0000\]\)"):
        PNorm(torch.tensor([1.5, 3.0]))


def test_pnorm_has_no_dual_set():
    with pytest.raises(ValueError, match=r"dual_set needs mirror Euclidean or Entropic, not PNorm; found Box\("):
        eq.OMD(1.0, PNorm(), dual_set=Box(upper=0.5)).init(torch.ones(4))
