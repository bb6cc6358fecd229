"""The convolutions of many clients, each with its own kernels and images, as one differentiable operation."""

from functools import cache
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import conv2d

__all__ = ["convolve"]

_KERNEL_SIZES = (1, 3)


def convolve(images: Tensor, kernels: Tensor, stride: int = 1) -> Tensor:
    """Convolve every client's images with its own kernels, padded by half the kernel size.

    Args:
        images: (N, B, H, W, I), channels last.
        kernels: (N, O, K, K, I), of the same dtype.
        stride: The stride in both dimensions.

    Returns:
        (N, B, ⌈H/stride⌉, ⌈W/stride⌉, O).
    """
    result: Tensor = _convolve(images.contiguous(), kernels.contiguous(), stride)
    return result


@torch.library.custom_op("equipoise::convolve", mutates_args=())
def _convolve(images: Tensor, kernels: Tensor, stride: int) -> Tensor:
    fast = _fast(images, kernels)
    if fast is not None:
        found: Tensor = fast.forward(images, kernels, stride, _precision())
        return found
    pad = kernels.shape[2] // 2
    return torch.stack(
        [_last(conv2d(_first(x), _first(w), None, stride, pad)) for x, w in zip(images, kernels, strict=True)]
    )


@_convolve.register_fake
def _(images: Tensor, kernels: Tensor, stride: int) -> Tensor:
    N, B, H, W, _ = images.shape
    return images.new_empty(N, B, -(-H // stride), -(-W // stride), kernels.shape[1])


@torch.library.custom_op("equipoise::convolve_backward", mutates_args=())
def _backward(g: Tensor, images: Tensor, kernels: Tensor, stride: int, wanted: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    fast = _fast(images, kernels)
    size = kernels.shape[2]
    if fast is not None:
        how = _precision()
        back = fast.backward_input(g, kernels, images.shape, stride, how) if wanted else images.new_empty(0)
        return back, fast.backward_kernel(g, images, size, stride, how)
    found = [
        torch.ops.aten.convolution_backward(
            _first(g_i), _first(x), _first(w), None, [stride] * 2, [size // 2] * 2, [1, 1],
            False, [0, 0], 1, [wanted, True, False],  # noqa: FBT003
        )
        for g_i, x, w in zip(g, images, kernels, strict=True)
    ]  # fmt: skip
    back = torch.stack([_last(one[0]) for one in found]) if wanted else images.new_empty(0)
    return back, torch.stack([_last(one[1]) for one in found])


@_backward.register_fake
def _(g: Tensor, images: Tensor, kernels: Tensor, stride: int, wanted: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001, FBT001
    return torch.empty_like(images) if wanted else images.new_empty(0), torch.empty_like(kernels)


def _remember(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:  # noqa: ARG001
    images, kernels, ctx.stride = inputs  # type: ignore[attr-defined]
    ctx.save_for_backward(images, kernels)


def _differentiate(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> tuple[Tensor | None, Tensor, None]:
    images, kernels = ctx.saved_tensors  # type: ignore[attr-defined]
    wanted = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
    back, kernel = _backward(g.contiguous(), images, kernels, ctx.stride, wanted)  # type: ignore[attr-defined]
    return back if wanted else None, kernel, None


_convolve.register_autograd(_differentiate, setup_context=_remember)


def _first(x: Tensor) -> Tensor:
    """Channels first, as PyTorch's convolutions expect images and kernels."""
    return x.permute(0, 3, 1, 2)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _fast(images: Tensor, kernels: Tensor) -> ModuleType | None:
    """The Triton kernels for all clients at once, if they apply."""
    if not images.is_cuda or kernels.shape[2] not in _KERNEL_SIZES:
        return None
    found = _triton()
    few = found is not None and max(kernels.shape[1], kernels.shape[4]) <= found.MOST_CHANNELS
    return found if few else None


@cache
def _triton() -> ModuleType | None:
    try:
        from equipoise.federated import kernels  # noqa: PLC0415
    except ImportError:
        return None
    return kernels


def _precision() -> str:
    """How torch is set to multiply float32 factors: in TF32, or almost exactly by three TF32 products."""
    return "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "tf32x3"  # type: ignore[attr-defined]
