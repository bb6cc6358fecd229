"""Copies on the device, in host memory and in a folder: the same run bit for bit, and disk errors."""

import errno
import gc
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import atomic
from equipoise.train import disk

CPU = torch.device("cpu")
CONVERSIONS: dict[str, Any] = {
    "Adaptive": eq.Adaptive(power=2, capacity=3),
    "Average": eq.Average(power=1),
    "Last": eq.Last(),
    "Suffix": eq.Suffix(power=2, capacity=3),
}
ADAPTIVE = CONVERSIONS["Adaptive"]
STORES = ["device", "host", "disk"]
OTHERS = ["host", "disk"]


@pytest.fixture
def make(toy, preference, tmp_path, as_accelerator) -> Callable[..., tuple[Any, eq.MultiObjective]]:
    """A run; "disk" is a folder, a new one each time unless it has a number."""
    folders = iter(range(100))

    def make(
        store: str, conversion: Any = ADAPTIVE, *, late: bool = False, **settings: Any
    ) -> tuple[Any, eq.MultiObjective]:
        run = toy()
        where: Any = tmp_path / f"store-{next(folders)}" if store == "disk" else store
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(
                run.model, run.optimizer, preference, method=(eq.OMD(), conversion), store=where, **settings
            )
        return run, mol

    return make


def tensors(mol: eq.MultiObjective) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def factors(step: int) -> Tensor:
    return 3 * torch.randn(3, generator=torch.Generator().manual_seed(step)).mul(2).softmax(0)


def noise(run: Any, mol: eq.MultiObjective, steps: range) -> None:
    """Losses that hardly ever dominate one another: the archive fills, and copies are merged."""
    for step in steps:
        mol(run.losses(step) * factors(step)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


# ---------------------------------------------------------------------------- the same run


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("store", OTHERS)
@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_the_run_is_that_of_the_device_bit_for_bit(conversion, store, late, make):
    run, mol = make(store, conversion, late=late)
    other, expected = make("device", conversion)
    assert_same(tensors(mol), tensors(expected))
    for step in range(40):
        noise(run, mol, range(step, step + 1))
        noise(other, expected, range(step, step + 1))
        if step % 13 == 0:
            assert_same(mol.solution(), expected.solution())
    assert_same(run.params(), other.params())
    assert_same(tensors(mol), tensors(expected))
    assert_same(mol.solution(), expected.solution())
    assert mol.metrics() == expected.metrics()
    assert mol.recorded == 40
    if conversion == ADAPTIVE:
        assert mol.metrics()["archive"] == 3


def test_copies_were_merged_in_that_run(make, monkeypatch):
    """Else the test above would say little."""
    plans = []
    carry_out = sys.modules["equipoise.train.archive"].execute

    def counted(*args: Any) -> None:
        plans.append(args[0])
        carry_out(*args)

    monkeypatch.setattr("equipoise.train.archive.execute", counted)
    run, mol = make("host")
    noise(run, mol, range(40))
    assert sum(plan.mix > 0 for plan in plans) >= 3
    assert sum(0 < plan.gain < 1 for plan in plans) >= 3
    assert sum(plan.gain == 1 for plan in plans) >= 6


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("store", OTHERS)
def test_snapshots_are_copies(store, late, make):
    run, mol = make(store, eq.Last(), late=late)
    before = run.params()
    mol(run.losses(0)).backward()
    run.optimizer.step()
    with torch.no_grad():
        for p in run.model.parameters():
            p.fill_(7.0)
    assert_same(mol.solution(), before)
    solution = mol.solution()
    for tensor in solution.values():
        tensor.zero_()
    assert_same(mol.solution(), before)


@pytest.mark.parametrize("store", OTHERS)
def test_what_is_written_after_the_call_is_what_is_recorded(store, make):
    """θ that travelled ahead is not used once it has changed."""
    run, mol = make(store, eq.Last(), late=True)
    mol(run.losses(0)).backward()
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(1.0)
    changed = run.params()
    run.optimizer.step()
    assert_same(mol.solution(), changed)


@pytest.mark.parametrize("store", OTHERS)
def test_half_precision_and_other_layouts_are_recorded_as_on_the_device(store, preference, tmp_path, as_accelerator):
    def build(where: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3)).to(torch.bfloat16)
        weight = next(model.parameters())
        weight.data = weight.detach().contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nullcontext() if where == "device" else as_accelerator():
            mol = eq.MultiObjective(model, optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=where)
        for step in range(12):
            x = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(step)).bfloat16()
            mol(model(x).square().mean(0) + torch.rand(3)).backward()
            optimizer.step()
            optimizer.zero_grad()
        solution = mol.solution()
        assert solution["0.weight"].dtype == torch.float32
        return solution

    assert_same(build(tmp_path / "half" if store == "disk" else store), build("device"))


