"""Adult: who earns more than 50,000 dollars? How many points of accuracy does it cost to answer alike for both sexes?

The first objective is the cross-entropy, the second the demographic-parity gap: the difference between the mean
predicted probabilities of men and women. They have different units and different minima, so each is measured from its
best value and divided by its range:

    f₁ = (cross-entropy − best)/(that of a constant − best)     the fraction of the inputs' information that is given up
    f₂ = gap/(gap of the model trained for cross-entropy alone)     the fraction of the gap that remains

Both go from 0 to 1, and the preference w asks for w₁f₁ = w₂f₂: (0.5, 0.5) asks for equal fractions, (0.9, 0.1) leaves a
fraction of the gap that is nine times f₁. The example trains for nine preferences with the default method of the
library, the former default (OptOMD-TCH) and the weighted sum (LS) of the same two numbers. It prints and draws the
choices of a decision maker: test accuracy against the gap of the decisions on the test set.

    python examples/adult.py --out out/adult    # needs adult.csv, see docs/datasets.md; some minutes on one core
    python examples/adult.py --quick            # a tenth of the people, three preferences
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import equipoise as eq
from equipoise.datasets import MissingDataError, load, standardize
from equipoise.experiments import drawing
from equipoise.experiments.results import write_atomically

HIDDEN, STEP_SIZE, STEPS = 16, 0.02, 600
METHODS = {"equipoise": "#0072B2", "OptOMD-TCH": "#E69F00", "LS": "#000000"}
"""With their colours."""
LABELS = {"equipoise": "equipoise (the default)", "LS": "weighted sum (LS)"}


class People(NamedTuple):
    """Inputs (n, columns) without the sex, whether they earn more (n,), and whether they are men (n,)."""

    inputs: Tensor
    labels: Tensor
    men: Tensor


class Units(NamedTuple):
    """What the two objectives are measured in."""

    best: float
    constant: float
    gap: float


def people(folder: str | None, share: int) -> tuple[People, People]:
    """Training and test people; one in `share` of them."""
    data = standardize(load("adult", folder))
    # Decisions should not depend on the sex, so it is not an input. (Other columns reveal much of it: "husband".)
    columns = torch.tensor([not name.startswith("gender=") for name in data.columns])
    parts = (
        (data.train_inputs, data.train_labels, data.train_groups),
        (data.test_inputs, data.test_labels, data.test_groups),
    )
    men = data.group_names.index("Male")
    train, test = (
        People(x[::share, columns], y[::share].float(), g[::share] == men) for x, y, g in parts if g is not None
    )
    return train, test


def network(inputs: int, seed: int) -> nn.Sequential:
    """A perceptron with one hidden layer, and the logit that somebody earns more, (n, 1)."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def training(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Adam with a step size that decays to 0: the gap has a kink at 0, around which constant steps would oscillate."""
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)


def measure(model: nn.Module, data: People) -> tuple[Tensor, Tensor]:
    """The cross-entropy, and the gap between men's and women's mean probability."""
    logits = model(data.inputs).squeeze(1)
    p = logits.sigmoid()
    gap = p[data.men].mean() - p[~data.men].mean()
    return binary_cross_entropy_with_logits(logits, data.labels), gap.abs()


def find_units(data: People, seed: int, steps: int) -> tuple[Units, nn.Module]:
    """Train for cross-entropy alone: the units, and the model that all trade-offs are compared with."""
    model = network(data.inputs.shape[1], seed)
    optimizer, schedule = training(model, steps)
    best, gap = measure(model, data)
    for _ in range(steps):
        best, gap = measure(model, data)
        best.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    share = data.labels.mean()
    constant = binary_cross_entropy_with_logits(share.logit().expand_as(data.labels), data.labels)
    return Units(float(best.detach()), float(constant), float(gap.detach())), model


def train(method: str, weight: float, data: People, units: Units, seed: int, steps: int) -> nn.Module:
    """Train for one preference, on all people at every step."""
    model = network(data.inputs.shape[1], seed)
    optimizer, schedule = training(model, steps)
    w = {"cross-entropy given up": weight, "gap left": 1 - weight}
    mol = eq.MultiObjective(model, optimizer, w, method=method)
    for _ in range(steps):
        entropy, gap = measure(model, data)
        f = torch.stack([(entropy - units.best) / (units.constant - units.best), gap / units.gap])
        mol(f).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.load_state_dict(mol.solution())
    return model


@torch.no_grad()
def judge(model: nn.Module, train: People, test: People, units: Units) -> dict[str, float]:
    """The objectives on the training people; accuracy, gap of decisions (signed) and of probabilities on the others."""
    entropy, gap = measure(model, train)
    decisions = model(test.inputs).squeeze(1) > 0
    rates = [decisions[group].double().mean() for group in (test.men, ~test.men)]
    return {
        "f1": (float(entropy) - units.best) / (units.constant - units.best),
        "f2": float(gap) / units.gap,
        "accuracy": float((decisions == test.labels.bool()).double().mean()),
        "gap": float(rates[0] - rates[1]),
        "probability_gap": float(measure(model, test)[1]),
    }


