"""Losses on one scale: the ratio trick around any weighting."""

from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.weighting.protocol import Ideal, Seen, Weighting, Wrapper, working_dtype

S = TypeVar("S")


class RelativeState(NamedTuple, Generic[S]):
    """The first losses and the state of the inner weighting."""

    inner: S
    first: Tensor
    """f_i⁽⁰⁾, the loss of each objective when it was first observed, (*B, m)."""
    seen: Tensor
    """Whether each objective has been observed, (*B, m)."""


@dataclass(frozen=True)
class Relative(Wrapper[RelativeState[S]]):
    r"""The inner weighting sees f_i/f_i⁽⁰⁾; the gradient step keeps the raw f_i.

    It exists to reproduce the paper's table on ratios. In your own training use `units="start"` of `MultiObjective` or
    `solve`, which also divides the gradients. The first `update` in which an objective is present sets f_i⁽⁰⁾. It must
    be positive: an objective that starts at or below 0 is not scaled.

    Attributes:
        inner: The weighting that sees the ratios.
        span: "always"; or "first": only the first loss of an objective is replaced by its ratio, 1, and later ones are
            raw. This reproduces a row of the paper's table on ratios (AdaOMDeg-TCH).

    Examples:
        >>> w, weighting = torch.tensor([0.5, 0.5]), eq.Relative(eq.Tchebycheff())
        >>> first = torch.tensor([10.0, 1.0])
        >>> _, state = weighting.update(first, weighting.init(first), w)
        >>> c, state = weighting.update(torch.tensor([8.0, 0.9]), state, w)
        >>> c.tolist()  # the second has 90 % of its first loss left, the first 80 %
        [0.0, 0.5]
    """

    inner: Weighting[S]
    span: Literal["always", "first"] = "always"

    def __post_init__(self) -> None:
        require(self.span in {"always", "first"}, 'span must be "always" or "first"', self.span)

    def init(self, losses: Tensor, **extra: Tensor) -> RelativeState[S]:
        """Nothing observed yet."""
        first = torch.ones(losses.shape, dtype=working_dtype(losses), device=losses.device)
        return RelativeState(self.inner.init(losses, **extra), first, torch.zeros_like(first, dtype=torch.bool))

    def step(self, seen: Seen, state: RelativeState[S]) -> tuple[Tensor, RelativeState[S]]:
        """Coefficients of the inner weighting at f/f⁽⁰⁾, shape (*B, m)."""
        new = ~state.seen if seen.present is None else seen.present & ~state.seen
        first = torch.where(new & (seen.losses > 0), seen.losses, state.first)
        ratio = _ratio(seen.losses, first)
        if self.span == "first":
            ratio = torch.where(new, ratio, seen.losses)
        c, inner = self.ask(seen._replace(losses=ratio), state.inner)
        return c, RelativeState(inner, first, state.seen | new)

    def rows(self, state: RelativeState[S]) -> Tensor | None:
        """The rows of the inner weighting."""
        return self.inner.rows(state.inner)

    @property
    def origin(self) -> Ideal | None:
        """0 if the inner origin is 0, as a ratio has the sign of its loss. Else None: that origin is for ratios."""
        inner = super().origin
        return inner if isinstance(inner, float | int) and inner == 0 else None


def _ratio(values: Tensor, first: Tensor) -> Tensor:
    """The ratio values/first, finite where the loss is."""
    largest = torch.finfo(values.dtype).max
    return torch.where(torch.isfinite(values), (values / first).clamp(-largest, largest), values)
