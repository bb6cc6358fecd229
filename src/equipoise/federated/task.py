"""A federated learning problem: data, clients, model, and the course of a round."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.federated.local_work import BatchNorm, LocalWork
from equipoise.federated.models import Dense, Model
from equipoise.federated.splits import Rotation, Split

__all__ = ["LossSource", "Participation", "Task"]

LossSource = Literal["trajectory", "received", "full", "full-updated", "validation", "validation-trajectory"]
"""The loss of a client that is used for its weight, or for dominance:

- "trajectory": the mean of all its batch losses of the round, each taken before its step;
- "received": the first of them, that of the received model;
- "full", "full-updated": on all its training samples, of the received model or of the one it sends back;
- "validation", "validation-trajectory": on its validation samples, of the received model or averaged over its steps.
"""


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round.

    Weightings get the probability that a client takes part, and divide by it.

    Attributes:
        fraction: The fraction of the clients that the server draws in every round, without replacement; at least one.
        dropout: The probability that a drawn client does not reply.

    Examples:
        >>> participation = eq.federated.Participation(fraction=0.5, dropout=0.2)
        >>> drawn, answers, probability = participation.draw(seeds=(0, 1), m=10, round_=1)
        >>> tuple(drawn.shape), tuple(answers.shape), probability
        ((2, 5), (2, 5), 0.4)
    """

    fraction: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction must lie in (0, 1]", self.fraction)
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)", self.dropout)

    def draw(self, seeds: Sequence[int], m: int, round_: int) -> tuple[Tensor, Tensor, float]:
        """Who is drawn (S, k), which of them reply (S, k), and the probability of both."""
        k = max(1, round(self.fraction * m))
        drawn, answers = [], []
        for seed in seeds:
            draws = np.random.default_rng((seed, round_, 1))
            drawn.append(np.sort(draws.permutation(m)[:k]))
            answers.append(draws.random(k) >= self.dropout)
        return torch.from_numpy(np.stack(drawn)), torch.from_numpy(np.stack(answers)), (1.0 - self.dropout) * k / m


@dataclass(frozen=True)
class Task:
    """A federated learning problem: data, clients, model and the course of a round.

    Attributes:
        data: The data set's name, for `datasets.load`.
        split: How it is distributed over clients.
        model: The model.
        work: The local work of a client in a round.
        rounds: T.
        loss: The loss used for the weights and the dominance test.
        dominance: Another loss for the dominance test; None: the same.
        average: Whether `Average` takes the models before the server's step, θ⁽¹⁾..θ⁽ᵀ⁾, or after it.
        batch_norm: The statistics that models with BatchNorm are evaluated with.
        participation: Who takes part.

    Examples:
        >>> task = eq.federated.Task(split=eq.federated.PartialClass(classes=2, clients=5), rounds=20)
        >>> task.split.clients, task.model, task.loss
        (5, Dense(sizes=(64, 50, 10)), 'received')
    """

    data: str = "digits"
    split: Split = field(default_factory=Rotation)
    model: Model = field(default_factory=lambda: Dense((64, 50, 10)))
    work: LocalWork = field(default_factory=LocalWork)
    rounds: int = 100
    loss: LossSource = "received"
    average: Literal["before", "after"] = "before"
    batch_norm: BatchNorm = "recalibrated"
    participation: Participation = field(default_factory=Participation)
    dominance: LossSource | None = None

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds must be at least 1", self.rounds)
        known = LossSource.__args__  # type: ignore[attr-defined]
        require(self.loss in known, f"loss must be one of {', '.join(known)}", self.loss)
        sound = self.dominance is None or self.dominance in known
        require(sound, f"dominance must be None or one of {', '.join(known)}", self.dominance)
        require(self.average in {"before", "after"}, 'average must be "before" or "after"', self.average)
        choices = BatchNorm.__args__  # type: ignore[attr-defined]
        require(self.batch_norm in choices, f"batch_norm must be one of {', '.join(choices)}", self.batch_norm)

    def __repr__(self) -> str:
        """The dataclass repr without `dominance` if it is not given: results are named by it."""
        shown = [f.name for f in fields(self) if f.name != "dominance" or self.dominance is not None]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def sources(self) -> set[LossSource]:
        """The losses that a round needs."""
        return {self.loss} if self.dominance is None else {self.loss, self.dominance}
