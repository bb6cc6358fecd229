"""The CIFAR-10 tables: the runs they need, and their arithmetic on synthetic cells."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.datasets import Dataset
from equipoise.errors import NonFiniteLossError, UnknownNameError
from equipoise.experiments import headless, paper
from equipoise.experiments.comparison import Number, sheet
from equipoise.experiments.federated import figures, rows, runs, settings
from equipoise.experiments.federated.rows import CIFAR, wanted
from equipoise.experiments.federated.runs import spec
from equipoise.experiments.federated.scores import METRICS, entries_of, paired, score
from equipoise.experiments.federated.settings import (
    EXACT_FERERO,
    METHODS,
    MOMENTUM,
    PREFERENCES,
    SEEDS,
    Run,
    row,
    tasks,
)
from equipoise.experiments.federated.table_preference import HEADS, OUTPUTS, compare_preferences, complete
from equipoise.experiments.federated.table_ratio import compare_ratios, ratios
from equipoise.experiments.item import Request
from equipoise.experiments.paper import Preset, Score
from equipoise.experiments.render import origin
from equipoise.experiments.report.sources import read
from equipoise.experiments.report.training import runs_by_task
from equipoise.experiments.results import PUBLISHED, CellStore, cell_name, cells_in
from equipoise.experiments.tabular import count
from equipoise.federated import Dense, simulate
from equipoise.identity import spec as identity
from equipoise.simplex import project


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "150"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def scores(
    values: tuple[float, float, float] = (60.0, 1.2, 4.0),
    losses: tuple[float, ...] = (1.0, 1.2),
    accuracies: tuple[float, ...] = (64.0, 56.0),
) -> dict[str, Any]:
    metrics = dict(zip(("accuracy", "agnostic_loss", "accuracy_parity"), values, strict=True))
    return {**metrics, "client_losses": list(losses), "client_accuracies": list(accuracies)}


def cell(
    outputs: dict[str, dict[str, Any]] | None = None,
    first: dict[str, Any] | None = None,
    untrained: dict[str, Any] | None = None,
    seconds: float = 0.4,
) -> dict[str, Any]:
    """A cell as `runs.cell` writes it for CIFAR-10."""
    names = ("last", "average", "adaptive", "own")
    found = {name: scores() for name in names} | (outputs or {})
    return {
        "outputs": {name: {"train": of, "test": of} for name, of in found.items()},
        "untrained": untrained or scores(),
        "first": {name: first or scores() for name in names},
        "curves": {
            name: {"round": [1, 5], "train_loss": [2.0, 1.0], "test_loss": [2.5, 1.5], "test_accuracy": [20.0, 40.0]}
            for name in names
        },
        "round_loss": [2.0, 1.8, 1.5, 1.2, 1.0],
        "coefficients": [[0.5, 0.5]],
        "archive": [1],
        "seconds_per_round": seconds,
    }


def write(store: CellStore, one: Run, seed: int, made: dict[str, Any]) -> None:
    job = replace(one, seeds=(seed,))
    store.write(job.spec(seed), made, job.labels, "a made-up GPU")


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    return CellStore(tmp_path / "cells", ())


# ------------------------------------------------------------------------------- specifications
def test_what_other_cells_do_not_have_is_not_in_their_specification():
    task, method = tasks()["mnist-rotation"], row("OMDgd-TCH", "mnist-rotation").method
    plain = spec(task, method, 0)
    assert set(plain) == {"experiment", "task", "weighting", "transform", "seed", "precision", "every"}
    assert spec(task, method, 0, preference=(0.1,) * 10)["preference"] == [0.1] * 10
    assert spec(tasks()["cifar-rotation"], method, 0)["evaluated"] == {"parts": ["test"], "first": True}
    assert "conversion" not in spec(task, replace(method, conversion=eq.Adaptive()), 0)
    assert spec(task, eq.methods()["equipoise"], 0)["conversion"] == identity(eq.Suffix())
    assert spec(task, eq.methods()["OptOMD-TCH"], 0)["conversion"] == identity(eq.Adaptive(8.0, 8))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no cells but those that a test makes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Request, "store", property(lambda request: CellStore(request.out / "cells", ())))


def test_the_published_cells_are_found():
    store = CellStore(Path("nowhere"), (PUBLISHED,))
    mnist = rows.rows(("mnist-rotation", "mnist-class2", "mnist-class5"), rows.ALL, "published")
    for one in mnist:
        assert tuple(replace(one, seeds=SEEDS).found(store)) == SEEDS, (one.task_name, one.name)
    for one in wanted("table-cifar"):
        assert list(replace(one, seeds=SEEDS).found(store))[:3] == [0, 25, 37], (one.task_name, one.name)
    for name in ("table-stch", "table-ablation", "table-evaluation-data", "table-ratio", "table-text"):
        for one in wanted(name, "text" if name == "table-text" else "published"):
            assert list(replace(one, seeds=SEEDS).found(store))[:3] == [0, 25, 37], (name, one.name)


def test_the_default_reports_its_own_conversion():
    assert row("equipoise", "cifar-rotation").output == "own"
    assert row("AdaLS", "cifar-rotation").output == "adaptive"
    assert row("AdaTCH", "cifar-rotation").method.weighting == row("TCH", "cifar-rotation").method.weighting


def test_momentum_has_its_own_values():
    mus = [row(MOMENTUM, task).method.weighting for task in CIFAR]
    assert mus == [eq.Momentum(eq.SmoothTchebycheff(mu), "released") for mu in (0.01, 0.03, 0.01)]
    assert row(MOMENTUM, "cifar-class2", "text").method.weighting == eq.Momentum(eq.SmoothTchebycheff(0.03))


def test_seeds_and_precision():
    assert settings.seeds_of("mnist-class2") == SEEDS
    assert settings.seeds_of("cifar-two") == settings.seeds_of("digits-class2") == (0, 25, 37)
    assert settings.precision_of("cifar-rotation") == "bfloat16"
    assert settings.precision_of("cifar-rotation", "tf32") == "tf32"
    assert settings.precision_of("mnist-rotation") is None


def test_where_the_losses_come_from():
    published, text = tasks()["cifar-rotation"], tasks("text")["cifar-rotation"]
    sources = settings.EVALUATION_DATA[:3]
    assert [settings.evaluated_on(published, data).loss for data in sources] == [
        "trajectory",
        "full-updated",
        "validation-trajectory",
    ]
    assert [settings.evaluated_on(text, data, "text").loss for data in sources] == ["received", "full", "validation"]
    assert settings.evaluated_on(published, "mini") == published  # its cells are those of tab:3
    apart = settings.evaluated_on(published, "val for dominance")
    assert (apart.loss, apart.dominance) == ("trajectory", "validation-trajectory")
    apart = settings.evaluated_on(text, "val for dominance", "text")
    assert (apart.loss, apart.dominance) == ("received", "validation")


def test_the_ratio_trick():
    stch = row("STCH", "cifar-rotation")
    assert settings.by_ratios(stch).method.weighting == eq.Relative(stch.method.weighting)
    assert settings.by_ratios(stch).output == stch.output
    ls, ada = row("LS", "cifar-rotation"), row("AdaOMDeg-TCH", "cifar-rotation")
    assert settings.by_ratios(ls) == ls
    assert settings.by_ratios(ada).method.weighting == eq.Relative(ada.method.weighting, "first")
    assert settings.by_ratios(ada, "text").method.weighting == eq.Relative(ada.method.weighting)


def test_what_the_groups_consist_of():
    names = {group: [one.title for one in wanted(group)] for group in rows.GROUPS}
    assert names["table-cifar"] == [*METHODS, EXACT_FERERO, "equipoise"] * 3
    assert names["table-evaluation-data"][:3] == ["AdaOMDgd-TCH, mini", "AdaOMDgd-TCH, full", "AdaOMDgd-TCH, val"]
    assert names["table-ratio"] == [*paper.RATIOS, "AdaOMDeg-TCH, every round"]
    assert set(names["table-stch"]) == {"STCH", MOMENTUM, "AdaOMDeg-TCH", "AdaOMDgd-TCH"}
    assert len(names["table-preference"]) == 3 * (len(paper.PREFERENCES) + 2)
    assert {one.task.loss for one in wanted("table-text")} == {"received"}
    assert {one.asked(3, None, None).task.rounds for one in wanted("table-cifar")} == {3}
    # No new run: LS and TCH have an adaptive output.
    seen = {cell_name(one.spec(0)) for one in wanted("table-cifar")}
    assert {cell_name(one.spec(0)) for one in wanted("table-ablation")} <= seen
    with pytest.raises(UnknownNameError, match="nearest: table-ratio"):
        wanted("table-ration")


# ------------------------------------------------------------------------------- runs
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A few small images and a linear model instead of CIFAR-10 and a ResNet."""
    draws = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=draws) for n in (100, 200)]
    labels = [torch.arange(n) % 10 for n in (100, 200)]
    data = Dataset("cifar10", images[0], labels[0], images[1], labels[1], tuple("0123456789"), 255)
    honest = settings.tasks

    def linear(preset: Preset = "published") -> Any:
        found = honest(preset)
        for name, task in found.items():
            if task.data == "cifar10":
                found[name] = replace(task, model=Dense((192, 10)), work=replace(task.work, batch_size=10))
        return found

    monkeypatch.setattr(settings, "tasks", linear)
    monkeypatch.setattr(runs, "simulate", lambda *a, **k: simulate(*a, **k, dataset=data))
    monkeypatch.setattr("equipoise.experiments.federated.compute.datasets.load", lambda *_: data)
    return data


