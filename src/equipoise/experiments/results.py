"""Results as cells: a cell is a finished piece of work; its key is everything that determines its result.

A new cell is one small JSON file, replaced atomically: an interrupted run leaves only complete cells and resumes where
it stopped. A damaged file is moved aside and computed again; one from a newer version is left unchanged. The cells that
come with the library are one compressed file, which is read without being unpacked.
"""

import hashlib
import json
import lzma
import os
import platform
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equipoise.atomic import LARGEST_JSON, parse_json, replacing
from equipoise.errors import DamagedFileError, require
from equipoise.experiments.result_checks import fault, frame
from equipoise.identity import digest

__all__ = [
    "FORMAT", "PUBLISHED", "Cell", "CellStore", "CellWarning", "DamagedCellError", "Finished", "Imported",
    "UnknownFormatError", "alike", "cell_name", "cells_in", "import_cells", "load", "pack", "provenance", "short",
    "write_atomically",
]  # fmt: skip

Spec = dict[str, Any]
Result = dict[str, Any]

PUBLISHED = Path(__file__).with_name("published.jsonl.xz")
"""The cells that come with the library, read after the user's own."""

FORMAT = 3
"""The format of the cells that this version writes and reads. Formats 1 and 2 named settings by their `repr`."""
LARGEST_PACK = 1 << 28
"""The most bytes of a file of cells, uncompressed."""


class CellWarning(UserWarning):
    """A file among the cells was not used; the message says why and what happened to it."""


class DamagedCellError(DamagedFileError):
    """A file is not a complete, unaltered cell; the message says what is wrong."""


class UnknownFormatError(ValueError):
    """A cell was written by a newer version, or by one with another naming of settings."""


class Cell(NamedTuple):
    """A finished piece of work."""

    spec: Spec
    """Everything that determines the result: the cell's key."""
    result: Result
    names: dict[str, str]
    """Labels: task and method."""
    made: dict[str, str]
    """The versions of the library and of torch, the device, and the time."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return cell_name(self.spec)

    @property
    def when(self) -> tuple[str, str]:
        """When it was computed, to tell which of two is later."""
        return self.made.get("date", ""), self.made.get("time", "")

    def text(self) -> str:
        """Its JSON, with a checksum."""
        content = self._asdict()
        return json.dumps({**content, "format": FORMAT, "sha256": _checksum(content)}, sort_keys=True)


class Finished(NamedTuple):
    """A result to store, with its labels."""

    spec: Spec
    result: Result
    names: Mapping[str, str]


def provenance(device: str | None = None) -> dict[str, str]:
    """The provenance of a cell computed now: versions of the library and of torch, commit, device, date and time."""
    from equipoise import __version__  # noqa: PLC0415 (the package imports its parts)

    now = datetime.now(UTC)
    return {
        "equipoise": __version__,
        "commit": _commit(),
        "torch": str(torch.__version__),
        "device": device or platform.machine(),
        "date": now.date().isoformat(),
        "time": now.time().isoformat(timespec="milliseconds"),
    }


@cache
def _commit() -> str:
    """The commit of a checkout, with + if its sources were changed; elsewhere EQUIPOISE_COMMIT, if set."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("EQUIPOISE_COMMIT", "")

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "src") else "")
    except OSError:
        return ""


