"""The models of the federated experiments."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise.conversion.protocol import Params
from equipoise.errors import require

__all__ = ["Dense", "Model", "ResNet18", "ResNet20", "initial"]


class Model(Protocol):
    """What makes a module: `module()` gives a new one, initialised from torch's global generator."""

    def module(self) -> nn.Module:
        """A module from inputs (n, ...) to logits (n, classes)."""
        ...


def initial(model: Model, seeds: tuple[int, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers (S, ...) of one new module per seed; torch's own generator is left as it was."""
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


@dataclass(frozen=True)
class Dense:
    """A multi-layer perceptron with ReLU, in PyTorch's default initialisation; two sizes are logistic regression.

    Attributes:
        sizes: Inputs, hidden layers, classes.
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
    """

    classes: int = 10
    channels: int = 3

    def module(self) -> nn.Module:
        """A new network."""
        return _resnet(self.channels, self.classes, (16, 32, 64), 3, kaiming=True)


@dataclass(frozen=True)
class ResNet18:
    """ResNet18 with a 3×3 stem for small images: four stages of two blocks, widths 64 to 512, 11.2 million parameters.

    Attributes:
        classes: Number of classes.
        channels: Input channels.
    """

    classes: int = 10
    channels: int = 3

    def module(self) -> nn.Module:
        """A new network, in PyTorch's default initialisation."""
        return _resnet(self.channels, self.classes, (64, 128, 256, 512), 2, kaiming=False)


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
