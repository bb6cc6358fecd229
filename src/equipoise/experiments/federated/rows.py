"""The runs that each federated table needs, by the name of the table.

A table is a list of rows; rows with the same trajectory share a cell.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from equipoise.experiments.federated import settings
from equipoise.experiments.federated.settings import EXACT_FERERO, METHODS, MOMENTUM, PREFERENCES, Run
from equipoise.experiments.paper import Preset
from equipoise.registry import Method, Named

__all__ = ["ALL", "CIFAR", "DEFAULT", "DIGITS", "GROUPS", "MNIST", "TABLES", "rows", "wanted"]

DIGITS = ("digits-rotation", "digits-class2", "digits-class5")
MNIST = ("mnist-rotation", "mnist-class2", "mnist-class5")
CIFAR = ("cifar-rotation", "cifar-class2", "cifar-class5")
DEFAULT = "equipoise"
"""The library's default method, which is not tuned, unlike the others."""
ALL = (*METHODS, EXACT_FERERO, DEFAULT)
"""The rows of the tables with all methods."""


def wanted(
    name: str,
    preset: Preset = "published",
    methods: Sequence[str] | None = None,
    own: Mapping[str, Method] | None = None,
) -> list[Run]:
    """The rows of a group in `GROUPS`, in order.

    Args:
        name: The group's name.
        preset: Which settings; the group `table-text` has its own.
        methods: Only rows of these methods.
        own: The user's own methods, by name: the runs of the table's first method, with each of them instead.
    """
    whole = list(GROUPS[name](preset))
    named = [method for method in methods or () if method not in (own or {})]
    rows = [one for one in whole if not named or one.name in named]
    for called, method in (own or {}).items():
        mine = [replace(one, name=called, method=method) for one in whole if one.name == whole[0].name]
        rows += [settings.by_ratios(one, preset) for one in mine] if name == "table-ratio" else mine
    return rows


def rows(
    tasks: Sequence[str], names: Sequence[str], preset: Preset, own: Mapping[str, Method] | None = None
) -> Iterator[Run]:
    """Methods on tasks, with uniform preference."""
    return (settings.row(name, task, preset, own=own) for task in tasks for name in names)


def _evaluation_data(preset: Preset) -> Iterator[Run]:
    for one in rows(CIFAR[:1], ("AdaOMDgd-TCH", "AdaOMDeg-TCH"), preset):
        for source in settings.EVALUATION_DATA:
            yield replace(one, task=settings.evaluated_on(one.task, source, preset), column=source)


def _ratio(preset: Preset) -> Iterator[Run]:
    names = ("LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH")
    for one in rows(CIFAR[:1], names, preset):
        yield settings.by_ratios(one, preset)
    if preset == "published":  # there, this row has the ratio only in the first round
        for one in rows(CIFAR[:1], ("AdaOMDeg-TCH",), preset):
            yield replace(settings.by_ratios(one, "text"), column="every round")


def _preference(preset: Preset) -> Iterator[Run]:
    names = ("LS", "TCH", "STCH", "ExcessMTL", "EPO", "FERERO", "OMDgd-TCH", "AdaOMDgd-TCH", EXACT_FERERO, DEFAULT)
    for one in rows(("cifar-two",), names, preset):
        for preference in PREFERENCES:
            yield replace(one, preference=preference, column=", ".join(f"{w:g}" for w in preference))


def _table(names: Sequence[str]) -> Callable[[Preset], Iterator[Run]]:
    return lambda preset: rows(CIFAR, names, preset)


TABLES: dict[str, tuple[str, ...]] = {
    "table-cifar": ALL,
    "table-adaptive": ("OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH"),
    "table-stch": ("STCH", MOMENTUM, "AdaOMDeg-TCH", "AdaOMDgd-TCH"),
    "table-ablation": ("LS", "AdaLS", "TCH", "AdaTCH", "AdaOMDgd-TCH"),
}
"""The methods of the tables on the three tasks with ten clients."""

GROUPS: Named[Callable[[Preset], Iterator[Run]]] = Named(
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
