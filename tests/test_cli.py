"""The command line as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app, main
from equipoise.cli.shared import console, named
from equipoise.cli.solve import _spread
from equipoise.experiments.render import fitted, listing

runner = CliRunner()


def run(*arguments, code=0):
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "250"})
    assert result.exit_code == code, result.output
    return result.output


def test_lists_every_method_and_problem(monkeypatch):
    monkeypatch.setattr(console, "width", 250)  # in one line each
    output = run("methods")
    assert all(name in output for name in eq.methods())
    for shown in ("SmoothTchebycheff(mu=0.01)", "CAGrad(c=0.5)", "OMD(step_size='adaptive', optimism=30, ", "EPO()"):
        assert shown in output
    assert "VLMOP2" in run("problems")


def test_solve_writes_what_it_found(tmp_path):
    output = run(
        "solve", "vlmop2", "--method", "adaomdgd-tch", "--preferences", "3", "--seeds", "0,19", "--steps", "20",
        "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "front.png"),
    )  # fmt: skip
    assert "hypervolume" in output
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["method"] == "AdaOMDgd-TCH"
    assert record["seeds"] == [0, 19]
    assert len(record["losses"]) == 2
    assert len(record["losses"][0]) == 3
    assert (tmp_path / "front.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_solve_takes_preferences_of_ones_own(tmp_path):
    arguments = ("--preference", "0.3,0.7", "--preference", "0,1", "--steps", "5", "--json", str(tmp_path / "out.json"))
    output = run("solve", "VLMOP2", *arguments)
    assert json.loads((tmp_path / "out.json").read_text())["preferences"] == [[0.3, 0.7], [0.0, 1.0]]
    assert "no ray" in output  # of the second


def test_solve_tells_the_default_how_long_the_run_is(tmp_path):
    run("solve", "VLMOP2", "--preferences", "2", "--steps", "300", "--json", str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text())["weighting"]["youth"] == 100.0


@pytest.mark.parametrize(
    ("problem", "asked", "line", "found"),
    [
        ("DTLZ2", 6, "4 preferences: the largest grid of at most 6 for m = 3", 4),
        ("DTLZ2", 2, "1 preference: the largest grid of at most 2 for m = 3", 1),
        ("DTLZ2", 3, None, 3),
        ("DTLZ2", 7, None, 7),
        ("VLMOP2", 5, None, 5),
        ("VLMOP2", 1, None, 1),
    ],
)
def test_a_grid_of_another_size_is_said(problem, asked, line, found, tmp_path):
    file = tmp_path / "out.json"
    output = run("solve", problem, "--preferences", str(asked), "--steps", "2", "--json", str(file))
    assert len(json.loads(file.read_text())["preferences"]) == found
    assert (line in output) if line else ("largest grid" not in output)


def test_a_spread_for_three_objectives_has_the_middle_and_is_no_set_of_corners():
    third = pytest.approx([1 / 3] * 3)
    assert _spread(1, 3).tolist() == [third]
    assert sorted(_spread(3, 3).tolist()[0]) == pytest.approx([1 / 6, 1 / 6, 2 / 3])
    for count in range(4, 30):
        weights = _spread(count, 3).tolist()
        assert weights.count(third) == 1
        assert _spread(len(weights), 3).tolist() == weights  # so that a report can name its command
    assert _spread(5, 2).tolist() == eq.preference.linspace(5).tolist()


def test_one_seed_has_no_deviation():
    assert "±" not in run("solve", "VLMOP2", "--preferences", "2", "--steps", "2")
    assert " ± " in run("solve", "VLMOP2", "--preferences", "2", "--steps", "2", "--seeds", "0,1")


def test_methods_that_differ_are_shown_to_differ(monkeypatch):
    monkeypatch.setattr(console, "width", 250)
    rows = (line.split(None, 1) for line in run("methods").splitlines())
    lines = dict(row for row in rows if len(row) == 2)
    assert "PropFair(" in lines["PropFair"]
    assert "inf" not in lines["AFL"]
    known = eq.methods()
    assert (known["LS"], known["AFL"]) == (known["FedAvg"], known["ALMO"])  # as is said below the table:
    assert "FedAvg is LS by another name. ALMO is AFL until one confines its weights" in run("methods")


def test_files_go_to_folders_that_exist_or_to_the_one_for_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("solve", "F1", "--plot", "nowhere/x.png"),
        ("solve", "F1", "--json", "nowhere/x.json"),
        ("fl", "--json", "nowhere/x.json"),
        ("reproduce", "table-mnist", "--markdown", "nowhere/x.md"),
    ):
        result = runner.invoke(app, list(arguments))
        rule = f"{arguments[-2].removeprefix('--')} must be a file in a folder that exists, or in out; found nowhere/x"
        assert rule in str(result.exception)
    assert not Path("nowhere").exists()
    run("solve", "F1", "--steps", "2", "--json", "out/new/x.json")
    assert Path("out/new/x.json").exists()


def test_a_preference_that_is_missed_by_far_is_not_a_number_of_seven_digits():
    asked = ("--preference", "0.01,0.99", "--preference", "0.5,0.5", "--method", "OptOMD-TCH", "--steps", "300")
    output = run("solve", "ZDT1", *asked)
    assert output.count("> 999 %") == 2  # the row, and the note
    assert "the ray of w = 0.01, 0.99 meets the front close to its end" in output
    assert "> 999 %" not in run("solve", "VLMOP1", "--preference", "0.3,0.7", "--steps", "300")


def test_every_preference_that_is_missed_by_far_is_named():
    asked = [word for w in ("0.01,0.99", "0.02,0.98", "0.5,0.5") for word in ("--preference", w)]
    output = run("solve", "ZDT1", *asked, "--method", "OptOMD-TCH", "--steps", "300")
    assert "> 999 %: the rays of w = 0.01, 0.99 and w = 0.02, 0.98 meet the front close to its ends" in output
    output = run("solve", "ZDT2", *asked, "--method", "LS", "--steps", "1000")  # at an end of the front, whatever w
    assert output.count("> 999 %") == 4
    assert "far above the smallest for w = 0.01, 0.99; w = 0.02, 0.98 and w = 0.5, 0.5;" in output
    assert "did not come near enough" not in output


def test_the_default_is_not_advised_to_those_who_have_it():
    asked = ("solve", "ZDT4", "--preference", "0.5,0.5", "--steps", "2")
    assert "far above the smallest for w = 0.5, 0.5; more --steps may come nearer" in run(*asked)
    advice = "more --steps, or another method such as equipoise, may come nearer"
    assert advice in run(*asked, "--method", "OptOMD-TCH")


def words_of(arguments, monkeypatch, width):
    monkeypatch.setattr(console, "width", width)
    return {word for line in run(*arguments).splitlines() for word in line.split()}


TABLES = [("methods",), ("problems",), ("reproduce", "--list"), ("data", "list"), ("solve", "DTLZ2", "--steps", "2")]


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_at_eighty_columns_words_are_whole(arguments, monkeypatch):
    wide, narrow = (words_of(arguments, monkeypatch, width) for width in (250, 80))
    rules = {word for word in wide | narrow if set(word) <= set("─")}
    assert narrow - rules == wide - rules
    assert all(len(line) <= 80 for line in run(*arguments).splitlines() if not line.startswith("> 999 %"))


def test_a_table_that_cannot_be_narrow_enough_is_left_to_its_printer():
    table = listing("one", "two")
    table.add_row("a" * 30, "b b")
    assert fitted(Console(width=20), table).columns[0].width is None
    table = listing("a head of many words", "two")
    table.add_row("ab cd", "ef ghi jk")
    assert [column.width for column in fitted(Console(width=12), table).columns] == [5, 4]


def test_lists_what_can_be_reproduced():
    output = run("reproduce", "--list")
    assert "table-hv" in output
    assert "tab:hv" in output
    assert "fig-middle-ground" in output
    assert "table-mnist" in output
    assert "fig:new-in" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("solve", "VLMOP3"), "problem must be a known name; found 'VLMOP3'; nearest: VLMOP2"),
        (("solve", "F1", "--method", "AdaOMD"), "nearest: AdaOMDgd-TCH"),
        (("solve", "F1", "--seeds", "0;1"), "seeds must be whole numbers separated by commas; found '0;1'"),
        (("solve", "F1", "--steps", "0"), "steps must be a whole number of at least 1; found 0"),
        (("solve", "F1", "--method", "zzzz"), "method must be a known name, or module:name of your own; found 'zzzz'"),
        (("solve", "F1", "--preferences", "0"), "preferences must be at least 1; found 0"),
        (("solve", "F1", "--preference", "0.5;0.5"), "preference must be numbers separated by commas; found '0.5;0.5'"),
        (("solve", "F1", "--preference", "0.5,0.6"), "sum to 1; found sum 1.10 (divide the entries by it)"),
        (("solve", "F1", "--preference", "0.2,0.3,0.5"), "preference must have 2 entries, one per objective; found 3"),
        (
            ("solve", "F1", "--preference", "0.5,0.5", "--preferences", "3"),
            "preferences must not be given together with preference; found 3",
        ),
        (("reproduce", "table-hw"), "nearest: table-hv"),
        (("reproduce", "table-hv", "--preset", "texts"), "preset must be one of published, text; found 'texts'"),
        (("reproduce", "table-text", "--preset", "published"), "table-text does not take --preset; found published;"),
        (("reproduce", "fig-adaptive", "--preset", "text"), "fig-adaptive does not take --preset; found text;"),
        (("reproduce", "table-hv", "--workers", "0"), "workers must be at least 1; found 0"),
        (
            ("reproduce", "fig-vlmop2", "--seeds", "1"),
            "fig-vlmop2 does not take --seeds; found (1,); these take it: table-",
        ),
        (("reproduce", "fig-box", "--json", "x.json"), "fig-box does not take --json; found x.json"),
        (
            ("reproduce", "table-mnist", "--methods", "LS,TCHH"),
            "or module:name of your own; found 'TCHH'; nearest: TCH",
        ),
        (("reproduce", "table-mnist", "--task", "mnist"), "task must be a known name; found 'mnist'; nearest: mnist-"),
        (("reproduce", "table-mnist", "--seeds", "a"), "seeds must be whole numbers separated by commas; found 'a'"),
        (("fl", "--task", "digit-rotation"), "task must be a known name; found 'digit-rotation'; nearest: digits-rot"),
        (("fl", "--method", "OMDgd"), "or module:name of your own; found 'OMDgd'; nearest: OMDgd-TCH"),
        (("fl", "--seeds", "0;25"), "seeds must be whole numbers separated by commas; found '0;25'"),
        (("fl", "--seeds", "-1"), "seeds must be a non-negative whole number; found -1"),
        (("reproduce", "table-hv", "--seeds", "-1"), "seeds must be a non-negative whole number; found -1"),
        (("fl", "--seeds", "0,0"), "seeds must differ from each other; found '0,0'"),
        (("fl", "--rounds", "0"), "rounds must be at least 1; found 0"),
        (("fl", "--preset", "texts"), "preset must be one of published, text; found 'texts'"),
        (("fl", "--device", "gpu"), "device must be cpu, cuda or cuda:N; found 'gpu'"),
        (("fl", "--task", "adult"), "task must be one of digits-rotation, digits-class2, digits-class5, "),
        (("fl", "--precision", "half"), "precision must be one of float32, tf32, bfloat16; found 'half'"),
        (("fl", "--fraction", "0"), "fraction must lie in (0, 1]; found 0.0"),
        (("fl", "--method", "LS", "--value", "1"), "value must not be given: LS has no setting in tab:2; found 1.0"),
        (("fl", "--method", "LS", "--tune"), "method must have a setting to tune: one of qFFL, PropFair"),
        (
            ("fl", "--method", "OMDgd-TCH", "--value", "1", "--tune"),
            "value must not be given together with tune; found 1.0",
        ),
        (("fl", "--task", "mnist-rotation", "--data", "nowhere"), "data must be a folder that exists; found nowhere"),
        (("reproduce", "table-mnist", "--data", "nowhere"), "data must be a folder that exists; found nowhere"),
        (("fl", "--method", "PMTL", "--rounds", "1"), "references must have 10 entries each; found 2"),
        (
            ("reproduce", "table-hv", "--methods", "qFFL"),
            "method must be a row of the table, or module:name of your own",
        ),
        (("reproduce", "table-hv", "--methods", "mine:Mine"), "module must be one that can be imported from"),
        (("solve", "F1", "--method", "LS,TCH"), "method must be one method; found LS,TCH"),
        (("runs", "export", "x.txt"), "the file must end with .csv or .parquet; found x.txt"),
        (("runs", "import", "nowhere"), "the folder or file to import must exist; found nowhere"),
    ],
)
def test_bad_input_says_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, list(arguments))
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_bad_input_ends_with_a_message_and_not_with_a_traceback():
    command = [sys.executable, "-m", "equipoise", "solve", "VLMOP9"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "error: problem must be a known name" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fl", "--task", "mnist-rotated"), "nearest: mnist-rotation"),
        (("fl", "--method", "AdaOMD"), "nearest: AdaOMDgd-TCH"),
        (("fl", "--seeds", "zero"), "seeds must be whole numbers"),
        (("fl", "--device", "cuda"), "device must exist: torch finds no GPU; found cuda"),
        (
            ("fl", "--task", "mnist-rotation", "--rounds", "1", "--data", "."),
            "data set mnist was not found; looked in",
        ),
        (
            ("reproduce", "table-mnist", "--rounds", "1", "--data", ".", "--yes"),
            "data set mnist was not found; looked in .",
        ),
        (
            ("reproduce", "table-mnist", "--rounds", "1", "--yes"),
            "or name another folder (argument folder, on the command line --data; variable",
        ),
    ],
)
def test_federated_bad_input_ends_with_status_two(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["equipoise", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said, error = capsys.readouterr()
    assert error.startswith("error: ")
    assert "missing" not in said
    assert message in error


def test_lists_the_data_sets_and_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    output = run("data", "list", "--folder", str(tmp_path))
    assert all(name in output for name in ("mnist", "cifar10", "digits", "adult", "credit"))
    assert "not found" in output
    result = runner.invoke(app, ["data", "fetch", "adult", "--folder", str(tmp_path)])
    assert isinstance(result.exception, ValueError)
    assert "adult" in str(result.exception)


def test_names_are_found_whatever_their_case():
    assert named("method", "ls", ["LS", "TCH"]) == "LS"
