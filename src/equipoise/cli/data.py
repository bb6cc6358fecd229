"""`equipoise data`: data sets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Column

from equipoise import datasets
from equipoise.cli.shared import console
from equipoise.experiments.render import add_words, fitted, listing, say

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Data sets: list and download them.")


@app.command("list")
def data_list(folder: Annotated[Path | None, typer.Option(help="Look here first.")] = None) -> None:
    """List the data sets, and where each was found."""
    table = listing("name", "what", Column("found in", overflow="fold"), "can be fetched")
    for name, source in datasets.sources().items():
        found = str(datasets.locate(name, folder) or "not found") if source.layouts else "scikit-learn"
        add_words(table, name, source.description, found, "yes" if source.home else "no")
    console.print(fitted(console, table))


@app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set of `equipoise data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Data folder; the user's cache folder if not given.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A mirror, instead of the set's public home.")] = None,
) -> None:
    """Download a data set from its public home and verify it."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name)

        def show(file: str, size: int, total: int | None) -> None:
            bar.update(task, description=file, completed=size, total=total)

        where = datasets.fetch(name, folder, base_url, progress=show)
    say(console, f"{name} is in {where}")
