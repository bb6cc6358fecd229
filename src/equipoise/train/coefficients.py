"""From losses to coefficients in a training loop.

Most weightings know the coefficients of a step before its losses, because λ depends on earlier steps alone. `Known`
computes them on the host, with the same arithmetic for every device, once the losses of the last step have arrived.
`Measured` is for the others: Tchebycheff, smooth Tchebycheff, alternating order, gradient-based methods.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.host import Fetched, fetch
from equipoise.state import flatten, unflatten
from equipoise.train.step import Call, Chosen, Mean, Step, mean_of_calls
from equipoise.units import Scale, Units
from equipoise.weighting import Weighting
from equipoise.weighting.protocol import Stateless, duals

__all__ = ["Coefficients", "Known", "Measured", "knows_ahead"]


def knows_ahead(weighting: Any, preference: Tensor) -> bool:  # noqa: ANN401
    """Whether the coefficients of a step are known before its losses."""
    if weighting.needs or getattr(weighting, "foreseen", None) is None:
        return False
    # A subclass that overrides how losses are used but inherits `foreseen` may no longer satisfy it.
    depth = {name: _depth(type(weighting), name) for name in ("foreseen", "update", "step")}
    if depth["foreseen"] > min(depth["update"], depth["step"]):
        return False
    return weighting.foreseen(weighting.init(torch.zeros_like(preference)), preference) is not None


def _depth(kind: type, name: str) -> int:
    """The position in the MRO of the class that defines `name`; beyond the last if only an instance has it."""
    line = kind.__mro__
    return next((k for k, c in enumerate(line) if name in vars(c)), len(line))


def _looks_ahead(weighting: Any, preference: Tensor) -> bool:  # noqa: ANN401
    """Whether coefficients depend on the losses of their own step; a wrapper answers for what it wraps."""
    inner = getattr(weighting, "inner", None)
    return not knows_ahead(weighting, preference) if inner is None else _looks_ahead(inner, preference)


def _factor(weighting: Weighting[Any], m: int) -> int:
    """The factor m for coefficients λ∘w, so that uniform λ gives the weighted sum Σ w_i f_i; 1 otherwise."""
    return m if getattr(weighting, "uses_duals", False) else 1


class Known:
    """Coefficients that are known before the losses, computed on the host for losses on the device."""

    known = True

    def __init__(self, weighting: Weighting[Any], preference: Tensor, device: torch.device) -> None:
        self.weighting, self._w, self._device = weighting, preference, device
        self._factor, self._weights = _factor(weighting, len(preference)), getattr(weighting, "weights", None)
        self._set(weighting.init(preference))

    def choose(self, call: Call, scale: Scale | None, earlier: Sequence[Call], *, several: bool) -> Chosen:  # noqa: ARG002
        """The coefficients of a call: those of the next step, whatever its losses are."""
        return self.next if scale is None else self.next._replace(scale=scale)

    def update(self, mean: Mean) -> None:
        """Update λ with losses f̃ (m,) on the host, such as those of the last step."""
        self._set(self.weighting.update(mean.values, self.state, self._w, mask=mean.mask)[1])

    def used(self, chosen: Chosen) -> tuple[Tensor, Tensor | None]:
        """The coefficients of a committed step, and λ after it, on the host, (m,)."""
        own = self._weights
        return chosen.told.value, duals(self.weighting, self.state) if own is None else own(self.state)

    def load(self, state: Any, coefficients: Tensor) -> None:  # noqa: ANN401, ARG002
        """Load the state; the coefficients follow from it."""
        self._set(state)

    def _set(self, state: Any) -> None:  # noqa: ANN401
        """Compute the coefficients of the next step and copy them to the device."""
        c = self.weighting.foreseen(state, self._w)
        assert c is not None  # noqa: S101
        self.state = state
        self.coefficients = c.to(self._w.dtype) * self._factor
        if self._device.type == "cpu":
            self.next = Chosen(self.coefficients, None, Fetched(self.coefficients, None))
        else:
            self.to(self._device)

    def to(self, device: torch.device) -> None:
        """Allocate a new tensor: a pending backward pass may still need the old one."""
        self._device = device
        pinned = self.coefficients.pin_memory() if device.type == "cuda" else self.coefficients
        self.next = Chosen(pinned.to(device, non_blocking=True), None, Fetched(self.coefficients, None))


class Measured:
    """Coefficients that depend on the losses or gradients of their own step, computed where the losses are.

    Under gradient accumulation, a step uses the coefficients of the previous step; the first step, those of its first
    call.

    Args:
        weighting: The weighting.
        preference: w on the host, (m,).
        device: Where the losses are.
        units: The units of the run.
        jacobian: Of shape (m, d), if the weighting needs it; only shape, dtype and device are used.
    """

    known = False

    def __init__(
        self,
        weighting: Weighting[Any],
        preference: Tensor,
        device: torch.device,
        units: Units,
        jacobian: Tensor | None,
    ) -> None:
        self.weighting, self._units = weighting, units
        self._looks_ahead, self._factor = _looks_ahead(weighting, preference), _factor(weighting, len(preference))
        self._w = preference.to(device)
        extra = {} if jacobian is None or "jacobian" not in weighting.needs else {"jacobian": jacobian}
        self.state = weighting.init(self._w, **extra)
        self.stateless = not weighting.needs and isinstance(self.state, Stateless)
        """Whether the coefficients are a function of the losses alone."""
        self.coefficients = self._w.clone()
        """The coefficients of the next step if it accumulates gradients, (m,)."""

    def choose(self, call: Call, scale: Scale | None, earlier: Sequence[Call], *, several: bool) -> Chosen:
        """The coefficients of a call.

        Args:
            call: Its losses, and their gradients if the weighting needs them.
            scale: Their units, on their device.
            earlier: The earlier calls of the step.
            several: Whether steps of this run have several calls.
        """
        if self._looks_ahead and (several or earlier):
            first = earlier[0].chosen if earlier else None
            return first._replace(scale=scale) if first else self._chosen(self.coefficients, self.state, scale)
        c, after = self._update(Mean(call.seen.values, call.seen.mask), scale, call.jacobian)
        return self._chosen(c, after, scale)._replace(after=after)

    def commit(self, taken: Step, scale: Scale | None) -> None:
        """Update after a step: keep the state that its only call computed, or update with the mean of its calls.

        Args:
            taken: The step.
            scale: The units of the losses, on their device.
        """
        first = taken.calls[0]
        if len(taken.calls) == 1 and first.chosen.after is not None and not taken.moved:
            c, self.state, mask = first.chosen.coefficients, first.chosen.after, first.seen.mask
        else:
            found = mean_of_calls([(call.seen.values, call.seen.counts) for call in taken.calls])
            c, self.state = self._update(found, scale, taken.jacobian())
            mask = found.mask
        self.coefficients = c if mask is None else torch.where(mask, c, self.coefficients)

    def used(self, chosen: Chosen) -> tuple[Tensor, Tensor | None]:
        """The coefficients and λ that were fetched with the losses."""
        c, *weights = chosen.told.wait()
        return c, weights[0] if weights else None

    def load(self, state: Any, coefficients: Tensor) -> None:  # noqa: ANN401
        """Load a state and coefficients of the same shapes."""
        self.state, self.coefficients = state, coefficients.to(self._w)

    def to(self, device: torch.device) -> None:
        """Move everything."""
        self._w, self.coefficients = self._w.to(device), self.coefficients.to(device)
        self.state = unflatten({name: x.to(device) for name, x in flatten(self.state).items()}, self.state)

    def _chosen(self, c: Tensor, state: Any, scale: Scale | None) -> Chosen:  # noqa: ANN401
        weights = duals(self.weighting, state)
        told = c.unsqueeze(0) if weights is None else torch.stack([c, weights.to(c)])
        return Chosen(c, scale, fetch(told), self.weighting.rows(state))

    def _update(self, mean: Mean, scale: Scale | None, jacobian: Tensor | None) -> tuple[Tensor, Any]:
        values = mean.values
        if scale is not None:
            values = self._units.normalise(values, scale)
            jacobian = None if jacobian is None else jacobian / scale.unit.to(jacobian).unsqueeze(-1)
        extra: dict[str, Tensor] = {}
        if jacobian is not None:
            grams = {"jacobian": lambda: jacobian, "gramian": lambda: jacobian @ jacobian.mT}
            unknown = set(self.weighting.needs) - set(grams)
            require(not unknown, "weighting must need a gramian or a jacobian", unknown)
            extra = {need: grams[need]() for need in self.weighting.needs}
        c, after = self.weighting.update(values, self.state, self._w, mask=mean.mask, **extra)
        return c * self._factor, after


Coefficients = Known | Measured
