"""Data files on disk: where to look for them, and how to verify them."""

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import platform
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.atomic import replacing
from equipoise.errors import EquipoiseError

__all__ = [
    "ChecksumError",
    "DataFileError",
    "File",
    "MissingDataError",
    "cache_folder",
    "candidates",
    "checked",
    "file_digest",
    "read_content",
]

VARIABLE = "EQUIPOISE_DATA"
Bytes = NDArray[np.uint8]


class DataFileError(EquipoiseError):
    """A data file cannot be used; the message names the file and says why.

    Examples:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = pathlib.Path(folder, "credit.csv").write_text("something else")
        ...     try:
        ...         eq.datasets.load("credit", folder)
        ...     except eq.datasets.DataFileError as error:
        ...         print(type(error).__name__)
        ChecksumError
    """


class ChecksumError(DataFileError):
    """A data file has the wrong content; the message names the file and both checksums.

    Examples:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = pathlib.Path(folder, "credit.csv").write_text("something else")
        ...     eq.datasets.load("credit", folder)
        Traceback (most recent call last):
            ...
        equipoise.datasets.files.ChecksumError: ...credit.csv must hold content with SHA-256 ...; found ...
    """


class MissingDataError(EquipoiseError):
    """A data set was not found; the message says where it was looked for and what to put there.

    Examples:
        >>> eq.datasets.load("credit", folder="nowhere")
        Traceback (most recent call last):
            ...
        equipoise.datasets.files.MissingDataError: data set credit was not found; looked in nowhere, ...; put there ...
    """


def as_it_is(raw: bytes) -> bytes:
    """The content of a file that needs no conversion."""
    return raw


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Attributes:
        name: Its name, without the suffix of a compressed file.
        sha256: Checksum of its content, after decompression and conversion.
        limit: The most bytes to read (after decompression); a larger file is a wrong file.
        packed: Suffix of each accepted compressed form, with the checksum of the usual compressed file.
        convert: Turns the decompressed bytes into the content.
        unconverted: Checksum of the decompressed bytes before `convert`; needed if there is a conversion.
    """

    name: str
    sha256: str
    limit: int
    packed: dict[str, str] = field(default_factory=dict, hash=False)
    convert: Callable[[bytes], bytes] = as_it_is
    unconverted: str = ""

    def find(self, folder: Path) -> Path | None:
        """The file in a folder, uncompressed if possible."""
        found = (folder / f"{self.name}{suffix}" for suffix in ("", *self.packed))
        return next((path for path in found if path.is_file()), None)


def cache_folder() -> Path:
    """The user's cache folder for this library (it need not exist).

    Examples:
        >>> eq.datasets.cache_folder().name
        'equipoise'
    """
    absolute = os.environ.get("XDG_CACHE_HOME", "")
    if Path(absolute).is_absolute():
        return Path(absolute) / "equipoise"
    system, home = platform.system(), Path.home()
    if system == "Darwin":
        return home / "Library" / "Caches" / "equipoise"
    if system == "Windows":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "equipoise"
    return home / ".cache" / "equipoise"


def candidates(folder: str | Path | None) -> list[Path]:
    """The folders to look in, in order: the argument, EQUIPOISE_DATA, the cache folder."""
    given = [folder, os.environ.get(VARIABLE) or None]
    return [*(Path(path).expanduser() for path in given if path is not None), cache_folder()]


def digest(content: bytes | Bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.data).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file on disk, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checked(path: Path | str, content: bytes, sha256: str) -> bytes:
    """The content, if it has that checksum; otherwise a ChecksumError that names the file."""
    if (found := digest(content)) != sha256:
        raise ChecksumError(f"{path} must hold content with SHA-256 {sha256}; found {found}")
    return content


def read_content(path: Path, file: File) -> Bytes:
    """The verified content of a file, decompressed and converted.

    LZMA takes seconds, so the content of an `.xz` file is also kept in the cache folder.

    Args:
        path: Where the file is; its suffix says how it is compressed.
        file: The expected file.

    Returns:
        (size,) uint8, read-only.
    """
    if path.suffix != ".xz":
        return _decode(path, file)
    copy = cache_folder() / "decoded" / f"{file.name}-{file.sha256[:16]}"
    content = _read_copy(copy, file)
    if content is None:
        content = _decode(path, file)
        with contextlib.suppress(OSError), replacing(copy) as stream:  # without a cache loading is only slower
            stream.write(content.data)
    return content


def _decode(path: Path, file: File) -> Bytes:
    content = decompress(path, file)
    if file.convert is not as_it_is:
        content = file.convert(checked(path, content, file.unconverted))
    return np.frombuffer(checked(path, content, file.sha256), np.uint8)


def decompress(path: Path, file: File) -> bytes:
    """The bytes of a file after decompression, at most one more than its limit."""
    try:
        with _open(path) as stream:
            return stream.read(file.limit + 1)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        known = file.packed.get(path.suffix) or "unknown"
        raise ChecksumError(
            f"{path} is damaged ({error}): the file must have SHA-256 {known}; found {file_digest(path)}"
        ) from error


def _open(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def _read_copy(copy: Path, file: File) -> Bytes | None:
    try:
        content = np.fromfile(copy, np.uint8, count=file.limit + 1)
    except OSError:
        return None
    return content if digest(content) == file.sha256 else None
