"""Sums over clients' arrays, read where they lie: nothing is copied but one block at a time."""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Arrays", "Part", "combined", "gramian", "jacobian", "packed", "unpacked", "view"]

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name."""

_BLOCK = 1 << 16
"""Numbers worked on at a time: they stay in the cache while every client's are added."""


class Part(NamedTuple):
    """What one client adds to a sum over clients."""

    arrays: Arrays
    objective: int
    share: float
    """Its share of its objective."""


def view(array: Array) -> NDArray[Any]:
    """The numbers of an Array in its own bytes, read-only.

    Raises:
        ValueError: The bytes are not those of an array of numbers.
    """
    file = BytesIO(array.data)
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    count = int(np.prod(shape, dtype=np.int64))
    numbers = np.frombuffer(array.data, dtype, count, file.tell()) if count else np.empty(0, dtype)
    return numbers.reshape(shape, order="F" if fortran else "C")


def unpacked(record: ArrayRecord) -> dict[str, Tensor]:
    """Tensors with memory of their own."""
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def packed(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """A record of tensors."""
    return ArrayRecord({name: Array(tensor.detach().numpy()) for name, tensor in tensors.items()})


def combined(theta: NDArray[Any], rest: float, parts: Sequence[tuple[float, NDArray[Any]]]) -> NDArray[Any]:
    """Σ c_k x_k + rest·θ, in the dtype of θ and at least float32 on the way."""
    kind = np.promote_types(theta.dtype, np.float32)
    total = np.empty(theta.size, kind)
    flat = [(c, x.reshape(-1)) for c, x in [(rest, theta), *parts]]
    for block in _blocks(theta.size):
        into = total[block]
        scratch = np.empty(into.shape, kind)
        into[:] = 0
        for c, x in flat:
            np.multiply(x[block], kind.type(c), out=scratch, casting="same_kind")
            into += scratch
    return total.reshape(theta.shape).astype(theta.dtype, copy=False)


def gramian(theta: Arrays, parts: Sequence[Part], m: int, step_size: float) -> Tensor:
    """J Jᵀ (m, m) of the pseudo-gradients (θ − θ_i)/η, float64; 0 for objectives that have no part."""
    total = np.zeros((m, m))
    for name, whole in theta.items():
        flat, others = whole.reshape(-1), [(part, part.arrays[name].reshape(-1)) for part in parts]
        for block in _blocks(whole.size):
            rows = _rows(flat[block], [(part, x[block]) for part, x in others], m)
            total += rows @ rows.T
    return torch.from_numpy(total / step_size**2)


def jacobian(theta: Arrays, parts: Sequence[Part], m: int, step_size: float) -> Tensor:
    """J (m, d) of the pseudo-gradients (θ − θ_i)/η, in the dtype of θ; 0 for objectives that have no part."""
    kind = np.result_type(np.float32, *theta.values())
    whole = np.empty((m, sum(x.size for x in theta.values())), kind)
    start = 0
    for name, x in theta.items():
        flat, others = x.reshape(-1), [(part, part.arrays[name].reshape(-1)) for part in parts]
        for block in _blocks(x.size):
            rows = _rows(flat[block], [(part, y[block]) for part, y in others], m) / step_size
            whole[:, start : start + rows.shape[1]] = rows
            start += rows.shape[1]
    return torch.from_numpy(whole)


def _rows(theta: NDArray[Any], parts: Sequence[tuple[Part, NDArray[Any]]], m: int) -> NDArray[np.float64]:
    """Differences θ − θ_i of every objective, (m, block)."""
    rows = np.zeros((m, theta.size))
    for part, x in parts:
        rows[part.objective] += part.share * (theta.astype(np.float64) - x)
    return rows


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))
