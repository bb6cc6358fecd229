"""The federated experiments: the settings of the tables, and cells that are run once."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import NonFiniteLossError, UnknownNameError
from equipoise.experiments import bare, federated
from equipoise.experiments.cells import CellStore
from equipoise.experiments.federated import EXACT_FERERO, METHODS, SEEDS, Job, absent, row, sized, spec, tasks, tuned
from equipoise.federated import Dense, PartialClass, Participation, ResNet18, ResNet20, Rotation, simulate
from equipoise.federated.stacked import Stacked
from equipoise.weighting import DualDescent

# tab:2: MNIST rotation, C = 2, C = 5, then CIFAR.
TABLE = {
    "qFFL": ((0.1, 0.1, 0.1), (0.1, 0.1, 0.1)),
    "PropFair": ((2, 2, 2), (3, 4, 2)),
    "FedMGDA+": ((0.5, 0.5, 0.05), (0.1, 0.1, 0.1)),
    "FedFV": ((0.2, 0.2, 0.2), (0.2, 0.1, 0.2)),
    "FedFV τ": ((1, 1, 1), (1, 0, 1)),
    "STCH": ((0.01, 0.01, 0.01), (0.01, 0.03, 0.03)),
    "STCH w/ momentum": ((0.01, 0.01, 0.01), (0.01, 0.03, 0.01)),
    "ExcessMTL": ((1, 1, 1), (1, 0.1, 0.1)),
    "AdaExcessMTL": ((0.3, 1, 1), (0.1, 0.03, 0.001)),
    "OMDgd-TCH": ((0.03, 0.01, 0.01), (1, 0.01, 0.01)),
    "AdaOMDgd-TCH": ((0.03, 1, 1), (0.03, 0.003, 0.3)),
    "OMDeg-TCH": ((0.3, 0.3, 0.1), (1, 0.03, 0.1)),
    "AdaOMDeg-TCH": ((0.1, 0.3, 0.03), (0.3, 0.03, 0.03)),
}
KINDS = ("rotation", "class2", "class5")


def weighting(name: str, task: str, preset: federated.Preset = "published") -> Any:
    return row(name, task, preset).method.weighting


# --- settings


@pytest.mark.parametrize("name", TABLE)
def test_the_best_values(name: str):
    for data, values in zip(("mnist", "cifar"), TABLE[name], strict=True):
        assert tuple(tuned(name, f"{data}-{kind}") for kind in KINDS) == values
    assert tuned(name, "digits-class2") == tuned(name, "mnist-class2")


@pytest.mark.parametrize("name", ["LS", "TCH", "EPO", "FERERO"])
def test_methods_without_a_setting(name: str):
    assert tuned(name, "mnist-rotation") is None
    assert row(name, "mnist-rotation").name == name


def test_the_best_value_is_among_the_attempted_ones():
    for name, values in federated.ATTEMPTED.items():
        for of_data in TABLE[name]:
            assert set(of_data) <= set(values), name


def test_fifteen_rows():
    assert len(METHODS) == len(set(METHODS)) == 15
    assert EXACT_FERERO not in METHODS
    assert SEEDS == (0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003)


def test_step_sizes_are_those_of_gains_w_times_f():
    """λ ← Π(λ + s f) with s as listed: w∘f = f/m, so the step is m s."""
    assert weighting("OMDgd-TCH", "mnist-rotation") == eq.OMD(10 * 0.03, eq.Euclidean())
    assert weighting("OMDeg-TCH", "cifar-class2") == eq.OMD(10 * 0.03, eq.Entropic())
    assert weighting("AdaOMDgd-TCH", "cifar-two") == eq.OMD(2 * 0.03, eq.Euclidean())
    assert weighting("AdaOMDeg-TCH", "mnist-rotation") == eq.OMD(10 * 0.1, eq.Entropic())
    assert weighting("ExcessMTL", "cifar-class2") == eq.ExcessRisk(0.1, "simultaneous", "gradients")
    assert weighting("ExcessMTL", "cifar-class2", "text") == eq.ExcessRisk(1.0)


def test_the_other_rows():
    assert weighting("LS", "mnist-rotation") == eq.Linear()
    assert weighting("qFFL", "mnist-rotation") == eq.QFFL(0.1, 0.1)
    assert weighting("FedMGDA+", "mnist-class5") == eq.FedMGDAPlus(0.05, "models")
    assert weighting("FedFV", "cifar-class2") == eq.FedFV(0.1, 0)
    assert weighting("FedFV", "cifar-class5") == eq.FedFV(0.2, 1)
    assert weighting("TCH", "mnist-rotation") == eq.Tchebycheff()
    assert weighting("STCH", "cifar-class2") == eq.SmoothTchebycheff(0.03)
    assert weighting(EXACT_FERERO, "mnist-rotation") == eq.FERERO()
    assert row("OMDgd-TCH", "mnist-rotation", value=0.5).method.weighting == eq.OMD(5.0, eq.Euclidean())


def test_what_the_published_rows_have_that_the_text_has_not():
    assert weighting("EPO", "mnist-rotation") == eq.EPO(normalize=False, fallback="preference", tolerance=1e-4)
    assert weighting("EPO", "mnist-rotation", "text") == eq.EPO()
    released = DualDescent(rate=1e-5, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)
    assert weighting("FERERO", "mnist-rotation") == eq.FERERO(target="direct", solver=released)
    assert weighting("FERERO", "mnist-rotation", "text") == eq.FERERO()
    assert row("PropFair", "cifar-class2").method.transform == eq.PropFair(4.0, 1.0, "linear")
    assert row("PropFair", "cifar-class2", "text").method.transform == eq.PropFair(4.0, 0.2, "huber")
    for name in METHODS:
        assert (row(name, "mnist-rotation").method.transform is not None) == (name == "PropFair")


def test_which_output_a_row_reports():
    for name in METHODS:
        ada, averaged = name.startswith("Ada"), "OMD" in name or "Excess" in name
        assert row(name, "mnist-rotation").output == ("adaptive" if ada else "average" if averaged else "last")


def test_the_published_tasks():
    published = tasks()
    for task in published.values():
        assert (task.loss, task.average, task.batch_norm) == ("trajectory", "after", "batch")
        assert task.participation == Participation()
        assert task.work.step_size == 0.1
    mnist = published["mnist-rotation"]
    assert (mnist.data, mnist.rounds, mnist.work.epochs, mnist.work.batch_size) == ("mnist", 300, 10, None)
    assert mnist.model == Dense((784, 200, 10))
    assert mnist.split == Rotation((0,) * 7 + (1, 1, 2))
    cifar = published["cifar-rotation"]
    assert (cifar.data, cifar.rounds, cifar.work.epochs, cifar.work.batch_size) == ("cifar10", 45, 1, 100)
    assert cifar.model == ResNet20()
    assert cifar.split == Rotation((0,) * 7 + (2, 2, 2))
    for data in ("mnist", "cifar", "digits"):
        assert published[f"{data}-class2"].split == PartialClass(2, 10)
        assert published[f"{data}-class5"].split == PartialClass(5, 10)
    assert published["cifar-two"].split == Rotation((0, 2))


def test_the_text_says_otherwise():
    text = tasks("text")
    assert text.keys() == tasks().keys()
    for task in text.values():
        assert (task.loss, task.average, task.batch_norm) == ("received", "before", "recalibrated")
    assert text["cifar-two"].split == Rotation((0, 1))
    assert text["cifar-rotation"].model == ResNet18()
    assert text["mnist-rotation"].model == tasks()["mnist-rotation"].model


def test_names_that_are_not_known():
    with pytest.raises(UnknownNameError, match="found 'mnist-rotate'; nearest: mnist-rotation"):
        row("LS", "mnist-rotate")
    with pytest.raises(UnknownNameError, match="found 'OMD-TCH'"):
        row("OMD-TCH", "mnist-rotation")


# --- cells


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    return CellStore(tmp_path / "cells", ())


def jobs(store: CellStore, names: tuple[str, ...], seeds: tuple[int, ...] = (0,), rounds: int = 2) -> list[Job]:
    rows = [row(name, "digits-rotation") for name in names]
    return absent(store, "digits-rotation", sized(tasks()["digits-rotation"], rounds), rows, seeds)


def test_a_finished_cell_is_not_run_again(store: CellStore):
    (job,) = jobs(store, ("LS",), (0, 25))
    assert job.seeds == (0, 25)
    assert job.task.rounds == 2
    federated.run(store, [job])
    assert jobs(store, ("LS",), (0, 25)) == []
    (rest,) = jobs(store, ("LS",), (0, 25, 37))
    assert rest.seeds == (37,)
    assert len(list(store.folder.glob("*.json"))) == 2
    assert list(store.folder.rglob("*.npz")) == []


def test_rows_of_the_same_weighting_share_a_trajectory(store: CellStore):
    (job,) = jobs(store, ("OMDgd-TCH", "AdaOMDgd-TCH"))  # both s = 0.03
    assert job.method.weighting == eq.OMD(10 * 0.03, eq.Euclidean())
    assert len(jobs(store, ("OMDeg-TCH", "AdaOMDeg-TCH"))) == 2  # 0.3 and 0.1
    assert len(jobs(store, ("LS", "PropFair"))) == 2  # one weighting, two losses
    federated.run(store, [job])
    assert jobs(store, ("AdaOMDgd-TCH",)) == []
    result = store.read(spec(job.task, job.method, 0))
    assert result is not None
    assert set(result["outputs"]) == {"last", "average", "adaptive"}


def test_a_cell_of_other_settings_is_another_cell(store: CellStore):
    (job,) = jobs(store, ("OMDgd-TCH",))
    federated.run(store, [job])
    task, method = job.task, job.method
    asked = spec(task, method, 0)
    assert store.read(asked) is not None
    others = [
        spec(task, method, 25),
        spec(sized(task, 3), method, 0),
        spec(replace(task, loss="received"), method, 0),
        spec(replace(task, split=PartialClass(2)), method, 0),
        spec(task, replace(method, transform=eq.PropFair()), 0),
        spec(task, row("OMDgd-TCH", "digits-rotation", value=0.1).method, 0),
        spec(tasks("text")["digits-rotation"], method, 0),
    ]
    for other in others:
        assert store.read(other) is None
    assert spec(task, replace(method, conversion=eq.Last()), 0) == asked  # all outputs are in it
    assert spec(task, method, 0, "tf32") == asked != spec(task, method, 0, "bfloat16")
    assert sized(task, None) is task


def test_what_a_cell_holds(store: CellStore):
    (job,) = jobs(store, ("OMDgd-TCH",), (0,), 10)
    seen: list[int] = []
    federated.run(store, [job], progress=seen.append)
    assert seen == list(range(1, 11))
    cell = store.read(spec(job.task, job.method, 0))
    assert cell is not None
    found = simulate(job.task, job.method, evaluate_every=5)
    for name in ("last", "average", "adaptive"):
        for part in ("train", "test"):
            of, scores = getattr(found, part)[name], cell["outputs"][name][part]
            accuracies = [100 * a / b for a, b in zip(of.correct[0].tolist(), of.counts[0].tolist(), strict=True)]
            mean = sum(accuracies) / 10
            assert scores["accuracy"] == pytest.approx(100 * of.correct.sum().item() / of.counts.sum().item(), rel=1e-5)
            assert scores["agnostic_loss"] == pytest.approx(of.losses.max().item(), rel=1e-5)
            deviation = (sum((a - mean) ** 2 for a in accuracies) / 10) ** 0.5
            assert scores["accuracy_parity"] == pytest.approx(deviation, rel=1e-5)
            assert scores["client_losses"] == pytest.approx(of.losses[0].tolist(), rel=1e-5)
            assert scores["client_accuracies"] == pytest.approx(accuracies, rel=1e-5)
        curve = cell["curves"][name]
        assert curve["round"] == [5, 10]
        assert curve["test_loss"][-1] == cell["outputs"][name]["test"]["agnostic_loss"]
        assert curve["train_loss"][-1] == cell["outputs"][name]["train"]["agnostic_loss"]
        assert curve["test_accuracy"][-1] == cell["outputs"][name]["test"]["accuracy"]
    assert cell["untrained"]["agnostic_loss"] == pytest.approx(found.untrained.losses.max().item(), rel=1e-5)
    torch.testing.assert_close(
        torch.tensor(cell["coefficients"]), found.history.coefficients[[4, 9], 0], rtol=1e-5, atol=0
    )
    assert cell["archive"] == found.history.archive[[4, 9], 0].tolist()
    assert cell["seconds_per_round"] > 0
    assert cell["device"]


def test_seeds_together_or_one_by_one(tmp_path: Path):
    cells = []
    for together in (1, 2):
        store = CellStore(tmp_path / str(together), ())
        (job,) = jobs(store, ("OMDeg-TCH",), (0, 25))
        seen: list[int] = []
        federated.run(store, [job], together=together, progress=seen.append)
        assert seen == ([1, 2, 3, 4] if together == 1 else [2, 4])
        cells.append([store.read(spec(job.task, job.method, seed)) for seed in (0, 25)])
    for alone, beside in zip(*cells, strict=True):
        assert alone is not None
        assert beside is not None
        for name in alone["outputs"]:
            a, b = (cell["outputs"][name]["test"]["client_losses"] for cell in (alone, beside))
            assert a == pytest.approx(b, rel=1e-4)


class StoppedError(Exception):
    pass


def interrupted(store: CellStore, job: Job, at: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Run until so many rounds are done, a checkpoint after each."""

    def stop(done: int) -> None:
        if done == at:
            raise StoppedError

    with monkeypatch.context() as hasty:
        hasty.setattr(federated, "simulate", lambda *a, **k: simulate(*a, **k, checkpoint_seconds=0))
        with pytest.raises(StoppedError):
            federated.run(store, [job], progress=stop, **options)


