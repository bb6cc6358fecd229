"""The default compared with other methods: one trajectory each, cells that resume, wins counted by hand."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

import equipoise as eq
from equipoise import metrics
from equipoise.cli import app
from equipoise.experiments import jobs
from equipoise.experiments.default import settings, tables
from equipoise.experiments.default.settings import AgileEntropic, Entry, Task
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.results import PUBLISHED, CellStore
from equipoise.experiments.synthetic import figures
from equipoise.problems import Needle, Planted
from equipoise.registry import methods
from equipoise.solver import solve_many

FORMER = "PGD adaptive τ=3 c=30"
"""The row of the former default, OptOMD-TCH."""


@pytest.fixture
def short(monkeypatch):
    """Trajectories of twenty steps and two seeds."""
    monkeypatch.setattr(settings, "STEPS", 20)
    monkeypatch.setattr(settings, "SEEDS", (0, 1))


def rows(problem="F1", *names):
    found = {row.name: row for row in settings.rows(problem)}
    return tuple(found[name] for name in names or found)


# ------------------------------------------------------------------------------- rows and problems
def test_every_table_has_the_default_and_the_methods_it_is_compared_with():
    for name in (*settings.settings(), *settings.DIGITS):
        found = [row.name for row in settings.rows(name)]
        assert len(set(found)) == len(found)
        assert {"TCH", *settings.SMOOTHED, "PGD η=1 c=0", "EG η=1 c=0", FORMER} < set(found)
        slow = set() if name.endswith("m=5") else {"EPO", "FERERO"}  # with five objectives their programs take long
        assert slow == {"EPO", "FERERO"} & set(found)
        assert found[-1] == settings.DEFAULT
        assert ("FedMGDA+" in found) == (name in settings.DIGITS)
        assert ("EG floor agile c=30" in found) == (name in settings.PAPER)
        rivals = {row for of in settings.RIVALS.values() for row, _ in of}
        assert rivals - {"EPO", "FERERO"} | slow <= set(found)
        for row in settings.rows(name):
            assert row.answer in row.outputs
    assert set(tables.COLUMNS) <= {row.name for row in rows()}
    assert [row.name for row in settings.rows("Needle m=10")][-1] == settings.DEFAULT


def test_rows_are_the_methods_that_they_are_named_after():
    found = {row.name: row for row in rows()}
    for row, name in (
        (settings.DEFAULT, "equipoise"),
        ("PGD η=1 c=0", "AdaOMDgd-TCH"),
        ("EG η=1 c=0", "AdaOMDeg-TCH"),
        ("TCH", "TCH"),
        ("STCH 0.01", "STCH"),
        ("EPO", "EPO"),
        ("FERERO", "FERERO"),
    ):
        method = methods()[name]
        assert found[row].weighting == method.weighting
        assert found[row].outputs[found[row].answer] == method.conversion


def test_the_former_default_is_a_row():
    found = {row.name: row for row in settings.rows("ZDT1")}
    former = methods()["OptOMD-TCH"]
    weighting = former.weighting
    assert isinstance(weighting, eq.OMD)
    assert found[FORMER].weighting == replace(weighting, horizon=math.inf)
    assert weighting.horizon >= settings.STEPS  # up to which it does nothing
    assert found[FORMER].outputs[found[FORMER].answer] == former.conversion


def test_the_former_default_differs_from_a_neighbouring_row_by_its_smoothing_alone():
    former, other = rows("Needle m=10", FORMER, "PGD adaptive c=30")
    assert isinstance(former.weighting, eq.OMD)
    assert replace(former.weighting, smoothing=1.0) == other.weighting


def test_a_method_of_ones_own_is_a_row():
    mine = eq.Method(eq.SmoothTchebycheff(0.5), eq.Average())
    found = settings.rows("F1", [("mine", mine)])[-1]
    assert (found.name, found.weighting, found.answer) == ("mine", mine.weighting, "answer")
    assert found.outputs == {"last": eq.Last(), "answer": eq.Average()}


def test_no_problem_is_missing():
    names = settings.settings().keys()
    assert set(settings.PAPER) < names
    assert {"ZDT1", "ZDT2", "ZDT3", "ZDT4", "ZDT6", "VLMOP1"} < names
    assert {f"DTLZ{k} m={m}" for k in (1, 2, 3, 4) for m in (2, 3, 5)} < names
    assert len(names) == 26
    for setting in settings.settings().values():
        assert len(setting.preferences) in {10, 15}
        assert float(setting.preferences.min()) == pytest.approx(0.01)


# ------------------------------------------------------------------------------- cells
@pytest.mark.usefixtures("short")
def test_rows_together_are_what_each_is_alone():
    setting = settings.settings()["F1"]
    chosen = rows("F1", "EG adaptive c=0", "EG adaptive c=30", "STCH 0.03", settings.DEFAULT)
    cells = settings.run_task(Task("F1", chosen))
    for row, (spec, result, names) in zip(chosen, cells, strict=True):
        assert spec == settings.cell_spec("F1", row)
        assert names == {"task": "F1", "method": row.name, "output": row.answer}
        assert result.keys() == {"diverged", *row.outputs}
        losses = eq.solve(
            setting.problem, setting.preferences, row.weighting, conversions=row.outputs, seeds=(0, 1), steps=20
        ).losses
        for output, values in losses.items():
            volumes = metrics.hypervolume(values.to(torch.float64), setting.problem.reference)
            assert result[output]["hypervolume"] == pytest.approx(volumes.tolist(), abs=1e-5)
            tch = metrics.tch(values.to(torch.float64), setting.preferences).mean(-1)
            assert result[output]["tch"] == pytest.approx(tch.tolist(), rel=1e-4)


def test_preference_error_counts_only_rays_that_meet_the_front():
    # ZDT6 begins at f1 = 0.28: preferences that ask for less end at its corner.
    met = settings.on_front(settings.settings()["ZDT6"])
    assert 0 < int(met.sum()) < len(met)
    assert bool(settings.on_front(settings.settings()["F1"]).all())


@pytest.mark.usefixtures("short")
def test_an_interrupted_table_goes_on(tmp_path):
    store = CellStore(tmp_path, behind=())
    tasks = settings.missing(store, ["VLMOP1"])
    slow = [task for task in tasks if len(task.rows) == 1 and task.rows[0].name in {"EPO", "FERERO"}]
    assert len(slow) == 2
    assert [task.seconds for task in tasks] == sorted((task.seconds for task in tasks), reverse=True)
    assert {row.name for task in tasks for row in task.rows} == {row.name for row in rows("VLMOP1")}
    fast = [task for task in tasks if task not in slow]
    for _ in jobs.compute(store, fast[:1], settings.run_task, workers=1):
        pass
    left = settings.missing(store, ["VLMOP1"])
    done = {row.name for row in fast[0].rows}
    assert len(done) == 4
    assert {row.name for task in left for row in task.rows} == {row.name for row in rows("VLMOP1")} - done
    entries = settings.table(store)
    assert len(entries) == 4 * len(settings.outputs())
    assert {entry.problem for entry in entries} == {"VLMOP1"}
    assert {entry.method for entry in entries if entry.answer} == done


@pytest.mark.usefixtures("short")
def test_digits_are_ten_objectives(monkeypatch):
    tasks = federated.tasks()
    tasks["digits-rotation"] = federated.sized(tasks["digits-rotation"], 2)
    monkeypatch.setattr(federated, "tasks", lambda: tasks)
    ((_, result, _),) = settings.run_task(Task("digits-rotation", rows("digits-rotation", "PGD adaptive c=30")))
    assert len(result["last"]["tch"]) == 2
    assert all(0.0 < value < 1.0 for value in result["last"]["tch"] + result["last"]["test"])


@pytest.mark.usefixtures("short")
def test_crowds_are_measured_by_their_gap():
    chosen = rows("Needle m=10", "EG adaptive c=30", settings.DEFAULT)
    cells = settings.run_task(Task("Needle m=10", chosen))
    for row, (_, result, _) in zip(chosen, cells, strict=True):
        assert result.keys() == row.outputs.keys()
        assert len(result[row.answer]["gap"]) == 2
        assert min(result[row.answer]["gap"]) >= 0.0


def test_published_cells_are_found():
    """Every trajectory of OMD: the other rows came later."""
    store = CellStore(PUBLISHED.parent / "none", (PUBLISHED,))
    for name in settings.names_of_problems():
        for row in settings.rows(name):
            if isinstance(row.weighting, eq.OMD):
                assert store.read(settings.cell_spec(name, row)) is not None, (name, row.name)


# ------------------------------------------------------------------------------- what is said
def made_up(row, volume, tch=(0.2, 0.4)):
    """A cell's result that was not computed."""
    output = {"hypervolume": [volume, volume], "tch": list(tch), "imbalance": [0.0, 0.001, 0.01]}
    return {"diverged": 0, **dict.fromkeys(row.outputs, output)}


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    """All cells, but made up: the default is better than the rest on every problem but ZDT1."""
    store = CellStore(tmp_path_factory.mktemp("out") / "cells", behind=())
    for name in settings.names_of_problems():
        for row in settings.rows(name):
            result = made_up(row, (0.8 if name == "ZDT1" else 1.1) if row.name == settings.DEFAULT else 0.9)
            if name in settings.DIGITS:
                output = {"tch": [0.2, 0.4], "test": [0.5, 0.6], "imbalance": [3.0, 5.0, 9.0]}
                result = {"diverged": 0, **dict.fromkeys(row.outputs, output)}
            if name in settings.crowds():
                result = {output: {"gap": [0.1, 0.3]} for output in row.outputs}
            names = {"task": name, "method": row.name, "output": row.answer}
            store.write(settings.cell_spec(name, row), result, names)
    return store


