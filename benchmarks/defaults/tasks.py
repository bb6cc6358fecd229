"""Small networks with several losses, trained with mini-batches: many networks at once."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from benchmarks.defaults.digits import digits
from torch import Tensor
from torch.nn import functional


class Data(NamedTuple):
    """Samples by seed: inputs (S, n, in) and what their losses are measured against, (S, n); S = 1 for all alike."""

    inputs: Tensor
    labels: Tensor
    groups: Tensor

    def pick(self, numbers: Tensor) -> "Data":
        """Some samples of every seed, by numbers (S, k)."""
        at = torch.arange(len(numbers), device=numbers.device).unsqueeze(-1)
        return Data(*(part.expand(len(numbers), *part.shape[1:])[at, numbers] for part in self))

    def to(self, device: str) -> "Data":
        """The same elsewhere."""
        return Data(*(part.to(device) for part in self))


class Dense:
    """Fully connected layers whose parameters are one vector, for many networks at once."""

    def __init__(self, sizes: Sequence[int], activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        self.layers, self.activation = list(pairwise(sizes)), activation
        self.d = sum(a * b + b for a, b in self.layers)

    def initial(self, generator: torch.Generator) -> Tensor:
        """Uniform on ±1/√fan-in, as the linear layers of torch, (d,)."""
        parts = []
        for a, b in self.layers:
            parts += [(torch.rand(n, generator=generator) * 2 - 1) / math.sqrt(a) for n in (a * b, b)]
        return torch.cat(parts)

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Parameters (R, d) and inputs (R, n, in) to outputs (R, n, out)."""
        at, h = 0, inputs
        for i, (a, b) in enumerate(self.layers):
            weight = theta[:, at : at + a * b].reshape(-1, a, b)
            bias = theta[:, None, at + a * b : at + a * b + b]
            at += a * b + b
            h = torch.baddbmm(bias, h, weight)
            if i < len(self.layers) - 1:
                h = self.activation(h)
        return h


