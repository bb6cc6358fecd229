"""The runs that each federated table needs, by the name of the table.

A table is a list of rows; rows with the same trajectory share a cell.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from equipoise.experiments.federated import settings
from equipoise.experiments.federated.runs import Job
from equipoise.experiments.federated.settings import EXACT_FERERO, METHODS, MOMENTUM, PREFERENCES, Preference, Row
from equipoise.experiments.paper import Preset
from equipoise.experiments.results import CellStore, Result, alike
from equipoise.federated import Precision, Task
from equipoise.registry import Method, Named
from equipoise.weighting import Relative

__all__ = ["ALL", "CIFAR", "DEFAULT", "DIGITS", "GROUPS", "MNIST", "TABLES", "Wanted", "rows", "wanted"]

DIGITS = ("digits-rotation", "digits-class2", "digits-class5")
MNIST = ("mnist-rotation", "mnist-class2", "mnist-class5")
CIFAR = ("cifar-rotation", "cifar-class2", "cifar-class5")
DEFAULT = "equipoise"
"""The library's default method, which is not tuned, unlike the others."""
ALL = (*METHODS, EXACT_FERERO, DEFAULT)
"""The rows of the tables with all methods."""


class Wanted(NamedTuple):
    """A row of a table on a task."""

    task_name: str
    task: Task
    row: Row
    preference: Preference | None = None
    column: str = ""
    """What distinguishes it from other runs of the same method, if anything."""

    @property
    def name(self) -> str:
        """The method's name, with that."""
        return f"{self.row.name}, {self.column}" if self.column else self.row.name

    def job(self, seeds: Sequence[int], precision: Precision | None = None) -> Job:
        """Its trajectory, with the task's own precision if none is given."""
        precision = settings.precision_of(self.task_name, precision)
        names = ((_called(self.row), self.row.output),)
        return Job(self.task_name, self.task, self.row.method, tuple(seeds), precision, self.preference, names)

    def found(self, store: CellStore, seeds: Sequence[int], precision: Precision | None = None) -> dict[int, Result]:
        """The results of the seeds that have a cell."""
        job = self.job(seeds, precision)
        results = {seed: store.read(job.spec(seed)) for seed in seeds}
        return alike({seed: result for seed, result in results.items() if result is not None}, job.label)


def _called(row: Row) -> str:
    """The name of a row's runs."""
    of = row.method.weighting
    if not isinstance(of, Relative):
        return row.name
    return f"{row.name}, ratio in the first round alone" if of.span == "first" else f"{row.name}, ratios"


def wanted(
    name: str,
    preset: Preset = "published",
    rounds: int | None = None,
    methods: Sequence[str] | None = None,
    own: Mapping[str, Method] | None = None,
) -> list[Wanted]:
    """The rows of a group in `GROUPS`, in order.

    Args:
        name: The group's name.
        preset: Which settings; the group `table-text` has its own.
        rounds: Rounds; by default the task's own.
        methods: Only rows of these methods.
        own: The user's own methods, by name: the runs of the table's first method, with each of them instead.
    """
    whole = list(GROUPS[name](preset))
    named = [method for method in methods or () if method not in (own or {})]
    rows = [one for one in whole if not named or one.row.name in named]
    first = [one for one in whole if one.row.name == whole[0].row.name]
    for method in own or {}:
        for one in first:
            row = settings.row(method, one.task_name, preset, own=own)
            rows.append(one._replace(row=settings.by_ratios(row, preset) if name == "table-ratio" else row))
    return [one._replace(task=settings.sized(one.task, rounds)) for one in rows]


def rows(
    tasks: Sequence[str], names: Sequence[str], preset: Preset, own: Mapping[str, Method] | None = None
) -> Iterator[Wanted]:
    """Methods on tasks, with uniform preference."""
    for task in tasks:
        for name in names:
            yield Wanted(task, settings.tasks(preset)[task], settings.row(name, task, preset, own=own))


def _evaluation_data(preset: Preset) -> Iterator[Wanted]:
    for one in rows(CIFAR[:1], ("AdaOMDgd-TCH", "AdaOMDeg-TCH"), preset):
        for source in settings.EVALUATION_DATA:
            yield one._replace(task=settings.evaluated_on(one.task, source, preset), column=source)


def _ratio(preset: Preset) -> Iterator[Wanted]:
    names = ("LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH")
    for one in rows(CIFAR[:1], names, preset):
        yield one._replace(row=settings.by_ratios(one.row, preset))
    if preset == "published":  # there, this row has the ratio only in the first round
        for one in rows(CIFAR[:1], ("AdaOMDeg-TCH",), preset):
            yield one._replace(row=settings.by_ratios(one.row, "text"), column="every round")


def _preference(preset: Preset) -> Iterator[Wanted]:
    names = ("LS", "TCH", "STCH", "ExcessMTL", "EPO", "FERERO", "OMDgd-TCH", "AdaOMDgd-TCH", EXACT_FERERO, DEFAULT)
    for one in rows(("cifar-two",), names, preset):
        for preference in PREFERENCES:
            yield one._replace(preference=preference, column=", ".join(f"{w:g}" for w in preference))


def _table(names: Sequence[str]) -> Callable[[Preset], Iterator[Wanted]]:
    return lambda preset: rows(CIFAR, names, preset)


TABLES: dict[str, tuple[str, ...]] = {
    "table-cifar": ALL,
    "table-adaptive": ("OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH"),
    "table-stch": ("STCH", MOMENTUM, "AdaOMDeg-TCH", "AdaOMDgd-TCH"),
    "table-ablation": ("LS", "AdaLS", "TCH", "AdaTCH", "AdaOMDgd-TCH"),
}
"""The methods of the tables on the three tasks with ten clients."""

GROUPS: Named[Callable[[Preset], Iterator[Wanted]]] = Named(
    {
        **{name: _table(methods) for name, methods in TABLES.items()},
        "table-evaluation-data": _evaluation_data,
        "table-ratio": _ratio,
        "table-preference": _preference,
        "table-text": lambda _: rows(CIFAR[:1], ("LS", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH"), "text"),
    },
    "table",
)
"""The rows by the name of the table; `table-text` has four rows with the settings of the paper's text."""
