"""A weighting in the user's own file: one command adds it to a table, and an edit makes it run again."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.cli.shared import console
from equipoise.experiments.results import cells_in
from equipoise.experiments.synthetic import settings as synthetic

CODE = """
from dataclasses import dataclass

import equipoise as eq


@dataclass(frozen=True)
class Mine(eq.Linear):
    def update(self, *arguments, **more):
        coefficients, state = super().update(*arguments, **more)
        return 0.5 * coefficients, state
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's folder; returns what edits the code as between two commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which could not tell two edits within a second
    monkeypatch.setattr(console, "width", 200)
    monkeypatch.setattr(synthetic, "STEPS", 4)
    monkeypatch.setattr("equipoise.experiments.jobs.WORKERS", 1)  # others would take all steps
    monkeypatch.setattr("equipoise.cli.report.PUBLISHED", tmp_path / "nothing")

    def edit(factor):
        Path("my_methods.py").write_text(CODE.replace("0.5", str(factor)))
        sys.modules.pop("my_methods", None)
        importlib.invalidate_caches()

    edit(0.5)
    yield edit
    sys.modules.pop("my_methods", None)


def command(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_tab_hv_has_it_beside_its_rows(mine):
    words = ("reproduce", "table-hv", "--methods", "LS,my_methods:Mine", "--workers", "1", "--json", "out/hv.json")
    command(*words)
    records = json.loads(Path("out/hv.json").read_text())
    assert [record["method"] for record in records] == ["LS"] * 7 + ["Mine"] * 7
    before = {record["problem"]: record["tch"] for record in records if record["method"] == "Mine"}
    assert {record["paper_mean"] for record in records if record["method"] == "Mine"} == {None}
    again = command(*words)
    assert "42 of 42 runs read from out/cells, 0 made now" in again
    assert "Mine" in again
    mine(0.9)
    edited = command(*words)
    assert "21 runs are missing" in edited
    assert "21 of 42 runs read from out/cells, 21 made now" in edited
    after = {r["problem"]: r["tch"] for r in json.loads(Path("out/hv.json").read_text()) if r["method"] == "Mine"}
    assert all(after[problem] != before[problem] for problem in before)
    mine(0.5)
    assert "42 of 42 runs read" in command(*words)  # the old code's results are still there


@pytest.mark.usefixtures("mine")
def test_alone_it_stands_beside_the_whole_table(monkeypatch):
    monkeypatch.setattr(synthetic, "STEPS", 1)
    monkeypatch.setattr(synthetic, "PROBLEMS", ("VLMOP2",))
    words = ("reproduce", "table-hv", "--methods", "my_methods:Mine", "--seeds", "0", "--workers", "1")
    command(*words, "--json", "out/hv.json")
    records = json.loads(Path("out/hv.json").read_text())
    assert [record["method"] for record in records] == [row.method for row in synthetic.settings("published")] + [
        "Mine"
    ]


def test_the_table_on_digits_has_it(mine):
    words = (
        "reproduce", "table-digits", "--methods", "LS,my_methods:Mine", "--task", "digits-class2", "--rounds", "2",
        "--seeds", "0,25", "--json", "out/digits.json",
    )  # fmt: skip

    def losses():
        records = json.loads(Path("out/digits.json").read_text())
        assert [r["method"] for r in records if r["metric"] == "agnostic_loss"] == ["LS", "Mine"]
        return {r["method"]: r["mean"] for r in records if r["metric"] == "agnostic_loss"}

    assert "Mine" in command(*words)
    before = losses()
    assert "4 of 4 runs read from out/cells, 0 made now" in command(*words)
    mine(0.9)
    assert "2 of 4 runs read from out/cells, 2 made now" in command(*words)
    assert losses()["LS"] == before["LS"]
    assert losses()["Mine"] != before["Mine"]
    # Of the two versions a report shows the one that was made last.
    command("report")
    rows = {row["method"]: row["cells"] for table in page()["tables"] for row in table["rows"]}
    assert rows.keys() == {"LS", "Mine"}
    assert rows["Mine"][1]["ours"] == pytest.approx(losses()["Mine"])
    (task,) = page()["tasks"]
    assert [method["name"] for method in task["methods"]] == ["LS", "Mine"]


def page():
    text = Path("out/report.html").read_text(encoding="utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_a_report_has_it_by_one_command(mine):
    command("report", "--methods", "my_methods:Mine")

    def shown():
        record = page()
        (table,) = record["tables"]
        (row,) = table["rows"]
        assert row["method"] == "Mine"
        assert [explored["title"] for explored in record["sets"]] == list(synthetic.PROBLEMS)
        assert {method["name"] for explored in record["sets"] for method in explored["methods"]} == {"Mine"}
        return [cell["ours"] for cell in row["cells"]], [e["methods"][0]["losses"] for e in record["sets"]]

    before = shown()
    command("report", "--methods", "my_methods:Mine")
    assert shown() == before
    assert len(list(cells_in([Path("out/cells")]))) == 21
    mine(0.9)
    command("report", "--methods", "my_methods:Mine")
    after = shown()
    assert all(a != b for a, b in zip(after[1], before[1], strict=True))
    assert len(list(cells_in([Path("out/cells")]))) == 42


@pytest.mark.usefixtures("mine")
def test_a_report_has_the_rows_named_beside_it():
    command("report", "--methods", "LS,equipoise,my_methods:Mine")
    (table,) = page()["tables"]
    assert {row["method"] for row in table["rows"]} == {"LS", "equipoise", "Mine"}
    done = CliRunner().invoke(app, ["report", "--methods", "PropFair"])
    assert "method must be a row of the table, or module:name of your own; found 'PropFair'" in str(done.exception)


@pytest.mark.usefixtures("mine")
def test_solve_and_fl_take_it():
    command("solve", "VLMOP2", "--method", "my_methods:Mine", "--steps", "2", "--json", "solved.json")
    record = json.loads(Path("solved.json").read_text())
    assert record["method"] == "Mine"
    assert record["weighting"].keys() == {"class", "source", "ideal"}
    assert "last *" in command("fl", "--method", "my_methods:Mine", "--rounds", "2")
    (cell,) = cells_in([Path("out/cells")])
    assert cell.names == {"task": "digits-rotation", "method": "Mine", "output": "last"}


@pytest.mark.usefixtures("mine")
def test_a_name_of_the_librarys_is_taken():
    Path("my_methods.py").write_text(CODE.replace("Mine", "TCH"))
    done = CliRunner().invoke(app, ["reproduce", "table-hv", "--methods", "my_methods:TCH"])
    assert "a method of your own must have a name of its own; found 'TCH'" in str(done.exception)


@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_several_processes_find_its_file(monkeypatch):
    monkeypatch.setattr(synthetic, "STEPS", 1000)  # as they have it
    words = ("reproduce", "table-hv", "--methods", "LS,my_methods:Mine", "--workers", "2", "--seeds", "0", "--yes")
    assert "14 runs are missing" in command(*words)
    assert "14 of 14 runs read from out/cells, 0 made now" in command(*words)


# ------------------------------------------------------------------------------- from Python
@pytest.mark.usefixtures("mine")
def test_compare_puts_it_into_tab_hv():
    found = eq.compare(
        {"mine": "my_methods:Mine", "other": eq.SmoothTchebycheff(0.1)}, tasks=["VLMOP2"], seeds=(0,), out="out"
    )
    names = [row.method for row in synthetic.settings("published")]
    assert [row.method for row in found if row.metric == "tch"] == [*names, "mine", "other"]
    assert {row.metric for row in found} == {"tch", "hypervolume", "imbalance"}
    by_name = {row.method: row for row in found if row.metric == "hypervolume"}
    assert (by_name["LS"].paper, by_name["mine"].paper, by_name["mine"].seeds) == (0.042, None, (0,))
    assert eq.compare(["LS", "my_methods:Mine"], tasks=["VLMOP2"], seeds=(0,))[-1].method == "Mine"
    (row,) = [row for row in eq.compare(["LS"], tasks=["VLMOP2"], seeds=(0,)) if row.metric == "hypervolume"]
    assert row == by_name["LS"]


@pytest.mark.usefixtures("mine")
def test_compare_puts_it_into_the_table_on_digits():
    found = eq.compare(["LS", "my_methods:Mine"], "digits", tasks=["digits-class2"], rounds=2, seeds=(0, 25))
    assert [(row.task, row.method) for row in found] == [("digits-class2", n) for n in ("LS", "Mine") for _ in range(3)]
    assert [row.metric for row in found[:3]] == ["accuracy", "agnostic_loss", "accuracy_parity"]
    assert all(row.error == pytest.approx(row.std) for row in found)  # of two seeds


def test_compare_says_what_is_wrong():
    with pytest.raises(ValueError, match="table must be one of cifar, digits, hv, mnist; found 'hw'"):
        eq.compare(["LS"], "hw")
    for wrong, message in (
        ({"seeds": []}, "seeds must hold at least one seed; found 0"),
        ({"seeds": [-1]}, "seeds must be a non-negative whole number; found -1"),
        ({"workers": 0}, "workers must be a whole number of at least 1; found 0"),
        ({"rounds": 3}, "rounds must not be given for hv, which has none; found 3"),
    ):
        with pytest.raises(ValueError, match=message):
            eq.compare(["LS"], **wrong)
    with pytest.raises(ValueError, match="a method of your own must have a name of its own; found 'LS'"):
        eq.compare({"LS": eq.Tchebycheff()})
    with pytest.raises(ValueError, match="methods must have the row LS under its own name; found 'baseline'"):
        eq.compare({"baseline": "LS"})
    with pytest.raises(ValueError, match=r"tasks must be among VLMOP2, F1, .*; found 'F9'"):
        eq.compare(["LS"], tasks=["F9"])
