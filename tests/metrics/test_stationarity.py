"""The shortest vector in the hull of the gradients."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.metrics.stationarity import pareto_stationarity
from equipoise.problems import VLMOP2


def gramian(rows: list[list[float]]) -> Tensor:
    J = torch.tensor(rows, dtype=torch.float64)
    return J @ J.mT


@pytest.mark.parametrize(
    ("rows", "norm"),
    [
        ([[1, 0], [0, 2]], math.sqrt(0.8)),
        ([[3, 0], [4, 0]], 3),
        ([[3, 4]], 5),
        ([[1, 0], [0, 1], [5, 5]], math.sqrt(0.5)),
        ([[1, 0], [-3, 0]], 0),
        ([[1, 0], [-1, 0.5], [-1, -0.5]], 0),
        ([[1, 2], [0, 0], [3, 4]], 0),
    ],
)
def test_by_hand(rows: list[list[float]], norm: float):
    assert pareto_stationarity(gramian(rows)).item() == pytest.approx(norm, rel=1e-14, abs=1e-8)


@pytest.mark.parametrize("m", [2, 4])
def test_batches_and_scales(m: int):
    J = torch.randn(3, 5, m, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = J @ J.mT
    found = pareto_stationarity(K)
    assert found.shape == (3, 5)
    assert (found > 0).all()
    torch.testing.assert_close(pareto_stationarity(1e6 * K), 1e3 * found)
    torch.testing.assert_close(found[1, 2], pareto_stationarity(K[1, 2]))
    # No combination is shorter.
    alpha = torch.softmax(torch.randn(100, m, generator=torch.Generator().manual_seed(1), dtype=torch.float64), -1)
    assert ((alpha @ J).norm(dim=-1) >= found.unsqueeze(-1) - 1e-12).all()


def test_it_vanishes_on_a_front_and_only_there():
    problem = VLMOP2()
    line = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64).unsqueeze(-1).expand(7, problem.d) / math.sqrt(problem.d)
    off = line.clone()
    off[:, 0] += 0.1
    norms = []
    for points in (line, off):
        x = points.clone().requires_grad_()
        losses = problem.losses(x)
        J = torch.stack([torch.autograd.grad(losses[:, i].sum(), x, retain_graph=True)[0] for i in range(2)], 1)
        norms.append(pareto_stationarity(J @ J.mT))
    assert (norms[0] <= 1e-7).all()
    assert (norms[1] >= 1e-2).all()


def test_dtype_and_non_finite_values():
    K = torch.eye(3).expand(2, 3, 3).clone().requires_grad_()
    found = pareto_stationarity(K)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found, torch.full((2,), math.sqrt(1 / 3)))
    broken = K.detach().clone()
    broken[1, 0, 2] = math.nan
    assert pareto_stationarity(broken).isnan().tolist() == [False, True]


def test_the_norm_of_whole_numbers_is_not_cut():
    assert pareto_stationarity(torch.tensor([[9, 0], [0, 16]])).item() == pytest.approx(2.4)


def test_rounding_never_gives_nan():
    # Just indefinite, as float32 makes Gramians of opposite gradients.
    K = torch.tensor([[1.0, -1.0 - 1e-7], [-1.0 - 1e-7, 1.0]])
    assert pareto_stationarity(K).item() == 0


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match=r"gramian must have shape \(\*B, m, m\)"):
        pareto_stationarity(torch.ones(2, 3))
