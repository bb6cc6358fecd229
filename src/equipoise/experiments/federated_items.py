"""What `equipoise reproduce` shows of the federated experiments: tables and figures of section 4.2 and appendix B.2."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from equipoise.errors import NonFiniteLossError
from equipoise.experiments import federated, federated_figures, figures, paper
from equipoise.experiments.cells import CellStore
from equipoise.experiments.federated import EXACT_FERERO, METHODS, Job
from equipoise.experiments.federated_tables import METRICS, Entry, Metric, as_json, entries, paired, seeds_of
from equipoise.experiments.paper import Score
from equipoise.experiments.request import Item, Request, bar, say, wrote, wrote_json

MNIST = ("mnist-rotation", "mnist-class2", "mnist-class5")
DIGITS = ("digits-rotation", "digits-class2", "digits-class5")
HEADS: dict[Metric, str] = {
    "accuracy": "accuracy ↑",
    "agnostic_loss": "agnostic loss ↓",
    "accuracy_parity": "accuracy parity ↓",
}
"""The metrics as heads of columns."""
_MARKS = {True: "✓", False: "✗", None: " "}


def items() -> dict[str, Item]:
    """Tables and figures by their names on the command line."""
    figure = frozenset({"task", "methods", "seeds", "rounds", "device", "precision", "data"})
    table = figure | {"json_file"}
    return {
        "table-mnist": Item(
            "tab:3", "appendix B.2", "Fifteen methods on MNIST, three ways of dealing it", _table_mnist, table
        ),
        "table-time": Item("tab:4", "appendix B.2", "Training time per round", _table_time, table),
        "table-digits": Item("-", "-", "Fifteen methods on digits: minutes, no download", _table_digits, table),
        "fig-federated": Item("fig:3", "section 4.2", "Accuracy and agnostic loss of all methods", _fig_all, figure),
        "fig-conversion": Item("fig:new-in", "section 4.2", "OMD updates and the conversion", _fig_conversion, figure),
        "fig-curves": Item("fig:5", "appendix B.2", "Worst-client loss over the rounds", _fig_curves, figure),
        "fig-parity": Item("fig:6", "appendix B.2", "Accuracy against accuracy parity", _fig_parity, figure),
        "fig-box": Item("fig:7", "appendix B.2", "Box plots of three metrics over the seeds", _fig_box, figure),
        "fig-weights": Item("-", "-", "The clients' weights over the rounds", _fig_weights, figure),
    }


# ------------------------------------------------------------------------------- cells
def compute(
    console: Console,
    store: CellStore,
    jobs: Sequence[Job],
    *,
    device: str = "cpu",
    folder: Path | None = None,
) -> list[tuple[Job, NonFiniteLossError]]:
    """Run what is missing, with a progress bar.

    Returns:
        The jobs in which a client's loss was not finite: they stopped, the others were done.
    """
    failed = []
    total = sum(len(job.seeds) * job.task.rounds for job in jobs)
    done = 0
    started = time.perf_counter()
    with bar(console) as shown:
        task = shown.add_task("rounds", total=total)
        for job in jobs:
            label = f"{job.task_name}, {type(job.method.weighting).__name__}"

            def show(rounds: int, done: int = done, label: str = label) -> None:
                shown.update(task, description=label, completed=done + rounds)

            small = job.task.data == "digits"
            try:
                with _threads(1 if small else os.cpu_count() or 1):
                    federated.run(
                        store,
                        job,
                        device=device,
                        folder=folder,
                        together=len(job.seeds) if small else None,
                        progress=show,
                    )
            except NonFiniteLossError as error:
                failed.append((job, error))
            done += len(job.seeds) * job.task.rounds
    if jobs:
        say(console, f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}")
    return failed


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _entries(request: Request, tasks: Sequence[str], methods: Sequence[str]) -> list[Entry]:
    """The entries that were asked for, after computing what is missing."""
    tasks, methods = request.task or tasks, request.methods or methods
    store, preset = request.store, request.preset
    jobs = []
    for name in tasks:
        rows = [federated.row(method, name, preset) for method in methods]
        seeds = request.seeds or seeds_of(name)
        jobs += federated.missing(store, name, rows, seeds, preset, request.rounds, request.precision)
    device = request.device or "cpu"
    if jobs:
        runs = sum(len(job.seeds) for job in jobs)
        say(request.console, f"{runs} runs are missing and are made now, on {device}; what is finished is kept")
    failed = compute(request.console, store, jobs, device=device, folder=request.data)
    for job, error in failed:
        say(request.console, f"left out: {job.task_name}, {job.method.weighting}: {error}")
    return entries(store, tasks, methods, request.seeds, preset, request.rounds, request.precision)


# ------------------------------------------------------------------------------- tab:3
def _table_mnist(request: Request) -> None:
    found = _entries(request, MNIST, (*METHODS, EXACT_FERERO))
    for task, rows in _by_task(found):
        request.console.print(_beside_paper(task, rows))
    if any(entry.row.output == "adaptive" for entry in found):
        request.console.print(_conversions(found))
    _verdict(request.console, found)
    _differences(request.console, found)
    wrote_json(request.console, request.json_file, as_json(found, request.preset))


def _beside_paper(task: str, rows: Sequence[Entry]) -> Table:
    compared = any(entry.within(metric) is not None for entry in rows for metric in METRICS)
    marks = "; ✓: within two of the paper's standard deviations" if compared else ""
    table = _grid(f"tab:3, {_described(task, rows)}{marks}", ("method", *HEADS.values()))
    for entry in rows:
        known = entry.paper is not None
        table.add_row(
            f"{entry.row.name}\n[dim]paper[/dim]" if known else entry.row.name,
            *(
                f"{_score(entry.score(metric))} {_MARKS[entry.within(metric)]}"
                + (f"\n[dim]{_score(getattr(entry.paper, metric))}  [/dim]" if known else "")
                for metric in METRICS
            ),
        )
    return table


def _conversions(found: Sequence[Entry]) -> Table:
    """The Ada rows: what the conversion gives beside the last model."""
    heads = ("task", "method", "accuracy", "agnostic loss", "parity")
    table = _grid("adaptive output / last model of the same run", heads)
    for entry in found:
        if entry.row.output == "adaptive":
            pairs = ([entry.score(metric, output).mean for output in ("adaptive", "last")] for metric in METRICS)
            digits = (2, 3, 2)
            cells = (f"{ours:.{n}f} / {last:.{n}f}" for (ours, last), n in zip(pairs, digits, strict=True))
            table.add_row(entry.task, entry.row.name, *cells)
    return table


def _verdict(console: Console, found: Sequence[Entry]) -> None:
    """How many numbers are the paper's, and which are not."""
    claimed = [(entry, metric) for entry in found for metric in METRICS if entry.within(metric) is not None]
    if not claimed:
        say(console, "settings or rounds are not those of the paper's table: nothing is claimed")
        return
    outside = [(entry, metric) for entry, metric in claimed if not entry.within(metric)]
    seeds = len(claimed[0][0].seeds)
    say(
        console,
        f"{len(claimed) - len(outside)} of {len(claimed)} numbers within two of the paper's standard deviations, "
        f"{sum(abs(entry.deviations(metric) or 0) <= 1 for entry, metric in claimed)} within one; "
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    )
    for entry, metric in outside:
        theirs = getattr(entry.paper, metric)
        say(
            console,
            f"outside: {entry.row.name} on {entry.task}, {metric}: {_score(entry.score(metric))}, "
            f"paper {_score(theirs)}, {entry.deviations(metric):+.1f} of its deviations",
        )


