"""`equipoise reproduce table-ratio` (tab:ratio): weights updated with ratios of losses."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import metrics
from equipoise.experiments import paper
from equipoise.experiments.comparison import Number, say_verdict, sheet
from equipoise.experiments.federated.compute import gather
from equipoise.experiments.federated.scores import Entry, score
from equipoise.experiments.federated.tables import TAKES, described, group, results_of, say_absent
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import Page

__all__ = ["Base", "compare_ratios", "ratios", "table_ratio"]

Base = Literal["first", "untrained"]
"""The divisor of a client's final test loss: the loss of the model that the method reports after the first round, as in
the paper's table, or that of the untrained model, as in its text. For Ada methods both are the same model."""

TITLES: dict[Base, str] = {
    "first": "over the test loss of the model reported after the first round, as in the paper's table",
    "untrained": "over the test loss of the untrained model, as in the paper's text",
}
HEADS = {"agnostic_ratio": "agnostic ratio ↓", "ratio_parity": "ratio parity ↓"}
"""The metrics as heads of columns."""


@item("tab:ratio", "appendix B.2", TAKES)
def table_ratio(request: Request) -> None:
    """Ratios of losses for the weight updates."""
    page = Page(request, "table-ratio", "Weights updated with ratios of losses (tab:ratio)")
    rows = group(request, page.name)
    found = gather(request, page.name, rows)
    compared = compare_ratios(found)
    for base, title in TITLES.items():
        if compared[base]:
            page.show(sheet(f"tab:ratio, {described(request, 'cifar-rotation')}: {title}", compared[base], HEADS))
    say_absent(page, rows, {(entry.task, entry.name) for entry in found})
    if found:
        page.say(
            "Ada methods report the untrained model after the first round, all others one that was trained for a "
            "round: the first table divides by different things. In the published rows AdaOMDeg-TCH has the ratio in "
            'the first round alone; "every round" has it as the others do.'
        )
    say_verdict(page, compared["first"])
    page.finish(results_of(found), [{**one.brief, "base": base} for base, of in compared.items() for one in of])


def ratios(entry: Entry, base: Base) -> tuple[Tensor, Tensor]:
    """Agnostic ratio and ratio parity of every seed, (S,) each: maximum and deviation over the clients."""
    last = _losses([result["outputs"][entry.output]["test"] for result in entry.results])
    first = _losses([r["untrained"] if base == "untrained" else r["first"][entry.output] for r in entry.results])
    return metrics.agnostic_loss(last / first), metrics.ratio_parity(last, first)


def compare_ratios(found: Sequence[Entry]) -> dict[Base, list[Number]]:
    """Both metrics of every method, by the base of the ratios; the paper's numbers are compared with its own base."""
    compared: dict[Base, list[Number]] = {base: [] for base in TITLES}
    for base, numbers in compared.items():
        for entry in found:
            theirs = paper.RATIOS.get(entry.name, {}) if base == "first" and entry.claimed else {}
            for metric, values in zip(HEADS, ratios(entry, base), strict=True):
                of = entry.task, entry.name, metric, entry.seeds
                numbers.append(Number(*of, score(values), theirs.get(metric)))
    return compared


def _losses(scores: Sequence[dict[str, Any]]) -> Tensor:
    return torch.tensor([one["client_losses"] for one in scores], dtype=torch.float64)
