"""Output: lines, progress bars and tables on the terminal, Markdown pages, JSON files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from equipoise.experiments.item import Request
from equipoise.experiments.results import Result, write_atomically

__all__ = [
    "MARKS", "Page", "Sheet", "add_words", "bar", "crossed", "fitted", "grid", "listing", "printable", "say", "wrote",
    "wrote_json",
]  # fmt: skip

MARKS = {True: "✓", False: "✗", None: " "}
"""The marks for numbers that agree with the paper within two standard deviations, or do not."""


def bar(console: Console) -> Progress:
    """A progress bar, on a terminal only."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line without interpreting markup."""
    console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """An untrusted text with control characters escaped as Python writes them, so that it cannot control a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def wrote(request: Request, paths: Sequence[Path]) -> None:
    """Say which figures were written."""
    say(request.console, "wrote " + ", ".join(str(path) for path in paths))


def wrote_json(console: Console, path: Path | None, record: Any) -> None:  # noqa: ANN401
    """Write a record to a file, if requested, and say so."""
    if path is not None:
        write_atomically(path, json.dumps(record, indent=1))
        say(console, f"wrote {path}")


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: The title above it.
        heads: Column heads. A column "paper" belongs to the one before it: on the terminal its cells are shown below.
        rows: The cells, as they are shown.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self) -> Table:
        """The table for the terminal."""
        table = grid(self.title, [head for head in self.heads if head != "paper"])
        for row in self.rows:
            cells: list[str] = []
            for head, cell in zip(self.heads, row, strict=True):
                if head != "paper":
                    cells.append(cell)
                elif cell:
                    cells[-1] += f"\n[dim]{cell}  [/dim]"
            below = any("\n" in cell for cell in cells)
            table.add_row(f"{cells[0]}\n[dim]paper[/dim]" if below else cells[0], *cells[1:])
        return table

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.heads, tuple("---" for _ in self.heads), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def grid(title: str, heads: Sequence[str], *, wrap: bool = True) -> Table:
    """A table of numbers that fits eighty characters: numbers never wrap, names do unless `wrap` is false.

    Numbers are aligned with the last lines of a name, which may label the second line of numbers.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k, head in enumerate(heads):
        text = k == 0 or head == "method"
        table.add_column(
            head if text else head.replace(", ", ",\n"),
            justify="left" if text else "right",
            no_wrap=not (text and wrap),
            overflow="fold" if wrap else "ellipsis",
            vertical="bottom",
        )
    return table


def crossed(title: str, corner: str, columns: Iterable[str], rows: Mapping[str, Mapping[str, str]]) -> Table:
    """A table of texts by row and column; empty where a row lacks a column."""
    columns = list(columns)
    table = grid(title, (corner, *columns), wrap=False)
    for name, of in rows.items():
        table.add_row(name, *(of.get(column, "") for column in columns))
    return table


def listing(*columns: str | Column) -> Table:
    """A table of words."""
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def add_words(table: Table, *cells: str) -> None:
    """Add a row of texts without interpreting brackets as markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def fitted(console: Console, table: Table) -> Table:
    """The table with columns wide enough that no word is broken, if the console has the room.

    Every column fits its longest word; the remaining width goes first to the columns that need least to avoid wrapping.
    Only the words of a head count, not the whole head.
    """
    heads = [_plain(column.header) for column in table.columns]
    lines = [[line for cell in column.cells for line in _plain(cell).splitlines()] for column in table.columns]
    words = [_longest(head.split()) for head in heads]
    whole = [max(word, _longest(of)) for word, of in zip(words, lines, strict=True)]
    parts = (_longest(part for line in of for part in line.split()) for of in lines)
    widths = [max(word, part) for word, part in zip(words, parts, strict=True)]
    natural = sum(max(len(head), full) for head, full in zip(heads, whole, strict=True))
    frame = console.measure(table, options=console.options.update(width=natural + 100)).maximum - natural
    room = console.width - frame
    if natural <= room or sum(widths) > room:
        return table
    for k in sorted(range(len(widths)), key=lambda k: whole[k] - widths[k]):
        widths[k] += min(whole[k] - widths[k], room - sum(widths))
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    return table


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _plain(cell: object) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


class Page:
    """The output of the item of this name, on the terminal and, if requested, in a Markdown file."""

    def __init__(self, request: Request, name: str, title: str) -> None:
        self.request, self.name, self.title = request, name, title
        self.blocks: list[str] = []

    def show(self, sheet: Sheet, table: Table | None = None) -> None:
        """Show a table; `table` is its form on the terminal, if different."""
        self.request.console.print(sheet.table() if table is None else table)
        self.blocks.append(sheet.markdown())

    def say(self, text: str) -> None:
        """Show a paragraph."""
        say(self.request.console, text)
        self.blocks.append(text)

    def list(self, lines: Sequence[str]) -> None:
        """Show a list of lines."""
        for line in lines:
            say(self.request.console, line)
        if lines:
            self.blocks.append("\n".join(f"- {line}" for line in lines))

    def finish(self, results: Iterable[Result], record: Any) -> None:  # noqa: ANN401
        """Write the requested files: a page that says where its results were made, and the numbers as JSON."""
        wrote_json(self.request.console, self.request.json_file, record)
        path = self.request.markdown_file
        if path is not None:
            made = origin(results)
            head = f"# {self.title}\n\n    {command(self.request, self.name)}" + (f"\n\n{made}" if made else "")
            write_atomically(path, "\n\n".join((head, *self.blocks)) + "\n")
            say(self.request.console, f"wrote {path}")


def origin(results: Iterable[Result]) -> str:
    """Where and when cells were computed, in a sentence."""
    results = list(results)
    if not results:
        return ""
    made = [result["made"] for result in results]
    devices = sorted({of["device"] for of in made})
    dates = sorted({of["date"] for of in made if of["date"]})
    when = "" if not dates else f" on {dates[0]}" if len(dates) == 1 else f" between {dates[0]} and {dates[-1]}"
    part = ", those with a date" if dates and not all(of["date"] for of in made) else ""
    versions = sorted({of["torch"] for of in made if of["torch"]})
    torches = f", with torch {', '.join(versions)}" if versions else ""
    torches += " (not kept for all runs)" if versions and not all(of["torch"] for of in made) else ""
    return f"Made on {', '.join(devices)}{part}{when}{torches}."


def command(request: Request, name: str) -> str:
    """The command that reproduces this output."""
    words = ["equipoise", "reproduce", name]
    if request.settings != "published":
        words += ["--preset", request.settings]
    options: dict[str, Any] = {
        "task": request.task and ",".join(request.task),
        "methods": request.methods and ",".join(request.methods),
        "seeds": request.seeds and ",".join(map(str, request.seeds)),
        "rounds": request.rounds,
        "precision": request.precision,
    }
    for option, value in options.items():
        if value is not None:
            text = str(value)
            words += [f"--{option}", f"'{text}'" if " " in text or "(" in text else text]
    return " ".join(words)
