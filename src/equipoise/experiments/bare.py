"""The federated experiments on a machine that has torch, numpy and scipy alone:

    python -m equipoise.experiments.bare mnist-rotation mnist-class2 --data data --out cells --device cuda

Cells go to the folder named; `equipoise runs import` takes them from there.
"""  # noqa: D415

import argparse
import time
from pathlib import Path

from equipoise.experiments import federated
from equipoise.experiments.cells import CellStore


def main(arguments: list[str] | None = None) -> None:
    """Run the rows of tab:3 that have no cell yet."""
    parser = argparse.ArgumentParser(prog="python -m equipoise.experiments.bare")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--methods", default=",".join((*federated.METHODS, federated.EXACT_FERERO)))
    parser.add_argument("--seeds", default=",".join(map(str, federated.SEEDS)))
    parser.add_argument("--preset", choices=("published", "text"), default="published")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("cells"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"))
    chosen = parser.parse_args(arguments)
    store = CellStore(chosen.out, ())
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    for task in chosen.tasks:
        rows = [federated.row(name, task, chosen.preset) for name in chosen.methods.split(",")]
        for job in federated.missing(store, task, rows, seeds, chosen.preset, chosen.rounds, chosen.precision):
            began = time.perf_counter()
            federated.run(store, job, device=chosen.device, folder=chosen.data)
            print(f"{task}: {job.method.weighting}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
