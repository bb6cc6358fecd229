"""The local work of a client in a round, and its reply."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.conversion.plan import Params
from equipoise.errors import require

__all__ = [
    "TEST_BATCH",
    "BatchNorm",
    "Engine",
    "Evaluation",
    "LocalWork",
    "Part",
    "Precision",
    "Sent",
    "Transform",
    "casting",
    "draw_batches",
    "layer_products",
    "replay_steps",
    "shuffled",
]

Transform = Callable[[Tensor], Tensor]
"""A function that a client applies to its batch loss before differentiating it."""

Part = Literal["train", "test", "validation"]
Precision = Literal["float32", "tf32", "bfloat16"]
"""The precision of the layers' products; everything else is computed in float32 or more."""

TEST_BATCH = 100
"""The batch size per client when a model with BatchNorm is evaluated."""

BatchNorm = Literal["batch", "running", "recalibrated"]
"""The statistics that a model with BatchNorm is evaluated with: those of the current batch (100 shuffled samples of one
client); the running ones, which clients keep and the server averages; or statistics recomputed for the model on the
clients' training data."""


@dataclass(frozen=True)
class LocalWork:
    """Plain SGD from the server's model.

    Attributes:
        epochs: τ passes over the client's data.
        batch_size: Samples per step; None takes all of them.
        step_size: η.

    Examples:
        >>> eq.federated.LocalWork(epochs=2, batch_size=32)
        LocalWork(epochs=2, batch_size=32, step_size=0.1)
        >>> eq.federated.LocalWork(epochs=0)
        Traceback (most recent call last):
            ...
        ValueError: epochs must be at least 1; found 0
    """

    epochs: int = 10
    batch_size: int | None = None
    step_size: float = 0.1

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs must be at least 1", self.epochs)
        require(self.batch_size is None or self.batch_size >= 1, "batch_size must be at least 1", self.batch_size)
        require(0 < self.step_size < float("inf"), "step_size must be positive and finite", self.step_size)


class Sent(NamedTuple):
    """The replies of k clients of every seed.

    Examples:
        >>> sent = eq.federated.Sent(
        ...     {"weight": torch.zeros(1, 3, 10, 64)}, {}, mean=torch.ones(1, 3), first=torch.ones(1, 3), probed=None
        ... )
        >>> S, k = sent.mean.shape
        >>> S, k
        (1, 3)
    """

    params: dict[str, Tensor]
    """θ_i, a tensor (S, k, ...) per name."""
    buffers: dict[str, Tensor]
    """Their running statistics, if the model has any, (S, k, ...)."""
    mean: Tensor
    """The mean of all batch losses, each taken before its step, (S, k)."""
    first: Tensor
    """The first batch loss, which the received model has, (S, k)."""
    probed: Tensor | None
    """The mean, over the steps, of the loss on their validation samples before the step, (S, k)."""


class Evaluation(NamedTuple):
    """A model on the samples of every client.

    Examples:
        >>> task = eq.federated.Task(rounds=1, work=eq.federated.LocalWork(epochs=1))
        >>> found = eq.federated.simulate(task, "FedAvg").test["last"]
        >>> tuple(found.losses.shape), found.counts.sum().item()  # (seeds, clients): 41 test samples each
        ((1, 10), 410)
        >>> bool((found.correct <= found.counts).all())
        True
    """

    losses: Tensor
    """Mean cross entropy, (S, m)."""
    correct: Tensor
    """Correctly classified samples, (S, m)."""
    counts: Tensor
    """Samples, (S, m)."""


