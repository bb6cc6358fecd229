"""Monitoring: losses and weights over time, metrics of the last step, and warnings about neglected objectives."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise.batch import constant, wide_dtype
from equipoise.errors import BalanceWarning, LimitWarning, StateMismatchError, warn
from equipoise.metrics import preference as trade_off
from equipoise.train.nonfinite import spoken
from equipoise.units import Units
from equipoise.weighting.limits import Limits, LimitsState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Balance", "History", "Watch", "describe_limits", "describe_step", "scaled"]

LIMIT, NUMBERS = 2048, 2**18
"""The most steps and the most numbers that a history keeps."""


class History:
    """Losses, coefficients and λ of a run, in bounded memory.

    Keeps all of the first 2,048 steps (fewer with more than 42 objectives). Each time it is full, it drops every second
    step, so a long run is sampled evenly.

    Args:
        names: The objectives.

    Examples:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> mol = eq.MultiObjective(model, None, [0.5, 0.5])
        >>> for _ in range(3):
        ...     x = model.weight.squeeze()
        ...     mol(torch.stack([x**2, (x - 2) ** 2])).backward()
        >>> mol.history.steps.tolist(), tuple(mol.history.losses.shape), tuple(mol.history.imbalance.shape)
        ([1, 2, 3], (3, 2), (3,))
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.stride = names, 1
        self._limit = min(LIMIT, max(2, NUMBERS // (3 * len(names))))
        self._rows: list[list[float]] = []
        self.weighted = torch.zeros(0, len(names))
        """w_i (f_i − z_i)/u_i of the steps, set when `mol.history` is read, (n, m)."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, step: int, losses: Tensor, coefficients: Tensor, weights: Tensor | None) -> None:
        """Keep a step if it is due: tensors (m,) on the host, λ only if the weighting has it."""
        if step % self.stride:
            return
        lambdas = [math.nan] * len(self.names) if weights is None else weights.tolist()
        self._rows.append([step, *losses.tolist(), *coefficients.tolist(), *lambdas])
        if len(self._rows) > self._limit:
            self.stride *= 2
            self._rows = [row for row in self._rows if row[0] % self.stride == 0]

    def table(self) -> Tensor:
        """Steps, losses, coefficients and λ, (n, 1 + 3m)."""
        return torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 1 + 3 * len(self.names))

    def rows(self) -> list[list[float]]:
        """The table as numbers: tensors of a checkpoint must keep their shape, and the number of rows changes."""
        return [[*row] for row in self._rows]

    def load(self, rows: Sequence[Sequence[float]]) -> None:
        """Load what `rows` returned; StateMismatchError if it does not fit this run."""
        wide = 1 + 3 * len(self.names)
        fits = isinstance(rows, list) and all(isinstance(row, list) and len(row) == wide for row in rows)
        if not fits or any(not isinstance(x, float | int) for row in rows for x in row):
            raise StateMismatchError(f"checkpoint must have a history of rows of {wide} numbers; found another one")
        self._rows = [[*row] for row in rows]
        self.stride = int(np.diff([0.0, *(row[0] for row in rows)]).min()) if rows else 1

    def late(self, step: int) -> Tensor:
        """Losses of the last eighth of the steps, (n, m)."""
        rows = [row[1 : 1 + len(self.names)] for row in self._rows[-LIMIT // 4 :] if row[0] > step - step // 8]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, len(self.names))

    @property
    def steps(self) -> Tensor:
        """The numbers of the steps, (n,)."""
        return self.table()[:, 0].to(torch.int64)

    @property
    def losses(self) -> Tensor:
        """Losses as they were passed in, (n, m)."""
        return self._part(0)

    @property
    def coefficients(self) -> Tensor:
        """The factors of the losses, (n, m)."""
        return self._part(1)

    @property
    def duals(self) -> Tensor:
        """λ after the step, NaN where the weighting has none, (n, m)."""
        return self._part(2)

    @property
    def imbalance(self) -> Tensor:
        """Largest over smallest weighted loss, minus 1, over the objectives with w_i > 0, (n,)."""
        asked = self.weighted[:, ~(self.weighted == 0).all(0)]
        return trade_off.imbalance(asked, torch.full((asked.shape[1],), 1.0 / max(asked.shape[1], 1)).to(asked))

    def _part(self, k: int) -> Tensor:
        m = len(self.names)
        return self.table()[:, 1 + k * m : 1 + (k + 1) * m]

    def plot(self) -> "Figure":
        """A figure of losses, weighted losses and λ (else coefficients) over the steps."""
        from matplotlib.figure import Figure  # noqa: PLC0415

        panels = {"loss": self.losses, "weighted loss": self.weighted}
        panels |= {"coefficient": self.coefficients} if bool(self.duals.isnan().all()) else {"λ": self.duals}
        figure = Figure(figsize=(12, 3.2), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            for name, line in zip(self.names, values.T.tolist(), strict=True):
                axes.plot(self.steps.tolist(), line, label=name, linewidth=1)
            axes.set_xlabel("step")
            axes.set_title(title)
        if len(self.names) <= 10:
            figure.legend(*figure.axes[0].get_legend_handles_labels(), title="objective", loc="outside right upper")
        return figure


# The last step ------------------------------------------------------------------------------


def scaled(weighting: Any, state: Any, losses: Tensor) -> Tensor:  # noqa: ANN401
    """The losses minus the ideal point as the weighting sees them, in the widest dtype, (*B, m).

    A `Relative` weighting divides them by the first losses.
    """
    losses = losses.to(wide_dtype(losses.device))
    first = getattr(state, "first", None)
    losses = losses if first is None else losses / first.to(losses)
    inner = getattr(weighting, "inner", None)
    if inner is not None:
        return scaled(inner, getattr(state, "inner", state), losses)
    return losses - constant(getattr(weighting, "ideal", 0.0), losses)


def slack(weighted: Tensor) -> Tensor:
    """How far each weighted loss (m,) lies below the largest, as a fraction of it; NaN if that is not positive."""
    largest = weighted.amax(-1, keepdim=True)
    return 1 - weighted / torch.where(largest > 0, largest, torch.nan)


def describe_step(
    names: Sequence[str],
    preference: Tensor,
    losses: Mapping[str, Tensor],
    above: Tensor,
    coefficients: Tensor,
    weights: Tensor | None,
) -> dict[str, float]:
    """Losses, weighted losses, coefficients and λ by name, and how well the preference is met.

    All vectors are (m,). `losses` are reported unchanged, by their keys; `above` is from `scaled`; `weights` is λ.
    """
    w = preference.to(above)
    vectors = {**losses, "weighted": w * above, "slack": slack(w * above), "coefficient": coefficients}
    vectors |= {} if weights is None else {"lambda": weights}
    entries = {
        f"{key}/{name}": value
        for key, vector in vectors.items()
        for name, value in zip(names, vector.tolist(), strict=True)
    }
    asked = w > 0  # an objective of weight 0 is never out of balance
    entries["tch"] = float(trade_off.tch(above, w))
    entries["imbalance"] = float(trade_off.imbalance(above[asked], w[asked]))
    return entries | {"angle": float(trade_off.angle(above[asked], w[asked]))}


def describe_limits(
    names: Sequence[str], limits: Limits, losses: Tensor, late: Tensor, state: LimitsState
) -> dict[str, float]:
    """Violation, slack and multiplier of every loss with a limit, and by how much it was missed on average.

    `losses` are the last, (m,), and `late` those of the last eighth of the steps, (n, m).
    """
    found: dict[str, float] = {}
    violations = limits.exceeded(losses, state).tolist()
    for i, v in sorted(zip(limits.where, violations, strict=True)):  # of two limits the worse one
        found |= {f"violation/{names[i]}": max(v, 0.0), f"slack/{names[i]}": max(-v, 0.0)}
        found[f"multiplier/{names[i]}"] = float(state.prices[i])
    return found | {f"missed/{names[i]}": share for i, share in missed(limits, late, state).items()}


def missed(limits: Limits, late: Tensor, state: LimitsState) -> dict[int, float]:
    """By how much each loss with a limit missed it in the last eighth of the steps, as a fraction of the limit.

    A loss that swings from one limit of a pair to the other misses both, but its mean may lie between them: where that
    is worse, the mean of the worse limit in each of PARTS parts of the steps counts.
    """
    sides = list(zip(limits.where, state.mean.tolist(), strict=True))
    pairs = {i for i in limits.where if limits.where.count(i) == 2}
    if pairs and len(late) >= PARTS:
        by_part = limits.exceeded(torch.stack([part.mean(0) for part in late.tensor_split(PARTS)]), state)
        for i in pairs:
            both = [k for k, j in enumerate(limits.where) if j == i]
            sides.append((i, float(by_part[:, both].amax(-1).mean())))
    shares: dict[int, float] = {}
    for i, share in sides:
        shares[i] = max(shares.get(i, share), share)  # a NaN that comes second does not count
    return shares


PARTS = 4
"""Parts of the last eighth of the steps."""
FIRST, EARLIEST = 32, 256
"""The step of the first check, and of the first that may warn."""
MISSED, SURE, FAR = 0.05, 3.0, 0.5
"""The fraction by which a limit must be missed, and by how many standard errors more; and by far."""
STILL, SLOW, LATELY = 0.02, 0.25, 0.4
"""A violation stands still if less than STILL of it went since the check before, at half the steps. It creeps if less
than SLOW of it went, and less than LATELY of its fall since it was largest: a steady fall loses half of that."""


class Watch:
    """Warns once if a limit stays violated while its multiplier keeps growing, or if the answer misses one by far."""

    def __init__(self, names: tuple[str, ...], limits: Limits) -> None:
        self.names, self.limits = names, limits
        self.due: float = FIRST
        """The step of the next check; intervals double."""
        self._seen: Tensor | None = None
        """Violation and integral part of the check before, and the largest violation at a check so far, (3, k)."""

    def look(self, state: LimitsState, step: int) -> None:
        """Check the state after a step."""
        now = state.mean
        before, integral, largest = (now, state.integral, now) if self._seen is None else self._seen.to(now)
        self._seen = torch.stack((now, state.integral, torch.maximum(now, largest)))
        self.due = 2 * step
        if step < EARLIEST:
            return
        error = (2 * state.noise / state.steps).sqrt()  # of a mean over an eighth of the run
        missed, fall = now - SURE * error > MISSED, before - now
        creeps = (fall < SLOW * before) & (fall < LATELY * (largest - now))
        stuck = (creeps | (fall < STILL * before)) & (before > MISSED) & (state.integral > integral)
        if bool((missed & stuck).any()):
            self.due = math.inf
            weight = torch.where(missed, state.multipliers * state.reach, -torch.inf)  # of μ_j f_j, in any unit
            order = weight.argsort(descending=True)[: int(missed.sum())]
            warn(self._describe(state, step, order.tolist()), LimitWarning)

    def conclude(self, late: Tensor, state: LimitsState, step: int) -> None:
        """Check the answer after a step: losses of the last eighth of the steps, (n, m), and the state."""
        if step < EARLIEST or self.due == math.inf:
            return
        errors = (2 * state.noise / state.steps).sqrt().tolist()
        sure = {i: SURE * error for i, error in zip(self.limits.where, errors, strict=True)}
        shares = missed(self.limits, late, state)
        far = sorted((i for i, share in shares.items() if share - sure[i] > FAR), key=lambda i: -shares[i])
        if far:
            self.due = math.inf
            each = ", ".join(f"{spoken(self.names[i])} by {100 * shares[i]:.0f} %" for i in far)
            warn(
                f"the answer comes from steps that miss limits by far: {each}, on average over the last {step // 8} "
                "steps (missed/… in mol.metrics()). More steps or a lower learning rate may help. If not, loosen "
                f"{spoken(self.names[far[0]])} or give the model more to learn with; this is said once",
                LimitWarning,
            )

    def _describe(self, state: LimitsState, step: int, missed: list[int]) -> str:
        """The message for missed limits, the one that weighs most first."""
        names, rules, shares = [], [], []
        sides = zip(self.limits.where, self.limits.signs, self.limits.bounds, state.mean.tolist(), strict=True)
        for i, sign, bound, share in sides:
            names.append(spoken(self.names[i]))
            rules.append(f"at {'most' if sign > 0 else 'least'} {bound:.4g}")
            shares.append(f"{100 * share:.0f} % {'more' if sign > 0 else 'less'}")
        prices = [f"{price:.3g}" for price in self.limits.multipliers(state).tolist()]
        first, *others = missed
        also = "; ".join(f"{names[k]} ({rules[k]}), {shares[k]}, multiplier {prices[k]}" for k in others)
        return (
            f"{names[first]} must be {rules[first]}; found {shares[first]} on average over the last {step // 8} steps, "
            f"with a multiplier of {prices[first]}. {f'Also missed: {also}. ' if also else ''}This hardly falls, while "
            "multipliers keep growing. It may end later, with more steps or another learning rate. If not, loosen "
            f"{names[first]}{', which weighs most,' if also else ''} or give the model more to learn with. If the free "
            f"loss is close to 0 (its mean is {float(state.size):.2g}), give Limits its size= (docs/howto/limits.md); "
            "this is said once"
        )


# Objectives without gradient ----------------------------------------------------------------

EVERY, LOOKS, WINDOWS = 25, 10, 4
"""Steps between two looks, looks in a window, and windows in a row that a warning needs: 1,000 steps."""
FAINT, NOTHING, LEAST, FALLS = 0.05, 1e-3, 0.1, 0.9
"""A mean λ below FAINT/m is hardly any gradient, below NOTHING/m none. A weighted loss closer than LEAST to the largest
is in balance, whatever its λ. The largest falls if its mean over the later windows is below FALLS times the earlier."""
UNITS, MANY = 10.0, 10
"""A loss UNITS times smaller than the largest may have another unit. With more than MANY objectives it is usual that
most are better than asked for: nothing is said if one in MANY has a gradient."""
YOUNG, GROWN = 100, 1000
"""The first and the last step of the looks for wrong units; then the windows are judged."""
APART = 30.0
"""Losses APART times apart from the first step on have different units, whatever the preference."""
BACK = 3.0
"""A mean so many times the least loss of the first GROWN steps may be due to a learning rate that is too high."""
TINY, ROSE, STUCK = 100.0, 3.0, 0.9
"""A first loss TINY times smaller than the others is no unit if the loss then rises to ROSE times its least value, near
the largest weighted loss, while all others stay above STUCK of their start."""


class Balance:
    """Warns once about an objective that has had hardly any gradient for a long time; `step` is the current one.

    With mini-batches λ flickers: means over windows count, not single steps. While the largest weighted loss still
    falls, a faint gradient of the others is what was asked for; none at all is said in any case. Wrong units show
    earlier, in the first steps of a run.
    """

    def __init__(self, names: tuple[str, ...], preference: Tensor, units: Units, step: int = 0) -> None:
        self.names, self.units = names, units
        self.due: float = step + EVERY if step else 1
        """The step of the next look; the first step of a run has one, to know where the losses start."""
        self._w = preference.double()
        self._first: Tensor | None = None
        """f̃ of the first step, (m,); None in a run that was resumed or has another preference."""
        self._least = torch.full_like(self._w, torch.inf)
        """The least f̃ so far, (m,)."""
        self._sums, self._looks = torch.zeros(2, len(preference), dtype=torch.float64), 0
        """Of λ and f̃ in this window, (2, m), and the number of looks."""
        self._windows: list[Tensor] = []
        """The means of λ and f̃ in the last windows, each (2, m)."""

    def look(self, weights: Tensor, losses: Tensor, step: int, unit: Tensor) -> None:
        """Look at λ and f̃ (m,) after a step, and at their units u (m,)."""
        self.due = step + EVERY if step > 1 else EVERY
        if not bool(torch.isfinite(losses).all()):
            return
        if step <= GROWN:
            self._look_early(weights.double(), losses.double(), step, unit.double())
        if step == 1:
            return
        self._sums += torch.stack((weights.double(), losses.double()))
        self._looks += 1
        if self._looks < LOOKS:
            return
        self._windows = [*self._windows[1 - WINDOWS :], self._sums / LOOKS]
        self._sums, self._looks = torch.zeros_like(self._sums), 0
        if len(self._windows) == WINDOWS:
            self._check(*torch.stack(self._windows, 1))

    def _look_early(self, weights: Tensor, losses: Tensor, step: int, unit: Tensor) -> None:
        """Warn of wrong units: λ and f̃ after one of the first steps, and u, all (m,)."""
        if step == 1:
            self._first = losses
        self._least = torch.minimum(self._least, losses)
        if self._first is None or step < YOUNG:
            return
        if self.units.units is None:
            self._check_apart(weights, losses, self._first, step)
        elif self.units.units == "start" and len(unit) > 1:
            self._check_start(losses, unit, step)

    def _check_apart(self, weights: Tensor, losses: Tensor, first: Tensor, step: int) -> None:
        """Warn if an objective has hardly any gradient since another is far larger, from the first step on."""
        m, top = len(self._w), int((self._w * losses).argmax())
        starved = (weights < FAINT / m) & (self._w > 0)
        if m > MANY and int((~starved & (self._w > 0)).sum()) * MANY >= m:
            return
        pairs = ((first, losses), (self._w * first, self._w * losses))
        least = torch.stack([f[top] / f for pair in pairs for f in pair]).amin(0)
        apart = torch.where(starved & (first > 0) & (losses > 0), least, 0.0)
        if not bool((apart > APART).any()):
            return
        self.due = math.inf
        worst = int(apart.argmax())
        name, largest, others = spoken(self.names[worst]), spoken(self.names[top]), int((apart > APART).sum()) - 1
        warn(
            f"{name} has hardly any gradient after {step} steps{_like_it(others)}: the loss of {largest} was "
            f"{_times(first[top] / first[worst])} times as large in the first step, and is "
            f"{_times(losses[top] / losses[worst])} times as large now. What to do: if they have different units, "
            'give units="start", or units= as numbers where a loss starts near 0 and rises, such as a KL term '
            "(docs/howto/units.md); this is said once",
            BalanceWarning,
        )

    def _check_start(self, losses: Tensor, unit: Tensor, step: int) -> None:
        """Warn if an objective with a tiny first loss rises, and this keeps all others where they started."""
        small = int(unit.argmin())
        others = torch.arange(len(unit)) != small
        times, weighted = unit[others].min() / unit[small], self._w * losses
        rose = losses[small] > ROSE * self._least[small] and 2 * weighted[small] > weighted.amax()
        if bool(times < TINY) or not bool(rose) or bool((self._least[others] < STUCK).any()):
            return
        self.due = math.inf
        name, start = spoken(self.names[small]), float(unit[small])
        warn(
            f'{name} started at {start:.2g}, its unit by units="start", {_times(times)} times less than any other. '
            f"It rises, and after {step} steps no other loss has fallen by {100 * (1 - STUCK):.0f} %. What to do: a "
            "loss that starts near 0 and rises, such as a KL term, needs its unit as a number in units= "
            "(docs/howto/units.md); this is said once",
            BalanceWarning,
        )

    def _check(self, weights: Tensor, losses: Tensor) -> None:
        """Warn if λ and f̃ of the last windows, (WINDOWS, m), show an objective without gradient."""
        m, weighted = len(self._w), self._w * losses
        starved = (weights < FAINT / m).all(0) & (self._w > 0)
        if m > MANY and int((~starved & (self._w > 0)).sum()) * MANY >= m:
            return
        mean = weighted.mean(0)
        top, below = int(mean.argmax()), slack(mean)
        earlier, later = weighted[:, top].reshape(2, -1).mean(1).tolist()
        said = (weights < NOTHING / m).all(0) | (later > FALLS * earlier)
        found = starved & said & (below > LEAST) & (losses != 0).any(0)  # at 0 there is nothing to do
        if bool(found.any()):
            self.due = math.inf
            worst = int(torch.where(found, below, -torch.inf).argmax())
            faint = float(weights[:, worst].mean())
            text = self._describe(worst, top, faint, float(below[worst]), losses.mean(0), others=int(found.sum()) - 1)
            warn(f"{text}; this is said once", BalanceWarning)

    def _describe(self, worst: int, top: int, faint: float, below: float, losses: Tensor, others: int) -> str:
        name, largest = spoken(self.names[worst]), spoken(self.names[top])
        more = _like_it(others)
        loss = float(losses[worst])
        starved = (
            f"{name} has had hardly any gradient for {WINDOWS * LOOKS * EVERY} steps: its weight λ was {faint:.1g} on "
            "average, and its"
        )
        if loss < 0:
            return (
                f"{starved} mean loss{self._below_ideal(worst, losses)}{more}. What to do: give {name} a lower ideal="
                ", below the least loss that it can reach, or accept that it is better than asked for"
            )
        m, fell = len(losses), float(losses[top]) > BACK * float(self._least[top])
        other_units = self.units.units != "start" and loss > 0 and float(losses[top]) > UNITS * loss
        remedies = [
            *([f"if {largest} jumped back from a lower loss, divide the learning rate by up to {m}"] if fell else []),
            f"if {largest} cannot fall much further (noisy labels, a likelihood), give its best value as ideal=",
            *(['if the losses have different units, give units="start"'] if other_units else []),
            f"or raise the weight of {name}, or accept that it is better than asked for",
        ]
        return (
            f"{starved} weighted loss is {100 * below:.0f} % below the largest, that of {largest}{more}. What to do: "
            f"{'; '.join(remedies)}"
        )

    def _below_ideal(self, i: int, losses: Tensor) -> str:
        """How a mean f̃_i below 0 is said: as loss and ideal, if both are known."""
        ideal = float(constant(self.units.ideal, losses).expand_as(losses)[i])
        raw = self.units.raw(losses) if ideal != 0 else None  # at 0 the weighting may have an ideal point of its own
        return (
            " lies below its ideal point" if raw is None else f", {float(raw[i]):.3g}, lies below its ideal={ideal:.3g}"
        )


def _like_it(others: int) -> str:
    return f" ({others} more {'objective is' if others == 1 else 'objectives are'} like it)" if others else ""


def _times(ratio: Tensor) -> str:
    """A large ratio with two digits, such as 1,200."""
    return f"{float(f'{float(ratio):.2g}'):,.0f}"
