"""The server of a simulation: its state between rounds, and one round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.conversion import Conversion
from equipoise.conversion.plan import batch_mask
from equipoise.conversion.protocol import archive_size, records_before
from equipoise.errors import NonFiniteLossError
from equipoise.federated.local_work import Engine, Evaluation, Sent, Transform, draw_batches
from equipoise.federated.models import initial
from equipoise.federated.splits import ClientData
from equipoise.federated.task import LossSource, Task
from equipoise.host import Fetched, fetch
from equipoise.weighting import Weighting

__all__ = ["Curve", "Outputs", "Point", "Rounds", "Server"]

Outputs = Mapping[str, Conversion[Any]]
"""The outputs of one trajectory, by name."""


class Point(NamedTuple):
    """An evaluation of an output during the run.

    Examples:
        >>> task = eq.federated.Task(rounds=4, work=eq.federated.LocalWork(epochs=1))
        >>> result = eq.federated.simulate(task, "FedAvg", evaluate_every=2, evaluate_parts=["test"])
        >>> [(point.round, point.train is None, tuple(point.test.losses.shape)) for point in result.curves["last"]]
        [(2, True, (1, 10)), (4, True, (1, 10))]
    """

    round: int
    """Rounds done."""
    train: Evaluation | None
    """On the clients' training samples, if requested."""
    test: Evaluation | None
    """On their test samples, if requested."""


Curve = list[Point]
"""An output over the rounds."""


class Watched(NamedTuple):
    """Losses that are still to be checked."""

    round: int
    losses: Fetched[Tensor]
    """(S, m), 0 where absent."""


@dataclass
class Server:
    """The state of the server between rounds."""

    round: int
    """Rounds done."""
    params: dict[str, Tensor]
    """θ of every seed, (S, ...)."""
    buffers: dict[str, Tensor]
    """Running statistics, (S, ...)."""
    weighting: Any
    """The weighting's state."""
    records: dict[str, Any]
    """The conversions' states, by output."""
    losses: list[Tensor]
    """The losses of every round, (S, m)."""
    coefficients: list[Tensor]
    """The coefficients of every round, (S, m)."""
    archive: list[Tensor]
    """The archive size of every round, (S,)."""
    curves: dict[str, Curve]
    seconds: list[float] = field(default_factory=list)
    """The time of every round, without evaluation."""
    watched: Watched | None = None


