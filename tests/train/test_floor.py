"""Losses below the ideal point: one warning, if weights differ and the weighting balances w∘(f − z)."""

import math
import warnings
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import IdealPointWarning
from equipoise.weighting.floor import floor

UNEVEN = [0.2, 0.8]


def shell(weighting: Any, preference: list[float] = UNEVEN, **settings: Any) -> eq.MultiObjective:
    return eq.MultiObjective(torch.nn.Linear(1, 1), None, preference, method=(weighting, eq.Last()), **settings)


def losses(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


WATCHED = [eq.OMD(), eq.Tchebycheff(), eq.SmoothTchebycheff(), eq.Momentum(eq.Tchebycheff()), eq.Relative(eq.OMD())]


@pytest.mark.parametrize("weighting", WATCHED, ids=lambda one: type(one).__name__)
def test_a_loss_below_the_ideal_point_is_said_once(weighting):
    mol = shell(weighting, names=("height", "width"))
    mol(losses(1.0, 0.5))
    text = r"below the ideal point, 0; found -0\.25 for objective width in step 2"
    with pytest.warns(IdealPointWarning, match=text) as said:
        mol(losses(1.0, -0.25))
    assert said[0].filename == __file__
    mol(losses(-2.0, -0.5))  # a warning is an error in tests


def test_of_several_the_lowest_is_named():
    with pytest.warns(IdealPointWarning, match=r"point, 3; found 1 for objective 1"):
        shell(eq.OMD(ideal=(1.0, 3.0)))(losses(0.5, 1.0))


def test_where_looking_is_put_off_it_is_said_by_the_next_call():
    mol = shell(eq.OMD(), check="deferred")
    mol(losses(-1.0, 0.5))
    with pytest.warns(IdealPointWarning, match="found -1 for objective 0 in step 1") as said:
        mol(losses(1.0, 0.5))
    assert said[0].filename == __file__
    mol(losses(-1.0, 0.5))
    mol.solution()


QUIET = {
    "above it": (eq.OMD(ideal=-3.0), UNEVEN),
    "above one of each": (eq.OMD(ideal=(-3.0, -2.5)), UNEVEN),
    "equal weights": (eq.OMD(), [0.5, 0.5]),
    "no loss to speak of": (eq.Tchebycheff(), [0.0, 1.0]),
    "a weighted sum": (eq.Linear(), UNEVEN),
    "ratios above another point": (eq.Relative(eq.OMD(ideal=-9.0)), UNEVEN),
}


@pytest.mark.parametrize("check", ["now", "deferred"])
@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_said(case, check):
    weighting, preference = QUIET[case]
    mol = shell(weighting, preference, check=check)
    for _ in range(2):
        mol(losses(-2.0, 0.5))


def test_rounding_is_not_below():
    shell(eq.OMD(ideal=1.0))(losses(1.0 - 1e-7, 2.0))


@pytest.mark.parametrize("check", ["now", "deferred"])
def test_an_absent_objective_is_not_below(check):
    mol = shell(eq.OMD(ideal=1.0), check=check)
    for _ in range(2):
        mol(losses(0.0, 2.0), [0, 3])
    if check == "deferred":
        mol(losses(0.0, 2.0), [1, 3])
    with pytest.warns(IdealPointWarning, match="found 0 for objective 0"):
        mol(losses(0.0, 2.0), [1, 3])


def test_losses_that_iterates_are_compared_by_may_be_anything():
    mol = shell(eq.OMD(), every=None)
    mol.record(torch.tensor([-1.0, -2.0]))


def test_a_weighting_that_is_no_subclass_has_no_floor():
    assert floor(object(), torch.tensor(UNEVEN)) is None


def test_the_floor_of_each_preference():
    w = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.0, 1.0]])
    least = floor(eq.OMD(ideal=(1.0, 2.0)), w)
    assert least is not None
    assert least.tolist() == [[1.0, 2.0], [-math.inf, -math.inf], [-math.inf, 2.0]]


# What the warning says is so ----------------------------------------------------------------------
class Lower(eq.problems.VLMOP1):
    """x² − 10 and (x − 2)² − 10."""

    def losses(self, x: torch.Tensor) -> torch.Tensor:
        return super().losses(x) - 10.0


def found(problem: eq.problems.Problem, weighting: Any, preference: list[float]) -> float:
    solved = eq.solve(problem, [preference], weighting, steps=2000, step_size=0.02)
    return float(solved.params["solution"].squeeze())


def test_below_the_ideal_point_a_larger_weight_asks_for_less():
    w = [0.1, 0.9]  # the second objective matters more: 0.1 x² = 0.9 (x − 2)² at x = 1.5
    smooth = eq.SmoothTchebycheff(0.02)
    assert found(eq.problems.VLMOP1(), smooth, w) == pytest.approx(1.5, abs=0.05)
    text = r"point, 0; found -10 for objective 0 of VLMOP1, run 'run', preference 0 \(\[0\.1"
    with pytest.warns(IdealPointWarning, match=text) as said:
        assert found(Lower(), smooth, w) == pytest.approx(0.0, abs=0.05)  # all for the first
    assert len(said) == 1
    assert found(Lower(), eq.SmoothTchebycheff(0.02, ideal=-10.0), w) == pytest.approx(1.5, abs=0.05)


def test_with_equal_weights_nothing_changes():
    for weighting in (eq.OMD(1.0), eq.OMD(1.0, eq.Entropic())):
        plain, low = (found(problem, weighting, [0.5, 0.5]) for problem in (eq.problems.VLMOP1(), Lower()))
        assert low == pytest.approx(plain, abs=1e-3)


def test_a_solution_that_diverged_is_not_below():
    class Broken(Lower):
        def losses(self, x: torch.Tensor) -> torch.Tensor:
            return super().losses(x) * torch.nan

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eq.solve(Broken(), [UNEVEN], "TCH", steps=2, on_nonfinite="keep")
