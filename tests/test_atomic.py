"""Atomic files: a file is the old one or the complete new one, and a damaged one is refused."""

import errno
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import atomic
from equipoise.atomic import (
    DEEPEST_JSON,
    check_zip,
    parse_json,
    read_json,
    release_lock,
    replacing,
    sealed_zip,
    take_lock,
    write_json,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions, links and locks of POSIX")


def write(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@contextmanager
def umask(mask: int):
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@contextmanager
def full_disk(size: int):
    """No file of this process can be larger: the error is another one than that of a full disk, its way is the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_the_umask(mask, tmp_path):
    with umask(mask):
        write(tmp_path / "new", b"x")
        assert mode(tmp_path / "new") == 0o666 & ~mask


def test_the_umask_is_never_changed(tmp_path, monkeypatch):
    def forbidden(mask: int) -> int:
        raise AssertionError(f"umask({mask})")

    monkeypatch.setattr(os, "umask", forbidden)
    write(tmp_path / "new", b"x")
    write(tmp_path / "new", b"y")
    assert (tmp_path / "new").read_bytes() == b"y"


@posix
@pytest.mark.parametrize("bits", [0o600, 0o640, 0o666, 0o400])
def test_a_file_keeps_its_permissions_from_the_first_byte(bits, tmp_path):
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    path.chmod(bits)
    with umask(0o022), replacing(path) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == bits
        file.write(b"new")
    assert (mode(path), path.read_bytes()) == (bits, b"new")


@posix
def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "data").mkdir()
    target, link = tmp_path / "data" / "real", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the first time, it leads nowhere
        write(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content


@posix
def test_only_a_regular_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "folder", "loop"):
        with pytest.raises(OSError, match=rf"only a regular file can be replaced: '.*{name}'"):
            write(tmp_path / name, b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder", "loop"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write(path, b"old")
    for error in (KeyboardInterrupt, ZeroDivisionError):
        with pytest.raises(error), replacing(path) as file:  # noqa: PT012
            file.write(b"x" * 100)
            raise error
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_an_interrupt_within_a_write_of_torch_stays_an_interrupt(tmp_path):
    """torch replaces what a write raises by an error about positions in its file."""
    path, lines = tmp_path / "run.pt", 0
    eq.train.save({"version": 1}, path)

    def watch(frame, event, _):
        nonlocal lines
        if frame.f_code is not atomic._Remembering.write.__code__:
            return None
        lines += event == "line"
        if lines == 4:  # two a call: the second write
            raise KeyboardInterrupt
        return watch

    sys.settrace(watch)
    try:
        with pytest.raises(KeyboardInterrupt):
            eq.train.save({"version": 2, "x": torch.ones(100_000)}, path)
    finally:
        sys.settrace(None)
    assert lines == 4
    assert eq.train.load(path) == {"version": 1}


def test_an_error_of_the_body_is_not_blamed_on_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), replacing(tmp_path / "file"):
        (tmp_path / "elsewhere").read_bytes()


@posix
@pytest.mark.parametrize("content", [torch.ones(10**5), {"many": [torch.ones(3)] * 2000}], ids=["one", "many"])
def test_a_full_disk_is_said_with_the_name_of_the_file(content, tmp_path):
    """`torch.save` itself says "unexpected pos 704"."""
    path = tmp_path / "run.pt"
    eq.train.save({"old": 1}, path)
    with full_disk(5000), pytest.raises(OSError, match=rf"File too large: '{path}'") as caught:
        eq.train.save(content, path)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert eq.train.load(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


@posix
def test_a_write_that_fails_fails_even_if_somebody_caught_it(tmp_path):
    with full_disk(100), pytest.raises(OSError, match="File too large"), replacing(tmp_path / "file") as file:  # noqa: PT012
        try:
            file.write(b"x" * 10**5)
        except OSError:
            file.seek(0)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"'.*file/inner'"):
        write(tmp_path / "file" / "inner", b"x")


KILLED = """
import os, signal, sys
from equipoise.atomic import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    for name in ("[x].pt", "other"):
        subprocess.run([sys.executable, "-c", KILLED, tmp_path / name], check=False)
    assert len(list(tmp_path.glob(".*.part"))) == 2
    write(tmp_path / "[x].pt", b"whole")
    (left,) = tmp_path.glob(".*.part")
    assert left.name.startswith(".other.")


@posix
def test_a_part_that_is_being_written_stays(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as outer:
        outer.write(b"outer")
        write(path, b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"


@posix
def test_links_and_fifos_called_part_stay(tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    (tmp_path / ".file.1.part").symlink_to(mine)
    (tmp_path / ".file.2.part").hardlink_to(mine)
    os.mkfifo(tmp_path / ".file.3.part")
    write(tmp_path / "file", b"x")
    assert len(list(tmp_path.glob(".file.*.part"))) == 3
    assert mine.read_bytes() == b"mine"


@posix
def test_many_writers_of_one_file_do_not_take_each_others_parts(tmp_path):
    path, failures = tmp_path / "file", []

    def work(number: int) -> None:
        try:
            for _ in range(100):
                write(path, bytes([number]) * 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    data = path.read_bytes()
    assert data == data[:1] * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@posix
def test_a_lock_is_held_until_released_and_names_its_process(tmp_path):
    path = tmp_path / "lock"
    for _ in range(2):
        handle = take_lock(path)
        assert path.read_text() == str(os.getpid())
        with pytest.raises(BlockingIOError, match=f"open in process {os.getpid()}: '{path}'"):
            take_lock(path)
        release_lock(handle, os.getpid())


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_does_not_end_the_lock_of_its_parent(tmp_path):
    handle, owner = take_lock(tmp_path / "lock"), os.getpid()
    child = os.fork()
    if child == 0:
        release_lock(handle, owner)
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError):
        take_lock(tmp_path / "lock")
    release_lock(handle, owner)


@posix
def test_a_lock_that_is_not_ours_is_left_as_it_is(tmp_path):
    path, mine = tmp_path / "lock", tmp_path / "mine"
    mine.write_text("my notes")
    path.symlink_to(mine)
    with pytest.raises(OSError, match=f"the lock must not be a link: '{path}'"):
        take_lock(path)
    path.unlink()
    mine.rename(path)
    with pytest.raises(OSError, match=f"the lock must be a file of this library; found another one: '{path}'"):
        take_lock(path)
    assert path.read_text() == "my notes"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="the lock must be a file of this library"):
        take_lock(path)


@posix
def test_a_lock_on_a_full_disk_is_said_with_its_name(tmp_path):
    path = tmp_path / "lock"
    with full_disk(0), pytest.raises(OSError, match=rf"File too large: '{path}'"):
        take_lock(path)


CONTENT = {"round": 3, "files": {"model": "a.npz", "ü": [1.5, -0.0, None, True]}, "settings": {}}


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a.json", CONTENT)
    assert read_json(tmp_path / "a.json") == CONTENT
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json")
    with pytest.raises(ValueError, match="'sha256'"):
        write_json(tmp_path / "b.json", {"sha256": "mine"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", {"x": float("nan")})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_changed_json_file_is_named(tmp_path):
    """Every bit of it; a flip that leaves the content as it is (an indent that becomes a tab, say) is none."""
    path = tmp_path / "a.json"
    write_json(path, CONTENT)
    data, noticed = path.read_bytes(), 0
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            path.write_bytes(changed)
            try:
                assert read_json(path) == CONTENT
            except eq.DamagedFileError as error:
                assert str(path) in str(error)  # noqa: PT017
                noticed += 1
    assert noticed > 0.9 * 8 * len(data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested at most"),
        ('{"a":' * (DEEPEST_JSON + 1) + "1" + "}" * (DEEPEST_JSON + 1), "nested at most"),
        ('{"a": 1' + "0" * 400 + "}", "larger than a float"),
        ('{"a": 1' + "0" * 9000 + "}", "not a whole JSON file"),
        ('{"a": NaN}', "not JSON compliant"),
        ("[1]", "object"),
        ("{}", "SHA-256 None"),
        ('{"a": 1', "not a whole JSON file"),
        ("\udcff", "not a whole JSON file"),
        ("", "not a whole JSON file"),
    ],
)
def test_hostile_json_is_refused(text, reason, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(eq.DamagedFileError, match=f"(?s)a.json is damaged: .*{reason}"):
        read_json(path)


def test_json_has_limits_and_what_is_within_them_is_read(monkeypatch):
    depth = "[" * DEEPEST_JSON + "]" * DEEPEST_JSON
    assert json.dumps(parse_json(depth.encode())) == depth
    assert parse_json(b"1" + b"0" * 300) == 10**300
    monkeypatch.setattr("equipoise.atomic.LARGEST_JSON", 10)
    assert parse_json(b"[1, 2, 3 ]") == [1, 2, 3]
    with pytest.raises(eq.DamagedFileError, match="at most 10 bytes"):
        parse_json(b"[1, 2, 3  ]")


def sealed(path: Path, data: bytes) -> None:
    with sealed_zip(path) as file:
        file.write(data)


def zipped(parts: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in parts:
            archive.writestr(name, data)
    return file.getvalue()


def test_a_sealed_file_is_a_usual_one(tmp_path):
    with sealed_zip(tmp_path / "a.npz") as file:
        np.savez(file, x=np.arange(3))
    check_zip(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as found:
        assert found["x"].tolist() == [0, 1, 2]
    eq.train.save({"x": torch.arange(3)}, tmp_path / "a.pt")
    for mmap in (False, True):
        assert torch.load(tmp_path / "a.pt", weights_only=True, mmap=mmap)["x"].tolist() == [0, 1, 2]
        assert eq.train.load(tmp_path / "a.pt", mmap=mmap, map_location="cpu")["x"].tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [["a", "a"], ["../a"], ["/a"], ["a/../../b"], ["a\\b"], ["a/"]], ids=str)
def test_archives_with_strange_names_are_refused(names, tmp_path):
    sealed(tmp_path / "a.npz", zipped([(name, b"") for name in names]))
    with pytest.raises(eq.DamagedFileError, match=r"a.npz is damaged.*plain, different names"):
        check_zip(tmp_path / "a.npz")


def test_other_archives_are_refused(tmp_path):
    sealed(tmp_path / "a.npz", zipped([("a", bytes(10**6))], zipfile.ZIP_DEFLATED))
    with pytest.raises(eq.DamagedFileError, match=r"a.npz is damaged.*must not be compressed"):
        check_zip(tmp_path / "a.npz")
    sealed(tmp_path / "a.npz", b"no zip at all, but long enough")
    with pytest.raises(eq.DamagedFileError, match=r"a.npz is damaged.*not a zip file"):
        check_zip(tmp_path / "a.npz")


@pytest.mark.parametrize("data", [b"", b"x", zipped([("a", b"x")])])
def test_a_file_without_a_seal_is_refused(data, tmp_path):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(eq.DamagedFileError, match=r"a.npz is damaged.*it must end with its SHA-256"):
        check_zip(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError):
        check_zip(tmp_path / "nowhere")


@pytest.mark.parametrize("flips", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_flip_in_a_checkpoint_is_noticed(flips, tmp_path):
    """Those in the directory of the zip file too, which the checksums of its parts do not cover."""
    path, model = tmp_path / "run.pt", torch.nn.Linear(5, 5)
    mol = eq.MultiObjective(model, None, [0.5, 0.5])
    eq.train.save({"model": model.state_dict(), "mol": mol.state_dict()}, path)
    data, rng = path.read_bytes(), random.Random(flips)  # noqa: S311
    for _ in range(flips):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(eq.DamagedFileError, match=f"{path} is damaged"):
            eq.train.load(path)
    for _ in range(flips // 10):
        path.write_bytes(data[: rng.randrange(len(data))])
        with pytest.raises(eq.DamagedFileError, match=f"{path} is damaged"):
            eq.train.load(path)
