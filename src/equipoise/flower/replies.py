"""What clients answer: read, checked, in the order of the objectives."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from equipoise.flower.arrays import Arrays, view
from equipoise.flower.objectives import Groups

__all__ = ["ACCURACY", "CLIENT", "EXAMPLES", "LOSS", "Heard", "Rejected", "hear"]

CLIENT, LOSS, EXAMPLES, ACCURACY = "partition-id", "loss", "num-examples", "accuracy"
"""The names of what a client reports; the accuracy may be left out."""


class Heard(NamedTuple):
    """A client's answer."""

    node: int
    client: int
    objective: int
    loss: float
    examples: float
    accuracy: float | None
    arrays: Arrays
    """Its model, in the bytes that came; none in an evaluation."""
    content: RecordDict
    """All that came."""


class Rejected(NamedTuple):
    """An answer that does not count.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, reply
        >>> def client(message, context):
        ...     return reply(message, context, torch.nn.Linear(1, 1), loss=float("nan"), examples=10)
        >>> strategy = PreferenceStrategy(eq.OMD(), objectives=2, fraction_evaluate=0.0)
        >>> first = ArrayRecord(torch.nn.Linear(1, 1).state_dict())
        >>> result = strategy.start(LocalGrid(client, 2), first, num_rounds=1)
        >>> strategy.rejected[0]
        Rejected(round=1, node=1, reason='loss must be finite; found nan')
    """

    round: int
    """t, from 1."""
    node: int
    """The id of the node that sent it."""
    reason: str
    """What was wrong with it."""


class _BadReplyError(Exception):
    """Says why a reply is rejected."""


def hear(
    replies: Iterable[Message], groups: Groups, like: Arrays | None, round_: int
) -> tuple[list[Heard], list[Rejected]]:
    """Read replies.

    Args:
        replies: In any order.
        groups: The known objectives.
        like: Arrays of the names, shapes and kinds that a model must have; None if no model is expected.
        round_: t, for the record.

    Returns:
        What counts, ordered by client, and what does not. Of several answers for one client none counts: the server
        cannot know who lies.
    """
    heard, rejected = [], []
    for message in replies:
        try:
            heard.append(_read(message, groups, like))
        except _BadReplyError as bad:
            rejected.append(Rejected(round_, message.metadata.src_node_id, str(bad)))
    heard.sort(key=lambda one: (one.client, one.node))
    claims: dict[int, list[int]] = {}
    for one in heard:
        claims.setdefault(one.client, []).append(one.node)
    for one in heard:
        if len(claims[one.client]) > 1:
            others = [node for node in claims[one.client] if node != one.node] or "the same node"
            reason = f"{CLIENT} {one.client} must be that of one reply; found others from {others}"
            rejected.append(Rejected(round_, one.node, reason))
    return [one for one in heard if len(claims[one.client]) == 1], rejected


def _read(message: Message, groups: Groups, like: Arrays | None) -> Heard:
    if message.has_error():
        raise _BadReplyError(f"the client failed: {message.error.reason}")
    records = list(message.content.metric_records.values())
    _demand(len(records) == 1, "a reply must have one MetricRecord", len(records))
    metrics = records[0]
    client, objective = _identity(metrics, groups)
    loss, examples = _number(metrics, LOSS), _number(metrics, EXAMPLES)
    _demand(math.isfinite(loss), f"{LOSS} must be finite", loss)
    _demand(0 < examples < math.inf, f"{EXAMPLES} must be positive and finite", examples)
    accuracy = _number(metrics, ACCURACY) if ACCURACY in metrics else None
    _demand(accuracy is None or 0 <= accuracy <= 1, f"{ACCURACY} must lie in [0, 1]", accuracy)
    arrays: Arrays = {}
    if like is not None:
        models = list(message.content.array_records.values())
        _demand(len(models) == 1, "a reply must have one ArrayRecord", len(models))
        arrays = _arrays(models[0], like)
    node = message.metadata.src_node_id
    return Heard(node, client, objective, loss, examples, accuracy, arrays, message.content)


def _identity(metrics: MetricRecord, groups: Groups) -> tuple[int, int]:
    client = _number(metrics, CLIENT)
    objective = groups.objective(int(client)) if client == client // 1 else None
    _demand(objective is not None, f"{CLIENT} must be one of the {groups.count} objectives' clients", client)
    assert objective is not None  # noqa: S101
    return int(client), objective


def _number(metrics: MetricRecord, name: str) -> float:
    _demand(name in metrics, f"a reply must report {name}", sorted(metrics))
    value = metrics[name]
    if isinstance(value, list):
        raise _BadReplyError(f"{name} must be one number; found a list of {len(value)}")
    return value


def _arrays(record: ArrayRecord, like: Arrays) -> dict[str, NDArray[Any]]:
    _demand(record.keys() == like.keys(), f"arrays must have the names {sorted(like)}", sorted(record))
    arrays = {}
    for name, model in like.items():
        try:
            array = view(record[name])
        except (ValueError, TypeError) as error:
            raise _BadReplyError(f"array {name!r} must be a numpy array: {error}") from error
        _demand(array.shape == model.shape, f"array {name!r} must have the shape {model.shape}", array.shape)
        _demand(array.dtype.kind == model.dtype.kind, f"array {name!r} must be {model.dtype}", array.dtype)
        _demand(_finite(array), f"array {name!r} must be finite", "a number that is not")
        arrays[name] = array
    return arrays


def _finite(array: NDArray[Any]) -> bool:
    """Both extremes pass a NaN on: no array of truth values is made."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _demand(condition: bool, rule: str, found: object) -> None:  # noqa: FBT001
    if not condition:
        raise _BadReplyError(f"{rule}; found {found}")
