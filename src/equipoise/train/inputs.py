"""Validation of user input: the arguments of a `MultiObjective`, and the losses and counts of every step."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from equipoise import preference as preferences
from equipoise.batch import wide_dtype
from equipoise.conversion import Average, Conversion
from equipoise.conversion.protocol import check_planned
from equipoise.errors import require, warn
from equipoise.registry import Method, resolve
from equipoise.train.parameters import Parameters
from equipoise.units import Unit, Units, Zero
from equipoise.weighting import Limits, Linear, SelfTuned, Weighting
from equipoise.weighting.limits import Limit

__all__ = [
    "CAPACITY",
    "Choice",
    "Counts",
    "Losses",
    "Preference",
    "Store",
    "Values",
    "Wish",
    "check_choices",
    "check_graph",
    "check_model",
    "check_optimizer",
    "check_sharded",
    "check_units",
    "choose_method",
    "limit",
    "read_change",
    "read_limits",
    "read_numbers",
    "read_preference",
    "show_call",
    "stack_counts",
    "stack_losses",
    "warn_of_optimizer",
]

CAPACITY = 8
"""The capacity that a training loop gives a method named in the registry whose conversion has none."""

Choice = str | Method | tuple[Weighting[Any], Conversion[Any]] | None
"""A method: its name, itself, a weighting with its conversion, or None for the default."""
Preference = Tensor | Sequence[float] | Mapping[str, float]
"""w, one entry per objective; a mapping gives the objectives their names."""
Store = Literal["device", "host"] | os.PathLike[str]
"""Where copies live: on the device of the model, in host memory, or in a folder."""
Losses = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""One loss per objective: a tensor (m,), or numbers by name, or in a list if the objectives have no names."""
Values = Losses | ArrayLike | Mapping[str, float]
"""Losses that need no graph: floats and arrays too."""
Counts = Tensor | Sequence[float] | Mapping[str, float]
"""How many samples each loss is the mean of, 0 for an absent objective."""

CALL = "MultiObjective(model, optimizer, preference, method=...)"
P = ParamSpec("P")


# Arguments of a run -------------------------------------------------------------------------


def show_call(init: Callable[P, None]) -> Callable[P, None]:
    """Add the right call to the TypeError for missing, misplaced or unknown arguments."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            inspect.signature(init).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{error}: the call is {CALL}, with method a name, a Method or a pair such as (OMD(), Suffix())"
            ) from None
        init(*args, **kwargs)

    return checked


def check_model(model: object) -> None:
    """Raise ValueError unless it is a module."""
    rule = f"model must be a torch.nn.Module: {CALL}"
    require(isinstance(model, nn.Module), rule, lambda: f"a {type(model).__name__}")


def check_optimizer(optimizer: object, params: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless it is None or an optimizer that moves a recorded parameter."""
    if optimizer is None:
        return
    rule = f"optimizer must be a torch optimizer, or None if every call of mol is a step: {CALL}"
    require(isinstance(optimizer, torch.optim.Optimizer), rule, lambda: f"{optimizer!r:.80}")
    assert isinstance(optimizer, torch.optim.Optimizer)  # noqa: S101
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    known = any(id(p) in held for p in params.values())
    require(known, "optimizer must hold parameters of the model", "none of those that are recorded")


def warn_of_optimizer(optimizer: torch.optim.Optimizer, params: Parameters, weighting: Any) -> None:  # noqa: ANN401
    """Warn of trained parameters that the answer will not have, and of L-BFGS without a line search."""
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    own = {id(p) for p in params.model.parameters()}
    foreign = [p for p in held if id(p) not in own]
    if foreign and not params.chosen:
        warn(
            f"{len(foreign)} of the {len(held)} parameters of the optimizer are not in the model, so the solution and "
            "checkpoints of mol lack them: put everything that is trained into one module, such as "
            "nn.ModuleList([trunk, head]), or name the parameters that are meant by parameters="
        )
    searches = all(group.get("line_search_fn") for group in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.LBFGS) and not searches and not _is_constant(weighting):
        warn(
            "LBFGS without a line search may diverge, since the coefficients change between its steps: give it "
            'line_search_fn="strong_wolfe"'
        )


def _is_constant(weighting: Any) -> bool:  # noqa: ANN401
    """Whether the coefficients never change; a wrapper answers for what it wraps."""
    return isinstance(weighting, Linear) or (hasattr(weighting, "inner") and _is_constant(weighting.inner))


class Wish(NamedTuple):
    """A validated preference with the names of its objectives."""

    w: Tensor
    """Non-negative, of sum 1, (m,)."""
    names: tuple[str, ...] | None
    """The objectives, if they have names."""


