"""The vectorised solver: preferences × seeds × settings × methods in one tensor program."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise import preference as preferences_
from equipoise.batch import Number, whole
from equipoise.conversion import Conversion
from equipoise.errors import IdealPointWarning, NonFiniteLossError, require
from equipoise.problems import Problem, problems
from equipoise.registry import Method, Named, resolve
from equipoise.units import Scale, Unit, Units, Zero
from equipoise.weighting import Weighting
from equipoise.weighting.floor import below, floor, lowered

__all__ = ["Run", "Solution", "Step", "Trajectory", "check_seeds", "find_problem", "solve", "solve_many"]

STATISTICS = frozenset({"gramian", "jacobian"})
"""The statistics that the solver can compute for a weighting."""


@dataclass(frozen=True)
class Run:
    """One trajectory and its outputs.

    Attributes:
        weighting: The weighting.
        conversions: The outputs, by name: one trajectory feeds them all.
        step_size: η of θ ← θ − η Σ c_i ∇f_i; a tensor broadcasts over the batch shape.
        sweep: The leading batch shape of settings given as tensors, such as (5,) for a weighting whose
            step size has shape (5, 1, 1): settings × seeds × preferences.
        units: The unit u of each loss: None, "start" (each instance's own first losses minus the ideal) or positive
            numbers, as in `MultiObjective`; a tensor broadcasts to (*B, m).
        ideal: z, the smallest value that each loss can reach. Weighting and conversions see f̃ = (f − z)/u, and the step
            is along Σ c_i ∇f̃_i; returned losses are f.

    Examples:
        >>> sizes = torch.tensor([0.1, 1.0]).reshape(2, 1, 1)
        >>> run = eq.Run(eq.OMD(step_size=sizes), {"last": eq.Last(), "mean": eq.Average()}, sweep=(2,))
        >>> found = eq.solve_many(eq.problems.VLMOP1(), [[0.5, 0.5]], {"OMD": run}, steps=10)["OMD"]
        >>> {name: tuple(losses.shape) for name, losses in found.losses.items()}  # (sweep, seeds, preferences, m)
        {'last': (2, 1, 1, 2), 'mean': (2, 1, 1, 2)}
    """

    weighting: Weighting[Any]
    conversions: Mapping[str, Conversion[Any]]
    step_size: Number = 0.02
    sweep: tuple[int, ...] = ()
    units: Unit = None
    ideal: Zero = 0.0


class Trajectory(NamedTuple):
    """Losses and coefficients of every step.

    Examples:
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], "LS", steps=50, trajectory=True)
        >>> tuple(found.trajectory.losses.shape)  # (steps, seeds, preferences, m)
        (50, 1, 1, 2)
        >>> found.trajectory.coefficients[0, 0, 0].tolist()
        [0.5, 0.5]
    """

    losses: Tensor
    """f(θ⁽ᵗ⁾), (steps, *B, m)."""
    coefficients: Tensor
    """c⁽ᵗ⁾, of f in the units of the run, (steps, *B, m)."""


class Solution(NamedTuple):
    """The result of a run. The batch shape *B is (*sweep, seeds, preferences).

    Examples:
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.2, 0.8], [0.8, 0.2]], seeds=(0, 1, 2), steps=20)
        >>> tuple(found.params["solution"].shape), tuple(found.losses["solution"].shape)
        ((3, 2, 1), (3, 2, 2))
        >>> found.diverged.any().item()
        False
    """

    params: dict[str, Tensor]
    """θ by conversion, (*B, d)."""
    losses: dict[str, Tensor]
    """f(θ) by conversion, (*B, m)."""
    diverged: Tensor
    """Instances that ended with a non-finite loss, (*B,); their entries above are NaN."""
    trajectory: Trajectory | None
    """Every step, if requested."""
    states: dict[str, Any]
    """The last state of every conversion."""


class Step(NamedTuple):
    """What a callback sees of one step of one run.

    Examples:
        >>> def show(step):
        ...     print(step.step, [round(value, 3) for value in step.losses[0, 0].tolist()])
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], "LS", steps=2, step_size=0.5, callback=show)
        1 [0.956, 1.045]
        2 [1.0, 1.0]
    """

    run: str
    """The name of the run."""
    step: int
    """t, from 1."""
    params: Tensor
    """θ⁽ᵗ⁾, (*B, d)."""
    losses: Tensor
    """f(θ⁽ᵗ⁾), (*B, m)."""
    coefficients: Tensor
    """c⁽ᵗ⁾, (*B, m)."""


def solve(
    problem: Problem | str,
    preferences: Tensor | Sequence[Sequence[float]],
    method: Method | Weighting[Any] | str | None = None,
    *,
    step_size: Number = 0.02,
    conversions: Mapping[str, Conversion[Any]] | None = None,
    sweep: tuple[int, ...] = (),
    units: Unit = None,
    ideal: Zero = 0.0,
    steps: int = 1000,
    **options: Any,
) -> Solution:
    """Solve a problem for many preferences and seeds at once.

    Args:
        problem: The problem, or its name in `problems.problems()`.
        preferences: Shape (preferences, m).
        method: A `Method`, a name from `methods()`, or a weighting; by default `default(steps=steps)`.
        step_size: η of the gradient step.
        conversions: The outputs, by name. By default the method's own as "solution", or the last iterate for a
            weighting.
        sweep: See `Run`.
        units: See `Run`.
        ideal: See `Run`.
        steps: Iterates, at least 1.
        **options: See `solve_many`.

    Returns:
        The solutions, with batch shape (*sweep, seeds, preferences).

    Examples:
        >>> problem, w = eq.problems.VLMOP1(), torch.tensor([[0.2, 0.8], [0.5, 0.5]])
        >>> found = eq.solve(problem, w, seeds=(0, 1), steps=200)
        >>> tuple(found.losses["solution"].shape)  # (seeds, preferences, m)
        (2, 2, 2)
        >>> bool((eq.metrics.imbalance(found.losses["solution"], w) < 0.05).all())  # all w∘f equal to 5 %
        True
    """
    chosen = resolve(method, whole("steps", steps))
    if conversions is None:
        conversions = {"solution": chosen.conversion}
    run = Run(chosen.weighting, conversions, step_size, sweep, units, ideal)
    return solve_many(problem, preferences, {"run": run}, steps=steps, **options)["run"]


def solve_many(
    problem: Problem | str,
    preferences: Tensor | Sequence[Sequence[float]],
    runs: Mapping[str, Run],
    *,
    seeds: Sequence[int] = (0,),
    steps: int = 1000,
    margin: float = 1e-5,
    trajectory: bool = False,
    on_nonfinite: Literal["raise", "keep"] = "raise",
    callback: Callable[[Step], None] | None = None,
    progress: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> dict[str, Solution]:
    """Several runs on one problem, stacked: they share every forward and backward pass.

    In every step t = 1..steps the losses at θ⁽ᵗ⁾ are evaluated, the conversions see θ⁽ᵗ⁾ before it
    moves, and θ⁽ᵗ⁺¹⁾ is projected on the box: the loop of the paper's Algorithms 1 and 2. Only runs
    whose weighting needs the Jacobian pay for it.

    Args:
        problem: The problem, or its name in `problems.problems()`.
        preferences: Shape (preferences, m).
        runs: The runs by name.
        seeds: One start per seed and preference, the same for every run.
        steps: Iterates, at least 1.
        margin: Iterates are projected on [lower + margin, upper − margin].
        trajectory: Whether to keep every step's losses and coefficients.
        on_nonfinite: "raise" stops with a NonFiniteLossError that names problem, run, preference,
            seed and step; "keep" stops only that instance and marks it in `diverged`.
        callback: Called after every step of every run.
        progress: Whether to show a progress bar (needs the package rich).
        dtype: The dtype of θ and the losses.
        device: The device of all tensors.

    Returns:
        The solutions by run.

    Examples:
        >>> problem, w, answer = eq.problems.ZDT2(d=3), torch.tensor([[0.6, 0.4]]), {"last": eq.Last()}
        >>> runs = {"LS": eq.Run(eq.Linear(), answer), "STCH": eq.Run(eq.SmoothTchebycheff(mu=0.01), answer)}
        >>> found = eq.solve_many(problem, w, runs, steps=500)
        >>> for name, solution in found.items():  # only an end of a concave front minimises a weighted sum
        ...     print(name, [round(value, 2) for value in solution.losses["last"][0, 0].tolist()])
        LS [0.0, 1.0]
        STCH [0.5, 0.75]
    """
    problem, steps = find_problem(problem), whole("steps", steps)
    require(on_nonfinite in {"raise", "keep"}, 'on_nonfinite must be "raise" or "keep"', repr(on_nonfinite))
    stack = _Stack(problem, preferences, runs, check_seeds(seeds), margin, dtype, torch.device(device))
    records: list[tuple[Tensor, Tensor]] = []
    alive = torch.ones(len(stack.x), dtype=torch.bool, device=stack.x.device)
    with _steps(steps, problem.name, show=progress) as counter:
        for step in counter:
            losses, pull = stack.evaluate()  # line 3 of both algorithms
            finite = torch.isfinite(losses).all(-1)
            if on_nonfinite == "keep":
                alive &= finite
            elif not bool(finite.all()):
                raise NonFiniteLossError(stack.blame(losses, finite, step))
            coefficients, raw = stack.weigh(losses)  # line 4; of Algorithm 2 lines 4 to 20, and λ of line 21
            if trajectory:
                records.append((losses, coefficients))
            if callback is not None:
                stack.report(callback, step, losses, coefficients)
            if step < steps:
                stack.move(pull, raw)  # line 5; of Algorithm 2 θ of line 21
    found = stack.solutions(alive, records)
    text = stack.too_low(found)
    if text:
        warnings.warn(text, IdealPointWarning, stacklevel=2)
    return found


def find_problem(problem: object) -> Problem:
    """A problem, or the one of a name; a ValueError for anything else.

    Examples:
        >>> eq.solver.find_problem("VLMOP2").m
        2
    """
    if isinstance(problem, str):
        return Named(problems(), "problem")[problem]
    sound = isinstance(problem, Problem) and not isinstance(problem, type)
    require(sound, 'problem must be a problem such as problems.VLMOP2(), or its name, "VLMOP2"', lambda: repr(problem))
    assert isinstance(problem, Problem)  # noqa: S101
    return problem


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Seeds as a tuple of one or more non-negative whole numbers; a ValueError for anything else.

    Examples:
        >>> eq.solver.check_seeds(range(3))
        (0, 1, 2)
    """
    given: object = seeds
    require(isinstance(given, Collection), "seeds must be a sequence of whole numbers, such as (0, 1)", repr(seeds))
    require(len(seeds) >= 1, "seeds must hold at least one seed", len(seeds))
    return tuple(whole("seeds", seed, 0) for seed in seeds)


