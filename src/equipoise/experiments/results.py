"""Results as cells: a cell is a finished piece of work, found by everything that decides its result.

A new cell is one small JSON file, written to a temporary name and moved into place: an interrupted run leaves whole
cells only and goes on where it stopped. A damaged file is moved aside and made again; one that a newer version wrote is
left as it is. The cells that come with the library are one compressed file, which is read without being unpacked.
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
    "FORMAT",
    "PUBLISHED",
    "Cell",
    "CellStore",
    "CellWarning",
    "DamagedCellError",
    "Finished",
    "Imported",
    "UnknownFormatError",
    "alike",
    "cell_name",
    "cells_in",
    "import_cells",
    "load",
    "pack",
    "provenance",
    "write_atomically",
]

Spec = dict[str, Any]
Result = dict[str, Any]

PUBLISHED = Path(__file__).with_name("published.jsonl.xz")
"""The cells that come with the library, read after the user's own."""

FORMAT = 3
"""Of the cells that this version writes and reads. Formats 1 and 2 named settings by their `repr`."""
LARGEST_PACK = 1 << 28
"""Bytes of a file of cells, uncompressed."""


class CellWarning(UserWarning):
    """A file among the cells was not used; the message says why and what became of it."""


class DamagedCellError(DamagedFileError):
    """A file is not a whole, unaltered cell; the message says what is wrong with it."""


class UnknownFormatError(ValueError):
    """A cell was written by a newer version, or by one that named settings in another way."""


class Cell(NamedTuple):
    """A finished piece of work."""

    spec: Spec
    """Everything that decides the result; the cell is found by it."""
    result: Result
    names: dict[str, str]
    """What people call it: task and method."""
    made: dict[str, str]
    """By which version of the library and of torch, on which device, when."""

    @property
    def name(self) -> str:
        """That of its file."""
        return cell_name(self.spec)

    @property
    def when(self) -> tuple[str, str]:
        """When it was made, to tell which of two is later."""
        return self.made.get("date", ""), self.made.get("time", "")

    def text(self) -> str:
        """Its JSON, with a checksum."""
        content = self._asdict()
        return json.dumps({**content, "format": FORMAT, "sha256": _checksum(content)}, sort_keys=True)


class Finished(NamedTuple):
    """A result that is to be kept, and what people call it."""

    spec: Spec
    result: Result
    names: Mapping[str, str]


def provenance(device: str | None = None) -> dict[str, str]:
    """Where a cell made now comes from: versions of the library and of torch, commit, device, date and time."""
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
    """The commit of a checkout, with + if its sources were changed; EQUIPOISE_COMMIT elsewhere, if it is set."""
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
    """Cells in a folder of the user's, and read-only ones behind it.

    Args:
        folder: Where new cells go.
        behind: Folders, and files of `pack`, that are read too.
    """

    def __init__(self, folder: Path, behind: Sequence[Path] = (PUBLISHED,)) -> None:
        self.folder, self.behind = folder, tuple(behind)

    def read(self, spec: Spec) -> Result | None:
        """The result of a specification, or None if there is no whole cell for it; "made" has its provenance.

        A damaged cell is moved to the folder `damaged` beside the others, with a CellWarning; those behind are
        passed over. So is a cell of another format.
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
            spec: What decides the result.
            result: The result.
            names: What people call it: task and method.
            device: Where it was made; this machine's kind if not given.

        Raises:
            OSError: It could not be written; nothing is left of it.
        """
        return self.keep(Cell(spec, result, dict(names or {}), provenance(device)))

    def keep(self, cell: Cell) -> Path:
        """Store a cell as it is."""
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
        return path.with_name(_beside_other(path.name)) if _is_other(path) else path

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
        except UnknownFormatError as error:
            warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=3)
        except DamagedCellError as error:
            if path.parent != self.folder:
                warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=3)
                return None
            try:
                moved = _move_aside(path)
            except OSError as stuck:
                message = f"{path} is ignored: {error}; it could not be moved aside: {stuck.strerror}"
                warnings.warn(message, CellWarning, stacklevel=3)
                return None
            if moved is None:
                return self._usable(path)
            message = f"{path} is damaged ({error}); it was moved to {moved} and is made again"
            warnings.warn(message, CellWarning, stacklevel=3)
        return None


def cells_in(places: Iterable[Path]) -> Iterator[Cell]:
    """Every whole cell of some folders and packed files; of two with the same specification, the first.

    Nothing is moved.
    """
    seen = set()
    for place in places:
        for cell in _in_pack(place) if place.is_file() else _in_folder(place):
            if cell.name not in seen:
                seen.add(cell.name)
                yield cell


