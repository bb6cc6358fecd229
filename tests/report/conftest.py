"""A report of synthetic results, so that every number on the page is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import preference
from equipoise.experiments import paper
from equipoise.experiments.paper import Preset
from equipoise.experiments.report import gather, render
from equipoise.experiments.report.sources import read
from equipoise.experiments.results import PUBLISHED, CellStore
from equipoise.experiments.synthetic import settings as synthetic


def made_up(method: str, problem: Any, w: torch.Tensor, seed: int) -> torch.Tensor:
    """LS goes to the ends of the front, TCH where it should; all others miss it by a little."""
    exact: torch.Tensor = problem.solution(w)
    if method == "LS":
        front: torch.Tensor = problem.front(2)
        return front[(w[:, 0] < 0.5).long()]
    return exact if method == "TCH" else exact + 0.01 * (1 + seed % 3)


def _write_table(folder: Path, names: Sequence[str], presets: Sequence[Preset] = ("published",)) -> None:
    """Cells of tab:hv."""
    store, w = CellStore(folder / "cells", ()), preference.linspace(synthetic.PREFERENCES)
    for preset in presets:
        for name in names:
            problem = synthetic.problem_of(name, preset)
            for k, row in enumerate(synthetic.settings(preset)):
                for seed in synthetic.SEEDS:
                    losses = made_up(row.method, problem, w, seed).tolist()
                    theirs = paper.HYPERVOLUMES[row.method][name]
                    volume = theirs.mean + (0.1 if k == 1 else 0)
                    result = {"losses": losses, "hypervolume": volume, "diverged": 0}
                    called = {"task": name, "method": row.method}
                    store.write(synthetic.cell_spec(preset, name, row, seed), result, called)


def _write_log(path: Path) -> None:
    """A monitoring log of three steps."""
    steps = [{"step": t, "lambda/a": t / 4, "lambda/b": 1 - t / 4, "tch": 1 / t, "archive": t} for t in (1, 2, 3)]
    path.write_text("".join(f"{json.dumps(step)}\n" for step in steps))


def _write_page(path: Path, results: Sequence[Path], behind: Sequence[Path] = ()) -> Path:
    path.write_text(render(gather(read(results, behind), "1.2.3")), encoding="utf-8")
    return path


@pytest.fixture
def write_table() -> Any:
    return _write_table


@pytest.fixture
def write_page() -> Any:
    return _write_page


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything in the package, all of tab:hv in both presets, and a user's own run."""
    folder = tmp_path_factory.mktemp("report")
    _write_table(folder, synthetic.PROBLEMS, ("published", "text"))
    _write_log(folder / "mine.jsonl")
    return _write_page(folder / "report.html", [folder], [PUBLISHED])
