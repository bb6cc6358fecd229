"""The clients' replies: read, checked, and in the order of the objectives."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from equipoise.flower.arrays import Arrays, square_distance, view
from equipoise.flower.client_groups import Groups

__all__ = ["ACCURACY", "CLIENT", "EXAMPLES", "LOSS", "Heard", "Rejected", "hear"]

CLIENT, LOSS, EXAMPLES, ACCURACY = "partition-id", "loss", "num-examples", "accuracy"
"""The names of the reported metrics; accuracy is optional."""

LARGEST_LOSS = float(np.finfo(np.float32).max)
"""The largest loss: sums and products of such losses are finite in float64."""
MOST_EXAMPLES = 2**53
"""The largest count that float64 represents exactly."""
_LONGEST_REASON = 500


class Heard(NamedTuple):
    """A client's reply."""

    node: int
    client: int
    objective: int
    loss: float
    examples: float
    accuracy: float | None
    arrays: Arrays
    """Its model, as views of the received bytes; empty in an evaluation."""
    distances: dict[str, float]
    """|θ_i − θ|² of every floating-point array."""
    content: RecordDict
    """The whole message."""


class Rejected(NamedTuple):
    """A reply that was rejected.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, reply
        >>> def client(message, context):
        ...     return reply(message, context, torch.nn.Linear(1, 1), loss=float("nan"), examples=10)
        >>> strategy = PreferenceStrategy(eq.OMD(), objectives=2, fraction_evaluate=0.0)
        >>> first = ArrayRecord(torch.nn.Linear(1, 1).state_dict())
        >>> result = strategy.start(LocalGrid(client, 2), first, num_rounds=1)
        >>> strategy.rejected[0]
        Rejected(round=1, node=1, reason='loss must be finite and at most 3.4e+38 in size; found nan')
    """

    round: int
    """t, from 1."""
    node: int
    """The id of the node that sent it."""
    reason: str
    """Why it was rejected."""


class _BadReplyError(Exception):
    """Says why a reply is rejected."""


def hear(
    replies: Iterable[Message], groups: Groups, like: Arrays | None, round_: int, owners: Mapping[int, int]
) -> tuple[list[Heard], list[Rejected]]:
    """Read replies.

    Args:
        replies: In any order.
        groups: The known objectives.
        like: Arrays with the names, shapes and kinds that a model must have; None if no model is expected.
        round_: t, for the rejected replies.
        owners: The node of every known client.

    Returns:
        The accepted replies, ordered by client, and the rejected ones. If several replies claim to be one client, all
        are rejected: the server cannot know who lies.
    """
    heard, rejected = [], []
    clients = {node: client for client, node in owners.items()}
    for message in replies:
        try:
            one = _read(message, groups, like)
            _check_owner(one, owners, clients)
        except _BadReplyError as bad:
            rejected.append(Rejected(round_, message.metadata.src_node_id, _printable(str(bad))))
        else:
            heard.append(one)
    heard.sort(key=lambda one: (one.client, one.node))
    by_client, by_node = _grouped(heard, "client"), _grouped(heard, "node")
    counting = []
    for one in heard:
        others = [node for node in by_client[one.client] if node != one.node]
        if len(by_client[one.client]) > 1:
            reason = f"{CLIENT} {one.client} must be in one reply only; found others from {others or 'the same node'}"
        elif len(by_node[one.node]) > 1:
            reason = f"a node must answer once; found {len(by_node[one.node])} replies"
        else:
            counting.append(one)
            continue
        rejected.append(Rejected(round_, one.node, _printable(reason)))
    return counting, rejected


def _grouped(heard: Iterable[Heard], what: Literal["client", "node"]) -> dict[int, list[int]]:
    """The nodes of the replies of every client, or of every node."""
    found: dict[int, list[int]] = {}
    for one in heard:
        found.setdefault(getattr(one, what), []).append(one.node)
    return found


