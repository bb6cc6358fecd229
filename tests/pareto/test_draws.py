"""Preferences that are drawn: spread evenly, uniform, the same for the same seed."""

import pytest
import torch

from equipoise.errors import BalanceWarning
from equipoise.pareto import spread_uniform
from equipoise.pareto.draws import RowCount, draw_preferences


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_two_objectives_have_one_in_each_interval():
    for seed in range(5):
        w = spread_uniform(37, 2, generator(seed))
        assert (37 * w[:, 0]).floor().sort().values.tolist() == list(range(37))


@pytest.mark.parametrize("m", [2, 3, 5, 10])
def test_every_draw_is_in_the_simplex_and_uniform(m: int):
    w = torch.cat([spread_uniform(50, m, generator(seed)) for seed in range(400)])
    torch.testing.assert_close(w.sum(-1), torch.ones(len(w), dtype=torch.float64))
    assert (w >= 0).all()
    # Of Dirichlet(1, …, 1): mean 1/m, variance (m − 1)/(m²(m + 1)), in every coordinate.
    torch.testing.assert_close(w.mean(0), torch.full((m,), 1 / m).double(), rtol=0.02, atol=0)
    variance = (m - 1) / (m * m * (m + 1))
    torch.testing.assert_close(w.var(0), torch.full((m,), variance).double(), rtol=0.06, atol=0)


def test_three_objectives_are_spread_more_evenly_than_by_chance():
    """Of 64 preferences, each of 16 triangles of equal size gets some."""
    misses = 0
    for seed in range(50):
        w = spread_uniform(64, 3, generator(seed))
        cells = {tuple((4 * row).floor().tolist()) for row in w}
        misses += len(cells) < 16
    assert misses == 0  # by chance 64 draws leave one of 16 cells empty in one of four trials


def test_rows_come_in_random_order():
    w = spread_uniform(100, 2, generator(0))[:, 0]
    rank = w.argsort().argsort().double()
    assert abs(torch.corrcoef(torch.stack([rank, torch.arange(100.0).double()]))[0, 1]) < 0.3


def test_the_key_alone_decides():
    one, same = (draw_preferences(8, 3, 0.05, None, (1, 0, 7)) for _ in range(2))
    assert torch.equal(one, same)
    for key in [(2, 0, 7), (1, 1, 7), (1, 0, 8)]:
        assert not torch.equal(one, draw_preferences(8, 3, 0.05, None, key))
    assert one.min() >= 0.05


def test_a_distribution_of_ones_own_is_shrunk_and_checked():
    ends = draw_preferences(4, 2, 0.1, lambda n, _: torch.tensor([[1.0, 0.0]]).expand(n, 2), (0, 0, 0))
    torch.testing.assert_close(ends, torch.tensor([[0.9, 0.1]]).double().expand(4, 2))
    with pytest.raises(ValueError, match=r"draw must give preferences of shape \(4, 2\); found \(3, 2\)"):
        draw_preferences(4, 2, 0.1, lambda _, __: torch.full((3, 2), 0.5), (0, 0, 0))
    with pytest.raises(ValueError, match="preference must be non-negative and sum to 1"):
        draw_preferences(4, 2, 0.1, lambda n, _: torch.ones(n, 2), (0, 0, 0))


def test_few_preferences_per_step_are_said_once():
    rows = RowCount(3, 66)
    for step in range(100):
        rows.add(8, step)
    with pytest.warns(BalanceWarning, match=r"8 preferences per step, .* 100 steps, are few for 66 nodes.*nodes=8;"):
        rows.add(8, 100)
    for step in range(101, 350):
        rows.add(8, step)


def test_preferences_are_counted_by_step():
    """Calls that accumulate count together, and a run that was resumed has no rows from before."""
    accumulated, enough, resumed = RowCount(2, 32), RowCount(2, 32), RowCount(2, 32, step=1000)
    for step in range(250):
        for _ in range(4):
            accumulated.add(8, step)
        enough.add(17, step)
        resumed.add(32, 1000 + step)
    few = RowCount(2, 32)
    for step in range(100):
        few.add(1, step)
    with pytest.warns(BalanceWarning, match="nodes=2;"):
        few.add(1, 100)
