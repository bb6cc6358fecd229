"""Figures of the federated experiments: curves, scatters, boxes, weights. One row or column of panels per task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from equipoise.experiments.comparison import count_seeds
from equipoise.experiments.drawing import colour, save, style
from equipoise.experiments.federated.compute import gather
from equipoise.experiments.federated.rows import MNIST
from equipoise.experiments.federated.scores import Entry, Metric
from equipoise.experiments.federated.settings import EVERY, METHODS, title
from equipoise.experiments.federated.tables import TAKES_TASK, by_task, wanted
from equipoise.experiments.item import Item, Request
from equipoise.experiments.render import say, wrote

__all__ = ["all_methods", "boxes", "conversion", "curves", "parity", "weights"]

Tasks = Sequence[tuple[str, Sequence[Entry]]]
"""The methods to draw, task by task."""

LABELS: dict[Metric, str] = {
    "accuracy": "average accuracy (%)",
    "agnostic_loss": "agnostic loss",
    "accuracy_parity": "accuracy parity (points)",
}
MARKERS: dict[str, str] = {
    "LS": "o", "qFFL": "s", "PropFair": "v", "FedMGDA+": "^", "FedFV": "P", "TCH": "X", "STCH": "d", "EPO": "<",
    "FERERO": ">", "FERERO (exact)": "*", "ExcessMTL": "h", "AdaExcessMTL": "H",
    "OMDgd-TCH": "o", "AdaOMDgd-TCH": "D", "OMDeg-TCH": "s", "AdaOMDeg-TCH": "p", "equipoise": "*",
}  # fmt: skip

_DASHES = {"OMDgd-TCH": "--", "OMDeg-TCH": ":", "ExcessMTL": "--"}
"""Averages are dashed lines, as they often overlap."""
_PART = {"train_loss": "on training samples", "test_loss": "on test samples"}
FEW = 8
"""Fewer seeds than this are drawn one by one."""
PAPER_MARK: dict[str, Any] = {"marker": "|", "color": "black", "ms": 9, "mew": 1.2}
"""How the paper's mean is drawn."""
LARGEST = 10.0
"""Weights above this many equal shares, or below the inverse, have the last colour."""


# ------------------------------------------------------------------------------- what is drawn
def curves(tasks: Tasks) -> Figure:
    """The worst client's loss of each method's current answer, over the rounds."""
    keys = [key for key in ("train_loss", "test_loss") if all(_measured(e, key) for _, of in tasks for e in of)]
    shape = (len(tasks), len(keys)) if len(keys) > 1 else (1, len(tasks))
    figure, grid = _panels(*shape, (3.1, 2.1), sharex="row", sharey="row" if len(keys) > 1 else False)
    for (task, entries), row in zip(tasks, grid.reshape(len(tasks), len(keys)), strict=True):
        for axes, key in zip(row, keys, strict=True):
            for entry in entries:
                rounds, losses = _curve(entry, key)
                mean, std = losses.mean(0), losses.std(0)
                axes.plot(rounds, mean, **_line(entry.name))
                low = np.maximum(mean - std, 1e-3)
                axes.fill_between(rounds, low, mean + std, color=colour(entry.name), alpha=0.13, lw=0)
            _over_rounds(axes)
            axes.set_title(f"{title(task)}: {_PART[key]}")
        row[0].set_ylabel("worst client's loss")
    _note(figure, tasks, "mean and standard deviation")
    _legend(figure, tasks, line=True, mark=False)
    return figure


def conversion(tasks: Tasks) -> Figure:
    """The worst client's loss of one seed over the rounds, and where the methods end over all seeds."""
    figure, grid = _panels(len(tasks), 2, (3.1, 2.5))
    for (task, entries), (left, right) in zip(tasks, grid, strict=True):
        key = "train_loss" if all(_measured(entry, "train_loss") for entry in entries) else "test_loss"
        for entry in entries:
            rounds, losses = _curve(entry, key)
            left.plot(rounds, losses[0], **_line(entry.name))
        _over_rounds(left)
        left.set(ylabel=f"worst client's loss, {_PART[key]}", title=f"{title(task)}: seed {entries[0].seeds[0]}")
        _scatter(right, entries)
        right.set(ylabel=LABELS["accuracy"], title="at the end")
    _note(figure, tasks, "right: means")
    _legend(figure, tasks, line=True, mark=True)
    return figure


def parity(tasks: Tasks) -> Figure:
    """Average accuracy against accuracy parity, which is √(mean over the seeds of the variance)."""
    figure, grid = _panels(1, len(tasks), (2.7, 2.7))
    for (task, entries), axes in zip(tasks, grid[0], strict=True):
        _scatter(axes, entries)
        axes.set_title(title(task))
    grid[0, 0].set_ylabel(LABELS["accuracy"])
    _note(figure, tasks, "means")
    _legend(figure, tasks, line=False, mark=True)
    return figure


