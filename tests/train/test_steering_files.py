"""A training that is steered through files: it tells, it follows, and no file stops it."""

import json
import os
import socket
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.atomic import read_json, read_plain, write_json
from equipoise.errors import DamagedFileError
from equipoise.train.steering import MOST_WISH, check_wish, read_status, read_wish, steered, write_wish


class Loop:
    """VLMOP2 in two variables; every step is a look."""

    def __init__(self, **settings: Any) -> None:
        self.x = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
        self.model = torch.nn.ParameterDict({"x": self.x})
        self.optimizer = torch.optim.SGD([self.x], lr=0.05)
        self.mol = eq.MultiObjective(self.model, self.optimizer, {"left": 0.5, "right": 0.5}, **settings)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.mol(eq.problems.VLMOP2(d=2).losses(self.x)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_a_wish_is_followed_after_the_next_step_and_is_in_the_checkpoint(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path / "run", every=1e-9):
        loop.train(3)
        write_wish(tmp_path / "run", [0.2, 0.8])
        assert loop.mol.preference.tolist() == [0.5, 0.5]
        loop.train(2)
    assert [step for step, _ in loop.mol.preferences] == [0, 4]
    assert loop.mol.preference.tolist() == pytest.approx([0.2, 0.8])
    again = Loop()
    again.mol.load_state_dict(loop.mol.state_dict())
    assert again.mol.preferences == loop.mol.preferences


def test_the_status_has_what_the_run_has(tmp_path):
    loop = Loop(units=[2.0, 4.0], ideal=[0.0, -1.0])
    with steered(loop.mol, tmp_path, every=1e-9):
        begun = read_status(tmp_path)
        assert begun["state"] == "running"
        assert begun["now"] == {"loss": [None] * 2, "value": [None] * 2, "weight": [None] * 2}
        assert begun["points"] == []
        loop.train(400)
        found = read_status(tmp_path)
    assert found["names"] == ["left", "right"]
    assert found["step"] == 400
    assert found["weights"] == "λ"
    told = loop.mol.metrics()
    assert found["now"]["loss"] == pytest.approx([told["loss/left"], told["loss/right"]], rel=1e-5)
    values = [(told["loss/left"] - 0) / 2, (told["loss/right"] + 1) / 4]
    assert found["now"]["value"] == pytest.approx(values, rel=1e-5)
    assert found["now"]["weight"] == pytest.approx([told["lambda/left"], told["lambda/right"]], abs=1e-5)
    assert len(found["history"]["steps"]) == 160
    assert found["history"]["steps"][-1] == 400
    rows = loop.mol.history.losses
    assert found["history"]["loss"][0] == pytest.approx(rows[:3].mean(0).tolist(), rel=1e-5)  # 400 in 160: 3, …, 2, …
    assert read_status(tmp_path)["state"] == "ended"


def test_points_are_the_means_over_the_latest_steps_of_each_preference(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        loop.train(50)
        loop.mol.set_preference([0.3, 0.7])
        loop.mol.set_preference([0.2, 0.8])  # the one before has no step
        loop.train(20)
    losses = loop.mol.history.losses
    first, second = read_status(tmp_path)["points"]
    assert first["value"] == pytest.approx(losses[45:50].mean(0).tolist(), rel=1e-5)
    assert second["value"] == pytest.approx(losses[68:70].mean(0).tolist(), rel=1e-5)
    assert second["preference"] == pytest.approx([0.2, 0.8])
    assert (first["after"], second["after"]) == (0, 50)


def test_a_weighting_without_duals_shows_its_coefficients(tmp_path):
    loop = Loop(method="LS")
    with steered(loop.mol, tmp_path, every=1e-9):
        loop.train(2)
    found = read_status(tmp_path)
    assert found["weights"] == "coefficient"
    assert found["now"]["weight"] == [0.5, 0.5]


def test_how_it_ends_is_told(tmp_path):
    loop = Loop()

    def interrupted() -> None:
        with steered(loop.mol, tmp_path):
            loop.train(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    found = read_status(tmp_path)
    assert (found["state"], found["why"], found["step"]) == ("failed", "KeyboardInterrupt", 2)
    written = (tmp_path / "status.json").stat().st_mtime_ns
    loop.train(2)  # the hook is gone
    assert (tmp_path / "status.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("every", [1e-9, 60.0])
def test_a_loss_that_is_not_finite_is_raised_as_without_steering(every, tmp_path):
    """On an accelerator it is found after its step, here in the look or at the end of the block."""
    loop = Loop(check="deferred")

    def broken() -> None:
        with steered(loop.mol, tmp_path, every=every):
            loop.train(3)
            loop.mol(eq.problems.VLMOP2(d=2).losses(loop.x) * float("nan")).backward()
            loop.optimizer.step()

    with pytest.raises(eq.NonFiniteLossError, match="step 4"):
        broken()
    assert read_status(tmp_path)["state"] == "failed"
    assert read_status(tmp_path)["step"] == 3


def test_it_looks_no_more_often_than_asked(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=60.0):
        write_wish(tmp_path, [0.2, 0.8])
        loop.train(20)
        assert read_status(tmp_path)["step"] == 0
        assert len(loop.mol.preferences) == 1


def test_a_wish_from_before_is_not_followed(tmp_path):
    write_wish(tmp_path, [0.2, 0.8])
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        loop.train(3)
    assert len(loop.mol.preferences) == 1


def hostile(path: Path, kind: str) -> None:
    """Put something at the place of a wish that is none."""
    good = {"preference": [0.2, 0.8]}
    contents: dict[str, Any] = {
        "three": {"preference": [0.2, 0.3, 0.5]},
        "negative": {"preference": [-0.2, 1.2]},
        "sum": {"preference": [0.2, 0.9]},
        "text": {"preference": ["0.2", "0.8"]},
        "truth": {"preference": [True, False]},
        "nested": {"preference": [[0.2], [0.8]]},
        "further": {**good, "command": "rm"},
        "other": {"wish": 1},
    }
    if kind in contents:
        write_json(path, contents[kind])
    elif kind == "link":
        write_json(path.with_name("elsewhere.json"), good)
        path.symlink_to(path.with_name("elsewhere.json"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        sealed = json.dumps({**good, "sha256": "0" * 64})
        texts = {
            "forged": sealed,
            "empty": "",
            "cut": sealed[:20],
            "pickle": "\x80\x04cposix\nsystem\n",
            "nan": '{"preference": [NaN, 1]}',
            "deep": "[" * 50_000,
            "large": " " * (MOST_WISH + 1),
            "list": "[1, 2]",
        }
        path.write_text(texts[kind])


KINDS = ["three", "negative", "sum", "text", "truth", "nested", "further", "other", "link", "fifo", "socket", "folder"]
KINDS += ["forged", "empty", "cut", "pickle", "nan", "deep", "large", "list"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_wish_is_refused_with_one_warning_and_the_training_goes_on(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    loop, alone = Loop(), Loop()
    alone.train(10)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with steered(loop.mol, Path("run"), every=1e-9):
            hostile(Path("run", "wish.json"), kind)
            loop.train(10)
    assert ["the wish for another preference was refused" in str(one.message) for one in said] == [True]
    assert torch.equal(loop.x, alone.x)
    assert len(loop.mol.preferences) == 1
    assert "wish.json" in read_status("run")["refused"] or "a wish must be" in read_status("run")["refused"]


def test_after_a_refusal_a_good_wish_is_followed(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        (tmp_path / "wish.json").write_text("{")
        with pytest.warns(UserWarning, match="refused"):
            loop.train(1)
        write_wish(tmp_path, [0.2, 0.8])
        loop.train(1)
        assert read_status(tmp_path)["refused"] is None
    assert len(loop.mol.preferences) == 2


def test_a_status_that_cannot_be_written_is_said_once(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        (tmp_path / "status.json").unlink()
        (tmp_path / "status.json").mkdir()
        with pytest.warns(UserWarning, match="could not be written, and the training goes on") as said:
            loop.train(5)
        assert len(said) == 1
    assert loop.mol.step == 5


def test_a_folder_has_one_run(tmp_path):
    first, second = Loop(), Loop()
    with steered(first.mol, tmp_path), pytest.raises(BlockingIOError, match=f"open in process {os.getpid()}"):
        steered(second.mol, tmp_path).__enter__()
    with steered(second.mol, tmp_path):
        second.train(1)


def test_misuse(tmp_path):
    alone = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5])
    limited = Loop(limits={"price": 3.0})
    closed = Loop()
    closed.mol.close()
    for mol, rule in ((alone, "must have an optimizer"), (limited.mol, "must have no limits"), (closed.mol, "be open")):
        with pytest.raises(ValueError, match=rule):
            steered(mol, tmp_path).__enter__()
    every: Any
    for every in (0.0, -1.0, float("nan"), None, "1"):
        with pytest.raises(ValueError, match=f"every must be a positive number of seconds; found {every}"):
            steered(Loop().mol, tmp_path, every=every).__enter__()
    pareto: Any = eq.ParetoSet(torch.nn.Linear(2, 1), None, 2)
    with pytest.raises(ValueError, match=r"mol must be a MultiObjective.*found a ParetoSet"):
        steered(pareto, tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_status_of_another_kind_is_refused(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        loop.train(3)
    good = read_json(tmp_path / "status.json")
    changes: list[dict[str, Any]] = [{"names": []}, {"names": [1, 2]}, {"preference": [1.0]}, {"step": "3"}]
    for change in [*changes, {"points": [1]}, {"why": 7}, {"history": {}}]:
        write_json(tmp_path / "status.json", {**good, **change})
        with pytest.raises(DamagedFileError, match="must be the status of a training"):
            read_status(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_status(tmp_path / "nowhere")


def test_what_is_read_has_a_size(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(DamagedFileError, match="at most 4 bytes; found 5 bytes"):
        read_plain(tmp_path / "file", 4)


def test_a_wish_is_a_preference(tmp_path):
    write_wish(tmp_path, [0.25, 0.75])
    assert read_wish(tmp_path, 2) == [0.25, 0.75]
    assert check_wish({"preference": [0, 1]}, 2) == [0.0, 1.0]


@pytest.mark.parametrize(
    "wish",
    [
        (0.25, 0.75),
        torch.tensor([0.25, 0.75]),
        torch.tensor([0.25, 0.75], requires_grad=True),
        np.array([0.25, 0.75]),
        {"right": 0.75, "left": 0.25},
    ],
)
def test_a_wish_may_be_of_any_form(wish, tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        write_wish(tmp_path, wish)
        assert read_wish(tmp_path, 2) == [0.25, 0.75]
        loop.train(1)
    assert loop.mol.preference.tolist() == [0.25, 0.75]


def test_a_sum_that_set_preference_takes_is_taken(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        write_wish(tmp_path, [0.3, 0.70002])
        loop.train(1)
    assert len(loop.mol.preferences) == 2


def test_the_present_preference_is_no_change(tmp_path):
    loop = Loop()
    with steered(loop.mol, tmp_path, every=1e-9):
        loop.train(3)
        write_wish(tmp_path, [0.5, 0.5])
        loop.train(3)
    assert len(loop.mol.preferences) == 1
    assert loop.mol.recorded == 6


def test_a_wish_that_cannot_be_is_refused_where_it_is_written(tmp_path):
    missing = tmp_path / "nowhere"
    with pytest.raises(
        ValueError, match=r"eq\.train\.steered\(mol, folder\) makes it; found '.*nowhere', which does not"
    ):
        write_wish(missing, [0.2, 0.8])
    assert not missing.exists()
    with pytest.raises(ValueError, match="non-negative and sum to 1; found entry nan"):
        write_wish(tmp_path, [float("nan"), 1.0])
    with pytest.raises(ValueError, match=r"sum 1\.10 \(divide the entries by it\)"):
        write_wish(tmp_path, [0.2, 0.9])
    with pytest.raises(FileNotFoundError, match=r"status\.json"):
        write_wish(tmp_path, {"left": 0.2, "right": 0.8})
    with steered(Loop().mol, tmp_path), pytest.raises(ValueError, match=r"must have the names \['left', 'right'\]"):
        write_wish(tmp_path, {"left": 0.2, "up": 0.8})
    assert not (tmp_path / "wish.json").exists()
