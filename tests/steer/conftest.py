"""A real training in a thread, and the server of its page."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.experiments.steer import Server
from equipoise.problems import DTLZ2, VLMOP2


class Training:
    """A synthetic problem with 2 % noise, trained in a thread until it is told to end."""

    def __init__(self, folder: Path, m: int = 2) -> None:
        self.problem = VLMOP2() if m == 2 else DTLZ2()
        self.x = torch.nn.Parameter(self.problem.initial(1, seed=0)[0].float())
        names = ["left <b>", "right", "third"][:m]
        self.optimizer = torch.optim.SGD([self.x], lr=0.02)
        self.mol = eq.MultiObjective(torch.nn.ParameterDict({"x": self.x}), self.optimizer, [1 / m] * m, names=names)
        self.folder, self.over, self.paused = folder, threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        draw = torch.Generator().manual_seed(0)
        try:
            with eq.train.steered(self.mol, self.folder, every=0.05):
                while not self.over.is_set():
                    if self.paused.is_set():
                        time.sleep(0.01)
                        continue
                    noise = 1 + 0.02 * torch.randn(self.problem.m, generator=draw)
                    self.mol(self.problem.losses(self.x) * noise).backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    with torch.no_grad():
                        self.x.clamp_(self.problem.lower, self.problem.upper)
                    time.sleep(0.001)
        except Exception as error:
            self.error = error

    def start(self) -> "Training":
        self.thread.start()
        wait((self.folder / "status.json").exists)
        return self

    def end(self) -> None:
        self.over.set()
        self.thread.join(30)
        assert self.error is None


def wait(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    begun: list[Training] = []

    def start(m: int = 2) -> Training:
        begun.append(Training(tmp_path, m).start())
        return begun[-1]

    yield start
    for training in begun:
        training.end()


@contextmanager
def _serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with _serving(tmp_path) as server:
        yield server


@pytest.fixture
def waits() -> Callable[..., None]:
    return wait
