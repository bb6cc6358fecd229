"""Step sizes and error bounds of (Ada)OMD-TCH, and the sampling schemes that they cover.

The two players of the game min over θ, max over λ of L(θ, λ; w) = Σ_i λ_i w_i f_i(θ) each bring the
constants of their mirror map (`Constants`); `Guarantee` puts them together. The names th:3 to th:8
are the labels of the paper. Statements, proofs and corrections to the paper are in `docs/theory.md`.

The bounds of `Guarantee` are on TCH(θ̂; w) − min_θ TCH(θ; w), where θ̂ is the output of `Average`, or of `Adaptive`
with dominance on exact objectives. They need convex objectives and projected iterates. `suffix_confidence` and
`suffix_excess` are for `Suffix`, which needs no exact objectives. `gain_window` and `window_end` say for which gains of
the dual two objectives are balanced without oscillation.
"""

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.simplex import PNorm

__all__ = [
    "Constants",
    "Geometry",
    "Guarantee",
    "Norm",
    "Sampling",
    "SuffixRule",
    "best_p",
    "gain_window",
    "lambda_constants",
    "limits_regret",
    "sample_objectives",
    "suffix_confidence",
    "suffix_excess",
    "theta_constants",
    "window_end",
]

Geometry = Literal["pgd", "eg", "pnorm", "local"]
Norm = Literal["inf", "l2"]
Sampling = Literal["full", "single", "pair"]
SuffixRule = Literal["preference", "dominance"]


def _require(name: str, rule: str, value: object, *, holds: bool) -> None:
    require(holds, f"{name} must be {rule}", repr(value))


def _require_count(name: str, value: int) -> None:
    _require(name, "an integer of at least 1", value, holds=isinstance(value, Real) and value >= 1 and value % 1 == 0)


def _require_positive(name: str, value: float) -> None:
    _require(name, "positive and finite", value, holds=isinstance(value, Real) and 0.0 < value < math.inf)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    _require(name, f"one of {', '.join(choices)}", value, holds=value in choices)


def _require_probability(value: float, name: str = "gamma") -> None:
    _require(name, "between 0 and 1, both excluded", value, holds=0.0 < value < 1.0)


def _require_power(power: float) -> None:
    _require("power", "non-negative and finite", power, holds=0.0 <= power < math.inf)


def _kappa(power: float) -> float:
    """κ = (p+1)/√(2p+1): √(Σω²)/Σω ≤ κ/√T for the weights ω_t = tᵖ."""
    _require_power(power)
    return (power + 1.0) / math.sqrt(2.0 * power + 1.0)


@dataclass(frozen=True)
class Constants:
    """The constants of one player in the bounds: its mirror map ψ on its set V.

    `G` in the methods bounds the player's stochastic gradient in the norm of the assumption: L for
    θ, U for λ. With `power` p round t has the weight tᵖ and D is replaced by (p+1)·`diameter`.

    Attributes:
        D: Bound on the Bregman divergence B(u; ν⁽¹⁾) of any u in V from the first iterate.
        C: The squared dual norm of a gradient bounded by G is at most C·G².
        mu: Strong convexity of ψ.
        diameter: Bound on B(u; ν) over all u and all iterates ν; infinite for EG without a floor.
        width: Largest |<g, u − v>| for u, v in V and a gradient g bounded by 1.

    Examples:
        >>> player = eq.theory.lambda_constants(4, "pgd")
        >>> player.D, player.C, player.mu
        (2.0, 4.0, 1.0)
        >>> player.step_size(G=1.0, T=40)  # √(4·2/(5·40·4))
        0.1
    """

    D: float
    C: float
    mu: float
    diameter: float
    width: float

    def step_size(self, G: float, T: int, power: float = 0.0) -> float:
        """The step size η = √(4 μ D / (5 T C G²)) that minimises `regret`."""
        _require_positive("G", G)
        _require_count("T", T)
        return math.sqrt(4.0 * self.mu * self._spread(power) / (5.0 * T * self.C)) / G

    def regret(self, G: float, T: int, power: float = 0.0) -> float:
        """The player's term √(20 D C G² / (μ T)) of th:3 and th:6, at that step size."""
        _require_positive("G", G)
        _require_count("T", T)
        return G * math.sqrt(20.0 * self._spread(power) * self.C / (self.mu * T))

    def deviation(self, G: float, T: int, gamma: float, power: float = 0.0) -> float:
        """The most that the player's noise adds, except with probability `gamma`.

        This is 2·width·G·κ·√((2/T) log(1/γ)) with κ = (p+1)/√(2p+1), by Azuma's inequality.
        """
        _require_positive("G", G)
        _require_count("T", T)
        _require_probability(gamma)
        return 2.0 * self.width * G * _kappa(power) * math.sqrt(2.0 * math.log(1.0 / gamma) / T)

    def _spread(self, power: float) -> float:
        _require_power(power)
        if power == 0.0:
            return self.D
        _require("power", "0 where the Bregman diameter is infinite", power, holds=self.bounded)
        return (power + 1.0) * self.diameter

    @property
    def bounded(self) -> bool:
        """Whether the Bregman diameter is finite, as `power` > 0 needs it."""
        return math.isfinite(self.diameter)


