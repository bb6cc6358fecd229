"""The example app in real processes: see `e2e.py`, which `make flower-e2e` runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

SCRIPT = Path(__file__).with_name("e2e.py")


def run(*scenarios: str) -> str:
    command = [sys.executable, str(SCRIPT), *scenarios]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("nothing left behind") == len(scenarios)
    return found.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'flwr[simulation]'"
)
def test_a_simulation_on_ray_is_the_in_process_grid():
    assert "objectives heard in every round: [10, 10, 10, 10, 10, 10, 10, 10, 10, 10]" in run("simulation")


@pytest.mark.slow
def test_deployed_a_lost_node_comes_back_and_a_killed_server_is_resumed():
    seen = run("lost", "killed")
    assert "the run goes on without it" in seen
    assert "resumed against undisturbed: λ, model and solution differ by at most 0.0e+00" in seen
