"""Cells as one table: a row per task, method, output, metric and seed, for pandas or a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equipoise import metrics, preference
from equipoise.atomic import replacing
from equipoise.errors import require
from equipoise.experiments.results import PUBLISHED, Cell, cells_in

__all__ = ["ResultRow", "export", "results", "rows_of"]


class ResultRow(NamedTuple):
    """One number."""

    study: str
    """synthetic, federated, or conversions (the default compared with others)."""
    task: str
    method: str
    output: str
    """The output of the trajectory: last, average, adaptive …"""
    reported: bool
    """Whether this output is what the method reports."""
    part: str
    """train or test, for federated runs."""
    metric: str
    seed: int
    value: float
    preference: str
    steps: int
    """Steps, or rounds."""
    precision: str
    """Of the layers' products: bfloat16, or float32, which includes TF32: it differs only by rounding."""
    device: str
    equipoise: str
    commit: str
    torch: str
    date: str
    cell: str
    """The name of the cell that holds it."""


def results(folder: str | Path | None = None, *, published: bool = True) -> list[ResultRow]:
    """All finished runs as a table: those in your folder, and those that come with the library.

    Args:
        folder: A folder of results, such as `out`, or a file of `equipoise runs pack`.
        published: Whether to include the results that come with the library.

    Returns:
        One row per task, method, output, metric and seed. `pandas.DataFrame(eq.results())` has named columns.

    Examples:
        >>> found = eq.results()
        >>> one = [r for r in found if r.task == "mnist-rotation" and r.method == "LS" and r.metric == "accuracy"]
        >>> sorted({r.seed for r in one})
        [0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003]
    """
    places = []
    if folder is not None:
        path = Path(folder)
        require(path.exists(), "folder must exist", folder)
        places += [path] if path.is_file() else [path, path / "cells"]
    return [row for cell in cells_in([*places, *([PUBLISHED] if published else [])]) for row in rows_of(cell)]


def export(rows: Sequence[ResultRow], path: Path) -> None:
    """Write a table to a file: .csv, or .parquet if pyarrow is installed.

    Raises:
        ValueError: The file has another suffix, or pyarrow is missing.
    """
    require(path.suffix in {".csv", ".parquet"}, "the file must end with .csv or .parquet", path)
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(ResultRow._fields)
        writer.writerows(rows)
        content = text.getvalue().encode()
    else:
        try:
            import pyarrow as pa  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
            from pyarrow import parquet  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
        except ImportError:
            raise ValueError("a file that ends with .parquet needs pyarrow: pip install pyarrow; found none") from None
        table, buffer = (
            pa.table({name: [getattr(row, name) for row in rows] for name in ResultRow._fields}),
            io.BytesIO(),
        )
        parquet.write_table(table, buffer)
        content = buffer.getvalue()
    with replacing(path) as file:
        file.write(content)


# ------------------------------------------------------------------------------- cells into rows
def rows_of(cell: Cell) -> Iterator[ResultRow]:
    """The rows of one cell; none if this version does not know its experiment."""
    study = str(cell.spec.get("experiment"))
    read = {"synthetic": _synthetic, "federated": _federated, "conversions": _conversions}.get(study)
    shared = (
        ", ".join(f"{w:g}" for w in cell.spec.get("preference", ())),
        _steps(cell),
        str(cell.spec.get("precision", "float32")),
        *(cell.made.get(key, "") for key in ("device", "equipoise", "commit", "torch", "date")),
        cell.name.removesuffix(".json"),
    )
    for *of, value in () if read is None else read(cell):
        yield ResultRow._make((study, cell.names.get("task", ""), *of, float(value), *shared))


_Value = tuple[str, str, bool, str, str, int, float]
"""Method, output, whether it is reported, part, metric, seed, value."""


def _steps(cell: Cell) -> int:
    task = cell.spec.get("task", cell.spec.get("problem"))
    found = cell.spec.get("steps") or (task.get("rounds", 0) if isinstance(task, dict) else 0)
    return found if isinstance(found, int) else 0


def _synthetic(cell: Cell) -> Iterator[_Value]:
    losses = torch.tensor(cell.result["losses"], dtype=torch.float64)
    w = preference.linspace(len(losses))
    measured: dict[str, Any] = {
        "tch": metrics.tch(losses, w).nanmean(),
        "hypervolume": cell.result["hypervolume"],
        "imbalance": metrics.imbalance(losses, w).nanmedian(),
        "diverged": cell.result["diverged"],
    }
    for metric, value in measured.items():
        yield cell.names.get("method", ""), "answer", True, "", metric, cell.spec["seed"], float(value)


def _federated(cell: Cell) -> Iterator[_Value]:
    names, outputs = (cell.names.get(key, "").split("; ") for key in ("method", "output"))
    called = dict(zip(outputs, names, strict=False)) if len(names) == len(outputs) else {}
    for output, parts in cell.result["outputs"].items():
        method = called.get(output, names[0])
        for part, scores in parts.items():
            for metric in ("accuracy", "agnostic_loss", "accuracy_parity"):
                yield method, output, output in called, part, metric, cell.spec["seed"], scores[metric]


def _conversions(cell: Cell) -> Iterator[_Value]:
    answer = cell.names.get("output", "")
    for output, of in cell.result.items():
        for metric in ("tch", "hypervolume", "test", "gap") if isinstance(of, dict) else ():
            for seed, value in zip(cell.spec["seeds"], of.get(metric, ()), strict=False):
                yield cell.names.get("method", ""), output, output == answer, "", metric, seed, value


def count(cells: Iterable[Cell]) -> dict[tuple[str, str, str], int]:
    """How many cells there are of every study, task and method."""
    found: dict[tuple[str, str, str], int] = {}
    for cell in cells:
        rounds = f", {_steps(cell)} rounds" if cell.spec.get("experiment") == "federated" else ""
        names = cell.names.get("task", "?") + rounds, cell.names.get("method", "?")
        key = (str(cell.spec.get("experiment", "?")), *names)
        found[key] = found.get(key, 0) + 1
    return found
