"""Numbers beside the paper's: one type, and one table of methods and metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.experiments.paper import Score, standard_error
from equipoise.experiments.render import MARKS, Page, Sheet

__all__ = ["ALLOWED", "Number", "count_seeds", "say_verdict", "sheet"]

ALLOWED = 2.0
"""A number agrees with the paper if it is within this many of the paper's standard deviations."""


@dataclass(frozen=True)
class Number:
    """A mean over seeds, beside the paper's."""

    task: str
    method: str
    metric: str
    seeds: tuple[int, ...]
    ours: Score
    paper: Score | None = None
    claimed: bool = True
    """Whether both can be compared: settings and rounds are the paper's."""
    tolerance: float | None = None
    """How far apart both may be; two of the paper's standard deviations if not given."""
    base: str = ""
    """The method that it is the difference to, if it is one."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None if there is no claim."""
        return None if self.paper is None or not self.claimed else self.ours.mean - self.paper.mean

    @property
    def deviations(self) -> float | None:
        """The difference in units of the paper's standard deviation, or of ours if it prints none; else None."""
        unit = (self.paper and self.paper.std) or self.ours.std
        return None if self.difference is None or unit == 0 else self.difference / unit

    @property
    def within(self) -> bool | None:
        """Whether the difference is small enough; None if there is no claim."""
        away, allowed = (self.deviations, ALLOWED) if self.tolerance is None else (self.difference, self.tolerance)
        return None if away is None else abs(away) <= allowed

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return standard_error(self.ours.std, len(self.seeds))

    @property
    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "task": self.task,
            "method": self.method,
            "metric": self.metric,
            "mean": self.ours.mean,
            "std": self.ours.std,
            "error": self.error,
            "paper_mean": self.paper and self.paper.mean,
            "paper_std": (self.paper and self.paper.std) or None,
            "deviations": self.deviations,
            "within": self.within,
            "seeds": list(self.seeds),
        }

    @property
    def brief(self) -> dict[str, Any]:
        """The same without what all numbers of a table share."""
        return {key: value for key, value in self.record.items() if key not in {"task", "error"}}

    def text(self, digits: int = 3) -> str:
        """Ours, with a mark that says whether it agrees."""
        return f"{self.ours.text(digits, signed=bool(self.base))} {MARKS[self.within]}"

    def printed(self, digits: int = 3) -> str:
        """The paper's; empty if it has none."""
        return "" if self.paper is None else self.paper.text(digits, signed=bool(self.base))


def sheet(
    title: str,
    numbers: Sequence[Number],
    heads: Mapping[str, str],
    digits: Mapping[str, int] | None = None,
    *,
    seeds: bool = True,
    blank: bool = False,
) -> Sheet:
    """A table with methods as rows, and each metric and the paper's value as columns.

    Args:
        title: The title.
        numbers: Its numbers.
        heads: The heads of the columns, by metric.
        digits: Decimals, by metric; 3 if not given.
        seeds: Whether a column has the number of seeds.
        blank: Whether a metric that the paper does not print has a column "paper" too.
    """
    printed = {metric for metric in heads if blank or any(one.metric == metric and one.paper for one in numbers)}
    lines = []
    for method in dict.fromkeys(one.method for one in numbers):
        row = {one.metric: one for one in numbers if one.method == method}
        cells = [method, *([str(len(row[next(iter(heads))].seeds))] if seeds else [])]
        for metric in heads:
            one, places = row.get(metric), (digits or {}).get(metric, 3)
            both = (one.text(places), one.printed(places)) if one else ("", "")
            cells += both if metric in printed else both[:1]
        lines.append(tuple(cells))
    names = [text for metric, head in heads.items() for text in (head, "paper")[: 2 if metric in printed else 1]]
    return Sheet(title, ("method", *(["seeds"] if seeds else []), *names), tuple(lines))


def count_seeds(counts: Iterable[int]) -> str:
    """Numbers of seeds in words, such as 3 to 10 seeds."""
    different = sorted(set(counts))
    number = " to ".join(map(str, dict.fromkeys((different[0], different[-1]))))
    return f"{number} seed{'s' if different[-1] > 1 else ''}"


def say_verdict(page: Page, numbers: Sequence[Number]) -> None:
    """Say how many numbers agree with the paper, and which do not."""
    claimed = [one for one in numbers if one.within is not None and one.paper is not None]
    if not claimed:
        page.say("there is nothing that can be compared with the paper")
    for whose, has_deviation in (("the paper's", True), ("our own", False)):
        some = [one for one in claimed if bool(one.paper and one.paper.std) == has_deviation]
        outside = [one for one in some if not one.within]
        if some:
            why = "" if has_deviation else " (the paper prints none)"
            count = f"{len(some) - len(outside)} of {len(some)} numbers"
            page.say(f"{count} within two of {whose} standard deviations{why}")
        page.list(
            [
                f"outside: {one.method}, {one.metric}: {one.ours.text()}, paper {one.printed()}, "
                f"{one.deviations:+.1f} deviations"
                for one in outside
            ]
        )
