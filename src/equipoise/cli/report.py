"""`equipoise report`: one page of all results."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.shared import Methods, Yes, console, read_methods, row_names
from equipoise.errors import require
from equipoise.experiments.item import Request
from equipoise.experiments.render import say
from equipoise.experiments.results import PUBLISHED, write_atomically
from equipoise.experiments.synthetic import settings as synthetic
from equipoise.experiments.synthetic.tables import provide

__all__ = ["report_command"]


def report_command(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("out/report.html"),
    results: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of results, or a file; may be repeated. The folder out if not given."),
    ] = None,
    methods: Methods = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,  # noqa: FBT002
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Write one HTML page of all results: a front explorer, tables beside the paper's, training curves.

    --methods are run on the problems of tab:hv first.
    """
    from equipoise import __version__  # noqa: PLC0415
    from equipoise.experiments import report  # noqa: PLC0415
    from equipoise.experiments.report import sources  # noqa: PLC0415

    given = results or [Path("out")]
    for path in results or ():
        require(path.exists(), "results must exist", path)
    if methods is not None:
        names, own = read_methods(methods, row_names())
        folder = next((path for path in given if not path.is_file()), Path("out"))
        request = Request(console, folder, yes=yes, methods=names, own=own)
        rows = [row for row in synthetic.chosen(request) if row.method in (names or ())]
        provide(request, synthetic.PROBLEMS, rows)
    found = sources.read(given, [PUBLISHED])
    where = ", ".join(map(str, given))
    require(
        bool(found),
        "there must be results to report: `equipoise reproduce table-hv` makes some in a minute, and so do "
        "`equipoise solve VLMOP2 --json out/solved.json` and `equipoise fl`",
        f"none in {where}",
    )
    record = report.gather(found, __version__)
    page = report.render(record)
    try:
        write_atomically(out, page)
    except OSError as error:
        raise OSError(error.errno, f"{out} could not be written: {error.strerror}; nothing was left of it") from error
    say(console, f"wrote {out} ({len(page.encode()) / 1e6:.1f} MB): {report.sections(record)}")
    say(console, f"open it in a browser: {out.resolve().as_uri()}")
    if show:
        webbrowser.open(out.resolve().as_uri())
