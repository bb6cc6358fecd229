"""What a weighting is, and what every weighting does with its arguments."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.batch import constant, fit, fit_mask, known, wide_dtype
from equipoise.errors import require

__all__ = ["Ideal", "Observed", "Stateless", "Weighting", "Wrapper", "duals", "emit", "observe", "working_dtype"]

S = TypeVar("S")

Ideal = float | Sequence[float] | Tensor
"""An ideal point z: one value for all objectives, one for each, or a tensor that broadcasts to (*B, m)."""


class Stateless(NamedTuple):
    """The state of a weighting that remembers nothing.

    Examples:
        >>> eq.Linear().init(torch.ones(2))
        Stateless()
    """


class Weighting(Protocol[S]):
    """Turns losses into coefficients: the step is θ ← θ − η Σ c_i ∇f_i.

    A weighting is a frozen dataclass with pure functions; it never sees parameters. All tensors
    have leading batch shape *B.

    Attributes:
        needs: The extra statistics that `update` takes by name: "gramian" (*B, m, m), "jacobian"
            (*B, m, d). Empty: one backward pass.
        traceable: Whether `update` can be compiled, vmapped and captured as a CUDA graph: it reads no number on the
            host and keeps nothing for itself. False where it has solver loops.

    Examples:
        >>> class Equal(eq.Weighting[tuple[()]]):
        ...     def init(self, losses, **extra):
        ...         return ()
        ...     def update(self, losses, state, preference, *, mask=None, **extra):
        ...         c = torch.full_like(losses, 1 / losses.shape[-1])
        ...         return (c if mask is None else c * mask), state
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], Equal(), steps=300)
        >>> [round(value, 2) for value in found.losses["solution"][0, 0].tolist()]  # min of x² + (x − 2)²
        [1.0, 1.0]
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

    def foreseen(self, state: S, preference: Tensor) -> Tensor | None:
        """The coefficients (*B, m) that `update` will give, where they do not depend on the losses; else None.

        In the working dtype. `MultiObjective` asks for them where a step has several calls, or a call has some of the
        objectives only.
        """
        return None

    def rows(self, state: S) -> Tensor | None:
        """The rows (*B, m, d) that the coefficients multiply, if not this step's gradients."""
        return None

    @property
    def dual(self) -> bool:
        """Whether the coefficients are λ∘w with λ in the simplex: for uniform w they then sum to 1/m, not to 1.

        A server that averages the models of m clients multiplies such coefficients by m.
        """
        return False

    @property
    def origin(self) -> Ideal | None:
        """The ideal point z of max_i w_i (f_i − z_i), below which no loss should lie; None for another aim."""
        return None


class Wrapper(Weighting[S]):
    """A weighting around another one, `inner`, that asks for what the inner one asks for."""

    inner: Weighting[Any]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the inner weighting needs."""
        return self.inner.needs

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """Whether the inner weighting is."""
        return self.inner.traceable

    @property
    def dual(self) -> bool:
        """Whether the inner weighting's coefficients are λ∘w."""
        return self.inner.dual

    @property
    def origin(self) -> Ideal | None:
        """That of the inner weighting."""
        return getattr(self.inner, "origin", None)


def duals(weighting: Any, state: Any) -> Tensor | None:  # noqa: ANN401
    """λ of a weighting that has it, or of what it wraps, (*B, m)."""
    if callable(getattr(weighting, "weights", None)):
        found: Tensor = weighting.weights(state)
        return found
    inner = getattr(weighting, "inner", None)
    return None if inner is None else duals(inner, getattr(state, "inner", state))


class Observed(NamedTuple):
    """What a weighting sees of one step, in its working dtype."""

    gain: Tensor
    """w ∘ (f − z)/π, 0 where absent, (*B, m)."""
    weight: Tensor
    """w/π, 0 where absent: what coefficients carry besides their λ, (*B, m)."""
    valid: Tensor
    """Whether every present loss is finite, (*B, 1)."""
    present: Tensor | None
    """The mask, (*B, m); None if nothing is absent."""


def working_dtype(losses: Tensor) -> torch.dtype:
    """float64 for up to 10⁴ objectives where the device has it, else float32."""
    return torch.float32 if losses.shape[-1] > 10_000 else wide_dtype(losses.device)