def entry(problem, method, output, tch, hypervolume=math.nan):
    return Entry(problem, method, output, True, tch, hypervolume, 0.0, 0.0, 0, math.nan)


def test_a_tally_by_hand():
    entries = [
        entry("a", settings.DEFAULT, "answer", 1.0, 2.0),
        entry("a", "STCH 0.01", "last", 1.1, 2.001),  # better on TCH; 0.05 % below in volume: no difference
        entry("a", "STCH 0.1", "last", 0.9, 1.5),
        entry("a", "EG η=1 c=0", "adaptive", math.nan, math.nan),  # diverged
        entry("b", settings.DEFAULT, "answer", 1.0, 2.0),
        entry("b", "STCH 0.01", "last", 0.5, 2.1),
        entry("b", "EG η=1 c=0", "adaptive", 3.0, 1.0),
        entry("b", "EG η=1 c=0", "last", 0.1, 9.0),  # not what it reports
        entry("digits", settings.DEFAULT, "answer", 1.0),  # has no hypervolume
        entry("digits", "STCH 0.01", "last", 2.0),
        entry("c", "STCH 0.01", "last", 0.1, 9.0),  # where the default was not run
        entry("d", settings.DEFAULT, "answer", math.nan, 1.0),  # who diverges loses
        entry("d", "TCH", "last", 7.0, 0.1),
        entry("e", settings.DEFAULT, "answer", math.inf, 1.0),
        entry("e", "EPO", "last", math.nan, 0.1),  # both did
    ]
    found = {one.method: one for one in settings.tallies(entries)}
    assert list(found) == list(settings.RIVALS)
    assert (found["STCH 0.01"].tch, found["STCH 0.01"].hypervolume) == ((2, 1), (0, 1))
    # The best of three on each problem: 0.9 and 0.5; 2.001 and 2.1.
    best = found["STCH, best of three μ"]
    assert (best.tch, best.hypervolume) == ((1, 2), (0, 1))
    eg = found["AdaOMDeg-TCH"]
    assert (eg.tch, eg.hypervolume) == ((2, 0), (2, 0))
    assert found["TCH"] == ("TCH", (0, 1), (1, 0))
    assert found["EPO"] == ("EPO", (0, 0), (1, 0))
    assert found["FERERO"] == ("FERERO", (0, 0), (0, 0))
    wide = {one.method: one for one in settings.tallies(entries, threshold=0.2)}
    assert wide["STCH 0.01"].tch == (1, 1)


