"""The bench of one conditioned model against five, `python -m benchmarks.pareto_networks`."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks import pareto_networks as bench
from torch import nn

import equipoise as eq

ROOT = Path(__file__).parents[2]


def row(points, seconds):
    return {"test": points, "along": points, "seconds": seconds}


def test_summary_by_hand():
    found = {
        "rays": [0.5, 0.8],
        "reference": {"1": 1.0},
        "rows": {
            "five models": [row([[0.4, 0.2], [0.1, 0.5]], [1.0, 3.0])],
            "one model": [row([[0.2, 0.2], [0.2, 0.4]], [3.0])],
        },
    }
    table = bench.summary(found)
    assert table["five models"]["tch"].tolist() == pytest.approx([0.2, 0.1])  # the larger of w₁f₁ and w₂f₂
    assert table["one model"]["against"]["tch"].tolist() == pytest.approx([0.5, 1.6])
    assert table["one model"]["against"]["seconds"] == pytest.approx(1.5)
    assert table["five models"]["volume"]["1"].tolist() == pytest.approx([0.6 * 0.8 + 0.3 * 0.5])


class Small:
    """Ten steps on two parabolas."""

    name, margin = "Small", 0.2
    rays: tuple[float, ...] = (0.3, 0.7)
    reference = {"5": 5.0}  # noqa: RUF012
    setting = {"steps": 10}  # noqa: RUF012

    def begin(self, seed, *, conditioned):
        torch.manual_seed(seed)
        model: nn.Module = nn.Linear(1, 1)
        model = eq.conditioned(model, 2) if conditioned else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return bench.Training(model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))

    def batches(self):
        yield from [torch.ones(4, 1)] * 10

    def losses(self, call, batch):
        x = call(batch)
        return torch.cat([x.square(), (x - 2).square()], 1).mean(0)

    def many(self, model, pareto, batch):
        x = model(batch, preference=pareto.draw(len(batch)))
        return torch.cat([x.square(), (x - 2).square()], 1)

    def test(self, call):
        return self.losses(call, torch.ones(1, 1)).tolist()


def test_in_small(capsys):
    found = json.loads(json.dumps({"Small": bench.run(Small(), [0])}))
    rows = found["Small"]["rows"]
    assert [len(rows[name][0]["seconds"]) for name in rows] == [2, 1, 2]
    assert len(rows["one model"][0]["along"]) == bench.ALONG
    bench.show(found)
    assert "| one model |" in capsys.readouterr().out


def test_the_page_shows_what_was_measured(capsys):
    bench.show(json.loads((ROOT / "docs" / "results" / "pareto-networks.json").read_text()))
    shown = capsys.readouterr().out
    page = (ROOT / "docs" / "howto" / "condition-a-model.md").read_text()
    lines = [line for line in shown.splitlines() if line.startswith(("| five", "| one"))]
    assert len(lines) == 6
    for line in lines:
        assert line in page
