"""The outcome of a trial, and trials in forked processes."""

import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["noticed", "equal", "silent"]


class Outcome(NamedTuple):
    """Of a trial."""

    kind: Kind
    detail: str = ""
    """What happened, for those that are silent."""
    trials: int = 1
    """How many it stands for."""


@dataclass
class Row:
    """A line of the table."""

    name: str
    noticed: int = 0
    equal: int = 0
    silent: int = 0
    details: list[str] = field(default_factory=list)
    """Of the silent ones."""
    note: str = ""
    """Why nothing was tried."""

    def add(self, outcome: Outcome) -> None:
        """Count it."""
        setattr(self, outcome.kind, getattr(self, outcome.kind) + outcome.trials)
        if outcome.kind == "silent":
            self.details.append(outcome.detail)

    @property
    def tried(self) -> int:
        """How many trials."""
        return self.noticed + self.equal + self.silent


def judge(is_right: Callable[[], bool], what: str, names: Path | None = None) -> Outcome:
    """Equal if it gives True; noticed if the library raises an error of its own, or warns; else silent.

    Args:
        is_right: Reads what was damaged or interrupted, and compares it with what it must be.
        what: The trial, for the report.
        names: A file that errors and warnings must name.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            right = is_right()
        except Exception as error:
            own = type(error).__module__.startswith("equipoise")
            speaks = (own or isinstance(error, OSError)) and (names is None or names.name in str(error))
            return Outcome("noticed") if speaks else Outcome("silent", f"{what}: {_last_lines(error)}")
    if right:
        return Outcome("equal")
    if any(names is None or names.name in str(one.message) for one in said):
        return Outcome("noticed")
    return Outcome("silent", f"{what}: other content, and nothing was said")


def _last_lines(error: BaseException) -> str:
    lines = traceback.format_exception(error)[-2:]
    return " ".join("".join(lines).split())


class Died(NamedTuple):
    """A trial that gave no answer."""

    why: str
    late: bool
    """Whether it took too long."""


class _Child(NamedTuple):
    pid: int
    until: float
    answer: bytearray


def forked(
    trials: Iterable[Callable[[], Any]], *, seconds: float = 120.0, workers: int = 2
) -> Iterator[tuple[int, Any | Died]]:
    """Carry out every trial in a process of its own; gives its number and what it returned, as JSON brings it back.

    Args:
        trials: Functions without arguments.
        seconds: After which a trial is killed.
        workers: How many at a time.
    """
    todo, running = enumerate(trials), dict[int, tuple[int, _Child]]()
    try:
        while True:
            while len(running) < workers and (one := next(todo, None)) is not None:
                number, trial = one
                handle, pid = _start(trial)
                running[handle] = number, _Child(pid, time.monotonic() + seconds, bytearray())
            if not running:
                return
            until = min(child.until for _, child in running.values())
            ready, _, _ = select.select(list(running), [], [], max(0.0, until - time.monotonic()))
            for handle in [h for h, (_, child) in running.items() if h in ready or child.until <= time.monotonic()]:
                number, child = running[handle]
                data = os.read(handle, 1 << 16) if handle in ready else b""
                child.answer.extend(data)
                if not data:
                    del running[handle]
                    yield number, _finish(handle, child, late=handle not in ready)
    finally:
        for handle, (_, child) in running.items():
            _finish(handle, child, late=True)


def _start(trial: Callable[[], Any]) -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    status = 1
    try:
        os.close(read)
        with os.fdopen(write, "wb") as answer:
            answer.write(json.dumps(trial()).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _finish(handle: int, child: _Child, *, late: bool) -> Any | Died:
    if late:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    os.close(handle)
    _, status = os.waitpid(child.pid, 0)
    if late:
        return Died("it takes too long", late=True)
    return json.loads(child.answer) if status == 0 else Died(f"it ended with status {status}", late=False)


Trial = tuple[str, Callable[[], list[Outcome]]]
"""Of a row."""


def collect(rows: dict[str, Row], trials: Sequence[Trial]) -> None:
    """Carry trials out, and count what became of them."""
    for number, answer in forked([trial for _, trial in trials]):
        name = trials[number][0]
        row = rows.setdefault(name, Row(name))
        for outcome in [("silent", answer.why)] if isinstance(answer, Died) else answer:
            row.add(Outcome(*outcome))
