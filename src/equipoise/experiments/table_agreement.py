"""`equipoise reproduce table-agreement`: how many of the paper's numbers the stored runs agree with, table by table."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from equipoise.experiments.comparison import ALLOWED, Number, count_seeds
from equipoise.experiments.federated import rows, scores, settings
from equipoise.experiments.federated.table_preference import compare_preferences, complete
from equipoise.experiments.federated.table_ratio import compare_ratios
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import Page, Sheet
from equipoise.experiments.results import CellStore
from equipoise.experiments.synthetic import settings as synthetic

__all__ = ["Claim", "claims", "table_agreement"]


class Claim(NamedTuple):
    """A number that both the paper and the runs have."""

    table: str
    what: tuple[str, str, str]
    """Task, method and metric: a number in several tables is counted once."""
    away: float
    """Its distance from the paper's number, in the paper's standard deviations, or in ours if it prints none.

    For tab:hv: 0 within the tolerance, else 9.
    """
    seeds: int
    precision: str


def claims(store: CellStore) -> Iterator[Claim]:
    """Every compared number, from existing cells; nothing is run."""
    for cell in synthetic.table(store, "published"):
        if cell.volume.within is not None:
            what = cell.problem, cell.method, cell.volume.metric
            yield Claim("table-hv", what, 0.0 if cell.volume.within else 9.0, len(cell.volume.seeds), "float32")
    tables = {"table-mnist": list(rows.rows(rows.MNIST, rows.ALL, "published"))}
    tables |= {name: rows.wanted(name) for name in rows.GROUPS if name != "table-text"}
    for name, wanted in tables.items():
        if name == "table-preference":
            yield from _claims(name, compare_preferences(complete(store, wanted), "published"), name)
            continue
        found = scores.entries_of(store, wanted, "published")
        if name == "table-ratio":
            yield from _claims(name, compare_ratios(found)["first"], name)
        else:
            yield from _claims(name, (one for entry in found for one in entry.numbers(scores.printed_in(name))))


def _claims(table: str, numbers: Iterable[Number], task: str = "") -> Iterator[Claim]:
    for one in numbers:
        if one.deviations is not None:
            # With mini-batch losses a run of tab:ablation2 is that of tab:3.
            what = task or one.task, one.method.removesuffix(", mini"), one.metric
            precision = settings.precision_of(one.task) or "tf32"
            yield Claim(table, what, one.deviations, len(one.seeds), precision)


@item("-", "-", ("json_file", "markdown_file"))
def table_agreement(request: Request) -> None:
    """Of how many of the paper's numbers the stored runs are within two deviations."""
    page = Page(request, "table-agreement", "How many of the paper's numbers the stored runs agree with")
    found = list(claims(request.store))
    lines = [
        (name, *_line([claim for claim in found if claim.table == name]))
        for name in dict.fromkeys(claim.table for claim in found)
    ]
    federated = {claim.what: claim for claim in found if claim.table != "table-hv"}
    lines.append(("federated, once each", *_line(list(federated.values()))))
    heads = ("table", "numbers", "within two", "within one", "seeds", "precision")
    title = "numbers of the paper, and how many are within two, or one, of its standard deviations"
    page.show(Sheet(title, heads, tuple(lines)))
    if not any(claim.table == "table-hv" for claim in found):
        page.say("No hypervolumes of table-hv are stored yet: `equipoise reproduce table-hv` makes them in a minute.")
    page.say(
        "table-hv is compared with tolerances of 0.001 to 0.02 (docs/synthetic.md), seven numbers of ExcessMTL are not "
        "claimed. Where the paper prints no deviation, that of "
        "tab:3 is taken, or ours."
    )
    page.finish([], [claim._asdict() for claim in found])


def _line(claims: Sequence[Claim]) -> tuple[str, ...]:
    return (
        str(len(claims)),
        str(sum(abs(claim.away) <= ALLOWED for claim in claims)),
        str(sum(abs(claim.away) <= 1 for claim in claims)),
        count_seeds(claim.seeds for claim in claims).rpartition(" ")[0],
        ", ".join(sorted({claim.precision for claim in claims})),
    )
