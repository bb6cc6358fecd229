"""Smoothed weights: the momentum of CR-MOGM around any weighting."""

from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.batch import Number, per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting, Wrapper, keep, working_dtype

S = TypeVar("S")


class MomentumState(NamedTuple, Generic[S]):
    """The smoothed weights and the state of the inner weighting."""

    inner: S
    weights: Tensor
    """α of the last step, so that c = α ∘ w, (*B, m)."""
    step: Tensor
    """Steps taken, (*B, 1)."""


@dataclass(frozen=True)
class Momentum(Wrapper[MomentumState[S]]):
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
        pool: Axes of δ, whose shape is (*B, 1), over which it is summed before a_t is formed: () is one a_t
            per problem, (-2,) pools the last batch axis. This is the only exception to the rule that problems of a
            batch are independent; the paper's tables use it.

    Examples:
        >>> losses, w = torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> weighting = eq.Momentum(eq.Tchebycheff(), rule="constant", rate=0.5)
        >>> c, state = weighting.update(losses, weighting.init(losses), w)
        >>> c.tolist()  # α = ½(½, ½) + ½(1, 0), times w
        [0.375, 0.125]
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

    def init(self, losses: Tensor, **extra: Tensor) -> MomentumState[S]:
        """Uniform weights."""
        weights = torch.full(losses.shape, 1.0 / losses.shape[-1], dtype=working_dtype(losses), device=losses.device)
        return MomentumState(self.inner.init(losses, **extra), weights, torch.zeros_like(weights[..., :1]))

    def step(self, seen: Seen, state: MomentumState[S]) -> tuple[Tensor, MomentumState[S]]:
        """Coefficients α⁽ᵗ⁾ ∘ w, shape (*B, m)."""
        c, inner = self.ask(seen, state.inner)
        valid, carried = self._valid(seen), seen.weight > 0
        target = torch.where(carried, c.to(seen.weight) / torch.where(carried, seen.weight, 1.0), state.weights)
        step = state.step + 1.0
        drift = torch.where(valid, (target - state.weights).abs().sum(-1, keepdim=True), 0.0)
        weights = torch.lerp(target, state.weights, self._keep(drift, step))
        weights, step = keep(valid, (weights, step), (state.weights, state.step))
        return weights * seen.weight, MomentumState(inner, weights, step)

    def rows(self, state: MomentumState[S]) -> Tensor | None:
        """The rows of the inner weighting."""
        return self.inner.rows(state.inner)

    def _valid(self, seen: Seen) -> Tensor:
        """Whether losses and statistics are finite where objectives are present, (*B, 1)."""
        valid = seen.valid
        for need in self.needs:
            valid = valid & _finite(need, getattr(seen, need), seen.present)
        return valid

    def _keep(self, drift: Tensor, step: Tensor) -> Tensor:
        """a_t, shape (*B, 1)."""
        if self.pool:
            axes = [axis % drift.ndim for axis in self.pool if -drift.ndim <= axis < drift.ndim - 1]
            pooled = len(axes) == len(self.pool) and drift.ndim - 1 not in axes
            require(pooled, f"pool must name batch axes of a tensor of shape {tuple(drift.shape)}", self.pool)
            drift = drift.sum(self.pool, keepdim=True).expand_as(drift)
        if self.rule == "constant":
            return torch.zeros_like(drift) + per_instance("rate", self.rate, drift)
        if self.rule == "released":
            return (1.0 - step * drift).clamp_min(0.0)
        moving = torch.where(drift > 0, step * drift, torch.ones_like(drift))
        return (1.0 - per_instance("rate", self.rate, drift) / moving).clamp_min(0.0)


def _finite(name: str, statistic: Tensor, present: Tensor | None) -> Tensor:
    """Whether a Gramian or Jacobian (*B, m, k) is finite where its objectives are present, (*B, 1)."""
    finite = torch.isfinite(statistic)
    if present is not None:
        finite = finite | ~present.unsqueeze(-1)
        if name == "gramian":
            finite = finite | ~present.unsqueeze(-2)
    return finite.flatten(-2).all(-1, keepdim=True)
