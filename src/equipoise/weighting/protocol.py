"""The base class of all weightings: a method implements `step`; checks and masks around it are shared."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.batch import known
from equipoise.errors import require
from equipoise.weighting.seen import Ideal, Seen, check_preference, see, working_dtype

__all__ = [
    "Ideal",
    "Seen",
    "Stateless",
    "Weighting",
    "Wrapper",
    "check_preference",
    "duals",
    "keep",
    "restarted",
    "see",
    "working_dtype",
]

S = TypeVar("S")


class Stateless(NamedTuple):
    """The state of a weighting without memory.

    Examples:
        >>> eq.Linear().init(torch.ones(2))
        Stateless()
    """


class Weighting(Generic[S]):
    """Turns losses into coefficients: the step is θ ← θ − η Σ c_i ∇f_i.

    A weighting is a frozen dataclass with pure functions; it never sees parameters. All tensors have a leading batch
    shape *B. A method implements `step`, and `init` if it has a state.

    Attributes:
        needs: The statistics that `update` must be given: "gramian" (*B, m, m), "jacobian" (*B, m, d).
            Empty: one backward pass.
        traceable: Whether `update` can be compiled, vmapped and captured in a CUDA graph: it reads no values on the
            host and has no side effects. False for solvers with loops.
        ideal: z, the point from which `Seen.losses` are measured. A method that lets users choose it has a field of
            this name.

    Examples:
        >>> class Squares(eq.Weighting[eq.weighting.Stateless]):
        ...     '''min Σ (w_i f_i)²/2.'''
        ...     def step(self, seen, state):
        ...         return seen.weight * seen.gain, state
        >>> losses, w = torch.tensor([4.0, 2.0]), torch.tensor([0.5, 0.5])
        >>> c, _ = Squares().update(losses, Squares().init(losses), w)
        >>> c.tolist()  # w² f
        [1.0, 0.5]
        >>> c, _ = Squares().update(losses, Squares().init(losses), w, mask=torch.tensor([True, False]))
        >>> c.tolist()
        [1.0, 0.0]
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    traceable: ClassVar[bool] = True
    ideal: Ideal = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class with the former name of `uses_duals`: its coefficients would be m times too small."""
        super().__init_subclass__(**kwargs)
        if "dual" in vars(cls):
            raise TypeError(f"{cls.__name__} must define uses_duals; found its former name, dual")

    def init(self, losses: Tensor, **extra: Tensor) -> S:
        """The state before the first step: a NamedTuple of tensors (*B, ...), or of further states.

        Args:
            losses: Shape (*B, m). Only shape, dtype and device are used.
            **extra: The statistics named in `needs`; their values are not read either.

        Returns:
            `Stateless()`, unless a method overrides this.
        """
        return Stateless()  # type: ignore[return-value]

    def step(self, seen: Seen, state: S) -> tuple[Tensor, S]:
        """One step of the method, for arguments that `update` has checked.

        Args:
            seen: The losses, weights and statistics of the step.
            state: What `init` or the last `step` returned.

        Returns:
            Coefficients (*B, m) in the working dtype, and the new state. `update` sets the coefficients of absent
            objectives to 0 and keeps the old state where a loss is not finite.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step(seen, state)")

    def update(
        self,
        losses: Tensor,
        state: S,
        preference: Tensor,
        *,
        mask: Tensor | None = None,
        inclusion: Tensor | None = None,
        gramian: Tensor | None = None,
        jacobian: Tensor | None = None,
    ) -> tuple[Tensor, S]:
        """One step.

        Args:
            losses: f(θ⁽ᵗ⁾), shape (*B, m). An instance with a non-finite loss keeps its state; its
                coefficients are finite and otherwise unspecified.
            state: What `init` or the last `update` returned.
            preference: w in the simplex, broadcastable to (*B, m).
            mask: False for objectives that are absent this step, broadcastable to (*B, m): their
                gain and their coefficient are 0, and nothing else is rescaled.
            inclusion: The probability π of being present, broadcastable to (*B, m). Gains and coefficients are divided
                by it, so that both stay unbiased.
            gramian: JJᵀ, shape (*B, m, m), for a weighting that needs it.
            jacobian: J, shape (*B, m, d), for a weighting that needs it.

        Returns:
            Coefficients (*B, m), detached and finite, with the dtype and device of the losses; the new state.

        Raises:
            ValueError: An argument has a wrong shape or value.
            TypeError: A statistic named in `needs` is missing.
        """
        for name in self.needs:
            if {"gramian": gramian, "jacobian": jacobian}.get(name) is None:
                raise TypeError(f"{type(self).__name__}.update needs the keyword argument {name!r}")
        seen = see(losses, preference, self.ideal, mask, inclusion, gramian, jacobian)
        if not (isinstance(state, tuple) and state and getattr(state[0], "shape", None) == losses.shape):
            self._check_state(state, seen)
        c, new = self.step(seen, state)
        if seen.present is not None:
            c = torch.where(seen.present, c, 0.0)
        if not _surely_finite(seen.losses):
            valid = seen.valid
            c, new = torch.where(valid, c, c.nan_to_num(0.0, 0.0, 0.0)), _merged(valid, new, state)
        return (_within_half(c) if losses.dtype == torch.float16 else c).to(losses.dtype), new

    def foreseen(self, state: S, preference: Tensor) -> Tensor | None:
        """The coefficients (*B, m) that `update` will return, if they do not depend on the losses; else None.

        They are in the working dtype. `MultiObjective` needs them if a step has several calls, or if a call has only
        some of the objectives.
        """
        return None

    def restarted(self, state: S) -> S:
        """The state with which a run continues after its preference changes: by default the same one."""
        return state

    def rows(self, state: S) -> Tensor | None:
        """The rows (*B, m, d) that the coefficients multiply, if not this step's gradients."""
        return None

    @property
    def uses_duals(self) -> bool:
        """Whether the coefficients are λ∘w with λ in the simplex: for uniform w they then sum to 1/m, not to 1.

        A server that averages the models of m clients multiplies such coefficients by m.
        """
        return False

    @property
    def origin(self) -> Ideal | None:
        """The ideal point z if the method minimises max_i w_i (f_i − z_i): no loss should lie below it. Else None."""
        return None

    def _check_state(self, state: S, seen: Seen) -> None:
        """Raise ValueError unless the state was made for losses of this shape.

        Its first tensor has that shape, or all its tensors have the shapes that `init` gives them.
        """
        shape, parts = seen.losses.shape, state if isinstance(state, tuple) else ()
        held = next((part.shape for part in parts if isinstance(part, Tensor)), shape)
        if held != shape:
            made = self.init(seen.losses, **{name: getattr(seen, name) for name in self.needs})
            require(_shapes(state) == _shapes(made), f"state must be of losses of shape {tuple(shape)}", tuple(held))


