"""The models of the federated experiments."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise.conversion.plan import Params
from equipoise.errors import require
from equipoise.federated.convolution import convolve

__all__ = ["Dense", "Model", "ResNet18", "ResNet20", "initial", "normalizes"]


class Model(Protocol):
    """A factory of modules: `module()` returns a new one, initialised from torch's global generator.

    Examples:
        >>> class Linear:
        ...     def module(self):
        ...         return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> task = eq.federated.Task(model=Linear(), rounds=1, work=eq.federated.LocalWork(epochs=1))
        >>> tuple(eq.federated.simulate(task, "FedAvg").params["last"]["1.weight"].shape)  # (seeds, 10, 64)
        (1, 10, 64)
    """

    def module(self) -> nn.Module:
        """A module from inputs (n, ...) to logits (n, classes)."""
        ...


def initial(model: Model, seeds: tuple[int, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers (S, ...) of one new module per seed; torch's global generator is restored."""
    with torch.random.fork_rng(devices=[]):
        modules = []
        for seed in seeds:
            torch.manual_seed(seed)
            modules.append(model.module())
    params = [dict(module.named_parameters()) for module in modules]
    buffers = [dict(module.named_buffers()) for module in modules]
    return (
        {name: torch.stack([p[name].detach() for p in params]) for name in params[0]},
        {name: torch.stack([b[name] for b in buffers]) for name in buffers[0]},
    )


def normalizes(module: nn.Module) -> bool:
    """Whether it has BatchNorm layers."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


@dataclass(frozen=True)
class Dense:
    """A multi-layer perceptron with ReLU, in PyTorch's default initialisation; two sizes are logistic regression.

    Attributes:
        sizes: Inputs, hidden layers, classes.

    Examples:
        >>> module = eq.federated.Dense((64, 50, 10)).module()
        >>> tuple(module(torch.zeros(3, 1, 8, 8)).shape)
        (3, 10)
        >>> sum(parameter.numel() for parameter in module.parameters())  # 64·50 + 50 + 50·10 + 10
        3760
    """

    sizes: tuple[int, ...] = (784, 200, 10)

    def __post_init__(self) -> None:
        require(len(self.sizes) >= 2 and min(self.sizes) >= 1, "sizes must be two or more positive numbers", self.sizes)

    def module(self) -> nn.Module:
        """A Sequential of Flatten, Linear, ReLU, …, Linear."""
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in zip(self.sizes, self.sizes[1:], strict=False):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def apply(self, params: Params, inputs: Tensor) -> Tensor:
        """Logits (N, n, classes) of N parameter sets, each on its own inputs (N, n, ...): one product per layer."""
        hidden = inputs.flatten(2)
        depth = len(self.sizes) - 1
        for k in range(depth):
            weight, bias = params[f"{2 * k + 1}.weight"], params[f"{2 * k + 1}.bias"]
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.mT)
            if k < depth - 1:
                hidden = torch.relu(hidden)
        return hidden


@dataclass(frozen=True)
class ResNet20:
    """ResNet-20 for CIFAR: three stages of three blocks, widths 16-32-64, 272,474 parameters.

    Convolutions start as N(0, 2/(k²·out)); shortcuts that change the shape are 1×1 convolutions with BatchNorm.

    Attributes:
        classes: Number of classes.
        channels: Input channels.

    Examples:
        >>> module = eq.federated.ResNet20(channels=1).module()
        >>> tuple(module(torch.zeros(3, 1, 8, 8)).shape)
        (3, 10)
        >>> sum(parameter.numel() for parameter in eq.federated.ResNet20().module().parameters())
        272474
    """

    classes: int = 10
    channels: int = 3

    def module(self) -> nn.Module:
        """A new network."""
        return _resnet(self.channels, self.classes, _WIDTHS, _BLOCKS, kaiming=True)

    def apply(self, params: Params, inputs: Tensor) -> Tensor:
        """Logits (N, n, classes) of N parameter sets, each on its own inputs (N, n, channels, height, width).

        BatchNorm uses the statistics of the batch. Layers multiply in the dtype of an enclosing autocast; everything
        else is float32.
        """
        mixed = torch.is_autocast_enabled(inputs.device.type)
        kind = torch.get_autocast_dtype(inputs.device.type) if mixed else inputs.dtype

        def layer(x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
            kernels = params[f"{name}.weight"].permute(0, 1, 3, 4, 2).to(kind)
            return _normalized(convolve(x, kernels, stride), params[f"{norm}.weight"], params[f"{norm}.bias"])

        hidden = torch.relu(layer(inputs.permute(0, 1, 3, 4, 2).to(kind), "0", "1")).to(kind)
        place = 3
        for stage, width in enumerate(_WIDTHS):
            for block in range(_BLOCKS):
                stride = 2 if stage > 0 and block == 0 else 1
                inner = torch.relu(layer(hidden, f"{place}.body.0", f"{place}.body.1", stride)).to(kind)
                inner = layer(inner, f"{place}.body.3", f"{place}.body.4")
                changes = stride != 1 or hidden.shape[-1] != width
                short = f"{place}.shortcut"
                around = layer(hidden, f"{short}.0", f"{short}.1", stride) if changes else hidden
                hidden = torch.relu(inner + around).to(kind)
                place += 1
        head = f"{place + 2}"
        pooled = hidden.to(params[f"{head}.bias"].dtype).mean((2, 3))
        return torch.baddbmm(params[f"{head}.bias"].unsqueeze(1), pooled, params[f"{head}.weight"].mT)


@dataclass(frozen=True)
class ResNet18:
    """ResNet18 with a 3×3 stem for small images: four stages of two blocks, widths 64 to 512, 11.2 million parameters.

    Attributes:
        classes: Number of classes.
        channels: Input channels.

    Examples:
        >>> module = eq.federated.ResNet18().module()
        >>> sum(parameter.numel() for parameter in module.parameters())
        11173962
    """

    classes: int = 10
    channels: int = 3

    def module(self) -> nn.Module:
        """A new network, in PyTorch's default initialisation."""
        return _resnet(self.channels, self.classes, (64, 128, 256, 512), 2, kaiming=False)


_WIDTHS = (16, 32, 64)
_BLOCKS = 3


def _normalized(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Normalise (N, n, height, width, C) by the statistics of each of N batches; gamma, beta (N, C)."""
    x = x.to(gamma.dtype)
    var, mean = torch.var_mean(x, (1, 2, 3), correction=0, keepdim=True)
    shape = (len(x), 1, 1, 1, x.shape[-1])
    return (x - mean) * (torch.rsqrt(var + _EPSILON) * gamma.view(shape)) + beta.view(shape)


_EPSILON = 1e-5
"""The same as in nn.BatchNorm2d."""


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _resnet(channels: int, classes: int, widths: tuple[int, ...], blocks: int, *, kaiming: bool) -> nn.Module:
    stem = (nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
    layers: list[nn.Module] = [*stem]
    inside = widths[0]
    for stage, width in enumerate(widths):
        for k in range(blocks):
            layers.append(_Block(inside, width, 2 if stage > 0 and k == 0 else 1))
            inside = width
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    if kaiming:
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (layer.kernel_size[0] ** 2 * layer.out_channels)))
    return network
