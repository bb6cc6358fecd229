"""The mesh on the preferences, and λ at its nodes."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.pareto import Mesh, NodeDuals, node_means
from equipoise.state import flatten, unflatten

MESHES = [Mesh(2, 7), Mesh(2, 31, 0.01), Mesh(3, 1), Mesh(3, 5), Mesh(3, 10, 0.02), Mesh(4, 3, 0.01), Mesh(7, 2)]


def dirichlet(m: int, n: int, seed: int = 0, margin: float = 0.0) -> torch.Tensor:
    e = -torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log()
    return margin + (1 - m * margin) * e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_shares_are_barycentric_coordinates(mesh: Mesh):
    w = dirichlet(mesh.m, 500, margin=mesh.margin)
    a = mesh.interpolate(w)
    assert a.shape == (500, mesh.size) == (500, math.comb(mesh.divisions + mesh.m - 1, mesh.m - 1))
    assert (a >= 0).all()
    torch.testing.assert_close(a.sum(-1), torch.ones(500, dtype=torch.float64))
    assert ((a > 0).sum(-1) <= mesh.m).all()
    torch.testing.assert_close(a @ mesh.nodes, w)  # linear functions are reproduced


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_node_has_itself_alone(mesh: Mesh):
    torch.testing.assert_close(mesh.interpolate(mesh.nodes), torch.eye(mesh.size, dtype=torch.float64))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_corners_of_a_piece_are_close(mesh: Mesh):
    """No two of the nodes that a preference is made of are further apart than a piece is wide."""
    a = mesh.interpolate(dirichlet(mesh.m, 200, seed=1, margin=mesh.margin))
    step = (1 - mesh.m * mesh.margin) / mesh.divisions
    for row in a:
        used = mesh.nodes[row > 1e-9]
        for one, other in itertools.combinations(used, 2):
            assert (one - other).abs().max() <= step + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 10_000))
def test_interpolation_is_continuous(m: int, divisions: int, seed: int):
    """Also across the borders of the pieces, where w is on the grid in some coordinates."""
    mesh = Mesh(m, divisions)
    grid = eq.preference.grid(2 * divisions, m)
    w = grid[seed % len(grid)]
    other = dirichlet(m, 1, seed)[0]
    near = w + 1e-7 * (other - w)
    assert (mesh.interpolate(near[None]) - mesh.interpolate(w[None])).abs().max() < 1e-5


def test_beyond_the_margin_the_nearest_node_of_two_objectives_counts():
    mesh = Mesh(2, 4, 0.1)
    assert mesh.interpolate(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("m", "nodes", "found"),
    [(2, None, 32), (2, 2, 2), (3, None, 66), (3, 65, 55), (4, 40, 35), (10, None, 55), (80, None, 80)],
)
def test_the_finest_mesh_of_so_many_nodes(m: int, nodes: int | None, found: int):
    assert Mesh.of(m, nodes, 0.0).size == found


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Mesh(1, 2), "objectives must be at least 2; found 1"),
        (lambda: Mesh(2, 0), "divisions must be at least 1; found 0"),
        (lambda: Mesh(2, 3, 0.5), r"margin must lie in \[0, 1/m\) = \[0, 0.5\); found 0.5"),
        (lambda: Mesh.of(3, 2, 0.0), "nodes must be at least 3"),
        (lambda: NodeDuals(eq.Tchebycheff(), 3), "method must have λ that is known before the losses"),
        (lambda: NodeDuals(eq.Linear(), 3), "method must have λ that is known before the losses"),
        (lambda: NodeDuals(eq.SelfTuned(ideal=1.0), 3), "method must have the ideal point 0"),
    ],
)
def test_bad_meshes_and_methods_are_refused(make, text: str):
    with pytest.raises(ValueError, match=text):
        make()


def test_gains_by_hand():
    shares = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    gains = torch.tensor([[4.0, 8.0], [1.0, 2.0]], dtype=torch.float64)
    means, mass = node_means(shares, gains)
    assert means.tolist() == [[2.0, 4.0], [2.8, 5.6], [0.0, 0.0]]  # (¼·4 + ½·1)/¾, (¾·4 + ½·1)/1¼
    assert mass.tolist() == [[0.75, 0.75], [1.25, 1.25], [0.0, 0.0]]


def test_gains_with_counts_leave_absent_losses_out():
    shares = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    gains = torch.tensor([[4.0, torch.nan], [1.0, 2.0]])
    means, mass = node_means(shares, gains, torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
    assert means.tolist() == [[2.5, 2.0], [1.0, 2.0]]  # (1·4 + ½·2·1)/2
    assert mass.tolist() == [[2.0, 0.5], [1.0, 0.5]]


@pytest.mark.parametrize("inner", [eq.SelfTuned(), eq.OMD(step_size=0.3), eq.OMD(mirror=eq.Euclidean())], ids=repr)
def test_every_node_is_a_run_of_its_own(inner: eq.Weighting[Any]):
    """Oracle: K separate runs of the inner weighting, which see the gains of their node."""
    K, m, steps = 4, 3, 30
    draw = torch.Generator().manual_seed(3)
    gains = 1 + torch.rand(steps, K, m, generator=draw, dtype=torch.float64)
    there = torch.rand(steps, K, generator=draw) < 0.7
    weighting, uniform = NodeDuals(inner, K), torch.full((K * m,), 1 / (K * m), dtype=torch.float64)
    state = weighting.init(gains[0].flatten())
    for f, mask in zip(gains, there, strict=True):
        every = mask.unsqueeze(-1).expand(K, m).flatten()
        _, state = weighting.update(f.flatten(), state, uniform, mask=every)
    for k in range(K):
        w, alone = torch.full((m,), 1 / m, dtype=torch.float64), inner.init(gains[0, k])
        for f, mask in zip(gains[:, k], there[:, k], strict=True):
            if mask:
                _, alone = inner.update(m * f, alone, w)
        expected = inner.foreseen(alone, torch.ones(m))
        torch.testing.assert_close(weighting.at_nodes(state)[k], expected, rtol=1e-6, atol=1e-9)


def test_a_node_without_rows_keeps_its_state():
    weighting, w = NodeDuals(eq.SelfTuned(youth=0), 2), torch.full((4,), 0.25)
    state = weighting.init(torch.ones(4))
    for _ in range(5):
        _, state = weighting.update(torch.tensor([3.0, 1.0, 0.0, 0.0]), state, w, mask=torch.tensor([1, 1, 0, 0]) > 0)
    assert weighting.at_nodes(state)[0, 0] > 0.5
    assert weighting.at_nodes(state)[1].tolist() == [0.5, 0.5]
    assert state.inner.steps.flatten().tolist() == [5.0, 0.0]


def test_losses_that_are_not_finite_leave_the_state_alone():
    weighting, w = NodeDuals(eq.SelfTuned(), 2), torch.full((4,), 0.25)
    state = weighting.init(torch.ones(4))
    _, after = weighting.update(torch.tensor([3.0, torch.nan, 1.0, 1.0]), state, w)
    assert all(torch.equal(a, b) for a, b in zip(flatten(state).values(), flatten(after).values(), strict=True))


def test_the_state_goes_through_a_file():
    weighting, w = NodeDuals(eq.SelfTuned(), 3), torch.full((6,), 1 / 6)
    f = torch.arange(1.0, 7.0)
    _, state = weighting.update(f, weighting.init(f), w)
    again = unflatten(flatten(state), weighting.init(f))
    assert torch.equal(weighting.update(f, state, w)[1].dual, weighting.update(f, again, w)[1].dual)
