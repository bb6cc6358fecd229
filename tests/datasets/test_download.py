"""Downloads are verified, and nothing incomplete is left."""

import contextlib
import gzip
import hashlib
import io
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from equipoise.datasets import ChecksumError, DownloadError, catalogue, download, fetch, load, locate
from equipoise.datasets.catalogue import Layout, Source
from equipoise.datasets.files import File


class Server:
    """A web server for the files of a folder; remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[str]()
        folder.mkdir()
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *arguments) -> None:
                super().__init__(*arguments, directory=str(folder))

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.path.startswith("/away/"):
                    self.send_response(302)
                    self.send_header("Location", f"ftp://127.0.0.1/{self.path}")
                    self.end_headers()
                else:
                    super().do_GET()

            def log_message(self, *_arguments) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(tmp_path / "served")
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def serve(server: Server, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (server.folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


def files_under(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_was_fetched_can_be_loaded(server: Server, tiny: dict[str, bytes], cache: Path):
    serve(server, tiny)
    steps: list[tuple[str, int, int | None]] = []
    where = fetch("MNIST", base_url=server.url, progress=lambda *step: steps.append(step))
    assert where == cache / "mnist" == locate("mnist")
    assert load("mnist").train_labels.tolist() == [7, 0, 9]
    assert files_under(cache) == sorted(f"{name}.gz" for name in tiny)
    size = (server.folder / "train-labels-idx1-ubyte.gz").stat().st_size
    assert ("train-labels-idx1-ubyte.gz", size, size) in steps


def test_the_real_files_pass(server: Server, real: Path, tmp_path: Path):
    for path in (real / "mnist").glob("*.gz"):
        (server.folder / path.name).symlink_to(path)
    where = fetch("mnist", tmp_path / "data", f"{server.url}/")
    assert where == tmp_path / "data" / "mnist"
    assert len(files_under(where)) == 4


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: raw[:-1] + b"!", lambda _: b"<html>no</html>"])
def test_a_corrupted_download_leaves_nothing(server: Server, tiny: dict[str, bytes], tmp_path: Path, damage):
    serve(server, tiny)
    path = server.folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    expected, found = (hashlib.sha256(raw).hexdigest() for raw in (whole, damage(whole)))
    with pytest.raises(ChecksumError, match=rf"train-images-idx3-ubyte\.gz must.*{expected}; found {found}"):
        fetch("mnist", tmp_path / "data", server.url)
    assert list((tmp_path / "data" / "mnist").iterdir()) == []


def test_finished_files_are_not_fetched_again_and_damaged_ones_are(
    server: Server, tiny: dict[str, bytes], tmp_path: Path
):
    serve(server, tiny)
    (server.folder / "t10k-images-idx3-ubyte.gz").rename(server.folder / "hidden")
    with pytest.raises(DownloadError, match=r"t10k-images-idx3-ubyte\.gz could not be fetched: .* 404"):
        fetch("mnist", tmp_path, server.url)
    assert files_under(tmp_path / "mnist") == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    (server.folder / "hidden").rename(server.folder / "t10k-images-idx3-ubyte.gz")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    server.asked.clear()
    fetch("mnist", tmp_path, server.url)
    assert server.asked == [f"/{n}.gz" for n in list(tiny)[1:]]
    server.asked.clear()
    fetch("mnist", tmp_path, server.url)
    assert server.asked == []


BATCHES = {"one.bin": b"first" * 100, "two.bin": b"second" * 100}


@pytest.fixture
def pack(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], Path]:
    """Makes an archive on the server, and its checksum that of the catalogue."""

    def made(contents: dict[str, bytes]) -> Path:
        files = tuple(File(name, hashlib.sha256(raw).hexdigest(), len(raw)) for name, raw in BATCHES.items())
        path = server.folder / "all.tar.gz"
        _pack(path, contents)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        layouts = (Layout(("bin",), files),)
        source = Source("cifar10", "", layouts, "https://example.org/", archive="all.tar.gz", archive_sha256=sha256)
        monkeypatch.setitem(catalogue.SOURCES, "cifar10", source)
        return path

    return made


def _pack(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_an_archive_gives_its_known_files_and_no_others(server: Server, tmp_path: Path, pack):
    data = tmp_path / "data"
    pack({"x/one.bin": BATCHES["one.bin"], "../../evil": b"!", "x/two.bin": BATCHES["two.bin"]})
    fetch("cifar10", data, server.url)
    assert {path.name: path.read_bytes() for path in (data / "bin").iterdir()} == BATCHES
    assert not list(tmp_path.rglob("evil"))
    fetch("cifar10", data, server.url)
    assert server.asked == ["/all.tar.gz"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({**BATCHES, "two.bin": b"secund" * 100}, "two.bin in .* must have SHA-256"),
        ({"one.bin": BATCHES["one.bin"]}, "must hold two.bin .* found no such file"),
    ],
)
def test_a_wrong_archive_leaves_nothing(server: Server, tmp_path: Path, pack, contents, message: str):
    pack(contents)
    with pytest.raises(ChecksumError, match=message):
        fetch("cifar10", tmp_path / "data", server.url)
    assert files_under(tmp_path / "data") == []


@pytest.mark.parametrize("change", [lambda b: b[:0], lambda b: b[:40], lambda b: b + b"!", gzip.compress])
def test_an_archive_is_not_parsed_unless_its_checksum_is_right(server, tmp_path: Path, pack, change, monkeypatch):
    path = pack(BATCHES)
    path.write_bytes(change(path.read_bytes()))
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(ChecksumError, match=r"all\.tar\.gz must have SHA-256 .*; found .*; nothing of it was kept"):
        fetch("cifar10", tmp_path / "data", server.url)
    assert files_under(tmp_path / "data") == []


class Answer(NamedTuple):
    """What a raw server sends: a header, then pieces with a pause between them."""

    header: str
    pieces: int = 0
    slowly: bool = False
    """Whether the header comes in pieces too."""


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], str]]:
    """A server that sends exactly the given bytes, valid HTTP or not."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    listening = socket.create_server(("127.0.0.1", 0))
    threads = list[threading.Thread]()

    def serve_one(answer: Answer) -> None:
        peer = listening.accept()[0]
        with peer, contextlib.suppress(OSError):
            peer.recv(10_000)
            head = f"HTTP/1.1 200 OK\r\n{answer.header}\r\n\r\n".encode()
            for part in [bytes([byte]) for byte in head] if answer.slowly else [head]:
                peer.sendall(part)
                time.sleep(0.02 * answer.slowly)
            for _ in range(answer.pieces):
                peer.sendall(b"x")
                time.sleep(0.02)

    def begin(answer: Answer) -> str:
        threads.append(threading.Thread(target=serve_one, args=(answer,)))
        threads[-1].start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield begin
    for thread in threads:
        thread.join()
    listening.close()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("length", ["-1", "1e3", "٣", "9" * 5000, "", "1, 1", "0x10"])
