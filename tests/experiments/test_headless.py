"""The federated experiments with only torch, numpy and scipy installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.errors import UnknownNameError
from equipoise.experiments import headless


def test_the_headless_command(tmp_path: Path, capsys):
    out = tmp_path / "cells"
    arguments = ["digits-rotation", "digits-class2", "--methods", "LS,OMDgd-TCH,AdaOMDgd-TCH", "--seeds", "0,25"]
    arguments += ["--rounds", "2", "--out", str(out)]
    headless.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    # AdaOMDgd has the step of OMDgd on rotation (0.03), another one with two classes (0.01 and 1).
    assert [line.split(":")[0] for line in lines] == ["digits-rotation"] * 2 + ["digits-class2"] * 3
    names = sorted(path.name for path in out.glob("*.json"))
    assert len(names) == 2 * (2 + 3)
    specs = [json.loads((out / name).read_text())["spec"] for name in names]
    assert {cell["seed"] for cell in specs} == {0, 25}
    called = [json.loads((out / name).read_text())["names"] for name in names]
    assert sorted((of["task"], of["method"], of["output"]) for of in called)[::2] == [
        ("digits-class2", "AdaOMDgd-TCH", "adaptive"),
        ("digits-class2", "LS", "last"),
        ("digits-class2", "OMDgd-TCH", "average"),
        ("digits-rotation", "LS", "last"),
        ("digits-rotation", "OMDgd-TCH; AdaOMDgd-TCH", "average; adaptive"),
    ]
    headless.main(arguments)
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in out.glob("*.json")) == names


def test_the_headless_command_says_what_it_does_not_know(tmp_path: Path):
    with pytest.raises(UnknownNameError, match="nearest: digits-rotation"):
        headless.main(["digits-rotatio", "--methods", "LS", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        headless.main(["digits-rotation", "--preset", "other"])


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
from equipoise.experiments import headless
try:
    headless.main(["--help"])
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
