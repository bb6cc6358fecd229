"""The bench of limits against Cooper, `python benchmarks/limits.py`, in small."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from benchmarks import limits as bench


@pytest.mark.parametrize("task", [bench.quadratic(), bench.logistic()], ids=lambda task: task.name)
def test_the_known_solution_is_that_of_a_quadratic_penalty(task):
    point = task.model().double()
    optimizer = torch.optim.LBFGS(point.parameters(), max_iter=1000, line_search_fn="strong_wolfe")
    limits = torch.tensor(list(task.limits.values()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = task.losses(point, None)
        value: torch.Tensor = losses[0] + 1e3 * (losses[1:] - limits).clamp_min(0).square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    objective, *limited = task.losses(point, None).tolist()
    assert limited == pytest.approx(limits.tolist(), rel=0.01)  # all are active
    assert objective == pytest.approx(task.best, rel=0.01)


def answer(objective: float, violation: float) -> bench.Answer:
    return bench.Answer("some", objective, violation)


@pytest.mark.parametrize(
    ("ours", "rival", "verdict"),
    [
        (answer(1.009, 0.049), answer(1.0, 0.0), "PASS"),
        (answer(1.011, 0.0), answer(1.0, 0.0), "FAIL (objective)"),
        (answer(0.9, 0.051), answer(1.0, 0.0), "FAIL (violation)"),
        (answer(float("nan"), float("inf")), answer(1.0, 0.0), "FAIL (violation, objective)"),
        (answer(9.0, 0.0), None, "PASS"),
    ],
)
def test_a_row_passes_if_both_claims_hold(ours, rival, verdict):
    row = bench.Row("task", 1.0, ours, ours, rival, int(rival is not None), 1, {}, None)
    assert row.verdict == verdict


def test_the_rival_is_the_best_answer_that_meets_the_limits(monkeypatch):
    found = {"a": [answer(1.0, 0.02), answer(3.0, 0.0)], "b": [answer(2.0, 0.01)], "c": [], "d": [answer(0.5, 0.3)]}
    monkeypatch.setattr(bench, "cooper_settings", lambda: dict.fromkeys(found))
    monkeypatch.setattr(bench, "coopers", lambda _task, _unit, label, _dual: found[label])
    monkeypatch.setattr(bench, "ours", lambda *_: (answer(1.0, 0.0), answer(1.0, 0.0)))
    row = bench.measure(bench.quadratic(), 1.0)
    assert row.rival == answer(2.0, 0.01)
    assert (row.met, row.settings) == (2, 4)


def test_a_run_that_diverges_has_no_answer():
    task = dataclasses.replace(bench.quadratic(), steps=50)
    assert bench.coopers(task, 100.0, "rate 10", bench.cooper_settings()["rate 10"]) == []
    assert len(bench.coopers(task, 1.0, "rate 0.01", bench.cooper_settings()["rate 0.01"])) == 2


def test_in_small_both_units_meet_the_known_solution(tmp_path, monkeypatch, capsys):
    some = {name: bench.cooper_settings()[name] for name in ("rate 0.1", "nuPI 0.01")}
    monkeypatch.setattr(bench, "cooper_settings", lambda: some)
    monkeypatch.setattr(
        bench, "tasks", lambda _: {"quadratic": lambda: dataclasses.replace(bench.quadratic(), steps=600)}
    )
    assert bench.main(["--check", "--json", str(tmp_path / "t.json")]) == 0
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [row["unit"] for row in rows] == [1.0, 100.0]
    for row in rows:
        _, objective, violation, _ = row["ours"]
        assert objective == pytest.approx(row["best"], rel=0.01)
        assert violation < 0.01
    assert "4 of 4 claims hold" in capsys.readouterr().out


def test_the_page_shows_the_rows_that_were_measured():
    """The columns of ours, of the rival and of the verdict, as in the stored run."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "howto" / "coming-from-cooper.md").read_text()
    rows = json.loads((root / "docs" / "results" / "limits.json").read_text())
    assert len(rows) == 12
    for row in rows:
        [line] = [line for line in page.splitlines() if line.startswith(f"| {row['task']}, × {row['unit']:g} |")]
        answers = {key: None if row[key] is None else bench.Answer(*row[key]) for key in ("ours", "last", "rival")}
        found = bench.Row(**{**row, **answers})
        assert f"| {found.ours.objective:.4f}, " in line
        assert f"| {found.met} of {found.settings} |" in line
        assert "none" in line if found.rival is None else f"| {found.rival.objective:.4f}, " in line
        assert line.endswith("| yes |" if found.verdict == "PASS" else "| **no** |")
