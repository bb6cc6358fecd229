"""`Seen`: the arguments of one step of a weighting, checked once and in one form."""

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.batch import constant, fit, fit_mask, known
from equipoise.errors import require

__all__ = ["Ideal", "Seen", "check_jacobian", "check_preference", "see", "working_dtype"]

Ideal = float | Sequence[float] | Tensor
"""An ideal point z: one value for all objectives, one for each, or a tensor that broadcasts to (*B, m)."""


class Seen(NamedTuple):
    """What a weighting sees of one step, in its working dtype.

    Examples:
        >>> class Worst(eq.Weighting[eq.weighting.Stateless]):
        ...     def step(self, seen, state):
        ...         worst = seen.gain == seen.gain.amax(-1, keepdim=True)  # gain: w ∘ f/π
        ...         return worst * seen.weight, state  # weight: w/π
        >>> losses, w = torch.tensor([4.0, 2.0]), torch.tensor([0.25, 0.75])
        >>> c, _ = Worst().update(losses, Worst().init(losses), w)
        >>> c.tolist()
        [0.0, 0.75]
    """

    losses: Tensor
    """f − z, 0 where absent, (*B, m)."""
    weight: Tensor
    """w/π, 0 where absent: the factor of the coefficients besides λ, (*B, m)."""
    preference: Tensor
    """w as it was given, broadcastable to (*B, m)."""
    present: Tensor | None
    """The mask, (*B, m); None if nothing is absent."""
    inclusion: Tensor | None
    """π, (*B, m); None if it is 1."""
    gramian: Tensor
    """JJᵀ as it was given, (*B, m, m); only for a weighting that needs it."""
    jacobian: Tensor
    """J as it was given, (*B, m, d); only for a weighting that needs it."""
    dtype: torch.dtype
    """The dtype of the losses as they were given, and of the coefficients that `update` returns."""

    @property
    def gain(self) -> Tensor:
        """The gain w ∘ (f − z)/π, 0 where absent, (*B, m). Computed at every access."""
        return self.weight * self.losses

    @property
    def w(self) -> Tensor:
        """The preference w, 0 where absent: `weight` without 1/π, (*B, m)."""
        if self.inclusion is None:
            return self.weight
        w = fit("preference", self.preference, self.losses).to(self.weight)
        return w if self.present is None else w.masked_fill(~self.present, 0.0)

    @property
    def valid(self) -> Tensor:
        """Whether every present loss is finite, (*B, 1)."""
        # Minimum and maximum propagate NaN: the same as isfinite().all() in a twentieth of the time.
        return (self.losses.amax(-1, keepdim=True) < torch.inf) & (self.losses.amin(-1, keepdim=True) > -torch.inf)


def working_dtype(losses: Tensor) -> torch.dtype:
    """float64 for up to 10⁴ objectives if the device supports it, else float32."""
    return torch.float32 if losses.shape[-1] > 10_000 or losses.device.type == "mps" else torch.float64


def see(
    losses: Tensor,
    preference: Tensor,
    ideal: Ideal = 0.0,
    mask: Tensor | None = None,
    inclusion: Tensor | None = None,
    gramian: Tensor | None = None,
    jacobian: Tensor | None = None,
) -> Seen:
    """Check the arguments of `update` and bring them into the form that every weighting uses."""
    if losses.ndim == 0 or not losses.is_floating_point():
        require(losses.ndim >= 1, "losses must have shape (*B, m)", tuple(losses.shape))
        require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
    m, dtype = losses.shape[-1], working_dtype(losses)
    check_preference(preference, m)
    values = losses.detach().to(dtype)
    weight = preference.detach() if preference.shape == losses.shape else fit("preference", preference, losses)
    weight = weight.to(dtype=dtype, device=losses.device)
    present = None if mask is None else fit_mask(mask, losses)
    if inclusion is not None:
        _check_inclusion(inclusion, mask, m)
        inclusion = fit("inclusion", inclusion, losses).to(weight)
        weight = weight / inclusion
    if not (isinstance(ideal, (float, int)) and ideal == 0):
        length = len(ideal) if isinstance(ideal, tuple) else 1
        rule = f"ideal, or the counts of group_dro, must have {m} entries, one per objective"
        require(length in {1, m}, rule, length)
        values = values - fit("ideal", constant(ideal, values), losses)
    if present is not None:
        absent = ~present
        values, weight = values.masked_fill(absent, 0.0), weight.masked_fill(absent, 0.0)
    if gramian is not None:
        shape = (*losses.shape, m)
        require(gramian.shape == shape, f"gramian must have shape (*B, m, m) = {shape}", tuple(gramian.shape))
        gramian = gramian.detach()
    if jacobian is not None:
        check_jacobian(jacobian, losses)
        jacobian = jacobian.detach()
    # A statistic is None only if the weighting does not need it.
    return Seen(values, weight, preference, present, inclusion, gramian, jacobian, losses.dtype)  # type: ignore[arg-type]


def check_jacobian(jacobian: Tensor, like: Tensor) -> None:
    """Raise ValueError unless there is one row for each entry of `like` (*B, m)."""
    require(
        jacobian.ndim == like.ndim + 1 and jacobian.shape[:-1] == like.shape,
        f"jacobian must have shape (*B, m, d) with (*B, m) = {tuple(like.shape)}",
        tuple(jacobian.shape),
    )


def check_preference(preference: Tensor, m: int) -> None:
    """Raise ValueError unless a preference (*B, m) lies in the simplex; the last one checked is cached."""
    shape, compiles = preference.shape, torch.compiler.is_compiling()
    last, version = _CHECKED[0]
    if not compiles and last() is preference and version == preference._version and shape[-1] == m:
        return
    require(shape[-1:] == (m,), f"preference must have {m} entries, one per objective", tuple(shape))
    tolerance = preferences.tolerance(preference)
    sound = _read(preference, m, lambda w: (w >= 0).all() & ((w.sum(-1) - 1.0).abs() <= tolerance).all())
    if not sound:
        preferences.validate(preference, m)
    if not compiles and not preference.is_inference():
        _CHECKED[0] = weakref.ref(preference), preference._version


_CHECKED: list[tuple[Callable[[], Tensor | None], int]] = [(lambda: None, 0)]
"""The last valid preference, by weak reference, and its version: a run has the same one in every step."""


def _check_inclusion(inclusion: Tensor, mask: Tensor | None, m: int) -> None:
    """Raise ValueError unless inclusion probabilities of present objectives lie in (0, 1]."""

    def wrong(p: Tensor) -> Tensor:
        outside = ~((p > 0) & (p <= 1))
        return outside if mask is None else outside & mask.to(torch.bool)

    if (mask is None or mask.device == inclusion.device) and not _read(inclusion, m, lambda p: ~wrong(p).any()):
        found = inclusion.expand_as(wrong(inclusion))[wrong(inclusion)][0].item()
        require(False, "inclusion must lie in (0, 1], a probability", found)  # noqa: FBT003


def _read(tensor: Tensor, m: int, test: Callable[[Tensor], Tensor]) -> bool:
    """The outcome of a test on values, or True if it would need a device synchronisation or a graph break."""
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or m > 10_000:
        return True
    return known(test(tensor)) is not False
