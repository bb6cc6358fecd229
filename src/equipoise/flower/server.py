"""The server of a Flower run: the model, the weights and the archive, and one round."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import state
from equipoise.conversion import Conversion, store
from equipoise.conversion.protocol import archive_size, check_planned, records_before, with_slots
from equipoise.errors import require
from equipoise.flower import arrays as sums
from equipoise.flower.checkpoint import Checkpoint, Kept
from equipoise.flower.client_limits import limit_weights
from equipoise.train.checkpoint import check_tensors, describe
from equipoise.train.slots import InMemory
from equipoise.weighting import Weighting
from equipoise.weighting.protocol import duals

__all__ = ["Server", "ServerOptimizer"]

ServerOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]

PATIENCE = 10.0
"""How often an objective must have been asked without a reply before the answer leaves it out."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Server:
    """One run.

    Args:
        theta: The model: everything that clients receive.
        weighting: The weighting.
        preference: w, (m,).
        conversion: The conversion.
        optimizer: A function that returns the server's optimizer, if it has one.
        step_size: η of the clients' work.
        average: Whether `Average` takes the models before the server's step or after it.
        max_weight: The largest share of the coefficients that one client can have.
        statistics: Arrays that are averaged without weights; None for those of BatchNorm.
    """

    def __init__(
        self,
        theta: dict[str, Tensor],
        weighting: Weighting[Any],
        preference: Tensor,
        conversion: Conversion[Any],
        *,
        optimizer: ServerOptimizer | None,
        step_size: float,
        average: Literal["before", "after"],
        max_weight: float,
        statistics: Collection[str] | None,
    ) -> None:
        check_planned(conversion)
        self.round = 0
        """Rounds done."""
        self.theta = theta
        self.weighting, self.preference, self.conversion = weighting, preference, conversion
        self.step_size, self.average, self.statistics = step_size, average, statistics
        self.max_weight, self.limited = max_weight, 0
        """`limited`: objectives of the last round whose weight was reduced by `max_weight`."""
        learned, blank = self.learned, torch.zeros_like(preference)
        require(len(learned) > 0, "arrays must hold floating-point numbers that are learned", sorted(theta))
        self.optimizer = None if optimizer is None else optimizer([x.clone() for x in learned.values()])
        self.weighting_state: Any = weighting.init(blank, **self._statistics(()))
        self.record: Any = conversion.init(learned, blank)
        """The conversion's state."""
        self.due = torch.zeros_like(preference, dtype=torch.float64)
        """The expected number of replies for each objective so far, (m,); −∞ after the first reply."""
        self._changed = {0}  # slots of the archive that the checkpoint does not have

    @property
    def learned(self) -> dict[str, Tensor]:
        """The part of the model that is weighted and converted: floating-point numbers, no running statistics."""

        def fixed(name: str) -> bool:
            return name.endswith(_STATISTICS) if self.statistics is None else name in self.statistics

        return {name: x for name, x in self.theta.items() if x.is_floating_point() and not fixed(name)}

    @property
    def weights(self) -> Tensor | None:
        """λ, (m,), if the weighting or the one it wraps has it."""
        return duals(self.weighting, self.weighting_state)

    @property
    def archive_size(self) -> int | None:
        """Copies in the archive, for a conversion that has one."""
        size = archive_size(self.conversion, self.record)
        return None if size is None else int(size)

    def solution(self) -> dict[str, Tensor]:
        """The converted model, with the newest values of all other arrays."""
        found = self.conversion.output(self.record, self.preference)
        return {name: found[name].to(x.dtype) if name in found else x for name, x in self.theta.items()}

    # --------------------------------------------------------------------------- a round
    def advance(self, losses: Tensor, mask: Tensor | None, pi: Tensor | None, parts: Sequence[sums.Part]) -> Tensor:
        """One round.

        Args:
            losses: f(θ) of every objective, (m,); values of absent ones are ignored.
            mask: Which objectives replied, (m,); None for all.
            pi: The probability of that, (m,); None for 1.
            parts: The clients' contributions.

        Returns:
            The coefficients c of the objectives' models, (m,).
        """
        extra = self._statistics(parts) if pi is None else {**self._statistics(parts), "inclusion": pi}
        c, new_state = self.weighting.update(losses, self.weighting_state, self.preference, mask=mask, **extra)
        c = c * len(c) if self.weighting.uses_duals else c
        wanted, c = c, limit_weights(c, self.preference, parts, self.max_weight)
        self.limited = int((wanted.abs() > c.abs() * (1 + 1e-6)).sum())
        shown = self._with_stand_ins(losses, mask, pi)
        self._enter(*shown, before=True)
        self.theta = self._step(c, parts, self.weighting.rows(new_state))
        self.weighting_state = new_state
        self._enter(*shown, before=False)
        return c

    @property
    def missing(self) -> Tensor:
        """Objectives that the answer leaves out because they never replied, (m,)."""
        return self.due >= PATIENCE

    def _with_stand_ins(self, losses: Tensor, mask: Tensor | None, pi: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Losses and mask for the conversion, which records nothing before it has seen every objective.

        A client that never sends a valid reply must not keep the answer at the first model. After some rounds its
        objective gets a loss that is never the worst.
        """
        if mask is None:
            self.due.fill_(-torch.inf)
            return losses, mask
        self.due = torch.where(mask, -torch.inf, self.due + (1.0 if pi is None else pi))
        if not bool(self.missing.any()):
            return losses, mask
        return torch.where(self.missing, losses[mask].min().clamp_max(0.0), losses), mask | self.missing

    def _statistics(self, parts: Sequence[sums.Part]) -> dict[str, Tensor]:
        """The statistics of the pseudo-gradients (θ − θ_i)/η that the weighting needs."""
        makers = {"gramian": sums.gramian, "jacobian": sums.jacobian}
        views = {name: x.numpy() for name, x in self.learned.items()}
        m = len(self.preference)
        return {name: makers[name](views, parts, m, self.step_size) for name in self.weighting.needs}

    def _step(self, c: Tensor, parts: Sequence[sums.Part], rows: Tensor | None) -> dict[str, Tensor]:
        """θ + Σ c_i (θ_i − θ), or θ − η Σ c_i g_i with the rows g that a weighting tracks."""
        learned = self.learned
        weighed = [float(c[part.objective]) * part.share * part.pace for part in parts]
        even = [part.pace / len(parts) for part in parts]
        new = {}
        for name, x in self.theta.items():
            if not x.is_floating_point():  # a counter
                new[name] = torch.from_numpy(sums.median([part.arrays[name] for part in parts]))
            elif name not in learned or rows is None:
                each = weighed if name in learned else even
                terms = [(k, part.arrays[name]) for k, part in zip(each, parts, strict=True)]
                new[name] = torch.from_numpy(sums.combined(x.numpy(), 1.0 - sum(each), terms))
        if rows is not None:
            new |= _moved(learned, self.step_size * (c.to(rows) @ rows))
        if self.optimizer is not None:
            new |= _optimized(self.optimizer, learned, new)
        return {name: new[name] for name in self.theta}

    def _enter(self, losses: Tensor, mask: Tensor | None, *, before: bool) -> None:
        """Record in the conversion if it is due now, see `Conversion.records`."""
        how = self.conversion
        if records_before(how, self.average) != before:
            return
        plan, record = how.plan(losses, how.grown(self.record), mask)
        numbers = plan.numbers()
        number = how.used(record).shape[-1]
        views = [{name: held[j] for name, held in record.slots.items()} for j in range(number)]
        store.execute(numbers, self.learned, InMemory(views))
        self._changed |= {numbers.into} if numbers.mix > 0 else set()
        self._changed |= {numbers.write} if numbers.gain > 0 else set()
        self.record = record

    # --------------------------------------------------------------------------- checkpoints
    def settings(self) -> dict[str, str]:
        """Everything that determines the run, to check that a checkpoint belongs to it."""
        return {
            **describe(weighting=self.weighting, conversion=self.conversion, preference=self.preference),
            "server_optimizer": repr(self.optimizer),
            "step_size": repr(self.step_size),
            "average": repr(self.average),
            "statistics": repr(None if self.statistics is None else sorted(self.statistics)),
            **{f"arrays.{name}": f"{x.dtype} {tuple(x.shape)}" for name, x in self.theta.items()},
        }

    def keep(self, checkpoint: Checkpoint, settings: Mapping[str, str], *, moved: bool) -> None:
        """Write a checkpoint; if nothing moved in this round, only the round's number."""
        used = set(torch.nonzero(self.conversion.used(self.record)).squeeze(-1).tolist()) or {0}
        slots = {j: {n: x[j] for n, x in self.record.slots.items()} for j in sorted(self._changed & used)}
        record = with_slots(self.record, {})
        tensors = {f"weighting.{n}": x for n, x in state.flatten(self.weighting_state).items()}
        tensors |= {f"record.{n}": x for n, x in state.flatten(record).items()}
        tensors["due"] = self.due
        if self.optimizer is not None:
            for k, own in self.optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{k}.{n}": torch.as_tensor(x) for n, x in own.items() if x is not None}
        model = self.theta if moved or checkpoint.empty else {}
        checkpoint.keep(Kept(self.round, model, tensors, slots), settings, used)
        self._changed.clear()

    def restore(self, checkpoint: Checkpoint, settings: Mapping[str, str]) -> None:
        """Resume from a checkpoint with the same settings."""
        kept = checkpoint.load(settings)

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): x for n, x in kept.state.items() if n.startswith(prefix)}

        check_tensors(kept.model, self.theta)
        self.round, self.theta = kept.round, {name: kept.model[name] for name in self.theta}
        self.weighting_state, self.due = state.unflatten(part("weighting."), self.weighting_state), kept.state["due"]
        numbers = state.unflatten(part("record."), with_slots(self.record, {}))
        slots = store.resize(self.record.slots, 0, self.conversion.used(numbers).shape[-1])
        for j, models in kept.slots.items():
            for name, x in models.items():
                slots[name][j] = x
        self.record = with_slots(numbers, slots)
        if self.optimizer is not None:
            own: dict[int, dict[str, Tensor]] = {}
            for key, x in part("optimizer.").items():
                k, _, name = key.partition(".")
                own.setdefault(int(k), {})[name] = x
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": own})
        self._changed.clear()


def _moved(learned: Mapping[str, Tensor], move: Tensor) -> dict[str, Tensor]:
    """θ minus a vector that holds all of it."""
    pieces = torch.split(move, [x.numel() for x in learned.values()])
    return {n: x - piece.reshape(x.shape).to(x) for (n, x), piece in zip(learned.items(), pieces, strict=True)}


def _optimized(
    optimizer: torch.optim.Optimizer, learned: Mapping[str, Tensor], new: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """θ after a step of the optimizer with θ − θ_new as the gradient."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for p, (name, x) in zip(held, learned.items(), strict=True):
        p.data.copy_(x)
        p.grad = x - new[name]
    optimizer.step()
    optimizer.zero_grad()
    return {name: p.detach().clone() for p, name in zip(held, learned, strict=True)}