def boxes(tasks: Tasks) -> Figure:
    """Every metric of every method: a box over the seeds, or the seeds themselves where they are fewer than eight."""

    def spread(axes: Axes, entry: Entry, metric: Metric, place: int) -> None:
        values, shade = entry.values(metric).numpy(), colour(entry.name)
        if len(values) < FEW:
            axes.plot(values, np.full(len(values), place), "o", color=shade, ms=3.5, alpha=0.7, mew=0)
            axes.plot(values.mean(), place, "|", color=shade, ms=9, mew=1.6)
            return
        drawn = axes.boxplot(
            [values], orientation="horizontal", widths=0.65, patch_artist=True, whis=(0, 100), positions=[place],
            manage_ticks=False,
        )  # fmt: skip
        drawn["boxes"][0].set(facecolor=shade, alpha=0.85, lw=0.6)
        drawn["medians"][0].set(color="white", lw=1.1)

    figure = _methods_by_metric(tasks, LABELS, (2.3, 0.2), spread)
    _note(figure, tasks, "box: quartiles, whiskers: range; points: single seeds, with their mean")
    return figure


def all_methods(tasks: Tasks) -> Figure:
    """Average accuracy and agnostic loss of every method, mean ± standard deviation, and the paper's mean."""

    def bar(axes: Axes, entry: Entry, metric: Metric, place: int) -> None:
        mean, std = entry.score(metric)
        axes.errorbar(mean, place, xerr=std, fmt="o", color=colour(entry.name), ms=5, lw=1.4, capsize=2)
        if entry.claimed and metric in entry.paper:
            axes.plot(entry.paper[metric].mean, place, **PAPER_MARK)

    better: dict[Metric, str] = {"accuracy": "→ better", "agnostic_loss": "← better"}
    labels = {metric: f"{LABELS[metric]}  ({arrow})" for metric, arrow in better.items()}
    figure = _methods_by_metric(tasks, labels, (3.2, 0.19), bar)
    _note(figure, tasks, "mean, and standard deviation as bars")
    if any(entry.claimed and metric in entry.paper for _, of in tasks for entry in of for metric in labels):
        mark = Line2D([], [], ls="", label="the paper's mean", **PAPER_MARK)
        figure.legend(handles=[mark], loc="outside lower center", frameon=False)
    return figure


def _methods_by_metric(
    tasks: Tasks,
    labels: Mapping[Metric, str],
    size: tuple[float, float],
    draw: Callable[[Axes, Entry, Metric, int], None],
) -> Figure:
    """A row of panels per task, a panel per metric, a line per method; `size` is that of a panel and of a line."""
    height = size[1] * max(len(entries) for _, entries in tasks) + 0.5
    figure, grid = _panels(len(tasks), len(labels), (size[0], height), sharey="row")
    for (task, entries), row in zip(tasks, grid, strict=True):
        for axes, (metric, label) in zip(row, labels.items(), strict=True):
            for place, entry in enumerate(entries):
                draw(axes, entry, metric, place)
            axes.grid(axis="x", color="0.9", lw=0.6)
            axes.set_axisbelow(True)
            axes.set_xlabel(label)
        names = [entry.name for entry in entries]
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.4, -0.6)  # from top to bottom
        for text, name in zip(row[0].get_yticklabels(), names, strict=True):
            text.set(color=colour(name) if _family(name) else "black", fontweight=_weight(name))
        row[0].set_title(title(task), loc="left", fontweight="bold")
    return figure


