"""Mistakes in the library, one at a time: a test must notice each of them."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from tests.torture.mutants import MUTANTS, Mutant
from tests.torture.outcome import Died, Outcome, Row, forked

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SECONDS = 60.0
"""A mutant whose tests take longer is noticed."""


def rows(share: float, seed: int) -> list[Row]:
    """The row of mutants; each must be noticed, and its tests must pass without it."""
    if "equipoise" in sys.modules:
        raise RuntimeError("mutants must be tried in a process that has not imported equipoise")
    number = max(2, round(len(MUTANTS) * share))
    chosen = MUTANTS if number >= len(MUTANTS) else random.Random(seed).sample(MUTANTS, number)  # noqa: S311
    return [try_mutants(chosen), try_without(chosen)]


def try_mutants(mutants: list[Mutant]) -> Row:
    """Run the tests of every mutant with it in place."""
    row, sound = Row("mutants"), [mutant for mutant in mutants if occurrences(mutant) == 1]
    for mutant in mutants:
        if mutant not in sound:
            row.add(Outcome("silent", f"stale: in {mutant.file} this must occur exactly once: {mutant.old!r}"))
    trials = [partial(run_tests, mutant.tests, mutant) for mutant in sound]
    for number, code in forked(trials, seconds=SECONDS):
        row.add(_verdict(sound[number], code))
    return row


def try_without(mutants: list[Mutant]) -> Row:
    """Run the same tests without a mutant, file by file: one that always fails would notice everything."""
    row, tests = Row("tests without a mutant"), dict[str, set[str]]()
    for name in (name for mutant in mutants for name in mutant.tests):
        tests.setdefault(name.partition("::")[0], set()).add(name)
    files = sorted(tests)
    for number, code in forked([partial(run_tests, tuple(sorted(tests[file]))) for file in files], seconds=5 * SECONDS):
        file = files[number]
        row.add(Outcome("equal", "", len(tests[file])) if code == 0 else Outcome("silent", f"{file}: {code}"))
    return row


def occurrences(mutant: Mutant) -> int:
    """How often the text that a mutant replaces is there."""
    return (SOURCE / mutant.file).read_text(encoding="utf-8").count(mutant.old)


def _verdict(mutant: Mutant, code: int | Died) -> Outcome:
    if isinstance(code, Died):
        return Outcome("noticed") if code.late else Outcome("silent", f"{mutant.file}: {mutant.old!r}: {code.why}")
    if code in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}:
        return Outcome("noticed")  # a module that cannot be imported interrupts the collection of tests
    if code == pytest.ExitCode.OK:
        return Outcome("silent", f"{mutant.file}: {mutant.old!r} may become {mutant.new!r} for all that tests say")
    return Outcome("silent", f"{mutant.file}: pytest ended with {code}: are the tests still called {mutant.tests}?")


def run_tests(tests: tuple[str, ...], mutant: Mutant | None = None) -> int:
    """Run tests in this process, with a mutant in place; gives pytest's exit code."""
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    os.chdir(ROOT)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    # pytest cannot rewrite the assertions of plugins that are imported already.
    settings = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    return int(pytest.main([*settings, *tests]))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.path = mutant, SOURCE / mutant.file
        parts = mutant.file.removesuffix(".py").split("/")
        self.name = ".".join(parts)

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = _Loader(fullname, str(self.path), lambda text: text.replace(self.mutant.old, self.mutant.new))
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, change: Callable[[str], str]) -> None:
        super().__init__(name, path)
        self.change = change

    def get_code(self, _: str) -> CodeType:
        text = self.change(Path(self.path).read_text(encoding="utf-8"))
        return compile(text, self.path, "exec")
