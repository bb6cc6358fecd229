"""Everything that `equipoise reproduce` can reproduce, with the paper's label and number."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from equipoise.datasets import MissingDataError
from equipoise.experiments import table_agreement
from equipoise.experiments.default import tables as default_tables
from equipoise.experiments.federated import figures as federated_figures
from equipoise.experiments.federated import table_preference, table_ratio, table_tuned
from equipoise.experiments.federated import tables as federated_tables
from equipoise.experiments.item import Item, Request
from equipoise.experiments.render import say
from equipoise.experiments.synthetic import figures as synthetic_figures
from equipoise.experiments.synthetic import tables as synthetic_tables

__all__ = ["items", "optional", "reproduce_all"]

LONG = frozenset({"table-step-size", "table-excess", "table-conversions", "table-tuned"})
"""Sweeps of many minutes, which a quick run skips."""

QUICK: dict[str, Any] = {
    "task": ("digits-rotation",),
    "methods": ("LS", "TCH", "STCH", "FedMGDA+", "OMDgd-TCH", "AdaOMDgd-TCH"),
    "seeds": (0, 25),
    "rounds": 20,
}
"""The options of a federated item in a quick run: seconds, and no download."""


STUDIES = (
    synthetic_tables, synthetic_figures, federated_tables, table_ratio, table_preference, table_tuned,
    federated_figures, default_tables, table_agreement,
)  # fmt: skip
"""The modules that define items."""


def items() -> dict[str, Item]:
    """Every table and figure by its name on the command line: `table-hv` is `table_hv` of one of the modules."""
    found = (pair for study in STUDIES for pair in vars(study).items())
    return {name.replace("_", "-"): value for name, value in found if isinstance(value, Item)}


def optional() -> list[str]:
    """The attributes of a request that only some items use."""
    return [field.name for field in fields(Request) if field.default is None]


def reproduce_all(items: Mapping[str, Item], request: Request, *, quick: bool = False) -> dict[str, str]:
    """Reproduce every item. Options that an item does not take are not passed to it.

    Args:
        items: By name.
        request: The user's options.
        quick: Whether to skip the long sweeps and to run the federated items on digits for twenty rounds.

    Returns:
        The items whose data are missing, with the message of each.
    """
    missing = {}
    for name, item in items.items():
        if quick and name in LONG:
            say(request.console, f"{name}: left out of a quick run")
            continue
        say(request.console, f"{name}: {item.caption}")
        asked = replace(request, **QUICK) if quick and "task" in item.takes else request
        ignored: dict[str, Any] = dict.fromkeys(set(optional()) - item.takes)
        try:
            item.run(replace(asked, **ignored))
        except MissingDataError as error:
            missing[name] = str(error)
            say(request.console, f"{name}: left out: {error}")
    return missing