def _differences(console: Console, found: Sequence[Entry]) -> None:
    """The partial-class cells by their difference to LS: which classes a client draws moves a method and LS alike."""
    pairs = [pair for pair in paired(found) if "class" in pair.task]
    for task in dict.fromkeys(pair.task for pair in pairs):
        own = {(pair.method, pair.metric): pair for pair in pairs if pair.task == task}
        table = _grid(f"{task}: difference to LS on the same seeds", ("method", *HEADS.values()))
        for method in dict.fromkeys(name for name, _ in own):
            cells = (own[method, metric] for metric in METRICS)
            table.add_row(
                f"{method}\n[dim]paper[/dim]",
                *(
                    f"{p.ours.mean:+.3f}±{p.ours.std:.3f} {_MARKS[p.within]}\n[dim]{p.paper:+.3f}        [/dim]"
                    for p in cells
                ),
            )
        console.print(table)
    if not pairs:
        return
    inside = sum(pair.within for pair in pairs)
    say(console, f"{inside} of {len(pairs)} of the paper's differences to LS within two standard deviations of ours")
    for pair in pairs:
        if not pair.within:
            ours = f"{pair.ours.mean:+.4f}±{pair.ours.std:.4f}"
            say(console, f"outside: {pair.method} on {pair.task}, {pair.metric}: {ours}, paper {pair.paper:+.3f}")