def _in_folder(folder: Path) -> Iterator[Cell]:
    for path in sorted(p for p in folder.glob("*.json") if _NAME.fullmatch(p.name)):
        try:
            yield load(path)
        except FileNotFoundError:  # moved aside meanwhile
            continue
        except (UnknownFormatError, DamagedCellError) as error:
            warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=3)


# ------------------------------------------------------------------------------- many cells in one file
def pack(cells: Iterable[Cell], path: Path) -> int:
    """Write cells to one compressed file of lines, a name and JSON; the first line has the checksum of the others.

    Returns:
        How many cells there are.
    """
    lines = sorted(f"{cell.name} {cell.text()}" for cell in cells)
    body = "".join(f"{line}\n" for line in lines).encode()
    head = {"format": FORMAT, "cells": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as file:
        file.write(lzma.compress(json.dumps(head).encode() + b"\n" + body, preset=9))
    return len(lines)


def _in_pack(path: Path) -> Iterator[Cell]:
    found = (_of_pack(path, name, text) for name, text in _unpacked(path).items())
    return (cell for cell in found if cell is not None)


def _of_pack(path: Path, name: str, text: bytes) -> Cell | None:
    """A cell of a packed file; None, with a warning, if its line is not one: the file may come from anywhere."""
    try:
        cell = _parse_once(text)
        _check_name(cell, name)
    except (DamagedCellError, UnknownFormatError) as error:
        warnings.warn(f"{name} in {path} is ignored: {error}", CellWarning, stacklevel=3)
        return None
    return cell


def _unpacked(path: Path) -> dict[str, bytes]:
    """The JSON of the cells of a packed file by their names; none, with a warning, if it is damaged."""
    found = path.stat()
    return _unpack_once(path, found.st_mtime_ns, found.st_size)


@cache
def _unpack_once(path: Path, _changed: int, _size: int) -> dict[str, bytes]:
    try:
        return _read_pack(path)
    except (DamagedCellError, UnknownFormatError) as error:
        warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=4)
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
        raise DamagedCellError("its content is not what its checksum says")
    if stated.get("format") != FORMAT:
        raise UnknownFormatError(f"it has format {stated.get('format')}, this version reads format {FORMAT}")
    return {name.decode(errors="replace"): text for name, _, text in (line.partition(b" ") for line in lines)}


class Imported(NamedTuple):
    """What became of the files of a folder."""

    new: int
    known: int
    refused: dict[str, str]
    """Names of files, and why each was refused."""


def import_cells(place: Path, store: CellStore) -> Imported:
    """Copy the whole cells of a folder, or of a packed file, into a store. A cell that is there already stays.

    Args:
        place: Where they lie; hidden files and folders in it are passed over.
        store: Where they go.
    """
    require(place.exists(), "the folder or file to import must exist", place)
    cells, refused = list[Cell](), dict[str, str]()
    if place.is_file():
        cells += _in_pack(place)
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
    """The results of a federated run by seed, without those that cannot be put beside the others.

    Each may be sound by itself, and have other rounds, clients or outputs than most.
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
        DamagedCellError: The file is truncated, altered, or no cell, or its result is not one of its experiment.
        UnknownFormatError: A newer version wrote it, or one before format 3.
    """
    cell = _parse(_bytes(path))
    _check_name(cell, path.name)
    return cell


def _check_name(cell: Cell, name: str) -> None:
    if name not in _names(cell.name):
        raise DamagedCellError(f"name and content do not belong together: it must be called {cell.name}")


def _parse(content: bytes) -> Cell:
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
        raise DamagedCellError("its content is not what its checksum says")
    texts: list[object] = [*cell.names.values(), *cell.made.values()]
    if not all(isinstance(text, str) and len(text) <= 200 for text in texts):
        raise DamagedCellError("names and provenance must be short texts")
    if reason := fault(cell.spec, cell.result):
        raise DamagedCellError(reason)
    return cell


_parse_once = cache(_parse)
"""For cells of a packed file, which are read by several tables."""


def _bytes(path: Path) -> bytes:
    """Of a file, which may be anything that has the name of a cell."""
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
    """The names that a cell's file may have."""
    return name, _beside_other(name)


def _beside_other(name: str) -> str:
    """The name of a cell whose own name is taken by one of another version."""
    return f"{name.removesuffix('.json')}-format{FORMAT}.json"


def _is_other(path: Path) -> bool:
    try:
        load(path)
    except UnknownFormatError:
        return True
    except (DamagedCellError, FileNotFoundError):
        return False
    return False


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _move_aside(path: Path) -> Path | None:
    """Move a damaged cell into `damaged`; None if another process has put a whole one in its place meanwhile."""
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
    """Write a file so that it is either the old one or the whole new one, whatever happens."""
    with replacing(path) as file:
        file.write(text.encode())
