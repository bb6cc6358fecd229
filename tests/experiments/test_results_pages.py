"""The result pages equal what their commands write from the cells in the package."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.shared import console

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "results").glob("table-*.md"))


def test_there_are_pages():
    assert len(PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_its_command_writes(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there are no cells of one's own
    monkeypatch.setattr(console, "width", 80)
    made = tmp_path / page.name
    done = CliRunner().invoke(app, ["reproduce", page.stem, "--markdown", str(made)])
    assert done.exit_code == 0, done.output
    assert "…" not in done.output  # nothing is cut
    assert made.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
