"""What there is to run, and running it in one process or in several."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

import torch
from benchmarks.defaults import federated, networks, synthetic
from benchmarks.defaults.columns import columns
from benchmarks.defaults.results import Record
from benchmarks.defaults.summary import RECORDED

from equipoise.problems import problems

PARTS = ("synthetic", "networks", "federated")
HALVES = ("chosen", "held-out")


class Job(NamedTuple):
    """One problem with the columns that are missing."""

    part: str
    half: str
    problem: str
    steps: tuple[int, ...]
    names: tuple[str, ...]
    device: str

    def run(self) -> list[Record]:
        """All records of it."""
        torch.set_num_threads(1)
        known = columns(self.objectives)
        methods = {name: known[name] for name in self.names}
        if self.part == "synthetic":
            return synthetic.run(self.problem, methods, half=self.half, steps=self.steps, device=self.device)
        run = networks.run if self.part == "networks" else federated.run
        return run(self.problem, methods, half=self.half, device=self.device)

    @property
    def objectives(self) -> int:
        """The number of losses."""
        if self.part == "synthetic":
            return problems()[self.problem].m
        if self.part == "networks":
            return len(networks.TASKS[self.problem].preferences[0])
        return federated.CLIENTS


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Attributes:
        parts: Of `PARTS`.
        halves: Of `HALVES`.
        columns: The methods by name.
        steps: The lengths of synthetic rows.
        pattern: Only problems with a row whose name contains this; None: all.
        device: Where runs happen.
    """

    parts: Sequence[str] = PARTS
    halves: Sequence[str] = HALVES
    columns: Sequence[str] = tuple(columns())
    steps: tuple[int, ...] = synthetic.STEPS
    pattern: str | None = None
    device: str = "cpu"

    def fits(self, part: str, half: str, row: str) -> bool:
        """Whether a row is asked for."""
        named = self.pattern is None or fnmatch(row, f"*{self.pattern}*")
        return named and part in self.parts and half in (*self.halves, RECORDED)


def missing(order: Order, found: Sequence[Record]) -> Iterator[Job]:
    """What is asked for and not among the records, the longest first."""
    done = Counter((r.part, r.half, r.problem, r.steps, r.column) for r in found)
    for part, half in product(order.parts, order.halves):
        known = [name for name in order.columns if part != "federated" or name not in federated.ABSENT]
        for problem, steps, settings in _problems(part, half, order.steps):
            rows = [f"{problem} {setting} T={t}" for setting in settings for t in steps]
            if any(order.fits(part, half, row) for row in rows):
                left = [c for c in known if any(done[part, half, problem, t, c] < len(settings) for t in steps)]
                if left:
                    yield Job(part, half, problem, steps, tuple(left), order.device)


def _problems(part: str, half: str, steps: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], list[str]]]:
    """Every problem of a part with its numbers of steps and the settings that make its rows."""
    if part == "synthetic":
        for name in synthetic.PROBLEMS[half]:
            yield name, steps, synthetic.settings()
    elif part == "networks":
        for name, rows in networks.TASKS.items():
            yield name, (rows.steps,), networks.settings(rows)
    else:
        for name in federated.TASKS:
            yield name, (federated.ROUNDS,), ["rounds"]


def execute(todo: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Record]]]:
    """The jobs with their records as they come, in this process or in some others."""
    if workers == 1:
        for job in todo:
            yield job, job.run()
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(job.run): job for job in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
