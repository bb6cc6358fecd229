"""The 8×8 digits, from scikit-learn or from a file where there is none."""

import functools
import os
from pathlib import Path

import numpy as np
import torch

from equipoise.datasets import Dataset, load
from equipoise.datasets.dataset import divide

VARIABLE = "EQUIPOISE_DIGITS"
"""The environment variable that names an `.npz` file with `images` (1797, 8, 8) and `labels` (1797,)."""
_TEST = 450


@functools.cache
def digits() -> Dataset:
    """1,347 training and 450 test images: the same split from either source."""
    file = os.environ.get(VARIABLE)
    if file is None:
        return load("digits")
    with np.load(file) as arrays:
        x = torch.from_numpy(arrays["images"]).unsqueeze(1)
        y = torch.from_numpy(arrays["labels"]).to(torch.int64)
    train, test = divide(len(y), _TEST, 0)
    return Dataset("digits", x[train], y[train], x[test], y[test], tuple("0123456789"), scale=16)


def write(file: Path) -> None:
    """Write scikit-learn's digits to such a file."""
    from sklearn import datasets  # noqa: PLC0415

    bunch = datasets.load_digits()
    np.savez_compressed(file, images=bunch.images.astype(np.uint8), labels=bunch.target.astype(np.uint8))
