"""Multi-objective gradient correction (MoCo)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import Number, apply, check_non_negative, check_positive, per_instance
from equipoise.errors import require
from equipoise.simplex import Euclidean
from equipoise.weighting.protocol import Seen, Weighting, keep, working_dtype
from equipoise.weighting.reweighted import row_dtype, weigh_gramian, weigh_jacobian
from equipoise.weighting.seen import check_jacobian


class MoCoState(NamedTuple):
    """The weights and the tracked gradients."""

    dual: Tensor
    """λ, (*B, m)."""
    tracked: Tensor
    """Y, (*B, m, d); (*B, m, 0) where nothing is tracked."""
    step: Tensor
    """Steps taken, (*B, 1)."""


@dataclass(frozen=True)
class MoCo(Weighting[MoCoState]):
    r"""MoCo (Fernando et al. 2023): averaged gradients, and one step at a time towards the min-norm weights.

    With G⁽ᵏ⁾ the Jacobian at step k = 1, 2, … and K_w = (w wᵀ)∘YYᵀ the Gramian of the weighted objectives w∘f,

        Y ← Y + β_k (G⁽ᵏ⁾ − Y),   λ ← Π(λ − γ_k (K_w + ρI) λ),   θ ← θ − η Σ λ_i w_i Y_i

    in this order, each with the latest values; Y = 0 and λ uniform at first. Averaging removes the bias that mini-batch
    gradients cause in the weights. λ is stable for γ(‖K_w‖ + ρ) < 2.

    The tracked rows Y are those of f, not of w∘f; c = λ∘w multiplies them.

    Attributes:
        step_size: γ > 0, the step of λ.
        tracking: β in (0, 1]. 1 without decay stores no gradients and needs only the Gramian.
        regularization: ρ ≥ 0.
        step_decay: s ≥ 0 in γ_k = γ/kˢ; the theory has 1/2.
        tracking_decay: Likewise for β_k.

    Examples:
        >>> J, w = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> losses, weighting = torch.ones(2), eq.MoCo(regularization=0.0)
        >>> c, state = weighting.update(losses, weighting.init(losses), w, gramian=J @ J.mT)
        >>> (c / w).tolist()  # λ = Π((½, ½) − (⅛, ½))
        [0.6875, 0.3125]
    """

    step_size: Number = 1.0
    tracking: Number = 1.0
    regularization: Number = 0.01
    step_decay: float = 0.0
    tracking_decay: float = 0.0

    def __post_init__(self) -> None:
        check_positive("step_size", self.step_size)
        beta = torch.as_tensor(self.tracking)
        require(bool(((beta > 0) & (beta <= 1)).all()), "tracking must lie in (0, 1]", self.tracking)
        check_non_negative("regularization", self.regularization)
        require(self.step_decay >= 0, "step_decay must be non-negative", self.step_decay)
        require(self.tracking_decay >= 0, "tracking_decay must be non-negative", self.tracking_decay)

    @property
    def tracks(self) -> bool:
        """Whether gradients are averaged over steps."""
        return self.tracking_decay > 0 or isinstance(self.tracking, Tensor) or self.tracking < 1

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The Jacobian where it is tracked, else the Gramian."""
        return frozenset({"jacobian" if self.tracks else "gramian"})

    def init(self, losses: Tensor, *, jacobian: Tensor | None = None, **extra: Tensor) -> MoCoState:
        """λ uniform, Y = 0."""
        dual = torch.full(losses.shape, 1.0 / losses.shape[-1], dtype=working_dtype(losses), device=losses.device)
        tracked = torch.empty((*losses.shape, 0), device=losses.device)
        if self.tracks:
            if jacobian is None:
                raise TypeError("MoCo with tracking needs the keyword argument 'jacobian'")
            check_jacobian(jacobian, losses)
            tracked = torch.zeros(jacobian.shape, dtype=row_dtype(jacobian), device=losses.device)
        return MoCoState(dual, tracked, torch.zeros_like(dual[..., :1]))

    def step(self, seen: Seen, state: MoCoState) -> tuple[Tensor, MoCoState]:
        """Coefficients λ∘w for the rows of `rows`, shape (*B, m), with the new λ."""
        present, step, tracked, gramian = seen.weight > 0, state.step + 1.0, state.tracked, seen.gramian
        if self.tracks:
            tracked = self._track(state, weigh_jacobian(seen.jacobian, present), present, step)
            gramian = tracked @ tracked.mT
        K = weigh_gramian(gramian, seen.weight)
        valid = seen.valid & torch.isfinite(K.sum((-2, -1))).unsqueeze(-1)
        pull = apply(K, state.dual)
        push = torch.where(
            valid & present, pull + per_instance("regularization", self.regularization, pull) * state.dual, 0.0
        )
        gamma = per_instance("step_size", self.step_size, push) / step**self.step_decay
        new = keep(valid, MoCoState(Euclidean().step(state.dual, -push, gamma), tracked, step), state)
        return new.dual * seen.weight, new

    @property
    def uses_duals(self) -> bool:
        """True: the coefficients are λ∘w."""
        return True

    def weights(self, state: MoCoState) -> Tensor:
        """λ, shape (*B, m)."""
        return state.dual

    def rows(self, state: MoCoState) -> Tensor | None:
        """Y where gradients are tracked, shape (*B, m, d)."""
        return state.tracked if self.tracks else None

    def _track(self, state: MoCoState, rows: Tensor, present: Tensor, step: Tensor) -> Tensor:
        """Y moved towards this step's rows; an absent objective keeps its own."""
        require(
            rows.shape == state.tracked.shape,
            f"jacobian must have the shape {tuple(state.tracked.shape)} that the state was made for",
            tuple(rows.shape),
        )
        beta = torch.where(present, per_instance("tracking", self.tracking, step) / step**self.tracking_decay, 0.0)
        return torch.lerp(state.tracked, rows.to(state.tracked), beta.unsqueeze(-1).to(state.tracked))
