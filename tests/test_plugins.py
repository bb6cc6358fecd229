"""Methods from files and packages outside the library."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import equipoise as eq
from equipoise import plugins

FILE = """
import equipoise as eq

class Mine(eq.SmoothTchebycheff):
    def __init__(self, mu: float = 0.5) -> None:
        super().__init__(mu)

class Asks(eq.SmoothTchebycheff):
    def __init__(self, mu: float, more: int) -> None:
        super().__init__(mu)

instance = eq.OMD(0.3)
method = eq.Method(eq.OMD(0.3), eq.Average())

def made():
    return method

nothing = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file in the current folder with a unique name."""
    (tmp_path / "methods_of_mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "methods_of_mine"
    sys.modules.pop("methods_of_mine", None)


def test_a_class_an_instance_a_method_and_a_function(module):
    name, method = plugins.find(f"{module}:Mine")
    assert (name, type(method.weighting).__name__, method.conversion) == ("Mine", "Mine", eq.Last())
    assert plugins.find(f"{module}:instance") == ("instance", eq.Method(eq.OMD(0.3), eq.Last()))
    whole = eq.Method(eq.OMD(0.3), eq.Average())
    assert plugins.find(f"{module}:method") == ("method", whole)
    assert plugins.find(f"{module}:made") == ("made", whole)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}:Xyz", r"methods_of_mine must have the name; found 'Xyz'$"),
        ("{}:Min", "methods_of_mine must have the name; found 'Min'; nearest: Mine"),
        ("{}:nothing", "methods_of_mine:nothing must be a Method or a weighting; found 3"),
        ("{}:Asks", "methods_of_mine:Asks must need no arguments, or be an instance; found "),
        ("nowhere_at_all:Mine", "module must be one that can be imported from .*; found none 'nowhere_at_all'"),
        ("AdaOMD", "method must be a known name, or module:name of your own; found 'AdaOMD'; nearest: AdaOMDgd-TCH"),
    ],
)
def test_what_is_not_a_method_is_named(text, message, module):
    with pytest.raises(ValueError, match=message):
        plugins.find(text.format(module))


def test_a_module_that_fails_by_itself_says_so(tmp_path, module):
    (tmp_path / "methods_of_mine.py").write_text("import nowhere_at_all")
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        plugins.find(f"{module}:Mine")


def test_an_installed_package_brings_methods_by_name(module, monkeypatch):
    point = EntryPoint("brought", f"{module}:made", plugins.GROUP)
    sys.path.insert(0, ".")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == plugins.GROUP else [])
    assert plugins.find("brought") == ("brought", eq.Method(eq.OMD(0.3), eq.Average()))
    with pytest.raises(ValueError, match=r"found 'brough'; nearest: brought"):
        plugins.find("brough")


BREACHES = """
from dataclasses import dataclass
from typing import NamedTuple

import torch

import equipoise as eq
from equipoise.weighting import Weighting


@dataclass(frozen=True)
class Silent(eq.Tchebycheff):
    @property
    def uses_duals(self):
        return False


@dataclass(frozen=True)
class TooLong(eq.Tchebycheff):
    def step(self, seen, state):
        c, state = super().step(seen, state)
        return 4 * c, state  # λ sums to m


class Memory(NamedTuple):
    mean: torch.Tensor


@dataclass(frozen=True)
class Forgetful(Weighting[Memory]):
    def init(self, losses, **extra):
        return Memory(torch.zeros_like(losses, dtype=torch.float64))

    def step(self, seen, state):
        mean = torch.lerp(state.mean, seen.gain, 0.1)  # of 0 where an objective is absent
        if seen.present is not None:
            mean = torch.where(seen.present.any(-1, keepdim=True), mean, state.mean)
        return seen.weight * mean, Memory(mean)
"""


def test_the_contract_takes_a_weighting_from_outside(tmp_path):
    (tmp_path / "breaches.py").write_text(BREACHES)
    root = Path(__file__).parent.parent
    given = ",".join(f"breaches:{name}" for name in ("Silent", "TooLong", "Forgetful"))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_weightings.py"]
    done = subprocess.run(
        [*words, "-k", "breaches: and (said or full_mask or part_of_the_state or everything_absent)"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "EQUIPOISE_CONTRACT": given},
        capture_output=True,
        text=True,
        check=False,
    )
    said, part = "test_coefficients_of_duals_are_said_to_be", "test_an_absent_objective_keeps_its_part_of_the_state"
    failed = {f"{said}[breaches:Silent]", f"{said}[breaches:TooLong]", f"{part}[breaches:Forgetful]"}
    assert set(re.findall(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE)) == failed
    assert "3 failed, 12 passed" in done.stdout