@pytest.mark.parametrize("store", OTHERS)
def test_accumulation_record_and_closures(store, make):
    for way in ("accumulating", "recording", "closure"):
        found = []
        for where in ("device", store):
            run, mol = make(where, every=None if way == "recording" else 1, late=where != "device")
            for step in range(6):
                if way == "closure":
                    run.optimizer.step(lambda run=run, mol=mol, step=step: mol(run.losses(step)).backward())
                    run.optimizer.zero_grad()
                    continue
                for part in range(2):
                    (mol(run.losses(2 * step + part)) / 2).backward()
                if way == "recording":
                    mol.record(run.losses(7).detach() * (1 + step % 3))
                run.optimizer.step()
                run.optimizer.zero_grad()
            found.append(tensors(mol))
        assert_same(*found)


@pytest.mark.parametrize("store", OTHERS)
def test_lent_weights_and_batch_norm(store, tmp_path):
    def build(where: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=(eq.OMD(), eq.Adaptive(capacity=2)), store=where)
        x = torch.randn(16, 4)
        for _ in range(5):
            mol(model(x).square().mean(0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        mol.update_bn([x])
        with mol.solution_weights():
            lent = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert_same(dict(model.state_dict()), before)
        assert_same(lent, mol.solution())
        return lent

    assert_same(build(tmp_path / "bn" if store == "disk" else store), build("device"))


@pytest.mark.parametrize("store", OTHERS)
def test_to_leaves_the_copies_where_they_are(store, make):
    run, mol = make(store)
    noise(run, mol, range(5))
    before = tensors(mol)
    assert mol.to("cpu") is mol
    assert_same(tensors(mol), before)
    noise(run, mol, range(5, 8))
    copies = [x for name, x in mol.state_dict()["tensors"].items() if ".slots." in name]
    run.model.to("meta")
    mol.to("meta")
    assert {x.device.type for x in copies} == {"cpu"}
    assert mol._run.archive.slots.device == CPU


# ---------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS.keys())
@pytest.mark.parametrize(("source", "target"), [(s, t) for s in STORES for t in STORES if (s, t) != ("device",) * 2])
def test_a_checkpoint_of_one_store_goes_on_in_any_other(source, target, conversion, late, make, tmp_path):
    run, whole = make(source, conversion)
    first, before = make(source, conversion, late=late)
    second, after = make(target, conversion)
    noise(run, whole, range(12))
    noise(first, before, range(7))
    noise(second, after, range(3))  # what it did before must not matter
    path = tmp_path / "run.pt"
    eq.train.save({"mol": before.state_dict(), "model": first.model.state_dict()}, path)
    noise(first, before, range(7, 9))  # what is in the file does not change
    saved = eq.train.load(path)
    after.load_state_dict(saved["mol"])
    second.model.load_state_dict(saved["model"])
    noise(second, after, range(7, 12))
    assert_same(tensors(after), tensors(whole))
    assert_same(after.solution(), whole.solution())
    assert after.recorded == 12


def test_the_state_of_a_folder_stays_readable_while_the_run_goes_on(make):
    run, mol = make("disk")
    noise(run, mol, range(6))
    held, before = mol.state_dict()["tensors"], tensors(mol)
    noise(run, mol, range(6, 30))
    assert_same(held, before)  # files were replaced, not changed
    assert not torch.equal(tensors(mol)["conversion.slots.0.0.weight"], before["conversion.slots.0.0.weight"])


def test_a_run_goes_on_in_its_own_folder(toy, preference, tmp_path):
    def build() -> tuple[Any, eq.MultiObjective]:
        run = toy()
        return run, eq.MultiObjective(
            run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path / "s"
        )

    run, mol = build()
    noise(run, mol, range(6))
    eq.train.save({"mol": mol.state_dict(), "model": run.model.state_dict()}, tmp_path / "run.pt")
    noise(run, mol, range(6, 9))
    expected = tensors(mol)
    mol.close()
    assert_same(tensors(mol), expected)  # closed, it is still readable
    del mol
    run, mol = build()
    message = re.escape(f"found copies of another run in {tmp_path / 's'}: give load_state_dict the checkpoint")
    for use in (lambda: mol(run.losses(0)), mol.solution, mol.state_dict, lambda: mol.record(torch.ones(3))):
        with pytest.raises(eq.StateMismatchError, match=message):
            use()
    saved = eq.train.load(tmp_path / "run.pt")
    run.model.load_state_dict(saved["model"])
    mol.load_state_dict(saved["mol"])
    noise(run, mol, range(6, 9))
    assert_same(tensors(mol), expected)


def test_the_folder_holds_a_file_for_each_slot_and_a_list(make):
    run, mol = make("disk")
    folder = mol._run.archive.slots.folder
    noise(run, mol, range(30))
    listed = json.loads((folder / "slots.json").read_text())["slots"]
    assert sorted(listed) == ["0", "1", "2"]
    assert {path.name for path in folder.iterdir()} == {"lock", "slots.json", *(e["file"] for e in listed.values())}


KILLED = """
import sys, torch, equipoise as eq
from pathlib import Path
torch.manual_seed(0)
model = torch.nn.Linear(200, 200)
mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(eq.Linear(), eq.Adaptive(capacity=3)), store=Path(sys.argv[1]))
while True:
    mol(model.weight.square().mean() + torch.rand(2))
    print(mol.recorded, flush=True)
"""


def test_a_killed_run_leaves_a_folder_in_order_and_no_lock(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        message = f"found {tmp_path} open in process {process.pid}"
        with pytest.raises(eq.StoreError, match=re.escape(message)):
            eq.MultiObjective(nn.Linear(200, 200), None, [0.5, 0.5], method=(eq.Linear(), ADAPTIVE), store=tmp_path)
        while int(process.stdout.readline()) < 30:
            pass
    finally:
        process.kill()
        process.communicate()
    listed = json.loads((tmp_path / "slots.json").read_text())["slots"]
    assert listed.keys() <= {"0", "1", "2"}
    slots = disk.OnDisk(tmp_path, {"x": torch.zeros(1)}, 3)  # the lock is gone
    for entry in listed.values():
        file = tmp_path / entry["file"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == entry["sha256"]
    slots.fill([{"x": torch.ones(1)}] * 3)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3  # what the killed run left was removed
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_that_could_not_be_filled_is_still_that_of_another_run(tmp_path, full):
    """It holds what it held, and nothing of it can be taken for a copy of the new run."""
    ones, twos = ([{"x": torch.full((1,), value)}] * 3 for value in (1.0, 2.0))
    first = disk.OnDisk(tmp_path, {"x": torch.zeros(1)}, 3)
    first.fill(ones)
    first.close()
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = disk.OnDisk(tmp_path, {"x": torch.zeros(1)}, 3)
    for room in range(4):  # three slots and the list
        full.room = room
        with pytest.raises(eq.StoreError, match="No space left"):
            second.fill(twos)
        for use in (second.check, lambda: second.read(0), lambda: second.blend(0, {"x": torch.ones(1)}, 0.5)):
            with pytest.raises(eq.StateMismatchError, match="found copies of another run"):
                use()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    full.room = None
    second.fill(twos)
    assert [second.read(slot)["x"].item() for slot in range(3)] == [2, 2, 2]
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_called_lock_that_is_not_ours_is_left_alone(kind, toy, preference, tmp_path):
    store, mine = tmp_path / "store", tmp_path / "mine"
    store.mkdir()
    mine.write_text("my notes")
    if kind == "link":
        (store / "lock").symlink_to(mine)
    else:
        (store / "lock").hardlink_to(mine)
    with pytest.raises(eq.StoreError, match=f"store could not be made: the lock must .*, {store}"):
        eq.MultiObjective(toy().model, None, preference, method=(eq.OMD(), ADAPTIVE), store=store)
    assert mine.read_text() == "my notes"


def test_a_folder_is_free_once_its_run_is_forgotten(toy, preference, tmp_path):
    run, mol = toy(), None
    for _ in range(2):
        for path in tmp_path.glob("*.json"):
            path.unlink()
        mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path)
        with pytest.raises(eq.StoreError, match=f"open in process {os.getpid()}"):
            eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path)
        mol = None
        gc.collect()
    assert mol is None


def test_a_closed_folder_is_not_written_to(make):
    run, mol = make("disk")
    noise(run, mol, range(3))
    mol.close()
    with pytest.raises(ValueError, match=r"mol must be open: .* found one that was closed after step 3"):
        mol(run.losses(0) * 0.01)  # dominates everything


# ---------------------------------------------------------------------------- what goes wrong


def test_an_altered_file_is_named(make):
    run, mol = make("disk")
    noise(run, mol, range(10))
    folder = mol._run.archive.slots.folder
    path = next(iter(sorted(folder.glob("slot-1-*.safetensors"))))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    message = re.escape(f"slot 1 must be what was written; found other contents in {path}")
    for use in (mol.solution, mol.state_dict):
        with pytest.raises(eq.StoreError, match=message):
            use()
    path.unlink()
    with pytest.raises(eq.StoreError, match=re.escape(f"slot 1 could not be read: No such file or directory, {path}")):
        mol.solution()


class Disk:
    """A disk that is full whenever it is said to be, after some more writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        real = atomic.replacing

        def replacing(path: Any) -> Any:
            if self.room is not None:
                self.room -= 1
                if self.room < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return real(path)

        monkeypatch.setattr(disk, "replacing", replacing)


@pytest.fixture
def full(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_raises_and_leaves_the_archive_as_it_was(room, late, full, make):
    """Also if only the second file of a plan, or only the list, finds no room."""
    run, mol = make("disk", late=late)
    noise(run, mol, range(10))
    folder = mol._run.archive.slots.folder
    kept = [tensors(mol), mol.recorded, {path.name for path in folder.iterdir()}]
    full.room = room

    def until_full() -> None:
        for number in range(10, 30):  # plans that change nothing need no room
            noise(run, mol, range(number, number + 1))
            mol._run.settle()
            mol._run.archive.settle()
            kept[:] = [tensors(mol), mol.recorded, {path.name for path in folder.iterdir()}]

    with pytest.raises(eq.StoreError, match=r"could not be written: No space left on device, /.*/store-0/") as caught:
        until_full()
    assert isinstance(caught.value, OSError)
    full.room = None
    run.optimizer.zero_grad()
    mol.discard()
    mol._run.archive.settle()  # a second failure cannot be there
    before, count, files = kept
    after = tensors(mol)
    assert mol.recorded == count
    assert_same(
        {n: x for n, x in after.items() if n.startswith("conversion.")},
        {n: x for n, x in before.items() if n.startswith("conversion.")},
    )
    assert {path.name for path in folder.iterdir()} == files
    noise(run, mol, range(30, 33))
    assert mol.metrics()["archive"] >= 1


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_kept_on_a_full_disk_the_run_goes_on_and_records_again(late, full, make):
    """What could not be stored was never recorded: the archive is that of a run that did not ask for it."""
    run, mol = make("disk", late=late, on_store_error="keep")
    other, expected = make("device", every=None)

    def step(number: int) -> None:
        count = mol.recorded
        noise(run, mol, range(number, number + 1))
        mol._run.settle()
        mol._run.archive.settle()
        if mol.recorded > count:  # plans that change nothing need no room; all others fail
            expected.record(other.losses(number).detach() * factors(number))
        noise(other, expected, range(number, number + 1))

    for number in range(8):
        step(number)
    assert mol.recorded == 8
    full.room = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(8, 16):
            step(number)
    assert [str(w.message).split(": ")[1].split(",")[0] for w in caught] == ["No space left on device"]
    missed = 16 - mol.recorded
    assert missed > 0
    full.room = None
    for number in range(16, 24):
        step(number)
    assert_same(run.params(), other.params())
    ours, theirs = tensors(mol), tensors(expected)
    assert_same(ours, theirs)
    assert mol.recorded == expected.recorded == 24 - missed
    assert mol.step == 24


@pytest.mark.parametrize("choice", ["raise", "keep"])
def test_a_folder_that_becomes_a_file(choice, make):
    run, mol = make("disk", on_store_error=choice)
    noise(run, mol, range(5))
    folder = mol._run.archive.slots.folder
    folder.rename(folder.with_name("away"))
    folder.write_text("a file")
    if choice == "raise":
        with pytest.raises(eq.StoreError, match=re.escape(str(folder))):
            noise(run, mol, range(5, 20))
    else:
        with pytest.warns(RuntimeWarning, match="Training goes on"):
            noise(run, mol, range(5, 20))
        assert mol.step == 20
        with pytest.raises(eq.StoreError, match="could not be read"):
            mol.solution()
    folder.unlink()
    folder.with_name("away").rename(folder)
    run.optimizer.zero_grad()
    mol.discard()
    noise(run, mol, range(20, 23))
    mol.solution()


def test_a_folder_that_cannot_be_made(toy, preference, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(eq.StoreError, match="store could not be made: Not a directory"):
        eq.MultiObjective(toy().model, None, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path / "file" / "store")


def test_a_full_disk_while_loading_leaves_everything_as_it_was(full, make):
    other, source = make("device")
    run, mol = make("disk")
    noise(other, source, range(6))
    noise(run, mol, range(4))
    before = tensors(mol)
    full.room = 2
    with pytest.raises(eq.StoreError, match="No space left"):
        mol.load_state_dict(source.state_dict())
    assert_same(tensors(mol), before)
    assert mol.step == 4
    full.room = None
    mol.load_state_dict(source.state_dict())
    assert_same(tensors(mol), tensors(source))


def test_an_error_of_the_thread_is_raised_by_the_next_call(make, monkeypatch):
    run, mol = make("host", late=True)
    noise(run, mol, range(3))
    mol.solution()
    threads = []

    def broken(*_: object) -> None:
        threads.append(threading.current_thread().name)
        raise RuntimeError("in the thread")

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.train.archive.execute", broken)
        noise(run, mol, range(3, 4))
        assert mol.recorded == 4  # as far as is known
        while not mol._run.archive._job.done():
            time.sleep(0.001)
    with pytest.raises(RuntimeError, match="in the thread"):
        mol(run.losses(4))
    assert threads[0].startswith("equipoise-store")
    assert mol.recorded == 3
    noise(run, mol, range(4, 6))
    assert mol.recorded == 5


def test_the_loop_does_not_wait_for_the_thread(make, monkeypatch):
    """Unless the next plan comes before the last was carried out."""
    run, mol = make("host", late=True)
    gate, carry_out = threading.Event(), sys.modules["equipoise.train.archive"].execute

    def slowly(*args: Any) -> None:
        assert gate.wait(10)
        carry_out(*args)

    monkeypatch.setattr("equipoise.train.archive.execute", slowly)
    noise(run, mol, range(1))
    mol(run.losses(1)).backward()  # θ of the second step travels while the thread still has the first
    assert not mol._run.archive._job.done()
    threading.Timer(0.05, gate.set).start()
    run.optimizer.step()
    other, expected = make("device")
    noise(other, expected, range(1))
    expected(other.losses(1)).backward()
    other.optimizer.step()
    assert_same(mol.solution(), expected.solution())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"store": ""}, """store must be "device", "host" or a pathlib.Path; a folder is Path(''); found ''"""),
        (
            {"store": "cpu"},
            """store must be "device", "host" or a pathlib.Path; a folder is Path('cpu'); found 'cpu'""",
        ),
        ({"store": 3}, 'store must be "device", "host" or a pathlib.Path; found 3'),
        ({"store": None}, 'store must be "device", "host" or a pathlib.Path; found None'),
        ({"on_store_error": "skip"}, 'on_store_error must be "raise" or "keep"; found skip'),
    ],
)
def test_bad_arguments(settings, message, toy, preference):
    with pytest.raises(ValueError, match=re.escape(message)):
        eq.MultiObjective(toy().model, None, preference, method=(eq.OMD(), ADAPTIVE), **settings)


def test_without_safetensors_it_is_said_what_to_install(toy, preference, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"needs safetensors: pip install safetensors$"):
        eq.MultiObjective(toy().model, None, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path)


# ---------------------------------------------------------------------------- memory

MEMORY = """
import sys, threading, time
from pathlib import Path
import torch
import equipoise as eq

def anonymous():
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))

