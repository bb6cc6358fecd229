"""MoCo: tracked gradients and weights by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.simplex import project
from equipoise.weighting.moco import MoCo, MoCoState

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ONE = torch.ones(2, dtype=torch.float64)


def test_one_tracked_step_by_hand():
    # With w = 1/2 the weighted rows are (1, 0) and (0, 2), tracked as (0.5, 0) and (0, 1).
    method = MoCo(step_size=0.1, tracking=0.5, regularization=0.0)
    J = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    c, state = method.update(ONE, method.init(ONE, jacobian=J), HALF, jacobian=J)
    torch.testing.assert_close(state.tracked, J / 2)
    torch.testing.assert_close(method.weights(state), vector(0.51875, 0.48125))
    torch.testing.assert_close(c, vector(0.51875, 0.48125) / 2)
    rows = method.rows(state)
    assert rows is not None
    # The step is Σ λ_i w_i Y_i.
    torch.testing.assert_close(c @ rows, vector(0.51875 * 0.5, 0.48125))


def test_published_rule_by_hand():
    # K_w = diag(1, 4)/4: λ − (K_w + I/100) λ = (0.37, −0.005), projected (0.6875, 0.3125).
    method = MoCo()
    K = torch.diag(vector(1, 4))
    c, state = method.update(ONE, method.init(ONE), HALF, gramian=K)
    torch.testing.assert_close(method.weights(state), vector(0.6875, 0.3125))
    torch.testing.assert_close(c, vector(0.6875, 0.3125) / 2)
    assert method.rows(state) is None


def test_no_gradient_leaves_the_weights():
    # A projection, where a softmax would pull them to the middle.
    method = MoCo(regularization=0.0)
    state = method.init(ONE)._replace(dual=vector(0.9, 0.1))
    _, state = method.update(ONE, state, HALF, gramian=torch.zeros(2, 2))
    torch.testing.assert_close(state.dual, vector(0.9, 0.1))


def test_it_finds_the_min_norm_weights():
    method = MoCo(step_size=0.5, regularization=0.0)
    J = random(3, 6, seed=2)
    K, losses, w = J @ J.mT, torch.ones(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    state = method.init(losses)
    for _ in range(300):
        _, state = method.update(losses, state, w, gramian=K)
    pull = K @ state.dual
    assert pull.min() >= state.dual @ pull - 1e-9


def test_full_tracking_needs_only_the_gramian():
    assert MoCo().needs == {"gramian"}
    assert MoCo(tracking=0.9).needs == {"jacobian"}
    assert MoCo(tracking_decay=0.5).needs == {"jacobian"}
    swept = MoCo(tracking=torch.tensor([1.0, 1.0]))
    assert swept.needs == {"jacobian"}
    J, w = random(2, 3, 4), vector(0.2, 0.3, 0.5)
    losses = torch.ones(2, 3, dtype=torch.float64)
    plain, tracked = MoCo().init(losses), swept.init(losses, jacobian=J)
    for t in range(4):
        G = J + 0.1 * t
        c, plain = MoCo().update(losses, plain, w, gramian=G @ G.mT)
        c_tracked, tracked = swept.update(losses, tracked, w, jacobian=G)
        torch.testing.assert_close(c_tracked, c)
        torch.testing.assert_close(swept.rows(tracked), G)


def naive(method: MoCo, G: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """λ and Y after the steps of G (steps, m, d)."""
    m = G.shape[1]
    Y, dual = torch.zeros_like(G[0]), torch.full((m,), 1 / m, dtype=G.dtype)
    for k, g in enumerate(G, start=1):
        beta = method.tracking / k**method.tracking_decay
        gamma = method.step_size / k**method.step_decay
        Y = Y - beta * (Y - g)
        weighted = w.unsqueeze(-1) * Y
        dual = project(
            dual - gamma * (weighted @ weighted.mT + method.regularization * torch.eye(m, dtype=G.dtype)) @ dual
        )
    return dual, Y


@pytest.mark.parametrize(
    "method", [MoCo(0.3, 0.5, 0.1), MoCo(0.3, 0.5, 0.1, step_decay=0.5), MoCo(1.0, 1.0, 0.0, 0.25, 0.5)]
)
def test_schedules_and_batches_match_the_naive_loop(method: MoCo):
    steps, batch, m, d = 6, 4, 3, 5
    G, w = random(steps, batch, m, d, seed=3), torch.softmax(random(batch, m, seed=4), -1)
    losses = torch.ones(batch, m, dtype=torch.float64)
    state = method.init(losses, jacobian=G[0])
    for g in G:
        c, state = method.update(losses, state, w, jacobian=g)
    for i in range(batch):
        dual, Y = naive(method, G[:, i], w[i])
        torch.testing.assert_close(state.dual[i], dual)
        torch.testing.assert_close(state.tracked[i], Y)
        torch.testing.assert_close(c[i], dual * w[i])
    assert state.step.tolist() == [[steps]] * batch


def test_settings_sweep_over_the_batch():
    settings = [(0.1, 0.5, 0.0), (0.2, 0.7, 0.3)]
    G, w = random(3, 2, 3, 4, seed=5), vector(0.2, 0.3, 0.5)
    gamma, beta, rho = (torch.tensor(x, dtype=torch.float64) for x in zip(*settings, strict=True))
    swept = MoCo(gamma, beta, rho, tracking_decay=0.5)
    losses = torch.ones(2, 3, dtype=torch.float64)
    state = swept.init(losses, jacobian=G[0])
    for g in G:
        _, state = swept.update(losses, state, w, jacobian=g)
    for i, setting in enumerate(settings):
        dual, _ = naive(MoCo(*setting, tracking_decay=0.5), G[:, i], w)
        torch.testing.assert_close(state.dual[i], dual)


def test_an_absent_objective_waits():
    method = MoCo(step_size=0.1, tracking=0.5, regularization=0.5)
    losses, w = torch.ones(3, dtype=torch.float64), vector(0.2, 0.3, 0.5)
    J = random(3, 4, seed=6)
    state = method.init(losses, jacobian=J)
    _, state = method.update(losses, state, w, jacobian=J)
    broken, hidden = J.clone(), losses.clone()
    broken[1], hidden[1] = math.nan, math.nan
    mask = torch.tensor([True, False, True])
    c, new = method.update(hidden, state, w, jacobian=broken, mask=mask)
    assert c[1] == 0
    assert torch.equal(new.tracked[1], state.tracked[1])
    assert not torch.equal(new.tracked[0], state.tracked[0])
    # The present ones push each other; the absent one moves by the projection alone.
    rows = (w.unsqueeze(-1) * new.tracked)[[0, 2]]
    moved = state.dual.clone()
    moved[[0, 2]] -= 0.1 * (rows @ rows.mT + 0.5 * torch.eye(2, dtype=torch.float64)) @ state.dual[[0, 2]]
    torch.testing.assert_close(new.dual, project(moved))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("method", [MoCo(), MoCo(tracking=0.5)])
def test_a_bad_value_leaves_the_state(method: MoCo, bad: float):
    w, losses = vector(0.4, 0.6), torch.ones(3, 2, dtype=torch.float64)
    J = random(3, 2, 4, seed=7)
    state = method.init(losses, jacobian=J)
    _, state = method.update(losses, state, w, jacobian=J, gramian=J @ J.mT)
    losses[1, 0] = bad
    J[2, 1, 0] = bad
    K = J @ J.mT
    c, new = method.update(losses, state, w, jacobian=J, gramian=K)
    assert c.isfinite().all()
    for before, after in zip(state, new, strict=True):
        assert torch.equal(before[1:], after[1:])
    assert not torch.equal(new.dual[0], state.dual[0])
    torch.testing.assert_close(c[1:], state.dual[1:] * w)


def test_dtypes():
    losses = torch.ones(2, requires_grad=True)
    J = random(2, 3).to(torch.bfloat16).requires_grad_()
    method = MoCo(tracking=0.5)
    c, state = method.update(losses, method.init(losses, jacobian=J), HALF, jacobian=J)
    assert c.dtype == torch.float32
    assert not c.requires_grad
    assert state.tracked.dtype == torch.float32
    assert not state.tracked.requires_grad
    assert state.dual.dtype == torch.float64


def test_bad_input_is_named():
    J = random(2, 3)
    for tracked, missing in [(MoCo(), "gramian"), (MoCo(tracking=0.5), "jacobian")]:
        state = tracked.init(ONE, jacobian=J)
        with pytest.raises(TypeError, match=missing):
            tracked.update(ONE, state, HALF)
    with pytest.raises(TypeError, match="jacobian"):
        MoCo(tracking=0.5).init(ONE)
    with pytest.raises(ValueError, match=r"jacobian must have shape .* \(2,\); found \(3, 3\)"):
        MoCo(tracking=0.5).init(ONE, jacobian=random(3, 3))
    state = MoCo(tracking=0.5).init(ONE, jacobian=J)
    with pytest.raises(ValueError, match=r"jacobian must have the shape \(2, 3\) .* found \(2, 4\)"):
        MoCo(tracking=0.5).update(ONE, state, HALF, jacobian=random(2, 4))
    with pytest.raises(ValueError, match="state must be of losses of shape"):
        MoCo().update(ONE, MoCo().init(torch.ones(3)), HALF, gramian=J @ J.mT)
    for field, value in [
        ("step_size", 0.0),
        ("tracking", 0.0),
        ("tracking", 1.5),
        ("regularization", -0.1),
        ("step_decay", -1.0),
        ("tracking_decay", -1.0),
    ]:
        with pytest.raises(ValueError, match=f"{field} must .*; found {value}"):
            replace(MoCo(), **{field: value})


def test_vmap_sees_the_same():
    J, w = random(4, 3, 5, seed=8), vector(0.2, 0.3, 0.5)
    losses = torch.ones(4, 3, dtype=torch.float64)
    method = MoCo(tracking=0.5)
    state = method.init(losses, jacobian=J)

    def step(f: Tensor, *parts: Tensor) -> Tensor:
        *old, g = parts
        return method.update(f, MoCoState(*old), w, jacobian=g)[0]

    mapped = torch.func.vmap(step)(losses, *state, J)
    torch.testing.assert_close(mapped, method.update(losses, state, w, jacobian=J)[0])