def _check_owner(one: Heard, owners: Mapping[int, int], clients: Mapping[int, int]) -> None:
    owner = owners.get(one.client, one.node)
    _demand(owner == one.node, f"{CLIENT} {one.client} belongs to node {owner}", f"it in a reply of node {one.node}")
    own = clients.get(one.node, one.client)
    _demand(own == one.client, f"{CLIENT} of node {one.node} must be {own}, as before", one.client)


def _read(message: Message, groups: Groups, like: Arrays | None) -> Heard:
    if message.has_error():
        raise _BadReplyError(f"the client failed: {message.error.reason}")
    records = list(message.content.metric_records.values())
    _demand(len(records) == 1, "a reply must have one MetricRecord", len(records))
    metrics = records[0]
    client, objective = _identity(metrics, groups)
    loss, examples = _number(metrics, LOSS), _number(metrics, EXAMPLES)
    _demand(abs(loss) <= LARGEST_LOSS, f"{LOSS} must be finite and at most {LARGEST_LOSS:.2g} in size", loss)
    _demand(0 < examples <= MOST_EXAMPLES, f"{EXAMPLES} must be positive and at most 2^53", examples)
    accuracy = _number(metrics, ACCURACY) if ACCURACY in metrics else None
    _demand(accuracy is None or 0 <= accuracy <= 1, f"{ACCURACY} must lie in [0, 1]", accuracy)
    arrays: Arrays = {}
    distances: dict[str, float] = {}
    if like is not None:
        models = list(message.content.array_records.values())
        _demand(len(models) == 1, "a reply must have one ArrayRecord", len(models))
        arrays, distances = _arrays(models[0], like)
    node = message.metadata.src_node_id
    return Heard(node, client, objective, float(loss), float(examples), accuracy, arrays, distances, message.content)


def _identity(metrics: MetricRecord, groups: Groups) -> tuple[int, int]:
    client = _number(metrics, CLIENT)
    objective = groups.objective(int(client)) if client == client // 1 else None
    _demand(objective is not None, f"{CLIENT} must be one of the {groups.count} objectives' clients", client)
    assert objective is not None  # noqa: S101
    return int(client), objective


def _number(metrics: MetricRecord, name: str) -> float:
    _demand(name in metrics, f"a reply must report {name}", lambda: _names(metrics))
    value = metrics[name]
    if isinstance(value, list):
        raise _BadReplyError(f"{name} must be one number; found a list of {len(value)}")
    return value


def _arrays(record: ArrayRecord, like: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
    """Views of a model's arrays, and their squared distances from the model that was sent."""
    _demand(record.keys() == like.keys(), f"arrays must have the names {_names(like)}", lambda: _names(record))
    arrays, distances = {}, {}
    for name, model in like.items():
        try:
            array = view(record[name], model)
        except ValueError as error:
            raise _BadReplyError(f"array {name!r} {error}") from error
        if model.dtype.kind == "f":
            distances[name] = square_distance(model, array)
            near = math.sqrt(distances[name]) < np.finfo(model.dtype).max if distances[name] >= 0 else False
            _demand(near, f"array {name!r} must be finite, its distance from the model sent too", "that it is not")
        elif model.dtype.kind == "c":
            _demand(bool(np.isfinite(array).all()), f"array {name!r} must be finite", "that it is not")
        arrays[name] = array
    return arrays, distances


def _names(mapping: Mapping[str, object]) -> list[str]:
    """The first few names; a client could send a million."""
    return sorted(mapping)[:20]


def _printable(text: str) -> str:
    """A text that is safe to log: one short line, whatever a client wrote."""
    return "".join(c if c.isprintable() else "?" for c in text[:_LONGEST_REASON])


def _demand(condition: bool, rule: str, found: object | Callable[[], object]) -> None:  # noqa: FBT001
    if not condition:
        raise _BadReplyError(f"{rule}; found {found() if callable(found) else found}")
