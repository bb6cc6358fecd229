"""How many of the paper's numbers the stored runs agree with: counted from the cells, and as the docs say it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.federated.scores import printed_in
from equipoise.experiments.results import CellStore
from equipoise.experiments.table_agreement import Claim, claims

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[Claim]:
    return list(claims(CellStore(tmp_path_factory.mktemp("cells"))))


def test_every_table_is_counted(found):
    counts = Counter(claim.table for claim in found)
    assert counts["table-mnist"] == counts["table-cifar"] == 15 * 3 * 3
    assert counts["table-ablation"] == 5 * 3 * 2  # the paper prints no agnostic loss there
    assert printed_in("table-ablation") == ("accuracy", "accuracy_parity")
    assert counts["table-ratio"] == 14
    assert "table-text" not in counts  # other settings than the paper's


def test_a_number_in_several_tables_is_one(found):
    same = {claim.table for claim in found if claim.what == ("cifar-rotation", "AdaOMDgd-TCH", "accuracy")}
    assert same >= {"table-cifar", "table-adaptive", "table-stch", "table-evaluation-data"}
    away = {claim.away for claim in found if claim.what == ("cifar-rotation", "AdaOMDgd-TCH", "accuracy")}
    assert len(away) == 1


def test_the_docs_say_what_the_cells_hold(found):
    numbers = {claim.what: abs(claim.away) for claim in found if claim.table != "table-hv"}
    within = [sum(away <= limit for away in numbers.values()) for limit in (2, 1)]
    page = " ".join((ROOT / "docs" / "results" / "index.md").read_text().split())
    told = re.search(r"Of (\d+) different numbers .*? (\d+) agree within two .*? and (\d+) within one", page)
    assert told is not None
    assert [int(number) for number in told.groups()] == [len(numbers), *within]
    readme = " ".join((ROOT / "README.md").read_text().split())
    stated = f"prints {len(numbers)} distinct numbers for federated learning; {within[0]} of ours agree within two"
    assert stated in readme


def test_the_command_prints_and_writes_it(found, tmp_path):
    file = tmp_path / "agreement.json"
    words = ["reproduce", "table-agreement", "--out", str(tmp_path), "--json", str(file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert re.search(r"table-mnist +135 +135 +135 +10 +tf32", done.output)
    assert len(json.loads(file.read_text())) == len(found)
    assert "`equipoise reproduce table-hv` makes them" in " ".join(done.output.split())
