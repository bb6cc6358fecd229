"""The λ-players of docs/theory.md, sections 7, 10 and 11, held against naive simulations."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.theory import gain_window, lambda_constants, window_end

Array = np.ndarray[Any, np.dtype[np.float64]]


# Optimism for any mirror descent (Lemma 6′) -----------------------------------------------------


def projected(x: Array) -> Array:
    return eq.simplex.project(torch.from_numpy(x)).numpy()


def optimistic_pgd(gains: Array, c: float, tau: float, power: float, steps: Array) -> dict[str, float]:
    """PGD on g_t + c (ḡ_t − ḡ_{t−1}); its weighted regret and the parts of the bound."""
    T, m = gains.shape
    weights = np.arange(1.0, T + 1.0) ** power
    lam, mean = np.full(m, 1.0 / m), np.zeros(m)
    earned = pushed = crossed = largest = 0.0
    for t in range(T):
        earned += weights[t] * float(gains[t] @ lam)
        trend = (gains[t] - mean) / tau
        mean = mean + trend
        push = gains[t] + c * trend
        length, behind = float(np.linalg.norm(push)), float(np.linalg.norm(mean))
        pushed += weights[t] * steps[t] * length**2 / 2.0
        crossed += weights[t] * steps[t] * c * behind * length
        largest = max(largest, behind)
        lam = projected(lam + steps[t] * push)
    return {
        "regret": float((weights @ gains).max()) - earned,
        "start": weights[-1] / steps[-1],  # D = 1: the Bregman diameter
        "ends": weights[-1] * 2.0 * c * math.sqrt(2.0) * largest,
        "pushed": pushed,
        "crossed": crossed,
    }


def ramps(T: int, period: int) -> Array:
    """The gain of the first of two objectives rises and falls in a triangle."""
    phase = np.arange(T) % period / period
    return np.stack([1.0 - np.abs(1.0 - 2.0 * phase), np.zeros(T)], 1)


@pytest.mark.parametrize("tau", [1.0, 5.0])
@pytest.mark.parametrize("power", [0.0, 4.0])
@pytest.mark.parametrize("c", [0.0, 2.0, 40.0])
def test_optimism_keeps_its_bound_with_projections_and_weights(c, power, tau):
    rng = np.random.default_rng(0)
    T = 200
    cases = [rng.random((T, 4)), np.eye(4)[rng.integers(4, size=T)], ramps(T, 40), rng.normal(size=(T, 3))]
    for gains in cases:
        for steps in (np.full(T, 0.1), 0.5 / np.sqrt(np.arange(1.0, T + 1.0))):
            found = optimistic_pgd(gains, c, tau, power, steps)
            assert found["regret"] <= sum(found[part] for part in ("start", "ends", "pushed", "crossed"))


def test_the_bound_needs_the_terms_that_optimism_adds():
    """On slow ramps the push is small and λ leaves an objective while it still pays."""
    found = optimistic_pgd(ramps(800, 400), 400.0, 1.0, 0.0, np.full(800, 0.02))
    assert found["regret"] > found["start"] + found["pushed"]
    assert found["regret"] <= sum(found[part] for part in ("start", "ends", "pushed", "crossed"))


# The stability window (Proposition 9) -----------------------------------------------------------


def circles(
    gains: Tensor, sensitivity: float, curvature: float, lr: float, momentum: float, tau: float, T: int
) -> list[bool]:
    """Whether two objectives that start near their balance move away from it, for every ρ of `gains`.

    The weighted losses are 1 ± √(s²/2)ξ + hξ²/2 with ξ a number, θ has momentum, and λ is that of the library.
    """
    rest = 1e-4  # η/ρ: the integral action is slow, as the proposition asks
    xi = torch.full_like(gains, 1e-7)
    slope, w = math.sqrt(2.0 * sensitivity), torch.tensor([0.5, 0.5], dtype=gains.dtype)
    omd = eq.OMD(rest * gains, optimism=1.0 / rest, smoothing=tau)

    def losses(x: Tensor) -> Tensor:
        shared = 2.0 + curvature * x.square()
        return torch.stack([shared + slope * x, shared - slope * x], -1)

    state = omd.init(losses(xi))
    state = state._replace(previous=w * losses(torch.zeros_like(xi)))
    velocity, trace = torch.zeros_like(xi), []
    for _ in range(T):
        c, state = omd.update(losses(xi), state, w)
        gradient = c.sum(-1) * 2.0 * curvature * xi + (c[..., 0] - c[..., 1]) * slope
        velocity = momentum * velocity + gradient
        xi = (xi - lr * velocity).clamp(-1e3, 1e3)
        trace.append(xi.abs())
    window, stacked = T // 8, torch.stack(trace)
    before, after = stacked[T // 2 - window : T // 2].amax(0), stacked[-window:].amax(0)
    return ((after > before) | (after > 1e-3)).tolist()


@pytest.mark.parametrize(
    ("momentum", "tau", "curvature"),
    [(0.0, 1.0, 0.0), (0.0, 5.0, 0.0), (0.9, 1.0, 0.0), (0.9, 10.0, 0.0), (0.5, 3.0, 0.3), (0.9, 5.0, -0.02)],
)
def test_above_the_window_the_dual_overshoots(momentum, tau, curvature):
    lr, sensitivity = 0.1, 0.5
    _, high = gain_window(sensitivity, curvature, lr, momentum=momentum, smoothing=tau)
    tried = torch.tensor([0.5, 0.97, 1.03, 1.5], dtype=torch.float64) * high
    found = circles(tried, sensitivity, curvature, lr, momentum, tau, T=1200)
    assert found == [False, False, True, True]


@pytest.mark.parametrize(("momentum", "tau"), [(0.0, 1.0), (0.9, 1.0), (0.5, 4.0)])
def test_on_a_concave_front_the_gain_must_exceed_the_curvature(momentum, tau):
    lr, sensitivity, curvature = 0.1, 0.5, -0.1
    low, high = gain_window(sensitivity, curvature, lr, momentum=momentum, smoothing=tau)
    assert low == pytest.approx(0.2)
    assert low < high
    tried = torch.tensor([0.01, 0.95, 1.05, 1.5], dtype=torch.float64) * low
    found = circles(tried, sensitivity, curvature, lr, momentum, tau, T=4000)
    assert found == [True, True, False, False]


def test_without_a_horizon_the_gain_leaves_the_window_when_predicted():
    """Corollary 10: with an adaptive step ρ_t falls like 1/√t; the amplitude is smallest at t*."""
    sensitivity, curvature, lr, T, span = 0.5, -0.1, 0.1, 4000, 250
    c = torch.tensor([5.0, 8.0], dtype=torch.float64)
    ends = [window_end(sensitivity, curvature, gain=math.sqrt(0.5), optimism=value) for value in c.tolist()]
    assert ends == pytest.approx([800.0, 2450.0])  # ((c − 1)·0.5/(√0.5·0.1))²
    w = torch.tensor([0.5, 0.5], dtype=torch.float64)
    slope, omd = math.sqrt(2.0 * sensitivity), eq.OMD("adaptive", optimism=c)
    xi = torch.full((2,), 1e-2, dtype=torch.float64)

    def losses(x: Tensor) -> Tensor:
        shared = 1.0 + curvature * x.square()
        return torch.stack([shared + slope * x, shared - slope * x], -1)

    state, trace = omd.init(losses(xi)), []
    for _ in range(T):
        trace.append(torch.stack([xi, omd.weights(state)[:, 0] - 0.5]).abs())
        coefficients, state = omd.update(losses(xi), state, w)
        shared = coefficients.sum(-1) * 2.0 * curvature * xi
        xi = xi - lr * (shared + (coefficients[:, 0] - coefficients[:, 1]) * slope)
    # The product of both amplitudes does not change with the frequency, which falls too.
    amplitude = torch.stack(trace).unfold(0, span, 10).amax(-1).prod(1)  # (windows, 2)
    seen = 10 * amplitude.argmin(0) + span // 2
    for found, end in zip(seen.tolist(), ends, strict=True):
        assert found == pytest.approx(end, rel=0.05)


# Theorem A --------------------------------------------------------------------------------------


class Anchored:
    """λ_t = Π(y_t + ρ g(θ_t)), a projected gradient step of θ, y averaged, on two or three bowls in a box."""

    def __init__(self, m: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.centres, self.low, self.box = rng.uniform(-1.0, 1.0, (m, 2)), rng.uniform(0.0, 0.5, m), 2.0
        self.bend = rng.uniform(1.0, 2.0, m)  # μ = 1, ℓ = 2
        self.mu, ell = 1.0, 2.0
        self.G = math.sqrt(m) * 2.0 * 3.0 * math.sqrt(2.0)  # on the box |∇g_i| ≤ 2·3√2
        self.rho = 0.3
        self.alpha = 1.0 / (ell + self.rho * self.G**2)
        self.eta = min(self.rho / 2.0, self.alpha * self.mu**2 / (12.0 * self.G**2))
        self.M = 8.0 * self.eta * self.G**2 / (self.alpha * self.mu**2)

    def losses(self, theta: Array) -> Array:
        found: Array = self.low + 0.5 * self.bend * ((theta - self.centres) ** 2).sum(-1)
        return found

    def dual(self, theta: Array, y: Array) -> Array:
        return projected(y + self.rho * self.losses(theta))

    def smoothed(self, theta: Array, y: Array) -> float:
        """Φ(θ, y) = max_λ ⟨λ, g(θ)⟩ − |λ − y|²/(2ρ)."""
        lam = self.dual(theta, y)
        return float(lam @ self.losses(theta) - ((lam - y) ** 2).sum() / (2.0 * self.rho))

    def down(self, theta: Array, y: Array, alpha: float) -> Array:
        weights = self.dual(theta, y) * self.bend
        moved = theta - alpha * (weights[:, None] * (theta - self.centres)).sum(0)
        found: Array = np.clip(moved, -self.box, self.box)
        return found

    def envelope(self, theta: Array, y: Array) -> float:
        """φ(y) = min_θ Φ(θ, y), by gradient steps from a point near it."""
        for _ in range(200):
            theta = self.down(theta, y, 0.1)
        return self.smoothed(theta, y)

    def solution(self) -> tuple[Array, float]:
        """θ* and TCH*, by the method itself with steps for speed instead of proof."""
        theta, y = np.zeros(2), np.full(len(self.low), 1.0 / len(self.low))
        for _ in range(4000):
            theta = self.down(theta, y, 0.1)
            y = y + 0.5 * (self.dual(theta, y) - y)
        return theta, float(self.losses(theta).max())


@pytest.mark.parametrize(("m", "seed"), [(2, 0), (3, 1)])
def test_theorem_a_potential_falls_and_bounds_the_distance(m, seed):
    game = Anchored(m, seed)
    best, value = game.solution()
    theta, y = np.array([1.5, -1.5]), np.full(m, 1.0 / m)

    def potential() -> float:
        phi = game.envelope(theta, y)
        return value - phi + game.M * (game.smoothed(theta, y) - phi)

    start = level = potential()
    rate = 0.5 * min(game.eta / 4.0, game.alpha * game.mu / (2.0 * start))
    for t in range(1, 801):
        lam = game.dual(theta, y)
        theta, y = game.down(theta, y, game.alpha), y + game.eta / game.rho * (lam - y)
        if t % 100 == 0:
            now = potential()
            assert now <= level + 1e-9
            assert now <= 1.0 / (1.0 / start + rate * t) + 1e-9
            assert ((theta - best) ** 2).sum() <= 4.0 / (game.mu * game.M) * now + 1e-6
            level = now
    assert level < 0.9 * start


def test_the_last_iterate_of_theorem_a_converges_where_steps_are_of_a_useful_size():
    game = Anchored(3, 1)
    best, value = game.solution()
    theta, y = np.array([1.5, -1.5]), np.full(3, 1.0 / 3.0)
    for _ in range(800):
        lam = game.dual(theta, y)
        theta, y = game.down(theta, y, 0.1), y + 0.2 * (lam - y)
    assert np.abs(theta - best).max() < 1e-4
    assert game.losses(theta).max() == pytest.approx(value, abs=1e-4)


# The local geometry -----------------------------------------------------------------------------


def slope(y: Array) -> Array:
    """φ' of φ = (m/2)y² up to 1/m and y log(my) + 1/(2m) above."""
    scaled = y.size * y
    return np.where(scaled <= 1.0, scaled, 1.0 + np.log(np.maximum(scaled, 1.0)))


