"""The part of a model that is recorded, and the model with the answer in it."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from equipoise.errors import require
from equipoise.train import sharded

__all__ = ["Recorded", "full_state", "holds", "recalibrated", "swapped"]

_learns = operator.attrgetter("requires_grad")
_tables = operator.itemgetter("_parameters", "_modules")


class Recorded:
    """Parameters of a model by name, as the model has them each time.

    Args:
        model: The model.
        names: Which ones; None for those that require grad now.
    """

    def __init__(self, model: nn.Module, names: Iterable[str] | None) -> None:
        self.model = model
        self.chosen = names is not None
        self._found: dict[str, Tensor] | None = None
        self._noted = False
        sharded.check_model(model)
        sharded.reshard(model)
        known = dict(model.named_parameters())
        self.sharded = any(sharded.is_sharded(p) for p in known.values())
        """Whether a rank may hold parts of parameters only."""
        if names is None:
            self.names = tuple(name for name, p in known.items() if p.requires_grad)
            require(len(self.names) > 0, "model must have a parameter that requires grad", "none")
            return
        require(not isinstance(names, str), "parameters must be several names", names)
        self.names = tuple(names)
        require(len(self.names) > 0, "parameters must name at least one parameter", self.names)
        unknown = [name for name in self.names if name not in known]
        require(not unknown, f"parameters must be names of model.named_parameters(), {list(known)}", unknown)

    def __call__(self) -> dict[str, Tensor]:
        """The parameters as they are.

        Raises:
            ValueError: If one of them has gone from the model, or, where all that require grad are recorded,
                if there is a new one.
        """
        if self.sharded:
            sharded.reshard(self.model)
        # A step cannot afford named_parameters(), which makes a name for everything there is.
        if self._found is None or not (self._noted and self._is_as_it_was()):
            self._found = self._look_up()
            self._noted = self._note(self._found)
        return self._found

    def last(self) -> dict[str, Tensor]:
        """The parameters as they were when they were looked at last."""
        return self() if self._found is None else self._found

    def _note(self, found: Mapping[str, Tensor]) -> bool:
        """What changes when a parameter appears, disappears or is replaced, or one that is not recorded is thawed.

        False for modules that have their parameters elsewhere, as those of TorchScript do.
        """
        modules, known = list(self.model.modules()), set(map(id, found.values()))
        tables = [vars(module).get(name) for module in modules for name in ("_parameters", "_modules")]
        if not all(isinstance(table, dict) for table in tables):
            return False
        self._owners, self._owned = [vars(module) for module in modules], tables
        self._held: list[dict[str, Any]] = [table for table in tables if table]
        self._empty = [table for table in tables if not table]
        self._contents = [*chain.from_iterable(map(dict.values, self._held)), ...]
        self._keys = list(chain.from_iterable(self._held))
        self._frozen = [p for p in self.model.parameters() if id(p) not in known and not p.requires_grad]
        return True

    def _is_as_it_was(self) -> bool:
        held = chain(chain.from_iterable(map(dict.values, self._held)), (...,))
        return (
            all(map(operator.is_, chain.from_iterable(map(_tables, self._owners)), self._owned))
            and all(map(operator.is_, held, self._contents))
            and not any(self._empty)
            and list(chain.from_iterable(self._held)) == self._keys
            and not any(map(_learns, self._frozen))
        )

    def _look_up(self) -> dict[str, Tensor]:
        known = dict(self.model.named_parameters())
        gone = [name for name in self.names if name not in known]
        require(not gone, "recorded parameters must stay in the model", lambda: f"{gone} gone")
        if not self.chosen:
            recorded = set(self.names)
            new = [name for name, p in known.items() if p.requires_grad and name not in recorded]
            rule = "parameters that require grad must be those there were at the start, or be named by parameters="
            require(not new, rule, lambda: f"{new} new")
        return {name: known[name] for name in self.names}

    def aliases(self) -> dict[str, str]:
        """Other names of recorded parameters, as tied weights have them."""
        first = {id(p): name for name, p in self().items()}
        every = self.model.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if id(p) in first and first[id(p)] != name}


def full_state(model: nn.Module, answer: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """The model's state with the answer in place of its parameters; copies."""
    state = {key: x.detach().clone() if isinstance(x, Tensor) else x for key, x in model.state_dict().items()}
    return {**state, **answer, **{other: answer[name] for other, name in aliases.items()}}


@contextmanager
def swapped(params: Mapping[str, Tensor], model: nn.Module, answer: Mapping[str, Tensor]) -> Iterator[None]:
    """The answer in the model's parameters and buffers for a while; then everything as it was, buffers too.

    Of sharded parameters the answer has this rank's parts.
    """
    held = sharded.local({**params, **dict(model.named_buffers())})
    before = {name: x.detach().clone() for name, x in held.items()}
    _write(held, answer)
    try:
        yield
    finally:
        _write(held, before)
        sharded.reshard(model)


@torch.no_grad()
def _write(held: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        held[name].copy_(value)


def holds(params: Mapping[str, Tensor], answer: Mapping[str, Tensor]) -> bool:
    """Whether the parameters, or this rank's parts of them, are the answer."""
    return all(torch.equal(p.detach(), answer[name].to(p.dtype)) for name, p in sharded.local(params).items())


def recalibrated(model: nn.Module, loader: Iterable[object], device: torch.device) -> dict[str, Tensor]:
    """BatchNorm statistics of the model as it is, from a pass over the data; the model keeps them. Copies, by name."""
    update_bn(loader, model, device=device)
    norms = nn.modules.batchnorm._BatchNorm
    return {
        f"{path}.{name}" if path else name: buffer.detach().clone()
        for path, module in model.named_modules()
        if isinstance(module, norms)
        for name, buffer in module.named_buffers(recurse=False)
    }
