"""The parameters of a run: which ones are recorded, how the solution is swapped into the model, and FSDP2 shards.

Recording averages or copies entry by entry, so each rank can record its own shards with the same numbers. Sharded
tensors are torch's `DTensor`s. This module does not import `DTensor`: a program that uses it has imported it.
"""

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from equipoise.errors import StateMismatchError, require

__all__ = [
    "Parameters",
    "as_shard",
    "full_state",
    "holds",
    "local",
    "recalibrated",
    "shard_of",
    "swapped",
    "whole",
]

_learns = operator.attrgetter("requires_grad")
_TABLES = ("_parameters", "_modules")
_tables = operator.itemgetter(*_TABLES)


class Parameters:
    """Parameters of a model by name, looked up at each call.

    Args:
        model: The model.
        names: Which ones; None for those that require grad now.
    """

    def __init__(self, model: nn.Module, names: Iterable[str] | None) -> None:
        self.model = model
        self.chosen = names is not None
        self._found: dict[str, Tensor] = {}
        self._seen: list[object] = []
        """The objects when the parameters were looked up; empty: look them up in every call."""
        _check_fsdp(model)
        reshard(model)
        known = dict(model.named_parameters())
        lazy = [name for name in known if nn.parameter.is_lazy(known[name])]
        rule = "model must have initialised parameters: call a lazy one with a batch first"
        require(not lazy, rule, lambda: f"{lazy} without a shape")
        self.sharded = any(is_sharded(p) for p in known.values())
        """Whether parameters are shards of FSDP2."""
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
        """The current parameters.

        Raises:
            ValueError: If a recorded parameter has left the model; or if there is a new one that requires grad, and
                `names` was None.
        """
        if self.sharded:
            reshard(self.model)
        # Calling named_parameters() in every step would dominate the cost.
        now = self._objects() if self._seen else []
        if not now or len(now) != len(self._seen) or not all(map(operator.is_, now, self._seen)):
            self._found = self._look_up()
            recorded = set(map(id, self._found.values()))
            self._modules = [vars(module) for module in self.model.modules()]
            self._frozen = [p for p in self.model.parameters() if id(p) not in recorded and not p.requires_grad]
            plain = all(isinstance(own.get(name), dict) for own in self._modules for name in _TABLES)
            self._seen = self._objects() if plain else []  # TorchScript stores parameters elsewhere
        return self._found

    def _objects(self) -> list[object]:
        """Objects of which one is another once a parameter is added, removed, replaced or unfrozen."""
        tables = list(chain.from_iterable(map(_tables, self._modules)))
        held = chain.from_iterable(map(dict.values, tables))
        return [*tables, *map(len, tables), *chain.from_iterable(tables), *held, *map(_learns, self._frozen)]

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
        """Other names of recorded parameters (tied weights)."""
        first = {id(p): name for name, p in self().items()}
        every = self.model.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if id(p) in first and first[id(p)] != name}