def read_preference(preference: object, names: Sequence[str] | None) -> Wish:
    """A preference with the names of its objectives, or a ValueError."""
    given = None if names is None else tuple(names)
    numbers: Any = (preference := _without_pandas(preference))
    rule = f"preference must have one number per objective: {CALL}"
    if isinstance(preference, Mapping):
        keys, numbers = tuple(preference), list(preference.values())
        require(all(isinstance(key, str) for key in keys), "preference must have text for names", list(keys))
        same = given is None or sorted(given) == sorted(keys)
        require(same, f"names must be those of the preference, {list(keys)}", given)
        if given is not None:
            numbers = [preference[name] for name in given]
        given = given or keys
    numeric = isinstance(numbers, Tensor | Sequence) or hasattr(numbers, "__array__")
    require(numeric and not isinstance(numbers, str), rule, lambda: f"{preference!r:.80}")
    w = preferences.validate(numbers).detach()
    require(w.ndim == 1, "preference must have shape (m,)", tuple(w.shape))
    if given is not None:
        require(len(given) == len(w), f"names must have {len(w)} entries, as the preference has", len(given))
        require(len(set(given)) == len(w), "names must differ from one another", given)
    return Wish(w, given)


def _without_pandas(preference: object) -> object:
    """A Series of pandas as a mapping if its index has names, else as a list; anything else unchanged."""
    if not hasattr(preference, "to_dict"):
        return preference
    entries = preference.to_dict()
    return entries if all(isinstance(key, str) for key in entries) else list(entries.values())


def read_change(preference: object, wish: Wish, *, limited: bool) -> Wish:
    """Another preference for the objectives of `wish`, or a ValueError."""
    require(not limited, "the preference of a run with limits must stay: make a new MultiObjective", "another one")
    preference = _without_pandas(preference)
    if isinstance(preference, Mapping):
        rule = "preference must be a list, as the objectives of this run have no names"
        require(wish.names is not None, rule, list(preference))
        rule = f"preference must have the names {[*(wish.names or ())]}, as the run has"
        require(set(preference) == set(wish.names or ()), rule, list(preference))
    changed = read_preference(preference, wish.names if isinstance(preference, Mapping) else None)
    rule = f"preference must have {len(wish.w)} entries, as the run has"
    require(len(changed.w) == len(wish.w), rule, len(changed.w))
    return changed


def read_limits(wish: Wish, limits: object) -> tuple[Wish, tuple[Limit, ...]]:
    """Extend a preference of the free losses by losses with limits; returns preference and limits of all losses."""
    free = len(wish.w)
    rule = "limits must be a mapping from names to limits, as the preference is, or a list as it is"
    if isinstance(limits, Mapping):
        require(wish.names is not None, rule, "names for limits alone")
        assert wish.names is not None  # noqa: S101
        both = sorted(set(wish.names) & set(limits))
        require(not both, "limits must be of other losses than the preference", both)
        names: tuple[str, ...] | None = (*wish.names, *limits)
        given = tuple(limits.values())
    else:
        require(isinstance(limits, Sequence) and not isinstance(limits, str), rule, lambda: f"{limits!r:.80}")
        assert isinstance(limits, Sequence)  # noqa: S101
        require(wish.names is None, rule, "names for the preference alone")
        names, given = None, tuple(limits)
    require(all(one is not None for one in given), "limits must be numbers or pairs (least, most)", given)
    w = torch.cat([wish.w, wish.w.new_zeros(len(given))])
    return Wish(w, names), ((None,) * free + given)


def limit(method: Choice, limits: tuple[Limit, ...], units: Unit, ideal: Zero) -> Method:
    """The method with these limits; its own weighting combines the free losses. By default with `Average`."""
    plain = units is None and isinstance(ideal, float | int) and ideal == 0
    rule = "limits must be given without units and ideal, as a limit is in the unit of its loss"
    require(plain, rule, lambda: f"units={units}, ideal={ideal}")
    found = choose_method(method)
    conversion = Average(power=8.0) if method is None else found.conversion
    rule = "with limits the conversion must be Average() or Last(): others choose by the free losses alone"
    require(conversion.records != "before", rule, conversion)
    weighting = Limits(limits, found.weighting)
    if len(weighting.free) == 1 and not isinstance(found.weighting, SelfTuned | Linear):
        warn(
            f"method weights the free losses alone, and there is one: {type(found.weighting).__name__} has no effect. "
            "Put the losses that it should weigh into the preference"
        )
    return Method(weighting, conversion)


