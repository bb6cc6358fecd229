"""Formulas of the pages as MathML, which browsers draw by themselves: no script, nothing to fetch."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TAG = re.compile(r"\\tag\{(.*?)\}")
_LETTERS = {r"\mathcal L": "ℒ", r"\mathbb R": "ℝ", r"\mathbb E": "𝔼", r"\mathbf 1": "𝟏"}
"""Browsers no longer draw a letter of MathML in another alphabet; Unicode has these."""
_UNDER = re.compile(r"<msub>(<mo>(?:max|min)</mo>)(.*?)</msub>", re.DOTALL)
_LEFT_ALONE = re.compile(r"(<(pre|code|math|script|style|h\d)\b.*?</\2>|<[^>]*>)", re.DOTALL)
_INDEXED = re.compile(r"(?<![\w.])([A-Za-zα-ωΑ-Ω])_([A-Za-z0-9]{1,3})(?![\w(])")


def on_page_content(page_html: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of every page."""
    return _outside(_FORMULA.sub(_drawn, page_html))


def _drawn(found: re.Match[str]) -> str:
    kind, text = found.group(1), html.unescape(found.group(2))
    number = _TAG.search(text)
    text = _TAG.sub("", text).replace(r"\arg", r"\operatorname{arg}")  # which the converter does not know
    for command, letter in _LETTERS.items():
        text = text.replace(command, letter)
    formula = convert(text.strip(), display="block" if kind == "div" else "inline")
    formula = formula.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')  # the bars of a norm
    if kind == "div":
        formula = _UNDER.sub(_below, formula)
    after = f'<span class="number">({html.escape(number.group(1))})</span>' if number else ""
    return f'<{kind} class="formula">{formula}{after}</{kind}>'


def _below(found: re.Match[str]) -> str:
    """What a maximum or minimum is taken over, below it."""
    inner = found[2]
    return f"<munder>{found[1]}{inner}</munder>" if "<msub>" not in inner else found[0]


def _outside(page_html: str) -> str:
    """Indices in plain text, such as w_i f_i, set low; code, headings and what stands within a tag are left alone."""
    parts = _LEFT_ALONE.split(page_html)  # text, what is left alone, the name of its tag, text, …
    parts[2::3] = [""] * len(parts[2::3])
    parts[0::3] = [_INDEXED.sub(r'<i class="letter">\1</i><sub>\2</sub>', text) for text in parts[0::3]]
    return "".join(parts)