@dataclass(frozen=True)
class Rounds:
    """The rounds of a method on a task."""

    task: Task
    weighting: Weighting[Any]
    transform: Transform | None
    conversions: Outputs
    data: ClientData
    engine: Engine
    preference: Tensor
    """w, one for all seeds, (m,), or one per seed, (S, m)."""

    @property
    def m(self) -> int:
        """Clients."""
        return self.task.split.clients

    @cached_property
    def _counts(self) -> Tensor:
        """Training samples of every client, (S, m), on the CPU."""
        return self.data.train.counts.cpu()

    @property
    def desk(self) -> torch.device:
        """The device of the weighting: programs and decompositions of m × m numbers are faster on the CPU."""
        return torch.device("cpu") if self.weighting.needs == {"gramian"} else self.preference.device

    def start(self) -> Server:
        """The state before the first round."""
        device = self.preference.device
        params, buffers = (
            {name: t.to(device) for name, t in part.items()} for part in initial(self.task.model, self.data.seeds)
        )
        blank = torch.zeros(len(self.data.seeds), self.m, device=device)
        rows = {name: t.unsqueeze(1).expand(-1, blank.shape[1], *t.shape[1:]) for name, t in params.items()}
        state = self.weighting.init(blank.to(self.desk), **self._statistics(rows, params))
        records = {name: c.init(params, blank) for name, c in self.conversions.items()}
        return Server(0, params, buffers, state, records, [], [], [], {name: [] for name in self.conversions})

    def advance(self, server: Server) -> None:
        """One round."""
        self.settle(server)
        t, theta = server.round + 1, server.params
        drawn, mask, inclusion = self._participants(t)
        batches = draw_batches(self.task.work, self._counts, drawn, self.data.seeds, t)
        clients = None if drawn is None else drawn.to(self.preference.device)
        sent = self.engine.train(
            theta,
            server.buffers,
            clients,
            None if batches is None else batches.to(self.preference.device),
            self.transform,
            probe="validation-trajectory" in self.task.sources,
        )
        losses = self._losses(self.task.loss, theta, server.buffers, sent, clients)
        compared = losses
        if self.task.dominance is not None:
            compared = self._losses(self.task.dominance, theta, server.buffers, sent, clients)
        local = sent.params
        if clients is not None:
            local = {name: _placed(t_, clients, theta[name], self.m) for name, t_ in local.items()}
        server.watched = Watched(t, fetch(losses if mask is None else losses.masked_fill(~mask, 0.0)))
        if server.watched.losses.arrived is None:
            self.settle(server)
        if mask is not None:  # drop models of silent clients: 0 · NaN would reach the server
            local = {n: torch.where(batch_mask(mask, v), v, theta[n].unsqueeze(1)) for n, v in local.items()}

        c, state = self._weigh(losses, server.weighting, mask, inclusion, self._statistics(local, theta))
        self._record(server, compared, mask, before=True)
        server.params = self._step(theta, local, c, self.weighting.rows(state))
        heard = None if mask is None or clients is None else mask.gather(1, clients)
        server.buffers = _mean_buffers(server.buffers, sent.buffers, heard)
        server.weighting, server.round = state, t
        self._record(server, compared, mask, before=False)
        server.losses.append(losses.clone() if mask is None else losses.masked_fill(~mask, torch.nan))
        server.coefficients.append(c)
        server.archive.append(self._archive_size(server))

    def settle(self, server: Server) -> None:
        """Check the losses of the last round; on a GPU one round late, when they have arrived without waiting.

        Raises:
            NonFiniteLossError: One of them is NaN or infinite.
        """
        watched, server.watched = server.watched, None
        if watched is None:
            return
        losses = watched.losses.wait()
        bad = ~torch.isfinite(losses)
        if bool(bad.any()):
            s, client = (int(place[0]) for place in torch.nonzero(bad, as_tuple=True))
            raise NonFiniteLossError(
                f"loss must be finite; found {losses[s, client].item()} for client {client}, "
                f"seed {self.data.seeds[s]}, round {watched.round}"
            )

    def _participants(self, t: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Who works (S, k) (on the CPU), who replies (S, m), and with what probability; three None for everyone."""
        how, m, device = self.task.participation, self.m, self.preference.device
        if how.fraction == 1 and how.dropout == 0:
            return None, None, None
        drawn, answers, probability = how.draw(self.data.seeds, m, t)
        mask = torch.zeros(len(drawn), m, dtype=torch.bool).scatter_(1, drawn, answers)
        return drawn, mask.to(device), torch.full((m,), probability, device=device)

    def _losses(
        self,
        kind: LossSource,
        theta: dict[str, Tensor],
        buffers: dict[str, Tensor],
        sent: Sent,
        clients: Tensor | None,
    ) -> Tensor:
        """The loss of every client, (S, m), 0 for those that did not take part."""
        along = {"trajectory": sent.mean, "received": sent.first, "validation-trajectory": sent.probed}
        losses = along[kind] if kind in along else self._evaluated(kind, theta, buffers, sent, clients)
        assert losses is not None  # noqa: S101
        # If a client's loss is lost, so is its model.
        losses = torch.where(torch.isfinite(sent.mean), losses, sent.mean)
        return losses if clients is None else _spread(losses, clients, self.m)

    def _evaluated(
        self, kind: LossSource, theta: dict[str, Tensor], buffers: dict[str, Tensor], sent: Sent, clients: Tensor | None
    ) -> Tensor:
        """The loss of every participating client, (S, k), on all samples of a part."""
        if kind == "full-updated":
            local, own = sent.params, sent.buffers
            if clients is not None:
                local = {name: _placed(t, clients, theta[name], self.m) for name, t in local.items()}
                own = {name: _placed(t, clients, buffers[name], self.m) for name, t in own.items()}
            losses = self.engine.evaluate(local, own, "train", own=True).losses
        else:
            losses = self.engine.evaluate(theta, buffers, "train" if kind == "full" else "validation").losses
        return losses if clients is None else losses.gather(1, clients)

    def _statistics(self, local: Mapping[str, Tensor], theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The statistics of the pseudo-gradients (θ − θ_i)/η that the weighting needs."""
        needs = self.weighting.needs
        eta = self.task.work.step_size
        statistics = {}
        if "gramian" in needs:
            gramian: Tensor | float = 0.0
            for name, t in local.items():
                rows = ((theta[name].unsqueeze(1) - t) / eta).flatten(2).to(torch.float64)
                gramian = gramian + rows @ rows.mT
            assert isinstance(gramian, Tensor)  # noqa: S101
            statistics["gramian"] = gramian.to(self.desk)
        if "jacobian" in needs:
            statistics["jacobian"] = torch.cat(
                [((theta[name].unsqueeze(1) - t) / eta).flatten(2) for name, t in local.items()], -1
            )
        return statistics

    def _weigh(
        self,
        losses: Tensor,
        state: Any,  # noqa: ANN401
        mask: Tensor | None,
        inclusion: Tensor | None,
        statistics: dict[str, Tensor],
    ) -> tuple[Tensor, Any]:
        """The coefficients of the clients' models, (S, m), and the weighting's new state."""
        desk = self.desk
        extra = statistics if inclusion is None else {**statistics, "inclusion": inclusion.to(desk)}
        c, state = self.weighting.update(
            losses.to(desk), state, self.preference.to(desk), mask=None if mask is None else mask.to(desk), **extra
        )
        return c.to(losses.device) * (self.m if self.weighting.uses_duals else 1), state

    def _step(
        self, theta: dict[str, Tensor], local: Mapping[str, Tensor], c: Tensor, rows: Tensor | None
    ) -> dict[str, Tensor]:
        """θ − η Σ c_i g_i, with the pseudo-gradients or with the rows that a weighting tracks."""
        if rows is None:
            return {
                name: t + torch.einsum("sm,sm...->s...", c.to(t), local[name] - t.unsqueeze(1))
                for name, t in theta.items()
            }
        move = self.task.work.step_size * (c.to(rows).unsqueeze(-2) @ rows).squeeze(-2)
        parts = torch.split(move, [t[0].numel() for t in theta.values()], -1)
        return {name: t - part.reshape(t.shape).to(t) for (name, t), part in zip(theta.items(), parts, strict=True)}

    def _record(self, server: Server, losses: Tensor, mask: Tensor | None, *, before: bool) -> None:
        """Record in the conversions that are due now, see `Conversion.records`."""
        for name, conversion in self.conversions.items():
            if records_before(conversion, self.task.average) == before:
                server.records[name] = conversion.update(server.params, losses, server.records[name], mask=mask)

    def _archive_size(self, server: Server) -> Tensor:
        for name, conversion in self.conversions.items():
            size = archive_size(conversion, server.records[name])
            if size is not None:
                return size
        return torch.zeros(len(self.data.seeds), dtype=torch.int64, device=self.preference.device)

    def answers(self, server: Server) -> dict[str, dict[str, Tensor]]:
        """The model of every output."""
        return {name: c.output(server.records[name], self.preference) for name, c in self.conversions.items()}

    def describe(self, seeds: Sequence[int]) -> dict[str, str]:
        """Everything that determines the run, to check that a checkpoint belongs to it."""
        return {
            "task": repr(self.task),
            "weighting": repr(self.weighting),
            "transform": repr(self.transform),
            "conversions": repr(dict(self.conversions)),
            "preference": repr(self.preference.tolist()),
            "seeds": repr(tuple(seeds)),
        }


def _spread(values: Tensor, clients: Tensor, m: int) -> Tensor:
    """(S, k) → (S, m), 0 for clients that did not work."""
    return values.new_zeros(len(values), m).scatter_(1, clients, values)


def _placed(tensor: Tensor, clients: Tensor, theta: Tensor, m: int) -> Tensor:
    """(S, k, ...) → (S, m, ...), the server's model for clients that did not work."""
    whole = theta.unsqueeze(1).repeat(1, m, *(1,) * (theta.ndim - 1))
    whole[torch.arange(len(clients), device=clients.device).unsqueeze(-1), clients] = tensor
    return whole


def _mean_buffers(old: dict[str, Tensor], sent: dict[str, Tensor], heard: Tensor | None) -> dict[str, Tensor]:
    """The mean of the running statistics over the clients that replied, or the old ones if none did.

    Counters are those of the first client that worked.
    """
    if not sent or heard is None:
        return {n: t.mean(1) if t.is_floating_point() else t[:, 0].clone() for n, t in sent.items()} or old
    some, new = heard.any(1), {}
    for n, t in sent.items():
        total = torch.where(batch_mask(heard, t), t, 0).sum(1)
        mean = total / batch_mask(heard.sum(1).clamp_min(1), total) if t.is_floating_point() else t[:, 0]
        new[n] = torch.where(batch_mask(some, mean), mean, old[n])
    return new
