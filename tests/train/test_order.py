"""What is given to the streams of a CUDA device is in order: a check that needs no device.

Streams and events are stand-ins that keep vector clocks. Every operation of a run is noted with its stream and with the
memory that it reads and writes; two that touch the same memory, one of them writing, must be ordered by the waits in
between, and so must the last use of memory and its next use by the stream that it came from. What a thread does on the
host is not seen.
"""

import threading
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import equipoise as eq
from equipoise.host import Fetched
from equipoise.train.archive import Archive
from equipoise.train.courier import Job, ToHost

Clock = defaultdict[int, int]
FREE = frozenset(
    {
        *("alias", "as_strided", "detach", "expand", "permute", "_reshape_alias", "select", "slice", "split"),
        *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "_unsafe_view", "unsqueeze", "view"),
        *("empty", "empty_like", "empty_strided"),
    }
)
"""Operations that touch no memory."""
ADAPTIVE = eq.Adaptive(power=2, capacity=3)


def merge(clock: Clock, other: Mapping[int, int]) -> None:
    for stream, time in other.items():
        clock[stream] = max(clock[stream], time)


class Device:
    """Streams by number, 0 that of the training; what the host has waited for; and who used which memory."""

    def __init__(self) -> None:
        self.clocks: defaultdict[int, Clock] = defaultdict(lambda: defaultdict(int))
        self.host: Clock = defaultdict(int)
        self.elsewhere: Clock = defaultdict(int)
        """What the thread of a store has waited for."""
        self.current, self.streams, self.thread = [0], 0, threading.get_ident()
        self.used: dict[int, Use] = {}
        self.given_back: defaultdict[int, list[Use]] = defaultdict(list)
        self.races: Counter[str] = Counter()

    def operation(self, name: str) -> tuple[int, int]:
        """The current stream, which is given one more, and its time then."""
        stream = self.current[-1]
        clock = self.clocks[stream]
        merge(clock, self.host)
        clock[stream] += 1
        for use in self.given_back.pop(stream, []):
            self.check(stream, use, name, "uses memory again that", writes=True)
        return stream, clock[stream]

    def use(self, tensor: Tensor, stream: int) -> "Use":
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.used:
            self.used[key] = Use(stream)
            weakref.finalize(storage, self._give_back, key)
        return self.used[key]

    def _give_back(self, key: int) -> None:
        use = self.used.pop(key)
        self.given_back[use.home].append(use)

    def check(self, stream: int, use: "Use", name: str, what: str = "touches what", *, writes: bool) -> None:
        earlier = [*use.writes.items(), *(use.reads.items() if writes else ())]
        for other, time in earlier:
            if self.clocks[stream][other] < time:
                frames = traceback.extract_stack()
                where = [f"{f.name}:{f.lineno}" for f in frames if "equipoise/train" in f.filename][-3:]
                self.races[f"{name} {what} {use.names[other]} of another stream may still use; at {where}"] += 1


class Use:
    """The last reads and writes of some memory by each stream, and the stream that it is given back to."""

    def __init__(self, home: int) -> None:
        self.home = home
        self.reads: dict[int, int] = {}
        self.writes: dict[int, int] = {}
        self.names: dict[int, str] = {}


class Noted(TorchDispatchMode):
    """Every operation, as the current stream is given it."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), str(func)
        if name.split(".")[1] in FREE:
            return result
        stream, time = self.device.operation(name)
        arguments = zip(func._schema.arguments, args, strict=False)
        changed = [given for a, given in arguments if a.alias_info is not None and a.alias_info.is_write]
        written = {x.untyped_storage()._cdata for x in tree_leaves(changed) if isinstance(x, Tensor)}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.device.type == "cpu":
                use, writes = self.device.use(x, stream), x.untyped_storage()._cdata in written
                self.device.check(stream, use, name, writes=writes)
                (use.writes if writes else use.reads)[stream] = time
                use.names[stream] = name
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.device.type == "cpu":
                use = self.device.use(x, stream)
                use.writes[stream], use.names[stream] = time, name
        if "_local_scalar_dense" in name:  # the host reads a number
            merge(self.device.host, self.device.clocks[stream])
        return result


class Stream:
    """A stand-in for torch.cuda.Stream, and what a `with` makes the current one."""

    def __init__(self, device: Device, number: int | None = None) -> None:
        if number is None:
            device.streams += 1
        self.device, self.number = device, device.streams if number is None else number

    @property
    def clock(self) -> Clock:
        merge(self.device.clocks[self.number], self.device.host)
        return self.device.clocks[self.number]

    def wait_stream(self, other: "Stream") -> None:
        merge(self.clock, other.clock)

    def wait_event(self, event: "Event") -> None:
        merge(self.clock, event.clock)

    def __enter__(self) -> None:
        self.device.current.append(self.number)

    def __exit__(self, *_: object) -> None:
        self.device.current.pop()


class Event:
    """A stand-in for torch.cuda.Event."""

    def __init__(self, device: Device) -> None:
        self.device, self.clock = device, dict[int, int]()

    def record(self, stream: Stream) -> None:
        self.clock = dict(stream.clock)

    def synchronize(self) -> None:
        here = threading.get_ident() == self.device.thread
        merge(self.device.host if here else self.device.elsewhere, self.clock)


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
    device = Device()

    def current(_: object = None) -> Stream:
        return Stream(device, device.current[-1])

    def fetch(tensor: Tensor) -> Fetched:
        copy, arrived = torch.empty_like(tensor), Event(device)
        copy.copy_(tensor)
        arrived.record(current())
        return Fetched(copy, arrived)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: Stream(device))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(device))
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    for module in ("archive", "finite"):
        monkeypatch.setattr(f"equipoise.train.{module}.fetch", fetch)
    given = ToHost.run
    monkeypatch.setattr(ToHost, "run", lambda courier, job: Work(device, given(courier, job)))
    return device


@pytest.fixture
def make(toy, preference, beside_the_host, device) -> Callable[..., tuple[Any, eq.MultiObjective]]:
    """A run whose record has streams, as on a CUDA device."""

    def make(weighting: Any, conversion: Any, store: str) -> tuple[Any, eq.MultiObjective]:
        run = toy()
        with beside_the_host():
            mol = eq.MultiObjective(
                run.model, weighting, preference, conversion, run.optimizer, store=store, check="deferred"
            )
        assert isinstance(mol._record, Archive)
        mol._record._side = Stream(device)  # type: ignore[assignment]
        if isinstance(mol._record._courier, ToHost):
            mol._record._courier._side = Stream(device)  # type: ignore[assignment]
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


@pytest.mark.parametrize("store", ["device", "host"])
@pytest.mark.parametrize("conversion", [ADAPTIVE, eq.Average(), eq.Last()], ids=["adaptive", "average", "last"])
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.SmoothTchebycheff(0.1), eq.MGDA()], ids=["omd", "smooth", "mgda"])
def test_nothing_is_touched_out_of_order(weighting, conversion, store, make, device):
    run, mol = make(weighting, conversion, store)
    with Noted(device):
        loop(run, mol)
    assert not device.races
    assert device.streams == (2 if store == "host" else 1)


@pytest.mark.parametrize(
    ("store", "wait"), [("device", "wait_stream"), ("host", "wait_stream"), ("host", "wait_event")]
)
def test_a_wait_that_is_left_out_is_noticed(store, wait, make, device, monkeypatch):
    monkeypatch.setattr(Stream, wait, lambda *_: None)
    run, mol = make(eq.OMD(), ADAPTIVE, store)
    with Noted(device):
        loop(run, mol)
    assert device.races
