"""Multi-MNIST: two overlapping digits in one picture, one small network, five trade-offs between the two.

The left digit lies in the top left corner of a 36×36 canvas, the right one in the bottom right corner, and where they
overlap the brighter pixel counts. One trunk with two heads names both. A preference w asks for w₁f₁ = w₂f₂, f the
cross-entropy of each digit. Compared are the default method of the library, the former default (OptOMD-TCH), the
weighted sum (LS), smooth Tchebycheff (STCH) and MGDA; network, start, batches, optimizer and schedule are the same for
all. Prints a table, writes it as JSON if asked, and draws the front. A run that is finished is kept in the folder and
not done again.

    python examples/multi_mnist.py --workers 2 --out out/multi-mnist    # needs MNIST: equipoise data fetch mnist
    python examples/multi_mnist.py --quick                              # scikit-learn's digits, some seconds
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import equipoise as eq
from equipoise.datasets import MissingDataError, load
from equipoise.experiments.drawing import style
from equipoise.experiments.jobs import compute
from equipoise.experiments.results import CellStore, Finished, Result, Spec, write_atomically

WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7)
SIDE, CANVAS = 28, 36
BATCH, STEP_SIZE, EPOCHS = 256, 5e-3, 8
WIDTH = 6
"""Units at the end of the trunk: so few that the digits compete for them. With many there is no trade-off to name."""
REFERENCES = {"1": 1.0, "log 10": math.log(10)}
"""Of the hypervolume, for both losses and all methods: a loss of 1, and that of a guess."""


class Row(NamedTuple):
    """A line of the table: what is trained, and which answer of it is meant."""

    run: str
    output: str
    colour: str


RUNS: dict[str, eq.Method] = {
    "equipoise": eq.default(),
    "OptOMD-TCH": eq.methods()["OptOMD-TCH"],
    "LS": eq.Method(eq.Linear(), eq.Average(power=8)),
    "STCH": eq.Method(eq.SmoothTchebycheff(mu=0.01), eq.Average(power=8)),
    "MGDA": eq.Method(eq.MGDA(), eq.Average(power=8)),
}
"""What is trained."""
ROWS: dict[str, Row] = {
    "equipoise (the default)": Row("equipoise", "solution", "#0072B2"),
    "OptOMD-TCH": Row("OptOMD-TCH", "solution", "#CC79A7"),
    "LS": Row("LS", "last", "#000000"),
    "STCH": Row("STCH", "last", "#E69F00"),
    "MGDA": Row("MGDA", "last", "#009E73"),
    "equipoise, last iterate": Row("equipoise", "last", "#8B0A3D"),
    "OptOMD-TCH, last iterate": Row("OptOMD-TCH", "last", "#56B4E9"),
    "LS, Average(8)": Row("LS", "solution", "#999999"),
    "STCH, Average(8)": Row("STCH", "solution", "#D55E00"),
}
SHOWN = 5
"""Rows in the picture."""


@dataclass(frozen=True)
class Task:
    """One run."""

    method: str
    weight: float
    seed: int
    data: str
    samples: int
    epochs: int
    width: int
    folder: str | None

    def spec(self) -> Spec:
        """What its result depends on."""
        rule = RUNS[self.method]
        return {
            "example": "multi-mnist",
            "method": self.method,
            "weighting": eq.identity.spec(rule.weighting),
            "conversion": eq.identity.spec(rule.conversion),
            "preference": [self.weight, round(1 - self.weight, 6)],
            "seed": self.seed,
            "data": self.data,
            "samples": self.samples,
            "epochs": self.epochs,
            "width": self.width,
            "batch": BATCH,
            "step_size": STEP_SIZE,
        }


class Pairs(NamedTuple):
    """Composed pictures, uint8 (n, 1, 36, 36), and the labels of both digits, (n, 2)."""

    inputs: Tensor
    labels: Tensor


def compose(images: Tensor, labels: Tensor, seed: int) -> Pairs:
    """As many pairs as there are digits (n, 28, 28): every digit is once on the left and once on the right."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randperm(len(images), generator=generator) for _ in range(2))
    canvas = images.new_zeros(len(images), 1, CANVAS, CANVAS)
    canvas[:, 0, :SIDE, :SIDE] = images[left]
    corner = canvas[:, 0, -SIDE:, -SIDE:]
    torch.maximum(corner, images[right], out=corner)
    return Pairs(canvas, torch.stack([labels[left], labels[right]], 1))


