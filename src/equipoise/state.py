"""States as flat dictionaries of tensors, for checkpoints that need no pickle.

A state is a NamedTuple of tensors, dictionaries of tensors, or further states (a wrapper holds the
state of the inner weighting). Names are joined by dots.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from equipoise.errors import StateMismatchError

__all__ = ["flatten", "unflatten"]

S = TypeVar("S")


def flatten(state: object) -> dict[str, Tensor]:
    """Every tensor of a state by its dotted name.

    Args:
        state: The state of a weighting or of a conversion.

    Returns:
        The tensors themselves, not copies; `torch.save` or safetensors can write them.

    Examples:
        >>> state = eq.OMD().init(torch.ones(3))
        >>> {name: tuple(tensor.shape) for name, tensor in eq.state.flatten(state).items()}
        {'dual': (3,), 'total': (3,), 'norm': (1,), 'previous': (3,), 'steps': (1,)}
    """
    return dict(_walk(state, ""))


def unflatten(tensors: Mapping[str, Tensor], like: S) -> S:
    """The state with the given tensors.

    Args:
        tensors: What `flatten` returned.
        like: A state of the same configuration, such as `init` returns; only its structure is used.

    Returns:
        A state of the type of `like`.

    Raises:
        StateMismatchError: If names, dtypes or numbers of dimensions differ; the message says which.

    Examples:
        >>> weighting, losses, w = eq.OMD(), torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> _, state = weighting.update(losses, weighting.init(losses), w)
        >>> saved = eq.state.flatten(state)
        >>> again = eq.state.unflatten(saved, like=weighting.init(losses))
        >>> torch.equal(weighting.update(losses, state, w)[0], weighting.update(losses, again, w)[0])
        True
    """
    expected = flatten(like)
    missing, unknown = (
        sorted(expected.keys() - tensors.keys()),
        sorted(tensors.keys() - expected.keys()),
    )
    if missing or unknown:
        raise StateMismatchError(f"state belongs to another configuration: missing {missing}, unknown {unknown}")
    for name, tensor in expected.items():
        found = tensors[name]
        if found.dtype != tensor.dtype or found.ndim != tensor.ndim:
            raise StateMismatchError(
                f"state belongs to another configuration: {name} must be {tensor.dtype} with {tensor.ndim} "
                f"dimensions; found {found.dtype} with {found.ndim}"
            )
    return _build(tensors, like, "")  # type: ignore[no-any-return]


def _walk(node: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:  # noqa: ANN401
    if isinstance(node, Tensor):
        yield prefix, node
        return
    for name, child in _children(node):
        yield from _walk(child, f"{prefix}.{name}" if prefix else name)


def _build(tensors: Mapping[str, Tensor], like: Any, prefix: str) -> Any:  # noqa: ANN401
    if isinstance(like, Tensor):
        return tensors[prefix]
    children = {name: _build(tensors, child, f"{prefix}.{name}" if prefix else name) for name, child in _children(like)}
    return children if isinstance(like, Mapping) else type(like)(**children)


def _children(node: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    yield from (node if isinstance(node, Mapping) else node._asdict()).items()
