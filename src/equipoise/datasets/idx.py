"""The IDX format of MNIST: two zero bytes, a type code, the number of dimensions, the sizes, the values."""

import struct

import numpy as np
from numpy.typing import NDArray

from equipoise.datasets.files import DataFileError

__all__ = ["read_idx"]

UNSIGNED_BYTE = 0x08


def read_idx(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array that an IDX file of unsigned bytes holds.

    Args:
        content: (size,) uint8, the whole file after decompression.

    Returns:
        A read-only view of the shape that the header states.
    """
    head = content[:4].tobytes()
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != UNSIGNED_BYTE:
        raise DataFileError(f"an IDX file of bytes must begin with 00 00 08; found {head.hex(' ') or 'nothing'}")
    start = 4 + 4 * head[3]
    if content.size < start:
        raise DataFileError(f"the IDX header must have {start} bytes; found {content.size}")
    shape: tuple[int, ...] = struct.unpack(f">{head[3]}I", content[4:start].tobytes())
    count = 1
    for size in shape:
        count *= size  # Python integers: a forged header cannot overflow
    if content.size - start != count:
        raise DataFileError(f"an IDX array of shape {shape} must have {count} bytes; found {content.size - start}")
    return content[start:].reshape(shape)
