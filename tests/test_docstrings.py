"""Every public name says what it is, shows an example that runs, and has its place in the API reference."""

import doctest
import importlib
import importlib.util
import inspect
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

import equipoise

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # before Flower is imported

API = Path(__file__).parent.parent / "docs" / "api"
MODULES = {
    "equipoise": None,
    "equipoise.boxqp": None,
    "equipoise.conversion": None,
    "equipoise.datasets": None,
    "equipoise.errors": None,
    "equipoise.federated": None,
    "equipoise.flower": "flwr",
    "equipoise.metrics": None,
    "equipoise.minnorm": None,
    "equipoise.pareto": None,
    "equipoise.preference": None,
    "equipoise.problems": None,
    "equipoise.registry": None,
    "equipoise.simplex": None,
    "equipoise.solver": None,
    "equipoise.state": None,
    "equipoise.theory": None,
    "equipoise.train": None,
    "equipoise.train.lightning": "lightning",
    "equipoise.train.transformers": "transformers",
    "equipoise.transform": None,
    "equipoise.units": None,
    "equipoise.weighting": None,
}
"""The modules with public names, and the extra that one needs."""
INSIDE = {"equipoise.boxqp", "equipoise.minnorm"}
"""Those that are not part of the API reference."""


class Public(NamedTuple):
    module: str
    name: str
    thing: Any

    @property
    def doc(self) -> str:
        """Its own docstring, not one that it inherits."""
        own = vars(self.thing).get("__doc__") if inspect.isclass(self.thing) else self.thing.__doc__
        return inspect.cleandoc(own or "")


def installed(module: str) -> bool:
    extra = MODULES[module]
    return extra is None or importlib.util.find_spec(extra) is not None


def names(module: str) -> list[Public]:
    there = importlib.import_module(module)
    return [Public(module, name, getattr(there, name)) for name in there.__all__]


def public() -> list[Public]:
    """Functions and classes, each once; type aliases have no docstring at run time."""
    found = [entry for module in MODULES if installed(module) for entry in names(module)]
    kept = [entry for entry in found if inspect.isclass(entry.thing) or inspect.isroutine(entry.thing)]
    return list({id(entry.thing): entry for entry in kept}.values())


def examples() -> list[Any]:
    missing = [
        pytest.param(None, id=module, marks=pytest.mark.skip(reason=f"needs {MODULES[module]}"))
        for module in MODULES
        if not installed(module)
    ]
    return [*(pytest.param(entry, id=f"{entry.module}.{entry.name}") for entry in public()), *missing]


@pytest.mark.parametrize("module", [module for module in MODULES if installed(module)])
def test_a_module_says_what_it_is_for(module):
    assert importlib.import_module(module).__doc__
    for entry in names(module):
        assert not isinstance(entry.thing, ModuleType) or entry.thing.__doc__, entry.name


def test_every_public_name_has_an_example():
    # The API reference knows the heading in the plural only; under any other an example is a quotation.
    lacking = [
        f"{entry.module}.{entry.name}"
        for entry in public()
        if not re.search(r"^Examples:\n    >>> ", entry.doc, re.MULTILINE)
    ]
    assert not lacking, f"{len(lacking)} public names have no example under the heading Examples: {lacking}"


# Advice of Lightning for large data, and its own use of torch.
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")
@pytest.mark.parametrize("entry", examples())
def test_example_runs(entry, tmp_path, monkeypatch, capsys):
    """With `import torch` and `import equipoise as eq` before it and no other; without data sets, leaving nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    torch.manual_seed(0)
    name = f"{entry.module}.{entry.name}"
    test = doctest.DocTestParser().get_doctest(
        entry.doc, {"torch": torch, "eq": equipoise}, name, inspect.getsourcefile(entry.thing), 0
    )
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    result = runner.run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert capsys.readouterr().out == ""
    assert list(here.iterdir()) == []


def test_the_api_reference_has_every_public_name():
    pages = [page.read_text(encoding="utf-8") for page in API.glob("*.md")]
    shown = set(re.findall(r"^::: (\S+)$", "\n".join(pages), re.MULTILINE))
    lacking = []
    for module, name, thing in (entry for entry in public() if entry.module not in INSIDE):
        # A submodule of the same name hides a function from the entry of its package.
        by_module = module in shown and f"{module}.{name}" not in sys.modules
        by_name = {f"{module}.{name}", f"{thing.__module__}.{thing.__qualname__}"} & shown
        if not (by_module or by_name):
            lacking.append(f"{module}.{name}")
    assert not lacking, f"docs/api lacks {lacking}"