def only(group: str, name: str, rounds: int, preset: Preset = "published") -> list[Run]:
    return [one.asked(rounds, None, None) for one in wanted(group, preset) if one.name == name]


@pytest.mark.usefixtures("small")
def test_every_group_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "cells"
    options = ["--rounds", "2", "--seeds", "0", "--precision", "float32", "--out", str(out)]
    headless.main(["table-evaluation-data", "table-ratio", "table-preference", *options])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 + 8 + 10  # the preferences of a method together
    assert len(list(out.glob("*.json"))) == 8 + 8 + 3 * 10
    assert sum("validation-trajectory loss: seeds" in line for line in lines) == 2
    assert sum("validation-trajectory loss for dominance" in line for line in lines) == 2
    assert sum("preference 0.75, 0.25" in line for line in lines) == 10
    assert sum("span='first'" in line for line in lines) == 1
    headless.main(["table-ratio", "--methods", "TCH,STCH", *options])
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("small")
def test_a_group_and_a_task_may_be_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--rounds", "1", "--seeds", "0", "--methods", "LS,AdaTCH", "--out", str(tmp_path)]
    headless.main(["table-ablation", "cifar-two", *options])
    found = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert found == [task for task in CIFAR for _ in range(2)] + ["cifar-two"] * 2
    with pytest.raises(UnknownNameError, match="found 'table-cifa'; nearest: table-cifar"):
        headless.main(["table-cifa"])


