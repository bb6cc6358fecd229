"""Cells are whole or not there, are found by what was asked, and are never lost by what goes wrong."""

import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise import cli
from equipoise.cli import app
from equipoise.experiments import cells, conversions, federated, runs, synthetic
from equipoise.experiments.cells import FORMAT, CellStore, CellWarning, alike, cell_name, cells_in, write_atomically

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
    monkeypatch.setattr(os, "open", refuse)
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


# --- cells of strangers

DEEP = "[" * 100_000 + "]" * 100_000
FEDERATED = federated.spec(federated.tasks()["digits-rotation"], federated.row("LS", "digits-rotation").method, 0)
SYNTHETIC = synthetic.cell_spec("published", "F1", synthetic.settings("published")[0], 0)
SOLVED = {"losses": [[0.5, 0.5]] * synthetic.PREFERENCES, "hypervolume": 1.0, "diverged": 0}
CONVERTED = conversions.cell_spec("DTLZ2 m=3", conversions.configurations("DTLZ2 m=3")[0])


def text_of(spec, result):
    """A cell whose name and checksum are right."""
    content = {"spec": spec, "result": result}
    return json.dumps({**content, "format": FORMAT, "sha256": cells._checksum(content)})


HOSTILE = {
    "deep": ({"seed": 1}, f'{{"spec": {{"seed": 1}}, "result": {{"x": {DEEP}}}}}', "nested at most 32 deep"),
    "large number": ({"seed": 1}, '{"spec": {"seed": 1}, "result": {"x": 1' + "0" * 400 + "}}", "larger than a float"),
    "larger number": ({"seed": 1}, '{"spec": {"seed": 1}, "result": {"x": 1' + "0" * 9000 + "}}", "not a whole JSON"),
    "no text": ({"seed": 1}, b"\xff\xfe\xfd", "not a whole JSON"),
    "another name": ({"seed": 1}, text_of({"seed": 2}, {}), "name and content do not belong together"),
    "another checksum": (SYNTHETIC, text_of(SYNTHETIC, SOLVED).replace("0.5", "0.4"), "what its checksum says"),
    "empty": (SYNTHETIC, text_of(SYNTHETIC, {}), "it must have 'losses'; found none"),
    "empty federated": (FEDERATED, text_of(FEDERATED, {}), "it must have 'outputs'; found none"),
    "empty conversions": (CONVERTED, text_of(CONVERTED, {}), "outputs must be those of its specification"),
    "ragged": (SYNTHETIC, text_of(SYNTHETIC, {**SOLVED, "losses": [[1, 2]] * 9 + [[1]]}), "a list of 2 numbers"),
    "words": (SYNTHETIC, text_of(SYNTHETIC, {**SOLVED, "hypervolume": "1"}), "hypervolume must be a number"),
}


@pytest.fixture(params=list(HOSTILE.values()), ids=list(HOSTILE))
def hostile(request, tmp_path):
    """A folder with a whole cell and a hostile one: its file, its specification, what is wrong with it."""
    spec, content, reason = request.param
    store = CellStore(tmp_path / "cells", ())
    store.write({"seed": 99}, {"value": 1})
    path = store.folder / cell_name(spec)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return store, path, spec, reason


def test_a_hostile_cell_is_named_once_and_the_others_are_read(hostile):
    store, path, _, reason = hostile
    with pytest.warns(CellWarning, match=f"^{path} is ignored: .*{reason}") as said:
        assert [cell.result for cell in cells_in([store.folder])] == [{"value": 1}]
    assert len(said) == 1
    with pytest.warns(CellWarning, match=f"^{path} is ignored: .*{reason}") as said:
        assert runs.count(store.folder).total() == 1
    assert len(said) == 1


def test_a_hostile_cell_is_made_again(hostile):
    store, path, spec, reason = hostile
    with pytest.warns(CellWarning, match=rf"^{path} is damaged \(.*{reason}.*\); it was moved to .* made again"):
        assert store.read(spec) is None
    assert store.read({"seed": 99}) == {"value": 1}


def test_a_hostile_cell_is_not_imported(hostile, tmp_path):
    store, path, _, reason = hostile
    found = runs.import_cells(store.folder, CellStore(tmp_path / "mine", ()))
    assert (found.new, list(found.refused)) == (1, [path.name])
    assert re.search(reason, found.refused[path.name])


@pytest.mark.parametrize("kind", ["folder", "pipe", "unreadable"])
def test_what_is_no_file_is_no_cell(kind, tmp_path, monkeypatch):
    path = tmp_path / cell_name({"seed": 1})
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("{}")
        refuse = lambda *_: (_ for _ in ()).throw(PermissionError(errno.EACCES, "Permission denied"))  # noqa: E731
        monkeypatch.setattr(Path, "open", refuse)
    with pytest.warns(CellWarning, match="is ignored: not a file|it cannot be read: Permission denied"):
        assert list(cells_in([tmp_path])) == []


def test_numbers_that_are_none_do_not_stop_a_table(tmp_path):
    """Every solution may have diverged."""
    store = CellStore(tmp_path, ())
    nan, row = float("nan"), synthetic.settings("published")[0]
    lost = {"losses": [[nan, nan]] * synthetic.PREFERENCES, "hypervolume": nan, "diverged": 10}
    for seed in synthetic.SEEDS:
        store.write(synthetic.cell_spec("published", "F1", row, seed), lost)
    (cell,) = synthetic.table(store, "published", ["F1"], [row])
    assert math.isnan(cell.mean)
    assert math.isnan(cell.imbalance)
    of = {"hypervolume": [math.inf, 1.0], "tch": [nan, 1.0], "imbalance": [nan, 1.0, math.inf]}
    store.write(CONVERTED, {"diverged": 3, **dict.fromkeys(CONVERTED["outputs"], of)})
    found = conversions.table(store)
    assert len(found) == len(CONVERTED["outputs"])
    assert math.isnan(found[0].tch)


def test_a_seed_with_other_rounds_does_not_stop_a_table():
    def result(rounds, clients=2):
        curve = {"round": list(range(rounds))}
        return {
            "outputs": {"last": {"test": {"client_losses": [1.0] * clients}}},
            "curves": {"last": curve},
            "coefficients": [],
        }

    results = {0: result(3), 25: result(4), 37: result(3), 41: result(3, 5)}
    with pytest.warns(CellWarning, match=r"seed (25|41) of LS is ignored: it has other rounds, clients") as said:
        assert set(alike(results, "LS")) == {0, 37}
    assert len(said) == 2
    assert alike({}, "LS") == {}


MARKUP = "[/x][red]\x1b[2J\x07\ud800"


def test_texts_of_strangers_are_shown_as_they_are(tmp_path, monkeypatch):
    """Neither as markup of the terminal's library nor as commands to the terminal."""
    store = CellStore(tmp_path / "cells", ())
    store.write({"experiment": MARKUP, "problem": MARKUP, "weighting": MARKUP}, {})
    monkeypatch.setattr(cli.console, "width", 300)
    for every in ([], ["--all"]):
        done = CliRunner().invoke(app, ["runs", "list", "--out", str(tmp_path), *every])
        assert done.exception is None
        assert r"[/x][red]\x1b[2J\x07\ud800" in done.output
        assert done.output.replace("\n", "").isprintable()
    bad = tmp_path / "theirs"
    bad.mkdir()
    (bad / "[x]\x1b[2J").write_text("")
    done = CliRunner().invoke(app, ["runs", "import", str(bad), "--out", str(tmp_path)])
    assert r"refused: [x]\x1b[2J: not a whole JSON file" in done.output
