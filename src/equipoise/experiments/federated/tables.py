"""The federated tables of `equipoise reproduce`: section 4.2 and appendix B.2."""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.table import Table

from equipoise.experiments import paper
from equipoise.experiments.federated import rows as rows_
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.compute import gather
from equipoise.experiments.federated.rows import ALL, CIFAR, DEFAULT, DIGITS, MNIST, TABLES, Wanted
from equipoise.experiments.federated.scores import (
    HEADS,
    METRICS,
    OUTPUTS,
    Entry,
    Metric,
    as_json,
    paired,
    printed_in,
    score,
)
from equipoise.experiments.federated.settings import METHODS, SEEDS
from equipoise.experiments.item import Item, Request
from equipoise.experiments.paper import Score
from equipoise.experiments.render import MARKS, Page, Sheet, grid

_DIGITS: dict[Metric, int] = {"accuracy": 2, "agnostic_loss": 3, "accuracy_parity": 2}
"""Decimals in Markdown."""


TAKES = frozenset({"preset", "methods", "seeds", "rounds", "device", "precision", "data", "json_file", "markdown_file"})
"""The options of a table with fixed tasks."""


def items() -> dict[str, Item]:
    """Tables by their names on the command line."""
    table, kept = TAKES | {"task"}, TAKES
    return {
        "table-mnist": Item(
            "tab:3", "appendix B.2", "Fifteen methods on MNIST, three ways of dealing it", _table_mnist, table
        ),
        "table-cifar": Item(
            "tab:3", "appendix B.2", "Fifteen methods on CIFAR-10, three ways of dealing it", _table_cifar, table
        ),
        "table-adaptive": Item(
            "tab:adaptive", "section 4.2", "OMD-TCH and AdaOMD-TCH on CIFAR-10", _table_adaptive, table
        ),
        "table-stch": Item("tab:stch", "section 4.2", "AdaOMD-TCH and STCH on CIFAR-10", _table_stch, table),
        "table-ablation": Item(
            "tab:ablation", "appendix B.2", "The adaptive conversion for LS and TCH", _table_ablation, table
        ),
        "table-evaluation-data": Item(
            "tab:ablation2", "appendix B.2", "Losses from mini-batches, all or held-out data", _table_evaluation, kept
        ),
        "table-text": Item(
            "-", "section 4.2", "Four methods with the settings of the text", _table_text, kept - {"preset"}
        ),
        "table-time": Item("tab:4", "appendix B.2", "Training time per round", _table_time, table),
        "table-digits": Item("-", "-", "Fifteen methods on digits: minutes, no download", _table_digits, table),
    }


def wanted(request: Request, tasks: Sequence[str], methods: Sequence[str]) -> list[Wanted]:
    """Rows on tasks: the requested methods, or all, then the user's own."""
    own = dict(request.own)
    named = [name for name in request.methods or () if name not in own]
    found = rows_.rows(request.task or tasks, [*(named or methods), *own], request.settings, own)
    return [one._replace(task=settings.sized(one.task, request.rounds)) for one in found]


def group(request: Request, name: str) -> list[Wanted]:
    """The rows of a table with its own kind of runs."""
    return rows_.wanted(name, request.settings, request.rounds, request.methods, dict(request.own))


def say_absent(page: Page, rows: Sequence[Wanted], shown: Container[tuple[str, str]]) -> None:
    """Name the requested rows that have no runs; says nothing if all or none have runs.

    Args:
        page: The page.
        rows: The requested rows.
        shown: Task and method of the rows that the tables show.
    """
    lacking = [one for one in rows if (one.task_name, one.name) not in shown]
    by_task = {
        task: dict.fromkeys(one.name for one in lacking if one.task_name == task)
        for task in dict.fromkeys(one.task_name for one in lacking)
    }
    if lacking and len(lacking) < len(rows):
        page.say("Not shown, for want of runs: " + "; ".join(f"{t}: {', '.join(m)}" for t, m in by_task.items()))


def say_error(page: Page, found: Sequence[Entry]) -> None:
    """Say what ± means, and how to get the standard error."""
    counts = sorted({len(entry.seeds) for entry in found if len(entry.seeds) > 1})
    errors = ", ".join(f"{math.sqrt(n - 1):.2g} for {n} seeds" for n in counts)
    if errors:
        page.say(
            f"± is the standard deviation over the seeds; divided by √(n − 1), {errors}, it is the standard error."
        )


def say_untuned(page: Page, shown: Container[str]) -> None:
    """Explain the library's default method, if it is shown."""
    if DEFAULT in shown:
        page.say(f"{DEFAULT} is the library's default: not in the paper, not tuned to the task.")


