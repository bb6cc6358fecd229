"""How fast the federated simulator is, against one client after the other, and how it grows.

    python benchmarks/federated.py                      # digits and MNIST on the CPU
    python benchmarks/federated.py --device cuda        # MNIST and CIFAR shapes on one GPU
    python benchmarks/federated.py --growth             # 10 to 1,000 clients; archive memory

The reference is the sequential engine: a module, an optimizer, a loop over clients, `.item()` in every step. Every
ratio comes from one run on one machine. Random images stand in where MNIST is not found, and for CIFAR:
times do not depend on what the images show. With `--check` a ratio below what is claimed ends with status 1.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from equipoise import datasets, metrics
from equipoise import federated as fl
from equipoise.conversion import Adaptive, Conversion, Last
from equipoise.datasets import Dataset
from equipoise.experiments.federated.settings import tasks
from equipoise.federated.local_work import casting, layer_products
from equipoise.simplex import Euclidean
from equipoise.weighting import OMD

CLAIMS = {
    ("cuda", "mnist"): 20.0,
    ("cuda", "cifar tf32, 3 seeds"): 5.0,
    ("cuda", "cifar bfloat16, 3 seeds"): 10.0,
    ("cpu", "digits"): 2.5,
    ("cpu", "mnist"): 0.8,
}
SEEDS = (0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003)


def images(name: str, folder: Path | None) -> Dataset:
    """A data set, or random images of its shape."""
    try:
        return datasets.load(name, folder)
    except datasets.MissingDataError:
        shape, train, test = ((1, 28, 28), 60_000, 10_000) if name == "mnist" else ((3, 32, 32), 50_000, 10_000)
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (train + test, *shape), dtype=torch.uint8, generator=draw)
        y = torch.arange(train + test) % 10
        return Dataset(f"random {name}", x[:train], y[:train], x[train:], y[train:], tuple("0123456789"), scale=255)


def seconds_per_round(task: fl.Task, data: Dataset, device: str, **options: Any) -> float:
    """The median time of a round of OMD with the last iterate, after three rounds of warming up."""
    marks = []

    def mark(_: int) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    fl.simulate(
        task, OMD(0.3, Euclidean()), dataset=data, device=device, conversions={"last": Last()}, progress=mark, **options
    )
    return statistics.median(b - a for a, b in pairwise(marks[2:]))


def matrix_rate(device: str, precision: fl.Precision, size: int) -> float:
    """Measured FLOP/s of a square matrix product."""
    where = torch.device(device)
    a, b = torch.randn(2, size, size, device=device)
    times = []
    with layer_products(precision, where), casting(precision, where):
        for _ in range(8):
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            a @ b
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    return 2.0 * size**3 / min(times)


def dense_flops(task: fl.Task, data: Dataset) -> float:
    """Of one seed's round: forward, and backward without the gradient of the inputs."""
    assert isinstance(task.model, fl.Dense)
    sizes = task.model.sizes
    layers = [2.0 * a * b for a, b in pairwise(sizes)]
    return len(data.train_labels) * task.work.epochs * (3.0 * sum(layers) - layers[0])


def report(device: str, what: str, fast: float, slow: float, floor: float | None) -> dict[str, object]:
    claim = CLAIMS.get((device, what))
    ratio = slow / fast
    line = f"{device} {what}: {fast * 1e3:.2f} ms per seed-round, sequential {slow * 1e3:.1f} ms: {ratio:.1f} times"
    line += "" if claim is None else f" (claimed {claim:g})"
    line += "" if floor is None else f"; physical floor {floor * 1e3:.2f} ms"
    print(line, flush=True)
    return {"what": f"{device} {what}", "fast": fast, "slow": slow, "ratio": ratio, "claim": claim, "floor": floor}


def mnist_on_gpu(folder: Path | None) -> list[dict[str, object]]:
    lines = []
    data, task = images("mnist", folder), replace(tasks()["mnist-rotation"], rounds=13)
    slow = seconds_per_round(replace(task, rounds=7), data, "cuda", engine="sequential", precision="float32")
    for precision, size in (("tf32", 8192), ("bfloat16", 8192), ("float32", 8192)):
        fast = seconds_per_round(task, data, "cuda", seeds=SEEDS, precision=precision) / len(SEEDS)
        floor = dense_flops(task, data) / matrix_rate("cuda", precision, size)  # type: ignore[arg-type]
        lines.append(report("cuda", "mnist" if precision == "tf32" else f"mnist {precision}", fast, slow, floor))
    return lines


