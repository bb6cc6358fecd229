"""The pages as a site: those of the root among them, excerpts that are what they say, links that lead on."""

import importlib.util
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hook() -> ModuleType:
    return load("root_pages")


def table(head: list[str], *rows: list[str], style: str = "") -> str:
    lines = ["".join(f"<th>{cell}</th>" for cell in head)] + [
        "".join(f"<td{style}>{cell}</td>" for cell in row) for row in rows
    ]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def test_a_table_of_sentences_has_the_heading_of_every_cell():
    prose = table(
        ["case", "take", "why"],
        ["a", "<code>b</code>", "a sentence that has so many words"],
        ["c", "", "as before, a sentence"],
    )
    page = load("tables").on_page_content(f"<p>x</p>{prose}")
    assert page.startswith('<p>x</p><table data-kind="prose"><tr><th>case</th>')
    assert '<td data-label="take"><code>b</code></td><td data-label="why">a sentence' in page
    assert '<td data-label="case">c</td><td data-label="take"></td>' in page


@pytest.mark.parametrize(
    ("head", "row", "style", "kind"),
    [
        (["method", "loss", "paper"], ["LS", "1.242±0.024 ✓", "1.260±0.031"], "", ' data-kind="numbers"'),
        (
            ["w", "f", "g"],
            ["0.3", "0.272, 0.270 (0.9 %)", "0.1"],
            ' style="text-align: right;"',
            ' data-kind="numbers"',
        ),
        (["key", "meaning"], ["loss", "what decides the weight of its objective"], "", ""),
    ],
)
def test_other_tables_keep_their_cells(head, row, style, kind):
    written = table(head, row, style=style)
    assert load("tables").on_page_content(written) == written.replace("<table>", f"<table{kind}>")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("[a](../../CONTRIBUTING.md#add-a-method)", "[a](../contributing.md#add-a-method)"),
        ("[a](../SECURITY.md), [b](api.md)", "[a](security.md), [b](api.md)"),
        ("`../CONTRIBUTING.md`", "`../CONTRIBUTING.md`"),
        ("[a](https://example.org/CONTRIBUTING.md)", "[a](https://example.org/CONTRIBUTING.md)"),
    ],
)
def test_links_to_the_root_become_links_to_pages(hook, written, shown):
    assert hook.on_page_markdown(written) == shown


def test_links_from_the_root_become_links_between_pages(hook):
    written = "[a](docs/datasets.md#what-is-checked), [b](SECURITY.md), [c](https://example.org/docs/x.md)"
    assert hook.from_root(written) == (
        "[a](datasets.md#what-is-checked), [b](security.md), [c](https://example.org/docs/x.md)"
    )


def test_every_page_is_in_the_navigation(hook):
    nav = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | set(hook.PAGES.values())
    assert sorted(nav) == sorted(pages)


def excerpts() -> list[tuple[str, str]]:
    """Of the examples' page: each block with the file that was named last before it."""
    page = (DOCS / "examples.md").read_text()
    blocks = re.findall(r"(.*?)^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [(re.findall(r"`(examples/[\w/.-]+\.py)`", text)[-1], block) for text, block in blocks]


def test_every_example_has_an_excerpt():
    shown = {file for file, _ in excerpts()}
    assert {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} <= shown


@pytest.mark.parametrize(("file", "block"), excerpts(), ids=lambda value: value if value.startswith("examples") else "")
def test_an_excerpt_is_what_the_file_says(file, block):
    """Line by line, but for the indentation of all of it; `# …` stands for lines left out."""
    lines = (ROOT / file).read_text().splitlines()
    for part in re.split(r"^# …\n", block, flags=re.MULTILINE):
        wanted = part.splitlines()
        windows = (lines[k : k + len(wanted)] for k in range(len(lines) - len(wanted) + 1))
        assert any(textwrap.dedent("\n".join(window)).splitlines() == wanted for window in windows), part


def test_every_word_that_pages_link_to_is_in_the_glossary():
    """GitHub and MkDocs make the same anchor of a heading of plain letters."""
    headings = re.findall(r"^### (.*)$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for anchor in re.findall(r"glossary\.md#([^)]+)\)", page.read_text()):
            assert anchor in anchors, (page.name, anchor)


def test_the_algorithms_are_where_the_theory_says():
    page = (DOCS / "theory.md").read_text(encoding="utf-8")
    section = page.split("## The algorithms in the code")[1].split("\n## ")[0]
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in re.findall(r"`(src/[\w/]+\.py)`", section)}
    assert {"src/equipoise/weighting/omd.py", "src/equipoise/conversion/ledger.py"} <= files.keys()
    code = "\n".join(files.values())
    methods = re.findall(r"`(?!eq\.)(\w+)\.([a-z_]+)`", section)
    assert ("OMD", "update") in methods
    for owner, name in methods:
        assert re.search(rf"^class {owner}\b", code, re.MULTILINE), owner
        assert re.search(rf"^    def {name}\(", code, re.MULTILINE), f"{owner}.{name}"


def test_words_of_prose_are_counted():
    """Not those of tables, code, formulas, comments and where links lead; a formula in a line is one."""
    spec = importlib.util.spec_from_file_location("count_words", ROOT / "tools" / "count_words.py")
    assert spec is not None
    assert spec.loader is not None
    counter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counter)
    page = """# One two

Three [four five](six/seven.md#eight) – $a + b$ `nine`.

| no | no |
|---|---|

    no code

```python
no = 0
```

$$
no
$$

- ten
  eleven <!-- no -->
"""
    assert counter.prose_words(page) == 9
