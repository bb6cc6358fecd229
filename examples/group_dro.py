"""Group DRO on coloured digits: the colour agrees with the label for 95 % of the training samples, and misleads.

Is a handwritten digit at least 5? It is drawn in one of two colours, which in training nearly gives the answer away;
the groups are label × colour, two of them small. The test set shows every digit in both colours. The example compares
the mean over all samples (ERM), the mean over equally many samples of each group (the sampler alone, LS), GroupDRO with
and without its generalisation adjustment, the paper's OMD-TCH with the adaptive output, the former default of the
library (OptOMD-TCH) and the default, each with plain SGD, momentum and Adam. It prints and draws the accuracies.

    python examples/group_dro.py --out out/demo
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.datasets import load

M = 4
GROUPS = ("0–4, red", "0–4, green", "5–9, red", "5–9, green")
AGREES = 0.95
SEEDS = range(5)
EPOCHS, BATCH, HIDDEN = 30, 64, 64
DECAY = 1e-2
"""ℓ₂ regularisation: a network that fits every sample has no worst group left to weigh."""
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "plain SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.003}),
}
METHODS = {
    "ERM": "#000000",
    "balanced sampler (LS)": "#999999",
    "GroupDRO": "#E69F00",
    "GroupDRO, adjusted": "#D55E00",
    "OMD-TCH, adaptive": "#56B4E9",
    "OptOMD-TCH": "#CC79A7",
    "equipoise": "#0072B2",
}
"""With their colours."""
ON_ALL = "OMD-TCH, adaptive"
"""Batches of 16 a group are a noisy comparison: its archive compares by all training data, once an epoch."""


class Coloured(NamedTuple):
    """Samples: inputs (n, 128), two channels of 8×8; labels (n,); groups 2·label + colour (n,)."""

    inputs: Tensor
    labels: Tensor
    groups: Tensor


def coloured(images: Tensor, labels: Tensor, colours: Tensor) -> Coloured:
    """Draw images (n, 8, 8) in the channel that their colour names."""
    channels = torch.stack([torch.where((colours == c)[:, None, None], images, 0.0) for c in (0, 1)], 1)
    return Coloured(channels.flatten(1), labels, 2 * labels + colours)


def digits(seed: int) -> tuple[Coloured, Coloured]:
    """Training samples, whose colours are drawn, and test samples in both colours."""
    data = load("digits")
    x, y = data.train_inputs[:, 0] / data.scale, (data.train_labels >= 5).long()
    misled = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) >= AGREES
    test, answers = data.test_inputs[:, 0] / data.scale, (data.test_labels >= 5).long()
    both = torch.tensor([0, 1]).repeat_interleave(len(test))
    return (
        coloured(x, y, torch.where(misled, 1 - y, y)),
        coloured(test.repeat(2, 1, 1), answers.repeat(2), both),
    )


def method(name: str, counts: list[int]) -> eq.Method | None:
    """The weighting and the conversion; None for a plain mean."""
    if name.startswith("GroupDRO"):
        return eq.group_dro(counts, adjustment=1.0 if name.endswith("adjusted") else 0.0)  # η = 0.01
    if name == ON_ALL:
        return eq.Method(eq.OMD("adaptive"), eq.Adaptive(power=4, capacity=8))
    return eq.methods().get(name)


def train(name: str, optimizer_name: str, decay: float, seed: int) -> Tensor:
    """Accuracy on the test samples of each group, (m,).

    Args:
        name: The method.
        optimizer_name: One of `OPTIMIZERS`.
        decay: Its weight decay.
        seed: Of colours, initial weights and batches.
    """
    data, test = digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(128, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    kind, settings = OPTIMIZERS[optimizer_name]
    optimizer = kind(model.parameters(), **settings, weight_decay=decay)
    chosen = method(name, data.groups.bincount(minlength=M).tolist())
    mol = None
    if chosen is not None:
        every = None if name == ON_ALL else 1
        mol = eq.MultiObjective(model, optimizer, [1 / M] * M, method=chosen, every=every)
    sampler = eq.GroupBalancedSampler(data.groups, M, seed=seed)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        order = torch.randperm(len(data.labels)) if name == "ERM" else torch.tensor(list(sampler))
        for batch in order.split(BATCH):
            values = cross_entropy(model(data.inputs[batch]), data.labels[batch], reduction="none")
            loss = values.mean() if mol is None else mol(*eq.group_losses(values, data.groups[batch], M))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if mol is not None and name == ON_ALL:
            mol.record(all_losses(model, data))
    if mol is not None:
        model.load_state_dict(mol.solution())
    return accuracy(model, test)


@torch.no_grad()
def all_losses(model: nn.Module, data: Coloured) -> Tensor:
    """The loss on all samples of each group, (m,)."""
    return eq.group_losses(cross_entropy(model(data.inputs), data.labels, reduction="none"), data.groups, M)[0]


@torch.no_grad()
def accuracy(model: nn.Module, data: Coloured) -> Tensor:
    """The accuracy in each group, (m,)."""
    return eq.group_losses((model(data.inputs).argmax(1) == data.labels).float(), data.groups, M)[0]


def mean_std(values: Tensor) -> str:
    """Mean and deviation in per cent, over the seeds (seeds,)."""
    numbers = (100 * values).tolist()
    return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"


def draw(found: dict[tuple[str, str], Tensor]) -> Figure:
    """Worst-group and average accuracy, a panel for each optimizer; a small dot for each seed."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = Figure(figsize=(10.4, 3.2), layout="constrained")
    panels = figure.subplots(1, len(OPTIMIZERS), sharex=True, sharey=True)
    for axes, (optimizer, (_, settings)) in zip(panels, OPTIMIZERS.items(), strict=True):
        for place, (name, colour) in enumerate(METHODS.items()):
            worst, average = 100 * found[optimizer, name].min(1).values, 100 * found[optimizer, name].mean(1)
            y = -place
            axes.plot([worst.mean(), average.mean()], [y, y], "-", color=colour, lw=1.2, zorder=1)
            axes.plot(worst, [y - 0.25] * len(worst), "o", color=colour, ms=3.5, alpha=0.5, mec="none")
            axes.plot(worst.mean(), y, "o", color=colour, ms=8, zorder=3)
            axes.plot(average.mean(), y, "|", color=colour, ms=12, mew=2.5, zorder=3)
        axes.set_title(f"{optimizer}, step size {settings['lr']:g}", fontsize=9)
        axes.set_yticks([-k for k in range(len(METHODS))], METHODS)
        axes.set_xlim(-2, 100)
        axes.set_ylim(0.5 - len(METHODS) - 0.1, 0.6)
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
    figure.supxlabel("test accuracy, %:  ● worst group, mean (small: each seed)    ❙ average of the groups", fontsize=9)
    return figure


