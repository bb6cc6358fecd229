"""Adult and COMPAS: how accurate can a model be within limits of fairness, and what does each limit cost?

Adult: who earns more than 50,000 dollars? Women who do are missed more often than men. COMPAS: who is not arrested
again within two years? African-Americans who are not are misjudged more often than Caucasians. In both, "yes" is the
favourable answer, and a person is "missed" who merits it and does not get it.

Two sweeps for each data set, by logistic regression on all training people:

- The price of a limit. Minimise the cross-entropy while the mean loss of the people who merit the answer, in the group
  that is missed more often, stays below ε. The losses are convex in the parameters, so the multiplier μ is the slope of
  the least cross-entropy over ε: the cost of a unit of the limit. Both are printed.
- Equal opportunity and calibration. The difference between the miss rates of the groups (a rate: `eq.proxy`) is at most
  ε, and the mean probability in each group is off by at most a given number, up or down.

    python examples/limits.py --out out/limits     # needs two files, see docs/datasets.md; some minutes on one core
    python examples/limits.py --quick              # a tenth of the people, three limits each
"""

import argparse
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import equipoise as eq
from equipoise.datasets import Dataset, MissingDataError, load, standardize
from equipoise.errors import LimitWarning
from equipoise.experiments import drawing
from equipoise.experiments.results import write_atomically

STEP_SIZE, STEPS = 0.02, 1500


class Case(NamedTuple):
    """A data set and its limits."""

    label: int
    """The favourable answer."""
    groups: tuple[str, str]
    """The group that is missed more often, and the one that it is compared with."""
    merit: str
    """Who merits the answer, for the picture."""
    losses: tuple[float, ...]
    """The limits of the first sweep."""
    gaps: tuple[float, ...]
    """Those of the second."""
    calibration: float
    """How far the mean probability may be off in the second sweep."""


CASES = {
    "adult": Case(
        1, ("Female", "Male"), "women who earn more", (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), (0.1, 0.075, 0.05, 0.025), 0.02
    ),
    "compas": Case(
        0,
        ("African-American", "Caucasian"),
        "African-Americans who are not arrested again",
        (0.63, 0.61, 0.59, 0.57, 0.55, 0.53),
        (0.14, 0.12, 0.1, 0.02),
        0.05,
    ),
}


class People(NamedTuple):
    """Inputs (n, columns), whether each merits the answer (n,), and weights (4, n) that take means over groups.

    Rows of weights: the two groups, then those of each who merit the answer.
    """

    inputs: Tensor
    merit: Tensor
    means: Tensor


def people(data: Dataset, case: Case, share: int) -> tuple[People, People]:
    """Training and test people; one in `share` of them."""
    parts = []
    for x, y, g in (
        (data.train_inputs, data.train_labels, data.train_groups),
        (data.test_inputs, data.test_labels, data.test_groups),
    ):
        assert g is not None  # noqa: S101
        inputs, merit, groups = x[::share], y[::share] == case.label, g[::share]
        members = [groups == data.group_names.index(name) for name in case.groups]
        rows = torch.stack([*members, *(of & merit for of in members)]).float()
        parts.append(People(inputs, merit.float(), rows / rows.sum(1, keepdim=True)))
    return parts[0], parts[1]


def measure(model: nn.Module, data: People) -> dict[str, Tensor]:
    """Everything that is minimised or limited, and the accuracy."""
    logits = model(data.inputs).squeeze(1)
    groups, merit = data.means[:2], data.means[2:]
    off = groups @ (logits.sigmoid() - data.merit)
    losses, missed = merit @ softplus(-logits), merit @ (logits < 0).float()
    return {
        "cross-entropy": binary_cross_entropy_with_logits(logits, data.merit),
        "loss": losses[0],
        "gap": eq.proxy(losses[0] - losses[1], missed[0] - missed[1]),
        "calibration 1": off[0],
        "calibration 2": off[1],
        "accuracy": ((logits > 0) == (data.merit > 0)).float().mean(),
    }


