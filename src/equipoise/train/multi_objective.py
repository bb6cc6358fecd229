"""`MultiObjective`: a weighting and a conversion in your own training loop."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipoise.conversion import Conversion
from equipoise.conversion.protocol import archive_size
from equipoise.train import checkpoint, inputs
from equipoise.train import parameters as shards
from equipoise.train.archive import Archive, open_slots
from equipoise.train.distributed import Group, everywhere
from equipoise.train.history import History, describe_limits, describe_step
from equipoise.train.hooks import Attached, release
from equipoise.train.inputs import Choice, Counts, Losses, Preference, Store, Values
from equipoise.train.run import Course, Run
from equipoise.units import Unit, Zero
from equipoise.weighting import Limits, Weighting
from equipoise.weighting.limits import Limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MultiObjective", "check_settings"]


class MultiObjective:
    r"""A weighting and a conversion in your own training loop.

    With an `optimizer`, θ⁽ᵗ⁾ is recorded just before each of its steps and λ is updated just after, with the
    count-weighted mean of the losses of all calls whose gradients the step uses. A skipped step changes nothing.
    Without an optimizer, each call is a step. Holds a reference to the model; like an optimizer, it is not an
    `nn.Module`.

    Coefficients are scaled so that uniform λ gives the weighted sum Σ w_i f_i for every method: one learning rate
    serves all of them.

    λ is computed on the host. On an accelerator that happens in the call after a step, when its losses have arrived, so
    the host does not wait for the device.

    Under gradient accumulation, weightings whose coefficients depend on this step's losses (Tchebycheff, smooth
    Tchebycheff, alternating order, gradient-based ones) use those of the previous step; the first step uses those of
    its first call.

    In a process group all ranks must call with their part of the batch. The losses are averaged over the ranks, so
    every rank has the same λ, archive and coefficients.

    Args:
        model: Its parameters are trained; it may be wrapped or compiled.
        optimizer: Its steps are the steps of the run; None: every call is a step. An earlier MultiObjective on this
            optimizer is closed, with a warning.
        preference: w, one entry per objective: non-negative, of sum 1. A mapping gives the objectives their names.
        method: A name from `methods()`, a `Method`, or a weighting with its conversion, such as `(OMD(), Last())`; by
            default `default()`. A named method whose conversion has no capacity gets a capacity of 8.
        limits: Further losses that must stay below a number, or within a pair (least, most): by name, or in order after
            those of the preference. The losses of the preference are made as small as the limits allow, by `Limits`;
            `method` weights them if there are several. The default conversion is then `Average(power=8)`.
        names: The objectives' names, for losses by name, messages and metrics.
        parameters: Names of the parameters to record; by default all that require grad. Copies are in at least
            float32.
        every: Record an iterate every so many steps, with the losses of that step; None: only by `record`.
        check: When to check that losses are finite: "now", before the backward pass, or "deferred" to the next call, so
            that the host does not wait for the device. By default "now" on the CPU, else "deferred".
        on_nonfinite: "raise" a NonFiniteLossError, or "skip" the call: its gradients are zero and it is not counted. A
            step without any other call leaves the parameters unchanged. "skip" implies "now".
        process_group: The ranks that train together; by default all of them.
        units: The unit u of each loss. None: the losses as they are. "start": the first loss of each objective (minus
            its ideal), from a step, `record` or `steer`; saved in checkpoints. Or positive numbers, in order or by
            name. The weighting, the conversion and the metrics then see f̃ = (f − z)/u, and the scalar is Σ c_i f̃_i,
            so gradients are in these units too.
        ideal: z, the smallest value that each loss can reach, in its own unit: one number, or one each, in order or by
            name, 0 for names that are left out. See `payoff`.
        store: Where recorded copies live: on the "device" of the model, in "host" memory, or in a folder (a
            `pathlib.Path` that no other run uses). The results are the same bit for bit.
        on_store_error: What to do when the store cannot be written: "raise" a StoreError, or "keep" the archive as it
            is, warn, and record again once writing works.

    Examples:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> mol = eq.MultiObjective(model, optimizer, {"left": 0.1, "right": 0.9})
        >>> for _ in range(200):
        ...     x = model.weight.squeeze()
        ...     mol({"left": x**2, "right": (x - 2) ** 2}).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> model.load_state_dict(mol.solution())
        <All keys matched successfully>
        >>> round(model.weight.item(), 1)  # 0.1 x² = 0.9 (x − 2)²
        1.5
    """

    _kind: ClassVar[type[Run]] = Run

    @inputs.show_call
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        preference: Preference,
        *,
        method: Choice = None,
        limits: Mapping[str, Limit] | Sequence[Limit] | None = None,
        names: Sequence[str] | None = None,
        parameters: Iterable[str] | None = None,
        every: int | None = 1,
        check: Literal["auto", "now", "deferred"] = "auto",
        on_nonfinite: Literal["raise", "skip"] = "raise",
        process_group: Group = None,
        units: Unit = None,
        ideal: Zero = 0.0,
        store: Store = "device",
        on_store_error: Literal["raise", "keep"] = "raise",
    ) -> None:
        inputs.check_model(model)
        params = shards.Parameters(model, parameters)
        start = shards.local(params())
        inputs.check_optimizer(optimizer, params())
        wish = inputs.read_preference(preference, names)
        if limits is None:
            chosen = inputs.choose_method(method)
        else:
            wish, limits = inputs.read_limits(wish, limits)
            chosen = inputs.limit(method, limits, units, ideal)
        inputs.check_choices(every, check, on_nonfinite, store, on_store_error)
        if params.sharded:
            inputs.check_sharded(chosen.weighting, on_nonfinite)
        measure = inputs.check_units(units, ideal, len(wish.w), wish.names)
        device = next(iter(start.values())).device
        floats = [p.dtype for p in start.values() if p.is_floating_point()]
        with torch.inference_mode(mode=False), torch.no_grad():
            w = wish.w.to("cpu", torch.promote_types([*floats, torch.float32][0], torch.float32), copy=True)
            if optimizer is not None:
                release(optimizer)
            slots = open_slots(store, start, chosen.conversion.copies or 0)
            archive = Archive(chosen.conversion, start, w, slots, device, on_store_error)
            course = Course(every, check, on_nonfinite == "skip", process_group)
            self._run = self._kind(params, wish._replace(w=w), chosen.weighting, measure, archive, course, device)
        if optimizer is not None:
            inputs.warn_of_optimizer(optimizer, params, chosen.weighting)
            self._run.attached = Attached(self._run, optimizer)

    def __repr__(self) -> str:
        w = [round(entry, 4) for entry in self.preference.tolist()]
        parts = [type(part).__name__ for part in (self.model, self.weighting, self.conversion)]
        shown = w if len(w) <= 6 else f"<{len(w)} entries>"
        return f"MultiObjective({', '.join(parts)}, preference={shown}, step={self.step}, recorded={self.recorded})"

    # Calls ------------------------------------------------------------------------------------

    def __call__(self, losses: Losses, counts: Counts | None = None) -> Tensor:
        """The scalar to differentiate.

        Args:
            losses: f at the current parameters, with their graph: a tensor (m,), as of `group_losses`, in the order of
                the preference; or numbers by name, or in a list if the objectives have no names.
            counts: How many samples each loss is the mean of on this rank, 0 for an absent objective, whose loss may be
                missing if losses are given by name; by default the same for all objectives, calls and ranks.

        Returns:
            Σ c_i f_i, or Σ c_i (f_i − z_i)/u_i with units and an ideal point. Under gradient accumulation, divide it by
            the number of calls.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite; see `check` and `on_nonfinite`.
            ValueError: If losses differ from the preference in shape or names, have no graph, or are passed under
                `no_grad` or inside `solution_weights`.
        """
        return self._run.call(losses, counts)

    def record(self, losses: Values, counts: Counts | None = None) -> None:
        """Record the current parameters with these losses instead of the training losses.

        For losses on a fixed held-out batch or on all data. From then on only this method records: iterates with
        different kinds of losses would not be comparable.

        Args:
            losses: f at the current parameters, as in a call; no graph is needed, and floats will do.
            counts: As in a call.
        """
        self._run.record(losses, counts)

    def steer(self, losses: Values, counts: Counts | None = None) -> None:
        """Update λ with these losses, such as losses on held-out data, instead of the training losses.

        Call it before the first step and then every n steps. From the first call on, only these losses move λ, and
        every iterate is recorded with the latest of them, so they also choose the answer. Gradients still come from the
        training losses.

        Use it where a training loss is not the loss that you mean, as with label smoothing. Do not use it against
        overfitting: λ then stays on the loss that overfits, which overfits further. λ moves once per call: if calls are
        cheap, call it in every step (docs/howto/held-out-losses.md has the numbers).

        Args:
            losses: f at the current parameters, as in a call; no graph is needed, and floats will do.
            counts: As in a call: an objective with 0 keeps its last steered loss.

        Raises:
            ValueError: For a weighting whose coefficients depend on the losses of their own step, and for a first call
                after iterates were recorded with training losses.
            NonFiniteLossError: As in a call.
        """
        self._run.steer(losses, counts)

    def discard(self) -> None:
        """Discard the calls since the last step, for a step that you decide not to take.

        Not needed if `zero_grad` sets gradients to None, as it does by default: the next backward pass detects that
        they were cleared.
        """
        self._run.discard()

    def close(self) -> None:
        """Detach from the optimizer and unlock the store's folder. The solution stays; further calls are refused."""
        self._run.close()

    # The answer -------------------------------------------------------------------------------

    def solution(self, *, gather: bool = True) -> dict[str, Tensor]:
        """The model's state with the answer in place of the recorded parameters.

        Args:
            gather: Whether to gather sharded parameters into full tensors; all ranks must call then. If not, they stay
                shards as in `model.state_dict()`. Irrelevant if no parameter is sharded.

        Returns:
            Copies, for `model.load_state_dict`: recorded parameters in at least float32, BatchNorm statistics from
            `update_bn` if it was called, and everything else as it is in the model now.
        """
        run, params = self._run, self._run.params()
        answer = {name: shards.as_shard(x, params[name]) for name, x in run.answer().items()}
        state = shards.full_state(self.model, answer | run.statistics, run.params.aliases())
        return {key: shards.whole(x) for key, x in state.items()} if gather else state

    @contextmanager
    def solution_weights(self) -> Iterator[None]:
        """A context in which the model holds the answer; parameters and buffers are restored on exit.

        For evaluation. Calls of `mol` and steps inside raise ValueError: the exit would undo them. A `state_dict()` of
        the model taken inside refers to the model's own tensors, which change on exit: copy it, or use `solution`.
        """
        run = self._run
        with shards.swapped(run.params(), self.model, run.answer() | run.statistics):
            before, run.holds_answer = run.holds_answer, True
            try:
                yield
            finally:
                run.holds_answer = before

    def update_bn(self, loader: Iterable[Any]) -> None:
        """Compute the BatchNorm statistics of the answer in one pass over the data.

        `solution` and `solution_weights` use them until another iterate is recorded. If the model holds the answer
        (loaded, or inside `solution_weights`), it gets them too; otherwise it is left unchanged.

        Args:
            loader: The batches that you train on, as drawn by the same sampler: inputs of the model, or tuples that
                begin with them.

        Raises:
            ValueError: If there are no batches, or others, such as dicts; nothing is changed.
        """
        run, params, answer = self._run, self._run.params(), self._run.answer()
        holds = shards.holds(params, answer)
        if everywhere(holds, run.device, run.course.group) if run.params.sharded else holds:
            run.statistics = shards.recalibrated(self.model, loader, run.device)
            return
        with shards.swapped(params, self.model, answer):
            run.statistics = shards.recalibrated(self.model, loader, run.device)

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._run.params.model

    @property
    def names(self) -> tuple[str, ...] | None:
        """The objectives, if they have names."""
        return self._run.wish.names

    @property
    def weighting(self) -> Weighting[Any]:
        """How losses become coefficients."""
        return self._run.weighting

    @property
    def conversion(self) -> Conversion[Any]:
        """How the trajectory becomes the answer."""
        return self._run.archive.conversion

    @property
    def preference(self) -> Tensor:
        """w, (m,)."""
        return self._run.wish.w

    def set_preference(self, preference: Preference) -> None:
        """Change the preference from the next step on.

        λ, model and optimizer continue from where they are. The archive is cleared: the answer uses only iterates
        recorded for the new preference. Call it between steps. Checkpoints hold the change. The preference that the
        run has already changes nothing.

        Args:
            preference: w, one entry per objective: non-negative, of sum 1; by name if it is a mapping.

        Raises:
            ValueError: For a preference of another length or with other names, after a backward pass whose step is not
                taken yet, or with limits. A call of `mol` from before the change raises it in its backward pass.

        Examples:
            >>> x = torch.nn.Parameter(torch.tensor([0.5]))
            >>> model = torch.nn.ParameterDict({"x": x})
            >>> optimizer = torch.optim.SGD([x], lr=0.05)
            >>> mol = eq.MultiObjective(model, optimizer, {"left": 0.5, "right": 0.5})
            >>> def train(steps):
            ...     for _ in range(steps):
            ...         mol({"left": x[0] ** 2, "right": (x[0] - 2) ** 2}).backward()
            ...         optimizer.step()
            ...         optimizer.zero_grad()
            >>> train(300)
            >>> mol.set_preference({"left": 0.1, "right": 0.9})
            >>> train(300)
            >>> round(mol.solution()["x"].item(), 1)  # 0.1 x² = 0.9 (x − 2)²
            1.5
            >>> [step for step, w in mol.preferences]
            [0, 300]
        """
        run = self._run
        wish = inputs.read_change(preference, run.wish, limited=run.watch is not None)
        run.change(wish.w.to(run.wish.w, copy=True))

    @property
    def preferences(self) -> list[tuple[int, list[float]]]:
        """Every preference of the run, w (m,), with the step after which it was set; the first has step 0."""
        return [(step, list(w)) for step, w in self._run.preferences]

    @property
    def step(self) -> int:
        """Steps taken. A step that a fused optimizer skips on the device is counted until the host knows."""
        return self._run.step

    @property
    def recorded(self) -> int:
        """Iterates recorded; before the first, the solution is the initial model."""
        self._run.settle()
        return self._run.archive.recorded

    @property
    def duals(self) -> Tensor | None:
        """λ after the last step, where the weighting has it, on the host, (m,)."""
        self._run.settle()
        return self._run.duals()

    @property
    def coefficients(self) -> Tensor:
        """Coefficients of the last step in which each objective was present, on the host, (m,); w before."""
        self._run.settle()
        return self._run.coefficients

    @property
    def history(self) -> History:
        """Losses, coefficients, λ and imbalance of the run, in bounded memory."""
        run = self._run
        run.settle()
        run.history.weighted = run.above(run.history.losses) * run.wish.w
        return run.history

    def plot(self) -> "Figure":
        """A matplotlib figure of the history: losses, weighted losses and λ over the steps."""
        return self.history.plot()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step, for any logger. Synchronises with the device.

        Returns:
            `step`. By objective: `loss/…` (as passed in), `weighted/…` (w_i (f_i − z_i)/u_i), `slack/…` (how far that
            lies below the largest one, as a fraction of it), `coefficient/…`, and `lambda/…` if the weighting has λ.
            With `steer` also `steered/…`, and all but `loss/…` are then of steered losses. `tch` is the largest
            weighted loss. `imbalance` (largest over smallest, minus 1) and `angle` (to the preferred ray, in radians)
            are 0 where the preference is met; both ignore objectives with w_i = 0. `archive`: the copies in use, if the
            conversion keeps several. For a loss with a limit ε, `violation/…` and `slack/…` are how far it lies above
            and below ε, as fractions of |ε|. `missed/…` is the mean of that over the last eighth of the steps: above 0
            where it was missed, below where it was kept. `multiplier/…` is the price of the limit: how much the free
            losses would fall per unit of relaxation. `skipped`: steps left out, with `on_nonfinite="skip"`, since the
            run was made or resumed.
        """
        run = self._run
        run.settle()
        losses = {"loss": run.losses} | ({"steered": run.steered} if run.steers else {})
        above = run.above(run.measured())
        described = describe_step(run.labels, run.wish.w, losses, above, run.coefficients, run.duals())
        if isinstance(run.weighting, Limits):
            late = run.history.late(run.step)
            described |= describe_limits(run.labels, run.weighting, run.losses, late, run.weights.state)
        size = archive_size(self.conversion, run.archive.numbers)
        described |= {"skipped": run.skipped} if run.course.skips else {}
        return {"step": self.step, **described, **({} if size is None else {"archive": int(size)})}

    def weighted(self, losses: Values) -> Tensor:
        """w_i (f_i − z_i)/u_i of any losses, such as held-out ones, (m,) on the host; nothing moves.

        Their maximum is what the run makes small: judge by it when to stop.

        Args:
            losses: f, as in a call; no graph is needed, and floats will do.

        Examples:
            >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, {"left": 0.25, "right": 0.75}, units=[2.0, 1.0])
            >>> mol.weighted({"left": 4.0, "right": 1.0}).tolist()
            [0.5, 0.75]
        """
        run = self._run
        run.settle()
        numbers = inputs.read_numbers(losses, run.device)
        f = inputs.stack_losses(numbers, run.wish.names, len(run.wish.w), run.device).detach().cpu()
        return run.wish.w.to(torch.float64) * run.above(f)

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: tensors, numbers and text, for `torch.load(weights_only=True)`.

        The state is a snapshot: recorded copies are cloned to the host. Copies in a folder are memory-mapped; copies of
        sharded parameters are sharded alike. Calls since the last step are not included, as gradients are not part of a
        checkpoint: save between steps. A checkpoint can be loaded with another `store`.
        """
        return checkpoint.state_of(self._run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. If it raises, nothing is changed.

        Args:
            state: What `state_dict` returned.

        Raises:
            StateMismatchError: If it belongs to another configuration (the message names every setting that differs),
                has the shards of another number of ranks, or an entry that no run has.
            StoreError: If a folder cannot be written to.
        """
        checkpoint.resume(self._run, state)

    def to(self, device: torch.device | str) -> "MultiObjective":
        """Move everything to the device that the model is on."""
        self._run.to(torch.empty(0, device=device).device)
        return self


def check_settings(settings: Mapping[str, Any]) -> None:
    """Report wrong settings before there is a model and an optimizer, by a trial run; a folder is left alone."""
    trial = {key: x for key, x in settings.items() if key != "parameters" and not isinstance(x, os.PathLike)}
    MultiObjective(nn.Linear(1, 1), None, **trial)
