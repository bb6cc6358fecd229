"""`eq.compare`: your own and other methods in the tables of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise import plugins
from equipoise.batch import whole
from equipoise.errors import require
from equipoise.experiments.item import Request
from equipoise.registry import Method, resolve
from equipoise.solver import check_seeds
from equipoise.weighting import Weighting

if TYPE_CHECKING:
    from equipoise.experiments.comparison import Number  # needs an extra

__all__ = ["Compared", "compare"]


class Compared(NamedTuple):
    """One number of a table."""

    task: str
    method: str
    metric: str
    mean: float
    std: float
    """The population standard deviation over the seeds."""
    error: float
    """The standard error of the mean."""
    seeds: tuple[int, ...]
    paper: float | None
    """The paper's mean, if it has this number."""


def compare(
    methods: Mapping[str, Method | Weighting[Any] | str] | Sequence[str],
    table: str = "hv",
    *,
    seeds: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    rounds: int | None = None,
    out: str | Path = "out",
    workers: int = 1,
    quiet: bool = True,
) -> list[Compared]:
    """Compare methods in a table of the paper. Finished runs are kept in `out` and read from there the next time.

    Needs the extra `experiments`.

    Args:
        methods: Rows of the table and "equipoise", the default, by name, as in `["LS", "equipoise"]`, and your own, as
            in `{"mine": MyWeighting()}` or "module:name"; `{"LS": "LS", "mine": MyWeighting()}` has both. If you name
            only your own, all rows of the table are added. A row keeps its name; your own have names of their own.
        table: "hv" (seven synthetic problems), "digits", "mnist" or "cifar".
        seeds: Seeds; by default those of the table.
        tasks: Problems or federated tasks; by default all of the table.
        rounds: Rounds of a federated task; by default its own. "hv" has none.
        out: Folder for results.
        workers: Processes.
        quiet: Whether to print nothing.

    Returns:
        One entry per task, method and metric. `pandas.DataFrame(eq.compare(...))` has named columns.

    Examples:
        >>> rows = eq.compare({"mine": eq.SmoothTchebycheff(mu=0.1)}, tasks=["VLMOP2"], out=folder)  # doctest: +SKIP
        >>> sorted((row.mean, row.method) for row in rows if row.metric == "tch")[:3]  # doctest: +SKIP
    """
    from rich.console import Console  # noqa: PLC0415 (of an extra)

    from equipoise.experiments.federated.settings import known_names  # noqa: PLC0415
    from equipoise.experiments.synthetic.settings import settings as rows_of_hv  # noqa: PLC0415

    known = {"hv", "digits", "mnist", "cifar"}
    require(table in known, f"table must be one of {', '.join(sorted(known))}", repr(table))
    require(rounds is None or table != "hv", "rounds must not be given for hv, which has none", rounds)
    own: dict[str, Method] = {}
    names: list[str] = []
    for name in methods:
        found = methods[name] if isinstance(methods, Mapping) else name
        if not isinstance(found, str):
            own[name] = resolve(found)
        elif ":" in found:
            label, method = plugins.find(found)
            own[name if isinstance(methods, Mapping) else label] = method
        else:
            require(name == found, f"methods must have the row {found} under its own name", repr(name))
            names.append(found)
    taken = {*known_names(), *(row.method for row in rows_of_hv("published"))}
    for name in own:
        require(name not in taken, "a method of your own must have a name of its own", repr(name))
    request = Request(
        Console(quiet=quiet),
        Path(out),
        yes=True,
        workers=whole("workers", workers),
        methods=tuple(names) or None,
        seeds=None if seeds is None else check_seeds(seeds),
        rounds=None if rounds is None else whole("rounds", rounds),
        own=tuple(own.items()),
    )
    numbers = _hypervolumes(request, tasks) if table == "hv" else _scores(request, table, tasks)
    return [Compared(n.task, n.method, n.metric, *n.ours, n.error, n.seeds, n.paper and n.paper.mean) for n in numbers]


def _hypervolumes(request: Request, tasks: Sequence[str] | None) -> list["Number"]:
    from equipoise.experiments.synthetic import settings, tables  # noqa: PLC0415

    for task in tasks or ():
        require(task in settings.PROBLEMS, f"tasks must be among {', '.join(settings.PROBLEMS)}", repr(task))
    cells = tables.provide(request, tasks or settings.PROBLEMS, settings.chosen(request))
    return [number for cell in cells for number in cell.numbers]


def _scores(request: Request, table: str, tasks: Sequence[str] | None) -> list["Number"]:
    from equipoise.experiments.federated import rows, tables  # noqa: PLC0415
    from equipoise.experiments.federated.compute import gather  # noqa: PLC0415

    usual = {"digits": rows.DIGITS, "mnist": rows.MNIST, "cifar": rows.CIFAR}[table]
    entries = gather(request, f"table-{table}", tables.wanted(request, tasks or usual, rows.ALL))
    return [one if one.claimed else replace(one, paper=None) for entry in entries for one in entry.numbers()]