def pairs(data: str, samples: int, folder: str | None) -> tuple[Pairs, Pairs]:
    """Training pairs from training digits and test pairs from test digits; the pairing does not depend on the run."""
    found = load(data, folder)

    def digits(inputs: Tensor) -> Tensor:
        if inputs.shape[-1] == SIDE:
            return inputs[:, 0]
        large = interpolate(inputs.float() * (255 / found.scale), (SIDE, SIDE), mode="bilinear")
        return large.round().to(torch.uint8)[:, 0]

    return (
        compose(digits(found.train_inputs[:samples]), found.train_labels[:samples], seed=1),
        compose(digits(found.test_inputs), found.test_labels, seed=2),
    )


class TwoHeads(nn.Module):
    """A small LeNet with strides in place of pooling, a trunk that ends in `width` units, and no BatchNorm."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 6, 6, stride=2),
            nn.ReLU(),
            nn.Conv2d(6, 8, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 7 * 7, width),
            nn.Tanh(),
        )
        self.heads = nn.ModuleList(nn.Linear(width, 10) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, 10, 2) of uint8 pictures (n, 1, 36, 36)."""
        features = self.trunk(inputs / 255)
        return torch.stack([head(features) for head in self.heads], -1)


def losses(model: nn.Module, batch: Pairs) -> Tensor:
    """The mean cross-entropy of the left and of the right digit, (2,)."""
    return cross_entropy(model(batch.inputs), batch.labels, reduction="none").mean(0)


@torch.no_grad()
def evaluate(model: nn.Module, data: Pairs) -> dict[str, list[float]]:
    """Losses and accuracies on all pairs, two of each."""
    parts = [(model(x), y) for x, y in zip(data.inputs.split(2048), data.labels.split(2048), strict=True)]
    logits, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return {
        "loss": cross_entropy(logits.double(), labels, reduction="none").mean(0).tolist(),
        "accuracy": (logits.argmax(1) == labels).double().mean(0).tolist(),
    }


