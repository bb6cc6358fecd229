"""Section 4.2 and appendix B.2 of the paper: the federated experiments (tab:3, tab:4, fig:3, fig:5 to fig:7).

Tasks and rows are data. Two presets: `published`, what produced the paper's tables, and `text`, what the
paper's text says. Where they differ is explained in docs/federated.md.
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from equipoise import metrics
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.errors import UnknownNameError, require
from equipoise.experiments.cells import CellStore, Result, Spec, cell_name
from equipoise.federated import (
    Curve,
    Dense,
    Evaluation,
    LocalWork,
    PartialClass,
    Precision,
    ResNet18,
    ResNet20,
    Rotation,
    Task,
    simulate,
)
from equipoise.federated import Result as Simulated
from equipoise.registry import Method, Named, methods, nearest
from equipoise.simplex import Entropic, Euclidean
from equipoise.transform import PropFair
from equipoise.weighting import (
    EPO,
    FERERO,
    OMD,
    QFFL,
    DualDescent,
    ExcessRisk,
    FedFV,
    FedMGDAPlus,
    Linear,
    SmoothTchebycheff,
    Tchebycheff,
)

Preset = Literal["published", "text"]
Output = Literal["last", "average", "adaptive"]

SEEDS = (0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003)
METHODS = (
    "LS", "qFFL", "PropFair", "FedMGDA+", "FedFV", "TCH", "STCH", "EPO", "FERERO", "ExcessMTL", "AdaExcessMTL",
    "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH",
)  # fmt: skip
"""The rows of tab:3."""
EXACT_FERERO = "FERERO (exact)"
"""Beside the paper's FERERO, whose settings leave it next to LS."""

EVERY = 5
"""Rounds between two evaluations, for the curves."""


# ------------------------------------------------------------------------------- tasks
def tasks(preset: Preset = "published") -> Named[Task]:
    """Every task by its name on the command line."""
    published = preset == "published"
    quarter, half = (0,) * 7 + (1, 1, 2), (0,) * 7 + (2, 2, 2)

    def task(data: str, **changes: Any) -> Task:
        return replace(_BASE[data], **changes, **(_PUBLISHED if published else {}))

    convolutional = ResNet20() if published else ResNet18()
    return Named(
        {
            "digits-rotation": task("digits", split=Rotation(quarter)),
            "digits-class2": task("digits", split=PartialClass(2)),
            "digits-class5": task("digits", split=PartialClass(5)),
            "mnist-rotation": task("mnist", split=Rotation(quarter)),
            "mnist-class2": task("mnist", split=PartialClass(2)),
            "mnist-class5": task("mnist", split=PartialClass(5)),
            "cifar-rotation": task("cifar10", split=Rotation(half), model=convolutional),
            "cifar-class2": task("cifar10", split=PartialClass(2), model=convolutional),
            "cifar-class5": task("cifar10", split=PartialClass(5), model=convolutional),
            "cifar-two": task("cifar10", split=Rotation((0, 2) if published else (0, 1)), model=convolutional),
        }
    )


_BASE = {
    "digits": Task("digits", model=Dense((64, 50, 10)), rounds=100),
    "mnist": Task("mnist", model=Dense((784, 200, 10)), rounds=300),
    "cifar10": Task("cifar10", work=LocalWork(epochs=1, batch_size=100), rounds=45),
}
_PUBLISHED: dict[str, Any] = {"loss": "trajectory", "average": "after", "batch_norm": "batch"}


# ------------------------------------------------------------------------------- rows
@dataclass(frozen=True)
class Row:
    """One row of tab:3 on one task.

    Attributes:
        name: The paper's name of the method.
        method: What it is.
        output: Which of the three outputs of its trajectory the paper reports.
    """

    name: str
    method: Method
    output: Output


_TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "mnist": {
        "qFFL": (0.1, 0.1, 0.1),
        "PropFair": (2.0, 2.0, 2.0),
        "FedMGDA+": (0.5, 0.5, 0.05),
        "FedFV": (0.2, 0.2, 0.2),
        "FedFV τ": (1, 1, 1),
        "STCH": (0.01, 0.01, 0.01),
        "ExcessMTL": (1.0, 1.0, 1.0),
        "AdaExcessMTL": (0.3, 1.0, 1.0),
        "OMDgd-TCH": (0.03, 0.01, 0.01),
        "AdaOMDgd-TCH": (0.03, 1.0, 1.0),
        "OMDeg-TCH": (0.3, 0.3, 0.1),
        "AdaOMDeg-TCH": (0.1, 0.3, 0.03),
    },
    "cifar10": {
        "qFFL": (0.1, 0.1, 0.1),
        "PropFair": (3.0, 4.0, 2.0),
        "FedMGDA+": (0.1, 0.1, 0.1),
        "FedFV": (0.2, 0.1, 0.2),
        "FedFV τ": (1, 0, 1),
        "STCH": (0.01, 0.03, 0.03),
        "ExcessMTL": (1.0, 0.1, 0.1),
        "AdaExcessMTL": (0.1, 0.03, 0.001),
        "OMDgd-TCH": (1.0, 0.01, 0.01),
        "AdaOMDgd-TCH": (0.03, 0.003, 0.3),
        "OMDeg-TCH": (1.0, 0.03, 0.1),
        "AdaOMDeg-TCH": (0.3, 0.03, 0.03),
    },
}
"""tab:2: the best values for rotation, C = 2 and C = 5. Digits take those of MNIST."""

_STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
ATTEMPTED: dict[str, tuple[float, ...]] = {
    "qFFL": (0.1, 0.5, 1.0, 5.0, 10.0),
    "PropFair": (2.0, 3.0, 4.0, 5.0),
    "FedMGDA+": (0.05, 0.1, 0.5, 1.0),
    "FedFV": (0.1, 0.2, 0.5),
    "STCH": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "ExcessMTL": _STEPS,
    "AdaExcessMTL": _STEPS,
    "OMDgd-TCH": _STEPS,
    "AdaOMDgd-TCH": _STEPS,
    "OMDeg-TCH": _STEPS,
    "AdaOMDeg-TCH": _STEPS,
}
"""tab:2: the values that the paper tried, of which the smallest worst-client training loss decides. FedFV: of α."""


def tuned(name: str, task: str) -> float | None:
    """The value that tab:2 gives a method on a task; None if the method has no setting."""
    data, _, kind = task.partition("-")
    column = {"rotation": 0, "two": 0, "class2": 1, "class5": 2}[kind]
    values = _TUNED["cifar10" if data == "cifar" else "mnist"].get(name)
    return None if values is None else values[column]


