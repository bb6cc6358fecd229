"""`equipoise reproduce all`: one item after the other."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from equipoise.datasets import MissingDataError
from equipoise.experiments.request import Item, Request, say

__all__ = ["reproduce_all"]

LONG = frozenset({"table-step-size", "table-excess", "table-conversions"})
"""Sweeps of many minutes: a quick run passes over them."""

QUICK: dict[str, Any] = {
    "task": ("digits-rotation",),
    "methods": ("LS", "TCH", "STCH", "FedMGDA+", "OMDgd-TCH", "AdaOMDgd-TCH"),
    "seeds": (0, 25),
    "rounds": 20,
}
"""What a quick run asks of a federated item: seconds, and no download."""


def reproduce_all(items: Mapping[str, Item], request: Request, *, quick: bool = False) -> dict[str, str]:
    """Reproduce every item. Whatever an item does not heed is not asked of it.

    Args:
        items: By name.
        request: What the user asked for.
        quick: Whether to leave out the long sweeps, and to run the federated items on digits, for twenty rounds.

    Returns:
        The items that need data which is not there, and what each says.
    """
    missing = {}
    for name, item in items.items():
        if quick and name in LONG:
            say(request.console, f"{name}: left out of a quick run")
            continue
        say(request.console, f"{name}: {item.caption}")
        asked = replace(request, **QUICK) if quick and "task" in item.takes else request
        unheeded = {f.name for f in fields(Request) if f.default is None} - item.takes
        ignored: dict[str, Any] = dict.fromkeys(unheeded)
        try:
            item.run(replace(asked, **ignored))
        except MissingDataError as error:
            missing[name] = str(error)
            say(request.console, f"{name}: left out: {error}")
    return missing
