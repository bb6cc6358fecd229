"""All clients of all seeds as one batched product per layer."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from equipoise.conversion.plan import Params
from equipoise.federated.cuda_graph import capture
from equipoise.federated.local_work import (
    TEST_BATCH,
    Evaluation,
    LocalWork,
    Part,
    Precision,
    Sent,
    Transform,
    casting,
    layer_products,
    replay_steps,
    shuffled,
)
from equipoise.federated.models import normalizes
from equipoise.federated.splits import ClientData, Samples

__all__ = ["Stackable", "Stacked"]

_AT_ONCE = 1 << 21
"""The most input numbers per block on a CPU: larger blocks do not fit its caches."""
_EVALUATED = 1 << 22
"""The most samples evaluated at a time, to bound the memory of activations."""


class Stackable(Protocol):
    """A model that evaluates many parameter sets at once."""

    def module(self) -> nn.Module:
        """A module from inputs (n, ...) to logits (n, classes)."""
        ...

    def apply(self, params: Params, inputs: Tensor) -> Tensor:
        """Logits (N, n, classes) of N parameter sets, each on its own inputs (N, n, ...)."""
        ...


class _Batch(NamedTuple):
    """The batches of N clients in one step."""

    inputs: Tensor
    """(N, n, ...) float32."""
    labels: Tensor
    """(N, n)."""
    weight: Tensor | None
    """1/count for real samples, 0 for padding, (N, n); None if all are real."""
    alive: Tensor | None
    """Whether there is any real sample, (N,); None if all are real."""


class _Descent(NamedTuple):
    """The parameters and losses of N clients during local training."""

    theta: list[Tensor]
    """Parameters (N, ...)."""
    mean: Tensor
    """(N,)."""
    first: Tensor
    """(N,)."""
    probed: Tensor
    """(N,)."""


class _Graph(NamedTuple):
    """A round of full batches, or one step with a batch, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    descent: _Descent
    places: Tensor
    """The batch of every client, (N, batch); (N, 0) for full batches."""
    keep: tuple[object, ...]
    """Everything else that the graph reads, kept alive: freed memory would be overwritten."""


