"""Convolutions of many clients in one launch each, for few channels: Triton kernels.

A convolution with sixteen channels does not fill the tiles of a library kernel, and one client's batch does not fill a
large GPU. Here a program multiplies a block of one client's pixels, gathered for one tap of the kernel at a time, by
that tap's matrix of channels; the grid runs over the blocks of all clients.

Activations are (N, B, H, W, C), kernels (N, O, K, K, I) with K = 1 or 3, both contiguous; padding is K // 2. Factors
have the tensors' dtype, sums are float32. `precision` is Triton's name for how float32 factors are multiplied.
"""
# mypy: ignore-errors

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MOST_CHANNELS", "backward_input", "backward_kernel", "forward"]

MOST_CHANNELS = 64
"""The most channels; beyond it library kernels are as fast."""

LAUNCHES = {
    "forward": {16: (128, 2), 32: (128, 4), 64: (128, 8)},
    "backward_input": {16: (128, 2), 32: (128, 8), 64: (128, 8)},
    "backward_kernel": {16: (128, 2), 32: (64, 2), 64: (64, 4)},
}
"""Pixels per block and warps of a program, by the number of channels: the fastest on an H200."""
PARTS = 16
"""The number of partial sums over pixels in the gradient of a kernel."""


@triton.jit
def _pixels(x, b, h, v, H, W, there, C: tl.constexpr, BC: tl.constexpr):
    """Pixels (h, v) of images b, (block, BC), 0 outside of the image."""
    c = tl.arange(0, BC)
    inside = there & (h >= 0) & (h < H) & (v >= 0) & (v < W)
    return tl.load(x + (((b * H + h) * W + v) * C)[:, None] + c[None, :], inside[:, None] & (c < C)[None, :], 0.0)


