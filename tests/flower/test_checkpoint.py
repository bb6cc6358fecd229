"""A run that was killed and resumed equals an uninterrupted one."""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import ConfigRecord, Context, Message
from tests.conversion.own import LastEpoch

import equipoise as eq
from equipoise.atomic import read_json, write_json
from equipoise.errors import DamagedFileError, StateMismatchError, StoreError
from equipoise.flower import LossCap, checkpoint

Maker = Callable[..., Any]
LIBRARY = [eq.Last(), eq.Average(power=1.0), eq.Adaptive(), eq.Adaptive(power=2.0, capacity=2), eq.Suffix(2.0, 3)]
CONVERSIONS = [*LIBRARY, LastEpoch()]
WEIGHTINGS = [
    eq.OMD(2.0, eq.Entropic()),
    eq.OMD("adaptive", eq.Euclidean(), optimism=1.0),
    eq.weighting.ExcessRisk(),
    eq.weighting.MoCo(),
    eq.Momentum(eq.SmoothTchebycheff(0.1)),
]


def ends(strategy: Any, result: Any) -> tuple[Any, ...]:
    weights = strategy.weights
    return (
        {name: array.data for name, array in result.arrays.items()},
        {name: array.data for name, array in strategy.solution().items()},
        None if weights is None else weights.tolist(),
        strategy.round,
    )


def check_resumed(own: Any, folder: Path, **settings: Any) -> None:
    """Seven rounds at once against three, a new process's worth of objects, and four."""
    whole = own.strategy(**settings)
    undisturbed = ends(whole, whole.start(own.grid(), own.arrays(), num_rounds=7))
    first = own.strategy(checkpoint=folder, **settings)
    first.start(own.grid(), own.arrays(), num_rounds=3)
    second = own.strategy(resume=folder, **settings)
    result = second.start(own.grid(), own.arrays(), num_rounds=7)
    assert ends(second, result) == undisturbed
    assert sorted(result.train_metrics_clientapp) == [4, 5, 6, 7]


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=repr)
def test_every_conversion_resumes(town: Maker, tmp_path: Path, conversion: Any):
    check_resumed(town(), tmp_path, conversion=conversion)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=repr)
def test_every_kind_of_state_resumes(town: Maker, tmp_path: Path, weighting: Any):
    check_resumed(town(), tmp_path, weighting=weighting)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.Adam(params, lr=0.1),
        lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
    ],
)
def test_server_optimizers_resume(town: Maker, tmp_path: Path, make: Any):
    check_resumed(town(), tmp_path, server_optimizer=make)


def test_sampling_and_caps_resume(town: Maker, tmp_path: Path):
    check_resumed(town((6,) * 8), tmp_path, fraction_train=0.4, cap=LossCap())


