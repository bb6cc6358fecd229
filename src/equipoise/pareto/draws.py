"""New preferences for every step: evenly spread, and reproducible from a seed."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.errors import BalanceWarning, require, warn

__all__ = ["Distribution", "RowCount", "draw_preferences", "spread_uniform"]

Distribution: TypeAlias = Callable[[int, torch.Generator], Tensor]
"""Draws n preferences (n, m) with a generator."""
LOOK = 100
"""Steps between two looks at the number of preferences."""


def spread_uniform(n: int, m: int, generator: torch.Generator) -> Tensor:
    """Draw preferences (n, m), each uniform on the simplex (Dirichlet(1, …, 1)), together evenly spread over it.

    For two objectives there is one in each of n intervals of equal length. For more, the points of a Kronecker sequence
    are shifted at random, and each is mapped to the simplex by breaking a stick. Rows come in random order.

    Args:
        n: How many.
        m: Objectives.
        generator: On the CPU.

    Examples:
        >>> w = eq.pareto.spread_uniform(4, 2, torch.Generator().manual_seed(0))
        >>> sorted((4 * w[:, 0]).floor().tolist())  # one in each quarter
        [0.0, 1.0, 2.0, 3.0]
    """
    d, index = m - 1, torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    if d == 1:
        u = (index + torch.rand(n, 1, generator=generator, dtype=torch.float64)) / max(n, 1)
    else:
        # The root of xᵈ⁺¹ = x + 1 gives the steps that fill a cube most evenly (the golden ratio for d = 1).
        root = 2.0
        for _ in range(64):
            root = (1.0 + root) ** (1.0 / (d + 1))
        steps = root ** -torch.arange(1, d + 1, dtype=torch.float64)
        u = (index * steps + torch.rand(1, d, generator=generator, dtype=torch.float64)) % 1.0
    left, parts = torch.ones(n, dtype=torch.float64), []
    for k in range(d):
        # Break a part off the rest of the stick; with q parts still to come, its fraction is Beta(1, q).
        kept = (1.0 - u[:, k]) ** (1.0 / (d - k))
        parts.append(left * (1.0 - kept))
        left = left * kept
    w = torch.stack([*parts, left], -1)
    return w[torch.randperm(n, generator=generator)]


def draw_preferences(
    n: int, m: int, margin: float, distribution: Distribution | None, key: tuple[int, int, int]
) -> Tensor:
    """Draw preferences (n, m) with entries of at least `margin`, float64, on the CPU.

    Args:
        n: How many.
        m: Objectives.
        margin: The smallest entry: the draws are shrunk to {w_i ≥ margin}.
        distribution: The function that draws them; None: `spread_uniform`.
        key: Seed, rank and number of the draw; the result depends on nothing else.

    Raises:
        ValueError: If the distribution gives anything but n preferences of m objectives.
    """
    numbers = np.random.SeedSequence(key).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(numbers[0]) >> 1)
    if distribution is None:
        w = spread_uniform(n, m, generator)
    else:
        w = preferences.validate(distribution(n, generator), m).detach().to("cpu", torch.float64)
        require(w.shape == (n, m), f"draw must give preferences of shape ({n}, {m})", tuple(w.shape))
    return margin + (1.0 - m * margin) * w


class RowCount:
    """Warns once of steps with at most half as many preferences as there are nodes.

    Args:
        m: Objectives.
        nodes: K.
        step: The step at which counting begins.
    """

    def __init__(self, m: int, nodes: int, step: int = 0) -> None:
        self._m, self._nodes, self._from, self._rows, self._told = m, nodes, step, 0, False

    def add(self, rows: int, step: int) -> None:
        """Count the rows of a call, over all ranks, after this many steps."""
        if step - self._from >= LOOK:
            found = self._rows / (step - self._from)
            if 2 * found <= self._nodes and not self._told:
                self._told = True
                warn(self._describe(found), BalanceWarning)
            self._from, self._rows = step, 0
        self._rows += rows

    def _describe(self, found: float) -> str:
        return (
            f"{found:.3g} preferences per step, on average over {LOOK} steps, are few for {self._nodes} nodes: λ of "
            "each then follows the noise of few samples. What to do: draw more, by larger batches or by accumulating "
            f"several calls per step, or give nodes={max(self._m, int(found))}; if a row is a mean over many samples, "
            "few may do; this is said once"
        )
