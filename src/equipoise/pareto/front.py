"""The front that a model has learned: its losses along the preferences, how well it meets them, and a plot."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from equipoise import metrics
from equipoise.preference import ray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Front"]

BLUE, RED, GREY = "#0072B2", "#D55E00", "#BBBBBB"
"""The colours of the library's plots."""
RAYS = 9
"""The number of rays in the plot."""


def _ticks(largest: float) -> list[float]:
    """The ticks 0, 0.5, 1, 2, 5, 10, … up to the first one not below the largest value; if many, every third."""
    ticks = [0.0, 0.5]
    while ticks[-1] < max(largest, 1.0):
        ticks.append(ticks[-1] * (2.5 if f"{ticks[-1]:.0e}"[0] == "2" else 2.0))
    return ticks if len(ticks) <= 8 else [0.0, *ticks[:0:-3][::-1]]


@dataclass(frozen=True)
class Front:
    """The losses of one model at n preferences.

    Attributes:
        preferences: w, (n, m).
        losses: f, (n, m).
        above: (f − z)/u, the losses that the preferences refer to, (n, m).
        names: The objectives, if they have names.

    Examples:
        >>> w = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> losses = torch.tensor([[3.0, 1.0], [2.0, 1.0]])
        >>> front = eq.pareto.Front(w, losses, losses)
        >>> front.imbalance.tolist()  # ¾ = ¾, and 1/½ − 1
        [0.0, 1.0]
        >>> front.tch.tolist()
        [0.75, 1.0]
    """

    preferences: Tensor
    losses: Tensor
    above: Tensor
    names: tuple[str, ...] | None = None

    @property
    def imbalance(self) -> Tensor:
        """Largest over smallest w_i (f_i − z_i)/u_i, minus 1, (n,): 0 where the preference is met exactly."""
        return metrics.imbalance(self.above, self.preferences)

    @property
    def tch(self) -> Tensor:
        """The largest w_i (f_i − z_i)/u_i, (n,)."""
        return metrics.tch(self.above, self.preferences)

    def plot(self) -> "Figure":
        """A matplotlib figure: the learned front with the rays of the preferences, and the imbalance along it.

        For more than two objectives, each preference is a line over the objectives, and the imbalance is sorted.
        """
        from matplotlib.figure import Figure  # noqa: PLC0415

        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        labels = self.names or tuple(f"loss {i}" for i in range(self.losses.shape[-1]))
        order = self._draw_pairs(left, labels) if len(labels) == 2 else self._draw_lines(left, labels)
        percent = 100 * self.imbalance[order]
        if len(labels) == 2:
            right.plot(self.preferences[order, 0].tolist(), percent.tolist(), color=BLUE, linewidth=1.2)
            right.set_xlabel(f"weight of {labels[0]}")
        else:
            right.plot(percent.sort().values.tolist(), color=BLUE, linewidth=1.2)
            right.set_xlabel("preference, sorted by imbalance")
        right.axhline(float(percent.median()), color=RED, linewidth=0.8, linestyle="--", label="median")
        right.set_yscale("symlog", linthresh=1.0)
        ticks = _ticks(float(percent.nan_to_num(0.0, 0.0).max()))
        right.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
        right.minorticks_off()
        right.set_ylim(0.0, ticks[-1])
        right.set_ylabel("imbalance, %")
        right.legend(frameon=False)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        return figure

    def _draw_pairs(self, axes: "Axes", labels: tuple[str, ...]) -> Tensor:
        order = self.preferences[:, 0].argsort()
        f, above = self.losses[order], self.above[order]
        zero, unit = self._axes_of(f, above)
        stride = max(1, (len(f) - 1) // (RAYS - 1))
        inner = order[::stride][(self.preferences[order[::stride]] > 0).all(-1)]
        reach = above.norm(dim=-1).max() * 1.1
        for along in ray(self.preferences[inner]):
            end = zero + unit * along * reach
            axes.plot([zero[0].item(), end[0].item()], [zero[1].item(), end[1].item()], color=GREY, linewidth=0.6)
        axes.plot(f[:, 0].tolist(), f[:, 1].tolist(), color=BLUE, linewidth=1.2, label="learned front")
        axes.plot(*(self.losses[inner].T.tolist()), "o", color=RED, markersize=3, label="answers to the rays")
        low, high = f.amin(0), f.amax(0)
        edge = 0.05 * (high - low).clamp_min(1e-12)
        axes.set_xlim(min(zero[0].item(), (low - edge)[0].item()), (high + edge)[0].item())
        axes.set_ylim(min(zero[1].item(), (low - edge)[1].item()), (high + edge)[1].item())
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.legend(frameon=False)
        return order

    def _draw_lines(self, axes: "Axes", labels: tuple[str, ...]) -> Tensor:
        order = self.preferences[:, 0].argsort()
        for row in self.losses[order].tolist():
            axes.plot(row, color=BLUE, linewidth=0.5, alpha=0.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_ylabel("loss of the learned front")
        return order

    @staticmethod
    def _axes_of(losses: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        """The ideal z and the unit u, (2,) each, from f = z + u·(f − z)/u at two points that differ."""
        first, last = above.argmin(0), above.argmax(0)
        columns = range(above.shape[-1])
        a, b = above[first, columns], above[last, columns]
        fa, fb = losses[first, columns], losses[last, columns]
        unit = ((fb - fa) / (b - a).where(b > a, 1.0)).where(b > a, 1.0)
        return fa - unit * a, unit
