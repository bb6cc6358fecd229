"""The federated tables of `equipoise reproduce`: section 4.2 and appendix B.2. Others have modules of their own."""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from equipoise.experiments import paper
from equipoise.experiments.comparison import count_seeds, sheet
from equipoise.experiments.federated import rows as rows_
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.compute import gather
from equipoise.experiments.federated.rows import ALL, CIFAR, DEFAULT, DIGITS, MNIST, TABLES
from equipoise.experiments.federated.scores import HEADS, METRICS, OUTPUTS, Entry, Metric, paired, printed_in, score
from equipoise.experiments.federated.settings import EVALUATION_DATA, METHODS, SEEDS, Run
from equipoise.experiments.item import Item, Request, item
from equipoise.experiments.paper import Preset
from equipoise.experiments.render import Page, Sheet, grid
from equipoise.experiments.results import Result

_DIGITS: dict[str, int] = {"accuracy": 2, "agnostic_loss": 3, "accuracy_parity": 2}
"""Decimals in Markdown."""

TAKES = frozenset({"preset", "methods", "seeds", "rounds", "device", "precision", "data", "json_file", "markdown_file"})
"""The options of a table with fixed tasks."""
TAKES_TASK = TAKES | {"task"}


def wanted(request: Request, tasks: Sequence[str], methods: Sequence[str]) -> list[Run]:
    """Rows on tasks: the requested methods, or all, then the user's own."""
    own = dict(request.own)
    named = [name for name in request.methods or () if name not in own]
    found = rows_.rows(request.task or tasks, [*(named or methods), *own], request.settings, own)
    return [one.asked(request.rounds, request.seeds, request.precision) for one in found]


def group(request: Request, name: str) -> list[Run]:
    """The rows of a table with its own kind of runs."""
    found = rows_.wanted(name, request.settings, request.methods, dict(request.own))
    return [one.asked(request.rounds, request.seeds, request.precision) for one in found]


# ------------------------------------------------------------------------------- three metrics beside the paper's
def _table(
    name: str,
    label: str,
    number: str,
    caption: str,
    title: str,
    tasks: Sequence[str] = (),
    bases: Mapping[str, str] | None = None,
    note: str = "",
) -> Item:
    """A table of the three metrics with the paper's, task by task.

    Args:
        name: Its name on the command line.
        label: Its label in the paper.
        number: Its printed number.
        caption: What it shows.
        title: The title of its page.
        tasks: Its tasks; those of its own kind of runs if not given.
        bases: For every method, the one to which differences are shown; LS, for partial classes, if not given.
        note: What a reader of its numbers must know.
    """

    def run(request: Request) -> None:
        page = Page(request, name, f"{title} ({label})")
        asked = wanted(request, tasks, TABLES.get(name, ALL)) if tasks else group(request, name)
        found = gather(request, name, asked)
        for task, entries in by_task(found):
            _show_scores(page, f"{label}, {_described(task, entries, request)}", entries)
        say_absent(page, asked, {(entry.task, entry.name) for entry in found})
        say_untuned(page, {entry.name for entry in found})
        counts = sorted({len(entry.seeds) for entry in found if len(entry.seeds) > 1})
        errors = ", ".join(f"{math.sqrt(n - 1):.2g} for {n} seeds" for n in counts)
        if errors:
            page.say(
                f"± is the standard deviation over the seeds; divided by √(n − 1), {errors}, it is the standard error."
            )
        if note and any(entry.claimed for entry in found):
            page.say(note)
        _show_conversions(page, found)
        _say_verdict(page, found)
        _show_differences(page, found, bases)
        _finish(page, found, request.settings)

    return Item(label, number, caption, run, TAKES_TASK if tasks else TAKES)


