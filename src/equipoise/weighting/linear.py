"""Linear scalarization (LS, FedAvg)."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.weighting.protocol import Ideal, Seen, Stateless, Weighting, see


@dataclass(frozen=True)
class Linear(Weighting[Stateless]):
    r"""Linear scalarization: min Σ w_i f_i, so c = w.

    It finds the Pareto point at which w is normal to the front. It finds no point on a concave part of the front, and
    the trade-off depends on the front's shape.

    Attributes:
        ideal: The ideal point z; it shifts the value and does not change the coefficients.

    Examples:
        >>> losses, w = torch.tensor([4.0, 2.0]), torch.tensor([0.25, 0.75])
        >>> weighting = eq.Linear()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w)
        >>> c.tolist(), weighting.value(losses, w).item()
        ([0.25, 0.75], 2.5)
    """

    ideal: Ideal = 0.0

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients w, shape (*B, m)."""
        return seen.weight, state

    def foreseen(self, state: Stateless, preference: Tensor) -> Tensor | None:
        """The preference."""
        return preference

    def value(self, losses: Tensor, preference: Tensor) -> Tensor:
        """Σ w_i (f_i − z_i), shape (*B,)."""
        return see(losses, preference, self.ideal).gain.sum(-1)
