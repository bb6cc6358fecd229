"""Sums over clients' arrays without copies, except for one block at a time."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import require

__all__ = [
    "Arrays",
    "Part",
    "combined",
    "gramian",
    "jacobian",
    "median",
    "packed",
    "square_distance",
    "unpacked",
    "view",
]

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name."""

_BLOCK = 1 << 16
"""The numbers per block, which stay in the cache while all clients are added."""

LONGEST_HEADER = 1024
"""The most bytes of a header; numpy writes about 120."""
_MAGIC = b"\x93NUMPY"
_LENGTHS = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""The size in bytes of the header's length field, by version."""
_HEADER = re.compile(
    rb"\{ *'descr': *'(?P<dtype>[<>|](?:b1|[iu][1248]|f[248]|c8|c16))', *'fortran_order': *(?P<fortran>True|False), *"
    rb"'shape': *\((?P<shape>(?:[0-9]{1,19}, *)*(?:[0-9]{1,19})?)\) *,? *\} *\n?"
)


class Part(NamedTuple):
    """The contribution of one client to a sum over clients."""

    arrays: Arrays
    objective: int
    share: float
    """Its share of its objective."""
    pace: float = 1.0
    """The factor of its move θ_i − θ."""


def view(array: Array, like: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of the numbers in an Array's bytes.

    A client wrote the header, so it is matched by a pattern, not parsed by numpy, and checked before it is used.

    Args:
        array: What a client sent.
        like: An array with the required shape and kind of numbers. Floating-point numbers may have another precision.

    Raises:
        ValueError: The bytes are not such an array; the message says what they must be.
    """
    data = array.data
    version = data[6:8] if data[:6] == _MAGIC else b""
    require(version in _LENGTHS, "must be the bytes of a numpy array, version 1 to 3", data[:8])
    start = 8 + _LENGTHS[version]
    end = start + int.from_bytes(data[8:start], "little")
    require(end - start <= LONGEST_HEADER, f"must have a header of at most {LONGEST_HEADER} bytes", end - start)
    header = _HEADER.fullmatch(data[start:end])
    if header is None:
        raise ValueError(f"must have the header of an array of numbers; found {data[start:end]!r}")
    shape = tuple(int(n) for n in header["shape"].split(b",") if n.strip())
    require(shape == like.shape, f"must have the shape {like.shape}", shape)
    dtype = np.dtype(header["dtype"].decode())
    same = dtype.kind == like.dtype.kind if like.dtype.kind == "f" else dtype == like.dtype
    require(same, f"must be {like.dtype}", dtype)
    size = like.size * dtype.itemsize
    require(len(data) - end == size, f"must have {size} bytes of numbers", len(data) - end)
    numbers = np.frombuffer(data, dtype, like.size, end) if size else np.empty(0, dtype)
    return numbers.reshape(shape, order="F" if header["fortran"] == b"True" else "C")


def square_distance(theta: NDArray[Any], x: NDArray[Any]) -> float:
    """|x − θ|², in the precision of θ and at least float32; infinite or NaN if x exceeds its range."""
    kind = np.promote_types(theta.dtype, np.float32)
    flat, other, total = theta.reshape(-1), x.reshape(-1), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in _blocks(theta.size):
            difference = np.subtract(other[block], flat[block], dtype=kind, casting="same_kind")
            total += float(difference.dot(difference))
    return total


def unpacked(record: ArrayRecord) -> dict[str, Tensor]:
    """Tensors that own their memory."""
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def packed(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """A record of tensors."""
    return ArrayRecord({name: Array(tensor.detach().numpy()) for name, tensor in tensors.items()})


def median(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The lower median of every entry, in new memory. Complex numbers are ordered by their real parts."""
    stacked = np.stack(arrays)
    stacked.sort(axis=0)
    return np.array(stacked[(len(arrays) - 1) // 2])


def combined(theta: NDArray[Any], rest: float, parts: Sequence[tuple[float, NDArray[Any]]]) -> NDArray[Any]:
    """Σ c_k x_k + rest·θ in the dtype of θ, accumulated in at least float32."""
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
    """J Jᵀ (m, m) of the pseudo-gradients (θ − θ_i)/η, float64; 0 for objectives without a client."""
    total = np.zeros((m, m))
    for name, whole in theta.items():
        flat, others = whole.reshape(-1), [(part, part.arrays[name].reshape(-1)) for part in parts]
        for block in _blocks(whole.size):
            rows = _rows(flat[block], [(part, x[block]) for part, x in others], m)
            total += rows @ rows.T
    return torch.from_numpy(total / step_size**2)


def jacobian(theta: Arrays, parts: Sequence[Part], m: int, step_size: float) -> Tensor:
    """J (m, d) of the pseudo-gradients (θ − θ_i)/η, in the dtype of θ; 0 for objectives without a client."""
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
        rows[part.objective] += part.share * part.pace * (theta.astype(np.float64) - x)
    return rows


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))