def level(s: Array, m: int) -> Array:
    """The inverse of φ', and 0 below it."""
    return np.where(s <= 1.0, np.maximum(s, 0.0), np.exp(np.maximum(s, 1.0) - 1.0)) / m


def bregman(u: Array, y: Array) -> float:
    def phi(x: Array) -> Array:
        scaled = x.size * x
        return np.where(scaled <= 1.0, scaled * x / 2.0, x * np.log(np.maximum(scaled, 1.0)) + 0.5 / x.size)

    return float((phi(u) - phi(y) - slope(y) * (u - y)).sum())


def mirror_step(y: Array, move: Array) -> Array:
    """The exact step: bisection for the shift ν."""
    low, high = float((slope(y) + move).min()) - 2.0, float((slope(y) + move).max())
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if level(slope(y) + move - middle, y.size).sum() > 1.0 else (low, middle)
    return level(slope(y) + move - high, y.size)


def metric_step(y: Array, move: Array) -> Array:
    """Argmin over the simplex of Σ (λ_i − y_i − h_i move_i)²/(2h_i), h_i = max(y_i, 1/m): bisection for ν."""
    h = np.maximum(y, 1.0 / y.size)
    low, high = float(move.min()) - 1.0, float((y / h + move).max())
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(y + h * (move - middle), 0.0).sum() > 1.0 else (low, middle)
    return np.maximum(y + h * (move - high), 0.0)


