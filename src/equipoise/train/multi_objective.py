"""`MultiObjective`: the shell that puts a weighting and a conversion into one's own training loop."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.conversion import Conversion
from equipoise.conversion.protocol import archive_size, record_dtype
from equipoise.errors import StateMismatchError, require
from equipoise.registry import Method, resolve
from equipoise.replay import Eager, Outcome, Resident, Stepper, steady
from equipoise.state import flatten, unflatten
from equipoise.streams import captures
from equipoise.train import arguments, recorded, sharded
from equipoise.train.balance import Balance
from equipoise.train.checkpoint import check_configuration, check_tensors, describe
from equipoise.train.distributed import Group, Seen, everywhere, mean_losses, mean_rows
from equipoise.train.finite import Floor, Start, Watch, sound
from equipoise.train.foresight import foresees, looks_ahead
from equipoise.train.gradients import jacobian_rows, row_dtype, steered, ungraphed
from equipoise.train.losses import Counts, Losses, check_graph, stack_counts, stack_losses
from equipoise.train.monitor import describe_step, scaled
from equipoise.train.pending import Call, Chosen, Mean, Pending
from equipoise.train.steps import attach, detach, overflow, release, unless
from equipoise.train.stores import new_courier, new_record
from equipoise.units import Scale, Unit, Units, Zero
from equipoise.weighting import Stateless, Weighting
from equipoise.weighting.floor import floor
from equipoise.weighting.protocol import duals

__all__ = ["MultiObjective"]


class _Committed(NamedTuple):
    """Where the run stands after its last step; what it recorded is elsewhere."""

    weighting: Any
    coefficients: Tensor
    """c of the last step in which each objective was present; w/m before, (m,)."""
    losses: Tensor
    """f of that step, NaN before, (m,)."""
    scale: Scale | Stateless = Stateless()
    """The units of the losses; nothing where these are as they are."""
    next: tuple[Tensor, ...] = ()
    """c of the step that comes, if it is known and was asked for, (m,)."""


class _Steered(NamedTuple):
    """The latest losses given to `steer`."""

    losses: Tensor
    """f, 0 before the first, (m,)."""
    known: Tensor
    """Whether there was one, (m,)."""


class _Saved(NamedTuple):
    """What a checkpoint has tensors of."""

    weighting: Any
    conversion: Any
    coefficients: Tensor
    losses: Tensor
    scale: Scale | Stateless
    steered: _Steered


class MultiObjective:
    r"""A weighting and a conversion in one's own training loop.

    With an `optimizer`, θ⁽ᵗ⁾ is recorded just before it steps and λ committed just after: once per step, with the
    count-weighted mean of the losses of all calls whose gradients the step uses, and not at all for a step that is
    skipped. Without one, each call records and commits. The model is referred to, not owned: this is no
    `nn.Module`, as an optimizer is none.

    Under gradient accumulation, weightings whose coefficients depend on this step's losses (Tchebycheff, smooth
    Tchebycheff, alternating order, those on gradients) use those of the previous step; in the first step, which
    has none before it, those of its first call.

    In a process group all ranks must call with their part of the batch: the losses are averaged over the ranks,
    so that every rank has the same λ, the same archive and the same coefficients.

    Args:
        model: Its parameters are trained; it may be wrapped or compiled.
        weighting: How losses become coefficients; or a method, or its name, that has a conversion too; by default
            `registry.default()`.
        preference: w, one entry per objective: non-negative, of sum 1. It must be given.
        conversion: How the trajectory becomes the answer; by default the method's, or, for a bare weighting, the last
            iterate that was recorded. `Adaptive` needs a capacity here.
        optimizer: Whose steps are the steps of the run. An earlier MultiObjective that has it is closed, with a
            warning: steps belong to one run.
        names: The objectives' names, for losses by name, messages and metrics.
        parameters: Names of the parameters to record; by default all that require grad. Recorded are copies in
            at least float32.
        every: Every how many steps an iterate is recorded with the losses of that step; None: only by `record`.
        check: When losses that are not finite are noticed: "now", or "deferred" to the next call, so that no
            device is waited for. By default "now" on the CPU, else "deferred".
        on_nonfinite: "raise" a NonFiniteLossError, or "skip" the call: it has zero gradients and is not
            committed, and a step that has no other call leaves the parameters alone. "skip" implies "now".
        process_group: The ranks that train together; by default all of them.
        units: What each loss is measured in. None: the losses as they are. "start": the first loss of each objective
            that the run takes (less its ideal), of a committed step, of `record` or of `steer`; saved in checkpoints.
            Or positive numbers, in order or by name. The weighting, the conversion and the metrics then see
            f̃ = (f − z)/u, and the scalar is Σ c_i f̃_i, so that gradients are in these units too.
        ideal: z, the best that each loss can be, in its own unit: one number, or one each, in order or by name.
            See `payoff`.
        store: Where the copies of what is recorded live: on the "device" of the model, in the memory of the "host", or
            in a folder (any other text, or a path), which this run has for itself. The run is the same bit for bit.
        on_store_error: What a store that cannot be written to does: "raise" a StoreError, or "keep" the archive as it
            is, with a warning, and record again once it can be.

    Examples:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> mol = eq.MultiObjective(model, preference=[0.1, 0.9], optimizer=optimizer)
        >>> for _ in range(200):
        ...     x = model.weight.squeeze()
        ...     mol(torch.stack([x**2, (x - 2) ** 2])).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> model.load_state_dict(mol.solution())
        <All keys matched successfully>
        >>> round(model.weight.item(), 1)  # 0.1 x² = 0.9 (x − 2)²
        1.5
    """

    def __init__(
        self,
        model: nn.Module,
        weighting: Weighting[Any] | Method | str | None = None,
        preference: Tensor | Sequence[float] | None = None,
        conversion: Conversion[Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        names: Sequence[str] | None = None,
        parameters: Iterable[str] | None = None,
        every: int | None = 1,
        check: Literal["auto", "now", "deferred"] = "auto",
        on_nonfinite: Literal["raise", "skip"] = "raise",
        process_group: Group = None,
        units: Unit = None,
        ideal: Zero = 0.0,
        store: str | os.PathLike[str] = "device",
        on_store_error: Literal["raise", "keep"] = "raise",
    ) -> None:
        arguments.check_model(model)
        arguments.check_weighting(weighting)
        method = resolve(weighting)
        require(method.transform is None, "weighting must not be a method whose clients transform losses", weighting)
        weighting, conversion = method.weighting, method.conversion if conversion is None else conversion
        arguments.check_conversion(conversion)
        w = arguments.check_preference(preference)
        arguments.check_choices(every, check, on_nonfinite, on_store_error)
        arguments.check_store(store, conversion)
        names = None if names is None else tuple(names)
        if names is not None:
            arguments.check_names(names, len(w))
        self._units = arguments.check_units(units, ideal, len(w), names)

        self.model, self._weighting, self._conversion = model, weighting, conversion
        self.every, self.names = every, names
        self.step = 0
        """Steps committed."""
        self._labels = names if names is not None else tuple(str(i) for i in range(len(w)))
        self._group, self._params = process_group, recorded.Recorded(model, parameters)
        if self._params.sharded:
            arguments.check_sharded(weighting, conversion, on_nonfinite)
        start = self._params()
        floats = [p.dtype for p in start.values() if p.is_floating_point()]
        self._dtype = torch.promote_types(floats[0], torch.float32) if floats else torch.float32
        self._device = next(iter(start.values())).device
        self._skips, self._check, self._store = on_nonfinite == "skip", check, store
        self._watch = self._new_watch()
        self._floor = Floor(self._labels, self._units.raw(floor(weighting, w)))
        self._start, self._balance = Start(self._labels, self._units), Balance(self._labels, w, self._units)
        self._accumulates = self._closed = self._steers = self._restarted = False
        self._compared: Literal["", "training", "given", "steered"] = ""
        self._statistics: dict[str, Tensor] = {}
        self._pending, self._skipped = Pending(), 0
        self._chosen: Chosen | None = None
        self._within: Chosen | None = None
        self._casts = torch.amp.is_autocast_available(self._device.type)
        with self._exactly():
            self._w = w.to(self._device, self._dtype, copy=True)
            self._knows = foresees(weighting, self._w)
            self._looks_ahead = looks_ahead(weighting, self._w)
            self._advance, self._steered = self._new_stepper(), _Steered(self._template(), self._template() > 0)
            self._state = self._begin()
            if duals(weighting, self._state.weighting) is None:
                self._balance.close()
            if optimizer is not None:
                arguments.check_optimizer(optimizer, start)
                release(optimizer)
            begun, apart = sharded.local(start), self._params.sharded
            self._record = new_record(conversion, begun, self._template(), store, on_store_error, apart=apart)
        self._optimizer = None if optimizer is None else attach(self, optimizer)

    def __repr__(self) -> str:
        w = [round(entry, 4) for entry in self.preference.tolist()]
        parts = [type(part).__name__ for part in (self.model, self.weighting, self.conversion)]
        shown = w if len(w) <= 6 else f"<{len(w)} entries>"
        return f"MultiObjective({', '.join(parts)}, preference={shown}, step={self.step}, recorded={self.recorded})"

    # Calls ------------------------------------------------------------------------------------

    def __call__(self, losses: Losses, counts: Counts | None = None) -> Tensor:
        """The scalar to differentiate.

        Args:
            losses: f at the parameters as they are: a tensor (m,), or numbers in a list or by name, with their graph.
            counts: How many samples each loss is the mean of on this rank, 0 for an absent objective; by
                default the same for all objectives, calls and ranks.

        Returns:
            Σ c_i f_i, or Σ c_i (f_i − z_i)/u_i with units and an ideal point. Divide it by the number of calls where
            gradients accumulate.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite; see `check` and `on_nonfinite`.
            ValueError: For losses of another shape or with other names than the preference, without a graph or
                under `no_grad`.
        """
        self._check_open()
        f = stack_losses(losses, self.names, len(self._w), self._device)
        check_graph(losses, f, counted=counts is not None)
        self._watch.settle()
        self._start.settle()
        self._record.poll()
        if self.step >= self._balance.due:
            self._look_at_balance()
        with self._exactly():
            values = f.detach().to(self._dtype, copy=True)  # whatever becomes of the losses later
            seen = mean_losses(values, stack_counts(counts, self.names, values), self._group)
            if self._skips and not sound(seen.values):
                return self._skip()
            if self._within is not None or self._watch.when == "now":
                self._watch.show(seen.values, self.step + 1, self._floor, seen.mask)
            if self._within is not None:
                return self._scalar(f, seen, self._follow(seen))
            if self._pending.calls > 0 and not self._pending.waiting and self._cleared():
                self._pending = Pending()
            if self._optimizer is not None and self._pending.calls == 0 and not self._pending.waiting:
                self._send()
            chosen, rows, ahead = self._weigh(f, seen)
            if self._watch.when == "deferred":
                told = None if ahead is None else ahead.told
                self._watch.show(told or seen.values, self.step + 1, self._floor, seen.mask)
            scalar = self._scalar(f, seen, chosen)
            if self._optimizer is None:
                self._record_step(seen.values, seen.mask)
                self._commit(Mean(seen.values, seen.mask, rows, ahead))
                return scalar
            call = self._pending.add(seen.values, seen.counts, rows, chosen, ahead)
            self._chosen = chosen
        assert scalar.grad_fn is not None  # noqa: S101
        scalar.grad_fn.register_prehook(partial(_differentiated, self, self._pending, call))
        return scalar

    def record(self, losses: Losses, counts: Counts | None = None) -> None:
        """Record the parameters as they are, compared by these losses instead of those that they are trained with.

        For losses on a fixed held-out batch or on all data. From then on nothing is recorded but by this method:
        iterates compared by two kinds of losses would not be comparable.

        Args:
            losses: f at the parameters as they are, a tensor (m,), or numbers in a list or by name; no graph is needed.
            counts: As in a call.
        """
        self._check_open()
        rule = "record must be called before anything else is recorded: give every=None, or call it before mol"
        found = f"{self.recorded} iterates compared by {self._compared} losses"
        require(self._compared in {"", "given"}, rule, found)
        f = stack_losses(losses, self.names, len(self._w), self._device)
        self._watch.settle()
        with self._exactly():
            values = f.detach().to(self._dtype)
            seen = mean_losses(values, stack_counts(counts, self.names, values), self._group)
            self._watch.show(seen.values, self.step + 1)
            self._begin_units(seen)
            self._compared = "given"
            self._enter(seen.values, seen.mask)

    def steer(self, losses: Losses, counts: Counts | None = None) -> None:
        """Let λ follow these losses, such as those on held-out data, instead of those that the model is trained with.

        Call it before the first step and then every n steps. From the first call on, λ moves by steered losses alone,
        and every iterate is recorded with the latest of them, so that the answer is chosen by them too. Gradients
        still come from the training losses.

        It is wise where a training loss is not the loss that you mean, as with label smoothing: on digits it took the
        larger weighted test loss from 0.175 to 0.136, and the imbalance from 75 to 5 %. It is not where the gap is
        overfitting: λ then stays on the loss that overfits, which overfits further (from 0.585 to 0.99), unless the
        answer can go back to early iterates, as `Adaptive(8, 8)` does (from 0.559 to 0.458). λ moves once per call:
        where each costs little, call it in every step (docs/howto/steering.md).

        Args:
            losses: f at the parameters as they are, a tensor (m,), or numbers in a list or by name; no graph is needed.
            counts: As in a call: an objective with 0 keeps its last steered loss.

        Raises:
            ValueError: For a weighting whose coefficients depend on the losses of their own step, and for a first call
                after iterates were recorded with training losses.
            NonFiniteLossError: As in a call.
        """
        self._check_open()
        rule = "weighting must know its coefficients before the losses to be steered, such as the default or OMD()"
        require(self._knows, rule, self.weighting)
        rule = "steer must be called before the first step: iterates compared by two kinds of losses cannot be compared"
        found = f"{self.recorded} iterates compared by training losses"
        require(self._compared != "training", rule, found)
        f = stack_losses(losses, self.names, len(self._w), self._device)
        self._watch.settle()
        self._start.settle()
        with self._exactly():
            values = f.detach().to(self._dtype, copy=True)
            seen = mean_losses(values, stack_counts(counts, self.names, values), self._group)
            if self._skips and not sound(seen.values):
                return
            self._watch.show(seen.values, self.step + 1, self._floor, seen.mask)
            self._begin_units(seen)
            self._set_steering(on=True)
            after = self._advance(self._state, seen.values, seen.mask, None, tell=False).after
            self._state = self._state._replace(weighting=after.weighting)
            taken = torch.isfinite(seen.values).all().expand(seen.values.shape)
            taken = taken if seen.mask is None else taken & seen.mask
            losses, known = self._steered
            self._steered = _Steered(torch.where(taken, seen.values, losses), known | taken)

    def discard(self) -> None:
        """Forget the calls since the last step, for a step that is not taken.

        Not needed where `zero_grad` sets gradients to None, as it does by default: the next backward pass then
        sees that they were cleared.
        """
        self._pending, self._skipped, self._chosen, self._within = Pending(), 0, None, None

    def close(self) -> None:
        """Let go of the optimizer, and of the folder if the store is one; the solution stays, and calls are refused."""
        self._closed = True
        if self._optimizer is not None:
            detach(self._optimizer)
        self._optimizer = None
        self.discard()
        self._record.close()

    # The answer -------------------------------------------------------------------------------

    def solution(self, *, gather: bool = True) -> dict[str, Tensor]:
        """The model's state with the answer in place of the parameters that were recorded.

        Args:
            gather: Whether sharded parameters come as full tensors, on every rank; all ranks must call then. If not,
                they come as the shards that `model.state_dict()` has. No matter where no parameter is sharded.

        Returns:
            Copies, for `model.load_state_dict`; what was recorded comes in at least float32, everything else
            as the model has it now, but for BatchNorm statistics that `update_bn` found.
        """
        self._settle()
        params = self._params()
        answer = {name: sharded.as_shard(x, params[name]) for name, x in self._answer().items()}
        state = recorded.full_state(self.model, answer | self._statistics, self._params.aliases())
        return {key: sharded.whole(x) for key, x in state.items()} if gather else state

    @contextmanager
    def solution_weights(self) -> Iterator[None]:
        """The model with the answer in it, for a while; afterwards parameters and buffers are as they were."""
        self._settle()
        with recorded.swapped(self._params(), self.model, self._answer() | self._statistics):
            yield

    def update_bn(self, loader: Iterable[Any]) -> None:
        """Find the BatchNorm statistics of the answer, which no iterate had, by a pass over the data.

        `solution` and `solution_weights` have them until another iterate is recorded. A model that holds the answer,
        because it was loaded or inside `solution_weights`, has them too; else the model is left as it was.

        Args:
            loader: Batches for the model, or tuples that begin with one.
        """
        self._settle()
        answer, params = self._answer(), self._params()
        holds = recorded.holds(params, answer)
        if everywhere(holds, self._device, self._group) if self._params.sharded else holds:
            self._statistics = recorded.recalibrated(self.model, loader, self._device)
            return
        with recorded.swapped(params, self.model, answer):
            self._statistics = recorded.recalibrated(self.model, loader, self._device)

    @property
    def recorded(self) -> int:
        """Iterates recorded; before the first, the solution is where the run began.

        One that a store could not take is counted until that is known, which may be one step late.
        """
        return self._record.recorded

    @property
    def weighting(self) -> Weighting[Any]:
        """How losses become coefficients."""
        return self._weighting

    @property
    def conversion(self) -> Conversion[Any]:
        """How the trajectory becomes the answer."""
        return self._conversion

    @property
    def preference(self) -> Tensor:
        """w, (m,)."""
        return self._w

    @property
    def duals(self) -> Tensor | None:
        """λ after the last step, where the weighting has it, (m,)."""
        return duals(self.weighting, self._advance.own(self._state.weighting))

    @property
    def coefficients(self) -> Tensor:
        """Coefficients of the last step in which each objective was present, (m,); w/m before."""
        return self._advance.own(self._state.coefficients)

    def metrics(self) -> dict[str, float]:
        """The last step in numbers, for any logger; reading them waits for the device.

        Returns:
            `step`; by objective `loss/…` (as it was handed over), `weighted/…` (w_i (f_i − z_i)/u_i),
            `slack/…` (how far that lies below the largest one, as a share of it), `coefficient/…`, and `lambda/…` where
            the weighting has λ; with `steer` also `steered/…`, and all but `loss/…` is then of steered losses;
            `tch` (the largest weighted loss), `imbalance` (largest over smallest, less 1) and
            `angle` (to the preferred ray, in radians): 0 where the preference is met, and both of the objectives with
            w_i > 0 alone, as nothing is asked of the others; `archive`, the copies in use where the conversion keeps
            several.
        """
        self._settle()
        state = self._advance.own(self._state)
        entries: dict[str, float] = {"step": self.step}
        losses = {"loss": state.losses} | ({"steered": self._measured(state)} if self._steers else {})
        above = self._above(state)
        entries |= describe_step(
            self._labels, self.weighting, state.weighting, self.preference, losses, above, state.coefficients
        )
        size = archive_size(self.conversion, self._record.numbers())
        if size is not None:
            entries["archive"] = int(size)
        return entries

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run resumes from: tensors, numbers and text, for `torch.load(weights_only=True)`.

        Copies of parameters are those in use, parts of larger memory: clone what you save alone. Those of a folder are
        memory-mapped, and those of sharded parameters are sharded as these are. Calls since the last step are not part
        of it, as gradients are not part of a checkpoint: save between steps. The store is not part of it either: a
        checkpoint can be loaded with another one.
        """
        self._settle()
        return self._saved(self._record.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run was saved.

        Args:
            state: What `state_dict` gave.

        Raises:
            StateMismatchError: If it belongs to another configuration; the message names every setting that
                differs. Or if it has the shards of another number of ranks. Nothing is changed then.
            StoreError: If a folder cannot be written to. Nothing is changed then either.
        """
        expected = self._saved(self._record.like())
        if state.keys() != expected.keys():
            raise StateMismatchError(f"checkpoint must have the entries {sorted(expected)}; found {sorted(state)}")
        check_configuration(state["configuration"], expected["configuration"])
        like = self._whole(self._record.like())
        found = dict(state["tensors"])
        for key, owner in self._owners(like):
            if key in found:
                found[key] = sharded.shard_of(found[key], owner, key)
        check_tensors(found, flatten(like))
        with self._exactly():
            self._record.load(unflatten(found, like).conversion)
            numbers = {name: found[name].to(tensor, copy=True) for name, tensor in flatten(self._whole({})).items()}
            self._set_steering(on=bool(state["steers"]))
            self._take(unflatten(numbers, self._whole({})))
        self.step, self._record.recorded = int(state["step"]), int(state["recorded"])
        self._compared, self._accumulates = state["compared"], bool(state["accumulates"])
        self._statistics, self._watch = {}, self._new_watch()
        self._start, self._balance = Start(self._labels, self._units), self._balance.again(self.step)
        self.discard()

    def to(self, device: torch.device | str) -> "MultiObjective":
        """Move everything to the device that the model is on."""
        self._settle()
        self._device = torch.empty(0, device=device).device
        self._casts = torch.amp.is_autocast_available(self._device.type)
        with self._exactly():
            moved = {name: tensor.to(self._device) for name, tensor in flatten(self._whole({})).items()}
            self._statistics = {name: tensor.to(self._device) for name, tensor in self._statistics.items()}
            self._w = self._w.to(self._device)
            whole, self._watch, self._advance = self._whole({}), self._new_watch(), self._new_stepper()
            self._take(unflatten(moved, whole))
            self._params()  # torch may have replaced them
            self._record.to(self._device, new_courier(self._store, self._device, apart=self._params.sharded))
        self.discard()
        return self

    def _whole(self, conversion: Any) -> _Saved:  # noqa: ANN401
        weighting, coefficients, losses, scale, _ = self._advance.own(self._state)
        return _Saved(weighting, conversion, coefficients, losses, scale, self._steered)

    def _take(self, saved: _Saved) -> None:
        self._state, self._steered = self._standing(saved), saved.steered

    def _standing(self, saved: _Saved) -> _Committed:
        following = (self._foreseen(saved.weighting),) if self._early else ()
        return _Committed(saved.weighting, saved.coefficients, saved.losses, saved.scale, following)

    def _foreseen(self, state: Any) -> Tensor:  # noqa: ANN401
        """The coefficients of the step that comes, of a weighting that knows them, (m,)."""
        c = self.weighting.foreseen(state, self._w)
        assert c is not None  # noqa: S101
        return c.to(self._dtype)

    def _saved(self, conversion: Any) -> dict[str, Any]:  # noqa: ANN401
        whole = self._whole(conversion)
        tensors = flatten(whole)
        if self._params.sharded:
            tensors |= {key: sharded.as_shard(tensors[key], owner) for key, owner in self._owners(whole)}
        return {
            "configuration": self._configuration(),
            "step": self.step,
            "recorded": self.recorded,
            "compared": self._compared,
            "accumulates": self._accumulates,
            "steers": self._steers,
            "tensors": tensors,
        }

    def _owners(self, whole: _Saved) -> Iterator[tuple[str, Tensor]]:
        """Tensors of a checkpoint that are copies of parameters: their names, and the parameters."""
        params = self._params()
        return ((key, params[name]) for key, name in sharded.owners(whole, frozenset(params)))

    def _configuration(self) -> dict[str, str]:
        held = {name: (tuple(p.shape), str(record_dtype(p))) for name, p in self._params().items()}
        return describe(
            weighting=self.weighting,
            conversion=self.conversion,
            preference=self.preference,
            names=self.names,
            every=self.every,
            units=self._units.units,
            ideal=self._units.ideal,
            parameters=held,
        )

    # One step ---------------------------------------------------------------------------------

    def _begin(self) -> _Committed:
        template = self._template()
        extra = {}
        if "jacobian" in self.weighting.needs:
            params = self._trained()
            one = torch.empty(1, dtype=row_dtype(params), device=self._device)
            extra["jacobian"] = one.expand(len(template), sum(p.numel() for p in params))
        c = self._w.to(template) / len(template)
        scale = Stateless() if self._units.plain else self._units.init(template)
        state = self.weighting.init(template, **extra)
        return self._standing(_Saved(state, {}, c, template + torch.nan, scale, self._steered))

    def _template(self) -> Tensor:
        """Losses (m,), for their shape, dtype and device."""
        return torch.zeros(len(self._w), dtype=self._dtype, device=self._device)

    def _weigh(self, f: Tensor, seen: Seen) -> tuple[Chosen, Tensor | None, Outcome[_Committed] | None]:
        """This call's coefficients, its gradient rows, and what commits it if it is the only one of its step."""
        rows = None
        if self.weighting.needs:
            rows = mean_rows(jacobian_rows(f, self._trained()), seen, self._group)
        scale = self._call_scale(seen)
        if self._looks_ahead and (self._accumulates or self._pending.calls > 0):
            opening = None if self._pending.first is None else self._pending.first.chosen
            last = self._state
            chosen = opening or Chosen(self._advance.own(last.coefficients), last.weighting, None)
            return chosen._replace(scale=scale), rows, None
        before, c = self._state, None
        if self._steers:
            return Chosen(self._foreseen(before.weighting), before.weighting, scale), rows, None
        if self._early:
            self._advance.join()
            c = before.next[0].clone()  # for a backward pass that may come late
        elif self._knows and seen.mask is not None:
            # Calls of a closure that come later may have objectives that this one has not.
            c = self._foreseen(before.weighting)
        ahead = self._advance(before, seen.values, seen.mask, rows)
        if c is None:
            c = self._advance.own(ahead.after.coefficients)
        return Chosen(c, ahead.after.weighting, scale), rows, ahead

    def _call_scale(self, seen: Seen) -> Scale | None:
        """The units of a call's losses.

        An objective without a unit yet is measured in its first loss of this step; the mean over the calls of the step
        becomes its unit.
        """
        if self._units.plain:
            return None
        before = self._scale()
        self._start.show(seen.values, before, seen.mask, self.step + 1, self._watch.when)
        earlier = self._chosen.scale if self._pending.calls > 0 and self._chosen is not None else None
        return self._units.update(seen.values, before if earlier is None else earlier, seen.mask)

    def _follow(self, seen: Seen) -> Chosen:
        """What another evaluation of a closure is differentiated with: what the first was."""
        assert self._within is not None  # noqa: S101
        scale = self._within.scale
        if scale is not None:
            self._within = self._within._replace(scale=self._units.update(seen.values, scale, seen.mask))
        return self._within

    def _scalar(self, f: Tensor, seen: Seen, chosen: Chosen) -> Tensor:
        """Σ c_i f̃_i with this rank's share of each loss, or Σ c_i Y_i where the weighting has its own rows Y."""
        c, state, scale = chosen
        c = c if seen.mask is None else torch.where(seen.mask, c, 0.0)
        rows = self.weighting.rows(state)
        with torch.enable_grad():
            if rows is not None:
                values = seen.values if scale is None else self._units.normalise(seen.values, scale)
                return steered((c * values).sum(), c.to(rows) @ rows, self._trained())
            if seen.mask is not None:
                f = torch.where(seen.mask if seen.share is None else seen.share > 0, f, 0.0)
            if scale is not None:
                f = self._units.normalise(f, scale)
            return ((c if seen.share is None else c * seen.share) * f).sum()

    def _check_open(self) -> None:
        if self._closed:
            rule = "mol must be open: close() ends its run, and so does a newer MultiObjective that takes its optimizer"
            require(False, rule, f"one that was closed after step {self.step}")  # noqa: FBT003

    def _cleared(self) -> bool:
        assert self._optimizer is not None  # noqa: S101
        groups = self._optimizer.optimizer.param_groups
        return all(p.grad is None for group in groups for p in group["params"])

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record θ⁽ᵗ⁾: every call whose gradients the step uses is known, and nothing has moved."""
        if self._pending.calls == 0 and self._skipped > 0:
            optimizer.zero_grad(set_to_none=True)
            return
        if self._pending.calls == 0 and all(float(group["lr"]) == 0 for group in optimizer.param_groups):
            return  # torch.distributed.checkpoint takes such a step to make an optimizer's state
        rule = "optimizer.step() must follow a call of mol and its backward pass, or mol.close()"
        require(self._pending.calls > 0, rule, "none since the last step")
        require(not self._cleared(), rule, "that its gradients were cleared before the step")
        with self._exactly():
            mean = self._pending.mean()
            self._record_step(unless(overflow(optimizer), mean.values), mean.mask)

    def _pass_if_idle(self) -> None:
        """Let the step that comes pass if it has neither calls nor gradients: it moves nothing."""
        if self._pending.calls == 0 and self._cleared():
            self._skipped += 1

    def _within_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure whose first evaluation is the end of the step's calls; the others use its coefficients."""
        self._within = None  # of a step that was broken off

        def evaluate() -> Any:  # noqa: ANN401
            result = closure()
            if self._within is None:
                self._before_step(optimizer)
                self._within = self._chosen
            return result

        return evaluate

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        pending, before = self._pending, self._state
        if pending.calls > 0:
            self._accumulates = self._accumulates or pending.calls > 1
            with self._exactly():
                mean, skipped = pending.mean(), overflow(optimizer)
                if skipped is None:
                    self._commit(mean)
                else:
                    self._commit(mean._replace(values=unless(skipped, mean.values), ahead=None))
                    self._keep(before, taken=skipped == 0)
        self.discard()

    def _keep(self, before: _Committed, taken: Tensor) -> None:
        """What was shown before stays where the device did not take the step."""
        now, taken = self._advance.own(self._state), taken.to(self._device)
        self._state = now._replace(
            coefficients=torch.where(taken, now.coefficients, before.coefficients),
            losses=torch.where(taken, now.losses, before.losses),
        )

    def _commit(self, mean: Mean) -> None:
        ahead = mean.ahead
        if self._steers:
            self._state = self._noted(mean)
        else:
            if ahead is None or self._restarted or not self._advance.holds(ahead):
                # The host was told of these losses, or is yet to be.
                ahead = self._advance(self._state, mean.values, mean.mask, mean.rows, tell=False)
            self._state = ahead.after
        self._restarted = False
        self.step += 1

    def _noted(self, mean: Mean) -> _Committed:
        """Where a run with steered losses stands after a step: λ stays."""
        state, c, losses = self._state, self._foreseen(self._state.weighting), mean.values
        if mean.mask is not None:
            c, losses = torch.where(mean.mask, c, state.coefficients), torch.where(mean.mask, losses, state.losses)
        scale = state.scale
        if isinstance(scale, Scale):
            scale = self._units.update(mean.values, scale, mean.mask)
        return state._replace(coefficients=c, losses=losses, scale=scale)

    def _record_step(self, values: Tensor, mask: Tensor | None) -> None:
        if not self._due():
            return
        if self._steers:
            self._compared = "steered"
            skipped = torch.isnan(values).any()
            self._enter(torch.where(skipped, torch.nan, self._steered.losses), self._steered.known)
        else:
            self._compared = "training"
            self._enter(values, mask)

    def _due(self) -> bool:
        due = self.every is not None and (self.step + 1) % self.every == 0
        return due and self._compared != "given"

    def _send(self) -> None:
        """Let θ⁽ᵗ⁾ travel to its store while the device computes gradients: until the step it stays as it is."""
        if self._record.sends and self._due() and not self._params.sharded:  # shards may be out of sight now
            self._record.send(self._params.last())  # if they are others by then, it is in vain

    def _enter(self, values: Tensor, mask: Tensor | None) -> None:
        params, self._statistics = self._params(), {}
        if not self._units.plain:
            values, _ = self._units.enter(values, self._scale(), mask)
        self._record.update(sharded.local(params) if self._params.sharded else params, values, mask)

    def _scale(self) -> Scale:
        """The units of committed losses."""
        scale = self._advance.own(self._state.scale)
        assert isinstance(scale, Scale)  # noqa: S101
        return scale

    def _begin_units(self, seen: Seen) -> None:
        """Let losses that are not those of a step give the units that are missing."""
        if self._start.open:
            before = self._scale()
            self._start.show(seen.values, before, seen.mask, self.step + 1, self._watch.when)
            scale = self._units.update(seen.values, before, seen.mask)
            self._state, self._restarted = self._advance.own(self._state)._replace(scale=scale), True

    def _set_steering(self, *, on: bool) -> None:
        """Whether λ follows steered losses; nothing is captured then."""
        if on != self._steers:
            whole, self._steers = self._whole({}), on
            self._advance = self._new_stepper()
            self._take(whole)

    def _above(self, state: _Committed) -> Tensor:
        """The losses that λ follows less the ideal point, in their units, as the weighting sees them, (m,)."""
        losses = self._measured(state)
        if isinstance(state.scale, Scale):
            losses = self._units.normalise(losses, state.scale)
        return scaled(self.weighting, state.weighting, losses)

    def _measured(self, state: _Committed) -> Tensor:
        """The losses that λ follows, NaN where there were none yet, (m,)."""
        losses, known = self._steered
        return torch.where(known, losses, torch.nan) if self._steers else state.losses

    def _look_at_balance(self) -> None:
        with self._exactly():
            state = self._advance.own(self._state)
            weights = duals(self.weighting, state.weighting)
            assert weights is not None  # noqa: S101
            self._balance.show(weights, self._above(state), self.step)

    def _skip(self) -> Tensor:
        self._skipped += 1
        params = self._trained()
        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        with torch.enable_grad():
            return steered(zero, zero.expand(sum(p.numel() for p in params)), params)

    def _trained(self) -> list[Tensor]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _answer(self) -> dict[str, Tensor]:
        if self._pending.calls > 0 and self.step == 0 and self.recorded == 0:
            warnings.warn(
                "nothing was recorded: no optimizer.step() followed a call of mol and its backward pass, and the "
                "solution is where the run began",
                stacklevel=3,
            )
        return self._record.output(self._w)

    def _exactly(self) -> AbstractContextManager[None]:
        """Without graphs, and in the precision that things are in."""
        mixed = self._casts and torch.is_autocast_enabled(self._device.type)
        plain = not mixed and not torch.is_inference_mode_enabled()
        return ungraphed() if plain else _plainly(self._device.type, mixed=mixed)

    def _settle(self) -> None:
        """Catch up with what was put off."""
        self._watch.settle()
        self._start.settle()
        self._record.settle()

    def _new_stepper(self) -> Stepper[_Committed]:
        """The weighting's arithmetic, captured where the time of a step is that of its launches."""
        plain = self.weighting.traceable and not self.weighting.needs and captures(self._device)
        captured = plain and not self._steers and self._is_steady()
        self._early = captured and self._knows
        step = partial(_advanced, self.weighting, self._units, self._w, captured, self._dtype if self._early else None)
        return Resident(step, self._device) if captured else Eager(step)

    def _is_steady(self) -> bool:
        """Whether the weighting's state keeps its shapes: a graph reads and writes the same memory always."""
        with self._exactly():
            f = self._template() + torch.arange(1, len(self._w) + 1, device=self._device)
            before = _Committed(self.weighting.init(f), f, f)
            for mask in (None, torch.ones_like(f, dtype=torch.bool)):
                _, after = _advanced(self.weighting, self._units, self._w, True, None, before, f, mask, None)  # noqa: FBT003
                if not steady(before, after):
                    return False
        return True

    def _new_watch(self) -> Watch:
        if self._skips:
            return Watch(self._labels, "now")
        if self._check == "auto":
            return Watch(self._labels, "now" if self._device.type == "cpu" else "deferred")
        return Watch(self._labels, self._check)


@contextmanager
def _plainly(kind: str, *, mixed: bool) -> Iterator[None]:
    # What is made in inference mode cannot be written to outside of it.
    uncast = torch.autocast(kind, enabled=False) if mixed else nullcontext()
    with torch.inference_mode(mode=False), torch.no_grad(), uncast:
        yield


def _advanced(
    weighting: Weighting[Any],
    units: Units,
    w: Tensor,
    captured: bool,  # noqa: FBT001
    foresight: torch.dtype | None,
    before: _Committed,
    values: Tensor,
    mask: Tensor | None,
    rows: Tensor | None,
) -> tuple[Tensor | None, _Committed]:
    """Where a run stands after losses (m,), of which the host is told if this is captured.

    What is absent stays as it was. The coefficients of the step that comes are given in the dtype of foresight, if any.
    """
    seen, scale = values, before.scale
    if isinstance(scale, Scale):
        seen, scale = units.enter(values, scale, mask)
        rows = None if rows is None else rows / scale.unit.to(rows).unsqueeze(-1)
    extra = {} if rows is None else {need: rows if need == "jacobian" else rows @ rows.mT for need in weighting.needs}
    c, after = weighting.update(seen, before.weighting, w, mask=mask, **extra)
    losses = values
    if mask is not None:
        c, losses = torch.where(mask, c, before.coefficients), torch.where(mask, values, before.losses)
    following = None if foresight is None else weighting.foreseen(after, w)
    known = () if following is None else (following.to(foresight),)
    return values if captured else None, _Committed(after, c, losses, scale, known)


def _differentiated(run: MultiObjective, pending: Pending, call: Call, gradients: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    if pending is run._pending:  # else it was discarded, or is of a run that was closed
        pending.differentiated(call, run._cleared)