class _Slice(NamedTuple):
    """The part of the stack that belongs to a run."""

    start: int
    stop: int
    batch: tuple[int, ...]


class _Stack:
    """All instances of all runs as rows of one tensor; those that need the Jacobian come last."""

    def __init__(
        self,
        problem: Problem,
        preferences: Tensor | Sequence[Sequence[float]],
        runs: Mapping[str, Run],
        seeds: tuple[int, ...],
        margin: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        w = preferences_.validate(preferences, problem.m)
        require(w.ndim == 2, "preferences must have shape (preferences, m)", lambda: _found_shape(w))
        require(len(runs) >= 1, "runs must hold at least one run", len(runs))
        require(
            problem.lower + margin < problem.upper - margin,
            "bounds must not cross: lower + margin must be below upper - margin",
            (problem.lower + margin, problem.upper - margin),
        )
        for name, run in runs.items():
            given: object = run
            require(isinstance(given, Run), f"run {name!r} must be a Run, as Run(OMD(), {{'last': Last()}})", repr(run))
            for key, conversion in run.conversions.items():
                sound = all(hasattr(conversion, verb) for verb in ("init", "update", "output"))
                require(sound, f"conversion {key!r} must be a conversion such as Last()", repr(conversion))
            eta = torch.as_tensor(run.step_size)
            require(bool((eta > 0).all()), "step_size must be positive", run.step_size)
            unknown = sorted(run.weighting.needs - STATISTICS)
            require(not unknown, f"run {name!r} needs a statistic that the solver cannot give", unknown)
        self.problem, self.seeds = problem, seeds
        self.low, self.high = problem.lower + margin, problem.upper - margin
        self.runs = dict(sorted(runs.items(), key=lambda item: bool(item[1].weighting.needs)))
        self.w = w.to(dtype=dtype, device=device)

        start = torch.stack([problem.initial(len(w), seed) for seed in self.seeds]).to(dtype=dtype, device=device)
        self.slices: dict[str, _Slice] = {}
        rows, step_sizes, at = [], [], 0
        for name, run in self.runs.items():
            batch = (*run.sweep, *start.shape[:-1])
            x = start.expand(*batch, problem.d).reshape(-1, problem.d)
            eta = torch.as_tensor(run.step_size, dtype=dtype, device=device)
            try:
                eta = eta.expand(batch)
            except RuntimeError:
                rule = f"step_size must broadcast to (*sweep, seeds, preferences) = {batch}"
                raise ValueError(f"{rule}; found shape {tuple(eta.shape)}") from None
            self.slices[name] = _Slice(at, at + len(x), batch)
            rows.append(x)
            step_sizes.append(eta.reshape(-1, 1))
            at += len(x)
        self.x = torch.cat(rows).clone()
        self.eta = torch.cat(step_sizes)
        cheap = [self.slices[name].stop for name, run in self.runs.items() if not run.weighting.needs]
        self.cheap = max(cheap, default=0)
        self.units = {key: Units.of(run.units, run.ideal, problem.m) for key, run in self.runs.items()}
        self.scales: dict[str, Scale] = {}
        self.states: dict[str, Any] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.jacobian: Tensor | None = None

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """A run's part of a stacked tensor, in its batch shape."""
        start, stop, batch = self.slices[name]
        return tensor[start:stop].reshape(*batch, *tensor.shape[1:])

    def evaluate(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The losses, and the function that turns coefficients into Σ c_i ∇f_i."""
        parts: list[Tensor] = []
        pulls: list[Callable[[Tensor], Tensor]] = []
        self.jacobian = None
        if self.cheap > 0:
            losses, pull = _one_backward(self.problem, self.x[: self.cheap])
            parts.append(losses)
            pulls.append(pull)
        if self.cheap < len(self.x):
            losses, self.jacobian = _jacobian(self.problem, self.x[self.cheap :])
            parts.append(losses)
            pulls.append(self._pull_rows)
        split = [len(part) for part in parts]

        def pull_all(coefficients: Tensor) -> Tensor:
            return torch.cat([pull(c) for pull, c in zip(pulls, torch.split(coefficients, split), strict=True)])

        found, wanted = torch.cat(parts), (len(self.x), self.problem.m)
        rule = f"losses of {self.problem.name} must have shape (*B, m), {wanted} for x of shape {tuple(self.x.shape)}"
        require(found.shape == wanted, rule, tuple(found.shape))
        return found, pull_all

    def _pull_rows(self, coefficients: Tensor) -> Tensor:
        """Σ c_i rows_i, where the rows are this step's gradients or those that a weighting tracks."""
        assert self.jacobian is not None  # noqa: S101
        rows = self.jacobian
        for name, run in self.runs.items():
            tracked = run.weighting.rows(self.states[name])
            if tracked is not None:
                start, stop, _ = self.slices[name]
                rows = rows.clone()
                rows[start - self.cheap : stop - self.cheap] = tracked.reshape(stop - start, *rows.shape[1:]).to(rows)
        return (coefficients.unsqueeze(-2) @ rows).squeeze(-2)

    def weigh(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Record θ⁽ᵗ⁾ in every run's conversions; return every run's coefficients, for f̃ and for f.

        If a weighting has its own rows, they are in the units of f̃, so its coefficients for f̃ multiply them.
        """
        parts, pulled = [], []
        for name, run in self.runs.items():
            f, x = self._measure(name, self.of(name, losses)), self.of(name, self.x)
            extra = self._statistics(name, run)
            if name not in self.states:
                self.states[name] = run.weighting.init(f, **extra)
                self.records[name] = {key: c.init({"x": x}, f) for key, c in run.conversions.items()}
            for key, conversion in run.conversions.items():
                self.records[name][key] = conversion.update({"x": x}, f, self.records[name][key])
            c, self.states[name] = run.weighting.update(f, self.states[name], self.w, **extra)
            parts.append(c.reshape(-1, c.shape[-1]))
            tracks = run.weighting.rows(self.states[name]) is not None
            c = c / self.scales[name].unit if name in self.scales and not tracks else c
            pulled.append(c.reshape(-1, c.shape[-1]))
        return torch.cat(parts), torch.cat(pulled)

    def _measure(self, name: str, f: Tensor) -> Tensor:
        """The losses of a run in its units."""
        units = self.units[name]
        if units.plain:
            return f
        scale = self.scales.get(name)
        if scale is None:
            scale = units.init(f)
            low = torch.nonzero(units.too_low(f, scale) & torch.isfinite(f))
            if len(low):
                units.refuse(float(f[tuple(low[0])]), f"objective {low[0][-1]} of {self.problem.name}, run {name!r}")
        f, self.scales[name] = units.enter(f, scale)
        return f

    def _statistics(self, name: str, run: Run) -> dict[str, Tensor]:
        if not run.weighting.needs or self.jacobian is None:
            return {}
        start, stop, batch = self.slices[name]
        rows = self.jacobian[start - self.cheap : stop - self.cheap]
        rows = rows.reshape(*batch, *rows.shape[1:])
        if name in self.scales:
            rows = rows / self.scales[name].unit.unsqueeze(-1)
        given = {"jacobian": lambda: rows, "gramian": lambda: rows @ rows.mT}
        return {need: given[need]() for need in run.weighting.needs}

    def move(self, pull: Callable[[Tensor], Tensor], coefficients: Tensor) -> None:
        """θ ← Π(θ − η Σ c_i ∇f_i)."""
        self.x = torch.clamp(self.x - self.eta * pull(coefficients), self.low, self.high)

    def report(self, callback: Callable[[Step], None], step: int, losses: Tensor, coefficients: Tensor) -> None:
        """Call the callback for one step."""
        for name in self.runs:
            callback(Step(name, step, *(self.of(name, t) for t in (self.x, losses, coefficients))))

    def blame(self, losses: Tensor, finite: Tensor, step: int) -> str:
        """The message for the first instance whose loss is not finite."""
        row = int((~finite).to(torch.uint8).argmax())
        name = next(key for key, part in self.slices.items() if part.start <= row < part.stop)
        seed, which = divmod((row - self.slices[name].start) % (len(self.seeds) * len(self.w)), len(self.w))
        objective = int((~torch.isfinite(losses[row])).to(torch.uint8).argmax())
        return (
            f"loss must be finite; found {losses[row, objective].item()} for objective {objective} of "
            f"{self.problem.name}, run {name!r}, preference {which} ({self.w[which].tolist()}), "
            f"seed {self.seeds[seed]}, step {step}"
        )

    def solutions(self, alive: Tensor, records: list[tuple[Tensor, Tensor]]) -> dict[str, Solution]:
        """The results of all runs."""
        result = {}
        for name, run in self.runs.items():
            gone = ~self.of(name, alive)
            params, losses = {}, {}
            for key, conversion in run.conversions.items():
                x = conversion.output(self.records[name][key], self.w)["x"]
                params[key] = x.masked_fill(gone.unsqueeze(-1), torch.nan)
                losses[key] = self.problem.losses(params[key])
            way = None
            if records:
                way = Trajectory(*(torch.stack([self.of(name, pair[k]) for pair in records]) for k in (0, 1)))
            result[name] = Solution(params, losses, gone, way, self.records[name])
        return result

    def too_low(self, found: Mapping[str, Solution]) -> str:
        """The warning for a solution below the ideal point of its run, or an empty text."""
        for name, run in self.runs.items():
            least = self.units[name].raw(floor(run.weighting, self.w), self.scales.get(name))
            if least is None:
                continue
            for losses in found[name].losses.values():
                values = losses.detach().cpu()
                under = (values - lowered(least)).nan_to_num(0.0)  # NaN: diverged
                worst = int(under.argmin())
                if float(under.min()) < 0:
                    which, objective = divmod(worst % self.w.numel(), self.problem.m)
                    place = f"objective {objective} of {self.problem.name}, run {name!r}, preference {which}"
                    value, bound = values.flatten()[worst], least.expand_as(values).flatten()[worst]
                    return below(float(value), float(bound), f"{place} ({self.w[which].tolist()})")
        return ""


def _found_shape(w: Tensor) -> str:
    return f"{tuple(w.shape)}; a single preference is [{w.tolist()}]" if w.ndim == 1 else str(tuple(w.shape))


def _one_backward(problem: Problem, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    x = x.detach().requires_grad_()
    losses = problem.losses(x)
    return losses.detach(), lambda c: torch.autograd.grad((c * losses).sum(), x)[0]


def _jacobian(problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (n, m) and their gradients (n, m, d), by m backward passes."""
    x = x.detach().requires_grad_()
    losses = problem.losses(x)
    rows = [torch.autograd.grad(losses[:, i].sum(), x, retain_graph=True)[0] for i in range(losses.shape[-1])]
    return losses.detach(), torch.stack(rows, 1)


@contextmanager
def _steps(steps: int, label: str, *, show: bool) -> Iterator[Iterator[int]]:
    """1..steps, with a progress bar if requested."""
    if not show:
        yield iter(range(1, steps + 1))
        return
    from rich.progress import track  # noqa: PLC0415

    yield iter(track(range(1, steps + 1), description=label))
