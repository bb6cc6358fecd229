"""Federated runs and their results: one cell per trajectory and seed."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equipoise import metrics
from equipoise.errors import NonFiniteLossError, require
from equipoise.experiments.federated.settings import EVERY, Run, costly, every, precision_of, spec
from equipoise.experiments.results import CellStore, Result, short
from equipoise.federated import Curve, Evaluation, simulate
from equipoise.federated import Result as Simulated
from equipoise.identity import digest

__all__ = ["absent", "alike", "attempt", "cell", "run", "scores", "seconds", "spec"]

IMAGES = {"cifar-rotation": 50_000, "cifar-two": 50_000, "cifar-class2": 10_000, "cifar-class5": 25_000}
"""The images of a round, all clients together."""
_CPU = {"digits": 0.012, "mnist": 8.0}
_GPU = {"digits": 0.005, "mnist": 0.001}
"""Seconds per round and seed, for an estimate: on one core, on an H200."""


def seconds(job: Run, device: str) -> float:
    """About how long a job takes."""
    on_gpu = device.startswith("cuda")
    if job.task.data == "cifar10":
        per_round = IMAGES.get(job.task_name, 50_000) * (4.3e-6 if on_gpu else 5e-3)
    else:
        per_round = (_GPU if on_gpu else _CPU).get(job.task.data, 1.0)
    return len(job.to_run) * job.task.rounds * per_round


def absent(store: CellStore, jobs: Iterable[Run]) -> list[Run]:
    """The jobs that are still to be run: every trajectory once, under the names of all rows that share it."""
    found: dict[str, Run] = {}
    for job in jobs:
        left = tuple(seed for seed in job.to_run if store.read(job.spec(seed)) is None)
        if left:
            key = digest([job.spec(seed) for seed in left])
            known = found[key].rows if key in found else ()
            found[key] = replace(job, seeds=left, shared=tuple(dict.fromkeys((*known, *job.rows))))
    return list(found.values())


def alike(jobs: Sequence[Run]) -> list[list[Run]]:
    """Jobs grouped so that a group differs only in preferences and can be one simulation."""
    groups: dict[str, list[Run]] = {}
    for job in jobs:
        same = replace(job, preference=None).spec(0), job.preference is None
        groups.setdefault(digest(same), []).append(job)
    return list(groups.values())


def run(
    store: CellStore,
    jobs: Sequence[Run],
    *,
    device: str = "cpu",
    folder: Path | None = None,
    together: int | None = None,
    deadline: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run trajectories for their seeds and store a cell for each.

    Args:
        store: Where cells and checkpoints of unfinished runs go.
        jobs: The jobs; they must be `alike`.
        device: The device.
        folder: Where to look for data first.
        together: How many runs at a time; by default one on a CPU, all on a GPU.
        deadline: When to stop, in the time of `time.monotonic`.
        progress: Called after every round with the number of rounds done, over all runs.

    Raises:
        TimeoutError: The deadline has passed; the next run resumes from a checkpoint.
    """
    require(len(alike(jobs)) == 1, "jobs must differ in their preferences alone", lambda: [job.label for job in jobs])
    first, runs = jobs[0], [(job, seed) for job in jobs for seed in job.to_run]
    size = together or (len(runs) if device.startswith("cuda") else 1)
    for start in range(0, len(runs), size):
        chosen = runs[start : start + size]
        wanted = [job.preference for job, _ in chosen if job.preference is not None]
        part = store.folder / "unfinished" / f"{digest([job.spec(seed) for job, seed in chosen])}.npz"

        def count(done: int, start: int = start, many: int = len(chosen)) -> None:
            if progress is not None:
                progress(start * first.task.rounds + done * many)

        found = simulate(
            first.task,
            first.method,
            seeds=[seed for _, seed in chosen],
            preference=wanted or None,
            folder=folder,
            device=device,
            precision=precision_of(first.task_name, first.precision),
            evaluate_every=every(first.task),
            evaluate_parts=("test",) if costly(first.task) else ("train", "test"),
            evaluate_first=costly(first.task),
            checkpoint=part,
            deadline=deadline,
            progress=count,
        )
        where = torch.cuda.get_device_name() if device.startswith("cuda") else ""
        for k, (job, seed) in enumerate(chosen):
            store.write(job.spec(seed), cell(found, k), job.labels, where)
        part.unlink(missing_ok=True)


def attempt(store: CellStore, jobs: Sequence[Run], **options: Any) -> list[tuple[Run, NonFiniteLossError]]:
    """Like `run`, but where a client's loss is not finite, the other jobs are run by themselves; returns those lost."""
    try:
        run(store, jobs, **options)
    except NonFiniteLossError as error:
        if len(jobs) == 1:
            return [(jobs[0], error)]
        return [lost for job in jobs for lost in attempt(store, [job], **options)]
    return []


def cell(found: Simulated, k: int) -> Result:
    """The cell of one seed: metrics of every output, curves, and the weights of every fifth round.

    If outputs were evaluated after the first round, their scores are kept too ("first"). If they were not evaluated on
    training samples during the run, the curve's training loss is that of the trajectory: the worst client's loss among
    those that the server used in that round; "round_loss" has it for every round.
    """
    kept = slice(EVERY - 1, None, EVERY)
    fed = metrics.agnostic_loss(found.history.losses[:, k].nan_to_num(0.0).cpu())  # an absent client feeds nothing
    first = {
        name: scores(point.test, k)
        for name, points in found.curves.items()
        for point in points[:1]
        if point.round == 1 and point.test is not None
    }
    along = all(point.train is not None for points in found.curves.values() for point in points)
    return {
        "outputs": {
            name: {"train": scores(found.train[name], k), "test": scores(found.test[name], k)} for name in found.test
        },
        "untrained": scores(found.untrained, k),
        **({"first": first} if first else {}),
        "curves": {name: _curve(points, k, fed) for name, points in found.curves.items()},
        **({} if along else {"round_loss": short(fed)}),
        "coefficients": short(found.history.coefficients[kept, k]),
        "archive": found.history.archive[kept, k].tolist(),
        "seconds_per_round": statistics.median(found.seconds) / found.test["last"].losses.shape[0],
    }


def _curve(points: Curve, k: int, fed: torch.Tensor) -> dict[str, list[float]]:
    """The worst client's losses and the accuracy of one seed, over the rounds."""
    tests = [point.test for point in points if point.test is not None]
    return {
        "round": [point.round for point in points],
        "train_loss": [
            short(fed[point.round - 1] if point.train is None else metrics.agnostic_loss(point.train.losses[k]))
            for point in points
        ],
        "test_loss": [short(metrics.agnostic_loss(test.losses[k])) for test in tests],
        "test_accuracy": [short(metrics.average_accuracy(test.correct[k], test.counts[k])) for test in tests],
    }


def scores(of: Evaluation, k: int) -> dict[str, Any]:
    """The three metrics of one seed, and every client's loss and accuracy."""
    losses, correct, counts = of.losses[k].cpu(), of.correct[k].cpu(), of.counts[k].cpu()
    return {
        "accuracy": short(metrics.average_accuracy(correct, counts)),
        "agnostic_loss": short(metrics.agnostic_loss(losses)),
        "accuracy_parity": short(metrics.accuracy_parity(correct, counts)),
        "client_losses": short(losses),
        "client_accuracies": short(100.0 * correct / counts),
    }
