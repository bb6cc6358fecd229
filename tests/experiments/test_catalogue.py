"""`reproduce all`: every item gets the options it takes, and missing data of one item does not stop the others."""

import inspect
import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.datasets import MissingDataError
from equipoise.experiments import catalogue
from equipoise.experiments.catalogue import QUICK, STUDIES, reproduce_all
from equipoise.experiments.item import Item, Request

runner = CliRunner()


def test_an_item_is_found_by_its_name():
    """`table-hv` is `table_hv` of one module, and what is shown for it names it so."""
    found = [(name, item) for study in STUDIES for name, item in vars(study).items() if isinstance(item, Item)]
    assert {name.replace("_", "-") for name, _ in found} == set(catalogue.items())
    assert len(found) == len(catalogue.items()) > 25
    for variable, item in found:
        name = variable.replace("_", "-")
        assert inspect.getclosurevars(item.run).nonlocals.get("name", name) == name
        assert item.caption
        assert not item.caption.endswith(".")


@pytest.fixture
def made():
    return []


@pytest.fixture
def items(made):
    def item(run, *takes):
        return Item("tab:x", "1", "something", run, frozenset(takes))

    def lacks(_request):
        raise MissingDataError("data set mnist was not found")

    return {
        "table-hv": item(made.append, "workers", "json_file"),
        "table-excess": item(made.append, "workers"),
        "table-mnist": item(lacks, "task", "methods", "seeds", "rounds", "device"),
        "table-digits": item(made.append, "task", "methods", "seeds", "rounds", "device"),
    }


@pytest.fixture
def request_(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    return Request(console, tmp_path, preset="published", workers=3, device="cpu")


def test_everything_gets_what_it_heeds(items, made, request_):
    assert reproduce_all(items, request_) == {"table-mnist": "data set mnist was not found"}
    assert [(r.workers, r.device, r.task) for r in made] == [(3, None, None), (3, None, None), (None, "cpu", None)]


def test_a_quick_run_is_short(items, made, request_):
    reproduce_all(items, request_, quick=True)
    table, digits = made
    assert (table.workers, table.rounds) == (3, None)
    assert {key: getattr(digits, key) for key in QUICK} == QUICK
    said = request_.console.file.getvalue()
    assert "table-excess: left out of a quick run" in said
    assert "table-mnist: left out: data set mnist was not found" in said


def test_a_full_disk_stops_everything(items, made, request_):
    def full(_request):
        raise OSError(28, "No space left on device")

    broken = {"first": Item("-", "-", "x", full, frozenset()), **items}
    with pytest.raises(OSError, match="No space"):
        reproduce_all(broken, request_)
    assert made == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table-hv", "--quick"), "table-hv does not take --quick; only all does"),
        (("all", "--seeds", "1"), "all does not take --seeds; found (1,)"),
        (("al",), "table or figure must be a known name; found 'al'; nearest: all"),
    ],
)
def test_bad_input(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["reproduce", *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert not Path("out").exists()


def test_what_is_missing_ends_with_status_one(items, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.experiments.catalogue.items", lambda: items)
    assert runner.invoke(app, ["reproduce", "all", "--out", str(tmp_path)]).exit_code == 1
    del items["table-mnist"]
    assert runner.invoke(app, ["reproduce", "all", "--out", str(tmp_path)]).exit_code == 0
