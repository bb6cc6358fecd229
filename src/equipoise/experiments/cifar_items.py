"""What `equipoise reproduce` shows of the tables on CIFAR-10 with metrics of their own: tab:ratio and tab:new."""

from collections.abc import Callable, Sequence

from equipoise.experiments import federated, plan
from equipoise.experiments.cifar_tables import (
    Base,
    Compared,
    as_json,
    compare_outputs,
    compare_preferences,
    compare_ratios,
)
from equipoise.experiments.computing import gather, provide
from equipoise.experiments.paper import Score
from equipoise.experiments.request import Item, Request
from equipoise.experiments.sheets import MARKS, Page, Sheet, say_absent, say_untuned

RATIOS = {"agnostic_ratio": "agnostic ratio ↓", "ratio_parity": "ratio parity ↓"}
PREFERENCES = {
    "loss_hypervolume": "HV, losses ↑",
    "accuracy_hypervolume": "HV, accuracies ↑",
    "overall_loss": "overall loss ↓",
    "overall_accuracy": "accuracy ↑",
}
"""The metrics as heads of columns."""


def items() -> dict[str, Item]:
    """Tables by their names on the command line."""
    takes = frozenset(
        {"preset", "methods", "seeds", "rounds", "device", "precision", "data", "json_file", "markdown_file"}
    )  # fmt: skip
    return {
        "table-ratio": Item(
            "tab:ratio", "appendix B.2", "Ratios of losses for the weight updates", _table_ratio, takes
        ),
        "table-preference": Item(
            "tab:new", "section 4.2", "Two clients, three preferences: hypervolumes", _table_preference, takes
        ),
    }


# ------------------------------------------------------------------------------- tab:ratio
def _table_ratio(request: Request) -> None:
    page = Page(request, "table-ratio", "Weights updated with ratios of losses (tab:ratio)")
    rows = plan.wanted(page.name, request.settings, request.rounds, request.methods)
    found = gather(request, page.name, rows)
    titles: dict[Base, str] = {
        "first": "over the test loss of the model reported after the first round, as in the paper's table",
        "untrained": "over the test loss of the untrained model, as in the paper's text",
    }
    compared = compare_ratios(found)
    for base, title in titles.items():
        if compared[base]:
            page.show(_sheet(f"tab:ratio, {_setting(request, 'cifar-rotation')}: {title}", compared[base], RATIOS))
    say_absent(page, rows, {(entry.task, entry.row.name) for entry in found})
    if found:
        page.say(
            "Ada methods report the untrained model after the first round, all others one that was trained for a "
            "round: the first table divides by different things. In the published rows AdaOMDeg-TCH has the ratio in "
            'the first round alone; "every round" has it as the others do.'
        )
    _verdict(page, compared["first"])
    records = [{**record, "base": base} for base, rows in compared.items() for record in as_json(rows)]
    page.finish((result for entry in found for result in entry.results), records)


# ------------------------------------------------------------------------------- tab:new
def _table_preference(request: Request) -> None:
    page = Page(request, "table-preference", "Two clients and three preferences (tab:new)")
    rows = plan.wanted(page.name, request.settings, request.rounds, request.methods)
    provide(request, page.name, rows)
    compared = compare_preferences(request.store, rows, request.seeds, request.settings, request.precision)
    if compared:
        page.show(_sheet(f"tab:new, {_setting(request, 'cifar-two')}", compared, PREFERENCES))
        page.say(
            "HV: hypervolume of the test results of both clients under the preferences (½, ½), (¾, ¼) and (¼, ¾); the "
            "reference points are loss 4 and accuracy 0.3 for both, and a point beyond them counts zero. Overall loss "
            "and accuracy: means over clients and preferences."
        )
        outputs = compare_outputs(request.store, rows, request.seeds, request.precision)
        for metric in ("loss_hypervolume", "accuracy_hypervolume"):
            page.show(_by_output(f"{PREFERENCES[metric]}: every output of the same runs", outputs, metric))
        page.say(
            "Most rows of the paper's table are last models; OMDgd-TCH and ExcessMTL are averages of all models, and "
            "Ada rows the adaptive output. Averaging alone raises hypervolumes, whatever the method."
        )
    shown = {one.method for one in compared}
    say_untuned(page, shown)
    if plan.FORMER in shown and plan.DEFAULT not in shown:
        page.say(f"There are no runs of {plan.DEFAULT}, the default, with two clients yet.")
    say_absent(page, [one._replace(column="") for one in rows], {("cifar-two", name) for name in shown})
    _verdict(page, compared)
    seeds = {seed for one in compared for seed in one.seeds}
    results = (
        result
        for one in rows
        if one.row.name in shown
        for result in one.found(request.store, sorted(seeds), request.precision).values()
    )
    page.finish(results, as_json(compared))


# ------------------------------------------------------------------------------- both
def _setting(request: Request, task: str) -> str:
    return f"{task}, {federated.precision_of(task, request.precision)}"


def _sheet(title: str, compared: Sequence[Compared], heads: dict[str, str]) -> Sheet:
    """Methods as rows; a metric, and what the paper has for it, as columns."""
    printed = {metric: any(one.paper is not None for one in compared if one.metric == metric) for metric in heads}
    by_place = {(one.method, one.metric): one for one in compared}
    lines = []
    for method in dict.fromkeys(one.method for one in compared):
        cells = [method, str(len(next(one for one in compared if one.method == method).seeds))]
        for metric in heads:
            one = by_place[method, metric]
            digits = 2 if metric == "overall_accuracy" else 3
            cells.append(f"{one.ours.text(digits)} {MARKS[one.within]}")
            if printed[metric]:
                cells.append(_printed(one, digits))
        lines.append(tuple(cells))
    names = [text for metric, head in heads.items() for text in ((head, "paper") if printed[metric] else (head,))]
    return Sheet(title, ("method", "seeds", *names), tuple(lines))


def _by_output(title: str, outputs: dict[str, dict[str, dict[str, Score]]], metric: str) -> Sheet:
    """Methods as rows; a metric of every output as columns."""
    lines = [(method, *(scores[metric].text(3) for scores in of.values())) for method, of in outputs.items()]
    return Sheet(title, ("method", *next(iter(outputs.values()))), tuple(lines))


def _printed(one: Compared, digits: int) -> str:
    if one.paper is None:
        return ""
    return f"{one.paper:.{digits}f}" if one.std is None else Score(one.paper, one.std).text(digits)


def _verdict(page: Page, compared: Sequence[Compared]) -> None:
    """How many numbers are the paper's, and which are not."""
    kinds: tuple[tuple[str, Callable[[Compared], bool]], ...] = (
        ("the paper's", lambda one: one.std is not None),
        ("our own", lambda one: one.std is None),
    )
    if all(one.within is None for one in compared):
        page.say("there is nothing that can be compared with the paper")
        return
    for whose, kind in kinds:
        claimed = [one for one in compared if one.within is not None and kind(one)]
        if not claimed:
            continue
        outside = [one for one in claimed if not one.within]
        why = "" if whose == "the paper's" else " (the paper prints none)"
        count = len(claimed) - len(outside)
        page.say(f"{count} of {len(claimed)} numbers within two of {whose} standard deviations{why}")
        page.list(
            [
                f"outside: {one.method}, {one.metric}: {one.ours.text(3)}, paper {_printed(one, 3)}, "
                f"{one.deviations:+.1f} deviations"
                for one in outside
            ]
        )
