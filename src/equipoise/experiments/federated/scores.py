"""The numbers of the federated tables: ours from cells, and the paper's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.experiments import paper
from equipoise.experiments.comparison import ALLOWED, Number
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.settings import Output, Run
from equipoise.experiments.paper import Preset, Printed, Score
from equipoise.experiments.results import CellStore, Result

__all__ = ["HEADS", "METRICS", "OUTPUTS", "PARTS", "Entry", "entries_of", "paired", "printed_in", "score"]

Metric = Literal["accuracy", "agnostic_loss", "accuracy_parity"]
Part = Literal["train", "test"]

METRICS: tuple[Metric, ...] = ("accuracy", "agnostic_loss", "accuracy_parity")
HEADS: dict[str, str] = {
    "accuracy": "accuracy ↑",
    "agnostic_loss": "agnostic loss ↓",
    "accuracy_parity": "accuracy parity ↓",
}
"""The metrics as heads of columns."""
OUTPUTS: tuple[Output, ...] = ("last", "average", "adaptive")
PARTS: tuple[Part, ...] = ("test", "train")


@dataclass(frozen=True)
class Entry:
    """A method on a task, over the seeds.

    Attributes:
        task: The task's name.
        name: The method's.
        output: Which output of its trajectory it reports.
        seeds: One per result.
        results: The contents of the cells.
        paper: The paper's numbers; none if it has no such row.
        claimed: Whether they can be compared: settings and rounds are the paper's.
    """

    task: str
    name: str
    output: Output
    seeds: tuple[int, ...]
    results: tuple[Result, ...]
    paper: Printed
    claimed: bool

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs of its trajectory."""
        return (*OUTPUTS, "own") if self.output == "own" else OUTPUTS

    def on(self, seeds: Iterable[int]) -> "Entry":
        """The same entry with these seeds, in the entry's order."""
        kept = {seed: result for seed, result in zip(self.seeds, self.results, strict=True) if seed in set(seeds)}
        return replace(self, seeds=tuple(kept), results=tuple(kept.values()))

    def less(self, other: "Entry") -> dict[Metric, Tensor]:
        """All metrics minus another entry's on the seeds that both have, (S,) float64; empty without such seeds."""
        a, b = self.on(other.seeds), other.on(self.seeds)
        return {metric: a.values(metric) - b.values(metric) for metric in METRICS} if a.seeds else {}

    def values(self, metric: Metric, output: Output | None = None, part: Part = "test") -> Tensor:
        """A metric of every seed, (S,) float64; by default of the output that the method reports."""
        name = self.output if output is None else output
        return torch.tensor([r["outputs"][name][part][metric] for r in self.results], dtype=torch.float64)

    def score(self, metric: Metric, output: Output | None = None, part: Part = "test") -> Score:
        """Mean and population standard deviation of a metric over the seeds."""
        return score(self.values(metric, output, part))

    def number(self, metric: Metric) -> Number:
        """A metric of the reported output, beside the paper's."""
        theirs = self.paper.get(metric)
        return Number(self.task, self.name, metric, self.seeds, self.score(metric), theirs, self.claimed)

    def numbers(self, metrics: Iterable[Metric] = METRICS) -> list[Number]:
        """Some metrics, beside the paper's."""
        return [self.number(metric) for metric in metrics]

    def record(self, metric: Metric, preset: Preset) -> dict[str, Any]:
        """Plain values: a metric of every output."""
        outputs = {output: self.score(metric, output)._asdict() for output in self.outputs}
        record = self.number(metric).record
        first = {"task": record.pop("task"), "method": record.pop("method"), "output": self.output}
        last = {"preset": preset, "seeds": record.pop("seeds"), "outputs": outputs}
        return {**first, **record, **last}

    @property
    def seconds(self) -> float:
        """Seconds per round and seed."""
        return float(torch.tensor([r["seconds_per_round"] for r in self.results], dtype=torch.float64).mean())


def printed_in(table: str) -> tuple[Metric, ...]:
    """The metrics that the paper prints in a table: tab:ablation has no agnostic loss."""
    return ("accuracy", "accuracy_parity") if table == "table-ablation" else METRICS


def score(values: Tensor) -> Score:
    """Mean and population standard deviation."""
    return Score(float(values.mean()), float(values.std(correction=0)))


def entries_of(store: CellStore, wanted: Iterable[Run], preset: Preset) -> list[Entry]:
    """The entries that have cells for all their seeds. On CIFAR-10, where runs are long, some of the own seeds suffice.

    The paper is compared with the preset `published`, at the task's own rounds.
    """
    found = []
    for one in wanted:
        results = one.found(store)
        some = one.seeds is None and one.task_name.startswith("cifar")
        if results and (some or len(results) == len(one.to_run)):
            claimed = preset == "published" and one.task.rounds == settings.tasks(preset)[one.task_name].rounds
            theirs = paper.known(one.task_name, one.title)
            of = tuple(results), tuple(results.values())
            found.append(Entry(one.task_name, one.title, one.output, *of, theirs, claimed))
    return found


def paired(found: Iterable[Entry], bases: Mapping[str, str] | None = None) -> list[Number]:
    """Differences between methods on the seeds that both have, in which the effect of the class draw cancels.

    Only methods that are compared with the paper have one; the paper's is that of its means.
    `bases` has the method to compare with, by method; by default it is LS.
    """
    found = [entry for entry in found if entry.paper and entry.claimed]
    by_name = {(entry.task, entry.name): entry for entry in found}
    differences = []
    for entry in found:
        other = by_name.get((entry.task, "LS" if bases is None else bases.get(entry.name, "")))
        if other is None or entry is other:
            continue
        seeds = entry.on(other.seeds).seeds
        for metric, values in entry.less(other).items():
            if metric in entry.paper and metric in other.paper:
                theirs = Score(entry.paper[metric].mean - other.paper[metric].mean, 0.0)
                of, ours = (entry.task, entry.name, metric, seeds), score(values)
                differences.append(Number(*of, ours, theirs, tolerance=ALLOWED * ours.std, base=other.name))
    return differences
