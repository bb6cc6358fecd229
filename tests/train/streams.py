"""Stand-ins for the streams, events and captured graphs of a CUDA device, on the CPU.

Streams and events keep vector clocks. Under `Noted`, every operation is noted with its stream and with the memory that
it reads and writes; two that touch the same memory, one of them writing, must be ordered by the waits in between, and
so must the last use of memory and its next use by the stream that it came from.
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

Clock = defaultdict[int, int]
FREE = frozenset(
    {
        *("alias", "as_strided", "detach", "expand", "permute", "_reshape_alias", "select", "slice", "split"),
        *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "_unsafe_view", "unsqueeze", "view"),
        *("empty", "empty_like", "empty_strided"),
    }
)
"""Operations that touch no memory."""


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
        self.current, self.streams, self.thread = 0, 0, threading.get_ident()
        self.used: dict[int, Use] = {}
        self.given_back: defaultdict[int, list[Use]] = defaultdict(list)
        self.races: Counter[str] = Counter()

    def synchronize(self) -> None:
        """The host waits for all streams."""
        for clock in self.clocks.values():
            merge(self.host, clock)

    def operation(self, name: str) -> tuple[int, int]:
        """The current stream, which is given one more, and its time then."""
        stream = self.current
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
    """A stand-in for torch.cuda.Stream."""

    device_index = 0

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

    def synchronize(self) -> None:
        merge(self.device.host, self.clock)

    def make_current(self) -> None:
        self.device.current = self.number


class Event:
    """A stand-in for torch.cuda.Event."""

    def __init__(self, device: Device) -> None:
        self.device, self.clock = device, dict[int, int]()

    def record(self, stream: Stream) -> None:
        self.clock = dict(stream.clock)

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        here = threading.get_ident() == self.device.thread
        merge(self.device.host if here else self.device.elsewhere, self.clock)


class Graph(NamedTuple):
    """A stand-in for a captured graph: the same work, done again."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Have `torch.cuda` and what captures work use stand-ins."""
    device = Device()

    def current(_: object = None) -> Stream:
        return Stream(device, device.current)

    def capture(work: Callable[[], None], _: torch.device, __: object) -> Graph:
        device.synchronize()
        for _again in range(3):
            work()
        device.synchronize()
        return Graph(work)

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: Stream(device))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(device))
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: stream.make_current())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: device.current, raising=False)
    monkeypatch.setattr("equipoise.streams._STREAMS", {})
    monkeypatch.setattr("equipoise.streams._introduced", lambda _: Stream(device))
    monkeypatch.setattr("equipoise.replay.capture", capture)
    monkeypatch.setattr("equipoise.train.courier.capture_at_once", lambda work, _: Graph(work))
    return device
