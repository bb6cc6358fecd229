"""The page: template, style and script in one file, with the numbers as a block of JSON."""

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import Any

__all__ = ["render"]

SCRIPTS = ("elements.js", "plot.js", "explorer.js", "tables.js", "training.js", "main.js")
"""In the order in which they are joined: they share one scope."""


def render(record: dict[str, Any]) -> str:
    """One self-contained HTML file.

    Strings of a record reach the page as text only: the block of JSON cannot be left, whatever it holds, the
    script writes text nodes, and the policy in the head lets no other script run and nothing be loaded.
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
    # "</script>" or "<!--" would end or change the block; & and the line separators only cost a character.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
