"""Bounded memory on real data: what `Adaptive(capacity=K)` loses against the archive that keeps everything.

Ten objectives (the cross-entropy on each class of the handwritten digits), one small network per
seed, OMD-TCH with a uniform preference. One trajectory feeds every conversion, and every one of them
twice: with the mini-batch losses of each step, and with the losses on a fixed held-out batch every
few steps. Run `python benchmarks/memory.py`; `--quick` takes some seconds.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq

M = 10
"""Objectives: one per digit."""
CAPACITIES = (None, 4, 8, 16, 32)
POWERS = (0, 4)
SOURCES = {"batch": "mini-batch losses at every step", "held-out": "losses on a held-out batch"}
MIRRORS: dict[str, eq.simplex.Mirror] = {"Euclidean": eq.Euclidean(), "Entropic": eq.Entropic()}
BLOCK = 10
"""Steps that are told apart in the record of which iterates an answer consists of."""

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """One experiment.

    Attributes:
        seeds: Independent runs, carried as the leading batch dimension.
        steps: Steps of SGD.
        every: Steps between two evaluations on the held-out batch.
        per_class: Samples of each class in a mini-batch.
        step_size: Of θ. The coefficients λ∘w sum to about 1/m.
        hidden: Hidden units; 0 is softmax regression, whose objectives are convex.
        checks: Evaluations of every answer, evenly spread over the second half of the run.
    """

    seeds: int = 8
    steps: int = 4000
    every: int = 10
    per_class: int = 4
    step_size: float = 1.0
    hidden: int = 32
    checks: int = 10


# ------------------------------------------------------------------------------- data and model
@dataclass(frozen=True)
class Digits:
    """The digits, with the row numbers of every class in each of three disjoint parts."""

    x: Tensor
    y: Tensor
    train: list[Tensor]
    held_out: list[Tensor]
    test: list[Tensor]


def digits() -> Digits:
    data = load_digits()
    x = torch.tensor(data.data / 16.0, dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for digit in range(M):
        rows = (y == digit).nonzero().squeeze(-1)
        rows = rows[torch.randperm(len(rows), generator=generator)]
        for part, chosen in zip(parts, rows.split([len(rows) - 65, 20, 45]), strict=True):
            part.append(chosen)
    return Digits(x, y, *parts)


def initial(settings: Settings) -> Params:
    """Random parameters with the leading dimension of the seeds."""
    sizes = [64, settings.hidden, M] if settings.hidden else [64, M]
    layers: dict[str, list[Tensor]] = {}
    for seed in range(settings.seeds):
        generator = torch.Generator().manual_seed(seed)
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            scale = math.sqrt((2.0 if i + 2 < len(sizes) else 1.0) / fan_in)
            layers.setdefault(f"weight{i}", []).append(scale * torch.randn(fan_in, fan_out, generator=generator))
            layers.setdefault(f"bias{i}", []).append(torch.zeros(1, fan_out))
    return {name: torch.stack(tensors) for name, tensors in layers.items()}


def sample_losses(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every sample: x (seeds, n, 64) and y (seeds, n) to (seeds, n)."""
    hidden = torch.baddbmm(params["bias0"], x, params["weight0"])
    if "weight1" in params:
        hidden = torch.baddbmm(params["bias1"], hidden.relu(), params["weight1"])
    return cross_entropy(hidden.movedim(-1, 1), y, reduction="none")


def class_losses(params: Mapping[str, Tensor], data: Digits, part: list[Tensor]) -> Tensor:
    """The ten objectives on a whole part of the data, (seeds, m)."""
    rows, seeds = torch.cat(part), len(params["bias0"])
    losses = sample_losses(params, data.x[rows].expand(seeds, -1, -1), data.y[rows].expand(seeds, -1))
    return torch.stack([of_class.mean(-1) for of_class in losses.split([len(c) for c in part], -1)], -1)