def test_the_best_of_a_problem_is_bold():
    entries = [
        entry("a", "TCH", "last", 0.2, 1.5),
        entry("a", settings.DEFAULT, "answer", 0.1, 1.0),
        entry("a", "EPO", "last", math.nan, math.nan),
        entry("a", "PGD η=1 c=0", "adaptive", 0.3, 1.4)._replace(answer=False),
        entry("b", "TCH", "last", math.nan),
    ]
    console = Console(width=200)
    columns = ("TCH", "EPO", "PGD η=1 c=0", settings.DEFAULT)
    for measure, cells in (("tch", ["0.2000", "nan", "", "[bold]0.1000[/bold]"]),
                           ("hypervolume", ["[bold]1.5000[/bold]", "nan", "", "1.0000"])):  # fmt: skip
        table = tables._side_by_side(entries, columns, measure, "x")
        assert [[str(cell) for cell in column.cells] for column in table.columns] == [["a"], *([c] for c in cells)]
        assert [column.header for column in table.columns] == ["problem", "TCH", "EPO", "AdaOMDgd", settings.DEFAULT]
        console.print(table)


def test_the_numbers_of_the_invented_table(invented):
    entries = settings.table(invented)
    assert {e.problem for e in entries} == {*settings.settings(), *settings.DIGITS}
    (ours,) = [e for e in entries if e.problem == "ZDT1" and e.method == settings.DEFAULT and e.answer]
    assert (ours.hypervolume, ours.tch, ours.imbalance) == pytest.approx((0.8, 0.3, 0.001))
    tally = {one.method: one for one in settings.tallies(entries)}["TCH"]
    assert (tally.tch, tally.hypervolume) == ((0, 0), (25, 1))
    assert settings.gaps(invented)["Needle m=10"][settings.DEFAULT] == pytest.approx(0.2)