def choose_method(method: object) -> Method:
    """The chosen method, with a conversion that keeps a bounded number of copies; or a ValueError."""
    rule = "method must be a name, a Method, or a weighting with its conversion, such as (OMD(), Suffix())"
    if method is None or isinstance(method, str):
        found = resolve(method)
        conversion = found.conversion if found.conversion.copies is not None else found.conversion.bounded(CAPACITY)
        found = Method(found.weighting, conversion, found.transform)
    elif isinstance(method, Method):
        found = method
    elif isinstance(method, tuple) and len(method) == 2:
        found = Method(*method)
    else:
        alone = f"{type(method).__name__} alone: add its conversion, Suffix() or, for the last iterate, Last()"
        require(False, rule, alone if _is_weighting(method) else f"{method!r:.80}")  # noqa: FBT003
    require(_is_weighting(found.weighting), "method must have a weighting such as OMD()", found.weighting)
    rule = "weighting must have uses_duals, and not its former name dual"
    require(not hasattr(found.weighting, "dual"), rule, lambda: f"dual in {type(found.weighting).__name__}")
    given: object = found.conversion
    planned = isinstance(given, Conversion) and not isinstance(given, type)
    require(planned, "method must have a conversion such as Suffix(), Average() or Last()", given)
    check_planned(found.conversion)
    require(
        found.conversion.copies is not None,
        "conversion must have a capacity in a training loop: without one every iterate that no other dominates is "
        f"kept, each a copy of the model; take Adaptive(capacity={CAPACITY}), or give the method by name",
        found.conversion,
    )
    require(found.transform is None, "method must not be one whose clients transform losses", method)
    return found


def _is_weighting(thing: object) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, name) for name in ("init", "update", "needs"))


def check_units(units: Unit, ideal: Zero, m: int, names: tuple[str, ...] | None) -> Units:
    """Units and ideal point of m objectives, or a ValueError."""
    for name, given in (("units", units), ("ideal", ideal)):
        shape = tuple(given.shape) if isinstance(given, Tensor) else ()
        require(len(shape) <= 1, f"{name} must have shape ({m},)", shape)
    return Units.of(units, ideal, m, names)


def check_choices(every: int | None, check: str, on_nonfinite: str, store: object, on_store_error: str) -> None:
    """Raise ValueError for an unknown choice or combination of choices."""
    sound = every is None or (hasattr(every, "__index__") and every >= 1)
    require(sound, "every must be None or at least 1", lambda: repr(every))
    require(check in {"auto", "now", "deferred"}, 'check must be "auto", "now" or "deferred"', check)
    require(on_nonfinite in {"raise", "skip"}, 'on_nonfinite must be "raise" or "skip"', on_nonfinite)
    sound = on_nonfinite == "raise" or check != "deferred"
    require(sound, 'check must not be "deferred" with on_nonfinite="skip"', check)
    require(on_store_error in {"raise", "keep"}, 'on_store_error must be "raise" or "keep"', on_store_error)
    sound = isinstance(store, os.PathLike) or store in ("device", "host")
    hint = f"; a folder is Path({store!r})" if isinstance(store, str) else ""
    require(sound, f'store must be "device", "host" or a pathlib.Path{hint}', repr(store))


def check_sharded(weighting: Weighting[Any], on_nonfinite: str) -> None:
    """Raise ValueError for settings that need unsharded parameters."""
    rule = "weighting must need losses alone where parameters are sharded"
    require(not weighting.needs, f"{rule}: gradients of single losses do not reach shards", weighting)
    rule = 'on_nonfinite must be "raise" where parameters are sharded: a call that is left out has no backward pass'
    require(on_nonfinite == "raise", rule, on_nonfinite)


# Losses and counts of a step ----------------------------------------------------------------


def stack_losses(
    losses: Losses, names: tuple[str, ...] | None, m: int, device: torch.device, counts: Counts | None = None
) -> Tensor:
    """The losses as a tensor (m,), with their graph; by name, those of count 0 may be missing.

    Raises:
        ValueError: If names or shape differ from the preference's, if the losses are not floating-point, or if they are
            on another device than the weights.
    """
    if isinstance(losses, Tensor) and losses.shape == (m,) and losses.is_floating_point() and losses.device == device:
        return losses  # the usual case
    if isinstance(losses, Mapping):
        rule = "losses must be a tensor (m,) or a list unless the preference names the objectives"
        require(names is not None, rule, lambda: sorted(losses))
        assert names is not None  # noqa: S101
        losses = losses if counts is None else _with_absent(losses, counts, names)
        require(losses.keys() == set(names), f"losses must have the names {list(names)}", list(losses))
        losses = _stacked({name: losses[name] for name in names}, device)
    elif isinstance(losses, list | tuple):
        shown = ", ".join(f"{name!r}: …" for name in (names or ())[:3]) + (", …" if m > 3 else "")
        rule = f"losses must be by name, {{{shown}}}, or one tensor in their order, as the objectives have names"
        require(names is None, rule, lambda: f"a {type(losses).__name__}")
        require(len(losses) == m, f"losses must have {m} entries, as the preference has", len(losses))
        losses = _stacked(dict(enumerate(losses)), device)
    rule = "losses must be a tensor (m,), numbers in a list, or a mapping by name"
    require(isinstance(losses, Tensor), rule, lambda: type(losses))
    assert isinstance(losses, Tensor)  # noqa: S101
    require(losses.shape == (m,), f"losses must have shape ({m},), as the preference has", tuple(losses.shape))
    require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
    rule = f"losses must be on the device {device} of this MultiObjective, which .to() changes"
    require(losses.device == device, rule, losses.device)
    return losses


