"""`equipoise reproduce table-conversions`: the default compared with other methods, with all their outputs."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from equipoise.experiments import jobs
from equipoise.experiments.default import settings
from equipoise.experiments.default.settings import DEFAULT, Entry, Tally
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import grid, wrote_json

__all__ = ["percent", "table_conversions"]

COLUMNS = ("TCH", "STCH 0.01", "STCH 0.03", "STCH 0.1", "EPO", "FERERO", "PGD η=1 c=0", "EG η=1 c=0", DEFAULT)
HEADS = {"PGD η=1 c=0": "AdaOMDgd", "EG η=1 c=0": "AdaOMDeg"}


@item("-", "-", ("workers", "json_file", "methods"))
def table_conversions(request: Request) -> None:
    """Beyond the paper: the default beside other methods on 26 problems, every output of each."""
    store, console, own = request.store, request.console, request.own
    names = settings.names_of_problems()
    asked = [settings.cell_spec(name, row) for name in names for row in settings.rows(name, own)]
    jobs.fill(request, asked, settings.missing(store, names, own), settings.run_task)
    entries = settings.table(store, own)
    for name, setting in settings.settings().items():
        volume, value = settings.exact(setting)
        title = f"{name}: TCH value; hypervolume, preference error (exact: {value:.4f}; {volume:.4f})"
        _show(console, _outputs_table([e for e in entries if e.problem == name], title))
    for name in settings.DIGITS:
        title = f"{name}: TCH value on training samples; on test samples, preference error"
        _show(console, _outputs_table([e for e in entries if e.problem == name], title))
    columns = [*COLUMNS, *(name for name, _ in own)]
    _show(console, _side_by_side(entries, columns, "tch", "TCH value of what each method reports: smaller is better"))
    _show(console, _side_by_side(entries, columns, "hypervolume", "hypervolume: larger is better"))
    _show(console, _tally_table(settings.tallies(entries)))
    _show(console, _crowd_table(settings.gaps(store)))
    wrote_json(console, request.json_file, settings.as_json(entries))


def _show(console: Console, table: Table) -> None:
    """Print a table in a hundred columns, even if the terminal has fewer."""
    if table.row_count:
        before = console.width
        console.width = max(110, before)
        console.print(table)
        console.width = before


def _outputs_table(entries: Sequence[Entry], title: str) -> Table:
    """Rows are the trajectories of OMD, columns are outputs; then one line for each method with one answer."""
    names = [*settings.outputs()]
    table = grid(title, ("λ-step, optimism", *names), wrap=False)
    for method in dict.fromkeys(e.method for e in entries):
        cells = {e.output: e for e in entries if e.method == method}
        kind, _, optimism = method.rpartition(" ") if " c=" in method else (method, "", "")
        gone = next(iter(cells.values())).diverged
        note = f"{optimism}, {gone} diverged" if gone else optimism
        shown = {"adaptive" if output == "answer" else output: _cell(e) for output, e in cells.items()}
        table.add_row(f"{kind}\n[dim]{note}[/dim]", *(shown.get(name, "") for name in names))
    return table


def _cell(entry: Entry) -> str:
    second = entry.test if math.isnan(entry.hypervolume) else entry.hypervolume
    return f"{_number(entry.tch)}\n[dim]{second:.4f} {percent(entry.imbalance)}[/dim]"


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 10 else f"{value:.1f}"


def percent(value: float) -> str:
    """A fraction in percent, in at most six characters."""
    if not math.isfinite(value):
        return "-"
    if value >= 10:
        return ">999%"
    return f"{value:.2%}" if value < 0.1 else f"{value:.0%}"


def _side_by_side(entries: Sequence[Entry], columns: Sequence[str], measure: str, title: str) -> Table:
    """What every method reports, problem by problem; the best in bold."""
    table = grid(title, ("problem", *(HEADS.get(name, name) for name in columns)), wrap=False)
    for problem in dict.fromkeys(e.problem for e in entries):
        of = {e.method: getattr(e, measure) for e in entries if e.problem == problem and e.answer}
        finite = [of[name] for name in columns if name in of and math.isfinite(of[name])]
        if not finite:
            continue
        best = min(finite) if measure == "tch" else max(finite)
        texts = [_number(of[name]) if name in of else "" for name in columns]
        marked = [f"[bold]{text}[/bold]" if of.get(n) == best else text for n, text in zip(columns, texts, strict=True)]
        table.add_row(problem, *marked)
    return table


def _tally_table(tallies: Sequence[Tally]) -> Table:
    title = f"wins : losses of {DEFAULT}, problems on which the two differ by more than 0.1 %"
    table = grid(title, ("against", "TCH value", "hypervolume"), wrap=False)
    for method, tch, volume in tallies:
        table.add_row(method, f"{tch[0]} : {tch[1]}", f"{volume[0]} : {volume[1]}")
    return table


def _crowd_table(gaps: Mapping[str, Mapping[str, float]]) -> Table:
    rows = dict.fromkeys(row for of in gaps.values() for row in of)
    title = "many objectives: gap of what a method reports over the optimal value"
    table = grid(title, ("problem", *rows), wrap=False)
    for name, of in gaps.items():
        table.add_row(name, *(f"{of[row]:.4f}" if row in of else "" for row in rows))
    return table