def main(out: Path, decay: float) -> None:
    torch.set_num_threads(1)
    found: dict[tuple[str, str], Tensor] = {}
    counts = digits(0)[0].groups.bincount(minlength=M).tolist()
    print("training samples (seed 0): " + ", ".join(f"{n} of {g}" for n, g in zip(counts, GROUPS, strict=True)))
    for optimizer, (_, settings) in OPTIMIZERS.items():
        print(f"\n{optimizer} {settings}, weight decay {decay:g}; test accuracy in %, {len(SEEDS)} seeds")
        print(f"{'':22}{'average':>14}{'worst group':>14}  " + "".join(f"{group:>12}" for group in GROUPS))
        for name in METHODS:
            accuracies = found[optimizer, name] = torch.stack([train(name, optimizer, decay, seed) for seed in SEEDS])
            cells = "".join(f"{100 * a:>12.1f}" for a in accuracies.mean(0))
            worst = mean_std(accuracies.min(1).values)
            print(f"{name:22}{mean_std(accuracies.mean(1)):>14}{worst:>14}  {cells}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    draw(found).savefig(out / "group-dro.png", dpi=200)
    print(f"\nwrote {out / 'group-dro.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture")
    parser.add_argument("--decay", type=float, default=DECAY, help="weight decay")
    args = parser.parse_args()
    main(args.out, args.decay)
