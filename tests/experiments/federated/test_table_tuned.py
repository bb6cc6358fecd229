"""tab:2 by a command: every value that the paper tried, and the one with the smallest worst-client training loss."""

import json

from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.federated import settings, table_tuned
from equipoise.experiments.paper import TRIED


def run(folder, *words):
    done = CliRunner().invoke(app, [*words, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_smallest_loss_wins():
    assert table_tuned.best({0.1: 0.5, 0.2: 0.4, 0.5: None}) == 0.2
    assert table_tuned.best({0.1: None}) is None


def test_the_table_is_the_search_of_fl(tmp_path):
    file = tmp_path / "tuned.json"
    words = ["--methods", "FedFV,LS", "--rounds", "2", "--json", str(file)]
    output = run(tmp_path, "reproduce", "table-tuned", *words)
    assert "LS has no setting in tab:2" in output
    (record,) = json.loads(file.read_text())
    losses = {float(value): loss for value, loss in record["losses"].items()}
    assert tuple(losses) == TRIED["FedFV"]
    assert record["best"] == min(losses, key=losses.__getitem__)
    assert record["paper"] == settings.tuned("FedFV", "digits-rotation")
    searched = run(tmp_path, "fl", "--method", "FedFV", "--tune", "--rounds", "2")
    assert f"best value: {record['best']:g}" in searched
    assert "3 of 3 runs read" in searched  # the same runs


def test_runs_with_another_value_are_named_by_it(tmp_path):
    run(tmp_path, "fl", "--method", "STCH", "--value", "0.3", "--rounds", "2")
    names = [json.loads(path.read_text())["names"]["method"] for path in (tmp_path / "cells").glob("*.json")]
    assert names == ["STCH (0.3)"]
