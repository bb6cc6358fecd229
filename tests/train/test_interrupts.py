"""Ctrl-C at any point: an iterate is in both the numbers and the slots of a run, or in neither."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import atomic
from equipoise.state import flatten
from equipoise.train import disk
from equipoise.train.archive import Archive, open_slots

CPU = torch.device("cpu")
LIBRARY = str(Path(eq.__file__).parent)
STORES = ["device", "host", "folder"]
WAYS = [
    pytest.param(store, late, id=f"{store}, {'late' if late else 'at once'}") for store in STORES for late in (0, 1)
]
# A file that was opened by a line that did not come to its end is closed by Python.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
every_way = pytest.mark.parametrize(("store", "late"), WAYS)


@contextmanager
def interrupted(number: int) -> Iterator[Callable[[], bool]]:
    """Ctrl-C before the line of this number that is executed in the library; gives whether it came."""
    left = number

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return watch

    before = sys.gettrace()
    # Between the last line of a with block and its end Python does not promise that the block is left: torch.no_grad.
    with torch.enable_grad():
        sys.settrace(watch)
        try:
            yield lambda: left <= 0
        finally:
            sys.settrace(before)


def params(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    weight, half = torch.randn(3, 2, generator=generator), torch.randn(4, generator=generator)
    return {"weight": weight, "half": half.bfloat16(), "double": half.double(), "count": torch.tensor(step)}


def losses(step: int) -> Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(step))


def numbers_and_copies(state: Any) -> dict[str, Tensor]:
    """The copies by slot, in any store."""
    copies = state.slots
    if "0" not in copies:
        number = len(next(iter(copies.values())))
        copies = {str(j): {name: x[j] for name, x in copies.items()} for j in range(number)}
    return {name: x.clone() for name, x in flatten(state._replace(slots=copies)).items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(x, right[name]) for name, x in left.items())


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What an interrupt left open is closed here, not in a later test, which would fail for it."""
    yield
    gc.collect()


@every_way
@pytest.mark.parametrize("conversion", [eq.Suffix(power=1.0, capacity=3), eq.Average()], ids=["Suffix", "Average"])
def test_an_archive_has_all_of_an_iterate_or_nothing(store, late, conversion, tmp_path, as_accelerator):
    """At every line: a plan that joins two slots, by θ in the place of one of them, and what comes with it."""
    start = 6 if isinstance(conversion, eq.Suffix) else 2  # the plan after it is of both kinds of blends
    oracle = conversion.init(params(0), torch.zeros(2))
    for step in range(start):
        oracle = conversion.update(params(step), losses(step), oracle)
    plan, _ = conversion.plan(losses(start), oracle)
    assert plan.mix > 0
    assert plan.gain == 1
    expected = [numbers_and_copies(oracle)]
    for step in range(start, start + 2):
        oracle = conversion.update(params(step), losses(step), oracle)
        expected.append(numbers_and_copies(oracle))
    found, number, came = set(), 0, True
    while came:
        number += 1
        slots = open_slots(tmp_path / str(number) if store == "folder" else store, params(0), conversion.copies)
        with as_accelerator() if late else nullcontext():
            archive = Archive(conversion, params(0), torch.zeros(2), slots, CPU)
        for step in range(start):
            archive.hold(params(step))
            archive.commit(losses(step))
        archive.settle()
        try:
            with interrupted(number) as was:
                archive.hold(params(start))
                archive.commit(losses(start))
                archive.settle()
        except KeyboardInterrupt:
            pass
        came = was()
        archive.settle()
        entered = archive.recorded - start
        assert same(numbers_and_copies(archive.state()), expected[entered]), number
        found.add((came, entered))
        archive.hold(params(start + 1))
        archive.commit(losses(start + 1))
        archive.settle()
        if entered:
            assert same(numbers_and_copies(archive.state()), expected[2]), number
        assert archive.recorded == start + entered + 1
        if isinstance(slots, disk.OnDisk):
            listed = {entry.file for entry in slots._entries.values()}
            assert listed <= {path.name for path in slots.folder.iterdir()}, number
        archive.close()
    assert found == {(True, 0), (True, 1), (False, 1)}


@every_way
def test_a_run_goes_on_after_ctrl_c_at_any_line(store, late, toy, preference, tmp_path, as_accelerator):
    """The usual: `except KeyboardInterrupt: save()`. What is saved has recorded an iterate, or has not."""
    conversion, steps, number, came = eq.Suffix(capacity=3), 5, 0, True
    while came:
        number += 7  # every line is looked at above
        run, where = toy(), tmp_path / str(number) if store == "folder" else store
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), conversion), store=where)
        theta, f = [], []
        for step in range(steps):
            theta.append(run.params())
            f.append(run.losses(step).detach().clone())
            run.run(mol, 1, step)
        theta.append(run.params())
        f.append(run.losses(steps).detach().clone())
        try:
            with interrupted(number) as was:
                run.run(mol, 1, steps)
                mol.solution()
        except KeyboardInterrupt:
            pass
        came = was()
        saved = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
        oracle = conversion.init(theta[0], torch.zeros(3))
        for point, values in zip(theta[: mol.recorded], f, strict=False):
            oracle = conversion.update(point, values, oracle)
        ours = {name.removeprefix("conversion."): x for name, x in saved.items() if name.startswith("conversion.")}
        assert same(ours, numbers_and_copies(oracle)), number
        assert mol.recorded in {steps - late, steps, steps + 1}
        run.optimizer.zero_grad()
        mol.discard()
        count = mol.recorded
        run.run(mol, 2, steps)
        assert mol.recorded == count + 2
        mol.close()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_ctrl_c_while_a_folder_is_written(late, toy, preference, tmp_path, as_accelerator, monkeypatch):
    """By a signal, as from a keyboard, between the two files of a plan; a thread goes on with its work."""
    run = toy()
    with as_accelerator() if late else nullcontext():
        method = (eq.OMD(), eq.Suffix(capacity=3))
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=method, store=tmp_path)
    run.run(mol, 6)
    assert mol.recorded == 6
    before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
    real = atomic.replacing

    def replacing(path: Any) -> Any:
        signal.raise_signal(signal.SIGINT)  # comes to the main thread
        return real(path)

    monkeypatch.setattr(disk, "replacing", replacing)
    before_us = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            run.run(mol, 3, 6)
            mol.solution()
    finally:
        signal.signal(signal.SIGINT, before_us)
    monkeypatch.setattr(disk, "replacing", real)
    tensors = mol.state_dict()["tensors"]
    clock = tensors["conversion.blocks.clock"][0]
    assert clock == mol.recorded
    if mol.recorded == 6:
        for name, x in before.items():
            if name.startswith("conversion."):
                assert torch.equal(tensors[name], x), name
    run.optimizer.zero_grad()
    mol.discard()
    run.run(mol, 3)
    assert mol.recorded >= 9
