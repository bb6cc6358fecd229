"""Interrupted runs: resumed bit for bit, refused by other configurations, never half written."""

import copy
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq

ADAPTIVE = eq.Adaptive(power=2, capacity=3)
WEIGHTINGS = {
    "OMD": eq.OMD(optimism=1.0),
    "entropic": eq.OMD(0.5, eq.Entropic()),
    "STCH": eq.SmoothTchebycheff(0.1),
    "momentum": eq.Momentum(eq.MGDA()),
    "relative": eq.Relative(eq.OMD()),
    "MoCo tracking": eq.MoCo(0.5, tracking=0.3),
    "ExcessMTL": eq.ExcessRisk(),
    "PMTL": eq.PMTL(((0.2, 0.3, 0.5), (0.5, 0.3, 0.2))),
}
Step = Callable[[Any, eq.MultiObjective, int], None]


def plainly(run: Any, mol: eq.MultiObjective, step: int) -> None:
    run.run(mol, 1, step)


def accumulating(run: Any, mol: eq.MultiObjective, step: int) -> None:
    for part in range(3):
        (mol(run.losses(3 * step + part), counts=[part + 1, 2, 1]) / 3).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def in_bfloat16(run: Any, mol: eq.MultiObjective, step: int) -> None:
    x, y = run.batch(step)
    with torch.autocast("cpu", torch.bfloat16):
        losses = (run.model(x) - y.bfloat16()).square().mean(0)
    mol(losses).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def through_a_file(*parts: Any) -> list[Any]:
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    loaded: list[Any] = torch.load(file, weights_only=True)
    return loaded


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("step", [plainly, accumulating, in_bfloat16], ids=lambda f: f.__name__)
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_a_resumed_run_is_the_run_that_was_not_interrupted(weighting, step: Step, toy, preference):
    def make() -> tuple[Any, eq.MultiObjective]:
        run = toy(torch.optim.Adam)
        return run, eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, ADAPTIVE), every=2)

    whole, first, second = make(), make(), make()
    for number in range(9):
        step(*whole, number)
    for number in range(5):
        step(*first, number)
    step(*second, 7)  # what it did before must not matter
    saved = through_a_file(first[1], first[0].model, first[0].optimizer)
    for part, state in zip((second[1], second[0].model, second[0].optimizer), saved, strict=True):
        part.load_state_dict(state)
    for number in range(5, 9):
        step(*second, number)
    assert_same(second[0].params(), whole[0].params())
    assert_same(second[1].state_dict()["tensors"], whole[1].state_dict()["tensors"])
    assert_same(second[1].solution(), whole[1].solution())
    assert second[1].step == whole[1].step == 9


@pytest.mark.parametrize("conversion", [eq.Last(), eq.Average(), ADAPTIVE, eq.Suffix(capacity=3)], ids=str)
def test_the_round_trip_is_exact_from_the_first_moment(conversion, toy, preference):
    run, other = toy(), toy()
    left = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), conversion))
    right = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), conversion))
    keys = left.state_dict()["tensors"].keys()
    run.run(left, 3)
    assert left.state_dict()["tensors"].keys() == keys
    (saved,) = through_a_file(left)
    right.load_state_dict(saved)
    assert_same(right.state_dict()["tensors"], left.state_dict()["tensors"])
    torch.testing.assert_close(right.state_dict()["history"], left.state_dict()["history"], rtol=0, atol=0)
    rest = left.state_dict().keys() - {"tensors", "history"}
    assert {key: right.state_dict()[key] for key in rest} == {key: left.state_dict()[key] for key in rest}


def test_a_loaded_state_is_not_shared(toy, preference):
    run, other = toy(), toy()
    left = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    right = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(left, 2)
    right.load_state_dict(left.state_dict())
    before = {name: x.clone() for name, x in right.state_dict()["tensors"].items()}
    run.run(left, 4, 2)
    assert_same(right.state_dict()["tensors"], before)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "step size": ({"method": (eq.OMD(0.1), ADAPTIVE)}, "weighting.step_size must be 0.1; found 'adaptive'"),
    "mirror": (
        {"method": (eq.OMD(mirror=eq.Entropic()), ADAPTIVE)},
        "weighting.mirror must be Entropic; found Euclidean",
    ),
    "weighting": ({"method": (eq.MGDA(), ADAPTIVE)}, "weighting must be MGDA; found OMD"),
    "capacity": ({"method": (eq.OMD(), eq.Adaptive(2, 4))}, "conversion.capacity must be 4; found 3"),
    "preference": ({"preference": [0.25, 0.25, 0.5]}, "preference must be [0.25, 0.25, 0.5]; found [0.2"),
    "names": ({"names": ("a", "b", "c")}, "names must be ('a', 'b', 'c'); found None"),
    "every": ({"every": 5}, "every must be 5; found 1"),
    "parameters": (
        {"parameters": ["0.weight"]},
        "parameters must be no others beside those in common; found {'0.bias': ",
    ),
}


