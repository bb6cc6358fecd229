"""Cells are whole or not there, and are found by what was asked."""

import json
from pathlib import Path

import pytest

from equipoise.experiments.cells import CellStore, write_atomically

SPEC = {"experiment": "x", "seed": 3, "settings": (1, 2)}


def test_a_cell_is_found_by_its_whole_specification(tmp_path):
    store = CellStore(tmp_path, behind=())
    assert store.read(SPEC) is None
    store.write(SPEC, {"value": 0.5})
    assert store.read(SPEC) == {"value": 0.5}
    assert store.read({**SPEC, "seed": 4}) is None
    assert store.read(dict(reversed(SPEC.items()))) == {"value": 0.5}


def test_committed_cells_are_read_after_the_users_own(tmp_path):
    behind, own = CellStore(tmp_path / "a", behind=()), CellStore(tmp_path / "b", behind=(tmp_path / "a",))
    behind.write(SPEC, {"value": 1})
    assert own.read(SPEC) == {"value": 1}
    own.write(SPEC, {"value": 2})
    assert own.read(SPEC) == {"value": 2}
    assert behind.read(SPEC) == {"value": 1}


def test_a_file_of_another_specification_is_not_taken(tmp_path):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 1})
    cell = json.loads(path.read_text())
    cell["spec"]["seed"] = 4
    path.write_text(json.dumps(cell))
    assert store.read(SPEC) is None


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    write_atomically(path, "old")

    class Crash(BaseException):
        pass

    def crash(*_arguments):
        raise Crash

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(Crash):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["cell.json"]


def test_results_that_are_not_numbers_survive(tmp_path):
    store = CellStore(tmp_path, behind=())
    store.write(SPEC, {"losses": [[float("nan"), 1.0]]})
    found = store.read(SPEC)
    assert found is not None
    assert found["losses"][0][0] != found["losses"][0][0]