def best_p(m: int) -> float:
    """The exponent p = q/(q−1) of the smallest p-norm bound for λ, which is O(√ln m).

    That bound grows with m^(1/q)·√(q−1). Over q ≥ 2 it is smallest at q = ln m + √(ln m (ln m − 2)),
    and at q = 2, which is PGD, up to m = 7; `PNorm()` takes the same. The paper's q = 2 ln m minimises m^(1/q)·√q.

    Examples:
        >>> eq.theory.best_p(2), round(eq.theory.best_p(1000), 3)
        (2.0, 1.085)
    """
    _require_count("m", m)
    return float(PNorm().exponents(m)[0])


def theta_constants(d: int, R: float, *, norm: Norm = "inf", p: float = 2.0) -> Constants:
    """The constants of θ in R^d for ψ = ½‖·‖_p²; p = 2 is PGD.

    Args:
        d: Number of parameters.
        R: Bound on ‖θ‖ over Θ, in the norm `norm`, in which L bounds the gradients.
        norm: "inf", in which the dimension shows, or "l2", in which PGD has no factor d.
        p: Exponent of the mirror map, 1 < p ≤ 2.

    Examples:
        >>> eq.theory.theta_constants(d=100, R=1.0).D, eq.theory.theta_constants(d=100, R=1.0, norm="l2").D
        (200.0, 2.0)
    """
    _require_count("d", d)
    _require_positive("R", R)
    _require_choice("norm", norm, get_args(Norm))
    _require("p", "above 1 and at most 2", p, holds=1.0 < p <= 2.0)
    if norm == "inf":
        D, C, width = 2.0 * d ** (2.0 / p) * R**2, d ** (2.0 - 2.0 / p), 2.0 * d * R
    else:
        D, C, width = 2.0 * d ** (2.0 / p - 1.0) * R**2, 1.0, 2.0 * R
    return Constants(D=D, C=C, mu=p - 1.0, diameter=D, width=width)


