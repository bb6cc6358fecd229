"""Convolutional networks on a GPU: all clients step concurrently in one captured CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.conversion.plan import Params
from equipoise.federated.cuda_graph import capture
from equipoise.federated.local_work import (
    BatchNorm,
    LocalWork,
    Precision,
    Sent,
    Transform,
    casting,
    layer_products,
    replay_steps,
)
from equipoise.federated.models import Model
from equipoise.federated.sequential import Sequential
from equipoise.federated.splits import ClientData

__all__ = ["Graphed"]

STREAMS = 32
"""The most clients that step at the same time."""


@dataclass
class _Capture:
    """One local step of every client as a graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    params: dict[str, Tensor]
    """(N, ...) for N = S·m clients."""
    buffers: dict[str, Tensor]
    index: Tensor
    """The batch of every client, (N, batch)."""
    loss: Tensor
    """The batch losses before the step, (N,)."""
    keep: list[object]
    """Everything else that the graph uses, kept alive: a replay would write to freed memory."""


class Graphed(Sequential):
    """Clients × seeds on parallel streams, captured once and replayed for every local step.

    A convolution of one client's batch leaves most of a large GPU idle, and launching its kernels takes longer than
    running them. A graph with a branch per client solves both. The sequential engine handles what the graph cannot:
    clients of unequal size, sampled clients, and the validation loss during training.

    Args:
        model: The model.
        work: The clients' local work, in batches.
        data: The clients' data, on a CUDA device.
        precision: The precision of the layers' products.
        batch_norm: The statistics that the model is evaluated with.
    """

    def __init__(
        self, model: Model, work: LocalWork, data: ClientData, precision: Precision, batch_norm: BatchNorm
    ) -> None:
        super().__init__(model, work, data, precision, batch_norm)
        self._captures: dict[str, _Capture] = {}

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
        """One round of local work: see `Engine`. The next round overwrites the returned tensors."""
        samples = self.data.train
        S, m, n = samples.labels.shape
        regular = batches is not None and samples.even and n % batches.shape[-1] == 0
        if batches is None or not regular or clients is not None or probe:
            return super().train(params, buffers, clients, batches, transform, probe=probe)
        key = repr((transform, batches.shape[-1]))
        if key not in self._captures:
            self._captures[key] = self._capture(params, buffers, batches.shape[-1], transform)
        held = self._captures[key]
        for name, t in params.items():
            held.params[name].view(S, m, *t.shape[1:]).copy_(t.unsqueeze(1))
        for name, t in buffers.items():
            held.buffers[name].view(S, m, *t.shape[1:]).copy_(t.unsqueeze(1))
        (losses,) = replay_steps(held.graph, batches.flatten(0, 1), held.index, (held.loss,))
        return Sent(
            {name: t.view(S, m, *t.shape[1:]) for name, t in held.params.items()},
            {name: t.view(S, m, *t.shape[1:]) for name, t in held.buffers.items()},
            losses.mean(0).view(S, m),
            losses[0].view(S, m),
            None,
        )

    def _capture(self, params: Params, buffers: Params, batch: int, transform: Transform | None) -> _Capture:
        S, m = self.data.train.labels.shape[:2]
        held = {name: _channels_last(t.repeat_interleave(m, 0)) for name, t in params.items()}
        state = {name: t.repeat_interleave(m, 0) for name, t in buffers.items()}
        index = torch.zeros(S * m, batch, dtype=torch.int64, device=self.device)
        loss = torch.zeros(S * m, device=self.device)
        inputs, labels = self.data.train.inputs.flatten(0, 1), self.data.train.labels.flatten(0, 1)
        leaves = [{name: t[i].detach().requires_grad_() for name, t in held.items()} for i in range(S * m)]
        states = [{name: t[i] for name, t in state.items()} for i in range(S * m)]
        streams = [torch.cuda.Stream(self.device) for _ in range(min(STREAMS, S * m))]  # type: ignore[no-untyped-call]
        module = self.module.train()

        def client(i: int) -> None:
            x = inputs[i].index_select(0, index[i]).to(torch.float32).div_(self.data.scale)
            x = x.contiguous(memory_format=torch.channels_last)
            with casting(self.precision, self.device):
                logits = functional_call(module, {**leaves[i], **states[i]}, (x,))
            value = nn.functional.cross_entropy(logits.float(), labels[i].index_select(0, index[i]))
            theta = list(leaves[i].values())
            gradients = torch.autograd.grad(value if transform is None else transform(value), theta)
            with torch.no_grad():
                torch._foreach_add_(theta, gradients, alpha=-self.work.step_size)
                loss[i].copy_(value.detach())

        def everyone() -> None:
            now = torch.cuda.current_stream(self.device)
            for k, stream in enumerate(streams):
                stream.wait_stream(now)
                with torch.cuda.stream(stream):
                    for i in range(k, S * m, len(streams)):
                        client(i)
            for stream in streams:
                now.wait_stream(stream)

        with _tuned_convolutions(), layer_products(self.precision, self.device):
            graph = capture(everyone, self.device)
        return _Capture(graph, held, state, index, loss, [leaves, states, streams, inputs, labels])


def _channels_last(kernels: Tensor) -> Tensor:
    """Convolution kernels (N, out, in, height, width) in channels-last layout, so that no step has to reorder them."""
    if kernels.ndim != 5:
        return kernels
    return kernels.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


@contextmanager
def _tuned_convolutions() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
