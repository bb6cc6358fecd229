"""From records to tables."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from benchmarks.defaults.columns import BASE, OURS, TUNED, columns
from benchmarks.defaults.results import Record

CLOSE = 0.02
"""A column is near the best if its mean value is at most this share above the best one's."""
AHEAD = 0.01
"""The weighted sum is better if every objective is lower by more than this share."""


class Score(NamedTuple):
    """How good a column is on a row.

    Attributes:
        tch: Mean of max_i w_i f_i over seeds and preferences.
        excess: Mean of max_i w_i f_i over its exact value, minus 1; where no exact value is known over the least
            mean of all columns.
        imbalance: Median over seeds and the preferences that are judged.
        behind: Runs in which the weighted sum is better in every objective; None if there is none to compare with.
        runs: Seeds × preferences.
        test: Mean of max_i w_i f_i on test data; None if there is none.
        accuracy: Test accuracy of the worst group, mean over seeds; None if not looked at.
    """

    tch: float
    excess: float
    imbalance: float | None
    behind: int | None
    runs: int
    test: float | None
    accuracy: float | None


class Row(NamedTuple):
    """All columns of one row."""

    half: str
    name: str
    part: str
    scores: dict[str, Score]


def rows(records: Iterable[Record]) -> list[Row]:
    """The scores of every row, with the tuned columns added."""
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        groups[record.half, record.row][record.column] = record
    return [_row(half, name, found) for (half, name), found in groups.items()]


def _row(half: str, name: str, found: dict[str, Record]) -> Row:
    base = found.get(BASE)
    scores = {column: _score(record, base) for column, record in found.items()}
    first = next(iter(found.values()))
    if not first.exact:
        scores = _relative(scores)
    return Row(half, name, first.part, with_tuned(scores))


def with_tuned(scores: dict[str, Score]) -> dict[str, Score]:
    """The scores with those of the tuned columns."""
    best = {
        column: min((scores[part] for part in parts), key=lambda score: score.excess)
        for column, parts in TUNED.items()
        if all(part in scores for part in parts)
    }
    return {**scores, **best}


def _score(record: Record, base: Record | None) -> Score:
    w = torch.tensor(record.preferences, dtype=torch.float64)
    f = torch.tensor(record.train, dtype=torch.float64)
    weighted = w * f
    value = weighted.amax(-1)
    exact = torch.tensor(record.exact or [torch.nan], dtype=torch.float64)
    off = (value / weighted.amin(-1).clamp_min(1e-12) - 1)[:, record.judged]
    behind = None
    if base is not None and base.column != record.column:
        behind = int((torch.tensor(base.train, dtype=torch.float64) < (1 - AHEAD) * f).all(-1).sum())
    test = float((w * torch.tensor(record.test, dtype=torch.float64)).amax(-1).mean()) if record.test else None
    return Score(
        tch=float(value.mean()),
        excess=float((value / exact - 1).mean()),
        imbalance=float(off.median()) if record.judged else None,
        behind=behind,
        runs=value.numel(),
        test=test,
        accuracy=statistics.mean(record.accuracy) if record.accuracy else None,
    )


def table(found: Sequence[Row]) -> str:
    """Every row: median imbalance/mean excess in %, with the runs in which the weighted sum is ahead in brackets."""
    shown = _columns(found)
    width = max(len(row.name) for row in found) + 2
    lines = [" " * width + "".join(f"{column:>18}" for column in shown)]
    for row in found:
        cells = (f"{_cell(row.scores[column]) if column in row.scores else '':>18}" for column in shown)
        lines.append(f"{row.name:<{width}}" + "".join(cells))
    return "\n".join(lines)


def summary(found: Sequence[Row], ours: str = OURS) -> str:
    """For each half the totals of every column, and the rows on which one of them, ours, is not near the best."""
    lines = []
    for half in dict.fromkeys(row.half for row in found):
        part = [row for row in found if row.half == half]
        lines += [f"\n{half}: {len(part)} rows", *_totals(part), *_lost(part, ours)]
    return "\n".join(lines)