class CellStore:
    """Cells in the user's folder, with read-only places as fallback.

    Args:
        folder: Where new cells go.
        behind: Further folders, and files of `pack`, to read from.
    """

    def __init__(self, folder: Path, behind: Sequence[Path] = (PUBLISHED,)) -> None:
        self.folder, self.behind = folder, tuple(behind)

    def read(self, spec: Spec) -> Result | None:
        """The result of a specification, or None if there is no complete cell for it; "made" has its provenance.

        A damaged cell in the user's folder is moved to its sub-folder `damaged`, with a CellWarning; elsewhere it is
        skipped. A cell of another format is skipped.
        """
        name = cell_name(spec)
        for place in (self.folder, *self.behind):
            cell = self._in(place, name)
            if cell is not None:
                return {**cell.result, "made": cell.made}
        return None

    def source(self, spec: Spec) -> Path:
        """The folder or file from which a specification's result is read, if there is one."""
        name = cell_name(spec)
        for place in (self.folder, *self.behind):
            if name in _unpacked(place) if place.is_file() else any((place / n).exists() for n in _names(name)):
                return place
        return self.folder

    def write(self, spec: Spec, result: Result, names: Mapping[str, str] | None = None, device: str = "") -> Path:
        """Store a finished cell.

        Args:
            spec: What determines the result.
            result: The result.
            names: Labels: task and method.
            device: Where it was computed; by default this machine's kind.

        Raises:
            OSError: It could not be written; nothing is left of it.
        """
        return self.keep(Cell(spec, result, dict(names or {}), provenance(device)))

    def keep(self, cell: Cell) -> Path:
        """Store a cell unchanged."""
        try:
            path = self.place(cell.spec)
            write_atomically(path, cell.text())
        except OSError as error:
            reason = error.strerror or error
            raise OSError(
                error.errno,
                f"a finished result could not be kept in {self.folder}: {reason}; nothing was left half-written, "
                "and what was finished before is kept",
            ) from error
        return path

    def place(self, spec: Spec) -> Path:
        """Where a cell goes: under its own name, unless another version has a cell there."""
        path = self.folder / cell_name(spec)
        try:
            load(path)
        except UnknownFormatError:
            return path.with_name(_names(path.name)[1])
        except (DamagedCellError, FileNotFoundError):
            pass  # it is replaced
        return path

    def _in(self, place: Path, name: str) -> Cell | None:
        if place.is_file():
            text = _unpacked(place).get(name)
            return None if text is None else _of_pack(place, name, text)
        return next((cell for n in _names(name) if (cell := self._usable(place / n)) is not None), None)

    def _usable(self, path: Path) -> Cell | None:
        try:
            return load(path)
        except FileNotFoundError:
            return None
        except (UnknownFormatError, DamagedCellError) as error:
            message = f"{path} is ignored: {error}"
            if isinstance(error, DamagedCellError) and path.parent == self.folder:
                try:
                    moved = _move_aside(path)
                except OSError as stuck:
                    message += f"; it could not be moved aside: {stuck.strerror}"
                else:
                    if moved is None:
                        return self._usable(path)
                    message = f"{path} is damaged ({error}); it was moved to {moved} and is made again"
        warnings.warn(message, CellWarning, stacklevel=3)
        return None


@contextmanager
def _ignored(what: object) -> Iterator[None]:
    """Warn of what is damaged or of another version, and go on without it: files may come from anywhere."""
    try:
        yield
    except (UnknownFormatError, DamagedCellError) as error:
        warnings.warn(f"{what} is ignored: {error}", CellWarning, stacklevel=4)


def cells_in(places: Iterable[Path]) -> Iterator[Cell]:
    """Every complete cell of some folders and packed files; of two with the same specification, the first.

    Nothing is moved.
    """
    seen = set()
    for place in places:
        for cell in _in_place(place):
            if cell.name not in seen:
                seen.add(cell.name)
                yield cell


def _in_place(place: Path) -> Iterator[Cell]:
    if place.is_file():
        found = (_of_pack(place, name, text) for name, text in _unpacked(place).items())
        yield from (cell for cell in found if cell is not None)
    for path in sorted(p for p in place.glob("*.json") if _NAME.fullmatch(p.name)):
        with _ignored(path), suppress(FileNotFoundError):  # moved aside meanwhile
            yield load(path)