def observe(
    losses: Tensor,
    preference: Tensor,
    ideal: Ideal,
    mask: Tensor | None,
    inclusion: Tensor | None = None,
    *,
    gramian: Tensor | None = None,  # noqa: ARG001
    jacobian: Tensor | None = None,  # noqa: ARG001
) -> Observed:
    """Check the arguments of `update` and bring them into the form that every weighting uses.

    `update` passes on the statistics that it does not need itself: their names are known here, and a
    misspelt one is a TypeError.
    """
    require(losses.ndim >= 1, "losses must have shape (*B, m)", tuple(losses.shape))
    require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
    m, dtype = losses.shape[-1], working_dtype(losses)
    _check_preference(preference, m)
    values = losses.detach().to(dtype)
    weight = fit("preference", preference, losses).to(dtype=dtype, device=losses.device)
    present = fit_mask(mask, losses)
    if inclusion is not None:
        _check_inclusion(inclusion, mask, m)
        weight = weight / fit("inclusion", inclusion, losses).to(weight)
    if present is not None:
        values, weight = values.masked_fill(~present, 0.0), weight.masked_fill(~present, 0.0)
    # Both extremes pass a NaN on: the same as isfinite().all(), at a twentieth of its time.
    valid = (values.amax(-1, keepdim=True) < torch.inf) & (values.amin(-1, keepdim=True) > -torch.inf)
    if not (isinstance(ideal, float | int) and ideal == 0):
        length = len(ideal) if isinstance(ideal, tuple) else 1
        rule = f"ideal, or the counts of group_dro, must have {m} entries, one per objective"
        require(length in {1, m}, rule, length)
        values = values - fit("ideal", constant(ideal, values), losses)
    return Observed(weight * values, weight, valid, present)


def _check_preference(preference: Tensor, m: int) -> None:
    shape = tuple(preference.shape)
    require(shape[-1:] == (m,), f"preference must have {m} entries, one per objective", shape)
    if _LAST.holds(preference):
        return
    tolerance = preferences.tolerance(preference)
    sound = _read(preference, m, lambda w: (w >= 0).all() & ((w.sum(-1) - 1.0).abs() <= tolerance).all())
    if not sound:
        preferences.validate(preference, m)
    _LAST.take(preference)


class _Checked:
    """The preference that was last found to be one: a run has the same in every step."""

    def __init__(self) -> None:
        self._held: tuple[weakref.ref[Tensor], int] | None = None

    def holds(self, preference: Tensor) -> bool:
        """Whether it is this one, unchanged."""
        held = None if torch.compiler.is_compiling() else self._held
        return held is not None and held[0]() is preference and held[1] == preference._version

    def take(self, preference: Tensor) -> None:
        """Remember it, without keeping it alive."""
        if not torch.compiler.is_compiling() and not preference.is_inference():
            self._held = weakref.ref(preference), preference._version


_LAST = _Checked()


def _check_inclusion(inclusion: Tensor, mask: Tensor | None, m: int) -> None:
    """Where an objective is absent, what it had to be present with does not matter."""

    def wrong(p: Tensor) -> Tensor:
        outside = ~((p > 0) & (p <= 1))
        return outside if mask is None else outside & mask.to(torch.bool)

    if (mask is None or mask.device == inclusion.device) and not _read(inclusion, m, lambda p: ~wrong(p).any()):
        found = inclusion.expand_as(wrong(inclusion))[wrong(inclusion)][0].item()
        require(False, "inclusion must lie in (0, 1], a probability", found)  # noqa: FBT003


def _read(tensor: Tensor, m: int, test: Callable[[Tensor], Tensor]) -> bool:
    """The outcome of a test of values where that costs no device synchronisation and no graph break, else True."""
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or m > 10_000:
        return True
    return known(test(tensor)) is not False


def emit(coefficients: Tensor, losses: Tensor) -> Tensor:
    """Coefficients in the dtype of the losses; beyond what half precision holds, the largest that it does."""
    if losses.dtype == torch.float16:
        limit = torch.finfo(losses.dtype).max
        coefficients = coefficients.clamp(-limit, limit)
    return coefficients.to(losses.dtype)