def point(rng: np.random.Generator, m: int) -> Array:
    if rng.random() < 0.2:
        corner: Array = np.eye(m)[rng.integers(m)]
        return corner
    return rng.dirichlet(np.full(m, rng.choice([0.1, 1.0, 10.0])))


@pytest.mark.parametrize("m", [2, 3, 10, 100])
def test_constants_of_the_local_geometry(m):
    rng, player = np.random.default_rng(m), lambda_constants(m, "local")
    uniform, corners = np.full(m, 1.0 / m), np.eye(m)
    assert bregman(corners[0], corners[1]) == pytest.approx(player.diameter) == pytest.approx(math.log(m) + 1.0)
    assert bregman(corners[0], uniform) == pytest.approx(player.D)
    for _ in range(300):
        u, y = point(rng, m), point(rng, m)
        divergence, length = bregman(u, y), float(np.abs(u - y).sum())
        assert divergence <= player.diameter + 1e-12
        assert divergence >= player.mu * length**2 / 2.0 - 1e-12
    # Strong convexity is tight to a factor: near a corner, with the mass spread over the rest.
    shift = corners[0] + 1e-4 * (1.0 / (m - 1.0) - corners[0] * m / (m - 1.0))
    assert bregman(shift, corners[0]) <= 2.0 * player.mu * float(np.abs(shift - corners[0]).sum()) ** 2 / 2.0


