"""All results as one table."""

import csv
import sys

import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise import metrics, preference
from equipoise.cli import app
from equipoise.experiments import tabular
from equipoise.experiments.default import settings as default
from equipoise.experiments.federated import rows, scores
from equipoise.experiments.results import PUBLISHED, Cell, CellStore, cells_in, pack
from equipoise.experiments.synthetic import settings as synthetic

MADE = {"equipoise": "9", "commit": "abc", "torch": "2.9", "device": "a made-up GPU", "date": "2026-01-02"}


def solved():
    """A cell of a synthetic problem."""
    row = synthetic.settings("published")[0]
    losses = [[0.5, 0.5]] * synthetic.PREFERENCES
    result = {"losses": losses, "hypervolume": 0.7, "diverged": 2}
    return Cell(synthetic.cell_spec("published", "F1", row, 19), result, {"task": "F1", "method": "LS"}, MADE)


def simulated(**names):
    """A federated cell of two methods that share a run."""
    parts = {"accuracy": 90.0, "agnostic_loss": 0.5, "accuracy_parity": 1.5}
    clients = {"client_losses": [0.5], "client_accuracies": [90.0]}
    test, train = {**parts, **clients}, {**parts, **clients, "accuracy": 99.0}
    curve = {"round": [5], "train_loss": [1.0], "test_loss": [1.0], "test_accuracy": [90.0]}
    (job,) = [w for w in rows.wanted("table-preference") if w.name == "AdaOMDgd-TCH" and w.preference == (0.75, 0.25)]
    outputs = ("last", "average", "adaptive")
    result = {
        "outputs": {name: {"train": train, "test": test} for name in outputs},
        "untrained": test,
        "curves": dict.fromkeys(outputs, curve),
        "coefficients": [[1.0]],
        "archive": [1],
        "seconds_per_round": 0.1,
    }
    return Cell(job.spec(37), result, {**job.labels, **names}, MADE)


def converted():
    row = default.rows("DTLZ2 m=3")[0]
    of = {"hypervolume": [1.0] * 10, "tch": [0.1 * k for k in range(10)], "imbalance": [0.0, 0.1, 0.2]}
    spec = default.cell_spec("DTLZ2 m=3", row)
    names = {"task": "DTLZ2 m=3", "method": row.name, "output": row.answer}
    return Cell(spec, {"diverged": 0, **dict.fromkeys(row.outputs, of)}, names, MADE)


def kept(folder, *cells):
    for cell in cells:
        CellStore(folder, ()).keep(cell)
    return folder


# ------------------------------------------------------------------------------- rows
def test_a_synthetic_cell_by_hand():
    found = list(tabular.rows_of(solved()))
    w = preference.linspace(synthetic.PREFERENCES)
    losses = torch.full((synthetic.PREFERENCES, 2), 0.5, dtype=torch.float64)
    assert [(row.metric, row.value) for row in found] == [
        ("tch", pytest.approx(float(0.5 * w.amax(-1).mean()))),
        ("hypervolume", 0.7),
        ("imbalance", pytest.approx(float(metrics.imbalance(losses, w).median()))),
        ("diverged", 2.0),
    ]
    for row in found:
        assert (row.study, row.task, row.method, row.output, row.reported) == ("synthetic", "F1", "LS", "answer", True)
        assert (row.seed, row.steps, row.part, row.preference) == (19, 1000, "", "")
        assert (row.device, row.equipoise, row.commit, row.torch, row.date) == (
            "a made-up GPU", "9", "abc", "2.9", "2026-01-02",
        )  # fmt: skip
        assert f"{row.cell}.json" == solved().name


def test_a_federated_cell_by_hand():
    found = list(tabular.rows_of(simulated()))
    assert len(found) == 3 * 2 * 3  # outputs, parts, metrics
    assert {(row.output, row.reported) for row in found} == {("last", False), ("average", False), ("adaptive", True)}
    assert {row.method for row in found} == {"AdaOMDgd-TCH"}
    by_place = {(row.output, row.part, row.metric): row.value for row in found}
    assert by_place["adaptive", "train", "accuracy"] == 99.0
    assert by_place["adaptive", "test", "accuracy"] == 90.0
    assert by_place["last", "test", "accuracy_parity"] == 1.5
    first = found[0]
    assert (first.study, first.task, first.seed, first.steps) == ("federated", "cifar-two", 37, 45)
    assert (first.preference, first.precision) == ("0.75, 0.25", "bfloat16")