def row(name: str, task: str, preset: Preset = "published", value: float | None = None) -> Row:
    """A method as tab:3 has it on a task.

    Args:
        name: A name of METHODS, or EXACT_FERERO; any other method of the registry comes with its settings there.
        task: A name of `tasks`.
        preset: Which settings.
        value: Its hyper-parameter, instead of the best one of tab:2.
    """
    m = tasks(preset)[task].split.clients
    eta = tasks(preset)[task].work.step_size
    published = preset == "published"
    x = tuned(name, task) if value is None else value

    def steps() -> float:
        # The paper lists s of λ ← Π(λ + s f), with w_i = 1/m absorbed: gains here are w∘f.
        assert x is not None  # noqa: S101
        return x * m

    def excess() -> ExcessRisk:
        assert x is not None  # noqa: S101
        return ExcessRisk(x, "simultaneous", "gradients") if published else ExcessRisk(steps())

    makers: dict[str, tuple[Callable[[], Method], Output]] = {
        "LS": (lambda: Method(Linear(), Last()), "last"),
        "qFFL": (lambda: Method(QFFL(_given(x), eta), Last()), "last"),
        "PropFair": (
            lambda: Method(Linear(), Last(), PropFair(_given(x), 1.0, "linear") if published else PropFair(_given(x))),
            "last",
        ),
        "FedMGDA+": (lambda: Method(FedMGDAPlus(_given(x), "models"), Last()), "last"),
        "FedFV": (lambda: Method(FedFV(_given(x), int(_given(tuned("FedFV τ", task)))), Last()), "last"),
        "TCH": (lambda: Method(Tchebycheff(), Last()), "last"),
        "STCH": (lambda: Method(SmoothTchebycheff(_given(x)), Last()), "last"),
        "EPO": (
            lambda: Method(EPO(normalize=False, fallback="preference") if published else EPO(), Last()),
            "last",
        ),
        "FERERO": (lambda: Method(_released_ferero() if published else FERERO(), Last()), "last"),
        EXACT_FERERO: (lambda: Method(FERERO(), Last()), "last"),
        "ExcessMTL": (lambda: Method(excess(), Average()), "average"),
        "AdaExcessMTL": (lambda: Method(excess(), Adaptive()), "adaptive"),
        "OMDgd-TCH": (lambda: Method(OMD(steps(), Euclidean()), Average()), "average"),
        "AdaOMDgd-TCH": (lambda: Method(OMD(steps(), Euclidean()), Adaptive()), "adaptive"),
        "OMDeg-TCH": (lambda: Method(OMD(steps(), Entropic()), Average()), "average"),
        "AdaOMDeg-TCH": (lambda: Method(OMD(steps(), Entropic()), Adaptive()), "adaptive"),
    }
    if name in makers:
        make, output = makers[name]
        return Row(name, make(), output)
    others = methods()
    if name not in others:
        raise UnknownNameError(f"name must be a known one; found {name!r}; nearest: {nearest(name, known_names())}")
    return Row(name, others[name], _reported(others[name].conversion))


def known_names() -> tuple[str, ...]:
    """Every method that `row` knows, those of tab:3 first."""
    return tuple(dict.fromkeys((*METHODS, EXACT_FERERO, *methods())))


def _reported(conversion: Conversion[Any]) -> Output:
    """The output of a trajectory that a conversion is."""
    if isinstance(conversion, Adaptive):
        return "adaptive"
    return "average" if isinstance(conversion, Average) else "last"


def _given(value: float | None) -> float:
    require(value is not None, "value must be given: the method has a setting", value)
    assert value is not None  # noqa: S101
    return value


def _released_ferero() -> FERERO:
    solver = DualDescent(rate=1e-5, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)
    return FERERO(target="direct", solver=solver)


# ------------------------------------------------------------------------------- cells
class Job(NamedTuple):
    """A trajectory that is to be run: rows with the same weighting share it."""

    task_name: str
    task: Task
    method: Method
    seeds: tuple[int, ...]
    precision: Precision | None = None

    def spec(self, seed: int) -> Spec:
        """That of the cell of one seed."""
        return spec(self.task, self.method, seed, self.precision)


def spec(task: Task, method: Method, seed: int, precision: Precision | None = None) -> Spec:
    """Everything that decides a cell's result.

    The device is not part of it, nor whether products are in float32 or TF32: they decide rounding only.
    """
    return {
        "experiment": "federated",
        "task": repr(task),
        "weighting": repr(method.weighting),
        "transform": repr(method.transform),
        "seed": seed,
        "precision": "bfloat16" if precision == "bfloat16" else "float32",
        "every": EVERY,
    }


def missing(
    store: CellStore,
    task_name: str,
    rows: Sequence[Row],
    seeds: Sequence[int],
    preset: Preset,
    rounds: int | None = None,
    precision: Precision | None = None,
) -> list[Job]:
    """What is still to be run of a task, one job per trajectory."""
    return absent(store, task_name, sized(tasks(preset)[task_name], rounds), rows, seeds, precision)