def _totals(part: Sequence[Row]) -> list[str]:
    head = ("mean excess", "median", "worst", "mean on test", "worst imbalance", "rows near best", "behind LS", "runs")
    lines = [" " * 20 + "".join(f"{name:>16}" for name in head)]
    for column in _columns(part):
        held = [(row, row.scores[column]) for row in part if column in row.scores]
        excess = [score.excess for _, score in held]
        test = [score.test / _best_test(row) - 1 for row, score in held if score.test is not None]
        off = [score.imbalance for _, score in held if score.imbalance is not None]
        behind = [(score.behind, score.runs) for _, score in held if score.behind is not None]
        cells = (
            percent(statistics.mean(excess)),
            percent(statistics.median(excess)),
            percent(max(excess)),
            percent(statistics.mean(test)) if test else "",
            percent(max(off)) if off else "",
            f"{sum(_above(row, column) <= CLOSE for row, _ in held)}/{len(held)}",
            f"{sum(count > max(1, runs / 10) for count, runs in behind)}/{len(behind)}" if behind else "",
            f"{sum(count for count, _ in behind)}/{sum(runs for _, runs in behind)}" if behind else "",
        )
        lines.append(f"{column:<20}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def _lost(part: Sequence[Row], ours: str) -> list[str]:
    """The rows on which a column is not near the best, the worst first."""
    lost = [row for row in part if ours in row.scores and _above(row, ours) > CLOSE]
    lines = []
    for row in sorted(lost, key=lambda row: -_above(row, ours)):
        winner = min(row.scores, key=lambda column: row.scores[column].excess)
        best = f"{percent(_above(row, ours))} above {winner}"
        lines.append(f"  {row.name:<44} {_cell(row.scores[ours]):>18}   {best}")
    return [f"\n{ours} is more than {CLOSE:.0%} above the best on {len(lost)} rows:", *lines]


def _above(row: Row, column: str) -> float:
    """By how much the mean value of a column exceeds the best one's, relative to it."""
    return (1 + row.scores[column].excess) / (1 + _best(row)) - 1


def _best_test(row: Row) -> float:
    return min(score.test for score in row.scores.values() if score.test is not None)


def _best(row: Row) -> float:
    return min(score.excess for score in row.scores.values())


def save(found: Sequence[Row], file: Path) -> None:
    """Write the scores of all rows, a line each and four digits a number; made-up columns are left out."""
    lines = []
    for row in found:
        scores = {column: [_short(x) for x in score] for column, score in row.scores.items() if column not in TUNED}
        lines.append(json.dumps([row.half, row.part, row.name, scores], ensure_ascii=False, separators=(",", ":")))
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def load(file: Path) -> list[Row]:
    """What `save` wrote."""
    found = []
    for half, part, name, scores in json.loads(file.read_text()):
        every = {column: Score(*values) for column, values in scores.items()}
        found.append(Row(half, name, part, with_tuned(every)))
    return found


def merged(published: Sequence[Row], fresh: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The published rows with some columns as they were found now; rows that were not run stay as they are."""
    new = {(row.half, row.name): row for row in fresh}
    return [_merged(row, new.get((row.half, row.name)), columns) for row in published]


def _merged(row: Row, new: Row | None, columns: Sequence[str]) -> Row:
    if new is None:
        return row
    scores = {**row.scores, **{column: new.scores[column] for column in columns if column in new.scores}}
    scores = {column: score for column, score in scores.items() if column not in TUNED}
    if row.part != "synthetic":  # no exact value is known
        scores = _relative(scores)
    return row._replace(scores=with_tuned(scores))


def _relative(scores: dict[str, Score]) -> dict[str, Score]:
    """With the excess over the least mean of all columns."""
    best = min(score.tch for score in scores.values())
    return {column: score._replace(excess=score.tch / best - 1) for column, score in scores.items()}


def _short(value: float | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")


def _columns(found: Sequence[Row]) -> list[str]:
    """Those of the bench in its order, then the others."""
    present = dict.fromkeys(column for row in found for column in row.scores)
    usual = [column for column in (*columns(), *TUNED) if column in present]
    return [*usual, *(column for column in present if column not in usual)]


def _cell(score: Score) -> str:
    off = "-" if score.imbalance is None else number(100 * score.imbalance)
    behind = f" ({score.behind})" if score.behind else ""
    return f"{off}/{number(100 * score.excess)}{behind}"


def percent(value: float) -> str:
    """In per cent, three digits."""
    return f"{number(100 * value)} %"


def number(value: float) -> str:
    """Three digits or fewer."""
    if value > 9999:
        return ">9999"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