def test_what_a_cell_holds(small: Dataset, store: CellStore):
    (one,) = [one for one in only("table-cifar", "equipoise", 5) if one.task_name == "cifar-rotation"]
    job = replace(one, seeds=(0,), precision="float32")
    runs.run(store, [job])
    result = store.read(job.spec(0))
    assert result is not None
    assert set(result["outputs"]) == {"last", "average", "adaptive", "own"}
    assert result["curves"]["own"]["round"] == [1, 5]
    found = simulate(one.task, one.method, dataset=small)
    worst = found.history.losses[:, 0].max(-1).values.tolist()
    assert result["round_loss"] == pytest.approx(worst, rel=1e-5)
    assert result["curves"]["last"]["train_loss"] == pytest.approx([worst[0], worst[4]], rel=1e-5)
    # After one round the average is θ⁽²⁾, and so is the last; the adaptive output has seen θ⁽¹⁾ alone.
    first = {name: of["client_losses"] for name, of in result["first"].items()}
    assert first["last"] == pytest.approx(first["average"], rel=1e-5)
    assert first["adaptive"] == pytest.approx(result["untrained"]["client_losses"], rel=1e-5)
    once = simulate(replace(one.task, rounds=1), one.method, dataset=small)
    assert first["last"] == pytest.approx(once.test["last"].losses[0].tolist(), rel=1e-5)
    assert result["outputs"]["last"]["train"]["client_losses"] == pytest.approx(
        found.train["last"].losses[0].tolist(), rel=1e-5
    )
    assert store.read(one.spec(0)) is None  # that of bfloat16