def test_an_interrupted_run_goes_on_and_gives_the_same_cell(tmp_path: Path, monkeypatch):
    cells = []
    for name in ("whole", "interrupted"):
        store = CellStore(tmp_path / name, ())
        (job,) = jobs(store, ("OMDgd-TCH",), (0,), 10)
        if name == "interrupted":
            interrupted(store, job, 7, monkeypatch)
            assert list(store.folder.glob("*.json")) == []
            assert len(list((store.folder / "unfinished").iterdir())) == 1
        seen: list[int] = []
        federated.run(store, [job], progress=seen.append)
        assert seen[0] == (8 if name == "interrupted" else 1)
        cell = store.read(spec(job.task, job.method, 0))
        assert cell is not None
        cell.pop("seconds_per_round")
        cell.pop("date")  # they may be made before and after midnight
        cells.append(cell)
    assert cells[0] == cells[1]


def test_an_unfinished_run_of_other_seeds_is_no_obstacle(store: CellStore, monkeypatch):
    (first,) = jobs(store, ("LS",), (0, 25))
    interrupted(store, first, 2, monkeypatch, together=2)
    (other,) = jobs(store, ("LS",), (0, 37))
    federated.run(store, [other], together=2)
    assert store.read(spec(other.task, other.method, 37)) is not None


