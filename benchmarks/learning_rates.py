"""Up to which learning rate the default trains, against a weighted sum, GroupDRO and STCH.

    python benchmarks/learning_rates.py [--seeds 0,1,2] [--methods equipoise,LS] [--json FILE]

Digits of scikit-learn, a network 64-64-64-12 with ReLU, batches of 64, 1,500 steps, three losses of the same weight:
which digit it is, its centre of mass, its ink. The table shows the largest training loss of the answer, a seed each. In
brackets: the seeds in which a weighted sum at the same rate is better in every loss. Some four minutes on one core.
"""

import argparse
import json
import math
from itertools import product
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import equipoise as eq
from equipoise.errors import NonFiniteLossError

RATES = ((0.01, 0.9), (0.02, 0.9), (0.03, 0.9), (0.05, 0.9), (0.05, 0.0), (0.1, 0.0), (0.2, 0.0))
"""Rates of SGD, with their momenta."""
METHODS = ("equipoise", "LS", "GroupDRO", "STCH")
STEPS, BATCH = 1500, 64
W = {"digit": 1 / 3, "centre": 1 / 3, "ink": 1 / 3}

Rows = dict[tuple[float, float], dict[str, list[list[float]]]]
"""The losses by rate and momentum, method and seed."""


class Task:
    """Pictures with three targets."""

    def __init__(self) -> None:
        pictures, labels = load_digits(return_X_y=True)
        self.x, self.digit = torch.tensor(pictures).float() / 16, torch.tensor(labels)
        columns = (self.x.view(-1, 8, 8) * torch.arange(8.0)).sum((1, 2))
        self.centre, self.ink = _standard(columns / self.x.sum(1)), _standard(self.x.sum(1))

    def losses(self, model: nn.Module, some: Tensor) -> dict[str, Tensor]:
        """Of these pictures, (n,)."""
        out = model(self.x[some])
        return {
            "digit": cross_entropy(out[:, :10], self.digit[some]),
            "centre": mse_loss(out[:, 10], self.centre[some]),
            "ink": mse_loss(out[:, 11], self.ink[some]),
        }


def _standard(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std()


def run(task: Task, method: str, rate: float, momentum: float, seed: int, steps: int = STEPS) -> list[float]:
    """The training losses of the answer; infinite if the run diverged."""
    torch.manual_seed(seed)
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    mol = eq.MultiObjective(model, optimizer, W, method=method)
    try:
        for _ in range(steps):
            mol(task.losses(model, torch.randint(len(task.x), (BATCH,)))).backward()
            optimizer.step()
            optimizer.zero_grad()
    except NonFiniteLossError:
        return [math.inf] * len(W)
    model.load_state_dict(mol.solution())
    with torch.no_grad():
        return [float(f) for f in task.losses(model, torch.arange(len(task.x))).values()]


def behind(ours: list[list[float]], plain: list[list[float]]) -> int:
    """In how many seeds every loss is above that of the weighted sum."""
    return sum(all(a > b for a, b in zip(f, g, strict=True)) for f, g in zip(ours, plain, strict=True))


def show(rows: Rows, methods: list[str]) -> None:
    """Print the table."""
    print("| SGD | " + " | ".join(methods) + " |\n|---|" + "---|" * len(methods))
    for (rate, momentum), found in rows.items():
        cells = []
        for name in methods:
            worst = ", ".join(f"{max(f):.3g}" for f in found[name])
            against = "" if name == "LS" or "LS" not in found else f" ({behind(found[name], found['LS'])})"
            cells.append(worst + against)
        print(f"| rate {rate:g}{f', momentum {momentum:g}' if momentum else ''} | {' | '.join(cells)} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="of the start and the batches")
    parser.add_argument("--methods", default=",".join(METHODS), help="by their names in eq.methods()")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, help="write every number to this file")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task, methods, seeds = Task(), args.methods.split(","), [int(seed) for seed in args.seeds.split(",")]
    rows: Rows = {at: {name: [] for name in methods} for at in RATES}
    for (rate, momentum), name, seed in product(RATES, methods, seeds):
        rows[rate, momentum][name].append(run(task, name, rate, momentum, seed, args.steps))
    show(rows, methods)
    if args.json is not None:
        numbers = {
            at: {k: [[x if math.isfinite(x) else None for x in f] for f in of] for k, of in found.items()}
            for at, found in rows.items()
        }
        found = [{"rate": rate, "momentum": momentum, "losses": of} for (rate, momentum), of in numbers.items()]
        args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
