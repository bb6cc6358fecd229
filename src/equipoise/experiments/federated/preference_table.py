"""tab:new: two clients, three preferences."""

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise import metrics
from equipoise.experiments import paper
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.comparison import Compared, as_json, say_verdict, sheet
from equipoise.experiments.federated.compute import provide
from equipoise.experiments.federated.rows import Wanted
from equipoise.experiments.federated.scores import score
from equipoise.experiments.federated.settings import PREFERENCES, SEEDS
from equipoise.experiments.federated.tables import TAKES, described, group, say_absent, say_untuned
from equipoise.experiments.item import Item, Request
from equipoise.experiments.paper import Preset, Score
from equipoise.experiments.render import Page, Sheet
from equipoise.experiments.results import CellStore, Result
from equipoise.federated import Precision

__all__ = ["compare_outputs", "compare_preferences", "items"]

LOSS_REFERENCE = (4.0, 4.0)
ACCURACY_REFERENCE = (0.3, 0.3)
HEADS = {
    "loss_hypervolume": "HV, losses ↑",
    "accuracy_hypervolume": "HV, accuracies ↑",
    "overall_loss": "overall loss ↓",
    "overall_accuracy": "accuracy ↑",
}
"""The metrics as heads of columns."""


def items() -> dict[str, Item]:
    """The table by its name on the command line."""
    what = "Two clients, three preferences: hypervolumes"
    return {"table-preference": Item("tab:new", "section 4.2", what, _table_preference, TAKES)}


def _table_preference(request: Request) -> None:
    page = Page(request, "table-preference", "Two clients and three preferences (tab:new)")
    rows = group(request, page.name)
    provide(request, page.name, rows)
    compared = compare_preferences(request.store, rows, request.seeds, request.settings, request.precision)
    if compared:
        page.show(sheet(f"tab:new, {described(request, 'cifar-two')}", compared, HEADS))
        page.say(
            "HV: hypervolume of the test results of both clients under the preferences (½, ½), (¾, ¼) and (¼, ¾); the "
            "reference points are loss 4 and accuracy 0.3 for both, and a point beyond them counts zero. Overall loss "
            "and accuracy: means over clients and preferences."
        )
        outputs = compare_outputs(request.store, rows, request.seeds, request.precision)
        for metric in ("loss_hypervolume", "accuracy_hypervolume"):
            page.show(_by_output(f"{HEADS[metric]}: every output of the same runs", outputs, metric))
        page.say(
            "Most rows of the paper's table are last models; OMDgd-TCH and ExcessMTL are averages of all models, and "
            "Ada rows the adaptive output. Averaging alone raises hypervolumes, whatever the method."
        )
    shown = {one.method for one in compared}
    say_untuned(page, shown)
    say_absent(page, [one._replace(column="") for one in rows], {("cifar-two", name) for name in shown})
    say_verdict(page, compared)
    seeds = {seed for one in compared for seed in one.seeds}
    results = (
        result
        for one in rows
        if one.row.name in shown
        for result in one.found(request.store, sorted(seeds), request.precision).values()
    )
    page.finish(results, as_json(compared))


def _by_output(title: str, outputs: dict[str, dict[str, dict[str, Score]]], metric: str) -> Sheet:
    """Methods as rows; a metric of every output as columns."""
    lines = [(method, *(scores[metric].text(3) for scores in of.values())) for method, of in outputs.items()]
    return Sheet(title, ("method", *next(iter(outputs.values()))), tuple(lines))


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
        usual = runs[0].task.rounds == settings.tasks(preset)[runs[0].task_name].rounds
        theirs = _printed(method) if preset == "published" and usual else {}
        for metric, value in values.items():
            mean, std = theirs.get(metric, (None, None))
            compared.append(Compared(method, metric, common, score(value), mean, std))
    return compared


def compare_outputs(
    store: CellStore, wanted: Sequence[Wanted], seeds: Sequence[int] | None, precision: Precision | None = None
) -> dict[str, dict[str, dict[str, Score]]]:
    """The same numbers for every output of the runs, by method and output, to separate the effect of the conversion."""
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
        # Hypervolumes are for minimisation.
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
