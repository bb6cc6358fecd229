"""A table or figure that can be reproduced, and what the user asked of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.experiments.paper import Preset
from equipoise.experiments.results import CellStore
from equipoise.federated import Precision
from equipoise.registry import Method

if TYPE_CHECKING:
    from rich.console import Console  # a machine without it can run the experiments, and show none

__all__ = ["Item", "Request"]


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where it was left to the item.

    Attributes:
        console: Where to print.
        out: Folder for pictures, and for cells in its `cells`.
        yes: Whether to compute without asking, however long it takes.
        preset: Which settings.
        json_file: Where a table is to be written besides.
        workers: Processes.
        task: Names of federated tasks.
        methods: Names of methods, those of `own` among them.
        seeds: Seeds.
        rounds: Rounds of a federated task.
        device: Where federated runs happen.
        precision: Of their layers' products.
        data: Where to look for data first.
        markdown_file: Where a table is to be written as a page.
        own: The user's methods that are no part of the library, by name.
    """

    console: "Console"
    out: Path
    yes: bool = False
    preset: Preset | None = None
    json_file: Path | None = None
    workers: int | None = None
    task: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    device: str | None = None
    precision: Precision | None = None
    data: Path | None = None
    markdown_file: Path | None = None
    own: tuple[tuple[str, Method], ...] = ()

    @property
    def settings(self) -> Preset:
        """Those of the preset."""
        return "published" if self.preset is None else self.preset

    @property
    def store(self) -> CellStore:
        """The user's cells, with those that come with the library behind them."""
        return CellStore(self.out / "cells")


@dataclass(frozen=True)
class Item:
    """A table or a figure.

    Attributes:
        label: Its LaTeX label in the paper.
        number: Its printed number.
        caption: What it shows.
        run: What makes it.
        takes: The attributes of a request that it heeds, besides console and out.
    """

    label: str
    number: str
    caption: str
    run: Callable[[Request], None]
    takes: frozenset[str]
