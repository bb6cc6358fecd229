"""Two processes with parts of a batch equal one process with the whole batch."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch_versions import shards_on_cpu

import equipoise as eq

SCRIPT = Path(__file__).with_name("two_processes.py")
MODULE = runpy.run_path(str(SCRIPT))
NAMES = [name for name in MODULE["RUNS"] if name not in {"spoiled", "sharded, refused"}]
Found = dict[str, Any]


# DCP mentions that one process alone has no group.
@shards_on_cpu
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled, )?unavailable or uninitialized")
def test_two_processes_do_what_one_does(tmp_path: Path):
    """One spawn makes all the runs; every check looks at them."""
    first, second, single = spawn(tmp_path)
    check_that_groups_are_unevenly_spread(single)
    for name in NAMES:
        check_that_the_ranks_agree_bit_for_bit(name, first, second)
        check_that_they_do_what_one_process_does(name, first, single)
    for found in (first, second, single):
        check_that_a_resumed_run_is_the_run_that_was_not_interrupted(found)
        check_that_shards_are_loaded_as_they_were(found)
        # On the last rank alone a loss was not finite.
        assert found["spoiled"]["message"] == "losses must be finite; found nan for objective 1 in step 1"
    check_that_each_rank_keeps_its_shards(first, second, single)
    check_what_shards_cannot_do(first, single)
    check_that_one_process_goes_on_with_what_two_saved(tmp_path, single)


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


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit for bit, NaN being NaN."""
    return torch.equal(left.isnan(), right.isnan()) and torch.equal(left.nan_to_num(), right.nan_to_num())


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
        assert same(tensor, theirs[key]), f"{name}: {key}"


def check_that_they_do_what_one_process_does(name: str, first: Found, single: Found) -> None:
    ours, theirs = tensors(first, name), tensors(single, name)
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.allclose(tensor, theirs[key], rtol=1e-9, atol=1e-12, equal_nan=True), f"{name}: {key}"


def check_that_a_resumed_run_is_the_run_that_was_not_interrupted(found: Found) -> None:
    whole, resumed = tensors(found, "OMD"), tensors(found, "interrupted")
    for key, tensor in whole.items():
        assert same(tensor, resumed[key]), key


def check_that_shards_are_loaded_as_they_were(found: Found) -> None:
    """Saved by torch, resumed; as full tensors; by DCP."""
    whole, resumed = tensors(found, "sharded, interrupted"), tensors(found, "sharded, loaded otherwise")
    for key, tensor in whole.items():
        assert same(tensor, resumed[key]) or key.startswith("params/"), key
    for name, tensor in found["sharded, loaded otherwise"]["solution"].items():
        assert torch.equal(tensor, whole[f"solution/{name}"])
        assert torch.equal(tensor, resumed[f"third/{name}"])
        assert torch.equal(tensor, resumed[f"params/{name}"])  # the model with solution(gather=False) in it


def check_that_each_rank_keeps_its_shards(first: Found, second: Found, single: Found) -> None:
    for name in ("sharded", "sharded in host memory"):
        ours, theirs, whole = (found[name]["bytes"] for found in (first, second, single))
        assert whole["copies"] == 3 * whole["parameters"] == 3 * 8 * 1321
        for rank in (ours, theirs):
            assert rank["copies"] == 3 * rank["parameters"]
            assert abs(rank["copies"] / whole["copies"] - 0.5) < 0.03
        assert ours["copies"] + theirs["copies"] == whole["copies"]
    torch.testing.assert_close(first["sharded"]["steps"], single["sharded"]["steps"], rtol=1e-12, atol=1e-12)
    device, host = tensors(first, "sharded"), tensors(first, "sharded in host memory")
    for key, tensor in device.items():
        assert same(tensor, host[key]), key


def check_what_shards_cannot_do(first: Found, single: Found) -> None:
    gradients, skips = first["sharded, refused"]["messages"]
    assert "weighting must need losses alone where parameters are sharded" in gradients
    assert "found MGDA(" in gradients
    assert 'on_nonfinite must be "raise" where parameters are sharded' in skips
    assert single["sharded, refused"]["messages"] == []


def check_that_one_process_goes_on_with_what_two_saved(folder: Path, single: Found) -> None:
    ours, theirs = dict(MODULE["tensors"](MODULE["resharded"](folder))), tensors(single, "sharded, interrupted")
    theirs["steps"] = theirs["steps"][5:]
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], rtol=1e-9, atol=1e-12, equal_nan=True)

    setting = MODULE["Setting"](eq.OMD(), 1, 0, shards=True)
    shards = torch.load(folder / "sharded-0-of-2.pt", weights_only=True)
    before = {name: x.clone() for name, x in setting.mol.state_dict()["tensors"].items()}
    rule = "must be spread as one tensor; found .* over .2. ranks.*torch.distributed.checkpoint reshards"
    with pytest.raises(eq.StateMismatchError, match=rule):
        setting.mol.load_state_dict(shards["mol"])
    after = setting.mol.state_dict()["tensors"]
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
