"""Federated cells for the tables and figures: missing ones are computed, if the user agrees to the time it takes."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import Progress

from equipoise import datasets
from equipoise.errors import NonFiniteLossError
from equipoise.experiments.federated import rows, runs, scores
from equipoise.experiments.federated.scores import Entry
from equipoise.experiments.federated.settings import Run
from equipoise.experiments.item import Request
from equipoise.experiments.jobs import possible, supervise
from equipoise.experiments.render import say
from equipoise.identity import digest

__all__ = ["gather", "provide", "provide_jobs"]


def gather(request: Request, name: str, wanted: Sequence[Run]) -> list[Entry]:
    """The requested entries, after computing what is missing."""
    provide(request, name, wanted)
    return scores.entries_of(request.store, wanted, request.settings)


def provide(request: Request, name: str, wanted: Sequence[Run]) -> None:
    """Run what is missing of an item's rows, if it takes less than a minute or the user agrees."""
    for job, error in provide_jobs(request, wanted, _elsewhere(request, name, wanted)):
        say(request.console, f"left out: {job.task_name}, {job.labels['method']}: {error}")


def provide_jobs(request: Request, jobs: Sequence[Run], otherwise: str = "") -> list[tuple[Run, NonFiniteLossError]]:
    """Run what is missing of some jobs, if the user agrees; returns those in which a client's loss was not finite."""
    device = request.device or "cpu"
    left = runs.absent(request.store, jobs)
    asked = {digest(spec): spec for job in jobs for spec in job.specs}
    long = sum(runs.seconds(job, device) for job in left)
    for data in {job.task.data for job in left} if possible(request, long) else ():
        datasets.load(data, request.data)  # report missing data before announcing runs
    failed: list[tuple[Run, NonFiniteLossError]] = []

    def work(shown: Progress) -> None:
        task = shown.add_task("rounds", total=sum(len(job.to_run) * job.task.rounds for job in left))
        done = 0
        for group in runs.alike(left):
            first, number = group[0], sum(len(job.to_run) for job in group)
            shown.update(task, description=f"{first.task_name}, {first.labels['method']}")

            def show(rounds: int, done: int = done) -> None:
                shown.update(task, completed=done + rounds)

            small = first.task.data == "digits"
            at_once: dict[str, Any] = {"together": number if small else None, "progress": show}
            before = torch.get_num_threads()
            torch.set_num_threads(1 if small else os.cpu_count() or 1)
            try:
                failed.extend(runs.attempt(request.store, group, device=device, folder=request.data, **at_once))
            finally:
                torch.set_num_threads(before)
            done += number * first.task.rounds

    lacking = [spec for job in left for spec in job.specs]
    supervise(request, list(asked.values()), lacking, long, work, otherwise)
    return failed


def _elsewhere(request: Request, name: str, jobs: Sequence[Run]) -> str:
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