class Engine(Protocol):
    """Runs the clients' work. Engines differ only in speed and rounding.

    Examples:
        >>> task = eq.federated.Task(rounds=1, work=eq.federated.LocalWork(epochs=1))
        >>> fast, plain = (eq.federated.simulate(task, "FedAvg", engine=name) for name in ("auto", "sequential"))
        >>> torch.allclose(fast.test["last"].losses, plain.test["last"].losses, rtol=1e-4)
        True
    """

    def train(
        self,
        params: Params,
        buffers: Params,
        clients: Tensor | None,
        batches: Tensor | None,
        transform: Transform | None,
        *,
        probe: bool,
    ) -> Sent:
        """One round of local work.

        Args:
            params: The server's model of every seed, (S, ...).
            buffers: Its buffers, (S, ...).
            clients: The clients that work, indices (S, k); None is everyone.
            batches: The samples of each client in each step, (S, k, steps, batch), −1 where a batch is shorter; None is
                all samples in every step.
            transform: Applied to the batch loss before differentiating it.
            probe: Whether to measure the validation loss before every step.
        """
        ...

    def evaluate(self, params: Params, buffers: Params, part: Part, *, own: bool = False) -> Evaluation:
        """Models on the samples of every client.

        Args:
            params: The server's model (S, ...), or, with `own`, one model per client, (S, m, ...).
            buffers: Running statistics of the same leading shape.
            part: Which samples.
            own: Whether every client has its own model.
        """
        ...


def draw_batches(
    work: LocalWork, counts: Tensor, clients: Tensor | None, seeds: Sequence[int], round_: int
) -> Tensor | None:
    """The batches of a round: every client's samples in a new order in every epoch.

    The draw depends only on the seed and the round, so a resumed run is the same as an uninterrupted one.

    Args:
        work: How the clients work.
        counts: Samples of every client, (S, m), on the CPU.
        clients: The clients that work, indices (S, k) on the CPU; None is everyone.
        seeds: One per row.
        round_: t.

    Returns:
        Indices (S, k, steps, batch) with −1 where a batch is shorter; None for full batches.
    """
    if work.batch_size is None:
        return None
    longest = int(counts.max())
    per_epoch = -(-longest // work.batch_size)
    padded = per_epoch * work.batch_size
    rows = []
    for s, seed in enumerate(seeds):
        own = counts[s].numpy()[:, None, None]
        keys = np.random.default_rng((seed, round_)).random((counts.shape[1], work.epochs, longest))
        keys[np.broadcast_to(np.arange(longest) >= own, keys.shape)] = 2.0
        order = np.argsort(keys, axis=-1, kind="stable")
        order[np.broadcast_to(np.arange(longest) >= own, keys.shape)] = -1
        order = np.pad(order, ((0, 0), (0, 0), (0, padded - longest)), constant_values=-1)
        steps = order.reshape(counts.shape[1], work.epochs * per_epoch, work.batch_size)
        rows.append(steps if clients is None else steps[clients[s].numpy()])
    return torch.from_numpy(np.stack(rows))


@contextmanager
def layer_products(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which products of float32 matrices have this precision, forward and backward."""
    if device.type != "cuda":
        yield
        return
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def casting(precision: Precision, device: torch.device) -> torch.autocast:
    """A context in which a forward pass multiplies in bfloat16 if that is the precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def shuffled(count: int, seed: int, client: int) -> Tensor:
    """A client's samples in an order that depends only on seed and client, so that batches mix classes."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + client))


def replay_steps(graph: torch.cuda.CUDAGraph, plan: Tensor, index: Tensor, found: tuple[Tensor, ...]) -> list[Tensor]:
    """Replay a graph of one step for every step of a plan (N, steps, batch).

    Args:
        graph: Reads `index` and writes `found`.
        plan: The batches.
        index: (N, batch).
        found: The outputs of a step, (N,) each.

    Returns:
        The outputs of all steps, (steps, N) each.
    """
    kept = [torch.empty(plan.shape[1], *t.shape, dtype=t.dtype, device=t.device) for t in found]
    for step in range(plan.shape[1]):
        index.copy_(plan[:, step])
        graph.replay()
        for rows, t in zip(kept, found, strict=True):
            rows[step].copy_(t)
    return kept
