"""Figures of fronts: solutions, preference rays and the front that they should lie on."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from equipoise import preference
from equipoise.conversion import Adaptive, AdaptiveState, Average, Last
from equipoise.experiments.drawing import BLACK, BLUE, RED, colour, save, style
from equipoise.experiments.item import Request, item
from equipoise.experiments.render import wrote
from equipoise.experiments.synthetic import settings
from equipoise.experiments.synthetic.tables import provide
from equipoise.problems import VLMOP2, KnownFront
from equipoise.registry import methods
from equipoise.simplex import Entropic, Euclidean
from equipoise.solver import Run, solve_many
from equipoise.weighting import OMD, Linear, SmoothTchebycheff, Tchebycheff

__all__ = [
    "conversion_steps", "fig_adaptive", "fig_fronts", "fig_middle_ground", "fig_overview", "fig_vlmop2", "front_grid",
    "front_panel",
]  # fmt: skip


# ------------------------------------------------------------------------------- figures of the paper
@item("fig:1", "Figure 1")
def fig_adaptive(request: Request) -> None:
    """A sample run of the adaptive conversion."""
    # Here θ is its own objective vector, so that the output can be drawn among the iterates.
    iterates = torch.tensor([[2.0, 2.0], [2.6, 2.5], [1.4, 1.5], [2.2, 0.8]])
    wrote(request, save(conversion_steps(Adaptive(), iterates), request.out, "fig-adaptive"))


_FIG2 = (("LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH"), ("MGDA", "PMTL", "ExcessMTL", "EPO", "FERERO"))
_FRONTS = {
    "fig-4": ("LS", "TCH", "MGDA", "CR-MOGM", "Moco"),
    "fig-8": ("STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH"),
    "fig-10": ("ExcessMTL", "PMTL", "EPO", "FERERO"),
}


@item("fig:2", "Figure 2", ("preset", "workers"))
def fig_vlmop2(request: Request) -> None:
    """Ten methods on VLMOP2."""
    wanted = {name for row in _FIG2 for name in row}
    rows = [row for row in settings.settings(request.settings) if row.method in wanted]
    found = {cell.method: cell.points for cell in provide(request, ["VLMOP2"], rows)}
    problem = VLMOP2()
    panels = [[(problem, method, found[method]) for method in row] for row in _FIG2]
    titles = {"OMDgd-TCH": "OMD-TCH", "AdaOMDgd-TCH": "AdaOMD-TCH"}
    figure = front_grid(panels, preference.linspace(settings.PREFERENCES), titles)
    wrote(request, save(figure, request.out, f"fig-vlmop2-{request.settings}"))


_OVERVIEW = {
    "LS": "weighted sum (LS)",
    "TCH": "worst objective (TCH)",
    "AdaOMDgd-TCH": "AdaOMD-TCH (paper)",
    "equipoise": "equipoise (default)",
}


@item("-", "README", ("preset", "workers"))
def fig_overview(request: Request) -> None:
    """LS, TCH, AdaOMD-TCH and the library's default on VLMOP2."""
    ours = methods()["equipoise"]
    rows = [row for row in settings.settings(request.settings) if row.method in _OVERVIEW]
    rows.append(settings.own_row("equipoise", ours))
    problem, weights = VLMOP2(), preference.linspace(settings.PREFERENCES)
    cells = {cell.method: cell for cell in provide(request, ["VLMOP2"], rows)}
    panels = [[(problem, method, cells[method].points) for method in _OVERVIEW]]
    titles = {method: f"{title}\n{_off(cells[method].imbalance)}" for method, title in _OVERVIEW.items()}
    figure = front_grid(panels, weights, titles, size=1.6)
    figure.axes[0].set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))  # shared by all panels
    wrote(request, save(figure, request.out, f"fig-overview-{request.settings}"))


def _off(imbalance: float) -> str:
    """How far the median solution is from its ray, in words."""
    if imbalance < 0.001:
        return "off by < 0.1 %"
    return "off by > 999 %" if imbalance >= 10 else f"off by {100 * imbalance:.1f} %"


