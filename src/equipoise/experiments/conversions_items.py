"""What `equipoise reproduce table-conversions` shows: every output of every trajectory, and the former default."""

import math
import time
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from equipoise.experiments import conversions, paper
from equipoise.experiments.conversions import Entry, Verdict
from equipoise.experiments.request import Item, Request, bar, say, say_read, wrote_json

WORKERS = 2


def items() -> dict[str, Item]:
    """The table by its name on the command line."""
    takes = frozenset({"workers", "json_file"})
    what = "Beyond the paper: conversions, optimism and steps side by side; the former default"
    return {"table-conversions": Item("-", "-", what, _table_conversions, takes)}


def _table_conversions(request: Request) -> None:
    store, console = request.store, request.console
    tasks = conversions.missing(store)
    asked = [
        conversions.Task(name, of) for name in conversions.names_of_problems() for of in conversions.families(name)
    ]
    members = {task: [conversions.cell_spec(task.problem, one) for one in task.family.members()] for task in asked}
    found = [spec for task, specs in members.items() if task not in tasks for spec in specs]
    total = sum(len(specs) for specs in members.values())
    say_read(console, store, found, total, total - len(found))
    if tasks and not found:
        say(console, f"{total} runs to make; what is finished is kept in {store.folder}")
    started = time.perf_counter()
    with bar(console) as shown:
        job = shown.add_task("computing", total=len(tasks))
        for _ in conversions.compute(store, tasks, WORKERS if request.workers is None else request.workers):
            shown.advance(job)
    if tasks:
        say(console, f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}")
    entries = conversions.table(store)
    for name, setting in conversions.settings().items():
        volume, value = conversions.exact(setting)
        title = f"{name}: hypervolume; mean TCH value, preference error (exact: {volume:.4f}; {value:.4f})"
        _show(console, _problem_table([e for e in entries if e.problem == name], title))
    for name in conversions.DIGITS:
        title = f"{name}: TCH value on training samples; on test samples, preference error"
        _show(console, _problem_table([e for e in entries if e.problem == name], title))
    _show(console, _verdict_table(conversions.verdicts(entries)))
    _show(console, _digits_table(entries))
    _show(console, _crowd_table(conversions.gaps(store)))
    below = against_the_paper(conversions.verdicts(entries))
    above = "OptOMD-TCH is above the paper's AdaOMDgd-TCH and AdaOMDeg-TCH on every problem of the paper"
    for line in below or [above]:
        say(console, line)
    say(console, "* chosen on; the smoothing also on VLMOP2 with noise and on a network trained with momentum")
    wrote_json(console, request.json_file, conversions.as_json(entries))


def _show(console: Console, table: Table) -> None:
    """Print a table that needs a hundred columns, also where the terminal says that it has fewer."""
    before = console.width
    console.width = max(100, before)
    console.print(table)
    console.width = before


def _problem_table(entries: Sequence[Entry], title: str) -> Table:
    """Rows are trajectories, columns are outputs, narrow enough for a hundred characters."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("λ-step, optimism", no_wrap=True)
    for output in conversions.outputs():
        table.add_column(output, justify="right", no_wrap=True)
    for row in dict.fromkeys(e.configuration for e in entries):
        cells = [e for e in entries if e.configuration == row]
        kind, optimism = row.rsplit(" ", 1)
        mark = "→ " if row == conversions.FORMER_ROW else ""
        gone = f", {cells[0].diverged} diverged" if cells[0].diverged else ""
        table.add_row(f"{mark}{kind}\n[dim]{optimism}{gone}[/dim]", *(_cell(e) for e in cells))
    return table


def _cell(entry: Entry) -> str:
    if math.isnan(entry.hypervolume):
        return f"{entry.tch:.4f}\n[dim]{entry.test:.4f} {percent(entry.imbalance)}[/dim]"
    return f"{entry.hypervolume:.4f}\n[dim]{_number(entry.tch)} {percent(entry.imbalance)}[/dim]"


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 10 else f"{value:.1f}"


def percent(value: float) -> str:
    """A share in percent, in at most six characters."""
    if not math.isfinite(value):
        return "-"
    if value >= 10:
        return ">999%"
    return f"{value:.2%}" if value < 0.1 else f"{value:.0%}"


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(
        title="the former default, OptOMD-TCH: hypervolume, mean over the seeds",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("problem", no_wrap=True)
    for head in ("exact", "AdaOMDgd", "AdaOMDeg", "best last", "OptOMD", "difference", "TCH excess", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    for v in verdicts:
        star = "*" if v.problem in conversions.CHOSEN_ON else ""
        table.add_row(
            v.problem + star,
            f"{v.exact:.4f}",
            f"{v.gd:.4f}",
            f"{v.eg:.4f}",
            f"{v.best_last.hypervolume:.4f}",
            f"{v.former.hypervolume:.4f}",
            f"{v.former.hypervolume - v.best_last.hypervolume:+.4f}",
            percent(v.excess),
            percent(v.former.imbalance),
        )
    return table


def _digits_table(entries: Sequence[Entry]) -> Table:
    table = Table(
        title="digits, ten clients: TCH value of training and test samples, mean over the seeds",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for head in ("task", "AdaOMDgd", "AdaOMDeg", "best last", "OptOMD"):
        table.add_column(head, no_wrap=True, justify="left" if head == "task" else "right")
    for name in conversions.DIGITS:
        of = {(e.configuration, e.output): e for e in entries if e.problem == name}
        if (conversions.FORMER_ROW, conversions.FORMER_OUTPUT) not in of:
            continue
        shown = (
            of["PGD η=1 c=0", "adaptive"],
            of["EG η=1 c=0", "adaptive"],
            min((e for e in of.values() if e.output == "last"), key=lambda e: e.tch),
            of[conversions.FORMER_ROW, conversions.FORMER_OUTPUT],
        )
        table.add_row(name, *(f"{e.tch:.4f} {e.test:.4f}" for e in shown))
    return table


def _crowd_table(gaps: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    table = Table(
        title="many objectives: gap of the former default's output over the optimal value (of the last iterate)",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("problem", no_wrap=True)
    for row in dict.fromkeys(row for of in gaps.values() for row in of):
        table.add_column(row, justify="right", no_wrap=True)
    for name, of in gaps.items():
        table.add_row(name, *(f"{x[conversions.FORMER_OUTPUT]:.4f} ({x['last']:.4f})" for x in of.values()))
    return table


def against_the_paper(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for every problem of the paper on which the former default is not above both of its adaptive methods."""
    columns = {"VLMOP2": 0, "F6 published": 6} | {f"F{k}": k for k in range(1, 6)}
    lines = []
    for v in verdicts:
        if v.problem in columns:
            printed = [paper.HYPERVOLUMES[m][columns[v.problem]][0] for m in ("AdaOMDgd-TCH", "AdaOMDeg-TCH")]
            if v.former.hypervolume <= max(printed):
                lines.append(f"{v.problem}: OptOMD-TCH {v.former.hypervolume:.4f}, the paper's {max(printed):.3f}")
    return lines
