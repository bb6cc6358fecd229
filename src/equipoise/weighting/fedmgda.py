"""MGDA for federated learning, near the mean (FedMGDA+)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.batch import Number, per_instance
from equipoise.boxqp import box_min_norm
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.restricted import restrict


@dataclass(frozen=True)
class FedMGDAPlus(Weighting[Stateless]):
    r"""FedMGDA+ (Hu et al. 2022): the shortest combination of normalised updates, within ε of the mean.

    With u_i = g_i/‖g_i‖ the directions of the clients' (pseudo-)gradients,

        a = argmin ‖Σ a_i u_i‖²   over the simplex with |a_i − w_i| ≤ ε,

    and the shortest a if there are several solutions. ε = 0 is averaging, ε = 1 is MGDA on the normalised updates. The
    preference w is the centre of the box: 1/m for every client in the publication. If clients are absent, w is
    renormalised over those present. c is divided by the inclusion probability π if one is given.

    Attributes:
        epsilon: ε in [0, 1].
        aggregate: "directions": c_i = a_i/‖g_i‖, as published, so that a step is at most η long and needs a
            decaying η; "models": c_i = a_i, the average Σ a_i θ_i of the clients' models, as in the paper's tables. A
            client whose update is 0 has direction 0.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.FedMGDAPlus()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> [round(value, 3) for value in c.tolist()]  # how long an update is does not count
        [0.5, 0.25]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    epsilon: Number = 0.1
    aggregate: Literal["directions", "models"] = "directions"

    def __post_init__(self) -> None:
        epsilon = torch.as_tensor(self.epsilon)
        require(bool(((epsilon >= 0) & (epsilon <= 1)).all()), "epsilon must lie in [0, 1]", self.epsilon)
        known = ("directions", "models")
        require(self.aggregate in known, f"aggregate must be one of {known}", self.aggregate)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients a/‖g‖ or a, shape (*B, m)."""
        here = restrict(seen)
        length = here.gramian.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
        length = torch.where(length > 0, length, 1.0)
        cosines = here.gramian / length.unsqueeze(-1) / length.unsqueeze(-2)

        total = here.weight.sum(-1, keepdim=True)
        share = torch.where(total > 0, here.weight, here.present.to(total))
        centre = share / share.sum(-1, keepdim=True)
        epsilon = per_instance("epsilon", self.epsilon, centre)
        low = (centre - epsilon).clamp_min(0.0)
        high = torch.where(here.present, (centre + epsilon).clamp_max(1.0), 0.0)
        a = box_min_norm(cosines, low, high).to(centre)
        # `length` is the length of g/π.
        return here.coefficients(a * here.scale / length if self.aggregate == "directions" else a), state
