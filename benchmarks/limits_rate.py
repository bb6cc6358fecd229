"""How fast `Limits` meets its limits on convex problems, against the bound of Theorem L (docs/theory.md, section 15).

    python benchmarks/limits_rate.py

θ takes projected gradient steps of size D/√T, and the answer is the mean with weights α. Both problems have closed
solutions. The control has multipliers with a fixed step of 10 instead: its excess is far above the bound.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import equipoise as eq
from equipoise.theory import limits_regret
from equipoise.weighting.limits import LimitsState, link


@dataclass(frozen=True)
class Problem:
    """min F subject to f_j ≤ ε_j, over the ball of radius 2, from 0."""

    title: str
    losses: Callable[[Tensor], Tensor]
    """F and f, (1 + k,)."""
    limits: tuple[float, ...]
    optimum: Tensor
    multipliers: tuple[float, ...]
    """μ* of F + Σ μ (f − ε)."""


def distances(x: Tensor) -> Tensor:
    """Two squared distances: the nearest point of a disc."""
    return torch.stack([(x - A).square().sum(), (x - B).square().sum()])


def linear(x: Tensor) -> Tensor:
    """A linear loss, where multipliers alone would rotate for ever: the lowest corner of two squares' overlap."""
    return torch.stack([2.0 + x[0] + x[1], 1.0 - 2 * x[0], 1.0 - x[1]])


A, B = torch.tensor([1.0, 0.0]), torch.tensor([-0.5, 0.0])
PROBLEMS = (
    # x = B + (1, 0) = (0.5, 0): 2(x − A) + μ 2(x − B) = 0 at μ = 0.5.
    Problem("nearest point of a disc", distances, (1.0,), torch.tensor([0.5, 0.0]), (0.5,)),
    # 1 − 2x ≤ 0.5 and 1 − y ≤ 0.5: x = 0.25, y = 0.5, μ = (0.5, 1).
    Problem("corner of a box", linear, (0.5, 0.5), torch.tensor([0.25, 0.5]), (0.5, 1.0)),
)


class Outcome(NamedTuple):
    """Of T steps: how far the answer is from the optimum, and what the theorem allows."""

    excess: float
    """F(θ̄) − F*."""
    excess_bound: float
    violation: float
    """The largest v_j(θ̄)."""
    violation_bound: float


def run(problem: Problem, T: int, fixed: float | None = None) -> Outcome:
    """T steps; with `fixed` the multipliers are raised by this times the violation instead."""
    k, size = len(problem.limits), 1.0
    weighting = eq.Limits((None, *problem.limits), size=size)
    w, eps = torch.tensor([1.0] + [0.0] * k), torch.tensor(problem.limits)
    state: LimitsState = weighting.init(w)
    theta, mean, total = torch.zeros(2), torch.zeros(2), 0.0
    rate = 2.0 / math.sqrt(T)
    squares, proportional = 0.0, 0.0
    largest, mu, before = torch.zeros(k, dtype=torch.float64), torch.zeros(k), None
    for _ in range(T):
        x = theta.requires_grad_()
        losses = problem.losses(x)
        found = losses.detach()
        if fixed is None:
            alpha = 1 / (1 + float((state.multipliers * state.reach).sum()))
            nu, largest = state.multipliers, torch.maximum(largest, link(state.integral))
            c, after = weighting.update(found, state, w)
            if before is not None:
                steps = (nu - link(state.integral)).abs() * (after.violation - before).abs()
                proportional += alpha * float(steps.sum())
            before, state = after.violation, after
        else:
            alpha = 1 / (1 + float(mu.sum()))
            c = alpha * torch.cat([torch.ones(1), mu])
            mu = (mu + fixed * (found[1:] - eps)).clamp_min(0)
        (gradient,) = torch.autograd.grad((c.to(losses) * losses).sum(), x)
        squares += float(gradient.square().sum())
        total += alpha
        mean = mean + (theta.detach() - mean) * (alpha / total)
        theta = theta.detach() - rate * gradient
        theta = theta * min(1.0, 2.0 / float(theta.norm().clamp_min(1e-12)))
    best, at = problem.losses(problem.optimum), problem.losses(mean)
    primal = float(problem.optimum.square().sum()) / (2 * rate) + rate / 2 * squares
    optimal = [m * abs(e) / size for m, e in zip(problem.multipliers, problem.limits, strict=True)]

    def dual(u: list[float]) -> float:
        return proportional + sum(map(limits_regret, u, largest.tolist(), state.total.tolist()))

    raised = max(dual([v + (i == j) for i, v in enumerate(optimal)]) for j in range(k))
    return Outcome(
        float(at[0] - best[0]),
        (primal + size * dual([0.0] * k)) / total,
        float(((at[1:] - eps) / eps.abs()).max()),
        (primal / size + raised) / total,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decades", type=int, default=4, help="steps from 10 to 10 times ten to this power")
    decades = parser.parse_args().decades
    torch.set_num_threads(1)
    for problem in PROBLEMS:
        print(
            f"\n{problem.title}\n{'T':>8} {'excess':>10} {'bound':>9} {'violation':>10} {'bound':>9}  control's excess"
        )
        for power in range(1, decades + 2):
            ours, control = run(problem, 10**power), run(problem, 10**power, fixed=10.0)
            print(f"{10**power:8d} {ours.excess:10.5f} {ours.excess_bound:9.4f}", end=" ")
            print(f"{ours.violation:10.5f} {ours.violation_bound:9.4f} {control.excess:14.5f}")


if __name__ == "__main__":
    main()
