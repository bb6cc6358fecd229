"""q-FFL by hand, and the step as it was published."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.weighting.protocol import Stateless
from equipoise.weighting.qffl import QFFL


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def uniform(m: int) -> Tensor:
    return torch.full((m,), 1.0 / m, dtype=torch.float64)


def coefficients(method: QFFL, losses: Tensor, gramian: Tensor, preference: Tensor | None = None, **extra) -> Tensor:
    w = uniform(losses.shape[-1]) if preference is None else preference
    c, state = method.update(losses, method.init(losses), w, gramian=gramian, **extra)
    assert state == Stateless()
    return c


def published_step(q: float, eta: float, losses: Tensor, rows: Tensor) -> Tensor:
    """Σ L^q g / Σ h, client by client."""
    step, total = torch.zeros_like(rows[0]), 0.0
    for L, g in zip(losses.tolist(), rows, strict=True):
        step = step + L**q * g
        total += q * L ** (q - 1) * g.square().sum().item() + L**q / eta
    return step / total


def test_by_hand():
    # θ = 0, θ_i = (−0.1, −0.3), so g = (1, 3): Σ L g = 13, Σ h = (1 + 10) + (9 + 40) = 60.
    g = vector(1.0, 3.0)
    c = coefficients(QFFL(q=1.0, step_size=0.1), vector(1.0, 4.0), torch.outer(g, g))
    assert 0.1 * (c @ g).item() == pytest.approx(13 / 60, abs=1e-15)
    torch.testing.assert_close(c, vector(1 / 6, 4 / 6))


@pytest.mark.parametrize("q", [0.001, 0.1, 1.0, 5.0])
def test_the_step_is_the_published_one(q: float):
    losses, rows = draw(6), draw(6, 9, seed=1)
    c = coefficients(QFFL(q, 0.3), losses, rows @ rows.mT)
    torch.testing.assert_close(0.3 * c @ rows, published_step(q, 0.3, losses, rows), rtol=1e-12, atol=0)


def test_q_zero_is_averaging():
    w = torch.softmax(draw(3, 5, seed=2), -1)
    rows = 100 * draw(3, 5, 7, seed=3)
    torch.testing.assert_close(coefficients(QFFL(0.0), draw(3, 5), rows @ rows.mT, w), w, rtol=1e-14, atol=0)


def test_the_preference_weighs_the_objective():
    """A client of weight 2/3 is two clients of weight 1/3 each."""
    rows = draw(2, 4, seed=4)
    twice = rows[[0, 1, 1]]
    losses = vector(0.5, 1.5)
    merged = coefficients(QFFL(2.0), losses, rows @ rows.mT, vector(1 / 3, 2 / 3))
    split = coefficients(QFFL(2.0), losses[[0, 1, 1]], twice @ twice.mT)
    torch.testing.assert_close(merged, torch.stack([split[0], split[1:].sum()]), rtol=1e-13, atol=0)


def test_the_larger_q_the_more_the_worst_client_counts():
    losses, K = vector(1.0, 2.0, 3.0), torch.eye(3, dtype=torch.float64)
    shares = [coefficients(QFFL(q), losses, K) for q in (0.0, 0.1, 1.0, 10.0, 1000.0)]
    worst = [(c[2] / c.sum()).item() for c in shares]
    assert worst == sorted(worst)
    assert worst[0] == pytest.approx(1 / 3)
    assert worst[-1] == pytest.approx(1.0)
    assert all(c.sum() < 1 for c in shares[1:])


@pytest.mark.parametrize("q", [0.1, 1.0, 50.0])
def test_the_scale_of_the_losses_does_not_overflow(q: float):
    """With gradients that scale as the losses do, L → sL at the step η/s is the same step."""
    losses, rows = draw(4), draw(4, 5, seed=5)
    plain = coefficients(QFFL(q, 0.1), losses, rows @ rows.mT)
    for s in (1e-6, 1e6, 1e30):
        scaled = coefficients(QFFL(q, 0.1 / s), s * losses, s**2 * (rows @ rows.mT))
        torch.testing.assert_close(scaled, plain, rtol=1e-10, atol=0)


def test_a_loss_of_zero_is_finite():
    K = torch.eye(3, dtype=torch.float64)
    for losses in (vector(0.0, 1.0, 2.0), vector(0.0, 0.0, 0.0), vector(-1.0, 1.0, 2.0)):
        for q in (0.0, 0.1, 1.0, 5.0):
            c = coefficients(QFFL(q), losses, K)
            assert torch.isfinite(c).all()
            assert (c >= 0).all()
    # L^(q−1) of the floor makes h large: the step is short.
    assert coefficients(QFFL(0.1), vector(0.0, 1.0, 2.0), K).sum() < 1e-6


def test_without_gradients_it_is_the_share_of_the_powers():
    c = coefficients(QFFL(1.0), vector(1.0, 3.0), torch.zeros(2, 2, dtype=torch.float64))
    torch.testing.assert_close(c, vector(0.25, 0.75))


def test_only_the_diagonal_is_read():
    K, losses = draw(4, 4, seed=6), draw(4)
    assert torch.equal(coefficients(QFFL(), losses, K), coefficients(QFFL(), losses, K.diagonal().diag()))


def test_absent_clients_are_as_if_there_were_none():
    losses, rows, mask = draw(5), draw(5, 6, seed=7), torch.tensor([True, False, True, True, False])
    c = coefficients(QFFL(0.7), losses, rows @ rows.mT, mask=mask)
    assert (c[~mask] == 0).all()
    fewer = rows[mask]
    torch.testing.assert_close(c[mask], coefficients(QFFL(0.7), losses[mask], fewer @ fewer.mT), rtol=1e-13, atol=0)


def test_inclusion_is_a_weight_in_both_sums():
    losses, rows, pi = draw(4), draw(4, 6, seed=8), vector(0.5, 1.0, 0.25, 1.0)
    c = coefficients(QFFL(0.7), losses, rows @ rows.mT, inclusion=pi)
    tilted = (1 / pi) / (1 / pi).sum()
    torch.testing.assert_close(c, coefficients(QFFL(0.7), losses, rows @ rows.mT, tilted), rtol=1e-13, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_gives_coefficients_that_are(bad: float):
    K = torch.eye(3, dtype=torch.float64)
    hurt = K.clone()
    hurt[1, 1] = bad
    for c in (coefficients(QFFL(), vector(1.0, bad, 2.0), K), coefficients(QFFL(), vector(1.0, 1.0, 2.0), hurt)):
        assert torch.isfinite(c).all()


def test_settings_may_be_swept():
    losses, rows = draw(3, 2, 4), draw(3, 2, 4, 5, seed=9)
    K = rows @ rows.mT
    q, eta = vector(0.0, 0.5, 3.0), vector(0.1, 1.0)
    c = coefficients(QFFL(q.unsqueeze(-1), eta), losses, K)
    for i in range(3):
        for j in range(2):
            alone = coefficients(QFFL(q[i].item(), eta[j].item()), losses[i, j], K[i, j])
            torch.testing.assert_close(c[i, j], alone, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"q": -0.1}, r"q must be non-negative and finite; found -0\.1"),
        ({"q": math.inf}, r"q must be non-negative and finite; found inf"),
        ({"step_size": 0.0}, r"step_size must be positive and finite; found 0\.0"),
        ({"step_size": math.nan}, r"step_size must be positive and finite; found nan"),
    ],
)
def test_bad_settings_are_refused(settings, message: str):
    with pytest.raises(ValueError, match=message):
        QFFL(**settings)


def test_a_gramian_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"gramian must have shape \(\*B, m, m\) = \(3, 3\); found \(3, 2\)"):
        coefficients(QFFL(), draw(3), draw(3, 2))