def lambda_constants(m: int, geometry: Geometry, *, p: float | None = None, floor: float = 0.0) -> Constants:
    """The constants of λ on the simplex of m objectives, started at the uniform vector.

    Args:
        m: Number of objectives.
        geometry: "pgd" (ψ = ½‖·‖₂²), "eg" (negative entropy), "pnorm" (ψ = ½‖·‖_p²) or "local" (Euclidean up to
            1/m, entropic above: the Hessian is 1/max(λ_i, 1/m); the metric of `SelfTuned`).
        p: Exponent of "pnorm", 1 < p ≤ 2; `best_p(m)` where it is None.
        floor: EG on {λ_i ≥ floor/m}, which makes its Bregman diameter finite: log(m/floor).

    Examples:
        >>> [round(eq.theory.lambda_constants(m, "eg").regret(G=1.0, T=2000), 3) for m in (10, 100)]  # √(log m/100)
        [0.152, 0.215]
        >>> [round(eq.theory.lambda_constants(m, "pgd").regret(G=1.0, T=2000), 3) for m in (10, 100)]  # √(2m/100)
        [0.447, 1.414]
    """
    _require_count("m", m)
    _require_choice("geometry", geometry, get_args(Geometry))
    _require("p", "None unless geometry is pnorm", p, holds=p is None or geometry == "pnorm")
    _require("p", "above 1 and at most 2", p, holds=p is None or 1.0 < p <= 2.0)
    _require("floor", "at least 0 and below 1", floor, holds=0.0 <= floor < 1.0)
    _require("floor", "0 unless geometry is eg", floor, holds=floor == 0.0 or geometry == "eg")
    if geometry == "eg":
        diameter = math.log(m / floor) if floor else math.inf
        return Constants(D=math.log(m), C=1.0, mu=1.0, diameter=diameter, width=2.0)
    if geometry == "local":
        radius = math.log(m) - 0.5 + 0.5 / m
        diameter = math.log(m) + 1.0 if m > 1 else 0.0
        return Constants(D=radius, C=0.25, mu=m / (2.0 * m - 1.0), diameter=diameter, width=2.0)
    if geometry == "pgd":
        p = 2.0
    elif p is None:
        p = best_p(m)
    return Constants(D=2.0, C=m ** (2.0 - 2.0 / p), mu=p - 1.0, diameter=2.0, width=2.0)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Step sizes, error bounds and complexities of one setting: th:3 to th:8 and appendix A.

    θ moves by PGD; λ by `geometry`: "pgd" is th:4 and th:7, "eg" th:5 and th:8, "pnorm" A.2; "local" is not in the
    paper.

    Attributes:
        m: Number of objectives.
        d: Number of parameters.
        U: Bound on the weighted losses of every batch: 0 ≤ w_i f_i ≤ U. A bound on f also bounds w∘f,
            since w_i ≤ 1. For the uniform preference, 1/m of it does too, and gives a better step size.
        L: Bound on ‖w_i ∇f_i‖ of every batch, in the norm `norm`. A bound on ‖∇f_i‖ will do.
        R: Bound on ‖θ‖ over Θ, in the norm `norm`.
        geometry: Mirror map of λ.
        p: Exponent of "pnorm"; None is `best_p(m)`.
        norm: Norm of L and R. "l2" drops the factor d.
        power: Round t has the weight tᵖ in the output. EG needs a floor for `power` > 0.
        floor: EG on {λ_i ≥ floor/m}; adds the bias floor·U.
        sampling: What a round looks at: "full", a batch of each objective; "single", a batch of one
            objective drawn uniformly, which multiplies both gradients by m; "pair", one objective
            drawn from λ for the gradient of θ, and one drawn uniformly for the gain of λ.

    Examples:
        >>> setting = eq.theory.Guarantee(m=10, d=1, U=1.0, L=1.0, R=1.0)
        >>> T = setting.rounds(error=0.1)
        >>> T, setting.expectation(T) <= 0.1 < setting.expectation(T - 1)
        (17190, True)
        >>> round(setting.step_size_lambda(T), 4), setting.samples(error=0.1)
        (0.0104, 171900)
    """

    m: int
    d: int
    U: float
    L: float
    R: float
    geometry: Geometry = "eg"
    p: float | None = None
    norm: Norm = "inf"
    power: float = 0.0
    floor: float = 0.0
    sampling: Sampling = "full"

    def __post_init__(self) -> None:
        _require_positive("U", self.U)
        _require_positive("L", self.L)
        _require_power(self.power)
        _require_choice("sampling", self.sampling, get_args(Sampling))
        theta_constants(self.d, self.R, norm=self.norm)
        bounded = lambda_constants(self.m, self.geometry, p=self.p, floor=self.floor).bounded
        rule = "positive for geometry eg with power > 0"
        _require("floor", rule, self.floor, holds=bounded or self.power == 0.0)

    @property
    def theta(self) -> Constants:
        """The constants of θ."""
        return theta_constants(self.d, self.R, norm=self.norm)

    @property
    def lam(self) -> Constants:
        """The constants of λ. A gain with a single non-zero entry has C = 1 in every geometry."""
        full = lambda_constants(self.m, self.geometry, p=self.p, floor=self.floor)
        return full if self.sampling == "full" else replace(full, C=1.0)

    @property
    def bias(self) -> float:
        """The error from keeping λ above a floor, which does not vanish with T: floor·U."""
        return self.floor * self.U

    @property
    def samples_per_round(self) -> int:
        """The number of objectives that a round draws a batch for."""
        return {"full": self.m, "single": 1, "pair": 2}[self.sampling]

    def step_size_theta(self, T: int) -> float:
        """The constant step size of θ for T rounds."""
        return self.theta.step_size(self._bound_theta, T, self.power)

    def step_size_lambda(self, T: int) -> float:
        """The constant step size of λ for T rounds."""
        return self.lam.step_size(self._bound_lambda, T, self.power)

    def expectation(self, T: int) -> float:
        """Bound on the expected gap after T rounds (th:6, th:7, th:8)."""
        _require_count("T", T)
        return self.bias + self._rate(None) / math.sqrt(T)

    def high_probability(self, T: int, gamma: float) -> float:
        """Bound that the gap after T rounds exceeds with probability at most `gamma` (th:3 to 5).

        Each player's noise is given half of `gamma`, which is where log(2/γ) comes from.
        """
        _require_count("T", T)
        return self.bias + self._rate(gamma) / math.sqrt(T)

    def rounds(self, error: float, gamma: float | None = None) -> int:
        """The smallest T whose bound is at most `error`, up to the rounding of floats.

        Args:
            error: The target gap; above `bias`.
            gamma: Use the high-probability bound with this γ; None is the expectation bound.
        """
        reachable = self.bias < error < math.inf
        _require("error", f"finite and above the bias {self.bias:g}", error, holds=reachable)
        rounds = (self._rate(gamma) / (error - self.bias)) ** 2
        return max(1, math.ceil(rounds * (1.0 - 1e-12)))

    def samples(self, error: float, gamma: float | None = None) -> int:
        """The sample complexity (appendix A.3): `rounds` times the batches drawn in a round."""
        return self.samples_per_round * self.rounds(error, gamma)

    @property
    def _bound_theta(self) -> float:
        return self.m * self.L if self.sampling == "single" else self.L

    @property
    def _bound_lambda(self) -> float:
        return self.U if self.sampling == "full" else self.m * self.U

    def _rate(self, gamma: float | None) -> float:
        """The c of the bound bias + c/√T."""
        players = ((self.theta, self._bound_theta), (self.lam, self._bound_lambda))
        rate = sum(player.regret(G, 1, self.power) for player, G in players)
        if gamma is not None:
            _require_probability(gamma)
            rate += sum(player.deviation(G, 1, gamma / 2.0, self.power) for player, G in players)
        return rate


def suffix_confidence(capacity: int, m: int, delta: float, *, rule: SuffixRule = "preference") -> float:
    """The z for which the statement about `Suffix(capacity=K, z=z)` (Theorem S) holds with probability 1 − δ.

    z = √(2 log(2Km/δ)) where a preference chooses the suffix; √(2 log((K−1)m/δ)) where dominance does.

    Args:
        capacity: K, the number of time blocks.
        m: Number of objectives.
        delta: δ, the probability with which the statement may fail.
        rule: What chooses the suffix.

    Examples:
        >>> round(eq.theory.suffix_confidence(8, 2, delta=0.05), 2)
        3.59
    """
    _require_count("capacity", capacity)
    _require_count("m", m)
    _require_probability(delta, "delta")
    _require_choice("rule", rule, get_args(SuffixRule))
    # With one block the dominance rule compares nothing and never fails.
    events = 2 * capacity * m if rule == "preference" else max(1, (capacity - 1) * m)
    return math.sqrt(2.0 * math.log(events / delta))


def suffix_excess(sigma: float, T: int, *, z: float, power: float = 8.0) -> float:
    """The term that noise adds to the bound of `Suffix` after T rounds (Theorem S): 2·z·κ·σ/√T, κ = (p+1)/√(2p+1).

    Args:
        sigma: σ, the largest w_i σ_i: the noise of objective i is σ_i-sub-Gaussian.
        T: Number of rounds.
        z: The confidence of the suffixes, such as `suffix_confidence` returns.
        power: p of the weights tᵖ.

    Examples:
        >>> eq.theory.suffix_excess(0.1, 10_000, z=2.0, power=0.0)  # 2·2·0.1/100
        0.004
    """
    _require("sigma", "non-negative and finite", sigma, holds=0.0 <= sigma < math.inf)
    _require_count("T", T)
    _require("z", "non-negative and finite", z, holds=0.0 <= z < math.inf)
    return 2.0 * z * _kappa(power) * sigma / math.sqrt(T)


def limits_regret(u: float, largest: float, energy: float, *, pace: float = 0.3) -> float:
    """The regret of one multiplier of `Limits` against u, without its proportional part (Theorem L).

    Args:
        u: The multiplier to compare with.
        largest: The largest value that the integral part had.
        energy: Q = Σ α²v², over the run.
        pace: The setting `pace` of `Limits`.

    Examples:
        >>> round(eq.theory.limits_regret(1.0, 2.0, energy=100.0), 1)
        86.5
    """
    _require("u", "non-negative", u, holds=u >= 0)
    _require("largest", "non-negative", largest, holds=largest >= 0)
    _require("energy", "non-negative", energy, holds=energy >= 0)
    _require_positive("pace", pace)
    distance = max(_bregman(u, 0.0), _bregman(u, largest))
    return math.sqrt(energy) * (distance / pace + math.exp(pace) * pace * max(largest, 0.1))


def _bregman(u: float, y: float) -> float:
    """ψ(u) − ψ(y) − ψ'(y)(u − y), with ψ' the inverse of the link of `Limits`."""
    return _potential(u) - _potential(y) - (10 * y if y <= 0.1 else 1 + math.log(10 * y)) * (u - y)


def _potential(y: float) -> float:
    return 5 * y * y if y <= 0.1 else 0.05 + y * math.log(10 * y)


def gain_window(
    sensitivity: float, curvature: float, lr: float, *, momentum: float = 0.0, smoothing: float = 1.0
) -> tuple[float, float]:
    """The proportional gains ρ of λ for which two objectives converge (Proposition 9): low < ρ < high.

    Below the window λ and θ circle each other with growing amplitude; above it λ overshoots in every step.

    Args:
        sensitivity: s² = |∇g_1 − ∇g_2|²/2 of the weighted losses g = w∘f at the solution.
        curvature: h, the curvature of Σ λ_i g_i along ∇g_1 − ∇g_2; negative where the front is concave.
        lr: Learning rate of θ.
        momentum: β of heavy-ball momentum, 0 ≤ β < 1.
        smoothing: τ ≥ 1 of `OMD(smoothing=τ)`.

    Returns:
        The two ends; there is no stable ρ if the first is not below the second.

    Examples:
        >>> eq.theory.gain_window(0.5, -0.1, lr=0.1)
        (0.2, 20.0)
        >>> low, high = eq.theory.gain_window(0.5, 0.0, lr=0.1, momentum=0.9, smoothing=10.0)
        >>> low, round(high, 2)  # (1−β)(1 − β(1 − 1/τ))/(lr·s²)
        (0.0, 0.38)
    """
    _require_positive("sensitivity", sensitivity)
    _require("curvature", "finite", curvature, holds=math.isfinite(curvature))
    _require_positive("lr", lr)
    _require("momentum", "at least 0 and below 1", momentum, holds=0.0 <= momentum < 1.0)
    _require("smoothing", "at least 1 and finite", smoothing, holds=1.0 <= smoothing < math.inf)
    slack = 1.0 - momentum * (1.0 - 1.0 / smoothing) + (smoothing - 1.0) * lr * curvature
    return max(0.0, -curvature / sensitivity), (1.0 - momentum) * slack / (lr * sensitivity)


def window_end(sensitivity: float, curvature: float, gain: float, optimism: float) -> float:
    """The step t* from which PGD with an adaptive step and no horizon circles on a concave front (Corollary 10).

    Its ρ_t = c/(‖g‖√t) and η_t = ρ_t/c leave the window, h + ρs² > ηs², at t* = ((c − 1) s²/(‖g‖ |h|))².

    Args:
        sensitivity: s², as in `gain_window`.
        curvature: h; t* is infinite unless it is negative.
        gain: ‖g‖₂ of the weighted losses w∘f.
        optimism: c; without optimism t* is 0.

    Examples:
        >>> round(eq.theory.window_end(0.5, -0.1, gain=0.5, optimism=31.0))
        90000
    """
    _require_positive("sensitivity", sensitivity)
    _require("curvature", "finite", curvature, holds=math.isfinite(curvature))
    _require_positive("gain", gain)
    _require("optimism", "non-negative and finite", optimism, holds=0.0 <= optimism < math.inf)
    return (max(0.0, optimism - 1.0) * sensitivity / (gain * -curvature)) ** 2 if curvature < 0.0 else math.inf


def sample_objectives(
    m: int,
    count: int,
    *,
    batch: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw the objectives that a round uses: `count` of m, uniformly without replacement.

    Gains and coefficients divided by the inclusion probabilities stay unbiased. `count` = m is the
    full sampling of the paper, `count` = 1 the single-objective sampling of appendix A.3.

    Args:
        m: Number of objectives.
        count: How many of them, 1 to m.
        batch: Leading batch shape `*B`; each of its elements gets its own draw.
        generator: Source of randomness; the results are on its device.

    Returns:
        The boolean mask of shape (*B, m) and the inclusion probabilities count/m of shape (m,).

    Examples:
        >>> mask, inclusion = eq.theory.sample_objectives(4, 2, batch=(100,))
        >>> tuple(mask.shape), mask.sum(-1).unique().tolist(), inclusion.tolist()
        ((100, 4), [2], [0.5, 0.5, 0.5, 0.5])
    """
    _require_count("m", m)
    _require_count("count", count)
    _require("count", f"at most m = {m}", count, holds=count <= m)
    device = generator.device if generator is not None else None
    # In double precision ties, which would favour one end, do not occur in practice.
    scores = torch.rand((*batch, m), generator=generator, device=device, dtype=torch.float64)
    chosen = scores.topk(count, dim=-1).indices
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, value=True)
    return mask, torch.full((m,), count / m, device=device)
