"""Which runs the tables on CIFAR-10 are made of: groups of them by the name of the table.

A table is a list of what it wants; rows that want the same trajectory find the same cell.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from equipoise.experiments import federated
from equipoise.experiments.cells import CellStore, Result, alike
from equipoise.experiments.federated import EXACT_FERERO, METHODS, MOMENTUM, PREFERENCES, Job, Preference, Preset, Row
from equipoise.federated import Precision, Task
from equipoise.registry import Named

__all__ = ["ALL", "CIFAR", "DEFAULT", "FORMER", "GROUPS", "TABLES", "Wanted", "absent", "rows", "wanted"]

CIFAR = ("cifar-rotation", "cifar-class2", "cifar-class5")
DEFAULT = "equipoise"
"""The library's method without a setting, beside the tuned ones."""
FORMER = "OptOMD-TCH"
"""The default before it."""
ALL = (*METHODS, EXACT_FERERO, DEFAULT)
"""The rows of the tables with all methods."""


class Wanted(NamedTuple):
    """A row of a table on a task."""

    task_name: str
    task: Task
    row: Row
    preference: Preference | None = None
    column: str = ""
    """What tells it from other runs of the same method, if anything does."""

    @property
    def name(self) -> str:
        """The method's, with that."""
        return f"{self.row.name}, {self.column}" if self.column else self.row.name

    def job(self, seeds: Sequence[int], precision: Precision | None = None) -> Job:
        """Its trajectory, with the task's own precision if none is given."""
        precision = federated.precision_of(self.task_name, precision)
        return Job(self.task_name, self.task, self.row.method, tuple(seeds), precision, self.preference)

    def found(self, store: CellStore, seeds: Sequence[int], precision: Precision | None = None) -> dict[int, Result]:
        """The results of those seeds that have a cell."""
        job = self.job(seeds, precision)
        results = {seed: store.read(job.spec(seed)) for seed in seeds}
        return alike({seed: result for seed, result in results.items() if result is not None}, job.label)


def wanted(
    name: str, preset: Preset = "published", rounds: int | None = None, methods: Sequence[str] | None = None
) -> list[Wanted]:
    """What a group of `GROUPS` consists of, in its order.

    Args:
        name: Of the group.
        preset: Which settings; the group `table-text` has its own.
        rounds: Rounds, if not the task's own.
        methods: Rows of these methods alone.
    """
    rows = (one for one in GROUPS[name](preset) if methods is None or one.row.name in methods)
    return [one._replace(task=federated.sized(one.task, rounds)) for one in rows]


def absent(
    store: CellStore, wanted: Sequence[Wanted], seeds: Sequence[int] | None = None, precision: Precision | None = None
) -> list[Job]:
    """What is still to be run, every trajectory once.

    Args:
        store: What there is.
        wanted: The rows.
        seeds: Their seeds, if not the tasks' own.
        precision: Their precision, if not the tasks' own.
    """
    jobs: dict[str, Job] = {}
    for one in wanted:
        own = federated.precision_of(one.task_name, precision)
        of = federated.seeds_of(one.task_name) if seeds is None else seeds
        for job in federated.absent(store, one.task_name, one.task, [one.row], of, own, one.preference):
            jobs.setdefault(repr(job.spec(job.seeds[0])), job)
    return list(jobs.values())


def rows(tasks: Sequence[str], names: Sequence[str], preset: Preset) -> Iterator[Wanted]:
    """Methods on tasks, with uniform preference."""
    for task in tasks:
        for name in names:
            yield Wanted(task, federated.tasks(preset)[task], federated.row(name, task, preset))


def _evaluation_data(preset: Preset) -> Iterator[Wanted]:
    sources: tuple[federated.EvaluationData, ...] = ("mini", "full", "val", "val for dominance")
    for one in rows(CIFAR[:1], ("AdaOMDgd-TCH", "AdaOMDeg-TCH"), preset):
        for source in sources:
            yield one._replace(task=federated.evaluated_on(one.task, source, preset), column=source)


def _ratio(preset: Preset) -> Iterator[Wanted]:
    names = ("LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH")
    for one in rows(CIFAR[:1], names, preset):
        yield one._replace(row=federated.by_ratios(one.row, preset))
    if preset == "published":  # which has the trick in the first round alone, for this row
        for one in rows(CIFAR[:1], ("AdaOMDeg-TCH",), preset):
            yield one._replace(row=federated.by_ratios(one.row, "text"), column="every round")


def _preference(preset: Preset) -> Iterator[Wanted]:
    # FORMER stands here until there are runs of DEFAULT with two clients.
    names = ("LS", "TCH", "STCH", "ExcessMTL", "EPO", "FERERO", "OMDgd-TCH", "AdaOMDgd-TCH", EXACT_FERERO, FORMER)
    for one in rows(("cifar-two",), names, preset):
        for preference in PREFERENCES:
            yield one._replace(preference=preference, column=", ".join(f"{w:g}" for w in preference))


def _table(names: Sequence[str]) -> Callable[[Preset], Iterator[Wanted]]:
    return lambda preset: rows(CIFAR, names, preset)


TABLES: dict[str, tuple[str, ...]] = {
    "table-cifar": (*ALL, FORMER),
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
"""By the name of the table; `table-text` are four rows as the paper's text has them."""
