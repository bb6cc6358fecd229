"""Results as cells: one small JSON file per finished piece of work, named by the hash of what was asked.

No database to corrupt, lock or merge: a cell is written to a temporary name and moved into place, so
that an interrupted run leaves only whole cells and goes on where it stopped. A cell that is damaged all
the same is moved aside and made again; one that a newer version wrote is left as it is.
"""

import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.atomic import LARGEST_JSON, parse_json, replacing
from equipoise.errors import DamagedFileError
from equipoise.experiments.result_checks import fault, frame

__all__ = [
    "COMMITTED",
    "FORMAT",
    "Cell",
    "CellStore",
    "CellWarning",
    "DamagedCellError",
    "NewerCellError",
    "alike",
    "cell_name",
    "cells_in",
    "load",
    "write_atomically",
]

Spec = dict[str, Any]
Result = dict[str, Any]

COMMITTED = Path("docs/results/cells")
"""Cells that come with a checkout, read after the user's own."""

FORMAT = 2
"""Of the cells that this version writes. Format 1 has no number and no checksum, and is read too."""


class CellWarning(UserWarning):
    """A file among the cells was not used; the message says why and what became of it."""


class DamagedCellError(DamagedFileError):
    """A file is not a whole, unaltered cell; the message says what is wrong with it."""


class NewerCellError(ValueError):
    """A cell was written by a newer version."""


class Cell(NamedTuple):
    """A finished piece of work."""

    spec: Spec
    result: Result


class CellStore:
    """Cells in a folder of the user's, and read-only ones behind it.

    Args:
        folder: Where new cells go.
        behind: Folders that are read too.
    """

    def __init__(self, folder: Path, behind: Sequence[Path] = (COMMITTED,)) -> None:
        self.folder, self.behind = folder, tuple(behind)

    def read(self, spec: Spec) -> Result | None:
        """The result of a specification, or None if there is no whole cell for it.

        A damaged cell is moved to the folder `damaged` beside the others, with a CellWarning; those behind are
        passed over. So is a cell of a newer version.
        """
        name = cell_name(spec)
        for folder in (self.folder, *self.behind):
            for path in (folder / name, folder / _beside_newer(name)):
                cell = self._usable(path)
                if cell is not None:
                    return cell.result
        return None

    def source(self, spec: Spec) -> Path:
        """The folder from which a specification's result is read, if there is one."""
        names = (cell_name(spec), _beside_newer(cell_name(spec)))
        holders = (folder for folder in (self.folder, *self.behind) if any((folder / name).exists() for name in names))
        return next(holders, self.folder)

    def write(self, spec: Spec, result: Result) -> Path:
        """Store a finished cell.

        Raises:
            OSError: It could not be written; nothing is left of it.
        """
        content = {"spec": spec, "result": result}
        text = json.dumps({**content, "format": FORMAT, "sha256": _checksum(content)}, sort_keys=True, allow_nan=True)
        try:
            path = self.place(spec)
            write_atomically(path, text)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(
                error.errno,
                f"a finished result could not be kept in {self.folder}: {reason}; nothing was left half-written, "
                "and what was finished before is kept",
            ) from error
        return path

    def place(self, spec: Spec) -> Path:
        """Where a cell goes: under its own name, unless a newer version has a cell there."""
        path = self.folder / cell_name(spec)
        return path.with_name(_beside_newer(path.name)) if _is_newer(path) else path

    def _usable(self, path: Path) -> Cell | None:
        try:
            return load(path)
        except FileNotFoundError:
            return None
        except NewerCellError as error:
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


def cells_in(folders: Sequence[Path]) -> Iterator[Cell]:
    """Every whole cell of some folders; of two with the same specification, the first. Nothing is moved."""
    seen = set()
    for folder in folders:
        for path in sorted(p for p in folder.glob("*.json") if _NAME.fullmatch(p.name)):
            try:
                cell = load(path)
            except FileNotFoundError:  # moved aside meanwhile
                continue
            except (NewerCellError, DamagedCellError) as error:
                warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=2)
                continue
            name = cell_name(cell.spec)
            if name not in seen:
                seen.add(name)
                yield cell


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
        NewerCellError: A newer version wrote it.
    """
    try:
        found = parse_json(_bytes(path))
    except DamagedFileError as error:
        raise DamagedCellError(str(error)) from None
    if not isinstance(found, dict):
        raise DamagedCellError("not a cell: it must hold spec and result")
    version = found.get("format", 1)
    if isinstance(version, int) and version > FORMAT:
        raise NewerCellError(f"it has format {version}, this version knows formats up to {FORMAT}")
    if not all(isinstance(found.get(key), dict) for key in ("spec", "result")):
        raise DamagedCellError("not a cell: it must hold spec and result")
    spec, result = found["spec"], found["result"]
    name = cell_name(spec)
    if path.name not in {name, _beside_newer(name)}:
        raise DamagedCellError(f"name and content do not belong together: it must be called {name}")
    if version != 1 and found.get("sha256") != _checksum({"spec": spec, "result": result}):
        raise DamagedCellError("its content is not what its checksum says")
    if reason := fault(spec, result):
        raise DamagedCellError(reason)
    return Cell(spec, result)


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
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.json"


def _beside_newer(name: str) -> str:
    """The name of a cell whose own name is taken by one of a newer version."""
    return f"{name.removesuffix('.json')}-format{FORMAT}.json"


def _is_newer(path: Path) -> bool:
    try:
        load(path)
    except NewerCellError:
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
    except (DamagedCellError, NewerCellError):
        return target
    target.replace(path)
    return None


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the whole new one, whatever happens."""
    with replacing(path) as file:
        file.write(text.encode())
