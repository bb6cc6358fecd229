"""Atomic files with checksums: a file is replaced in one rename, and verified when it is read."""

import contextlib
import errno
import glob
import hashlib
import io
import json
import os
import secrets
import stat
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from equipoise.errors import DamagedFileError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "check_json",
    "check_zip",
    "parse_json",
    "read_json",
    "read_plain",
    "release_lock",
    "replacing",
    "sealed_zip",
    "take_lock",
    "write_json",
]

LARGEST_JSON = 1 << 26
"""The most bytes of a JSON file; the library's own are far smaller."""
DEEPEST_JSON = 32
_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A temporary file next to `path` to write to; on success it is renamed to `path`.

    On failure it is removed, and an existing file at `path` stays intact. The new file gets the permissions of the old
    one. Links are followed. Missing folders are created. Temporary files of killed writers are removed.

    Raises:
        OSError: The file cannot be written; `strerror` says why, `filename` is the path.
    """
    target = Path(os.path.realpath(path))
    with _naming(path):
        mode = _permissions(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_parts(target)
        handle, temporary = _new_part(target, mode)
    raw = _Remembering(handle, "wb")
    try:
        file = io.BufferedWriter(raw)
        yield file
        with _naming(path):
            file.flush()
            raw.check()
            os.fsync(handle)
            if sys.platform == "win32":
                raw.close()  # Windows cannot rename an open file
            temporary.replace(target)
    except BaseException as error:
        raw.close()  # before the buffer closes, which would write again
        temporary.unlink(missing_ok=True)
        # A library may replace the error of a write, or an interrupt during it, by an error of its own.
        if isinstance(error, Exception) and isinstance(raw.failure, OSError):
            raise OSError(raw.failure.errno, raw.failure.strerror, str(path)) from error
        if isinstance(error, Exception) and raw.failure is not None:
            raise raw.failure from error
        raise
    finally:
        raw.close()  # last: this releases the lock


class _Remembering(io.FileIO):
    """A file that remembers the error of a write."""

    failure: BaseException | None = None

    def write(self, data: Any, /) -> int:  # noqa: ANN401
        """Write, and remember an error."""
        try:
            return super().write(data)
        except BaseException as error:
            self.failure = error
            raise

    def check(self) -> None:
        """Raise the error of an earlier write, in case a caller has swallowed it."""
        if self.failure is not None:
            raise self.failure


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make errors name the target file, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _permissions(target: Path) -> int | None:
    """The permission bits of an existing file."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "only a regular file can be replaced")
    return stat.S_IMODE(found.st_mode) & 0o777


def _new_part(target: Path, mode: int | None) -> tuple[int, Path]:
    """Create and lock a temporary file next to the target; if the process is killed, the lock ends and it is stale."""
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | _BINARY, 0o666 if mode is None else mode)
        if sys.platform == "win32":
            return handle, part
        with contextlib.suppress(OSError):  # the file system may have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else another writer got the lock first and removed the file as stale
            if mode is not None:
                os.fchmod(handle, mode)
            return handle, part
        os.close(handle)


def _remove_stale_parts(target: Path) -> None:
    """Remove temporary files that nobody has locked. Links and other files stay."""
    if sys.platform == "win32":
        return
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError):
            handle = os.open(part, os.O_RDONLY | _NO_FOLLOW)
            try:
                found = os.fstat(handle)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()
            finally:
                os.close(handle)


def take_lock(path: str | os.PathLike[str]) -> int:
    """Lock a file and write the process id to it. The lock ends with the process, however it ends.

    If the file system has no locks, nothing is locked.

    Returns:
        The handle, for `release_lock`.

    Raises:
        BlockingIOError: Another process holds the lock; `strerror` names it.
        OSError: The file is a link, or holds something other than a process id; it is not changed.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o666)
    except OSError as error:
        reason = "the lock must not be a link" if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, reason, str(path)) from error
    try:
        _lock_handle(handle, _holder(handle, str(path)), str(path))
        with _naming(path):
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, str(os.getpid()).encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


def _holder(handle: int, path: str) -> str:
    """The process id that a lock file holds."""
    found = os.read(handle, 32) if stat.S_ISREG(os.fstat(handle).st_mode) else b"another kind of file"
    if found and not found.isdigit():
        raise OSError(errno.EEXIST, "the lock must be a file of this library; found another one", path)
    return found.decode() or "unknown"


def _lock_handle(handle: int, holder: str, path: str) -> None:
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"open in process {holder}", path) from None
        except OSError:
            pass


def release_lock(handle: int, owner: int) -> None:
    """Release a lock, unless this is a forked process: it shares the lock and must not release it.

    Args:
        handle: From `take_lock`.
        owner: The process that took it.
    """
    if os.getpid() != owner:
        return
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # for every process that shares it
    os.close(handle)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a JSON object with the SHA-256 of its canonical form as the field "sha256".

    Raises:
        ValueError: A number is not finite, or there is a field "sha256".
    """
    if "sha256" in content:
        raise ValueError(f"content must not have a field 'sha256'; found {content['sha256']!r}")
    with replacing(path) as file:
        file.write(json.dumps({**content, "sha256": _digest(content)}, sort_keys=True, indent=1).encode())


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file written by `write_json`.

    Raises:
        DamagedFileError: The file was altered or truncated; the message names it.
        FileNotFoundError: There is no such file.
    """
    with Path(path).open("rb") as file:
        return check_json(file.read(LARGEST_JSON + 1), path)


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """Read an untrusted file. It must be a regular file of limited length: no link, and nothing that blocks.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        DamagedFileError: The file is of another kind, or longer.
        FileNotFoundError: There is no such file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NO_FOLLOW | _BINARY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"{os.fspath(path)} must be a plain file; found one that cannot be opened") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        os.close(handle)
        kind = f"{found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "another kind of file"
        raise DamagedFileError(f"{os.fspath(path)} must be a plain file of at most {most} bytes; found {kind}")
    with os.fdopen(handle, "rb") as file:
        return file.read(most)


