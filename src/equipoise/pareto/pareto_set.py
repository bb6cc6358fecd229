"""`ParetoSet`: one model that takes the preference as an input, trained for all preferences at once."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise import preference as preferences
from equipoise.batch import whole
from equipoise.conversion import Average, Conversion
from equipoise.errors import NonFiniteLossError, StateMismatchError, require
from equipoise.metrics import imbalance
from equipoise.pareto.conditioning import Conditioned
from equipoise.pareto.draws import Distribution, RowCount, draw_preferences
from equipoise.pareto.duals import Mesh, NodeDuals, node_means
from equipoise.pareto.front import Front
from equipoise.pareto.objective_names import read_objectives
from equipoise.registry import Method
from equipoise.train import MultiObjective
from equipoise.train.checkpoint import check_configuration, describe
from equipoise.train.distributed import Group, Seen, ranks
from equipoise.train.inputs import Choice, Store, check_graph, check_model, check_units, choose_method
from equipoise.train.nonfinite import Floor, is_finite, spoken
from equipoise.train.run import Run
from equipoise.train.step import Chosen
from equipoise.units import Unit, Zero
from equipoise.weighting import SelfTuned, Weighting

__all__ = ["ParetoSet"]

Rows = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""Losses at n preferences: one tensor (n, m), or one tensor (n,) per objective, in order or by name."""

MARGIN = 0.02
"""The default of `margin`, times m."""


class _Drawn(NamedTuple):
    """Preferences that were drawn and wait for their losses, on the model's device."""

    w: Tensor
    """(n, m)."""
    shares: Tensor
    """a(w), (n, K)."""


class _NodeRun(Run):
    """A run whose objectives are the gains at the nodes."""

    parts: Tensor
    """What the mean of each node counts for in the mean over the rows of the call, (K·m,)."""

    def prefer(self, w: Tensor) -> None:
        """As in every run, but a node whose ray misses the front may have no gradient."""
        super().prefer(w)
        self.balance.due, self.presence = float("inf"), None
        rule = "the mean of w (f − z)/u around a node must not be negative"
        self.floor = Floor(self.labels, torch.zeros_like(w, dtype=torch.float64), rule)

    def _scalar(self, f: Tensor, seen: Seen, chosen: Chosen) -> Tensor:  # noqa: ARG002
        """The mean over this rank's rows of m Σ λ_i(w) w_i f̃_i."""
        with torch.enable_grad():
            return (chosen.coefficients * self.parts * f).sum()

    def _look_at_gradients(self) -> None:
        """Do nothing: every row of a call is present, so no derivative is multiplied by the 0 of an absent node."""


class _Nodes(MultiObjective):
    """The shell around such a run."""

    _kind: ClassVar[type[Run]] = _NodeRun
    _run: _NodeRun