def batches(data: Digits, settings: Settings) -> Tensor:
    """Row numbers of every mini-batch, (steps, seeds, m·per_class), class after class."""
    sizes = torch.tensor([len(rows) for rows in data.train]).unsqueeze(-1)
    table = torch.nn.utils.rnn.pad_sequence(data.train, batch_first=True)
    drawn = []
    for seed in range(settings.seeds):
        generator = torch.Generator().manual_seed(1000 + seed)
        uniform = torch.rand(settings.steps, M, settings.per_class, generator=generator)
        drawn.append(table[torch.arange(M).unsqueeze(-1), (uniform * sizes).long()].flatten(1))
    return torch.stack(drawn, 1)


# ------------------------------------------------------------------------------- one trajectory
def conversions() -> dict[str, eq.Conversion[Any]]:
    named: dict[str, eq.Conversion[Any]] = {"Last": eq.Last()}
    for p in POWERS:
        named[f"Average, p={p}"] = eq.Average(power=float(p))
        for capacity in CAPACITIES:
            named[f"K={capacity}, p={p}"] = eq.Adaptive(power=float(p), capacity=capacity)
    return named


@dataclass
class Answer:
    """What one conversion answered, by seed; losses at the checkpoints, the last at the end of the run."""

    size: Tensor
    """Copies kept at the end, (seeds,)."""
    heaviest: Tensor
    """Share of the copy with the most weight, (seeds,)."""
    spread: Tensor
    """Blocks of steps that the answer effectively averages over: 1/Σα² of their shares α, (seeds,)."""
    age: Tensor
    """Σ α t / T, where in the run the averaged iterates lie on average, (seeds,)."""
    train: Tensor
    """(checks, seeds, m)."""
    test: Tensor
    """(checks, seeds, m)."""


@dataclass
class Run:
    """One trajectory: its answers by source and conversion, and how the unbounded archive grew."""

    answers: dict[str, dict[str, Answer]]
    growth: dict[str, list[tuple[int, list[int]]]]
    takeovers: dict[str, tuple[float, float, float]]
    seconds: float


