"""A Flower strategy: clients, or groups of clients, as objectives, weighted by any method of the library."""

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from equipoise import metrics
from equipoise import preference as preferences
from equipoise.conversion import Adaptive, Conversion
from equipoise.errors import require
from equipoise.flower import arrays as sums
from equipoise.flower.checkpoint import Checkpoint
from equipoise.flower.client_groups import Groups, Objectives, inclusion
from equipoise.flower.client_limits import LossCap, limit_moves, weight_shares
from equipoise.flower.replies import Heard, Rejected, hear
from equipoise.flower.server import Server, ServerOptimizer
from equipoise.registry import Method, default, resolve
from equipoise.weighting import Weighting

__all__ = ["PreferenceStrategy"]

LOG = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

LISTED = 1000
"""With more objectives than this, λ and coefficients are not listed in every round's metrics."""


class _Sample(NamedTuple):
    """How many nodes were asked in a round, and of how many."""

    drawn: int
    nodes: int


class _Round(NamedTuple):
    """The losses of the objectives in a round."""

    parts: list[sums.Part]
    losses: Tensor
    """(m,)."""
    present: Tensor
    """Which objectives replied, (m,)."""
    capped: int
    """Losses that were capped."""
    shortened: int
    """Clients whose move was too long."""


class PreferenceStrategy(FedAvg):
    r"""Federated learning with a preference over objectives.

    In round t the clients receive θ and send back θ_i and their losses f_i. The weighting turns these into coefficients
    c, and the server moves to θ + Σ c_i (θ_i − θ). The conversion records the trajectory; `solution()` is its answer.
    A reply has one MetricRecord with `partition-id`, `loss`, `num-examples` and optionally `accuracy`, and one
    ArrayRecord with the model. `train_function` makes such replies.

    Args:
        weighting: Any weighting of the library, a `Method`, or a name from `methods()`; by default
            `default(steps=num_rounds)`. A resumed run keeps the number of rounds that it began with.
        preference: w, one entry per objective, summing to one; uniform by default.
        conversion: The conversion that gives the answer. By default the conversion of the method, or
            `Adaptive(capacity=8)` for a weighting alone.
        objectives: Their number, if objective i is the client with partition id i; or the partition ids of each, such
            as `[[0, 1], [2, 3, 4]]`. The loss and the model of an objective are then means over its clients, weighted
            by their numbers of samples.
        server_optimizer: A function from a list of tensors to an optimizer, which gets −Σ c_i (θ_i − θ) as its
            gradient; without one θ moves by Σ c_i (θ_i − θ).
        step_size: η of the clients' work: (θ − θ_i)/η are the pseudo-gradients for weightings that need them.
        average: Whether `Average` takes the models before the server's step or after it.
        seed: The seed of the client sampling; also sent to the clients.
        dropout: The probability that a sampled client does not reply, if you know it: gains and coefficients are
            divided by the probability of a reply.
        cap: The limit on reported losses; None for no limit.
        max_weight: The largest share of the coefficients that one client can have, in (0, 1]. The excess goes to the
            others. 1: no limit, as in the paper.
        max_move: The longest move θ_i − θ of a client, as a multiple of the median length; a longer one is shortened to
            the median. `inf`: no limit.
        statistics: Arrays that are averaged over the clients without weights and are not part of the conversion; by
            default those of BatchNorm.
        evaluate_solution: Whether to evaluate the solution instead of θ, on clients and on the server.
        checkpoint: A folder for the server's state, written after every round. A folder with the state of another run
            is refused.
        resume: A folder with such a state: `start` resumes after its round and keeps writing to it.
        **fedavg: Arguments of Flower's `FedAvg`, such as `fraction_train` and `min_available_nodes`. The results of
            `train_metrics_aggr_fn` and `evaluate_metrics_aggr_fn` are added to the metrics.

    Examples:
        >>> from flwr.app import ArrayRecord
        >>> from equipoise.flower import LocalGrid, PreferenceStrategy, reply
        >>> def client(message, context):  # moves the model by 1 or by −1, whatever it gets
        ...     model, k = torch.nn.Linear(1, 1, bias=False), context.node_config["partition-id"]
        ...     model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        ...     model.weight.data += (1.0, -1.0)[k]
        ...     return reply(message, context, model, loss=1.0, examples=10)
        >>> strategy = PreferenceStrategy(eq.Linear(), [0.25, 0.75], objectives=2, fraction_evaluate=0.0)
        >>> result = strategy.start(LocalGrid(client, 2), ArrayRecord({"weight": torch.zeros(1, 1)}), num_rounds=1)
        >>> result.arrays["weight"].numpy().item()  # 0.25·1 − 0.75·1
        -0.5
    """

    def __init__(
        self,
        weighting: Weighting[Any] | Method | str | None = None,
        preference: Tensor | Sequence[float] | None = None,
        conversion: Conversion[Any] | None = None,
        *,
        objectives: Objectives,
        server_optimizer: ServerOptimizer | None = None,
        step_size: float = 1.0,
        average: Literal["before", "after"] = "before",
        seed: int = 0,
        dropout: float = 0.0,
        cap: LossCap | None = LossCap(),  # noqa: B008
        max_weight: float = 0.5,
        max_move: float = 10.0,
        statistics: Collection[str] | None = None,
        evaluate_solution: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        **fedavg: Any,
    ) -> None:
        require(0 < step_size < float("inf"), "step_size must be positive and finite", step_size)
        require(average in {"before", "after"}, 'average must be "before" or "after"', average)
        require(0 <= dropout < 1, "dropout must lie in [0, 1)", dropout)
        require(0 < max_weight <= 1, "max_weight must lie in (0, 1]", max_weight)
        require(max_move >= 1, "max_move must be at least 1", max_move)
        super().__init__(**fedavg)
        self._more = {kind: fedavg.get(f"{kind}_metrics_aggr_fn") for kind in ("train", "evaluate")}
        method = _method(weighting)
        self.rounds: int | None = None
        """The length of the run as the default's weighting knows it; None: the weighting was given."""
        self._by_rounds = weighting is None
        self.weighting, self.conversion = method.weighting, method.conversion if conversion is None else conversion
        self.groups = Groups(objectives)
        self.preference = _weights(preference, self.groups.count)
        self.server_optimizer, self.step_size = server_optimizer, step_size
        self.average: Literal["before", "after"] = average
        self.seed, self.dropout = seed, dropout
        self.cap, self.max_weight, self.max_move = cap, max_weight, max_move
        self.statistics, self.evaluate_solution = statistics, evaluate_solution
        place = checkpoint if resume is None else resume
        self.checkpoint = None if place is None else Checkpoint(place)
        self.resume = resume is not None
        self.rejected: list[Rejected] = []
        """Every rejected reply."""
        self.checkpoint_seconds = 0.0
        """Time spent writing checkpoints."""
        self._server: Server | None = None
        self._sent: ArrayRecord | None = None
        self._sample: _Sample | None = None
        self._said: set[tuple[str, int]] = set()
        self._owners: dict[int, int] = {}  # the node of every client that has replied
        self._described: dict[str, str] | None = None
        self._before = 0  # rounds done when `start` was called: Flower counts from one

    # --------------------------------------------------------------------------- Flower's verbs
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Flower's loop over rounds; when resumed, over the rest of the `num_rounds`."""
        if self._by_rounds:
            begun = self.checkpoint.setting("rounds") if self.resume and self.checkpoint is not None else None
            self.rounds = int(begun) if begun is not None and begun.isdecimal() else max(num_rounds, 1)
            self.weighting = default(steps=self.rounds).weighting
        with contextlib.ExitStack() as ends:
            if self.checkpoint is not None:
                ends.callback(self.checkpoint.close)
            server = self._begin(initial_arrays)
            if self.resume and self.checkpoint is not None:
                server.restore(self.checkpoint, self._settings())
                LOG.info("resumed after round %d of %d", server.round, num_rounds)
            before = self._before = server.round
            self._sent = sums.packed(server.theta)

            def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
                assert evaluate_fn is not None  # noqa: S101
                return evaluate_fn(before + round_, self.solution() if self.evaluate_solution else arrays)

            result = super().start(
                grid,
                self._sent,
                max(num_rounds - before, 0),
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else evaluate,
            )
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {before + r: found for r, found in getattr(result, kind).items()})
        result.arrays = self._sent
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample a fraction of the nodes; the draw depends only on the seed, the round and the node ids."""
        if self._server is None:
            require(not self.resume, "a run must be resumed by start()", "configure_train() before it")
            self._begin(arrays)
        elif arrays is not self._sent:
            self._server.theta = sums.unpacked(arrays)
        self._sent = arrays
        if self.fraction_train == 0.0:
            return []
        t, nodes = self._before + server_round, self._nodes(grid)
        connected = set(nodes)  # a client may reconnect as another node
        self._owners = {client: node for client, node in self._owners.items() if node in connected}
        asked = min(max(1, round(self.fraction_train * len(nodes)), self.min_train_nodes), len(nodes))
        order = np.random.default_rng((self.seed, t, 1)).permutation(len(nodes))
        self._sample = _Sample(asked, len(nodes))
        LOG.info("round %d: %d of %d nodes are asked", t, asked, len(nodes))
        config["server-round"], config["seed"] = t, self.seed
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        drawn = (nodes[k] for k in sorted(order[:asked]))
        return [Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in drawn]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the server: weight the objectives, record the model, move it."""
        server, t = self._held(), self._before + server_round
        heard = self._hear(t, replies, {name: x.numpy() for name, x in server.theta.items()})
        server.round = t
        if not heard:
            LOG.warning("round %d skipped: no reply counts; model, weights and archive stay as they are", t)
            self._keep(moved=False)
            return None, None
        said = self._limited(t, heard, self._objectives(heard))
        pi = self._inclusion()
        mask = None if pi is None and bool(said.present.all()) else said.present
        weights, missing = server.weights, server.missing
        c = server.advance(said.losses, mask, pi, said.parts)
        for j in torch.nonzero(server.missing & ~missing).squeeze(-1).tolist():
            LOG.warning("round %d: objective %d was never heard: the solution leaves it out until it is", t, j)
        self._watch(t, said, weights, server.weights)
        self._keep(moved=True)
        self._sent = sums.packed(server.theta)
        return self._sent, self._metrics(heard, said, c)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As in Flower, with the solution if `evaluate_solution` is set."""
        evaluated = self.solution() if self.evaluate_solution and self.fraction_evaluate > 0 else arrays
        return super().configure_evaluate(self._before + server_round, evaluated, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean loss and accuracy over all samples, the worst objective's loss, and the accuracy parity."""
        t = self._before + server_round
        heard = self._hear(t, replies, None)
        if not heard:
            return None
        return MetricRecord({**self._scores(heard, self._objectives(heard)), **self._own("evaluate", heard)})

    def summary(self) -> None:
        """Log the configuration."""
        LOG.info("\t├──> %s", self.weighting)
        LOG.info("\t├──> %s on %d objectives", self.conversion, self.groups.count)
        super().summary()

    # --------------------------------------------------------------------------- the answer
    def solution(self) -> ArrayRecord:
        """The converted model, with the newest values of all other arrays."""
        return sums.packed(self._held().solution())

    @property
    def weights(self) -> Tensor | None:
        """λ, (m,), for weightings that have one."""
        return self._held().weights

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._held().round

    # --------------------------------------------------------------------------- parts of a round
    def _begin(self, arrays: ArrayRecord) -> Server:
        self._before, self.rejected, self.checkpoint_seconds, self._described = 0, [], 0.0, None
        self._owners, self._said = {}, set()
        if self.checkpoint is not None:
            self.checkpoint.open(resume=self.resume)
        self._server = Server(
            sums.unpacked(arrays),
            self.weighting,
            self.preference,
            self.conversion,
            optimizer=self.server_optimizer,
            step_size=self.step_size,
            average=self.average,
            max_weight=self.max_weight,
            statistics=self.statistics,
        )
        return self._server

    def _held(self) -> Server:
        if self._server is None:
            raise RuntimeError("the strategy must be started before this; found it not started")
        return self._server

    def _nodes(self, grid: Grid) -> list[int]:
        """All nodes, once enough are connected."""
        least = max(self.min_available_nodes, self.min_train_nodes)
        while len(nodes := sorted(grid.get_node_ids())) < least:
            LOG.info("waiting for nodes: %d connected, %d needed", len(nodes), least)
            time.sleep(1)
        return nodes

    def _hear(self, t: int, replies: Iterable[Message], like: sums.Arrays | None) -> list[Heard]:
        heard, rejected = hear(replies, self.groups, like, t, self._owners)
        self._owners |= {one.client: one.node for one in heard}
        for one in rejected:
            self._say_once(("reply", one.node), f"round {t}: reply of node {one.node} rejected: {one.reason}")
        self.rejected += rejected
        return heard

    def _objectives(self, heard: Sequence[Heard]) -> _Round:
        """Means over the clients of every objective."""
        which, counts = _objectives_of(heard), _numbers(one.examples for one in heard)
        total = self._sum(which, counts)
        shares = counts / total[which]
        losses = self._sum(which, shares * _numbers(one.loss for one in heard))
        parts = [sums.Part(one.arrays, one.objective, share) for one, share in zip(heard, shares.tolist(), strict=True)]
        return _Round(parts, losses, total > 0, 0, 0)

    def _limited(self, t: int, heard: Sequence[Heard], said: _Round) -> _Round:
        """The losses after the cap, and the factor of every client's move."""
        losses, capped = said.losses, 0
        if self.cap is not None:
            present, w = said.present, self.preference[said.present]
            counts = torch.where(w > 0, self.cap.capped(w * losses[present]) / w, losses[present])
            changed = ~torch.isclose(counts, losses[present], rtol=1e-12, atol=0.0)
            for j in torch.nonzero(present).squeeze(-1)[changed].tolist():
                nodes = [one.node for one in heard if one.objective == j]
                self._say_once(
                    ("cap", j), f"round {t}: loss {losses[j]:.6g} of objective {j}, from nodes {nodes}, is capped"
                )
            losses, capped = losses.clone(), int(changed.sum())
            losses[present] = torch.where(changed, counts, losses[present])
        paces = self._paces(heard)
        for one, pace in zip(heard, paces.tolist(), strict=True):
            if pace < 1:
                self._say_once(
                    ("move", one.node), f"round {t}: move of node {one.node} is too long: {pace:.3g} of it counts"
                )
        parts = [part._replace(pace=pace) for part, pace in zip(said.parts, paces.tolist(), strict=True)]
        return said._replace(parts=parts, losses=losses, capped=capped, shortened=int((paces < 1).sum()))

    def _paces(self, heard: Sequence[Heard]) -> Tensor:
        """The factor of every client's move, (n,): the smaller of that for learned arrays and for statistics."""
        learned = self._held().learned.keys()
        kinds = (learned, heard[0].distances.keys() - learned)
        lengths = (_numbers(sum(one.distances[name] for name in kind) for one in heard).sqrt() for kind in kinds)
        return torch.stack([limit_moves(each, self.max_move) for each in lengths]).amin(0)

    def _sum(self, which: Tensor, values: Tensor) -> Tensor:
        """Sums over the clients of every objective, (m,)."""
        return torch.zeros(self.groups.count, dtype=torch.float64).index_add_(0, which, values)

    def _inclusion(self) -> Tensor | None:
        """π of every objective, (m,); None if every client was asked and surely replies."""
        if self._sample is None or (self._sample.drawn == self._sample.nodes and self.dropout == 0):
            return None
        return inclusion(self.groups.sizes, *self._sample, self.dropout)

    # --------------------------------------------------------------------------- messages and metrics
    def _say_once(self, what: tuple[str, int], text: str) -> None:
        """Log a warning once per run, so that one bad client does not fill the log. The metrics count all."""
        if what not in self._said:
            self._said.add(what)
            LOG.warning("%s; this is said once", text)

    def _watch(self, t: int, said: _Round, before: Tensor | None, after: Tensor | None) -> None:
        """Warn if one objective takes nearly all the weight in one round."""
        if before is None or after is None or len(after) < 3:
            return
        worst = int(after.argmax())
        if float(after[worst]) > 0.9 and float(before[worst]) < 0.5:
            rest = f"loss {said.losses[worst]:.6g}, median {said.losses[said.present].median():.6g}; see max_weight"
            LOG.warning("round %d: objective %d takes %.1f %% of the weight: %s", t, worst, 100 * after[worst], rest)

    def _scores(self, heard: Sequence[Heard], said: _Round) -> dict[str, Any]:
        """Scores of the objectives that replied, with losses after the cap."""
        which, counts = _objectives_of(heard), _numbers(one.examples for one in heard)
        losses, samples = said.losses[said.present], self._sum(which, counts)[said.present]
        mean, worst = samples @ losses / samples.sum(), metrics.agnostic_loss(losses)
        scores: dict[str, Any] = {"loss": float(mean), "agnostic-loss": float(worst)}
        shares = [one.accuracy for one in heard if one.accuracy is not None]
        if len(shares) == len(heard):
            right = self._sum(which, counts * _numbers(shares))[said.present]
            scores["accuracy"] = float(right.sum() / samples.sum())
            scores["accuracy-parity"] = float(metrics.accuracy_parity(right, samples))
        return scores

    def _metrics(self, heard: Sequence[Heard], said: _Round, c: Tensor) -> MetricRecord:
        server = self._held()
        told = self._scores(heard, said)
        told |= {
            "objectives-heard": int(said.present.sum()),
            "capped": said.capped,
            "shortened": said.shortened,
        }
        shares = weight_shares(c, said.parts)
        told["largest-weight"], told["largest-weight-client"] = float(shares.max()), heard[int(shares.argmax())].client
        told["weights-limited"], told["never-heard"] = server.limited, int(server.missing.sum())
        told["rejected"] = sum(one.round == server.round for one in self.rejected)
        if server.archive_size is not None:
            told["archive-size"] = server.archive_size
        weights = server.weights
        if self.groups.count <= LISTED:
            told["coefficients"] = c.tolist()
            told |= {} if weights is None else {"lambda": weights.tolist()}
        elif weights is not None:
            told["lambda-largest"] = float(weights.max())
            told["lambda-effective"] = float(1.0 / weights.double().square().sum())
        return MetricRecord({**told, **self._own("train", heard)})

    def _own(self, kind: str, heard: Sequence[Heard]) -> dict[str, Any]:
        """The metrics that the user's own function computes from the replies."""
        make = self._more[kind]
        return {} if make is None else dict(make([one.content for one in heard], self.weighted_by_key))

    # --------------------------------------------------------------------------- checkpoints
    def _settings(self) -> dict[str, str]:
        if self._described is None:
            own: tuple[str, ...] = (
                "groups",
                "fraction_train",
                "min_train_nodes",
                "seed",
                "dropout",
                "cap",
                "max_weight",
                "max_move",
            )
            own += () if self.rounds is None else ("rounds",)
            told = {**self._held().settings(), **{name: repr(getattr(self, name)) for name in own}}
            self._described = {name: _brief(text) for name, text in told.items()}
        return self._described

    def _keep(self, *, moved: bool) -> None:
        if self.checkpoint is None:
            return
        began = time.perf_counter()
        self._held().keep(self.checkpoint, self._settings(), moved=moved)
        self.checkpoint_seconds += time.perf_counter() - began


def _method(given: Weighting[Any] | Method | str | None) -> Method:
    """The method as `simulate` resolves it, but a weighting alone gets an archive."""
    found = resolve(given)
    rule = "weighting must not be of a method with a transform: clients apply it, by train_function(transform=)"
    require(found.transform is None, rule, found.transform)
    alone = not (given is None or isinstance(given, Method | str))
    return Method(found.weighting, Adaptive(capacity=8)) if alone else found


def _numbers(numbers: Iterable[float]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.float64)


def _objectives_of(heard: Iterable[Heard]) -> Tensor:
    return torch.tensor([one.objective for one in heard])


def _brief(text: str) -> str:
    """A text, or its checksum if it is very long."""
    return text if len(text) <= 10_000 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def _weights(w: Tensor | Sequence[float] | None, m: int) -> Tensor:
    if w is None:
        return torch.full((m,), 1.0 / m, dtype=torch.float64)
    found = preferences.validate(w, m)
    require(found.ndim == 1, "preference must have shape (m,), one entry per objective", tuple(found.shape))
    return found.to(torch.float64)
