"""The multiple gradient descent algorithm (MGDA)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.minnorm import min_norm
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.reweighted import weigh_gramian


@dataclass(frozen=True)
class MGDA(Weighting[Stateless]):
    r"""MGDA (Désidéri 2012, Sener and Koltun 2018): step along the shortest convex combination of gradients.

    On the weighted objectives w∘f, with rows w_i ∇f_i/n_i,

        α = argmin over the simplex of ‖Σ α_i (w_i/n_i) ∇f_i‖²,   c_i = α_i w_i/n_i,

    so that d = Σ c_i ∇f_i decreases every objective, and d = 0 at a Pareto-stationary point. The end point depends more
    on the start than on w. With uniform w and no normalisation this is plain MGDA with steps 1/m as long. Objectives
    with w_i = 0 are ignored.

    Attributes:
        normalize: n_i: "none" is 1, "l2" is ‖∇f_i‖, "loss" is f_i, "loss+" is f_i ‖∇f_i‖. The losses
            must be positive for the last two. An objective whose n_i is 0 is not scaled.
        raw_weights: Whether c_i = α_i w_i even with a normalisation, as in Sener and Koltun; then d need not decrease
            every objective.
        margin: For two objectives: if α is an end point of [0, 1], move it inwards by this much, as the first released
            solvers do (0.001). 0 is exact.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.MGDA()
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)  # α = (0.6, 0.4)
        >>> [round(value, 3) for value in c.tolist()], [round(value, 3) for value in (J @ (c @ J)).tolist()]
        ([0.3, 0.2], [0.1, 0.1])
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gramian"})
    traceable: ClassVar[bool] = False

    normalize: Literal["none", "l2", "loss", "loss+"] = "none"
    raw_weights: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        known = ("none", "l2", "loss", "loss+")
        require(self.normalize in known, f"normalize must be one of {known}", self.normalize)
        require(0 <= self.margin <= 0.5, "margin must lie in [0, 0.5]", self.margin)

    def step(self, seen: Seen, state: Stateless) -> tuple[Tensor, Stateless]:
        """Coefficients α∘w/n, shape (*B, m)."""
        m = seen.losses.shape[-1]
        require(self.margin == 0 or m == 2, "margin must be 0 unless there are two objectives", (self.margin, m))
        K, weight, part = weigh_gramian(seen.gramian, seen.weight), seen.weight, seen.weight > 0
        if self.normalize != "none":
            n = self._scale(seen, part & seen.valid)
            K = K / n.unsqueeze(-1) / n.unsqueeze(-2)
            weight = weight if self.raw_weights else weight / n
        alpha = min_norm(K, part)
        if self.margin > 0:
            alpha = torch.where(part.all(-1, keepdim=True), self._inwards(alpha, K), alpha)
        return (alpha * weight).clamp_max(torch.finfo(seen.dtype).max), state

    @property
    def uses_duals(self) -> bool:
        """Whether the coefficients are λ∘w: unless the gradients are scaled."""
        return self.normalize == "none" or self.raw_weights

    def _scale(self, seen: Seen, part: Tensor) -> Tensor:
        """n, and 1 where that is 0 or not finite, shape (*B, m)."""
        length = seen.gramian.diagonal(dim1=-2, dim2=-1).to(torch.float64).clamp_min(0.0).sqrt()
        values = seen.losses.to(length)
        if self.normalize != "l2":
            refused = values[part & (values <= 0)]
            rule = f'losses must be positive for normalize="{self.normalize}"'
            require(refused.numel() == 0, rule, refused[:1].tolist())
        scale = {"l2": length, "loss": values, "loss+": values * length}[self.normalize]
        return torch.where((scale > 0) & (scale < torch.inf), scale, 1.0)

    def _inwards(self, alpha: Tensor, K: Tensor) -> Tensor:
        """α with its end points moved inwards; of two identical gradients the first counts as the shorter."""
        first, second, cross = K[..., 0, 0], K[..., 1, 1], K[..., 0, 1]
        share = torch.where(second <= cross, self.margin, alpha[..., 0])
        share = torch.where(first <= cross, 1.0 - self.margin, share)
        return torch.stack([share, 1.0 - share], -1)
