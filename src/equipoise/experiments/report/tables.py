"""The tables of the page: our numbers, the paper's, and whether they agree."""

from collections.abc import Sequence
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
    claimed = [cell.volume.within for cell in cells if cell.volume.within is not None]
    known = {(cell.method, cell.problem): _cell(cell.volume, claimed=published) for cell in cells}
    return {
        "title": f"tab:hv: hypervolume{'' if published else ', settings of the paper’s text'}",
        "summary": f"{sum(claimed)} of {len(claimed)} numbers within tolerance of the paper’s"
        f"{synthetic.without_claim(cells)}. "
        if published
        else "The settings are not those that made the paper’s numbers: nothing is claimed. ",
        "note": f"Mean over the seeds {', '.join(map(str, synthetic.SEEDS))}; larger is better, best in bold."
        f"{note and f' {note}.'}",
        "digits": 4,
        "columns": [{"label": name, "best": "high"} for name in synthetic.PROBLEMS],
        "rows": [
            {"method": name, "cells": [known.get((name, problem)) for problem in synthetic.PROBLEMS]}
            for name in dict.fromkeys(cell.method for cell in cells)
        ],
        "command": hv_command(preset),
    }


def _cell(number: Number, *, claimed: bool) -> Record:
    """A number beside the paper's, with whether both agree, if that is claimed."""
    ours, theirs = (short(value, EXACT) for value in number.ours), number.paper
    values = (*ours, theirs and theirs.mean, theirs and theirs.std, number.within if claimed else None)
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
    apart = {MOMENTUM} if _is_stch(runs) else set()
    taken = {*USUAL, *apart, *(entry.name for entry in ratios)}
    others = [entry for entry in runs.entries if entry.name not in taken]
    tables = [_table(runs.only(standard), "tab:3", runs.title)] if standard else []
    if MOMENTUM in by_name and apart:
        own = runs.only([by_name[name] for name in TABLES["table-stch"] if name in by_name])
        tables.append(_table(own, "tab:stch", runs.title, own.command("table-stch")))
    if ratios:
        title = f"{runs.title}, weights updated with ratios of losses"
        tables.append(_table(runs.only(ratios), "", title, runs.command("table-ratio", tasked=False)))
    if others:
        tables.append(_table(runs.only(others), "", f"{runs.title}, other runs" if tables else runs.title))
    return tables


def _is_stch(runs: TaskRuns) -> bool:
    """Whether tab:stch has this task, with these settings."""
    return runs.title.startswith("cifar") and runs.options is not None and runs.usual


def _table(runs: TaskRuns, label: str, title: str, command: str | None = None) -> Record:
    """The three metrics; the label is the paper's, for a table that can be compared with it."""
    numbers = [number for entry in runs.entries for number in entry.numbers()]
    claimed = [number.within for number in numbers if number.within is not None]
    inside = f"{sum(map(bool, claimed))} of {len(claimed)} numbers"
    seeds = count_seeds(len(entry.seeds) for entry in runs.entries)
    return {
        "title": f"{label}: {title}" if label and claimed else title,
        "summary": f"{inside} within {ALLOWED:g} of the paper’s standard deviations. " if claimed else "",
        "note": f"Mean and standard deviation over {seeds}, on the test set; the best is bold.",
        "digits": 3,
        "columns": [{"label": head.rstrip(" ↑↓"), "best": "high" if "↑" in head else "low"} for head in HEADS.values()],
        "rows": [
            {"method": entry.name, "cells": [_cell(_claimed(number), claimed=True) for number in entry.numbers()]}
            for entry in runs.entries
        ],
        "command": runs.table_command if command is None else command,
    }


def _claimed(number: Number) -> Number:
    """The number, without the paper's if both cannot be compared."""
    return number if number.claimed else replace(number, paper=None)
