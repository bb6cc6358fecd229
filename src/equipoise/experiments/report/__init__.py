"""One self-contained HTML page of results: a front explorer, tables beside the paper's, training curves.

`sources` reads cells and the files of a user's own runs; `fronts`, `tables` and `training` turn them into plain
records; `html` renders these with the template, style and script in the folder `page`.
"""

import math
from typing import Any

from equipoise.experiments.drawing import COLOURS
from equipoise.experiments.report import fronts, tables, training
from equipoise.experiments.report.html import render
from equipoise.experiments.report.sources import Sources

__all__ = ["gather", "render", "sections"]

Record = dict[str, Any]


def gather(sources: Sources, version: str) -> Record:
    """Everything that the page shows, as one record of plain values; `version` is the library's, for the footer."""
    runs = training.runs_by_task(sources)
    record: Record = {
        "version": version,
        "colours": COLOURS,
        "sets": fronts.explored(sources),
        "tables": [*tables.hypervolumes(sources), *(table for run in runs for table in tables.scores(run))],
        "tasks": [training.as_record(run) for run in runs],
        "logs": [training.log_record(log) for log in sources.logs],
    }
    return {key: _finite(value) for key, value in record.items()}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """None for every number that is not finite: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sections(record: Record) -> str:
    """The contents of a report in a few words."""
    kinds = (("sets", "front"), ("tables", "table"), ("tasks", "federated task"), ("logs", "training log"))
    counts = ((len(record[key]), word) for key, word in kinds)
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count)