table_mnist = _table(
    "table-mnist", "tab:3", "appendix B.2", "Fifteen methods on MNIST, three ways of dealing it",
    "The federated table on MNIST", MNIST,
)  # fmt: skip
table_cifar = _table(
    "table-cifar", "tab:3", "appendix B.2", "Fifteen methods on CIFAR-10, three ways of dealing it",
    "The federated table on CIFAR-10", CIFAR,
)  # fmt: skip
table_adaptive = _table(
    "table-adaptive", "tab:adaptive", "section 4.2", "OMD-TCH and AdaOMD-TCH on CIFAR-10", "OMD-TCH and AdaOMD-TCH",
    CIFAR, {"AdaOMDgd-TCH": "OMDgd-TCH", "AdaOMDeg-TCH": "OMDeg-TCH"},
)  # fmt: skip
table_stch = _table(
    "table-stch", "tab:stch", "section 4.2", "AdaOMD-TCH and STCH on CIFAR-10", "AdaOMD-TCH and STCH",
    CIFAR, dict.fromkeys(TABLES["table-stch"][1:], "STCH"),
    "The paper prints no deviations for STCH w/ momentum: those of STCH in tab:3 are taken.",
)  # fmt: skip
table_ablation = _table(
    "table-ablation", "tab:ablation", "appendix B.2", "The adaptive conversion for LS and TCH",
    "The adaptive conversion for LS and TCH", CIFAR, {"AdaLS": "LS", "AdaTCH": "TCH", "AdaOMDgd-TCH": "TCH"},
    "The paper prints no deviations and no agnostic loss for AdaLS and AdaTCH: the deviations of LS and TCH in tab:3 "
    "are taken. LS and AdaLS, TCH and AdaTCH are two outputs of one run.",
)  # fmt: skip
table_evaluation_data = _table(
    "table-evaluation-data", "tab:ablation2", "appendix B.2", "Losses from mini-batches, all or held-out data",
    "On what the losses for weights and dominance are taken", (),
    {f"{one}, {data}": f"{one}, mini" for one in ("AdaOMDgd-TCH", "AdaOMDeg-TCH") for data in EVALUATION_DATA[1:]},
    "The paper prints no deviations here: those of the method in tab:3 are taken. With val the test set is the other "
    "half of the test samples.",
)  # fmt: skip


# ------------------------------------------------------------------------------- other tables
@item("-", "section 4.2", TAKES - {"preset"})
def table_text(request: Request) -> None:
    """Four methods with the settings of the text."""
    page = Page(request, "table-text", "CIFAR-10 with the settings of the paper's text")
    request = replace(request, preset="text")
    asked = group(request, page.name)
    found = gather(request, page.name, asked)
    for task, entries in by_task(found):
        _show_scores(page, f"ResNet18, {_described(task, entries, request)}", entries)
        page.say("The paper's numbers are those of tab:3, which other settings have made: none is claimed.")
        lines = []
        for entry, output in product(entries, OUTPUTS):
            scores = [entry.score(metric, output).text(_DIGITS[metric]) for metric in METRICS]
            fit = entry.score("accuracy", output, "train").text(_DIGITS["accuracy"])
            lines.append((entry.name, output, *scores, fit))
        heads = ("method", "output", "accuracy ↑", "agnostic loss ↓", "parity ↓", "training")
        every = "every output of the same runs; training: accuracy on the training samples"
        page.show(Sheet(every, heads, tuple(lines)))
        less = {a.name: a.less(b) for a in entries for b in entries if b.name == "LS" != a.name}
        shown = {name: [score(of[m]).text(_DIGITS[m], signed=True) for m in METRICS] for name, of in less.items() if of}
        if shown:
            rows = tuple((name, str(len(less[name]["accuracy"])), *texts) for name, texts in shown.items())
            page.show(Sheet("difference to LS on the same seeds", ("method", "seeds", *HEADS.values()), rows))
    say_absent(page, asked, {(entry.task, entry.name) for entry in found})
    _finish(page, found, request.settings)


