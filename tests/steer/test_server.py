"""The server of the page: one machine, one token, three paths, and nothing for a stranger."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from equipoise.experiments.steer import Server
from equipoise.train.steering import read_wish

GOOD = json.dumps({"preference": [0.25, 0.75]})
JSON_HEADERS = {"Content_Type": "application/json"}


def ask(server: Server, method: str, path: str, body: str | None = None, **headers: str) -> tuple[HTTPResponse, bytes]:
    """A request; underscores in the names of headers are hyphens."""
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    found = response.read()
    connection.close()
    return response, found


def is_nothing(answer: tuple[HTTPResponse, bytes]) -> bool:
    """403 and no word more."""
    response, body = answer
    known = {"content-length", "connection"}
    return response.status == 403 and body == b"" and {name.lower() for name, _ in response.getheaders()} <= known


def test_the_page_has_a_policy_and_loads_nothing(server):
    response, body = ask(server, "GET", f"/{server.token}/")
    assert response.status == 200
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    for name, value in {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}.items():
        assert response.headers[name] == value
    text = body.decode()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert server.token not in text


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "STRANGE"])
@pytest.mark.parametrize(
    "path", ["/", "/status", "/wish", "/{wrong}/", "/{wrong}/status", "/{wrong}/wish", "/{short}/"]
)
def test_a_stranger_gets_nothing(method, path, server, train):
    train()
    wrong = ("B" if server.token[0] == "A" else "A") + server.token[1:]
    path = path.format(wrong=wrong, short=server.token[:-1])
    assert is_nothing(ask(server, method, path, GOOD if method == "POST" else None, **JSON_HEADERS))
    assert not (server.folder / "wish.json").exists()


@pytest.mark.parametrize(
    "path", ["", "/page", "/status.json", "/../status.json", "/wish", "/%2e%2e/", "//", "/status?x=1", "/./"]
)
def test_no_other_path_is_served(path, server):
    assert is_nothing(ask(server, "GET", f"/{server.token}{path}"))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0:{port}"]
)
def test_a_page_of_another_site_whose_name_points_here_gets_nothing(host, server):
    """DNS rebinding: the browser of the person sends the name of the other site."""
    wanted = host.format(port=server.server_address[1])
    assert is_nothing(ask(server, "GET", f"/{server.token}/", Host=wanted))
    assert is_nothing(ask(server, "POST", f"/{server.token}/wish", GOOD, Host=wanted, **JSON_HEADERS))


def test_without_a_host_or_with_two_there_is_nothing(server):
    port = server.server_address[1]
    for hosts in ("", f"Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            line.sendall(f"GET /{server.token}/ HTTP/1.1\r\n{hosts}\r\n".encode())
            assert line.recv(1 << 16).startswith(b"HTTP/1.0 403 Forbidden\r\nContent-Length: 0\r\n")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (GOOD, {**JSON_HEADERS, "Origin": "http://evil.example"}),
        (GOOD, {"Content_Type": "text/plain"}),  # what a form of another site can send
        (GOOD, {}),
        (" " * ((1 << 16) + 1), JSON_HEADERS),
        (GOOD, {**JSON_HEADERS, "Content_Length": "-1"}),
        (GOOD, {**JSON_HEADERS, "Content_Length": "99999999999999999999"}),
        (GOOD, {**JSON_HEADERS, "Content_Length": "x"}),
    ],
)
def test_a_wish_that_is_not_from_the_page_gets_nothing(body, headers, server, train):
    train()
    assert is_nothing(ask(server, "POST", f"/{server.token}/wish", body, **headers))
    assert not (server.folder / "wish.json").exists()


@pytest.mark.parametrize(
    "body", ["", "{", "[1]", '{"preference": [1, 2]}', '{"preference": [0.5, 0.5], "x": 1}', "[" * 9999]
)
def test_a_wish_that_is_none_is_refused_with_its_reason(body, server, train):
    train()
    response, found = ask(server, "POST", f"/{server.token}/wish", body, **JSON_HEADERS)
    assert response.status == 400
    assert json.loads(found)["error"]
    assert not (server.folder / "wish.json").exists()


def test_a_wish_reaches_the_training(server, train, waits):
    training = train()
    for host in ("127.0.0.1", "localhost"):
        own = f"{host}:{server.server_address[1]}"
        headers = {**JSON_HEADERS, "Host": own, "Origin": f"http://{own}"}
        assert ask(server, "POST", f"/{server.token}/wish", GOOD, **headers)[0].status == 200
    assert read_wish(server.folder, 2) == [0.25, 0.75]
    waits(lambda: training.mol.preference.tolist() == [0.25, 0.75])


def test_the_status_of_no_run_a_run_and_a_damaged_one(server, train):
    def status() -> Any:
        return json.loads(ask(server, "GET", f"/{server.token}/status")[1])

    assert status() == {"state": "absent"}
    training = train()
    assert status()["state"] == "running"
    assert 0 <= status()["age"] < 30
    training.end()
    assert status()["state"] == "ended"
    (server.folder / "status.json").write_text("{")
    assert status()["state"] == "damaged"
    assert "status.json" in status()["why"]


def test_only_loopback_is_bound(server):
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    # Of all sockets of this machine that listen at the port there is one, at 127.0.0.1.
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]] if Path(table).exists() else []
        listening += [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]
    for other in ("127.0.0.2", "::1"):
        with pytest.raises(OSError, match=r"refused|Cannot assign|unreachable|not supported"):
            socket.create_connection((other, port), 2).close()


def test_misuse(tmp_path):
    with pytest.raises(ValueError, match="run must be a folder that exists"):
        Server(tmp_path / "none")
    with pytest.raises(ValueError, match="port must lie in 0"):
        Server(tmp_path, 1 << 16)
    with Server(tmp_path) as one, Server(tmp_path) as other:
        assert one.token != other.token
        assert len(one.token) >= 32


def allow_interrupts():
    """A process that was started in the background by a shell ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_command_prints_the_address_once_and_ends_with_ctrl_c(tmp_path):
    command = [sys.executable, "-u", "-m", "equipoise", "steer", str(tmp_path)]
    environment = {**os.environ, "COLUMNS": "40"}  # the address must not be broken
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=allow_interrupts,  # noqa: PLW1509
    )
    try:
        assert run.stdout is not None
        address = run.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=30) as page:  # noqa: S310
            assert page.status == 200
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 0
    assert err == ""
    assert "the page has ended" in out.replace("\n", " ")
    assert address not in out