def weights(tasks: Tasks) -> Figure:
    """The weight of every client in the server's step, over the rounds of the first seed; 1 is an equal share."""
    columns = max(len(entries) for _, entries in tasks)
    figure, grid = _panels(len(tasks), columns, (1.9, 1.55), sharey="row")
    image = None
    for (task, entries), row in zip(tasks, grid, strict=True):
        for axes, entry in zip(row, entries, strict=False):
            c = np.array(entry.results[0]["coefficients"], dtype=np.float64).T
            image = axes.imshow(
                np.log2(np.clip(len(c) * c, 1 / LARGEST, LARGEST)), aspect="auto", cmap="RdBu_r",
                vmin=-np.log2(LARGEST), vmax=np.log2(LARGEST),
                extent=(0, EVERY * c.shape[1], len(c) - 0.5, -0.5), interpolation="nearest",
            )  # fmt: skip
            axes.set_title(entry.name, color=colour(entry.name), fontweight=_weight(entry.name))
            axes.set_yticks(range(0, len(c), max(1, len(c) // 5)))
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
            axes.set_xlabel("round")
        for axes in row[len(entries) :]:
            axes.set_axis_off()
        row[0].set_ylabel(f"{title(task)}\nclient")
    if image is not None:
        bar = figure.colorbar(
            image, ax=grid.ravel().tolist(), shrink=0.8, aspect=25, pad=0.01, label="weight of the client × clients"
        )  # fmt: skip
        ticks = ("0", "1/4", "1/2", "1", "2", "4", f"{LARGEST:g}")
        bar.set_ticks([-np.log2(LARGEST), -2, -1, 0, 1, 2, np.log2(LARGEST)], labels=list(ticks))
    return figure


# ------------------------------------------------------------------------------- pieces
def _panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, NDArray[np.object_]]:
    style()
    figure = Figure(figsize=(size[0] * columns + 0.3, size[1] * rows + 0.5), layout="constrained")
    grid: NDArray[np.object_] = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, grid


def _scatter(axes: Axes, entries: Sequence[Entry]) -> None:
    # The large marks first, so that they hide no small ones.
    for entry in sorted(entries, key=lambda entry: not _family(entry.name)):
        deviation = float(entry.values("accuracy_parity").square().mean().sqrt())
        axes.plot(deviation, entry.score("accuracy").mean, ls="", **_mark(entry.name))
    axes.set_xlabel(LABELS["accuracy_parity"])
    axes.margins(0.08)
    axes.grid(color="0.9", lw=0.6)
    axes.set_axisbelow(True)


def _curve(entry: Entry, key: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rounds (n,) and the values of every seed (S, n)."""
    curves = [result["curves"][entry.output] for result in entry.results]
    return np.array(curves[0]["round"]), np.array([curve[key] for curve in curves])


def _measured(entry: Entry, key: str) -> bool:
    """Whether a curve is of the method's output: on CIFAR-10 only the trajectory's training loss was kept."""
    return key != "train_loss" or not any("round_loss" in result for result in entry.results)


def _note(figure: Figure, tasks: Tasks, what: str) -> None:
    """Write above the figure what is drawn, and of how many seeds."""
    seeds = count_seeds(len(entry.seeds) for _, entries in tasks for entry in entries)
    figure.suptitle(f"{what}; {seeds}", fontsize=8, color="0.35")


def _over_rounds(axes: Axes) -> None:
    """A logarithmic axis with enough tick labels, even if it is short."""
    axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high / low > 6 else MaxNLocator(5))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _legend(figure: Figure, tasks: Tasks, *, line: bool, mark: bool) -> None:
    names = list(dict.fromkeys(entry.name for _, entries in tasks for entry in entries))
    handles = [
        Line2D([], [], label=name, **{**_line(name), **({} if line else {"ls": ""}), **(_mark(name) if mark else {})})
        for name in names
    ]
    # Columns as wide as the longest name, so that the legend is never wider than the figure.
    columns = max(1, int(figure.get_figwidth() / (0.075 * max(map(len, names)) + 0.45)))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, 5, len(names)), frameon=False)


def _mark(name: str) -> dict[str, Any]:
    own = _family(name)
    return {
        "marker": MARKERS.get(name, "o"),
        "color": colour(name),
        "ms": 8 if own else 6,
        "mec": "black" if own else "white",
        "mew": 0.7,
    }


def _line(name: str) -> dict[str, Any]:
    return {
        "color": colour(name),
        "lw": 1.8 if _family(name) else 1.2,
        "ls": _DASHES.get(name, "-"),
        "zorder": 3 if _family(name) else 2,
    }


def _family(name: str) -> bool:
    return "OMD" in name


def _weight(name: str) -> str:
    return "bold" if _family(name) else "normal"


# ------------------------------------------------------------------------------- the figures of the command line
def _figure(
    name: str,
    label: str,
    number: str,
    caption: str,
    draw: Callable[[Tasks], Figure],
    methods: Sequence[str] = METHODS,
    tasks: Sequence[str] = MNIST,
) -> Item:
    def run(request: Request) -> None:
        found = list(by_task(gather(request, name, wanted(request, tasks, methods))))
        if not found:
            say(request.console, "there is nothing to draw")
            return
        data = "-".join(dict.fromkeys(task.partition("-")[0] for task, _ in found))
        wrote(request, save(draw(found), request.out, f"{name}-{data}-{request.settings}"))

    return Item(label, number, caption, run, TAKES_TASK - {"json_file", "markdown_file"})


_SIX = ("LS", "TCH", "OMDgd-TCH", "OMDeg-TCH", "AdaOMDgd-TCH", "AdaOMDeg-TCH")
_WEIGHED = ("TCH", "STCH", "FedMGDA+", "ExcessMTL", "OMDgd-TCH", "OMDeg-TCH")

fig_federated = _figure(
    "fig-federated", "fig:3", "section 4.2", "Accuracy and agnostic loss of all methods", all_methods
)
fig_conversion = _figure(
    "fig-conversion", "fig:new-in", "section 4.2", "OMD updates and the conversion", conversion, _SIX, MNIST[:1]
)
fig_curves = _figure("fig-curves", "fig:5", "appendix B.2", "Worst-client loss over the rounds", curves, _SIX)
fig_parity = _figure("fig-parity", "fig:6", "appendix B.2", "Accuracy against accuracy parity", parity)
fig_box = _figure("fig-box", "fig:7", "appendix B.2", "Three metrics of every method over the seeds", boxes)
fig_weights = _figure("fig-weights", "-", "-", "The clients' weights over the rounds", weights, _WEIGHED)
