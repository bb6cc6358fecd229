"""Units and ideal points: f̃ = (f − z)/u on any batch shape, and the payoff table."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.units import Units

W = eq.preference.linspace(3)
positive = st.floats(1e-3, 1e3)


def test_by_hand():
    units, f = Units("start", (1.0, 0.0)), torch.tensor([5.0, 2.0])
    scale = units.update(f, units.init(f))
    assert scale.unit.tolist() == [4.0, 2.0]
    assert units.normalise(torch.tensor([3.0, 1.0]), scale).tolist() == [0.5, 0.5]
    raw = units.raw(torch.tensor([0.5, -torch.inf]), scale)
    assert raw is not None
    assert raw.tolist() == [3.0, -torch.inf]
    fixed = Units((2.0, 4.0), -1.0)
    assert fixed.normalise(torch.tensor([3.0, 3.0]), fixed.init(f)).tolist() == [2.0, 1.0]


@given(st.lists(st.tuples(positive, positive, st.booleans(), st.booleans()), min_size=1, max_size=5), st.floats(-3, 0))
def test_the_unit_of_each_is_its_first_loss(rows, ideal):
    """A naive oracle: one objective of one instance at a time."""
    units = Units("start", ideal)
    f = torch.tensor([[a, b] for a, b, _, _ in rows], dtype=torch.float64)
    mask = torch.tensor([[p, q] for _, _, p, q in rows])
    scale = units.init(f[0])
    first: dict[int, float] = {}
    for values, present in zip(f, mask, strict=True):
        for i in range(2):
            if present[i]:
                first.setdefault(i, float(values[i]) - ideal)
        seen, scale = units.enter(values, scale, present)
        for i in range(2):
            assert bool(scale.known[i]) == (i in first)
            assert float(scale.unit[i]) == pytest.approx(first.get(i, 1.0))
            if present[i]:
                assert float(seen[i]) == pytest.approx((float(values[i]) - ideal) / first[i])


def test_the_batch_shape_is_a_law():
    units = Units("start", (0.5, 0.0, 0.25))
    f, later = torch.rand(4, 2, 3) + 1, torch.rand(4, 2, 3) + 1
    mask = torch.rand(4, 2, 3) < 0.7
    seen, scale = units.enter(f, units.init(f), mask)
    again, _ = units.enter(later, scale)
    for k in range(4):
        for j in range(2):
            one, small = units.enter(f[k, j], units.init(f[k, j]), mask[k, j])
            assert torch.equal(one, seen[k, j])
            torch.testing.assert_close(units.enter(later[k, j], small)[0], again[k, j], rtol=0, atol=0)


def test_an_instance_with_a_loss_that_is_not_finite_keeps_its_scale():
    units = Units("start")
    f = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    scale = units.update(f, units.init(f))
    assert scale.known.tolist() == [[False, False], [True, True]]
    absent = units.update(f, units.init(f), torch.tensor([True, False]))
    assert absent.known.tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("loss", [0.0, -1.0, 1e-40])
def test_an_objective_at_or_below_its_ideal_point_gives_no_unit(loss):
    units, f = Units("start"), torch.tensor([1.0, loss])
    assert units.too_low(f, units.init(f)).tolist() == [False, True]
    seen, scale = units.enter(f, units.init(f))
    assert scale.known.tolist() == [True, False]
    assert torch.isnan(seen).tolist() == [False, True]
    with pytest.raises(ValueError, match=r'above the ideal point with units="start"; give units= as numbers.*found'):
        units.refuse(loss, "objective 1")


BAD = {
    "another word": (("begin", 0.0), "units must be None, \"start\" or numbers; found 'begin'"),
    "zero": (((1.0, 0.0), 0.0), r"units must be positive and finite; found \[1.0, 0.0\]"),
    "infinite": (((1.0, float("inf")), 0.0), "units must be positive and finite"),
    "too many": (((1.0, 2.0, 3.0), 0.0), "units must have 2 entries; found 3"),
    "other names": (({"a": 1.0, "c": 2.0}, 0.0), r"units must have the names \['a', 'b'\]; found \['a', 'c'\]"),
    "no numbers": ((object(), 0.0), "units must be numbers"),
    "ideal": (("start", (0.0, float("nan"))), "ideal must be finite"),
    "ideals": (("start", (0.0,)), "ideal must have 2 entries; found 1"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input(arguments, message):
    units, ideal = arguments
    with pytest.raises(ValueError, match=message):
        Units.of(units, ideal, 2, ("a", "b"))


def test_what_a_user_may_give():
    expected = Units((2.0, 3.0), 0.0)
    given: list[Any] = [(2, 3), [2.0, 3.0], {"b": 3, "a": 2.0}, torch.tensor([2.0, 3.0]), torch.tensor([2, 3]).numpy()]
    for numbers in given:
        assert Units.of(numbers, 0, 2, ("a", "b")) == expected
    assert Units.of(None, 0, 2).plain
    assert not Units.of(None, 1e-9, 2).plain
    assert not Units.of("start", 0, 2).plain


# The payoff table ---------------------------------------------------------------------------------


def test_the_table_by_hand():
    ideal, units = eq.payoff([[1.0, 8.0, 5.0], [3.0, 2.0, 4.0], [2.0, 7.0, 3.5]])
    assert ideal == (1.0, 2.0, 3.5)
    assert units == (2.0, 6.0, 1.5)


def test_a_run_may_be_beaten_at_its_own_objective_but_not_by_all():
    assert eq.payoff([[1.0, 9.0, 9.0], [0.5, 1.0, 9.0], [3.0, 9.0, 1.0]]).ideal == (0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"are rows and columns exchanged\?\); found column 0 with \[5.0, 1.0\]"):
        eq.payoff([[5.0, 0.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="found column 1 with"):
        eq.payoff([[1.0, 2.0], [2.0, 2.0]])


@pytest.mark.parametrize("table", [[[1.0, 2.0]], [1.0, 2.0], [[1.0]], torch.zeros(2, 3)])
def test_a_table_that_is_not_square(table):
    with pytest.raises(ValueError, match=r"table must have shape \(m, m\), m ≥ 2"):
        eq.payoff(table)


def test_a_table_that_is_not_finite():
    with pytest.raises(ValueError, match="table must be finite"):
        eq.payoff([[1.0, float("nan")], [2.0, 1.0]])


# In the solver ------------------------------------------------------------------------------------


class Scaled(eq.problems.VLMOP2):
    """Losses in other units, with another zero."""

    def __init__(self, factors: tuple[float, float], zeros: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.factors, self.zeros = torch.tensor(factors), torch.tensor(zeros)

    def losses(self, x: Tensor) -> Tensor:
        return super().losses(x) * self.factors.to(x) + self.zeros.to(x)


SETTINGS: dict[str, Any] = {"seeds": (0, 1), "steps": 200, "dtype": torch.float64}
METHODS = [None, "STCH", "MGDA", "Moco", "EPO"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factors", [(0.01, 0.01), (100.0, 100.0), (300.0, 1.0)])
def test_units_of_the_losses_do_not_matter_in_their_own_units(method, factors):
    plain = eq.solve(eq.problems.VLMOP2(), W, method, units="start", **SETTINGS)
    other = eq.solve(Scaled(factors), W, method, units="start", **SETTINGS)
    torch.testing.assert_close(other.params, plain.params, rtol=1e-7, atol=1e-9)


def test_units_of_the_losses_matter_as_they_are():
    plain, other = (eq.solve(problem, W, **SETTINGS) for problem in (eq.problems.VLMOP2(), Scaled((300.0, 1.0))))
    assert float((plain.params["solution"] - other.params["solution"]).abs().max()) > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_the_division_of_the_losses(method):
    problem = Scaled((4.0, 0.5), (1.0, -3.0))
    divided = eq.solve(eq.problems.VLMOP2(), W, method, **SETTINGS)
    stated = eq.solve(problem, W, method, units=(4.0, 0.5), ideal=(1.0, -3.0), **SETTINGS)
    torch.testing.assert_close(stated.params, divided.params, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(stated.losses["solution"], problem.losses(stated.params["solution"]))


def test_units_may_be_swept():
    sweep = torch.tensor([[1.0, 1.0], [1.0, 4.0]]).reshape(2, 1, 1, 2)
    found = eq.solve(eq.problems.VLMOP2(), W, units=sweep, sweep=(2,), **SETTINGS)
    for k in range(2):
        one = eq.solve(eq.problems.VLMOP2(), W, units=sweep[k, 0, 0], **SETTINGS)
        torch.testing.assert_close(found.params["solution"][k], one.params["solution"])


def test_the_coefficients_of_a_trajectory_are_those_of_losses_in_their_units():
    found = eq.solve(Scaled((4.0, 0.5)), W, "LS", units="start", trajectory=True, **SETTINGS)
    assert found.trajectory is not None
    torch.testing.assert_close(found.trajectory.coefficients[3, 0], W.double())


def test_a_problem_that_starts_at_its_ideal_point():
    text = r"found 0\.\d+ for objective 1 of VLMOP2, run 'run'"
    with pytest.raises(ValueError, match=text):
        eq.solve("VLMOP2", W, units="start", ideal=(0.0, 2.0))


def test_a_solution_below_the_ideal_point_is_said_in_the_units_of_the_losses():
    with pytest.warns(eq.errors.IdealPointWarning, match=r"point, 5; found 0\.\d+ for objective"):
        eq.solve("VLMOP2", [[0.3, 0.7]], eq.OMD(), ideal=(5.0, 0.0), units=2.0, steps=30)
