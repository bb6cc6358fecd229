"""`equipoise reproduce table-preference` (tab:new): two clients, three preferences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise import metrics
from equipoise.experiments import paper
from equipoise.experiments.comparison import Number, say_verdict, sheet
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.compute import provide
from equipoise.experiments.federated.scores import score
from equipoise.experiments.federated.settings import PREFERENCES, Run
from equipoise.experiments.federated.tables import TAKES, described, group, say_absent, say_untuned
from equipoise.experiments.item import Request, item
from equipoise.experiments.paper import Preset
from equipoise.experiments.render import Page, Sheet
from equipoise.experiments.results import CellStore, Result

__all__ = ["Runs", "compare_preferences", "complete", "table_preference"]

OUTPUTS = ("last", "adaptive", "average")
LOSS_REFERENCE = (4.0, 4.0)
ACCURACY_REFERENCE = (0.3, 0.3)
HEADS = {
    "loss_hypervolume": "HV, losses ↑",
    "accuracy_hypervolume": "HV, accuracies ↑",
    "overall_loss": "overall loss ↓",
    "overall_accuracy": "accuracy ↑",
}
"""The metrics as heads of columns."""


@item("tab:new", "section 4.2", TAKES)
def table_preference(request: Request) -> None:
    """Two clients, three preferences: hypervolumes."""
    page = Page(request, "table-preference", "Two clients and three preferences (tab:new)")
    rows = group(request, page.name)
    provide(request, page.name, rows)
    found = complete(request.store, rows)
    compared = compare_preferences(found, request.settings)
    if found:
        page.show(sheet(f"tab:new, {described(request, 'cifar-two')}", compared, HEADS, {"overall_accuracy": 2}))
        page.say(
            "HV: hypervolume of the test results of both clients under the preferences (½, ½), (¾, ¼) and (¼, ¾); the "
            "reference points are loss 4 and accuracy 0.3 for both, and a point beyond them counts zero. Overall loss "
            "and accuracy: means over clients and preferences."
        )
        for metric in ("loss_hypervolume", "accuracy_hypervolume"):
            lines = ((name, *(score(of.metrics(o)[metric]).text() for o in OUTPUTS)) for name, of in found.items())
            page.show(Sheet(f"{HEADS[metric]}: every output of the same runs", ("method", *OUTPUTS), tuple(lines)))
        page.say(
            "Most rows of the paper's table are last models; OMDgd-TCH and ExcessMTL are averages of all models, and "
            "Ada rows the adaptive output. Averaging alone raises hypervolumes, whatever the method."
        )
    say_untuned(page, found)
    say_absent(page, [replace(one, column="") for one in rows], {("cifar-two", name) for name in found})
    say_verdict(page, compared)
    used = (results for of in found.values() for results in of.results)
    page.finish((result for results in used for result in results.values()), [one.brief for one in compared])


class Runs(NamedTuple):
    """The runs of a method, one per preference."""

    rows: list[Run]
    results: list[dict[int, Result]]
    """Their results, by seed."""
    seeds: tuple[int, ...]
    """The seeds that all of them have."""

    def metrics(self, output: str) -> dict[str, Tensor]:
        """The hypervolumes of losses and accuracies of an output, and its overall loss and accuracy, (S,) each.

        A set is the test results of both clients under the three preferences; "overall" is their mean.
        """
        tests = [[found[seed]["outputs"][output]["test"] for found in self.results] for seed in self.seeds]
        losses, accuracies = (
            torch.tensor([[one[key] for one in of] for of in tests], dtype=torch.float64)
            for key in ("client_losses", "client_accuracies")
        )
        return {
            "loss_hypervolume": metrics.hypervolume(losses, LOSS_REFERENCE),
            # Hypervolumes are for minimisation.
            "accuracy_hypervolume": metrics.hypervolume(-accuracies / 100, [-a for a in ACCURACY_REFERENCE]),
            "overall_loss": losses.mean((1, 2)),
            "overall_accuracy": accuracies.mean((1, 2)),
        }


def complete(store: CellStore, wanted: Sequence[Run]) -> dict[str, Runs]:
    """The runs by method, of those that have results for all preferences; a seed counts if all have a cell."""
    found: dict[str, Runs] = {}
    for method in dict.fromkeys(one.name for one in wanted):
        rows = [one for one in wanted if one.name == method]
        results, seeds = [one.found(store) for one in rows], rows[0].seeds
        common = tuple(seed for seed in results[0] if all(seed in of for of in results))
        if common and len(rows) == len(PREFERENCES) and (seeds is None or len(common) == len(seeds)):
            found[method] = Runs(rows, results, common)
    return found


def compare_preferences(found: dict[str, Runs], preset: Preset) -> list[Number]:
    """Four numbers of every method's reported output."""
    compared = []
    for method, runs in found.items():
        first = runs.rows[0]
        usual = first.task.rounds == settings.tasks(preset)[first.task_name].rounds
        theirs = paper.PREFERENCES.get(method, {}) if preset == "published" and usual else {}
        for metric, values in runs.metrics(first.output).items():
            of = first.task_name, method, metric, runs.seeds
            compared.append(Number(*of, score(values), theirs.get(metric)))
    return compared
