"""The server of the page: this machine only, a token in the address, three paths, and nothing for a stranger."""

import hmac
import json
import secrets
import socketserver
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.atomic import parse_json
from equipoise.errors import DamagedFileError, require
from equipoise.experiments.report.html import assemble, read_part
from equipoise.train.steering import STATUS, check_wish, read_status, write_wish

__all__ = ["Server", "render"]

HOST = "127.0.0.1"
MOST = 1 << 16
"""Bytes of a request's body."""
PATIENCE = 10.0
"""Seconds that a connection may be silent."""


class Server(socketserver.ThreadingTCPServer):
    """Serves the page of one run at `address`, to this machine only.

    Args:
        folder: That of the run, with the files of `equipoise.train.steered`.
        port: 0 for any that is free.

    Examples:
        >>> import pathlib, tempfile
        >>> from equipoise.experiments.steer import Server
        >>> with tempfile.TemporaryDirectory() as folder, Server(pathlib.Path(folder)) as server:
        ...     server.address.split(":")[1]
        '//127.0.0.1'
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        require(folder.is_dir(), "run must be a folder that exists: eq.train.steered(mol, folder) makes it", folder)
        require(0 <= port < 1 << 16, "port must lie in 0, …, 65535", port)
        self.folder, self.token = folder, secrets.token_urlsafe(24)
        self.page, self.policy = render(str(folder))
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """With the token."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A browser that leaves is no news, and a traceback would show the token."""


def render(run: str) -> tuple[bytes, str]:
    """The page of a run, and its content security policy."""

    def own(name: str) -> str:
        return (files(__package__) / "page" / name).read_text(encoding="utf-8")

    shared = [read_part(name) for name in ("elements.js", "plot.js", "lines.js", "rays.js", "theme.js")]
    script = "\n".join([*shared, own("steer.js")])
    style = f"{read_part('page.css')}\n{own('steer.css')}"
    further = "; connect-src 'self'; base-uri 'none'; form-action 'none'"
    page, policy = assemble(own("steer.html"), style, script, {"run": run, "colours": {}}, further)
    return page.encode(), f"{policy}; frame-ancestors 'none'"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE
    protocol_version = "HTTP/1.0"  # a connection ends with its answer

    def do_GET(self) -> None:
        """The page, or the status."""
        path = self._path()
        if path == "":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif path == "status":
            self._answer(HTTPStatus.OK, json.dumps(self._status()).encode())
        else:
            self._refuse()

    def do_POST(self) -> None:
        """A wish."""
        if self._path() != "wish" or not self._is_from_the_page():
            self._refuse()
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 8 and int(length) <= MOST):
            self._refuse()
            return
        try:
            wish = parse_json(self.rfile.read(int(length)))
            write_wish(self.server.folder, check_wish(wish, len(read_status(self.server.folder)["names"])))
        except (ValueError, OSError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": str(error)}).encode())
            return
        self._answer(HTTPStatus.OK, b"{}")

    def _path(self) -> str | None:
        """What comes after the token; None for a stranger.

        The host must be this machine by its own name: a page of another site that points its name here has another.
        """
        port = self.server.server_address[1]
        known = self.headers.get_all("Host") in ([f"{HOST}:{port}"], [f"localhost:{port}"])
        token, found, path = self.path.removeprefix("/").partition("/")
        right = hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        return path if right and known and found else None

    def _is_from_the_page(self) -> bool:
        origin, kind = self.headers.get("Origin"), self.headers.get("Content-Type", "")
        own = origin is None or origin == f"http://{self.headers.get('Host')}"
        return own and kind.partition(";")[0].strip().lower() == "application/json"

    def _status(self) -> dict[str, Any]:
        folder = self.server.folder
        try:
            return {**read_status(folder), "age": max(0.0, time.time() - (folder / STATUS).stat().st_mtime)}
        except FileNotFoundError:
            return {"state": "absent"}
        except (DamagedFileError, OSError) as error:
            return {"state": "damaged", "why": str(error)}

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "application/json") -> None:
        self.send_response_only(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self) -> None:
        self.send_response_only(HTTPStatus.FORBIDDEN)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """A request that is none, or of another method: no more is said to it than to a stranger."""
        self._refuse()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the address has the token."""