# ------------------------------------------------------------------------------- tab:3
def _table_mnist(request: Request) -> None:
    page = Page(request, "table-mnist", "The federated table on MNIST (tab:3)")
    _scores(page, "tab:3", wanted(request, MNIST, ALL))


def _table_cifar(request: Request) -> None:
    page = Page(request, "table-cifar", "The federated table on CIFAR-10 (tab:3)")
    _scores(page, "tab:3", wanted(request, CIFAR, TABLES["table-cifar"]))


def _table_adaptive(request: Request) -> None:
    page = Page(request, "table-adaptive", "OMD-TCH and AdaOMD-TCH (tab:adaptive)")
    bases = {"AdaOMDgd-TCH": "OMDgd-TCH", "AdaOMDeg-TCH": "OMDeg-TCH"}
    _scores(page, "tab:adaptive", wanted(request, CIFAR, TABLES["table-adaptive"]), bases)


def _table_stch(request: Request) -> None:
    page = Page(request, "table-stch", "AdaOMD-TCH and STCH (tab:stch)")
    names = TABLES["table-stch"]
    bases = {name: "STCH" for name in names if name != "STCH"}
    note = "The paper prints no deviations for STCH w/ momentum: those of STCH in tab:3 are taken."
    _scores(page, "tab:stch", wanted(request, CIFAR, names), bases, note)


def _table_ablation(request: Request) -> None:
    page = Page(request, "table-ablation", "The adaptive conversion for LS and TCH (tab:ablation)")
    note = (
        "The paper prints no deviations and no agnostic loss for AdaLS and AdaTCH: the deviations of LS and TCH in "
        "tab:3 are taken. LS and AdaLS, TCH and AdaTCH are two outputs of one run."
    )
    bases = {"AdaLS": "LS", "AdaTCH": "TCH", "AdaOMDgd-TCH": "TCH"}
    _scores(page, "tab:ablation", wanted(request, CIFAR, TABLES["table-ablation"]), bases, note)


def _table_evaluation(request: Request) -> None:
    page = Page(
        request, "table-evaluation-data", "On what the losses for weights and dominance are taken (tab:ablation2)"
    )
    rows = group(request, page.name)
    bases = {one.name: f"{one.row.name}, mini" for one in rows if one.column != "mini"}
    note = (
        "The paper prints no deviations here: those of the method in tab:3 are taken. With val the test set is the "
        "other half of the test samples."
    )
    _scores(page, "tab:ablation2", rows, bases, note)


def _table_text(request: Request) -> None:
    page = Page(request, "table-text", "CIFAR-10 with the settings of the paper's text")
    request = replace(request, preset="text")
    rows = group(request, page.name)
    found = gather(request, page.name, rows)
    for task, entries in by_task(found):
        title = f"ResNet18, {_described(task, entries, request)}"
        page.show(_sheet(title, entries), _beside_paper(title, entries))
        page.say("The paper's numbers are those of tab:3, which other settings have made: none is claimed.")
        page.show(_every_output(entries))
        to_ls = _to_ls(entries)
        if to_ls.rows:
            page.show(to_ls)
    say_absent(page, rows, {(entry.task, entry.name) for entry in found})
    page.finish((result for entry in found for result in entry.results), as_json(found, "text"))


def _every_output(rows: Sequence[Entry]) -> Sheet:
    """All outputs of the same runs, and how well they fit the training samples."""
    lines = []
    for entry in rows:
        for output in OUTPUTS:
            scores = [entry.score(metric, output).text(_DIGITS[metric]) for metric in METRICS]
            fit = entry.score("accuracy", output, "train").text(_DIGITS["accuracy"])
            lines.append((entry.name, output, *scores, fit))
    heads = ("method", "output", "accuracy ↑", "agnostic loss ↓", "parity ↓", "training")
    return Sheet("every output of the same runs; training: accuracy on the training samples", heads, tuple(lines))


def _to_ls(rows: Sequence[Entry]) -> Sheet:
    """The methods' reported numbers minus those of LS, on the seeds that both have."""
    base = next((entry for entry in rows if entry.name == "LS"), None)
    lines = []
    for entry in rows:
        if base is None or entry is base:
            continue
        found = entry.less(base)
        cells = (score(values).text(_DIGITS[metric], signed=True) for metric, values in found.items())
        if found:
            lines.append((entry.name, str(len(found["accuracy"])), *cells))
    return Sheet("difference to LS on the same seeds", ("method", "seeds", *HEADS.values()), tuple(lines))


