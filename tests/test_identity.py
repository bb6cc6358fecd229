"""Identity: whatever determines a result, and nothing else, changes its key; edited code runs again."""

import dataclasses
import functools
import hashlib
import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.experiments.federated.settings import tasks
from equipoise.identity import canonical, digest, spec

FROZEN = Path(__file__).with_name("identity.json")
COMMAND = "python -m tests.test_identity"


def identities() -> dict[str, str]:
    """A digest for every method of the registry."""
    return {name: digest(spec(method)) for name, method in eq.methods().items()}


# ------------------------------------------------------------------------------- the registry
def test_every_method_keeps_its_identity():
    frozen, found = json.loads(FROZEN.read_text(encoding="utf-8")), identities()
    changed = {name for name, known in frozen.items() if found.get(name) != known}
    assert not changed, (
        "the stored results of these methods would not be found any more. If a field was added whose default changes "
        'nothing, give it metadata={"neutral": True}; raise `revision` if arithmetic changed. Then: ' + COMMAND
    )
    assert not found.keys() - frozen.keys(), f"new methods: freeze their identities with {COMMAND}"


def test_every_identity_is_plain_json_and_differs_where_settings_differ():
    known = eq.methods()
    for method in known.values():
        assert json.loads(canonical(spec(method))) == spec(method)
        assert "source" not in canonical(spec(method))  # which is for classes from elsewhere
    by_digest: dict[str, eq.Method] = {}
    for name, of in identities().items():
        assert by_digest.setdefault(of, known[name]) == known[name], f"{name} has the identity of another method"
    assert len(by_digest) > 30


def test_every_setting_of_a_method_is_part_of_its_identity():
    for name, method in eq.methods().items():
        weighting = method.weighting
        for field in dataclasses.fields(weighting):  # type: ignore[arg-type]
            value = getattr(weighting, field.name)
            if field.compare and isinstance(value, float) and math.isfinite(value):
                other = object.__new__(type(weighting))
                for one in dataclasses.fields(weighting):  # type: ignore[arg-type]
                    object.__setattr__(other, one.name, getattr(weighting, one.name))
                object.__setattr__(other, field.name, value + 0.125)
                assert spec(other) != spec(weighting), f"{name}: {field.name}"


def test_problems_and_tasks_have_identities():
    several = [*eq.problems.problems().values(), *tasks().values(), *tasks("text").values()]
    assert len({digest(spec(problem)) for problem in several}) == len(several)


# ------------------------------------------------------------------------------- by hand
def test_an_identity_by_hand():
    smooth = {"class": "SmoothTchebycheff", "mu": 0.25, "normalize": "sum", "ideal": 0.0}
    assert spec(eq.SmoothTchebycheff(0.25)) == smooth
    assert spec(eq.Method(eq.SmoothTchebycheff(0.25), eq.Last())) == {
        "class": "Method", "weighting": smooth, "conversion": {"class": "Last"}, "transform": None,
    }  # fmt: skip
    assert spec(torch.tensor([[0.25, math.inf]])) == [[0.25, "inf"]]
    assert spec({"b": (1, 2), 3: None}) == {"b": [1, 2], "3": None}
    assert spec({"x", "a"}) == ["a", "x"]
    assert spec(math.nan) == "nan"
    assert spec(1) != spec(1.5)
    assert spec(True) is True


@dataclasses.dataclass(frozen=True)
class Grown:
    """A class that got a field later."""

    old: float = 1.0
    new: float = dataclasses.field(default=0.0, metadata={"neutral": True})
    listed: tuple[float, ...] = dataclasses.field(default_factory=tuple, metadata={"neutral": True})
    note: str = dataclasses.field(default="", compare=False)


def test_a_neutral_field_is_left_out_while_it_has_its_default():
    assert spec(Grown()).keys() == {"class", "source", "old"}
    assert spec(Grown(note="x")) == spec(Grown())
    assert spec(Grown(new=0.5)) == {**spec(Grown()), "new": 0.5}
    assert spec(Grown(listed=(1.0,))) == {**spec(Grown()), "listed": [1.0]}


