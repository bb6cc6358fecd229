"""A table or figure that can be reproduced, and the user's options for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.experiments.paper import Preset
from equipoise.experiments.results import CellStore
from equipoise.federated import Precision
from equipoise.registry import Method

if TYPE_CHECKING:
    from rich.console import Console  # not needed to run experiments, only to show them

__all__ = ["Item", "Request", "item"]


@dataclass(frozen=True)
class Request:
    """The user's options, as on the command line; None where the item decides."""

    console: "Console"
    out: Path
    """Folder for pictures, and for cells in its `cells`."""
    yes: bool = False
    """Whether to compute without asking, however long it takes."""
    preset: Preset | None = None
    json_file: Path | None = None
    workers: int | None = None
    task: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    """Names, those of `own` among them."""
    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    device: str | None = None
    precision: Precision | None = None
    data: Path | None = None
    """Where to look for data first."""
    markdown_file: Path | None = None
    own: tuple[tuple[str, Method], ...] = ()
    """The user's own methods, by name."""

    @property
    def settings(self) -> Preset:
        """The preset, `published` by default."""
        return "published" if self.preset is None else self.preset

    @property
    def store(self) -> CellStore:
        """The user's cells, then those that come with the library."""
        return CellStore(self.out / "cells")


@dataclass(frozen=True)
class Item:
    """A table or a figure. Its name on the command line is that of its variable, with - for _."""

    label: str
    """Its LaTeX label in the paper."""
    number: str
    """Its printed number."""
    caption: str
    run: Callable[[Request], None]
    takes: frozenset[str]
    """The attributes of a request that it uses, besides console and out."""


def item(label: str, number: str, takes: Iterable[str] = ()) -> Callable[[Callable[[Request], None]], Item]:
    """Make a function an item; its docstring is the caption."""
    return lambda run: Item(label, number, (run.__doc__ or "").removesuffix("."), run, frozenset(takes))