def _scores(
    page: Page, label: str, rows: Sequence[Wanted], bases: Mapping[str, str] | None = None, note: str = ""
) -> None:
    """A table of the three metrics with the paper's, task by task."""
    found = gather(page.request, page.name, rows)
    for task, entries in by_task(found):
        title = f"{label}, {_described(task, entries, page.request)}"
        page.show(_sheet(title, entries), _beside_paper(title, entries))
    say_absent(page, rows, {(entry.task, entry.name) for entry in found})
    say_untuned(page, {entry.name for entry in found})
    say_error(page, found)
    if note and any(entry.claimed for entry in found):
        page.say(note)
    _show_conversions(page, found)
    _verdict(page, found)
    _differences(page, found, bases)
    page.finish((result for entry in found for result in entry.results), as_json(found, page.request.settings))


def _sheet(title: str, rows: Sequence[Entry]) -> Sheet:
    """The table for Markdown, with the paper's numbers in separate columns."""
    heads = [text for head in HEADS.values() for text in (head, "paper")]
    uneven = len({entry.seeds for entry in rows}) > 1
    lines = []
    for entry in rows:
        cells = [entry.name, *([str(len(entry.seeds))] if uneven else [])]
        for metric in METRICS:
            theirs: Score | None = getattr(entry.paper, metric, None)
            digits = _DIGITS[metric]
            cells.append(f"{entry.score(metric).text(digits)} {MARKS[entry.within(metric)]}")
            cells.append("" if theirs is None else theirs.text(digits))
        lines.append(tuple(cells))
    return Sheet(title, ("method", *(["seeds"] if uneven else []), *heads), tuple(lines))


def _beside_paper(title: str, rows: Sequence[Entry]) -> Table:
    compared = any(entry.within(metric) is not None for entry in rows for metric in METRICS)
    marks = "; ✓: within two of the paper's standard deviations" if compared else ""
    uneven = len({entry.seeds for entry in rows}) > 1
    table = grid(f"{title}{marks}", ("method", *(["seeds"] if uneven else []), *HEADS.values()))
    for entry in rows:
        cells = []
        for metric in METRICS:
            theirs: Score | None = getattr(entry.paper, metric, None)
            below = "" if theirs is None else f"\n[dim]{theirs.text()}  [/dim]"
            cells.append(f"{entry.score(metric).text()} {MARKS[entry.within(metric)]}{below}")
        name = entry.name if entry.paper is None else f"{entry.name}\n[dim]paper[/dim]"
        table.add_row(name, *([str(len(entry.seeds))] if uneven else []), *cells)
    return table


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


def _verdict(page: Page, found: Sequence[Entry]) -> None:
    """Say how many numbers agree with the paper, and which do not."""
    metrics = printed_in(page.name)
    claimed = [(entry, metric) for entry in found for metric in metrics if entry.within(metric) is not None]
    if not found:
        page.say("there are no runs to show yet")
        return
    if not claimed:
        page.say("settings or rounds are not those of the paper's table: nothing is claimed")
        return
    outside = [(entry, metric) for entry, metric in claimed if not entry.within(metric)]
    counts = sorted({len(entry.seeds) for entry, _ in claimed})
    page.say(
        f"{len(claimed) - len(outside)} of {len(claimed)} numbers within two of the paper's standard deviations, "
        f"{sum(abs(entry.deviations(metric) or 0) <= 1 for entry, metric in claimed)} within one; "
        f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seed{'s' if counts[-1] > 1 else ''}",
    )
    page.list(
        [
            f"outside: {entry.name} on {entry.task}, {metric}: {entry.score(metric).text()}, "
            f"paper {getattr(entry.paper, metric).text()}, {entry.deviations(metric):+.1f} of its deviations"
            for entry, metric in outside
        ]
    )


def _differences(page: Page, found: Sequence[Entry], bases: Mapping[str, str] | None) -> None:
    """Differences between methods on the same seeds: to the named ones, for all tasks.

    If none are named, to LS, for partial classes: the class draw affects a method and LS in the same way.
    """
    pairs = [pair for pair in paired(found, bases) if bases is not None or "class" in pair.task]
    # A deviation of differences needs two common seeds.
    seeds = {(entry.task, entry.name): set(entry.seeds) for entry in found}
    pairs = [pair for pair in pairs if len(seeds[pair.task, pair.method] & seeds[pair.task, pair.base]) > 1]
    for task in dict.fromkeys(pair.task for pair in pairs):
        own = {(pair.method, pair.metric): pair for pair in pairs if pair.task == task}
        others = dict.fromkeys(pair.base for pair in own.values())
        one = next(iter(others)) if len(others) == 1 else None
        title = f"{task}: difference {f'to {one} ' if one else ''}on the same seeds"
        rows = []
        for method in dict.fromkeys(name for name, _ in own):
            cells = [own.get((method, metric)) for metric in METRICS]
            base = next(pair.base for pair in cells if pair is not None)
            texts: list[str] = []
            for p in cells:
                ours = "" if p is None else f"{p.ours.text(signed=True)} {MARKS[p.within]}"
                texts += [ours, "" if p is None else f"{p.paper:+.3f}"]
            rows.append((method if one else f"{method} − {base}", *texts))
        heads = [text for head in HEADS.values() for text in (head, "paper")]
        page.show(Sheet(title, ("method", *heads), tuple(rows)))
    if not pairs:
        return
    inside = sum(pair.within for pair in pairs)
    to = "to LS " if bases is None else ""
    page.say(f"{inside} of {len(pairs)} of the paper's differences {to}within two standard deviations of ours")
    page.list(
        [
            f"outside: {pair.method} − {pair.base} on {pair.task}, {pair.metric}: "
            f"{pair.ours.text(4, signed=True)}, paper {pair.paper:+.3f}"
            for pair in pairs
            if not pair.within
        ]
    )


