"""The 8×8 digits that come with scikit-learn and need no file."""

import numpy as np
import torch

from equipoise.datasets.dataset import Dataset, divide
from equipoise.datasets.files import checked

__all__ = ["load_digits"]

IMAGES = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
LABELS = "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
TEST = 450


def load_digits(seed: int = 0) -> Dataset:
    """1,347 training and 450 test images (n, 1, 8, 8), pixels 0..16, split by a seeded draw."""
    try:
        from sklearn import datasets  # noqa: PLC0415
    except ImportError as missing:
        raise ImportError("digits come with scikit-learn: pip install scikit-learn") from missing
    bunch = datasets.load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    checked("scikit-learn's digits (images)", images.tobytes(), IMAGES)
    checked("scikit-learn's digits (labels)", labels.tobytes(), LABELS)
    train, test = divide(len(labels), TEST, seed)
    x, y = torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).to(torch.int64)
    return Dataset("digits", x[train], y[train], x[test], y[test], tuple("0123456789"), scale=16)
