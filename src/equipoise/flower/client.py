"""The client side: functions that handle the strategy's messages and reply."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn

from equipoise.errors import require
from equipoise.federated.local_work import LocalWork, Transform
from equipoise.flower.replies import ACCURACY, CLIENT, EXAMPLES, LOSS

__all__ = ["Criterion", "Samples", "evaluate_function", "reply", "train_function"]

Handler = Callable[[Message, Context], Message]
Criterion = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a model's outputs, given the labels."""

_AT_ONCE = 1024


class Samples(NamedTuple):
    """The data of a client."""

    inputs: Tensor
    """(n, ...), ready for the model."""
    labels: Tensor
    """(n, ...)."""


class _Measured(NamedTuple):
    loss: float
    correct: int | None
    """Correctly classified samples; None if labels are not classes."""


def reply(
    message: Message,
    context: Context,
    model: nn.Module | None,
    *,
    loss: float,
    examples: int,
    accuracy: float | None = None,
) -> Message:
    """A reply in the form that the strategy expects, for your own train function.

    Args:
        message: The message to reply to.
        context: The client's context; its `partition-id` identifies the client.
        model: The trained model; None in an evaluation.
        loss: The loss that determines the objective's weight.
        examples: The number of samples.
        accuracy: The fraction of correctly classified samples, if it applies.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, reply
        >>> def client(message, context):  # your own train function
        ...     k = context.node_config["partition-id"]
        ...     return reply(message, context, torch.nn.Linear(1, 1), loss=1.0 + k, examples=10)
        >>> strategy = PreferenceStrategy(eq.OMD(), objectives=2, fraction_evaluate=0.0)
        >>> first = ArrayRecord(torch.nn.Linear(1, 1).state_dict())
        >>> result = strategy.start(LocalGrid(client, 2), first, num_rounds=1)
        >>> result.train_metrics_clientapp[1]["agnostic-loss"]
        2.0
    """
    told: dict[str, int | float | list[int] | list[float]] = {
        CLIENT: int(context.node_config["partition-id"]),
        LOSS: float(loss),
        EXAMPLES: int(examples),
    }
    if accuracy is not None:
        told[ACCURACY] = float(accuracy)
    content = RecordDict({"metrics": MetricRecord(told)})
    if model is not None:
        content["arrays"] = ArrayRecord(dict(model.state_dict()))
    return Message(content, reply_to=message)


