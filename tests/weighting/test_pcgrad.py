"""PCGrad by hand, on vectors, and against TorchJD."""

import itertools
import math
from collections import Counter

import pytest
import torch
from tests.weighting.gradients import jacobians, random, vector
from torch import Tensor
from torchjd.aggregation import PCGradWeighting

from equipoise.weighting.pcgrad import PCGrad, PCGradState

CONFLICT = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)


def uniform(m: int) -> Tensor:
    return torch.full((m,), 1.0 / m, dtype=torch.float64)


def coefficients(method: PCGrad, rows: Tensor, preference: Tensor | None = None, after: int = 0, **extra) -> Tensor:
    """At the step `after`, counted from 0, for losses of 1 and the Gramian of `rows` (*B, m, d)."""
    losses = torch.ones(rows.shape[:-1], dtype=torch.float64)
    w = uniform(rows.shape[-2]) if preference is None else preference
    state = PCGradState(torch.full_like(losses[..., :1], after, dtype=torch.int64))
    c, new = method.update(losses, state, w, gramian=rows @ rows.mT, **extra)
    assert torch.equal(new.step, state.step + 1)
    return c


def order(method: PCGrad, m: int, after: int = 0) -> list[list[int]]:
    found: list[list[int]] = method.order(torch.tensor([after]), m).tolist()
    return found


def by_vectors(rows: Tensor, w: Tensor, orders: list[list[int]]) -> Tensor:
    """The method as it is written, on the gradients themselves."""
    changed = rows.clone()
    for i, others in enumerate(orders):
        for j in others:
            dot = changed[i] @ rows[j]
            if j != i and dot < 0:
                changed[i] -= dot / rows[j].square().sum() * rows[j]
    return w @ changed


def test_two_gradients_by_hand():
    # g̃₁ = (1/2, 1/2), g̃₂ = (0, 1): the published sum.
    torch.testing.assert_close(2 * coefficients(PCGrad(), CONFLICT) @ CONFLICT, vector(0.5, 1.5))
    torch.testing.assert_close(
        coefficients(PCGrad(), CONFLICT, vector(0.25, 0.75)) @ CONFLICT, vector(0.125, 0.125 + 0.75)
    )


@pytest.mark.parametrize("m", [2, 3, 6])
def test_it_is_the_method_on_vectors(m: int):
    for kind, batch in jacobians(m).items():
        for seed, rows in enumerate(batch):
            w = torch.softmax(random(m, seed=seed), -1)
            method = PCGrad(seed)
            found = coefficients(method, rows, w, after=3) @ rows
            torch.testing.assert_close(found, by_vectors(rows, w, order(method, m, 3)), rtol=1e-9, atol=1e-11, msg=kind)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6])
def test_it_is_torchjd_s_up_to_the_factor_m(m: int, monkeypatch):
    method = PCGrad(5)
    for batch in jacobians(m).values():
        for rows in batch:
            draws = iter(torch.tensor(order(method, m)))
            monkeypatch.setattr(torch, "randperm", lambda n, draws=draws: next(draws)[:n])
            theirs = PCGradWeighting()(rows @ rows.mT)
            torch.testing.assert_close(m * coefficients(method, rows), theirs, rtol=1e-10, atol=1e-11)


def test_orders_are_uniform_and_differ_between_rows_steps_and_seeds():
    steps = 6000
    drawn = PCGrad(1).order(torch.arange(steps).unsqueeze(-1), 3)
    for row in drawn.unbind(-2):
        counts = Counter(map(tuple, row.tolist()))
        assert counts.keys() == set(itertools.permutations(range(3)))
        # χ² with 5 degrees of freedom: 25.7 once in ten thousand draws.
        assert sum((n - steps / 6) ** 2 / (steps / 6) for n in counts.values()) < 25.7
    for other in (drawn[1:, 0] == drawn[:-1, 0], drawn[:, 0] == drawn[:, 1], drawn == another_seed(steps)):
        assert other.all(-1).double().mean().item() == pytest.approx(1 / 6, abs=0.03)


def another_seed(steps: int) -> Tensor:
    return PCGrad(2).order(torch.arange(steps).unsqueeze(-1), 3)


def test_a_run_draws_anew_at_every_step_and_can_be_repeated():
    method, rows, losses = PCGrad(3), random(5, 4, seed=8), torch.ones(5, dtype=torch.float64)
    state, run = method.init(losses), []
    for t in range(5):
        c, state = method.update(losses, state, uniform(5), gramian=rows @ rows.mT)
        assert torch.equal(c, coefficients(method, rows, after=t))
        run.append(c)
    assert any(not torch.equal(run[0], c) for c in run[1:])


def test_permuting_two_objectives_permutes_the_coefficients():
    rows, w = random(4, 2, 3, seed=1), vector(0.3, 0.7)
    turned = coefficients(PCGrad(), rows.flip(-2), w.flip(-1))
    torch.testing.assert_close(turned, coefficients(PCGrad(), rows, w).flip(-1))


def test_without_conflicts_it_is_the_weighted_mean():
    rows, w = random(3, 5, 8).abs(), torch.softmax(random(3, 5, seed=1), -1)
    assert torch.equal(coefficients(PCGrad(), rows, w), w)


def test_a_zero_gradient_conflicts_with_none():
    rows = torch.cat([CONFLICT, torch.zeros(1, 2, dtype=torch.float64)])
    torch.testing.assert_close(coefficients(PCGrad(), rows), vector(2.0, 1.5, 1.0) / 3)


def test_absent_objectives_are_as_if_there_were_none():
    rows, w = random(4, 3, seed=3), vector(0.1, 0.2, 0.3, 0.4)
    mask, hidden = torch.tensor([True, False, True, True]), rows.clone()
    hidden[1] = math.nan
    c = coefficients(PCGrad(), hidden, w, mask=mask)
    assert c[1] == 0
    expected = by_vectors(rows * mask.unsqueeze(-1) + ~mask.unsqueeze(-1) * 1e-300, w * mask, order(PCGrad(), 4))
    torch.testing.assert_close(c @ rows, expected, rtol=1e-10, atol=1e-12)


def test_a_step_that_is_not_finite_is_not_counted():
    method, losses = PCGrad(), torch.ones(3, 2, dtype=torch.float64)
    losses[1, 0] = math.nan
    c, state = method.update(losses, method.init(losses), uniform(2), gramian=(CONFLICT @ CONFLICT.mT).expand(3, 2, 2))
    assert state.step.flatten().tolist() == [1, 0, 1]
    assert c[1].tolist() == [0, 0]


@pytest.mark.parametrize("seed", [-1, 0.5, 2**63])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed must be a whole number in \[0, 2\^63\); found"):
        PCGrad(seed)