def check_json(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Verify and parse the bytes of a file that `write_json` wrote; the path is for the error message.

    Raises:
        DamagedFileError: The bytes differ from what was written.
    """
    try:
        content = parse_json(data)
        if not isinstance(content, dict):
            raise ValueError("a JSON object is needed; found another value")  # noqa: TRY004, TRY301
        found, here = content.pop("sha256", None), _digest(content)
    except ValueError as error:
        raise DamagedFileError(f"{os.fspath(path)} is damaged: {error}") from None
    if found != here:
        raise DamagedFileError(f"{os.fspath(path)} is damaged: its content must have SHA-256 {found}; found {here}")
    return content


def parse_json(data: bytes) -> Any:  # noqa: ANN401
    """Parse untrusted JSON with limits on its length, its nesting, and the size of whole numbers.

    Raises:
        DamagedFileError: It is not JSON or exceeds a limit; the message says which.
    """
    if len(data) > LARGEST_JSON:
        raise DamagedFileError(f"a JSON file must have at most {LARGEST_JSON} bytes; found more")
    try:
        content = json.loads(data)
    except RecursionError:
        raise DamagedFileError(f"JSON must be nested at most {DEEPEST_JSON} deep; found more") from None
    except ValueError:
        raise DamagedFileError("not a whole JSON file") from None
    level = [content]
    for _ in range(DEEPEST_JSON + 1):
        if any(isinstance(one, int) and one.bit_length() > sys.float_info.max_exp - 1 for one in level):
            raise DamagedFileError("a number must not be larger than a float can be; found one that is")
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return content
    raise DamagedFileError(f"JSON must be nested at most {DEEPEST_JSON} deep; found more")


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def sealed_zip(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Like `replacing`, for `torch.save` or `numpy.savez`: stores the SHA-256 of the content in the zip's comment.

    The checksums of the zip format do not cover its directory. Any zip reader can still read the file.
    """
    with replacing(path) as file:
        yield file
        file.seek(-2, os.SEEK_END)  # the length of the comment, 0 until now
        file.write(_SEAL_SIZE.to_bytes(2, "little"))
        file.flush()
        with os.fdopen(os.dup(file.fileno()), "rb") as written:
            written.seek(0)
            seal = _SEAL + hashlib.file_digest(written, "sha256").hexdigest().encode()
        file.seek(0, os.SEEK_END)
        file.write(seal)


_SEAL = b"sha256="
_SEAL_SIZE = len(_SEAL) + 64


def check_zip(path: str | os.PathLike[str]) -> None:
    """Verify a file written by `sealed_zip` before anything reads it.

    Parts must have plain, different names and must not be compressed, so that none is larger than the file.

    Raises:
        DamagedFileError: The file was truncated or altered, or is not such a file; the message names it.
        FileNotFoundError: There is no such file.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SEAL_SIZE))
        found, digest, rest = file.read(), hashlib.sha256(), max(0, size - _SEAL_SIZE)
        file.seek(0)
        while rest and (chunk := file.read(min(rest, 1 << 20))):
            digest.update(chunk)
            rest -= len(chunk)
        try:
            if found != _SEAL + digest.hexdigest().encode():
                raise ValueError(f"it must end with its SHA-256, {digest.hexdigest()}; found another end")  # noqa: TRY301
            with zipfile.ZipFile(file) as archive:
                _check_parts(archive.infolist(), size)
        except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OverflowError, struct.error) as error:
            raise DamagedFileError(f"{os.fspath(path)} is damaged, or not a file of this library: {error}") from None


def _check_parts(parts: list[zipfile.ZipInfo], size: int) -> None:
    names = [part.filename for part in parts]
    plain = all(name == str(PurePosixPath(name)) and not name.startswith(("/", "../")) for name in names)
    if not plain or len(set(names)) < len(names) or any("/../" in name or "\\" in name for name in names):
        raise ValueError("its parts must have plain, different names")
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts) or sum(p.file_size for p in parts) > size:
        raise ValueError("its parts must not be compressed")
