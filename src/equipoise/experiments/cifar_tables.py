"""The tables on CIFAR-10 with metrics of their own: ratios (tab:ratio) and preferences (tab:new)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import metrics
from equipoise.experiments import federated, paper
from equipoise.experiments.cells import CellStore, Result
from equipoise.experiments.federated import PREFERENCES, SEEDS, Preset
from equipoise.experiments.federated_tables import ALLOWED, Entry, score
from equipoise.experiments.paper import Score
from equipoise.experiments.plan import Wanted
from equipoise.federated import Precision

__all__ = ["Base", "Compared", "as_json", "compare_outputs", "compare_preferences", "compare_ratios", "ratios"]

Base = Literal["first", "untrained"]
"""By what a client's final test loss is divided: that of the model which the method reports after the first round, as
the paper's table has it, or that of the untrained model, as its text says. For Ada methods they are one model."""

LOSS_REFERENCE = (4.0, 4.0)
ACCURACY_REFERENCE = (0.3, 0.3)


@dataclass(frozen=True)
class Compared:
    """A number beside the paper's.

    Attributes:
        method: Of which method.
        metric: What it is.
        seeds: Of which seeds.
        ours: Mean and standard deviation over them.
        paper: The paper's mean, if it prints one and ours is made with its settings.
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
        """Ours minus the paper's in units of its deviation, or of ours where it prints none; None without either."""
        unit = self.ours.std if self.std is None else self.std
        return None if self.paper is None or unit == 0 else (self.ours.mean - self.paper) / unit

    @property
    def within(self) -> bool | None:
        """Whether that is at most two; None where nothing is claimed."""
        away = self.deviations
        return None if away is None else abs(away) <= ALLOWED


# ------------------------------------------------------------------------------- tab:ratio
def ratios(entry: Entry, base: Base) -> tuple[Tensor, Tensor]:
    """Agnostic ratio and ratio parity of every seed, (S,) each: maximum and deviation over the clients."""
    output = entry.row.output
    last = _losses([result["outputs"][output]["test"] for result in entry.results])
    first = _losses(
        [result["untrained"] if base == "untrained" else result["first"][output] for result in entry.results]
    )
    return metrics.agnostic_loss(last / first), metrics.ratio_parity(last, first)


def compare_ratios(found: Sequence[Entry]) -> dict[Base, list[Compared]]:
    """By the base of the ratios: both metrics of every method. The paper's are compared with its own base."""
    bases: tuple[Base, ...] = ("first", "untrained")
    compared: dict[Base, list[Compared]] = {base: [] for base in bases}
    for base in bases:
        for entry in found:
            theirs = (
                paper.RATIOS.get(entry.row.name, (None, None)) if base == "first" and entry.claimed else (None, None)
            )
            both = zip(("agnostic_ratio", "ratio_parity"), ratios(entry, base), theirs, strict=True)
            compared[base] += [Compared(entry.row.name, m, entry.seeds, score(v), known) for m, v, known in both]
    return compared


def _losses(scores: Sequence[dict[str, Any]]) -> Tensor:
    return torch.tensor([one["client_losses"] for one in scores], dtype=torch.float64)


# ------------------------------------------------------------------------------- tab:new
def compare_preferences(
    store: CellStore,
    wanted: Sequence[Wanted],
    seeds: Sequence[int] | None,
    preset: Preset,
    precision: Precision | None = None,
) -> list[Compared]:
    """Four numbers of every method: the hypervolumes of losses and accuracies, and the overall loss and accuracy.

    A set is the test results of both clients under the three preferences; "overall" is their mean. A seed counts if
    all its preferences have a cell.
    """
    compared = []
    for method, (runs, results, common) in _complete(store, wanted, seeds, precision).items():
        values = _of_fronts(results, common, runs[0].row.output)
        usual = runs[0].task.rounds == federated.tasks(preset)[runs[0].task_name].rounds
        theirs = _printed(method) if preset == "published" and usual else {}
        for metric, value in values.items():
            mean, std = theirs.get(metric, (None, None))
            compared.append(Compared(method, metric, common, score(value), mean, std))
    return compared


def compare_outputs(
    store: CellStore, wanted: Sequence[Wanted], seeds: Sequence[int] | None, precision: Precision | None = None
) -> dict[str, dict[str, dict[str, Score]]]:
    """The same numbers for every output of the runs, by method and output: what the conversion does, and what not."""
    return {
        method: {
            output: {metric: score(value) for metric, value in _of_fronts(results, common, output).items()}
            for output in ("last", "adaptive", "average")
        }
        for method, (_, results, common) in _complete(store, wanted, seeds, precision).items()
    }


_Runs = tuple[list[Wanted], list[dict[int, Result]], tuple[int, ...]]
"""The runs of a method, one per preference, their results by seed, and the seeds that all of them have."""


def _complete(
    store: CellStore, wanted: Sequence[Wanted], seeds: Sequence[int] | None, precision: Precision | None
) -> dict[str, _Runs]:
    """By method, those that have results for all preferences."""
    complete: dict[str, _Runs] = {}
    for method in dict.fromkeys(one.row.name for one in wanted):
        runs = [one for one in wanted if one.row.name == method]
        results = [one.found(store, SEEDS if seeds is None else seeds, precision) for one in runs]
        common = tuple(seed for seed in results[0] if all(seed in found for found in results))
        if common and len(runs) == len(PREFERENCES) and (seeds is None or len(common) == len(seeds)):
            complete[method] = runs, results, common
    return complete


def _of_fronts(results: Sequence[dict[int, Result]], seeds: Sequence[int], output: str) -> dict[str, Tensor]:
    """The metrics of one output, (S,) each."""
    tests = [[found[seed]["outputs"][output]["test"] for found in results] for seed in seeds]
    losses = torch.tensor([[one["client_losses"] for one in of] for of in tests], dtype=torch.float64)
    accuracies = torch.tensor([[one["client_accuracies"] for one in of] for of in tests], dtype=torch.float64)
    return {
        "loss_hypervolume": metrics.hypervolume(losses, LOSS_REFERENCE),
        # Hypervolumes are of what is to be small.
        "accuracy_hypervolume": metrics.hypervolume(-accuracies / 100, [-a for a in ACCURACY_REFERENCE]),
        "overall_loss": losses.mean((1, 2)),
        "overall_accuracy": accuracies.mean((1, 2)),
    }


def _printed(method: str) -> dict[str, tuple[float, float | None]]:
    """The paper's means, and deviations where it prints them."""
    printed: dict[str, tuple[float, float | None]] = {}
    if method in paper.PREFERENCES:
        loss, accuracy = paper.PREFERENCES[method]
        printed |= {"loss_hypervolume": (loss.mean, loss.std), "accuracy_hypervolume": (accuracy.mean, accuracy.std)}
    if method in paper.OVERALL:
        mean_loss, mean_accuracy = paper.OVERALL[method]
        printed |= {"overall_loss": (mean_loss, None), "overall_accuracy": (mean_accuracy, None)}
    return printed


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
