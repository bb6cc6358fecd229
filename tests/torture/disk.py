"""Full disks: the old file stays intact, and the error names the file that could not be written."""

import ctypes
import os
import random
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture.outcome import Died, Outcome, Row, collect, forked
from tests.torture.runs import STEPS, digest, save_training, serve, simulate, start_training, train

import equipoise as eq
from equipoise.experiments.results import CellStore

NUMBER = 8
"""Trials of every kind of write on every kind of disk."""
LARGEST = 30_000
"""Bytes that are still free, at most: about what the files here have."""

Full = Callable[[], AbstractContextManager[None]]
"""Within, the disk is full."""


def rows(share: float, seed: int) -> list[Row]:
    """Two rows: of files that may not grow further, and of a small file system."""
    found: dict[str, Row] = {}
    limited = [("full disk: files may not grow", partial(_limited, *one)) for one in _draw(share, seed)]
    collect(found, limited)
    reason = next(iter(forked([_why_not])))[1]
    if reason:
        why = reason.why if isinstance(reason, Died) else str(reason)
        found[""] = Row("full disk: 1 MB tmpfs", note=f"not tried: {why}")
    else:
        collect(found, [("full disk: 1 MB tmpfs", partial(_mounted, *one)) for one in _draw(share, seed + 1)])
    return [*found.values()]


def _draw(share: float, seed: int) -> Iterator[tuple[str, int]]:
    draws = random.Random(seed)  # noqa: S311
    for _ in range(max(1, round(NUMBER * share))):
        for write in WRITES:
            yield write, draws.randrange(LARGEST)


# Two kinds of full disks --------------------------------------------------------------------


def _limited(write: str, size: int) -> list[Outcome]:
    @contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # Python ignores the signal that comes with it
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with tempfile.TemporaryDirectory() as folder:
        return [WRITES[write](Path(folder), full, f"{write}, files of {size} bytes at most")]


def _mounted(write: str, size: int) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _mount(folder)
        ballast = folder / "ballast"

        @contextmanager
        def full() -> Iterator[None]:
            free = os.statvfs(folder)
            ballast.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - size)))
            try:
                yield
            finally:
                ballast.unlink()

        try:
            return [WRITES[write](folder, full, f"{write}, {size} bytes free")]
        finally:
            _libc().umount2(str(folder).encode(), 2)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _mount(folder: Path) -> None:
    """A file system of 1 MB that only this process sees."""
    new_mounts, new_user, private = 0x00020000, 0x10000000, 0x4000 | 0x40000
    user, group, libc = os.getuid(), os.getgid(), _libc()
    if libc.unshare(new_mounts if user == 0 else new_mounts | new_user):
        raise OSError(ctypes.get_errno(), "a namespace of its own")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    for what in ((b"none", b"/", None, private, None), (b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=1m")):
        if libc.mount(*what):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _why_not() -> str:
    """Why a file system cannot be mounted; empty if it can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder))
        except OSError as error:
            return f"mounting is not permitted ({error.strerror})"
        _libc().umount2(folder.encode(), 2)
    return ""


# What is written ----------------------------------------------------------------------------


def _attempt(
    full: Full, write: Callable[[], Any], name: str, *, old: Callable[[], bool], new: Callable[[], bool], what: str
) -> Outcome:
    """Write on a full disk: the new content is there, or the error names the file and the old content is there."""
    try:
        with full():
            write()
    except Exception as error:
        if not (isinstance(error, OSError) and name in str(error)):
            return Outcome("silent", f"{what}: {type(error).__name__}: {error}")
        return Outcome("noticed") if old() else Outcome("silent", f"{what}: the old content is lost")
    return Outcome("equal") if new() else Outcome("silent", f"{what}: neither an error nor the new content")


def _training_file(folder: Path, full: Full, what: str) -> Outcome:
    toy, mol, _ = start_training(folder, "device")
    toy.run(mol, 3)
    save_training(folder, toy, mol, 3)
    toy.run(mol, 3, 3)

    def step() -> int:
        return int(eq.train.load(folder / "run.pt")["step"])

    write = partial(save_training, folder, toy, mol, 6)
    return _attempt(full, write, "run.pt", old=lambda: step() == 3, new=lambda: step() == 6, what=what)


def _store_raises(folder: Path, full: Full, what: str) -> Outcome:
    toy, mol, _ = start_training(folder, "folder")
    toy.run(mol, 5)
    before = _recorded(mol)
    mine = {"old": lambda: _recorded(mol) == before, "new": lambda: mol.recorded == 6}
    outcome = _attempt(full, lambda: toy.run(mol, 1, 5), "slot", **mine, what=what)
    count = mol.recorded
    toy.optimizer.zero_grad()
    mol.discard()
    toy.run(mol, 1, 6)
    return outcome if mol.recorded == count + 1 else Outcome("silent", f"{what}: nothing is recorded afterwards")


def _recorded(mol: Any) -> str:
    return digest({n: x for n, x in mol.state_dict()["tensors"].items() if n.startswith("conversion.")})


def _store_keeps(folder: Path, full: Full, what: str) -> Outcome:
    """The model is trained as without a store, and something is said if an iterate was not recorded."""
    other, reference, _ = start_training(folder / "reference", "device")
    other.run(reference, STEPS)
    toy, mol, _ = start_training(folder, "folder", on_store_error="keep")
    toy.run(mol, 5)
    with warnings.catch_warnings(record=True) as said, full():
        warnings.simplefilter("always")
        toy.run(mol, 5, 5)
    told = any("slot" in str(one.message) for one in said)
    toy.run(mol, STEPS - 10, 10)
    if digest(toy.params()) != digest(other.params()):
        return Outcome("silent", f"{what}: the model is another one")
    if mol.recorded == STEPS:
        same = digest(mol.solution()) == digest(reference.solution())
        return Outcome("equal") if same else Outcome("silent", f"{what}: the answer is another one")
    if mol.recorded < STEPS - 5 or not told:
        return Outcome("silent", f"{what}: {mol.recorded} of {STEPS} recorded, said: {told}")
    mol.solution()
    return Outcome("noticed")


def _going_on(run: Callable[[Path], str], name: str, folder: Path, full: Full, what: str) -> Outcome:
    """A run that writes its checkpoint on a full disk, and goes on from it when there is room."""
    whole = run(folder / "whole")
    place = folder / "run"
    place.mkdir()
    goes_on = {"old": lambda: run(place) == whole, "new": lambda: run(place) == whole}
    return _attempt(full, lambda: run(place), name, **goes_on, what=what)


def _train_in(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return train(folder, "device")


def _cell(folder: Path, full: Full, what: str) -> Outcome:
    store, spec = CellStore(folder, behind=()), {"kind": "torture"}
    old, new = ({"losses": [value] * 3000} for value in (1.5, 2.5))
    store.write(spec, old)
    write = partial(store.write, spec, new)

    def there(result: dict[str, list[float]]) -> bool:
        found = store.read(spec)
        return found is not None and found["losses"] == result["losses"]

    return _attempt(full, write, str(folder), old=lambda: there(old), new=lambda: there(new), what=what)


WRITES: dict[str, Callable[[Path, Full, str], Outcome]] = {
    "train.save": _training_file,
    'folder store, "raise"': _store_raises,
    'folder store, "keep"': _store_keeps,
    "training": partial(_going_on, _train_in, "run.pt"),
    "simulator": partial(_going_on, simulate, "run.npz"),
    "Flower": partial(_going_on, serve, "run"),
    "cell": _cell,
}
