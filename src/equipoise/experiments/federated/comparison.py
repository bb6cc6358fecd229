"""Numbers compared with the paper's, for the tables with their own metrics (tab:ratio, tab:new)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.experiments.federated.scores import ALLOWED
from equipoise.experiments.paper import Score
from equipoise.experiments.render import MARKS, Page, Sheet

__all__ = ["Compared", "as_json", "say_verdict", "sheet"]


@dataclass(frozen=True)
class Compared:
    """A number compared with the paper's.

    Attributes:
        method: The method.
        metric: The metric.
        seeds: The seeds.
        ours: Mean and standard deviation over the seeds.
        paper: The paper's mean, if it prints one and ours was made with its settings.
        std: The paper's standard deviation, if it prints one.
    """

    method: str
    metric: str
    seeds: tuple[int, ...]
    ours: Score
    paper: float | None = None
    std: float | None = None

    @property
    def deviations(self) -> float | None:
        """Ours minus the paper's in units of its standard deviation, or of ours if it prints none; else None."""
        unit = self.ours.std if self.std is None else self.std
        return None if self.paper is None or unit == 0 else (self.ours.mean - self.paper) / unit

    @property
    def within(self) -> bool | None:
        """Whether that is at most two; None if there is no claim."""
        away = self.deviations
        return None if away is None else abs(away) <= ALLOWED


def as_json(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Plain records."""
    return [
        {
            "method": one.method,
            "metric": one.metric,
            "mean": one.ours.mean,
            "std": one.ours.std,
            "paper_mean": one.paper,
            "paper_std": one.std,
            "deviations": one.deviations,
            "within": one.within,
            "seeds": list(one.seeds),
        }
        for one in compared
    ]


def sheet(title: str, compared: Sequence[Compared], heads: Mapping[str, str]) -> Sheet:
    """A table with methods as rows, and each metric and the paper's value as columns."""
    printed = {metric: any(one.paper is not None for one in compared if one.metric == metric) for metric in heads}
    by_place = {(one.method, one.metric): one for one in compared}
    lines = []
    for method in dict.fromkeys(one.method for one in compared):
        cells = [method, str(len(next(one for one in compared if one.method == method).seeds))]
        for metric in heads:
            one = by_place[method, metric]
            digits = 2 if metric == "overall_accuracy" else 3
            cells.append(f"{one.ours.text(digits)} {MARKS[one.within]}")
            if printed[metric]:
                cells.append(_printed(one, digits))
        lines.append(tuple(cells))
    names = [text for metric, head in heads.items() for text in ((head, "paper") if printed[metric] else (head,))]
    return Sheet(title, ("method", "seeds", *names), tuple(lines))


def _printed(one: Compared, digits: int) -> str:
    if one.paper is None:
        return ""
    return f"{one.paper:.{digits}f}" if one.std is None else Score(one.paper, one.std).text(digits)


def say_verdict(page: Page, compared: Sequence[Compared]) -> None:
    """Say how many numbers agree with the paper, and which do not."""
    kinds: tuple[tuple[str, Callable[[Compared], bool]], ...] = (
        ("the paper's", lambda one: one.std is not None),
        ("our own", lambda one: one.std is None),
    )
    if all(one.within is None for one in compared):
        page.say("there is nothing that can be compared with the paper")
        return
    for whose, kind in kinds:
        claimed = [one for one in compared if one.within is not None and kind(one)]
        if not claimed:
            continue
        outside = [one for one in claimed if not one.within]
        why = "" if whose == "the paper's" else " (the paper prints none)"
        count = len(claimed) - len(outside)
        page.say(f"{count} of {len(claimed)} numbers within two of {whose} standard deviations{why}")
        page.list(
            [
                f"outside: {one.method}, {one.metric}: {one.ours.text(3)}, paper {_printed(one, 3)}, "
                f"{one.deviations:+.1f} deviations"
                for one in outside
            ]
        )