@pytest.mark.parametrize(("step", "second"), [(mirror_step, 0.25), (metric_step, 1.25)])
def test_one_step_of_the_anchor(step, second):
    """⟨d, u − y⟩ ≤ (B(u; y) − B(u; y'))/η + C·η·range(d)²: for every η, and up to ηr = ½ if φ' is linearised."""
    rng, tightest = np.random.default_rng(0), 0.0
    for _ in range(600):
        m = int(rng.choice([2, 3, 10, 40]))
        u, y, d = point(rng, m), point(rng, m), rng.normal(size=m)
        eta = float(rng.choice([0.01, 0.1, 1.0, 10.0])) / np.ptp(d)
        if step is metric_step:
            eta = min(eta, 0.5 / np.ptp(d))
        new = step(y, eta * d)
        assert new.sum() == pytest.approx(1.0, abs=1e-9)
        gained = bregman(u, y) - bregman(u, new)
        spent = eta * float(d @ (u - y)) - gained
        assert spent <= second * (eta * np.ptp(d)) ** 2 + 1e-9
        tightest = max(tightest, spent / (eta * np.ptp(d)) ** 2)
    assert tightest > 0.1  # with a tenth of the constant it fails


def test_a_linearised_step_that_is_too_long_breaks_the_inequality():
    u, y, d = np.array([1.0, 0.0, 0.0]), np.array([0.9, 0.1, 0.0]), np.array([-1.0, 1.0, 0.0])
    eta = 4.0
    new = metric_step(y, eta * d)
    assert eta * d @ (u - y) - (bregman(u, y) - bregman(u, new)) > 0.0
    assert new[0] == 0.0


