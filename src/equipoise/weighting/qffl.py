"""Fair federated learning by a power of the losses (q-FFL)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, check_positive, per_instance
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.reweighted import weigh_gramian

_FLOOR = 1e-10


@dataclass(frozen=True)
class QFFL(Weighting[Stateless]):
    r"""q-FedAvg (Li et al. 2020): a step on Σ w_i L_i^(q+1)/(q+1) with its own estimate of the curvature.

    With L_i the losses of the clients and g_i their (pseudo-)gradients,

        h_i = q L_i^(q−1) ‖g_i‖² + L_i^q/η,   c_i = w_i L_i^q / (η Σ w_j h_j),

    so that θ ← θ − η Σ c_i g_i is the published θ ← θ − Σ L_i^q g_i / Σ h_i for uniform w. q = 0 is
    averaging, c = w; the larger q, the more the worst client decides. Σc < 1 for q > 0: the step is shorter
    where the objective is steep.

    Both sums run over the clients that are present, with w_i/π_i for w_i if an inclusion probability π is given: c is
    then a ratio of unbiased estimates. Only the diagonal of the Gramian is read. Losses must be non-negative; they are
    clamped to at least 1e-10.

    Attributes:
        q: q ≥ 0.
        step_size: η > 0, the step size of the clients' local work and of the server's step.

    Examples:
        >>> losses, w = torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.QFFL(q=1.0, step_size=1.0)
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=torch.eye(2))
        >>> [round(value, 3) for value in c.tolist()]  # h = (1 + 2, 1 + 1), so (1, ½)/2.5
        [0.4, 0.2]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})

    q: Number = 0.1
    step_size: Number = 0.1

    def __post_init__(self) -> None:
        check_non_negative("q", self.q)
        check_positive("step_size", self.step_size)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients w∘L^q/(η Σ w_j h_j), shape (*B, m)."""
        part = seen.weight > 0
        square = weigh_gramian(seen.gramian, part.to(seen.weight)).diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
        q = per_instance("q", self.q, seen.weight)
        eta = per_instance("step_size", self.step_size, seen.weight)
        valid = seen.valid
        # Everything is divided by max L^q, which cancels, so that no power overflows.
        values = torch.where(part & valid, seen.losses, 0.0).clamp_min(_FLOOR)
        largest = values.amax(-1, keepdim=True)
        relative = values / largest
        power = seen.weight * relative**q
        steepness = seen.weight * q * relative ** (q - 1.0) * (square / largest)
        total = (eta * steepness + power).sum(-1, keepdim=True)
        sound = valid & torch.isfinite(total) & (total > 0)
        return torch.where(sound, power / torch.where(sound, total, 1.0), 0.0), state
