"""`make torture`: inject random faults; none may go unnoticed."""

import argparse
import importlib
import sys
import time
from dataclasses import asdict
from functools import partial

# Processes that run tests are forked from this one, and need not import these again.
import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch
from rich.console import Console
from rich.table import Table
from tests.torture.outcome import Died, Outcome, Row, forked
from tests.train.conftest import make_toy

FAMILIES = {
    "mutation": "mistakes in the library that a test must notice",
    "crashes": "kills and interrupts",
    "flips": "bit flips in every kind of file",
    "replies": "hostile replies to a Flower server",
    "disk": "full disks",
}
"""Modules of this folder with a function `rows(share, seed)`. Mutants come first: they need a process that has not
imported the library."""


def _warm_up() -> None:
    """The first step of an optimizer takes seconds; forked processes need not pay for it."""
    torch.set_num_threads(1)
    toy = make_toy()
    toy.losses(0).sum().backward()
    toy.optimizer.step()


def measure(family: str, share: float, seed: int) -> list[dict[str, object]]:
    """The rows of a family."""
    return [asdict(row) for row in importlib.import_module(f"tests.torture.{family}").rows(share, seed)]


def show(rows: list[Row], console: Console) -> bool:
    """Print the table; gives whether something was silent."""
    table = Table("row", *(name for name in ("tried", "noticed", "equal", "silent")))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        numbers = [str(n) for n in (row.tried, row.noticed, row.equal, row.silent)]
        table.add_row(row.name, *(numbers if row.tried else ["", "", "", row.note]), style="red" if row.silent else "")
    console.print(table)
    for row in rows:
        for detail in row.details[:20]:
            console.print(f"[red]silent[/red] {row.name}: ", end="")
            console.print(detail, markup=False, highlight=False)
    return any(row.silent for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the families that are asked for; 1 if something was silent."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--share", type=float, default=1.0, help="of the number of trials, such as 0.05")
    known = "; ".join(f"{name}: {what}" for name, what in FAMILIES.items())
    parser.add_argument("--rows", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="NAME", help=known)
    given = parser.parse_args(arguments)
    console, rows = Console(), list[Row]()
    _warm_up()
    for family in (name for name in FAMILIES if name in given.rows):
        began = time.monotonic()
        if family != "mutation":
            importlib.import_module("tests.torture.runs").warm_up()
        for _, answer in forked([partial(measure, family, given.share, given.seed)], seconds=3600, workers=1):
            if isinstance(answer, Died):
                rows.append(Row(family))
                rows[-1].add(Outcome("silent", answer.why))
            else:
                rows += [Row(**one) for one in answer]
        console.print(f"{family}: {time.monotonic() - began:.0f} s", highlight=False)
        sys.stdout.flush()
    return int(show(rows, console))


if __name__ == "__main__":
    sys.exit(main())
