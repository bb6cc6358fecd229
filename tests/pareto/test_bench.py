"""The bench of one network for every trade-off, `python benchmarks/pareto_set.py`, in small."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks import pareto_set as bench

import equipoise as eq

DOCS = Path(__file__).parents[2] / "docs"


def test_scalars_by_hand():
    f, w = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert bench.tch(f, w).item() == pytest.approx((1.5 + 1.5) / 2)
    assert bench.ls(f, w).item() == pytest.approx((2.0 + 2.0) / 2)
    assert bench.stch(f, w, 1e-3).item() == pytest.approx(1.5, abs=1e-4)
    on_the_ray = 1 / w
    assert bench.cosmos(on_the_ray, w).item() == pytest.approx(2.0 - 10.0, rel=1e-5)


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_ray_meets_the_front(name: str):
    bench.check_rays(name)
    assert len(bench.SETTINGS[getattr(eq.problems, name)().m].rays) == 91


def test_the_exact_solution_has_the_best_score():
    problem = eq.problems.VLMOP2()

    class Exact(torch.nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            # On the Pareto set x = t/√d, f₁ = 1 − exp(−(t − 1)²).
            f1 = problem.solution(w.double())[:, 0]
            t = 1 - (-torch.log1p(-f1)).sqrt()
            x: torch.Tensor = t.unsqueeze(-1).expand(-1, problem.d) / problem.d**0.5
            return x

    found = bench.score(problem, Exact(), bench.SETTINGS[2].rays)
    assert found == pytest.approx((0.0, 0.0, 0.0), abs=1e-4)


@pytest.mark.parametrize("method", ["ours", "TCH"])
def test_a_method_can_be_trained(method: str):
    setting = bench.SETTINGS[2]._replace(steps=20, rows=32)
    net = bench.train(eq.problems.F1(), bench.METHODS[method], setting, 0.2, 1)
    median, largest, excess = bench.score(eq.problems.F1(), net, setting.rays)
    assert 0 < median <= largest
    assert excess > 0


def test_verdicts_are_by_the_median_of_ours():
    results = {"VLMOP2": {"0.0": {"ours": [[0.031, 1.0, 0.0, 1.0], [0.031, 2.0, 0.0, 1.0]], "TCH": [[0.5, 1, 1, 1]]}}}
    text = bench.table(results)
    assert "| VLMOP2 | 0 % | 3.1 | 50 | – | – | – | – | 200 | ≤ 3 %: FAIL |" in text
    results["VLMOP2"]["0.0"]["ours"] = [[0.02, 1.0, 0.0, 1.0], [0.039, 2.0, 0.0, 1.0]]
    assert "PASS" in bench.table(results)


def test_the_page_has_the_published_table():
    published = json.loads((DOCS / "results" / "pareto-set.json").read_text(encoding="utf-8"))
    page = (DOCS / "howto" / "one-model.md").read_text(encoding="utf-8")
    assert bench.table(published["scores"]) in page