def full_state(model: nn.Module, answer: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """A copy of the model's state with the answer in place of its parameters."""
    state = {key: x.detach().clone() if isinstance(x, Tensor) else x for key, x in model.state_dict().items()}
    return {**state, **answer, **{other: answer[name] for other, name in aliases.items()}}


@contextmanager
def swapped(params: Mapping[str, Tensor], model: nn.Module, answer: Mapping[str, Tensor]) -> Iterator[None]:
    """Put the answer into the model's parameters and buffers; restore both on exit.

    For sharded parameters the answer holds this rank's shards.
    """
    held = local({**params, **dict(model.named_buffers())})
    before = {name: x.detach().clone() for name, x in held.items()}
    _write(held, answer)
    try:
        yield
    finally:
        _write(held, before)
        reshard(model)


@torch.no_grad()
def _write(held: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        held[name].copy_(value)


def holds(params: Mapping[str, Tensor], answer: Mapping[str, Tensor]) -> bool:
    """Whether the parameters, or this rank's shards of them, equal the answer."""
    return all(torch.equal(p.detach(), answer[name].to(p.dtype)) for name, p in local(params).items())


def recalibrated(model: nn.Module, loader: Iterable[object], device: torch.device) -> dict[str, Tensor]:
    """Recompute the model's BatchNorm statistics in one pass over the data; returns copies by name.

    If it raises, the model is as it was.
    """
    kind = nn.modules.batchnorm._BatchNorm
    norms = {path: module for path, module in model.named_modules() if isinstance(module, kind)}
    if not norms:
        return {}
    batches = _batches(loader)
    first = next(batches, None)
    require(first is not None, "loader must give at least one batch", "none (an iterator that is used up?)")
    before = {module: (module.momentum, [x.clone() for x in module.buffers()]) for module in norms.values()}
    training = model.training
    try:
        update_bn(chain([first], batches), model, device=device)
    except BaseException:
        for module, (momentum, buffers) in before.items():
            module.momentum = momentum
            for x, old in zip(module.buffers(), buffers, strict=True):
                x.copy_(old)
        model.train(training)
        raise
    return {
        f"{path}.{name}" if path else name: buffer.detach().clone()
        for path, module in norms.items()
        for name, buffer in module.named_buffers(recurse=False)
    }


def _batches(loader: Iterable[object]) -> Iterator[object]:
    """The inputs in batches of a loader, or a ValueError."""
    rule = "loader must give batches for the model, or tuples that begin with one: take a part of each batch, such as "
    for batch in loader:
        found = batch[0] if isinstance(batch, list | tuple) and batch else batch
        kind = f"a {type(found).__name__}"
        require(hasattr(found, "to"), rule + '(batch["x"] for batch in loader)', kind)
        yield found


# Shards of FSDP2 -----------------------------------------------------------------------------


def is_sharded(tensor: Any) -> bool:  # noqa: ANN401
    """Whether it is a DTensor."""
    kind = _known("torch.distributed.tensor", "DTensor")
    return kind is not None and isinstance(tensor, kind)


def _check_fsdp(model: nn.Module) -> None:
    """Raise ValueError for FSDP1, which flattens parameters."""
    first = _known("torch.distributed.fsdp", "FullyShardedDataParallel")
    flat = first is not None and any(isinstance(module, first) for module in model.modules())
    require(not flat, "model must be sharded by fully_shard (FSDP2)", "FullyShardedDataParallel")


def local(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's shard of each parameter, sharing its memory; a plain tensor is returned as is."""
    return {name: _local(p) if is_sharded(p) else p for name, p in params.items()}


def as_shard(part: Tensor, like: Tensor) -> Tensor:
    """A rank's part as a shard placed like `like`, without a copy, on any device.

    Args:
        part: With the shape of this rank's shard of `like`.
        like: If it is a plain tensor, the part is the whole tensor.
    """
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: PLC0415

    spread: Any = like
    # `from_local` would move a host tensor to the device of the mesh.
    meta = TensorMeta(spread.shape, spread.stride(), part.dtype)
    spec = DTensorSpec(spread.device_mesh, spread.placements, tensor_meta=meta)
    shard: Tensor = DTensor(part.detach().contiguous(), spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return shard


def whole(tensor: Any) -> Any:  # noqa: ANN401
    """The full tensor of a sharded one; all ranks must call. Anything else is returned as is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_of(found: Tensor, like: Tensor, name: str) -> Tensor:
    """This rank's shard of a checkpoint's tensor.

    Args:
        found: A shard, or a full tensor.
        like: The parameter that it is a copy of.
        name: The tensor's name, for the message.

    Raises:
        StateMismatchError: If it was sharded over another number of ranks, or is another rank's shard.
    """
    if is_sharded(found):
        saved, here = _spread(found), _spread(like)
        if saved == here or (_ranks(found) == 1 and not is_sharded(like)):
            return _local(found)
        raise StateMismatchError(
            f"checkpoint belongs to other ranks: {name} must be spread as {here}; found {saved}. What torch.save wrote "
            "can be loaded by as many ranks as saved it; torch.distributed.checkpoint reshards"
        )
    if is_sharded(like) and found.shape == like.shape:
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

        spread: Any = like
        full = found.to(spread.device)
        return distribute_tensor(full, spread.device_mesh, spread.placements, src_data_rank=None).to_local()
    return found


def reshard(model: nn.Module) -> None:
    """Make FSDP free unsharded parameters left by a forward pass: they would hide writes to the shards."""
    kind = _known("torch.distributed.fsdp", "FSDPModule")
    if kind is not None:
        for module in model.modules():
            if isinstance(module, kind):
                module.reshard()  # type: ignore[operator]


def _known(module: str, name: str) -> type | None:
    """A class of torch, if the program has imported its module."""
    return getattr(sys.modules.get(module), name, None)


def _local(tensor: Any) -> Tensor:  # noqa: ANN401
    part: Tensor = tensor.detach().to_local()
    return part


def _ranks(tensor: Any) -> int:  # noqa: ANN401
    return int(tensor.device_mesh.size())


def _spread(tensor: Any) -> str:  # noqa: ANN401
    """The placement of a tensor over the ranks, and which part this is."""
    if not is_sharded(tensor):
        return "one tensor"
    mesh = tensor.device_mesh
    return f"{list(tensor.placements)} over {list(mesh.shape)} ranks, part {mesh.get_coordinate()}"
