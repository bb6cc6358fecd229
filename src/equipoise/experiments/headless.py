"""The federated experiments on a machine that has only torch, numpy and scipy:

    python -m equipoise.experiments.headless mnist-rotation mnist-class2 --data data --out cells --device cuda
    python -m equipoise.experiments.headless table-cifar table-stch --data data --out cells --device cuda --limit-s 500

A name is a task (all rows of tab:3) or a table on CIFAR-10 (all runs it needs). Cells go to the folder `--out`, from
which `equipoise runs import` reads them. Existing cells are not run again, and a run that the time limit stops resumes
from its checkpoint the next time. A run in which a client's loss is not finite is left out.
"""  # noqa: D415

import argparse
import sys
import time
from pathlib import Path

from equipoise.errors import require
from equipoise.experiments.federated import rows, runs, settings
from equipoise.experiments.federated.settings import Run
from equipoise.experiments.results import CellStore
from equipoise.registry import unknown


def main(arguments: list[str] | None = None) -> None:
    """Compute all missing cells."""
    parser = argparse.ArgumentParser(prog="python -m equipoise.experiments.headless")
    parser.add_argument("names", nargs="+", help="tasks, or tables on CIFAR-10: " + ", ".join(rows.GROUPS))
    parser.add_argument("--methods", help="separated by commas; all rows if not given")
    parser.add_argument("--seeds", help="separated by commas; the task's own if not given")
    parser.add_argument("--preset", choices=("published", "text"), default="published")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("cells"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds")
    chosen = parser.parse_args(arguments)
    require(chosen.data is None or chosen.data.is_dir(), "data must be a folder that exists", chosen.data)
    deadline = None if chosen.limit_s is None else time.monotonic() + chosen.limit_s
    store = CellStore(chosen.out, ())
    seeds = tuple(int(seed) for seed in chosen.seeds.split(",")) if chosen.seeds else None
    methods = chosen.methods.split(",") if chosen.methods else None
    asked: list[Run] = []
    for name in chosen.names:
        if name in rows.GROUPS:
            asked += rows.wanted(name, chosen.preset, methods)
        elif name in settings.tasks():
            asked += rows.rows([name], methods or rows.ALL, chosen.preset)
        else:
            raise unknown("name must be a task or a table on CIFAR-10", name, (*settings.tasks(), *rows.GROUPS))
    asked = [one.asked(chosen.rounds, seeds, chosen.precision) for one in asked]
    for jobs in runs.alike(runs.absent(store, asked)):
        label = "; ".join(f"{job.label}: seeds {', '.join(map(str, job.to_run))}" for job in jobs)
        began = time.monotonic()
        if deadline is not None and began >= deadline:
            print("time is up: what is left was not begun", flush=True)
            sys.exit(3)
        try:
            lost = runs.attempt(store, jobs, device=chosen.device, folder=chosen.data, deadline=deadline)
        except TimeoutError as error:
            print(f"{label}: {error}; kept in {store.folder / 'unfinished'}", flush=True)
            sys.exit(3)
        for job, why in lost:
            print(f"left out: {job.label}: {why}", flush=True)
        print(f"{label}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
