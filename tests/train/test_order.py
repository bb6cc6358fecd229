"""What is given to the streams of a CUDA device is in order: a check that needs no device.

What a thread does on the host is not seen.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.train.streams import Device, Event, Noted, Stream, merge, stand_in
from torch import Tensor

import equipoise as eq
from equipoise.host import Fetched
from equipoise.replay import Resident
from equipoise.streams import Beside
from equipoise.train.archive import Archive
from equipoise.train.courier import Job, ToHost

ADAPTIVE = eq.Adaptive(power=2, capacity=3)


class Work(NamedTuple):
    """What a store's thread was given; who has its result has waited for what it waited for."""

    device: Device
    job: Job

    def done(self) -> bool:
        return self.job.done()

    def result(self) -> None:
        try:
            self.job.result()
        finally:
            merge(self.device.host, self.device.elsewhere)


@pytest.fixture
def device(monkeypatch) -> Device:
    device = stand_in(monkeypatch)

    def fetch(tensor: Tensor) -> Fetched:
        copy, arrived = torch.empty_like(tensor), Event(device)
        copy.copy_(tensor)
        arrived.record(Stream(device, device.current))
        return Fetched(copy, arrived)  # type: ignore[arg-type]

    for module in ("replay", "train.finite"):
        monkeypatch.setattr(f"equipoise.{module}.fetch", fetch)
    given = ToHost.run
    monkeypatch.setattr(ToHost, "run", lambda courier, job: Work(device, given(courier, job)))
    return device


@pytest.fixture
def make(toy, preference, as_cuda, device) -> Callable[..., tuple[Any, eq.MultiObjective]]:  # noqa: ARG001
    """A run with streams, as on a CUDA device."""

    def make(weighting: Any, conversion: Any, store: str, check: Any) -> tuple[Any, eq.MultiObjective]:
        run = toy()
        with as_cuda():
            mol = eq.MultiObjective(
                run.model, weighting, preference, conversion, run.optimizer, store=store, check=check
            )
        assert isinstance(mol._record, Archive)
        assert isinstance(mol._record._plan, Resident)
        return run, mol

    return make


def loop(run: Any, mol: eq.MultiObjective) -> None:
    """All that people do."""
    run.run(mol, 4)
    for step in range(4, 10):
        for part in range(1 + step % 3):
            (mol(run.losses(step + part)) / (1 + step % 3)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if step % 2:
            mol(run.losses(step))  # thrown away
        if step == 6:
            mol.load_state_dict(mol.state_dict())
        if step == 7:
            (mol.coefficients * 2).sum()
            mol.metrics()
            mol.solution()
    for step in range(4):
        mol(run.losses(step), counts=torch.tensor([4.0, step % 2, 3.0])).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    mol.solution()
    mol.close()


@pytest.mark.parametrize("check", ["deferred", "now"])
@pytest.mark.parametrize("store", ["device", "host"])
@pytest.mark.parametrize("conversion", [ADAPTIVE, eq.Average(), eq.Last()], ids=["adaptive", "average", "last"])
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.SmoothTchebycheff(0.1), eq.MGDA()], ids=["omd", "smooth", "mgda"])
def test_nothing_is_touched_out_of_order(weighting, conversion, store, check, make, device):
    run, mol = make(weighting, conversion, store, check)
    with Noted(device):
        loop(run, mol)
    assert not device.races
    assert device.streams == 1 + (store == "host")


@pytest.mark.parametrize(
    ("where", "name", "store"),
    [(Resident, "join", "device"), (Beside, "__enter__", "device"), (ToHost, "hold", "host")],
    ids=["join", "enter", "hold"],
)
def test_a_wait_that_is_left_out_is_noticed(where, name, store, make, device, monkeypatch):
    waits = getattr(where, name)

    def goes_on(*args: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "wait_event", lambda *_: None)
            return waits(*args)

    monkeypatch.setattr(where, name, goes_on)
    run, mol = make(eq.OMD(), ADAPTIVE, store, "now")
    with Noted(device):
        loop(run, mol)
    assert device.races
