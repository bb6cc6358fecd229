"""Count the words of prose in Markdown pages: outside code, tables, formula blocks, comments and `notes` folders.

The arguments are pages or folders; without one, `docs`.
"""

import re
import sys
from collections import Counter
from pathlib import Path

_LEFT_OUT = [
    re.compile(r"^( *)(```|~~~).*?^\1\2", re.DOTALL | re.MULTILINE),  # fenced code
    re.compile(r"^ *\$\$.*?\$\$", re.DOTALL | re.MULTILINE),  # formulas of their own line
    re.compile(r"^ *\\\[.*?\\\]", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^ *\|.*$", re.MULTILINE),  # rows of tables
    re.compile(r"(?<=\n\n)(?:(?: {4}|\t).*\n+)+"),  # indented code
    re.compile(r"^:::.*$", re.MULTILINE),  # what mkdocstrings fills in
    re.compile(r"(?<=\])\([^)]*\)"),  # where a link leads
]
_INLINE_FORMULA = re.compile(r"\$[^$\n]+(?:\n[^$\n]+)?\$")
_WORD = re.compile(r"\w")


def prose_words(text: str) -> int:
    """Words of prose in the text of one page."""
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    text = _INLINE_FORMULA.sub("x", text)  # one word each
    return sum(1 for word in text.split() if _WORD.search(word))


def pages(paths: list[Path]) -> list[Path]:
    """The pages named, and those of the folders named except in a folder `notes`."""
    found = [page for path in paths for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    return [page for page in found if "notes" not in page.parts]


def main(arguments: list[str]) -> None:
    named = [Path(argument) for argument in arguments or ["docs"]]
    counts = {page: prose_words(page.read_text(encoding="utf-8")) for page in pages(named)}
    folders: Counter[str] = Counter()
    for page, count in counts.items():
        folders[str(page.parent)] += count
        print(f"{count:7,d}  {page}")
    print()
    for folder, count in sorted(folders.items()):
        print(f"{count:7,d}  {folder}/")
    print(f"{sum(counts.values()):7,d}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
