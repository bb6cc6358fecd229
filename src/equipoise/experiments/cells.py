"""Results as cells: one small JSON file per finished piece of work, named by the hash of what was asked.

No database to corrupt, lock or merge: a cell is written to a temporary name and moved into place, so
that an interrupted run leaves only whole cells and goes on where it stopped.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.atomic import replacing

__all__ = ["CellStore", "write_atomically"]

Spec = dict[str, Any]
Result = dict[str, Any]

COMMITTED = Path("docs/results/cells")
"""Cells that come with a checkout, read after the user's own."""


class CellStore:
    """Cells in a folder of the user's, and read-only ones behind it.

    Args:
        folder: Where new cells go.
        behind: Folders that are read too.
    """

    def __init__(self, folder: Path, behind: Sequence[Path] = (COMMITTED,)) -> None:
        self.folder, self.behind = folder, tuple(behind)

    def read(self, spec: Spec) -> Result | None:
        """The result of a specification, or None if there is no whole cell for it."""
        name = cell_name(spec)
        for folder in (self.folder, *self.behind):
            path = folder / name
            if path.is_file():
                cell = json.loads(path.read_text(encoding="utf-8"))
                if cell.get("spec") == _plain(spec):
                    result: Result = cell["result"]
                    return result
        return None

    def write(self, spec: Spec, result: Result) -> Path:
        """Store a finished cell."""
        path = self.folder / cell_name(spec)
        text = json.dumps({"spec": spec, "result": result}, sort_keys=True, allow_nan=True)
        write_atomically(path, text)
        return path


def cell_name(spec: Spec) -> str:
    """The file name of a specification's cell."""
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.json"


def _plain(spec: Spec) -> Any:  # noqa: ANN401
    """The specification as it looks after a round trip through JSON."""
    return json.loads(json.dumps(spec))


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the whole new one, whatever happens."""
    with replacing(path) as file:
        file.write(text.encode())
