"""When should λ follow held-out losses (`MultiObjective.steer`)? Digits, two losses, with and without overfitting.

    python benchmarks/steering.py [--seeds 3] [--steps 500]

One network classifies (cross-entropy) and reconstructs (squared error) through a shared layer. Losses are in the units
of an untrained network, w = (½, ½), Adam, batches of 32. The columns are of the answer on 597 test images that nothing
else sees: the worst weighted loss, and the imbalance (largest over smallest weighted loss, less 1). All rows but the
first have the held-out images besides the training images; "in training" trains on them.
"""

import argparse
import statistics
import time
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import equipoise as eq

CASES = {
    "No overfitting: 600 images": (600, 0.0),
    "Both losses overfit: 60 images": (60, 0.0),
    "One overfits far more: 60 images, every third label is random": (60, 1 / 3),
}
"""Training images, and the share of labels that are random, in all parts of the data."""
HELD_OUT = (50, 300)


class Data(NamedTuple):
    """Images and labels."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


class Network(nn.Module):
    """Two heads on a shared layer."""

    def __init__(self, width: int = 64, shared: int = 16) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, shared), nn.ReLU())
        self.classes, self.pixels = nn.Linear(shared, 10), nn.Linear(shared, 64)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy and squared error, (2,)."""
        code = self.trunk(x)
        return torch.stack(
            [nn.functional.cross_entropy(self.classes(code), y), (self.pixels(code) - x).square().mean()]
        )


def split(n: int, random_labels: float, seed: int) -> Data:
    """Training images, 300 to hold out, and 597 for the test."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    wrong = torch.rand(len(y), generator=generator) < random_labels
    y = torch.where(wrong, torch.randint(10, y.shape, generator=generator), y)
    x = (x - x.mean(0)) / (x.std(0) + 0.1)
    parts = [slice(897, 897 + n), slice(597, 897), slice(0, 597)]
    return Data(*((x[part], y[part]) for part in parts))


def run(data: Data, seed: int, steps: int, how: str, every: int, size: int) -> tuple[float, float]:
    """Worst weighted test loss and test imbalance of one answer."""
    (x, y), (hx, hy) = data.train, (part[:size] for part in data.held_out)
    if how == "in training":
        x, y = torch.cat([x, hx]), torch.cat([y, hy])
    torch.manual_seed(seed)
    model = Network()
    with torch.no_grad():
        units = model.losses(*data.train)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mol = eq.MultiObjective(model, preference=[0.5, 0.5], optimizer=optimizer, units=units)
    for step in range(steps):
        if how in {"steer", "record"} and step % every == 0:
            with torch.no_grad():
                (mol.steer if how == "steer" else mol.record)(model.losses(hx, hy))
        rows = torch.randint(len(x), (32,))
        mol(model.losses(x[rows], y[rows])).backward()
        optimizer.step()
        optimizer.zero_grad()
    with mol.solution_weights(), torch.no_grad():
        weighted = 0.5 * model.losses(*data.test) / units
    return float(weighted.max()), 100 * float(weighted.max() / weighted.min() - 1)


def main() -> None:
    """Print one table per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.time()
    rows = [("nothing held out", "none", 1, 0)]
    for size in HELD_OUT:
        rows += [(f"{size} in training", "in training", 1, size), (f"{size}, `record` every 10", "record", 10, size)]
        rows += [(f"{size}, `steer` every {every}", "steer", every, size) for every in (1, 10, 50)]
    for case, (n, share) in CASES.items():
        print(f"\n{case}\n")
        print("| held out | worst weighted test loss, by seed | median | test imbalance, median |\n|---|---|---|---|")
        for label, how, every, size in rows:
            found = [run(split(n, share, seed), seed, given.steps, how, every, size) for seed in range(given.seeds)]
            losses, imbalance = (statistics.median(column) for column in zip(*found, strict=True))
            shown = " ".join(f"{loss:.4f}" for loss, _ in found)
            print(f"| {label} | {shown} | {losses:.4f} | {imbalance:.0f} % |", flush=True)
    print(f"\n{eq.registry.default()}, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
