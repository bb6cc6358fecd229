"""Two processes with their parts of a batch are one process with all of it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

SCRIPT = Path(__file__).with_name("two_processes.py")
MODULE = runpy.run_path(str(SCRIPT))
NAMES = [name for name in MODULE["RUNS"] if name != "spoiled"]
Found = dict[str, Any]


def test_two_processes_do_what_one_does(tmp_path: Path):
    """One spawn makes all the runs; every check looks at them."""
    first, second, single = spawn(tmp_path)
    check_that_groups_are_unevenly_spread(single)
    for name in NAMES:
        check_that_the_ranks_agree_bit_for_bit(name, first, second)
        check_that_they_do_what_one_process_does(name, first, single)
    for found in (first, second, single):
        check_that_a_resumed_run_is_the_run_that_was_not_interrupted(found)
        # On the last rank alone a loss was not finite.
        assert found["spoiled"]["message"] == "losses must be finite; found nan for 1 in step 1"


def spawn(folder: Path) -> list[Found]:
    """What the two ranks found, and the single process meanwhile."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), "2", str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        single = MODULE["everything"](1, 0, folder)
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return [*(torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)), single]


def tensors(found: Found, name: str) -> dict[str, torch.Tensor]:
    return dict(MODULE["tensors"](found[name]))


def check_that_groups_are_unevenly_spread(single: Found) -> None:
    groups = MODULE["draw_groups"]()
    assert groups[2].unique().tolist() == [0]
    assert groups[3, :11].unique().tolist() == [1]
    assert len(groups[3, 11:].unique()) > 1
    duals, _ = single["OMD"]["steps"].unbind(1)
    assert duals.shape == (10, 3)
    torch.testing.assert_close(duals.sum(-1), torch.ones(10, dtype=torch.float64))
    assert not torch.allclose(duals[0], duals[-1])


def check_that_the_ranks_agree_bit_for_bit(name: str, first: Found, second: Found) -> None:
    """λ and coefficients of every step, archive, parameters, solution."""
    ours, theirs = tensors(first, name), tensors(second, name)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 10
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), f"{name}: {key}"


def check_that_they_do_what_one_process_does(name: str, first: Found, single: Found) -> None:
    ours, theirs = tensors(first, name), tensors(single, name)
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.allclose(tensor, theirs[key], rtol=1e-9, atol=1e-12, equal_nan=True), f"{name}: {key}"


def check_that_a_resumed_run_is_the_run_that_was_not_interrupted(found: Found) -> None:
    whole, resumed = tensors(found, "OMD"), tensors(found, "interrupted")
    for key, tensor in whole.items():
        assert torch.equal(tensor, resumed[key]), key
