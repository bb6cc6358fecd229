"""When should λ follow held-out losses (`MultiObjective.steer`)? Digits, two losses, four reasons for a gap.

    python benchmarks/steering.py [--seeds 3] [--steps 400]

One network classifies (cross-entropy) and reconstructs (squared error) through a shared layer. Losses are in the units
of an untrained network, w = (½, ½), Adam, batches of 32, the default method. The columns are of the answer on 597 test
images that nothing else sees, with plain losses: the larger weighted loss of each seed; then medians of both weighted
losses and of the imbalance (larger over smaller, less 1). The last two rows have another answer, `Adaptive(8, 8)`,
which can go back to early iterates.
"""

import argparse
import statistics
import time
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import equipoise as eq


class Case(NamedTuple):
    """Where training losses and test losses part."""

    images: int
    """For training."""
    random_labels: float = 0.0
    """The share of labels that are random, in all parts of the data."""
    smoothing: float = 0.0
    """Of labels, in the training loss alone."""


CASES = {
    "No gap: 600 images": Case(600),
    "Both losses overfit alike: 60 images": Case(60),
    "One overfits far more: 60 images, every third label is random": Case(60, random_labels=1 / 3),
    "The training loss is another one: 600 images, label smoothing 0.3": Case(600, smoothing=0.3),
}


class Row(NamedTuple):
    """What is done with held-out images."""

    label: str
    how: str = "nothing"
    every: int = 1
    held_out: int = 0
    conversion: eq.Conversion[Any] = eq.Suffix()


ROWS = [
    Row("nothing held out"),
    Row("300 more, trained on", "train", 1, 300),
    Row("50, steer every 10", "steer", 10, 50),
    Row("300, steer every step", "steer", 1, 300),
    Row("300, steer every 10", "steer", 10, 300),
    Row("300, steer every 50", "steer", 50, 300),
    Row("nothing held out, Adaptive(8, 8)", conversion=eq.Adaptive(8, 8)),
    Row("300, steer every 10, Adaptive(8, 8)", "steer", 10, 300, eq.Adaptive(8, 8)),
]


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

    def losses(self, x: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy and squared error, (2,)."""
        code = self.trunk(x)
        classify = nn.functional.cross_entropy(self.classes(code), y, label_smoothing=smoothing)
        return torch.stack([classify, (self.pixels(code) - x).square().mean()])


def split(case: Case, seed: int) -> Data:
    """Training images, 300 to hold out, and 597 for the test."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    wrong = torch.rand(len(y), generator=generator) < case.random_labels
    y = torch.where(wrong, torch.randint(10, y.shape, generator=generator), y)
    x = (x - x.mean(0)) / (x.std(0) + 0.1)
    parts = [slice(897, 897 + case.images), slice(597, 897), slice(0, 597)]
    return Data(*((x[part], y[part]) for part in parts))


def run(case: Case, row: Row, seed: int, steps: int) -> list[float]:
    """Both weighted test losses of one answer."""
    data = split(case, seed)
    (x, y), (hx, hy) = data.train, (part[: row.held_out] for part in data.held_out)
    if row.how == "train":
        x, y = torch.cat([x, hx]), torch.cat([y, hy])
    torch.manual_seed(seed)
    model = Network()
    with torch.no_grad():
        units = model.losses(*data.train)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=(eq.SelfTuned(), row.conversion), units=units)
    for step in range(steps):
        if row.how == "steer" and step % row.every == 0:
            with torch.no_grad():
                mol.steer(model.losses(hx, hy))
        rows = torch.randint(len(x), (32,))
        mol(model.losses(x[rows], y[rows], case.smoothing)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with mol.solution_weights(), torch.no_grad():
        weighted: list[float] = (0.5 * model.losses(*data.test) / units).tolist()
    return weighted


def main() -> None:
    """Print one table per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    for name, case in CASES.items():
        print(f"\n{name}\n")
        print("| held out | larger one, by seed | median: classify, reconstruct | imbalance |\n|---|---|---|---|")
        for row in ROWS:
            found = [run(case, row, seed, given.steps) for seed in range(given.seeds)]
            each = ", ".join(f"{statistics.median(column):.3f}" for column in zip(*found, strict=True))
            imbalance = 100 * statistics.median(max(pair) / min(pair) - 1 for pair in found)
            worst = " ".join(f"{max(pair):.3f}" for pair in found)
            print(f"| {row.label} | {worst} | {each} | {imbalance:.0f} % |", flush=True)
    print(f"\n{eq.registry.default()}\n{time.process_time() - begun:.0f} s of one core")


if __name__ == "__main__":
    main()
