"""Units and zeros: losses that can be compared, f̃ = (f − z)/u, and a payoff table to take z and u from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.batch import constant, fit_mask
from equipoise.errors import require

__all__ = ["Payoff", "Scale", "Unit", "Units", "payoff"]

Unit = Literal["start"] | float | Sequence[float] | Mapping[str, float] | Tensor | None
"""None: losses as they are. "start": the first loss of each objective. Numbers: one each, in order or by name."""
Zero = float | Sequence[float] | Mapping[str, float] | Tensor
"""An ideal point z: one number for all objectives or one each, in order or by name."""


class Scale(NamedTuple):
    """The units of a run.

    Examples:
        >>> units, losses = eq.units.Units("start"), torch.tensor([4.0, 2.0])
        >>> scale = units.update(losses, units.init(losses))
        >>> scale.unit.tolist(), scale.known.tolist()
        ([4.0, 2.0], [True, True])
    """

    unit: Tensor
    """u, 1 where it is not known yet, (*B, m)."""
    known: Tensor
    """Whether it is known, (*B, m)."""


@dataclass(frozen=True)
class Units:
    """How losses become comparable: f̃ = (f − z)/u.

    Attributes:
        units: u. None is 1. "start" is the first f − z of each objective, which `update` finds. Otherwise positive
            numbers: one, one per objective, or a tensor that broadcasts to (*B, m).
        ideal: z, in the units of the losses: one number, one per objective, or a tensor that broadcasts to (*B, m).

    Examples:
        >>> units, losses = eq.units.Units("start", ideal=(1.0, 0.0)), torch.tensor([5.0, 2.0])
        >>> scale = units.update(losses, units.init(losses))
        >>> units.normalise(torch.tensor([3.0, 1.0]), scale).tolist()  # (3 − 1)/4 and 1/2
        [0.5, 0.5]
    """

    units: Literal["start"] | float | tuple[float, ...] | Tensor | None = None
    ideal: float | tuple[float, ...] | Tensor = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.units, str):
            require(self.units == "start", 'units must be None, "start" or numbers', repr(self.units))
        elif self.units is not None:
            u = torch.as_tensor(self.units)
            sound = bool(((u > 0) & torch.isfinite(u)).all())
            require(sound, "units must be positive and finite", lambda: _listed(u))
        z = torch.as_tensor(self.ideal)
        require(bool(torch.isfinite(z).all()), "ideal must be finite", lambda: _listed(z))

    @classmethod
    def of(cls, units: Unit, ideal: Zero, m: int, names: Sequence[str] | None = None) -> "Units":
        """From user input.

        Args:
            units: See `Units`; by name too.
            ideal: See `Units`; by name too, 0 for names that are left out.
            m: The number of objectives.
            names: Their names, if they have any.

        Raises:
            ValueError: For a wrong number of entries, wrong names, units that are not positive, or numbers that are not
                finite.

        Examples:
            >>> eq.units.Units.of({"b": 2.0, "a": 1.0}, 0.0, 2, ("a", "b"))
            Units(units=(1.0, 2.0), ideal=0.0)
            >>> eq.units.Units.of(None, {"b": 0.5}, 2, ("a", "b"))
            Units(units=None, ideal=(0.0, 0.5))
        """
        if units is None or isinstance(units, str):
            return cls(units, _numbers("ideal", ideal, m, names))
        return cls(_numbers("units", units, m, names), _numbers("ideal", ideal, m, names))

    @property
    def plain(self) -> bool:
        """Whether f̃ is f."""
        return self.units is None and not isinstance(self.ideal, Tensor | tuple) and self.ideal == 0

    def init(self, losses: Tensor) -> Scale:
        """The scale before the first loss; only shape, dtype and device of `losses` (*B, m) are used."""
        ones = torch.ones(losses.shape, dtype=losses.dtype, device=losses.device)
        if isinstance(self.units, str):
            return Scale(ones, torch.zeros_like(ones, dtype=torch.bool))
        unit = ones if self.units is None else constant(self.units, ones).expand(ones.shape).clone()
        return Scale(unit, torch.ones_like(ones, dtype=torch.bool))

    def update(self, losses: Tensor, scale: Scale, mask: Tensor | None = None) -> Scale:
        """The scale after losses (*B, m): with units="start", objectives get their unit when first present.

        An instance with a non-finite loss keeps its scale. An objective at or below its ideal point gets no unit.

        Args:
            losses: f.
            scale: The scale before.
            mask: False for objectives that are absent, broadcastable to (*B, m).
        """
        if not isinstance(self.units, str):
            return scale
        above, present = self._above(losses.detach()), fit_mask(mask, losses)
        finite = torch.isfinite(above)
        usable = above >= torch.finfo(above.dtype).tiny
        if present is not None:
            finite, usable = finite | ~present, usable & present
        new = usable & finite.all(-1, keepdim=True) & ~scale.known
        return Scale(torch.where(new, above, scale.unit), scale.known | new)

    def normalise(self, losses: Tensor, scale: Scale) -> Tensor:
        """f̃ of losses (*B, m), differentiable."""
        return self._above(losses) / scale.unit

    def enter(self, losses: Tensor, scale: Scale, mask: Tensor | None = None) -> tuple[Tensor, Scale]:
        """f̃ of losses (*B, m), NaN for an objective that is too low to give its unit; and the scale after the step."""
        after = self.update(losses, scale, mask)
        return torch.where(self.too_low(losses, scale, mask), torch.nan, self.normalise(losses, after)), after

    def too_low(self, losses: Tensor, scale: Scale, mask: Tensor | None = None) -> Tensor:
        """Which present objectives need a unit but are too low to give it, (*B, m)."""
        low = ~scale.known & ~(self._above(losses.detach()) >= torch.finfo(losses.dtype).tiny)
        present = fit_mask(mask, losses)
        return low if present is None else low & present

    def refuse(self, value: float, objective: str) -> None:
        """Raise the ValueError for an objective that is too low to give its own unit.

        Args:
            value: Its loss.
            objective: Its name, and where it was found.
        """
        require(
            False,  # noqa: FBT003
            'losses must start above the ideal point with units="start"; give units= as numbers, or a lower ideal=',
            f"{value:.4g} for {objective}",
        )

    def raw(self, least: Tensor | None, scale: Scale | None = None) -> Tensor | None:
        """The losses f at which f̃ is `least`, in its dtype; None if that depends on units that are not known yet.

        Args:
            least: f̃, ±∞ where there is none, broadcastable with (*B, m); None is returned as is.
            scale: The scale; None: only units that are known from the start.
        """
        if least is None:
            return None
        finite = torch.where(torch.isfinite(least), least, 0.0)
        if scale is None and isinstance(self.units, str) and bool((finite != 0).any()):
            return None
        unit = (self.init(finite) if scale is None else scale).unit.to(least)
        return torch.where(torch.isfinite(least), constant(self.ideal, finite) + unit * finite, least)

    def _above(self, losses: Tensor) -> Tensor:
        if not isinstance(self.ideal, Tensor | tuple) and self.ideal == 0:
            return losses
        return losses - constant(self.ideal, losses)


class Payoff(NamedTuple):
    """An ideal point and units, for `ideal=` and `units=`.

    Examples:
        >>> found = eq.payoff([[0.1, 2.1], [0.6, 0.1]])
        >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5], **found._asdict())
    """

    ideal: tuple[float, ...]
    """z, the best of each loss, (m,)."""
    units: tuple[float, ...]
    """u, from the best to the worst of each loss, (m,)."""


def payoff(table: Tensor | Sequence[Sequence[float]]) -> Payoff:
    """The ideal point and the units from m runs, each trained on one objective alone.

    Then f̃ = (f − z)/u is 0 at the best loss of each objective and 1 at the worst, whatever the units of the losses. w
    then weights what each objective loses from its best, as a fraction of that range.

    Args:
        table: Losses on the same data, (m, m): row i is the run that was trained on objective i alone, column j has
            the losses of objective j.

    Returns:
        z, the least of each column, and u, its range.

    Raises:
        ValueError: If the table is not square or not finite, or if a run is the worst at its own objective.

    Examples:
        >>> eq.payoff([[0.5, 9.0], [2.5, 1.0]])  # alone, the first reaches 0.5; the second run leaves it at 2.5
        Payoff(ideal=(0.5, 1.0), units=(2.0, 8.0))
    """
    values = torch.as_tensor(table, dtype=torch.float64).detach().cpu()
    square = values.ndim == 2 and values.shape[0] == values.shape[1] and len(values) >= 2
    rule = "table must have shape (m, m), m ≥ 2: a row for each run, a column for each objective"
    require(square, rule, lambda: tuple(values.shape))
    require(bool(torch.isfinite(values).all()), "table must be finite", lambda: _listed(values))
    best, worst = values.amin(0), values.amax(0)
    lost = torch.nonzero(values.diagonal() >= worst).flatten().tolist()
    rule = (
        "table[i][i] must be below the largest entry of column i: the run trained on objective i alone must not be the "
        "worst at it (are rows and columns exchanged?)"
    )
    require(not lost, rule, lambda: f"column {lost[0]} with {_listed(values[:, lost[0]])}")
    return Payoff(tuple(best.tolist()), tuple((worst - best).tolist()))


def _numbers(
    name: str, given: float | Sequence[float] | Mapping[str, float] | Tensor, m: int, names: Sequence[str] | None
) -> float | tuple[float, ...] | Tensor:
    """One number, m numbers in their order, or a tensor (*B, m)."""
    if isinstance(given, Mapping):
        known, found = list(names or ()), list(given)
        if name == "ideal":  # 0 where no other value is named
            require(set(found) <= set(known) and known != [], f"ideal must have names among {known}", found)
            given = dict.fromkeys(known, 0.0) | dict(given)
        require(set(given) == set(known) and known != [], f"{name} must have the names {known}", found)
        given = [float(given[key]) for key in known]
    if hasattr(given, "__array__") and not isinstance(given, Tensor):
        given = torch.as_tensor(given)  # from numpy
    required: object = given
    numeric = isinstance(required, Tensor | Sequence | float | int) and not isinstance(required, str | bool)
    require(numeric, f"{name} must be numbers", lambda: repr(given))
    if isinstance(given, float | int):
        return float(given)
    length = given.shape[-1] if isinstance(given, Tensor) and given.ndim > 0 else 1
    length = len(given) if not isinstance(given, Tensor) else length
    require(length == m or (isinstance(given, Tensor) and length == 1), f"{name} must have {m} entries", length)
    if isinstance(given, Tensor):
        return given.detach() if given.ndim > 1 else _plain(given)
    return tuple(float(x) for x in given)


def _plain(tensor: Tensor) -> float | tuple[float, ...]:
    return float(tensor) if tensor.numel() == 1 else tuple(tensor.tolist())


def _listed(tensor: Tensor) -> object:
    return tensor.tolist()
