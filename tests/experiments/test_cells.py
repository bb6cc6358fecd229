"""Cells are whole or not there, are found by what was asked, and are never lost by what goes wrong."""

import errno
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from equipoise.experiments import cells
from equipoise.experiments.cells import FORMAT, CellStore, CellWarning, cells_in, write_atomically

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
    assert [cell.result for cell in cells_in([tmp_path / "b", tmp_path / "a"])] == [{"value": 2}]


def test_a_cell_without_a_format_is_of_the_first(tmp_path):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 1})
    cell = json.loads(path.read_text())
    assert cell["format"] == FORMAT
    path.write_text(json.dumps({"spec": cell["spec"], "result": cell["result"]}))
    assert store.read(SPEC) == {"value": 1}


def truncated(path):
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path):
    path.write_bytes(b"")


def binary(path):
    path.write_bytes(b"\xff\xfe\x00")


def with_another_result(path):
    path.write_text(path.read_text().replace("0.5", "0.6"))


def with_another_specification(path):
    cell = json.loads(path.read_text())
    cell["spec"]["seed"] = 4
    path.write_text(json.dumps(cell))


def without_result(path):
    path.write_text('{"spec": {}}')


def of_another_kind(path):
    path.write_text("[1, 2]")


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        emptied,
        binary,
        with_another_result,
        with_another_specification,
        without_result,
        of_another_kind,
    ],
)
def test_a_damaged_cell_is_moved_aside_and_can_be_made_again(damage, tmp_path):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 0.5})
    damage(path)
    left = path.read_bytes()
    with pytest.warns(CellWarning, match=r"is damaged .* was moved to .*damaged.* and is made again"):
        assert store.read(SPEC) is None
    assert not path.exists()
    assert (tmp_path / "damaged" / path.name).read_bytes() == left
    assert store.read(SPEC) is None
    store.write(SPEC, {"value": 0.5})
    assert store.read(SPEC) == {"value": 0.5}


def test_a_damaged_cell_of_a_checkout_is_passed_over_and_stays(tmp_path):
    path = CellStore(tmp_path / "a", behind=()).write(SPEC, {"value": 0.5})
    truncated(path)
    store = CellStore(tmp_path / "b", behind=(tmp_path / "a",))
    with pytest.warns(CellWarning, match="is ignored: not a whole JSON file"):
        assert store.read(SPEC) is None
    with pytest.warns(CellWarning, match="is ignored"):
        assert list(cells_in([tmp_path / "a"])) == []
    assert path.exists()


def test_a_damaged_cell_that_cannot_be_moved_is_passed_over(tmp_path):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 0.5})
    truncated(path)
    (tmp_path / "damaged").write_text("a file in the way")
    with pytest.warns(CellWarning, match="is ignored: not a whole JSON file; it could not be moved aside: File exists"):
        assert store.read(SPEC) is None
    assert path.exists()


def test_a_cell_that_another_process_has_made_again_meanwhile_is_not_moved(tmp_path, monkeypatch):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 0.5})
    truncated(path)
    aside = cells._move_aside

    def late(of):
        CellStore(tmp_path, behind=()).write(SPEC, {"value": 0.5})
        return aside(of)

    monkeypatch.setattr(cells, "_move_aside", late)
    assert store.read(SPEC) == {"value": 0.5}
    assert path.exists()
    assert list((tmp_path / "damaged").iterdir()) == []


def test_a_cell_of_a_newer_version_is_ignored_and_unharmed(tmp_path):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 0.5})
    newer = json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1, "result": ["something", "else"]})
    path.write_text(newer)
    with pytest.warns(CellWarning, match=f"is ignored: it has format {FORMAT + 1}"):
        assert store.read(SPEC) is None
    other = store.write(SPEC, {"value": 0.7})
    assert other != path
    with pytest.warns(CellWarning, match="is ignored"):
        assert store.read(SPEC) == {"value": 0.7}
    assert path.read_text() == newer
    with pytest.warns(CellWarning, match="is ignored"):
        assert [cell.result for cell in cells_in([tmp_path])] == [{"value": 0.7}]


def test_other_files_are_no_cells(tmp_path):
    (tmp_path / "table.json").write_text("[]")
    CellStore(tmp_path, behind=()).write(SPEC, {"value": 1})
    assert len(list(cells_in([tmp_path, tmp_path / "nowhere"]))) == 1


# ------------------------------------------------------------------------------- a disk that does not take it
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


def test_a_read_only_folder_is_named(tmp_path, monkeypatch):
    def refuse(*_arguments, **_settings):
        raise PermissionError(errno.EROFS, "Read-only file system", str(tmp_path / ".x.part"))

    store = CellStore(tmp_path / "cells", behind=())
    store.write(SPEC, {"value": 1})
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(OSError, match=r"could not be kept in .*cells: Read-only file system; nothing was left half"):
        store.write({**SPEC, "seed": 5}, {"value": 1})
    assert store.read(SPEC) == {"value": 1}


FULL = """
import resource, sys
from pathlib import Path
from equipoise.experiments.cells import CellStore
store = CellStore(Path(sys.argv[1]), ())
store.write({"seed": 1}, {"value": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.write({"seed": 2}, {"value": [0.5] * 5000})
except OSError as error:
    print(error)
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_file_leaves_nothing_of_it(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"a finished result could not be kept in {tmp_path}: File too large" in result.stdout
    assert len(list(tmp_path.iterdir())) == 1
    assert CellStore(tmp_path, ()).read({"seed": 1}) == {"value": 1}


def test_results_that_are_not_numbers_survive(tmp_path):
    store = CellStore(tmp_path, behind=())
    store.write(SPEC, {"losses": [[float("nan"), 1.0]]})
    found = store.read(SPEC)
    assert found is not None
    assert found["losses"][0][0] != found["losses"][0][0]
