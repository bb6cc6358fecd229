"""Federated runs: one cell per trajectory and seed, computed once and never incomplete."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import NonFiniteLossError
from equipoise.experiments.federated import rows, runs
from equipoise.experiments.federated.runs import absent, spec
from equipoise.experiments.federated.settings import Run, row, sized, tasks
from equipoise.experiments.results import CellStore, cells_in
from equipoise.federated import PartialClass, simulate
from equipoise.federated.stacked import Stacked


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    return CellStore(tmp_path / "cells", ())


def jobs(store: CellStore, names: tuple[str, ...], seeds: tuple[int, ...] = (0,), rounds: int = 2) -> list[Run]:
    wanted = rows.rows(["digits-rotation"], names, "published")
    return absent(store, [replace(one, task=sized(one.task, rounds), seeds=seeds) for one in wanted])


def test_a_finished_cell_is_not_run_again(store: CellStore):
    (job,) = jobs(store, ("LS",), (0, 25))
    assert job.seeds == (0, 25)
    assert job.task.rounds == 2
    runs.run(store, [job])
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
    runs.run(store, [job])
    assert jobs(store, ("AdaOMDgd-TCH",)) == []
    result = store.read(spec(job.task, job.method, 0))
    assert result is not None
    assert set(result["outputs"]) == {"last", "average", "adaptive"}
    (found,) = cells_in([store.folder])
    assert found.names == {
        "task": "digits-rotation", "method": "OMDgd-TCH; AdaOMDgd-TCH", "output": "average; adaptive",
    }  # fmt: skip


def test_a_cell_of_other_settings_is_another_cell(store: CellStore):
    (job,) = jobs(store, ("OMDgd-TCH",))
    runs.run(store, [job])
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
    runs.run(store, [job], progress=seen.append)
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
    assert cell["made"]["device"]


def test_seeds_together_or_one_by_one(tmp_path: Path):
    cells = []
    for together in (1, 2):
        store = CellStore(tmp_path / str(together), ())
        (job,) = jobs(store, ("OMDeg-TCH",), (0, 25))
        seen: list[int] = []
        runs.run(store, [job], together=together, progress=seen.append)
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


def interrupted(store: CellStore, job: Run, at: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Run until so many rounds are done, a checkpoint after each."""

    def stop(done: int) -> None:
        if done == at:
            raise StoppedError

    with monkeypatch.context() as hasty:
        hasty.setattr(runs, "simulate", lambda *a, **k: simulate(*a, **k, checkpoint_seconds=0))
        with pytest.raises(StoppedError):
            runs.run(store, [job], progress=stop, **options)


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
        runs.run(store, [job], progress=seen.append)
        assert seen[0] == (8 if name == "interrupted" else 1)
        cell = store.read(spec(job.task, job.method, 0))
        assert cell is not None
        cell.pop("seconds_per_round")
        cell.pop("made")  # they may be made before and after midnight
        cells.append(cell)
    assert cells[0] == cells[1]


def test_an_unfinished_run_of_other_seeds_is_no_obstacle(store: CellStore, monkeypatch):
    (first,) = jobs(store, ("LS",), (0, 25))
    interrupted(store, first, 2, monkeypatch, together=2)
    (other,) = jobs(store, ("LS",), (0, 37))
    runs.run(store, [other], together=2)
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
        runs.run(store, [job])
    assert store.read(spec(job.task, job.method, 0)) is not None
    (rest,) = jobs(store, ("LS",), (0, 25))
    assert rest.seeds == (25,)