@triton.jit
def _forward(x, w, y, B, H, W, P, Q, I: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
             BI: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    there = m < B * P * Q
    b, p, q = m // (P * Q), (m // Q) % P, m % Q
    i, o = tl.arange(0, BI), tl.arange(0, BO)
    x += n * B * H * W * I
    w += n * O * K * K * I
    y += n * B * P * Q * O
    total = tl.zeros((BM, BO), tl.float32)
    for tap in tl.static_range(K * K):
        seen = _pixels(x, b, p * S + tap // K - K // 2, q * S + tap % K - K // 2, H, W, there, I, BI)
        known = (i < I)[:, None] & (o < O)[None, :]
        matrix = tl.load(w + (o * K * K * I)[None, :] + (tap * I + i)[:, None], known, 0.0)
        total = tl.dot(seen, matrix, total, input_precision=PRECISION)
    tl.store(y + (m * O)[:, None] + o[None, :], total.to(y.dtype.element_ty), there[:, None] & (o < O)[None, :])


@triton.jit
def _backward_input(g, w, x, B, H, W, P, Q, I: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
                    BI: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    there = m < B * H * W
    b, h, v = m // (H * W), (m // W) % H, m % W
    i, o = tl.arange(0, BI), tl.arange(0, BO)
    g += n * B * P * Q * O
    w += n * O * K * K * I
    x += n * B * H * W * I
    total = tl.zeros((BM, BI), tl.float32)
    for tap in tl.static_range(K * K):
        # Output (p, q) saw pixel (h, v) through this tap if p S = h + K//2 − row, and likewise for the columns.
        r, c = h + K // 2 - tap // K, v + K // 2 - tap % K
        hit = there & (r >= 0) & (c >= 0) & (r % S == 0) & (c % S == 0)
        seen = _pixels(g, b, r // S, c // S, P, Q, hit, O, BO)
        known = (o < O)[:, None] & (i < I)[None, :]
        matrix = tl.load(w + (o * K * K * I)[:, None] + (tap * I + i)[None, :], known, 0.0)
        total = tl.dot(seen, matrix, total, input_precision=PRECISION)
    tl.store(x + (m * I)[:, None] + i[None, :], total.to(x.dtype.element_ty), there[:, None] & (i < I)[None, :])


@triton.jit
def _backward_kernel(g, x, sums, B, H, W, P, Q, chunk, I: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
                     S: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
    part, row, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, o = tl.arange(0, BI), tl.arange(0, BO)
    g += n * B * P * Q * O
    x += n * B * H * W * I
    # One sum per tap of the row: neighbouring taps share all pixels but one.
    left = tl.zeros((BO, BI), tl.float32)
    middle, right = left, left
    for start in range(part * chunk, (part + 1) * chunk, BM):
        m = start + tl.arange(0, BM)
        there = m < B * P * Q
        b, p, q = m // (P * Q), (m // Q) % P, m % Q
        h, v = p * S + row - K // 2, q * S - K // 2
        out = tl.load(g + (m * O)[:, None] + o[None, :], there[:, None] & (o < O)[None, :], 0.0).trans()
        left = tl.dot(out, _pixels(x, b, h, v, H, W, there, I, BI), left, input_precision=PRECISION)
        if K == 3:
            middle = tl.dot(out, _pixels(x, b, h, v + 1, H, W, there, I, BI), middle, input_precision=PRECISION)
            right = tl.dot(out, _pixels(x, b, h, v + 2, H, W, there, I, BI), right, input_precision=PRECISION)
    sums += (n * tl.num_programs(0) + part) * O * K * K * I
    known = (o < O)[:, None] & (i < I)[None, :]
    place = sums + (o * K * K * I)[:, None] + (row * K * I + i)[None, :]
    tl.store(place, left, known)
    if K == 3:
        tl.store(place + I, middle, known)
        tl.store(place + 2 * I, right, known)


def forward(x: Tensor, w: Tensor, stride: int, precision: str) -> Tensor:
    """(N, B, H, W, I), (N, O, K, K, I) → (N, B, P, Q, O)."""
    N, B, H, W, I = x.shape
    P, Q = -(-H // stride), -(-W // stride)
    y = x.new_empty(N, B, P, Q, w.shape[1])
    sizes = _sizes("forward", I, w.shape[1], w.shape[2], stride, precision)
    _forward[(triton.cdiv(B * P * Q, sizes["BM"]), N)](x, w, y, B, H, W, P, Q, **sizes)
    return y


def backward_input(g: Tensor, w: Tensor, shape: torch.Size, stride: int, precision: str) -> Tensor:
    """The gradient of the input, which has this shape."""
    N, B, H, W, I = shape
    P, Q = g.shape[2:4]
    x = g.new_empty(shape)
    sizes = _sizes("backward_input", I, w.shape[1], w.shape[2], stride, precision)
    _backward_input[(triton.cdiv(B * H * W, sizes["BM"]), N)](g, w, x, B, H, W, P, Q, **sizes)
    return x


def backward_kernel(g: Tensor, x: Tensor, size: int, stride: int, precision: str) -> Tensor:
    """The gradient of the kernels of this size K, (N, O, K, K, I), always summed in the same order."""
    N, B, H, W, I = x.shape
    P, Q, O = g.shape[2:]
    sizes = _sizes("backward_kernel", I, O, size, stride, precision)
    if max(I, O) * x.element_size() > _WIDE:
        sizes["BM"] //= 2
    block = sizes["BM"]
    chunk = block * triton.cdiv(B * P * Q, block * PARTS)
    parts = triton.cdiv(B * P * Q, chunk)
    sums = torch.empty(N, parts, O, size, size, I, dtype=torch.float32, device=x.device)
    _backward_kernel[(parts, size, N)](g, x, sums, B, H, W, P, Q, chunk, **sizes)
    return sums.sum(1).to(x.dtype)


_WIDE = 128
"""The most bytes of a pixel; beyond it the prefetched blocks of a program exceed shared memory."""


def _sizes(kind: str, I: int, O: int, K: int, stride: int, precision: str) -> dict[str, Any]:
    def padded(channels: int) -> int:
        return max(16, triton.next_power_of_2(channels))

    block, warps = LAUNCHES[kind][max(padded(I), padded(O))]
    return {
        "I": I, "O": O, "K": K, "S": stride, "BI": padded(I), "BO": padded(O), "BM": block, "PRECISION": precision,
        "num_warps": warps,
    }  # fmt: skip
