"""ExcessMTL: excess risks and weights by hand."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.weighting.excess_risk import ExcessRisk, ExcessRiskState

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
ONE = torch.ones(2, dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(method: ExcessRisk, G: Tensor, w: Tensor) -> tuple[list[Tensor], ExcessRiskState]:
    """The coefficients of all steps of G (steps, *B, m, d), and the last state."""
    losses = torch.ones(G.shape[1:-1], dtype=torch.float64)
    state, found = method.init(losses, jacobian=G[0]), []
    for g in G:
        c, state = method.update(losses, state, w, jacobian=g)
        found.append(c)
    return found, state


def test_two_steps_by_hand():
    # At the first call e = Σ|g_k|: 7 and 1.
    J = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    method = ExcessRisk(step_size=1.0)
    _, state = run(method, J.unsqueeze(0), HALF)
    torch.testing.assert_close(state.baseline, vector(7, 1), rtol=1e-7, atol=0)
    torch.testing.assert_close(state.squares, vector(9, 16, 1, 0).reshape(2, 2))
    # The first gradient again: e/e⁽⁰⁾ = (7/√2)/7. Twice the second: 2²/√(1² + 2²).
    later = torch.tensor([[3.0, 4.0], [2.0, 0.0]], dtype=torch.float64)
    c, state = method.update(ONE, state, HALF, jacobian=later)
    gap = 0.5 * (math.sqrt(0.5) - 4 / math.sqrt(5))
    expected = torch.softmax(vector(gap, 0), -1)
    torch.testing.assert_close(method.weights(state), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(c, expected / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("weigh", ["excess", "gradients"])
def test_two_constant_gradients_keep_the_weights_uniform(weigh):
    J = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    _, state = run(ExcessRisk(weigh=weigh), J.expand(20, 2, 2), HALF)
    torch.testing.assert_close(state.log_weights.exp(), HALF, rtol=1e-6, atol=0)


def test_the_first_step_moves_nothing():
    found, state = run(ExcessRisk(), random(1, 3, 5), vector(0.2, 0.3, 0.5))
    torch.testing.assert_close(state.log_weights.exp(), torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(found[0], vector(0.2, 0.3, 0.5) / 3)


def naive(method: ExcessRisk, G: Tensor, w: Tensor) -> list[Tensor]:
    """The coefficients of every step, one objective at a time."""
    m = G.shape[1]
    S, weights, first, found = torch.zeros_like(G[0]), [1 / m] * m, [0.0] * m, []
    for t, J in enumerate(G):
        used = list(weights)
        for i in range(m):
            g = J[i] * w[i] if method.weigh == "gradients" else J[i]
            S[i] += g**2
            e = float((g**2 / (S[i] + 1e-7).sqrt()).sum())
            if t == 0:
                first[i] = e
            else:
                power = 1.0 if method.weigh == "gradients" else float(w[i])
                weights[i] *= math.exp(method.step_size * power * e / first[i])
        weights = [x / sum(weights) for x in weights]
        found.append(torch.tensor(weights if method.order == "alternating" else used, dtype=G.dtype) * w)
    return found


@pytest.mark.parametrize("weigh", ["excess", "gradients"])
@pytest.mark.parametrize("order", ["alternating", "simultaneous"])
def test_batches_match_the_naive_loop(order, weigh):
    method = ExcessRisk(step_size=0.7, order=order, weigh=weigh)
    G, w = random(5, 4, 3, 6, seed=1), torch.softmax(random(4, 3, seed=2), -1)
    found, _ = run(method, G, w)
    for i in range(4):
        torch.testing.assert_close(torch.stack(found)[:, i], torch.stack(naive(method, G[:, i], w[i])))


def test_the_preference_cancels_from_weighted_gradients():
    G, w = random(5, 2, 6, seed=3), vector(0.1, 0.9)
    duals = [run(ExcessRisk(weigh="gradients"), G, p)[1].log_weights for p in (w, HALF)]
    torch.testing.assert_close(duals[0], duals[1], rtol=1e-4, atol=0)
    plain = run(ExcessRisk(weigh="excess"), G, w)[1].log_weights
    assert (plain - duals[0]).abs().max() > 0.1


def test_no_gradient_at_the_first_call():
    G = random(4, 2, 3, seed=4)
    G[:2, 0] = 0
    method = ExcessRisk()
    found, state = run(method, G, HALF)
    assert torch.stack(found).isfinite().all()
    # Its baseline is its first positive estimate, Σ|g_k|.
    assert state.baseline[0].item() == pytest.approx(G[2, 0].abs().sum().item(), rel=1e-5)
    assert state.baseline[1].item() == pytest.approx(G[0, 1].abs().sum().item(), rel=1e-5)
    nothing, state = run(method, torch.zeros(3, 2, 3, dtype=torch.float64), HALF)
    torch.testing.assert_close(nothing[-1], HALF / 2)
    assert state.baseline.tolist() == [0, 0]


def test_a_tiny_baseline_is_floored():
    G = torch.ones(3, 2, 1, dtype=torch.float64)
    G[0, 0] = 1e-20
    found, state = run(ExcessRisk(step_size=100.0), G, HALF)
    assert torch.stack(found).isfinite().all()
    assert state.log_weights.isfinite().all()
    # e/e⁽⁰⁾ of the first is at most 10¹².
    assert state.log_weights[1] >= -2 * 100 * 0.5 * 1.01e12
    torch.testing.assert_close(found[-1], vector(0.5, 0))


def test_an_absent_objective_waits():
    method, losses, w = ExcessRisk(), torch.ones(3, dtype=torch.float64), vector(0.2, 0.3, 0.5)
    G = random(3, 3, 4, seed=5)
    state = method.init(losses, jacobian=G[0])
    mask = torch.tensor([True, False, True])
    broken, hidden = G.clone(), losses.clone()
    broken[:, 1], hidden[1] = math.nan, math.nan
    for g in broken:
        c, state = method.update(hidden, state, w, jacobian=g, mask=mask)
    assert c[1] == 0
    assert state.baseline[1] == 0
    assert (state.squares[1] == 0).all()
    rest = [0, 2]
    _, alone = run(method, G[:, rest], w[rest] / w[rest].sum())
    torch.testing.assert_close(state.squares[rest], alone.squares)
    torch.testing.assert_close(state.baseline[rest], alone.baseline)
    # λ_1 gained nothing, and the others what their estimates say.
    gains = state.log_weights - state.log_weights[1]
    assert (gains[rest] > 0).all()


@pytest.mark.parametrize("weigh", ["excess", "gradients"])
def test_inclusion_divides_gains_and_coefficients(weigh):
    G, w, chance = random(2, 2, 4, seed=6), vector(0.3, 0.7), vector(0.5, 0.25)
    method = ExcessRisk(weigh=weigh)
    plain, divided = (method.init(ONE, jacobian=G[0]) for _ in range(2))
    for g in G:
        c, plain = method.update(ONE, plain, w, jacobian=g)
        c_divided, divided = method.update(ONE, divided, w, jacobian=g, inclusion=chance)
    assert torch.equal(plain.squares, divided.squares)
    assert torch.equal(plain.baseline, divided.baseline)
    power = (G * (w if weigh == "gradients" else ONE).unsqueeze(-1)).square()
    relative = (power[1] / (power.sum(0) + 1e-7).sqrt()).sum(-1) / plain.baseline
    gain = relative * (ONE if weigh == "gradients" else w)
    torch.testing.assert_close(method.weights(plain), torch.softmax(gain, -1))
    torch.testing.assert_close(method.weights(divided), torch.softmax(gain / chance, -1))
    torch.testing.assert_close(c, method.weights(plain) * w)
    torch.testing.assert_close(c_divided, method.weights(divided) * w / chance)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_bad_value_leaves_the_state(bad: float, earlier: int):
    method, w = ExcessRisk(), vector(0.4, 0.6)
    losses, G = torch.ones(3, 2, dtype=torch.float64), random(3, 3, 2, 4, seed=7)
    state = method.init(losses, jacobian=G[0])
    for g in G[:earlier]:
        _, state = method.update(losses, state, w, jacobian=g)
    losses[1, 0] = bad
    G[2, 2, 1, 0] = bad
    c, new = method.update(losses, state, w, jacobian=G[2])
    assert c.isfinite().all()
    for before, after in zip(state, new, strict=True):
        assert torch.equal(before[1:], after[1:])
    assert not torch.equal(state.squares[0], new.squares[0])


def test_dtypes():
    losses = torch.ones(2, dtype=torch.float16, requires_grad=True)
    J = torch.full((2, 3), 300.0, dtype=torch.float16, requires_grad=True)
    method = ExcessRisk()
    c, state = method.update(losses, method.init(losses, jacobian=J), HALF, jacobian=J)
    assert c.dtype == torch.float16
    assert not c.requires_grad
    # 300² is beyond float16.
    assert (state.squares == 90_000).all()
    assert not state.squares.requires_grad
    assert state.log_weights.dtype == torch.float64


def test_bad_input_is_named():
    J = random(2, 3)
    method = ExcessRisk()
    state = method.init(ONE, jacobian=J)
    with pytest.raises(TypeError, match="jacobian"):
        method.init(ONE)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="jacobian"):
        method.update(ONE, state, HALF)
    with pytest.raises(ValueError, match=r"jacobian must have shape .* \(2,\); found \(3, 3\)"):
        method.init(ONE, jacobian=random(3, 3))
    with pytest.raises(ValueError, match=r"state must be of .* a jacobian of \(2, 4\); found \(2, 3\)"):
        method.update(ONE, state, HALF, jacobian=random(2, 4))
    with pytest.raises(ValueError, match="step_size must be non-negative and finite; found -1"):
        ExcessRisk(step_size=-1.0)
    with pytest.raises(ValueError, match="order must be"):
        ExcessRisk(order="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weigh must be"):
        ExcessRisk(weigh="losses")  # type: ignore[arg-type]
