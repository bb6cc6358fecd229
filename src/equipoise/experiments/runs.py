"""Cells of other machines: taken in, and counted."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import require
from equipoise.experiments import conversions, federated, plan, synthetic
from equipoise.experiments.cells import CellStore, cell_name, cells_in, load, write_atomically
from equipoise.experiments.federated import SEEDS, Preset
from equipoise.experiments.plan import Wanted

__all__ = ["Group", "Imported", "count", "import_cells"]

PRESETS: tuple[Preset, ...] = ("published", "text")


class Imported(NamedTuple):
    """What became of the files of a folder."""

    new: int
    known: int
    refused: dict[str, str]
    """Names of files, and why each was refused."""


class Group(NamedTuple):
    """Cells of one kind."""

    experiment: str
    task: str
    method: str
    """The names under which tables have it, or its weighting."""
    table: str
    """The table of this version that asks for them by itself; the first, if several do, empty if none does."""

    @property
    def in_tables(self) -> bool:
        """Whether one does."""
        return bool(self.table)


def import_cells(folder: Path, store: CellStore) -> Imported:
    """Copy the whole cells of a folder into a store. A cell that is there already is left as it is.

    Args:
        folder: Where they lie; hidden files and folders in it are passed over.
        store: Where they go.
    """
    require(folder.is_dir(), "the folder to import must exist", folder)
    new = known = 0
    refused = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        try:
            spec = load(path).spec
        except ValueError as error:
            refused[path.name] = str(error)
            continue
        if store.read(spec) is not None:
            known += 1
        else:
            write_atomically(store.place(spec), path.read_text(encoding="utf-8"))
            new += 1
    return Imported(new, known, refused)


def count(folder: Path) -> Counter[Group]:
    """How many cells of each kind a folder has."""
    tables, labels = _tables(), _labels()
    found: Counter[Group] = Counter()
    for spec, _ in cells_in([folder]):
        found[_group(spec, labels, tables.get(cell_name(spec), ""))] += 1
    return found


def _group(spec: dict[str, Any], labels: "_Labels", table: str) -> Group:
    experiment, weighting = str(spec.get("experiment")), str(spec.get("weighting"))
    kind = weighting.partition("(")[0]
    if experiment != "federated":
        problem = str(spec.get("problem"))
        method = labels.settings.get((weighting, str(spec.get("conversion"))), kind)
        return Group(experiment, labels.problems.get(problem, problem.partition("(")[0]), method, table)
    text = str(spec.get("task"))
    task = _ROUNDS.sub("", text)
    rounds, data = _ROUNDS.search(text), _DATA.search(text)
    name = labels.tasks.get(task, f"{data[1] if data else ''}, another task")
    methods = labels.methods.get((task, weighting, str(spec.get("transform"))), f"{kind}, other settings")
    return Group(experiment, f"{name}, {rounds[1]} rounds" if rounds else name, methods, table)


_ROUNDS = re.compile(r"rounds=(\d+)")
_DATA = re.compile(r"data='([^']*)'")


class _Labels(NamedTuple):
    """The names of what cells hold as settings."""

    tasks: dict[str, str]
    """By a task without its rounds."""
    methods: dict[tuple[str, str, str], str]
    """By that, weighting and transform: the rows of the table that share the trajectory."""
    problems: dict[str, str]
    """By a problem, or a task that stands for one."""
    settings: dict[tuple[str, str], str]
    """Rows of the synthetic tables, by weighting and conversion."""


@cache
def _labels() -> _Labels:
    tasks: dict[str, str] = {}
    methods: dict[tuple[str, str, str], str] = {}
    for preset, _, one in _rows():
        task = _ROUNDS.sub("", repr(one.task))
        usual = one.task == federated.tasks(preset)[one.task_name]
        name = one.task_name if usual else f"{one.task_name}, {one.column}"
        tasks[task] = name if preset == "published" else f"{name} ({preset})"
        key = (task, repr(one.row.method.weighting), repr(one.row.method.transform))
        known = methods.get(key)
        if known is None or one.row.name not in known.split(", "):
            methods[key] = one.row.name if known is None else f"{known}, {one.row.name}"
    problems: dict[str, object] = {name: setting.problem for name, setting in conversions.settings().items()}
    problems |= conversions.crowds() | {name: federated.tasks()[name] for name in conversions.DIGITS}
    rows = {
        (repr(row.weighting), repr(row.conversion)): row.method
        for preset in PRESETS
        for row in synthetic.settings(preset)
    }
    return _Labels(tasks, methods, {repr(problem): name for name, problem in problems.items()}, rows)


def _rows() -> Iterator[tuple[Preset, str, Wanted]]:
    """Everything that a table asks for, or is asked for by the demo, with the table's name."""
    for preset in PRESETS:
        for one in plan.rows(tuple(federated.tasks(preset)), plan.ALL, preset):
            yield preset, f"table-{one.task_name.partition('-')[0]}", one
        for group in plan.GROUPS:
            if group != "table-text":  # rows of another preset, which the line above has
                for one in plan.wanted(group, preset):
                    yield preset, group, one


@cache
def _tables() -> dict[str, str]:
    """Tables by the names of all cells that they can ask for, with their own seeds and rounds."""
    names: dict[str, str] = {}
    for _, table, one in _rows():
        job = one.job(SEEDS)
        for seed in SEEDS:
            names.setdefault(cell_name(job.spec(seed)), table)
    for preset in PRESETS:
        tables = {
            "table-hv": synthetic.settings(preset),
            "table-step-size": synthetic.both_step_sizes(preset),
            "table-excess": synthetic.excess_settings(),
        }
        for table, rows in tables.items():
            for row, problem, seed in product(rows, synthetic.PROBLEMS, synthetic.SEEDS):
                names.setdefault(cell_name(synthetic.cell_spec(preset, problem, row, seed)), table)
    for name in conversions.names_of_problems():
        for configuration in conversions.configurations(name):
            names.setdefault(cell_name(conversions.cell_spec(name, configuration)), "table-conversions")
    return names
