"""GradNorm by hand, as a gradient that autograd finds, and against LibMTL."""

import math

import pytest
import torch
from tests.weighting.gradients import random, vector
from torch import Tensor

from equipoise.weighting.gradnorm import GradNorm, GradNormState

HALF = vector(0.5, 0.5)


def run(
    weighting: GradNorm, steps: list[Tensor], lengths: Tensor, w: Tensor | None = None
) -> tuple[list[Tensor], GradNormState]:
    """The coefficients of every step, for gradients of these lengths, and the last state."""
    w = torch.full_like(steps[0], 1 / steps[0].shape[-1]) if w is None else w
    state, found = weighting.init(steps[0]), []
    for losses in steps:
        c, state = weighting.update(losses, state, w, gramian=torch.diag(lengths.square()))
        found.append(c)
    return found, state


def test_two_steps_by_hand():
    found, state = run(GradNorm(alpha=1.0, step_size=0.1), [vector(2, 4), vector(1, 4)], vector(3, 1))
    torch.testing.assert_close(found[0], HALF)
    # First r = 1: G = (3, 1) around 2, so v ∝ (exp(−0.1·1.5), exp(0.1·0.5)).
    a, b = math.exp(-0.15), math.exp(0.05)
    torch.testing.assert_close(found[1], vector(a, b) / (a + b))
    assert state.baseline.tolist() == [2, 4]
    # f/f⁽⁰⁾ = (½, 1), r = (⅔, 4/3); G = v∘(3, 1) = (2.70, 1.10) around 1.90·r = (1.27, 2.53): the same signs.
    v = math.exp(2 * -0.15) / (math.exp(2 * -0.15) + math.exp(2 * 0.05))
    torch.testing.assert_close(state.log_weights.exp(), vector(v, 1 - v))


def test_progress_can_outweigh_length():
    # f/f⁽⁰⁾ = (1, 0.1), r = (20/11, 2/11): G = (3, 1) around (3.64, 0.36). The longer one lags behind, and gets more.
    state = GradNormState(HALF.log(), vector(1, 1))
    c, state = GradNorm(1.0, 0.1).update(vector(1, 0.1), state, HALF, gramian=torch.diag(vector(9, 1)))
    torch.testing.assert_close(c, HALF)
    a, b = math.exp(0.15), math.exp(-0.05)
    torch.testing.assert_close(state.log_weights.exp(), vector(a, b) / (a + b))


def by_autograd(v: Tensor, lengths: Tensor, r: Tensor, alpha: float) -> Tensor:
    """The gradient of the published loss, the target being a constant."""
    v = v.clone().requires_grad_()
    G = v * lengths
    target = (G.mean() * r**alpha).detach()
    (found,) = torch.autograd.grad((G - target).abs().sum(), v)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.12, 1.5])
def test_it_is_the_published_step_to_first_order(alpha: float):
    """From v = 1: subtract η times the gradient, here over the mean length, then renormalise."""
    lengths, first, now = (random(5, seed=seed).abs() + 0.1 for seed in range(3))
    eta = 1e-6
    weighting = GradNorm(alpha, eta)
    _, state = run(weighting, [first], torch.zeros_like(lengths))  # without gradients only f⁽⁰⁾ is set
    torch.testing.assert_close(state.log_weights.exp() * 5, torch.ones(5, dtype=torch.float64))
    _, state = weighting.update(now, state, vector(*[0.2] * 5), gramian=torch.diag(lengths.square()))
    r = now / first / (now / first).mean()
    v = 1 - eta * by_autograd(torch.ones_like(lengths), lengths, r, alpha) / lengths.mean()
    torch.testing.assert_close(5 * state.log_weights.exp(), 5 * v / v.sum(), rtol=0, atol=1e-11)


