"""Tables as plain text cells: shown on the terminal, and written to a page of Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from equipoise.experiments.cells import Result, write_atomically
from equipoise.experiments.request import Request, say, wrote_json

__all__ = ["MARKS", "Page", "Sheet", "grid"]

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
    """A table of numbers, narrow enough for eighty characters."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        text = head in {"method", "task"}
        table.add_column(head, justify="left" if text else "right", no_wrap=True)
    return table


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
    return f"Made on {', '.join(devices)}{when}."


def command(request: Request, name: str) -> str:
    """The command that shows the same."""
    words = ["equipoise", "reproduce", name]
    if request.preset != "published":
        words += ["--preset", request.preset]
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
