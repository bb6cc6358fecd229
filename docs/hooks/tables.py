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
    if not has_sentences([[_shown(text) for _, _, text in row] for row in body]):
        return table.replace("<table>", '<table data-kind="numbers">', 1)
    if len(head) <= _NARROW:
        return table
    names = iter([_shown(text) for _, _, text in head] * len(body))

    def labelled(found: re.Match[str]) -> str:
        if found[1] == "th":
            return found[0]
        return f'<td{found[2] or ""} data-label="{html.escape(next(names))}">{found[3]}</td>'

    return _CELL.sub(labelled, table).replace("<table>", '<table data-kind="prose">', 1)


def has_sentences(rows: list[list[str]]) -> bool:
    """Whether a column besides the first has, on average, long cells that consist of letters for the most part."""
    columns = list(zip(*rows, strict=False))[1:]
    return any(
        sum(map(len, column)) > _LONG * len(column) and 2 * sum(map(_letters, column)) > sum(map(len, column))
        for column in columns
    )


def _letters(text: str) -> int:
    return sum(letter.isalpha() for letter in text)


def _shown(cell: str) -> str:
    return html.unescape(_TAG.sub("", cell)).strip()
