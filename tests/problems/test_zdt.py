"""The ZDT problems: formulas, fronts in pieces, exact solutions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import Tensor

from equipoise.metrics import hypervolume, imbalance, tch
from equipoise.problems import ZDT1, ZDT2, ZDT3, ZDT4, ZDT6, KnownFront
from equipoise.problems.pieces import inside, snap, spread

FAMILY: list[KnownFront] = [ZDT1(), ZDT2(), ZDT3(), ZDT4(), ZDT6(), ZDT1(d=2), ZDT4(d=3), ZDT6(d=4)]
LEAST = 0.2807753188153697  # 1 - max exp(-4x) sin⁶(6πx)


def naive(problem: KnownFront, x: list[float]) -> list[float]:
    """The formulas as published, one variable at a time."""
    n, total = len(x), 0.0
    if problem.name == "ZDT4":
        x = [x[0]] + [-5 + 10 * v for v in x[1:]]
        for v in x[1:]:
            total += v**2 - 10 * math.cos(4 * math.pi * v)
        g = 1 + 10 * (n - 1) + total
    else:
        for v in x[1:]:
            total += v
        share = total / (n - 1)
        g = 1 + 9 * (share**0.25 if problem.name == "ZDT6" else share)
    f1 = x[0] if problem.name != "ZDT6" else 1 - math.exp(-4 * x[0]) * math.sin(6 * math.pi * x[0]) ** 6
    if problem.name in {"ZDT2", "ZDT6"}:
        h = 1 - (f1 / g) ** 2
    else:
        h = 1 - math.sqrt(f1 / g)
        if problem.name == "ZDT3":
            h -= f1 / g * math.sin(10 * math.pi * f1)
    return [f1, g * h]


@pytest.mark.parametrize("problem", FAMILY, ids=repr)
def test_losses_are_the_published_formulas(problem: KnownFront):
    x = torch.rand(40, problem.d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[0], x[1], x[2, 0], x[3, 1:] = 0, 1, 0, 0
    expected = torch.tensor([naive(problem, row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(problem.losses(x), expected, rtol=1e-12, atol=1e-12)


def point(d: int, first: float, rest: float) -> Tensor:
    return torch.tensor([first] + (d - 1) * [rest], dtype=torch.float64)


@pytest.mark.parametrize(
    ("problem", "first", "rest", "expected"),
    [
        (ZDT1(), 0.25, 0.0, [0.25, 0.5]),
        (ZDT1(), 0.25, 1 / 3, [0.25, 3.0]),  # g = 4: 4 (1 - 1/4)
        (ZDT2(), 0.5, 0.0, [0.5, 0.75]),
        (ZDT2(), 1.0, 1 / 3, [1.0, 3.75]),  # 4 (1 - 1/16)
        (ZDT3(), 0.25, 0.0, [0.25, 0.25]),  # sin(2.5π) = 1
        (ZDT3(), 0.25, 1 / 3, [0.25, 2.75]),  # 4 (1 - 1/4 - 1/16)
        (ZDT4(), 0.25, 0.5, [0.25, 0.5]),
        (ZDT4(), 0.0, 0.55, [0.0, 3.25]),  # y = 1/2: cos(2π) = 1, g = 1 + 9/4
        (ZDT4(), 0.0, 1.0, [0.0, 226.0]),  # y = 5: g = 1 + 9 · 25
        (ZDT6(), 0.0, 0.0, [1.0, 0.0]),
        (ZDT6(), 1.0, 1 / 81, [1.0, 15 / 4]),  # g = 1 + 9/3 = 4
        (ZDT6(), 1 / 4, 0.0, [1 - math.exp(-1), 1 - (1 - math.exp(-1)) ** 2]),  # sin(1.5π)⁶ = 1
    ],
)
def test_hand_computed_values(problem: KnownFront, first: float, rest: float, expected: list[float]):
    found = problem.losses(point(problem.d, first, rest))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_fronts():
    convex: list[KnownFront] = [ZDT1(), ZDT4()]
    for problem in convex:
        f1, f2 = problem.front(77).unbind(-1)
        torch.testing.assert_close(f2, 1 - f1.sqrt(), rtol=0, atol=1e-15)
        assert f1[[0, -1]].tolist() == [0, 1]
    concave: list[tuple[KnownFront, float]] = [(ZDT2(), 0.0), (ZDT6(), LEAST)]
    for problem, first in concave:
        f1, f2 = problem.front(77).unbind(-1)
        torch.testing.assert_close(f2, 1 - f1.square(), rtol=0, atol=1e-15)
        assert f1[0].item() == pytest.approx(first, abs=1e-15)
        assert f1[-1] == 1


def h(t: float) -> float:
    return 1 - math.sqrt(t) - t * math.sin(10 * math.pi * t)


def test_the_pieces_of_zdt3_are_what_no_point_to_the_left_undercuts():
    t = torch.linspace(0, 1, 1_000_001, dtype=torch.float64)
    curve = 1 - t.sqrt() - t * torch.sin(10 * math.pi * t)
    before = torch.cat((torch.tensor([torch.inf]), curve.cummin(0).values[:-1]))
    record = curve < before
    borders = torch.tensor(list(itertools.chain(*ZDT3.pieces)), dtype=torch.float64)
    clear = (t.unsqueeze(-1) - borders).abs().amin(-1) > 2e-6
    assert torch.equal(record[clear], inside(t, ZDT3.pieces)[clear])
    assert int(clear.sum()) > 999_900


def test_the_ends_of_the_pieces_of_zdt3():
    for (_, end), (start, _) in itertools.pairwise(ZDT3.pieces):
        assert h(start) == pytest.approx(h(end), abs=1e-14)
    for _, end in ZDT3.pieces:
        slope = -0.5 / math.sqrt(end) - math.sin(10 * math.pi * end) - 10 * math.pi * end * math.cos(10 * math.pi * end)
        assert slope == pytest.approx(0, abs=1e-13)
    # As published, to ten digits.
    assert [round(end, 10) for _, end in ZDT3.pieces] == [
        0.0830015349,
        0.2577623634,
        0.4538821041,
        0.6525117038,
        0.8518328654,
    ]


def test_the_front_of_zdt3_visits_every_piece():
    f1 = ZDT3().front(501)[:, 0]
    for start, end in ZDT3.pieces:
        among = f1[(f1 >= start) & (f1 <= end)]
        assert len(among) > 15
        assert among.min() - start < 2e-3
        assert end - among.max() < 2e-3
    assert torch.equal(snap(f1[:-1], ZDT3.pieces), f1[:-1])


@settings(max_examples=200, deadline=None)
@given(first=st.floats(1e-5, 1 - 1e-5))
def test_the_solution_of_zdt3(first: float):
    problem, w = ZDT3(), torch.tensor([first, 1 - first], dtype=torch.float64)
    f = problem.solution(w)
    assert f[1].item() == pytest.approx(h(f[0].item()), abs=1e-14)
    assert (tch(problem.front(2001), w) >= tch(f, w) - 1e-15).all()
    ends = torch.tensor([[end, h(end)] for _, end in problem.pieces], dtype=torch.float64)
    assert imbalance(f, w) < 1e-9 or (f - ends).abs().amax(-1).min() < 1e-14
    # A finer sample around it, over the whole curve.
    t = (f[0] + torch.linspace(-0.05, 0.05, 4001, dtype=torch.float64)).clamp(0, 1)
    curve = torch.stack((t, 1 - t.sqrt() - t * torch.sin(10 * math.pi * t)), -1)
    assert (tch(curve, w) >= tch(f, w) - 1e-15).all()


def test_a_ray_through_a_gap_of_zdt3_gets_the_end_of_the_piece_before_it():
    # At f1 = 0.1, the ray through the gap at the height of the end before it, 0.6697.
    end, level = ZDT3.pieces[0][1], 0.6696523565
    w = torch.tensor([level, 0.1], dtype=torch.float64) / (level + 0.1)
    f = ZDT3().solution(w)
    assert f.tolist() == [pytest.approx(end, abs=1e-15), pytest.approx(level, abs=1e-9)]
    assert imbalance(f, w).item() == pytest.approx(0.1 / end - 1, abs=1e-9)
    w.requires_grad_()
    (gradient,) = torch.autograd.grad(ZDT3().solution(w).sum(), w)
    assert gradient.tolist() == [0, 0]


def test_zdt3_does_not_go_below_zero_for_a_positive_preference():
    first = torch.tensor([1e-12, 1e-6, 1e-3], dtype=torch.float64)
    f = ZDT3().solution(torch.stack((first, 1 - first), -1))
    assert (f[:, 1] > 0).all()
    assert (f[:, 0] < 0.4297).all()
    assert f[0, 0].item() == pytest.approx(0.429622, abs=1e-6)


def test_a_ray_below_the_front_of_zdt6_gets_its_end():
    end = [pytest.approx(LEAST, abs=1e-15), pytest.approx(1 - LEAST**2, abs=1e-15)]
    # w1 LEAST = w2 (1 - LEAST²) at w1 = 0.766398: beyond it the ray misses the front.
    border = (1 - LEAST**2) / (LEAST + 1 - LEAST**2)
    w1 = torch.tensor([border - 1e-6, border + 1e-6, 0.99], dtype=torch.float64)
    w = torch.stack((w1, 1 - w1), -1)
    below, above, far = ZDT6().solution(w)
    assert below[0] > LEAST + 1e-7
    assert imbalance(below, w[0]) < 1e-12
    assert above.tolist() == end
    assert far.tolist() == end


@pytest.mark.parametrize("problem", [ZDT2(), ZDT6()], ids=repr)
def test_the_solution_for_equal_weights_is_the_golden_section(problem: KnownFront):
    f = problem.solution(torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(f, torch.full((2,), (5**0.5 - 1) / 2, dtype=torch.float64), rtol=0, atol=1e-15)


def test_the_fronts_have_the_hypervolume_of_the_integral():
    humps = 0.0
    for (start, end), (after, _) in zip(ZDT3.pieces, [*ZDT3.pieces[1:], (1.1, 1.1)], strict=True):
        humps += quad(lambda t: 1.1 - h(t), start, end, epsabs=1e-12)[0] + (after - end) * (1.1 - h(end))
    assert h(ZDT3.pieces[-1][1]) == pytest.approx(-0.773369012327, abs=1e-12)
    expected = {
        "ZDT1": 0.11 + 0.1 + 2 / 3,
        "ZDT2": 0.11 + 0.1 + 1 / 3,
        "ZDT3": humps,
        "ZDT4": 0.11 + 0.1 + 2 / 3,
        "ZDT6": 0.11 + 0.1 * (1 - LEAST) + (1 - LEAST**3) / 3,
    }
    for problem in FAMILY[:5]:
        coarse, fine = (hypervolume(problem.front(n), problem.reference) for n in (20_001, 40_001))
        assert fine < expected[problem.name]
        # The pieces of ZDT3 do not end at grid points, which leaves an error of the order of the spacing.
        tolerance = 1e-4 if problem.name == "ZDT3" else 1e-7
        assert (2 * fine - coarse).item() == pytest.approx(expected[problem.name], abs=tolerance)


def test_the_pareto_set_of_zdt6_is_on_the_first_hump():
    x = ZDT6().pareto_set(64)
    assert (x[:, 0] <= 0.0814578).all()
    assert (x[:, 0].diff() < 0).all()
    assert (x[:, 1:] == 0).all()


def test_local_fronts_of_zdt4():
    # A step of 1/2 in one y is a local optimum at g = 1 + (1/2)².
    x = point(10, 0.25, 0.5)
    x[1] = 0.55
    g = 1.25
    f2 = ZDT4().losses(x)[1].item()
    assert f2 == pytest.approx(g * (1 - math.sqrt(0.25 / g)), abs=1e-12)
    x[1] = 0.525
    assert ZDT4().losses(x)[1] > 10


def test_the_pieces_are_walked_at_even_speed():
    pieces = ((0.0, 1.0), (2.0, 5.0))
    u = torch.tensor([0.0, 0.125, 0.25, 0.25 + 1e-9, 0.5, 1.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(spread(u, pieces), expected, rtol=0, atol=1e-8)
    t = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.1, 5.0, 9.0])
    assert snap(t, pieces).tolist() == [0.5, 1.0, 1.0, 1.0, pytest.approx(2.1), 5.0, 5.0]
    assert inside(t, pieces).tolist() == [True, True, False, False, True, True, False]
