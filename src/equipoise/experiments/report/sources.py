"""The sources of a report: cells, records of `solve --json`, and monitoring logs."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.atomic import LARGEST_JSON, parse_json
from equipoise.errors import DamagedFileError, require
from equipoise.experiments.result_checks import is_number, solved_fault
from equipoise.experiments.results import Cell, CellStore, CellWarning, Result, Spec, cell_name, cells_in

__all__ = ["Log", "Sources", "read"]

POINTS = 600
"""The most steps of a log; longer logs are thinned."""


class Known(CellStore):
    """Cells in memory with the interface of a `CellStore`."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        super().__init__(Path(), ())
        self.cells = tuple(cells)
        self._results = {cell.name: {**cell.result, "made": cell.made} for cell in self.cells}

    def read(self, spec: Spec) -> Result | None:
        """The result of a specification, or None."""
        return self._results.get(cell_name(spec))


@dataclass(frozen=True)
class Log:
    """A monitoring log: the dictionaries of `MultiObjective.metrics()`, one JSON object per line.

    Attributes:
        path: The file.
        steps: The steps that were kept.
        values: Every other entry, one number per kept step; None where it is missing or not finite.
    """

    path: Path
    steps: list[int]
    values: dict[str, list[float | None]]


@dataclass(frozen=True)
class Sources:
    """Everything that was found.

    Attributes:
        cells: Those of all folders.
        solved: Records of `equipoise solve --json`, with their files.
        logs: Monitoring logs.
    """

    cells: Known
    solved: list[tuple[Path, dict[str, Any]]]
    logs: list[Log]

    def __bool__(self) -> bool:
        return bool(self.cells.cells or self.solved or self.logs)


def read(given: Sequence[Path], behind: Sequence[Path] = ()) -> Sources:
    """Read results.

    Args:
        given: Folders with cells (directly, or in their folder `cells`), records and logs; or single files. If several
            have the same cell, the first counts.
        behind: Cells that come with the library.
    """
    folders, files = [], []
    for path in given:
        if path.is_file():
            files.append((path, True))
        else:
            folders += [path, path / "cells"]
            files += [(file, False) for file in sorted(path.glob("*.json*")) if file.is_file()]
    solved: list[tuple[Path, dict[str, Any]]] = []
    logs = []
    for path, named in files:
        if path.suffix == ".jsonl":
            logs.append(read_log(path))
            continue
        try:
            with path.open("rb") as file:
                record = parse_json(file.read(LARGEST_JSON + 1))
        except (DamagedFileError, OSError) as error:
            warnings.warn(f"{path} is ignored: {error}", CellWarning, stacklevel=2)
            record = None
        if isinstance(record, dict) and not solved_fault(record):
            solved.append((path, record))
        else:
            require(not named, "results must be cells, a log (.jsonl) or what `equipoise solve --json` wrote", path)
            if isinstance(record, dict) and {"problem", "preferences", "losses"} <= record.keys():
                reason = "it must have finite preferences, whole numbers as seeds, and a loss for each of both"
                warnings.warn(f"{path} is ignored: {reason}", CellWarning, stacklevel=2)
    cells = cells_in([folder for folder in (*folders, *behind) if folder.exists()])
    return Sources(Known(cells), solved, [log for log in logs if log is not None])


def read_log(path: Path) -> Log | None:
    """A monitoring log, thinned; incomplete lines are left out. None if no line has a step."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        warnings.warn(f"{path} is ignored: {error.strerror}", CellWarning, stacklevel=2)
        return None
    rows = [row for line in lines if (row := _row(line))]
    if not rows:
        warnings.warn(f"{path} is ignored: no line is an object with a step", CellWarning, stacklevel=2)
        return None
    stride = math.ceil(len(rows) / POINTS)
    kept = rows[::stride]
    if kept[-1] is not rows[-1]:
        kept.append(rows[-1])
    names = dict.fromkeys(name for row in kept for name in row if name != "step")
    return Log(path, [row["step"] for row in kept], {name: [_finite(row.get(name)) for row in kept] for name in names})


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except DamagedFileError:  # such as the last line of an interrupted run
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _finite(value: object) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None  # type: ignore[arg-type]
