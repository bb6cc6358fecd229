"""An in-process Grid: run a strategy against a client app in milliseconds, without Ray or sockets."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from equipoise.errors import require

__all__ = ["LocalGrid"]

Client = Callable[[Message, Context], Message]


class LocalGrid(Grid):
    """Clients in this process, one after the other.

    Partition p is node p + 1. Every node keeps its Context from round to round, as SuperNodes do. If a client raises an
    exception, the reply is an error, as in Flower.

    Args:
        client: A `ClientApp`, or any function of a message and a context.
        clients: Their number.
        run_config: The run configuration in every client's context.
        lost: A function of the node id and the message that says whether the reply is lost.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, reply
        >>> def client(message, context):
        ...     return reply(message, context, torch.nn.Linear(1, 1), loss=1.0, examples=10)
        >>> grid = LocalGrid(client, 3, lost=lambda node, message: node == 2)
        >>> list(grid.get_node_ids())
        [1, 2, 3]
        >>> strategy = PreferenceStrategy(eq.OMD(), objectives=3, fraction_evaluate=0.0)
        >>> result = strategy.start(grid, ArrayRecord(torch.nn.Linear(1, 1).state_dict()), num_rounds=1)
        >>> result.train_metrics_clientapp[1]["objectives-heard"]
        2
    """

    def __init__(
        self,
        client: Client,
        clients: int,
        *,
        run_config: dict[str, Any] | None = None,
        lost: Callable[[int, Message], bool] | None = None,
    ) -> None:
        require(clients >= 1, "clients must be at least 1", clients)
        _identify()
        self.client, self.lost = client, lost
        self.contexts = {
            p + 1: Context(0, p + 1, {"partition-id": p, "num-partitions": clients}, RecordDict(), run_config or {})
            for p in range(clients)
        }
        self._answers: dict[str, Message] = {}
        self._run: Any = None

    def get_node_ids(self) -> Iterable[int]:
        """All node ids."""
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:  # noqa: ARG002
        """The replies to messages; `timeout` is ignored."""
        return [reply for message in messages if (reply := self._answer(message)) is not None]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the clients on messages; their replies wait to be pulled."""
        names = []
        for message in messages:
            names.append(f"{len(self._answers)}-{message.metadata.dst_node_id}")
            reply = self._answer(message)
            if reply is not None:
                self._answers[names[-1]] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to messages that were pushed."""
        return [self._answers.pop(name) for name in message_ids if name in self._answers]

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:  # noqa: ANN401
        """Remember the run."""
        self._run = run

    @property
    def run(self) -> Any:  # noqa: ANN401
        """The run given to `set_run`."""
        return self._run

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if self.lost is not None and self.lost(node, message):
            return None
        # Messages of one round share their content; copy it, so that a client changes only its own configuration.
        configs = {name: ConfigRecord(dict(c)) for name, c in message.content.config_records.items()}
        own = RecordDict({**dict(message.content.items()), **configs})
        shared, message.content = message.content, own
        try:
            return self.client(message, self.contexts[node])
        except Exception as error:
            return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)
        finally:
            message.content = shared


def _identify() -> None:
    """Set a task identity: newer versions of Flower require one to create messages."""
    try:
        from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415
    except ImportError:
        return
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
