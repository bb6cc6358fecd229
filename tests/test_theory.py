"""Numbers of the theorems worked out by hand, and the lemmas of docs/theory.md measured."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.theory import (
    Constants,
    Geometry,
    Guarantee,
    best_p,
    gain_window,
    lambda_constants,
    sample_objectives,
    suffix_confidence,
    suffix_excess,
    theta_constants,
    window_end,
)

ROOT10 = math.sqrt(10.0)
GAMMA = 2.0 / math.e  # log(2/γ) = 1
PGD = Guarantee(m=4, d=3, U=2.0, L=5.0, R=0.5, geometry="pgd")
EG = dataclasses.replace(PGD, geometry="eg")
GEOMETRIES: list[Geometry] = ["pgd", "eg", "pnorm"]


# The theorems, in numbers ---------------------------------------------------------------------


def test_the_general_theorem_from_given_constants():
    player = Constants(D=5.0, C=2.0, mu=0.5, diameter=7.0, width=3.0)
    assert player.step_size(2.0, 100) == pytest.approx(0.05)  # √(4·0.5·5 / (5·100·2·4))
    assert player.regret(2.0, 100) == pytest.approx(math.sqrt(16.0))  # √(20·5·2·4 / (0.5·100))
    # 2·3·2·√(2/100·log(1/γ)) with log(1/γ) = 2
    assert player.deviation(2.0, 100, math.exp(-2.0)) == pytest.approx(2.4)


def test_th4_and_th7_pgd():
    assert PGD.theta == Constants(D=1.5, C=3.0, mu=1.0, diameter=1.5, width=3.0)
    assert PGD.lam == Constants(D=2.0, C=4.0, mu=1.0, diameter=2.0, width=2.0)
    assert PGD.step_size_theta(100) == pytest.approx(math.sqrt(1.6e-4))  # √(8R²/(5TL²))
    assert PGD.step_size_lambda(100) == pytest.approx(math.sqrt(1e-3))  # √(8/(5TmU²))
    # 2√10·(3·0.5·5 + √4·2)/10
    assert PGD.expectation(100) == pytest.approx(2.3 * ROOT10)
    # and 4·(3·0.5·5 + 2)·√(2/100·log(2/γ))
    assert PGD.high_probability(100, GAMMA) == pytest.approx(2.3 * ROOT10 + 3.8 * math.sqrt(2.0))


def test_th5_and_th8_eg():
    log4 = 1.3862943611198906
    assert EG.lam == Constants(D=log4, C=1.0, mu=1.0, diameter=math.inf, width=2.0)
    assert EG.step_size_theta(100) == PGD.step_size_theta(100)
    assert EG.step_size_lambda(100) == pytest.approx(0.05265538)  # √(4·log 4/(5·100·4))
    # 2√10·7.5/10 + 2√5·√(log 4)·2/10
    assert EG.expectation(100) == pytest.approx(4.74341649 + 1.05310774)
    assert EG.high_probability(100, GAMMA) == pytest.approx(4.74341649 + 1.05310774 + 5.37401154)


def test_two_noise_events_share_gamma():
    noise = PGD.high_probability(100, 0.1) - PGD.expectation(100)
    assert noise == pytest.approx(38.0 * math.sqrt(0.02 * math.log(20.0)))


def test_l2_norm_drops_the_factor_d():
    euclidean = dataclasses.replace(PGD, norm="l2")
    assert euclidean.theta == Constants(D=0.5, C=1.0, mu=1.0, diameter=0.5, width=1.0)
    assert euclidean.step_size_theta(100) == PGD.step_size_theta(100)
    assert euclidean.expectation(100) == pytest.approx(0.5 * ROOT10 + 0.8 * ROOT10)
    noise = euclidean.high_probability(100, GAMMA) - euclidean.expectation(100)
    assert noise == pytest.approx(4.0 * (2.5 + 2.0) * math.sqrt(0.02))
    assert dataclasses.replace(euclidean, d=10**6).expectation(9) == euclidean.expectation(9)


def test_pnorm_for_lambda():
    player = lambda_constants(8, "pnorm", p=1.5)  # q = 3
    assert dataclasses.astuple(player) == pytest.approx((2.0, 4.0, 0.5, 2.0, 2.0))
    assert player.step_size(2.0, 200) == pytest.approx(math.sqrt(2.5e-4))
    assert player.regret(2.0, 200) == pytest.approx(0.8 * ROOT10)  # 2√10·8^⅓·2/√(0.5·200)
    assert Guarantee(m=8, d=3, U=2.0, L=5.0, R=0.5, geometry="pnorm", p=1.5).lam == player


def test_pnorm_for_theta_has_the_root_of_p_minus_1():
    player = theta_constants(8, 0.5, p=1.5)
    assert dataclasses.astuple(player) == pytest.approx((8.0, 4.0, 0.5, 8.0, 8.0))
    assert player.regret(5.0, 200) == pytest.approx(4.0 * ROOT10)  # 2√10·8·0.5·5/√(0.5·200)
    euclidean = theta_constants(8, 0.5, p=1.5, norm="l2")
    assert dataclasses.astuple(euclidean) == pytest.approx((1.0, 1.0, 0.5, 1.0, 1.0))


@pytest.mark.parametrize("m", [1, 2, 7, 8, 20, 1000])
def test_best_p_has_the_smallest_bound(m):
    assert lambda_constants(m, "pnorm") == lambda_constants(m, "pnorm", p=best_p(m))
    best = lambda_constants(m, "pnorm").regret(1.0, 1)
    assert best == pytest.approx(
        min(lambda_constants(m, "pnorm", p=p).regret(1.0, 1) for p in np.linspace(1.01, 2.0, 2000)),
        rel=1e-5,
    )


def test_best_p():
    assert best_p(1) == best_p(7) == 2.0
    q = 6.907755278982137 + 5.822412  # ln 1000 + √(ln 1000·(ln 1000 − 2))
    assert best_p(1000) == pytest.approx(q / (q - 1.0))


def test_suffix():
    # z = √(2 log(2Km/δ)) with 2·8·2/δ = e⁴ and, for dominance, 7·2/δ = e⁴
    assert suffix_confidence(8, 2, 32.0 / math.e**4) == pytest.approx(math.sqrt(8.0))
    assert suffix_confidence(8, 2, 14.0 / math.e**4, rule="dominance") == pytest.approx(math.sqrt(8.0))
    assert suffix_excess(0.5, 400, z=3.0, power=0.0) == pytest.approx(0.15)  # 2·3·0.5/20
    assert suffix_excess(0.5, 400, z=3.0, power=4.0) == pytest.approx(0.25)  # κ = 5/3
    assert suffix_excess(0.5, 400, z=3.0) == pytest.approx(0.15 * 9.0 / math.sqrt(17.0))  # power 8


def test_gain_window():
    assert gain_window(2.0, -0.5, 0.1) == pytest.approx((0.25, 5.0))
    assert gain_window(2.0, 3.0, 0.1) == pytest.approx((0.0, 5.0))  # on a convex front any small gain will do
    assert gain_window(1.0, 0.0, 0.1, momentum=0.9) == pytest.approx((0.0, 1.0))  # (1−β)/lr
    assert gain_window(1.0, 1.0, 0.1, momentum=0.5, smoothing=4.0)[1] == pytest.approx(5.0 * (1.0 - 0.375 + 0.3))
    assert window_end(1.0, -0.5, gain=2.0, optimism=31.0) == pytest.approx(900.0)
    assert window_end(1.0, 0.5, gain=2.0, optimism=31.0) == math.inf
    assert window_end(1.0, -0.5, gain=2.0, optimism=0.0) == 0.0


def test_local_geometry_needs_no_floor_for_a_power():
    local = dataclasses.replace(PGD, geometry="local", power=8.0)
    assert local.bias == 0.0
    assert local.lam == lambda_constants(4, "local")
    # √(20·9·(log 4 + 1)·¼·7/4/100)·2
    assert local.lam.regret(2.0, 100, 8.0) == pytest.approx(2.0 * math.sqrt(45.0 * 1.75 * 2.386294361 / 100.0))


def test_power():
    late = dataclasses.replace(PGD, power=3.0)
    assert late.step_size_theta(100) == pytest.approx(2.0 * PGD.step_size_theta(100))
    assert late.step_size_lambda(100) == pytest.approx(2.0 * PGD.step_size_lambda(100))
    assert late.expectation(100) == pytest.approx(4.6 * ROOT10)
    noise = late.high_probability(100, GAMMA) - late.expectation(100)
    assert noise == pytest.approx(3.8 * math.sqrt(2.0) * 4.0 / math.sqrt(7.0))


def test_power_with_eg_uses_the_diameter_of_the_floored_simplex():
    late = dataclasses.replace(EG, power=1.0, floor=0.1)
    log40 = 3.6888794541139363
    assert late.lam.D == EG.lam.D
    assert late.lam.diameter == pytest.approx(log40)
    assert late.bias == pytest.approx(0.2)
    assert late.step_size_lambda(100) == pytest.approx(math.sqrt(4.0 * 2.0 * log40 / 2000.0))
    theta, lam = 2.0 * ROOT10 * 0.75 * math.sqrt(2.0), math.sqrt(20.0 * 2.0 * log40 * 4.0 / 100.0)
    assert late.expectation(100) == pytest.approx(theta + lam + 0.2)


def test_floor_without_power_costs_only_its_bias():
    floored = dataclasses.replace(EG, floor=0.25)
    assert floored.expectation(100) == pytest.approx(EG.expectation(100) + 0.5)
    assert floored.step_size_lambda(100) == EG.step_size_lambda(100)


def test_sampling():
    single = dataclasses.replace(PGD, sampling="single")
    pair = dataclasses.replace(PGD, sampling="pair")
    assert single.lam.C == pair.lam.C == 1.0
    assert single.step_size_theta(100) == pytest.approx(PGD.step_size_theta(100) / 4.0)
    assert pair.step_size_theta(100) == PGD.step_size_theta(100)
    assert pair.step_size_lambda(100) == pytest.approx(math.sqrt(4.0 * 2.0 / (500.0 * 64.0)))
    assert single.expectation(100) == pytest.approx((6.0 + 1.6) * ROOT10)  # L → 4L, √4·U → 4U
    assert pair.expectation(100) == pytest.approx((1.5 + 1.6) * ROOT10)
    noise = single.high_probability(100, GAMMA) - single.expectation(100)
    assert noise == pytest.approx(4.0 * 3.8 * math.sqrt(2.0))


def test_rounds_and_samples():
    assert PGD.rounds(0.23 * ROOT10) == 10_000
    assert PGD.samples(0.23 * ROOT10) == 40_000
    single = dataclasses.replace(PGD, sampling="single")
    assert single.samples(0.76 * ROOT10) == single.rounds(0.76 * ROOT10) == 10_000
    pair = dataclasses.replace(PGD, sampling="pair")
    assert pair.samples(0.31 * ROOT10) == 20_000
    assert PGD.rounds(PGD.high_probability(123, 0.05), 0.05) == 123
    assert PGD.rounds(1e9) == PGD.rounds(1e300) == 1


# Relations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("gamma", [None, 0.01])
@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_rounds_inverts_the_bound(geometry, gamma, floor):
    if floor and geometry != "eg":
        floor = 0.0
    bound = Guarantee(m=7, d=5, U=1.5, L=0.3, R=2.0, geometry=geometry, floor=floor)

    def at(T: int) -> float:
        return bound.expectation(T) if gamma is None else bound.high_probability(T, gamma)

    for error in (0.031, 0.5, 3.0):
        T = bound.rounds(error, gamma)
        assert at(T) <= error * (1.0 + 1e-9)
        assert T == 1 or at(T - 1) > error
    for T in (1, 2, 3, 10, 77, 12_345):
        assert bound.rounds(at(T), gamma) == T


def test_the_step_size_minimises_what_the_proof_adds_up():
    player = lambda_constants(9, "pnorm", p=1.3)
    U, T = 0.7, 50

    def proof(eta: float) -> float:
        return 2.0 * player.D / (eta * T) + 2.5 * eta * player.C * U**2 / player.mu

    eta = player.step_size(U, T)
    assert proof(eta) == pytest.approx(player.regret(U, T))
    assert proof(1.1 * eta) > proof(eta) < proof(0.9 * eta)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 50])
def test_pnorm_with_p_2_is_pgd(m):
    assert lambda_constants(m, "pnorm", p=2.0) == lambda_constants(m, "pgd")


@pytest.mark.parametrize("m", [2, 3, 4, 10, 100, 10_000])
def test_which_geometry_has_the_smaller_bound(m):
    pgd, eg, pnorm = (lambda_constants(m, geometry).regret(1.0, 1) for geometry in GEOMETRIES)
    assert eg < pnorm <= pgd
    papers = 4.0 * math.sqrt(5.0 * math.e * math.log(m))
    assert pnorm < papers
    if m > 2:  # the paper's q = 2 ln m is at least 2
        q = 2.0 * math.log(m)
        assert pnorm <= lambda_constants(m, "pnorm", p=q / (q - 1.0)).regret(1.0, 1) < papers


def test_with_the_sharp_diameter_pgd_wins_for_two_and_three_objectives():
    """B(u; uniform) ≤ (1 − 1/m)/2 for the Euclidean map; the paper uses 2."""
    eg_wins = [math.log(m) < m * (1.0 - 1.0 / m) / 2.0 for m in range(2, 9)]
    assert eg_wins == [False, False, True, True, True, True, True]


def test_sampling_one_objective_never_needs_fewer_samples_but_a_pair_can():
    wide = Guarantee(m=10, d=1, U=1.0, L=1.0, R=100.0)
    narrow = dataclasses.replace(wide, R=0.01)
    for full in (wide, narrow):
        single = dataclasses.replace(full, sampling="single")
        assert single.samples(0.1, 0.05) > 9 * full.samples(0.1, 0.05)
    assert dataclasses.replace(wide, sampling="pair").samples(0.1, 0.05) < wide.samples(0.1, 0.05)
    assert dataclasses.replace(narrow, sampling="pair").samples(0.1) > narrow.samples(0.1)


@pytest.mark.parametrize("power", [0.0, 0.1, 0.5, 1.0, 1.7, 4.0, 12.0])
def test_weights_of_the_rounds(power):
    """Lemma 3: T·ω_T ≤ (p+1)·Σω and √(Σω²)/Σω ≤ κ/√T, at every T and nearly reached."""
    T = np.arange(1, 3001, dtype=np.float64)
    weights = (T / T[-1]) ** power
    total, squares = weights.cumsum(), (weights**2).cumsum()
    last = T * weights / total / (power + 1.0)
    kappa = (power + 1.0) / math.sqrt(2.0 * power + 1.0)
    noise = np.sqrt(T * squares) / total / kappa
    assert last.max() <= 1.0 + 1e-12
    assert noise.max() <= 1.0 + 1e-12
    assert min(last[-1], noise[-1]) > 0.99


# Regret, measured on naive players ------------------------------------------------------------

M = 5
Array = np.ndarray[Any, np.dtype[np.float64]]
Adversary = Callable[[int, Array], Array]
Step = Callable[[Array, Array], Array]


def adversaries() -> Iterator[Adversary]:
    """Non-negative gains: against the player, at random, growing, spiky, vanishing, late."""
    rng = np.random.default_rng(0)
    unit = np.eye(M)
    yield lambda _, lam: unit[lam.argmin()]
    yield lambda _, __: rng.random(M)
    yield lambda t, lam: 2.0 ** (min(t, 60) / 2.0) * unit[lam.argmin()]
    yield lambda _, __: (1.0 + 1e3 * (rng.random() < 0.01)) * np.round(rng.random(M))
    yield lambda t, lam: 0.97**t * unit[lam.argmin()]
    yield lambda t, _: float(t > 50) * unit[(t // 40) % M]
    yield lambda _, __: unit[0]


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def project(x: Array) -> Array:
    """Euclidean projection on the simplex, by trying every number of positive entries."""
    ordered = np.sort(x)[::-1]
    shifts = [(1.0 - ordered[:k].sum()) / k for k in range(1, x.size + 1)]
    return min((np.maximum(x + s, 0.0) for s in shifts), key=lambda y: abs(y.sum() - 1.0))


def raise_to(floor: float, x: Array) -> Array:
    """KL projection of a point of the simplex on {λ_i ≥ floor}."""
    low = np.zeros(x.size, dtype=bool)
    while True:
        y = np.where(low, floor, x * (1.0 - floor * low.sum()) / x[~low].sum())
        if (y >= floor - 1e-15).all():
            return y
        low |= y < floor


class Play:
    """T rounds of a λ-player against an adversary; `weights` are the weights of the rounds."""

    def __init__(self, step: Step, adversary: Adversary, T: int, weights=None, start=None):
        weights = np.ones(T) if weights is None else weights
        lam = np.full(M, 1.0 / M) if start is None else start
        self.gains, earned = [], 0.0
        for t in range(1, T + 1):
            gain = adversary(t, lam)
            self.gains.append(gain)
            earned += weights[t - 1] * float(lam @ gain)
            lam = step(lam, np.stack(self.gains))
        self.totals = weights @ np.stack(self.gains)
        self.regret = float(self.totals.max()) - earned

    def norms(self, q: float) -> Array:
        return np.asarray(np.linalg.norm(np.stack(self.gains), ord=q, axis=1), dtype=np.float64)


def dual_averaging(sign: float):
    """EG with λ⁽ᵗ⁺¹⁾ = softmax(√D/G_t · Σ_{s≤t} g⁽ˢ⁾)."""

    def step(_, gains):
        G = math.sqrt((gains.max(1) ** 2).sum())
        return softmax(sign * math.sqrt(math.log(M)) * gains.sum(0) / G) if G else np.full(M, 1 / M)

    return step


def adaptive_pgd(sign: float):
    """PGD with η_t = √D/G_t and D = 1, the Bregman diameter of the simplex."""

    def step(lam, gains):
        G = math.sqrt((gains**2).sum())
        return project(lam + sign * gains[-1] / G) if G else lam

    return step


def adaptive_bound(name: str, play: Play) -> float:
    if name == "eg":
        factor = (1.0 + math.sqrt(2.0)) * (math.sqrt(math.log(M)) + 1.0)
        return factor * float(np.linalg.norm(play.norms(np.inf)))
    return 2.0 * float(np.linalg.norm(play.norms(2)))


@pytest.mark.parametrize(("name", "player"), [("eg", dual_averaging), ("pgd", adaptive_pgd)])
def test_adaptive_step_sizes_keep_their_regret_bound(name, player):
    ratios = []
    for adversary in adversaries():
        play = Play(player(1.0), adversary, 150)
        ratios.append(play.regret / adaptive_bound(name, play))
    assert max(ratios) <= 1.0
    assert max(ratios) > 0.05
    *_, constant = adversaries()
    wrong = Play(player(-1.0), constant, 150)
    assert wrong.regret > adaptive_bound(name, wrong)


@pytest.mark.parametrize("player", [dual_averaging, adaptive_pgd])
def test_adaptive_step_sizes_do_not_depend_on_the_unit(player):
    def small(adversary: Adversary, t: int, lam: Array) -> Array:
        return 1e-3 * adversary(t, lam)

    for one, other in zip(adversaries(), adversaries(), strict=True):
        play = Play(player(1.0), one, 80)
        scaled = Play(player(1.0), functools.partial(small, other), 80)
        assert scaled.regret == pytest.approx(1e-3 * play.regret, rel=1e-6, abs=1e-9)


def optimistic(eta: float, c: float, sign: float = 1.0):
    return lambda _, gains: softmax(sign * eta * (gains.sum(0) + c * gains[-1]))


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 4.0])
def test_optimistic_eg_keeps_its_regret_bound(c):
    eta = 0.1

    def bound(play: Play) -> float:
        gains = np.stack(play.gains)
        hints = c * np.vstack([np.zeros(M), gains[:-1]])
        return math.log(M) / eta + eta / 2.0 * float((np.abs(gains - hints).max(1) ** 2).sum())

    for adversary in adversaries():
        play = Play(optimistic(eta, c), adversary, 150)
        assert play.regret <= bound(play)
    *_, constant = adversaries()
    wrong = Play(optimistic(eta, c, sign=-1.0), constant, 150)
    assert wrong.regret > bound(wrong)
    if c == 1.0:  # gains that do not change cost nothing but the start
        steady = Play(optimistic(eta, c), constant, 150)
        assert bound(steady) == pytest.approx(math.log(M) / eta + eta / 2.0)


def test_optimism_with_a_vanishing_step_is_smooth_tchebycheff():
    gains = np.random.default_rng(1).random((30, M))
    mu, eta = 0.2, 1e-9
    lam = optimistic(eta, 1.0 / (mu * eta))(None, gains)
    np.testing.assert_allclose(lam, softmax(gains[-1] / mu), rtol=1e-6)


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("corner", [False, True])
def test_weighted_regret_of_pgd(power, corner):
    T, eta = 150, 0.2
    weights = np.arange(1.0, T + 1.0) ** power
    start = np.eye(M)[1] if corner else None

    def excess(sign: float, adversary: Adversary) -> float:
        def step(lam: Array, gains: Array) -> Array:
            return project(lam + sign * eta * gains[-1])

        play = Play(step, adversary, T, weights, start)
        bound = weights[-1] / eta + eta / 2.0 * (weights @ play.norms(2) ** 2)
        return float(play.regret - bound)

    assert max(excess(1.0, adversary) for adversary in adversaries()) <= 0.0
    *_, constant = adversaries()
    assert excess(-1.0, constant) > 0.0


@pytest.mark.parametrize("power", [1.0, 4.0])
def test_weighted_regret_of_eg_above_a_floor(power):
    T, eta, g = 150, 0.2, 0.05
    weights = np.arange(1.0, T + 1.0) ** power

    def excess(sign: float, adversary: Adversary) -> float:
        def step(lam: Array, gains: Array) -> Array:
            return raise_to(g / M, softmax(np.log(lam) + sign * eta * gains[-1]))

        play = Play(step, adversary, T, weights)
        U = play.norms(np.inf)
        best = (1.0 - g) * play.totals.max() + g * play.totals.mean()  # above the floor
        bias = play.totals.max() - best
        assert 0.0 <= bias <= g * (weights @ U)
        bound = weights[-1] * math.log(M / g) / eta + eta / 2.0 * (weights @ U**2)
        return float(play.regret - bias - bound)

    assert max(excess(1.0, adversary) for adversary in adversaries()) <= 0.0
    *_, constant = adversaries()
    assert excess(-1.0, constant) > 0.0


def test_without_a_floor_the_weighted_regret_of_eg_breaks_the_bound_of_the_start():
    """What `power` > 0 needs the floor for: λ is far from the comparator when weights are large."""
    T, eta, power = 400, 0.5, 8.0
    weights = np.arange(1.0, T + 1.0) ** power
    unit = np.eye(M)
    play = Play(
        lambda lam, gains: softmax(np.log(lam) + eta * gains[-1]),
        lambda t, _: unit[0] if t <= T / 2 else unit[1],
        T,
        weights,
    )
    without = (power + 1.0) * math.log(M) / eta * weights.sum() / T + eta / 2.0 * weights.sum()
    assert play.regret > without


# Sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_sampling_is_unbiased(count):
    n, m = 20_000, 5
    generator = torch.Generator().manual_seed(0)
    mask, inclusion = sample_objectives(m, count, batch=(n,), generator=generator)
    assert mask.shape == (n, m)
    assert mask.dtype == torch.bool
    assert inclusion.tolist() == pytest.approx([count / m] * m)
    assert (mask.sum(-1) == count).all()

    lam, w = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]), torch.tensor([0.3, 0.1, 0.2, 0.3, 0.1])
    losses = torch.tensor([1.0, 4.0, 0.5, 2.0, 3.0])
    jacobian = torch.randn(m, 3, generator=generator)
    estimates = (mask / inclusion * w * losses, (mask / inclusion * lam * w) @ jacobian)
    for estimate, truth in zip(estimates, (w * losses, (lam * w) @ jacobian), strict=True):
        tolerance = 5.0 * estimate.std(0) / math.sqrt(n) + 1e-6
        assert ((estimate.mean(0) - truth).abs() <= tolerance).all()
        if count < m:  # the check sees a missing 1/π
            assert ((count / m * estimate.mean(0) - truth).abs() > tolerance).any()


def test_full_sampling_is_the_mask_of_ones():
    mask, inclusion = sample_objectives(3, 3, batch=(2, 4))
    assert mask.shape == (2, 4, 3)
    assert mask.all()
    assert (inclusion == 1.0).all()


def test_sampling_draws_each_batch_element_on_its_own_and_repeats_with_the_seed():
    def draw() -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        return sample_objectives(4, 1, batch=(50,), generator=generator)[0]

    assert draw().any(0).all()
    assert torch.equal(draw(), draw())
    assert sample_objectives(4, 2)[0].shape == (4,)


# Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "m must be an integer of at least 1; found 0"),
        ({"m": 2.5}, "m must be an integer of at least 1; found 2.5"),
        ({"d": -1}, "d must be an integer of at least 1; found -1"),
        ({"m": "2"}, "m must be an integer of at least 1; found '2'"),
        ({"U": "2"}, "U must be positive and finite; found '2'"),
        ({"U": 0.0}, "U must be positive and finite; found 0.0"),
        ({"L": math.nan}, "L must be positive and finite; found nan"),
        ({"R": math.inf}, "R must be positive and finite; found inf"),
        ({"geometry": "newton"}, "geometry must be one of pgd, eg, pnorm, local; found 'newton'"),
        ({"norm": "l1"}, "norm must be one of inf, l2; found 'l1'"),
        ({"sampling": "some"}, "sampling must be one of full, single, pair; found 'some'"),
        ({"power": -0.5}, "power must be non-negative and finite; found -0.5"),
        ({"floor": 1.0}, "floor must be at least 0 and below 1; found 1.0"),
        ({"floor": 0.1}, "floor must be 0 unless geometry is eg; found 0.1"),
        ({"p": 1.5}, "p must be None unless geometry is pnorm; found 1.5"),
        ({"p": 1.0, "geometry": "pnorm"}, "p must be above 1 and at most 2; found 1.0"),
        (
            {"geometry": "eg", "power": 1.0},
            "floor must be positive for geometry eg with power > 0; found 0.0",
        ),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dataclasses.replace(PGD, **change)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PGD.expectation(0), "T must be an integer of at least 1; found 0"),
        (lambda: PGD.high_probability(0, 0.1), "T must be an integer of at least 1; found 0"),
        (lambda: PGD.step_size_theta(0), "T must be an integer of at least 1; found 0"),
        (lambda: PGD.step_size_lambda(-3), "T must be an integer of at least 1; found -3"),
        (
            lambda: PGD.high_probability(9, 1.0),
            "gamma must be between 0 and 1, both excluded; found 1.0",
        ),
        (lambda: PGD.rounds(0.1, 2.0), "gamma must be between 0 and 1, both excluded; found 2.0"),
        (lambda: PGD.rounds(0.0), "error must be finite and above the bias 0; found 0.0"),
        (
            lambda: dataclasses.replace(EG, floor=0.1).samples(0.2),
            "error must be finite and above the bias 0.2; found 0.2",
        ),
        (lambda: EG.lam.regret(-1.0, 5), "G must be positive and finite; found -1.0"),
        (lambda: EG.lam.deviation(1.0, 0, 0.1), "T must be an integer of at least 1; found 0"),
        (lambda: EG.lam.deviation(1.0, 5, 0.0), "gamma must be between 0 and 1, both excluded; found 0.0"),
        (
            lambda: EG.lam.step_size(1.0, 5, power=2.0),
            "power must be 0 where the Bregman diameter is infinite; found 2.0",
        ),
        (lambda: theta_constants(2, 1.0, p=2.5), "p must be above 1 and at most 2; found 2.5"),
        (lambda: best_p(0), "m must be an integer of at least 1; found 0"),
        (lambda: sample_objectives(3, 4), "count must be at most m = 3; found 4"),
        (lambda: sample_objectives(3, 0), "count must be an integer of at least 1; found 0"),
        (lambda: suffix_confidence(0, 2, 0.1), "capacity must be an integer of at least 1; found 0"),
        (lambda: suffix_confidence(8, 2, 0.0), "delta must be between 0 and 1, both excluded; found 0.0"),
        (
            lambda: suffix_confidence(8, 2, 0.1, rule="any"),  # type: ignore[arg-type]
            "rule must be one of preference, dominance; found 'any'",
        ),
        (lambda: suffix_excess(-1.0, 5, z=2.0), "sigma must be non-negative and finite; found -1.0"),
        (lambda: suffix_excess(1.0, 5, z=math.inf), "z must be non-negative and finite; found inf"),
        (lambda: gain_window(0.0, 1.0, 0.1), "sensitivity must be positive and finite; found 0.0"),
        (lambda: gain_window(1.0, math.inf, 0.1), "curvature must be finite; found inf"),
        (lambda: gain_window(1.0, 1.0, 0.1, momentum=1.0), "momentum must be at least 0 and below 1; found 1.0"),
        (lambda: gain_window(1.0, 1.0, 0.1, smoothing=0.5), "smoothing must be at least 1 and finite; found 0.5"),
        (lambda: window_end(1.0, 1.0, 0.0, 1.0), "gain must be positive and finite; found 0.0"),
        (lambda: sample_objectives(0, 1), "m must be an integer of at least 1; found 0"),
    ],
)
def test_arguments_out_of_range(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