@item("fig:4, fig:8, fig:10", "appendix B", ("preset", "workers"))
def fig_fronts(request: Request) -> None:
    """All methods on all problems."""
    cells = provide(request, settings.PROBLEMS, settings.settings(request.settings))
    found = {(c.method, c.problem): c.points for c in cells}
    for name, names in _FRONTS.items():
        panels = [
            [(settings.problem_of(problem, request.settings), method, found[method, problem]) for method in names]
            for problem in settings.PROBLEMS
        ]
        figure = front_grid(panels, preference.linspace(settings.PREFERENCES), size=1.6)
        for row, problem in zip(figure.axes[:: len(names)], settings.PROBLEMS, strict=True):
            row.set_ylabel(f"{problem}\n$f_2$")
        wrote(request, save(figure, request.out, f"{name}-{request.settings}"))


@item("fig:9", "appendix B")
def fig_middle_ground(request: Request) -> None:
    """From LS to TCH by λ's step, from STCH to OMD by optimism."""
    steps = (0.001, 0.01, 0.03, 0.1, 1.0)
    eta = torch.tensor(steps).reshape(-1, 1, 1)
    # In the second row ηc = 1/μ: the smaller η, the smaller the sum over steps, until only STCH's softmax is left.
    stch, gd, eg = SmoothTchebycheff(0.01), Euclidean(), Entropic()
    product = 1.0 / 0.01
    runs = {
        "LS": Run(Linear(), {"x": Last()}, 0.01),
        "OMDgd": Run(OMD(eta, gd), {"x": Average()}, 0.02, sweep=(len(steps),)),
        "TCH": Run(Tchebycheff(), {"x": Last()}, 0.01),
        "STCH": Run(stch, {"x": Last()}, 0.02),
        "optimistic": Run(OMD(eta, eg, optimism=product / eta), {"x": Last()}, 0.02, sweep=(len(steps),)),
        "OMDeg": Run(OMD(1.0, eg), {"x": Last()}, 0.02),
    }
    problem, weights = VLMOP2(), preference.linspace(settings.PREFERENCES)
    found = solve_many(problem, weights, runs, seeds=settings.SEEDS, progress=request.console.is_terminal)
    losses = {name: solution.losses["x"].to(torch.float64) for name, solution in found.items()}
    above = [(problem, f"$\\eta_\\lambda$ = {value:g}", losses["OMDgd"][k]) for k, value in enumerate(steps)]
    below = [(problem, f"$c$ = {product / value:,.0f}", losses["optimistic"][k]) for k, value in enumerate(steps)]
    rows = [
        [(problem, "LS", losses["LS"]), *above, (problem, "TCH", losses["TCH"])],
        [(problem, "STCH", losses["STCH"]), *below, (problem, "$c$ = 0", losses["OMDeg"])],
    ]
    figure = front_grid(rows, weights)
    wrote(request, save(figure, request.out, "fig-middle-ground"))


# ------------------------------------------------------------------------------- panels
def front_panel(
    axes: Axes, problem: KnownFront, weights: Tensor, losses: Tensor, title: str, colour: str = BLUE
) -> None:
    """One method's solutions (seeds, preferences, 2) on a problem of two objectives, with the preferences' rays."""
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
    """Rows of panels (problem, method, losses); a column with a single method has one title."""
    style()
    rows, columns = len(panels), max(len(row) for row in panels)
    figure = Figure(figsize=(size * columns + 0.4, (size + 0.2) * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for r, row in enumerate(panels):
        for c, (problem, method, losses) in enumerate(row):
            repeated = r > 0 and c < len(panels[r - 1]) and panels[r - 1][c][1] == method
            title = "" if repeated else (titles or {}).get(method, method)
            front_panel(grid[r, c], problem, weights, losses, title, colour(method))
        for c in range(len(row), columns):
            grid[r, c].set_axis_off()
        grid[r, 0].set_ylabel("$f_2$")
    for c in range(columns):
        grid[-1, c].set_xlabel("$f_1$")
    return figure


def conversion_steps(conversion: Adaptive, iterates: Tensor) -> Figure:
    """The archive after each iterate (T, 2), and the output: members sized by weight, discarded iterates as crosses.

    The iterates are their own objective vectors.
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
