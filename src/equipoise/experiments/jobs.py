"""Computing missing cells: an estimate of the time, the user's consent, and worker processes."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeVar

import torch
from rich.progress import Progress
from rich.prompt import Confirm

from equipoise.experiments.item import Request
from equipoise.experiments.render import bar, say
from equipoise.experiments.results import CellStore, Finished, Spec
from equipoise.identity import digest

__all__ = ["WITHOUT_ASKING", "agreed", "compute", "duration", "fill", "possible", "supervise"]

T = TypeVar("T")

WITHOUT_ASKING = 60.0
"""The most seconds of work without asking."""
WORKERS = 2


class Piece(Protocol):
    """A unit of work for one process."""

    @property
    def seconds(self) -> float:
        """About how long it takes one process."""

    @property
    def specs(self) -> list[Spec]:
        """The specifications of its cells."""


P = TypeVar("P", bound=Piece)


def fill(request: Request, asked: Sequence[Spec], tasks: Sequence[P], run: Callable[[P], Iterable[Finished]]) -> None:
    """Compute missing cells, those of `tasks`, in worker processes, if the user agrees; `run` computes one task."""
    workers = WORKERS if request.workers is None else request.workers
    at_once = min(workers, os.cpu_count() or 1, max(1, len(tasks)))

    def work(shown: Progress) -> None:
        job = shown.add_task("computing", total=len(tasks))
        for _ in compute(request.store, tasks, run, workers):
            shown.advance(job)

    lacking = [spec for task in tasks for spec in task.specs]
    supervise(request, asked, lacking, sum(task.seconds for task in tasks) / at_once, work)


def supervise(
    request: Request,
    asked: Sequence[Spec],
    lacking: Sequence[Spec],
    seconds: float,
    work: Callable[[Progress], None],
    otherwise: str = "",
) -> None:
    """Say how many runs are read and from where, ask if the missing ones take long, and do the work.

    Args:
        request: The user's options.
        asked: All requested specifications.
        lacking: Those that have no cell.
        seconds: About how long these take.
        work: Computes them, with a progress bar.
        otherwise: An alternative to suggest.
    """
    store, console = request.store, request.console
    begins = bool(lacking) and agreed(request, seconds, len(lacking), otherwise)
    absent = set(map(digest, lacking))
    found = [spec for spec in asked if digest(spec) not in absent]
    if found:
        places = " and ".join(sorted({str(store.source(spec)) for spec in found}))
        say(console, f"{len(found)} of {len(asked)} runs read from {places}, {len(absent) if begins else 0} made now")
    if not begins:
        return
    started = time.perf_counter()
    with bar(console) as shown:
        work(shown)
    say(console, f"computed in {time.perf_counter() - started:.0f} s; kept in {store.folder}")


def agreed(request: Request, seconds: float, runs: int, otherwise: str = "") -> bool:
    """Say how long the missing runs take; above a minute ask first, unless the user has agreed with --yes.

    Without a terminal to ask on, the answer is no, and `otherwise` is suggested.
    """
    are, they, them = ("run is", "it takes", "it") if runs == 1 else ("runs are", "they take", "them")
    told = f"{runs} {are} missing; {they} about {duration(seconds)} here"
    be = are.partition(" ")[2]
    if seconds <= WITHOUT_ASKING or request.yes:
        say(request.console, f"{told}, and {be} made now; what is finished is kept in {request.store.folder}")
        return True
    hint = f" {otherwise}" if otherwise else ""
    if possible(request, seconds):
        say(request.console, f"{told}.{hint}")
        return Confirm.ask(f"Make {them} now?", console=request.console, default=False)
    say(request.console, f"{told}, and {be} not made: say --yes to make {them}.{hint}")
    return False


def possible(request: Request, seconds: float) -> bool:
    """Whether work of this length may start: it is short, or the user has agreed or can be asked."""
    return seconds <= WITHOUT_ASKING or request.yes or (request.console.is_terminal and sys.stdin.isatty())


def duration(seconds: float) -> str:
    """A time in words.

    Examples:
        >>> from equipoise.experiments.jobs import duration
        >>> [duration(t) for t in (3, 100, 4000, 400_000)]
        ['3 s', '2 minutes', '1.1 hours', '4.6 days']
    """
    for unit, length, digits in (("days", 86_400, 1), ("hours", 3600, 1), ("minutes", 60, 0)):
        if seconds >= 1.5 * length or (unit == "hours" and seconds >= length):
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{max(1, round(seconds))} s"


def compute(store: CellStore, tasks: Sequence[T], run: Callable[[T], Iterable[Finished]], workers: int) -> Iterator[T]:
    """Run tasks, in processes if there are several workers; yields each task when its cells are in place."""
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            _keep(store, run(task))
            yield task
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker) as pool:
        pending = {pool.submit(run, task): task for task in tasks}
        try:
            for future in as_completed(pending):
                _keep(store, future.result())
                yield pending[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _keep(store: CellStore, cells: Iterable[Finished]) -> None:
    for spec, result, names in cells:
        store.write(spec, result, names)


def _start_worker() -> None:
    torch.set_num_threads(1)
    parent = parent_process()
    if parent is not None:
        # A killed parent cannot stop its workers, and they would wait for work for ever.
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
