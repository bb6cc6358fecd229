"""The arguments as every weighting sees them, and what the base class does for a method."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.weighting import Seen, Stateless, Weighting
from equipoise.weighting.protocol import keep, see, working_dtype
from equipoise.weighting.restricted import restrict


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


W = vector(0.2, 0.3, 0.5)
F = vector(2.0, 4.0, 6.0)


def test_gain_and_weight_by_hand():
    seen = see(F, W)
    assert seen.gain.tolist() == pytest.approx([0.4, 1.2, 3.0])
    assert seen.weight.tolist() == [0.2, 0.3, 0.5]
    assert seen.valid.tolist() == [True]
    seen = see(F, W, (1.0, 1.0, 2.0), torch.tensor([True, False, True]), vector(0.5, 0.5, 0.25))
    assert seen.gain.tolist() == pytest.approx([0.4, 0.0, 8.0])
    assert seen.weight.tolist() == pytest.approx([0.4, 0.0, 2.0])


def test_an_inclusion_of_zero_is_no_division_where_the_objective_is_absent():
    seen = see(F, W, 0.0, torch.tensor([True, False, True]), vector(1.0, 0.0, 1.0))
    assert seen.weight.tolist() == [0.2, 0.0, 0.5]
    assert seen.gain.tolist() == pytest.approx([0.4, 0.0, 3.0])


@pytest.mark.parametrize("pi", [0.0, -0.5, 1.5, math.nan])
def test_an_inclusion_that_is_no_probability_is_refused(pi: float):
    with pytest.raises(ValueError, match=rf"inclusion must lie in \(0, 1\].*; found {pi}"):
        see(F, W, inclusion=vector(1.0, pi, 1.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_valid_is_whether_every_present_loss_is_finite(bad: float, at: int):
    losses = torch.stack([F, F])
    losses[1, at] = bad
    assert see(losses, W).valid.tolist() == [[True], [False]]
    hidden = torch.arange(3) != at
    assert see(losses, W, 0.0, hidden).valid.tolist() == [[True], [True]]


def test_work_is_done_in_double_up_to_ten_thousand_objectives():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert working_dtype(torch.ones(10_000, dtype=dtype)) == torch.float64
        assert working_dtype(torch.ones(10_001, dtype=dtype)) == torch.float32
    assert see(F.half(), W).gain.dtype == torch.float64


def test_losses_without_a_dimension_are_refused():
    with pytest.raises(ValueError, match=r"losses must have shape \(\*B, m\); found \(\)"):
        see(torch.tensor(1.0), torch.ones(1))


def test_integer_losses_are_refused():
    losses = torch.tensor([1, 2, 3])
    with pytest.raises(ValueError, match=r"losses must be floating.*; found torch\.int64"):
        eq.Linear().update(losses, eq.Linear().init(losses), W)


def test_a_preference_of_few_digits_is_accepted():
    for dtype in (torch.float16, torch.bfloat16):
        c, _ = eq.Linear().update(F, eq.Linear().init(F), W.to(dtype))
        torch.testing.assert_close(c, W, rtol=1e-2, atol=0)


def test_a_preference_may_hold_whole_numbers():
    c, _ = eq.Linear().update(F, eq.Linear().init(F), torch.tensor([0, 1, 0]))
    assert c.tolist() == [0.0, 1.0, 0.0]


def test_a_preference_that_was_changed_is_checked_again():
    w = W.clone()
    see(F, w)
    w[0] = 0.9
    with pytest.raises(ValueError, match="preference must"):
        see(F, w)


def test_w_is_the_preference_without_probabilities():
    mask, pi = torch.tensor([True, False, True]), vector(0.5, 0.0, 0.25)
    seen = see(F, W, 0.0, mask, pi)
    assert seen.w.tolist() == [0.2, 0.0, 0.5]
    assert see(F, W, inclusion=vector(0.5, 0.5, 0.5)).w.tolist() == W.tolist()
    assert see(F, W, 0.0, mask).w.tolist() == [0.2, 0.0, 0.5]


def test_losses_are_measured_from_the_ideal_point_and_hidden_where_absent():
    seen = see(vector(2.0, math.nan, 6.0), W, 1.5, torch.tensor([True, False, True]))
    assert seen.losses.tolist() == [0.5, 0.0, 4.5]
    assert see(F.float(), W).dtype == torch.float32
    assert see(F.float(), W).losses.dtype == torch.float64


def test_losses_whose_sum_overflows_are_valid():
    huge = torch.full((2,), 1.5e308, dtype=torch.float64)
    _, state = Count().update(huge, Count().init(huge), vector(0.5, 0.5))
    assert state.step.item() == 1.0


def test_a_restriction_divides_by_no_probability_of_an_absent_objective():
    K = torch.eye(3, dtype=torch.float64)
    here = restrict(see(F, W, 0.0, torch.tensor([True, False, True]), vector(0.5, 0.0, 0.25), K))
    assert here.scale.tolist() == [2.0, 0.0, 4.0]
    assert here.gramian.diagonal().tolist() == [4.0, 0.0, 16.0]
    assert here.losses.tolist() == [4.0, 0.0, 24.0]
    assert here.valid.item()


# What the base class does ---------------------------------------------------------------------


class Inner(NamedTuple):
    sums: Tensor
    """(*B, m, 2)."""


class CountState(NamedTuple):
    step: Tensor
    """(*B, 1)."""
    inner: Inner
    table: dict[str, Tensor]
    """Of one tensor, (*B,)."""


@dataclass(frozen=True)
class Count(Weighting[CountState]):
    """Adds up everything; its coefficients are f, with no thought of masks or of what is not finite."""

    def init(self, losses: Tensor, **extra: Tensor) -> CountState:  # noqa: ARG002
        zeros = torch.zeros(losses.shape, dtype=torch.float64)
        return CountState(zeros[..., :1], Inner(torch.stack([zeros, zeros], -1)), {"total": zeros[..., 0]})

    def step(self, seen: Seen, state: CountState) -> tuple[Tensor, CountState]:
        sums = state.inner.sums + seen.losses.unsqueeze(-1)
        total = state.table["total"] + seen.losses.sum(-1)
        return seen.losses + 1.0, CountState(state.step + 1, Inner(sums), {"total": total})


@dataclass(frozen=True)
class OnBoth(Weighting[Stateless]):
    """Its coefficients are the diagonal of the Gramian plus the first column of the Jacobian."""

    needs: ClassVar[frozenset[str]] = frozenset({"gramian", "jacobian"})

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        return seen.gramian.diagonal(dim1=-2, dim2=-1) + seen.jacobian[..., 0], state


def test_a_method_without_a_state_is_a_step():
    assert OnBoth().init(F) == Stateless()
    J = torch.tensor([[1.0, 2.0], [0.0, 3.0], [4.0, 0.0]], dtype=torch.float64)
    c, state = OnBoth().update(F.float(), Stateless(), W, gramian=J @ J.mT, jacobian=J)
    assert c.dtype == torch.float32
    assert c.tolist() == [6.0, 9.0, 20.0]
    assert state == Stateless()


def test_a_weighting_without_a_step_says_so():
    class Nothing(Weighting[Stateless]):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing must implement step\(seen, state\)"):
        Nothing().update(F, Stateless(), W)


def test_absent_objectives_have_coefficient_zero_whatever_a_step_returns():
    c, _ = Count().update(F, Count().init(F), W, mask=torch.tensor([True, False, True]))
    assert c.tolist() == [3.0, 0.0, 7.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_every_tensor_of_a_state_stays_where_a_loss_is_not_finite(bad: float):
    losses = torch.stack([F, F])
    losses[1, 2] = bad
    c, state = Count().update(losses, Count().init(losses), W)
    assert c.tolist() == [[3.0, 5.0, 7.0], [3.0, 5.0, 0.0]]
    assert state.step.tolist() == [[1.0], [0.0]]
    assert state.inner.sums[..., 0].tolist() == [F.tolist(), [0.0] * 3]
    assert state.table["total"].tolist() == [12.0, 0.0]


def test_a_method_can_keep_parts_of_its_own_state():
    old, new = (vector(1.0, 2.0), vector(3.0)), (vector(5.0, 6.0), vector(7.0))
    assert keep(torch.tensor([True]), new, old) is new
    kept = keep(torch.tensor([False]), new, old)
    assert [part.tolist() for part in kept] == [[1.0, 2.0], [3.0]]


def test_a_state_of_other_losses_is_refused_whatever_it_holds():
    state = Count().init(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(4, 3\); found \(2, 1\)"):
        Count().update(torch.ones(4, 3), state, W)
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(2, 4\); found \(2, 1\)"):
        Count().update(torch.ones(2, 4), state, torch.full((4,), 0.25))


def test_a_missing_statistic_is_named():
    with pytest.raises(TypeError, match=r"OnBoth\.update needs the keyword argument 'jacobian'"):
        OnBoth().update(F, Stateless(), W, gramian=torch.eye(3))
    with pytest.raises(TypeError, match=r"OnBoth\.update needs the keyword argument 'gramian'"):
        OnBoth().update(F, Stateless(), W, jacobian=torch.eye(3))


def test_statistics_of_the_wrong_shape_are_named():
    losses = torch.ones(3, 2)
    w, K, J = torch.tensor([0.5, 0.5]), torch.ones(3, 2, 2), torch.ones(3, 2, 4)
    with pytest.raises(ValueError, match=r"gramian must have shape \(\*B, m, m\) = \(3, 2, 2\); found \(3, 2, 3\)"):
        OnBoth().update(losses, Stateless(), w, gramian=torch.ones(3, 2, 3), jacobian=J)
    with pytest.raises(ValueError, match=r"jacobian must have shape \(\*B, m, d\) .* \(3, 2\); found \(2, 4\)"):
        OnBoth().update(losses, Stateless(), w, gramian=K, jacobian=torch.ones(2, 4))


def test_a_class_with_its_own_update_is_a_weighting_too():
    class Equal(Weighting[tuple[()]]):
        def init(self, losses: Tensor, **extra: Tensor) -> tuple[()]:  # noqa: ARG002
            return ()

        def update(self, losses: Tensor, state: Any, preference: Tensor, **extra: Any) -> Any:  # noqa: ARG002
            return torch.full_like(losses, 1 / losses.shape[-1]), state

    found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], Equal(), steps=300)
    assert found.losses["solution"][0, 0].tolist() == pytest.approx([1.0, 1.0], abs=0.01)  # min of x² + (x − 2)²
    c, _ = eq.Momentum(Equal()).update(F, eq.Momentum(Equal()).init(F), W)
    assert torch.isfinite(c).all()