def test_a_revision_is_another_identity(monkeypatch):
    first = spec(Grown())
    monkeypatch.setattr(Grown, "revision", 2, raising=False)
    assert spec(Grown()) == {**first, "revision": 2}
    monkeypatch.setattr(Grown, "revision", 1)
    assert spec(Grown()) == first


# ------------------------------------------------------------------------------- code from elsewhere
CODE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    step: float = 1.0

def rule(x):
    return x

def power(x, p=1):
    return x**p

plus = lambda x: x + 1

def powers(p):
    return lambda x: x**p

def nested():
    def inner(x):
        return x
    return inner

def class_of(p):
    @dataclass(frozen=True)
    class Made:
        step: float = 1.0
    return Made

class Callable:
    def __init__(self, p):
        self.p = p

    def __call__(self, x):
        return x**self.p
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write code to a file and import it again."""

    def load(code):
        path = tmp_path / "code_of_mine.py"
        path.write_text(code)
        found = importlib.util.spec_from_file_location("code_of_mine", path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, "code_of_mine", module)
        found.loader.exec_module(module)
        return module

    return load


def test_an_edit_of_a_file_from_elsewhere_changes_what_it_defines(load):
    module = load(CODE)
    before = spec(module.Mine(2.0)), spec(module.rule)
    source = hashlib.sha256(CODE.encode()).hexdigest()
    assert before == ({"class": "Mine", "source": source, "step": 2.0}, {"function": "rule", "source": source})
    assert spec(module.Mine(2.0)) == before[0]
    again = load(CODE.replace("return x", "return 2 * x"))
    assert spec(again.Mine(2.0)) != before[0]
    assert spec(again.rule) != before[1]
    assert spec(load(CODE).Mine(2.0)) == before[0]


def test_a_class_of_the_library_beside_ones_own_has_no_source(load):
    found = spec((load(CODE).Mine(), eq.Average(4.0)))
    assert ["source" in one for one in found] == [True, False]


def test_without_a_source_there_is_no_identity():
    names: dict[str, object] = {"__name__": "typed_into_a_terminal"}
    exec(CODE, names)  # noqa: S102
    mine = names["Mine"]
    assert callable(mine)
    with pytest.raises(ValueError, match=r"the source of Mine must be found, .* define it in a file; found no source"):
        spec(mine())


def test_a_partial_has_the_identity_of_its_function_and_arguments(load):
    module = load(CODE)
    first, fourth = (functools.partial(module.power, p=p) for p in (1, 4))
    assert spec(fourth) == {"function": spec(module.power), "arguments": [], "keywords": {"p": 4}}
    assert spec(first) != spec(fourth)
    assert spec(functools.partial(module.power, 2)) != spec(functools.partial(module.power, 3))
    assert spec(functools.partial(module.Mine, 2.0))["function"] == spec(module.Mine)


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (lambda module: module.plus, "<lambda> of code_of_mine"),
        (lambda module: module.powers(2), "powers.<locals>.<lambda> of code_of_mine"),
        (lambda module: functools.partial(module.powers(2), 1), "powers.<locals>.<lambda> of code_of_mine"),
        (lambda module: module.nested(), "nested.<locals>.inner of code_of_mine"),
        (lambda module: module.class_of(2), "class_of.<locals>.Made of code_of_mine"),
        (lambda module: module.class_of(2)(), "class_of.<locals>.Made of code_of_mine"),
        (lambda module: type("Mine", (module.Mine,), {"__module__": "code_of_mine"})(), "Mine of code_of_mine"),
    ],
)
def test_what_its_module_does_not_have_by_name_has_no_identity(load, of, found):
    with pytest.raises(ValueError, match=rf"top level of a file, .* a functools.partial; found {re.escape(found)}$"):
        spec(of(load(CODE)))


def test_what_is_neither_a_value_nor_a_class_is_refused(load):
    rule = "what decides a result must be plain values, dataclasses, functions or functools.partial of these; found"
    for other in (object(), load(CODE).Callable(2), load(CODE).Callable(2).__call__, torch.relu):
        with pytest.raises(ValueError, match=rule):
            spec(other)
    with pytest.raises(ValueError, match="found 3j"):
        spec({"x": [3j]})


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(identities(), indent=1) + "\n", encoding="utf-8")