def run(weighting: eq.OMD, data: Digits, settings: Settings) -> Run:
    """Train once and feed every conversion from both sources of losses."""
    started = time.perf_counter()
    params, named = initial(settings), conversions()
    preference = torch.full((M,), 1.0 / M)
    losses = torch.zeros(settings.seeds, M)
    state = weighting.init(losses)
    blocks = torch.eye(-(-settings.steps // BLOCK))
    record = params | {"shares": blocks[0].expand(settings.seeds, -1)}
    states = {source: {name: c.init(record, losses) for name, c in named.items()} for source in SOURCES}
    growth: dict[str, list[tuple[int, list[int]]]] = {source: [] for source in SOURCES}
    half = settings.steps // 2
    checkpoints = {settings.steps - i * (half // settings.checks) for i in range(settings.checks)}
    seen: list[dict[str, dict[str, Params]]] = []
    history: dict[str, list[Tensor]] = {source: [] for source in SOURCES}

    for step, rows in enumerate(batches(data, settings), start=1):
        for tensor in params.values():
            tensor.requires_grad_()
        objectives = sample_losses(params, data.x[rows], data.y[rows]).unflatten(-1, (M, -1)).mean(-1)
        coefficients, state = weighting.update(objectives, state, preference)
        gradients = torch.autograd.grad((coefficients * objectives).sum(), list(params.values()))
        params = {name: tensor.detach() for name, tensor in params.items()}

        # To the conversions the shares are one more parameter, so that an answer's shares say which
        # iterates it is made of.
        record = params | {"shares": blocks[(step - 1) // BLOCK].expand(settings.seeds, -1)}
        measured = {"batch": objectives.detach()}
        if step % settings.every == 0:
            measured["held-out"] = class_losses(params, data, data.held_out)
        for source, values in measured.items():
            history[source].append(values)
            states[source] = {name: c.update(record, values, states[source][name]) for name, c in named.items()}
        if step % (settings.steps // 100) == 0:
            for source in SOURCES:
                size = eq.Adaptive().size(states[source]["K=None, p=0"])
                growth[source].append((step, size.tolist()))
        if step in checkpoints:
            seen.append({s: {name: c.output(states[s][name]) for name, c in named.items()} for s in SOURCES})
        with torch.no_grad():
            params = {
                name: tensor - settings.step_size * gradient
                for (name, tensor), gradient in zip(params.items(), gradients, strict=True)
            }

    answers = {
        source: {
            name: answer(weights_of(c, states[source][name]), [at[source][name] for at in seen], data, settings)
            for name, c in named.items()
        }
        for source in SOURCES
    }
    chances = {source: takeovers(torch.stack(values)) for source, values in history.items()}
    return Run(answers, growth, chances, time.perf_counter() - started)


def weights_of(conversion: eq.Conversion[Any], state: Any) -> Tensor:
    """γ of every copy, (seeds, copies); `Last` and `Average` have one."""
    if isinstance(conversion, eq.Adaptive):
        weights: Tensor = state.ledger.weights
        return weights
    return torch.ones(len(state.params["bias0"]), 1)


def takeovers(history: Tensor) -> tuple[float, float, float]:
    """How often a newcomer is below, in every objective, one of its predecessors and below their mean.

    A stored iterate is one of the predecessors, a merged member resembles their mean.

    Args:
        history: The recorded losses, (records, seeds, m). The predecessors are the last 7.5 % of all
            records; newcomers are those of the second half.

    Returns:
        The two frequencies, and how often a single objective is below its predecessors' mean.
    """
    window = max(1, round(0.075 * len(history)))
    one, mean, single = [], [], []
    for t in range(len(history) // 2, len(history)):
        before = history[t - window : t]
        one.append((history[t] <= before).all(-1).float().mean())
        below = history[t] <= before.mean(0)
        mean.append(below.all(-1).float().mean())
        single.append(below.float().mean())
    return torch.stack(one).mean().item(), torch.stack(mean).mean().item(), torch.stack(single).mean().item()


def answer(weights: Tensor, outputs: list[Params], data: Digits, settings: Settings) -> Answer:
    """Evaluate one conversion's answers at the checkpoints."""
    shares = outputs[-1]["shares"].double()
    middle = (torch.arange(shares.shape[-1]) + 0.5) * BLOCK / settings.steps
    return Answer(
        size=(weights > 0).sum(-1),
        heaviest=weights.amax(-1) / weights.sum(-1),
        spread=1.0 / shares.square().sum(-1),
        age=(shares * middle).sum(-1),
        train=torch.stack([class_losses(params, data, data.train) for params in outputs]).double(),
        test=torch.stack([class_losses(params, data, data.test) for params in outputs]).double(),
    )


# ------------------------------------------------------------------------------- what it says
def tch(losses: Tensor) -> Tensor:
    """max_i w_i f_i for the uniform preference: (*B, m) to (*B,)."""
    return losses.amax(-1) / M


def mean_and_error(per_seed: Tensor) -> tuple[float, float]:
    """Mean over the seeds and its standard error."""
    return per_seed.mean().item(), (per_seed.std() / math.sqrt(len(per_seed))).item()


def row(name: str, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """The numbers of one conversion, and its TCH value relative to the unbounded archive's, seed by seed."""
    this = answers[name]
    unbounded = answers[f"K=None, {name.partition(', ')[2] or 'p=0'}"]
    result: dict[str, Any] = {
        "conversion": name,
        "size": [int(this.size.min()), int(this.size.max())],
        "heaviest": this.heaviest.mean().item(),
        "spread": this.spread.mean().item(),
        "age": this.age.mean().item(),
    }
    for part in ("train", "test"):
        mine, theirs = getattr(this, part), getattr(unbounded, part)
        at_end = mine[-1]
        ratio = 100.0 * (tch(mine) / tch(theirs) - 1.0)
        result[part] = {
            "tch": tch(at_end).mean().item(),
            "mean": at_end.mean().item(),
            "worst": at_end.amax(-1).mean().item(),
            "tch_by_seed": tch(at_end).tolist(),
            "percent_at_end": mean_and_error(ratio[-1]),
            "percent_at_end_by_seed": ratio[-1].tolist(),
            "percent_second_half": mean_and_error(ratio.mean(0)),
        }
    return result


def verdict(percent: float, error: float) -> str:
    """Whether a relative difference is at most 1 %, as far as its standard error lets one say."""
    if percent + 2.0 * error <= 1.0:
        return "yes"
    return "no" if percent - 2.0 * error > 1.0 else "unclear"


def table(title: str, rows: list[dict[str, Any]]) -> str:
    head = (
        f"{'conversion':<14}{'copies':>12}{'blocks':>8}{'heaviest':>10}"
        f"{'TCH':>10}{'mean':>9}{'worst':>9}{'TCH':>10}{'mean':>9}{'worst':>9}"
        f"{'train %':>16}{'test %':>16}{'2nd half %':>16}"
    )
    lines = [title, f"{'':<44}{'training set':^28}{'test set':^28}{'TCH relative to K=None':^48}", head]
    for r in rows:
        low, high = r["size"]
        copies = str(low) if low == high else f"{low}–{high}"
        cells = f"{r['conversion']:<14}{copies:>12}{r['spread']:>8.0f}{r['heaviest']:>10.2f}"
        for part in ("train", "test"):
            cells += f"{r[part]['tch']:>10.5f}{r[part]['mean']:>9.4f}{r[part]['worst']:>9.4f}"
        for percent, error in (
            r["train"]["percent_at_end"],
            r["test"]["percent_at_end"],
            r["train"]["percent_second_half"],
        ):
            cells += f"{percent:>+9.1f} ± {error:<4.1f}"
        lines.append(cells)
    return "\n".join(lines)


def draw_growth(runs: Mapping[str, Run], out: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    for (mirror, result), style in zip(runs.items(), ("-", "--"), strict=True):
        for (source, title), colour in zip(SOURCES.items(), ("C3", "C0"), strict=True):
            steps = [step for step, _ in result.growth[source]]
            sizes = torch.tensor([size for _, size in result.growth[source]], dtype=torch.float32)
            axes.plot(steps, sizes.mean(-1), style, color=colour, label=f"{title} ({mirror})")
            axes.fill_between(steps, sizes.amin(-1), sizes.amax(-1), color=colour, alpha=0.12, linewidth=0)
    axes.axhline(8, color="black", linewidth=0.8, linestyle=":", label="K = 8")
    axes.set(xlabel="step", ylabel="copies of the model", yscale="log", title="archive without a capacity")
    axes.legend(fontsize=7)
    figure.savefig(out / "memory-archive.png", dpi=110)
    plt.close(figure)


def draw_capacity(rows: Mapping[str, Mapping[str, list[dict[str, Any]]]], out: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, grid = plt.subplots(1, 2, figsize=(9.0, 3.4), sharey=True, layout="constrained")
    bounded = [k for k in CAPACITIES if k is not None]
    for axes, (source, title) in zip(grid, SOURCES.items(), strict=True):
        axes.axhspan(-1, 1, color="0.85", label="± 1 %")
        shift = 0
        for mirror, by_source in rows.items():
            by_name = {r["conversion"]: r["train"]["percent_second_half"] for r in by_source[source]}
            for p in POWERS:
                points = torch.tensor([by_name[f"K={k}, p={p}"] for k in bounded])
                axes.errorbar(
                    torch.arange(len(bounded)) + 0.1 * (shift - 1.5),
                    points[:, 0],
                    2 * points[:, 1],
                    fmt="os"[p > 0],
                    color=("C1", "C2")[mirror == "Entropic"],
                    capsize=2,
                    markersize=4,
                    label=f"{mirror}, power {p}",
                )
                shift += 1
        axes.set_xticks(range(len(bounded)), [str(k) for k in bounded])
        axes.set(xlabel="capacity K", title=f"dominance on {title}")
    grid[0].set_ylabel("TCH value against K = None, %")
    grid[1].legend(fontsize=7)
    figure.savefig(out / "memory-capacity.png", dpi=110)
    plt.close(figure)


def verdicts(rows: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> str:
    """The question of the experiment, answered for every configuration."""
    lines = [
        "K = 8 at most 1 % above K = None in TCH value? (mean over the seeds ± standard error; sure by two of them)"
    ]
    for mirror, by_source in rows.items():
        for source, of_source in by_source.items():
            for r in (r for r in of_source if r["conversion"].startswith("K=8")):
                for part in ("train", "test"):
                    end, later = r[part]["percent_at_end"], r[part]["percent_second_half"]
                    lines.append(
                        f"{mirror:<10} {source:<9} {r['conversion']:<9} {part:<6}"
                        f"end {end[0]:+6.1f} ± {end[1]:.1f} % {verdict(*end):<8}"
                        f"second half {later[0]:+6.1f} ± {later[1]:.1f} % {verdict(*later)}"
                    )
    return "\n".join(lines)


def parse() -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/memory"), help="folder for the pictures and the JSON")
    parser.add_argument("--quick", action="store_true", help="400 steps and 3 seeds: does it run?")
    parser.add_argument("--seeds", type=int, default=Settings.seeds)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--per-class", type=int, default=Settings.per_class, help="samples of a class in a mini-batch")
    parser.add_argument("--step-size", type=float, default=Settings.step_size)
    parser.add_argument("--hidden", type=int, default=Settings.hidden, help="0: softmax regression (convex)")
    args = parser.parse_args()
    if args.seeds < 2 or args.steps < 100:
        parser.error(f"needs at least 2 seeds and 100 steps; found {args.seeds} and {args.steps}")
    settings = Settings(
        seeds=3 if args.quick else args.seeds,
        steps=400 if args.quick else args.steps,
        per_class=args.per_class,
        step_size=args.step_size,
        hidden=args.hidden,
    )
    return settings, args.out


def main() -> None:
    settings, out = parse()
    out.mkdir(parents=True, exist_ok=True)
    mpl.use("agg")
    torch.set_num_threads(1)
    data = digits()
    parts = {name: sum(map(len, getattr(data, name))) for name in ("train", "held_out", "test")}
    print(f"{settings}\nsamples: {parts}")

    runs: dict[str, Run] = {}
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for mirror, geometry in MIRRORS.items():
        runs[mirror] = run(eq.OMD(step_size="adaptive", mirror=geometry), data, settings)
        rows[mirror] = {}
        for source, title in SOURCES.items():
            answers = runs[mirror].answers[source]
            rows[mirror][source] = [row(name, answers) for name in answers]
            print("\n" + table(f"{mirror}, dominance on {title}", rows[mirror][source]))
            one, mean, single = runs[mirror].takeovers[source]
            print(f"How often a newcomer dominates a recent iterate: {one:.2%}; the mean of recent ones: {mean:.2%}")
            print(f"How often a single objective of it is below their mean: {single:.0%}")

    print("\n" + verdicts(rows))
    report = {
        "settings": asdict(settings),
        "torch": torch.__version__,
        "rows": rows,
        "archive": {mirror: result.growth for mirror, result in runs.items()},
        "takeovers": {mirror: result.takeovers for mirror, result in runs.items()},
    }
    (out / "memory.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draw_growth(runs, out)
    draw_capacity(rows, out)
    print(f"\n{sum(result.seconds for result in runs.values()):.0f} s; pictures and memory.json in {out}")


if __name__ == "__main__":
    main()