class Wrapper(Weighting[S]):
    """A weighting around another one, `inner`, with the same needs."""

    inner: Weighting[Any]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the inner weighting needs."""
        return self.inner.needs

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """Whether the inner weighting is traceable."""
        return self.inner.traceable

    @property
    def uses_duals(self) -> bool:
        """Whether the inner weighting's coefficients are λ∘w."""
        return self.inner.uses_duals

    @property
    def origin(self) -> Ideal | None:
        """The ideal point of the inner weighting."""
        return getattr(self.inner, "origin", None)

    def ask(self, seen: Seen, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Step the inner weighting: its coefficients, in the dtype of `seen.losses`, and its state."""
        given = {"mask": seen.present, "inclusion": seen.inclusion, "gramian": seen.gramian, "jacobian": seen.jacobian}
        given = {name: value for name, value in given.items() if value is not None}
        return self.inner.update(seen.losses, state, seen.preference, **given)


def duals(weighting: Any, state: Any) -> Tensor | None:  # noqa: ANN401
    """λ of a weighting that has it, or of what it wraps, (*B, m)."""
    if callable(getattr(weighting, "weights", None)):
        found: Tensor = weighting.weights(state)
        return found
    inner = getattr(weighting, "inner", None)
    return None if inner is None else duals(inner, getattr(state, "inner", state))


def restarted(weighting: Any, state: Any) -> Any:  # noqa: ANN401
    """The state with which a run continues after its preference changes, for a weighting and what it wraps."""
    own, inner = getattr(weighting, "restarted", None), getattr(weighting, "inner", None)
    state = state if own is None else own(state)
    if inner is None:
        return state
    within = getattr(state, "inner", None)
    return restarted(inner, state) if within is None else state._replace(inner=restarted(inner, within))


def _shapes(state: object) -> list[torch.Size]:
    """The shapes of the tensors in a state and its nested states."""
    if isinstance(state, Tensor):
        return [state.shape]
    parts = state.values() if isinstance(state, Mapping) else state if isinstance(state, tuple) else ()
    return [shape for part in parts for shape in _shapes(part)]


def _surely_finite(values: Tensor) -> bool:
    """Whether all values are known to be finite without synchronising with a device.

    A sum propagates every NaN and infinity. Finite values whose sum overflows give False.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return False
    try:
        return math.isfinite(values.sum().item())
    except RuntimeError:  # under vmap values cannot be read
        return False


def keep(valid: Tensor, new: S, old: S) -> S:
    """The new state where `valid` (*B, 1), elsewhere the old one.

    `Weighting.update` does this for non-finite losses. A method does it for anything else that must not enter its
    state, such as non-finite gradients.
    """
    return new if known(valid.all()) is True else _merged(valid, new, old)


def _merged(valid: Tensor, new: Any, old: Any) -> Any:  # noqa: ANN401
    """The tensors of `new` where valid, else those of `old`."""
    if isinstance(new, Tensor) and new is not old:
        batch = valid.shape[:-1]
        return torch.where(valid.reshape(batch + (1,) * (new.ndim - len(batch))), new, old)
    if isinstance(new, Mapping):
        return {name: _merged(valid, part, old[name]) for name, part in new.items()}
    if isinstance(new, tuple):
        parts = [_merged(valid, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return new


def _within_half(coefficients: Tensor) -> Tensor:
    """Coefficients clipped to the range of half precision."""
    limit = torch.finfo(torch.float16).max
    return coefficients.clamp(-limit, limit)
