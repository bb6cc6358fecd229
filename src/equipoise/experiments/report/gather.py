"""Everything that the page shows, as one record of plain values."""

from typing import Any

from equipoise.experiments.drawing import COLOURS
from equipoise.experiments.report import fronts, tables, training
from equipoise.experiments.report.sources import Sources

__all__ = ["gather", "sections"]

Record = dict[str, Any]


def gather(sources: Sources, version: str) -> Record:
    """The record of a report.

    Args:
        sources: The results found.
        version: The library's version, for the page footer.
    """
    runs = training.runs_by_task(sources)
    return {
        "version": version,
        "colours": COLOURS,
        "sets": fronts.explored(sources),
        "tables": [*tables.hypervolumes(sources), *(table for run in runs for table in tables.scores(run))],
        "tasks": [training.as_record(run) for run in runs],
        "logs": [training.log_record(log) for log in sources.logs],
    }


def sections(record: Record) -> str:
    """The contents of a report in a few words."""
    kinds = (("sets", "front"), ("tables", "table"), ("tasks", "federated task"), ("logs", "training log"))
    counts = ((len(record[key]), word) for key, word in kinds)
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count)
