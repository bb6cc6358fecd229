"""The command line: `equipoise methods`, `problems`, `solve`, `fl`, `reproduce`, `report`, `steer`, `runs`, `data`."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ImportError as missing:  # pragma: no cover
    raise SystemExit("the command line needs: pip install '.[experiments]' in a checkout of equipoise") from missing

import torch

from equipoise import __version__
from equipoise.cli import data, federated, report, reproduce, runs, solve, steer
from equipoise.cli.shared import console
from equipoise.errors import IdealPointWarning
from equipoise.experiments.render import say
from equipoise.experiments.results import CellWarning

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("methods")(solve.list_methods)
app.command("problems")(solve.list_problems)
app.command("solve")(solve.solve_command)
app.command("fl")(federated.federated_command)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report_command)
app.command("steer")(steer.steer_command)
app.add_typer(runs.app, name="runs")
app.add_typer(data.app, name="data")


def main() -> None:
    """Entry point; bad input ends with its message, not with a traceback."""
    torch.set_num_threads(1)  # for small tensors more threads are slower
    try:
        with warnings.catch_warnings(), _plain_warnings():
            app()
    except (ValueError, OSError) as error:
        say(Console(stderr=True), f"error: {error}", style="red")
        sys.exit(2)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings about cells and losses as plain text, without file name and source line."""
    usual, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, CellWarning | IdealPointWarning):
            usual(message, category, *where, **more)
        elif str(message) not in said:
            said.add(str(message))
            say(Console(stderr=True), f"warning: {message}")

    warnings.showwarning = show
    yield


def _version(value: bool) -> None:  # noqa: FBT001
    if value:
        console.print(f"equipoise {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Preference-guided multi-objective learning: name a trade-off, get the Pareto point that has it."""
