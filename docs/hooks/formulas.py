"""Formulas of the pages as MathML, which browsers draw by themselves: no script, nothing to fetch."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TAG = re.compile(r"\\tag\{(.*?)\}")


def on_page_content(page_html: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of every page."""
    return _FORMULA.sub(_drawn, page_html)


def _drawn(found: re.Match[str]) -> str:
    kind, text = found.group(1), html.unescape(found.group(2))
    number = _TAG.search(text)
    text = _TAG.sub("", text).replace(r"\arg", r"\operatorname{arg}")  # which the converter does not know
    formula = convert(text.strip(), display="block" if kind == "div" else "inline")
    after = f'<span class="number">({html.escape(number.group(1))})</span>' if number else ""
    return f'<{kind} class="formula">{formula}{after}</{kind}>'
