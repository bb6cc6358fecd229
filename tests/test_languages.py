"""The example of six languages in small: pages, methods, and that it ends in a table and a picture."""

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import equipoise as eq

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "examples" / "languages.json"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("languages", ROOT / "examples" / "languages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["languages"] = module
    spec.loader.exec_module(module)
    return module


languages: Any = load()


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Ten pages of each language, of different lengths, and a link to one."""
    monkeypatch.setattr(languages, "BYTES", dict.fromkeys(languages.LANGUAGES, 20_000))
    for number, language in enumerate(languages.LANGUAGES):
        folder = tmp_path / "pages" / "usr/share/man" / language / "man1"
        folder.mkdir(parents=True)
        for page in range(20):
            text = f"{language} {page} é " * (300 + 50 * number)
            (folder / f"{page:02}.1.gz").write_bytes(gzip.compress(text.encode()))
        (folder / "link.1.gz").symlink_to(folder / "00.1.gz")
    return tmp_path / "pages"


def test_every_tenth_page_is_held_out_and_links_are_left_out(pages):
    train, held_out = languages.read(pages, 64)
    assert train.windows.dtype == torch.uint8
    assert train.windows.shape[1] == held_out.windows.shape[1] == 65
    assert train.languages.unique().tolist() == list(range(6))
    first = bytes(held_out.windows[held_out.languages == 0].flatten().tolist()).decode(errors="replace")
    assert "de 0 é" in first
    assert "de 10 é" in first
    assert "de 1 é" not in first
    assert len(languages.read_pages(pages, "de")) == 20


def test_missing_pages_are_named(pages, monkeypatch):
    monkeypatch.setitem(languages.BYTES, "ru", 9e6)
    with pytest.raises(SystemExit, match=r"must hold some 9\.0 MB of ru; found 0\..*: get manpages-ru as this file's"):
        languages.read(pages, 64)


def test_it_ends_in_a_table_and_a_picture(pages, tmp_path, capsys):
    arguments = ["--data", str(pages), "--out", str(tmp_path), "--size", "tiny", "--warm", "4", "--steps", "5"]
    languages.main(arguments)
    found = json.loads((tmp_path / "languages.json").read_text())
    assert (tmp_path / "languages.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    for name, (run,) in found["methods"].items():
        assert f"{max(run['held_out']):.4f}" in said, name
        assert len(run["held_out"]) == 6


def test_the_methods_of_the_rows():
    settings = languages.Settings(eta=0.5)
    assert languages.method("equipoise, drawn", settings) == eq.default()
    assert languages.method("equipoise, youth=0, drawn", settings) == eq.default(youth=0)
    assert languages.method("GroupDRO", settings) == eq.group_dro([1] * 6, step_size=0.5)
    assert languages.method("temperature", settings) == eq.methods()["LS"]


def test_what_the_page_claims_of_the_stored_runs():
    found = json.loads(RESULTS.read_text())
    f = {name: torch.tensor([run["held_out"] for run in runs]) for name, runs in found["methods"].items()}
    worst = {name: float(x.amax(1).mean()) for name, x in f.items()}
    mean = {name: float(x.mean()) for name, x in f.items()}
    assert all(len(x) == 5 for x in f.values())
    assert worst["equipoise, drawn"] <= min(worst["GroupDRO"], worst["GroupDRO, η = 0.03"]) - 0.01
    assert mean["equipoise, drawn"] <= mean["LS"] + 0.02
    assert min(worst, key=lambda name: worst[name]) == "equipoise, youth=0, drawn"
    assert max(worst, key=lambda name: worst[name]) == "temperature"
    gains = f["GroupDRO"].amax(1) - f["equipoise, drawn"].amax(1)
    assert int((gains > 0).sum()) == 4  # of five: the page says so
    tiny = {name: torch.tensor(f) for name, f in found["tiny"]["held_out"].items()}
    assert [f"{float(f.amax(1).mean()):.3f}" for f in tiny.values()] == ["2.790", "2.820", "2.778", "2.763", "2.760"]
    gains = tiny["GroupDRO"].amax(1) - tiny["equipoise, drawn"].amax(1)
    assert int((gains > 0).sum()) == 4
    longer = found["long"]["worst and mean"]
    assert longer["GroupDRO"][0] < longer["equipoise, drawn"][0]  # where it is lost
