"""Smoothed weights: the momentum of CR-MOGM around any weighting."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.simplex import Number, per_instance
from equipoise.weighting.protocol import Weighting, observe, working_dtype

S = TypeVar("S")


class MomentumState(NamedTuple, Generic[S]):
    """The smoothed weights, and the state of what is smoothed."""

    inner: S
    weights: Tensor
    """α of the last step, so that c = α ∘ w, (*B, m)."""
    step: Tensor
    """Steps taken, (*B, 1)."""


@dataclass(frozen=True)
class Momentum(Weighting[MomentumState[S]]):
    r"""Momentum on the weights of any weighting (CR-MOGM, Zhou et al. 2022; "STCH w/ momentum").

    With c = α ∘ w and α̂⁽ᵗ⁾ the weights of the inner method,

        α⁽ᵗ⁾ = a_t α⁽ᵗ⁻¹⁾ + (1 − a_t) α̂⁽ᵗ⁾,   α⁽⁰⁾ uniform,

    so that weights and gradient noise decorrelate. δ = ‖α̂⁽ᵗ⁾ − α⁽ᵗ⁻¹⁾‖₁.

    Attributes:
        inner: The weighting whose weights are smoothed.
        rule: "bounded_drift": a_t = max(0, 1 − rate/(t δ)), so that weights drift by at most rate/t;
            "constant": a_t = rate; "released": a_t = max(0, 1 − t δ), the inverted rule of the code
            behind the paper's tables, for reproducing them.
        rate: The constant of the first two rules.
        pool: Batch axes over which δ is summed before a_t is formed: () is one a_t per problem.
            The one exception to "problems of a batch do not see each other"; the paper's tables have it.
    """

    inner: Weighting[S]
    rule: Literal["bounded_drift", "constant", "released"] = "bounded_drift"
    rate: Number = 1.0
    pool: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rules = {"bounded_drift", "constant", "released"}
        require(self.rule in rules, f"rule must be one of {sorted(rules)}", self.rule)
        rate = torch.as_tensor(self.rate)
        require(bool((rate >= 0).all()), "rate must be non-negative", self.rate)
        require(
            self.rule != "constant" or bool((rate < 1).all()),
            "rate must be below 1 for a constant rule",
            self.rate,
        )

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the inner weighting needs."""
        return self.inner.needs

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """Whether the inner weighting is."""
        return self.inner.traceable

    def init(self, losses: Tensor, **extra: Tensor) -> MomentumState[S]:
        """Uniform weights."""
        weights = torch.full(losses.shape, 1.0 / losses.shape[-1], dtype=working_dtype(losses), device=losses.device)
        return MomentumState(self.inner.init(losses, **extra), weights, torch.zeros_like(weights[..., :1]))

    def update(
        self,
        losses: Tensor,
        state: MomentumState[S],
        preference: Tensor,
        *,
        mask: Tensor | None = None,
        inclusion: Tensor | None = None,
        **extra: Any,
    ) -> tuple[Tensor, MomentumState[S]]:
        """Coefficients α⁽ᵗ⁾ ∘ w, shape (*B, m)."""
        require(
            state.weights.shape == losses.shape,
            f"state must be of losses of shape {tuple(losses.shape)}",
            tuple(state.weights.shape),
        )
        seen = observe(losses, preference, 0.0, mask, inclusion)
        if inclusion is not None:
            extra["inclusion"] = inclusion
        coefficients, inner = self.inner.update(losses, state.inner, preference, mask=mask, **extra)
        carried = seen.weight > 0
        divisor = torch.where(carried, seen.weight, torch.ones_like(seen.weight))
        target = torch.where(carried, coefficients.to(divisor) / divisor, state.weights)
        step = state.step + 1.0
        keep = self._keep((target - state.weights).abs().sum(-1, keepdim=True), step)
        weights = torch.where(seen.valid, torch.lerp(target, state.weights, keep), state.weights)
        new = MomentumState(inner, weights, torch.where(seen.valid, step, state.step))
        return (weights * seen.weight).to(losses.dtype), new

    def rows(self, state: MomentumState[S]) -> Tensor | None:
        """Those of the inner weighting."""
        return self.inner.rows(state.inner)

    def _keep(self, drift: Tensor, step: Tensor) -> Tensor:
        """a_t, shape (*B, 1)."""
        if self.pool:
            drift = drift.sum(self.pool, keepdim=True).expand_as(drift)
        if self.rule == "constant":
            return torch.zeros_like(drift) + per_instance(self.rate, drift)
        if self.rule == "released":
            return (1.0 - step * drift).clamp_min(0.0)
        moving = torch.where(drift > 0, step * drift, torch.ones_like(drift))
        return (1.0 - per_instance(self.rate, drift) / moving).clamp_min(0.0)