def test_the_archive_grows_across_a_resume(town: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("equipoise.conversion.ledger._FIRST_SLOTS", 2)
    check_resumed(town(), tmp_path, conversion=eq.Adaptive(ties="keep"))


def test_nothing_is_left_to_do(town: Maker, tmp_path: Path):
    own = town()
    first = own.strategy(checkpoint=tmp_path)
    done = ends(first, first.start(own.grid(), own.arrays(), num_rounds=3))
    second = own.strategy(resume=tmp_path)
    result = second.start(own.grid(), own.arrays(), num_rounds=3)
    assert ends(second, result) == done
    assert result.train_metrics_clientapp == {}


@pytest.mark.parametrize("at", range(1, 12))
def test_whenever_it_dies_the_checkpoint_is_whole(town: Maker, tmp_path: Path, at: int):
    """The at-th move of a file into place fails: what is there then is the state after some round."""
    own = town()
    moves = 0

    class Stop(Exception):  # noqa: N818
        pass

    def replace(self: Path, target: Path) -> None:
        nonlocal moves
        moves += 1
        if moves == at + 4:
            raise Stop
        os.replace(self, target)  # noqa: PTH105

    reference = own.strategy(conversion=eq.Adaptive(capacity=2))
    undisturbed = ends(reference, reference.start(own.grid(), own.arrays(), num_rounds=6))
    dying = own.strategy(conversion=eq.Adaptive(capacity=2), checkpoint=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Stop):
            dying.start(own.grid(), own.arrays(), num_rounds=6)
    second = own.strategy(conversion=eq.Adaptive(capacity=2), resume=tmp_path)
    assert ends(second, second.start(own.grid(), own.arrays(), num_rounds=6)) == undisturbed


def test_only_changed_slots_are_written_and_stale_files_removed(
    town: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = town()
    written: list[str] = []
    write = checkpoint.Checkpoint._write

    def counted(self: Any, name: str, tensors: Any) -> Any:
        written.append(name.rsplit("-", 2)[0])
        return write(self, name, tensors)

    monkeypatch.setattr(checkpoint.Checkpoint, "_write", counted)
    strategy = own.strategy(conversion=eq.Adaptive(capacity=3, ties="keep"), checkpoint=tmp_path)
    strategy.start(own.grid(), own.arrays(), num_rounds=8)
    assert written.count("model") == written.count("state") == 8
    slots = [name for name in written if name.startswith("slot")]
    assert len(slots) <= 2 * 8  # a plan changes at most two slots
    listed = json.loads((tmp_path / "checkpoint.json").read_text())["files"]
    named = {name for name, _ in listed.values()}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.json", "checkpoint.lock", *named}
    size = strategy._held().archive_size
    assert sum(name.startswith("slot") for name in listed) == size


def test_a_skipped_round_counts_but_changes_nothing(town: Maker, tmp_path: Path):
    own = town()
    good = own.train()

    def client(message: Message, context: Context) -> Any:
        if message.content.config_records["config"]["server-round"] == 3:
            raise RuntimeError("a bad day for everyone")
        return good(message, context)

    whole = own.strategy()
    undisturbed = ends(whole, whole.start(own.grid(client), own.arrays(), num_rounds=5))
    first = own.strategy(checkpoint=tmp_path)
    first.start(own.grid(client), own.arrays(), num_rounds=3)
    before = own.strategy(resume=tmp_path)
    before.start(own.grid(client), own.arrays(), num_rounds=3)
    assert before.round == 3
    second = own.strategy(resume=tmp_path)
    assert ends(second, second.start(own.grid(client), own.arrays(), num_rounds=5)) == undisturbed


def test_a_first_round_that_is_skipped_can_be_resumed(town: Maker, tmp_path: Path):
    own = town()

    def client(message: Message, context: Context) -> Any:  # noqa: ARG001
        raise RuntimeError("nobody is home")

    own.strategy(checkpoint=tmp_path).start(own.grid(client), own.arrays(), num_rounds=1)
    second = own.strategy(resume=tmp_path)
    result = second.start(own.grid(client), own.arrays(), num_rounds=1)
    assert second.round == 1
    assert result.arrays["weight"].data == own.arrays()["weight"].data
    assert second.solution()["weight"].data == own.arrays()["weight"].data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weighting": eq.OMD(3.0, eq.Entropic())}, r"weighting.step_size must be 3\.0; found 2\.0"),
        ({"preference": [0.4, 0.2, 0.2, 0.2]}, "preference must be"),
        ({"seed": 1}, "seed must be 1; found 0"),
        ({"conversion": eq.Adaptive(capacity=3)}, "conversion.capacity must be 3; found 8"),
        ({"objectives": [[0, 1], [2], [3]], "preference": None}, "groups must be"),
        ({"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.5)}, "server_optimizer must be"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(
    town: Maker, tmp_path: Path, change: dict[str, Any], message: str
):
    own = town()
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=1)
    with pytest.raises(StateMismatchError, match=message):
        own.strategy(resume=tmp_path, **change).start(own.grid(), own.arrays(), num_rounds=2)


def test_a_checkpoint_of_another_model_is_refused(town: Maker, tmp_path: Path):
    from flwr.app import ArrayRecord

    own = town()
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=1)
    other = ArrayRecord({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)})
    with pytest.raises(StateMismatchError, match=r"arrays\.weight must be"):
        own.strategy(resume=tmp_path).start(own.grid(), other, num_rounds=2)


def test_there_must_be_something_to_resume(town: Maker, tmp_path: Path):
    own = town()
    with pytest.raises(ValueError, match=r"resume must be a folder with a checkpoint\.json; found"):
        own.strategy(resume=tmp_path / "none").start(own.grid(), own.arrays())


# --- a folder that is not ours alone