class ParetoSet:
    r"""Trains one model for every trade-off: the preference w is one of its inputs.

    Every step evaluates the model at new preferences w_s and weights its losses there by λ(w_s):

        mean_s m Σ_i λ_i(w_s) w_{s,i} (f_i(w_s) − z_i),   λ(w) = Σ_k a_k(w) λ_k

    with a dual state λ_k at each of K nodes of a mesh on the preferences, and linear interpolation a(w) between them
    (`pareto.Mesh`). The gain that moves λ_k is the mean of the step's weighted losses, with the weights a_k(w_s)
    (`pareto.node_means`). Uniform λ gives the weighted sum, as in `MultiObjective`.

    Use it like `MultiObjective`: λ moves once per optimizer step, but not if a step is skipped. Gradients may
    accumulate over several pairs of `draw` and call. In a process group every rank draws its own preferences, and all
    ranks have the same λ.

    Args:
        model: A model that takes a preference in addition to its input.
        optimizer: The optimizer whose steps are the steps of the run; None: every call is a step.
        objectives: Their number m, or their names.
        method: A weighting with its conversion, or a name of `methods()`. λ must be known before the losses of a step,
            as with `SelfTuned()` and `OMD()`. By default `(SelfTuned(), Average(power=8))`.
        nodes: The most nodes of the mesh. By default 32 for two objectives and 66 for more. A step should draw at
            least as many preferences, over all ranks and calls.
        margin: The smallest entry of a drawn preference, by default 0.02/m.
        draw: A function that draws the preferences: it takes their number n and a `torch.Generator` and returns (n, m).
            For example, it can draw the trade-offs of your users more often. Its draws are shrunk to the margin. By
            default uniform, and evenly spread within every draw.
        seed: The seed of the draws.
        parameters: As in `MultiObjective`.
        check: As in `MultiObjective`.
        on_nonfinite: As in `MultiObjective`.
        process_group: As in `MultiObjective`.
        units: The unit of each loss: positive numbers, in order or by name; None: the losses as they are.
        ideal: z, the smallest value that each loss can reach: one number, or one each, in order or by name.
        store: As in `MultiObjective`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> pareto = eq.ParetoSet(model, optimizer, ["left", "right"], margin=0.1)
        >>> for _ in range(400):
        ...     w = pareto.draw(32)  # (32, 2)
        ...     x = model(w).squeeze(-1)
        ...     pareto({"left": x**2, "right": (x - 2) ** 2}).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> model.load_state_dict(pareto.solution())
        <All keys matched successfully>
        >>> wanted = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
        >>> [round(x, 1) for x in model(wanted).flatten().tolist()]  # w₁ x² = w₂ (x − 2)²
        [1.3, 1.0]
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        objectives: int | Sequence[str],
        *,
        method: Choice = None,
        nodes: int | None = None,
        margin: float | None = None,
        draw: Distribution | None = None,
        seed: int = 0,
        parameters: Iterable[str] | None = None,
        check: Literal["auto", "now", "deferred"] = "auto",
        on_nonfinite: Literal["raise", "skip"] = "raise",
        process_group: Group = None,
        units: Unit = None,
        ideal: Zero = 0.0,
        store: Store = "device",
    ) -> None:
        m, self.names = read_objectives(objectives)
        _check_objectives(model, m, self.names)
        self.margin = MARGIN / m if margin is None else float(margin)
        self.mesh = Mesh.of(m, nodes, self.margin)
        rule = "draw must be a function of n and a torch.Generator, or None"
        require(draw is None or callable(draw), rule, lambda: f"{draw!r:.80}")
        seed = whole("seed", seed, 0)
        rule = "units must be None or numbers: at the start losses differ between preferences"
        require(not isinstance(units, str), rule, lambda: repr(units))
        self._units = check_units(units, ideal, m, self.names)
        self._distribution, self._seed, self._group = draw, seed, process_group
        self._waiting: _Drawn | None = None
        self._rows = RowCount(m, self.mesh.size)
        self.drawn = 0
        """Draws so far."""
        chosen = _choose(method)
        labels = self.names or tuple(f"objective {i}" for i in range(m))
        places = [", ".join(f"{x:.4g}" for x in w) for w in self.mesh.nodes.tolist()]
        K = self.mesh.size
        self._mol = _Nodes(
            model,
            optimizer,
            torch.full((K * m,), 1.0 / (K * m), dtype=torch.float64),
            method=Method(NodeDuals(chosen.weighting, K), chosen.conversion),
            names=[f"{name} near w = ({place})" for place in places for name in labels],
            parameters=parameters,
            check=check,
            on_nonfinite=on_nonfinite,
            process_group=process_group,
            store=store,
        )
        self._scale = self._units.init(torch.ones(m, dtype=torch.float64))

    def __repr__(self) -> str:
        parts = f"{type(self.model).__name__}, {type(self.weighting).__name__}, {type(self.conversion).__name__}"
        m, nodes = self.mesh.m, self.mesh.size
        return f"ParetoSet({parts}, objectives={m}, nodes={nodes}, margin={self.margin:.4g}, step={self.step})"

    # Steps ------------------------------------------------------------------------------------

    def draw(self, n: int) -> Tensor:
        """Draw new preferences for the next call, spread over the mesh.

        The draw depends only on the seed, the rank and the number of earlier draws, so that a resumed run draws the
        same preferences as an uninterrupted one.

        Args:
            n: Their number: one per sample of a mini-batch, or fewer if losses are means over a batch.

        Returns:
            w, (n, m), on the model's device, in the dtype of its parameters and at least float32.
        """
        n = whole("n", n)
        self._waiting = self._place(self._drawn_at(self.drawn, n))
        self.drawn += 1
        return self._waiting.w

    def __call__(self, losses: Rows, preference: Tensor | None = None, *, counts: Tensor | None = None) -> Tensor:
        """The scalar to differentiate.

        Args:
            losses: f at the preferences of the last `draw`, with their graph: a tensor (n, m), or tensors (n,) in a
                list or by name.
            preference: Preferences (n, m) to use instead of those of the last `draw`.
            counts: The weight of each loss, 0 where a sample lacks that objective, (n, m); by default 1.

        Returns:
            The mean over the rows of m Σ λ_i(w) w_i (f_i − z_i)/u_i. If you accumulate gradients, divide it by the
            number of calls per step.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite; see `check` and `on_nonfinite`.
            ValueError: There was no `draw` before the call, the losses have another shape or no graph, or preferences
                lie outside the simplex.
        """
        w, shares = self._take(preference)
        self._rows.add(len(w) * ranks(self._group), self.step)
        f = self._read_losses(losses, len(w))
        run = self._mol._run
        with torch.autocast(run.device.type, enabled=False) if run._casts else nullcontext():
            f = f.to(w.dtype)
            n = _read_counts(counts, f)
            check_graph(losses, f.mT, None if n is None else n.sum(0), self.names)
            if n is not None:
                f = torch.where(n > 0, f, 0.0)
            # If one of several ranks raised alone, the others would hang: let the run raise on all of them.
            if run.checks and not run.course.skips and ranks(self._group) == 1:
                self._check_finite(f.detach(), w)
            above = self._units.normalise(f, self._scale._replace(unit=self._scale.unit.to(f)))
            means, mass = node_means(shares, w * above, n)
            rows = len(w) if n is None else n.sum(0).clamp_min(torch.finfo(w.dtype).tiny)
            run.parts = (mass / rows).flatten()
            return self._mol(means.flatten(), counts=mass.flatten())

    def discard(self) -> None:
        """Forget the calls since the last step, if that step is not taken; see `MultiObjective.discard`."""
        self._mol.discard()

    def close(self) -> None:
        """Detach from the optimizer. The solution stays available; further calls raise an error."""
        self._mol.close()

    def to(self, device: torch.device | str) -> "ParetoSet":
        """Move everything to the device that the model is on."""
        self._mol.to(device)
        self._waiting = None
        return self

    # The answer -------------------------------------------------------------------------------

    def solution(self, *, gather: bool = True) -> dict[str, Tensor]:
        """The model's state with the answer in place of its parameters, for `model.load_state_dict`.

        Args:
            gather: As in `MultiObjective.solution`.
        """
        return self._mol.solution(gather=gather)

    @contextmanager
    def solution_weights(self) -> Iterator[None]:
        """A context in which the model holds the answer; afterwards parameters and buffers are restored."""
        with self._mol.solution_weights():
            yield

    def update_bn(self, loader: Iterable[Any]) -> None:
        """Compute the BatchNorm statistics of the answer; see `MultiObjective.update_bn`.

        If the model has an argument `preference`, it gets one for each sample, drawn as by `draw`, which goes on as if
        there had been no such draws. If a batch is not a tensor, one preference applies to all of it.
        """
        numbers = itertools.count(self.drawn)

        def add_preference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            if not _lacks_preference(model, args, kwargs):
                return None
            n = len(args[0]) if isinstance(args[0], Tensor) else 1
            w = self._drawn_at(next(numbers), n).to(self._mol._run.device, self._mol._run.wish.w.dtype)
            return args, {**kwargs, "preference": w if isinstance(args[0], Tensor) else w[0]}

        handle = self.model.register_forward_pre_hook(add_preference, with_kwargs=True)
        try:
            self._mol.update_bn(loader)
        finally:
            handle.remove()

    def front(self, losses_of: Callable[[Tensor], Tensor], preferences: Tensor | int | None = None) -> Front:
        """The answer's losses along the front, to inspect and to choose from.

        Args:
            losses_of: A function from preferences (n, m) to the model's losses at them, (n, m). It is called once, with
                the answer in the model, in evaluation mode and without gradients.
            preferences: The preferences (n, m), or their number: exact for two objectives, an upper bound for more. By
                default 91.

        Returns:
            Losses and imbalance at each preference; `.plot()` draws them.

        Examples:
            >>> model = torch.nn.Linear(2, 1)
            >>> def losses_of(w):
            ...     x = model(w)
            ...     return torch.cat([x**2, (x - 2) ** 2], -1)
            >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            >>> pareto = eq.ParetoSet(model, optimizer, 2, margin=0.1)
            >>> for _ in range(300):
            ...     pareto(losses_of(pareto.draw(32))).backward()
            ...     optimizer.step()
            ...     optimizer.zero_grad()
            >>> front = pareto.front(losses_of, preferences=9)
            >>> tuple(front.losses.shape), bool(front.imbalance.median() < 0.5)
            ((9, 2), True)
            >>> w = eq.preference.through(front.losses[4])  # the preference that has this point as its answer
        """
        where = self._rays(91 if preferences is None else preferences)
        run = self._mol._run
        with self.solution_weights(), _evaluating(self.model), torch.no_grad():
            found: object = losses_of(where.to(run.device, run.wish.w.dtype))
        rule = f"losses_of must give a tensor of shape {tuple(where.shape)}"
        require(isinstance(found, Tensor), rule, lambda: type(found))
        assert isinstance(found, Tensor)  # noqa: S101
        require(found.shape == where.shape, rule, tuple(found.shape))
        losses = found.detach().to("cpu", torch.float64)
        above = self._units.normalise(losses, self._scale)
        return Front(where, losses, above, self.names)

    def duals(self, preference: Tensor | Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
        """λ(w) for the next step, on the host.

        Args:
            preference: w, (m,) or (n, m).

        Returns:
            λ, with the shape of w, non-negative and summing to 1.
        """
        w = preferences.validate(preference, self.mesh.m).detach().cpu()
        found: Tensor = self.mesh.interpolate(w.reshape(-1, self.mesh.m).double()) @ self.node_duals
        return found.reshape(w.shape)

    @property
    def node_duals(self) -> Tensor:
        """λ_k of every node, on the host, (K, m)."""
        found = self._mol.duals
        assert found is not None  # noqa: S101
        return found.reshape(self.mesh.size, -1) * self.mesh.size

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._mol.model

    @property
    def weighting(self) -> Weighting[Any]:
        """How the gains of a node move its λ."""
        nodes = self._mol.weighting
        assert isinstance(nodes, NodeDuals)  # noqa: S101
        return nodes.inner

    @property
    def conversion(self) -> Conversion[Any]:
        """How the trajectory becomes the answer."""
        return self._mol.conversion

    @property
    def step(self) -> int:
        """Steps taken."""
        return self._mol.step

    @property
    def recorded(self) -> int:
        """Iterates recorded."""
        return self._mol.recorded

    def metrics(self) -> dict[str, float]:
        """The last losses as numbers, for any logger; reading them synchronises with the device.

        Returns:
            `step`; by objective `weighted/…`, the mean of w_i (f_i − z_i)/u_i over the nodes, and `lambda/…`, the mean
            of λ_i; `imbalance` and `imbalance/largest`, the median and the largest over the nodes (from mini-batch
            losses, so noise makes them larger than for the answer); `nodes`, the share of nodes that have had losses.
        """
        K, m = self.mesh.size, self.mesh.m
        self._mol._run.settle()
        gains = self._mol._run.losses.double().reshape(K, m)
        known = gains[~gains.isnan().any(-1)]
        labels = self.names or tuple(str(i) for i in range(m))
        entries: dict[str, float] = {"step": self.step, "nodes": len(known) / K}
        even = torch.full((m,), 1.0 / m, dtype=torch.float64)
        spread = imbalance(known, even) if len(known) else torch.full((1,), torch.nan)
        entries |= {"imbalance": float(spread.median()), "imbalance/largest": float(spread.max())}
        mean = known.mean(0) if len(known) else torch.full((m,), torch.nan)
        entries |= {f"weighted/{name}": x for name, x in zip(labels, mean.tolist(), strict=True)}
        return entries | {f"lambda/{name}": x for name, x in zip(labels, self.node_duals.mean(0).tolist(), strict=True)}

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume the run, for `torch.load(weights_only=True)`; save it between steps."""
        return {"configuration": self._configuration(), "drawn": self.drawn, "nodes": self._mol.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            StateMismatchError: The state belongs to another configuration; nothing was changed.
        """
        expected = {"configuration", "drawn", "nodes"}
        if state.keys() != expected:
            raise StateMismatchError(f"checkpoint must have the entries {sorted(expected)}; found {sorted(state)}")
        remedies = {"mesh.divisions": "nodes= must be as in the run that was saved"}
        check_configuration(state["configuration"], self._configuration(), remedies)
        drawn = state["drawn"]
        if not _is_count(drawn):
            raise StateMismatchError(f"checkpoint must have drawn, a number of at least 0; found {drawn!r:.80}")
        self._mol.load_state_dict(state["nodes"])
        self.drawn, self._waiting = drawn, None
        self._rows = RowCount(self.mesh.m, self.mesh.size, self.step)

    def _configuration(self) -> dict[str, str]:
        units = self._units
        own = "own" if self._distribution is not None else "uniform"
        return describe(
            mesh=self.mesh, names=self.names, seed=self._seed, draw=own, units=units.units, ideal=units.ideal
        )

    # Arguments --------------------------------------------------------------------------------

    def _drawn_at(self, number: int, n: int) -> Tensor:
        """The n preferences of the draw with this number, on the host."""
        rank = dist.get_rank(self._group) if ranks(self._group) > 1 else 0
        return draw_preferences(n, self.mesh.m, self.margin, self._distribution, (self._seed, rank, number))

    def _take(self, preference: Tensor | None) -> "_Drawn":
        """The preferences of a call."""
        waiting, self._waiting = self._waiting, None
        if preference is None:
            rule = "pareto(losses) must follow w = pareto.draw(n), once per draw, or be given preference="
            require(waiting is not None, rule, "no draw since the last call")
            assert waiting is not None  # noqa: S101
            return waiting
        w = preferences.validate(preference, self.mesh.m).detach()
        require(w.ndim == 2, "preference must have shape (n, m)", tuple(w.shape))
        return self._place(w.to("cpu", torch.float64))

    def _read_losses(self, losses: Rows, n: int) -> Tensor:
        shape = (n, self.mesh.m)
        if isinstance(losses, Mapping):
            rule = "losses must be a tensor (n, m) or a list unless objectives= has names"
            require(self.names is not None, rule, lambda: sorted(losses))
            assert self.names is not None  # noqa: S101
            require(losses.keys() == set(self.names), f"losses must have the names {list(self.names)}", list(losses))
            losses = [losses[name] for name in self.names]
        if isinstance(losses, list | tuple):
            require(len(losses) == shape[1], f"losses must have {shape[1]} entries, one per objective", len(losses))
            for i, loss in enumerate(losses):
                fits = isinstance(loss, Tensor) and loss.shape == (n,)
                found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                require(fits, f"losses[{i}] must have shape ({n},), one entry per preference that was drawn", found)
            losses = torch.stack(list(losses), -1)
        rule = f"losses must be a tensor of shape {shape}, one row per preference"
        require(isinstance(losses, Tensor), rule, lambda: type(losses).__name__)
        assert isinstance(losses, Tensor)  # noqa: S101
        require(losses.shape == shape, rule, tuple(losses.shape))
        require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
        device = self._mol._run.device
        require(losses.device == device, f"losses must be on the device {device} of this ParetoSet", losses.device)
        return losses

    def _check_finite(self, losses: Tensor, w: Tensor) -> None:
        """Raise NonFiniteLossError with the objective and the preference."""
        if is_finite(losses):
            return
        row, i = (~torch.isfinite(losses)).nonzero()[0].tolist()
        name = spoken(self.names[i] if self.names else str(i))
        at = ", ".join(f"{x:.4g}" for x in w[row].tolist())
        raise NonFiniteLossError(
            f"losses must be finite; found {losses[row, i].item()} for {name} at w = ({at}) in step {self.step + 1}"
        )

    def _place(self, w: Tensor) -> "_Drawn":
        """Move preferences from the host to the model's device, with their shares of the nodes."""
        run = self._mol._run
        there = run.device, run.wish.w.dtype
        return _Drawn(w.to(*there), self.mesh.interpolate(w).to(*there))

    def _rays(self, given: Tensor | int) -> Tensor:
        m = self.mesh.m
        if not isinstance(given, Tensor) and np.ndim(given) == 0:
            n = whole("preferences", given)
            require(n >= m, f"preferences must be at least {m}", n)
            return Mesh.of(m, n, self.margin).nodes
        assert not isinstance(given, int)  # noqa: S101
        where = preferences.validate(given, m).detach().to("cpu", torch.float64)
        require(where.ndim == 2, "preferences must have shape (n, m)", tuple(where.shape))
        return where


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """A context with every module in evaluation mode; afterwards each mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _lacks_preference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the model, or the one in its wrappers, has an argument `preference` that a call leaves out."""
    while "preference" not in (signature := inspect.signature(model.forward)).parameters:
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inner, nn.Module):
            return False
        model = inner
    return "preference" not in signature.bind_partial(*args, **kwargs).arguments


