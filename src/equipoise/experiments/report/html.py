"""The HTML page: template, style and script in one file, with the numbers as a JSON block."""

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import Any

__all__ = ["render"]

SCRIPTS = ("elements.js", "plot.js", "explorer.js", "tables.js", "training.js", "main.js")
"""The scripts in the order of concatenation; they share one scope."""


def render(record: dict[str, Any]) -> str:
    """One self-contained HTML file.

    Strings of a record reach the page only as text: they cannot end the JSON block, the script writes text nodes, and
    the content security policy allows no other script and no loading.
    """
    style = _page("page.css")
    script = "\n".join(['"use strict";', *(_page(name) for name in SCRIPTS)])
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:"
    return Template(_page("page.html")).substitute(policy=policy, style=style, script=script, data=_as_json(record))


def _page(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """A source of a content security policy: this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _as_json(record: dict[str, Any]) -> str:
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    # Escape <, as "</script>" or "<!--" would end or change the block; & and line separators to be safe.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
