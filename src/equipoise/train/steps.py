"""The steps of an optimizer: the run that follows them, and steps that the optimizer itself skips."""

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Attached", "attach", "detach", "overflow", "release", "unless"]

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: positional ones and those by name."""


class _Follower(Protocol):
    """A run, which is told of the steps of its optimizer."""

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def _within_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]: ...

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def close(self) -> None: ...


class Attached(NamedTuple):
    """An optimizer with the hooks that were put on it."""

    optimizer: torch.optim.Optimizer
    handles: tuple[torch.utils.hooks.RemovableHandle, ...]


_FOLLOWERS: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[_Follower]] = weakref.WeakKeyDictionary()
"""Who follows the steps of an optimizer; neither is kept alive."""


def release(optimizer: torch.optim.Optimizer) -> None:
    """Close whoever has the optimizer, such as the run of a notebook's cell before it was run again."""
    holder = _FOLLOWERS.get(optimizer)
    earlier = None if holder is None else holder()
    if earlier is not None:
        text = "an earlier MultiObjective had this optimizer, and was closed: its solution stays, it records no more"
        warnings.warn(text, stacklevel=3)
        earlier.close()


def attach(follower: _Follower, optimizer: torch.optim.Optimizer) -> Attached:
    """Tell a run of the optimizer's steps, by hooks that do not keep it alive: an optimizer may outlive it."""
    alive = _FOLLOWERS[optimizer] = weakref.ref(follower)

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
        run = alive()
        if run is None:
            return None
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else next(iter(args[1:]), None)  # the first is the optimizer
        if closure is None:
            run._before_step(optimizer)
            return None
        within = run._within_step(optimizer, closure)
        return (args, {**kwargs, "closure": within}) if named else ((args[0], within), kwargs)

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        run = alive()
        if run is not None:
            run._after_step(optimizer)

    handles = (optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after))
    return Attached(optimizer, handles)


def detach(attached: Attached) -> None:
    """Undo `attach`."""
    for handle in attached.handles:
        handle.remove()
    _FOLLOWERS.pop(attached.optimizer, None)


def overflow(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """What a gradient scaler tells an optimizer that skips steps by itself, as fused ones do: > 0 for a skip."""
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    return found


def unless(skipped: Tensor | None, values: Tensor) -> Tensor:
    """The losses, or NaN where the step is skipped on the device: these commit and record nothing.

    Args:
        skipped: What `overflow` gave.
        values: The losses, (m,).
    """
    if skipped is None:
        return values
    return torch.where(skipped.to(values.device) > 0, torch.nan, values)