def test_it_moves_as_libmtl_s_does_at_equal_weights():
    # LibMTL 1.1.5, GradNorm.backward with alpha=1.5, losses (8, 1.8, 2) after (10, 2, 4) in its first epoch, and
    # gradients of the lengths 5, 1 and 2: the gradient of its loss_scale, whose softmax times m are the weights.
    published, mean_length, eta = vector(3, -3, 0), 8 / 3, 1e-6
    weighting = GradNorm(1.5, eta)
    state = weighting.init(vector(1, 1, 1))._replace(baseline=vector(10, 2, 4))
    gramian = torch.diag(vector(25, 1, 4))
    _, state = weighting.update(vector(8, 1.8, 2), state, vector(1, 1, 1) / 3, gramian=gramian)
    torch.testing.assert_close((1 - 3 * state.log_weights.exp()) / eta * mean_length, published, rtol=0, atol=1e-4)


def test_lengths_become_as_the_preference_where_all_progress_alike():
    lengths, w = vector(1, 3, 0.5), vector(0.2, 0.3, 0.5)
    found, _ = run(GradNorm(step_size=1e-3), [vector(3, 1, 7)] * 4000, lengths, w)
    added = found[-1] * lengths
    torch.testing.assert_close(added / added.sum(), w, rtol=0, atol=5e-3)


def test_weights_sum_to_m_and_stay_positive():
    found, _ = run(GradNorm(step_size=3.0), list(random(50, 4).abs()), vector(1e6, 1, 1e-6, 0))
    for c in found:
        assert c.sum().item() == pytest.approx(1)
        assert (c > 0).all()


def test_who_is_absent_takes_no_part():
    weighting, third = GradNorm(1.0, 0.1), torch.full((3,), 1 / 3, dtype=torch.float64)
    mask = torch.tensor([True, True, False])
    gramian = torch.full((3, 3), math.nan, dtype=torch.float64)
    gramian[:2, :2] = torch.diag(vector(9, 1))
    c, state = weighting.update(vector(2, 4, math.nan), weighting.init(third), third, mask=mask, gramian=gramian)
    torch.testing.assert_close(c, vector(1, 1, 0) / 3)
    assert state.baseline.tolist() == [2, 4, 0]
    moved = vector(-0.15, 0.05, 0)
    torch.testing.assert_close(state.log_weights, moved - moved.logsumexp(-1))
    _, state = weighting.update(vector(2, 4, 5), state, third, gramian=torch.eye(3))
    assert state.baseline.tolist() == [2, 4, 5]  # its first loss


def test_a_loss_of_zero_is_no_start():
    weighting = GradNorm()
    _, state = weighting.update(vector(0, 1), weighting.init(HALF), HALF, gramian=torch.eye(2))
    assert state.baseline.tolist() == [0, 1]
    _, state = weighting.update(vector(3, 0), state, HALF, gramian=torch.eye(2))
    assert state.baseline.tolist() == [3, 1]


def test_gradients_that_are_not_finite_leave_the_state_as_it_was():
    weighting, state = GradNorm(), GradNormState(vector(0.2, 0.8).log(), vector(1, 1))
    c, new = weighting.update(vector(1, 2), state, HALF, gramian=torch.full((2, 2), math.inf))
    torch.testing.assert_close(c, vector(0.2, 0.8))
    assert torch.equal(new.log_weights, state.log_weights)


def test_settings_can_differ_across_the_batch():
    losses, lengths, third = random(4, 3, seed=1).abs(), vector(1, 3, 0.5), torch.full((3,), 1 / 3, dtype=torch.float64)
    alpha, eta = vector(0, 0.5, 3), vector(0.1, 0.3, 1)
    swept, state = GradNorm(alpha, eta), GradNorm().init(losses[0].expand(3, 3))
    gramian = torch.diag(lengths.square())
    for f in losses:
        _, state = swept.update(f.expand(3, 3), state, third, gramian=gramian.expand(3, 3, 3))
    for row in range(3):
        _, alone = run(GradNorm(alpha[row].item(), eta[row].item()), list(losses), lengths)
        torch.testing.assert_close(state.log_weights[row], alone.log_weights)


@pytest.mark.parametrize("name", ["alpha", "step_size"])
def test_bad_settings_are_refused(name: str):
    with pytest.raises(ValueError, match=f"{name} must be non-negative and finite; found -1"):
        GradNorm(**{name: -1.0})
