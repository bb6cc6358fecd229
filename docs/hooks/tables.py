"""Tables that can be read on a telephone: those of prose are stacked there, those of numbers keep their first column.

The style sheet `stylesheets/tables.css` does the rest. It needs the kind of a table, and the heading of every cell.
"""

import html
import re
from typing import Any

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[hd])( style=[^>]*)?>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_LONG = 18
"""Letters of a cell, on average over a column, from which on the column is one of prose."""
_NARROW = 2
"""Columns that fit on a telephone whatever is in them."""


def on_page_content(page_html: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of every page."""
    return _TABLE.sub(lambda found: marked(found[0]), page_html)


def marked(table: str) -> str:
    """The table with its kind; one of prose also with the heading of every cell."""
    head, *body = [_CELL.findall(row) for row in _ROW.findall(table)]
    if not has_sentences(body):
        return table.replace("<table>", '<table data-kind="numbers">', 1)
    if len(head) <= _NARROW:
        return table
    names = iter([_shown(text) for _, _, text in head] * len(body))

    def labelled(found: re.Match[str]) -> str:
        if found[1] == "th":
            return found[0]
        return f'<td{found[2] or ""} data-label="{html.escape(next(names))}">{found[3]}</td>'

    return _CELL.sub(labelled, table).replace("<table>", '<table data-kind="prose">', 1)


def has_sentences(rows: list[list[tuple[str, str, str]]]) -> bool:
    """Whether a column besides the first has long cells on average. Columns set to the right have numbers."""
    columns = list(zip(*rows, strict=False))[1:]
    lengths = [[len(_shown(text)) for _, style, text in column if "right" not in style] for column in columns]
    return any(sum(column) > _LONG * len(column) for column in lengths)


def _shown(cell: str) -> str:
    return html.unescape(_TAG.sub("", cell)).strip()
