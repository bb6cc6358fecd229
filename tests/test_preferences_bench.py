"""The bench of sweeps and changes, `python benchmarks/preferences.py`, in small."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import preferences as bench

ROOT = Path(__file__).parents[1]


def small() -> bench.Task:
    return dataclasses.replace(bench.vlmop2(), steps=100, changes=((0.5, 0.6),))


def made_up(warm: float, test: float | None, cost: float) -> bench.Sweep:
    """Three rays; the cold answer is (2, 1) at w = ½, ½, so that its largest weighted loss is 1."""
    cold = bench.Judged([2.0, 1.0], None if test is None else [2.0, 1.0])
    answer = bench.Judged([1.0, 2.0 * (1 + warm)], None if test is None else [0.0, 2.0 * (1 + test)])
    return bench.Sweep("task", 0, [[0.5, 0.5]] * 3, [cold] * 3, [answer, answer, cold], cost)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (made_up(0.019, None, 4.0), "PASS"),
        (made_up(-0.3, 0.019, 3.7), "PASS"),
        (made_up(0.021, None, 4.0), "FAIL (accuracy)"),
        (made_up(-0.3, 0.021, 3.7), "FAIL (accuracy)"),
        (made_up(0.0, 0.0, 4.01), "FAIL (cost)"),
    ],
)
def test_a_sweep_passes_if_both_claims_hold(row, verdict):
    assert bench.verdict(row.claims) == verdict


def test_the_excess_is_of_the_largest_weighted_loss():
    assert made_up(0.5, None, 1.0).excess("train") == pytest.approx([0.5, 0.5, 0.0])
    assert made_up(0.5, None, 1.0).excess("test") == []


@pytest.mark.parametrize(("changed", "holds"), [(0.049, True), (0.05, False), (float("inf"), False)])
def test_a_change_passes_if_the_imbalance_is_small(changed, holds):
    assert bench.Change("task", 0, 0.5, 0.8, changed, 0.0, 0.0, 0.0).claims == {"imbalance": holds}


def test_the_rate_of_a_sweep_falls_to_0_over_both_parts():
    loop = bench.Loop(dataclasses.replace(small(), decays=True), bench.pair(0.5), seed=0)
    rates = []
    for steps in (70, 33, 33):
        loop.train_part(steps)
        rates.append(loop.optimizer.param_groups[0]["lr"] / 0.02)
    assert rates == pytest.approx([1 - 0.6 * 69 / 70, 0.4 / 33, 0.4 / 33])
    constant = bench.Loop(small(), bench.pair(0.5), seed=0)
    for _ in range(2):
        constant.train_part(2)
        assert constant.optimizer.param_groups[0]["lr"] == 0.02


def test_after_a_change_the_rate_begins_anew_and_lower_with_a_fresh_optimizer():
    task = dataclasses.replace(small(), optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02), decays=True)
    loop = bench.Loop(task, bench.pair(0.5), seed=0)
    loop.train(3)
    loop.change(bench.pair(0.2), 1)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.5)
    loop.change(bench.pair(0.3), 10)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.5 * math.exp(-3.6))
    [state] = loop.optimizer.state.values()
    assert state["step"] == 10
    loop.change(bench.pair(0.4), 2, "cosine")
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.75 / 2)
    assert state["step"] == 12
    assert loop.mol.preferences[-1][1] == pytest.approx([0.4, 0.6])


def test_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "tasks", lambda _: {"vlmop2": small})
    bench.main(["--tasks", "vlmop2", "--json", str(tmp_path / "t.json")])
    found = json.loads((tmp_path / "t.json").read_text())
    [row], [change] = found["sweep"], found["change"]
    assert row["cost"] == pytest.approx(4.0)
    assert len(row["cold"]) == len(row["warm"]) == 10
    assert change["task"] == "VLMOP2"
    assert "of 3 claims hold" in capsys.readouterr().out


def stored() -> tuple[list[bench.Sweep], list[bench.Change]]:
    rows: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "preferences.json").read_text())

    def judged(answers: list[list[Any]]) -> list[bench.Judged]:
        return [bench.Judged(*answer) for answer in answers]

    sweeps = [bench.Sweep(**{**r, "cold": judged(r["cold"]), "warm": judged(r["warm"])}) for r in rows["sweep"]]
    return sweeps, [bench.Change(**row) for row in rows["change"]]


def test_the_page_shows_the_rows_that_were_measured():
    page = (ROOT / "docs" / "tutorial" / "5-no-trade-off-yet.md").read_text()
    sweeps, changes = stored()
    for row in sweeps:
        assert bench.as_line(row) in page
    held = sum(row.claims["imbalance"] for row in changes)
    assert f"{held} of {len(changes)} changes" in " ".join(page.split())
    behind = max(row.excess for row in changes if row.task == "Multi-MNIST")
    assert f"up to {100 * behind:.0f} % above that of a whole run" in page
