"""Runs that are killed at a random moment, or interrupted at a random line of the library, and resumed."""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tests.torture.outcome import Outcome, Row, Trial, collect, judge
from tests.torture.runs import COURSES, Course, digest, start_training, train

import equipoise as eq

KILLS, INTERRUPTS = 120, 120
LIBRARY = str(Path(eq.__file__).parent)


def rows(share: float, seed: int) -> list[Row]:
    """The rows of kills and interrupts."""
    found: dict[str, Row] = {}
    for kind, number, trial in (("kills", KILLS, _kill), ("interrupts", INTERRUPTS, _interrupt)):
        trials: list[Trial] = []
        for k in range(max(len(COURSES), round(number * share))):
            course = COURSES[k % len(COURSES)]
            expected, lines = _undisturbed(course)
            trials.append((f"{kind}: {course.name}", partial(trial, course, expected, lines, seed * 1_000_003 + k)))
        collect(found, trials)
    return [*found.values()]


_KNOWN: dict[str, tuple[str, int]] = {}


def _undisturbed(course: Course) -> tuple[str, int]:
    """What the run gives, and the lines of the library that it executes."""
    if course.name not in _KNOWN:
        with tempfile.TemporaryDirectory() as folder, interrupted(sys.maxsize) as left:
            found = course.run(Path(folder))
            _KNOWN[course.name] = found, sys.maxsize - left()
    return _KNOWN[course.name]


def _kill(course: Course, expected: str, _: int, seed: int) -> list[Outcome]:
    """Kill a run up to three times, then let it go on to its end."""
    draws = random.Random(seed)  # noqa: S311
    number = draws.randint(1, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(number):
            _run_and_kill(course, folder, draws.uniform(0.002, 0.06))
        outcome = judge(lambda: course.run(folder) == expected, f"{course.name}, seed {seed}, {number} kills")
    return [outcome._replace(trials=number)]


def _run_and_kill(course: Course, folder: Path, seconds: float) -> None:
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(begins, b".")
            course.run(folder)
        finally:
            os._exit(0)
    os.close(begins)
    os.read(begun, 1)
    os.close(begun)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _interrupt(course: Course, expected: str, lines: int, seed: int) -> list[Outcome]:
    """Interrupt a run once; look at what is in memory, then let it go on from its file."""
    draws = random.Random(seed)  # noqa: S311
    at, what = draws.randint(1, lines), ""
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), list[Any]()
        store = course.name.removeprefix("training, ")
        run = partial(train, folder, store, started) if store != course.name else partial(course.run, folder)
        try:
            with interrupted(at) as left:
                run()
            if left() > 0:  # a run that finds its caches filled executes fewer lines
                return _interrupt(course, expected, at - left(), seed)
        except KeyboardInterrupt:
            what = f"{course.name}, seed {seed}, interrupted at line {at}"
        if not what:
            return [Outcome("silent", f"{course.name}, seed {seed}: the interrupt at line {at} was swallowed")]
        for mol in started:
            kept = judge(partial(_saves_and_loads, folder, mol), f"{what}, what is in memory")
            if kept.kind == "silent":
                return [kept]
            mol.close()
        return [judge(lambda: course.run(folder) == expected, what)]


def _saves_and_loads(folder: Path, mol: Any) -> bool:
    """Whether what is in memory can be saved, and gives the same answer when it is loaded."""
    eq.train.save(mol.state_dict(), folder / "memory.pt")
    _, other, _ = start_training(folder / "elsewhere", "device")
    other.load_state_dict(eq.train.load(folder / "memory.pt"))
    names = [name for name, _ in mol.model.named_parameters()]
    left, right = mol.solution(), other.solution()
    return other.recorded == mol.recorded and all(digest({n: left[n]}) == digest({n: right[n]}) for n in names)


@contextmanager
def interrupted(number: int) -> Iterator[Callable[[], int]]:
    """Ctrl-C before the line of this number that is executed in the library; gives how many are left."""
    left = number

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return watch

    # Between the last line of a with block and its end Python does not promise that the block is left: torch.no_grad.
    with torch.enable_grad():
        sys.settrace(watch)
        try:
            yield lambda: left
        finally:
            sys.settrace(None)