@pytest.mark.parametrize(("change", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_a_checkpoint_of_another_configuration_says_which_field_differs(change, message, toy, preference):
    run, other = toy(), toy()
    saved = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE)).state_dict()
    settings = {"preference": preference, "method": (eq.OMD(), ADAPTIVE), **change}
    mol = eq.MultiObjective(other.model, other.optimizer, **settings)
    other.run(mol, 2)
    before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
    with pytest.raises(eq.StateMismatchError, match=re.escape(message)):
        mol.load_state_dict(saved)
    assert_same(mol.state_dict()["tensors"], before)
    assert mol.step == 2


def test_a_checkpoint_of_another_model(toy, preference):
    run = toy()
    saved = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE)).state_dict()
    mol = eq.MultiObjective(torch.nn.Linear(3, 2), None, preference, method=(eq.OMD(), ADAPTIVE))
    with pytest.raises(eq.StateMismatchError, match=r"parameters must be \{'weight': \(\(2, 3\)"):
        mol.load_state_dict(saved)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_only_the_parameters_that_differ_are_named(preference):
    def layers(last: int, *, compiled: bool = False) -> eq.MultiObjective:
        model: torch.nn.Module = torch.nn.Sequential(
            *(torch.nn.Linear(3, 3) for _ in range(100)), torch.nn.Linear(3, last)
        )
        whole = torch.compile(model) if compiled else model
        assert isinstance(whole, torch.nn.Module)
        return eq.MultiObjective(whole, None, preference)

    with pytest.raises(eq.StateMismatchError) as told:
        layers(4).load_state_dict(layers(5).state_dict())
    kind = "'torch.float32'"
    ours, theirs = (f"'100.weight': (({n}, 3), {kind}), '100.bias': (({n},), {kind})" for n in (4, 5))
    rule = f"parameters must be {{{ours}}} beside those in common; found {{{theirs}}} beside those in common"
    assert str(told.value).endswith(f"{rule} in the checkpoint")
    with pytest.raises(eq.StateMismatchError, match=r"and 198 more .*its names have the prefix _orig_mod\.$"):
        layers(4, compiled=True).load_state_dict(layers(4).state_dict())


def test_a_changed_preference_is_loaded_with_the_first_one(toy, preference):
    run, other = toy(), toy()
    mol, later = eq.MultiObjective(run.model, run.optimizer, preference), [0.2, 0.2, 0.6]
    run.run(mol, 2)
    mol.set_preference(later)
    run.run(mol, 2)
    with pytest.raises(eq.StateMismatchError, match="load with the preference that the run began with; set_preference"):
        eq.MultiObjective(other.model, other.optimizer, later).load_state_dict(mol.state_dict())
    resumed = eq.MultiObjective(other.model, other.optimizer, preference)
    resumed.load_state_dict(mol.state_dict())
    assert resumed.preference.tolist() == pytest.approx(later)


