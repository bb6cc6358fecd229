"""What a weighting is, and what every weighting does with its arguments."""

from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.errors import require

__all__ = ["Ideal", "Observed", "Stateless", "Weighting", "observe", "working_dtype"]

S = TypeVar("S")

Ideal = float | tuple[float, ...] | Tensor
"""An ideal point z: one value for all objectives, one for each, or a tensor that broadcasts to (*B, m)."""


class Stateless(NamedTuple):
    """The state of a weighting that remembers nothing."""


class Weighting(Protocol[S]):
    """Turns losses into coefficients: the step is θ ← θ − η Σ c_i ∇f_i.

    A weighting is a frozen dataclass with pure functions; it never sees parameters. All tensors
    have leading batch shape *B.

    Attributes:
        needs: The extra statistics that `update` takes by name: "gramian" (*B, m, m), "jacobian"
            (*B, m, d). Empty: one backward pass.
        traceable: Whether `update` can be compiled and vmapped; False where it has solver loops.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    traceable: ClassVar[bool] = True

    def init(self, losses: Tensor, **extra: Tensor) -> S:
        """The state before the first step; looks at shape, dtype and device of `losses` (*B, m) only."""
        ...

    def update(
        self,
        losses: Tensor,
        state: S,
        preference: Tensor,
        *,
        mask: Tensor | None = None,
        **extra: Tensor,
    ) -> tuple[Tensor, S]:
        """One step.

        Args:
            losses: f(θ⁽ᵗ⁾), shape (*B, m). An instance with a non-finite loss keeps its state; its
                coefficients are finite and otherwise unspecified.
            state: What `init` or the last `update` returned.
            preference: w in the simplex, broadcastable to (*B, m).
            mask: False for objectives that are absent this step, broadcastable to (*B, m): their
                gain and their coefficient are 0, and nothing else is rescaled.
            **extra: The statistics named in `needs`, and optionally `inclusion`: the probability π
                of being present, broadcastable to (*B, m), by which gains and coefficients are
                divided so that both stay unbiased.

        Returns:
            Coefficients (*B, m), detached and finite, in dtype and on device of the losses; the new state.
        """
        ...

    def rows(self, state: S) -> Tensor | None:  # noqa: ARG002
        """The rows that the coefficients multiply, if not this step's gradients."""
        return None


class Observed(NamedTuple):
    """What a weighting sees of one step, in its working dtype."""

    gain: Tensor
    """w ∘ (f − z)/π, 0 where absent, (*B, m)."""
    weight: Tensor
    """w/π, 0 where absent: what coefficients carry besides their λ, (*B, m)."""
    valid: Tensor
    """Whether every present loss is finite, (*B, 1)."""


def working_dtype(losses: Tensor) -> torch.dtype:
    """float64 for up to 10⁴ objectives where the device has it, else float32."""
    return torch.float32 if losses.shape[-1] > 10_000 or losses.device.type == "mps" else torch.float64


def observe(
    losses: Tensor,
    preference: Tensor,
    ideal: Ideal,
    mask: Tensor | None,
    inclusion: Tensor | None = None,
) -> Observed:
    """Check the arguments of `update` and bring them into the form that every weighting uses."""
    require(losses.ndim >= 1, "losses must have shape (*B, m)", tuple(losses.shape))
    m, dtype = losses.shape[-1], working_dtype(losses)
    _check_preference(preference, m)
    values = losses.detach().to(dtype)
    weight = _fit("preference", preference, losses).to(dtype=dtype, device=losses.device)
    if inclusion is not None:
        weight = weight / _fit("inclusion", inclusion, losses).to(weight)
    if mask is not None:
        absent = ~_fit("mask", mask, losses).to(device=losses.device, dtype=torch.bool)
        values, weight = values.masked_fill(absent, 0.0), weight.masked_fill(absent, 0.0)
    # Both extremes pass a NaN on: the same as isfinite().all(), at a twentieth of its time.
    valid = torch.isfinite(values.amax(-1, keepdim=True)) & torch.isfinite(values.amin(-1, keepdim=True))
    if not (isinstance(ideal, float | int) and ideal == 0):
        values = values - torch.as_tensor(ideal, dtype=dtype, device=losses.device)
    return Observed(weight * values, weight, valid)


def _fit(name: str, tensor: Tensor, losses: Tensor) -> Tensor:
    """The tensor expanded to the shape of the losses."""
    shape = (1,) * (losses.ndim - tensor.ndim) + tensor.shape
    fits = len(shape) == losses.ndim and all(a in {1, b} for a, b in zip(shape, losses.shape, strict=True))
    require(fits, f"{name} must broadcast to the losses' shape {tuple(losses.shape)}", tuple(tensor.shape))
    return tensor.detach().expand(losses.shape)


def _check_preference(preference: Tensor, m: int) -> None:
    """Shape always; values where that costs no device synchronisation and no graph break."""
    require(
        preference.shape[-1:] == (m,),
        f"preference must have {m} entries, one per objective",
        tuple(preference.shape),
    )
    if torch.compiler.is_compiling() or preference.device.type != "cpu" or m > 10_000:
        return
    try:
        sound = bool(((preference >= 0).all(-1) & ((preference.sum(-1) - 1.0).abs() <= 1e-4)).all())
    except RuntimeError:  # under vmap values cannot be read
        return
    if not sound:
        preferences.validate(preference, m)