peak, stop = 0, threading.Event()
def watch():
    global peak
    while not stop.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.0005)

torch.manual_seed(0)
model = torch.nn.Linear(1024, 2048, bias=False)
size = 4 * model.weight.numel()
capacity = int(sys.argv[1])
warm = torch.save({"x": torch.zeros(3)}, sys.argv[2] + ".pt")
method = (eq.Linear(), eq.Adaptive(capacity=capacity))
mol = eq.MultiObjective(model, None, [0.5, 0.5], method=method, store=Path(sys.argv[2]))
start = anonymous()
threading.Thread(target=watch, daemon=True).start()
for step in range(capacity + 4):
    f = torch.rand(2, generator=torch.Generator().manual_seed(step))
    mol.record(torch.stack([f[0], 1 - f[0]]) + 0.01 * f[1])  # no one dominates another
assert mol.metrics()["archive"] == capacity
train = peak
solution = mol.solution()
del solution
eq.train.save(mol.state_dict(), sys.argv[2] + ".pt")
stop.set()
print((train - start) / size, (peak - start) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_folder_needs_memory_for_one_tensor_whatever_the_capacity(tmp_path):
    command = [sys.executable, "-c", MEMORY, "8", str(tmp_path / "store")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    training, everything = map(float, result.stdout.split())
    assert training < 2.5  # copies of the model, which is one tensor here; it may be freed late
    assert everything < 3.5  # with the solution, which is a copy itself, and a checkpoint
