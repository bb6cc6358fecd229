"""Long work does not start without the user's consent."""

import io
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments import jobs
from equipoise.experiments.item import Request
from equipoise.experiments.results import CellStore, Finished
from equipoise.experiments.synthetic import settings


def request(tmp_path, *, yes=False, terminal=False):
    return Request(
        Console(file=io.StringIO(), force_terminal=terminal, width=300, color_system=None), tmp_path, yes=yes
    )


def said(asked):
    return asked.console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.01, "1 s"), (59, "59 s"), (89, "89 s"), (90, "2 minutes"), (3599, "60 minutes"), (3600, "1.0 hours"),
        (86_400, "24.0 hours"), (130_000, "1.5 days"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds, words):
    assert jobs.duration(seconds) == words


def test_up_to_a_minute_nothing_is_asked(tmp_path):
    asked = request(tmp_path)
    assert jobs.agreed(asked, 60.0, 7)
    assert said(asked) == (
        f"7 runs are missing; they take about 60 s here, and are made now; what is finished is kept in "
        f"{tmp_path / 'cells'}\n"
    )
    one = request(tmp_path)
    assert jobs.agreed(one, 2.0, 1)
    assert said(one).startswith("1 run is missing; it takes about 2 s here, and is made now; ")


def test_without_a_terminal_long_work_needs_yes(tmp_path):
    asked = request(tmp_path)
    assert not jobs.agreed(asked, 61.0, 7, "Or go elsewhere.")
    assert said(asked) == (
        "7 runs are missing; they take about 61 s here, and are not made: say --yes to make them. Or go elsewhere.\n"
    )
    assert not jobs.possible(asked, 61.0)
    willing = request(tmp_path, yes=True)
    assert jobs.agreed(willing, 1e6, 7)
    assert "they take about 11.6 days here, and are made now" in said(willing)


@pytest.mark.parametrize(("answer", "expected"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_the_user_is_asked(answer, expected, tmp_path, monkeypatch):
    asked = request(tmp_path, terminal=True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(Console, "input", lambda *_a, **_k: answer)
    assert jobs.agreed(asked, 100.0, 3, "Or go elsewhere.") is expected
    assert "3 runs are missing; they take about 2 minutes here. Or go elsewhere." in said(asked)


def test_a_terminal_that_cannot_be_read_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert not jobs.agreed(request(tmp_path, terminal=True), 100.0, 3)


def test_a_long_command_is_not_begun_and_with_yes_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "STEPS", 3)
    monkeypatch.setattr(settings, "_SLOW", {"LS": 1000.0})
    words = ["reproduce", "table-hv", "--methods", "LS", "--seeds", "0", "--workers", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "7 runs are missing; they take about 1.9 hours here, and are not made: say --yes" in done.output
    assert "there are no runs to show yet" in done.output
    assert not (tmp_path / "cells").exists()
    done = CliRunner().invoke(app, [*words, "--yes"])
    assert done.exit_code == 0, done.output
    assert "and are made now" in done.output
    assert len(list((tmp_path / "cells").glob("*.json"))) == 7


def squares(number):
    return [Finished({"number": number}, {"square": number**2}, {"task": "squares"})]


def broken(number):
    if number == 2:
        raise ValueError("two")
    return squares(number)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tasks_are_kept_as_they_finish(workers, tmp_path):
    store = CellStore(tmp_path, ())
    assert sorted(jobs.compute(store, [1, 2, 3], squares, workers)) == [1, 2, 3]
    found = [store.read({"number": number}) for number in (1, 2, 3)]
    assert [result and result["square"] for result in found] == [1, 4, 9]


def test_what_was_finished_before_an_error_is_kept(tmp_path):
    store = CellStore(tmp_path, ())
    with pytest.raises(ValueError, match="two"):
        list(jobs.compute(store, [1, 2, 3], broken, 1))
    assert [store.read({"number": number}) is None for number in (1, 2, 3)] == [False, True, True]
