"""Pictures of fronts: solutions, preference rays and the front they should lie on, as PNG and PDF."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from equipoise import preference
from equipoise.conversion import Adaptive, AdaptiveState
from equipoise.problems import KnownFront

__all__ = ["conversion_steps", "front_grid", "front_panel", "save", "style"]

# Okabe and Ito's colours, which readers of all kinds of colour vision can tell apart, and shades of them.
BLUE, RED, BLACK = "#0072B2", "#D55E00", "#000000"
COLOURS: dict[str, str] = {
    "LS": BLACK,
    "TCH": RED,
    "STCH": "#E69F00",
    "OMDgd-TCH": "#56B4E9",
    "AdaOMDgd-TCH": BLUE,
    "OMDeg-TCH": "#8FA6D9",
    "AdaOMDeg-TCH": "#2B3F8C",
    "ExcessMTL": "#8C6D1F",
    "AdaExcessMTL": "#5C4508",
    "qFFL": "#999999",
    "PropFair": "#5F5F5F",
    "FedMGDA+": "#009E73",
    "FedFV": "#66C2A4",
    "MGDA": "#009E73",
    "CR-MOGM": "#00614A",
    "Moco": "#66C2A4",
    "EPO": "#CC79A7",
    "FERERO": "#8E4585",
    "FERERO (exact)": "#4B1D52",
    "PMTL": "#5D3A5A",
    "equipoise": "#8B0A3D",
}
"""One colour per method; families share a hue."""


def style() -> None:
    """Settings for pictures that go into a paper."""
    mpl.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.labelsize": 9,
            "legend.fontsize": 8,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "savefig.dpi": 200,
            "savefig.bbox": "tight",
            "pdf.fonttype": 42,
        }
    )


def front_panel(
    axes: Axes, problem: KnownFront, weights: Tensor, losses: Tensor, title: str, colour: str = BLUE
) -> None:
    """One method on one problem.

    Args:
        axes: Where to draw.
        problem: A problem of two objectives.
        weights: Preferences, shape (preferences, 2).
        losses: Solutions, shape (seeds, preferences, 2).
        title: Over the panel.
        colour: Of the solutions.
    """
    top = max(problem.reference[0], 1.05)
    front = _pieces(problem.front(400))
    for direction in preference.ray(weights).tolist():
        axes.plot([0, 4 * direction[0]], [0, 4 * direction[1]], ":", color="0.65", lw=0.7, zorder=1)
    axes.plot(front[:, 0], front[:, 1], color="0.35", lw=1.2, zorder=2)
    # Every seed's own solution: the mean of several would lie off a curved front.
    points = losses.reshape(-1, 2)
    axes.scatter(points[:, 0], points[:, 1], s=16, color=colour, edgecolors="white", linewidths=0.4, zorder=3)
    low = min(0.0, float(front[:, 1].nan_to_num(0.0).min()))
    axes.set(xlim=(-0.03, top), ylim=(low - 0.03, top), aspect="equal", title=title)


def _pieces(front: Tensor) -> Tensor:
    """The points of a front (n, 2) with a NaN in each gap, so that no line is drawn across it."""
    step = torch.linalg.vector_norm(front.diff(dim=0), dim=-1)
    gaps = (step > 8 * step.median()).nonzero().flatten() + 1
    nan = torch.full((1, 2), torch.nan, dtype=front.dtype)
    parts = [part for piece in torch.tensor_split(front, gaps) for part in (piece, nan)]
    return torch.cat(parts[:-1])


def front_grid(
    panels: Sequence[Sequence[tuple[KnownFront, str, Tensor]]],
    weights: Tensor,
    titles: Mapping[str, str] | None = None,
    size: float = 1.75,
) -> Figure:
    """Rows of panels (problem, method, losses); a column of one method is titled once."""
    style()
    rows, columns = len(panels), max(len(row) for row in panels)
    figure = Figure(figsize=(size * columns + 0.4, (size + 0.2) * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for r, row in enumerate(panels):
        for c, (problem, method, losses) in enumerate(row):
            repeated = r > 0 and c < len(panels[r - 1]) and panels[r - 1][c][1] == method
            title = "" if repeated else (titles or {}).get(method, method)
            front_panel(grid[r, c], problem, weights, losses, title, COLOURS.get(method, BLUE))
        for c in range(len(row), columns):
            grid[r, c].set_axis_off()
        grid[r, 0].set_ylabel("$f_2$")
    for c in range(columns):
        grid[-1, c].set_xlabel("$f_1$")
    return figure


def conversion_steps(conversion: Adaptive, iterates: Tensor) -> Figure:
    """The archive after each iterate, and the output: members by weight, the discarded as crosses.

    Args:
        conversion: The conversion.
        iterates: Iterates that are their own objective vectors, shape (T, 2).
    """
    style()
    count = len(iterates)
    figure = Figure(figsize=(1.75 * (count + 1), 2.0), layout="constrained")
    grid = figure.subplots(1, count + 1, sharex=True, sharey=True)
    state = conversion.init({"x": iterates[0]}, iterates[0])
    for t, (axes, point) in enumerate(zip(grid, iterates, strict=False), 1):
        state = conversion.update({"x": point}, point, state)
        _archive_panel(axes, iterates[:t], state)
        axes.set_title(f"$t$ = {t}")
    _archive_panel(grid[-1], iterates, state)
    output = conversion.output(state)["x"]
    grid[-1].scatter(output[0], output[1], marker="*", s=90, color=RED, zorder=4)
    grid[-1].annotate("output", output.tolist(), xytext=(-40, -12), textcoords="offset points", color=RED)
    grid[-1].set_title("output")
    top = float(iterates.max()) * 1.15
    for axes in grid:
        axes.set(xlim=(0, top), ylim=(0, top), aspect="equal", xlabel="$f_1$", xticks=[], yticks=[])
    grid[0].set_ylabel("$f_2$")
    return figure


def _archive_panel(axes: Axes, iterates: Tensor, state: AdaptiveState) -> None:
    weights, slots = state.ledger.weights, state.slots["x"]
    members = {tuple(slot.tolist()): float(w) for slot, w in zip(slots, weights, strict=True) if w > 0}
    for t, point in enumerate(iterates.tolist(), 1):
        gamma = members.get(tuple(point))
        if gamma is None:
            axes.scatter(point[0], point[1], marker="x", s=28, color="0.6", zorder=2)
            label, colour = f"$\\theta^{{({t})}}$", "0.6"
        else:
            axes.scatter(point[0], point[1], s=30 + 40 * gamma, color=BLUE, zorder=3)
            label, colour = f"$\\theta^{{({t})}}$  $\\gamma$ = {gamma:g}", BLACK
        axes.annotate(label, point, xytext=(6, 5), textcoords="offset points", fontsize=7, color=colour)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as PDF.

    Returns:
        The two paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    for path in paths:
        # A fixed date keeps the same picture the same file.
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths


def tensor(losses: list[list[list[float]]]) -> Tensor:
    """Losses as the cells have them, (seeds, preferences, m)."""
    return torch.tensor(losses, dtype=torch.float64)
