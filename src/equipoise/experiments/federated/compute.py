"""Federated cells for the tables and figures: missing ones are computed, if the user agrees to the time it takes."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from equipoise import datasets
from equipoise.errors import NonFiniteLossError
from equipoise.experiments.federated import rows, runs, scores
from equipoise.experiments.federated.rows import Wanted
from equipoise.experiments.federated.runs import Job
from equipoise.experiments.federated.scores import Entry
from equipoise.experiments.federated.settings import seeds_of
from equipoise.experiments.item import Request
from equipoise.experiments.jobs import agreed, possible, say_read
from equipoise.experiments.render import bar, say
from equipoise.experiments.results import CellStore
from equipoise.identity import digest

__all__ = ["compute", "gather", "provide"]


def gather(request: Request, name: str, wanted: Sequence[Wanted]) -> list[Entry]:
    """The requested entries, after computing what is missing."""
    provide(request, name, wanted)
    return scores.entries_of(request.store, wanted, request.seeds, request.settings, request.precision)


def provide(request: Request, name: str, wanted: Sequence[Wanted]) -> None:
    """Run what is missing, if it takes less than a minute or the user agrees.

    Args:
        request: The user's options.
        name: The item's name.
        wanted: Its rows.
    """
    jobs = [one.job(request.seeds or seeds_of(one.task_name), request.precision) for one in wanted]
    failed = provide_jobs(request, jobs, _elsewhere(request, name, jobs))
    for job, error in failed:
        say(request.console, f"left out: {job.task_name}, {job.name}: {error}")


def provide_jobs(request: Request, jobs: Sequence[Job], otherwise: str = "") -> list[tuple[Job, NonFiniteLossError]]:
    """Run what is missing of some jobs, if the user agrees; returns those in which a client's loss was not finite."""
    device = request.device or "cpu"
    left = runs.absent(request.store, jobs)
    asked = list({digest(spec): spec for job in jobs for spec in map(job.spec, job.seeds)}.values())
    lacking = [spec for job in left for spec in map(job.spec, job.seeds)]
    begins = True
    if left:
        long = sum(runs.seconds(job, device) for job in left)
        for data in {job.task.data for job in left} if possible(request, long) else ():
            datasets.load(data, request.data)  # report missing data before announcing runs
        begins = agreed(request, long, len(lacking), otherwise)
    say_read(request, asked, lacking, begins=begins)
    if not begins:
        return []
    return compute(request.console, request.store, left, device=device, folder=request.data)


def compute(
    console: Console,
    store: CellStore,
    jobs: Sequence[Job],
    *,
    device: str = "cpu",
    folder: Path | None = None,
) -> list[tuple[Job, NonFiniteLossError]]:
    """Run jobs, with a progress bar.

    Returns:
        The jobs that stopped because a client's loss was not finite; all others were completed.
    """
    failed: list[tuple[Job, NonFiniteLossError]] = []
    total = sum(len(job.seeds) * job.task.rounds for job in jobs)
    done = 0
    started = time.perf_counter()
    with bar(console) as shown:
        task = shown.add_task("rounds", total=total)
        for group in runs.alike(jobs):
            first, number = group[0], sum(len(job.seeds) for job in group)
            label = f"{first.task_name}, {first.name}"

            def show(rounds: int, done: int = done, label: str = label) -> None:
                shown.update(task, description=label, completed=done + rounds)

            small = first.task.data == "digits"
            with _threads(1 if small else os.cpu_count() or 1):
                failed += runs.attempt(
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


def _elsewhere(request: Request, name: str, jobs: Sequence[Job]) -> str:
    """How to run the jobs on a GPU, if some need one."""
    tasks = list(dict.fromkeys(job.task_name for job in jobs))
    if request.device is not None or all(task.startswith("digits") for task in tasks):
        return ""
    group = name if name in rows.GROUPS and request.task is None else " ".join(tasks)
    more = "" if request.methods is None else f" --methods '{','.join(request.methods)}'"
    more += "" if request.seeds is None else f" --seeds {','.join(map(str, request.seeds))}"
    more += "" if request.settings == "published" else f" --preset {request.settings}"
    return (
        f"On a machine with a GPU: python -m equipoise.experiments.headless {group}{more} --device cuda; then here: "
        "equipoise runs import cells."
    )
