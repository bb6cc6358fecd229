"""Problems with a known front × noise × optimizers × preferences × seeds, as one tensor program."""

import time
from collections.abc import Mapping, Sequence

import torch
from benchmarks.defaults.optimizers import Optimizer, Setting
from benchmarks.defaults.results import Record, numbers
from benchmarks.defaults.trajectories import follow
from torch import Tensor

import equipoise as eq
from equipoise import preference
from equipoise.problems import KnownFront, problems

CHOSEN = ("F1", "F3", "F4", "F6", "VLMOP2")
HELD_OUT = ("F2", "F5", "VLMOP1", "ZDT1", "ZDT2", "DTLZ2")
PROBLEMS = {"chosen": CHOSEN, "held-out": (*HELD_OUT, *CHOSEN)}
SEEDS = {"chosen": (0, 19, 42), "held-out": (1, 2, 3)}
STEPS = (1_000, 10_000)
NOISES = (0.0, 0.05, 0.2)
OPTIMIZERS = {
    "SGD .02": Setting(0.02),
    "SGD .1": Setting(0.1),
    "momentum .02": Setting(0.02, 0.9),
    "momentum .002": Setting(0.002, 0.9),
    "Adam .02": Setting(0.02, 0.9, adam=True),
}
MARGIN = 1e-5
"""Iterates stay this far from the bounds, where some derivatives are infinite."""
_CHUNK = 250


def run(
    problem: KnownFront | str,
    methods: Mapping[str, eq.Method],
    *,
    half: str = "chosen",
    seeds: Sequence[int] | None = None,
    steps: int | Sequence[int] = 1_000,
    noises: Sequence[float] = NOISES,
    optimizers: Mapping[str, Setting] = OPTIMIZERS,
    scale: float = 1.0,
    device: str = "cpu",
) -> list[Record]:
    """All methods on one problem.

    A measured loss is f_i (1 + σξ), ξ normal and drawn anew for every run of the batch and every step, but never
    below 0; its gradient is wrong by the same factor. All methods see the same draws.

    Args:
        problem: The problem or its name.
        methods: The methods by name.
        half: "chosen" or "held-out": which seeds, and what the records say.
        seeds: Other seeds.
        steps: After how many iterates answers are taken; several are read off one run.
        noises: The values of σ.
        optimizers: The optimizers by name.
        scale: Another unit of all losses; the rates of SGD are divided by it, and the records have the usual unit.
        device: Where the batch lives.

    Returns:
        A record for every number of steps, noise, optimizer and method.
    """
    began = time.perf_counter()
    problem = problems()[problem] if isinstance(problem, str) else problem
    seeds = SEEDS[half] if seeds is None else tuple(seeds)
    marks = (steps,) if isinstance(steps, int) else tuple(steps)
    w, judged = wishes(problem.m)
    start = torch.stack([problem.initial(len(w), seed) for seed in seeds]).to(device, torch.float64)
    shape = (len(noises), len(optimizers), len(seeds), len(w))
    rates = [s if s.adam else s._replace(rate=s.rate / scale) for s in optimizers.values()]
    optimizer = Optimizer.of(rates, (1, -1, 1, 1), dtype=torch.float64, device=device)
    noise = _Noise(noises, (*shape, problem.m), device)

    def losses(x: Tensor, t: int) -> Tensor:
        return scale * problem.losses(x) * noise(t)

    answers = follow(
        losses,
        start.expand(*shape, problem.d),
        methods,
        w.to(start),
        optimizer,
        marks,
        box=(problem.lower + MARGIN, problem.upper - MARGIN),
    )
    exact = (w * problem.solution(w)).amax(-1).tolist()
    seconds = round(time.perf_counter() - began, 2)
    records = []
    for mark, found in answers.items():
        for column, x in found.items():
            f = problem.losses(x)
            for i, sigma in enumerate(noises):
                for j, name in enumerate(optimizers):
                    records.append(
                        Record(
                            part="synthetic",
                            half=half,
                            problem=problem.name,
                            setting=_setting(sigma, name),
                            steps=mark,
                            column=column,
                            seeds=seeds,
                            preferences=w.tolist(),
                            train=numbers(f[i, j]),
                            test=[],
                            exact=exact,
                            judged=judged,
                            accuracy=[],
                            seconds=seconds,
                        )
                    )
    return records


def settings() -> list[str]:
    """What distinguishes the rows of one problem and length."""
    return [_setting(sigma, name) for sigma in NOISES for name in OPTIMIZERS]


def _setting(sigma: float, optimizer: str) -> str:
    return f"σ={sigma:g} {optimizer}"


def wishes(m: int) -> tuple[Tensor, list[int]]:
    """The preferences (10, m), and those whose imbalance is judged: for two objectives not the first and the last.

    Three objectives have ten preferences too, with no entry below 1/6.
    """
    if m == 2:
        return preference.linspace(10).to(torch.float64), list(range(1, 9))
    inner = preference.grid(3, m, margin=0.5 / m)
    return inner, list(range(len(inner)))


class _Noise:
    """The factors 1 + σξ ≥ 0 of a step, drawn on the CPU, so that every device sees the same."""

    def __init__(self, noises: Sequence[float], shape: tuple[int, ...], device: str) -> None:
        self.sigma = torch.tensor(noises, dtype=torch.float64, device=device).reshape(-1, *[1] * (len(shape) - 1))
        self.shape, self.device = shape, device
        self.generator = torch.Generator().manual_seed(1)
        self.draws = torch.empty(0)
        self.first = 1

    def __call__(self, t: int) -> Tensor:
        """(*shape), the same for every call with this t."""
        if t - self.first >= len(self.draws):
            self.first = t
            fresh = torch.randn(_CHUNK, *self.shape, generator=self.generator, dtype=torch.float32)
            self.draws = (1 + self.sigma * fresh.to(self.device)).clamp_min(0)
        return self.draws[t - self.first]
