"""A copy of parameters in one piece of memory for each dtype, so that what is done to it takes few launches."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.conversion.protocol import Params, record_dtype

__all__ = ["Copy", "Layout"]

ALIGNMENT = 64
"""Bytes: where a tensor may begin."""
SMALL = 1 << 16
"""Bytes up to which a tensor lies with others of that kind, as do those that have gaps."""


class Block(NamedTuple):
    """A piece of memory."""

    dtype: torch.dtype
    size: int
    """Elements."""
    small: int
    """Elements at its beginning that belong to small tensors and to those with gaps."""


class _Part(NamedTuple):
    """Where a tensor is."""

    block: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Layout:
    """Where each tensor of a copy lies: those of one dtype together, small ones first.

    Args:
        params: Looked at for names, shapes, strides and dtypes.
        dtype: In which dtype a parameter is copied.
        apart: Whether each tensor has memory of its own: torch cannot save a shard that begins in the middle of some.
    """

    def __init__(
        self, params: Params, dtype: Callable[[Tensor], torch.dtype] = record_dtype, *, apart: bool = False
    ) -> None:
        groups: dict[object, list[str]] = {}
        for name, p in params.items():
            groups.setdefault(name if apart else dtype(p), []).append(name)
        parts: dict[str, _Part] = {}
        self.blocks: list[Block] = []
        for names in groups.values():
            kind = dtype(params[names[0]])
            step, size, small = ALIGNMENT // kind.itemsize, 0, 0
            strides = {name: torch.empty_like(params[name], device="meta").stride() for name in names}
            little = {
                name
                for name in names
                if params[name].numel() * kind.itemsize <= SMALL or strides[name] != params[name].stride()
            }
            for name in sorted(names, key=lambda name: name not in little):
                p = params[name]
                parts[name] = _Part(len(self.blocks), size, p.shape, strides[name])
                size += -(-p.numel() // step) * step
                small = size if name in little else small
            self.blocks.append(Block(kind, size, small))
        self.parts = {name: parts[name] for name in params}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.blocks == other.blocks and self.parts == other.parts

    __hash__ = None  # type: ignore[assignment]

    def small(self, block: int) -> list[str]:
        """Names of the tensors at the beginning of a block, which are small or have gaps."""
        return [n for n, part in self.parts.items() if part.block == block and part.offset < self.blocks[block].small]

    def make(self, device: torch.device, *, pinned: bool = False) -> "Copy":
        """Memory of zeros."""
        blocks = [torch.zeros(b.size, dtype=b.dtype, device=device, pin_memory=pinned) for b in self.blocks]
        return Copy(self, blocks)


class Copy(Mapping[str, Tensor]):
    """Tensors by name, parts of a few blocks.

    Args:
        layout: What lies where.
        blocks: The memory.
    """

    def __init__(self, layout: Layout, blocks: list[Tensor]) -> None:
        parts = layout.parts.items()
        self.tensors = {name: blocks[p.block].as_strided(p.shape, p.stride, p.offset) for name, p in parts}
        self.layout, self.blocks = layout, blocks

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Copy":
        """In other memory."""
        return Copy(self.layout, [move(block) for block in self.blocks])

    def exchange(self, other: "Copy") -> None:
        """Each has the memory of the other, of the same layout and device."""
        self.tensors, other.tensors = other.tensors, self.tensors
        self.blocks, other.blocks = other.blocks, self.blocks