class Stacked:
    """Clients × seeds in one tensor program.

    Inputs stay in their stored dtype and are decoded once a round for full batches, else batch by batch. Clients of
    different sizes are padded with weight 0. BatchNorm would see the padding, so with it all clients must have the same
    number of samples, in whole batches. On a GPU a round of full batches, or a step with a batch, is one captured
    graph, and the next round overwrites the returned tensors.

    Args:
        model: The model.
        work: The clients' local work.
        data: The clients' data, on the device to use.
        precision: The precision of the layers' products.
    """

    def __init__(self, model: Stackable, work: LocalWork, data: ClientData, precision: Precision) -> None:
        self.model, self.work, self.data, self.precision = model, work, data, precision
        self.device = data.train.inputs.device
        self._graphs: dict[str, _Graph] = {}
        self._shuffles: dict[Part, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            self._normalizes = normalizes(model.module())
        self._apply = _fused(model) if self.device.type == "cuda" and self._normalizes else model.apply

    def train(
        self,
        params: Params,
        buffers: Params,  # noqa: ARG002
        clients: Tensor | None,
        batches: Tensor | None,
        transform: Transform | None,
        *,
        probe: bool,
    ) -> Sent:
        """One round of local work: see `Engine`."""
        S = len(self.data.seeds)
        k = self.data.train.labels.shape[1] if clients is None else clients.shape[1]
        with layer_products(self.precision, self.device):
            if self.device.type == "cuda" and clients is None and not (batches is None and probe):
                done = self._replay(params, batches, transform, probe=probe)
            else:
                done = self._by_blocks(params, clients, batches, transform, probe=probe)
        shaped = {n: t.detach().reshape(S, k, *t.shape[1:]) for n, t in zip(params, done.theta, strict=True)}
        mean, first, probed = (t.reshape(S, k) for t in (done.mean, done.first, done.probed))
        return Sent(shaped, {}, mean, first, probed if probe else None)

    def _by_blocks(
        self,
        params: Params,
        clients: Tensor | None,
        batches: Tensor | None,
        transform: Transform | None,
        *,
        probe: bool,
    ) -> _Descent:
        samples = _flat(self.data.train, clients)
        held = _flat(self.data.validation, clients) if probe and self.data.validation is not None else None
        N, n = samples.labels.shape
        theta = [_per_client(t, N // len(self.data.seeds)) for t in params.values()]
        plan = None if batches is None else batches.flatten(0, 1)
        size = (n if plan is None else plan.shape[-1]) * samples.inputs[0, 0].numel()
        block = N if self.device.type == "cuda" else max(1, _AT_ONCE // size)
        parts = []
        for start in range(0, N, block):
            rows = slice(start, start + block)
            mine = _rows(samples, rows)
            probed = None if held is None else self._whole(_rows(held, rows))
            leaves = [t[rows].clone().requires_grad_() for t in theta]
            if plan is None:
                whole = self._whole(mine)
                parts.append(self._descend(list(params), leaves, lambda _: whole, self.work.epochs, transform, probed))  # noqa: B023
            else:
                steps = plan[rows]
                parts.append(
                    self._descend(
                        list(params),
                        leaves,
                        lambda t: self._cut(mine, steps[:, t]),  # noqa: B023
                        steps.shape[1],
                        transform,
                        probed,
                    )
                )
        if len(parts) == 1:
            return parts[0]
        joined = [torch.cat([part.theta[j].detach() for part in parts]) for j in range(len(theta))]
        mean, first, probed_mean = (
            torch.cat(rows) for rows in zip(*((part.mean, part.first, part.probed) for part in parts), strict=True)
        )
        return _Descent(joined, mean, first, probed_mean)

    def _replay(self, params: Params, batches: Tensor | None, transform: Transform | None, *, probe: bool) -> _Descent:
        size = 0 if batches is None else batches.shape[-1]
        key = repr((transform, size, probe))
        m = self.data.train.labels.shape[1]
        if key not in self._graphs:
            self._graphs[key] = self._captured(params, size, transform, probe=probe)
        held = self._graphs[key]
        with torch.no_grad():
            for kept, t in zip(held.descent.theta, params.values(), strict=True):
                kept.view(-1, m, *t.shape[1:]).copy_(t.unsqueeze(1))
        if batches is None:
            held.graph.replay()
            return held.descent
        plan = batches.flatten(0, 1)
        seen, probed = replay_steps(held.graph, plan, held.places, (held.descent.mean, held.descent.probed))
        alive = (plan >= 0).any(-1).T
        steps = alive.sum(0).clamp_min(1)
        return _Descent(
            held.descent.theta,
            torch.where(alive, seen, 0.0).sum(0) / steps,
            seen[0],
            torch.where(alive, probed, 0.0).sum(0) / steps,
        )

    def _captured(self, params: Params, size: int, transform: Transform | None, *, probe: bool) -> _Graph:
        samples = _flat(self.data.train, None)
        N = len(samples.labels)
        index = torch.zeros(N, size, dtype=torch.int64, device=self.device)
        whole = self._whole(samples) if size == 0 else None
        held = self._whole(_flat(self.data.validation, None)) if probe and self.data.validation is not None else None
        theta = [_per_client(t, N // len(self.data.seeds)).requires_grad_() for t in params.values()]
        names = list(params)
        results = [torch.zeros(N, device=self.device) for _ in range(3)]

        def work() -> None:
            steps = self.work.epochs if size == 0 else 1
            done = self._descend(
                names, theta, lambda _: self._cut(samples, index) if whole is None else whole, steps, transform, held
            )
            for kept, new in zip(results, (done.mean, done.first, done.probed), strict=True):
                kept.copy_(new)

        return _Graph(capture(work, self.device), _Descent(theta, *results), index, (samples, whole, held))

    def _descend(
        self,
        names: list[str],
        theta: list[Tensor],
        batch_of: Callable[[int], _Batch],
        steps: int,
        transform: Transform | None,
        held: _Batch | None,
    ) -> _Descent:
        """Plain SGD of N clients, in place on the leaves `theta`."""
        total, seen, probed = (torch.zeros(len(theta[0]), device=self.device) for _ in range(3))
        first = total
        for step in range(steps):
            batch = batch_of(step)
            named = dict(zip(names, theta, strict=True))
            with casting(self.precision, self.device):
                logits = self._apply(named, batch.inputs)
            losses = _losses(logits, batch)
            objective = losses if transform is None else transform(losses)
            if batch.alive is not None:
                objective = torch.where(batch.alive, objective, 0.0)
            gradients = torch.autograd.grad(objective.sum(), theta)
            if held is not None:
                with torch.no_grad(), casting(self.precision, self.device):
                    value = _losses(self._apply(named, held.inputs), held)
                probed = probed + (value if batch.alive is None else value * batch.alive)
            with torch.no_grad():
                torch._foreach_add_(theta, gradients, alpha=-self.work.step_size)
            losses = losses.detach()
            first = losses if step == 0 else first
            total = total + (losses if batch.alive is None else losses * batch.alive)
            seen = seen + (1.0 if batch.alive is None else batch.alive.to(seen))
        seen = seen.clamp_min(1.0)
        return _Descent(theta, total / seen, first, probed / seen)

    @torch.no_grad()
    def evaluate(self, params: Params, buffers: Params, part: Part, *, own: bool = False) -> Evaluation:  # noqa: ARG002
        """Models on the samples of every client: see `Engine`.

        With BatchNorm a client's loss is the mean of its batch means.
        """
        samples: Samples = getattr(self.data, part)
        S, m, n = samples.labels.shape
        flat = _flat(samples, None)
        real = samples.real().flatten(0, 1)
        sets = {name: t.flatten(0, 1) if own else _per_client(t, m) for name, t in params.items()}
        loss = torch.zeros(S * m, dtype=torch.float64, device=self.device)
        correct = torch.zeros(S * m, dtype=torch.int64, device=self.device)
        size = TEST_BATCH if self._normalizes else max(1, _EVALUATED // (S * m))
        orders = self._orders(part) if self._normalizes else None
        for start in range(0, n, size):
            inputs, labels, counted = (t[:, start : start + size] for t in (flat.inputs, flat.labels, real))
            if orders is not None:
                places = orders[:, start : start + size]
                row = torch.arange(S * m, device=self.device).unsqueeze(-1)
                inputs, labels = flat.inputs[row, places], flat.labels[row, places]
            with layer_products("float32", self.device):
                logits = self._apply(sets, self._decode(inputs))
            entropy = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            summed = torch.where(counted, entropy.reshape(labels.shape), 0.0).sum(-1, dtype=torch.float64)
            loss += summed / labels.shape[1] if self._normalizes else summed
            correct += (counted & (logits.argmax(-1) == labels)).sum(-1)
        number = -(-n // size) if self._normalizes else samples.counts
        losses = (loss.reshape(S, m) / number).to(torch.float32)
        return Evaluation(losses, correct.reshape(S, m), samples.counts)

    def _orders(self, part: Part) -> Tensor:
        """The samples of every client in the order in which they are batched, (N, n)."""
        if part not in self._shuffles:
            samples: Samples = getattr(self.data, part)
            S, m, n = samples.labels.shape
            self._shuffles[part] = torch.stack(
                [shuffled(n, self.data.seeds[s], i) for s in range(S) for i in range(m)]
            ).to(self.device)
        return self._shuffles[part]

    def _decode(self, inputs: Tensor) -> Tensor:
        return inputs.to(torch.float32) / self.data.scale

    def _whole(self, samples: Samples) -> _Batch:
        """All samples of N clients."""
        inputs = self._decode(samples.inputs)
        return _batch(inputs, samples.labels, None if samples.even else samples.real())

    def _cut(self, samples: Samples, places: Tensor) -> _Batch:
        """The batch of one step, given as indices (N, batch), −1 where it is shorter."""
        index = places.clamp_min(0)
        row = torch.arange(len(places), device=places.device).unsqueeze(-1)
        regular = samples.even and samples.labels.shape[-1] % places.shape[-1] == 0
        inputs, labels = self._decode(samples.inputs[row, index]), samples.labels[row, index]
        return _batch(inputs, labels, None if regular else places >= 0)


def _fused(model: Stackable) -> Callable[[Params, Tensor], Tensor]:
    """The compiled model: everything between its products is fused into few kernels; cached for equal models."""
    if not has_triton():
        return model.apply
    if repr(model) not in _COMPILED:
        _COMPILED[repr(model)] = torch.compile(model.apply, dynamic=False)
    return _COMPILED[repr(model)]


_COMPILED: dict[str, Callable[[Params, Tensor], Tensor]] = {}


def _batch(inputs: Tensor, labels: Tensor, real: Tensor | None) -> _Batch:
    if real is None:
        return _Batch(inputs, labels, None, None)
    count = real.sum(-1, keepdim=True)
    return _Batch(inputs, labels, real / count.clamp_min(1), count.squeeze(-1) > 0)


def _losses(logits: Tensor, batch: _Batch) -> Tensor:
    """The mean cross entropy of every parameter set, (N,)."""
    entropy = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.labels.flatten(), reduction="none"
    ).reshape(batch.labels.shape)
    return entropy.mean(-1) if batch.weight is None else (entropy * batch.weight).sum(-1)


def _flat(samples: Samples, clients: Tensor | None) -> Samples:
    """The samples of all clients, or of some (S, k), with one leading dimension N."""
    chosen = samples if clients is None else samples.take(clients)
    inputs, labels, counts = (t.flatten(0, 1) for t in (chosen.inputs, chosen.labels, chosen.counts))
    return Samples(inputs, labels, counts, chosen.even)


def _rows(samples: Samples, rows: slice) -> Samples:
    return Samples(samples.inputs[rows], samples.labels[rows], samples.counts[rows], samples.even)


def _per_client(tensor: Tensor, k: int) -> Tensor:
    """(S, ...) → (S·k, ...), a copy for every client."""
    return tensor.detach().repeat_interleave(k, 0)
