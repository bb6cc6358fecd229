"""FedMGDA+ by hand and at the ends of its ε."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.minnorm import min_norm
from equipoise.weighting.fedmgda import FedMGDAPlus
from equipoise.weighting.protocol import Stateless


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(m: int) -> Tensor:
    return torch.full((m,), 1.0 / m, dtype=torch.float64)


def coefficients(method: FedMGDAPlus, rows: Tensor, preference: Tensor | None = None, **extra) -> Tensor:
    losses = torch.ones(rows.shape[:-1], dtype=torch.float64)
    w = uniform(rows.shape[-2]) if preference is None else preference
    c, state = method.update(losses, method.init(losses), w, gramian=rows @ rows.mT, **extra)
    assert state == Stateless()
    return c


def units(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=-1, keepdim=True)
    return unit


THREE = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(("epsilon", "third"), [(1.0, 0.5), (0.1, 0.4333333333333333), (0.0, 1 / 3)])
def test_three_clients_by_hand(epsilon: float, third: float):
    expected = vector((1 - third) / 2, (1 - third) / 2, third)
    for aggregate in ("directions", "models"):
        torch.testing.assert_close(coefficients(FedMGDAPlus(epsilon, aggregate), THREE), expected)
    # Longer updates have the same directions, and a unit step for each.
    longer = vector(2.0, 5.0, 0.1).unsqueeze(-1) * THREE
    torch.testing.assert_close(coefficients(FedMGDAPlus(epsilon, "models"), longer), expected)
    torch.testing.assert_close(coefficients(FedMGDAPlus(epsilon), longer), expected / vector(2.0, 5.0, 0.1))


def test_two_clients_share_evenly_whatever_they_send():
    rows = random(50, 2, 3)
    rows[0, 1] = 2 * rows[0, 0]
    rows[1, 1] = -3 * rows[1, 0]
    a = coefficients(FedMGDAPlus(1.0, "models"), rows)
    torch.testing.assert_close(a, torch.full_like(a, 0.5), rtol=1e-9, atol=0)


def test_epsilon_zero_is_averaging():
    rows, w = random(4, 5, 7), torch.softmax(random(4, 5, seed=1), -1)
    torch.testing.assert_close(coefficients(FedMGDAPlus(0.0, "models"), rows, w), w, rtol=1e-14, atol=0)
    expected = w / rows.norm(dim=-1)
    torch.testing.assert_close(coefficients(FedMGDAPlus(0.0), rows, w), expected, rtol=1e-13, atol=0)


def test_epsilon_one_is_mgda_on_unit_updates():
    rows = random(6, 5, 9) * 10 ** random(6, 5, 1, seed=2)
    a = coefficients(FedMGDAPlus(1.0, "models"), rows)
    torch.testing.assert_close(a, min_norm(units(rows) @ units(rows).mT), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.5])
def test_weights_stay_near_the_preference(epsilon: float):
    rows, w = random(8, 6, 4), torch.softmax(random(8, 6, seed=3), -1)
    a = coefficients(FedMGDAPlus(epsilon, "models"), rows, w)
    assert ((a - w).abs() <= epsilon + 1e-12).all()
    assert (a >= 0).all()
    torch.testing.assert_close(a.sum(-1), torch.ones(8, dtype=torch.float64))
    assert ((a - w).abs().amax(-1) > 0.9 * min(epsilon, 0.1)).any()


def test_the_step_along_directions_is_no_longer_than_one():
    rows = 1e3 * random(8, 6, 4)
    d = (coefficients(FedMGDAPlus(0.3), rows).unsqueeze(-2) @ rows).squeeze(-2)
    mean = units(rows).mean(-2)
    assert (d.norm(dim=-1) <= mean.norm(dim=-1) + 1e-12).all()


def test_a_zero_update_has_no_direction():
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    expected = vector(7 / 30, 16 / 30, 7 / 30)
    torch.testing.assert_close(coefficients(FedMGDAPlus(0.2), rows), expected)
    assert torch.isfinite(coefficients(FedMGDAPlus(0.2), 0 * rows)).all()


def test_absent_clients_are_as_if_there_were_none():
    rows, w = random(5, 6), torch.softmax(random(5, seed=4), -1)
    mask = torch.tensor([True, False, True, True, False])
    for aggregate in ("directions", "models"):
        method = FedMGDAPlus(0.15, aggregate)
        c = coefficients(method, rows, w, mask=mask)
        assert (c[~mask] == 0).all()
        alone = coefficients(method, rows[mask], w[mask] / w[mask].sum())
        torch.testing.assert_close(c[mask], alone, rtol=1e-11, atol=1e-13)
    only = coefficients(FedMGDAPlus(0.1, "models"), rows, vector(0.5, 0.0, 0.5, 0.0, 0.0), mask=~mask)
    torch.testing.assert_close(only, vector(0.0, 0.5, 0.0, 0.0, 0.5))


def test_coefficients_are_divided_by_the_inclusion_probability():
    rows, pi = random(4, 6), vector(0.5, 1.0, 0.25, 0.8)
    for aggregate in ("directions", "models"):
        method = FedMGDAPlus(0.15, aggregate)
        c = coefficients(method, rows, inclusion=pi)
        torch.testing.assert_close(c, coefficients(method, rows) / pi, rtol=1e-11, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_moves_nothing_and_hurts_nobody_else(bad: float):
    rows = random(3, 4, 5)
    clean = coefficients(FedMGDAPlus(), rows)
    hurt = rows.clone()
    hurt[1, 2] = bad
    c = coefficients(FedMGDAPlus(), hurt)
    assert torch.equal(c[1], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(c[[0, 2]], clean[[0, 2]], rtol=1e-12, atol=0)


def test_permuting_the_clients_permutes_the_coefficients():
    rows, order = random(7, 3), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for epsilon in (0.05, 0.3, 1.0):
        turned = coefficients(FedMGDAPlus(epsilon), rows[order])
        torch.testing.assert_close(turned, coefficients(FedMGDAPlus(epsilon), rows)[order], rtol=1e-9, atol=1e-11)


def test_epsilon_may_be_swept():
    rows, epsilon = random(3, 2, 4, 5), vector(0.0, 0.1, 1.0)
    c = coefficients(FedMGDAPlus(epsilon.unsqueeze(-1)), rows)
    for i in range(3):
        alone = coefficients(FedMGDAPlus(epsilon[i].item()), rows[i])
        torch.testing.assert_close(c[i], alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": -0.1}, r"epsilon must lie in \[0, 1\]; found -0\.1"),
        ({"epsilon": math.nan}, r"epsilon must lie in \[0, 1\]; found nan"),
        ({"aggregate": "mean"}, r"aggregate must be one of \('directions', 'models'\); found mean"),
    ],
)
def test_bad_settings_are_refused(settings, message: str):
    with pytest.raises(ValueError, match=message):
        FedMGDAPlus(**settings)
