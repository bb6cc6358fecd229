"""What a preference does to one layer: scale and shift its channels, or change its weights.

An adapter is a small module attached to a linear or convolution layer. It turns the code of a preference, (width,) for
the whole batch or (n, width) for each sample, into a change of the layer's output. At the start it changes nothing.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from equipoise.errors import require

__all__ = ["KINDS", "Adapter", "Film", "Hyper", "LowRank", "can_be_conditioned"]

Layer = nn.Linear | _ConvNd
_MIX = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


class Merged(NamedTuple):
    """The parameters of a plain layer that is equivalent for one preference."""

    weight: Tensor
    bias: Tensor


def can_be_conditioned(layer: nn.Module) -> bool:
    """Whether it is a linear or convolution layer; `nn.MultiheadAttention`'s projection, never called, is excluded."""
    return isinstance(layer, Layer) and not isinstance(layer, NonDynamicallyQuantizableLinear)


def spatial(layer: Layer) -> int:
    """The number of spatial dimensions, after the channels: 0 for a linear layer, 2 for images."""
    return 0 if isinstance(layer, nn.Linear) else len(layer.kernel_size)


def channels(layer: Layer) -> int:
    """The number of output channels."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def spread(values: Tensor, like: Tensor, after: int) -> Tensor:
    """Channel values, (C,) or (n, C), reshaped to broadcast with (n, …, C, *space) of `after` spatial dimensions."""
    places = (1,) * after
    if values.ndim == 1:
        return values.reshape(-1, *places)
    between = (1,) * (like.ndim - 2 - after)
    return values.reshape(values.shape[0], *between, values.shape[1], *places)


class Adapter(nn.Module, ABC):
    """The base class of adapters; each belongs to one layer.

    Args:
        layer: The layer, for its sizes, dtype and device.
        width: The length of a code.
        rank: The rank of a low-rank change.
    """

    only: ClassVar[str] = ""
    """The layers that this kind can change, in words, for error messages; empty: all."""

    @classmethod
    def fits(cls, layer: Layer) -> bool:  # noqa: ARG003
        """Whether this kind can change this layer."""
        return True

    @abstractmethod
    def __init__(self, layer: Layer, width: int, rank: int) -> None:
        super().__init__()

    @abstractmethod
    def change(self, layer: Layer, inputs: Tensor, output: Tensor, code: Tensor) -> Tensor:
        """The layer's output for this code, with the shape and dtype of `output`."""

    @abstractmethod
    def merged(self, layer: Layer, code: Tensor) -> Merged:
        """The parameters with which the layer alone gives the same output, for one code (width,)."""


class Film(Adapter):
    """y ← (1 + γ(w)) ∘ y + β(w), by channel."""

    def __init__(self, layer: Layer, width: int, rank: int) -> None:
        super().__init__(layer, width, rank)
        self.head = _head(width, 2 * channels(layer), layer)
        _zero(self.head)

    def change(self, layer: Layer, inputs: Tensor, output: Tensor, code: Tensor) -> Tensor:  # noqa: ARG002
        """One multiplication and one addition for each value."""
        scale, shift = self.head(code).to(output.dtype).chunk(2, -1)
        after = spatial(layer)
        return torch.addcmul(spread(shift, output, after), output, spread(1 + scale, output, after))

    def merged(self, layer: Layer, code: Tensor) -> Merged:
        """Scale the rows of the weight, and scale and shift the bias."""
        scale, shift = self.head(code).chunk(2, -1)
        if isinstance(layer, _ConvTransposeNd):  # (in, out / groups, *kernel): a group is a block of input channels
            by_group = layer.weight.reshape(layer.groups, -1, *layer.weight.shape[1:])
            factors = (1 + scale).reshape(layer.groups, 1, -1, *(1,) * spatial(layer))
            weight = (by_group * factors).reshape(layer.weight.shape)
        else:
            weight = layer.weight * (1 + scale).reshape(-1, *(1,) * (layer.weight.ndim - 1))
        return Merged(weight, shift if layer.bias is None else (1 + scale) * layer.bias + shift)


