"""The whole Pareto set of a synthetic problem in one small network."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.errors import require
from equipoise.pareto.front import Front
from equipoise.pareto.pareto_set import ParetoSet
from equipoise.problems.protocol import Problem
from equipoise.solver import find_problem
from equipoise.train.inputs import Choice

__all__ = ["PreferenceNetwork", "SetSolution", "solve_set"]


class PreferenceNetwork(nn.Module):
    """Maps a preference to a point in a problem's box: two hidden layers on w and log w, and a sigmoid at the end.

    Args:
        m: Objectives.
        d: Variables.
        lower: Lower bound of every variable.
        upper: Upper bound of every variable.
        width: The width of the hidden layers.

    Examples:
        >>> net = eq.pareto.PreferenceNetwork(m=2, d=5)
        >>> tuple(net(torch.tensor([[0.25, 0.75], [0.5, 0.5]])).shape)
        (2, 5)
    """

    def __init__(self, m: int, d: int, lower: float = 0.0, upper: float = 1.0, width: int = 128) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper
        self.layers = nn.Sequential(
            nn.Linear(2 * m, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, d)
        )

    def forward(self, preference: Tensor) -> Tensor:
        """The points x(w), (n, d), of preferences (n, m)."""
        seen = torch.cat([2 * preference - 1, preference.clamp_min(1e-6).log()], -1)
        x: Tensor = torch.sigmoid(self.layers(seen))
        return self.lower + (self.upper - self.lower) * x


class SetSolution(NamedTuple):
    """A network that has learned the Pareto set.

    Examples:
        >>> found = eq.pareto.solve_set(eq.problems.ZDT1(d=4), steps=50)
        >>> tuple(found.model(found.front.preferences.float()).shape), tuple(found.front.losses.shape)
        ((91, 4), (91, 2))
    """

    model: PreferenceNetwork
    """The network, with the answer as its weights: from preferences (n, m) to points (n, d)."""
    front: Front
    """Its losses at 91 preferences."""


def solve_set(
    problem: Problem | str,
    *,
    method: Choice = None,
    nodes: int | None = None,
    margin: float | None = None,
    steps: int = 2000,
    rows: int | None = None,
    learning_rate: float = 1e-3,
    noise: float = 0.0,
    seed: int = 0,
) -> SetSolution:
    """Learn all Tchebycheff solutions of a problem at once, by Adam with a cosine schedule.

    A concave front of three objectives needs more than the defaults: for DTLZ2 margin=0.05, steps=4000 and rows=512
    (benchmarks/pareto_set.py).

    Args:
        problem: The problem, or its name in `problems.problems()`.
        method: See `ParetoSet`.
        nodes: See `ParetoSet`.
        margin: See `ParetoSet`.
        steps: The number of optimizer steps.
        rows: Preferences drawn in each step; by default four for each node.
        learning_rate: The initial learning rate.
        noise: σ of measured losses f_i (1 + σ ξ), ξ standard normal: values and gradients have the same relative error.
        seed: The seed of the initial network, the draws and the noise.

    Returns:
        The network, and its losses along the front without noise.

    Examples:
        >>> found = eq.pareto.solve_set(eq.problems.VLMOP2(), steps=300)
        >>> bool(found.front.imbalance.median() < 0.2)
        True
        >>> w = eq.preference.through([0.5, 0.7])  # the trade-off of a point that you like
        >>> tuple(found.model(w.unsqueeze(0)).shape)
        (1, 10)
    """
    problem = find_problem(problem)
    require(steps >= 1, "steps must be at least 1", steps)
    require(noise >= 0, "noise must be at least 0", noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PreferenceNetwork(problem.m, problem.d, problem.lower, problem.upper)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    pareto = ParetoSet(model, optimizer, problem.m, method=method, nodes=nodes, margin=margin, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        losses = problem.losses(model(pareto.draw(rows or 4 * pareto.mesh.size)))
        if noise > 0:
            losses = losses * (1 + noise * torch.randn(losses.shape, generator=generator))
        pareto(losses).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    front = pareto.front(lambda w: problem.losses(model(w)))
    pareto.close()
    model.load_state_dict(pareto.solution())
    return SetSolution(model, front)
