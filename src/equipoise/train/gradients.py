"""The rows of the Jacobian by autograd, and a scalar whose gradient is given."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.weighting.reweighted import row_dtype

__all__ = ["directed", "jacobian_rows"]


def jacobian_rows(losses: Tensor, params: Sequence[Tensor]) -> Tensor:
    """The gradient of every loss, by one backward pass each; the graph is retained.

    Args:
        losses: f with its graph, (m,).
        params: What to differentiate by, d numbers altogether; a gradient is 0 where the loss does not depend on them.

    Returns:
        J in at least float32, (m, d).
    """
    sizes = [p.numel() for p in params]
    dtype = row_dtype(*params)
    J = torch.zeros(len(losses), sum(sizes), dtype=dtype, device=losses.device)
    unit = torch.eye(len(losses), dtype=losses.dtype, device=losses.device)
    for row, chosen in zip(J, unit, strict=True):
        gradients = torch.autograd.grad(losses, params, chosen, retain_graph=True, allow_unused=True)
        for piece, gradient in zip(row.split(sizes), gradients, strict=True):
            if gradient is not None:
                piece.copy_(gradient.reshape(-1))
    return J


def directed(value: Tensor, direction: Tensor, params: Sequence[Tensor]) -> Tensor:
    """A scalar with the given value whose gradient is `direction` (d,), whatever the losses' gradients are."""
    pieces = torch.split(direction, [p.numel() for p in params])
    shaped = [piece.view(p.shape).to(p.dtype) for piece, p in zip(pieces, params, strict=True)]
    scalar: Tensor = _Directed.apply(value, shaped, *params)  # type: ignore[no-untyped-call]
    return scalar


class _Directed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, pieces: list[Tensor], *params: Tensor) -> Tensor:  # noqa: ANN401, ARG004
        ctx.pieces = pieces
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rule = "a weighting that keeps its own gradients, such as MoCo, must be differentiated once"
        require(not torch.is_grad_enabled(), rule, "create_graph=True")
        return None, None, *((upstream * piece).to(piece.dtype) for piece in ctx.pieces)