def test_the_command_prints_what_fits_and_writes_json(invented, tmp_path):
    out = str(invented.folder.parent)
    arguments = ["reproduce", "table-conversions", "--out", out, "--json", str(tmp_path / "table.json")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    first, *lines = result.output.splitlines()
    total = sum(len(settings.rows(name)) for name in settings.names_of_problems())
    assert first == f"{total} of {total} runs read from {invented.folder}, 0 made now"
    assert max(len(line) for line in lines if "table.json" not in line) <= 110
    assert "…" not in result.output  # nothing was cut off
    tally = result.output.partition("wins : losses of equipoise")[2]
    assert " 25 : 1" in tally
    records = json.loads((tmp_path / "table.json").read_text())
    expected = sum(len(row.outputs) for name in (*settings.settings(), *settings.DIGITS) for row in settings.rows(name))
    assert len(records) == expected
    assert records[0].keys() >= {"problem", "method", "output", "answer", "hypervolume", "tch", "imbalance"}


def test_the_table_is_not_begun_without_asking(tmp_path):
    words = ["reproduce", "table-conversions", "--methods", "equipoise.weighting:Linear", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "runs are missing; they take about" in result.output
    assert "and are not made: say --yes to make them." in result.output
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(("value", "shown"), [(0.00123, "0.12%"), (0.5, "50%"), (20.0, ">999%"), (math.inf, "-")])
def test_percentages_are_short(value, shown):
    assert tables.percent(value) == shown


# --- the parts


def test_a_needle_is_a_saddle_point():
    problem = Needle(5, 3, 0.1)
    assert isinstance(problem, Planted)
    pull = (problem.dual * problem.w) @ problem.slopes
    torch.testing.assert_close(pull, torch.zeros(3, dtype=torch.float64))
    assert float(problem.dual.sum()) == pytest.approx(1.0)
    assert float(problem.gap(problem.optimum)) == pytest.approx(0.0, abs=1e-12)


def test_agile_entropic_forgets_what_dual_averaging_remembers():
    # A hundred steps for the first objective, then for the second: mirror descent from the floor turns round at
    # once, dual averaging only when the sums are level again.
    weightings = [eq.OMD("adaptive", mirror) for mirror in (AgileEntropic(0.01), eq.Entropic(0.01))]
    half = torch.tensor([0.5, 0.5])
    turned = []
    for weighting in weightings:
        state = weighting.init(half)
        for _ in range(100):
            _, state = weighting.update(torch.tensor([1.0, 0.0]), state, half)
        steps = 0
        while weighting.weights(state)[1] < 0.5:
            _, state = weighting.update(torch.tensor([0.0, 1.0]), state, half)
            steps += 1
        turned.append(steps)
    assert turned[0] < 40
    assert turned[1] == 100


def test_the_middle_ground_has_two_rows(monkeypatch, tmp_path):
    shown = []

    def grid(rows, _weights):
        shown.append(rows)
        return Figure()

    monkeypatch.setattr(figures, "solve_many", partial(solve_many, steps=3))
    monkeypatch.setattr(figures, "front_grid", grid)
    result = CliRunner().invoke(app, ["reproduce", "fig-middle-ground", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (rows,) = shown
    assert [[name for _, name, _ in row][:: len(row) - 1] for row in rows] == [["LS", "TCH"], ["STCH", "$c$ = 0"]]
    # ηc is fixed, so that with the smallest η the steps are those of STCH, one round late.
    torch.testing.assert_close(rows[1][1][2], rows[1][0][2], atol=0.02, rtol=0.0)
    assert (tmp_path / "fig-middle-ground.png").read_bytes()[:4] == b"\x89PNG"
