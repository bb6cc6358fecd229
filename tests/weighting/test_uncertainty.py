"""Uncertainty weighting by hand, as a loss that is differentiated, and against TorchJD and LibMTL."""

import math

import pytest
import torch
from tests.weighting.gradients import vector
from torch import Tensor
from torchjd.scalarization import UW

import equipoise as eq
from equipoise.weighting.uncertainty import Uncertainty, UncertaintyState

HALF = vector(0.5, 0.5)


def run(
    weighting: Uncertainty, steps: list[Tensor], w: Tensor = HALF, start: float = 0.0
) -> tuple[list[Tensor], Tensor]:
    """The coefficients of every step, and s after the last."""
    state, found = UncertaintyState(torch.full_like(steps[0], start)), []
    for losses in steps:
        c, state = weighting.update(losses, state, w)
        found.append(c)
    return found, state.log_variances


def test_two_steps_by_hand():
    # s = 0 − 0.1 (1 − f) = (0.2, −0.05); then 1 − exp(−0.2)·2 and 1 − exp(0.05)·0.5.
    found, s = run(Uncertainty(0.1), [vector(3, 0.5), vector(2, 0.5)], vector(0.25, 0.75))
    torch.testing.assert_close(found[0], vector(0.25, 0.75))
    torch.testing.assert_close(found[1], vector(0.25 * math.exp(-0.2), 0.75 * math.exp(0.05)))
    torch.testing.assert_close(s, vector(0.1 + 0.2 * math.exp(-0.2), -0.15 + 0.05 * math.exp(0.05)))


def test_it_is_torchjd_s_with_twice_the_rate():
    theirs, steps = UW(2), [vector(3, 0.5), vector(2, 0.75), vector(1, 1.5)]
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.2)
    for losses, c in zip(steps, run(Uncertainty(0.1), steps)[0], strict=True):
        f = losses.float().requires_grad_()
        theirs(f).backward()
        assert f.grad is not None
        torch.testing.assert_close(c.float(), f.grad)  # ½ there, w here
        optimizer.step()
        optimizer.zero_grad()


def test_it_is_libmtl_s_from_its_start():
    # LibMTL 1.1.5, UW.backward with torch.optim.SGD(lr=0.2) on its loss_scale, which begins at −0.5.
    published = [
        vector(0.8243606353500641, 0.8243606353500641),
        vector(0.5555683907772304, 0.8389675551717131),
        vector(0.4916486625540800, 0.8175621314126441),
    ]
    found, _ = run(Uncertainty(0.1), [vector(3, 0.5), vector(2, 0.75), vector(1, 1.5)], start=-0.5)
    for c, expected in zip(found, published, strict=True):
        torch.testing.assert_close(c, expected, rtol=1e-12, atol=0)


def test_losses_at_rest_are_divided_by_themselves():
    f, w = vector(0.01, 3, 40), vector(0.2, 0.3, 0.5)
    found, s = run(Uncertainty(0.1), [f] * 1000, w)
    torch.testing.assert_close(s, f.log())
    torch.testing.assert_close(found[-1], w / f)


def test_a_loss_of_zero_and_an_outlier_leave_it_finite():
    _, s = run(Uncertainty(0.1), [vector(0, 1e30)])
    assert s.tolist() == [-0.1, 1.0]  # a step of 1 at most
    found, s = run(Uncertainty(0.1), [vector(0, 1e30)] * 300)
    assert s.tolist() == [-20, 20]
    assert found[-1][0].item() == pytest.approx(0.5 * math.exp(20))
    assert run(Uncertainty(0.1), [vector(1, 1)] * 300, start=20.0)[1].tolist() == pytest.approx([0, 0], abs=1e-3)


def test_an_absent_objective_keeps_its_variance_and_probabilities_divide_its_steps():
    weighting, mask, pi = Uncertainty(0.1), torch.tensor([True, False]), vector(0.5, 0.25)
    _, state = weighting.update(vector(2, 5), weighting.init(HALF), HALF, mask=mask, inclusion=pi)
    torch.testing.assert_close(state.log_variances, vector(0.2, 0))


def test_the_steps_of_s_are_unbiased():
    weighting, f, pi = Uncertainty(0.1), vector(2, 0.5), vector(0.5, 0.8)
    mean = torch.zeros(2, dtype=torch.float64)
    for present in torch.cartesian_prod(*[torch.tensor([False, True])] * 2):
        chance = torch.where(present, pi, 1 - pi).prod()
        _, state = weighting.update(f, weighting.init(f), HALF, mask=present, inclusion=pi)
        mean += chance * state.log_variances
    torch.testing.assert_close(mean, vector(0.1, -0.05))


def test_the_first_step_of_a_loop_is_that_of_the_weighted_sum():
    model = torch.nn.Linear(2, 2)
    mol = eq.MultiObjective(model, None, [0.25, 0.75], method="UW")
    losses = model(torch.ones(2)).square()
    torch.testing.assert_close(mol(losses), (torch.tensor([0.25, 0.75]) * losses).sum())


@pytest.mark.parametrize("eta", [-0.1, math.inf, math.nan])
def test_a_bad_rate_is_refused(eta: float):
    with pytest.raises(ValueError, match="step_size must be non-negative and finite; found"):
        Uncertainty(eta)
