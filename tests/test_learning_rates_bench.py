"""The bench of learning rates, `python benchmarks/learning_rates.py`, in small."""

import json

from benchmarks import learning_rates as bench


def test_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "RATES", ((0.1, 0.0), (1e4, 0.9)))
    path = tmp_path / "rates.json"
    bench.main(["--seeds", "0,1", "--methods", "equipoise,LS", "--steps", "20", "--json", str(path)])
    slow, wild = json.loads(path.read_text())
    assert [len(losses) for losses in slow["losses"].values()] == [2, 2]
    assert all(1.0 < max(losses) < 3.0 for losses in slow["losses"]["LS"])
    assert wild["losses"]["LS"] == [[None] * 3] * 2  # diverged
    assert "| rate 10000, momentum 0.9 | inf, inf (0) | inf, inf |" in capsys.readouterr().out


def test_a_seed_counts_as_behind_if_every_loss_is_larger():
    assert bench.behind([[2.0, 2.0], [2.0, 0.5], [1.0, 1.0]], [[1.0, 1.0]] * 3) == 1
