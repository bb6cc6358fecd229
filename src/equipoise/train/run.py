"""The life cycle of a training run: calls, steps and commits.

A call takes losses and returns the scalar to differentiate. Before the optimizer steps, θ⁽ᵗ⁾ is held. After it, the
step is *taken*. It is *committed* when its losses are on the host: θ⁽ᵗ⁾ enters the archive and λ moves. That is at once
on the CPU, and in the next call on an accelerator. One step, from top to bottom:

    mol(losses)         Run.call                    measure, check, choose c, Σ c_i f_i
    .backward()         _differentiated             the call counts
    optimizer.step()    Run.before_step             θ⁽ᵗ⁾ is held, and recorded if its losses are there
                        Run.after_step, _commit     λ moves
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.errors import require, warn
from equipoise.host import fetch, is_asynchronous
from equipoise.train.archive import Archive
from equipoise.train.coefficients import Coefficients, Known, Measured, knows_ahead
from equipoise.train.distributed import Group, Seen, everywhere, mean_losses, mean_rows
from equipoise.train.gradients import directed, jacobian_rows
from equipoise.train.history import Balance, History, Watch, scaled
from equipoise.train.hooks import Attached
from equipoise.train.inputs import Counts, Losses, Values, Wish, check_graph, read_numbers, stack_counts, stack_losses
from equipoise.train.nonfinite import Floor, check_gradients, check_start, is_finite, nonfinite, refuse
from equipoise.train.parameters import Parameters, local
from equipoise.train.presence import Presence
from equipoise.train.step import Call, Chosen, Mean, Step
from equipoise.units import Scale, Units
from equipoise.weighting import Limits, Weighting
from equipoise.weighting.floor import floor
from equipoise.weighting.protocol import duals, restarted
from equipoise.weighting.reweighted import row_dtype

__all__ = ["Course", "Run", "Saved"]

UNSTEPPED = 8
"""Backward passes without an optimizer step before a warning; more than 1, as gradient scalers skip some steps."""
SKIPPED = 20
"""Steps in a row that `on_nonfinite="skip"` leaves out before a warning."""


class Course(NamedTuple):
    """Settings of the steps of a run; see `MultiObjective`."""

    every: int | None
    check: Literal["auto", "now", "deferred"]
    skips: bool
    group: Group


class Saved(NamedTuple):
    """The tensors of a checkpoint."""

    weighting: Any
    conversion: Any
    following: Tensor
    """Coefficients of the next step if it accumulates gradients, (m,)."""
    coefficients: Tensor
    losses: Tensor
    scale: Scale
    steered: Tensor
    """The latest losses given to `steer`, NaN before, (m,)."""


class Run:
    """A run. Its steps are those of the `attached` optimizer, or its calls if there is none.

    `wish` has w on the host, in the dtype of the run; `device` is where the parameters are.
    """

    def __init__(
        self,
        params: Parameters,
        wish: Wish,
        weighting: Weighting[Any],
        units: Units,
        archive: Archive,
        course: Course,
        device: torch.device,
    ) -> None:
        self.params, self.wish, self.weighting, self.units, self.archive = params, wish, weighting, units, archive
        self.course, self.closed = course, False
        self.labels = wish.names or tuple(str(i) for i in range(len(wish.w)))
        self.step, self.accumulates, self.steers, self.plain = 0, False, False, units.plain
        self.compared: Literal["", "training", "given", "steered"] = ""
        self.statistics: dict[str, Tensor] = {}
        """BatchNorm statistics of the answer."""
        self.history = History(self.labels)
        self.preferences: list[tuple[int, list[float]]] = [(0, wish.w.tolist())]
        """Every preference of the run, with the step after which it came."""
        self.watch = Watch(self.labels, weighting) if isinstance(weighting, Limits) else None
        self.presence: Presence | None = Presence(self.labels)
        """None: objectives may be absent for ever."""
        self.attached: Attached | None = None
        self.holds_answer = False
        """Whether the model holds the answer, inside `solution_weights`."""
        self.skipped = 0
        """Steps that `on_nonfinite="skip"` left out since the run was made or resumed."""
        self._next = Step()
        """The step to come."""
        self._taken: Step | None = None
        """The step that the optimizer took, until it is committed."""
        self._unseen: list[tuple[int, Call]] = []
        """Calls that are still to be checked, with their steps."""
        self._unstepped = self._skips = 0
        self.follow(device)
        with self.exactly():
            self.losses = self.steered = torch.full_like(wish.w, torch.nan)
            self.prefer(wish.w)
            self.coefficients = wish.w.clone()
            self.set_scale(units.init(wish.w))

    def __getstate__(self) -> dict[str, Any]:
        """The state to copy or pickle; commits the last step first."""
        self.settle()
        return self.__dict__

    def follow(self, device: torch.device) -> None:
        """Follow the parameters to this device."""
        check = self.course.check
        self.device, self.at_once = device, check != "deferred" and not is_asynchronous(device)
        self.checks = self.course.skips or check == "now" or self.at_once
        self._casts = torch.amp.is_autocast_available(device.type)

    def set_scale(self, scale: Scale) -> None:
        """Measure losses in these units, on the host and on the device."""
        self.scale, self._there = scale, None if self.plain else Scale(*(x.to(self.device) for x in scale))
        self.open_units = not bool(scale.known.all())

    def prefer(self, w: Tensor) -> None:
        """Use the preference w (m,) from now on, with a fresh λ."""
        self.wish = self.wish._replace(w=w)
        self.weights = self._new_weights()
        self.balance = Balance(self.labels, w, self.units, self.step)
        self.floor = Floor(self.labels, self.units.raw(floor(self.weighting, w)))

    def change(self, w: Tensor) -> None:
        """Change the preference between two steps; nothing happens if it is w (m,) already."""
        self.check_open()
        self.settle()
        if self._next.calls:
            self._forget_cleared()
        rule = (
            "the preference must be changed between steps, after optimizer.step(); for a step that is not taken, call "
            "optimizer.zero_grad() or mol.discard() before"
        )
        number = len(self._next.calls)
        require(number == 0, rule, f"{number} backward pass{'es' if number > 1 else ''} since the last step")
        if not torch.equal(w, self.wish.w):
            self.restart(w)

    def restart(self, w: Tensor) -> None:
        """Use the preference w (m,) from here on, even if it is the present one: λ stays, the archive is cleared."""
        self._next.outdate()
        with self.exactly():
            params, self.statistics = self.params(), {}
            self.archive.forget(local(params), w)
            state, following = restarted(self.weighting, self.weights.state), self.weights.coefficients
            self.prefer(w)
            self.weights.load(state, following)
        self.compared = ""
        self.preferences.append((self.step, w.tolist()))

    def trained(self) -> list[Tensor]:
        """The parameters that are differentiated."""
        return [p for p in self.params.model.parameters() if p.requires_grad]

    def exactly(self) -> AbstractContextManager[None]:
        """A context without autograd and autocast."""
        mixed = self._casts and torch.is_autocast_enabled(self.device.type)
        plain = not mixed and not torch.is_inference_mode_enabled()
        return torch.no_grad() if plain else _plainly(self.device.type, mixed=mixed)

    # Calls ------------------------------------------------------------------------------------

    def call(self, losses: Losses, counts: Counts | None) -> Tensor:
        """The scalar to differentiate."""
        if self.closed or self.holds_answer:
            self.check_open()
            self._check_block("a call of mol")
        f = stack_losses(losses, self.wish.names, len(self.wish.w), self.device, counts)
        if not (torch.is_grad_enabled() and f.requires_grad and f is losses):
            check_graph(losses, f, counts, self.wish.names)
        if self._taken is not None or self._unseen or self.archive.busy:
            self.settle()
        with self.exactly():
            call = self._measure(f, counts)
            if self.course.skips and not is_finite(call.values.wait()):
                return self._skip(call.values.value)
            if self.checks:
                self._inspect(self.step + 1, call)
            else:
                self._unseen.append((self.step + 1, call))
            if self._next.within is not None:
                return self._scalar(f, call.seen, self._follow_closure(call))
            if self._next.calls and not self._next.waiting:
                self._forget_cleared()
            if self.weighting.needs:
                call.jacobian = mean_rows(jacobian_rows(f, self.trained()), call.seen, self.course.group)
            scale = self._call_scale(call) if self.open_units else self._there
            call.chosen = self.weights.choose(call, scale, self._next.calls, several=self.accumulates)
            scalar = self._scalar(f, call.seen, call.chosen)
            self._next.add(call)
            if self.attached is None:
                self._next.differentiated(call, lambda: False)
                self._begin_step(None, aside=not self.at_once)
                self._end_step(None)
                return scalar
        assert scalar.grad_fn is not None  # noqa: S101
        scalar.grad_fn.register_prehook(partial(_differentiated, self, self._next, call))
        return scalar

    def record(self, losses: Values, counts: Counts | None) -> None:
        """Record the current parameters with these losses."""
        self.check_open()
        self.settle()
        rule = "record must be called before anything else is recorded: give every=None, or call it before mol"
        found = f"{self.archive.recorded} iterates compared by {self.compared} losses"
        require(self.compared in {"", "given"}, rule, found)
        mean = self._given(losses, counts)
        assert mean is not None  # noqa: S101
        with self.exactly():
            self.compared = "given"
            self._hold(aside=False)
            self.archive.commit(*self._in_units(mean))

    def steer(self, losses: Values, counts: Counts | None) -> None:
        """Update λ with these losses instead of those of the steps."""
        self.check_open()
        self.settle()
        rule = "weighting must know its coefficients before the losses to be steered, such as the default or OMD()"
        require(self.weights.known, rule, self.weighting)
        assert isinstance(self.weights, Known)  # noqa: S101
        rule = "steer must be called before the first step: iterates compared by two kinds of losses cannot be compared"
        found = f"{self.archive.recorded} iterates compared by training losses"
        require(self.compared != "training", rule, found)
        mean = self._given(losses, counts, steers=True)
        if mean is None:
            return
        with self.exactly():
            self.steers = True
            self.weights.update(self._in_units(mean))
            self.steered = mean.values if mean.mask is None else torch.where(mean.mask, mean.values, self.steered)

    def _given(self, losses: Values, counts: Counts | None, *, steers: bool = False) -> Mean | None:
        """Losses given to `record` or `steer`, on the host; they set units that are still missing. None: left out."""
        f = stack_losses(read_numbers(losses, self.device), self.wish.names, len(self.wish.w), self.device, counts)
        with self.exactly():
            call = self._measure(f, counts)
            values, mask = call.values.wait(), call.present()
            if steers and self.course.skips and not is_finite(values):
                return None
            self._inspect(self.step + 1, call, floor=steers)
            if self.open_units:
                check_start(self.units, values, self.scale, mask, self.labels, self.step + 1)
                self.set_scale(self.units.update(values, self.scale, mask))
                self._next.moved = True
            return Mean(values, mask)

    def _measure(self, f: Tensor, counts: Counts | None) -> Call:
        if counts is None and hasattr(f, "_counts") and self.presence is not None:
            self.presence.look_for_counts(f, waits=not self.at_once)
        # Copied: the caller may overwrite the losses before the step is committed.
        values = f.detach().to(self.wish.w.dtype, copy=not self.weights.known)
        if counts is None and not (dist.is_available() and dist.is_initialized()):  # as in most loops
            return Call(Seen(values, None, None, None), fetch(values))
        n = None if counts is None else stack_counts(counts, self.wish.names, values)
        seen = mean_losses(values, n, self.course.group)
        return Call(seen, fetch(seen.values), None if seen.counts is None else fetch(seen.counts))

    def _inspect(self, step: int, call: Call, *, floor: bool = True) -> None:
        """Raise for losses that are not finite, warn of losses that are too low; waits for them."""
        values = call.values.value if call.values.arrived is None else call.values.wait()
        if not math.isfinite(float(values.sum())) and not is_finite(values):
            refuse(values, self.labels, step)
        if floor and self.floor.least is not None:
            self.floor.look(values, call.counts, step)

    def _call_scale(self, call: Call) -> Scale | None:
        """The units of a call's losses, on their device.

        An objective without a unit yet is measured in its first loss of this step; the mean over the calls of the step
        becomes its unit.
        """
        values, mask = call.values.wait(), call.present()
        check_start(self.units, values, self.scale, mask, self.labels, self.step + 1)
        before = self._next.units if self._next.units is not None and self._next.calls else self.scale
        self._next.units = self.units.update(values, before, mask)
        return Scale(*(x.to(self.device) for x in self._next.units))

    def _follow_closure(self, call: Call) -> Chosen:
        """The coefficients for another evaluation of a closure: those of the first, unless losses alone give them."""
        within = self._next.within
        assert within is not None  # noqa: S101
        if within.scale is not None and self.open_units:
            within = within._replace(scale=self.units.update(call.seen.values, within.scale, call.seen.mask))
            self._next.within = within
        several = self.accumulates or len(self._next.calls) > 1
        if isinstance(self.weights, Measured) and self.weights.stateless and not several:
            return self.weights.choose(call, within.scale, (), several=False)
        return within

    def _scalar(self, f: Tensor, seen: Seen, chosen: Chosen) -> Tensor:
        """Σ c_i f̃_i with this rank's share of each loss, or Σ c_i Y_i where the weighting has its own rows Y."""
        c, scale, rows = chosen.coefficients, chosen.scale, chosen.rows
        c = c if seen.mask is None else torch.where(seen.mask, c, 0.0)
        with torch.enable_grad():
            if rows is not None:
                values = seen.values if scale is None else self.units.normalise(seen.values, scale)
                return directed((c * values).sum(), c.to(rows) @ rows, self.trained())
            if seen.mask is not None:
                f = torch.where(seen.mask if seen.share is None else seen.share > 0, f, 0.0)
            if scale is not None:
                f = self.units.normalise(f, scale)
            return ((c if seen.share is None else c * seen.share) * f).sum()

    def _skip(self, values: Tensor) -> Tensor:
        """Leave out a call with these losses: a scalar with zero gradients."""
        self._next.left_out, self._next.nonfinite = True, values
        if self.attached is None:
            self._count_skipped(values)
        params = self.trained()
        zero = torch.zeros((), dtype=self.wish.w.dtype, device=self.device)
        with torch.enable_grad():
            return directed(zero, zero.expand(sum(p.numel() for p in params)), params)

    # Steps ------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Discard the calls since the last step."""
        self._next = Step()

    def pass_if_idle(self) -> None:
        """Ignore the next step if it has neither calls nor gradients: it moves nothing."""
        if not self._next.calls and self._cleared():
            self._next.left_out = True

    def before_step(self, optimizer: torch.optim.Optimizer, *, searches: bool = False) -> None:
        """Runs before the optimizer steps, when all calls of the step are known.

        Args:
            optimizer: The optimizer.
            searches: Whether the step may still evaluate a closure, which may fail: it is recorded when it is over.
        """
        calls = self._next.calls
        if not calls and self._next.left_out:
            optimizer.zero_grad(set_to_none=True)
            for p in self.trained():  # also those of another optimizer, so that it does not move them
                p.grad = None
            return
        if not calls and all(float(group["lr"]) == 0 for group in optimizer.param_groups):
            return  # torch.distributed.checkpoint takes such a step to initialise the optimizer's state
        if self.holds_answer:
            self._check_block("optimizer.step()")
        if not calls or self._cleared():
            rule = "optimizer.step() must follow a call of mol and its backward pass, or mol.close()"
            found = "that its gradients were cleared before the step"
            if not calls:
                found = "none since the last step; a penalty is added to the scalar, (mol(losses) + penalty).backward()"
            require(False, rule, found)  # noqa: FBT003
        with self.exactly():
            skipped = getattr(optimizer, "found_inf", None)
            if skipped is None and any(call.counts is not None for call in calls):
                self._look_at_gradients()
            self._begin_step(skipped, aside=searches or not self.at_once)

    def _look_at_gradients(self) -> None:
        """Check gradients: those of an absent objective may be 0 · ∞."""
        found = local({str(k): p.grad for k, p in enumerate(self.trained()) if p.grad is not None}).values()
        dense = [g.coalesce().values() if g.is_sparse else g for g in found]
        largest = torch.nn.utils.get_total_norm([g for g in dense if g.numel() > 0], math.inf)
        if self.params.sharded:  # if only one rank raised, the others would deadlock
            sound = everywhere(math.isfinite(float(largest)), self.device, self.course.group)
            check_gradients(0.0 if sound else math.nan, self.step + 1)
        elif self.checks:
            check_gradients(float(largest), self.step + 1)
        else:
            self._next.largest = fetch(largest)

    def within_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a closure: its first evaluation ends the step's calls; later ones use the same coefficients."""
        self._next.within = None  # left over from a step that failed

        def evaluate() -> Any:  # noqa: ANN401
            result = closure()
            if self._next.within is None:
                self.before_step(optimizer, searches=True)
                self._next.within = self._next.calls[-1].chosen if self._next.calls else None
            return result

        return evaluate

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Runs after the optimizer has stepped, or was kept from it by `before_step`."""
        if not self._next.calls:
            if self._next.nonfinite is not None:
                self._count_skipped(self._next.nonfinite)
            self.discard()
            return
        with self.exactly():
            self._end_step(getattr(optimizer, "found_inf", None))

    def _begin_step(self, skipped: Tensor | None, *, aside: bool) -> None:
        """Hold θ⁽ᵗ⁾; if the losses are already on the host, record it before it changes.

        Args:
            skipped: > 0 if a gradient scaler makes the optimizer skip the step by itself, as fused ones do.
            aside: Whether it is recorded later and so must be copied.
        """
        due = self.course.every is not None and (self.step + 1) % self.course.every == 0
        if self._next.begun or not due or self.compared == "given":
            return
        self._hold(aside=aside)
        self._next.begun = True
        self.compared = "steered" if self.steers else "training"
        if not aside and (skipped is None or not bool(skipped > 0)):
            self._enter(self._next.mean())

    def _end_step(self, skipped: Tensor | None) -> None:
        """The optimizer has stepped."""
        taken, self._next = self._next, Step()
        self.accumulates = self.accumulates or len(taken.calls) > 1
        self.step += 1
        self._unstepped = self._skips = 0
        if self.at_once and skipped is None:
            self._commit(taken)
            return
        taken.skipped = None if skipped is None else fetch(skipped)
        self._taken = taken
        sure = skipped is None and taken.largest is None
        if self.at_once or (sure and taken.has_arrived() and is_finite(taken.mean().values)):
            self.settle()  # on a device it overlaps with the step; an error is raised in the next call

    def settle(self) -> None:
        """Commit the last step; raises errors in its losses or in recording it."""
        if self.archive.busy:
            self.archive.poll()
        if self._taken is None and not self._unseen:
            return
        (taken, self._taken), (unseen, self._unseen) = (self._taken, None), (self._unseen, [])
        try:
            for step, call in unseen:
                self._inspect(step, call)
            skipped = taken is not None and taken.skipped is not None and bool(taken.skipped.wait() > 0)
            if taken is not None and not skipped and taken.largest is not None:
                check_gradients(float(taken.largest.wait()), self.step)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._taken, self._unseen = taken, unseen  # interrupted while waiting for the copies
            elif taken is not None:
                self._undo()
            raise
        if skipped:
            self._undo()
        elif taken is not None:
            with self.exactly():
                self._commit(taken)

    def _undo(self) -> None:
        """Undo a step that does not count."""
        self.step -= 1
        self.archive.drop()

    def _commit(self, taken: Step) -> None:
        mean = taken.found or taken.mean()
        if taken.begun and self.archive.held is not None:
            self._enter(mean)
        seen = mean if self.plain else self._in_units(mean)
        if self.open_units:
            self.set_scale(self.units.update(mean.values, self.scale, mean.mask))
        if not isinstance(self.weights, Known):
            self.weights.commit(taken, self._there)
        elif not self.steers:
            self.weights.update(seen)
        c, weights = self.weights.used(taken.calls[-1].chosen)
        values, mask = mean
        self.coefficients = c if mask is None else torch.where(mask, c, self.coefficients)
        self.losses = values if mask is None else torch.where(mask, values, self.losses)
        self.history.add(self.step, self.losses, self.coefficients, weights)
        if mask is not None and self.presence is not None:
            self.presence.look(mask, c, self.losses)
        if self.watch is not None and self.step >= self.watch.due:
            self.watch.look(self.weights.state, self.step)
        if weights is not None and self.step >= self.balance.due:
            self.balance.look(weights, self.above(self.measured()), self.step, self.scale.unit)

    def _hold(self, *, aside: bool) -> None:
        params, self.statistics = self.params(), {}
        self.archive.hold(local(params) if self.params.sharded else params, aside=aside)

    def _enter(self, mean: Mean) -> None:
        """Record the held iterate with the losses of its step, or with the steered ones."""
        if self.steers:
            mean = Mean(torch.nan_to_num(self.steered), ~self.steered.isnan())
        self.archive.commit(*(mean if self.plain else self._in_units(mean)))

    def _in_units(self, mean: Mean) -> Mean:
        if self.plain:
            return mean
        return Mean(self.units.enter(mean.values, self.scale, mean.mask)[0], mean.mask)

    def _forget_cleared(self) -> None:
        """Forget the earlier calls of the step if their gradients were cleared."""
        if self.attached is None:  # without an optimizer each call is a step: a call that failed left these
            self.discard()
        elif self._cleared() or self._zeroed():
            number, self._next = len(self._next.calls), Step(left_out=self._next.left_out)
            self._count_unstepped(number)

    def _cleared(self) -> bool:
        assert self.attached is not None  # noqa: S101
        for group in self.attached.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    return False
        return True

    def _zeroed(self) -> bool:
        """Whether `zero_grad(set_to_none=False)` cleared the gradients; looked at after every few calls."""
        may_wait = self.at_once or self.step == 0
        if len(self._next.calls) % UNSTEPPED or not may_wait or self.params.sharded:
            return False
        gradients = (p.grad for p in self.trained() if p.grad is not None)
        return not any(g.is_sparse or bool(g.any()) for g in gradients)

    def _count_unstepped(self, number: int = 1) -> None:
        before, self._unstepped = self._unstepped, self._unstepped + number
        if before < UNSTEPPED <= self._unstepped:
            warn(
                f"{UNSTEPPED} backward passes of mol in a row were not followed by a step of its optimizer, so nothing "
                "is recorded and λ stays. If a GradScaler skips steps because of overflow, this ends by itself. If "
                "another optimizer is stepped, make a new MultiObjective with that one"
            )

    def _count_skipped(self, values: Tensor) -> None:
        """Count a step without any call whose losses were finite; `values` (m,) are the last that were not."""
        self.skipped += 1
        self._skips += 1
        if self._skips == SKIPPED:
            warn(
                f'{SKIPPED} steps in a row were left out by on_nonfinite="skip", so the parameters do not move: '
                f"{nonfinite(values, self.labels)}. Find the cause: a lower learning rate or gradient clipping may "
                'help, on_nonfinite="raise" stops at the first such loss'
            )

    def _check_block(self, found: str) -> None:
        rule = "training must wait until the block of mol.solution_weights() ends, as its end restores the weights"
        require(not self.holds_answer, rule, f"{found} inside the block")

    # Looking, loading, moving, closing --------------------------------------------------------

    def answer(self) -> dict[str, Tensor]:
        """The answer (this rank's shards of sharded parameters); warns if there were calls but nothing was recorded."""
        self.settle()
        self.archive.settle()
        since = self.preferences[-1][0]
        if self.archive.recorded == 0 and (self.step > 0 or self._next.calls):
            every, steps = self.course.every, self.step - since
            why = "no step followed the change of the preference"
            if steps > 0:
                why = f"of {steps} steps none was due for every={every}, and record() was not called"
            elif self._next.calls:
                why = "no optimizer.step() followed a call of mol and its backward pass"
            where = f"the model after step {since}, when the preference changed" if since else "where the run began"
            warn(f"nothing was recorded: {why}. The solution is {where}")
        if self.watch is not None:
            self.watch.conclude(self.history.late(self.step), self.weights.state, self.step)
        return self.archive.output(self.wish.w)

    def last_coefficients(self) -> Tensor:
        """The coefficients of the last step, (m,); does not wait for later calls."""
        if self._taken is not None:
            self.settle()
        return self.coefficients

    def measured(self) -> Tensor:
        """The losses that λ follows, NaN before the first, (m,)."""
        return self.steered if self.steers else self.losses

    def above(self, losses: Tensor) -> Tensor:
        """Losses minus the ideal point, in their units, as the weighting sees them, (*B, m)."""
        losses = losses if self.plain else self.units.normalise(losses, self.scale)
        return scaled(self.weighting, self.weights.state, losses)

    def duals(self) -> Tensor | None:
        """λ, where the weighting has it, (m,)."""
        found = duals(self.weighting, self.weights.state)
        return None if found is None else found.cpu()

    def saved(self, conversion: Any) -> Saved:  # noqa: ANN401
        """The tensors of a checkpoint, with this state of the conversion."""
        weights = self.weights
        numbers = (self.coefficients, self.losses, self.scale, self.steered)
        return Saved(weights.state, conversion, weights.coefficients, *numbers)

    def load(self, saved: Saved) -> None:
        """Resume from a loaded state."""
        self._taken, self._unseen = None, []
        self.weights.load(saved.weighting, saved.following)
        self.coefficients, self.losses, self.steered = saved.coefficients, saved.losses, saved.steered
        self.set_scale(saved.scale)
        self.discard()

    def to(self, device: torch.device) -> None:
        """Follow the model to another device."""
        self.settle()
        self.follow(device)
        with self.exactly():
            self.weights.to(device)
            self.set_scale(self.scale)
            self.statistics = {name: x.to(device) for name, x in self.statistics.items()}
            self.params()  # torch may have replaced them
            self.archive.to(device)
        self.discard()

    def close(self) -> None:
        """Refuse further calls, and release the optimizer and the store."""
        self.closed = True
        attached, self.attached = self.attached, None
        if attached is not None:
            attached.detach()
        self.discard()
        try:
            self.settle()
        finally:
            self.archive.close()

    def check_open(self) -> None:
        """Raise ValueError if the run has ended."""
        rule = "mol must be open: close() ends its run, and so does a newer MultiObjective on its optimizer"
        require(not self.closed, rule, lambda: f"one that was closed after step {self.step}")

    def _new_weights(self) -> Coefficients:
        if knows_ahead(self.weighting, self.wish.w):
            return Known(self.weighting, self.wish.w, self.device)
        jacobian = None
        if self.weighting.needs:
            params = self.trained()
            one = torch.empty(1, dtype=row_dtype(*params), device=self.device)
            jacobian = one.expand(len(self.wish.w), sum(p.numel() for p in params))
        return Measured(self.weighting, self.wish.w, self.device, self.units, jacobian)


def _differentiated(run: Run, step: Step, call: Call, gradients: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    if call.outdated:
        rule = "the preference must be changed between steps: call mol(losses) again"
        require(False, rule, "a change between a call of mol and its backward pass")  # noqa: FBT003
    if step is run._next and step.differentiated(call, run._cleared):  # else it was discarded
        run._count_unstepped()


@contextmanager
def _plainly(kind: str, *, mixed: bool) -> Iterator[None]:
    # Inference tensors cannot be modified outside inference mode.
    uncast = torch.autocast(kind, enabled=False) if mixed else nullcontext()
    with torch.inference_mode(mode=False), torch.no_grad(), uncast:
        yield