# ------------------------------------------------------------------------------- many cells in one file
def pack(cells: Iterable[Cell], path: Path) -> int:
    """Write cells to one compressed file: name and JSON per line, a checksum in the first; returns their number."""
    lines = sorted(f"{cell.name} {cell.text()}" for cell in cells)
    body = "".join(f"{line}\n" for line in lines).encode()
    head = {"format": FORMAT, "cells": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as file:
        file.write(lzma.compress(json.dumps(head).encode() + b"\n" + body, preset=9))
    return len(lines)


def _of_pack(path: Path, name: str, text: bytes) -> Cell | None:
    with _ignored(f"{name} in {path}"):
        return _parse_once(text, name)
    return None


def _unpacked(path: Path) -> dict[str, bytes]:
    """The JSON of a packed file's cells by name; empty, with a warning, if the file is damaged."""
    found = path.stat()
    return _unpack_once(path, found.st_mtime_ns, found.st_size)


@cache
def _unpack_once(path: Path, _changed: int, _size: int) -> dict[str, bytes]:
    with _ignored(path):
        return _read_pack(path)
    return {}


def _read_pack(path: Path) -> dict[str, bytes]:
    try:
        raw = lzma.LZMADecompressor(memlimit=LARGEST_PACK).decompress(path.read_bytes(), LARGEST_PACK + 1)
        head, _, body = raw.partition(b"\n")
        stated = parse_json(head)
        lines = body.splitlines()
    except (lzma.LZMAError, EOFError, DamagedFileError) as error:
        raise DamagedCellError(f"not a whole file of cells: {error}") from None
    if not isinstance(stated, dict) or stated.get("sha256") != hashlib.sha256(body).hexdigest():
        raise DamagedCellError("its content does not match its checksum")
    if stated.get("format") != FORMAT:
        raise UnknownFormatError(f"it has format {stated.get('format')}, this version reads format {FORMAT}")
    return {name.decode(errors="replace"): text for name, _, text in (line.partition(b" ") for line in lines)}


class Imported(NamedTuple):
    """The outcome of an import."""

    new: int
    known: int
    refused: dict[str, str]
    """Names of files, and why each was refused."""


def import_cells(place: Path, store: CellStore) -> Imported:
    """Copy the complete cells of a folder (not of hidden files) or packed file into a store. Existing cells stay."""
    require(place.exists(), "the folder or file to import must exist", place)
    cells, refused = list[Cell](), dict[str, str]()
    if place.is_file():
        cells += _in_place(place)
    else:
        for path in sorted(p for p in place.iterdir() if p.is_file() and not p.name.startswith(".")):
            try:
                cells.append(load(path))
            except ValueError as error:
                refused[path.name] = str(error)
    new = [cell for cell in cells if store.read(cell.spec) is None]
    for cell in new:
        store.keep(cell)
    return Imported(len(new), len(cells) - len(new), refused)


# ------------------------------------------------------------------------------- one cell
def alike(results: Mapping[int, Result], label: str) -> dict[int, Result]:
    """The results of a federated run by seed, without those that cannot be compared with the others.

    A result may be valid by itself but have other rounds, clients or outputs than most.
    """
    frames = {seed: frame(result) for seed, result in results.items()}
    usual = Counter(frames.values()).most_common(1)
    for seed in (seed for seed, one in frames.items() if one != usual[0][0]):
        message = f"seed {seed} of {label} is ignored: it has other rounds, clients or outputs than most seeds"
        warnings.warn(message, CellWarning, stacklevel=2)
    return {seed: result for seed, result in results.items() if frames[seed] == usual[0][0]}


_NAME = re.compile(r"[0-9a-f]{24}(-format\d+)?\.json")


def load(path: Path) -> Cell:
    """Read a cell.

    Raises:
        DamagedCellError: The file is truncated, altered or not a cell, or its result does not fit its experiment.
        UnknownFormatError: A newer version wrote it, or one before format 3.
    """
    return _parse(_bytes(path), path.name)


def _parse(content: bytes, name: str) -> Cell:
    try:
        found = parse_json(content)
    except DamagedFileError as error:
        raise DamagedCellError(str(error)) from None
    if not isinstance(found, dict):
        raise DamagedCellError("not a cell: it must hold spec and result")
    version = found.get("format", 1)
    if isinstance(version, int) and version != FORMAT:
        raise UnknownFormatError(f"it has format {version}, this version reads format {FORMAT}")
    if not all(isinstance(found.get(key), dict) for key in Cell._fields):
        raise DamagedCellError(f"not a cell: it must hold {', '.join(Cell._fields)}")
    cell = Cell(*(found[key] for key in Cell._fields))
    if found.get("sha256") != _checksum(cell._asdict()):
        raise DamagedCellError("its content does not match its checksum")
    texts: list[object] = [*cell.names.values(), *cell.made.values()]
    if not all(isinstance(text, str) and len(text) <= 200 for text in texts):
        raise DamagedCellError("names and provenance must be short texts")
    if reason := fault(cell.spec, cell.result):
        raise DamagedCellError(reason)
    if name not in _names(cell.name):
        raise DamagedCellError(f"name and content do not belong together: it must be called {cell.name}")
    return cell


_parse_once = cache(_parse)
"""A cache for cells of a packed file, which several tables read."""


def _bytes(path: Path) -> bytes:
    """The bytes of a file that has the name of a cell but may be anything."""
    if path.exists() and not path.is_file():
        raise DamagedCellError("not a file")
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_JSON + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedCellError(f"it cannot be read: {error.strerror}") from error


def cell_name(spec: Spec) -> str:
    """The file name of a specification's cell."""
    return f"{digest(spec)}.json"


def _names(name: str) -> tuple[str, str]:
    """The names that a cell's file may have: its own, and another if a cell of another version has taken that."""
    return name, f"{name.removesuffix('.json')}-format{FORMAT}.json"


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _move_aside(path: Path) -> Path | None:
    """Move a damaged cell into `damaged`; None if another process has replaced it by a complete one meanwhile."""
    target = path.parent / "damaged" / path.name
    target.parent.mkdir(exist_ok=True)
    try:
        path.replace(target)
        load(target)
    except FileNotFoundError:
        return None
    except (DamagedCellError, UnknownFormatError):
        return target
    target.replace(path)
    return None


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(text.encode())


def short(values: torch.Tensor | float | list[Any], digits: int = 6) -> Any:  # noqa: ANN401
    """A number or nested lists of numbers with a few significant digits: people read cells too."""
    plain = values.tolist() if isinstance(values, torch.Tensor) else values
    return [short(x, digits) for x in plain] if isinstance(plain, list) else float(f"{plain:.{digits}g}")
