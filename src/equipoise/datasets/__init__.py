"""MNIST, CIFAR-10, digits, Adult, Credit, COMPAS: files are verified, decoded once, and never executed."""

from equipoise.datasets.catalogue import Source, names, sources
from equipoise.datasets.dataset import Dataset, standardize
from equipoise.datasets.download import DownloadError, fetch
from equipoise.datasets.files import ChecksumError, DataFileError, MissingDataError, cache_folder
from equipoise.datasets.loading import load, locate

__all__ = [
    "ChecksumError",
    "DataFileError",
    "Dataset",
    "DownloadError",
    "MissingDataError",
    "Source",
    "cache_folder",
    "fetch",
    "load",
    "locate",
    "names",
    "sources",
    "standardize",
]
