"""Pages that live in the root of the repository, where people and GitHub look for them, as pages of the site too.

Links between them and the pages of `docs` are written as files, so that they work on GitHub; here they are turned into
links between pages.
"""

import re
from pathlib import Path
from typing import Any

PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
"""By the file's name, the page's."""

_NAMES = "|".join(map(re.escape, PAGES))
_FROM_DOCS = re.compile(rf"\]\(((?:\.\./)*)\.\./({_NAMES})(?=[)#])")
_FROM_ROOT = re.compile(rf"\]\((?:({_NAMES})|docs/([^)#]+))(?=[)#])")


def on_files(files: Any, config: Any, **_: Any) -> Any:  # noqa: ANN401
    """Called by MkDocs with the files of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests of links do without MkDocs

    root = Path(config.config_file_path).parent
    for name, page in PAGES.items():
        text = from_root((root / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of every page: a root page is one folder nearer than its file."""
    return _FROM_DOCS.sub(lambda found: f"]({found[1]}{PAGES[found[2]]}", markdown)


def from_root(text: str) -> str:
    """The text of a file in the root, with its links as a page of the site needs them."""
    return _FROM_ROOT.sub(lambda found: f"]({PAGES[found[1]] if found[1] else found[2]}", text)
