"""One conditioned model for all trade-offs against one model for each: Multi-MNIST and Adult.

    python -m benchmarks.pareto_networks --json docs/results/pareto-networks.json    # needs MNIST and adult.csv
    python -m benchmarks.pareto_networks --show docs/results/pareto-networks.json    # prints the table of that file

Data, network, optimizer, schedule and number of steps are those of `examples/multi_mnist.py` and `examples/adult.py`.
Three rows for each:

    five models        `MultiObjective` trains the example's network at each of five preferences
    one model          `ParetoSet` trains that network with `eq.conditioned` around it, once
    five, conditioned  `MultiObjective` trains the conditioned network at each of the five preferences, to see what the
                       adapters are worth as mere parameters

A step of the one model sees as many samples as a step of the others: on Multi-MNIST each of the 256 pairs has a
preference of its own; on Adult each quarter of the people has one, because the gap is no mean over persons.
"""

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from examples import adult, multi_mnist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.errors import IdealPointWarning
from equipoise.experiments.results import write_atomically

Call = Callable[[Tensor], Tensor]
"""A model at some preference: from inputs to logits."""
ALONG = 21
"""Preferences along the learned front, from the first of the five to the last."""


class Training(NamedTuple):
    """A model with what one step of it needs; `losses` takes the model at a preference."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler


class Problem(Protocol):
    """What is trained, the same for every row."""

    name: str
    rays: tuple[float, ...]
    margin: float
    """The smallest entry of a preference that `ParetoSet` draws: a little beyond the rays."""
    reference: dict[str, float]
    """Of the hypervolume, by name, for both losses."""
    setting: dict[str, Any]

    def begin(self, seed: int, *, conditioned: bool) -> Training:
        """The example's network at its start, with adapters or without."""

    def batches(self) -> Iterator[Any]:
        """One for each step."""

    def losses(self, call: Call, batch: Any) -> Tensor:
        """Both losses of a model at one preference, (2,)."""

    def many(self, model: nn.Module, pareto: eq.ParetoSet, batch: Any) -> Tensor:
        """The losses of a conditioned model at fresh preferences, (n, 2)."""

    def test(self, call: Call) -> list[float]:
        """Both losses on the test set."""


class MultiMnist:
    """Two digits in one picture; mini-batches of 256."""

    name, margin = "Multi-MNIST", 0.28
    rays: tuple[float, ...] = multi_mnist.WEIGHTS
    reference = multi_mnist.REFERENCES
    layers = ("trunk.2", "trunk.5", "heads.*")

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.data, self.held_out = multi_mnist.pairs("mnist", 60_000, None)
        steps = epochs * math.ceil(len(self.data.labels) / multi_mnist.BATCH)
        self.setting: dict[str, Any] = {
            "samples": len(self.data.labels),
            "epochs": epochs,
            "steps": steps,
            "film": self.layers,
        }

    def begin(self, seed: int, *, conditioned: bool) -> Training:
        """See `Problem`."""
        torch.manual_seed(seed)
        model: nn.Module = multi_mnist.TwoHeads()
        if conditioned:
            model = eq.conditioned(model, 2, layers=self.layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=multi_mnist.STEP_SIZE)
        steps = self.setting["steps"]
        return Training(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps))

    def batches(self) -> Iterator[multi_mnist.Pairs]:
        """All pairs in random order, epoch after epoch."""
        for _ in range(self.epochs):
            for rows in torch.randperm(len(self.data.labels)).split(multi_mnist.BATCH):
                yield multi_mnist.Pairs(self.data.inputs[rows], self.data.labels[rows])

    def losses(self, call: Call, batch: multi_mnist.Pairs) -> Tensor:
        """The mean cross-entropies of both digits."""
        return cross_entropy(call(batch.inputs), batch.labels, reduction="none").mean(0)

    def many(self, model: nn.Module, pareto: eq.ParetoSet, batch: multi_mnist.Pairs) -> Tensor:
        """A preference for each pair, (256, 2)."""
        logits = model(batch.inputs, preference=pareto.draw(len(batch.labels)))
        return cross_entropy(logits, batch.labels, reduction="none")

    def test(self, call: Call) -> list[float]:
        """Of 10,000 pairs."""
        pairs = zip(self.held_out.inputs.split(2048), self.held_out.labels.split(2048), strict=True)
        parts = [cross_entropy(call(x).double(), y, reduction="none").sum(0) for x, y in pairs]
        found: list[float] = (torch.stack(parts).sum(0) / len(self.held_out.labels)).tolist()
        return found


