"""FedFV by hand, and on vectors as it was published."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.weighting.fedfv import FedFV, FedFVState

CONFLICT = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(m: int) -> Tensor:
    return torch.full((m,), 1.0 / m, dtype=torch.float64)


def coefficients(
    method: FedFV, losses: Tensor, rows: Tensor, preference: Tensor | None = None, after: int = 0, **extra
) -> Tensor:
    """In the round `after`, counted from 0."""
    w = uniform(losses.shape[-1]) if preference is None else preference
    state = FedFVState(torch.full_like(losses[..., :1], after))
    c, new = method.update(losses, state, w, gramian=rows @ rows.mT, **extra)
    assert torch.equal(new.step, state.step + 1)
    return c


def direction(method: FedFV, losses: Tensor, rows: Tensor, preference: Tensor | None = None, after: int = 0) -> Tensor:
    c = coefficients(method, losses, rows, preference, after)
    return (c.unsqueeze(-2) @ rows).squeeze(-2)


def by_vectors(method: FedFV, losses: Tensor, rows: Tensor, w: Tensor, after: int) -> Tensor:
    """The method as it is written, on the gradients themselves."""
    m = len(rows)
    order = losses.argsort().tolist()
    kept = order[math.ceil((m - 1) * (1 - method.alpha)) :] if method.alpha > 0 else []
    changed = rows.clone()
    for i in range(m):
        for j in order:
            if i in kept or j == i:
                continue
            dot = changed[i] @ rows[j]
            if dot < 0:
                changed[i] -= dot / rows[j].square().sum() * rows[j]
    mean = w @ changed
    if method.tau >= 1 and after >= method.tau:
        conflicting = [g for g in rows if mean @ g < -1e-12]
        if conflicting:
            total = torch.stack(conflicting).sum(0)
            mean = mean - (mean @ total) / total.square().sum() * total
    step: Tensor = mean / mean.norm() * (w @ rows).norm()
    return step


@pytest.mark.parametrize(("alpha", "first"), [(0.0, 0.1581139), (0.1, -0.1581139)])
def test_two_clients_by_hand(alpha: float, first: float):
    d = direction(FedFV(alpha), vector(1.0, 2.0), CONFLICT)
    torch.testing.assert_close(d, vector(first, 0.4743416), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.5, 5), (1.0, 10)])
def test_how_many_of_ten_keep_their_gradient(alpha: float, kept: int):
    """All conflict with all: what a client sends changes unless it is among the worst."""
    order = torch.arange(10, dtype=torch.float64)
    gram = torch.full((10, 10), -0.05, dtype=torch.float64) + 1.05 * torch.eye(10, dtype=torch.float64)
    rows = FedFV(alpha)._free_of_conflicts(gram, order.argsort(), torch.ones(10, dtype=torch.bool))
    same = (rows == torch.eye(10, dtype=torch.float64)).all(-1)
    assert same.tolist() == [False] * (10 - kept) + [True] * kept


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("tau", [0, 1, 3])
@pytest.mark.parametrize("m", [2, 5, 10])
def test_it_is_the_method_on_vectors(alpha: float, tau: int, m: int):
    method = FedFV(alpha, tau)
    for seed in range(4):
        losses, rows = random(m, seed=seed).exp(), random(m, 6, seed=seed + 50)
        w = torch.softmax(random(m, seed=seed + 90), -1)
        for after in (0, 1, 3):
            expected = by_vectors(method, losses, rows, w, after)
            torch.testing.assert_close(direction(method, losses, rows, w, after), expected, rtol=1e-9, atol=1e-11)


def test_external_conflicts_count_from_round_tau_on():
    losses, rows = random(6, seed=3).exp(), random(6, 3, seed=4)
    rounds = [coefficients(FedFV(0.5, 2), losses, rows, after=t) for t in range(4)]
    never = coefficients(FedFV(0.5, 0), losses, rows, after=7)
    assert torch.equal(rounds[0], never)
    assert torch.equal(rounds[1], never)
    assert not torch.equal(rounds[2], never)
    assert torch.equal(rounds[2], rounds[3])


def test_a_run_counts_its_rounds():
    method, losses, rows = FedFV(0.5, 1), random(6, seed=3).exp(), random(6, 3, seed=4)
    state = method.init(losses)
    for t in range(3):
        c, state = method.update(losses, state, uniform(6), gramian=rows @ rows.mT)
        assert torch.equal(c, coefficients(method, losses, rows, after=t))


def test_without_conflicts_it_is_averaging():
    rows, w = random(3, 5, 8).abs(), torch.softmax(random(3, 5, seed=1), -1)
    c = coefficients(FedFV(), random(3, 5, seed=2), rows, w, after=5)
    torch.testing.assert_close(c, w, rtol=1e-13, atol=0)


def test_the_length_is_that_of_the_mean():
    rows, losses = random(7, 6, 4), random(7, 6, seed=1)
    d = direction(FedFV(0.2), losses, rows, after=1)
    torch.testing.assert_close(d.norm(dim=-1), rows.mean(-2).norm(dim=-1), rtol=1e-9, atol=0)


def test_gradients_that_cancel_stop():
    rows = torch.stack([CONFLICT[0], -CONFLICT[0]])
    for scale in (1.0, 1e-8, 1e8):
        assert torch.equal(direction(FedFV(), vector(1.0, 2.0), scale * rows), vector(0.0, 0.0))
    c = coefficients(FedFV(0.0), vector(1.0, 2.0), 0 * rows)
    torch.testing.assert_close(c, vector(0.5, 0.5))


def test_a_zero_gradient_is_skipped():
    rows = torch.cat([CONFLICT, torch.zeros(1, 2, dtype=torch.float64)])
    d = direction(FedFV(0.0), vector(1.0, 2.0, 0.5), rows)
    torch.testing.assert_close(d, vector(0.1581139, 0.4743416) * 2 / 3, rtol=0, atol=1e-7)


def test_one_client_is_its_gradient():
    torch.testing.assert_close(coefficients(FedFV(), vector(2.0), vector(3.0).unsqueeze(-1)), vector(1.0))


def test_absent_clients_are_as_if_there_were_none():
    losses, rows, mask = random(6).exp(), random(6, 4, seed=1), torch.tensor([True, True, False, True, False, True])
    w = torch.softmax(random(6, seed=2), -1)
    for after in (0, 4):
        c = coefficients(FedFV(0.3), losses, rows, w, after, mask=mask)
        assert (c[~mask] == 0).all()
        alone = coefficients(FedFV(0.3), losses[mask], rows[mask], w[mask] / w[mask].sum(), after)
        torch.testing.assert_close(c[mask], w[mask].sum() * alone, rtol=1e-11, atol=1e-13)


def test_the_mean_of_sampled_clients_has_their_inclusion_probability():
    losses, pi = random(4).exp(), vector(0.5, 1.0, 0.25, 0.8)
    agree = random(4, 6, seed=1).abs()
    torch.testing.assert_close(coefficients(FedFV(), losses, agree, inclusion=pi), uniform(4) / pi, rtol=1e-12, atol=0)
    # The order is that of the losses, not of losses over probabilities.
    rows = CONFLICT
    c = coefficients(FedFV(0.1), vector(1.0, 2.0), rows, inclusion=vector(0.1, 1.0))
    kept = c[1] / c[0]
    assert kept == pytest.approx((0.5 + 10 * 0.5 * 0.5) / (10 * 0.5))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_round_that_is_not_finite_is_not_counted(bad: float):
    method, losses, rows = FedFV(), random(3, 4).exp(), random(3, 4, 5, seed=1)
    hurt_losses, hurt_rows = losses.clone(), rows.clone()
    hurt_losses[1, 2] = hurt_rows[1, 2, 0] = bad
    for f, J in ((hurt_losses, rows), (losses, hurt_rows)):
        c, state = method.update(f, method.init(f), uniform(4), gramian=J @ J.mT)
        assert torch.equal(c[1], torch.zeros(4, dtype=torch.float64))
        assert (c[[0, 2]] != 0).any()
        assert state.step.flatten().tolist() == [1.0, 0.0, 1.0]


def test_permuting_the_clients_permutes_the_coefficients():
    losses, rows, order = random(7).exp(), random(7, 4, seed=1), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    turned = coefficients(FedFV(0.3), losses[order], rows[order], after=2)
    torch.testing.assert_close(turned, coefficients(FedFV(0.3), losses, rows, after=2)[order], rtol=1e-10, atol=1e-12)


def test_batched_is_looped_and_alpha_may_be_swept():
    losses, rows, alpha = random(3, 2, 5).exp(), random(3, 2, 5, 4, seed=1), vector(0.0, 0.2, 1.0)
    c = coefficients(FedFV(alpha.unsqueeze(-1)), losses, rows, after=1)
    for i in range(3):
        for j in range(2):
            alone = coefficients(FedFV(alpha[i].item()), losses[i, j], rows[i, j], after=1)
            torch.testing.assert_close(c[i, j], alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\]; found 1\.5"),
        ({"alpha": math.nan}, r"alpha must lie in \[0, 1\]; found nan"),
        ({"tau": -1}, r"tau must be a non-negative whole number; found -1"),
        ({"tau": 0.5}, r"tau must be a non-negative whole number; found 0\.5"),
    ],
)
def test_bad_settings_are_refused(settings, message: str):
    with pytest.raises(ValueError, match=message):
        FedFV(**settings)


def test_a_state_of_another_batch_is_refused():
    method, rows = FedFV(), random(3, 4, 5)
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(3, 4\); found \(2, 1\)"):
        method.update(torch.ones(3, 4), method.init(torch.ones(2, 4)), uniform(4), gramian=rows @ rows.mT)
