"""tab:ratio: weights updated with ratios of losses."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import metrics
from equipoise.experiments import paper
from equipoise.experiments.federated.comparison import Compared, as_json, say_verdict, sheet
from equipoise.experiments.federated.compute import gather
from equipoise.experiments.federated.scores import Entry, score
from equipoise.experiments.federated.tables import TAKES, described, group, say_absent
from equipoise.experiments.item import Item, Request
from equipoise.experiments.render import Page

__all__ = ["Base", "compare_ratios", "items", "ratios"]

Base = Literal["first", "untrained"]
"""The divisor of a client's final test loss: the loss of the model that the method reports after the first round, as in
the paper's table, or that of the untrained model, as in its text. For Ada methods both are the same model."""

RATIOS = {"agnostic_ratio": "agnostic ratio ↓", "ratio_parity": "ratio parity ↓"}
"""The metrics as heads of columns."""


def items() -> dict[str, Item]:
    """The table by its name on the command line."""
    what = "Ratios of losses for the weight updates"
    return {"table-ratio": Item("tab:ratio", "appendix B.2", what, _table_ratio, TAKES)}


def _table_ratio(request: Request) -> None:
    page = Page(request, "table-ratio", "Weights updated with ratios of losses (tab:ratio)")
    rows = group(request, page.name)
    found = gather(request, page.name, rows)
    titles: dict[Base, str] = {
        "first": "over the test loss of the model reported after the first round, as in the paper's table",
        "untrained": "over the test loss of the untrained model, as in the paper's text",
    }
    compared = compare_ratios(found)
    for base, title in titles.items():
        if compared[base]:
            page.show(sheet(f"tab:ratio, {described(request, 'cifar-rotation')}: {title}", compared[base], RATIOS))
    say_absent(page, rows, {(entry.task, entry.name) for entry in found})
    if found:
        page.say(
            "Ada methods report the untrained model after the first round, all others one that was trained for a "
            "round: the first table divides by different things. In the published rows AdaOMDeg-TCH has the ratio in "
            'the first round alone; "every round" has it as the others do.'
        )
    say_verdict(page, compared["first"])
    records = [{**record, "base": base} for base, rows in compared.items() for record in as_json(rows)]
    page.finish((result for entry in found for result in entry.results), records)


def ratios(entry: Entry, base: Base) -> tuple[Tensor, Tensor]:
    """Agnostic ratio and ratio parity of every seed, (S,) each: maximum and deviation over the clients."""
    output = entry.output
    last = _losses([result["outputs"][output]["test"] for result in entry.results])
    first = _losses(
        [result["untrained"] if base == "untrained" else result["first"][output] for result in entry.results]
    )
    return metrics.agnostic_loss(last / first), metrics.ratio_parity(last, first)


def compare_ratios(found: Sequence[Entry]) -> dict[Base, list[Compared]]:
    """Both metrics of every method, by the base of the ratios; the paper's numbers are compared with its own base."""
    bases: tuple[Base, ...] = ("first", "untrained")
    compared: dict[Base, list[Compared]] = {base: [] for base in bases}
    for base in bases:
        for entry in found:
            theirs = paper.RATIOS.get(entry.name, (None, None)) if base == "first" and entry.claimed else (None, None)
            both = zip(("agnostic_ratio", "ratio_parity"), ratios(entry, base), theirs, strict=True)
            compared[base] += [Compared(entry.name, m, entry.seeds, score(v), known) for m, v, known in both]
    return compared


def _losses(scores: Sequence[dict[str, Any]]) -> Tensor:
    return torch.tensor([one["client_losses"] for one in scores], dtype=torch.float64)
