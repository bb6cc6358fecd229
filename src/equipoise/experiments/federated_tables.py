"""The federated tables as numbers: cells on one side, what the paper prints on the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.experiments import federated, paper
from equipoise.experiments.cells import CellStore, Result
from equipoise.experiments.federated import Output, Preset, Row
from equipoise.experiments.paper import Score, Scores
from equipoise.federated import Precision

__all__ = ["METRICS", "OUTPUTS", "PARTS", "Entry", "Paired", "as_json", "entries", "paired", "score", "seeds_of"]

Metric = Literal["accuracy", "agnostic_loss", "accuracy_parity"]
Part = Literal["train", "test"]

METRICS: tuple[Metric, ...] = ("accuracy", "agnostic_loss", "accuracy_parity")
OUTPUTS: tuple[Output, ...] = ("last", "average", "adaptive")
PARTS: tuple[Part, ...] = ("test", "train")
ALLOWED = 2.0
"""A cell counts as the paper's if it is within so many of its standard deviations."""


@dataclass(frozen=True)
class Entry:
    """A method on a task, over the seeds.

    Attributes:
        task: The task's name.
        row: The method, as the task has it.
        seeds: One per result.
        results: What the cells hold.
        paper: What the paper prints, if it has this row.
        claimed: Whether that can be compared: settings and rounds are the paper's.
    """

    task: str
    row: Row
    seeds: tuple[int, ...]
    results: tuple[Result, ...]
    paper: Scores | None
    claimed: bool

    def values(self, metric: Metric, output: Output | None = None, part: Part = "test") -> Tensor:
        """A metric of every seed, (S,) float64; by default of the output that the method reports."""
        name = self.row.output if output is None else output
        return torch.tensor([r["outputs"][name][part][metric] for r in self.results], dtype=torch.float64)

    def score(self, metric: Metric, output: Output | None = None, part: Part = "test") -> Score:
        """Mean and standard deviation (of the population) of a metric over the seeds."""
        return score(self.values(metric, output, part))

    def deviations(self, metric: Metric) -> float | None:
        """Ours minus the paper's mean, in units of the paper's standard deviation; None where nothing is claimed."""
        if self.paper is None or not self.claimed:
            return None
        theirs: Score = getattr(self.paper, metric)
        return (self.score(metric).mean - theirs.mean) / theirs.std

    def within(self, metric: Metric) -> bool | None:
        """Whether that is at most two; None where nothing is claimed."""
        away = self.deviations(metric)
        return None if away is None else abs(away) <= ALLOWED

    @property
    def seconds(self) -> float:
        """Seconds per round and seed."""
        return float(torch.tensor([r["seconds_per_round"] for r in self.results], dtype=torch.float64).mean())


class Paired(NamedTuple):
    """The difference of a method to LS on the same seeds: what the draw of the classes does to both cancels."""

    task: str
    method: str
    metric: Metric
    ours: Score
    """Mean and standard deviation over the seeds of the differences."""
    paper: float
    """The difference of the paper's means."""

    @property
    def within(self) -> bool:
        """Whether the paper's difference is within two standard deviations of ours."""
        return abs(self.ours.mean - self.paper) <= ALLOWED * self.ours.std


def score(values: Tensor) -> Score:
    """Mean and standard deviation, of the population."""
    return Score(float(values.mean()), float(values.std(correction=0)))


def seeds_of(task: str) -> tuple[int, ...]:
    """The seeds that a task is shown with: the paper's ten, three for digits."""
    return federated.SEEDS[:3] if task.startswith("digits") else federated.SEEDS


def entries(
    store: CellStore,
    tasks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int] | None,
    preset: Preset,
    rounds: int | None = None,
    precision: Precision | None = None,
) -> list[Entry]:
    """The entries of which every seed has its cell, task by task."""
    found = []
    for name in tasks:
        task = federated.sized(federated.tasks(preset)[name], rounds)
        wanted = tuple(seeds_of(name) if seeds is None else seeds)
        for method in methods:
            row = federated.row(method, name, preset)
            results = [store.read(federated.spec(task, row.method, seed, precision)) for seed in wanted]
            whole = tuple(result for result in results if result is not None)
            if len(whole) == len(wanted):
                theirs = paper.SCORES.get(name, {}).get(method)
                claimed = preset == "published" and task.rounds == federated.tasks(preset)[name].rounds
                found.append(Entry(name, row, wanted, whole, theirs, claimed))
    return found


def paired(found: Iterable[Entry]) -> list[Paired]:
    """Every method's difference to LS, where both have been compared with the paper; not for LS itself."""
    found = [entry for entry in found if entry.paper is not None and entry.claimed]
    base = {entry.task: entry for entry in found if entry.row.name == "LS"}
    differences = []
    for entry in found:
        ls = base.get(entry.task)
        if ls is None or entry is ls:
            continue
        for metric in METRICS:
            theirs = getattr(entry.paper, metric).mean - getattr(ls.paper, metric).mean
            ours = score(entry.values(metric) - ls.values(metric))
            differences.append(Paired(entry.task, entry.row.name, metric, ours, theirs))
    return differences


def as_json(found: Iterable[Entry], preset: Preset) -> list[dict[str, Any]]:
    """The table as a list of plain records, one per task, method and metric."""
    records = []
    for entry in found:
        for metric in METRICS:
            theirs = None if entry.paper is None else getattr(entry.paper, metric)
            mean, std = entry.score(metric)
            records.append(
                {
                    "task": entry.task,
                    "method": entry.row.name,
                    "output": entry.row.output,
                    "metric": metric,
                    "mean": mean,
                    "std": std,
                    "paper_mean": None if theirs is None else theirs.mean,
                    "paper_std": None if theirs is None else theirs.std,
                    "deviations": entry.deviations(metric),
                    "within": entry.within(metric),
                    "preset": preset,
                    "seeds": list(entry.seeds),
                    "outputs": {output: entry.score(metric, output)._asdict() for output in OUTPUTS},
                }
            )
    return records
