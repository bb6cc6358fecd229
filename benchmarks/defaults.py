"""How the default method was chosen, on F1 to F6: the step of λ, the optimism, its smoothing, the power, and noise.

Five parts, each a table on standard output (hypervolume, median preference error; the fourth accuracies):

    python benchmarks/defaults.py units       # a fixed step of λ in other units of the losses, and the adaptive one
    python benchmarks/defaults.py optimism    # how much of it, how smooth, and which power
    python benchmarks/defaults.py noise       # the same with losses and gradients that are wrong by 5 and by 20 %
    python benchmarks/defaults.py momentum    # smoothing and the momentum of SGD, in examples/group_dro.py
    python benchmarks/defaults.py horizon     # runs of 10,000 steps: how far back the adaptive step looks

The third part also has VLMOP2, which was looked at; by the first three the smoothing was 10, by the fourth it is 3.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise import metrics, preference
from equipoise.problems import F6, KnownFront, problems

SEEDS = (0, 19, 42)
PREFERENCES = 10
STEP_SIZE = 0.02
OUTPUTS: dict[str, eq.Conversion] = {  # type: ignore[type-arg]
    "last": eq.Last(),
    "average, p=8": eq.Average(power=8.0),
    "p=4, K=8": eq.Adaptive(power=4.0, capacity=8),
    "p=8, K=8": eq.Adaptive(power=8.0, capacity=8),
    "p=16, K=8": eq.Adaptive(power=16.0, capacity=8),
}


@dataclass
class Noisy:
    """A problem whose objectives are multiplied by 1 + σξ, ξ normal and drawn anew at every look, but never below 0."""

    exact: KnownFront
    sigma: float
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def __post_init__(self) -> None:
        self.name, self.m, self.d = self.exact.name, self.exact.m, self.exact.d
        self.lower, self.upper = self.exact.lower, self.exact.upper

    def losses(self, x: Tensor) -> Tensor:
        """One draw: x (*B, d) to (*B, m)."""
        f = self.exact.losses(x)
        return f * (1 + self.sigma * torch.randn(f.shape, generator=self.generator)).clamp_min(0)

    def initial(self, count: int, seed: int) -> Tensor:
        """As the exact problem."""
        return self.exact.initial(count, seed)


def show(
    problem: KnownFront,
    rows: Mapping[str, eq.OMD],
    outputs: Sequence[str],
    solved: Noisy | None = None,
    *,
    steps: int = 1000,
    quantile: float = 0.5,
) -> dict[str, list[tuple[float, float]]]:
    """Solve for all rows at once, print and return hypervolume and preference error of every output.

    The error is the median over seeds and preferences, or another quantile of them.
    """
    w = preference.linspace(PREFERENCES)
    runs = {
        name: eq.Run(weighting, {key: OUTPUTS[key] for key in outputs}, STEP_SIZE) for name, weighting in rows.items()
    }
    found = eq.solve_many(problem if solved is None else solved, w, runs, seeds=SEEDS, steps=steps)
    table: dict[str, list[tuple[float, float]]] = {}
    for name, solution in found.items():
        table[name] = []
        for key in outputs:
            losses = problem.losses(solution.params[key]).to(torch.float64)
            volume = float(metrics.hypervolume(losses, problem.reference).mean())
            table[name].append((volume, float(metrics.imbalance(losses, w).quantile(quantile))))
        print(f"  {name:<22}" + "".join(f"{volume:>10.4f} {error:>7.2%}" for volume, error in table[name]), flush=True)
    return table


def chosen_on() -> dict[str, KnownFront]:
    """F1 to F6, F6 also as it was published."""
    return {name: problems()[name] for name in ("F1", "F2", "F3", "F4", "F5", "F6")} | {
        "F6 published": F6(quartic=True)
    }


def units() -> None:
    """Losses in another unit are another step of λ."""
    rows = {f"η={eta:g} c=20": eq.OMD(eta, eq.Euclidean(), optimism=20.0) for eta in (0.01, 0.1, 1.0, 10.0, 100.0)}
    rows |= {f"adaptive c={c}": eq.OMD("adaptive", eq.Euclidean(), optimism=float(c)) for c in (30, 50)}
    outputs = ("last", "p=4, K=8", "p=8, K=8", "p=16, K=8")
    for name in ("F1", "F3", "F4", "F6"):
        heading(name, outputs)
        show(chosen_on()[name], rows, outputs)


def optimism() -> None:
    """How much of it, with either step, and how smooth."""
    rows = {f"adaptive c={c}": eq.OMD("adaptive", eq.Euclidean(), optimism=float(c)) for c in (0, 20, 30, 50, 100)}
    rows |= {f"η=1 c={c}": eq.OMD(1.0, eq.Euclidean(), optimism=float(c)) for c in (20, 50)}
    rows |= smoothed((30, 3), (30, 10), (30, 30), (60, 10), (60, 30), (100, 10))
    outputs = ("last", "p=4, K=8", "p=8, K=8")
    sums: dict[str, list[list[tuple[float, float]]]] = {}
    for name, problem in chosen_on().items():
        heading(name, outputs)
        for row, cells in show(problem, rows, outputs).items():
            sums.setdefault(row, []).append(cells)
    heading("mean hypervolume, largest preference error", outputs)
    for row, found in sums.items():
        columns = list(zip(*found, strict=True))
        cells = [(sum(v for v, _ in column) / len(column), max(e for _, e in column)) for column in columns]
        print(f"  {row:<22}" + "".join(f"{volume:>10.4f} {error:>7.2%}" for volume, error in cells))


def noise() -> None:
    """What optimism does with noise: its term follows it, the less the smoother it is."""
    rows = {f"adaptive c={c}": eq.OMD("adaptive", eq.Euclidean(), optimism=float(c)) for c in (0, 5, 20, 30, 50)}
    rows |= smoothed((30, 3), (30, 10), (30, 30), (60, 30))
    outputs = ("last", "average, p=8", "p=8, K=8")
    for name in ("F1", "F3", "F4", "F5", "VLMOP2"):
        for sigma in (0.05, 0.2):
            heading(f"{name}, σ = {sigma}", outputs)
            show(problems()[name], rows, outputs, Noisy(problems()[name], sigma))


def momentum() -> None:
    """Smoothing lags, and so does momentum: test accuracy of coloured digits, mean and worst group, over the seeds."""
    rows = {"adaptive c=30": eq.OMD("adaptive", optimism=30.0)} | smoothed((30, 2), (30, 3), (30, 5), (30, 10))
    path = Path(__file__).parents[1] / "examples" / "group_dro.py"
    spec = importlib.util.spec_from_file_location("group_dro", path)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    sys.modules["group_dro"] = example
    spec.loader.exec_module(example)
    example.method = lambda name, _counts: eq.Method(rows[name], eq.Adaptive(power=4.0, capacity=8))
    for optimizer, settings in example.OPTIMIZERS.items():
        print(f"\n{optimizer}\n  {'':<22}{'mean, %':>18}{'worst group, %':>18}")
        for name in rows:
            runs = [example.train(name, {**settings, "weight_decay": example.DECAY}, seed) for seed in example.SEEDS]
            found = torch.stack(runs)
            mean, worst = example.mean_std(found.mean(1)), example.mean_std(found.min(1).values)
            print(f"  {name:<22}{mean:>18}{worst:>18}", flush=True)


def horizon() -> None:
    """Ten times as many steps: an adaptive step that forgets nothing, and three that do.

    Without noise the error is the upper quartile: of the ten preferences the first and the last ask for a corner.
    """
    rows = {
        f"horizon {'none' if math.isinf(h) else f'{h:g}'}": eq.OMD(
            "adaptive", eq.Euclidean(), optimism=30.0, smoothing=3.0, horizon=h
        )
        for h in (math.inf, 3000.0, 1000.0, 300.0)
    }
    outputs = ("last", "average, p=8", "p=8, K=8")
    for name in ("F1", "F6", "VLMOP2"):
        for sigma in (0.0, 0.2):
            heading(f"{name}, σ = {sigma}, 10,000 steps", outputs)
            noisy = Noisy(problems()[name], sigma) if sigma > 0 else None
            show(problems()[name], rows, outputs, noisy, steps=10_000, quantile=0.5 if sigma > 0 else 0.75)


def smoothed(*settings: tuple[int, int]) -> dict[str, eq.OMD]:
    """The adaptive step with optimism c and smoothing τ, for every (c, τ)."""
    return {
        f"adaptive c={c} τ={tau}": eq.OMD("adaptive", eq.Euclidean(), optimism=float(c), smoothing=float(tau))
        for c, tau in settings
    }


def heading(title: str, outputs: Sequence[str]) -> None:
    print(f"\n{title}\n  {'':<22}" + "".join(f"{output:>18}" for output in outputs))


PARTS: dict[str, Callable[[], None]] = {
    "units": units,
    "optimism": optimism,
    "noise": noise,
    "momentum": momentum,
    "horizon": horizon,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all of them if none is named")
    torch.set_num_threads(1)
    for part in parser.parse_args().parts or PARTS:
        print(f"\n== {part}")
        PARTS[part]()


if __name__ == "__main__":
    main()
