"""The tables of the page: our numbers, the paper's, and whether they agree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from equipoise.experiments.comparison import ALLOWED, Number, count_seeds
from equipoise.experiments.federated.rows import TABLES
from equipoise.experiments.federated.scores import HEADS
from equipoise.experiments.federated.settings import MOMENTUM
from equipoise.experiments.paper import Preset
from equipoise.experiments.report.fronts import hv_command, table_cells
from equipoise.experiments.report.sources import Sources
from equipoise.experiments.report.training import TaskRuns
from equipoise.experiments.results import short
from equipoise.experiments.synthetic import settings as synthetic

__all__ = ["hypervolumes", "scores"]

Record = dict[str, Any]

USUAL = TABLES["table-cifar"]
"""The rows of tab:3, the library's default and the exact FERERO."""
EXACT = 15
"""Digits of numbers in tables: enough that rounding twice gives what `reproduce` prints."""


def hypervolumes(sources: Sources) -> list[Record]:
    """tab:hv, once per preset of which there are cells."""
    return [_hypervolumes(preset, cells) for preset in get_args(Preset) if (cells := table_cells(sources, preset))]


def _hypervolumes(preset: Preset, cells: Sequence[synthetic.TableCell]) -> Record:
    published, note = preset == "published", synthetic.on_other_rays(preset)
    agree = [cell.volume.within for cell in cells if cell.volume.within is not None]
    counted = f"{sum(agree)} of {len(agree)} numbers within tolerance of the paper’s{synthetic.without_claim(cells)}. "
    nothing = "The settings are not those that made the paper’s numbers: nothing is claimed. "
    rows: dict[str, dict[str, Number]] = {}
    for one in (cell.volume for cell in cells):
        rows.setdefault(one.method, {})[one.task] = replace(one, claimed=one.claimed and published)
    return {
        "title": f"tab:hv: hypervolume{'' if published else ', settings of the paper’s text'}",
        "summary": counted if published else nothing,
        "note": f"Mean over the seeds {', '.join(map(str, synthetic.SEEDS))}; larger is better, best in bold."
        f"{note and f' {note}.'}",
        "digits": 4,
        **_columns(rows, dict.fromkeys(synthetic.PROBLEMS, "high")),
        "command": hv_command(preset),
    }


def _columns(rows: Mapping[str, Mapping[str, Number]], best: Mapping[str, str]) -> Record:
    """The numbers of each method by column, for columns of which the high or the low ones are best."""
    return {
        "columns": [{"label": HEADS.get(name, name).rstrip(" ↑↓"), "best": which} for name, which in best.items()],
        "rows": [
            {"method": method, "cells": [_cell(of[name]) if name in of else None for name in best]}
            for method, of in rows.items()
        ],
    }


def _cell(number: Number) -> Record:
    """A number beside the paper's, with whether both agree, if that is claimed."""
    ours, theirs = (short(value, EXACT) for value in number.ours), number.paper
    values = (*ours, theirs and theirs.mean, theirs and theirs.std, number.within)
    return dict(zip(("ours", "std", "paper", "paper_std", "agrees"), values, strict=True))


def scores(runs: TaskRuns) -> list[Record]:
    """tab:3 for one task, or a similar table if the paper has none; other runs in separate tables.

    The runs of tab:new are not shown: that table has other metrics, computed from three runs together.
    """
    if runs.preference:
        return []
    by_name = {entry.name: entry for entry in runs.entries}
    standard = [entry for entry in runs.entries if entry.name in USUAL]
    ratios = [entry for entry in runs.entries if ", ratio" in entry.name]
    # tab:stch has the tasks on CIFAR-10, with these settings.
    stch = MOMENTUM in by_name and runs.title.startswith("cifar") and runs.options is not None and runs.usual
    taken = {*USUAL, *([MOMENTUM] if stch else []), *(entry.name for entry in ratios)}
    others = [entry for entry in runs.entries if entry.name not in taken]
    tables = [_table(runs.only(standard), "tab:3", runs.title)] if standard else []
    if stch:
        own = runs.only([by_name[name] for name in TABLES["table-stch"] if name in by_name])
        tables.append(_table(own, "tab:stch", runs.title, own.command("table-stch")))
    if ratios:
        title = f"{runs.title}, weights updated with ratios of losses"
        tables.append(_table(runs.only(ratios), "", title, runs.command("table-ratio", tasked=False)))
    if others:
        tables.append(_table(runs.only(others), "", f"{runs.title}, other runs" if tables else runs.title))
    return tables


def _table(runs: TaskRuns, label: str, title: str, command: str | None = None) -> Record:
    """The three metrics; the label is the paper's, for a table that can be compared with it."""
    rows = {entry.name: {number.metric: number for number in entry.numbers()} for entry in runs.entries}
    agree = [number.within for of in rows.values() for number in of.values() if number.within is not None]
    inside = f"{sum(agree)} of {len(agree)} numbers"
    seeds = count_seeds(len(entry.seeds) for entry in runs.entries)
    return {
        "title": f"{label}: {title}" if label and agree else title,
        "summary": f"{inside} within {ALLOWED:g} of the paper’s standard deviations. " if agree else "",
        "note": f"Mean and standard deviation over {seeds}, on the test set; the best is bold.",
        "digits": 3,
        **_columns(rows, {metric: "high" if "↑" in head else "low" for metric, head in HEADS.items()}),
        "command": runs.table_command if command is None else command,
    }
