"""The output of the federated experiments: tables, figures, `equipoise fl`, imported cells."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.shared import console
from equipoise.errors import NonFiniteLossError
from equipoise.experiments import paper
from equipoise.experiments.default import settings as default
from equipoise.experiments.federated import figures, rows, runs, settings
from equipoise.experiments.federated.scores import METRICS, Entry, entries_of, paired
from equipoise.experiments.federated.settings import EXACT_FERERO, METHODS, SEEDS
from equipoise.experiments.results import PUBLISHED, CellStore, cell_name, cells_in, import_cells
from equipoise.experiments.synthetic import settings as synthetic
from equipoise.experiments.tabular import count
from equipoise.identity import digest
from equipoise.identity import spec as identity

MNIST = ("mnist-rotation", "mnist-class2", "mnist-class5")
PAIR = (0, 25)


def command(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "100"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def scores(values, loss=0.5):
    accuracy, agnostic_loss, accuracy_parity = values
    return {
        "accuracy": accuracy,
        "agnostic_loss": agnostic_loss,
        "accuracy_parity": accuracy_parity,
        "client_losses": [loss] * 10,
        "client_accuracies": [90.0] * 10,
    }


def cell(by_output, rounds=300, seconds=0.01):
    """A cell as `runs.cell` writes it, with scores of our own."""
    points = range(5, rounds + 1, 5)
    return {
        "outputs": {name: {"train": scores(values), "test": scores(values)} for name, values in by_output.items()},
        "untrained": scores((10.0, 2.3, 1.0)),
        "curves": {
            name: {
                "round": list(points),
                "train_loss": [2 / t for t in points],
                "test_loss": [3 / t for t in points],
                "test_accuracy": [90.0 for _ in points],
            }
            for name in by_output
        },
        "coefficients": [[0.1] * 10 for _ in points],
        "archive": [1 for _ in points],
        "seconds_per_round": seconds,
    }


def published(store, tasks=MNIST, seeds=PAIR, shift=0.0):
    """Cells whose mean and deviation over two seeds are the paper's, moved by so many of its deviations."""
    for name in tasks:
        task = settings.tasks()[name]
        found: dict[str, dict[str, paper.Printed]] = {}
        methods: dict[str, settings.Run] = {}
        for method in rows.ALL:
            row = settings.row(method, name)
            key = digest([identity(row.method.weighting), identity(row.method.transform)])
            theirs = paper.SCORES[name][method if method in METHODS else "FERERO"]
            # Rows of equal step size share a trajectory, and each has its own output.
            found.setdefault(key, dict.fromkeys(("last", "average", "adaptive"), theirs))[row.output] = theirs
            methods[key] = row
        for key, outputs in found.items():
            for seed, sign in zip(seeds, (-1, 1), strict=True):
                values = {
                    output: [s.mean + (sign + shift) * s.std for s in of.values()] for output, of in outputs.items()
                }
                store.write(runs.spec(task, methods[key].method, seed), cell(values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    published(CellStore(out / "cells", behind=()))
    return out


# ------------------------------------------------------------------------------- the paper's numbers
def test_the_papers_numbers_are_complete():
    assert list(paper.SCORES) == [*MNIST, "cifar-rotation", "cifar-class2", "cifar-class5"]
    assert all(tuple(rows) == METHODS for rows in paper.SCORES.values())
    assert all(tuple(rows) == METHODS for rows in paper.SECONDS.values())
    assert all(s.std > 0 for rows in paper.SCORES.values() for row in rows.values() for s in row.values())


@pytest.mark.parametrize(
    ("task", "method", "metric", "value"),
    [
        ("mnist-rotation", "FedFV", "accuracy", (94.501, 0.179)),
        ("mnist-rotation", "AdaOMDeg-TCH", "accuracy_parity", (1.201, 0.227)),
        ("mnist-class2", "EPO", "agnostic_loss", (0.517, 0.152)),
        ("mnist-class5", "FERERO", "accuracy", (93.891, 0.421)),
        ("cifar-rotation", "AdaOMDgd-TCH", "agnostic_loss", (1.148, 0.037)),
        ("cifar-class2", "TCH", "accuracy_parity", (27.199, 3.398)),
        ("cifar-class5", "qFFL", "agnostic_loss", (1.856, 0.147)),
    ],
)
def test_a_number_of_every_subtable(task, method, metric, value):
    assert paper.SCORES[task][method][metric] == value


def test_cifar_rows_are_those_of_the_comparison_in_the_text():
    # tab:adaptive prints these means a second time.
    means = [s.mean for task in ("cifar-rotation", "cifar-class2") for s in paper.SCORES[task]["OMDeg-TCH"].values()]
    assert means == [59.273, 1.254, 2.660, 34.865, 2.534, 22.045]


def test_seconds_of_the_paper():
    assert paper.SECONDS["mnist-rotation"]["FedMGDA+"] == 1.360
    assert paper.SECONDS["mnist-class5"]["AdaOMDeg-TCH"] == 0.569
    assert paper.SECONDS["cifar-rotation"]["LS"] == 9.748


# ------------------------------------------------------------------------------- entries
def entry(task, method, by_seed, name="last"):
    """By seed: three scores of one output."""
    results = tuple(cell({name: values}) for values in by_seed.values())
    output = settings.row(method, task).output
    return Entry(task, method, output, tuple(by_seed), results, paper.SCORES[task][method], claimed=True)


def test_an_entry_by_hand():
    ls = entry("mnist-rotation", "LS", {0: (92.0, 0.6, 5.0), 25: (93.0, 0.7, 4.0)})
    assert ls.score("accuracy") == (92.5, 0.5)  # deviation of the population
    assert ls.number("accuracy").deviations == pytest.approx((92.5 - 92.450) / 0.234)
    assert ls.number("accuracy").within
    assert ls.number("agnostic_loss").within  # 0.65 against 0.639 ± 0.028
    assert ls.number("accuracy_parity").within  # 4.5 against 4.796 ± 0.272: 1.1 deviations
    far = entry("mnist-rotation", "LS", {0: (91.0, 0.6, 5.0), 25: (92.9, 0.7, 4.0)})
    assert far.number("accuracy").within is False  # 91.95: 2.1 deviations


def test_two_deviations_are_the_limit():
    theirs = paper.SCORES["mnist-class5"]["LS"]["agnostic_loss"]
    for factor, expected in ((1.99, True), (-1.99, True), (2.01, False), (-2.01, False)):
        values = (93.9, theirs.mean + factor * theirs.std, 1.5)
        assert entry("mnist-class5", "LS", {0: values}).number("agnostic_loss").within is expected


def test_differences_to_ls_are_taken_seed_by_seed():
    ls = entry("mnist-class2", "LS", {0: (90.0, 0.5, 4.0), 25: (94.0, 0.7, 6.0)})
    tch = entry("mnist-class2", "TCH", {0: (91.0, 0.4, 3.0), 25: (94.5, 0.7, 4.0)})
    found = {pair.metric: pair for pair in paired([ls, tch])}
    assert set(found) == set(METRICS)
    assert found["accuracy"].ours == (0.75, 0.25)  # +1.0 and +0.5, however far the seeds are apart
    assert found["accuracy"].paper == pytest.approx((93.250 - 92.330, 0.0))
    assert found["accuracy"].within
    assert found["accuracy_parity"].ours == (-1.5, 0.5)
    assert found["accuracy_parity"].within  # 3.685 − 4.574 = −0.889
    assert paired([tch]) == []


# ------------------------------------------------------------------------------- tables
def test_table_mnist_compares_every_number(folder, tmp_path):
    output = command(
        "reproduce", "table-mnist", "--seeds", "0,25", "--out", folder, "--json", tmp_path / "table.json"
    )  # fmt: skip
    assert "135 of 135 numbers within two of the paper's standard deviations, 135 within one; 2 seeds" in output
    assert "outside" not in output
    assert "92.450±0.234 ✓" in output
    assert EXACT_FERERO in output
    assert "92.59 / 88.60" in output  # AdaOMDgd-TCH, adaptive and (made up) last
    assert "mnist-class2: difference to LS" in output
    assert "84 of 84 of the paper's differences to LS" in output
    records = json.loads((tmp_path / "table.json").read_text())
    assert len(records) == 3 * 17 * 3
    first = records[0]
    assert (first["task"], first["method"], first["metric"]) == ("mnist-rotation", "LS", "accuracy")
    assert (first["paper_mean"], first["paper_std"], first["within"]) == (92.45, 0.234, True)
    assert first["mean"] == pytest.approx(92.45)
    assert first["std"] == pytest.approx(0.234)
    others = [record for record in records if record["method"] in {EXACT_FERERO, "equipoise"}]
    assert len(others) == 3 * 2 * 3
    assert {record["within"] for record in others} == {None}
    assert set(first["outputs"]) == {"last", "average", "adaptive"}
    assert set(others[-1]["outputs"]) == {"last", "average", "adaptive", "own"}
    assert "equipoise is the library's default: not in the paper, not tuned to the task." in output


def test_what_is_outside_is_listed_in_deviations(tmp_path):
    published(CellStore(tmp_path / "cells", behind=()), ("mnist-rotation",), shift=2.5)
    output = command(
        "reproduce", "table-mnist", "--task", "mnist-rotation", "--methods", "ls,tch", "--seeds", "0,25",
        "--out", tmp_path,
    )  # fmt: skip
    assert "0 of 6 numbers within two" in output
    assert "outside: LS on mnist-rotation, accuracy: 93.035±0.234, paper 92.450±0.234, +2.5 of its dev" in output
    assert "✗" in output
    assert "FedFV" not in output


def test_other_rounds_or_settings_claim_nothing(tmp_path):
    arguments = ("--task", "digits-rotation", "--methods", "LS", "--rounds", "1", "--seeds", "0", "--out", tmp_path)
    assert "nothing is claimed" in command("reproduce", "table-mnist", *arguments)
    store = CellStore(tmp_path / "cells", behind=())
    task = settings.sized(settings.tasks()["mnist-class2"], 20)
    store.write(runs.spec(task, settings.row("LS", "mnist-class2").method, 0), cell({"last": (92.33, 0.534, 4.5)}))
    wanted = [replace(settings.row(name, "mnist-class2"), task=task, seeds=(0,)) for name in ("LS", "TCH")]
    found = entries_of(store, wanted, "published")
    assert [one.name for one in found] == ["LS"]  # TCH has no cell
    assert found[0].paper is not None
    assert found[0].number("accuracy").within is None


def test_table_time_is_relative_to_ls(tmp_path):
    store = CellStore(tmp_path / "cells", behind=())
    for method, seconds in (("LS", 0.004), ("FedMGDA+", 0.006)):
        row = settings.row(method, "mnist-rotation")
        made = cell({"last": (90.0, 0.5, 1.0)}, seconds=seconds)
        store.write(runs.spec(settings.tasks()["mnist-rotation"], row.method, 0), made, device="a made-up GPU")
    output = command(
        "reproduce", "table-time", "--task", "mnist-rotation", "--methods", "LS,FedMGDA+", "--seeds", "0",
        "--out", tmp_path, "--json", tmp_path / "time.json",
    )  # fmt: skip
    assert "a made-up GPU" in output
    assert "another machine's" in output
    records = json.loads((tmp_path / "time.json").read_text())
    assert [record["relative"] for record in records] == [1.0, pytest.approx(1.5)]
    assert records[1]["paper_relative"] == pytest.approx(1.360 / 0.338)


def test_table_digits_runs_anywhere_and_only_once(tmp_path, monkeypatch):
    arguments = (
        "reproduce", "table-digits", "--rounds", "2", "--seeds", "0", "--task", "digits-class2", "--out", tmp_path,
    )  # fmt: skip
    first = command(*arguments)
    assert "runs are missing" in first
    assert all(name in first for name in METHODS)
    monkeypatch.setattr(runs, "run", forbidden)
    second = command(*arguments)
    assert "runs are missing" not in second
    said, _, table = second.partition("\n")
    number = re.search(r"(\d+) runs are missing", first)
    assert number
    assert said == f"{number[1]} of {number[1]} runs read from {tmp_path / 'cells'}, 0 made now"
    assert first.endswith(table)


def forbidden(*_arguments, **_options):
    raise AssertionError("a finished cell must not be run again")


def test_a_run_that_diverges_is_left_out_and_the_others_are_shown(tmp_path, monkeypatch):
    honest = runs.run

    def run(store, jobs, **options):
        (job,) = jobs
        if "Tchebycheff" in repr(job.method.weighting):
            raise NonFiniteLossError("loss must be finite; found nan for client 3, seed 0, round 2")
        honest(store, jobs, **options)

    monkeypatch.setattr(runs, "run", run)
    output = command(
        "reproduce", "table-digits", "--rounds", "2", "--seeds", "0", "--task", "digits-class2", "--methods",
        "LS,TCH", "--out", tmp_path,
    )  # fmt: skip
    assert "left out: digits-class2, TCH: loss must be finite" in output
    assert "client 3, seed 0, round 2" in output
    assert "LS" in output


# ------------------------------------------------------------------------------- figures
@pytest.mark.parametrize(
    "name", ["fig-federated", "fig-conversion", "fig-curves", "fig-parity", "fig-box", "fig-weights"]
)
def test_figures_are_drawn_from_the_cells(name, folder, tmp_path):
    (tmp_path / "cells").symlink_to(folder / "cells")
    command("reproduce", name, "--task", "mnist-class5", "--seeds", "0,25", "--out", tmp_path)
    assert (tmp_path / f"{name}-mnist-published.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / f"{name}-mnist-published.pdf").read_bytes()[:4] == b"%PDF"


def drawn(line):
    return [(x, y) for x, y in line.get_xydata().tolist()]


def test_scatter_takes_the_root_of_the_mean_variance():
    one = entry("mnist-rotation", "LS", {0: (92.0, 0.6, 3.0), 25: (93.0, 0.7, 4.0)})
    (point,) = figures.parity([("mnist-rotation", [one])]).axes[0].lines
    assert drawn(point) == [(pytest.approx(math.sqrt((9 + 16) / 2)), 92.5)]


def test_curves_are_those_of_the_output_that_a_method_reports():
    one = entry("mnist-rotation", "LS", {0: (92.0, 0.6, 3.0)})
    train, test = figures.curves([("mnist-rotation", [one])]).axes
    assert drawn(train.lines[0])[:2] == [(5, 0.4), (10, 0.2)]
    assert drawn(test.lines[0])[:2] == [(5, pytest.approx(0.6)), (10, pytest.approx(0.3))]


# ------------------------------------------------------------------------------- equipoise fl
def test_fl_reports_three_outputs_and_runs_once(tmp_path, monkeypatch):
    asked = ("--method", "AdaOMDgd-TCH", "--rounds", "3", "--seeds", "0,25")
    arguments = ("fl", *asked, "--out", tmp_path, "--json", tmp_path / "fl.json")
    output = command(*arguments)
    assert "digits-rotation, AdaOMDgd-TCH (0.03), preset published, 3 rounds, seeds 0, 25" in output
    assert "adaptive *" in output
    record = json.loads((tmp_path / "fl.json").read_text())
    assert [one["seed"] for one in record["results"]] == [0, 25]
    for one in record["results"]:
        for name in ("last", "average", "adaptive"):
            for part in ("train", "test"):
                assert set(one[name][part]) == {"accuracy", "agnostic_loss", "accuracy_parity"}
    values = torch.tensor([one["adaptive"]["test"]["agnostic_loss"] for one in record["results"]], dtype=torch.float64)
    assert record["mean"]["adaptive"]["test"]["agnostic_loss"] == pytest.approx(float(values.mean()))
    assert record["std"]["adaptive"]["test"]["agnostic_loss"] == pytest.approx(float(values.std(correction=0)))

    monkeypatch.setattr(runs, "run", forbidden)
    again = command(*arguments)
    assert "computed" not in again
    assert f"2 of 2 runs read from {tmp_path / 'cells'}, 0 made now" in again.replace("\n", " ")
    # OMDgd-TCH has the same step size here: the same run, another output.
    assert "average *" in command("fl", "--method", "omdgd-tch", "--rounds", "3", "--seeds", "0", "--out", tmp_path)


def test_fl_takes_other_methods_of_the_registry_and_other_settings(tmp_path):
    short = ("--rounds", "2", "--out", tmp_path)
    assert "last *" in command("fl", "--method", "mgda", *short)
    assert "adaptive *" in command("fl", "--method", "AdaTCH", *short)
    assert "OMDeg-TCH (0.5)" in command("fl", "--method", "OMDeg-TCH", "--value", "0.5", *short)
    assert "equipoise, preset text" in command("fl", "--preset", "text", *short)
    drawn = command("fl", "--fraction", "0.5", "--dropout", "0.2", *short, "--json", tmp_path / "drawn.json")
    assert "computed" in drawn
    assert len(list((tmp_path / "cells").glob("*.json"))) == 5


def test_tuning_takes_the_smallest_training_loss_of_the_worst_client(tmp_path, monkeypatch):
    losses = {0.1: 0.9, 0.2: 0.4, 0.5: 0.6}

    def run(store, jobs, **_options):
        (job,) = jobs
        loss = losses[job.method.weighting.alpha]
        if loss == 0.6:
            raise NonFiniteLossError("loss must be finite; found inf for client 0, seed 0, round 1")
        made = cell(dict.fromkeys(("last", "average", "adaptive"), (90.0, 1.0, 1.0)))
        made["outputs"]["last"]["train"]["agnostic_loss"] = loss
        made["outputs"]["last"]["test"]["agnostic_loss"] = 1 - loss
        store.write(runs.spec(job.task, job.method, 0), made)

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr("equipoise.experiments.federated.compute.datasets.load", lambda *_: None)
    output = command(
        "fl", "--task", "mnist-class2", "--method", "fedfv", "--tune", "--out", tmp_path, "--json",
        tmp_path / "tuned.json", "--rounds", "2",
    )  # fmt: skip
    assert "best value: 0.2; tab:2 has 0.2" in output
    assert "not finite" in output
    record = json.loads((tmp_path / "tuned.json").read_text())
    assert record["tried"] == {"0.1": 0.9, "0.2": 0.4, "0.5": None}
    assert record["value"] == 0.2


def test_a_diverging_run_ends_with_its_message(tmp_path, monkeypatch):
    def run(*_arguments, **_options):
        raise NonFiniteLossError("loss must be finite; found nan for client 3, seed 0, round 2")

    monkeypatch.setattr(runs, "run", run)
    result = CliRunner().invoke(app, ["fl", "--out", str(tmp_path), "--rounds", "2"])
    assert isinstance(result.exception, NonFiniteLossError)


# ------------------------------------------------------------------------------- equipoise runs
def test_import_takes_whole_cells_and_names_the_rest(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    spec = {"experiment": "x", "seed": 1}
    CellStore(source, behind=()).write(spec, {"value": 1})
    other = CellStore(source, behind=()).write({"experiment": "x", "seed": 2}, {"value": 2})
    (source / "truncated.json").write_text(other.read_text()[:20])
    (source / "list.json").write_text("[1, 2]")
    (source / "notes.txt").write_text("not a cell")
    (source / "unfinished").mkdir()
    renamed = source / ("0" * 24 + ".json")
    renamed.write_text(other.read_text())
    changed = source / cell_name({"experiment": "x", "seed": 3})
    changed.write_text(json.dumps({"spec": {"experiment": "x", "seed": 3}}))
    output = command("runs", "import", source, "--out", out, code=1)
    assert "2 new, 0 known, 5 refused" in output
    for name in ("truncated.json", "list.json", "notes.txt", renamed.name, changed.name):
        assert f"refused: {name}" in output
    assert f"it must be called {other.name}" in output
    found = CellStore(out / "cells", behind=()).read(spec)
    assert found is not None
    assert found["value"] == 1
    assert len(list((out / "cells").iterdir())) == 2
    for name in ("truncated.json", "list.json", "notes.txt", renamed.name, changed.name):
        (source / name).unlink()
    assert "0 new, 2 known, 0 refused" in command("runs", "import", source, "--out", out)


def test_import_keeps_what_is_there(tmp_path):
    spec = {"experiment": "x", "seed": 1}
    CellStore(tmp_path / "source", behind=()).write(spec, {"value": "theirs"})
    own = CellStore(tmp_path / "out" / "cells", behind=())
    own.write(spec, {"value": "ours"})
    before = own.read(spec)
    assert import_cells(tmp_path / "source", own) == (0, 1, {})
    assert own.read(spec) == before


def keep(store, task, method, seed=0, rounds=None, value=None):
    """A made-up cell under the name that its command would give it."""
    sized = settings.sized(settings.tasks()[task], rounds)
    row = settings.row(method, task, value=value)
    job = replace(row, task=sized, name=method if value is None else f"{method} ({value:g})")
    output = {row.output: (1, 1, 1)}
    store.write(job.spec(seed), cell(output), job.labels)


def test_list_counts_cells_by_task_and_method(tmp_path, monkeypatch):
    monkeypatch.setattr(console, "width", 120)  # in one line each
    store = CellStore(tmp_path / "cells", behind=())
    for seed in SEEDS[:3]:
        keep(store, "mnist-rotation", "OMDgd-TCH", seed)
    keep(store, "mnist-rotation", "OMDgd-TCH", rounds=7)
    keep(store, "mnist-rotation", "OMDgd-TCH", value=0.5)
    assert count(cells_in([tmp_path / "cells"])) == {
        ("federated", "mnist-rotation, 300 rounds", "OMDgd-TCH"): 3,
        ("federated", "mnist-rotation, 7 rounds", "OMDgd-TCH"): 1,
        ("federated", "mnist-rotation, 300 rounds", "OMDgd-TCH (0.5)"): 1,
    }
    output = command("runs", "list", "--out", tmp_path)
    assert f"{tmp_path / 'cells'}: 5 cells" in output
    assert "OMDgd-TCH" not in output.partition("5 cells")[0]
    assert re.search(r"federated +mnist-rotation, 300 rounds +2 +4\b", output)  # methods, cells
    assert re.search(r"federated +mnist-rotation, 7 rounds +1 +1\b", output)
    assert re.search(rf"{len(list(cells_in([PUBLISHED])))} cells", output)  # those that come with the library
    every = command("runs", "list", "--out", tmp_path, "--all")
    assert re.search(r"mnist-rotation, 300 rounds +OMDgd-TCH \(0\.5\) +1\b", every)


def test_list_knows_the_runs_of_every_study(tmp_path):
    """Those of the library's own method, of synthetic problems, and of a task in the table of conversions."""
    store = CellStore(tmp_path / "cells", behind=())
    keep(store, "digits-rotation", "equipoise", 25)
    solved = {"losses": [[0.5, 0.5]] * synthetic.PREFERENCES, "hypervolume": 1.0, "diverged": 0}
    (row,) = [row for row in synthetic.settings("published") if row.method == "AdaOMDgd-TCH"]
    store.write(synthetic.cell_spec("published", "F6", row, 0), solved, {"task": "F6", "method": row.method})
    for problem in ("digits-class2", "DTLZ2 m=3", "Needle m=10"):
        first = default.rows(problem)[0]
        spec = default.cell_spec(problem, first)
        names = {"task": problem, "method": first.name, "output": first.answer}
        store.write(spec, {name: {"gap": [0.1]} for name in spec["outputs"]}, names)
    store.write({"experiment": "x"}, {})
    assert set(count(cells_in([tmp_path / "cells"]))) == {
        ("federated", "digits-rotation, 100 rounds", "equipoise"),
        ("synthetic", "F6", "AdaOMDgd-TCH"),
        ("conversions", "digits-class2", "PGD η=1 c=0"),
        ("conversions", "DTLZ2 m=3", "PGD η=1 c=0"),
        ("conversions", "Needle m=10", "PGD adaptive τ=3 c=30"),
        ("x", "?", "?"),
    }
    assert f"{tmp_path / 'cells'}: 6 cells\n" in command("runs", "list", "--out", tmp_path)
    assert f"{tmp_path / 'none' / 'cells'}: no cells\n" in command("runs", "list", "--out", tmp_path / "none")
