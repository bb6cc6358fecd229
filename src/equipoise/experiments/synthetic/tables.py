"""The synthetic tables of `equipoise reproduce`: tab:hv, and two claims of the appendix."""

from collections import Counter
from collections.abc import Callable, Sequence

from rich.table import Table

from equipoise.experiments import jobs
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import MARKS, crossed, say, wrote_json
from equipoise.experiments.synthetic import settings
from equipoise.experiments.synthetic.settings import Setting, TableCell

__all__ = ["provide", "table_excess", "table_hv", "table_step_size"]

TAKES = ("preset", "workers", "json_file", "methods", "seeds")


def provide(request: Request, problems: Sequence[str], rows: Sequence[Setting]) -> list[TableCell]:
    """The cells of rows on problems, after computing what is missing."""
    store, preset, seeds = request.store, request.settings, request.seeds or settings.SEEDS
    asked = [spec for name in problems for spec in settings.Task(preset, name, tuple(rows), seeds).specs]
    jobs.fill(request, asked, settings.missing(store, preset, problems, rows, seeds), settings.run_task)
    return settings.table(store, preset, problems, rows, seeds)


# ------------------------------------------------------------------------------- tab:hv
@item("tab:hv", "appendix B", TAKES)
def table_hv(request: Request) -> None:
    """Hypervolumes of 14 methods on 7 problems."""
    preset, console = request.settings, request.console
    cells = provide(request, settings.PROBLEMS, settings.chosen(request))
    if not cells:
        say(console, "there are no runs to show yet")
        return
    title = "mean of max_i w_i f_i over the preferences: what TCH asks to be small"
    console.print(_grid(title, cells, lambda cell: f"{cell.tch:.4f}"))
    seeds = ", ".join(map(str, cells[0].volume.seeds))
    heading = f"tab:hv, preset {preset}: hypervolume, mean and std over seeds {seeds}"
    console.print(_grid(heading, cells, lambda cell: _volume(cell, preset == "published"), _below))
    claimed = [cell.volume for cell in cells if cell.volume.within is not None]
    if preset == "published" and claimed:
        outside = [one for one in claimed if not one.within]
        inside = f"{len(claimed) - len(outside)} of {len(claimed)} cells within tolerance of the paper"
        say(console, inside + settings.without_claim(cells))
        for one in outside:
            where = f"{one.method} on {one.task}: {one.ours.mean:.4f}, paper {one.paper and one.paper.mean:.3f}"
            say(console, f"outside: {where}, difference {one.difference:+.4f}, tolerance {one.tolerance}")
    title = "imbalance: median of largest/smallest w_i f_i − 1"
    console.print(_grid(title, cells, lambda cell: f"{cell.imbalance:.1%}" if cell.imbalance < 10 else "> 999%"))
    note = settings.on_other_rays(preset, {cell.method for cell in cells})
    if note:
        say(console, note)
    gone: Counter[str] = Counter()
    for cell in cells:
        gone[cell.method] += cell.diverged
    for method, count in gone.items():
        if count:
            say(console, f"{method}: {count} solutions diverged and do not count")
    wrote_json(console, request.json_file, settings.as_json(cells, preset))


def _volume(cell: TableCell, compared: bool) -> str:  # noqa: FBT001
    (mean, std), theirs = cell.volume.ours, cell.volume.paper
    below = "" if theirs is None else f"\n{theirs.mean:.3f} \n{mean - theirs.mean:+.3f} "
    return f"{mean:.4f}{MARKS[cell.volume.within if compared else None]}\n[dim]{std:.3f} {below}[/dim]"


def _below(cell: TableCell) -> str:
    """The labels of the lines below a hypervolume."""
    return "\n[dim]std[/dim]" if cell.volume.paper is None else "\n[dim]std\npaper\nours − paper[/dim]"


def _grid(
    title: str,
    cells: Sequence[TableCell],
    show: Callable[[TableCell], str],
    below: Callable[[TableCell], str] = lambda _: "",
) -> Table:
    """A table with a row per method and a column per problem, narrow enough for eighty characters."""
    found = {cell.problem for cell in cells}
    rows: dict[str, dict[str, str]] = {}
    labels: dict[str, str] = {}
    for cell in cells:
        label = labels.setdefault(cell.method, cell.method + below(cell))
        rows.setdefault(label, {})[cell.problem] = show(cell)
    return crossed(title, "method", (name for name in settings.PROBLEMS if name in found), rows)


# ------------------------------------------------------------------------------- two claims of the appendix
@item("-", "appendix B.1", TAKES)
def table_step_size(request: Request) -> None:
    """Claim: η_θ = 0.01 or 0.02 makes no difference."""
    _sweep(request, settings.both_step_sizes(request.settings), "step-size")


@item("-", "section 4.1", TAKES)
def table_excess(request: Request) -> None:
    """Claim: ExcessMTL's result is no artefact of its settings."""
    _sweep(request, settings.excess_settings(), "excess")


def _sweep(request: Request, rows: Sequence[Setting], name: str) -> None:
    cells = provide(request, settings.PROBLEMS, settings.chosen(request, rows))
    title = f"hypervolume, preset {request.settings}, {name}"
    request.console.print(_grid(title, cells, lambda cell: f"{cell.volume.ours.mean:.4f}"))
    records = [{"setting": c.method, "problem": c.problem, **c.volume.ours._asdict()} for c in cells]
    wrote_json(request.console, request.json_file, records)
