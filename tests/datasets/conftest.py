"""Real data if available, a fresh cache folder for every test, and a tiny MNIST with its own checksums."""

import gzip
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.datasets import catalogue, loading
from equipoise.datasets.catalogue import Layout, Source
from equipoise.datasets.files import File

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
REAL = Path(os.environ.get("EQUIPOISE_DATA") or SHARED)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    loading._decoded.cache_clear()
    yield tmp_path / "cache" / "equipoise"
    loading._decoded.cache_clear()


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("no data: set EQUIPOISE_DATA to a folder that has them")
    return REAL


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


TINY = {
    "train-images-idx3-ubyte": idx((3, 2, 2), bytes(range(12))),
    "train-labels-idx1-ubyte": idx((3,), bytes([7, 0, 9])),
    "t10k-images-idx3-ubyte": idx((1, 2, 2), bytes([255, 0, 1, 2])),
    "t10k-labels-idx1-ubyte": idx((1,), bytes([4])),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Makes the catalogue's MNIST a set of four images; returns its plain files."""
    files = tuple(
        File(
            name,
            hashlib.sha256(content).hexdigest(),
            len(content),
            {".gz": hashlib.sha256(gzip.compress(content, mtime=0)).hexdigest()},
        )
        for name, content in TINY.items()
    )
    source = Source("mnist", "four images", (Layout(("mnist", ""), files),), home="https://example.org/")
    monkeypatch.setitem(catalogue.SOURCES, "mnist", source)
    return dict(TINY)
