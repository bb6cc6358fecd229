"""Federated cells for the tables and figures: what is missing is run, or said to be missing."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from equipoise import datasets
from equipoise.errors import NonFiniteLossError
from equipoise.experiments import federated, plan
from equipoise.experiments.cells import CellStore, Spec
from equipoise.experiments.federated import Job, seeds_of
from equipoise.experiments.federated_tables import Entry, entries_of
from equipoise.experiments.plan import Wanted
from equipoise.experiments.request import Request, bar, say, say_read

__all__ = ["compute", "gather", "provide", "say_found"]

IMAGES = {"cifar-rotation": 50_000, "cifar-two": 50_000, "cifar-class2": 10_000, "cifar-class5": 25_000}
"""Of a round, all clients together."""
CPU_SECONDS = 0.005
"""Per image and step of ResNet-20 on two CPU cores, for an estimate."""


def compute(
    console: Console,
    store: CellStore,
    jobs: Sequence[Job],
    *,
    device: str = "cpu",
    folder: Path | None = None,
) -> list[tuple[Job, NonFiniteLossError]]:
    """Run what is missing, with a progress bar.

    Returns:
        The jobs in which a client's loss was not finite: they stopped, the others were done.
    """
    failed: list[tuple[Job, NonFiniteLossError]] = []
    total = sum(len(job.seeds) * job.task.rounds for job in jobs)
    done = 0
    started = time.perf_counter()
    with bar(console) as shown:
        task = shown.add_task("rounds", total=total)
        for group in federated.alike(jobs):
            first, number = group[0], sum(len(job.seeds) for job in group)
            label = f"{first.task_name}, {type(first.method.weighting).__name__}"

            def show(rounds: int, done: int = done, label: str = label) -> None:
                shown.update(task, description=label, completed=done + rounds)

            small = first.task.data == "digits"
            with _threads(1 if small else os.cpu_count() or 1):
                failed += federated.attempt(
                    store, group, device=device, folder=folder, together=number if small else None, progress=show
                )
            done += number * first.task.rounds
    if jobs:
        say(console, f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}")
    return failed


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def provide(request: Request, name: str, wanted: Sequence[Wanted]) -> None:
    """Run what is missing. Runs on CIFAR-10 take hours on a CPU: unless a device or rounds were given, say so instead.

    Args:
        request: What the user asked for.
        name: Of the item.
        wanted: Its rows.
    """
    jobs = plan.absent(request.store, wanted, request.seeds, request.precision)
    specs: list[Spec] = []
    for one in wanted:
        seeds = request.seeds or seeds_of(one.task_name)
        specs += map(one.job(seeds, request.precision).spec, seeds)
    asked = request.device is not None or request.rounds is not None
    later = [job for job in jobs if job.task_name in IMAGES and not asked]
    now = [job for job in jobs if job not in later]
    if later:
        _put_off(request, name, later)
    device = request.device or "cpu"
    runs = sum(len(job.seeds) for job in now)
    for data in {job.task.data for job in now}:  # before anything is announced that could not be done without them
        datasets.load(data, request.data)
    say_found(request.console, request.store, specs, jobs, runs)
    if now:
        say(request.console, f"{runs} runs are missing and are made now, on {device}; what is finished is kept")
    failed = compute(request.console, request.store, now, device=device, folder=request.data)
    for job, error in failed:
        say(request.console, f"left out: {job.task_name}, {job.method.weighting}: {error}")


def say_found(
    console: Console, store: CellStore, specs: Sequence[Spec], jobs: Sequence[Job], made: int | None = None
) -> None:
    """Say which runs are read; several rows may be one run.

    Args:
        console: Where to print.
        store: Where they are.
        specs: What was asked for.
        jobs: What is missing of it.
        made: How many of these runs are made now, if not all of them.
    """
    asked = {repr(spec): spec for spec in specs}
    lacking = {repr(job.spec(seed)) for job in jobs for seed in job.seeds}
    found = [spec for key, spec in asked.items() if key not in lacking]
    say_read(console, store, found, len(asked), len(lacking) if made is None else made)


def _put_off(request: Request, name: str, jobs: Sequence[Job]) -> None:
    runs = sum(len(job.seeds) for job in jobs)
    hours = sum(len(job.seeds) * job.task.rounds * IMAGES[job.task_name] * CPU_SECONDS for job in jobs) / 3600
    tasks = list(dict.fromkeys(job.task_name for job in jobs))
    group = name if name in plan.GROUPS and request.task is None else " ".join(tasks)
    more = "" if request.methods is None else f" --methods '{','.join(request.methods)}'"
    more += "" if request.seeds is None else f" --seeds {','.join(map(str, request.seeds))}"
    more += "" if request.settings == "published" else f" --preset {request.settings}"
    say(
        request.console,
        f"{runs} runs on CIFAR-10 ({', '.join(tasks)}) are missing and are not made now: two CPU cores would need "
        f"about {hours:.0f} hours. On a GPU: python -m equipoise.experiments.bare {group}{more} --device cuda, then "
        "equipoise runs import cells. To make them here all the same, name the device: --device cpu",
    )


def gather(request: Request, name: str, wanted: Sequence[Wanted]) -> list[Entry]:
    """The entries that were asked for, after computing what is missing."""
    provide(request, name, wanted)
    return entries_of(request.store, wanted, request.seeds, request.settings, request.precision)
