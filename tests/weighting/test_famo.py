"""FAMO by hand, as its game, and against TorchJD."""

import math

import pytest
import torch
from tests.weighting.gradients import random, vector
from torch import Tensor
from torchjd import scalarization

from equipoise.weighting.famo import FAMO, FAMOState

HALF = vector(0.5, 0.5)


def run(weighting: FAMO, steps: list[Tensor], w: Tensor | None = None) -> tuple[list[Tensor], FAMOState]:
    """The coefficients of every step, and the last state."""
    w = torch.full_like(steps[0], 1 / steps[0].shape[-1]) if w is None else w
    state, found = weighting.init(steps[0]), []
    for losses in steps:
        c, state = weighting.update(losses, state, w)
        found.append(c)
    return found, state


def test_two_steps_by_hand():
    found, state = run(FAMO(0.1, decay=0.0), [vector(3, 1), vector(3, 0.5)])
    torch.testing.assert_close(found[0], vector(0.25, 0.75))
    # p = (0, ln 2), the gradient is ½(−½ ln 2, ½ ln 2): Adam's first step is its sign.
    slope = 0.25 * math.log(2)
    torch.testing.assert_close(state.logits, vector(0.1, -0.1), rtol=1e-6, atol=0)
    torch.testing.assert_close(state.mean, vector(-0.1 * slope, 0.1 * slope))
    torch.testing.assert_close(state.square, vector(0.001 * slope**2, 0.001 * slope**2))
    a, b = math.exp(0.1) / 3, math.exp(-0.1) / 0.5
    torch.testing.assert_close(found[1], vector(a / (a + b), b / (a + b)), rtol=1e-6, atol=0)


def test_the_second_step_of_adam_by_hand():
    # p₂ = (ln 3, 0) with z = softmax(0.1, −0.1); mean and square as of two gradients.
    _, state = run(FAMO(0.1, decay=0.0), [vector(3, 1), vector(3, 0.5), vector(1, 0.5)])
    z = 1 / (1 + math.exp(-0.2))
    first, second = -0.25 * math.log(2), z * (1 - z) * math.log(3)
    mean = (0.09 * first + 0.1 * second) / (1 - 0.81)
    square = (0.000999 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    torch.testing.assert_close(state.logits[0].item(), 0.1 - 0.1 * mean / math.sqrt(square), rtol=1e-6, atol=0)


@pytest.mark.parametrize("m", [2, 5])
@pytest.mark.parametrize("decay", [1e-3, 0.1])
def test_it_is_torchjd_s_where_the_next_losses_are_those_after_the_step(m: int, decay: float):
    steps = list(random(30, m).abs() + 0.1)
    theirs = scalarization.FAMO(m, lr=0.05, weight_decay=decay).double()
    for t, (losses, c) in enumerate(zip(steps, run(FAMO(0.05, decay), steps)[0], strict=True)):
        if t > 0:
            theirs.update(losses)
        f = losses.clone().requires_grad_()
        theirs(f).backward()
        torch.testing.assert_close(c, f.grad, rtol=1e-5, atol=1e-8)


def test_the_ideal_point_is_torchjd_s_least_losses():
    steps, least = list(random(8, 3).abs() + 0.5), vector(0.1, 0.2, -0.3)
    theirs = scalarization.FAMO(3, min_losses=least, lr=0.05).double()
    for t, (losses, c) in enumerate(zip(steps, run(FAMO(0.05, ideal=(0.1, 0.2, -0.3)), steps)[0], strict=True)):
        if t > 0:
            theirs.update(losses)
        f = losses.clone().requires_grad_()
        theirs(f).backward()
        torch.testing.assert_close(c, f.grad, rtol=1e-5, atol=1e-8)


def test_the_scale_of_a_loss_does_not_matter():
    steps, scale = list(random(6, 3).abs() + 0.1), vector(1, 1e3, 1e-3)
    plain, state = run(FAMO(0.1), steps)
    scaled, state_scaled = run(FAMO(0.1), [f * scale for f in steps])
    torch.testing.assert_close(state_scaled.logits, state.logits)
    for c, d in zip(plain, scaled, strict=True):
        torch.testing.assert_close(d, c / scale / (c / scale).sum())


def test_the_preference_multiplies_z():
    w = vector(0.2, 0.3, 0.5)
    found, _ = run(FAMO(0.1), [vector(2, 4, 5)], w)
    torch.testing.assert_close(found[0], vector(0.1, 0.075, 0.1) / 0.275)
    found, state = run(FAMO(), [vector(1, 1), vector(1, 1)], vector(0, 1))
    assert [c.tolist() for c in found] == [[0, 1], [0, 1]]
    assert state.logits.tolist() == [0, 0]


def test_losses_that_move_with_their_weight_end_with_equal_relative_rates():
    """f_i falls by the rate s_i z_i: FAMO finds z ∝ 1/s, whatever w is."""
    speed, f, w = vector(1, 4), vector(1, 1), vector(0.7, 0.3)
    weighting = FAMO(0.01, decay=0.0)
    state = weighting.init(f)
    for _ in range(3000):
        c, state = weighting.update(f, state, w)
        f = f * torch.exp(-0.001 * speed * c * f / (c * f).sum())
    z = c * f / (c * f).sum()
    torch.testing.assert_close(z, vector(0.8, 0.2), rtol=0, atol=0.02)


def test_an_absent_objective_is_not_compared():
    weighting, mask = FAMO(0.1, decay=0.0), torch.tensor([True, True, False])
    state = weighting.init(vector(1, 1, 1))
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    _, state = weighting.update(vector(4, 4, 4), state, third)
    c, state = weighting.update(vector(2, 1, math.nan), state, third, mask=mask)
    torch.testing.assert_close(state.logits, vector(0.1, -0.1, 0), rtol=1e-6, atol=0)
    assert state.previous.tolist() == [2, 1, 4]
    assert c.sum().item() == pytest.approx(1)


def test_a_loss_of_zero_leaves_it_finite():
    found, state = run(FAMO(), [vector(0, 1), vector(-1, 1), vector(1, 1)])
    torch.testing.assert_close(found[0], vector(1, 1e-8), rtol=1e-6, atol=0)
    assert state.logits.isfinite().all()


@pytest.mark.parametrize("name", ["step_size", "decay"])
def test_bad_settings_are_refused(name: str):
    with pytest.raises(ValueError, match=f"{name} must be non-negative and finite; found -1"):
        FAMO(**{name: -1.0})
