"""CIFAR-10: binary records, and python batches converted to them."""

import numpy as np
from numpy.typing import NDArray

from equipoise.datasets.files import DataFileError
from equipoise.datasets.unpickle import unpickle_arrays

__all__ = ["CLASSES", "read_records", "records_from_pickle"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS  # the label, then the red, the green and the blue plane, each row by row


def read_records(content: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images and labels of a binary batch.

    Args:
        content: (n·3073,) uint8.

    Returns:
        Images (n, 3, 32, 32) and labels (n,), views of the content.
    """
    if content.size % RECORD:
        raise DataFileError(f"a CIFAR-10 batch must be whole records of {RECORD} bytes; found {content.size} bytes")
    records = content.reshape(-1, RECORD)
    labels = records[:, 0]
    if labels.size and labels.max() >= len(CLASSES):
        raise DataFileError(f"a CIFAR-10 label must lie in 0..9; found {labels.max()}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def records_from_pickle(raw: bytes) -> bytes:
    """Convert a batch of the python version to binary records.

    A python batch is a pickled dictionary with `data`, an (n, 3072) array, and `labels`, a list of n numbers.
    """
    batch = unpickle_arrays(raw)
    if not isinstance(batch, dict):
        raise DataFileError(f"a CIFAR-10 python batch must be a dictionary; found {type(batch).__name__}")
    data, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        found = data.shape if isinstance(data, np.ndarray) else type(data).__name__
        raise DataFileError(f"data of a CIFAR-10 python batch must be an (n, {PIXELS}) array; found {found}")
    if not isinstance(labels, list) or len(labels) != len(data):
        found = len(labels) if isinstance(labels, list) else type(labels).__name__
        raise DataFileError(f"labels of a CIFAR-10 python batch must be a list of {len(data)} numbers; found {found}")
    if not all(isinstance(label, int) and 0 <= label < len(CLASSES) for label in labels):
        raise DataFileError("labels of a CIFAR-10 python batch must be numbers in 0..9")
    return np.column_stack([np.array(labels, np.uint8), data]).tobytes()
