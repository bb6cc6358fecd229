"""Tables as plain text cells: shown on the terminal, and written to a page of Markdown."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from equipoise.experiments.cells import Result, write_atomically
from equipoise.experiments.plan import DEFAULT, FORMER, Wanted
from equipoise.experiments.request import Request, printable, say, wrote_json

__all__ = ["MARKS", "Page", "Sheet", "add_words", "fitted", "grid", "listing", "say_absent"]

MARKS = {True: "✓", False: "✗", None: " "}
"""Whether a number is the paper's, within two standard deviations."""


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: Above it.
        heads: Of its columns. A column "paper" belongs to the one before it: on the terminal its cells stand below.
        rows: Their cells, as they are shown.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self) -> Table:
        """For the terminal."""
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
        """For a page."""
        lines = [self.heads, tuple("---" for _ in self.heads), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def grid(title: str, heads: Sequence[str]) -> Table:
    """A table of numbers, narrow enough for eighty characters: names are broken into lines for that, numbers never.

    Numbers stand beside the last lines of a name: below it may be what its second line of numbers is.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        text = head in {"method", "task"}
        shown = head if text else head.replace(", ", ",\n")
        table.add_column(
            shown, justify="left" if text else "right", no_wrap=not text, overflow="fold", vertical="bottom"
        )
    return table


def listing(*columns: str | Column) -> Table:
    """A table of words."""
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def add_words(table: Table, *cells: str) -> None:
    """Add a row of texts as they are: brackets in them are no markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def fitted(console: Console, table: Table) -> Table:
    """The table with columns so wide that no word is broken, where the console has the room for that.

    Every column has its longest word; what is left goes first to those that need the least to have all their lines
    whole. Heads count by their words.
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


def say_absent(page: "Page", rows: Sequence[Wanted], shown: Container[tuple[str, str]]) -> None:
    """Name the rows that were asked for and have no runs; nothing if all have, or none.

    Args:
        page: Where.
        rows: What was asked for.
        shown: Task and method of what the tables show.
    """
    lacking = [one for one in rows if (one.task_name, one.name) not in shown]
    by_task = {
        task: dict.fromkeys(one.name for one in lacking if one.task_name == task)
        for task in dict.fromkeys(one.task_name for one in lacking)
    }
    if lacking and len(lacking) < len(rows):
        page.say("Not shown, for want of runs: " + "; ".join(f"{t}: {', '.join(m)}" for t, m in by_task.items()))


def say_untuned(page: "Page", shown: Container[str]) -> None:
    """Say which of the methods shown are the library's own, if any is."""
    names = {DEFAULT: "the default", FORMER: "the former default"}
    ours = [f"{name} is {what}" for name, what in names.items() if name in shown]
    if ours:
        page.say(f"{', '.join(ours)}: not in the paper, not tuned to the task.")


class Page:
    """What an item shows, for the terminal and, if one was asked for, for a file of Markdown.

    Args:
        request: What the user asked for.
        name: Of the item on the command line.
        title: Of the page.
    """

    def __init__(self, request: Request, name: str, title: str) -> None:
        self.request, self.name, self.title = request, name, title
        self.blocks: list[str] = []

    def show(self, sheet: Sheet, table: Table | None = None) -> None:
        """A table; on the terminal it may look otherwise."""
        self.request.console.print(sheet.table() if table is None else table)
        self.blocks.append(sheet.markdown())

    def say(self, text: str) -> None:
        """A paragraph."""
        say(self.request.console, text)
        self.blocks.append(text)

    def list(self, lines: Sequence[str]) -> None:
        """Lines that belong together."""
        for line in lines:
            say(self.request.console, line)
        if lines:
            self.blocks.append("\n".join(f"- {line}" for line in lines))

    def finish(self, results: Iterable[Result], record: Any) -> None:  # noqa: ANN401
        """Write the files that were asked for.

        Args:
            results: What the cells held that the page is made of: they know where and when they were made.
            record: The numbers, for JSON.
        """
        wrote_json(self.request.console, self.request.json_file, record)
        path = self.request.markdown_file
        if path is not None:
            head = f"# {self.title}\n\n    {command(self.request, self.name)}\n\n{origin(results)}"
            write_atomically(path, "\n\n".join((head, *self.blocks)) + "\n")
            say(self.request.console, f"wrote {path}")


def origin(results: Iterable[Result]) -> str:
    """Where and when cells were made, in a sentence."""
    results = list(results)
    if not results:
        return "There are no runs yet."
    devices = sorted({str(result["device"]) for result in results})
    dates = sorted({str(result["date"]) for result in results if "date" in result})
    when = "" if not dates else f" on {dates[0]}" if len(dates) == 1 else f" between {dates[0]} and {dates[-1]}"
    part = ", those with a date" if dates and not all("date" in result for result in results) else ""
    return f"Made on {', '.join(devices)}{part}{when}."


def command(request: Request, name: str) -> str:
    """The command that shows the same."""
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
