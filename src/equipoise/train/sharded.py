"""Parameters that several ranks hold together, as FSDP2 has them: a rank records its shards.

Everything that is recorded is averaged or copied entry by entry, so that shards can be treated alone, with the same
numbers on every rank. Sharded tensors are torch's `DTensor`s, whose module is not imported here: a program that has one
has imported it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from equipoise.errors import StateMismatchError, require

__all__ = ["as_shard", "check_model", "is_sharded", "local", "owners", "reshard", "shard_of", "whole"]


def is_sharded(tensor: Any) -> bool:  # noqa: ANN401
    """Whether it is a DTensor."""
    kind = _known("torch.distributed.tensor", "DTensor")
    return kind is not None and isinstance(tensor, kind)


def check_model(model: nn.Module) -> None:
    """Raise ValueError for the first FSDP, which flattens parameters."""
    first = _known("torch.distributed.fsdp", "FullyShardedDataParallel")
    flat = first is not None and any(isinstance(module, first) for module in model.modules())
    require(not flat, "model must be sharded by fully_shard (FSDP2)", "FullyShardedDataParallel")


def local(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each, in the memory that the parameters have; a plain tensor is its own."""
    return {name: _local(p) if is_sharded(p) else p for name, p in params.items()}


def as_shard(part: Tensor, like: Tensor) -> Tensor:
    """A rank's part as the shard of a tensor that is spread as `like` is; no copy, on any device.

    Args:
        part: Of the shape of this rank's part of `like`.
        like: If it is a plain tensor, the part is the whole.
    """
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: PLC0415

    spread: Any = like
    # `from_local` would bring a part that lives on the host to the device of the mesh.
    meta = TensorMeta(spread.shape, spread.stride(), part.dtype)
    spec = DTensorSpec(spread.device_mesh, spread.placements, tensor_meta=meta)
    shard: Tensor = DTensor(part.detach().contiguous(), spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return shard


def whole(tensor: Any) -> Any:  # noqa: ANN401
    """The full tensor of a sharded one; all ranks must ask for it. Anything else as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_of(found: Tensor, like: Tensor, name: str) -> Tensor:
    """This rank's part of a tensor of a checkpoint.

    Args:
        found: A shard, or a full tensor.
        like: The parameter that it is a copy of.
        name: The tensor's name, for the message.

    Raises:
        StateMismatchError: If it is the shard of another number of ranks, or another shard.
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


def owners(state: Any, names: frozenset[str], prefix: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """The tensors of a state that are copies of parameters: their names in `flatten`, and the parameters'."""
    children = state if isinstance(state, Mapping) else state._asdict()
    copies = isinstance(state, Mapping) and state.keys() == names
    for name, child in children.items():
        path = f"{prefix}.{name}" if prefix else name
        if not isinstance(child, Tensor):
            yield from owners(child, names, path)
        elif copies:
            yield path, name


def reshard(model: nn.Module) -> None:
    """Let FSDP drop full parameters that a forward pass left: they would hide what is written to the shards."""
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
    """How a tensor is spread over the ranks, and which part this is."""
    if not is_sharded(tensor):
        return "one tensor"
    mesh = tensor.device_mesh
    return f"{list(tensor.placements)} over {list(mesh.shape)} ranks, part {mesh.get_coordinate()}"