def test_files_of_others_stay(town: Maker, tmp_path: Path):
    own = town()
    others = ["data.npz", "model.npz", "model-1-0a1b2c3d.npz", "state-2-nothex12.npz", "notes.txt"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=3)
    own.strategy(resume=tmp_path).start(own.grid(), own.arrays(), num_rounds=5)
    assert [(tmp_path / name).read_bytes() for name in others] == [b"mine"] * len(others)


def test_what_a_killed_run_left_is_removed_when_it_is_resumed(town: Maker, tmp_path: Path):
    own = town()
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=2)
    run = json.loads((tmp_path / "checkpoint.json").read_text())["run"]
    left = tmp_path / f"model-7-{run}.npz"
    left.write_bytes(b"half")
    own.strategy(resume=tmp_path).start(own.grid(), own.arrays(), num_rounds=3)
    assert not left.exists()


def test_a_second_run_does_not_overwrite_the_first(town: Maker, tmp_path: Path):
    own = town()
    first = own.strategy(checkpoint=tmp_path)
    first.start(own.grid(), own.arrays(), num_rounds=2)
    before = contents(tmp_path)
    for strategy in (own.strategy(checkpoint=tmp_path), first):
        with pytest.raises(ValueError, match=r"without the checkpoint of another run; found .*give resume="):
            strategy.start(own.grid(), own.arrays(), num_rounds=2)
    assert contents(tmp_path) == before
    own.strategy(resume=tmp_path).start(own.grid(), own.arrays(), num_rounds=3)


@pytest.mark.parametrize("how", ["checkpoint", "resume"])
def test_a_folder_in_use_is_refused(town: Maker, tmp_path: Path, how: str):
    own = town()
    refusals = []

    def during(t: int, arrays: Any) -> None:  # noqa: ARG001
        if t == 2:
            with pytest.raises(StoreError, match=rf"no other run has open; found .* open in process {os.getpid()}"):
                own.strategy(**{how: tmp_path}).start(own.grid(), own.arrays(), num_rounds=3)
            refusals.append(t)

    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=3, evaluate_fn=during)
    assert refusals == [2]
    own.strategy(resume=tmp_path).start(own.grid(), own.arrays(), num_rounds=4)  # free again


def test_a_resumed_run_begins_with_start(town: Maker, tmp_path: Path):
    own = town()
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=1)
    with pytest.raises(ValueError, match=r"a run must be resumed by start\(\); found configure_train"):
        own.strategy(resume=tmp_path).configure_train(1, own.arrays(), ConfigRecord({}), own.grid())


# --- damaged files


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_flipped_bit_is_noticed(town: Maker, tmp_path: Path):
    """Of every file of a checkpoint, 400 bits: each is noticed, and the file is named."""
    own = town()
    own.strategy(checkpoint=tmp_path, conversion=eq.Last()).start(own.grid(), own.arrays(), num_rounds=2)
    settings = own.strategy(conversion=eq.Last())
    settings._begin(own.arrays())
    described = settings._settings()
    draws, tried = random.Random(0), 0  # noqa: S311
    for path in sorted(tmp_path.iterdir()):
        if path.name == "checkpoint.lock":
            continue
        whole = path.read_bytes()
        for bit in draws.sample(range(8 * len(whole)), 400):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(DamagedFileError, match=re.escape(path.name)):
                checkpoint.Checkpoint(tmp_path).load(described)
            tried += 1
        path.write_bytes(whole)
    assert tried == 4 * 400
    checkpoint.Checkpoint(tmp_path).load(described)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found["files"].update(model=["../model-1-0a1b2c3d.npz", "0"]), "must name files of run"),
        (lambda found: found["files"].update(model=["model-1-0a1b2c3d.npz", "0"]), "must name files of run"),
        (lambda found: found.pop("files"), "must be the list of a checkpoint"),
        (lambda found: found["files"]["model"].__setitem__(0, f"model-99-{found['run']}.npz"), "found no such file"),
    ],
)
def test_a_forged_list_is_refused(town: Maker, tmp_path: Path, change: Any, reason: str):
    own = town()
    own.strategy(checkpoint=tmp_path).start(own.grid(), own.arrays(), num_rounds=1)
    found = read_json(tmp_path / "checkpoint.json")
    change(found)
    write_json(tmp_path / "checkpoint.json", found)
    with pytest.raises(DamagedFileError, match=reason):
        own.strategy(resume=tmp_path).start(own.grid(), own.arrays(), num_rounds=2)
