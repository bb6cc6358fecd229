"""The numbers printed in the paper, which the experiments are compared with; the folder `paper_tables` has them."""

import csv
import math
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = [
    "HYPERVOLUMES", "PREFERENCES", "RATIOS", "SCORES", "SECONDS", "SMALLER", "TRIED", "TUNED", "Preset", "Printed",
    "Score", "known", "standard_error",
]  # fmt: skip

Preset = Literal["published", "text"]
"""Settings: those that produced the paper's tables, or those that its text gives."""


def standard_error(std: float, seeds: int) -> float:
    """The standard error of a mean, from the population standard deviation over the seeds."""
    return std / math.sqrt(max(1, seeds - 1))


class Score(NamedTuple):
    """A mean over the seeds with its standard deviation; a deviation of 0 is that of a single run, or not printed."""

    mean: float
    std: float

    def text(self, digits: int = 3, *, signed: bool = False) -> str:
        """Both as text; a deviation of 0 is left out."""
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if self.std == 0 else f"{mean}±{self.std:.{digits}f}"


Printed = dict[str, Score]
"""The numbers of a row, by metric (or problem), without those that the paper does not print."""


def _rows(name: str) -> list[dict[str, str]]:
    with (Path(__file__).with_name("paper_tables") / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _scores(row: dict[str, str]) -> Printed:
    """The numbers of a row, such as 92.450±0.234, without its first column."""
    pairs = {key: text.partition("±") for key, text in list(row.items())[1:] if text}
    return {key: Score(float(mean), float(std or 0)) for key, (mean, _, std) in pairs.items()}


def _by_task(name: str) -> dict[str, dict[str, dict[str, str]]]:
    """The rows of a table whose first columns are task and method."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in _rows(name):
        found.setdefault(row.pop("task"), {})[row["method"]] = row
    return found


SCORES: dict[str, dict[str, Printed]] = {
    task: {method: _scores(row) for method, row in of.items()} for task, of in _by_task("tab-3").items()
}
"""tab:3: mean and standard deviation over ten seeds of average accuracy, agnostic loss and accuracy parity."""


SMALLER: dict[str, dict[str, Printed]] = {
    task: {
        method: {metric: Score(mean, near[metric].std) for metric, (mean, _) in _scores(row).items()}
        for method, row in of.items()
        for near in [SCORES[task][row.pop("deviations of")]]
    }
    for task, of in _by_task("tab-stch-ablation").items()
}
"""tab:stch, tab:ablation and tab:ablation2: means of the same metrics. They are printed without deviations: those of a
row of tab:3 are taken."""

RATIOS: dict[str, Printed] = {row["method"]: _scores(row) for row in _rows("tab-ratio")}
"""tab:ratio: agnostic ratio and ratio parity on CIFAR rotation; no deviations are printed."""

PREFERENCES: dict[str, Printed] = {row["method"]: _scores(row) for row in _rows("tab-new")}
"""tab:new: hypervolumes of losses and of accuracies, two clients, three preferences. The text beside it has overall
loss and accuracy of two methods, without deviations."""

HYPERVOLUMES: dict[str, Printed] = {row["method"]: _scores(row) for row in _rows("tab-hv")}
"""tab:hv: mean and standard deviation of the hypervolume, by method and problem."""

SECONDS: dict[str, dict[str, float]] = {
    task: {row["method"]: float(row[task]) for row in _rows("tab-4")} for task in SCORES
}
"""tab:4: seconds of training per round, by task and method."""

TUNED: dict[str, dict[str, float]] = {
    task: {row["method"]: float(row[task]) for row in _rows("tab-2")} for task in SCORES
}
"""tab:2: the best settings, by task and method; FedFV: of α, and "FedFV τ". STCH with momentum is in tab:stch alone, on
CIFAR-10; on MNIST it takes the value of STCH."""

TRIED: dict[str, tuple[float, ...]] = {
    row["method"]: tuple(map(float, row["tried"].split())) for row in _rows("tab-2") if row["tried"]
}
"""tab:2: the values that the paper tried; the one with the smallest worst-client training loss wins. FedFV: of α."""


def known(task: str, row: str) -> Printed:
    """The paper's numbers for a row on a task, in tab:3 or one of the smaller tables; none if it has no such row."""
    return SCORES.get(task, {}).get(row) or SMALLER.get(task, {}).get(row) or {}
