"""The streams beside a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise import streams


def test_a_thread_has_one_stream_for_each_purpose(monkeypatch):
    made: list[torch.device] = []
    monkeypatch.setattr(streams, "_STREAMS", {})

    def make(device: torch.device) -> object:
        made.append(device)
        return object()

    here, there = torch.device("cuda", 0), torch.device("cuda", 1)
    asked = [(here, "numbers"), (here, "copies"), (there, "numbers")]
    first = [streams._stream(*one, make) for one in asked]  # type: ignore[arg-type]
    again = [streams._stream(*one, make) for one in asked]  # type: ignore[arg-type]
    assert made == [here, here, there]
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_stream_has_its_first_work_between_that_of_a_busy_one(monkeypatch):
    done: list[str] = []

    class Stream:
        def __init__(self, name: str = "new") -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            done.append(f"{self.name} waits for {other.name}")

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add_.Tensor:
                done.append("small" if args[0].numel() == 1 else "large")
            return func(*args, **(kwargs or {}))

    class Graph:
        def __init__(self, work: Callable[[], None]) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(torch.Tensor, "add_", lambda x, _: done.append(f"captured {x.numel()}"))
                work()

        def replay(self) -> None:
            done.append(f"graph, {current[-1].name}")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    current = [Stream("training")]
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, priority: Stream() if priority < 0 else None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("nothing is left"))
    monkeypatch.setattr(streams, "capture_at_once", lambda work, _: Graph(work))
    with Log():
        made = streams._introduced(torch.device("cpu"))
    assert isinstance(made, Stream)
    assert done[:201] == ["small", *["captured 1"] * 200]
    busy = [*["large"] * 24, "new waits for training", "graph, new", *["large"] * 32, "nothing is left"]
    assert done[201:] == ["graph, training", "nothing is left", *busy, *busy, *busy]
