"""The gradients of the weighted objectives w∘f, and a wrapper that passes them to any weighting."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from equipoise.weighting.protocol import Seen, Weighting, Wrapper

__all__ = ["Reweighted", "row_dtype", "weigh_gramian", "weigh_jacobian"]

S = TypeVar("S")


def weigh_gramian(gramian: Tensor, weight: Tensor) -> Tensor:
    """The Gramian of w∘f, that is (w wᵀ)∘K: K (*B, m, m), w (*B, m). Rows and columns with w = 0 are 0."""
    scale = weight.unsqueeze(-1) * weight.unsqueeze(-2)
    return (scale * gramian.to(weight)).masked_fill(scale == 0, 0.0)


def weigh_jacobian(jacobian: Tensor, weight: Tensor) -> Tensor:
    """The Jacobian of w∘f, in at least float32: J (*B, m, d), w (*B, m). Rows with w = 0 are 0."""
    rows = jacobian.to(row_dtype(jacobian))
    scale = weight.unsqueeze(-1).to(rows)
    return (scale * rows).masked_fill(scale == 0, 0.0)


def row_dtype(*gradients: Tensor) -> torch.dtype:
    """The dtype for sums of gradients or parameters: at least float32."""
    dtype = torch.float32
    for gradient in gradients:
        dtype = torch.promote_types(dtype, gradient.dtype)
    return dtype


@dataclass(frozen=True)
class Reweighted(Wrapper[S], Generic[S]):
    r"""The inner weighting sees the gradients of w∘f instead of those of f; its losses stay f.

    For methods that were published on the Jacobian of the weighted objectives: gramian becomes
    (w wᵀ)∘gramian, jacobian becomes w∘jacobian. With inner coefficients a, the step is Σ a_i w_i ∇f_i, so c = a∘w; or,
    with `coefficients=False`, Σ a_i ∇f_i.

    Attributes:
        inner: The weighting that sees the weighted gradients.
        coefficients: Whether the inner coefficients are multiplied by w. False for an inner weighting that returns its
            own `rows`: those already contain w.

    Examples:
        >>> from equipoise.weighting import Reweighted
        >>> losses, w, gramian = torch.ones(2), torch.tensor([0.25, 0.75]), torch.eye(2)
        >>> weighting = Reweighted(eq.IMTLG())
        >>> c, _ = weighting.update(losses, weighting.init(losses), w, gramian=gramian)
        >>> [round(value, 3) for value in c.tolist()]  # of w∘f it takes (½, ½), so of f half of w
        [0.125, 0.375]
    """

    inner: Weighting[S]
    coefficients: bool = True

    def init(self, losses: Tensor, **extra: Tensor) -> S:
        """The state of the inner weighting."""
        return self.inner.init(losses, **extra)

    def step(self, seen: Seen, state: S) -> tuple[Tensor, S]:
        """Coefficients a∘w or a, shape (*B, m)."""
        w, weighted = seen.w, seen._replace(losses=seen.losses.to(seen.dtype))
        if seen.gramian is not None:
            weighted = weighted._replace(gramian=weigh_gramian(seen.gramian, w))
        if seen.jacobian is not None:
            weighted = weighted._replace(jacobian=weigh_jacobian(seen.jacobian, w))
        a, state = self.ask(weighted, state)
        return a.to(w) * w if self.coefficients else a, state

    def rows(self, state: S) -> Tensor | None:
        """The rows of the inner weighting."""
        return self.inner.rows(state)

    @property
    def uses_duals(self) -> bool:
        """Whether the coefficients are a∘w with a in the simplex: if w is multiplied in, or the inner ones are λ∘w."""
        return self.coefficients or self.inner.uses_duals
