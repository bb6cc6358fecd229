"""SelfTuned: Tchebycheff weights by feedback, with a gain that is measured while training.

Every formula is here twice: by torch for a batch of runs, and by numpy for one run on the host, in the functions with
`_single` in their names. (ρ of one run is in `_moved_single`, its factor a in `_step_single`: a call less each.) A
training step has one run, and numpy needs an eighth of the time for it. Change both together: a test compares them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.batch import check_non_negative, check_positive, constant, known
from equipoise.errors import require
from equipoise.simplex import Array, local_step, local_step_single, uniform
from equipoise.weighting.protocol import Ideal, Seen, Weighting, keep, working_dtype

__all__ = ["SelfTuned", "SelfTunedState"]

Flags = NDArray[np.bool_]

PRIOR = 0.1
"""How much var(λ) the initial gain is worth."""
LEAST, MOST = 0.1, 32.0
"""Limits of ρ."""
OUTLIER, CALM = 25.0, 2e-3
"""A change of over five standard deviations counts as one of five; a mean square of Δd that is no noise."""
FALLEN, YOUNG = 0.9, 10.0
"""The share of its start that every gain has fallen to, and the least youth in steps."""
RISE, REST = 0.05, 0.005
"""A relative rise of a gain that is a conflict, and a fall below which it is at rest."""
WATCH, STALE = 50.0, 0.95
"""Gains whose mean is above this share of its start after so many steps belong to a trained model."""
QUIET = 5e-6
"""A mean square of Δd below which steps are so short and losses so exact that feedback needs no floor before it."""
FAR, LOOSEST = 0.02, 0.9
"""What the slack of an objective is per ratio of the largest gain to its own at the start, and the most it can be."""
CORNER, ALTERNATES = 0.9, -0.6
"""λ is at a corner from this largest weight on. Below this mean of the turns of Δd the steps are too long."""
BRAKE, RELEASE, SLOWEST = 0.5, 1.002, 1e-3
"""The factor on the coefficients then, its recovery per step, and its least value."""
JUMP, LEAN = 0.02, 0.35
"""Changes of Σ λ_i g_i count as overshoot from this mean square on, in units of s², if their signed mean square, that
of δ|δ|, is above this share of it. Independent noise has 0 there: its changes are symmetric."""
TRIAL, WARY = 100.0, 300.0
"""The steps of a trial with shorter steps, and the step after which the first one may begin."""
SHORTER, HELPS, RETRY = 0.25, 0.5, 4.0
"""The factor on the coefficients in a trial. It stays if the mean square of the changes falls below this share; else
the next trial waits until it is this many times as large."""
LONGEST, ALIKE = 3.0, 1 - 1e-6
"""The largest factor where λ lies on small weights; from this value of m Σλ_i w_i on there is none."""
RESTART = 5.0
"""The latest step on the clock after a change of the preference: running means are then over a few steps."""
TRAVELS, ARRIVED = -1.0, -2.0
"""Youth after a change of the preference: on the way to it, and after an arrival that set the anchor anew."""
UNDERWAY, CLEAR = 8.0, 3.0
"""The step on the clock until which d may still be of the old preference. A gain that has changed by this many times
what counts as a rise has changed for sure."""
RARE = 5.0
"""An objective that comes this many times less often than the mean begins to follow the others while it is absent. The
size of one that comes more often is measured when it comes: were it moved on with the others, the ratio of two
objectives that are never in the same step would stay what it was at first."""
HUGE = 1e30
"""A ratio to a gain that began at or below 0 must stay finite."""
TINY = float(np.finfo(np.float64).tiny)
"""The least divisor, in float64."""


class SelfTunedState(NamedTuple):
    """Where the dual player stands, and what it has measured."""

    dual: Tensor
    """λ of the step that comes, (*B, m)."""
    used: Tensor
    """λ of the last step, (*B, m)."""
    anchor: Tensor
    """y, the integral part of λ, (*B, m)."""
    deviation: Tensor
    """d of the last step, (*B, m). The gain of an absent objective is its last one, moved on with the others."""
    means: Tensor
    """The slow, the fast and the quick running mean of the gains, (*B, m, 3)."""
    size: Tensor
    """The running mean of |gain|, (*B, m)."""
    centre: Tensor
    """Running means of λ and of Δd, (*B, m, 2)."""
    noise: Tensor
    """The mean square of Δd, (*B, 1)."""
    response: Tensor
    """Σ|λ|² and Σ⟨λ, Δd⟩, about their means, (*B, 2)."""
    change: Tensor
    """Δd of the last step, (*B, m)."""
    alternation: Tensor
    """The running mean of the turns of Δd, (*B, 1): -1 where every Δd undoes the one before."""
    brake: Tensor
    """What too long steps are multiplied by, (*B, 1)."""
    overshoot: Tensor
    """Of the changes δ of Σ λ_i g_i: Σ λ_i g_i of the last step, the means of δ|δ| and of δ², what the mean of δ² must
    exceed for a trial, and the steps since the last trial began, (*B, 5)."""
    pace: Tensor
    """The step of the anchor per unit of gain, (*B, 1)."""
    start: Tensor
    """The gains of the first steps, (*B, m)."""
    youth: Tensor
    """The step until which the floor is full, (*B, 1); 0, `TRAVELS` or `ARRIVED`: it has no floor."""
    presence: Tensor
    """In which share of the last hundred steps with a mask each objective was present, (*B, m)."""
    steps: Tensor
    """t, (*B, 1)."""


@dataclass(slots=True)
class _Single:
    """The state of one run on the host: arrays for (*B, m) and floats for (*B, 1). A step changes it in place."""

    dual: Array
    used: Array
    anchor: Array
    deviation: Array
    change: Array
    averages: Array
    """Running means: of the gains slow, fast and quick, of their size, of λ and of Δd, (6, m)."""
    start: Array
    presence: Array
    noise: float
    var: float
    cov: float
    alternation: float
    brake: float
    overshoot: tuple[float, ...]
    pace: float
    youth: float
    steps: float

    @classmethod
    def read(cls, state: SelfTunedState) -> Self:
        """The numbers of a state; a RuntimeError if its tensors cannot be read, as under vmap."""
        var, cov = state.response.tolist()
        return cls(
            dual=state.dual.numpy(),
            used=state.used.numpy(),
            anchor=state.anchor.numpy(),
            deviation=state.deviation.numpy(),
            change=state.change.numpy(),
            averages=np.concatenate((state.means.numpy().T, state.size.numpy()[None], state.centre.numpy().T)),
            start=state.start.numpy(),
            presence=state.presence.numpy(),
            noise=state.noise.item(),
            var=var,
            cov=cov,
            alternation=state.alternation.item(),
            brake=state.brake.item(),
            overshoot=tuple(state.overshoot.tolist()),
            pace=state.pace.item(),
            youth=state.youth.item(),
            steps=state.steps.item(),
        )

    def write(self) -> SelfTunedState:
        """A state with these numbers."""
        scalars = (self.noise, self.var, self.cov, self.pace, self.youth, self.steps, self.alternation, self.brake)
        numbers = np.array((*scalars, *self.overshoot))
        tensor, averages = torch.from_numpy, self.averages
        return SelfTunedState(
            dual=tensor(self.dual),
            used=tensor(self.used),
            anchor=tensor(self.anchor),
            deviation=tensor(self.deviation),
            means=tensor(averages[:3].T),
            size=tensor(averages[3]),
            centre=tensor(averages[4:].T),
            noise=tensor(numbers[:1]),
            response=tensor(numbers[1:3]),
            change=tensor(self.change),
            alternation=tensor(numbers[6:7]),
            brake=tensor(numbers[7:8]),
            overshoot=tensor(numbers[8:]),
            pace=tensor(numbers[3:4]),
            start=tensor(self.start),
            youth=tensor(numbers[4:5]),
            presence=tensor(self.presence),
            steps=tensor(numbers[5:6]),
        )


@dataclass(frozen=True)
class SelfTuned(Weighting[SelfTunedState]):
    r"""min_θ max_λ Σ λ_i w_i (f_i(θ) − z_i), λ by feedback on the imbalance, its gain measured in the run.

    With the gains g = w∘(f − z), their running size s and the deviations d = g/s − mean(g/s):

        λ⁽ᵗ⁺¹⁾ = Π_y(ρ d⁽ᵗ⁾),   y⁽ᵗ⁺¹⁾ = Π_y(η d⁽ᵗ⁾),   η = ρ/max(c, 2√t),   coefficients a⁽ᵗ⁾ λ⁽ᵗ⁾∘w,

    a proportional part, which damps the rotation of the two players, around an anchor y, which integrates.
    Π_y(u) = argmin over the simplex of Σ (λ_i − y_i − h_i u_i)²/(2h_i), h_i = max(y_i, 1/m), is a Euclidean step near
    the uniform vector and an entropic one for weights that have grown. The proportional gain is

        ρ = min(target/(κ G), jitter √(2/m)/σ),   κ = −cov(Δd, λ)/var(λ),   G = Σh²/Σh,

    with κ the measured response of the deviations to λ and σ their noise: a step closes a tenth of an imbalance, and
    noise moves λ little. No setting has the unit of a loss. One loss that is far out counts as `spike` times its
    usual size at most.

    While training is young every weight has the floor 1/m, so that no objective is forgotten before its loss has begun
    to fall. Youth lasts `patience` times as long as it takes every gain to fall to 90 % of its start, at most `youth`
    steps. It ends sooner when a loss rises, which is a conflict, when none falls any more, and after 50 steps if the
    gains are still at 95 % of their start (the model was trained before) or if steps are short and losses exact. Then
    the floor fades like 1/t². It is not given to an objective whose gain, relative to the largest, is below `slack` of
    what it was at the start. An objective that starts far below the largest is let go sooner.

    The factor a is 1 for equal weights. Where λ lies on objectives of small weight, λ∘w alone would make short steps:
    there a = (m Σλ_i w_i)^(−½), at most 3, half of the way (in logarithms) to the steps of a weighted sum.

    After a change of the preference the losses travel. λ then often lies in the corner of one objective k, and the
    anchor follows it there. At the arrival, when another loss j becomes the largest, the anchor is set anew to the λ of
    k and j for which Σ λ_i Δg_i = 0, where Δg is the last change of the gains. That is the right λ if the losses came
    along the Pareto front, since λ∘w is normal to it. From then on ρ is at most `initial`. The anchor stays where it is
    if it was not in a corner, if the gains changed no more than by noise, or if they did not change in opposite
    directions.

    Where λ lies on one objective (0.9 or more) and the losses alternate for some 50 steps, the steps are too long for
    that objective. Then a is halved, and recovers by 0.2 % a step.

    Steps are too long as well where Σ λ_i g_i falls in several steps and jumps back in one. Noise cannot look so: its
    ups and downs are alike. From step 300 on, a is then a quarter for 100 steps. If the jumps are not smaller by then,
    a is what it was before.

    The regret of λ is O(√T) plus ¼Σρ|Δd|², for any sequence of losses (docs/theory.md).

    Attributes:
        target: The part of an imbalance that a step should close, by the measured response.
        jitter: How far one step's noise may move λ, relative to the uniform weights: for two objectives each weight by
            this share of itself, for more by less.
        initial: ρ before anything is measured.
        rest: c ≥ 1, the time of the integral part, in steps.
        spike: How many times its usual size a gain can count, at least 1.
        youth: The step at which youth ends at the latest; 0: no floor.
        patience: See above.
        slack: See above.
        ideal: The ideal point z.

    Examples:
        >>> w, weighting = torch.tensor([0.5, 0.5]), eq.SelfTuned()
        >>> losses = torch.tensor([3.0, 1.0])
        >>> state = weighting.init(losses)
        >>> for _ in range(100):  # losses that nothing moves: λ goes to the worse one
        ...     c, state = weighting.update(losses, state, w)
        >>> c.tolist()
        [0.5, 0.0]
    """

    revision: ClassVar[int] = 6

    target: float = 0.1
    jitter: float = 0.4
    initial: float = 2.0
    rest: float = 20.0
    spike: float = 8.0
    youth: float = 400.0
    patience: float = 6.0
    slack: float = 0.25
    ideal: Ideal = 0.0

    def __post_init__(self) -> None:
        for name in ("target", "jitter", "initial", "rest"):
            check_positive(name, getattr(self, name))
        for name in ("youth", "patience", "slack"):
            check_non_negative(name, getattr(self, name))
        require(self.spike >= 1, "spike must be at least 1", self.spike)

    def init(self, losses: Tensor, **extra: Tensor) -> SelfTunedState:
        """λ uniform, nothing measured."""
        zeros = torch.zeros(losses.shape, dtype=working_dtype(losses), device=losses.device)
        uniform, one = zeros + 1.0 / losses.shape[-1], zeros[..., :1]
        most = torch.finfo(zeros.dtype).max ** 0.5 / self.spike  # the size of a gain that is not known yet
        return SelfTunedState(
            dual=uniform,
            used=uniform.clone(),
            anchor=uniform.clone(),
            deviation=zeros,
            means=torch.stack([zeros, zeros, zeros], -1),
            size=zeros + most,
            centre=torch.stack([uniform, zeros], -1),
            noise=one.clone(),
            response=one.repeat_interleave(2, -1),
            change=zeros.clone(),
            alternation=one.clone(),
            brake=one + 1.0,
            overshoot=one + constant((0.0, 0.0, 0.0, JUMP, 0.0), one),
            pace=one + torch.finfo(one.dtype).max,
            start=zeros.clone(),
            youth=one + self.youth,
            presence=zeros + 1.0,
            steps=one.clone(),
        )

    def step(self, seen: Seen, state: SelfTunedState) -> tuple[Tensor, SelfTunedState]:
        """Coefficients a⁽ᵗ⁾ λ⁽ᵗ⁾ ∘ w/π, and the state with λ⁽ᵗ⁺¹⁾."""
        odds, present = seen.inclusion, seen.present
        w = seen.weight if odds is None and present is None else seen.preference.detach().to(state.dual)
        single = self._step_single(seen, state, w)
        if single is not None:
            return single
        if odds is not None and present is not None:
            odds = odds.masked_fill(~present, 1.0)  # an absent objective may have any
        size, measured = self._measured(state, seen.w * seen.losses, present)
        measured = self._arrived(measured, state.deviation)
        new = self._moved(measured, size, present, odds)
        if present is not None:
            new = keep(present.any(-1, keepdim=True), new, state)
        return state.dual * _scale(state, w) * seen.weight, new

    def _step_single(self, seen: Seen, state: SelfTunedState, w: Tensor) -> tuple[Tensor, SelfTunedState] | None:
        """`step` for one run on the host. None: it is not one, or numpy cannot read it."""
        if torch.compiler.is_compiling() or seen.losses.ndim != 1 or seen.losses.dtype != torch.float64:
            return None
        try:
            weight, now = seen.weight.numpy(), _Single.read(state)
            gain = (weight if seen.inclusion is None else seen.w.numpy()) * seen.losses.numpy()
            alike = len(gain) * float(now.dual.dot(w.numpy()))
            present = None if seen.present is None else seen.present.numpy()
            odds = None if seen.inclusion is None else seen.inclusion.numpy()
        except (RuntimeError, TypeError):  # under vmap, or on another device
            return None
        scale = now.brake if alike > ALIKE else now.brake * min(1 / math.sqrt(max(alike, TINY)), LONGEST)  # _scale
        c = torch.from_numpy(now.dual * scale * weight)
        with np.errstate(all="ignore"):
            if not (gain.dot(gain) < math.inf or np.isfinite(gain).all()) or not (present is None or present.any()):
                return c, state
            before = now.deviation
            size = self._measured_single(now, gain, present)
            if now.youth == TRAVELS:
                self._arrived_single(now, before)
            self._moved_single(now, size, present, odds)
        return c, now.write()

    def restarted(self, state: SelfTunedState) -> SelfTunedState:
        """Set the clock back, and begin to travel, without a floor, unless the run is early. All else stays.

        With a late clock the integral part and the running means would follow another preference too slowly.
        """
        late = state.steps > RESTART
        return state._replace(steps=state.steps.clamp_max(RESTART), youth=state.youth.masked_fill(late, TRAVELS))

    def foreseen(self, state: SelfTunedState, preference: Tensor) -> Tensor:
        """a⁽ᵗ⁾ λ⁽ᵗ⁾ ∘ w."""
        w = preference.to(state.dual)
        return state.dual * _scale(state, w) * w

    @property
    def uses_duals(self) -> bool:
        """True: the coefficients have the direction of λ∘w."""
        return True

    @property
    def origin(self) -> Ideal:
        """The ideal point."""
        return self.ideal

    def weights(self, state: SelfTunedState) -> Tensor:
        """λ of the step that comes, shape (*B, m)."""
        return state.dual

    def _measured(self, state: SelfTunedState, gain: Tensor, present: Tensor | None) -> tuple[Tensor, SelfTunedState]:
        """The size s of the gains, (*B, 1), and a state with what they tell of the run."""
        t = state.steps + 1
        rates = _rates(t)
        memory, recent = rates[..., :1], rates[..., 5:].unsqueeze(-2)
        level, sizes = self._level(state, gain, present, rates[..., 4:5])
        means = torch.lerp(state.means, level.unsqueeze(-1), rates[..., 1:4].unsqueeze(-2))
        size = sizes.mean(-1, keepdim=True).clamp_min(torch.finfo(sizes.dtype).tiny)
        d = level / size
        change = d - d.mean(-1, keepdim=True) - state.deviation

        # One loss far out must spoil neither λ nor what is measured over hundreds of steps.
        energy = change.square().mean(-1, keepdim=True)
        kept = (OUTLIER * state.noise.clamp_min(CALM) / energy).clamp_max(1.0).masked_fill(t <= 2, 1.0)
        change = change * kept.sqrt()
        # Δd is what the last step's λ did. This step's λ depends on the last d, and on its noise.
        pair = torch.stack([state.used, change], -1)
        off = pair - state.centre
        products = (off.mT @ off)[..., 0, :]
        alternation, brake = self._brake(state, change, t)
        overshoot, brake = _overshoot(state, level, size, brake)
        return size, state._replace(
            deviation=state.deviation + change,
            means=means,
            size=sizes,
            centre=torch.lerp(state.centre, pair, recent),
            noise=torch.lerp(state.noise, energy * kept, memory),
            response=products + state.response * (1 - memory),
            change=change,
            alternation=alternation,
            brake=brake,
            overshoot=overshoot,
            presence=state.presence if present is None else torch.lerp(state.presence, present.to(d), rates[..., 5:]),
            steps=t,
        )

    def _brake(self, state: SelfTunedState, change: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the turns of Δd, and the factor of the coefficients, (*B, 1)."""
        turn = (change * state.change).sum(-1, keepdim=True)
        both = (change.square() + state.change.square()).sum(-1, keepdim=True)
        turn = 2 * turn / both.clamp_min(torch.finfo(both.dtype).tiny)
        corner = (state.used.amax(-1, keepdim=True) >= CORNER) & (t > 3)
        mean = torch.where(corner, torch.lerp(state.alternation, turn, 1 / WATCH), 0.0)
        brakes = mean < ALTERNATES
        slower, freer = (state.brake * BRAKE).clamp_min(SLOWEST), (state.brake * RELEASE).clamp_max(1.0)
        return mean.masked_fill(brakes, 0.0), torch.where(brakes, slower, freer)

    def _brake_single(self, now: _Single, change: Array, *, corner: bool) -> None:
        mean = 0.0
        if corner:
            both = float(change.dot(change)) + float(now.change.dot(now.change))
            turn = 2 * float(change.dot(now.change)) / max(both, TINY)
            mean = now.alternation + (turn - now.alternation) / WATCH
        if mean < ALTERNATES:
            now.alternation, now.brake = 0.0, max(now.brake * BRAKE, SLOWEST)
        else:
            now.alternation, now.brake = mean, min(now.brake * RELEASE, 1.0)

    def _measured_single(self, now: _Single, gain: Array, present: Flags | None) -> float:
        m, mean = len(gain), uniform(len(gain)).dot
        t = now.steps = now.steps + 1
        # 1 minus the rates, in the order of `averages`; of noise and response.
        slow, fast, quick, tenth = max(1 - 2 / t, 0.0), max(1 - 8 / t, 0.0), min(1 - 1 / t, 0.7), min(1 - 1 / t, 0.9)
        recent = 0.0 if t <= 2 else min(1 - 1 / (t - 1), 0.99)
        memory = max(1 - 4 / t, 0.0)
        usual = float(mean(now.averages[3]))
        level, sizes = gain, None
        if present is not None or not math.sqrt(gain.dot(gain)) <= self.spike * usual:  # else no gain is beyond its cap
            level, sizes = self._level_single(now, gain, present, tenth, usual)
        absolute = np.abs(level)
        if sizes is None:
            size = float(mean(absolute))
            size = max(size - (size - usual) * tenth, TINY)
        else:
            size = max(float(mean(sizes)), TINY)
        d = level / size
        d -= float(mean(d))
        change = d - now.deviation

        energy, most = float(change.dot(change)) / m, OUTLIER * max(now.noise, CALM)
        if energy > most and t > 2:
            change *= math.sqrt(most / energy)
            energy, d = most, now.deviation + change
        seen = np.concatenate((level, level, level, absolute, now.used, change)).reshape(6, m)
        off = seen - now.averages
        var, cov = off[4:].dot(off[4]).tolist()
        off *= np.array((slow, fast, quick, tenth, recent, recent)).reshape(6, 1)
        seen -= off
        if sizes is not None:
            seen[3] = sizes
        if present is not None:
            now.presence = present - (present - now.presence) * recent
        corner = t > 3 and now.used.item(now.used.argmax()) >= CORNER
        if corner or now.alternation or now.brake < 1:  # else the brake stays released, as in most steps
            self._brake_single(now, change, corner=corner)
        _overshoot_single(now, level, size)
        now.deviation, now.averages, now.change = d, seen, change
        now.noise = energy - (energy - now.noise) * memory
        now.var, now.cov = var + now.var * memory, cov + now.cov * memory
        return size

    def _level(
        self, state: SelfTunedState, gain: Tensor, present: Tensor | None, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gains without spikes, and their running sizes, (*B, m).

        Those of objectives that are rarely there follow the present ones, so that λ does not flow to them only because
        others fall.
        """
        usual = state.size.mean(-1, keepdim=True)
        cap = self.spike * torch.maximum(state.size, usual)
        cap = cap.masked_fill(usual == 0, torch.inf)  # all gains were 0 so far
        level = torch.clamp(gain, -cap, cap)
        sizes = torch.lerp(state.size, level.abs(), rate)
        if present is None:
            return level, sizes
        tiny = torch.finfo(level.dtype).tiny
        new = present & (state.presence == 0)
        sizes = torch.where(new, level.abs(), sizes)
        here, known = present.to(level), (present & ~new).to(level)
        total, after = (here * level).sum(-1, keepdim=True), (here * sizes).sum(-1, keepdim=True)
        before, now = ((known * x).sum(-1, keepdim=True) for x in (state.size, sizes))
        trend = torch.where(before > 0, now / before.clamp_min(tiny), 1.0).clamp_max(self.spike)
        often = state.presence / state.presence.mean(-1, keepdim=True)
        others = state.size * trend ** (1 - RARE * often).clamp(0.0, 1.0)
        others = torch.where(state.steps == 0, after / here.sum(-1, keepdim=True).clamp_min(1), others)
        sizes = torch.where(present, sizes, others)
        return torch.where(present, level, sizes * (total / after.clamp_min(tiny))), sizes

    def _level_single(
        self, now: _Single, gain: Array, present: Flags | None, kept: float, usual: float
    ) -> tuple[Array, Array | None]:
        """The gains, and the sizes of all if some are absent; `usual` is the mean of the sizes before."""
        sizes, level = now.averages[3], gain
        if usual > 0:
            cap = self.spike * np.maximum(sizes, usual)
            level = np.minimum(np.maximum(gain, -cap), cap)
        if present is None:
            return level, None
        size, often = np.abs(level), now.presence
        size += (sizes - size) * kept
        new = present & (often == 0)
        size[new] = np.abs(level[new])
        total, after = float(np.add.reduce(level[present])), float(np.add.reduce(size[present]))
        if now.steps == 1:
            others: Array | float = after / np.count_nonzero(present)
        else:
            known = present & ~new
            before = float(np.add.reduce(sizes[known]))
            trend = min(float(np.add.reduce(size[known])) / max(before, TINY), self.spike) if before > 0 else 1.0
            others = sizes * trend ** np.minimum(np.maximum(1 - often * (RARE / often.mean()), 0.0), 1.0)
        size = np.where(present, size, others)
        return np.where(present, level, size * (total / max(after, TINY))), size

    def _moved(
        self, state: SelfTunedState, size: Tensor, present: Tensor | None, odds: Tensor | None
    ) -> SelfTunedState:
        """The steps of the anchor and of λ."""
        t, d = state.steps, state.deviation
        rho = self._gain(state)
        low, start, youth = self._floor(state)
        # Per unit of gain the step of the anchor may fall freely and rise like t⁸: then its regret is O(√T).
        pace = rho / (size * torch.clamp_min(2 * t.sqrt(), self.rest))
        pace = torch.minimum(pace, state.pace * (t / (t - 1)) ** 8)
        push = (pace * size) * d
        if present is not None:
            # An absent objective moves as those of the last steps do on average: its part of the anchor stays. An
            # objective that is never there has no say in that average, and one that comes alone still moves.
            say = state.presence * state.anchor.clamp_min(1 / push.shape[-1])
            usual = (say * push).sum(-1, keepdim=True) / say.sum(-1, keepdim=True)
            push = torch.where(present, push, usual) if odds is None else torch.where(present, push / odds, 0.0)
        anchor = local_step(state.anchor, push.clamp(-0.25, 0.25), low)
        dual = local_step(anchor, rho * d, low)
        return state._replace(dual=dual, used=state.dual, anchor=anchor, pace=pace, start=start, youth=youth)

    def _moved_single(self, now: _Single, size: float, present: Flags | None, odds: Array | None) -> None:
        t, d = now.steps, now.deviation
        m = len(d)
        h = np.maximum(now.anchor, uniform(m))  # ρ, as in `_gain`
        reach = float(h.dot(h)) / (m * float(uniform(m).dot(h)))
        kappa = (PRIOR * m / self.initial - now.cov / self.target) / (now.var + PRIOR)
        limit = max(kappa * reach, math.sqrt(now.noise * m) * (0.5 / self.jitter))
        if now.youth == ARRIVED:
            limit = max(limit, 1 / self.initial)
        rho, low = 1 / min(max(limit, 1 / MOST), 1 / LEAST), self._floor_single(now)
        pace = rho / (size * max(2 * math.sqrt(t), self.rest))
        now.pace = pace if t == 1 else min(pace, now.pace * (t / (t - 1)) ** 8)
        push = (now.pace * size) * d
        if present is not None:
            say = now.presence * np.maximum(now.anchor, uniform(len(push)))
            usual = float(say.dot(push)) / float(np.add.reduce(say))
            push = np.where(present, push, usual) if odds is None else np.where(present, push / odds, 0.0)
        if not push.dot(push) <= 0.25**2:  # else no entry is beyond the limits
            push = np.minimum(np.maximum(push, -0.25), 0.25)
        now.anchor = local_step_single(now.anchor, push, low)
        now.used, now.dual = now.dual, local_step_single(now.anchor, rho * d, low)

    def _arrived(self, state: SelfTunedState, before: Tensor) -> SelfTunedState:
        """The anchor set anew where λ lay in a corner when another loss became the largest; `before` is the last d."""
        travels = (state.youth == TRAVELS) & (state.steps > UNDERWAY)
        if known(travels.any()) is False:  # as in most steps
            return state
        left, met = before.argmax(-1, keepdim=True), state.deviation.argmax(-1, keepdim=True)
        pair = torch.cat([left, met], -1)
        slow, fast = (state.means[..., k].gather(-1, pair) for k in (0, 1))
        change = fast - slow  # below 0 for the one in whose corner λ lay, above 0 for the other
        clear = CLEAR * (RISE + 2 * (state.noise * (8 / state.steps).clamp_max(1.0)).sqrt())
        sure = (change.abs() > clear * slow.abs()).any(-1, keepdim=True)
        opposed = (change[..., :1] < 0) & (change[..., 1:] > 0)
        arrives = travels & (left != met)
        anew = arrives & opposed & sure & (state.anchor.gather(-1, left) >= CORNER)
        share = change.abs().flip(-1) / change.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(change.dtype).tiny)
        anchor = torch.where(anew, torch.zeros_like(state.anchor).scatter(-1, pair, share), state.anchor)
        youth = torch.where(arrives, torch.where(anew, ARRIVED, 0.0).to(state.youth), state.youth)
        return state._replace(anchor=anchor, youth=youth)

    def _arrived_single(self, now: _Single, before: Array) -> None:
        left, met = int(before.argmax()), int(now.deviation.argmax())
        if now.steps <= UNDERWAY or left == met:
            return
        slow = now.averages[0]
        change = now.averages[1] - slow
        clear = CLEAR * (RISE + 2 * math.sqrt(now.noise * min(8 / now.steps, 1.0)))
        fall, rise = -change.item(left), change.item(met)
        sure = fall > clear * abs(slow.item(left)) or rise > clear * abs(slow.item(met))
        now.youth = 0.0
        if fall > 0 and rise > 0 and sure and now.anchor.item(left) >= CORNER:
            now.anchor = np.zeros(len(before))
            now.anchor[[left, met]] = rise / (fall + rise), fall / (fall + rise)
            now.youth = ARRIVED

    def _gain(self, state: SelfTunedState) -> Tensor:
        """ρ, (*B, 1): a tenth of the measured stability limit, less where noise would move λ too far."""
        h = state.anchor.clamp_min(1 / state.anchor.shape[-1])
        reach = (h * h).sum(-1, keepdim=True) / h.sum(-1, keepdim=True)
        var, cov = torch.split(state.response, 1, -1)
        # κ/target; the mean square of Δd is 2σ²
        kappa = torch.rsub(cov, PRIOR * h.shape[-1] / self.initial, alpha=1 / self.target) / (var + PRIOR)
        limit = torch.maximum(kappa * reach, state.noise.sqrt() * (0.5 * h.shape[-1] ** 0.5 / self.jitter))
        limit = torch.where(state.youth == ARRIVED, limit.clamp_min(1 / self.initial), limit)
        return limit.clamp(1 / MOST, 1 / LEAST).reciprocal()

    def _floor(self, state: SelfTunedState) -> tuple[Tensor | None, Tensor, Tensor]:
        """The least λ, None for 0, and the gains at the start, (*B, m); the step until which the floor is full."""
        if self.youth == 0:
            return None, state.start, state.youth
        t, (slow, fast, quick) = state.steps, state.means.unbind(-1)
        tiny = torch.finfo(slow.dtype).tiny
        # A rise is a conflict, beyond what noise does to the fast mean; without a fall the run is at rest.
        trend = fast / slow.clamp_min(tiny) - 1
        rise = trend.amax(-1, keepdim=True)
        if known(((t > state.youth) & (rise >= 0)).all()) is True:  # as in most steps of a long run
            return None, state.start, state.youth
        rise = rise / (RISE + 2 * (state.noise * (8 / t).clamp_max(1.0)).sqrt())
        start = torch.where(t <= 3, torch.maximum(state.start, quick), state.start)
        still = (fast / start.clamp_min(tiny)).mean(-1, keepdim=True) > STALE
        needless = (still | (state.noise < QUIET)) & (t >= WATCH)
        settled = (rise > 1) | (trend.amin(-1, keepdim=True) > -REST) | needless
        left = quick / start.clamp_min(tiny)
        ended = (left.amax(-1, keepdim=True) <= FALLEN) & (state.youth >= self.youth)
        youth = torch.where(ended, (self.patience * t).clamp(YOUNG, max(YOUNG, self.youth)), state.youth)
        youth = torch.where(settled & (t >= YOUNG), torch.minimum(youth, t), youth)
        gate = ((t < youth).to(rise) - rise).clamp(0.0, 1.0).masked_fill(t < YOUNG, 1.0)
        full = (youth / t).clamp(0.0, 1.0).square() * (gate / slow.shape[-1])
        # Relative to the largest gain, now and at the start.
        largest = start.amax(-1, keepdim=True).clamp_min(tiny)
        most = (quick.amax(-1, keepdim=True) / largest).clamp_max(HUGE)
        slack = (FAR * (largest / start.clamp_min(tiny))).clamp_max(LOOSEST).clamp_min(self.slack)
        heeded = left / (0.1 * slack * most).clamp_min(tiny) - 10
        return heeded.clamp(0.0, 1.0) * full, start, youth

    def _floor_single(self, now: _Single) -> Array | None:
        if self.youth == 0:
            return None
        t, slow, fast, quick = now.steps, now.averages[0], now.averages[1], now.averages[2]
        trend = fast / np.maximum(slow, TINY)
        rise = trend.item(trend.argmax()) - 1
        if t > now.youth and rise >= 0:
            return None
        rise /= RISE + 2 * math.sqrt(now.noise * min(8 / t, 1.0))
        start = now.start
        if t <= 3:
            start = now.start = np.maximum(start, quick)
        settled = rise > 1 or trend.item(trend.argmin()) - 1 > -REST
        if t >= WATCH and not settled:
            settled = now.noise < QUIET or float(uniform(len(start)).dot(fast / np.maximum(start, TINY))) > STALE
        left = quick / np.maximum(start, TINY)
        if left.item(left.argmax()) <= FALLEN and now.youth >= self.youth:
            now.youth = min(max(self.patience * t, YOUNG), max(YOUNG, self.youth))
        if settled and t >= YOUNG:
            now.youth = min(now.youth, t)
        gate = 1.0 if t < YOUNG else min(max((t < now.youth) - rise, 0.0), 1.0)
        full = uniform(len(left)) * (min(max(now.youth / t, 0.0), 1.0) ** 2 * gate)
        largest = max(start.item(start.argmax()), TINY)
        most = min(quick.item(quick.argmax()) / largest, HUGE)
        if FAR * largest <= self.slack * start.item(start.argmin()):  # none starts far below the largest
            tenth = max(0.1 * self.slack * most, TINY)
            if left.item(left.argmin()) >= 11 * tenth:  # all are heeded, as in most steps
                return full
            heeded = left / tenth
        else:
            slack = np.maximum(np.minimum(FAR * (largest / np.maximum(start, TINY)), LOOSEST), self.slack)
            heeded = left / np.maximum(0.1 * slack * most, TINY)
        floor: Array = np.minimum(np.maximum(heeded - 10, 0.0), 1.0) * full
        return floor


def _scale(state: SelfTunedState, w: Tensor) -> Tensor | float:
    """The factor a of all coefficients, (*B, 1), or a number for one run on the host."""
    m, alone = state.dual.shape[-1], state.dual.ndim == 1 and not torch.compiler.is_compiling()
    if alone and state.dual.dtype == torch.float64 and w.shape == state.dual.shape:
        try:
            alike, brake = m * float(state.dual.numpy().dot(w.numpy())), state.brake.item()
        except (RuntimeError, TypeError):  # under vmap, or on another device
            pass
        else:
            return brake if alike > ALIKE else brake * min(1 / math.sqrt(max(alike, TINY)), LONGEST)
    total = m * (state.dual * w).sum(-1, keepdim=True)
    return state.brake * total.clamp(LONGEST**-2, 1.0).rsqrt().masked_fill(total > ALIKE, 1.0)


def _overshoot(state: SelfTunedState, level: Tensor, size: Tensor, brake: Tensor) -> tuple[Tensor, Tensor]:
    """What is known of the changes of Σ λ_i g_i, (*B, 5), and the factor of the coefficients, (*B, 1)."""
    before, lean, square, bar, steps = torch.split(state.overshoot, 1, -1)
    steps = steps + 1
    delta = ((state.used * level).sum(-1, keepdim=True) - before) / size
    most = (OUTLIER * square.clamp_min(CALM)).sqrt()
    delta = torch.minimum(torch.maximum(delta, -most), most)
    recent = (1 / steps).clamp_min(1 / TRIAL)
    lean, square = torch.lerp(lean, delta * delta.abs(), recent), torch.lerp(square, delta.square(), recent)

    ends = (steps == TRIAL) & (bar > JUMP)
    fails = ends & (square > HELPS * bar)
    begins = (state.steps >= WARY) & (steps >= TRIAL) & ~ends & (square > bar) & (lean > LEAN * square)
    brake = torch.where(begins, (brake * SHORTER).clamp_min(SLOWEST), brake)
    brake = torch.where(fails, (brake / SHORTER).clamp_max(1.0), brake)
    bar = torch.where(begins, square, torch.where(fails, RETRY * square, bar.masked_fill(ends, JUMP)))
    seen = torch.cat((lean, square, steps), -1).masked_fill(begins, 0.0)
    value = (state.dual * level).sum(-1, keepdim=True)
    return torch.cat((value, seen[..., :2], bar, seen[..., 2:]), -1), brake


def _overshoot_single(now: _Single, level: Array, size: float) -> None:
    before, lean, square, bar, steps = now.overshoot
    steps += 1
    delta, most = (float(now.used.dot(level)) - before) / size, math.sqrt(OUTLIER * max(square, CALM))
    delta = min(max(delta, -most), most)
    recent = max(1 / steps, 1 / TRIAL)
    lean += recent * (delta * abs(delta) - lean)
    square += recent * (delta * delta - square)
    if steps == TRIAL and bar > JUMP:
        if square > HELPS * bar:
            now.brake, bar = min(now.brake / SHORTER, 1.0), RETRY * square
        else:
            bar = JUMP
    elif now.steps > WARY and steps >= TRIAL and square > bar and lean > LEAN * square:
        now.brake = max(now.brake * SHORTER, SLOWEST)
        lean, square, bar, steps = 0.0, 0.0, square, 0.0
    now.overshoot = (float(now.dual.dot(level)), lean, square, bar, steps)


def _rates(t: Tensor) -> Tensor:
    """How much the newest number counts in every running mean, (*B, 6).

    Of noise and response: the mean over t/4 steps. Of the gains: slow t/2, fast t/8, quick 3 steps, size 10 steps. Of λ
    and Δd: 100 steps, beginning with the second.
    """
    numerator, delay = constant((4.0, 2.0, 8.0, 1.0, 1.0, 1.0), t), constant((0.0, 0.0, 0.0, 0.0, 0.0, 1.0), t)
    least = constant((0.0, 0.0, 0.0, 0.3, 0.1, 0.01), t)
    return torch.maximum(numerator / (t - delay), least).clamp_max(1.0)
