"""`equipoise runs`: finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.shared import Out, console
from equipoise.errors import require
from equipoise.experiments import tabular
from equipoise.experiments.render import add_words, fitted, listing, say
from equipoise.experiments.results import PUBLISHED, CellStore, cells_in, import_cells, pack

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Finished runs: list, import, export and pack them.")


@app.command("list")
def runs_list(
    out: Out = Path("out"),
    every: Annotated[bool, typer.Option("--all", help="One line for every method, not every task.")] = False,  # noqa: FBT002
) -> None:
    """Count the cells, by study and task; with --all by method too."""
    for place in (out / "cells", PUBLISHED):
        found = tabular.count(cells_in([place]))
        if not found:
            say(console, f"{place}: no cells")
            continue
        table = listing("study", "task", "method" if every else "methods", "cells")
        lines: dict[tuple[str, ...], list[int]] = {}
        for key, number in sorted(found.items()):
            lines.setdefault(key if every else key[:2], []).append(number)
        for words, counts in lines.items():
            add_words(table, *words, *([] if every else [str(len(counts))]), str(sum(counts)))
        console.print(fitted(console, table))
        say(console, f"{place}: {sum(found.values())} cells")


@app.command("import")
def runs_import(
    place: Annotated[Path, typer.Argument(help="A folder of cells, or a file of `runs pack`.")], out: Out = Path("out")
) -> None:
    """Import cells from another machine. Damaged cells are refused."""
    store = CellStore(out / "cells")
    found = import_cells(place, store)
    say(console, f"{found.new} new, {found.known} known, {len(found.refused)} refused; cells are in {store.folder}")
    for file, reason in found.refused.items():
        say(console, f"refused: {file}: {reason}")
    if found.refused:
        raise typer.Exit(1)


@app.command("export")
def runs_export(
    file: Annotated[Path, typer.Argument(help="Ends with .csv, or with .parquet (needs pyarrow).")],
    out: Out = Path("out"),
    published: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Whether to write the published results that come with the library beside yours.")
    ] = True,
) -> None:
    """Write your results and the published ones as one table: a row per task, method, output, metric and seed."""
    place = out if out.exists() else None
    yours = tabular.results(place, published=False)
    rows = tabular.results(place) if published else yours
    require(bool(rows), "there must be results to export", f"none in {out}")
    tabular.export(rows, file)
    others = f" of yours and {len(rows) - len(yours)} published (--no-published leaves these out)" if published else ""
    say(console, f"wrote {file}: {len(yours)} rows{others}")


@app.command("pack")
def runs_pack(
    file: Annotated[Path, typer.Argument(help="The file to write, such as results.jsonl.xz.")],
    out: Out = Path("out"),
    published: Annotated[bool, typer.Option(help="Whether to include what comes with the library.")] = False,  # noqa: FBT002
) -> None:
    """Put your cells into one compressed file with a checksum, which all commands can read."""
    places = [out, out / "cells", *([PUBLISHED] if published else [])]
    cells = list(cells_in(place for place in places if place.exists()))
    require(bool(cells), "there must be cells to pack", f"none in {out}")
    say(console, f"wrote {file}: {pack(cells, file)} cells, {file.stat().st_size / 1e6:.2f} MB")