# ------------------------------------------------------------------------------- tab:4
def _table_time(request: Request) -> None:
    found = _entries(request, MNIST, METHODS)
    records = []
    for task, rows in _by_task(found):
        theirs = paper.SECONDS.get(task, {})
        base = next((entry.seconds for entry in rows if entry.row.name == "LS"), None)
        table = _grid(
            f"tab:4, {task}: time per round and seed",
            ("method", "ms", "relative to LS", "paper, ms", "relative to LS"),
        )
        for entry in rows:
            name, known = entry.row.name, theirs.get(entry.row.name)
            ours = None if base is None else entry.seconds / base
            reference = None if known is None else known / theirs["LS"]
            table.add_row(
                name,
                f"{1000 * entry.seconds:.2f}",
                "" if ours is None else f"{ours:.2f}",
                "" if known is None else f"{1000 * known:.0f}",
                "" if reference is None else f"{reference:.2f}",
            )
            records.append(
                {
                    "task": task,
                    "method": name,
                    "seconds": entry.seconds,
                    "relative": ours,
                    "paper_seconds": known,
                    "paper_relative": reference,
                    "devices": sorted({result["device"] for result in entry.results}),
                }
            )
        request.console.print(table)
    devices = sorted({result["device"] for entry in found for result in entry.results})
    say(
        request.console,
        f"Ours: {', '.join(devices)}; rounds only, without evaluation; every run keeps all three outputs, the archive "
        "included; rows of equal step size share one run. The paper's times are another machine's: compare what is "
        "relative to LS.",
    )
    wrote_json(request.console, request.json_file, records)


# ------------------------------------------------------------------------------- digits
def _table_digits(request: Request) -> None:
    found = _entries(request, DIGITS, (*METHODS, EXACT_FERERO))
    for task, rows in _by_task(found):
        table = _grid(f"{_described(task, rows)}; best in bold", ("method", *HEADS.values()))
        best = {metric: _best(rows, metric) for metric in METRICS}
        for entry in rows:
            cells = (
                f"[bold]{_score(entry.score(metric))}[/bold]" if entry is best[metric] else _score(entry.score(metric))
                for metric in METRICS
            )
            table.add_row(entry.row.name, *cells)
        request.console.print(table)
    if any(entry.row.output == "adaptive" for entry in found):
        request.console.print(_conversions(found))
    wrote_json(request.console, request.json_file, as_json(found, request.preset))


def _best(rows: Sequence[Entry], metric: Metric) -> Entry:
    sign = -1 if metric == "accuracy" else 1
    return min(rows, key=lambda entry: sign * entry.score(metric).mean)


# ------------------------------------------------------------------------------- figures
_SIX = ("LS", "TCH", "OMDgd-TCH", "OMDeg-TCH", "AdaOMDgd-TCH", "AdaOMDeg-TCH")
_WEIGHTS = ("TCH", "STCH", "FedMGDA+", "ExcessMTL", "OMDgd-TCH", "OMDeg-TCH")


def _figure(
    request: Request,
    name: str,
    draw: Callable[[federated_figures.Tasks], Figure],
    methods: Sequence[str] = METHODS,
    tasks: Sequence[str] = MNIST,
) -> None:
    found = list(_by_task(_entries(request, tasks, methods)))
    if not found:
        say(request.console, "there is nothing to draw")
        return
    data = "-".join(dict.fromkeys(task.partition("-")[0] for task, _ in found))
    wrote(request, figures.save(draw(found), request.out, f"{name}-{data}-{request.preset}"))


def _fig_all(request: Request) -> None:
    _figure(request, "fig-federated", federated_figures.all_methods)


def _fig_conversion(request: Request) -> None:
    _figure(request, "fig-conversion", federated_figures.conversion, _SIX, MNIST[:1])


def _fig_curves(request: Request) -> None:
    _figure(request, "fig-curves", federated_figures.curves, _SIX)


def _fig_parity(request: Request) -> None:
    _figure(request, "fig-parity", federated_figures.parity)


def _fig_box(request: Request) -> None:
    _figure(request, "fig-box", federated_figures.boxes)


def _fig_weights(request: Request) -> None:
    _figure(request, "fig-weights", federated_figures.weights, _WEIGHTS)


# ------------------------------------------------------------------------------- how things are written
def _by_task(found: Sequence[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    for task in dict.fromkeys(entry.task for entry in found):
        yield task, [entry for entry in found if entry.task == task]


def _described(task: str, rows: Sequence[Entry]) -> str:
    seeds = rows[0].seeds
    if seeds == federated.SEEDS:
        return f"{task}, the paper's ten seeds"
    return f"{task}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _score(value: Score) -> str:
    return f"{value.mean:.3f}±{value.std:.3f}"


def _grid(title: str, heads: Sequence[str]) -> Table:
    """A table of numbers, narrow enough for eighty characters."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        text = head in {"method", "task"}
        table.add_column(head, justify="left" if text else "right", no_wrap=True)
    return table
