"""MGDA by hand, with preferences, and against other solvers."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.minnorm import min_norm
from equipoise.weighting.mgda import MGDA
from equipoise.weighting.momentum import Momentum, MomentumState
from equipoise.weighting.protocol import Stateless

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
ORTHOGONAL = torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
"""Gradients (1, 0) and (0, 2)."""
FIRST_SHORTER = torch.tensor([[1.0, 2.0], [2.0, 9.0]], dtype=torch.float64)
"""The first gradient alone is the min-norm point."""


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coefficients(method: MGDA, gramian: Tensor, preference: Tensor, losses: Tensor | None = None, **extra) -> Tensor:
    losses = torch.ones(gramian.shape[:-1], dtype=torch.float64) if losses is None else losses
    c, state = method.update(losses, method.init(losses), preference, gramian=gramian, **extra)
    assert state == Stateless()
    return c


class TestMGDA:
    def test_uniform_preference_is_plain_mgda_up_to_a_factor(self):
        torch.testing.assert_close(coefficients(MGDA(), ORTHOGONAL, HALF), vector(0.4, 0.1))
        J = random(4, 5, 7)
        K, w = J @ J.mT, torch.full((5,), 0.2, dtype=torch.float64)
        torch.testing.assert_close(5 * coefficients(MGDA(), K, w), min_norm(K))

    def test_the_preference_weighs_the_objectives(self):
        # Rows (1/4, 0) and (0, 3/2): α is inversely proportional to their squares.
        alpha = vector(2.25, 0.0625) / 2.3125
        w = vector(0.25, 0.75)
        torch.testing.assert_close(coefficients(MGDA(), ORTHOGONAL, w), alpha * w)

    @pytest.mark.parametrize("normalize", ["none", "l2", "loss", "loss+"])
    @pytest.mark.parametrize("m", [2, 5])
    def test_every_objective_decreases(self, normalize, m: int):
        J = random(6, m, 12, seed=1) * vector(*range(1, m + 1)).unsqueeze(-1)
        losses = 0.1 + random(6, m, seed=2).abs()
        w = torch.softmax(random(6, m, seed=3), -1)
        c = coefficients(MGDA(normalize), J @ J.mT, w, losses)
        d = (c.unsqueeze(-2) @ J).squeeze(-2)
        length = J.norm(dim=-1)
        n = {"none": torch.ones_like(losses), "l2": length, "loss": losses, "loss+": losses * length}[normalize]
        decrease = (J @ d.unsqueeze(-1)).squeeze(-1) * w / n
        assert (decrease >= d.square().sum(-1, keepdim=True) * (1 - 1e-9)).all()
        assert (d.square().sum(-1) > 1e-6).all()

    def test_normalisations_by_hand(self):
        losses = vector(2, 1)
        # Rows of lengths (1, 2): α = 1/2 on unit gradients whatever their angle.
        torch.testing.assert_close(coefficients(MGDA("l2"), ORTHOGONAL, HALF, losses), vector(0.25, 0.125))
        torch.testing.assert_close(coefficients(MGDA("l2"), FIRST_SHORTER, HALF), vector(0.25, 0.25 / 3))
        # Rows over the losses: (1/2, 0) and (0, 2), α = (16, 1)/17.
        torch.testing.assert_close(
            coefficients(MGDA("loss"), ORTHOGONAL, HALF, losses), vector(16 / 17 / 2 / 2, 1 / 17 / 2)
        )
        # Rows over both: (1/2, 0) and (0, 1), α = (4, 1)/5.
        torch.testing.assert_close(
            coefficients(MGDA("loss+"), ORTHOGONAL, HALF, losses), vector(0.8 / 2 / 2, 0.2 / 2 / 2)
        )

    def test_raw_weights_leave_the_normalisation_out_of_the_step(self):
        torch.testing.assert_close(coefficients(MGDA("l2", raw_weights=True), ORTHOGONAL, HALF), vector(0.25, 0.25))
        assert torch.equal(
            coefficients(MGDA(raw_weights=True), ORTHOGONAL, HALF), coefficients(MGDA(), ORTHOGONAL, HALF)
        )

    @pytest.mark.parametrize("normalize", ["none", "l2", "loss+"])
    def test_a_zero_gradient_ends_the_descent(self, normalize):
        K = torch.zeros(3, 3, dtype=torch.float64)
        K[1:, 1:] = ORTHOGONAL
        w = vector(0.2, 0.3, 0.5)
        c = coefficients(MGDA(normalize), K, w)
        assert c[1:].tolist() == [0, 0]
        assert math.isfinite(c[0])

    def test_margin_replaces_end_points_only(self):
        method = MGDA(margin=0.001)
        torch.testing.assert_close(coefficients(method, FIRST_SHORTER, HALF), vector(0.999, 0.001) / 2)
        torch.testing.assert_close(coefficients(method, FIRST_SHORTER.flip(0, 1), HALF), vector(0.001, 0.999) / 2)
        torch.testing.assert_close(coefficients(method, ORTHOGONAL, HALF), vector(0.8, 0.2) / 2)
        # Nearer to the end point than the margin, and still inside.
        inside = torch.tensor([[1.0, 1 - 1e-5], [1 - 1e-5, 9.0]], dtype=torch.float64)
        torch.testing.assert_close(coefficients(method, inside, HALF), coefficients(MGDA(), inside, HALF))
        same = torch.ones(2, 2, dtype=torch.float64)
        torch.testing.assert_close(coefficients(method, same, HALF), vector(0.999, 0.001) / 2)
        torch.testing.assert_close(
            coefficients(method, FIRST_SHORTER, HALF, mask=torch.tensor([False, True])), vector(0, 0.5)
        )

    @pytest.mark.parametrize("method", [MGDA(), MGDA("l2"), MGDA("loss")])
    def test_a_mask_leaves_the_problem_of_the_rest(self, method: MGDA):
        J = random(4, 6, seed=4)
        K, w, losses = J @ J.mT, vector(0.1, 0.2, 0.3, 0.4), vector(1, 2, 3, 4)
        rest = [0, 1, 3]
        broken = K.clone()
        broken[2] = broken[:, 2] = math.nan
        mask = torch.tensor([True, True, False, True])
        hidden = losses.clone()
        hidden[2] = -math.inf
        c = coefficients(method, broken, w, hidden, mask=mask)
        assert c[2] == 0
        sub = w[rest] / w[rest].sum()
        alone = coefficients(method, K[rest][:, rest], sub, losses[rest])
        torch.testing.assert_close(c[rest], alone * w[rest].sum())

    def test_an_objective_of_no_weight_takes_no_part(self):
        assert coefficients(MGDA(), ORTHOGONAL, vector(1, 0)).tolist() == [1, 0]

    def test_inclusion_divides(self):
        half = vector(0.5, 0.5)
        torch.testing.assert_close(
            coefficients(MGDA(), ORTHOGONAL, HALF, inclusion=half), 2 * coefficients(MGDA(), ORTHOGONAL, HALF)
        )

    @pytest.mark.parametrize("method", [MGDA(), MGDA("loss"), MGDA("l2"), MGDA(margin=0.001)])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_bad_values_give_finite_coefficients(self, method: MGDA, bad: float):
        losses = torch.tensor([[1.0, 2.0], [bad, 1.0], [1.0, 2.0]], dtype=torch.float64)
        K = ORTHOGONAL.expand(3, 2, 2).clone()
        K[2, 0, 1] = K[2, 1, 0] = bad
        c = coefficients(method, K, HALF, losses)
        assert c.isfinite().all()
        torch.testing.assert_close(c[0], coefficients(method, ORTHOGONAL, HALF, losses[0]))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_dtype_of_the_losses(self, dtype: torch.dtype):
        losses = torch.ones(2, dtype=dtype, requires_grad=True)
        c = coefficients(MGDA(), ORTHOGONAL.to(dtype).requires_grad_(), HALF, losses)
        assert c.dtype == dtype
        assert not c.requires_grad
        torch.testing.assert_close(c.double(), vector(0.4, 0.1), rtol=0, atol=1e-3)
        tiny = 1e-12 * torch.eye(2, dtype=torch.float64)
        assert coefficients(MGDA("l2"), tiny, HALF, losses).isfinite().all()

    def test_bad_input_is_named(self):
        losses = torch.ones(3, 2)
        with pytest.raises(TypeError, match="gramian"):
            MGDA().update(losses, Stateless(), HALF)
        with pytest.raises(ValueError, match=r"gramian must have shape .* \(3, 2, 2\); found \(2, 2\)"):
            MGDA("l2").update(losses, Stateless(), HALF, gramian=ORTHOGONAL)
        with pytest.raises(ValueError, match="normalize must be one of"):
            MGDA("l1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"margin must lie in \[0, 0.5\]; found -1"):
            MGDA(margin=-1)
        with pytest.raises(ValueError, match="margin must be 0 unless there are two objectives"):
            coefficients(MGDA(margin=0.1), torch.eye(3), torch.full((3,), 1 / 3))
        with pytest.raises(ValueError, match=r'losses must be positive for normalize="loss"; found \[-3.0\]'):
            coefficients(MGDA("loss"), ORTHOGONAL, HALF, vector(2, -3))


class TestMomentum:
    """CR-MOGM is Momentum(MGDA())."""

    def test_declares_what_mgda_needs(self):
        assert Momentum(MGDA()).needs == {"gramian"}
        assert not Momentum(MGDA()).traceable

    def test_the_first_step_takes_the_new_weights(self):
        method, losses = Momentum(MGDA()), vector(1, 1)
        c, state = method.update(losses, method.init(losses), HALF, gramian=FIRST_SHORTER)
        torch.testing.assert_close(c, vector(0.5, 0))
        torch.testing.assert_close(state.weights, vector(1, 0))

    def test_the_tenth_step_by_hand(self):
        # ‖(1, 0) − (1/2, 1/2)‖₁ = 1, so a = 1 − 1/10.
        method, losses = Momentum(MGDA()), vector(1, 1)
        state = MomentumState(Stateless(), vector(0.5, 0.5), vector(9))
        c, state = method.update(losses, state, HALF, gramian=FIRST_SHORTER)
        torch.testing.assert_close(state.weights, vector(0.55, 0.45))
        torch.testing.assert_close(c, vector(0.55, 0.45) / 2)
        assert state.step.item() == 10

    def test_weights_stay_on_the_simplex_and_reach_a_constant_target(self):
        method, losses = Momentum(MGDA()), torch.ones(5, dtype=torch.float64)
        w = torch.softmax(random(5, seed=5), -1)
        state = method.init(losses)
        J = random(30, 5, 8, seed=6)
        for t in range(30):
            _, state = method.update(losses, state, w, gramian=J[t] @ J[t].mT)
            assert state.weights.sum().item() == pytest.approx(1, abs=1e-12)
            assert (state.weights >= 0).all()
        for _ in range(400):
            _, state = method.update(losses, state, w, gramian=J[0] @ J[0].mT)
        target = min_norm(J[0] @ J[0].mT * w * w.unsqueeze(-1))
        torch.testing.assert_close(state.weights, target)

    def test_released_rule_pools_the_drift_over_preferences(self):
        seeds, preferences, steps = 2, 10, 8
        w1 = torch.linspace(0.01, 0.99, preferences, dtype=torch.float64)
        w = torch.stack([w1, 1 - w1], -1)
        J = random(steps, seeds, preferences, 2, 4, seed=7) * 0.02 + random(2, 4, seed=8)
        method = Momentum(MGDA(margin=0.001), rule="released", pool=(-2,))
        losses = torch.ones(seeds, preferences, 2, dtype=torch.float64)
        state = method.init(losses)
        expected = torch.full((seeds, preferences, 2), 0.5, dtype=torch.float64)
        mixed = []
        for t in range(steps):
            c, state = method.update(losses, state, w, gramian=J[t] @ J[t].mT)
            for s in range(seeds):
                G = w.unsqueeze(-1) * J[t, s]
                new = torch.stack([naive_pair(g) for g in G])
                a = max(0.0, 1 - (t + 1) * (new - expected[s]).abs().sum().item())
                mixed.append(0 < a < 1)
                expected[s] = a * expected[s] + (1 - a) * new
            torch.testing.assert_close(c, expected * w)
        assert any(mixed)
        assert not all(mixed)


def naive_pair(G: Tensor) -> Tensor:
    """The two-task closed form as published, on gradients (2, d)."""
    v11, v12, v22 = (float(a @ b) for a, b in [(G[0], G[0]), (G[0], G[1]), (G[1], G[1])])
    if v12 >= v11:
        gamma = 0.999
    elif v12 >= v22:
        gamma = 0.001
    else:
        gamma = (v22 - v12) / (v11 + v22 - 2 * v12)
    return vector(gamma, 1 - gamma)
