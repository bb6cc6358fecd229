"""A small part of `make torture`, and checks that it detects faults."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.torture.mutants import MUTANTS, Mutant
from tests.torture.outcome import Died, Outcome, forked, judge

from equipoise.errors import DamagedFileError

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked, disks are mounted")


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.torture", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_small_share_of_it():
    done = torture("--share", "0.02")
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("kills: Flower server", "interrupts: training, folder", "flips: result cell", "hostile", "mutants"):
        assert row in done.stdout


def test_every_mutant_has_its_text():
    """A line that was changed has its entry in tests/torture/mutants.py changed too."""
    stale = [one for one in MUTANTS if (ROOT / "src" / one.file).read_text().count(one.old) != 1]
    assert stale == []
    assert len(MUTANTS) >= 60
    assert all(one.old != one.new for one in MUTANTS)


def test_the_threat_model_names_tests_that_are_there():
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 15
    assert [one for one in named if f"\ndef {one[1]}(" not in (ROOT / one[0]).read_text()] == []


def test_a_mutant_is_noticed_or_told():
    """In a process that has not imported the library: a mistake, what is none, and a text that is not there."""
    mutants = [
        Mutant("equipoise/weighting/tchebycheff.py", old, new, ("tests/weighting/test_tchebycheff.py::test_by_hand",))
        for old, new in (
            ("return torch.where(chosen, carried, 0.0), state", "return carried, state"),
            ('"""Tchebycheff scalarization (TCH)."""', '"""Tchebycheff."""'),
            ("a text that is not there", ""),
        )
    ]
    program = f"""
import json
from tests.torture.mutants import Mutant
from tests.torture.mutation import try_mutants
row = try_mutants({mutants!r})
print(json.dumps([row.noticed, row.details]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    noticed, details = json.loads(done.stdout.splitlines()[-1])
    assert noticed == 1
    stale, survived = details
    assert stale.startswith("stale: in equipoise/weighting/tchebycheff.py")
    assert "may become" in survived


def raises(error: Exception) -> bool:
    raise error


@pytest.mark.parametrize(
    ("is_right", "kind"),
    [
        (lambda: True, "equal"),
        (lambda: False, "silent"),
        (lambda: raises(DamagedFileError("run.pt is damaged")), "noticed"),
        (lambda: raises(DamagedFileError("damaged")), "silent"),
        (lambda: raises(OSError(28, "No space left on device", "run.pt")), "noticed"),
        (lambda: raises(OSError(28, "No space left on device")), "silent"),
        (lambda: raises(KeyError("run.pt")), "silent"),
    ],
)
def test_only_an_error_that_speaks_is_noticed(is_right, kind):
    assert judge(is_right, "a trial", Path("run.pt")).kind == kind


def test_trials_in_processes_of_their_own():
    def hangs() -> None:
        time.sleep(60)

    trials = [lambda: [1, "a"], lambda: os._exit(3), hangs, lambda: Outcome("equal")]
    found = dict(forked(trials, seconds=1.0))
    assert found[0] == [1, "a"]
    assert found[1] == Died("it ended with status 768", late=False)
    assert found[2] == Died("it takes too long", late=True)
    assert found[3] == ["equal", "", 1]
