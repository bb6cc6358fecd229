"""`equipoise reproduce table-conversions`: the default compared with other methods, with all their outputs."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from equipoise.experiments import jobs
from equipoise.experiments.default import settings
from equipoise.experiments.default.settings import DEFAULT, Entry
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import crossed, wrote_json

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
    title = f"wins : losses of {DEFAULT}, problems on which the two differ by more than 0.1 %"
    heads = ("TCH value", "hypervolume")
    tallies = ((name, [f"{won} : {lost}" for won, lost in of]) for name, *of in settings.tallies(entries))
    counts = {name: dict(zip(heads, texts, strict=True)) for name, texts in tallies}
    _show(console, crossed(title, "against", heads, counts))
    title = "many objectives: gap of what a method reports over the optimal value"
    gaps = {name: {row: f"{gap:.4f}" for row, gap in of.items()} for name, of in settings.gaps(store).items()}
    _show(console, crossed(title, "problem", dict.fromkeys(row for of in gaps.values() for row in of), gaps))
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
    rows: dict[str, dict[str, str]] = {}
    for entry in entries:
        kind, _, optimism = entry.method.rpartition(" ") if " c=" in entry.method else (entry.method, "", "")
        note = f"{optimism}, {entry.diverged} diverged" if entry.diverged else optimism
        column = "adaptive" if entry.output == "answer" else entry.output
        rows.setdefault(f"{kind}\n[dim]{note}[/dim]", {})[column] = _cell(entry)
    return crossed(title, "λ-step, optimism", settings.outputs(), rows)


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
    rows: dict[str, dict[str, str]] = {}
    for problem in dict.fromkeys(e.problem for e in entries):
        of = {e.method: getattr(e, measure) for e in entries if e.problem == problem and e.answer}
        finite = [of[name] for name in columns if name in of and math.isfinite(of[name])]
        if finite:
            best = min(finite) if measure == "tch" else max(finite)
            texts = {name: _number(value) for name, value in of.items()}
            rows[problem] = {HEADS.get(n, n): f"[bold]{t}[/bold]" if of[n] == best else t for n, t in texts.items()}
    return crossed(title, "problem", (HEADS.get(name, name) for name in columns), rows)