def cifar_on_gpu(folder: Path | None, *, quick: bool) -> list[dict[str, object]]:
    lines = []
    data, task = images("cifar10", folder), replace(tasks()["cifar-rotation"], rounds=6 if quick else 7)
    slow = seconds_per_round(task, data, "cuda", engine="sequential", precision="tf32")
    for precision in ("tf32", "bfloat16"):
        if not quick:
            fast = seconds_per_round(task, data, "cuda", precision=precision)
            lines.append(report("cuda", f"cifar {precision}", fast, slow, None))
        fast = seconds_per_round(task, data, "cuda", precision=precision, seeds=SEEDS[:3]) / 3
        lines.append(report("cuda", f"cifar {precision}, 3 seeds", fast, slow, None))
    if not quick:
        agreement(data)
    return lines


def agreement(data: Dataset) -> None:
    """Two rounds of both engines in float32: the largest difference of what they give."""
    task = replace(tasks()["cifar-rotation"], rounds=2)
    found = [
        fl.simulate(task, OMD(0.3), dataset=data, device="cuda", precision="float32", engine=engine)
        for engine in ("auto", "sequential")
    ]
    losses = (found[0].history.losses - found[1].history.losses).abs().max()
    print(f"graph against sequential, float32, two rounds: losses differ by at most {losses:.2e}", flush=True)


def on_cpu(folder: Path | None) -> list[dict[str, object]]:
    lines = []
    for name, rounds in (("digits", 23), ("mnist", 5)):
        data, task = images(name, folder), replace(tasks()[f"{name}-rotation"], rounds=rounds)
        slow = seconds_per_round(task, data, "cpu", engine="sequential")
        fast = seconds_per_round(task, data, "cpu")
        floor = dense_flops(task, data) / matrix_rate("cpu", "float32", 1024)
        lines.append(report("cpu", name, fast, slow, floor))
    return lines


def growth(device: str, folder: Path | None) -> list[dict[str, object]]:
    """Time and memory of a round with 10 to 1,000 clients, and of the archive with and without a capacity."""
    lines: list[dict[str, object]] = []
    data = images("mnist", folder)
    for clients in (10, 30, 100, 300, 1000):
        turns = tuple(0 if i < 0.7 * clients else 1 if i < 0.9 * clients else 2 for i in range(clients))
        task = replace(tasks()["mnist-rotation"], split=fl.Rotation(turns), rounds=6)
        took = seconds_per_round(task, data, device)
        samples = clients * sum(int((data.train_labels == c).sum()) // clients for c in range(10))
        print(f"{clients} clients, {samples} samples: {took:.3f} s per round, {peak(device)}", flush=True)
        lines.append({"clients": clients, "samples": samples, "seconds": took, "peak": peak(device)})
    task = replace(tasks("text")["mnist-class2"], rounds=100 if device == "cpu" else 300)
    size = 4 * sum(t.numel() for t in task.model.module().parameters())
    for capacity in (None, 8):
        outputs: dict[str, Conversion[Any]] = {"last": Last(), "adaptive": Adaptive(0.0, capacity)}
        found = fl.simulate(task, OMD(10.0, Euclidean()), dataset=data, device=device, conversions=outputs)
        members = int(found.history.archive.max())
        accuracy = {k: float(metrics.average_accuracy(e.correct, e.counts)) for k, e in found.test.items()}
        losses = {k: e.losses.max().item() for k, e in found.test.items()}
        print(
            f"capacity {capacity}: at most {members} copies of the model, {members * size / 1e6:.1f} MB; "
            f"accuracy {accuracy['adaptive']:.2f} (last {accuracy['last']:.2f}), "
            f"agnostic loss {losses['adaptive']:.3f} (last {losses['last']:.3f})",
            flush=True,
        )
        megabytes = members * size / 1e6
        lines.append({"capacity": capacity, "members": members, "MB": megabytes, "accuracy": accuracy, "loss": losses})
    return lines


def peak(device: str) -> str:
    if device == "cuda":
        value = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return f"{value / 1e9:.2f} GB of GPU memory at most"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB at most so far"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", choices=("mnist", "cifar"), help="on a GPU: one of the two")
    parser.add_argument("--quick", action="store_true", help="CIFAR with three seeds alone, in fewer rounds")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    if chosen.growth:
        lines = growth(chosen.device, chosen.data)
    elif chosen.device == "cuda":
        parts: dict[str, Callable[[Path | None], list[dict[str, object]]]]
        parts = {"mnist": mnist_on_gpu, "cifar": partial(cifar_on_gpu, quick=chosen.quick)}
        lines = [line for name, part in parts.items() if chosen.only in {None, name} for line in part(chosen.data)]
    else:
        lines = on_cpu(chosen.data)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(lines, indent=1), encoding="utf-8")
    missed = [line["what"] for line in lines if line.get("claim") is not None and line["ratio"] < line["claim"]]  # type: ignore[operator]
    if chosen.check and missed:
        sys.exit(f"below what is claimed: {', '.join(map(str, missed))}")


if __name__ == "__main__":
    main()