def test_a_bad_content_length_is_said(length: str, raw, tmp_path: Path):
    url = raw(Answer(f"Content-Length: {length}"))
    with pytest.raises(DownloadError, match=r"gz must have a whole number as Content-Length; found '.{0,40}'$"):
        fetch("mnist", tmp_path, url)
    assert files_under(tmp_path) == []


@pytest.mark.usefixtures("tiny")
def test_an_answer_that_is_too_long_or_too_short_is_said(raw, tmp_path: Path):
    with pytest.raises(
        DownloadError, match=r"must not have more than 268435456 bytes; found Content-Length 99999999999"
    ):
        fetch("mnist", tmp_path, raw(Answer("Content-Length: 99999999999")))
    with pytest.raises(DownloadError, match=r"gz must have 10 bytes, as the server said; found 3"):
        fetch("mnist", tmp_path, raw(Answer("Content-Length: 10", 3)))
    assert files_under(tmp_path) == []


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "answer",
    [Answer("Connection: close", 200), Answer("Content-Length: 200", 200), Answer(f"X: {'x' * 200}", slowly=True)],
    ids=["body", "known length", "header"],
)
def test_a_server_that_never_ends_is_left(answer: Answer, raw, tmp_path: Path, monkeypatch):
    """It is never silent for long, so that no single wait is too long."""
    monkeypatch.setattr(download, "DEADLINE", 0.3)
    begin = time.monotonic()
    with pytest.raises(DownloadError, match=r"gz could not be fetched: it must arrive within 0.3 seconds"):
        fetch("mnist", tmp_path, raw(answer))
    assert time.monotonic() - begin < 3  # all of it takes four seconds
    assert files_under(tmp_path) == []


def test_an_endless_answer_is_cut_off(server: Server, tiny: dict[str, bytes], tmp_path: Path, monkeypatch):
    serve(server, tiny)
    monkeypatch.setattr(download, "LARGEST", 10)
    with pytest.raises(DownloadError, match="must not have more than 10 bytes"):
        fetch("mnist", tmp_path / "data", server.url)
    assert files_under(tmp_path / "data") == []


@pytest.mark.parametrize("url", ["file:///etc", "ftp://example.org", "example.org/mnist", ""])
def test_only_web_addresses(url: str, tmp_path: Path):
    with pytest.raises(ValueError, match="base_url must begin with http:// or https://; found"):
        fetch("mnist", tmp_path, url)


@pytest.mark.usefixtures("tiny")
def test_a_redirection_to_another_protocol_is_refused(server: Server, tmp_path: Path):
    with pytest.raises(DownloadError, match="unknown url type: ftp"):
        fetch("mnist", tmp_path, f"{server.url}/away")


def test_an_unreachable_server(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9/train-images-idx3-ubyte\.gz could not be fetched"):
        fetch("mnist", tmp_path, "http://127.0.0.1:9")


@pytest.mark.parametrize(("name", "reason"), [("adult", "what to put where"), ("digits", "it needs no file")])
def test_sets_without_a_verified_home_say_so(name: str, reason: str, tmp_path: Path):
    with pytest.raises(ValueError, match=rf"can be fetched \(mnist, cifar10\); found '{name}': .*{reason}"):
        fetch(name, tmp_path)
