"""One client after the other, in plain loops: the reference for the fast engines."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.conversion.plan import Params, marks
from equipoise.federated.local_work import (
    TEST_BATCH,
    BatchNorm,
    Evaluation,
    LocalWork,
    Part,
    Precision,
    Sent,
    Transform,
    casting,
    layer_products,
    shuffled,
)
from equipoise.federated.models import Model, normalizes
from equipoise.federated.splits import ClientData, Samples

__all__ = ["Sequential"]


class _Calibrated(NamedTuple):
    """Cached statistics of the last evaluated model, which is often evaluated on other samples next."""

    marks: tuple[list[int], list[int]]
    params: Params
    """Kept alive, so that no other model gets their memory."""
    buffers: dict[str, Tensor]


class Sequential:
    """A module, an optimizer and a loop over clients.

    Args:
        model: The model.
        work: The clients' local work.
        data: The clients' data, on the device to use.
        precision: The precision of the layers' products.
        batch_norm: The statistics that the model is evaluated with.
    """

    def __init__(
        self, model: Model, work: LocalWork, data: ClientData, precision: Precision, batch_norm: BatchNorm
    ) -> None:
        self.work, self.data, self.precision, self.batch_norm = work, data, precision, batch_norm
        self.device = data.train.inputs.device
        with torch.random.fork_rng(devices=[]):
            self.module = model.module().to(self.device)
        self.normalizes = normalizes(self.module)
        self._calibrated: dict[int, _Calibrated] = {}

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
        """One round of local work: see `Engine`."""
        S, m = self.data.train.labels.shape[:2]
        who = torch.arange(m).expand(S, m) if clients is None else clients
        with layer_products(self.precision, self.device):
            done = [
                [
                    self._client(
                        {name: t[s] for name, t in params.items()},
                        {name: t[s] for name, t in buffers.items()},
                        (s, i),
                        None if batches is None else batches[s, k],
                        transform,
                        probe=probe,
                    )
                    for k, i in enumerate(row)
                ]
                for s, row in enumerate(who.tolist())
            ]
        means, firsts, probes = (
            torch.tensor([[one[j] for one in row] for row in done], device=self.device) for j in (2, 3, 4)
        )
        models, statistics = ([[one[0] for one in row] for row in done], [[one[1] for one in row] for row in done])
        return Sent(_nest(models), _nest(statistics), means, firsts, probes if probe else None)

    def _client(
        self,
        params: Params,
        buffers: Params,
        at: tuple[int, int],
        batches: Tensor | None,
        transform: Transform | None,
        *,
        probe: bool,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], float, float, float]:
        """One client's work. Returns its model, buffers, mean loss, first loss and mean validation loss."""
        module = self.module.train()
        module.load_state_dict({**params, **buffers})
        optimizer = torch.optim.SGD(module.parameters(), lr=self.work.step_size)
        losses, probes = [], []
        for inputs, labels in self._steps(at, batches):
            if probe:
                probes.append(self._probe(at))
            with casting(self.precision, self.device):
                logits = module(inputs)
            loss = nn.functional.cross_entropy(logits.float(), labels)
            optimizer.zero_grad()
            (loss if transform is None else transform(loss)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        return (
            {name: p.detach().clone() for name, p in module.named_parameters()},
            {name: b.clone() for name, b in module.named_buffers()},
            sum(losses) / len(losses),
            losses[0],
            sum(probes) / len(probes) if probes else 0.0,
        )

    def _steps(self, at: tuple[int, int], batches: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one client, in the order of its steps."""
        if batches is None:
            count = int(self.data.train.counts[at])
            whole = self._batch(self.data.train, at, torch.arange(count, device=self.device))
            yield from [whole] * self.work.epochs
            return
        for places, real in zip(batches, (batches >= 0).sum(-1).tolist(), strict=True):
            if real:
                yield self._batch(self.data.train, at, places[:real])

    @torch.no_grad()
    def _probe(self, at: tuple[int, int]) -> float:
        assert self.data.validation is not None  # noqa: S101
        index = torch.arange(int(self.data.validation.counts[at]), device=self.device)
        inputs, labels = self._batch(self.data.validation, at, index)
        kept = {name: b.clone() for name, b in self.module.named_buffers()}
        with casting(self.precision, self.device):
            logits = self.module(inputs)
        for name, b in self.module.named_buffers():
            b.copy_(kept[name])
        return nn.functional.cross_entropy(logits.float(), labels).item()

    @torch.no_grad()
    def evaluate(self, params: Params, buffers: Params, part: Part, *, own: bool = False) -> Evaluation:
        """Models on the samples of every client: see `Engine`.

        With BatchNorm a client's loss is the mean of its batch means.
        """
        samples: Samples = getattr(self.data, part)
        S, m = samples.labels.shape[:2]
        losses = torch.zeros(S, m, device=self.device)
        correct = torch.zeros(S, m, dtype=torch.int64, device=self.device)
        with layer_products("float32", self.device):
            for s in range(S):
                for i in range(m):
                    if own or i == 0:
                        at = (s, i) if own else (s,)
                        self._load({n: t[at] for n, t in params.items()}, {n: t[at] for n, t in buffers.items()}, s)
                    losses[s, i], correct[s, i] = self._measure(samples, (s, i))
        return Evaluation(losses, correct, samples.counts)

    def _load(self, params: Params, buffers: Params, seed: int) -> None:
        self.module.load_state_dict({**params, **buffers})
        self.module.train(self.normalizes and self.batch_norm == "batch")
        if self.normalizes and self.batch_norm == "recalibrated":
            seen = marks(params)
            known = self._calibrated.get(seed)
            if known is None or known.marks != seen:
                self._recalibrate(seed)
                found = {name: b.clone() for name, b in self.module.named_buffers()}
                self._calibrated[seed] = known = _Calibrated(seen, params, found)
            self.module.load_state_dict({**params, **known.buffers})

    def _recalibrate(self, seed: int) -> None:
        """Give the module the statistics of its own activations on the training data of all clients."""
        layers = [layer for layer in self.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        self.module.train()
        for i in range(self.data.train.labels.shape[1]):
            order = self._shuffled(self.data.train, (seed, i))
            for index in torch.split(order, TEST_BATCH):
                self.module(self._batch(self.data.train, (seed, i), index)[0])
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        self.module.eval()

    def _measure(self, samples: Samples, at: tuple[int, int]) -> tuple[Tensor, Tensor]:
        order = self._shuffled(samples, at)
        means, correct = [], []
        for index in torch.split(order, TEST_BATCH if self.normalizes else len(order)):
            inputs, labels = self._batch(samples, at, index)
            logits = self.module(inputs)
            means.append(nn.functional.cross_entropy(logits, labels))
            correct.append((logits.argmax(-1) == labels).sum())
        return torch.stack(means).mean(), torch.stack(correct).sum()

    def _shuffled(self, samples: Samples, at: tuple[int, int]) -> Tensor:
        """A client's samples in the order in which they are batched."""
        count = int(samples.counts[at])
        order = shuffled(count, self.data.seeds[at[0]], at[1]) if self.normalizes else torch.arange(count)
        return order.to(self.device)

    def _batch(self, samples: Samples, at: tuple[int, int], index: Tensor) -> tuple[Tensor, Tensor]:
        inputs = samples.inputs[at][index].to(torch.float32) / self.data.scale
        return inputs, samples.labels[at][index]


def _nest(done: Sequence[Sequence[Params]]) -> dict[str, Tensor]:
    """Tensors (S, k, ...) from those of every client of every seed."""
    return {name: torch.stack([torch.stack([one[name] for one in row]) for row in done]) for name in done[0][0]}