Limits = dict[str, float | tuple[float, float]]


def train(data: tuple[People, People], limits: Limits, steps: int) -> dict[str, Any]:
    """Train within limits: the answer on training and test people, the multipliers, and how far a limit is missed."""
    columns = data[0].inputs.shape[1]
    model = nn.Linear(columns, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", LimitWarning)
        mol = eq.MultiObjective(model, optimizer, {"cross-entropy": 1.0}, limits=limits)
        for _ in range(steps):
            losses = measure(model, data[0])
            mol({name: losses[name] for name in ("cross-entropy", *limits)}).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    metrics = mol.metrics()
    model.load_state_dict(mol.solution())
    with torch.no_grad():
        answers = [{name: float(value) for name, value in measure(model, part).items()} for part in data]
    return {
        "train": answers[0],
        "test": answers[1],
        "multipliers": {name: metrics[f"multiplier/{name}"] for name in limits},
        "violation": max(violation(answers[0][name], limit) for name, limit in limits.items()),
        "warning": next((str(one.message) for one in said if issubclass(one.category, LimitWarning)), ""),
    }


def violation(value: float, limit: float | tuple[float, float]) -> float:
    """How far a limit is missed, as a share of it; below 0 if it is kept."""
    least, most = limit if isinstance(limit, tuple) else (-math.inf, limit)
    return max(value - most, least - value) / abs(most)


def run(data: tuple[People, People], case: Case, steps: int, count: int) -> dict[str, Any]:
    """Both sweeps, with at most `count` limits each."""
    found: dict[str, Any] = {"losses": list(case.losses[:count]), "gaps": list(case.gaps[:count])}
    found["price"] = [train(data, {"loss": limit}, steps) for limit in found["losses"]]
    off = (-case.calibration, case.calibration)
    fair: list[Limits] = [{"gap": gap, "calibration 1": off, "calibration 2": off} for gap in found["gaps"]]
    found["fair"] = [train(data, limits, steps) for limits in fair]
    return found


def slopes(at: list[float], values: list[float]) -> list[float]:
    """The slopes of the falling values, by central differences; one-sided at the ends."""
    pairs = [(max(k - 1, 0), min(k + 1, len(at) - 1)) for k in range(len(at))]
    return [(values[b] - values[a]) / (at[a] - at[b]) for a, b in pairs]


def show(name: str, found: dict[str, Any]) -> None:
    """Print both tables."""
    case = CASES[name]
    print(f"\n{name}: the mean loss of {case.merit} at most ε; training people, then test people")
    test = f"{'loss':>7}{'cross-entropy':>15}{'accuracy':>10}"
    print(f"{'ε':>7}{'loss':>8}{'cross-entropy':>15}{'μ':>9}{'slope':>9}   {test}")
    entropy = [row["train"]["cross-entropy"] for row in found["price"]]
    for limit, row, slope in zip(found["losses"], found["price"], slopes(found["losses"], entropy), strict=True):
        a, b, mu = row["train"], row["test"], row["multipliers"]["loss"]
        cells = f"{a['loss']:>8.4f}{a['cross-entropy']:>15.4f}{mu:>9.4f}{slope:>9.4f}"
        print(f"{limit:>7.3f}{cells}   {b['loss']:>7.3f}{b['cross-entropy']:>15.4f}{b['accuracy']:>10.2%}")
    print(f"\n{name}: missed at most ε more often than {case.groups[1]}, calibration within ±{case.calibration}")
    print(f"{'ε':>7}{'gap':>8}{'calibration':>17}{'cross-entropy':>15}{'accuracy':>10}   {'gap':>7}{'accuracy':>10}")
    for limit, row in zip(found["gaps"], found["fair"], strict=True):
        a, b = row["train"], row["test"]
        off = f"{a['calibration 1']:+.3f}, {a['calibration 2']:+.3f}"
        cells = f"{a['gap']:>8.4f}{off:>17}{a['cross-entropy']:>15.4f}{a['accuracy']:>10.2%}"
        print(f"{limit:>7.3f}{cells}   {b['gap']:>7.3f}{b['accuracy']:>10.2%}{_note(row)}")
    for row in found["fair"]:
        if row["warning"]:
            print(f"   {row['warning']}")


def _note(row: dict[str, Any]) -> str:
    """Says it if a limit is missed by more than 5 %."""
    return f", missed by {row['violation']:.0%}" if row["violation"] > 0.05 else ""


def draw(found: dict[str, Any]) -> Figure:
    """The least cross-entropy over ε with the multiplier as its slope, and accuracy over the gap, for each data set."""
    drawing.style()
    figure = Figure(figsize=(7.6, 3.0 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 2, squeeze=False)
    for (left, right), (name, rows) in zip(axes, found.items(), strict=True):
        case = CASES[name]
        entropy = [row["train"]["cross-entropy"] for row in rows["price"]]
        left.plot(rows["losses"], entropy, "o", color="#0072B2", ms=5, label="within the limit")
        reach = abs(rows["losses"][0] - rows["losses"][1]) / 2
        for k, (x, y, row) in enumerate(zip(rows["losses"], entropy, rows["price"], strict=True)):
            mu = row["multipliers"]["loss"]
            label = "slope −μ" if k == 0 else None
            left.plot([x - reach, x + reach], [y + mu * reach, y - mu * reach], color="#D55E00", lw=1.4, label=label)
            left.annotate(f"μ = {mu:.3f}", (x, y), (4, 5), textcoords="offset points", fontsize=7)
        left.set(title=f"{name}: the price of a limit", ylabel="cross-entropy")
        left.set_xlabel(f"limit ε of the loss of\n{case.merit}")
        left.legend(frameon=False)
        for part, label, style, colour in (
            ("train", "training people", "o-", "#0072B2"),
            ("test", "test people", "s--", "#E69F00"),
        ):
            gap, accuracy = ([100 * row[part][key] for row in rows["fair"]] for key in ("gap", "accuracy"))
            right.plot(
                gap,
                accuracy,
                style,
                color=colour,
                ms=5,
                lw=1.2,
                label=label,
            )
        for limit, row in zip(rows["gaps"], rows["fair"], strict=True):
            place = (100 * row["train"]["gap"], 100 * row["train"]["accuracy"])
            text = f"ε = {100 * limit:g}{_note(row)}"
            right.annotate(text, place, (5, 6), textcoords="offset points", fontsize=7, color="#0072B2")
        right.set(title=f"{name}: gap and calibration", ylabel="accuracy, %")
        right.set_xlabel("missed more often, points")
        right.margins(0.12)
        right.legend(frameon=False)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/limits"), help="folder for the picture")
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    parser.add_argument("--data", help="folder of the data files, if not EQUIPOISE_DATA or the cache folder")
    parser.add_argument("--steps", type=int, help=f"by default {STEPS}, quick 200")
    parser.add_argument("--quick", action="store_true", help="a tenth of the people, three limits each")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            data = people(standardize(load(name, args.data)), case, share=10 if args.quick else 1)
        except MissingDataError as missing:
            print(f"{missing}\n{name} is left out: docs/datasets.md says how to get it.", file=sys.stderr)
            continue
        steps = args.steps or (200 if args.quick else STEPS)
        found[name] = run(data, case, steps, count=3 if args.quick else len(case.losses))
        show(name, found[name])
    if not found:
        sys.exit("No data set was found: docs/datasets.md says how to get them.")
    if args.json is not None:
        write_atomically(args.json, json.dumps(found))
        print(f"wrote {args.json}")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(found).savefig(args.out / "limits.png", dpi=200)
    print(f"wrote {args.out / 'limits.png'}")


if __name__ == "__main__":
    main()