def read_numbers(losses: Any, device: torch.device) -> Any:  # noqa: ANN401
    """Losses that need no graph as tensors: a float, such as the mean over an epoch, becomes one; or a ValueError."""
    if isinstance(losses, Tensor):
        return losses
    if hasattr(losses, "__array__"):
        return torch.as_tensor(np.asarray(losses), dtype=wide_dtype(device), device=device)

    def number(key: Any, loss: Any) -> Tensor:  # noqa: ANN401
        shape = () if isinstance(loss, float | int) else tuple(getattr(loss, "shape", (None,)))
        found = type(loss).__name__ if shape == (None,) else shape
        require(shape == (), f"losses[{key!r}] must be one number, as a tensor or a float", found)
        return loss if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=wide_dtype(device), device=device)

    if isinstance(losses, Mapping):
        return {key: number(key, loss) for key, loss in losses.items()}
    if isinstance(losses, list | tuple):
        return [number(key, loss) for key, loss in enumerate(losses)]
    return losses


def _with_absent(losses: Mapping[str, Tensor], counts: Counts, names: tuple[str, ...]) -> Mapping[str, Tensor]:
    """Losses by name, with 0 for those that are missing and have the count 0."""
    missing = [name for name in names if name not in losses]
    like = next(iter(losses.values()), None)
    if not missing or not isinstance(like, Tensor):
        return losses
    numbers = _by_name(counts, names)
    absent = [name for name in missing if name in numbers and float(numbers[name]) == 0]
    return {**losses, **dict.fromkeys(absent, torch.zeros_like(like))}


def _stacked(losses: Mapping[Any, Any], device: torch.device) -> Tensor:
    """Numbers on the device as one tensor (m,)."""
    for key, loss in losses.items():
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        rule = f"losses[{key!r}] must be a tensor of shape () with its graph: a mean over the batch, not .item()"
        require(found == (), rule, found)
        rule = f"losses[{key!r}] must be on the device {device} of this MultiObjective, which .to() changes"
        require(loss.device == device, rule, loss.device)
    return torch.stack(list(losses.values()))


_NO_GRAPH = "losses without a graph: detached, or computed under torch.no_grad() or inside torch.vmap"


def check_graph(losses: Losses, stacked: Tensor, counts: Counts | None, names: tuple[str, ...] | None) -> None:
    """Raise ValueError unless every loss can be differentiated; those of count 0 need no graph."""
    require(torch.is_grad_enabled(), "losses must be computed and passed in with gradients enabled", "torch.no_grad()")
    require(stacked.requires_grad, "losses must require grad", _NO_GRAPH)
    if isinstance(losses, Tensor):
        return
    keys: Sequence[Any] = names or range(len(stacked))
    single = losses.items() if isinstance(losses, Mapping) else zip(keys, losses, strict=True)
    constant = [key for key, loss in single if not loss.requires_grad]
    if constant and counts is not None:
        there = {} if isinstance(counts, Tensor) and counts.device.type != "cpu" else _by_name(counts, keys)
        constant = [key for key in constant if float(there.get(key, 0)) > 0]  # reading a device would wait for it
    found = f"{constant} without a graph: detached, or a rate, which gets one by eq.proxy"
    require(not constant, f"every loss must require grad{'' if counts is None else ' where its count is not 0'}", found)


def _by_name(counts: Counts, names: Iterable[Any]) -> Mapping[Any, float | Tensor]:
    return counts if isinstance(counts, Mapping) else dict(zip(names, counts, strict=False))


def stack_counts(counts: Counts, names: tuple[str, ...] | None, like: Tensor) -> Tensor:
    """The counts as a tensor (m,) with the dtype and device of the losses."""
    if isinstance(counts, Mapping):
        known, found = names or (), list(counts)
        require(set(found) == set(known), f"counts must have the names {list(known)}", found)
        counts = [float(counts[name]) for name in known]
    n = torch.as_tensor(counts).detach().to(like, non_blocking=True)
    require(n.shape == like.shape, f"counts must have shape {tuple(like.shape)}, as the losses have", tuple(n.shape))
    if n.device.type == "cpu":
        sound = bool((n >= 0).all()) and bool(torch.isfinite(n).all())
        require(sound, "counts must be non-negative and finite", lambda: [*n.tolist()])
    return n