class Adult:
    """Cross-entropy against the gap between men and women; all people in every step, as in the example."""

    name, margin = "Adult", 0.09
    rays: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    reference = {"1": 1.0}  # noqa: RUF012 - both losses go from 0 to 1 in the example's units
    layers = ("2",)
    parts = 4

    def __init__(self, steps: int) -> None:
        data, self.held_out = adult.people(None, 1)
        order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))
        self.data = adult.People(*(column[order] for column in data))
        columns = [column.tensor_split(self.parts) for column in self.data]
        self.quarters = [adult.People(*part) for part in zip(*columns, strict=True)]
        self.setting: dict[str, Any] = {
            "samples": len(order),
            "steps": steps,
            "hyper": self.layers,
            "preferences": self.parts,
        }
        self.units: dict[int, adult.Units] = {}

    def begin(self, seed: int, *, conditioned: bool) -> Training:
        """See `Problem`."""
        if seed not in self.units:
            self.units[seed] = adult.find_units(self.data, seed, self.setting["steps"])[0]
        self.unit = self.units[seed]
        model: nn.Module = adult.network(self.data.inputs.shape[1], seed)
        if conditioned:
            model = eq.conditioned(model, 2, layers=self.layers, kind="hyper")
        return Training(model, *adult.training(model, self.setting["steps"]))

    def batches(self) -> Iterator[adult.People]:
        """All people, every time."""
        for _ in range(self.setting["steps"]):
            yield self.data

    def losses(self, call: Call, batch: adult.People) -> Tensor:
        """The share of the cross-entropy given up, and that of the gap that is left."""
        entropy, gap = adult.measure(call, batch)  # type: ignore[arg-type]
        u = self.unit
        return torch.stack([(entropy - u.best) / (u.constant - u.best), gap / u.gap])

    def many(self, model: nn.Module, pareto: eq.ParetoSet, batch: adult.People) -> Tensor:  # noqa: ARG002
        """A preference for each quarter of the people, (4, 2)."""
        rows = zip(pareto.draw(self.parts), self.quarters, strict=True)
        return torch.stack([self.losses(at(model, w), quarter) for w, quarter in rows])

    def test(self, call: Call) -> list[float]:
        """In the units of the training people."""
        found: list[float] = self.losses(call, self.held_out).tolist()
        return found


def at(model: nn.Module, w: Tensor) -> Call:
    """The model at one preference, or the model alone if it takes none."""
    return (lambda x: model(x, preference=w)) if isinstance(model, eq.pareto.Conditioned) else model


def steps(problem: Problem, training: Training, scalar: Callable[[Any], Tensor]) -> float:
    """Train; seconds of one core."""
    begun = time.process_time()
    for batch in problem.batches():
        scalar(batch).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.schedule.step()
    return time.process_time() - begun


def separate(problem: Problem, seed: int, *, conditioned: bool) -> dict[str, Any]:
    """A model for each ray: test losses (rays, 2) and seconds (rays,)."""
    found: dict[str, Any] = {"test": [], "seconds": []}
    for a in problem.rays:
        w = torch.tensor([a, 1 - a])
        training = problem.begin(seed, conditioned=conditioned)
        call = at(training.model, w)
        mol = eq.MultiObjective(training.model, training.optimizer, w)
        found["seconds"].append(steps(problem, training, lambda batch, f=call, mol=mol: mol(problem.losses(f, batch))))  # type: ignore[misc]
        with mol.solution_weights(), torch.no_grad():
            found["test"].append(problem.test(call))
        mol.close()
    return found


def together(problem: Problem, seed: int) -> dict[str, Any]:
    """One model: test losses at the rays and along the front, seconds."""
    training = problem.begin(seed, conditioned=True)
    pareto = eq.ParetoSet(training.model, training.optimizer, 2, nodes=9, margin=problem.margin, seed=seed)
    seconds = steps(problem, training, lambda batch: pareto(problem.many(training.model, pareto, batch)))
    along = torch.linspace(problem.rays[0], problem.rays[-1], ALONG).tolist()
    with pareto.solution_weights(), torch.no_grad():
        front = {a: problem.test(at(training.model, torch.tensor([a, 1 - a]))) for a in (*problem.rays, *along)}
    pareto.close()
    return {
        "test": [front[a] for a in problem.rays],
        "along": [front[a] for a in along],
        "seconds": [seconds],
        "duals": pareto.node_duals.tolist(),
    }