def test_methods_that_share_a_run_have_an_output_each():
    cell = simulated(method="OMDgd-TCH; AdaOMDgd-TCH", output="average; adaptive")
    found = {(row.method, row.output, row.reported) for row in tabular.rows_of(cell)}
    assert found == {
        ("OMDgd-TCH", "average", True), ("AdaOMDgd-TCH", "adaptive", True), ("OMDgd-TCH", "last", False),
    }  # fmt: skip


def test_a_cell_of_conversions_has_a_row_for_every_seed():
    found = list(tabular.rows_of(converted()))
    assert len(found) == len(default.outputs()) * 2 * 10
    tch = [row for row in found if row.metric == "tch" and row.reported]
    assert [row.seed for row in tch] == list(range(10))
    assert [row.value for row in tch] == pytest.approx([0.1 * k for k in range(10)])
    assert {row.output for row in tch} == {"adaptive"}


def test_a_cell_of_another_study_has_none():
    assert list(tabular.rows_of(Cell({"experiment": "other"}, {"x": 1}, {}, {}))) == []
    assert list(tabular.rows_of(Cell({"seed": 1}, {"x": 1}, {}, {}))) == []


# ------------------------------------------------------------------------------- eq.results
def test_results_are_those_of_a_folder_and_those_of_the_library(tmp_path):
    kept(tmp_path / "cells", solved())
    mine = eq.results(tmp_path, published=False)
    assert mine == list(tabular.rows_of(solved()))
    assert eq.results(tmp_path / "cells", published=False) == mine
    file = tmp_path / "mine.jsonl.xz"
    pack([solved()], file)
    assert eq.results(file, published=False) == mine
    whole = eq.results(tmp_path)
    assert whole[: len(mine)] == mine
    assert len(whole) > 10_000
    with pytest.raises(ValueError, match="folder must exist; found nowhere"):
        eq.results("nowhere")


def test_published_results_are_the_numbers_of_the_table():
    found = [
        row.value
        for row in eq.results()
        if (row.study, row.task, row.method, row.metric) == ("federated", "mnist-class5", "AdaOMDgd-TCH", "accuracy")
        if row.reported and row.part == "test"
    ]
    (one,) = rows.rows(["mnist-class5"], ["AdaOMDgd-TCH"], "published")
    (entry,) = scores.entries_of(CellStore(PUBLISHED.with_name("none")), [one], "published")
    assert sorted(found) == sorted(entry.values("accuracy").tolist())
    assert len(found) == 10


def test_pandas_gets_named_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(list(tabular.rows_of(solved())))
    assert list(frame.columns) == list(tabular.ResultRow._fields)


# ------------------------------------------------------------------------------- files
def test_a_csv_file_has_every_row(tmp_path):
    found = [*tabular.rows_of(solved()), *tabular.rows_of(simulated(task='a, "quoted" one'))]
    tabular.export(found, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found)
    assert [line["task"] for line in lines] == [row.task for row in found]
    assert [float(line["value"]) for line in lines] == [row.value for row in found]  # to the last digit


def test_parquet_without_pyarrow_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"\.parquet needs pyarrow: pip install pyarrow; found none"):
        tabular.export(list(tabular.rows_of(solved())), tmp_path / "all.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_parquet_file_has_every_row(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = list(tabular.rows_of(simulated()))
    tabular.export(found, tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [tabular.ResultRow(**line) for line in table] == found


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the file must end with \.csv or \.parquet; found .*all\.xlsx"):
        tabular.export([], tmp_path / "all.xlsx")


def test_the_command_exports(tmp_path):
    kept(tmp_path / "out" / "cells", solved())
    words = ["runs", "export", str(tmp_path / "all.csv"), "--out", str(tmp_path / "out"), "--no-published"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.output.replace("\n", "").endswith("all.csv: 4 rows")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 5
    done = CliRunner().invoke(app, words[:-1])
    published = len((tmp_path / "all.csv").read_text().splitlines()) - 5
    assert published > 60_000
    told = f"all.csv: 4 rows of yours and {published} published (--no-published leaves these out)"
    assert done.output.replace("\n", " ").strip().endswith(told)
    done = CliRunner().invoke(app, [*words[:4], str(tmp_path / "none"), "--no-published"])
    assert "there must be results to export; found none in" in str(done.exception)


def test_cells_are_counted_by_study_task_and_method(tmp_path):
    kept(tmp_path, solved(), simulated(), converted())
    assert tabular.count(cells_in([tmp_path])) == {
        ("synthetic", "F1", "LS"): 1,
        ("federated", "cifar-two, 45 rounds", "AdaOMDgd-TCH"): 1,
        ("conversions", "DTLZ2 m=3", "PGD η=1 c=0"): 1,
    }
