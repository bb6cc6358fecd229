"""Federated digits by the library's simulator, and the runs on MNIST and CIFAR-10 that were recorded as cells."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.defaults.columns import OURS
from benchmarks.defaults.digits import digits
from benchmarks.defaults.networks import SEEDS
from benchmarks.defaults.results import Record, numbers

import equipoise as eq
from equipoise.experiments.federated import runs
from equipoise.experiments.federated import settings as federated
from equipoise.experiments.results import PUBLISHED, CellStore

TASKS = ("digits-rotation", "digits-class2")
RECORDED = ("mnist-rotation", "mnist-class2", "mnist-class5", "cifar-rotation", "cifar-class2", "cifar-class5")
PAPER = {"AdaOMDgd": "AdaOMDgd-TCH", "AdaOMDeg": "AdaOMDeg-TCH"}
"""Columns whose step the paper tuned for every task."""
ABSENT = ("uncertainty",)
"""Columns that make no sense here: the server has no optimizer that could train the log-variances."""
ROUNDS, CLIENTS = 100, 10


def run(
    name: str,
    methods: Mapping[str, eq.Method],
    *,
    half: str = "chosen",
    seeds: Sequence[int] | None = None,
    steps: int = ROUNDS,
    device: str = "cpu",
) -> list[Record]:
    """All methods on one task of the federated experiments, with a uniform preference.

    Args:
        name: The task.
        methods: The methods by name. AdaOMD takes the step that the paper found for the task, and `equipoise` is the
            default of `simulate`, which knows the number of rounds. Those of `ABSENT` are left out.
        half: "chosen" or "held-out": which seeds, and what the records say.
        seeds: Other seeds.
        steps: Rounds.
        device: Where the simulation happens.

    Returns:
        A record for every method.
    """
    seeds = SEEDS[half] if seeds is None else tuple(seeds)
    task = replace(federated.tasks()[name], rounds=steps)
    records = []
    for column, method in methods.items():
        if column in ABSENT:
            continue
        began = time.perf_counter()
        chosen = federated.row(PAPER[column], name).method if column in PAPER else method
        if column == OURS:
            chosen = eq.default(steps=steps)
        found = eq.federated.simulate(
            task, chosen, seeds=seeds, conversions={"answer": chosen.conversion}, dataset=digits(), device=device
        )
        train, test = (part["answer"].losses for part in (found.train, found.test))
        records.append(_record(name, half, steps, column, seeds, train, test, time.perf_counter() - began))
    return records


def recorded(methods: Mapping[str, eq.Method], place: Path = PUBLISHED) -> list[Record]:
    """What cells say of these methods on MNIST and CIFAR-10; a column without a cell for every seed is left out.

    Args:
        methods: The methods by name.
        place: A folder of cells, or a file of many.
    """
    store = CellStore(Path("nowhere"), (place,))
    records = []
    for name in RECORDED:
        task, seeds = federated.tasks()[name], federated.seeds_of(name)
        for column, method in {**methods, **_tuned(name)}.items():
            chosen = federated.row(PAPER[column], name).method if column in PAPER else method
            output = _output(chosen)
            cells = [store.read(runs.spec(task, chosen, s, federated.precision_of(name))) for s in seeds]
            whole = [cell["outputs"] for cell in cells if cell is not None and output in cell["outputs"]]
            if len(whole) < len(seeds):
                continue
            train, test = (
                torch.tensor([found[output][part]["client_losses"] for found in whole]) for part in ("train", "test")
            )
            records.append(_record(name, "cells", task.rounds, column, seeds, train, test, 0.0))
    return records


def _output(method: eq.Method) -> str:
    """The name under which a cell has the output of this method."""
    usual = eq.federated.outputs().items()
    return next((name for name, conversion in usual if conversion == method.conversion), "own")


def _tuned(name: str) -> dict[str, eq.Method]:
    return {"STCH, paper's μ": federated.row("STCH", name).method}


def _record(
    name: str,
    half: str,
    rounds: int,
    column: str,
    seeds: Sequence[int],
    train: torch.Tensor,
    test: torch.Tensor,
    seconds: float,
) -> Record:
    return Record(
        part="federated",
        half=half,
        problem=name,
        setting="rounds",
        steps=rounds,
        column=column,
        seeds=tuple(seeds),
        preferences=[[1 / CLIENTS] * CLIENTS],
        train=numbers(train.unsqueeze(1)),
        test=numbers(test.unsqueeze(1)),
        exact=[],
        judged=[],
        accuracy=[],
        seconds=round(seconds, 2),
    )
