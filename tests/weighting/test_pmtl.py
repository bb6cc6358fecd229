"""PMTL: the way to its region and the descent in it, by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import preference
from equipoise.metrics import hypervolume
from equipoise.minnorm import min_norm
from equipoise.problems import VLMOP2
from equipoise.weighting.pmtl import PMTL, PMTLState
from equipoise.weighting.reweighted import Reweighted

AXES = ((1.0, 0.0), (0.0, 1.0))
GRID: tuple[tuple[float, ...], ...] = tuple(map(tuple, preference.grid(4, 3, margin=0.05).tolist()))
TEN: tuple[tuple[float, ...], ...] = tuple(map(tuple, preference.linspace(10).tolist()))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def coefficients(weighting: PMTL, losses: Tensor, w: Tensor, gramian: Tensor, **extra: Tensor) -> Tensor:
    return weighting.update(losses, weighting.init(losses), w, gramian=gramian, **extra)[0]


def instances(count: int, m: int, seed: int, d: int = 8) -> tuple[Tensor, Tensor]:
    """Losses and Jacobians."""
    g = torch.Generator().manual_seed(seed)
    losses = 0.1 + torch.rand(count, m, generator=g, dtype=torch.float64)
    return losses, torch.randn(count, m, d, generator=g, dtype=torch.float64)


def unit(w: Tensor) -> Tensor:
    return torch.nn.functional.normalize(1 / w, dim=-1)


@pytest.mark.parametrize(
    ("phase_steps", "rescale", "expected"),
    [(1, False, (-1, 1)), (0, False, (0.2, 0.4)), (0, True, (2 / 3, 4 / 3)), (1, True, (-1, 1))],
)
def test_by_hand(phase_steps, rescale, expected):
    # u = (1, 0), the other vector is (0, 1): (u₂ − u)·f = 0.7 is active with the row (−1, 1).
    weighting = PMTL(AXES, phase_steps=phase_steps, rescale=rescale, target="direct")
    c = coefficients(weighting, vector(0.2, 0.9), vector(1, 0), torch.eye(2, dtype=torch.float64))
    assert c.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("m", [2, 3])
def test_the_direction_is_the_shortest_in_the_hull(m):
    references = TEN if m == 2 else GRID
    losses, J = instances(60, m, seed=1)
    w = torch.tensor(references, dtype=torch.float64)[torch.arange(60) % len(references)]
    K = J @ J.mT
    found = {phase: coefficients(PMTL(references, phase_steps=phase), losses, w, K) for phase in (1, 0)}
    outside = 0
    for i in range(60):
        apart = unit(torch.tensor(references, dtype=torch.float64)) - unit(w[i])
        active = apart[(apart @ losses[i] > 0) & (apart.abs().sum(-1) > 0)]
        outside += len(active) > 0
        rows = torch.cat((torch.eye(m, dtype=torch.float64), active))
        # In the first phase, outside of the cone, the rows of J take no part.
        for phase, used in ((1, active if len(active) else rows), (0, rows)):
            vectors, direction = used @ J[i], found[phase][i] @ J[i]
            # No row makes an obtuse angle with it, and it is itself a combination of them.
            assert (vectors @ direction >= direction @ direction - 1e-9).all()
            best = min_norm(vectors @ vectors.mT) @ vectors
            assert torch.allclose(direction, best, atol=1e-7)
    assert 20 < outside < 60


@pytest.mark.parametrize("d", [1, 2, 6])
def test_losses_below_zero_still_get_the_shortest_direction(d):
    # Then 0 may lie inside the hull of three rows, which no segment between two of them shows.
    _, J = instances(200, 2, seed=11, d=d)
    losses, w = vector(-0.5, -0.4).expand(200, 2), vector(0.5, 0.5)
    references = ((0.2, 0.8), (0.5, 0.5), (0.8, 0.2))
    c = coefficients(PMTL(references, phase_steps=0), losses, w, J @ J.mT)
    apart = unit(torch.tensor(references, dtype=torch.float64)) - unit(w)
    active = apart[[i for i in (0, 2) if apart[i] @ losses[0] > 0]]
    rows = torch.cat((torch.eye(2, dtype=torch.float64), active)) @ J
    direction = (c.unsqueeze(-2) @ J).squeeze(-2)
    assert len(active) == 2
    slack = (rows @ direction.unsqueeze(-1)).squeeze(-1) - direction.square().sum(-1, keepdim=True)
    assert slack.min() > -1e-9


def test_the_phases():
    losses, w, K = vector(0.2, 0.9), vector(1, 0), torch.eye(2, dtype=torch.float64)
    inside, first, second = vector(0.9, 0.2), [-1.0, 1.0], pytest.approx([0.2, 0.4])
    weighting = PMTL(AXES, phase_steps=2, target="direct")
    state = weighting.init(losses)
    for step, expected in enumerate((first, first, second, second)):
        assert state.step.item() == step
        c, state = weighting.update(losses, state, w, gramian=K)
        assert c.tolist() == expected
    # Inside the cone the second phase begins at once, and stays.
    c, state = weighting.update(inside, weighting.init(losses), w, gramian=K)
    assert c.tolist() == pytest.approx([0.5, 0.5])
    assert state.arrived.all()
    assert weighting.update(losses, state, w, gramian=K)[0].tolist() == second
    # Or it waits for the others, without moving.
    waits = PMTL(AXES, phase_steps=2, wait=True, target="direct")
    state = waits.init(losses)
    for loss, expected in ((inside, [0, 0]), (losses, first), (inside, pytest.approx([0.5, 0.5]))):
        c, state = waits.update(loss, state, w, gramian=K)
        assert c.tolist() == expected


def test_the_own_preference_is_no_reference():
    # In float32 it differs from the reference by its rounding, which must not become a row of almost no length.
    losses, J = instances(10, 2, seed=2)
    w = preference.linspace(10)
    weighting = PMTL(TEN, phase_steps=0)
    exact = coefficients(weighting, losses, w, J @ J.mT)
    assert torch.allclose(coefficients(weighting, losses, w.float(), J @ J.mT), exact, atol=1e-4)
    alone = PMTL((TEN[3],), phase_steps=0)
    assert torch.allclose(coefficients(alone, losses, w[3].float(), J @ J.mT), min_norm(J @ J.mT))


def test_an_absent_objective_leaves_a_smaller_problem():
    losses, J = instances(15, 3, seed=3)
    w, K, rest = torch.tensor(GRID, dtype=torch.float64), J @ J.mT, [0, 2]
    two = w[:, rest] / w[:, rest].sum(-1, keepdim=True)
    small = PMTL(tuple(map(tuple, two.tolist())))
    mask = torch.tensor([True, False, True])
    for phase in (0, 1):
        weighting, other = PMTL(GRID, phase_steps=phase), PMTL(small.references, phase_steps=phase)
        expected = coefficients(other, losses[:, rest], two, K[:, rest][:, :, rest])
        hidden, rows = losses.clone(), K.clone()
        hidden[:, 1], rows[:, 1], rows[:, :, 1] = torch.nan, torch.nan, torch.nan
        found = coefficients(weighting, hidden, w, rows, mask=mask)
        assert (found[:, 1] == 0).all()
        assert torch.allclose(found[:, rest], expected, atol=1e-9)
    alone = coefficients(PMTL(GRID), losses, w, K, mask=torch.tensor([False, True, False]))
    assert alone.tolist() == [[0, 1, 0]] * 15
    weighting = PMTL(GRID)
    c, state = weighting.update(losses, weighting.init(losses), w, gramian=K, mask=torch.zeros(3, dtype=torch.bool))
    assert c.tolist() == [[0, 0, 0]] * 15
    assert (state.step == 0).all()


@pytest.mark.parametrize("phase_steps", [0, 1])
def test_the_order_of_objectives_does_not_matter(phase_steps):
    losses, J = instances(15, 3, seed=4)
    w, K, order = torch.tensor(GRID, dtype=torch.float64), J @ J.mT, torch.tensor([2, 0, 1])
    turned = PMTL(tuple(map(tuple, w[:, order].tolist())), phase_steps=phase_steps)
    expected = coefficients(PMTL(GRID, phase_steps=phase_steps), losses, w, K)[:, order]
    found = coefficients(turned, losses[:, order], w[:, order], K[:, order][:, :, order])
    assert torch.allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("m", [2, 3])
def test_batches_of_any_shape(m):
    references = TEN if m == 2 else GRID
    losses, J = instances(6, m, seed=5)
    w, K = torch.tensor(references, dtype=torch.float64)[2:5], J @ J.mT
    weighting = PMTL(references, phase_steps=0)
    found = coefficients(weighting, losses.view(2, 3, m), w, K.view(2, 3, m, m))
    each = [coefficients(weighting, losses[i], w[i % 3], K[i]) for i in range(6)]
    assert torch.allclose(found.view(6, m), torch.stack(each), atol=1e-9)


def test_direct_targets_the_preference_itself():
    losses, J = instances(10, 2, seed=6)
    w, K = preference.linspace(10), J @ J.mT
    direct = coefficients(PMTL(TEN, target="direct"), losses, w, K)
    assert torch.allclose(direct, coefficients(PMTL(TEN), losses, w.flip(-1), K), atol=1e-9)


@pytest.mark.parametrize("where", ["losses", "gramian"])
def test_an_instance_that_is_not_finite_stands_alone(where):
    losses, J = instances(4, 3, seed=7)
    w, K = torch.tensor(GRID[:4], dtype=torch.float64), J @ J.mT
    expected = coefficients(PMTL(GRID), losses, w, K)
    if where == "losses":
        losses[1, 0] = torch.nan
    else:
        K[1, 0, 1] = torch.inf
    weighting = PMTL(GRID)
    found, state = weighting.update(losses, weighting.init(losses), w, gramian=K)
    rest = [0, 2, 3]
    assert torch.isfinite(found).all()
    assert torch.equal(found[rest], expected[rest])
    assert state.step.flatten().tolist() == [1, 0, 1, 1]
    assert not state.arrived[1]


def test_the_ideal_point_and_the_inclusion_probability():
    losses, J = instances(10, 2, seed=8)
    w, K = preference.linspace(10), J @ J.mT
    shifted = coefficients(PMTL(TEN, ideal=0.05), losses, w, K)
    assert torch.allclose(shifted, coefficients(PMTL(TEN), losses - 0.05, w, K), atol=1e-12)
    pi = vector(0.5, 0.25)
    estimated = coefficients(PMTL(TEN), losses / pi, w, K / pi / pi.unsqueeze(-1)) / pi
    assert torch.allclose(coefficients(PMTL(TEN), losses, w, K, inclusion=pi), estimated)


def test_coefficients_have_the_dtype_of_the_losses():
    losses, J = instances(10, 2, seed=9)
    found = coefficients(PMTL(TEN), losses.float().requires_grad_(), preference.linspace(10), J @ J.mT)
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_bad_input():
    losses, J = instances(3, 2, seed=10)
    w, K, weighting = vector(0.5, 0.5), J @ J.mT, PMTL(TEN)
    state = weighting.init(losses)
    with pytest.raises(TypeError, match="gramian"):
        weighting.update(losses, state, w)
    with pytest.raises(ValueError, match=r"gramian must have shape .* = \(3, 2, 2\); found \(2, 2\)"):
        weighting.update(losses, state, w, gramian=K[0])
    with pytest.raises(ValueError, match=r"state must be of losses of shape \(3, 2\); found \(1,\)"):
        weighting.update(losses, PMTLState(*(t[0] for t in state)), w, gramian=K)
    with pytest.raises(ValueError, match="references must have 2 entries each; found 3"):
        PMTL(GRID).update(losses, state, w, gramian=K)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"references": ()}, "references must have at least one"),
        ({"references": ((0.5, 0.5), (1.0,))}, "references must all have the same number"),
        ({"references": ((0.5, 0.6),)}, "preference must be non-negative and sum to 1"),
        ({"references": TEN, "phase_steps": -1}, "phase_steps must be non-negative"),
        ({"references": TEN, "target": "both"}, "target must be"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            PMTL(**options)


def run_vlmop2(weighting, w: Tensor, seeds: list[int], steps: int = 1000) -> tuple[Tensor, PMTLState]:
    """f(θ⁽¹⁰⁰⁰⁾) of the preferences w (n, 2), shape (seeds, n, 2), by steps of 0.01 in float32; the last state."""
    problem = VLMOP2()
    x = torch.stack([problem.initial(len(w), seed) for seed in seeds])
    state = weighting.init(problem.losses(x))
    for step in range(steps):
        x.requires_grad_()
        losses = problem.losses(x)
        rows = [torch.autograd.grad(f.sum(), x, retain_graph=True)[0] for f in losses.unbind(-1)]
        J, x, losses = torch.stack(rows, -2), x.detach(), losses.detach()
        if step < steps - 1:
            c, state = weighting.update(losses, state, w.float(), gramian=J @ J.mT)
            x = (x - 0.01 * (c.unsqueeze(-1) * J).sum(-2)).clamp(-1 + 1e-5, 1 - 1e-5)
    return losses, state


def test_vlmop2_ends_on_the_front_inside_the_cones():
    w = torch.tensor(((0.1, 0.9), (0.5, 0.5), (0.9, 0.1)), dtype=torch.float64)
    losses, state = run_vlmop2(PMTL(tuple(map(tuple, w.tolist()))), w, [0, 19])
    assert state.arrived.all()
    f = losses.to(torch.float64)
    along = f @ unit(w).mT
    assert (along.amax(-1) - along.diagonal(dim1=-2, dim2=-1)).max() < 1e-4
    assert torch.cdist(f, VLMOP2().front(2000)).amin(-1).max() < 2e-3


def test_vlmop2_as_published():
    losses, _ = run_vlmop2(Reweighted(PMTL(TEN, wait=True, target="direct")), preference.linspace(10), [0, 19, 42])
    assert hypervolume(losses, (1, 1)).mean().item() == pytest.approx(0.208, abs=1e-3)
