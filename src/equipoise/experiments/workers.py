"""Pieces of work done by several processes, one thread each, and their cells stored as they come."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import TypeVar

import torch

from equipoise.experiments.cells import CellStore, Result, Spec

__all__ = ["compute"]

T = TypeVar("T")


def compute(
    store: CellStore, tasks: Sequence[T], run: Callable[[T], Iterable[tuple[Spec, Result]]], workers: int
) -> Iterator[T]:
    """Run tasks and store their cells; yields each task when its cells are in place.

    Args:
        store: Where cells go.
        tasks: What to run.
        run: What runs one of them, in a process of its own if there are several workers.
        workers: Processes.
    """
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


def _keep(store: CellStore, cells: Iterable[tuple[Spec, Result]]) -> None:
    for spec, result in cells:
        store.write(spec, result)


def _start_worker() -> None:
    torch.set_num_threads(1)
    parent = parent_process()
    if parent is not None:
        # A parent that was killed cannot end its workers, and they would wait for work for ever.
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