class Task(ABC):
    """Networks of one kind on data that may depend on the seed.

    Attributes:
        m: The number of losses.
        d: The parameters of a network.
    """

    m: int
    d: int

    def __init__(self, seeds: Sequence[int], train: Data, test: Data, device: str) -> None:
        self.seeds, self.device = tuple(seeds), device
        self.train, self.test = train.to(device), test.to(device)

    @abstractmethod
    def start(self, generator: torch.Generator) -> Tensor:
        """Parameters at the start, (d,)."""

    @abstractmethod
    def measure(self, theta: Tensor, data: Data) -> Tensor:
        """Parameters (R, d) and samples of every network to losses (R, m)."""

    def initial(self) -> Tensor:
        """Parameters at the start by seed, (S, d)."""
        starts = [self.start(torch.Generator().manual_seed(seed)) for seed in self.seeds]
        return torch.stack(starts).to(self.device)

    def draw(self, steps: int) -> Tensor:
        """The mini-batches as numbers of samples, (steps, S, n)."""
        draws = [self.batches(s, steps, torch.Generator().manual_seed(100 + seed)) for s, seed in enumerate(self.seeds)]
        return torch.stack(draws, 1).to(self.device)

    def batches(self, s: int, steps: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Those of the s-th seed: 32 samples with replacement, (steps, n)."""
        return torch.randint(self.train.labels.shape[1], (steps, 32), generator=generator)

    def losses(self, theta: Tensor, numbers: Tensor) -> Tensor:
        """On a mini-batch: parameters (*B, S, d) and numbers (S, n) to losses (*B, S, m)."""
        return self._on(theta, self.train.pick(numbers))

    def whole(self, theta: Tensor, part: Literal["train", "test"]) -> Tensor:
        """On all data of one kind: parameters (*B, S, d) to losses (*B, S, m)."""
        data = self.train if part == "train" else self.test
        with torch.no_grad():
            flat = theta.reshape(-1, len(self.seeds), self.d)
            return torch.stack([self._on(networks, data) for networks in flat]).reshape(*theta.shape[:-1], self.m)

    def accuracy(self, theta: Tensor) -> Tensor | None:  # noqa: ARG002
        """Test accuracy of the worst group (*B, S), where that is what people look at."""
        return None

    def _on(self, theta: Tensor, data: Data) -> Tensor:
        R = theta[..., 0].numel()
        spread = Data(*(_every(part, R) for part in data))
        return self.measure(theta.reshape(R, self.d), spread).reshape(*theta.shape[:-1], self.m)


def _every(part: Tensor, R: int) -> Tensor:
    """Samples by seed (S, ...) for R networks, the seed being the last of their dimensions: (R, ...)."""
    return part.expand(R // len(part), *part.shape).reshape(R, *part.shape[1:])


class TwoLosses(Task):
    """Regression and classification by one output: strong conflict."""

    m = 2

    def __init__(self, seeds: Sequence[int], device: str) -> None:
        self.net = Dense((8, 32, 1), torch.tanh)
        self.d = self.net.d
        generator = torch.Generator().manual_seed(5)
        n = 2000
        x, directions = torch.randn(n, 8, generator=generator), torch.randn(8, 2, generator=generator)
        train = self._answers(x, directions, torch.randn(n, generator=generator))
        x, blur = torch.randn(n, 8, generator=generator), torch.randn(n, generator=generator)
        super().__init__(seeds, train, self._answers(x, directions, blur), device)

    @staticmethod
    def _answers(x: Tensor, directions: Tensor, blur: Tensor) -> Data:
        number, answer = 2 * torch.tanh(x @ directions[:, 0]), (x @ directions[:, 1] + 0.5 * blur > 0).float()
        return Data(x[None], number[None], answer[None])

    def start(self, generator: torch.Generator) -> Tensor:
        """As `Dense`."""
        return self.net.initial(generator)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        """Squared error, and logistic loss of the same output."""
        output = self.net(theta, data.inputs).squeeze(-1)
        wrong = functional.binary_cross_entropy_with_logits(output, data.groups, reduction="none")
        return torch.stack(((output - data.labels).square().mean(-1), wrong.mean(-1)), -1)


class Bottleneck(Task):
    """Digits, reconstructed and classified through a few shared units: the tasks help each other."""

    m = 2

    def __init__(self, seeds: Sequence[int], device: str, units: int, hidden: int = 32) -> None:
        self.shared = Dense((64, hidden, units))
        self.decoder, self.classifier = Dense((units, hidden, 64)), Dense((units, hidden, 10))
        self.sizes = [self.shared.d, self.decoder.d, self.classifier.d]
        self.d = sum(self.sizes)
        data = digits()
        parts = ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels))
        train, test = (Data(x.flatten(1)[None] / data.scale, y[None], y[None]) for x, y in parts)
        super().__init__(seeds, train, test, device)

    def start(self, generator: torch.Generator) -> Tensor:
        """As `Dense`, one part after the other."""
        return torch.cat([part.initial(generator) for part in (self.shared, self.decoder, self.classifier)])

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        """Mean squared error of the pixels, and cross-entropy."""
        shared, decoder, classifier = theta.split(self.sizes, -1)
        code = self.shared(shared, data.inputs)
        error = (self.decoder(decoder, code) - data.inputs).square().mean((-2, -1))
        return torch.stack((error, _cross_entropy(self.classifier(classifier, code), data.labels).mean(-1)), -1)


class Grouped(Task):
    """Cross-entropy on several groups of samples, each a loss; mini-batches have as many of every group."""

    def __init__(
        self, seeds: Sequence[int], data: tuple[Data, Data], device: str, net: Dense, m: int, each: int
    ) -> None:
        self.net, self.d, self.m, self.each = net, net.d, m, each
        super().__init__(seeds, *data, device)

    def start(self, generator: torch.Generator) -> Tensor:
        """As `Dense`."""
        return self.net.initial(generator)

    def batches(self, s: int, steps: int, generator: torch.Generator) -> Tensor:
        """With replacement from every group."""
        groups = self.train.groups[s % len(self.train.groups)].cpu()
        drawn = []
        for g in range(self.m):
            pool = torch.nonzero(groups == g).flatten()
            drawn.append(pool[torch.randint(len(pool), (steps, self.each), generator=generator)])
        return torch.cat(drawn, -1)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        """The mean cross-entropy of each group."""
        return self._means(_cross_entropy(self.net(theta, data.inputs), data.labels), data.groups)

    def _means(self, values: Tensor, groups: Tensor) -> Tensor:
        member = functional.one_hot(groups, self.m).to(values)
        return (values.unsqueeze(-2) @ member).squeeze(-2) / member.sum(-2)


class Classes(Grouped):
    """Digits, a loss for each of the ten classes; without hidden units a convex problem."""

    def __init__(self, seeds: Sequence[int], device: str, hidden: int = 0) -> None:
        data = digits()
        parts = ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels))
        train, test = (Data(x.flatten(1)[None] / data.scale, y[None], y[None]) for x, y in parts)
        net = Dense((64, hidden, 10) if hidden else (64, 10))
        super().__init__(seeds, (train, test), device, net, m=10, each=4)


class Coloured(Grouped):
    """Is a digit at least 5? Its colour agrees in 95 % of the training samples; groups are answer × colour."""

    AGREES = 0.95

    def __init__(self, seeds: Sequence[int], device: str) -> None:
        data = digits()
        x, y = data.train_inputs[:, 0] / data.scale, (data.train_labels >= 5).long()
        train = []
        for seed in seeds:
            misled = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) >= self.AGREES
            train.append(_colour(x, y, torch.where(misled, 1 - y, y)))
        images, answers = data.test_inputs[:, 0] / data.scale, (data.test_labels >= 5).long()
        both = torch.tensor([0, 1]).repeat_interleave(len(answers))
        test = Data(*(part[None] for part in _colour(images.repeat(2, 1, 1), answers.repeat(2), both)))
        every = Data(*(torch.stack(part) for part in zip(*train, strict=True)))
        super().__init__(seeds, (every, test), device, Dense((128, 64, 2)), m=4, each=16)

    def accuracy(self, theta: Tensor) -> Tensor:
        """The smallest share of right answers of a group, (*B, S)."""
        with torch.no_grad():
            flat = theta.reshape(-1, self.d)
            data = Data(*(_every(part, len(flat)) for part in self.test))
            right = (self.net(flat, data.inputs).argmax(-1) == data.labels).to(flat)
            return self._means(right, data.groups).amin(-1).reshape(theta.shape[:-1])


def _colour(images: Tensor, answers: Tensor, colours: Tensor) -> Data:
    """Images (n, 8, 8) in the channel that their colour names."""
    channels = [torch.where((colours == c)[:, None, None], images, 0.0) for c in (0, 1)]
    return Data(torch.stack(channels, 1).flatten(1), answers, 2 * answers + colours)


def _cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """Of every sample: (R, n, classes) and (R, n) to (R, n)."""
    return torch.logsumexp(output, -1) - output.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
