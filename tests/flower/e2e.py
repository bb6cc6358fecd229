"""The example app in real processes: on Ray, and deployed on the loopback interface. Prints what it saw.

    python tests/flower/e2e.py [simulation] [lost] [killed]

- simulation: `flwr run` with ten simulated SuperNodes on Ray; the result is that of the in-process grid.
- lost: SuperLink and three SuperNodes; one of them is killed after the first round, the run goes on without it, and
  it takes part again when it is started anew.
- killed: the ServerApp is killed after the second round of three and resumed from its checkpoint; the result is that
  of a run that was not disturbed.

Everything is started here and ended by its process id; at the end nothing may be left.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

APP = Path(__file__).parents[2] / "examples" / "flower-digits"
BIN = Path(sys.executable).parent
POLL = 0.2
PATIENCE = 300.0


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


START = time.monotonic()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, condition: Callable[[], Any]) -> Any:
    """What the condition gives as soon as it gives something."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(POLL)
    raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")


class Federation:
    """A SuperLink, SuperNodes, and runs on them, with a home folder that no other process uses."""

    def __init__(self, home: Path, *, simulation: bool = False) -> None:
        self.home, self.port = home, free_port()
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }
        self.started: list[subprocess.Popen[bytes]] = []
        home.mkdir(parents=True, exist_ok=True)
        place = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{place}')
        kind = ["--simulation"] if simulation else []
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port), *kind]
        self.link = self.start("superlink", "flower-superlink", *link, "--disable-runtime-dependency-installation")
        until("the SuperLink answers", self._answers)

    def _answers(self) -> bool:
        assert self.link.poll() is None, (self.home / "superlink.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / program), *arguments],
                cwd=APP,
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.started.append(process)
        say(f"started {name}, pid {process.pid}")
        return process

    def node(self, partition: int, of: int) -> subprocess.Popen[bytes]:
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        config = f"partition-id={partition} num-partitions={of}"
        return self.start(f"supernode-{partition}", "flower-supernode", "--insecure", *where, "--node-config", config)

    def run(self, name: str, *arguments: str, **config: str | float) -> subprocess.Popen[bytes]:
        settings = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        return self.start(name, "flwr", "run", ".", "here", "--stream", "--run-config", settings, *arguments)

    def log(self, name: str) -> str:
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def processes(self) -> dict[int, str]:
        """Everything that lives in this home, by process id: what was started here, and what that started."""
        found = {}
        mark = f"FLWR_HOME={self.home}".encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def end(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            deadline = time.monotonic() + 10
            while self.processes() and time.monotonic() < deadline:
                time.sleep(POLL)
        for process in self.started:
            process.wait(10)
        left = self.processes()
        assert not left, f"left behind: {left}"
        say("everything ended, nothing left behind")


@contextmanager
def federation(name: str, *, simulation: bool = False) -> Iterator[Federation]:
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=f"flower-{name}-", ignore_cleanup_errors=True))
        )
        here = Federation(folder / "home", simulation=simulation)
        try:
            yield here
        except BaseException:
            for path in sorted(here.home.glob("*.log")):
                say(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
            raise
        finally:
            here.end()


def done(folder: Path) -> int:
    """Rounds that a checkpoint has."""
    listed = folder / "checkpoint.json"
    return int(json.loads(listed.read_text())["round"]) if listed.is_file() else 0


def finished(here: Federation, name: str, process: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    """The models of a run, once they are there."""

    def there() -> bool:
        assert process.poll() in {None, 0} or out.is_file(), here.log(name)[-3000:]
        return out.is_file()

    until(f"{name} finishes", there)
    process.wait(PATIENCE)
    with np.load(out, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def heard(text: str) -> list[int]:
    """How many objectives were heard in every round, by the run's log."""
    return [int(n) for n in re.findall(r"Aggregated MetricRecord: \{.*?'objectives-heard': (\d+)", text)]


def in_process(clients: int, rounds: int) -> dict[str, Any]:
    """The same app on the in-process grid."""
    sys.path.insert(0, str(APP))
    client, server = (importlib.import_module(f"flower_digits.{name}") for name in ("client", "server"))
    from flwr.app import Context, RecordDict

    from equipoise.flower import LocalGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "models.npz"
        run = {**config, "clients": clients, "num-rounds": rounds, "evaluate": False, "out": str(out)}
        server.app(LocalGrid(client.app, clients, run_config=run), Context(0, 0, {}, RecordDict(), run))
        with np.load(out, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}


def same(what: str, a: dict[str, Any], b: dict[str, Any], tolerance: float) -> None:
    assert a.keys() == b.keys()
    largest = max(float(np.abs(a[key] - b[key]).max()) for key in a)
    say(f"{what}: λ, model and solution differ by at most {largest:.1e}")
    assert largest <= tolerance


def simulation() -> None:
    """Ten rounds of ten clients on Ray."""
    with federation("simulation", simulation=True) as here:
        out = here.home / "models.npz"
        resources = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]
        process = here.run("run", *resources, num_rounds=10, evaluate=False, least_nodes=10, out=str(out))
        found = finished(here, "run", process, out)
        say(f"objectives heard in every round: {heard(here.log('run'))}")
        same("Ray against the in-process grid", found, in_process(10, 10), 1e-6)


def lost() -> None:
    """One of three SuperNodes dies and comes back."""
    with federation("lost") as here:
        kept, out = here.home / "kept", here.home / "models.npz"
        nodes = [here.node(k, 3) for k in range(3)]
        until("three SuperNodes are there", lambda: here.log("superlink").count("Activated node_id") >= 3)
        settings: dict[str, Any] = {"clients": 3, "least_nodes": 2, "evaluate": False, "timeout": 60.0}
        process = here.run("run", num_rounds=5, checkpoint=str(kept), out=str(out), **settings)
        until("round 1", lambda: done(kept) >= 1)
        nodes[2].send_signal(signal.SIGKILL)
        nodes[2].wait()
        for pid, command in here.processes().items():
            if "clientapp" in command and "partition-id=2" in command:
                os.kill(pid, signal.SIGKILL)
        say(f"round 1 is done: killed the SuperNode of partition 2, pid {nodes[2].pid}")
        until("a round without it", lambda: 2 in heard(here.log("run")))
        say("the run goes on without it")
        here.node(2, 3)
        finished(here, "run", process, out)
        counts = heard(here.log("run"))
        say(f"objectives heard in every round: {counts}")
        assert counts[0] == 3
        assert 3 in counts[counts.index(2) :], "it takes part again"


def killed() -> None:
    """The ServerApp dies and is resumed."""
    with federation("killed") as here:
        for k in range(3):
            here.node(k, 3)
        settings: dict[str, Any] = {"clients": 3, "least_nodes": 3, "evaluate": False, "num_rounds": 3}
        calm, kept, out = here.home / "calm.npz", here.home / "kept", here.home / "models.npz"
        undisturbed = finished(here, "calm", here.run("calm", out=str(calm), **settings), calm)
        first = here.run("killed", checkpoint=str(kept), out=str(out), **settings)
        until("round 2", lambda: done(kept) >= 2)
        servers = [pid for pid, command in here.processes().items() if "flwr-serverapp" in command]
        assert len(servers) == 1, here.processes()
        os.kill(servers[0], signal.SIGKILL)
        say(f"round 2 is done: killed the ServerApp, pid {servers[0]}")
        assert done(kept) == 2
        assert not out.exists()
        until("the first run ends", lambda: first.poll() is not None)
        second = here.run("resumed", checkpoint=str(kept), resume=True, out=str(out), **settings)
        found = finished(here, "resumed", second, out)
        assert "resumed after round 2 of 3" in here.log("resumed")
        assert len(heard(here.log("resumed"))) == 1
        same("resumed against undisturbed", found, undisturbed, 0.0)
        same("deployed against the in-process grid", undisturbed, in_process(3, 3), 1e-6)


SCENARIOS = {"simulation": simulation, "lost": lost, "killed": killed}

if __name__ == "__main__":
    for scenario in sys.argv[1:] or list(SCENARIOS):
        say(f"=== {scenario}: {SCENARIOS[scenario].__doc__}")
        SCENARIOS[scenario]()
    say("all as it should be")
