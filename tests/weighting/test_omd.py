"""OMD on λ by hand: EG, AFL, GroupDRO, adaptive steps, optimism."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.simplex import Mirror


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_after(weighting: eq.OMD, losses: list[Tensor], w: Tensor, **given: Any) -> list[float]:
    state = weighting.init(losses[0])
    for f in losses:
        _, state = weighting.update(f, state, w, **given)
    result: list[float] = weighting.weights(state).tolist()
    return result


HALF = vector(0.5, 0.5)
MIRRORS: list[Mirror] = [eq.Euclidean(), eq.Entropic(), eq.Entropic(floor=0.1), eq.PNorm(), eq.PNorm(1.2)]
mirrored = pytest.mark.parametrize("mirror", MIRRORS, ids=repr)


# Numbers --------------------------------------------------------------------------------------


def test_eg_by_hand():
    # By hand.
    assert weights_after(eq.OMD(1.0, eq.Entropic()), [vector(2.0, 1.0)], vector(0.3, 0.7)) == pytest.approx(
        [0.4750208, 0.5249792], abs=5e-8
    )


def test_afl_by_hand():
    # η = .1 with the factor m of uniform w.
    afl = eq.OMD(0.2, eq.Euclidean())
    assert weights_after(afl, [vector(1.0, 2.0)], HALF) == pytest.approx([0.45, 0.55])


def test_groupdro_by_hand():
    # η = .01 with the factor m; the θ-step has the new weights.
    dro = eq.OMD(0.02, eq.Entropic(), order="alternating")
    c, state = dro.update(vector(1.0, 2.0), dro.init(HALF), HALF)
    expected = [0.49750002, 0.50249998]
    assert dro.weights(state).tolist() == pytest.approx(expected, abs=5e-9)
    assert c.tolist() == pytest.approx([0.5 * q for q in expected], abs=5e-9)


def test_groupdro_with_its_adjustment_by_hand():
    # C = 1, n = (100, 4): the ideal point −C/√n makes the gain that of f + C/√n.
    dro = eq.OMD(0.02, eq.Entropic(), order="alternating", ideal=(-1 / math.sqrt(100), -1 / math.sqrt(4)))
    assert weights_after(dro, [vector(1.0, 2.0)], HALF) == pytest.approx([0.49650006, 0.50349994], abs=5e-9)


def test_pnorm_by_hand():
    # with gains e_1 and q = 2 ln 4.
    q = 2 * math.log(4)
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    found = weights_after(eq.OMD(0.5, eq.PNorm(q / (q - 1))), [vector(4.0, 0.0, 0.0, 0.0)], uniform)
    assert found == pytest.approx([0.71291776, 0.09569408, 0.09569408, 0.09569408], abs=5e-9)


def test_the_coefficients_are_not_renormalised():
    weighting, w = eq.OMD(1.0), vector(0.2, 0.8)
    c, state = weighting.update(vector(2.0, 1.0), weighting.init(w), w)
    assert c.tolist() == pytest.approx([0.1, 0.4])
    # λ = Π(.5 + .4, .5 + .8) = (.3, .7)
    assert weighting.weights(state).tolist() == pytest.approx([0.3, 0.7])
    c, _ = weighting.update(vector(0.0, 0.0), state, w)
    assert c.tolist() == pytest.approx([0.06, 0.56])


def test_it_starts_at_the_point_of_the_dual_set_nearest_to_uniform():
    for mirror in (eq.Euclidean(), eq.Entropic()):
        weighting = eq.OMD(1.0, mirror, dual_set=eq.Box(lower=(0.4, 0.0, 0.0)))
        assert weighting.weights(weighting.init(torch.ones(3))).tolist() == pytest.approx([0.4, 0.3, 0.3])


@pytest.mark.parametrize("mirror", [eq.Euclidean(), eq.Entropic()], ids=repr)
def test_a_dual_set_may_shut_an_objective_out(mirror: Mirror):
    """With λ_3 ≤ 0 the others play their game as if they were alone."""
    shut = eq.OMD(0.4, mirror, dual_set=eq.Box(upper=(1.0, 1.0, 0.0)))
    alone = eq.OMD(0.4, mirror)
    w, half = torch.full((3,), 1 / 3, dtype=torch.float64), torch.full((2,), 1 / 2, dtype=torch.float64)
    state, expected = shut.init(w), alone.init(half)
    assert shut.weights(state).tolist() == pytest.approx([0.5, 0.5, 0.0])
    for seed in range(5):
        f = draw(3, seed=seed)
        f[2] = 0.0
        _, state = shut.update(3 * f, state, w)
        _, expected = alone.update(2 * f[:2], expected, half)
        weights = shut.weights(state)
        torch.testing.assert_close(weights[:2], alone.weights(expected), rtol=1e-12, atol=0)
        assert weights[2].item() == 0.0


@pytest.mark.parametrize("mirror", [eq.Euclidean(), eq.Entropic()], ids=repr)
def test_a_dual_set_may_leave_no_choice(mirror: Mirror):
    for box in (eq.Box(lower=(0.5, 0.5, 0.0)), eq.Box(upper=(0.5, 0.5, 0.0)), eq.Box.ball((0.5, 0.5, 0.0), 0.0)):
        for step in (1.0, "adaptive"):
            weighting = eq.OMD(step, mirror, dual_set=box)
            for steps in (1, 2, 3):
                found = weights_after(weighting, [draw(3, seed=t) for t in range(steps)], torch.full((3,), 1 / 3))
                assert found == pytest.approx([0.5, 0.5, 0.0])


def test_one_objective_is_plain_gradient_descent():
    for mirror in MIRRORS:
        for step in (0.3, "adaptive"):
            weighting = eq.OMD(step, mirror, optimism=1.0)
            state = weighting.init(torch.ones(1))
            for f in (2.0, -3.0, 0.0):
                c, state = weighting.update(vector(f), state, vector(1.0))
                assert c.tolist() == [1.0]


# Optimism -------------------------------------------------------------------------------------


def test_optimism_by_hand():
    # PGD, η = .1, c = 2, w uniform: gains g¹ = (.5, 1), g² = (1, 1).
    weighting = eq.OMD(0.1, eq.Euclidean(), optimism=2.0)
    state = weighting.init(HALF)
    _, state = weighting.update(vector(1.0, 2.0), state, HALF)
    # push g + 2(g − 0) = (1.5, 3): λ = Π(.65, .8)
    assert weighting.weights(state).tolist() == pytest.approx([0.425, 0.575])
    _, state = weighting.update(vector(2.0, 2.0), state, HALF)
    # push (1, 1) + 2(.5, 0) = (2, 1): λ = Π(.625, .675)
    assert weighting.weights(state).tolist() == pytest.approx([0.475, 0.525])
    assert state.previous.tolist() == [1.0, 1.0]


def test_smoothed_optimism_by_hand():
    # As above with τ = 2: the means are ḡ¹ = (.25, .5), ḡ² = (.625, .75).
    weighting = eq.OMD(0.1, eq.Euclidean(), optimism=2.0, smoothing=2.0)
    state = weighting.init(HALF)
    _, state = weighting.update(vector(1.0, 2.0), state, HALF)
    # push (.5, 1) + 2(.25, .5) = (1, 2): λ = Π(.6, .7)
    assert weighting.weights(state).tolist() == pytest.approx([0.45, 0.55])
    _, state = weighting.update(vector(2.0, 2.0), state, HALF)
    # push (1, 1) + 2(.375, .25) = (1.75, 1.5): λ = Π(.625, .7)
    assert weighting.weights(state).tolist() == pytest.approx([0.4625, 0.5375])
    assert state.previous.tolist() == [0.625, 0.75]


def test_with_eg_optimism_adds_up_to_c_times_the_mean():
    c, tau = 3.0, 4.0
    weighting, w = eq.OMD(0.1, eq.Entropic(), optimism=c, smoothing=tau), vector(0.2, 0.3, 0.5)
    state, total, mean = weighting.init(w), torch.zeros(3), torch.zeros(3)
    for t in range(7):
        f = draw(3, seed=t)
        _, state = weighting.update(f, state, w)
        total, mean = total + w * f, mean + (w * f - mean) / tau
    expected = torch.softmax(0.1 * (total + c * mean), -1)
    assert weighting.weights(state).tolist() == pytest.approx(expected.tolist())


def test_smoothing_lets_less_noise_into_the_weights():
    """Constant gains with noise: λ moves by c/τ of it instead of c."""

    def wandering(tau: float) -> float:
        weighting = eq.OMD(0.01, eq.Euclidean(), optimism=30.0, smoothing=tau)
        state, seen = weighting.init(HALF), []
        for t in range(200):
            _, state = weighting.update(1.0 + 0.1 * draw(2, seed=t), state, HALF)
            seen.append(weighting.weights(state)[0])
        return float(torch.stack(seen[20:]).diff().std())

    assert wandering(10.0) < 0.2 * wandering(1.0)


def test_a_smoothing_of_one_is_not_shown_and_does_nothing():
    assert repr(eq.OMD(0.1, optimism=2.0, smoothing=1.0)) == repr(eq.OMD(0.1, optimism=2.0))
    assert "smoothing" not in repr(eq.OMD())
    assert "smoothing=10.0" in repr(eq.OMD(smoothing=10.0))
    # A tensor of ones takes the other way, to the same numbers.
    weightings = [eq.OMD(0.1, optimism=2.0), eq.OMD(0.1, optimism=2.0, smoothing=torch.tensor(1.0))]
    states = [weighting.init(HALF) for weighting in weightings]
    for t in range(5):
        states = [w.update(draw(2, seed=t), s, HALF)[1] for w, s in zip(weightings, states, strict=True)]
    assert states[0].dual.tolist() == pytest.approx(states[1].dual.tolist())


def test_a_horizon_by_hand():
    """After H steps the sum of squares loses 1/H of itself before the next: gains of one length leave it as it is."""
    weighting, w = eq.OMD("adaptive", eq.Euclidean(), horizon=3.0), vector(0.5, 0.5)
    losses = vector(2.0, 4.0)  # g = (1, 2), whose squared length on the simplex's plane is ½
    state, norms = weighting.init(losses), []
    for _ in range(6):
        _, state = weighting.update(losses, state, w)
        norms.append(state.norm.item() ** 2)
    first = norms[0]
    torch.testing.assert_close(vector(*norms), first * vector(1, 2, 3, 3, 3, 3))
    _, state = weighting.update(2 * losses, state, w)
    assert state.norm.item() ** 2 == pytest.approx(first * (3 * 2 / 3 + 4))
    _, kept = weighting.update(vector(math.nan, 1.0), state, w)  # a step that does not count
    assert (kept.steps.item(), kept.norm.item()) == (7, state.norm.item())


@pytest.mark.parametrize("mirror", [eq.Euclidean(), eq.Entropic()])
def test_up_to_its_horizon_nothing_is_forgotten(mirror):
    plain, other = eq.OMD("adaptive", mirror), eq.OMD("adaptive", mirror, horizon=20.0)
    w, a, b = vector(0.2, 0.3, 0.5), plain.init(vector(0, 0, 0)), other.init(vector(0, 0, 0))
    draws = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t, losses in enumerate(draws, 1):
        (_, a), (_, b) = plain.update(losses, a, w), other.update(losses, b, w)
        assert torch.equal(a.dual, b.dual) == (t <= 20)


def test_a_horizon_keeps_long_runs_on_their_rays():
    """Without one, optimism fades with the step, and on a concave front the players rotate."""
    problem, w = eq.problems.problems()["VLMOP2"], torch.tensor([[0.5, 0.5], [0.42, 0.58]])
    conversion = {"adaptive": eq.Adaptive(power=8.0, capacity=8)}
    errors = []
    for horizon in (math.inf, 1000.0):
        weighting = eq.OMD("adaptive", eq.Euclidean(), optimism=30.0, smoothing=3.0, horizon=horizon)
        found = eq.solve(problem, w, weighting, conversions=conversion, steps=9000, seeds=(0, 1))
        errors.append(eq.metrics.imbalance(found.losses["adaptive"], w).max().item())
    assert errors[0] > 0.02
    assert errors[1] < 0.001


def test_an_idle_horizon_is_not_shown():
    assert "horizon" not in repr(eq.OMD())
    assert "horizon=1000.0" in repr(eq.OMD(horizon=1000.0))


@pytest.mark.parametrize("horizon", [0.5, math.nan, -1.0])
def test_a_bad_horizon_is_refused(horizon: float):
    with pytest.raises(ValueError, match=rf"horizon must be at least 1; found {horizon}"):
        eq.OMD(horizon=horizon)
    with pytest.raises(ValueError, match=r"horizon is for the adaptive step alone; found 100\.0"):
        eq.OMD(1.0, horizon=100.0)


@pytest.mark.parametrize("smoothing", [0.5, 0.0, math.nan, math.inf])
def test_a_bad_smoothing_is_refused(smoothing: float):
    with pytest.raises(ValueError, match=rf"smoothing must be at least 1 and finite; found {smoothing}"):
        eq.OMD(1.0, smoothing=smoothing)


def test_the_last_gain_is_remembered_exactly():
    weighting = eq.OMD(0.1, eq.Entropic(), optimism=1.0)
    state = weighting.init(HALF)
    for f in (vector(1e30, 1e-30), vector(1.0, 0.3)):
        _, state = weighting.update(f, state, HALF)
        assert torch.equal(state.previous, HALF * f)


def test_an_absent_objective_has_no_change_and_keeps_its_last_gain():
    weighting = eq.OMD(0.1, eq.Entropic(), optimism=3.0)
    w, mask = vector(0.2, 0.3, 0.5), torch.tensor([True, False, False])
    state = weighting.init(w)
    _, state = weighting.update(vector(1.0, 2.0, 3.0), state, w)
    _, new = weighting.update(vector(4.0, 9.0, 9.0), state, w, mask=mask)
    # Two absent ones keep their proportion, and the present one gains .1·(.8 + 3·(.8 − .2)) on them.
    moved = new.dual - state.dual
    assert moved[1].item() == pytest.approx(moved[2].item(), abs=1e-15)
    assert (moved[0] - moved[1]).item() == pytest.approx(0.1 * (0.8 + 3 * 0.6))
    assert new.previous.tolist() == pytest.approx([0.8, 0.6, 1.5])


def test_unused_memory_stays_empty():
    weighting = eq.OMD(0.1, eq.Entropic())
    state = weighting.init(HALF)
    for _ in range(3):
        _, state = weighting.update(vector(1.0, 2.0), state, HALF)
    assert not state.total.any()
    assert not state.norm.any()
    assert not state.previous.any()


# The adaptive step ----------------------------------------------------------------------------


def test_adaptive_pgd_by_hand():
    # g¹ = (.3, .4), ‖g‖ = .5, η = 2: λ = Π(1.1, 1.3) = (.4, .6).
    weighting = eq.OMD("adaptive", eq.Euclidean())
    state = weighting.init(HALF)
    _, state = weighting.update(vector(0.6, 0.8), state, HALF)
    assert weighting.weights(state).tolist() == pytest.approx([0.4, 0.6])
    # g² = (1.2, 0): Σ‖g‖² = .25 + 1.44 = 1.3², η = 1/1.3: λ = Π(.4 + 1.2/1.3, .6).
    _, state = weighting.update(vector(2.4, 0.0), state, HALF)
    assert state.norm.tolist() == pytest.approx([1.3])
    assert weighting.weights(state)[0].item() == pytest.approx(0.5 + (0.4 + 1.2 / 1.3 - 0.6) / 2)


@pytest.mark.parametrize("c", [0.0, 3.0])
def test_adaptive_eg_by_hand(c: float):
    """Dual averaging: λ ∝ exp(η_t (Σ g + c g⁽ᵗ⁾)) from the start, with η_t = √(log m / Σ ‖g‖²_∞)."""
    weighting = eq.OMD("adaptive", eq.Entropic(), optimism=c)
    gains = [vector(0.3, 0.4), vector(1.2, 0.0), vector(0.0, 0.7)]
    state = weighting.init(HALF)
    for t, g in enumerate(gains, 1):
        _, state = weighting.update(2 * g, state, HALF)
        eta = math.sqrt(math.log(2) / sum(x.max().item() ** 2 for x in gains[:t]))
        expected = torch.softmax(eta * (torch.stack(gains[:t]).sum(0) + c * g), -1)
        torch.testing.assert_close(weighting.weights(state), expected, rtol=1e-13, atol=0)


def test_adaptive_optimistic_pgd_by_hand():
    # g = (.3, .4), c = 1: η = 2 of the gain, not of what is pushed; λ = Π(.5 + 1.2, .5 + 1.6) = (.3, .7).
    assert weights_after(eq.OMD("adaptive", optimism=1.0), [vector(0.6, 0.8)], HALF) == pytest.approx([0.3, 0.7])


def test_adaptive_pnorm_is_a_step_of_its_mirror():
    mirror = eq.PNorm(1.5)
    weighting, w = eq.OMD("adaptive", mirror), vector(0.2, 0.3, 0.5)
    state, dual, norms = weighting.init(w), mirror.start(w), 0.0
    for seed in range(4):
        f = draw(3, seed=seed)
        _, state = weighting.update(f, state, w)
        norms += torch.linalg.vector_norm(w * f, 3.0).item() ** 2
        dual = mirror.step(dual, w * f, math.sqrt(0.5 / norms))
        torch.testing.assert_close(weighting.weights(state), dual, rtol=1e-12, atol=1e-14)


@mirrored
def test_without_any_gain_nothing_moves(mirror: Mirror):
    weighting = eq.OMD("adaptive", mirror)
    assert weights_after(weighting, [vector(0.0, 0.0)] * 3, HALF) == pytest.approx([0.5, 0.5], abs=1e-15)


RADIUS = {"Euclidean": 1.0, "Entropic": math.log(5), "PNorm": 1.0}  # D over the simplex with m = 5


@mirrored
def test_the_adaptive_step_has_little_regret(mirror: Mirror):
    """At most 2√(D/μ Σ‖g‖²_*) and one largest gain behind the best fixed λ, whatever the scale of the losses.

    The adversary pays what λ holds least of: a λ that stands still loses 0.8 a step, which exceeds the bound.
    """
    weighting, m, T, scale = eq.OMD("adaptive", mirror), 5, 300, vector(1e-3, 1.0, 1e3).unsqueeze(-1)
    uniform = torch.full((3, m), 1 / m, dtype=torch.float64)
    state, earned, total, squares = weighting.init(uniform), vector(0, 0, 0), torch.zeros_like(uniform), vector(0, 0, 0)
    for t in range(T):
        weights = weighting.weights(state)
        gain = scale * (draw(3, m, seed=t) + torch.nn.functional.one_hot(weights.argmin(-1), m))
        earned += (weights * gain).sum(-1)
        total += gain
        squares += mirror.dual_norm(gain).squeeze(-1) ** 2
        _, state = weighting.update(m * gain, state, uniform)
    mu = float(mirror.exponents(m)[0]) - 1 if isinstance(mirror, eq.PNorm) else 1.0
    floor = float(mirror.floor) if isinstance(mirror, eq.Entropic) else 0.0
    best = (1 - floor) * total.amax(-1) + floor * total.mean(-1)
    bound = 2 * (RADIUS[type(mirror).__name__] / mu * squares).sqrt() + 2 * scale.squeeze(-1)
    assert (best - earned <= bound).all()


# Many objectives: float32 ---------------------------------------------------------------------


@mirrored
@pytest.mark.parametrize("step", [0.5, "adaptive"])
def test_beyond_ten_thousand_objectives_the_dual_is_float32_and_does_not_overflow(mirror: Mirror, step: Any):
    m = 10_001
    weighting, w = eq.OMD(step, mirror, optimism=1.0), torch.full((m,), 1 / m)
    assert eq.OMD(step, mirror).init(torch.ones(m - 1)).dual.dtype == torch.float64
    state = weighting.init(torch.ones(m))
    assert state.dual.dtype == torch.float32
    for scale in (1.0, 1e30, 1e-30, 1e30, 1.0):
        c, state = weighting.update(scale * draw(m).float(), state, w)
        assert torch.isfinite(c).all()
        assert all(torch.isfinite(tensor).all() for tensor in state)
        assert weighting.weights(state).sum().item() == pytest.approx(1, abs=1e-4)


# Bad settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-0.1, math.nan, math.inf])
def test_a_bad_step_size_is_refused(step: float):
    with pytest.raises(ValueError, match=rf"step_size must be non-negative and finite; found {step}"):
        eq.OMD(step)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r'step_size must be a number or "adaptive"; found fast'):
        eq.OMD("fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"step_size must be non-negative and finite; found tensor\(\[ 1\., -1\.\]\)"):
        eq.OMD(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"mirror must be Euclidean\(\), Entropic\(\) or PNorm\(\); found euclidean"):
        eq.OMD(1.0, "euclidean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'order must be "simultaneous" or "alternating"; found random'):
        eq.OMD(1.0, order="random")  # type: ignore[arg-type]


def test_a_mirror_without_its_parentheses_is_refused():
    with pytest.raises(ValueError, match=r"mirror must be .*; found <class .*Entropic"):
        eq.OMD(1.0, eq.Entropic)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimism", [-1.0, math.nan, math.inf])
def test_a_bad_optimism_is_refused(optimism: float):
    with pytest.raises(ValueError, match=rf"optimism must be non-negative and finite; found {optimism}"):
        eq.OMD(1.0, optimism=optimism)


class Unbounded(eq.Entropic):
    """Mirror descent, not dual averaging, with the entropy: log(1/λ_i) has no bound."""

    lazy = False

    def step_scale(self, m: int) -> float:  # noqa: ARG002
        return math.inf


def test_an_adaptive_step_needs_a_bounded_diameter():
    losses = torch.zeros(3)
    with pytest.raises(ValueError, match=r"bounded diameter for an adaptive step: give step_size a number, or let"):
        eq.OMD("adaptive", Unbounded()).init(losses)
    eq.OMD(1.0, Unbounded()).init(losses)
