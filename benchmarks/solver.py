"""The vectorised solver against a plain loop, what the adaptive conversion adds, and time per method.

    python benchmarks/solver.py [--json FILE]

Ratios are taken within one run, the two sides alternating, since machines are shared and noisy.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from equipoise.experiments.synthetic import settings as synthetic
from equipoise.problems import F1
from equipoise.solver import Run, solve_many

SEEDS, STEPS = (0, 19, 42), 300
W = eq.preference.linspace(10)


def plain_loop(steps: int) -> None:
    """OMD-TCH, one preference and one seed at a time, with the same weighting and conversion."""
    problem, weighting, conversion = F1(), eq.OMD(1.0, eq.Euclidean()), eq.Average()
    for seed in SEEDS:
        for start, w in zip(problem.initial(len(W), seed), W, strict=True):
            x = start
            losses = problem.losses(x)
            state, record = weighting.init(losses), conversion.init({"x": x}, losses)
            for _ in range(steps):
                x = x.detach().requires_grad_()
                losses = problem.losses(x)
                record = conversion.update({"x": x}, losses.detach(), record)
                c, state = weighting.update(losses, state, w)
                (gradient,) = torch.autograd.grad((c * losses).sum(), x)
                x = (x - 0.02 * gradient).clamp(1e-5, 1 - 1e-5)


def vectorised(steps: int, outputs: dict[str, eq.Conversion[Any]]) -> None:
    run = Run(eq.OMD(1.0, eq.Euclidean()), outputs, 0.02)
    solve_many(F1(), W, {"omd": run}, seeds=SEEDS, steps=steps)


def seconds(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def main(path: Path | None) -> bool:
    torch.set_num_threads(1)
    uniform: dict[str, eq.Conversion[Any]] = {"uniform": eq.Average()}
    both = {**uniform, "adaptive": eq.Adaptive()}
    vectorised(10, both)

    loop, fast = [], []
    for _ in range(3):
        loop.append(seconds(lambda: plain_loop(STEPS // 10)) * 10 / STEPS)
        fast.append(seconds(lambda: vectorised(STEPS, uniform)) / STEPS)
    speedup = statistics.median(loop) / statistics.median(fast)
    print(f"30 problems, OMD: plain loop {statistics.median(loop) * 1e3:.2f} ms a step, "
          f"vectorised {statistics.median(fast) * 1e3:.2f} ms: {speedup:.0f} times (at least 20)")  # fmt: skip

    plain, adaptive = [], []
    for _ in range(5):
        plain.append(seconds(lambda: vectorised(1000, uniform)))
        adaptive.append(seconds(lambda: vectorised(1000, both)))
    added = statistics.median(adaptive) - statistics.median(plain)
    print(f"AdaOMD adds {added:.3f} ms a step to OMD (at most 0.5)")

    times = {}
    for row in synthetic.settings("published"):
        runs = {row.method: Run(row.weighting, {"x": row.conversion}, row.step_size)}
        started = time.perf_counter()
        solve_many(F1(), W, runs, seeds=SEEDS, steps=STEPS, on_nonfinite="keep")
        times[row.method] = time.perf_counter() - started
    print("\nms a step for 30 problems on F1, each method alone")
    for method, elapsed in sorted(times.items(), key=lambda item: item[1]):
        print(f"{method:14} {elapsed / STEPS * 1e3:7.2f}")
    if path is not None:
        per_step = {method: elapsed / STEPS * 1e3 for method, elapsed in times.items()}
        record = {"speedup": speedup, "adaptive_adds_ms": added, "ms_per_step": per_step}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1))
    return speedup >= 20 and added <= 0.5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    raise SystemExit(0 if main(parser.parse_args().json) else 1)
