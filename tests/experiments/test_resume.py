"""Killed runs and concurrent runs: nothing is lost, and nothing is computed twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.experiments.results import CellStore
from equipoise.experiments.synthetic import settings as synthetic

# A hundredth of the steps: what is tested is what happens between the cells, not in them.
SHORT = (
    "from equipoise.experiments.synthetic import settings; settings.STEPS = 10; from equipoise.cli import main; main()"
)
CELLS = len(synthetic.PROBLEMS) * len(synthetic.settings("published")) * len(synthetic.SEEDS)


def start(folder: Path, *, short: bool = True, workers: int = 1) -> "subprocess.Popen[bytes]":
    program = ["-c", SHORT] if short else ["-m", "equipoise"]
    words = ["reproduce", "table-hv", "--out", str(folder), "--json", str(folder / "table.json"), "--yes"]
    command = [sys.executable, *program, *words, "--workers", str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder.parent, env=environment, stdout=subprocess.DEVNULL)


def cells(folder: Path) -> dict[str, int]:
    """Every cell with the time at which it was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}


def finished(folder: Path, **how) -> list[dict[str, object]]:
    folder.mkdir(exist_ok=True)
    assert start(folder, **how).wait() == 0
    table: list[dict[str, object]] = json.loads((folder / "table.json").read_text())
    return table


def killed(times: int, folder: Path, **how) -> int:
    """Kill a run that often, each time a moment after so many new cells; returns how many were finished then.

    None of them may be written again.
    """
    folder.mkdir()
    kept: dict[str, int] = {}
    draw = random.Random(0)  # noqa: S311
    for _ in range(times):
        process = start(folder, **how)
        wanted = len(kept) + draw.randrange(1, CELLS // times)
        while len(cells(folder)) < wanted and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.choice([0.0, 0.01, 1.0]))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = cells(folder)
        assert {name: now[name] for name in kept} == kept
        kept = now
    finished(folder, **how)
    now = cells(folder)
    assert {name: now[name] for name in kept} == kept
    assert len(now) == CELLS
    return len(kept)


@pytest.mark.slow
@pytest.mark.parametrize(("short", "workers"), [(True, 1), (False, 2)])
def test_a_run_that_is_killed_ten_times_gives_the_same_table(short, workers, tmp_path):
    undisturbed = finished(tmp_path / "whole", short=short, workers=workers)
    done = killed(10, tmp_path / "killed", short=short, workers=workers)
    assert done > 0
    assert json.loads((tmp_path / "killed" / "table.json").read_text()) == undisturbed


@pytest.mark.slow
def test_two_runs_in_one_folder_lose_nothing(tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    both = [start(folder), start(folder)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(cells(folder)) == CELLS
    assert not (folder / "cells" / "damaged").exists()
    assert json.loads((folder / "table.json").read_text()) == finished(tmp_path / "whole")


def test_only_what_is_missing_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "STEPS", 5)
    store = CellStore(tmp_path, ())
    rows = synthetic.settings("published")[:3]
    (task,) = synthetic.missing(store, "published", ["F1"], rows)
    found = synthetic.run_task(task)
    # Killed after the first row and one seed of the second.
    for spec, result, names in found[:4]:
        store.write(spec, result, names)
    left = synthetic.missing(store, "published", ["F1"], rows)
    assert [(task.rows, task.seeds) for task in left] == [(rows[1:2], (19, 42)), (rows[2:], synthetic.SEEDS)]
    again = [cell for task in left for cell in synthetic.run_task(task)]
    assert again == found[4:]