def excess(step: Any, power: float, kind: str, sign: float = 1.0) -> float:
    """Weighted regret of an anchor and a step of random length ρ from it along the last gain, less the bound."""
    T, m = 300, 4
    weights = (np.arange(1.0, T + 1.0) / T) ** power
    rng, unit = np.random.default_rng(0), np.eye(m)
    y, hint, eta = np.full(m, 1.0 / m), np.zeros(m), math.inf
    earned = bound = 0.0
    gains = []
    for t in range(1, T + 1):
        rho = float(rng.uniform(1.0, 8.0))
        lam = step(y, sign * rho * hint)
        g = {
            "random": rng.random(m),
            "against": unit[lam.argmin()],
            "turning": unit[(t // 60) % m] + 0.1 * rng.random(m),
            "steady": unit[0],
        }[kind]
        earned += weights[t - 1] * float(lam @ g)
        gains.append(g)
        eta = min(rho / max(20.0, 2.0 * math.sqrt(t)), eta * (t / max(1, t - 1)) ** power)
        h = np.maximum(y, 1.0 / m)
        change = float((h * (g - hint) ** 2).sum()) / 4.0 if step is metric_step else np.ptp(g - hint) ** 2 / 8.0
        second = (1.25 if step is metric_step else 0.25) * eta * np.ptp(g) ** 2
        bound += weights[t - 1] * (rho * change + second)
        y, hint = step(y, sign * eta * g), g
    bound += (math.log(m) + 1.0) * weights[-1] / eta
    return float((weights @ np.stack(gains)).max() - earned - bound)


@pytest.mark.parametrize("step", [mirror_step, metric_step])
def test_regret_of_an_anchor_with_a_gain_that_wanders(step):
    """Theorem 14: λ a step of any length from y along the last gain, y a step that rises no faster than tᵖ."""
    for power in (0.0, 8.0):
        assert max(excess(step, power, kind) for kind in ("random", "against", "turning", "steady")) <= 0.0
    assert excess(step, 0.0, "steady", sign=-1.0) > 0.0  # the bound is not so wide that anything keeps it


def test_a_moving_floor_costs_its_mass_and_its_way():
    """The same with y above a floor that opens and shuts; the price is its bias and the length of its way."""
    T, m, eta = 300, 4, 0.1
    rng = np.random.default_rng(1)
    y, floor = np.full(m, 1.0 / m), np.zeros(m)
    earned = price = second = 0.0
    gains = []
    for t in range(1, T + 1):
        g = np.eye(m)[0] + 0.1 * rng.random(m)
        earned += float(y @ g)
        gains.append(g)
        new = np.full(m, min(1.0, 200.0 / t) / m * float((t // 20) % 2 == 0))
        price += new.sum() * np.ptp(g) + 2.0 * (math.log(m) + 1.0) * np.abs(new - floor).sum() / eta
        second += 0.25 * eta * np.ptp(g) ** 2
        low, high = -50.0, 50.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            total = np.maximum(level(slope(y) + eta * g - middle, m), new).sum()
            low, high = (middle, high) if total > 1.0 else (low, middle)
        y, floor = np.maximum(level(slope(y) + eta * g - high, m), new), new
    regret = float(np.stack(gains).sum(0).max()) - earned
    without = (math.log(m) + 1.0) / eta + second
    assert without < regret <= without + price