def run(problem: Problem, seeds: list[int]) -> dict[str, Any]:
    """All rows, by seed."""
    rows: dict[str, list[Any]] = {"five models": [], "one model": [], "five, conditioned": []}
    for seed in seeds:
        rows["five models"].append(separate(problem, seed, conditioned=False))
        rows["one model"].append(together(problem, seed))
        rows["five, conditioned"].append(separate(problem, seed, conditioned=True))
        print(f"{problem.name}: seed {seed}", file=sys.stderr, flush=True)
    head = {"rays": problem.rays, "margin": problem.margin, "reference": problem.reference, "setting": problem.setting}
    return head | {"seeds": seeds, "rows": rows}


def summary(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By row, over the seeds: the worst weighted test loss by ray, hypervolumes by reference, seconds of one run.

    `against` has the ratios to the five models: by ray, of the means over the seeds; and of the seconds.
    """
    w = torch.tensor([[a, 1 - a] for a in found["rays"]], dtype=torch.float64)
    table: dict[str, dict[str, Any]] = {}
    for name, row in found["rows"].items():
        f = torch.tensor([of_seed["test"] for of_seed in row], dtype=torch.float64)
        seconds = torch.tensor([of_seed["seconds"] for of_seed in row], dtype=torch.float64)
        table[name] = {
            "tch": eq.metrics.tch(f, w).mean(0),
            "volume": {key: eq.metrics.hypervolume(f, (r, r)) for key, r in found["reference"].items()},
            "seconds": seconds.mean(),
        }
        if "along" in row[0]:
            along = torch.tensor([of_seed["along"] for of_seed in row], dtype=torch.float64)
            table[name]["along"] = {key: eq.metrics.hypervolume(along, (r, r)) for key, r in found["reference"].items()}
    ours = table["five models"]
    for row in table.values():
        row["against"] = {"tch": row["tch"] / ours["tch"], "seconds": float(row["seconds"] / ours["seconds"])}
    return table


def show(found: dict[str, Any]) -> None:
    """Print the tables as Markdown."""
    for name, problem in found.items():
        table = summary(problem)
        print(f"\n{name}: {problem['setting']}, seeds {problem['seeds']}\n")
        rays = "".join(f" w₁ = {a:g} |" for a in problem["rays"])
        volumes = "".join(f" hypervolume, reference {key} |" for key in problem["reference"])
        columns = len(problem["rays"]) + len(problem["reference"]) + 1
        print(f"| |{rays}{volumes} seconds a run |\n|---|{'---:|' * columns}")
        for label, row in table.items():
            cells = "".join(
                f" {x:.4f} ({r - 1:+.1%}) |" for x, r in zip(row["tch"], row["against"]["tch"], strict=True)
            )
            volume = "".join(f" {x.mean():.4f} |" for x in row["volume"].values())
            print(f"| {label} |{cells}{volume} {row['seconds']:.1f} (× {row['against']['seconds']:.2f}) |")
        one, five = table["one model"], table["five models"]
        print(f"\nlargest ratio at a ray {one['against']['tch'].max():.3f} (at most 1.05 asked)")
        for key in problem["reference"]:
            each = [f"{a:.4f} ({b:.4f})" for a, b in zip(one["volume"][key], five["volume"][key], strict=True)]
            more = f"{one['along'][key].mean():.4f} with {ALONG} points along the front"
            print(f"hypervolume by seed, reference {key}: {', '.join(each)}; {more}")
        print(f"time {one['against']['seconds']:.2f} of one run at one ray (at most 1.5 asked)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--show", type=Path, help="compute nothing; print the tables of this file")
    parser.add_argument("--only", choices=["multi-mnist", "adult"], help="one of the two")
    parser.add_argument("--seeds", default="0,1", help="of start, batches and draws")
    parser.add_argument("--epochs", type=int, default=multi_mnist.EPOCHS, help="of Multi-MNIST")
    parser.add_argument("--steps", type=int, default=adult.STEPS, help="of Adult")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.show is not None:
        show(json.loads(args.show.read_text()))
        return
    # Of a quarter of the people the cross-entropy can be below the least that all of them have.
    warnings.simplefilter("ignore", IdealPointWarning)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    wanted: dict[str, Callable[[], Problem]] = {
        "multi-mnist": lambda: MultiMnist(args.epochs),
        "adult": lambda: Adult(args.steps),
    }
    chosen = [make for name, make in wanted.items() if args.only in {None, name}]
    found: dict[str, Any] = {}
    for make in chosen:
        problem = make()
        found[problem.name] = json.loads(json.dumps(run(problem, seeds)))
        if args.json is not None:
            write_atomically(args.json, json.dumps(found))
    show(found)


if __name__ == "__main__":
    main()
