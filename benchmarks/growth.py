"""How the cost of a step grows with preferences, objectives and variables, and how archives grow.

    python benchmarks/growth.py [--quick] [--json FILE] [--picture FILE]

Each curve is from one run on one core. A fitted exponent says how a curve ends: 1 is linear.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

import equipoise as eq
from equipoise.conversion import Adaptive, Conversion, Last
from equipoise.problems import DTLZ2, VLMOP2, Problem
from equipoise.weighting import EPO, MGDA, OMD, Weighting


class Curve(NamedTuple):
    """Seconds per step, or copies, against something that grows."""

    panel: str
    name: str
    x: list[int]
    y: list[float]

    @property
    def exponent(self) -> float:
        """The slope of the last third of the curve, in logarithms."""
        start = max(0, len(self.x) - max(2, len(self.x) // 3 + 1))
        return math.log(self.y[-1] / self.y[start]) / math.log(self.x[-1] / self.x[start])


def seconds_per_step(
    problem: Problem,
    preferences: torch.Tensor,
    weighting: Weighting[Any],
    conversion: Conversion[Any],
    steps: int,
) -> float:
    """The median over the steps after the first three."""
    marks: list[float] = []

    def mark(_: eq.solver.Step) -> None:
        marks.append(time.perf_counter())

    eq.solve_many(
        problem, preferences, {"run": eq.Run(weighting, {"x": conversion}, 0.02)}, steps=steps + 4, callback=mark
    )
    return statistics.median(b - a for a, b in pairwise(marks[3:]))


def random_preferences(n: int, m: int) -> torch.Tensor:
    """Preferences (n, m) from a flat Dirichlet distribution, away from the edges."""
    draw = torch.Generator().manual_seed(0)
    w = -torch.log(torch.rand(n, m, generator=draw, dtype=torch.float64)) + 0.1
    return w / w.sum(-1, keepdim=True)


CONVERSIONS: dict[str, Conversion[Any]] = {"last": Last(), "Adaptive(power=4, capacity=8)": Adaptive(4.0, 8)}


def by_preferences(sizes: Sequence[int], steps: int) -> list[Curve]:
    """VLMOP2, all preferences in one tensor program."""
    curves = []
    for name, conversion in CONVERSIONS.items():
        took = [
            seconds_per_step(VLMOP2(), eq.preference.linspace(n), OMD(optimism=20.0), conversion, steps) for n in sizes
        ]
        curves.append(Curve("preferences", name, list(sizes), took))
    return curves


def by_objectives(sizes: Sequence[int], steps: int) -> list[Curve]:
    """DTLZ2, thirty preferences."""
    weightings: dict[str, Weighting[Any]] = {"OMD": OMD(optimism=20.0), "MGDA": MGDA(), "EPO": EPO()}
    return [
        Curve(
            "objectives",
            name,
            list(sizes),
            [seconds_per_step(DTLZ2(m=m), random_preferences(30, m), weighting, Last(), steps) for m in sizes],
        )
        for name, weighting in weightings.items()
    ]


def by_variables(sizes: Sequence[int], steps: int) -> list[Curve]:
    """VLMOP2 in d variables, ten preferences."""
    return [
        Curve(
            "variables",
            name,
            list(sizes),
            [
                seconds_per_step(VLMOP2(d=d), eq.preference.linspace(10), OMD(optimism=20.0), conversion, steps)
                for d in sizes
            ],
        )
        for name, conversion in CONVERSIONS.items()
    ]


def archives(sizes: Sequence[int], steps: int) -> list[Curve]:
    """The largest unbounded archive among thirty preferences of DTLZ2, after so many steps."""
    curves = []
    for name, c in (("optimism 0", 0.0), ("optimism 20", 20.0)):
        members = []
        for m in sizes:
            run = eq.Run(OMD(1.0, optimism=c), {"x": Adaptive()}, 0.02)
            found = eq.solve_many(DTLZ2(m=m), random_preferences(30, m), {"run": run}, steps=steps)["run"]
            members.append(float(Adaptive().size(found.states["x"]).max()))
        curves.append(Curve("archive", name, list(sizes), members))
    return curves


LABELS = {
    "preferences": ("preferences (VLMOP2)", "ms per step"),
    "objectives": ("objectives (DTLZ2, 30 preferences)", "ms per step"),
    "variables": ("variables (VLMOP2, 10 preferences)", "ms per step"),
    "archive": ("objectives (DTLZ2, 500 steps)", "largest archive"),
}


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Four panels, logarithmic."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9.0, 6.4), layout="constrained")
    colours = ("#0072B2", "#D55E00", "#009E73")
    for axes, (panel, (across, up)) in zip(figure.subplots(2, 2).flat, LABELS.items(), strict=True):
        for colour, curve in zip(colours, [c for c in curves if c.panel == panel], strict=False):
            scale = 1.0 if panel == "archive" else 1e3
            axes.plot(curve.x, [scale * y for y in curve.y], "o-", ms=4, color=colour, label=curve.name)
        axes.set(xscale="log", xlabel=across, ylabel=up)
        if panel == "archive":
            axes.set_ylim(0, None)
        else:
            axes.set_yscale("log")
        if "objectives" in across:
            ticks = sorted({x for c in curves if c.panel == panel for x in c.x})
            axes.set_xticks(ticks, [str(x) for x in ticks])
            axes.minorticks_off()
        axes.grid(color="0.9", lw=0.6)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    steps = 5 if chosen.quick else 30
    parts: tuple[Callable[[], list[Curve]], ...] = (
        lambda: by_preferences((10, 30, 100) if chosen.quick else (10, 30, 100, 300, 1000, 3000, 10_000), steps),
        lambda: by_objectives((2, 3) if chosen.quick else (2, 3, 5, 7, 10, 14, 20), min(steps, 10)),
        lambda: by_variables((10, 100) if chosen.quick else (10, 100, 1000, 10_000, 100_000), steps),
        lambda: archives((2, 3) if chosen.quick else (2, 3, 5, 10, 20), 20 if chosen.quick else 500),
    )
    curves = []
    for part in parts:
        for curve in part():
            curves.append(curve)
            unit = (lambda y: f"{y:.0f}") if curve.panel == "archive" else (lambda y: f"{1e3 * y:.2f} ms")
            points = ", ".join(f"{x}: {unit(y)}" for x, y in zip(curve.x, curve.y, strict=True))
            print(f"{curve.panel}, {curve.name}: {points}; exponent at the end {curve.exponent:.2f}", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([curve._asdict() for curve in curves], indent=1), encoding="utf-8")
    if chosen.picture is not None:
        draw(curves, chosen.picture)


if __name__ == "__main__":
    main()