def train(task: Task) -> list[Finished]:
    """Train once, and evaluate the method's answer and the last iterate on training and test pairs."""
    data, test = pairs(task.data, task.samples, task.folder)
    torch.manual_seed(task.seed)
    model = TwoHeads(task.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    steps = task.epochs * math.ceil(len(data.labels) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    mol = eq.MultiObjective(model, optimizer, [task.weight, 1 - task.weight], method=RUNS[task.method])
    for _ in range(task.epochs):
        for batch in torch.randperm(len(data.labels)).split(BATCH):
            mol(losses(model, Pairs(data.inputs[batch], data.labels[batch]))).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    result: Result = {"last": {"train": evaluate(model, data), "test": evaluate(model, test)}}
    with mol.solution_weights():
        result["solution"] = {"train": evaluate(model, data), "test": evaluate(model, test)}
    return [Finished(task.spec(), result, {"task": "multi-mnist", "method": task.method})]


def volume_between(points: Tensor, w: Tensor, reference: float) -> Tensor:
    """The part of the hypervolume that lies between the outermost of the rays w₁f₁ = w₂f₂.

    Whoever spreads its answers beyond them has hypervolume outside, where nothing was asked for.

    Args:
        points: (*B, n, 2).
        w: (p, 2), none of them 0.
        reference: Of both losses.

    Returns:
        (*B,), by the midpoint rule, to some 1e-5.
    """
    lines = 200_000
    x = (torch.arange(lines, dtype=points.dtype) + 0.5) * (reference / lines)
    floor = torch.full((*points.shape[:-2], lines), reference, dtype=points.dtype)
    for f1, f2 in (point.unbind(-1) for point in points.unbind(-2)):
        floor = torch.where(x >= f1[..., None], torch.minimum(floor, f2[..., None]), floor)
    slopes = w[:, 0] / w[:, 1]
    lower, upper = slopes.min() * x, (slopes.max() * x).clamp_max(reference)
    return (upper - torch.maximum(floor, lower)).clamp_min(0).mean(-1) * reference


def table(store: CellStore, tasks: list[Task]) -> dict[str, Any]:
    """Everything that was found, by row of the table.

    Returns:
        `preferences` (p, 2), `seeds` (s,), `references` of the hypervolume, `setting`, and `rows`: by name and by set
        of pairs, `losses` (s, p, 2), `imbalance` and `tch` (s, p), `accuracy` (2,) over all, `hypervolume` and the
        part of it `between` the outermost rays (s,) for each reference.
    """
    weights = sorted({task.weight for task in tasks})
    seeds = sorted({task.seed for task in tasks})
    found = {(task.method, task.weight, task.seed): _finished(store, task) for task in tasks}
    w = torch.tensor([[a, 1 - a] for a in weights], dtype=torch.float64)
    rows: dict[str, Any] = {}
    for name, row in ROWS.items():
        rows[name] = {}
        for part in ("train", "test"):
            points = [[found[row.run, a, seed][row.output][part] for a in weights] for seed in seeds]
            f = torch.tensor([[point["loss"] for point in of_seed] for of_seed in points], dtype=torch.float64)
            accuracy = torch.tensor([[point["accuracy"] for point in of_seed] for of_seed in points])
            rows[name][part] = {
                "losses": f.tolist(),
                "imbalance": eq.metrics.imbalance(f, w).tolist(),
                "tch": eq.metrics.tch(f, w).tolist(),
                "accuracy": accuracy.mean((0, 1)).tolist(),
                "hypervolume": {key: eq.metrics.hypervolume(f, (r, r)).tolist() for key, r in REFERENCES.items()},
                "between": {key: volume_between(f, w, r).tolist() for key, r in REFERENCES.items()},
            }
    task = tasks[0]
    setting = {key: task.spec()[key] for key in ("data", "samples", "epochs", "width", "batch", "step_size")}
    references = {key: [r, r] for key, r in REFERENCES.items()}
    return {"preferences": w.tolist(), "seeds": seeds, "references": references, "setting": setting, "rows": rows}


def _finished(store: CellStore, task: Task) -> Result:
    found = store.read(task.spec())
    if found is None:
        raise ValueError(f"every run must be finished before a table is made; found none of {task}")
    return found


def show(found: dict[str, Any]) -> None:
    """Print the table: means over the seeds."""
    w, seeds = torch.tensor(found["preferences"], dtype=torch.float64), found["seeds"]
    print(f"setting {found['setting']}, seeds {seeds}")
    for part in ("train", "test"):
        print(f"\n{part} pairs: w₁f₁, w₂f₂ at each w₁, and in brackets largest/smallest − 1, means over the seeds")
        heads = "".join(f"{f'w₁ = {a:g}':>26}" for a in w[:, 0].tolist())
        volumes = "".join(f"{f'{what}, {key}':>18}" for what in ("hv", "between") for key in found["references"])
        print(f"{'':26}{heads}{'TCH':>9}{volumes}")
        for name, row in found["rows"].items():
            f = torch.tensor(row[part]["losses"], dtype=torch.float64)
            values, off = (w * f.mean(0)).tolist(), torch.tensor(row[part]["imbalance"]).mean(0).tolist()
            cells = "".join(f"{a:>10.3f}{b:>7.3f} ({x:>6.1%})" for (a, b), x in zip(values, off, strict=True))
            tch = torch.tensor(row[part]["tch"]).mean()
            kinds = (row[part]["hypervolume"], row[part]["between"])
            volumes = "".join(f"{_spread(v):>18}" for kind in kinds for v in kind.values())
            print(f"{name:26}{cells}{tch:>9.4f}{volumes}")
    print(
        "\nTCH: mean over the preferences of max w_i f_i; hv: hypervolume of the solutions, mean ± deviation over the"
    )
    print("seeds, for a reference point of 1 or log 10 (the loss of a guess) in both losses; between: the part of it")
    print("that lies between the outermost rays asked for")


def _spread(values: list[float]) -> str:
    numbers = torch.tensor(values, dtype=torch.float64)
    return f"{numbers.mean():.4f} ± {numbers.std(correction=0):.4f}"


def draw(found: dict[str, Any]) -> Figure:
    """The front on the test pairs with the rays asked for, and how far apart the weighted losses are."""
    style()
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    front, balance = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _front(front, found)
    w = torch.tensor(found["preferences"])[:, 0]
    for name, row in list(ROWS.items())[:SHOWN]:
        off = 100 * torch.tensor(found["rows"][name]["train"]["imbalance"])
        balance.plot(w, off.mean(0).clamp_min(0.1), "o-", color=row.colour, ms=5, lw=1.2, label=name)
    balance.axhline(10, color="0.5", lw=0.8, ls=":")
    balance.text(0.35, 11.5, "10 %", color="0.4", ha="center", fontsize=8)
    balance.set(
        yscale="log",
        xticks=w.tolist(),
        xlabel="$w_1$",
        ylabel="%",
        title="how far apart $w_1 f_1$ and $w_2 f_2$ are on the training pairs",
    )
    figure.legend(*balance.get_legend_handles_labels(), loc="outside lower center", ncols=SHOWN, frameon=False)
    return figure


def _front(axes: Axes, found: dict[str, Any]) -> None:
    w = torch.tensor(found["preferences"])
    shown = [torch.tensor(found["rows"][name]["test"]["losses"]) for name in list(ROWS)[:SHOWN]]
    top = 1.08 * max(float(f.max()) for f in shown)
    for direction in eq.preference.ray(w).tolist():
        far = 2 * top / max(direction)
        axes.plot([0, far * direction[0]], [0, far * direction[1]], ":", color="0.65", lw=0.8, zorder=1)
    # The default last, so that nothing hides it.
    for row, f in reversed(list(zip(ROWS.values(), shown, strict=False))):
        mean = f.mean(0)
        axes.plot(mean[:, 0], mean[:, 1], "-", color=row.colour, lw=0.8, alpha=0.6, zorder=2)
        axes.scatter(f[..., 0], f[..., 1], s=18, color=row.colour, edgecolors="white", linewidths=0.4, zorder=3)
    axes.set(
        xlim=(0, top),
        ylim=(0, top),
        aspect="equal",
        xlabel="loss of the left digit",
        ylabel="loss of the right digit",
        title="test loss, and the rays asked for",
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/multi-mnist"), help="folder for the picture and the runs")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--data", help="folder of MNIST, if not EQUIPOISE_DATA or the cache folder")
    parser.add_argument("--seeds", default="0,1", help="of start and batches")
    parser.add_argument("--epochs", type=int, help=f"by default {EPOCHS}, quick 10")
    parser.add_argument("--width", type=int, default=WIDTH, help="units at the end of the trunk")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--quick", action="store_true", help="three preferences, ten epochs of scikit-learn's digits")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data, weights, epochs = ("digits", WEIGHTS[::2], 10) if args.quick else ("mnist", WEIGHTS, EPOCHS)
    try:
        samples = len(load(data, args.data).train_labels)
    except MissingDataError as missing:
        sys.exit(f"{missing}\nFetch it (equipoise data fetch mnist), or see the digits of scikit-learn with --quick.")
    tasks = [
        Task(method, weight, int(seed), data, samples, args.epochs or epochs, args.width, args.data)
        for seed in args.seeds.split(",")
        for method in RUNS
        for weight in weights
    ]
    store = CellStore(args.out / "runs", ())
    missing_runs = [task for task in tasks if store.read(task.spec()) is None]
    for number, task in enumerate(compute(store, missing_runs, train, args.workers), 1):
        done = f"{number} of {len(missing_runs)}: {task.method}, w₁ = {task.weight:g}, seed {task.seed}"
        print(done, file=sys.stderr, flush=True)
    found = table(store, tasks)
    show(found)
    if args.json is not None:
        write_atomically(args.json, json.dumps(found))
        print(f"wrote {args.json}")
    draw(found).savefig(args.out / "multi-mnist.png", dpi=200)
    print(f"wrote {args.out / 'multi-mnist.png'}")


if __name__ == "__main__":
    main()
