"""The bench of drawn batches, `python benchmarks/domain_costs.py`, in small."""

import json

import pytest
import torch
from benchmarks import domain_costs as bench
from examples.languages import Reader, Size

TINY = Size(width=8, layers=1, heads=2, context=8, windows=6, warm=0, steps=0, held_out=0)


@pytest.mark.parametrize("claimed", [0.0, 1e9])
def test_it_ends_in_a_table_and_a_verdict(monkeypatch, tmp_path, capsys, claimed):
    monkeypatch.setattr(bench, "WINDOWS", (9, 4, 12, 3, 3, 2))
    monkeypatch.setattr(bench, "plans", lambda *_, **__: [bench.Plan(TINY, 1, 2, 0.0)])
    monkeypatch.setattr(bench, "CLAIM", {"sampler and losses": claimed})
    code = bench.main(["--check", "--quick", "--json", str(tmp_path / "out" / "costs.json")])
    assert code == (0 if claimed else 1)
    found = json.loads((tmp_path / "out" / "costs.json").read_text())
    assert [row["name"] for row in found["rows"]] == list(bench.CANDIDATES)
    said = capsys.readouterr().out
    for row in found["rows"]:
        assert row["low"] <= row["measured"] <= row["high"]
        assert f"{row['measured']:.4f}" in said
        assert row["verdict"] == ("" if row["at_most"] is None else "PASS" if claimed else "FAIL")
    ((model, turns),) = found["milliseconds"].items()
    assert model == "0.0 million parameters"
    assert [len(times) for times in turns.values()] == [3] * 5


def test_a_device_gets_models_of_the_sizes_that_are_claimed():
    small, large = bench.plans(torch.device("cuda"), quick=False)
    numbers = [sum(p.numel() for p in Reader(plan.size).parameters()) for plan in (small, large)]
    assert numbers == [11_041_024, 49_892_096]


def test_candidates_read_with_workers_too_and_the_drawn_ones_train_on_their_draws():
    text = bench.random_text(TINY.context, (9, 4, 12, 3, 3, 2))
    assert text.languages.bincount().tolist() == [9, 4, 12, 3, 3, 2]
    assert [int(text.windows[text.languages == k].max()) < 24 + 40 * k for k in range(6)] == [True] * 6
    one = bench.Candidate("default, drawn", TINY, text, torch.device("cpu"), workers=1)
    for _ in range(3):
        one.step()
    assert one.mol is not None
    assert one.mol.recorded > 0
    assert one.sampler is not None
    assert one.sampler.state_dict()["step"] == 3
    one.close()