def test_a_state_stays_as_it_is_while_the_run_goes_on(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 20)
    kept = mol.state_dict()
    copied = copy.deepcopy(kept)
    run.run(mol, 20, 20)
    assert_same(kept["tensors"], copied["tensors"])
    assert kept["history"] == copied["history"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"step": -1}, "found step = -1"),
        ({"step": "12"}, "found step = 12"),
        ({"recorded": 1.5}, r"found recorded = 1\.5"),
        ({"compared": "so"}, "found compared = so"),
        ({"steers": None, "accumulates": 2}, "found accumulates = 2, steers = None"),
        ({"statistics": {"mean": 3}}, "found statistics"),
        ({"history": [[1.0, 2.0]]}, "a history of rows of 10 numbers"),
        ({"weighting.dual": [torch.nan, 0.5, 0.5]}, r"found weights = \[nan"),
        ({"weighting.dual": [0.5, 0.5, 0.5]}, r"found weights = \[0\.5"),
        ({"weighting.dual": [-0.5, 1.0, 0.5]}, r"found weights = \[-0\.5"),
        ({"following": [torch.inf, 0.5, 0.5]}, "found coefficients"),
        ({"coefficients": [torch.nan, 0.5, 0.5]}, "found coefficients"),
    ],
)
def test_values_that_no_run_has_are_refused_before_anything_changes(entries, message, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 3)
    bad = mol.state_dict()
    tensors = {k: torch.tensor(v, dtype=bad["tensors"][k].dtype) for k, v in entries.items() if k in bad["tensors"]}
    bad = {**bad, **{k: v for k, v in entries.items() if k in bad}, "tensors": {**bad["tensors"], **tensors}}
    run.run(mol, 3, 3)
    before = mol.state_dict()
    with pytest.raises(eq.StateMismatchError, match=message):
        mol.load_state_dict(bad)
    after = mol.state_dict()
    assert_same(after.pop("tensors"), before.pop("tensors"))
    assert after == before


def test_a_loaded_run_still_knows_that_its_steps_have_several_calls(toy, preference):
    runs = [toy(), toy()]
    mols = [eq.MultiObjective(r.model, r.optimizer, preference, method=(eq.Tchebycheff(), eq.Last())) for r in runs]
    accumulating(runs[0], mols[0], 0)
    assert mols[0].state_dict()["accumulates"]
    mols[1].load_state_dict(mols[0].state_dict())
    assert mols[1].state_dict()["accumulates"]


def test_a_damaged_checkpoint(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    whole = mol.state_dict()
    with pytest.raises(eq.StateMismatchError, match="checkpoint must have the entries"):
        mol.load_state_dict({k: v for k, v in whole.items() if k != "step"})
    less = {k: v for k, v in whole["tensors"].items() if k != "weighting.dual"}
    with pytest.raises(eq.StateMismatchError, match=r"missing \['weighting.dual'\]"):
        mol.load_state_dict({**whole, "tensors": less})
    with pytest.raises(eq.StateMismatchError, match=r"weighting.dual must have shape \(3,\); found \(4,\)"):
        mol.load_state_dict({**whole, "tensors": {**whole["tensors"], "weighting.dual": torch.zeros(4)}})


def test_save_leaves_one_file_and_replaces_it(tmp_path):
    path = tmp_path / "run.pt"
    for version in range(2):
        eq.train.save({"version": version, "x": torch.full((3,), float(version))}, path)
        assert torch.load(path, weights_only=True)["version"] == version
    with pytest.raises(Exception, match="pickle"):
        eq.train.save(lambda: None, path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    assert torch.load(path, weights_only=True)["version"] == 1


FOREVER = """
import itertools, sys, torch
from equipoise.train import save
for version in itertools.count():
    save({"version": version, "x": torch.full((4_000_000,), float(version))}, sys.argv[1])
    print(version, flush=True)
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_old_checkpoint_readable(tmp_path: Path):
    path = tmp_path / "run.pt"
    process = subprocess.Popen([sys.executable, "-c", FOREVER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(2):
            finished = int(process.stdout.readline())
        for _ in range(10_000):
            # Held still, it is in the middle of a save if there is a partial file.
            os.kill(process.pid, signal.SIGSTOP)
            partial = [file.stat().st_size for file in tmp_path.iterdir() if file.name.endswith(".part")]
            if any(partial):
                break
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.003)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
    assert len(list(tmp_path.glob(".run.pt.*.part"))) == 1
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["version"] >= finished
    assert bool((checkpoint["x"] == checkpoint["version"]).all())


def test_numbers_of_a_mismatch_are_short_unless_they_would_look_alike(toy):
    def made(w):
        return eq.MultiObjective(toy().model, None, torch.tensor(w), method=(eq.OMD(), eq.Last()))

    saved = made([0.3, 0.3, 0.4]).state_dict()
    with pytest.raises(eq.StateMismatchError, match=re.escape("must be [0.2, 0.4, 0.4]; found [0.3, 0.3, 0.4]")):
        made([0.2, 0.4, 0.4]).load_state_dict(saved)
    with pytest.raises(eq.StateMismatchError, match=re.escape("found [0.30000001192092896, ")):
        made([0.3000003, 0.2999997, 0.4]).load_state_dict(saved)
