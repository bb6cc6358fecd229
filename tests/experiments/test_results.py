"""Cells are complete or absent, are found by their specification, and are never lost."""

import errno
import hashlib
import json
import lzma
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import equipoise
from equipoise.cli import app
from equipoise.cli.shared import console
from equipoise.experiments import results, tabular
from equipoise.experiments.default import settings as default
from equipoise.experiments.federated import runs
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.results import (
    FORMAT,
    PUBLISHED,
    Cell,
    CellStore,
    CellWarning,
    alike,
    cell_name,
    cells_in,
    import_cells,
    pack,
    write_atomically,
)
from equipoise.experiments.synthetic import settings as synthetic

SPEC = {"experiment": "x", "seed": 3, "settings": (1, 2)}


def read(store, spec):
    """The result of a specification, without its provenance."""
    found = store.read(spec)
    return found and {key: value for key, value in found.items() if key != "made"}


def test_a_cell_is_found_by_its_whole_specification(tmp_path):
    store = CellStore(tmp_path, behind=())
    assert store.read(SPEC) is None
    store.write(SPEC, {"value": 0.5})
    assert read(store, SPEC) == {"value": 0.5}
    assert store.read({**SPEC, "seed": 4}) is None
    assert read(store, dict(reversed(SPEC.items()))) == {"value": 0.5}


def test_committed_cells_are_read_after_the_users_own(tmp_path):
    behind, own = CellStore(tmp_path / "a", behind=()), CellStore(tmp_path / "b", behind=(tmp_path / "a",))
    behind.write(SPEC, {"value": 1})
    assert read(own, SPEC) == {"value": 1}
    own.write(SPEC, {"value": 2})
    assert read(own, SPEC) == {"value": 2}
    assert read(behind, SPEC) == {"value": 1}
    assert [cell.result for cell in cells_in([tmp_path / "b", tmp_path / "a"])] == [{"value": 2}]


def test_a_cell_says_who_made_it(tmp_path, monkeypatch):
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 1}, {"task": "t", "method": "m"}, "a made-up GPU")
    content = json.loads(path.read_text())
    assert (content["format"], content["names"]) == (FORMAT, {"task": "t", "method": "m"})
    assert content["made"].keys() == {"equipoise", "commit", "torch", "device", "date", "time"}
    found = store.read(SPEC)
    assert found is not None
    assert found["made"] == content["made"]
    assert (found["made"]["equipoise"], found["made"]["device"]) == (equipoise.__version__, "a made-up GPU")
    monkeypatch.setattr("platform.machine", lambda: "this kind")
    assert results.provenance()["device"] == "this kind"


@pytest.mark.parametrize("version", [None, 1, 2])
def test_a_cell_of_an_older_format_is_ignored(version, tmp_path):
    """It named settings by their `repr`, and so nothing that is asked for today."""
    store = CellStore(tmp_path, behind=())
    path = store.write(SPEC, {"value": 1})
    older = {"spec": SPEC, "result": {"value": 1}} | ({} if version is None else {"format": version})
    path.write_text(json.dumps(older))
    shown = f"is ignored: it has format {version or 1}, this version reads format {FORMAT}"
    with pytest.warns(CellWarning, match=shown):
        assert store.read(SPEC) is None
    with pytest.warns(CellWarning, match=shown):
        assert list(cells_in([tmp_path])) == []
    assert json.loads(path.read_text())["result"] == {"value": 1}


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
    path.write_text(f'{{"spec": {{}}, "format": {FORMAT}}}')


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
    assert read(store, SPEC) == {"value": 0.5}


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
    aside = results._move_aside

    def late(of):
        CellStore(tmp_path, behind=()).write(SPEC, {"value": 0.5})
        return aside(of)

    monkeypatch.setattr(results, "_move_aside", late)
    assert read(store, SPEC) == {"value": 0.5}
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
        assert read(store, SPEC) == {"value": 0.7}
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
    assert read(store, SPEC) == {"value": 1}


