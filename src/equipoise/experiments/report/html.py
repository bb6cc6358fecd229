"""The HTML page: template, style and script in one file, with the numbers as a JSON block."""

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import Any

__all__ = ["assemble", "read_part", "render"]

SCRIPTS = (
    "elements.js", "plot.js", "lines.js", "rays.js", "explorer.js", "tables.js", "training.js", "theme.js", "main.js",
)  # fmt: skip
"""The scripts in the order of concatenation; they share one scope."""


def render(record: dict[str, Any]) -> str:
    """One self-contained HTML file."""
    script = "\n".join(read_part(name) for name in SCRIPTS)
    page, _ = assemble(read_part("page.html"), read_part("page.css"), script, record)
    return page


def assemble(template: str, style: str, script: str, record: dict[str, Any], further: str = "") -> tuple[str, str]:
    """A page with its style, script and numbers in it.

    Strings of a record reach the page only as text: they cannot end the JSON block, the script writes text nodes, and
    the content security policy allows no other script and no loading.

    Args:
        template: HTML with `$policy`, `$style`, `$script` and `$data`.
        style: CSS.
        script: JavaScript.
        record: What the script reads.
        further: What else the policy allows.

    Returns:
        The page, and its content security policy.
    """
    script = f'"use strict";\n{script}'
    data = json.dumps(record, separators=(",", ":"), allow_nan=False)
    # Escape <, as "</script>" or "<!--" would end or change the block; & and line separators to be safe.
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:{further}"
    return Template(template).substitute(policy=policy, style=style, script=script, data=data), policy


def read_part(name: str) -> str:
    """A file of the report's page."""
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """A source of a content security policy: this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
