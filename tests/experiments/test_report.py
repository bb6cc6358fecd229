"""The content and the sources of a report."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from equipoise import Last, SmoothTchebycheff, metrics, preference
from equipoise.cli import app
from equipoise.experiments import paper
from equipoise.experiments.federated import rows as federated_rows
from equipoise.experiments.federated import scores as federated_scores
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.federated.runs import absent
from equipoise.experiments.federated.runs import spec as federated_spec
from equipoise.experiments.report import gather, render, sections
from equipoise.experiments.report.sources import POINTS, read
from equipoise.experiments.report.training import runs_by_task
from equipoise.experiments.results import PUBLISHED, CellStore, CellWarning, short
from equipoise.experiments.synthetic import settings as synthetic
from equipoise.federated import Participation
from equipoise.registry import Method

runner = CliRunner()


def result(value=0.5, rounds=2):
    """A federated cell in which everything is the same number."""
    curve = {"round": [5 * (k + 1) for k in range(rounds)]}
    curve |= {key: [value] * rounds for key in ("train_loss", "test_loss", "test_accuracy")}
    scores = {"accuracy": 90 + value, "agnostic_loss": value, "accuracy_parity": 1 + value}
    scores |= {"client_losses": [value] * 2, "client_accuracies": [90 + value] * 2}
    return {
        "untrained": scores,
        "outputs": {name: {"train": scores, "test": scores} for name in federated_scores.OUTPUTS},
        "curves": dict.fromkeys(federated_scores.OUTPUTS, curve),
        "coefficients": [[0.25, 0.75]] * rounds,
        "archive": [1] * rounds,
        "seconds_per_round": 0.1,
    }


def write(store, *methods, task="digits-rotation", seeds=(0, 25), value=None, points=2, **changes):
    """Cells of methods that share a run, under the names that their commands give them."""
    changed = replace(federated.tasks()[task], **changes)
    for seed in seeds:
        rows = [federated.row(method, task, value=value) for method in methods]
        called = [one if value is None else replace(one, name=f"{one.name} ({value:g})") for one in rows]
        (job,) = absent(store, [replace(one, task=changed, seeds=(seed,)) for one in called])
        store.write(job.spec(seed), result(seed / 100 + 0.1, points), job.labels)


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "cells", ())


# ------------------------------------------------------------------------------- what the repository has
def test_the_published_cells_are_the_papers_table():
    record = gather(read([], [PUBLISHED]), "1")
    counts = len(record["tables"]), len(record["tasks"])
    assert min(counts) >= 3
    assert sections(record) == f"{counts[0]} tables, {counts[1]} federated tasks"
    first = record["tables"][0]
    assert first["title"] == "tab:3: mnist-rotation"
    assert first["summary"].startswith("45 of 45 numbers within 2")
    assert [row["method"] for row in first["rows"]] == [*federated.METHODS, federated.EXACT_FERERO, "equipoise"]
    (ls, *_) = first["rows"]
    assert ls["cells"][0]["paper"] == 92.45
    assert ls["cells"][0]["agrees"] is True
    # The same numbers as in the table that the command line prints.
    wanted = federated_rows.rows(["mnist-rotation"], ["LS"], "published")
    (entry,) = federated_scores.entries_of(CellStore(Path("nowhere")), wanted, "published")
    assert ls["cells"][1]["ours"] == pytest.approx(entry.score("agnostic_loss").mean, rel=1e-5)
    tables = {table["title"]: table for table in record["tables"]}
    assert len(tables) == len(record["tables"])
    for table in tables.values():
        names = [row["method"] for row in table["rows"]]
        assert len(set(names)) == len(names)
        if table["title"].startswith("tab:3: "):
            assert table["summary"].startswith("45 of 45 ")
            assert set(names) <= set(federated_rows.TABLES["table-cifar"])
        elif table["title"].startswith("tab:stch: "):
            assert tuple(names) == federated_rows.TABLES["table-stch"]
            assert table["command"].startswith("equipoise reproduce table-stch --task cifar-")
    (ratios,) = [table for title, table in tables.items() if "ratios of losses" in title]
    assert ratios["command"].startswith("equipoise reproduce table-ratio")
    assert "--task" not in ratios["command"]
    assert "AdaOMDeg-TCH, ratio in the first round alone" in [row["method"] for row in ratios["rows"]]
    assert not any("cifar-two" in title for title in tables)
    curves = record["tasks"][0]["methods"][0]
    assert len(curves["rounds"]) == len(curves["train_loss"]) == len(curves["weights"]) == 60
    assert len(curves["scores"]["accuracy"]) == 10


def test_a_page_is_one_file_that_loads_nothing():
    page = render(gather(read([], [PUBLISHED]), "1"))
    assert len(page.encode()) < 8e6
    addresses = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page.split("<script type=")[0])
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert "innerHTML" not in page


# ------------------------------------------------------------------------------- federated runs of one's own
def test_runs_are_named_by_what_made_them(store, tmp_path):
    write(store, "LS")
    write(store, "OMDgd-TCH", "AdaOMDgd-TCH", seeds=(0,))
    write(store, "OMDgd-TCH", "AdaOMDgd-TCH", value=0.3, rounds=7)
    write(store, "LS", participation=Participation(0.5, 0.0))
    first, few, short_run = sorted(runs_by_task(read([tmp_path])), key=lambda runs: len(runs.title))
    assert first.title == "digits-rotation"
    assert {entry.name: (entry.output, entry.seeds) for entry in first.entries} == {
        "LS": ("last", (0, 25)),
        "OMDgd-TCH": ("average", (0,)),  # the same run
        "AdaOMDgd-TCH": ("adaptive", (0,)),
    }
    wanted = "--task digits-rotation --seeds 0,25"
    names = "LS,OMDgd-TCH,AdaOMDgd-TCH"
    assert first.table_command == f"equipoise reproduce table-digits {wanted} --methods {names}"
    assert few.title == "digits-rotation, 7 rounds"
    words = f"--value 0.3 {wanted} --rounds 7"
    assert few.command("fig-box") == "\n".join(
        f"equipoise fl --method {name} {words}" for name in ("OMDgd-TCH", "AdaOMDgd-TCH")
    )
    assert short_run.title == "digits-rotation, fraction 0.5"
    assert short_run.command("fig-box") == f"equipoise fl --method LS {wanted} --fraction 0.5"


def test_a_method_of_ones_own_is_named_with_its_module(store, tmp_path):
    job = federated.row("Mine", "digits-rotation", own={"Mine": Method(SmoothTchebycheff(0.7), Last())})
    store.write(job.spec(0), result(), job.labels)
    (runs,) = runs_by_task(read([tmp_path]))
    assert [entry.name for entry in runs.entries] == ["Mine"]
    wanted = "--task digits-rotation --seeds 0 --methods module:Mine"
    assert runs.table_command == f"equipoise reproduce table-digits {wanted}"


def test_a_task_that_is_not_known_is_shown_by_its_name(store, tmp_path):
    spec = {"experiment": "federated", "task": "Task(mine)", "weighting": "Mine()", "transform": "None", "seed": 3}
    store.write(spec, result(), {"task": "mine", "method": "My method", "output": "adaptive"})
    store.write({**spec, "task": "other"}, result())
    other, runs = runs_by_task(read([tmp_path]))
    assert (runs.title, other.title) == ("mine", "?")
    assert [(entry.name, entry.output) for entry in runs.entries] == [("My method", "adaptive")]
    assert [(entry.name, entry.output) for entry in other.entries] == [("?", "last")]
    assert runs.command("fig-box") == "made by a run of your own"


def test_a_cell_without_its_numbers_is_left_out(store, tmp_path):
    write(store, "LS")
    spec = federated_spec(federated.tasks()["digits-rotation"], federated.row("TCH", "digits-rotation").method, 0)
    store.write(spec, {**result(), "curves": {"last": []}})
    with pytest.warns(CellWarning, match=r"json is ignored: it must have 'adaptive'; found none"):
        (runs,) = runs_by_task(read([tmp_path]))
    assert [entry.name for entry in runs.entries] == ["LS"]


def test_a_truncated_and_a_newer_cell_are_left_out_and_unharmed(store, tmp_path):
    write(store, "LS", seeds=(0, 25, 37))
    cut, newer, _ = sorted(store.folder.iterdir())
    cut.write_text(cut.read_text()[:50])
    newer.write_text('{"format": 99}')
    with pytest.warns(CellWarning) as said:
        (runs,) = runs_by_task(read([tmp_path]))
    assert len(runs.entries[0].seeds) == 1
    assert sorted(str(warning.message).split(" is ignored: ")[1][:13] for warning in said) == [
        "it has format",
        "not a whole J",
    ]
    assert cut.exists()
    assert newer.exists()


# ------------------------------------------------------------------------------- fronts
def test_solved_problems_share_a_set(tmp_path):
    for number, method in enumerate(("LS", "TCH", "TCH")):
        arguments = ["solve", "VLMOP2", "--method", method, "--preferences", "3", "--steps", "5"]
        assert runner.invoke(app, [*arguments, "--json", str(tmp_path / f"{number}.json")]).exit_code == 0
    (found,) = gather(read([tmp_path]), "1")["sets"]
    assert [method["name"] for method in found["methods"]] == ["LS", "TCH", "TCH (2.json)"]
    assert found["preferences"] == short(preference.linspace(3))
    record = json.loads((tmp_path / "1.json").read_text())
    assert found["methods"][1]["losses"] == short(torch.tensor(record["losses"], dtype=torch.float64))
    front = torch.tensor(found["front"], dtype=torch.float64)
    assert bool(metrics.non_dominated(front).all())
    assert found["command"].splitlines()[0].startswith("equipoise solve VLMOP2 --method LS --preferences 3 --seeds 0")


def test_a_run_with_the_papers_preferences_and_seeds_joins_its_problem(tmp_path, store):
    w = preference.linspace(10)
    for seed in synthetic.SEEDS:
        outcome = {"losses": w.tolist(), "hypervolume": 0.04, "diverged": 0}
        store.write(synthetic.cell_spec("published", "VLMOP2", synthetic.settings("published")[0], seed), outcome)
    arguments = ["solve", "VLMOP2", "--method", "LS", "--seeds", "0,19,42", "--steps", "5"]
    assert runner.invoke(app, [*arguments, "--json", str(tmp_path / "mine.json")]).exit_code == 0
    (found,) = gather(read([tmp_path]), "1")["sets"]
    assert [method["name"] for method in found["methods"]] == ["LS", "LS (mine.json)"]
    assert len(found["command"].splitlines()) == 2


def test_a_number_is_rounded_once_as_the_terminal_does(tmp_path, store):
    row = synthetic.settings("published")[0]
    w = preference.linspace(10)
    for seed in synthetic.SEEDS:
        outcome = {"losses": w.tolist(), "hypervolume": 1.00494966, "diverged": 0}
        store.write(synthetic.cell_spec("published", "F2", row, seed), outcome)
    record = gather(read([tmp_path]), "1")
    (cell,) = [cell for cell in record["tables"][0]["rows"][0]["cells"] if cell]
    assert f"{cell['ours']:.4f}" == "1.0049"
    # Settings under which a method looks for another point are named where it seems to miss.
    assert "preset published, the target of EPO, FERERO and PMTL is f ∝ w" in record["sets"][0]["note"]
    assert record["sets"][0]["note"] in record["tables"][0]["note"]
    assert synthetic.on_other_rays("text") == ""


def test_hypervolumes_are_compared_with_the_papers(tmp_path, store):
    rows = synthetic.settings("published")
    w = preference.linspace(10)
    for row in rows[:2]:
        for seed in synthetic.SEEDS:
            losses = torch.full_like(w, float("nan") if seed == 19 else 0.5).tolist()
            theirs = paper.HYPERVOLUMES[row.method]["VLMOP2"].mean
            outcome = {"losses": losses, "hypervolume": theirs + 0.002 * (row.method == "TCH"), "diverged": 0}
            store.write(synthetic.cell_spec("published", "VLMOP2", row, seed), outcome)
    record = gather(read([tmp_path]), "1")
    (table,) = record["tables"]
    assert table["summary"] == "1 of 2 numbers within tolerance of the paper’s. "
    assert [row["cells"][0]["agrees"] for row in table["rows"]] == [True, False]
    assert table["rows"][0]["cells"][1] is None
    assert record["sets"][0]["methods"][0]["losses"][1][0] == [None, None]  # JSON has no NaN
    assert "NaN" not in render(record)


# ------------------------------------------------------------------------------- monitoring logs
def test_logs_are_thinned_and_may_be_cut_off(tmp_path):
    lines = [json.dumps({"step": t, "loss/a": 1 / t, "tch": float("nan")}) for t in range(1, 5 * POINTS + 1)]
    (tmp_path / "run.jsonl").write_text("\n".join([*lines, '{"step": 99999, "lo']))
    (log,) = gather(read([tmp_path]), "1")["logs"]
    assert len(log["steps"]) == POINTS + 1
    assert log["steps"][-1] == 5 * POINTS
    assert log["groups"]["loss"]["a"][0] == 1.0
    assert log["groups"]["tch"]["tch"][0] is None
    (tmp_path / "none.jsonl").write_text("nothing\n[]\n{}")
    with pytest.warns(CellWarning, match="no line is an object with a step"):
        read([tmp_path])


# ------------------------------------------------------------------------------- the command
@pytest.fixture
def nothing_published(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.cli.report.PUBLISHED", tmp_path / "nowhere.xz")


@pytest.mark.usefixtures("nothing_published")
def test_the_command_writes_the_page_and_says_where(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(store, "LS")
    done = runner.invoke(app, ["report", "--results", str(tmp_path), "--out", "new/page.html"])
    assert done.exit_code == 0, done.output
    assert "1 table, 1 federated task" in done.output
    assert (tmp_path / "new" / "page.html").as_uri() in done.output
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("nothing_published")
def test_opening_it_asks_the_browser(store, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write(store, "LS")
    page = tmp_path / "page.html"
    done = runner.invoke(app, ["report", "--results", str(tmp_path), "--out", str(page), "--open"])
    assert done.exit_code == 0
    assert opened == [page.as_uri()]


@pytest.mark.usefixtures("nothing_published")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there must be results to report: `equipoise reproduce table-hv` makes some"),
        (("--results", "nowhere"), "results must exist; found nowhere"),
        (("--results", "other.json"), "results must be cells, a log (.jsonl) or what `equipoise solve --json` wrote"),
    ],
)
def test_without_results_it_says_what_makes_some(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text('{"problem": "x", "method": "y", "losses": [], "preferences": {}, "seeds": 3}')
    done = runner.invoke(app, ["report", *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert not Path("out").exists()


SOLVED = {
    "problem": "VLMOP2",
    "method": "LS",
    "preferences": [[0.5, 0.5], [0.2, 0.8]],
    "losses": [[[1.0, 2.0], [3.0, float("nan")]]],
    "seeds": [0],
}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested at most 32 deep"),
        (json.dumps({**SOLVED, "steps": 10**400}), "larger than a float"),
        (json.dumps(SOLVED)[:-9], "not a whole JSON file"),
        (json.dumps({**SOLVED, "seeds": [float("nan")]}), "whole numbers as seeds"),
        (json.dumps({**SOLVED, "seeds": [[]]}), "whole numbers as seeds"),
        (json.dumps({**SOLVED, "steps": {}}), "must have finite preferences"),
        (json.dumps({**SOLVED, "preferences": [[0.5, 0.5], [float("nan"), 0.8]]}), "finite preferences"),
        (json.dumps({**SOLVED, "losses": [[[1.0, 2.0], [3.0]]]}), "a loss for each of both"),
        (json.dumps({**SOLVED, "losses": [[[1.0, 2.0], [3.0, True]]]}), "a loss for each of both"),
        (json.dumps({**SOLVED, "losses": {}}), "a loss for each of both"),
    ],
)
def test_a_bad_record_is_named_and_the_others_are_shown(content, reason, tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(SOLVED))
    (tmp_path / "other.json").write_text('{"something": "else"}')
    (tmp_path / "log.jsonl").write_text('{"step": 1, "x": 2}\n{"step": 2, "x": 1' + "0" * 400 + "}\n" + "[" * 100_000)
    (tmp_path / "bad.json").write_text(content)
    with pytest.warns(CellWarning, match=f"bad.json is ignored: .*{reason}") as said:
        record = gather(read([tmp_path]), "1")
    assert len(said) == 1
    assert render(record)
    (found,) = record["sets"]
    assert found["methods"][0]["losses"] == [[[1.0, 2.0], [3.0, None]]]
    assert record["logs"][0]["steps"] == [1]


def test_a_seed_with_other_rounds_is_named_and_the_others_are_shown(store, tmp_path):
    write(store, "LS", seeds=(0, 25))
    write(store, "LS", seeds=(37,), points=3)
    with pytest.warns(CellWarning, match=r"seed 37 of LS is ignored: it has other rounds"):
        (runs,) = runs_by_task(read([tmp_path]))
    assert runs.entries[0].seeds == (0, 25)


HOSTILE = "</script><script>alert(1)</script><!--"


def test_hostile_strings_cannot_leave_the_data(store, tmp_path):
    spec = {"experiment": "federated", "task": HOSTILE, "weighting": HOSTILE, "transform": "None", "seed": 3}
    store.write(spec, result(), {"task": HOSTILE, "method": HOSTILE, "output": HOSTILE})
    page = render(gather(read([tmp_path]), "1"))
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert HOSTILE in json.loads(data)["tasks"][0]["title"]