def train_function(
    model: Callable[[], nn.Module],
    samples: Callable[[Context], tuple[Tensor, Tensor]],
    work: LocalWork,
    *,
    loss: Literal["received", "trajectory"] = "received",
    transform: Transform | None = None,
    criterion: Criterion = nn.functional.cross_entropy,
) -> Handler:
    """A train function: plain SGD from the received model, and the loss that the strategy needs.

    Batches depend on the strategy's seed, the round and the partition id, so a resumed run is the same as an
    uninterrupted one.

    Args:
        model: A function that returns a module; its initial values do not matter.
        samples: The training samples of the client with this context.
        work: Epochs, batch and step size.
        loss: "received": of the received model on all samples, by which a server can compare models; "trajectory": the
            mean of all batch losses of the round, each taken before its step.
        transform: Applied to the batch loss before differentiating it, such as `PropFair`.
        criterion: The batch loss.

    Returns:
        A function for `ClientApp.train()`.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.federated import LocalWork
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, train_function
        >>> model, held = lambda: torch.nn.Linear(1, 2), (torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
        >>> client = train_function(model, lambda context: held, LocalWork(epochs=5, step_size=1.0))
        >>> strategy = PreferenceStrategy(eq.Linear(), objectives=2, fraction_evaluate=0.0)
        >>> result = strategy.start(LocalGrid(client, 2), ArrayRecord(model().state_dict()), num_rounds=5)
        >>> result.train_metrics_clientapp[5]["accuracy"]
        1.0
    """
    require(loss in {"received", "trajectory"}, 'loss must be "received" or "trajectory"', loss)

    def train(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        rule = (
            "a train function must get messages for training: give the strategy fraction_evaluate=0.0, or make the "
            "client a ClientApp with an evaluate_function too"
        )
        require(kind.startswith(MessageType.TRAIN), rule, f"one to {kind}")
        module, held = _loaded(model, message).train(), _held(samples, context)
        config = next(iter(message.content.config_records.values()))
        key = (int(config["seed"]), int(config["server-round"]), int(context.node_config["partition-id"]))  # type: ignore[arg-type]
        whole = work.batch_size is None or work.batch_size >= len(held.labels)
        first = _measured(module, held, criterion) if loss == "received" and not whole else None
        optimizer = torch.optim.SGD(module.parameters(), lr=work.step_size)
        seen: list[_Measured] = []
        sizes = []
        for batch in _batches(held, work, key):
            outputs = module(batch.inputs)
            value = criterion(outputs, batch.labels)
            optimizer.zero_grad()
            (value if transform is None else transform(value)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen.append(_Measured(value.item(), _correct(outputs, batch.labels)))
            sizes.append(len(batch.labels))
        if first is None and loss == "received":
            first = seen[0]
        if first is not None:
            return _told(message, context, module, first, len(held.labels))
        mean = sum(one.loss for one in seen) / len(seen)
        right = [one.correct for one in seen if one.correct is not None]
        share = sum(right) / sum(sizes) if right else None
        return reply(message, context, module, loss=mean, examples=len(held.labels), accuracy=share)

    return train


def evaluate_function(
    model: Callable[[], nn.Module],
    samples: Callable[[Context], tuple[Tensor, Tensor]],
    *,
    criterion: Criterion = nn.functional.cross_entropy,
) -> Handler:
    """An evaluate function: loss and accuracy of the received model.

    Args:
        model: A function that returns a module.
        samples: The evaluation samples of the client with this context.
        criterion: The mean loss.

    Returns:
        A function for `ClientApp.evaluate()`.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from flwr.clientapp import ClientApp
        >>> from equipoise.federated import LocalWork
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, evaluate_function, train_function
        >>> model, held = lambda: torch.nn.Linear(1, 2), (torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
        >>> app = ClientApp()
        >>> train = app.train()(train_function(model, lambda context: held, LocalWork(epochs=20, step_size=1.0)))
        >>> evaluate = app.evaluate()(evaluate_function(model, lambda context: held))
        >>> strategy = PreferenceStrategy(eq.Linear(), objectives=2)
        >>> result = strategy.start(LocalGrid(app, 2), ArrayRecord(model().state_dict()), num_rounds=1)
        >>> result.evaluate_metrics_clientapp[1]["accuracy"]
        1.0
    """

    def evaluate(message: Message, context: Context) -> Message:
        held = _held(samples, context)
        measured = _measured(_loaded(model, message).eval(), held, criterion)
        return _told(message, context, None, measured, len(held.labels))

    return evaluate


def _held(samples: Callable[[Context], tuple[Tensor, Tensor]], context: Context) -> Samples:
    held = Samples(*samples(context))
    where = f"partition-id {context.node_config.get('partition-id')}"
    require(len(held.labels) > 0, "every client must have samples", f"none for {where}")
    return held


def _told(message: Message, context: Context, module: nn.Module | None, found: _Measured, n: int) -> Message:
    share = None if found.correct is None else found.correct / n
    return reply(message, context, module, loss=found.loss, examples=n, accuracy=share)


def _loaded(model: Callable[[], nn.Module], message: Message) -> nn.Module:
    """A module with the received arrays, in their dtype."""
    arrays = next(iter(message.content.array_records.values())).to_torch_state_dict()
    with torch.random.fork_rng(devices=[]):
        module = model()
    kinds = {x.dtype for x in arrays.values() if x.is_floating_point()}
    module = module.to(next(iter(kinds))) if len(kinds) == 1 else module
    module.load_state_dict(arrays)
    return module


def _batches(held: Samples, work: LocalWork, key: tuple[int, int, int]) -> Iterator[Samples]:
    n = len(held.labels)
    if work.batch_size is None:
        for _ in range(work.epochs):
            yield held
        return
    draws = np.random.default_rng(key)
    for _ in range(work.epochs):
        for index in torch.split(torch.from_numpy(draws.permutation(n)), work.batch_size):
            yield Samples(held.inputs[index], held.labels[index])


@torch.no_grad()
def _measured(module: nn.Module, held: Samples, criterion: Criterion) -> _Measured:
    total, right, classes = 0.0, 0, True
    training = module.training
    module.eval()
    for inputs, labels in zip(torch.split(held.inputs, _AT_ONCE), torch.split(held.labels, _AT_ONCE), strict=True):
        outputs = module(inputs)
        total += criterion(outputs, labels).item() * len(labels)
        found = _correct(outputs, labels)
        classes = classes and found is not None
        right += found or 0
    module.train(training)
    return _Measured(total / len(held.labels), right if classes else None)


def _correct(outputs: Tensor, labels: Tensor) -> int | None:
    if labels.is_floating_point() or outputs.ndim != 2 or labels.ndim != 1:
        return None
    return int((outputs.argmax(-1) == labels).sum())
