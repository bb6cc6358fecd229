"""Hooks that tell a run of the steps of its optimizer."""

import copy
import weakref
from typing import TYPE_CHECKING, Any

import torch

from equipoise.errors import warn

if TYPE_CHECKING:
    from equipoise.train.run import Run

__all__ = ["Attached", "release"]

_ATTACHED: weakref.WeakKeyDictionary[torch.optim.Optimizer, "weakref.ref[Run]"] = weakref.WeakKeyDictionary()
"""The run that follows each optimizer, by weak references to both."""


class Attached:
    """Hooks that notify a run of its optimizer's steps; a weak reference, as an optimizer may outlive the run."""

    def __init__(self, run: "Run", optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.run = optimizer, weakref.ref(run)
        self.handles = (optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after))
        _ATTACHED[optimizer] = self.run

    def __deepcopy__(self, memo: dict[int, Any]) -> "Attached":
        """Attach the copy of the run to the copy of the optimizer, which has no hooks yet."""
        run = self.run()
        assert run is not None  # noqa: S101
        return Attached(copy.deepcopy(run, memo), copy.deepcopy(self.optimizer, memo))

    def __reduce__(self) -> str:
        raise TypeError(
            "a MultiObjective with an optimizer cannot be pickled, as it holds hooks of the optimizer: save its "
            "state_dict() with torch.save or eq.train.save, and load it into a new one"
        )

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()
        _ATTACHED.pop(self.optimizer, None)

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        run = self.run()
        if run is None or optimizer is not self.optimizer:  # a copied optimizer has copied hooks
            return None
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else next(iter(args[1:]), None)  # the first is the optimizer
        if closure is None:
            run.before_step(optimizer)
            return None
        within = run.within_step(optimizer, closure)
        return (args, {**kwargs, "closure": within}) if named else ((args[0], within), kwargs)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        run = self.run()
        if run is not None and optimizer is self.optimizer:
            run.after_step(optimizer)


def release(optimizer: torch.optim.Optimizer) -> None:
    """Close any earlier MultiObjective on this optimizer, for example from a re-run notebook cell."""
    holder = _ATTACHED.get(optimizer)
    earlier = None if holder is None else holder()
    if earlier is not None:
        warn("an earlier MultiObjective on this optimizer was closed: its solution stays, but it no longer records")
        earlier.close()