# ------------------------------------------------------------------------------- tab:4
def _table_time(request: Request) -> None:
    page = Page(request, "table-time", "Training time per round (tab:4)")
    asked = wanted(request, (*MNIST, *CIFAR), METHODS)
    found = gather(request, page.name, asked)
    records = []
    for task, rows in by_task(found):
        theirs = paper.SECONDS.get(task, {})
        base = next((entry.seconds for entry in rows if entry.name == "LS"), None)
        lines = []
        for entry in rows:
            name, known = entry.name, theirs.get(entry.name)
            ours = None if base is None else entry.seconds / base
            reference = None if known is None else known / theirs["LS"]
            lines.append(
                (
                    name,
                    f"{1000 * entry.seconds:.2f}",
                    "" if ours is None else f"{ours:.2f}",
                    "" if known is None else f"{1000 * known:.0f}",
                    "" if reference is None else f"{reference:.2f}",
                )
            )
            records.append(
                {
                    "task": task,
                    "method": name,
                    "seconds": entry.seconds,
                    "relative": ours,
                    "paper_seconds": known,
                    "paper_relative": reference,
                    "devices": sorted({result["made"]["device"] for result in entry.results}),
                }
            )
        heads = ("method", "ms", "relative to LS", "paper, ms", "relative to LS")
        page.show(Sheet(f"tab:4, {task}: time per round and seed", heads, tuple(lines)))
    say_absent(page, asked, {(entry.task, entry.name) for entry in found})
    devices = sorted({result["made"]["device"] for entry in found for result in entry.results})
    page.say(
        f"Ours: {', '.join(devices)}; rounds only, without evaluation; every run keeps all three outputs, the archive "
        "included; rows of equal step size share one run. The paper's times are another machine's: compare what is "
        "relative to LS.",
    )
    page.finish((result for entry in found for result in entry.results), records)


# ------------------------------------------------------------------------------- digits
def _table_digits(request: Request) -> None:
    page = Page(request, "table-digits", "The federated table on digits")
    asked = wanted(request, DIGITS, ALL)
    found = gather(request, page.name, asked)
    for task, rows in by_task(found):
        title = _described(task, rows, request)
        table = grid(f"{title}; best in bold", ("method", *HEADS.values()))
        best = {metric: _best(rows, metric) for metric in METRICS}
        for entry in rows:
            cells = (
                f"[bold]{entry.score(metric).text()}[/bold]" if entry is best[metric] else entry.score(metric).text()
                for metric in METRICS
            )
            table.add_row(entry.name, *cells)
        page.show(_sheet(title, rows), table)
    say_absent(page, asked, {(entry.task, entry.name) for entry in found})
    say_untuned(page, {entry.name for entry in found})
    _show_conversions(page, found)
    page.finish((result for entry in found for result in entry.results), as_json(found, request.settings))


def _best(rows: Sequence[Entry], metric: Metric) -> Entry:
    sign = -1 if metric == "accuracy" else 1
    return min(rows, key=lambda entry: sign * entry.score(metric).mean)


# ------------------------------------------------------------------------------- how things are written
def described(request: Request, task: str) -> str:
    """A task with the precision of its runs."""
    return f"{task}, {settings.precision_of(task, request.precision)}"


def by_task(found: Sequence[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Entries task by task."""
    for task in dict.fromkeys(entry.task for entry in found):
        yield task, [entry for entry in found if entry.task == task]


def _described(task: str, rows: Sequence[Entry], request: Request) -> str:
    """The task with its seeds, and its precision if the user chose it."""
    precision = settings.precision_of(task, request.precision)
    task = task if precision is None else f"{task}, {precision}"
    seeds = rows[0].seeds
    if any(entry.seeds != seeds for entry in rows):
        return f"{task}, seeds as there are"
    if seeds == SEEDS:
        return f"{task}, the paper's ten seeds"
    return f"{task}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