class LowRank(Adapter):
    """W ← W + B diag(s(w)) A and b ← b + β(w), with A and B the same for all preferences."""

    only = "linear layers and convolutions that are neither transposed nor grouped"

    @classmethod
    def fits(cls, layer: Layer) -> bool:
        """Whether this kind can change the layer: a grouped convolution has no such factors."""
        return isinstance(layer, nn.Linear) or (_plain(layer) and layer.groups == 1)

    def __init__(self, layer: Layer, width: int, rank: int) -> None:
        super().__init__(layer, width, rank)
        where: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        if isinstance(layer, nn.Linear):
            self.down: nn.Module = nn.Linear(layer.in_features, rank, bias=False, **where)
        else:
            self.down = type(layer)(
                layer.in_channels,
                rank,
                layer.kernel_size,
                stride=layer.stride,
                padding=layer.padding,
                dilation=layer.dilation,
                bias=False,
                padding_mode=layer.padding_mode,
                **where,
            )
        self.up = nn.Parameter(torch.zeros(channels(layer), rank, **where))
        self.strength = _head(width, rank, layer)
        self.shift = _head(width, channels(layer), layer)
        _zero(self.shift)

    def change(self, layer: Layer, inputs: Tensor, output: Tensor, code: Tensor) -> Tensor:
        """Add a path through `rank` channels, which the preference scales."""
        after = spatial(layer)
        inner = self.down(inputs)
        inner = inner * spread(self.strength(code).to(inner.dtype), output, after)
        mixed = _MIX[after](inner, self.up.reshape(*self.up.shape, *(1,) * after)) if after else inner @ self.up.T
        return output + mixed.to(output.dtype) + spread(self.shift(code).to(output.dtype), output, after)

    def merged(self, layer: Layer, code: Tensor) -> Merged:
        """Add the product of the factors to the weight."""
        factor = self.down.get_parameter("weight")
        change = torch.tensordot(self.up * self.strength(code), factor, 1)
        shift = self.shift(code)
        return Merged(layer.weight + change, shift if layer.bias is None else layer.bias + shift)


class Hyper(Adapter):
    """W ← W + ΔW(w) and b ← b + Δb(w), every entry by itself: `width` times as many parameters as the layer has."""

    only = "linear layers and convolutions that are not transposed"

    @classmethod
    def fits(cls, layer: Layer) -> bool:
        """Whether this kind can change the layer: its output must be a function of input, weight and bias."""
        return isinstance(layer, nn.Linear) or _plain(layer)

    def __init__(self, layer: Layer, width: int, rank: int) -> None:
        super().__init__(layer, width, rank)
        self.head = _head(width, layer.weight.numel() + channels(layer), layer, bias=False)
        _zero(self.head)

    def change(self, layer: Layer, inputs: Tensor, output: Tensor, code: Tensor) -> Tensor:
        """Add the layer's output with ΔW and Δb as its parameters: a layer is linear in its parameters."""

        def alone(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            if isinstance(layer, nn.Linear):
                return functional.linear(x, weight, bias)
            result: Tensor = layer._conv_forward(x, weight, bias)
            return result

        parts = self._parts(layer, code)
        added = alone(inputs, *parts) if code.ndim == 1 else torch.func.vmap(alone)(inputs, *parts)
        return output + added.to(output.dtype)

    def merged(self, layer: Layer, code: Tensor) -> Merged:
        """Add the changes to the parameters."""
        weight, bias = self._parts(layer, code)
        return Merged(layer.weight + weight, bias if layer.bias is None else layer.bias + bias)

    def _parts(self, layer: Layer, code: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.head(code).split([layer.weight.numel(), channels(layer)], -1)
        return weight.reshape(*code.shape[:-1], *layer.weight.shape), bias


KINDS: dict[str, type[Adapter]] = {"film": Film, "low-rank": LowRank, "hyper": Hyper}
"""The kinds of adapters, by the name that a user gives."""


def _plain(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _head(width: int, out: int, layer: Layer, *, bias: bool = True) -> nn.Linear:
    require(
        not isinstance(layer.weight, nn.parameter.UninitializedParameter),
        "layers must have their sizes: call the model once on a batch before conditioning it",
        type(layer).__name__,
    )
    return nn.Linear(width, out, bias=bias, device=layer.weight.device, dtype=layer.weight.dtype)


def _zero(head: nn.Linear) -> None:
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
