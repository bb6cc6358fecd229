"""`equipoise reproduce`: tables and figures of the paper, and others."""

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import shared
from equipoise.cli.shared import console, named
from equipoise.errors import require
from equipoise.experiments import catalogue
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.render import fitted, listing
from equipoise.experiments.synthetic import settings as synthetic

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure, see --list; or all.")] = "",
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,  # noqa: FBT002
    quick: Annotated[  # noqa: FBT002
        bool, typer.Option("--quick", help="With all: digits for twenty rounds, and no long sweeps.")
    ] = False,
    preset: shared.PresetOption = None,
    out: shared.Out = Path("out"),
    yes: shared.Yes = False,  # noqa: FBT002
    json_file: shared.JSONFile = None,
    workers: Annotated[int | None, typer.Option(help="Processes, one thread each; 2 if not given.")] = None,
    task: Annotated[str | None, typer.Option(help="Federated tasks, separated by commas.")] = None,
    methods: shared.Methods = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    rounds: shared.Rounds = None,
    device: shared.Device = None,
    precision: shared.PrecisionOption = None,
    data_folder: shared.Data = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a federated table as a page of Markdown.")] = None,
) -> None:
    """Reproduce a table or a figure of the paper. Finished work is kept and not repeated."""
    items = catalogue.items()
    if list_all or not name:
        table = listing("name", "label", "in the paper", "what")
        for key, item in items.items():
            table.add_row(key, item.label, item.number, item.caption)
        console.print(fitted(console, table))
        return
    name = named("table or figure", name, [*items, "all"])
    require(name == "all" or not quick, f"{name} does not take --quick; only all does", quick)
    sweeps = [row.method for row in (*synthetic.both_step_sizes("published"), *synthetic.excess_settings())]
    chosen, own = shared.read_methods(methods, [*shared.row_names(), *sweeps])
    request = shared.read_request(
        out,
        yes=yes,
        preset=preset,
        device=device,
        precision=precision,
        data=data_folder,
        json_file=json_file,
        workers=workers,
        task=None if task is None else tuple(named("task", one.strip(), federated.tasks()) for one in task.split(",")),
        methods=chosen,
        seeds=None if seeds is None else shared.read_seeds(seeds),
        rounds=rounds,
        markdown_file=markdown,
        own=own,
    )
    require(workers is None or workers >= 1, "workers must be at least 1", workers)
    takes = {"preset", "workers", "device", "precision", "data"} if name == "all" else items[name].takes
    for option in catalogue.optional():
        takers = ", ".join(key for key, item in items.items() if option in item.takes)
        found = f"{getattr(request, option)}; these take it: {takers}"
        heeded = option in takes or getattr(request, option) is None
        require(heeded, f"{name} does not take --{option.removesuffix('_file')}", found)
    shared.check_files(out, json=json_file, markdown=markdown)
    if name != "all":
        items[name].run(request)
    elif catalogue.reproduce_all(items, request, quick=quick):
        raise typer.Exit(1)
