"""Dynamic weight average by hand, and against TorchJD and LibMTL."""

import math

import pytest
import torch
from tests.weighting.gradients import random, vector
from torch import Tensor
from torchjd import scalarization

from equipoise.weighting.dwa import DWA, DWAState

HALF = vector(0.5, 0.5)


def run(weighting: DWA, steps: list[Tensor], w: Tensor | None = None, mask: Tensor | None = None) -> list[Tensor]:
    """The coefficients of every step."""
    w = torch.full_like(steps[0], 1 / steps[0].shape[-1]) if w is None else w
    state, found = weighting.init(steps[0]), []
    for t, losses in enumerate(steps):
        c, state = weighting.update(losses, state, w, mask=None if mask is None else mask[t])
        found.append(c)
    return found


def weights(r: list[float], T: float = 2.0) -> Tensor:
    """m·softmax(r/T), written out."""
    powers = [math.exp(x / T) for x in r]
    return vector(*(len(r) * x / sum(powers) for x in powers))


def test_two_epochs_of_one_step_by_hand():
    found = run(DWA(1), [vector(2, 2), vector(1, 2), vector(4, 1), vector(1, 1)])
    for c in found[:2]:
        torch.testing.assert_close(c, HALF)
    # exp(¼)/(exp(¼) + exp(½)) = 0.4378234991.
    torch.testing.assert_close(found[2], vector(0.4378234991, 0.5621765009), rtol=0, atol=1e-10)
    torch.testing.assert_close(found[3], 0.5 * weights([4, 0.5]))  # f⁽³⁾/f⁽²⁾


def test_an_epoch_is_a_mean():
    steps = [vector(2, 1), vector(6, 3), vector(1, 3), vector(1, 3), vector(9, 9), vector(5, 5), vector(1, 1)]
    found = run(DWA(2), steps, vector(0.25, 0.75))
    for c in found[:4]:
        torch.testing.assert_close(c, vector(0.25, 0.75))
    for c in found[4:6]:  # means (4, 2), then (1, 3)
        torch.testing.assert_close(c, vector(0.25, 0.75) * weights([0.25, 1.5]))
    torch.testing.assert_close(found[6], vector(0.25, 0.75) * weights([7, 7 / 3]))


@pytest.mark.parametrize("epoch", [1, 3])
def test_it_is_torchjd_s_over_m(epoch: int):
    theirs, steps = scalarization.DWA(temperature=1.5), list(random(12, 4).abs() + 0.1)
    for t, (losses, c) in enumerate(zip(steps, run(DWA(epoch, 1.5), steps), strict=True)):
        f = losses.clone().requires_grad_()
        theirs(f).backward()
        assert f.grad is not None
        torch.testing.assert_close(4 * c, f.grad)
        if (t + 1) % epoch == 0:
            theirs.step()


def test_it_is_libmtl_s_over_m():
    # LibMTL 1.1.5, DWA.backward with T=2 and these epoch means in its train_loss_buffer; its weights are float32.
    published = [
        vector(1, 1, 1),
        vector(1, 1, 1),
        vector(0.7628257274627686, 0.9794875383377075, 1.2576868534088135),
        vector(0.43749505281448364, 0.3407215178012848, 2.221783399581909),
    ]
    means = [vector(4, 1, 0.5), vector(2, 1, 0.75), vector(1.5, 0.25, 3), vector(1, 1, 1)]
    for c, expected in zip(run(DWA(1), means), published, strict=True):
        torch.testing.assert_close(3 * c, expected, rtol=1e-6, atol=0)


def test_losses_that_fall_alike_are_a_weighted_sum():
    w, start = vector(0.2, 0.3, 0.5), vector(1, 100, 1e-3)
    for c in run(DWA(1), [start * 0.9**t for t in range(6)], w):
        torch.testing.assert_close(c, w)


def test_the_temperature_decides_how_far_weights_spread():
    steps = [vector(2, 2), vector(1, 2), vector(1, 2)]
    cold, hot = (run(DWA(1, temperature), steps)[-1] for temperature in (0.01, 100.0))
    torch.testing.assert_close(cold, vector(0, 1))
    torch.testing.assert_close(hot, HALF, rtol=0, atol=2e-3)


def test_a_ratio_to_nothing_counts_as_one():
    found = run(DWA(1), [vector(0, 1), vector(1, 1), vector(1, 1)])
    torch.testing.assert_close(found[-1], HALF)


def test_an_objective_that_is_absent_has_longer_epochs():
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    found = run(DWA(1), [vector(2, 4), vector(1, math.nan), vector(1, 1), vector(1, 1)], mask=mask)
    torch.testing.assert_close(found[2], 0.5 * weights([0.5, 1]))  # of the second there is one epoch
    torch.testing.assert_close(found[3], 0.5 * weights([1, 0.25]))  # 4, then 1
    state = DWAState(*(vector(1, 1) for _ in range(4)))
    _, after = DWA(5).update(vector(3, 3), state, HALF, mask=torch.tensor([True, False]))
    assert (after.total.tolist(), after.observed.tolist()) == ([4, 1], [2, 1])


@pytest.mark.parametrize("epoch", [0, -1, 2.5])
def test_a_bad_epoch_is_refused(epoch):
    with pytest.raises(ValueError, match="epoch must be a whole number of steps, at least 1; found"):
        DWA(epoch)


def test_a_bad_temperature_is_refused():
    with pytest.raises(ValueError, match=r"temperature must be positive and finite; found 0\.0"):
        DWA(1, 0.0)