def test_a_preference_decides_the_steps(small: Dataset):
    """W = m w: gains s W∘f, θ ← θ − Σ λ_i W_i (θ − θ_i); the worst client's model; w ∘ softmax(w∘f/μ)."""
    w = torch.tensor((0.75, 0.25), dtype=torch.float64)

    def steps(name: str, preset: Preset = "published") -> tuple[torch.Tensor, torch.Tensor]:
        (one,) = [one for one in only("table-preference", name, 3, preset) if one.preference == (0.75, 0.25)]
        history = simulate(one.task, one.method, preference=one.preference, dataset=small).history
        return history.losses[:, 0].double(), history.coefficients[:, 0].double()

    _, c = steps("LS")
    torch.testing.assert_close(c, w.expand(3, 2), rtol=0, atol=1e-6)
    f, c = steps("OMDgd-TCH")
    dual = torch.tensor((0.5, 0.5), dtype=torch.float64)
    for t in range(3):
        torch.testing.assert_close(c[t], dual * 2 * w, rtol=1e-5, atol=1e-6)
        dual = project(dual + 1.0 * 2 * w * f[t])  # s = 1 on CIFAR rotation
    _, c = steps("ExcessMTL")  # λ_i ∝ λ_i exp(s W_i e_i/e_i⁽⁰⁾): both clients have learnt nearly as much
    torch.testing.assert_close(c[1], 0.5 * 2 * w, rtol=1e-5, atol=1e-6)
    assert 0.5 < (c[2, 0] / c[2, 1] / 3).log() < 1.0
    f, c = steps("TCH")
    assert c.tolist() == [[float(i == k) for i in range(2)] for k in (w * f).argmax(-1).tolist()]
    f, c = steps("TCH", "text")
    assert c.tolist() == [[2 * w[i].item() * (i == k) for i in range(2)] for k in (w * f).argmax(-1).tolist()]
    f, c = steps("STCH")
    torch.testing.assert_close(c, 2 * w * torch.softmax(w * f / 0.01, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small")
def test_preferences_are_run_together(tmp_path: Path):
    rows = [one for name in ("LS", "equipoise") for one in only("table-preference", name, 2)]
    jobs = [replace(one, seeds=(0, 25), precision="float32") for one in rows]
    assert [[job.preference for job in group] for group in runs.alike(jobs)] == [list(PREFERENCES)] * 2
    whole, single = (CellStore(tmp_path / name, ()) for name in ("whole", "single"))
    for group in runs.alike(jobs):
        assert runs.attempt(whole, group, together=6) == []
        for job in group:
            runs.run(single, [job])
            for seed in job.to_run:
                a, b = (store.read(job.spec(seed)) for store in (whole, single))
                assert a is not None
                assert b is not None
                for output, scores in b["outputs"].items():
                    assert a["outputs"][output]["test"]["client_losses"] == pytest.approx(
                        scores["test"]["client_losses"], rel=1e-3
                    )
    with pytest.raises(ValueError, match="jobs must differ in their preferences alone"):
        runs.run(whole, jobs)


def test_where_one_of_several_is_lost_the_others_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jobs = [replace(one, seeds=(0,)) for one in only("table-preference", "TCH", 2)]
    tried: list[list[settings.Preference | None]] = []

    def run(_store: CellStore, group: list[Run], **_options: object) -> None:
        tried.append([job.preference for job in group])
        if (0.75, 0.25) in tried[-1]:
            raise NonFiniteLossError("loss must be finite")

    monkeypatch.setattr(runs, "run", run)
    lost = runs.attempt(CellStore(tmp_path, ()), jobs)
    assert [job.preference for job, _ in lost] == [(0.75, 0.25)]
    assert tried == [list(PREFERENCES), *([one] for one in PREFERENCES)]


@pytest.mark.usefixtures("small")
def test_a_time_limit_leaves_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (one,) = [one for one in only("table-cifar", "LS", 4) if one.task_name == "cifar-class5"]
    whole, stopped = (CellStore(tmp_path / name, ()) for name in ("whole", "stopped"))
    job = replace(one, seeds=(0,), precision="float32")
    runs.run(whole, [job])
    with pytest.raises(TimeoutError, match="time is up after round 1 of 4"):
        runs.run(stopped, [job], deadline=time.monotonic())
    assert list(stopped.folder.glob("*.json")) == []
    seen: list[int] = []
    runs.run(stopped, [job], progress=seen.append)
    assert seen == [2, 3, 4]
    a, b = (found.read(job.spec(0)) for found in (whole, stopped))
    assert a is not None
    assert b is not None
    assert (a["outputs"], a["curves"], a["first"]) == (b["outputs"], b["curves"], b["first"])

    names = ["table-ratio", "--methods", "LS", "--seeds", "0", "--rounds", "2", "--out", str(tmp_path / "bare")]
    with pytest.raises(SystemExit) as left:
        headless.main([*names, "--limit-s", "0"])
    assert left.value.code == 3
    assert "what is left was not begun" in capsys.readouterr().out
    headless.main([*names, "--limit-s", "1000"])
    assert "cifar-rotation: Linear(ideal=0.0), trajectory loss: seeds 0:" in capsys.readouterr().out


# ------------------------------------------------------------------------------- the paper's numbers
def test_numbers_of_the_smaller_tables():
    momentum = paper.known("cifar-class5", MOMENTUM)
    assert tuple(momentum) == METRICS
    assert tuple(momentum.values()) == ((54.240, 1.656), (1.637, 0.048), (7.335, 1.253))  # deviations of STCH
    ada = paper.known("cifar-class2", "AdaTCH")
    assert ada == {"accuracy": (21.150, 6.355), "accuracy_parity": (16.345, 3.398)}
    full = paper.known("cifar-rotation", "AdaOMDeg-TCH, full")
    assert tuple(full.values()) == ((65.913, 0.610), (1.130, 0.045), (3.372, 0.646))
    assert paper.known("cifar-rotation", "LS") == paper.SCORES["cifar-rotation"]["LS"]
    assert paper.known("cifar-rotation", "equipoise") == {}
    for name in ("AdaOMDgd-TCH", "AdaOMDeg-TCH"):  # printed a second time
        assert paper.SMALLER["cifar-rotation"][f"{name}, mini"] == paper.SCORES["cifar-rotation"][name]
    assert tuple(paper.PREFERENCES["OMDgd-TCH"].values())[:2] == ((9.166, 0.065), (0.168, 0.001))
    assert paper.RATIOS["AdaOMDgd-TCH"] == {"agnostic_ratio": (0.465, 0), "ratio_parity": (0.043, 0)}
    overall = {name: tuple(of.values())[2:] for name, of in paper.PREFERENCES.items() if "overall_loss" in of}
    assert overall == {"OMDgd-TCH": ((1.521, 0), (62.533, 0)), "AdaOMDgd-TCH": ((1.495, 0), (65.357, 0))}


# ------------------------------------------------------------------------------- rows and their seeds
def test_rows_are_shown_with_the_seeds_that_there_are(store: CellStore):
    rows = {one.name: one for one in wanted("table-adaptive") if one.task_name == "cifar-rotation"}
    for seed, accuracy in ((0, 59.0), (25, 60.0), (2003, 61.0)):
        write(store, rows["OMDgd-TCH"], seed, cell({"average": scores((accuracy, 1.2, 2.0))}))
    for seed, accuracy in ((25, 66.0), (2003, 68.0)):
        write(store, rows["AdaOMDgd-TCH"], seed, cell({"adaptive": scores((accuracy, 1.1, 3.0))}))
    found = entries_of(store, rows.values(), "published")
    assert [(one.name, one.seeds) for one in found] == [
        ("OMDgd-TCH", (0, 25, 2003)),
        ("AdaOMDgd-TCH", (25, 2003)),
    ]
    assert found[0].score("accuracy").mean == 60.0
    differences = {pair.metric: pair for pair in paired(found, {"AdaOMDgd-TCH": "OMDgd-TCH"})}
    assert differences["accuracy"].ours == (6.5, 0.5)  # seeds 25 and 2003
    assert differences["accuracy"].paper == pytest.approx((66.218 - 59.244, 0.0))
    assert paired(found) == []  # there is no LS
    assert [
        one.name for one in entries_of(store, [replace(one, seeds=(0, 25)) for one in rows.values()], "published")
    ] == ["OMDgd-TCH"]
    assert entries_of(store, [replace(one, precision="tf32") for one in rows.values()], "published") == []


def test_the_ablations_share_a_cell(store: CellStore):
    (ls,) = [one for one in wanted("table-ablation") if one.name == "LS" and one.task_name == "cifar-class2"]
    made = cell({"last": scores((38.0, 2.5, 21.0)), "adaptive": scores((37.0, 2.4, 22.0))})
    write(store, ls, 0, made)
    found = {one.name: one for one in entries_of(store, wanted("table-ablation"), "published")}
    assert set(found) == {"LS", "AdaLS"}
    assert found["AdaLS"].score("accuracy").mean == 37.0
    assert found["AdaLS"].number("accuracy").deviations == pytest.approx((37.0 - 38.095) / 2.325)
    assert found["AdaLS"].number("agnostic_loss").within is None  # the paper does not print it
    assert {pair.metric for pair in paired(found.values(), {"AdaLS": "LS"})} == {"accuracy", "accuracy_parity"}


# ------------------------------------------------------------------------------- ratios
def test_ratios_by_hand(store: CellStore):
    rows = {one.title: one for one in wanted("table-ratio")}
    for seed, last in ((0, (1.0, 0.5)), (25, (1.2, 0.9))):
        made = cell(
            {"last": scores(losses=last), "adaptive": scores(losses=(0.8, 0.8))},
            scores(losses=(2.0, 2.0)),
            scores(losses=(4.0, 2.0)),
        )
        write(store, rows["TCH"], seed, made)
        write(store, rows["AdaOMDgd-TCH"], seed, made)
    found = entries_of(store, rows.values(), "published")
    assert [one.name for one in found] == ["TCH", "AdaOMDgd-TCH"]
    agnostic, parity = ratios(found[0], "first")
    assert agnostic.tolist() == pytest.approx([0.5, 0.6])
    assert parity.tolist() == pytest.approx([0.125, 0.075])
    agnostic, parity = ratios(found[0], "untrained")
    assert agnostic.tolist() == pytest.approx([0.25, 0.45])
    assert parity.tolist() == pytest.approx([0.0, 0.075])
    assert ratios(found[1], "untrained")[0].tolist() == pytest.approx([0.4, 0.4])
    compared = compare_ratios(found)
    tch = compared["first"][0]
    assert (tch.method, tch.metric, tch.paper) == ("TCH", "agnostic_ratio", (0.648, 0))
    assert tch.ours == pytest.approx((0.55, 0.05))
    assert tch.deviations == pytest.approx((0.55 - 0.648) / 0.05)
    assert tch.within  # 1.96 of our own deviations
    assert {one.paper for one in compared["untrained"]} == {None}


def test_a_deviation_of_nothing_claims_nothing():
    one = Number("cifar-rotation", "LS", "agnostic_ratio", (0,), Score(0.5, 0.0), Score(0.656, 0.0))
    assert one.within is None
    assert replace(one, paper=Score(0.656, 0.1)).within is True
    assert replace(one, paper=Score(0.656, 0.07)).within is False
    assert replace(one, paper=Score(0.656, 0.1), claimed=False).within is None


# ------------------------------------------------------------------------------- preferences
LOSSES = ((1.0, 3.0), (2.0, 2.0), (3.0, 1.0))
ACCURACIES = ((60.0, 40.0), (50.0, 50.0), (20.0, 70.0))


def preferred(store: CellStore, name: str, seed: int, losses: Any = LOSSES, accuracies: Any = ACCURACIES) -> None:
    rows = [one for one in wanted("table-preference") if one.name == name]
    assert [one.preference for one in rows] == list(PREFERENCES)
    for one, loss, accuracy in zip(rows, losses, accuracies, strict=True):
        write(store, one, seed, cell({one.output: scores(losses=loss, accuracies=accuracy)}))


def test_preferences_by_hand(store: CellStore):
    preferred(store, "OMDgd-TCH", 0)
    preferred(store, "OMDgd-TCH", 25, ((1.0, 1.0), (5.0, 0.5), (2.0, 2.0)))
    preferred(store, "LS", 0)
    rows = wanted("table-preference")

    def compare(rows: Any, seeds: Any = None) -> list[Number]:
        return compare_preferences(complete(store, [replace(one, seeds=seeds) for one in rows]), "published")

    compared = {(one.method, one.metric): one for one in compare(rows)}
    assert {method for method, _ in compared} == {"LS", "OMDgd-TCH"}
    # Strips below 4: 3·1 + 2·1 + 1·1, and 3·3 of one point, one being beyond the reference and one dominated.
    assert compared["OMDgd-TCH", "loss_hypervolume"].ours == pytest.approx((7.5, 1.5))
    assert compared["OMDgd-TCH", "loss_hypervolume"].deviations == pytest.approx((7.5 - 9.166) / 0.065)
    # 0.3·0.1 + 0.2·0.1; the accuracy 0.2 is beyond the reference.
    assert compared["LS", "accuracy_hypervolume"].ours == pytest.approx((0.05, 0.0))
    assert compared["LS", "overall_loss"].ours == (2.0, 0.0)
    assert compared["LS", "overall_loss"].paper is None
    overall = compared["OMDgd-TCH", "overall_accuracy"]
    assert overall.ours == pytest.approx((290 / 6, 0.0))
    assert overall.paper == (62.533, 0)
    assert compare(rows, (0, 25))[0].method == "OMDgd-TCH"
    assert {one.paper for one in compare([one.asked(45, None, None) for one in wanted("table-preference")])} > {None}


def test_every_output_of_the_same_runs(store: CellStore):
    rows = [one for one in wanted("table-preference") if one.name == "LS"]
    for one, loss in zip(rows, LOSSES, strict=True):
        better = scores(losses=tuple(x / 2 for x in loss), accuracies=(65.0, 65.0))
        both = {output: scores(losses=loss, accuracies=(60.0, 40.0)) for output in ("last", "adaptive")}
        write(store, one, 0, cell({**both, "average": better}))
    (runs,) = complete(store, wanted("table-preference")).values()
    assert OUTPUTS == ("last", "adaptive", "average")
    found = {output: {metric: score(of) for metric, of in runs.metrics(output).items()} for output in OUTPUTS}
    assert found["last"] == found["adaptive"]
    assert found["last"]["loss_hypervolume"] == pytest.approx((6.0, 0.0))
    # Strips below 4: 3.5·2.5 + 3·0.5 + 2.5·0.5.
    assert found["average"]["loss_hypervolume"] == pytest.approx((11.5, 0.0))
    assert found["average"]["accuracy_hypervolume"] == pytest.approx((0.35**2, 0.0))
    assert complete(store, [replace(one, seeds=(0, 25)) for one in wanted("table-preference")]) == {}


def test_a_seed_without_all_preferences_does_not_count(store: CellStore):
    (one, *_) = only("table-preference", "TCH", 45)
    write(store, one, 0, cell())
    assert complete(store, wanted("table-preference")) == {}


# ------------------------------------------------------------------------------- what is shown
def test_runs_on_cifar_are_not_begun_silently(tmp_path: Path):
    output = command("reproduce", "table-stch", "--out", tmp_path)
    # Four trajectories on three tasks, with ten seeds for two classes and three elsewhere; 5 ms for an image.
    assert "64 runs are missing; they take about 3.4 days here, and are not made: say --yes to make them." in output
    assert "headless table-stch --device cuda; then here: equipoise runs import cells." in output
    assert "there are no runs to show yet" in output
    assert not (tmp_path / "cells").exists()
    output = command("reproduce", "table-preference", "--methods", "LS", "--seeds", "0", "--out", tmp_path)
    assert "3 runs are missing; they take about 9.4 hours here" in output
    assert "headless table-preference --methods 'LS' --seeds 0 --device cuda" in output


def test_rows_without_runs_are_named(store: CellStore, tmp_path: Path):
    for one in wanted("table-stch"):
        if one.task_name == "cifar-class2" or one.name == "STCH":
            write(store, one, 0, cell())
    page = tmp_path / "page.md"
    output = command("reproduce", "table-stch", "--out", tmp_path, "--markdown", page)
    absent = f"{MOMENTUM}, AdaOMDeg-TCH, AdaOMDgd-TCH"
    line = f"Not shown, for want of runs: cifar-rotation: {absent}; cifar-class5: {absent}"
    assert line in output.splitlines()
    assert f"\n\n{line}\n\n" in page.read_text(encoding="utf-8")
    output = command("reproduce", "table-stch", "--task", "cifar-class2", "--out", tmp_path)
    assert "Not shown" not in output


def test_a_preference_that_lacks_a_run_leaves_its_method_out_by_name(store: CellStore, tmp_path: Path):
    rows = [one for one in wanted("table-preference") if one.name in {"LS", "TCH"}]
    for one in rows[:-1]:
        write(store, one, 0, cell())
    output = command("reproduce", "table-preference", "--methods", "LS,TCH", "--out", tmp_path)
    assert "Not shown, for want of runs: cifar-two: TCH" in output.splitlines()


@pytest.mark.usefixtures("small")
def test_with_yes_they_are_made(tmp_path: Path):
    asked = ("--rounds", "1", "--seeds", "0", "--precision", "float32", "--out", tmp_path, "--yes")
    output = command("reproduce", "table-preference", "--methods", "LS", *asked)
    assert "3 runs are missing; they take about 12 minutes here, and are made now; what is finished is kept" in output
    assert "there is nothing that can be compared with the paper" in output  # one round
    output = command("reproduce", "table-evaluation-data", "--methods", "AdaOMDgd-TCH", *asked)
    assert "nothing is claimed" in output
    assert "AdaOMDgd-TCH, val" in output


def test_the_page_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("equipoise.experiments.results.provenance", lambda _device: MADE)
    store = CellStore(tmp_path / "cells", ())
    for one in wanted("table-cifar"):
        theirs = paper.known(one.task_name, one.name) or paper.SCORES[one.task_name]["LS"]
        for seed, sign in ((0, -1), (25, 1)):
            values = tuple(s.mean + sign * s.std for s in theirs.values())
            assert len(values) == 3
            shown = scores((values[0] + (99 if one.name == "LS" else 0), values[1], values[2]))
            job = replace(one, seeds=(seed,))
            known = store.read(job.spec(seed)) or cell()
            known["outputs"][one.output] = {"train": shown, "test": shown}
            known.pop("made", None)
            store.write(job.spec(seed), known)
    file = tmp_path / "page.md"
    output = command("reproduce", "table-cifar", "--out", tmp_path, "--markdown", file, "--json", tmp_path / "t.json")
    assert "132 of 135 numbers within two of the paper's standard deviations" in output
    assert "tab:3, cifar-rotation, bfloat16, seeds 0, 25" in output
    page = file.read_text()
    assert page.startswith("# The federated table on CIFAR-10 (tab:3)\n\n    equipoise reproduce table-cifar\n")
    assert "Made on a made-up GPU on 2026-01-02, with torch 2.9.1." in page
    assert (
        "| AdaOMDgd-TCH | 66.22±0.47 ✓ | 66.22±0.47 | 1.148±0.037 ✓ | 1.148±0.037 | 3.59±0.49 ✓ | 3.59±0.49 |" in page
    )
    assert "- outside: LS on cifar-class2, accuracy: 137.925±2.325, paper 38.925±2.325, +42.6 of its deviations" in page
    assert "| equipoise | " in page
    records = json.loads((tmp_path / "t.json").read_text())
    assert len(records) == 3 * 17 * 3
    own = next(record for record in records if record["method"] == "equipoise")
    assert (own["output"], own["within"]) == ("own", None)
    assert "table-time does not take" not in command(
        "reproduce", "table-time", "--task", "cifar-rotation", "--out", tmp_path, "--markdown", file
    )
    assert "| LS | 400.00 | 1.00 | 9748 | 1.00 |" in file.read_text()
    for name in ("table-adaptive", "table-ablation"):
        output = command("reproduce", name, "--seeds", "0,25", "--out", tmp_path)
        assert "within two standard deviations of ours" in output


MADE = {"equipoise": "0", "commit": "", "device": "a made-up GPU", "date": "2026-01-02", "torch": "2.9.1"}


def test_a_date_is_not_claimed_for_runs_without_one():
    dated, undated = {"made": MADE}, {"made": {**MADE, "date": "", "torch": ""}}
    both = "Made on a made-up GPU, those with a date on 2026-01-02, with torch 2.9.1 (not kept for all runs)."
    assert origin([dated, undated]) == both
    assert origin([undated]) == "Made on a made-up GPU."
    later = {"made": {**MADE, "date": "2026-01-05", "device": "another"}}
    between = "Made on a made-up GPU, another between 2026-01-02 and 2026-01-05, with torch 2.9.1."
    assert origin([dated, later]) == between
    assert origin([]) == ""


def test_the_tables_of_ratios_and_preferences(tmp_path: Path):
    store = CellStore(tmp_path / "cells", ())
    for one in wanted("table-ratio"):
        for seed, loss in ((0, 1.0), (25, 1.2)):
            made = scores(losses=(loss, 1.0))
            write(store, one, seed, cell({one.output: made}, scores(losses=(2.0, 2.0)), scores(losses=(4.0, 4.0))))
    file = tmp_path / "page.md"
    output = command("reproduce", "table-ratio", "--seeds", "0,25", "--out", tmp_path, "--markdown", file)
    page = file.read_text()
    assert "| LS | 2 | 0.550±0.050 ✗ | 0.656 | 0.025±0.025 ✗ | 0.087 |" in page
    assert "over the test loss of the untrained model" in page
    assert "| LS | 2 | 0.275±0.025 | 0.013±0.013 |" in page
    assert "of 14 numbers within two of our own standard deviations (the paper prints none)" in output
    assert "| AdaOMDeg-TCH, every round | 2 |" in page
    preferred(store, "AdaOMDgd-TCH", 0)
    output = command(
        "reproduce", "table-preference", "--methods", "AdaOMDgd-TCH", "--seeds", "0", "--out", tmp_path,
        "--markdown", file, "--json", tmp_path / "t.json",
    )  # fmt: skip
    assert "| AdaOMDgd-TCH | 1 | 6.000 ✗ | 7.005±0.106 | 0.050 ✗ | 0.159±0.002 |" in file.read_text()
    assert "0 of 2 numbers within two of the paper's standard deviations" in output
    assert "outside: AdaOMDgd-TCH, loss_hypervolume: 6.000, paper 7.005±0.106, -9.5 deviations" in output
    assert [record["metric"] for record in json.loads((tmp_path / "t.json").read_text())][:2] == [
        "loss_hypervolume",
        "accuracy_hypervolume",
    ]
    assert "does not take --task" in str(
        CliRunner().invoke(app, ["reproduce", "table-ratio", "--task", "cifar-two"]).exception
    )


def drawn(line: Any) -> Any:
    return line.get_xydata().tolist()


def test_curves_show_what_was_measured(store: CellStore):
    """Not the losses along the local steps, which are no method's answer."""
    one = only("table-adaptive", "OMDgd-TCH", 45)[0]
    write(store, one, 0, cell())
    found = entries_of(store, [one], "published")
    (test,) = figures.curves([("cifar-rotation", found)]).axes
    assert drawn(test.lines[0]) == [[1, 2.5], [5, 1.5]]
    assert test.get_title().endswith("on test samples")
    left, _ = figures.conversion([("cifar-rotation", found)]).axes
    assert drawn(left.lines[0]) == [[1, 2.5], [5, 1.5]]
    assert left.get_title().endswith(": seed 0")


@pytest.mark.parametrize("name", ["fig-federated", "fig-conversion", "fig-curves", "fig-parity", "fig-box"])
def test_figures_of_cifar(name: str, tmp_path: Path):
    store = CellStore(tmp_path / "cells", ())
    for one in wanted("table-cifar"):
        if one.task_name == "cifar-class2" and one.name in {"LS", "AdaOMDgd-TCH"}:
            for seed in (0, 25):
                write(store, one, seed, cell())
    command("reproduce", name, "--task", "cifar-class2", "--methods", "LS,AdaOMDgd-TCH", "--out", tmp_path)
    assert (tmp_path / f"{name}-cifar-published.png").read_bytes()[:4] == b"\x89PNG"


def test_cells_of_cifar_are_counted_by_their_names(tmp_path: Path):
    store = CellStore(tmp_path, ())
    for name in ("table-evaluation-data", "table-ratio", "table-preference"):
        write(store, wanted(name)[1], 0, cell())
    assert count(cells_in([tmp_path])) == {
        ("federated", "cifar-rotation, full-updated loss, 45 rounds", "AdaOMDgd-TCH"): 1,
        ("federated", "cifar-rotation, 45 rounds", "TCH, ratios"): 1,
        ("federated", "cifar-two, 45 rounds", "LS"): 1,
    }


def test_what_a_report_calls_these_runs(store: CellStore):
    for k in (1, 3):
        write(store, wanted("table-evaluation-data")[k], 0, cell())
    write(store, wanted("table-preference")[1], 0, cell())
    for name in ("TCH", "AdaOMDeg-TCH"):
        write(store, only("table-ratio", name, 45)[0], 0, cell())
    for one in wanted("table-cifar"):
        if one.task_name == "cifar-class2" and one.name in {"LS", "equipoise"}:
            write(store, one, 0, cell({"own": scores((70.0, 1.0, 1.0))}))
    found = {run.title: run for run in runs_by_task(read([store.folder], []))}
    extra = "training loss along the local steps"
    assert {title: [entry.name for entry in run.entries] for title, run in found.items()} == {
        f"cifar-rotation, {extra}": [
            "TCH, ratios",
            "AdaOMDeg-TCH, ratio in the first round alone",
        ],
        f"cifar-rotation, full-updated loss, {extra}": ["AdaOMDgd-TCH"],
        f"cifar-rotation, validation-trajectory loss for dominance, {extra}": ["AdaOMDgd-TCH"],
        f"cifar-class2, {extra}": ["LS", "equipoise"],
        f"cifar-two, preference 0.75, 0.25, {extra}": ["LS"],
    }
    ls, own = found[f"cifar-class2, {extra}"].entries
    assert ls.number("accuracy").within is False  # 60 against 38.9 ± 2.3
    assert own.score("accuracy").mean == 70.0
    assert found[f"cifar-class2, {extra}"].table_command == (
        "equipoise reproduce table-cifar --task cifar-class2 --seeds 0 --methods LS,equipoise"
    )
    assert found[f"cifar-two, preference 0.75, 0.25, {extra}"].table_command == "equipoise reproduce table-preference"
    for other in ("full-updated loss", "validation-trajectory loss for dominance"):
        (apart,) = found[f"cifar-rotation, {other}, {extra}"].entries
        assert apart.number("accuracy").within is None
        assert found[f"cifar-rotation, {other}, {extra}"].table_command == "equipoise reproduce table-evaluation-data"


def test_the_widest_table_fits_eighty_columns() -> None:
    names = (EXACT_FERERO, "AdaOMDgd-TCH", "a method of a long name, of many words")
    ours, theirs = Score(13.456, 0.456), Score(12.345, 0.3)
    rows = [Number("cifar-two", name, metric, SEEDS, ours, theirs) for name in names for metric in HEADS]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(sheet("tab:new", rows, HEADS, {"overall_accuracy": 2}).table())
    assert "…" not in shown.get()
    assert shown.get().count("13.456±0.456 ✗") == 3 * 3
