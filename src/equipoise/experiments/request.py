"""What a user asks `equipoise reproduce` for, and how the answer is shown while it is made."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from equipoise.experiments.cells import CellStore, Spec, write_atomically
from equipoise.federated import Precision

__all__ = ["Item", "Request", "bar", "printable", "say", "say_read", "wrote", "wrote_json"]


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where it was left to the item.

    Attributes:
        console: Where to print.
        out: Folder for pictures, and for cells in its `cells`.
        preset: Which settings.
        json_file: Where a table is to be written besides.
        workers: Processes.
        task: Names of federated tasks.
        methods: Names of methods.
        seeds: Seeds.
        rounds: Rounds of a federated task.
        device: Where federated runs happen.
        precision: Of their layers' products.
        data: Where to look for data first.
        markdown_file: Where a table is to be written as a page.
    """

    console: Console
    out: Path
    preset: Literal["published", "text"] | None = None
    json_file: Path | None = None
    workers: int | None = None
    task: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    device: str | None = None
    precision: Precision | None = None
    data: Path | None = None
    markdown_file: Path | None = None

    @property
    def settings(self) -> Literal["published", "text"]:
        """Those of the preset."""
        return "published" if self.preset is None else self.preset

    @property
    def store(self) -> CellStore:
        """The user's cells, with those that come with a checkout behind them."""
        return CellStore(self.out / "cells")


@dataclass(frozen=True)
class Item:
    """A table or a figure.

    Attributes:
        label: Its LaTeX label in the paper.
        number: Its printed number.
        caption: What it shows.
        run: What makes it.
        takes: The attributes of a request that it heeds, besides console and out.
    """

    label: str
    number: str
    caption: str
    run: Callable[[Request], None]
    takes: frozenset[str]


def bar(console: Console) -> Progress:
    """A progress bar, on a terminal only."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is."""
    console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """A text of a stranger without what would steer a terminal: such characters are shown as Python writes them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def say_read(console: Console, store: CellStore, found: Sequence[Spec], total: int, made: int) -> None:
    """Say how many runs are read, and from where; nothing if none is.

    Args:
        console: Where to print.
        store: Whose cells are read.
        found: The specifications that have a cell.
        total: How many were asked for.
        made: How many of the others are made now.
    """
    if found:
        folders = " and ".join(sorted({str(store.source(spec)) for spec in found}))
        say(console, f"{len(found)} of {total} runs read from {folders}, {made} made now")


def wrote(request: Request, paths: Sequence[Path]) -> None:
    """Say which pictures were written."""
    say(request.console, "wrote " + ", ".join(str(path) for path in paths))


def wrote_json(console: Console, path: Path | None, record: Any) -> None:  # noqa: ANN401
    """Write a record to a file, if one was asked for, and say so."""
    if path is not None:
        write_atomically(path, json.dumps(record, indent=1))
        say(console, f"wrote {path}")