def run(data: tuple[People, People], weights: list[float], seeds: list[int], steps: int) -> dict[str, Any]:
    """The results by method and preference: means over the seeds of what `judge` returns."""
    found: dict[str, Any] = {"preferences": [[w, 1 - w] for w in weights], "seeds": seeds, "steps": steps}
    judged: dict[str, list[list[dict[str, float]]]] = {name: [[] for _ in weights] for name in METHODS}
    alone: list[dict[str, float]] = []
    for seed in seeds:
        units, model = find_units(data[0], seed, steps)
        alone.append(judge(model, *data, units))
        for method in METHODS:
            for k, weight in enumerate(weights):
                model = train(method, weight, data[0], units, seed, steps)
                judged[method][k].append(judge(model, *data, units))
            print(f"seed {seed}: {method}", file=sys.stderr, flush=True)
    found["cross-entropy alone"] = _mean(alone)
    found["methods"] = {name: [_mean(of_weight) for of_weight in rows] for name, rows in judged.items()}
    return found


def _mean(entries: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(entry[key] for entry in entries) / len(entries) for key in entries[0]}


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    alone = found["cross-entropy alone"]
    print(f"cross-entropy alone: test accuracy {alone['accuracy']:.2%}, gap of the decisions {alone['gap']:.2%}")
    print("points of accuracy given up, points of gap bought with them; w₁f₁ and w₂f₂ on the training set")
    for method, rows in found["methods"].items():
        print(f"\n{method:>12}{'accuracy':>10}{'gap':>8}{'given up':>10}{'bought':>8}{'w₁f₁':>9}{'w₂f₂':>8}")
        for (a, b), row in zip(found["preferences"], rows, strict=True):
            cost, bought = _price(alone, row)
            cells = f"{100 * row['accuracy']:>10.2f}{100 * row['gap']:>8.2f}{cost:>10.2f}{bought:>8.2f}"
            print(f"  w₁ = {a:<6.2g}{cells}{a * row['f1']:>9.3f}{b * row['f2']:>8.3f}")


def _price(alone: dict[str, float], row: dict[str, float]) -> tuple[float, float]:
    """Points of accuracy given up, and points of gap bought with them."""
    return 100 * (alone["accuracy"] - row["accuracy"]), 100 * (abs(alone["gap"]) - abs(row["gap"]))


def draw(found: dict[str, Any]) -> Figure:
    """Accuracy against gap, and on the other two sides what is given up and bought."""
    drawing.style()
    figure = Figure(figsize=(6.4, 4.3), layout="constrained")
    axes = figure.subplots()
    alone = found["cross-entropy alone"]
    a0, g0 = 100 * alone["accuracy"], 100 * alone["gap"]
    for name, colour in METHODS.items():
        rows = found["methods"][name]
        gap, accuracy = ([100 * row[key] for row in rows] for key in ("gap", "accuracy"))
        mine = name == "equipoise"
        style = "o-" if mine else "s--"
        axes.plot(gap, accuracy, style, color=colour, ms=6 if mine else 4, lw=1.2, label=LABELS.get(name, name))
        if mine:
            for (w, _), x, y in zip(found["preferences"], gap, accuracy, strict=True):
                axes.annotate(f"{w:g}", (x, y), (6, -6), textcoords="offset points", fontsize=7.5, color=colour)
            middle = len(rows) // 2
            cost, bought = _price(alone, rows[middle])
            axes.annotate(
                f"$w_1$ = {found['preferences'][middle][0]:g}: giving up {cost:.1f} points of accuracy\n"
                f"buys {bought:.1f} of {g0:.1f} points of gap",
                (gap[middle], accuracy[middle]),
                (0.42, 0.46),
                textcoords="axes fraction",
                fontsize=8,
                color=colour,
                arrowprops={"arrowstyle": "->", "color": colour, "lw": 0.8, "shrinkB": 5},
            )
    axes.axvline(0, color="0.6", lw=0.8)
    axes.plot(g0, a0, "*", color="#D55E00", ms=12, label="cross-entropy alone")
    axes.set(xlabel="share of men less share of women who are judged to earn more, points", ylabel="test accuracy, %")
    axes.spines[["top", "right"]].set_visible(True)
    above = axes.secondary_xaxis("top", functions=(lambda x: g0 - x, lambda x: g0 - x))
    above.set_xlabel("points of gap bought")
    given = axes.secondary_yaxis("right", functions=(lambda y: a0 - y, lambda y: a0 - y))
    given.set_ylabel("points of accuracy given up")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=False, title="numbers: $w_1$, the weight of the cross-entropy")
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/adult"), help="folder for the picture")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--data", help="folder of adult.csv, if not EQUIPOISE_DATA or the cache folder")
    parser.add_argument("--seeds", default="0,1", help="of the initial weights")
    parser.add_argument("--steps", type=int, help=f"by default {STEPS}, quick 100")
    parser.add_argument("--quick", action="store_true", help="a tenth of the people, three preferences")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        data = people(args.data, share=10 if args.quick else 1)
    except MissingDataError as missing:
        sys.exit(f"{missing}\nAdult cannot be fetched: put adult.csv there, see docs/datasets.md.")
    weights = [0.2, 0.5, 0.8] if args.quick else [k / 10 for k in range(1, 10)]
    found = run(
        data, weights, [int(seed) for seed in args.seeds.split(",")], args.steps or (100 if args.quick else STEPS)
    )
    show(found)
    if args.json is not None:
        write_atomically(args.json, json.dumps(found))
        print(f"wrote {args.json}")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(found).savefig(args.out / "adult.png", dpi=200)
    print(f"wrote {args.out / 'adult.png'}")


if __name__ == "__main__":
    main()
