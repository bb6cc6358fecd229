"""Gradients for the tests of weightings on the Gramian."""

from typing import Any

import torch
from torch import Tensor

from equipoise.weighting import Weighting

INTEGERS: dict[str, list[list[int]]] = {
    "two": [[2, 0, 1], [-3, -2, 0]],
    "three": [[2, -3, -3], [-2, 1, 2], [1, 3, -2]],
    "duplicates": [[-1, 1, -2, -2], [3, -3, 3, 2], [-1, 1, -2, -2]],
    "four": [[-2, -2, -3, 1], [-2, -3, -3, 2], [0, -1, -2, -3], [3, 0, 3, 2]],
    "four dependent": [[-2, -2, 0], [1, -3, -2], [0, 1, -1], [1, -3, 2]],
    "five, duplicates": [
        [0, -2, -1, -3, 1],
        [-2, -1, -1, -2, -3],
        [3, -2, 0, 3, 2],
        [1, 0, 2, -2, 0],
        [0, -2, -1, -3, 1],
    ],
    "six": [
        [-2, 0, 1, -1, 3, 3],
        [-3, -3, -2, -2, 2, 0],
        [-3, -3, 2, 2, 3, 1],
        [2, 3, -1, 1, 0, 2],
        [0, 2, -3, 0, 1, 0],
        [1, 3, 1, 2, 1, -2],
    ],
    "six dependent": [
        [-3, 1, -1, -3, 2],
        [-1, 1, -2, -2, -3],
        [-1, 1, 1, -3, 1],
        [-2, 3, 1, -2, -3],
        [-1, 0, -2, -1, 1],
        [1, -1, -1, 3, -3],
    ],
}
"""Rows for which other libraries' answers are kept, by name."""


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def jacobians(m: int) -> dict[str, Tensor]:
    """Six of each kind, (6, m, d)."""
    double = random(6, m, 8, seed=m + 10)
    double[:, -1] = double[:, 0]
    return {"plain": random(6, m, 8, seed=m), "duplicates": double, "dependent": random(6, m, m - 1, seed=m + 20)}


def coefficients(method: Weighting[Any], rows: Tensor, preference: Tensor | None = None, **extra: Tensor) -> Tensor:
    """For losses of 1 and the Gramian of `rows` (*B, m, d)."""
    losses = torch.ones(rows.shape[:-1], dtype=torch.float64)
    w = torch.full_like(losses, 1 / losses.shape[-1]) if preference is None else preference
    c, _ = method.update(losses, method.init(losses), w, gramian=rows @ rows.mT, **extra)
    return c


def direction(method: Weighting[Any], rows: Tensor, preference: Tensor | None = None) -> Tensor:
    return (coefficients(method, rows, preference).unsqueeze(-2) @ rows).squeeze(-2)