FULL = """
import resource, sys
from pathlib import Path
from equipoise.experiments.results import CellStore
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
    assert read(CellStore(tmp_path, ()), {"seed": 1}) == {"value": 1}


def test_results_that_are_not_numbers_survive(tmp_path):
    store = CellStore(tmp_path, behind=())
    store.write(SPEC, {"losses": [[float("nan"), 1.0]]})
    found = store.read(SPEC)
    assert found is not None
    assert found["losses"][0][0] != found["losses"][0][0]


# --- cells of strangers

DEEP = "[" * 100_000 + "]" * 100_000
FEDERATED = runs.spec(federated.tasks()["digits-rotation"], federated.row("LS", "digits-rotation").method, 0)
SYNTHETIC = synthetic.cell_spec("published", "F1", synthetic.settings("published")[0], 0)
SOLVED = {"losses": [[0.5, 0.5]] * synthetic.PREFERENCES, "hypervolume": 1.0, "diverged": 0}
NUMBERED: Any = {"task": 3}
UNSEEDED = {**SYNTHETIC, "seed": "0"}
CONVERTED = default.cell_spec("DTLZ2 m=3", default.rows("DTLZ2 m=3")[0])


def text_of(spec, result):
    """A cell whose name and checksum are right."""
    return Cell(spec, result, {}, {}).text()


HOSTILE = {
    "deep": ({"seed": 1}, f'{{"spec": {{"seed": 1}}, "result": {{"x": {DEEP}}}}}', "nested at most 32 deep"),
    "large number": ({"seed": 1}, '{"spec": {"seed": 1}, "result": {"x": 1' + "0" * 400 + "}}", "larger than a float"),
    "larger number": ({"seed": 1}, '{"spec": {"seed": 1}, "result": {"x": 1' + "0" * 9000 + "}}", "not a whole JSON"),
    "no text": ({"seed": 1}, b"\xff\xfe\xfd", "not a whole JSON"),
    "another name": ({"seed": 1}, text_of({"seed": 2}, {}), "name and content do not belong together"),
    "another checksum": (SYNTHETIC, text_of(SYNTHETIC, SOLVED).replace("0.5", "0.4"), "does not match its checksum"),
    "empty": (SYNTHETIC, text_of(SYNTHETIC, {}), "it must have 'losses'; found none"),
    "empty federated": (FEDERATED, text_of(FEDERATED, {}), "it must have 'outputs'; found none"),
    "empty conversions": (CONVERTED, text_of(CONVERTED, {}), "outputs must be those of its specification"),
    "ragged": (SYNTHETIC, text_of(SYNTHETIC, {**SOLVED, "losses": [[1, 2]] * 9 + [[1]]}), "a list of 2 numbers"),
    "long name": (SYNTHETIC, Cell(SYNTHETIC, SOLVED, {"task": "x" * 201}, {}).text(), "must be short texts"),
    "name of numbers": (SYNTHETIC, Cell(SYNTHETIC, SOLVED, NUMBERED, {}).text(), "must be short texts"),
    "no provenance": (SYNTHETIC, text_of(SYNTHETIC, SOLVED).replace('"made": {}, ', ""), "must hold spec, result, "),
    "no number as seed": (UNSEEDED, text_of(UNSEEDED, SOLVED), "seed must be a whole number"),
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
        assert sum(tabular.count(cells_in([store.folder])).values()) == 1
    assert len(said) == 1
    with pytest.warns(CellWarning, match=f"^{path} is ignored: .*{reason}"):
        assert equipoise.results(store.folder, published=False) == []


def test_a_hostile_cell_is_made_again(hostile):
    store, path, spec, reason = hostile
    with pytest.warns(CellWarning, match=rf"^{path} is damaged \(.*{reason}.*\); it was moved to .* made again"):
        assert store.read(spec) is None
    assert read(store, {"seed": 99}) == {"value": 1}


def test_a_hostile_cell_is_not_imported(hostile, tmp_path):
    store, path, _, reason = hostile
    found = import_cells(store.folder, CellStore(tmp_path / "mine", ()))
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
    assert math.isnan(cell.volume.ours.mean)
    assert math.isnan(cell.imbalance)
    of = {"hypervolume": [math.inf, 1.0], "tch": [nan, 1.0], "imbalance": [nan, 1.0, math.inf]}
    store.write(CONVERTED, {"diverged": 3, **dict.fromkeys(CONVERTED["outputs"], of)})
    found = default.table(store)
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
    store.write({"experiment": MARKUP}, {}, {"task": MARKUP, "method": MARKUP})
    monkeypatch.setattr(console, "width", 300)
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


# ------------------------------------------------------------------------------- many cells in one file
def packed(path, number=3):
    cells = [Cell({"seed": seed}, {"value": seed}, {"task": "t"}, {"device": "x"}) for seed in range(number)]
    assert pack(cells, path) == number
    return cells


def test_a_pack_is_read_as_a_folder_is(tmp_path):
    file = tmp_path / "some.jsonl.xz"
    cells = packed(file)
    assert {cell.name: cell for cell in cells_in([file])} == {cell.name: cell for cell in cells}
    store = CellStore(tmp_path / "cells", behind=(file,))
    assert store.read({"seed": 2}) == {"value": 2, "made": {"device": "x"}}
    assert store.read({"seed": 3}) is None
    assert store.source({"seed": 2}) == file
    store.write({"seed": 2}, {"value": 20})
    assert read(store, {"seed": 2}) == {"value": 20}
    assert store.source({"seed": 2}) == store.folder
    found = {cell.spec["seed"]: cell.result["value"] for cell in cells_in([store.folder, file])}
    assert found == {0: 0, 1: 1, 2: 20}


def test_the_same_cells_are_the_same_pack(tmp_path):
    first, second = tmp_path / "1.xz", tmp_path / "2.xz"
    pack(reversed(packed(first)), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_pack_is_imported_and_what_is_there_stays(tmp_path):
    file = tmp_path / "some.jsonl.xz"
    cells = packed(file)
    store = CellStore(tmp_path / "cells", behind=())
    store.write({"seed": 1}, {"value": "ours"})
    assert import_cells(file, store) == (2, 1, {})
    assert store.read({"seed": 0}) == {"value": 0, "made": {"device": "x"}}  # who made it is kept
    assert read(store, {"seed": 1}) == {"value": "ours"}
    assert [path.name for path in sorted(store.folder.iterdir())] == sorted(cell.name for cell in cells)


def test_the_commands_pack_and_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CellStore(Path("out/cells"), ()).write({"seed": 1}, {"value": 1})
    done = CliRunner().invoke(app, ["runs", "pack", "mine.jsonl.xz"])
    assert done.output.startswith("wrote mine.jsonl.xz: 1 cells, 0.00 MB")
    done = CliRunner().invoke(app, ["runs", "import", "mine.jsonl.xz", "--out", "other"])
    assert "1 new, 0 known, 0 refused" in done.output
    assert read(CellStore(Path("other/cells"), ()), {"seed": 1}) == {"value": 1}
    done = CliRunner().invoke(app, ["runs", "pack", "none.xz", "--out", "empty"])
    assert "there must be cells to pack; found none in empty" in str(done.exception)
    assert not Path("none.xz").exists()


def shortened(content):
    return content[: len(content) // 2]


def turned(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def with_another_body(content):
    return lzma.compress(lzma.decompress(content).replace(b'"value": 2', b'"value": 3'))


def without_head(content):
    return lzma.compress(b"[]\n" + lzma.decompress(content).partition(b"\n")[2])


def plain(content):
    return lzma.decompress(content)


@pytest.mark.parametrize("damage", [shortened, turned, with_another_body, without_head, plain])
def test_a_damaged_pack_is_named_once_and_nothing_of_it_is_read(damage, tmp_path):
    file = tmp_path / "some.jsonl.xz"
    packed(file)
    file.write_bytes(damage(file.read_bytes()))
    store = CellStore(tmp_path / "cells", behind=(file,))
    reason = "not a whole file of cells|does not match its checksum"
    with pytest.warns(CellWarning, match=rf"^{file} is ignored: .*({reason})") as said:
        assert [store.read({"seed": seed}) for seed in range(3)] == [None] * 3
    assert len(said) == 1
    assert list(cells_in([file])) == []
    assert import_cells(file, store) == (0, 0, {})
    assert not store.folder.exists()


def test_a_pack_of_another_format_is_ignored(tmp_path):
    file = tmp_path / "some.jsonl.xz"
    packed(file)
    head, _, body = lzma.decompress(file.read_bytes()).partition(b"\n")
    stated = {**json.loads(head), "format": FORMAT + 1}
    file.write_bytes(lzma.compress(json.dumps(stated).encode() + b"\n" + body))
    with pytest.warns(CellWarning, match=f"it has format {FORMAT + 1}, this version reads format {FORMAT}"):
        assert list(cells_in([file])) == []


def test_a_bad_line_of_a_pack_is_named_and_the_others_are_read(tmp_path):
    """The content is wrong, but its checksum is right."""
    file = tmp_path / "some.jsonl.xz"
    good, bad = Cell({"seed": 1}, {"value": 1}, {}, {}), Cell(SYNTHETIC, {}, {}, {})
    pack([good, bad], file)
    store = CellStore(tmp_path / "cells", behind=(file,))
    with pytest.warns(CellWarning, match=f"{bad.name} in {file} is ignored: it must have 'losses'; found none"):
        assert store.read(SYNTHETIC) is None
    with pytest.warns(CellWarning, match="is ignored: it must have 'losses'"):
        assert list(cells_in([file])) == [good]
    body = f"{cell_name({'seed': 2})} {good.text()}\n".encode()
    head = {"format": FORMAT, "cells": 1, "sha256": hashlib.sha256(body).hexdigest()}
    file.write_bytes(lzma.compress(json.dumps(head).encode() + b"\n" + body))
    with pytest.warns(CellWarning, match="name and content do not belong together: it must be called"):
        assert store.read({"seed": 2}) is None


def test_the_published_cells_are_whole():
    cells = list(cells_in([PUBLISHED]))
    assert len(cells) >= 1000
    assert {cell.spec["experiment"] for cell in cells} == {"federated", "conversions"}
    assert all(cell.names["task"] and cell.names["method"] and cell.made["device"] for cell in cells)
    assert CellStore(Path("nowhere")).read(cells[0].spec) == {**cells[0].result, "made": cells[0].made}