def absent(
    store: CellStore,
    task_name: str,
    task: Task,
    rows: Sequence[Row],
    seeds: Sequence[int],
    precision: Precision | None = None,
) -> list[Job]:
    """The same for a task that was changed."""
    jobs: dict[str, Job] = {}
    for one in rows:
        method = one.method
        left = tuple(seed for seed in seeds if store.read(spec(task, method, seed, precision)) is None)
        if left:
            jobs[repr((method.weighting, method.transform))] = Job(task_name, task, method, left, precision)
    return list(jobs.values())


def sized(task: Task, rounds: int | None) -> Task:
    """A task with another number of rounds, if one is given."""
    return task if rounds is None else replace(task, rounds=rounds)


def run(
    store: CellStore,
    job: Job,
    *,
    device: str = "cpu",
    folder: Path | None = None,
    together: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run a trajectory for its seeds and store a cell for each.

    Args:
        store: Where cells go; checkpoints of unfinished runs lie beside them.
        job: What to run.
        device: Where.
        folder: Where to look for data first.
        together: How many seeds at a time; one on a CPU, all on a GPU, if not given.
        progress: Called after every round with the number of rounds done, over all seeds.
    """
    size = together or (len(job.seeds) if device.startswith("cuda") else 1)
    for start in range(0, len(job.seeds), size):
        seeds = job.seeds[start : start + size]
        whole = cell_name({"cells": [job.spec(seed) for seed in seeds]})
        part = store.folder / "unfinished" / f"{whole.removesuffix('.json')}.npz"

        def count(done: int, start: int = start, many: int = len(seeds)) -> None:
            if progress is not None:
                progress(start * job.task.rounds + done * many)

        found = simulate(
            job.task,
            job.method,
            seeds=seeds,
            folder=folder,
            device=device,
            precision=job.precision,
            evaluate_every=EVERY,
            checkpoint=part,
            progress=count,
        )
        for k, seed in enumerate(seeds):
            store.write(job.spec(seed), cell(found, k, device))
        part.unlink(missing_ok=True)


def cell(found: Simulated, k: int, device: str) -> Result:
    """What is kept of one seed: metrics of every output, curves, and every fifth round's weights."""
    kept = slice(EVERY - 1, None, EVERY)
    return {
        "outputs": {
            name: {"train": scores(found.train[name], k), "test": scores(found.test[name], k)} for name in found.test
        },
        "untrained": scores(found.untrained, k),
        "curves": {name: _curve(points, k) for name, points in found.curves.items()},
        "coefficients": _short(found.history.coefficients[kept, k]),
        "archive": found.history.archive[kept, k].tolist(),
        "seconds_per_round": found.seconds / len(found.history.losses) / found.test["last"].losses.shape[0],
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine(),
    }


def _curve(points: Curve, k: int) -> dict[str, list[float]]:
    """The worst client's losses and the accuracy of one seed, over the rounds."""
    return {
        "round": [done for done, _, _ in points],
        "train_loss": [_short(metrics.agnostic_loss(train.losses[k])) for _, train, _ in points],
        "test_loss": [_short(metrics.agnostic_loss(test.losses[k])) for _, _, test in points],
        "test_accuracy": [_short(metrics.average_accuracy(test.correct[k], test.counts[k])) for _, _, test in points],
    }


def scores(of: Evaluation, k: int) -> dict[str, Any]:
    """The three metrics of one seed, and every client's loss and accuracy."""
    losses, correct, counts = of.losses[k].cpu(), of.correct[k].cpu(), of.counts[k].cpu()
    return {
        "accuracy": _short(metrics.average_accuracy(correct, counts)),
        "agnostic_loss": _short(metrics.agnostic_loss(losses)),
        "accuracy_parity": _short(metrics.accuracy_parity(correct, counts)),
        "client_losses": _short(losses),
        "client_accuracies": _short(100.0 * correct / counts),
    }


def _short(values: torch.Tensor) -> Any:  # noqa: ANN401
    """Numbers of six significant digits: cells are read by people too."""

    def cut(x: Any) -> Any:  # noqa: ANN401
        return [cut(y) for y in x] if isinstance(x, list) else float(f"{x:.6g}")

    return cut(values.tolist())