@item("tab:4", "appendix B.2", TAKES_TASK)
def table_time(request: Request) -> None:
    """Training time per round."""
    page = Page(request, "table-time", "Training time per round (tab:4)")
    asked = wanted(request, (*MNIST, *CIFAR), METHODS)
    found = gather(request, page.name, asked)
    records = []
    for task, rows in by_task(found):
        theirs = paper.SECONDS.get(task, {})
        base = next((entry.seconds for entry in rows if entry.name == "LS"), None)
        lines = []
        for entry in rows:
            known = theirs.get(entry.name)
            ours = None if base is None else entry.seconds / base
            reference = None if known is None else known / theirs["LS"]
            shown = ((1000 * entry.seconds, 2), (ours, 2), (known and 1000 * known, 0), (reference, 2))
            lines.append((entry.name, *("" if value is None else f"{value:.{digits}f}" for value, digits in shown)))
            records.append(
                {
                    "task": task,
                    "method": entry.name,
                    "seconds": entry.seconds,
                    "relative": ours,
                    "paper_seconds": known,
                    "paper_relative": reference,
                    "devices": _devices([entry]),
                }
            )
        heads = ("method", "ms", "relative to LS", "paper, ms", "relative to LS")
        page.show(Sheet(f"tab:4, {task}: time per round and seed", heads, tuple(lines)))
    say_absent(page, asked, {(entry.task, entry.name) for entry in found})
    page.say(
        f"Ours: {', '.join(_devices(found))}; rounds only, without evaluation; every run keeps all three outputs, the "
        "archive included; rows of equal step size share one run. The paper's times are another machine's: compare "
        "what is relative to LS."
    )
    page.finish(results_of(found), records)


def _devices(found: Sequence[Entry]) -> list[str]:
    return sorted({result["made"]["device"] for result in results_of(found)})


@item("-", "-", TAKES_TASK)
def table_digits(request: Request) -> None:
    """Seventeen methods on digits: minutes, no download."""
    page = Page(request, "table-digits", "The federated table on digits")
    asked = wanted(request, DIGITS, ALL)
    found = gather(request, page.name, asked)
    for task, rows in by_task(found):
        title = _described(task, rows, request)
        table = grid(f"{title}; best in bold", ("method", *HEADS.values()))
        best = {metric: _best(rows, metric) for metric in METRICS}
        for entry in rows:
            texts = ((entry.score(metric).text(), best[metric] is entry) for metric in METRICS)
            table.add_row(entry.name, *(f"[bold]{text}[/bold]" if is_best else text for text, is_best in texts))
        numbers = [number for entry in rows for number in entry.numbers()]
        page.show(sheet(title, numbers, HEADS, _DIGITS, seeds=_is_uneven(rows), blank=True), table)
    say_absent(page, asked, {(entry.task, entry.name) for entry in found})
    say_untuned(page, {entry.name for entry in found})
    _show_conversions(page, found)
    _finish(page, found, request.settings)


def _best(rows: Sequence[Entry], metric: Metric) -> Entry:
    sign = -1 if metric == "accuracy" else 1
    return min(rows, key=lambda entry: sign * entry.score(metric).mean)


# ------------------------------------------------------------------------------- parts of a page
def _show_scores(page: Page, title: str, rows: Sequence[Entry]) -> None:
    """The three metrics beside the paper's, with fewer decimals in Markdown."""
    numbers = [number for entry in rows for number in entry.numbers()]
    compared = any(number.within is not None for number in numbers)
    marks = "; ✓: within two of the paper's standard deviations" if compared else ""
    uneven = _is_uneven(rows)
    page.show(
        sheet(title, numbers, HEADS, _DIGITS, seeds=uneven, blank=True),
        sheet(f"{title}{marks}", numbers, HEADS, seeds=uneven).table(),
    )


def _is_uneven(rows: Sequence[Entry]) -> bool:
    return len({entry.seeds for entry in rows}) > 1


def _show_conversions(page: Page, found: Sequence[Entry]) -> None:
    """Rows with a conversion that selects models: its output compared with the last model."""
    heads = ("task", "method", "accuracy", "agnostic loss", "parity")
    rows = []
    for entry in found:
        if entry.output in {"adaptive", "own"}:
            pairs = ([entry.score(metric, output).mean for output in (None, "last")] for metric in METRICS)
            cells = (f"{ours:.{n}f} / {last:.{n}f}" for (ours, last), n in zip(pairs, _DIGITS.values(), strict=True))
            rows.append((entry.task, entry.name, *cells))
    if rows:
        page.show(Sheet("the method's output / last model of the same run", heads, tuple(rows)))


