"""What a MultiObjective is set up with: checked before anything is made of it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import preference as preferences
from equipoise.conversion import Conversion
from equipoise.conversion.planned import is_planned
from equipoise.errors import require
from equipoise.units import Unit, Units, Zero
from equipoise.weighting import Weighting

__all__ = [
    "check_choices",
    "check_conversion",
    "check_model",
    "check_names",
    "check_optimizer",
    "check_preference",
    "check_sharded",
    "check_store",
    "check_units",
    "check_weighting",
]


def check_model(model: object) -> None:
    """Raise ValueError unless it is a module."""
    rule = "model must be a torch.nn.Module, which has its parameters"
    require(isinstance(model, nn.Module), rule, lambda: f"a {type(model).__name__}")


def check_weighting(weighting: object) -> None:
    """Raise ValueError for an argument that is meant for another place; `resolve` sees to the rest."""
    rule = "weighting must be a weighting such as OMD(), a Method or its name; did you mean {}=?"
    other = isinstance(weighting, torch.optim.Optimizer)
    require(not other, rule.format("optimizer"), lambda: f"the optimizer {type(weighting).__name__}")
    other = isinstance(weighting, Tensor | list | tuple)
    require(not other, rule.format("preference"), lambda: f"{weighting!r:.80}")


def check_preference(preference: Tensor | Sequence[float] | None) -> Tensor:
    """The preference as a tensor (m,), or a ValueError."""
    if preference is None:
        raise ValueError("preference must be given, one entry per objective; found None")
    w = preferences.validate(preference).detach()
    require(w.ndim == 1, "preference must have shape (m,)", tuple(w.shape))
    return w


def check_names(names: tuple[str, ...], m: int) -> None:
    """Raise ValueError unless every objective has a name of its own."""
    require(len(names) == m, f"names must have {m} entries, as the preference has", len(names))
    require(len(set(names)) == m, "names must differ from one another", names)


def check_units(units: Unit, ideal: Zero, m: int, names: tuple[str, ...] | None) -> Units:
    """Units and ideal point of m objectives, or a ValueError."""
    for name, given in (("units", units), ("ideal", ideal)):
        shape = tuple(given.shape) if isinstance(given, Tensor) else ()
        require(len(shape) <= 1, f"{name} must have shape ({m},)", shape)
    return Units.of(units, ideal, m, names)


def check_conversion(conversion: Conversion[Any]) -> None:
    """Raise ValueError for what is no conversion, or one that would keep ever more copies of the model."""
    given: object = conversion
    known = hasattr(given, "output") and not isinstance(given, type)
    require(known, "conversion must be one such as Adaptive(capacity=8), Average() or Last()", given)
    require(
        getattr(conversion, "copies", 1) is not None,
        "conversion must have a capacity in a training loop: without one every iterate that no other dominates is "
        "kept, each a copy of the model, and with mini-batch losses their number grows with the run; "
        "take Adaptive(capacity=8)",
        conversion,
    )


def check_optimizer(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless it is an optimizer that moves a recorded parameter."""
    require(isinstance(optimizer, torch.optim.Optimizer), "optimizer must be a torch optimizer", type(optimizer))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    known = any(id(p) in held for p in params.values())
    require(known, "optimizer must hold parameters of the model", "none of those that are recorded")


def check_choices(every: int | None, check: str, on_nonfinite: str, on_store_error: str) -> None:
    """Raise ValueError for a choice that there is not."""
    require(every is None or every >= 1, "every must be None or at least 1", every)
    require(check in {"auto", "now", "deferred"}, 'check must be "auto", "now" or "deferred"', check)
    require(on_nonfinite in {"raise", "skip"}, 'on_nonfinite must be "raise" or "skip"', on_nonfinite)
    require(
        on_nonfinite == "raise" or check != "deferred",
        'check must not be "deferred" with on_nonfinite="skip"',
        check,
    )
    require(on_store_error in {"raise", "keep"}, 'on_store_error must be "raise" or "keep"', on_store_error)


def check_store(store: object, conversion: Conversion[Any]) -> None:
    """Raise ValueError unless the conversion can have its copies there."""
    rule = 'store must be "device", "host" or a folder'
    require(isinstance(store, str | os.PathLike) and os.fspath(store) != "", rule, repr(store))
    require(
        store == "device" or is_planned(conversion),
        'store must be "device" for a conversion that is not a PlannedConversion, or changes init, update or output',
        repr(store),
    )


def check_sharded(weighting: Weighting[Any], conversion: Conversion[Any], on_nonfinite: str) -> None:
    """Raise ValueError for what needs whole parameters."""
    require(
        not weighting.needs,
        "weighting must need losses alone where parameters are sharded: gradients of single losses do not reach shards",
        weighting,
    )
    rule = "conversion must be a PlannedConversion without an init, update or output of its own for sharded parameters"
    require(is_planned(conversion), rule, conversion)
    rule = 'on_nonfinite must be "raise" where parameters are sharded: a call that is left out has no backward pass'
    require(on_nonfinite == "raise", rule, on_nonfinite)
