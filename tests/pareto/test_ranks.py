"""Two processes with half of the rows each do what one process does with all of them."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("two_ranks.py")


def test_two_ranks_do_what_one_does(tmp_path: Path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    command = [sys.executable, str(SCRIPT)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(2)
    ]
    alone = runpy.run_path(str(SCRIPT))["train"](0, 1)
    for process in ranks:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output.decode()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first["duals"], second["duals"])
    assert first["step"] == second["step"] == alone["step"]
    assert (first["duals"] - 0.5).abs().max() > 0.01  # λ has moved
    torch.testing.assert_close(first["duals"], alone["duals"], rtol=1e-3, atol=1e-4)
    for name, x in alone["solution"].items():
        assert torch.equal(first["solution"][name], second["solution"][name])
        torch.testing.assert_close(first["solution"][name], x, rtol=1e-3, atol=1e-5)
    assert torch.equal(first["drawn"], alone["drawn"])
    assert not torch.equal(first["drawn"], second["drawn"])  # every rank draws preferences of its own