def _show_differences(page: Page, found: Sequence[Entry], bases: Mapping[str, str] | None) -> None:
    """Differences between methods on the same seeds: to the named ones, for all tasks.

    If none are named, to LS, for partial classes: the class draw affects a method and LS in the same way.
    """
    pairs = [
        pair
        for pair in paired(found, bases)
        if (bases is not None or "class" in pair.task) and len(pair.seeds) > 1  # one seed has no deviation
    ]
    for task in dict.fromkeys(pair.task for pair in pairs):
        own = [pair for pair in pairs if pair.task == task]
        others = {pair.base for pair in own}
        to = f"to {min(others)} " if len(others) == 1 else ""
        named = own if to else [replace(pair, method=f"{pair.method} − {pair.base}") for pair in own]
        title = f"{task}: difference {to}on the same seeds"
        page.show(sheet(title, named, HEADS, seeds=False, blank=True))
    if not pairs:
        return
    inside = sum(bool(pair.within) for pair in pairs)
    to = "to LS " if bases is None else ""
    page.say(f"{inside} of {len(pairs)} of the paper's differences {to}within two standard deviations of ours")
    page.list(
        [
            f"outside: {pair.method} − {pair.base} on {pair.task}, {pair.metric}: "
            f"{pair.ours.text(4, signed=True)}, paper {pair.printed()}"
            for pair in pairs
            if not pair.within
        ]
    )


def _say_verdict(page: Page, found: Sequence[Entry]) -> None:
    """Say how many numbers agree with the paper, and which do not."""
    numbers = [number for entry in found for number in entry.numbers(printed_in(page.name))]
    away = {number: abs(number.deviations) for number in numbers if number.deviations is not None}
    if not away:
        nothing = "settings or rounds are not those of the paper's table: nothing is claimed"
        page.say(nothing if found else "there are no runs to show yet")
        return
    page.say(
        f"{sum(bool(number.within) for number in away)} of {len(away)} numbers within two of the paper's standard "
        f"deviations, {sum(value <= 1 for value in away.values())} within one; "
        f"{count_seeds(len(number.seeds) for number in away)}"
    )
    page.list(
        [
            f"outside: {one.method} on {one.task}, {one.metric}: {one.ours.text()}, paper {one.printed()}, "
            f"{one.deviations:+.1f} of its deviations"
            for one in away
            if not one.within
        ]
    )


def say_absent(page: Page, rows: Sequence[Run], shown: Container[tuple[str, str]]) -> None:
    """Name the requested rows that are not shown, given as task and method; says nothing if all or none are shown."""
    lacking = [one for one in rows if (one.task_name, one.title) not in shown]
    tasks: dict[str, dict[str, None]] = {}
    for one in lacking:
        tasks.setdefault(one.task_name, {})[one.title] = None
    if lacking and len(lacking) < len(rows):
        page.say("Not shown, for want of runs: " + "; ".join(f"{t}: {', '.join(m)}" for t, m in tasks.items()))


def say_untuned(page: Page, shown: Container[str]) -> None:
    """Explain the library's default method, if it is shown."""
    if DEFAULT in shown:
        page.say(f"{DEFAULT} is the library's default: not in the paper, not tuned to the task.")


def results_of(found: Sequence[Entry]) -> Iterator[Result]:
    """The results of all entries."""
    return (result for entry in found for result in entry.results)


def _finish(page: Page, found: Sequence[Entry], preset: Preset) -> None:
    records = [entry.record(metric, preset) for entry in found for metric in METRICS]
    page.finish(results_of(found), records)


def described(request: Request, task: str) -> str:
    """A task with the precision of its runs, if it is not the engine's choice."""
    precision = settings.precision_of(task, request.precision)
    return task if precision is None else f"{task}, {precision}"


def by_task(found: Sequence[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Entries task by task."""
    for task in dict.fromkeys(entry.task for entry in found):
        yield task, [entry for entry in found if entry.task == task]


def _described(task: str, rows: Sequence[Entry], request: Request) -> str:
    """The task with its seeds, and its precision if the user chose it."""
    task, seeds = described(request, task), rows[0].seeds
    if _is_uneven(rows):
        return f"{task}, seeds as there are"
    if seeds == SEEDS:
        return f"{task}, the paper's ten seeds"
    return f"{task}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