def _check_objectives(model: nn.Module, m: int, names: tuple[str, ...] | None) -> None:
    """Raise ValueError if the model, or one that it wraps, is conditioned on other objectives or in another order."""
    check_model(model)
    for part in model.modules():
        if isinstance(part, Conditioned):
            same = part.code.m == m and (names is None or part.names is None or names == part.names)
            rule = (
                f"objectives must be those of the conditioned model, {_listed(part.code.m, part.names)}, in this order"
            )
            require(same, rule, _listed(m, names))


def _listed(m: int, names: tuple[str, ...] | None) -> str:
    return f"{m} without names" if names is None else str([*names])


def _choose(method: Choice) -> Method:
    """Resolve the method; `NodeDuals` checks that its λ is known before the losses."""
    if method is None:
        return Method(SelfTuned(), Average(power=8.0))
    found = choose_method(method)
    rule = "conversion must be Average() or Last(): others choose by the losses of one preference"
    require(found.conversion.records != "before", rule, found.conversion)
    return found


def _read_counts(counts: Tensor | None, like: Tensor) -> Tensor | None:
    if counts is None:
        return None
    n = torch.as_tensor(counts).detach().to(like)
    require(n.shape == like.shape, f"counts must have shape {tuple(like.shape)}, as the losses have", tuple(n.shape))
    sound = bool((n >= 0).all()) and bool(torch.isfinite(n).all())
    require(sound, "counts must be non-negative and finite", "others")
    return n