def test_a_seed_that_diverges_leaves_the_cells_of_the_others(store: CellStore, monkeypatch):
    (job,) = jobs(store, ("LS",), (0, 25))
    train = Stacked.train

    def spoil(self, *arguments, **more):
        sent = train(self, *arguments, **more)
        if self.data.seeds == (25,):
            sent.mean[0, 3] = float("nan")
        return sent

    monkeypatch.setattr(Stacked, "train", spoil)
    with pytest.raises(NonFiniteLossError, match="found nan for client 3, seed 25, round 1"):
        federated.run(store, [job])
    assert store.read(spec(job.task, job.method, 0)) is not None
    (rest,) = jobs(store, ("LS",), (0, 25))
    assert rest.seeds == (25,)


# --- without the command line's packages


def test_the_bare_command(tmp_path: Path, capsys):
    out = tmp_path / "cells"
    arguments = ["digits-rotation", "digits-class2", "--methods", "LS,OMDgd-TCH,AdaOMDgd-TCH", "--seeds", "0,25"]
    arguments += ["--rounds", "2", "--out", str(out)]
    bare.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    # AdaOMDgd has the step of OMDgd on rotation (0.03), another one with two classes (0.01 and 1).
    assert [line.split(":")[0] for line in lines] == ["digits-rotation"] * 2 + ["digits-class2"] * 3
    names = sorted(path.name for path in out.glob("*.json"))
    assert len(names) == 2 * (2 + 3)
    specs = [json.loads((out / name).read_text())["spec"] for name in names]
    assert {cell["seed"] for cell in specs} == {0, 25}
    bare.main(arguments)
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in out.glob("*.json")) == names


def test_the_bare_command_says_what_it_does_not_know(tmp_path: Path):
    with pytest.raises(UnknownNameError, match="nearest: digits-rotation"):
        bare.main(["digits-rotatio", "--methods", "LS", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        bare.main(["digits-rotation", "--preset", "other"])


def test_it_needs_torch_numpy_and_scipy_alone():
    """Nothing else that is installed is imported on the way."""
    code = """
import sys
refused = {"typer", "click", "rich", "plotly", "matplotlib", "sklearn", "pandas", "yaml", "tqdm", "flwr"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise ImportError("not on this machine: " + name)
sys.meta_path.insert(0, Refuse())
from equipoise.experiments import bare
try:
    bare.main(["--help"])
except SystemExit as end:
    print("left with", end.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert "left with 0" in done.stdout, done.stderr
