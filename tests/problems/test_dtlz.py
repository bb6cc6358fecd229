"""The DTLZ problems: formulas, fronts, exact solutions."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

from equipoise import preference
from equipoise.cli import app
from equipoise.metrics import hypervolume, imbalance, tch
from equipoise.problems import DTLZ1, DTLZ2, DTLZ3, DTLZ4, DTLZ7, KnownFront
from equipoise.problems.dtlz import DTLZ
from equipoise.problems.pieces import inside
from equipoise.solver import solve

KINDS: list[type[DTLZ]] = [DTLZ1, DTLZ2, DTLZ3, DTLZ4, DTLZ7]
kinds = pytest.mark.parametrize("kind", KINDS)
objectives = pytest.mark.parametrize("m", [2, 3, 5, 20])


def naive(problem: DTLZ, x: list[float]) -> list[float]:
    """The formulas as published, one objective at a time."""
    m, k, pi = problem.m, problem.k, math.pi
    rest = x[m - 1 :]
    assert len(rest) == k
    f = []
    if problem.name == "DTLZ7":
        g = 1 + 9 / k * sum(rest)
        h = m - sum(v / (1 + g) * (1 + math.sin(3 * pi * v)) for v in x[: m - 1])
        return [*x[: m - 1], (1 + g) * h]
    if problem.name in {"DTLZ1", "DTLZ3"}:
        g = 100 * (k + sum((v - 0.5) ** 2 - math.cos(20 * pi * (v - 0.5)) for v in rest))
    else:
        g = sum((v - 0.5) ** 2 for v in rest)
    for j in range(1, m + 1):
        value = 1 + g
        for i in range(1, m - j + 1):
            v = x[i - 1]
            value *= v if problem.name == "DTLZ1" else math.cos(v ** (100 if problem.name == "DTLZ4" else 1) * pi / 2)
        if j > 1:
            v = x[m - j]
            if problem.name == "DTLZ1":
                value *= 1 - v
            else:
                value *= math.sin(v ** (100 if problem.name == "DTLZ4" else 1) * pi / 2)
        f.append(0.5 * value if problem.name == "DTLZ1" else value)
    return f


@kinds
@objectives
def test_losses_are_the_published_formulas(kind: type[DTLZ], m: int):
    problem = kind(m=m)
    x = torch.rand(40, problem.d, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    x[0], x[1], x[2, 0], x[3, : m - 1] = 0, 1, 0, 1
    expected = torch.tensor([naive(problem, row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(problem.losses(x), expected, rtol=1e-11, atol=1e-10)


@kinds
def test_dimensions(kind: type[DTLZ]):
    k = {"DTLZ1": 5, "DTLZ7": 20}.get(kind.name, 10)
    assert (kind().m, kind().k, kind().d) == (3, k, k + 2)
    assert kind(m=20).d == k + 19
    assert kind(m=4, k=3).losses(torch.rand(2, 5, 6)).shape == (2, 5, 4)
    nadir = {"DTLZ1": 7 * [0.5], "DTLZ7": [*6 * [DTLZ7.pieces[1][1]], 14]}.get(kind.name, 7 * [1.0])
    assert kind(m=7).reference == pytest.approx([1.1 * value for value in nadir], abs=1e-4)


def test_hand_computed_values():
    def at(problem: KnownFront, *x: float) -> object:
        return pytest.approx(problem.losses(torch.tensor(x, dtype=torch.float64)).tolist(), abs=1e-12)

    half = 5 * [0.5]
    assert at(DTLZ1(), 0.5, 0.25, *half) == [1 / 16, 3 / 16, 1 / 4]
    # One variable off by 1/10: cos(2π) = 1, so g = 100/100 = 1 and everything doubles.
    assert at(DTLZ1(), 0.5, 0.25, 0.6, *half[1:]) == [1 / 8, 3 / 8, 1 / 2]
    # Off by 1/20: cos(π) = -1, g = 100 (1/400 + 2).
    assert at(DTLZ1(m=2, k=1), 1.0, 0.55) == [(1 + 200.25) / 2, 0]
    half = 10 * [0.5]
    root = math.sqrt(0.5)
    assert at(DTLZ2(), 0.5, 0.5, *half) == [0.5, 0.5, root]
    assert at(DTLZ2(), 0.0, 1 / 3, 1.0, *half[1:]) == [1.25 * math.sqrt(0.75), 0.625, 0]
    assert at(DTLZ3(), 0.5, 0.5, 0.6, *half[1:]) == [1, 1, 2 * root]
    assert at(DTLZ4(), 0.5**0.01, 1.0, *half) == [0, root, root]
    assert at(DTLZ4(m=2, k=1), 0.3, 1.0) == [1.25, 0]
    assert at(DTLZ4(m=2, k=1, alpha=2.0), root, 0.5) == [root, root]
    # sin(π/2) = 1 at 1/6 and 5/6.
    assert at(DTLZ7(), 1 / 6, 5 / 6, *(20 * [0.0])) == [1 / 6, 5 / 6, 6 - 2 / 6 - 10 / 6]
    assert at(DTLZ7(m=2, k=2), 1 / 6, 0.0, 2 / 9) == [1 / 6, 3 * 2 - 2 / 6]  # g = 2


@kinds
@objectives
def test_the_front_is_the_known_surface(kind: type[DTLZ], m: int):
    f = kind(m=m).front(500)
    assert f.shape == (500, m)
    assert (f > -1e-15).all()
    one = torch.ones(500, dtype=torch.float64)
    if kind is DTLZ1:
        torch.testing.assert_close(f.sum(-1), one / 2, rtol=0, atol=1e-14)
    elif kind is DTLZ7:
        assert inside(f[:, :-1], DTLZ7.pieces).all()
        rise = f[:, :-1] * (1 + torch.sin(3 * math.pi * f[:, :-1]))
        torch.testing.assert_close(f[:, -1], 2 * m * one - rise.sum(-1), rtol=0, atol=1e-12)
    else:
        torch.testing.assert_close(f.square().sum(-1), one, rtol=0, atol=1e-13)
    # It is spread over the whole front: no objective stays near its mean.
    if kind is not DTLZ7:
        top = f.amax(0) / max(kind(m=m).reference) * 1.1
        assert (top > min(0.9, 3 / m)).all()
        assert (f.mean(0).std() < 0.05 * f.mean()).all()


def test_the_front_of_two_objectives_is_evenly_spaced():
    steps = DTLZ1(m=2).front(11).diff(dim=0)
    torch.testing.assert_close(steps[:, 0], torch.full((10,), 0.05, dtype=torch.float64))
    angles = torch.atan2(*DTLZ2(m=2).front(11).unbind(-1)).diff()
    torch.testing.assert_close(angles, torch.full((10,), math.pi / 20, dtype=torch.float64))


def test_the_front_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first = DTLZ2(m=4).front(64)
    assert torch.equal(first, DTLZ2(m=4).front(64))
    assert torch.equal(first[:20], DTLZ2(m=4).front(20))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", [DTLZ1, DTLZ2, DTLZ3, DTLZ4])
@objectives
def test_every_point_of_the_front_is_the_solution_of_its_preference(kind: type[DTLZ], m: int):
    f = kind(m=m).front(200)
    f = f[(f > 1e-6).all(-1)]
    assert len(f) > 150
    w = preference.through(f)
    found = kind(m=m).solution(w)
    torch.testing.assert_close(found, f, rtol=1e-9, atol=0)
    assert (imbalance(found, w) < 1e-12).all()


def test_exact_solutions():
    w = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64)
    flat, round_ = DTLZ1().solution(w), DTLZ2().solution(w)
    # 1/w is proportional to 2, 3, 6, of sum 11 and length 7.
    torch.testing.assert_close(flat * 22, torch.tensor([2.0, 3, 6], dtype=torch.float64))
    torch.testing.assert_close(round_ * 7, torch.tensor([2.0, 3, 6], dtype=torch.float64))
    assert torch.equal(DTLZ3().solution(w), round_)
    assert torch.equal(DTLZ4().solution(w), round_)


def test_zeros_in_the_preference():
    w = torch.tensor([[0, 0.3, 0.7], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    assert DTLZ1().solution(w).tolist() == [[0.5, 0, 0], [0.25, 0.25, 0], [0, 0.25, 0.25]]
    root = math.sqrt(0.5)
    expected = torch.tensor([[1, 0, 0], [root, root, 0], [0, root, root]], dtype=torch.float64)
    torch.testing.assert_close(DTLZ2().solution(w), expected, rtol=0, atol=1e-15)
    end = DTLZ7.pieces[1][1]
    rise = end * (1 + math.sin(3 * math.pi * end))
    found = DTLZ7().solution(w)
    # Without weight on f1 it goes to its end; with none on f3, f1 alone is minimised.
    assert found[0, 0] == end
    assert found[1].tolist() == [end, end, pytest.approx(6 - 2 * rise)]
    assert found[2].tolist() == [0, end, pytest.approx(6 - rise)]
    assert (0.7 * found[0, 2]).item() == pytest.approx(tch(found, w)[0].item(), abs=1e-14)


def rise(t: Tensor) -> Tensor:
    return t * (1 + torch.sin(3 * math.pi * t))


def test_the_pieces_of_dtlz7_are_where_f_m_is_lower_than_for_any_smaller_f_i():
    t = torch.linspace(0, 1, 1_000_001, dtype=torch.float64)
    before = torch.cat((torch.tensor([-1.0]), rise(t).cummax(0).values[:-1]))
    borders = torch.tensor([end for piece in DTLZ7.pieces for end in piece], dtype=torch.float64)
    clear = (t.unsqueeze(-1) - borders).abs().amin(-1) > 2e-6
    assert torch.equal((rise(t) > before)[clear], inside(t, DTLZ7.pieces)[clear])
    (_, first), (start, last) = DTLZ7.pieces
    assert rise(torch.tensor(start).double()).item() == pytest.approx(
        rise(torch.tensor(first).double()).item(), abs=1e-7
    )
    for end in (first, last):
        slope = 1 + math.sin(3 * math.pi * end) + 3 * math.pi * end * math.cos(3 * math.pi * end)
        assert slope == pytest.approx(0, abs=1e-13)


def weights(m: int) -> st.SearchStrategy[Tensor]:
    entries = st.lists(st.floats(-5, 5), min_size=m, max_size=m)
    return entries.map(lambda logs: torch.tensor(logs, dtype=torch.float64).softmax(-1))


GRID = torch.linspace(0, 1, 401, dtype=torch.float64)
PLANE = torch.cartesian_prod(GRID, GRID)


@settings(max_examples=60, deadline=None)
@given(w=weights(3))
def test_no_point_of_a_dense_grid_is_better_than_the_solution_of_dtlz7(w: Tensor):
    f = DTLZ7().solution(w)
    # All of f1, f2 in [0, 1]², optimal or not, and the neighbourhood of the solution.
    near = (f[:2] + 0.02 * (PLANE - 0.5)).clamp(0, 1)
    for x in (PLANE, near):
        grid = torch.cat((x, 6 - rise(x).sum(-1, keepdim=True)), -1)
        assert tch(grid, w).min() >= tch(f, w) - 1e-14
    assert f[2].item() == pytest.approx(6 - rise(f[:2]).sum().item(), abs=1e-13)
    # The last objective is at the level, and the others are unless they sit at the end of a piece.
    level = (w[2] * f[2]).item()
    ends = [end for _, end in DTLZ7.pieces]
    for i in (0, 1):
        met = (w[i] * f[i]).item() == pytest.approx(level, rel=1e-9)
        assert met or (f[i].item() in ends and w[i] * f[i] < level)


@pytest.mark.parametrize("m", [2, 3, 6, 20])
def test_the_value_of_dtlz7_is_the_one_of_a_search_over_levels(m: int):
    t = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    best = rise(t).cummax(0).values
    generator = torch.Generator().manual_seed(m)
    w = torch.rand(30, m, generator=generator, dtype=torch.float64) ** 2 + 1e-3
    w = w / w.sum(-1, keepdim=True)
    for row, value in zip(w, tch(DTLZ7(m=m).solution(w), w), strict=True):

        def attainable(v: float, row: Tensor = row) -> bool:
            # Objective by objective, the most that f_i ≤ v/w_i can take off f_m.
            allowed = torch.searchsorted(t, v / row[:-1], right=True) - 1
            return bool(row[-1] * (2 * m - best[allowed].sum()) <= v)

        assert attainable(value.item() + 1e-3)
        assert not attainable(value.item() - 1e-9)


@objectives
def test_a_point_of_dtlz7_is_the_solution_of_its_preference(m: int):
    f = DTLZ7(m=m).front(300)
    f = f[(f > 1e-6).all(-1)]
    found = DTLZ7(m=m).solution(preference.through(f))
    torch.testing.assert_close(found, f, rtol=1e-9, atol=0)


def test_hypervolumes():
    # Two objectives: a triangle or a quarter circle is cut out of the square.
    for problem, expected in ((DTLZ1(m=2), 0.55**2 - 1 / 8), (DTLZ2(m=2), 1.21 - math.pi / 4)):
        coarse, fine = (hypervolume(problem.front(n), problem.reference) for n in (20_001, 40_001))
        assert (2 * fine - coarse).item() == pytest.approx(expected, abs=1e-7)
    # Three: a simplex, or an eighth of the unit ball. Four times the points miss about half as much.
    ball = 1.331 - math.pi / 6
    cases: list[tuple[KnownFront, float]] = [(DTLZ1(), 0.55**3 - 1 / 48), (DTLZ2(), ball), (DTLZ4(), ball)]
    for three, whole in cases:
        few, more = (whole - hypervolume(three.front(n), three.reference).item() for n in (512, 2048))
        assert 0 < more < 0.07 * whole
        assert 1.7 < few / more < 2.4


def test_a_run_comes_near_the_exact_solutions():
    w = preference.grid(2, 3, margin=0.2)
    problem = DTLZ2()
    found = solve(problem, w, "AdaOMDgd-TCH", steps=1000).losses["solution"][0].double()
    best = tch(problem.solution(w), w)
    assert (tch(found, w) >= best - 1e-6).all()
    assert (tch(found, w) <= 1.1 * best).all()


def test_the_command_line_solves_three_objectives(tmp_path: Path):
    file = tmp_path / "out.json"
    command = ["solve", "dtlz2", "--preferences", "12", "--steps", "5", "--json", str(file)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    record = json.loads(file.read_text())
    # The finest grid of at most 12: three divisions.
    torch.testing.assert_close(torch.tensor(record["preferences"]), preference.grid(3, 3, margin=0.01).float())
    assert torch.tensor(record["losses"]).shape == (1, 10, 3)


def test_what_the_command_line_cannot_do_with_three_objectives():
    result = CliRunner().invoke(app, ["solve", "DTLZ2", "--plot", "front.png"])
    assert str(result.exception) == "plot must not be given unless the problem has two objectives; found 3"
