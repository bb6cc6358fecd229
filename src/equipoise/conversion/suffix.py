"""The average of the end of a run; confidence bounds on the losses decide how much of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.batch import Number, check_non_negative, check_state, fit, fit_mask, known
from equipoise.conversion import store
from equipoise.conversion.blocks import Blocks, BlocksState
from equipoise.conversion.plan import Plan, observe
from equipoise.conversion.protocol import Conversion
from equipoise.errors import require


class SuffixState(NamedTuple):
    """The time blocks, their loss statistics and their mean parameters.

    Examples:
        >>> state = eq.Suffix(capacity=4).init({"x": torch.zeros(5, 3)}, torch.ones(5, 2))
        >>> tuple(state.slots["x"].shape), tuple(state.blocks.weights.shape)  # (*B, K, ...) and (*B, K)
        ((5, 4, 3), (5, 4))
    """

    blocks: BlocksState
    """Their weights and slots."""
    means: Tensor
    """For every block, the mean of f, then that of (f − f_prev)², by objective, (*B, 2m, K)."""
    observed: Tensor
    """The last observed value of every objective, (*B, m); +∞ before the first."""
    slots: dict[str, Tensor]
    """The mean parameters of the blocks, (*B, K, ...) per name."""


@dataclass(frozen=True)
class Suffix(Conversion[SuffixState]):
    r"""The average of a suffix of the run: the one whose worst weighted loss has the least upper confidence bound.

    Iterate t has the weight ω = tᵖ. The run is kept as K consecutive blocks. For suffix k (the newest block, the newest
    two, …, all), F_k is its mean loss and q_k = Σω²/(Σω)². The noise variance v comes from differences of successive
    losses:

        U_k = max_i w_i (F_ki + z √(v_i q_k));   the answer is the mean of suffix k of least U_k

    Mini-batch losses are fine: block boundaries do not depend on the losses, so no lucky iterate is picked (Theorem S,
    docs/theory.md). Without a preference, the oldest block is dropped as long as its losses exceed those of the newer
    ones in every objective by z standard errors; the answer is the mean of the rest.

    Attributes:
        power: p ≥ 0.
        capacity: K ≥ 2, the copies of the parameters that it keeps.
        z: How many standard errors count as confident, ≥ 0.

    Examples:
        >>> conversion, losses = eq.Suffix(power=0, capacity=4), torch.ones(2)
        >>> state = conversion.init({"x": torch.zeros(1)}, losses)
        >>> for x in (9.0, 9.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0):
        ...     state = conversion.update({"x": torch.tensor([x])}, x * losses, state)
        >>> conversion.output(state, torch.tensor([0.5, 0.5]))["x"].item()  # since they fell; the mean of all is 3
        1.5
    """

    records: ClassVar[Literal["before", "after", "either"]] = "before"
    revision: ClassVar[int] = 2

    power: Number = 8.0
    capacity: int = 8
    z: float = 2.0

    def __post_init__(self) -> None:
        check_non_negative("power", self.power)
        check_non_negative("z", self.z)
        whole = type(self.capacity) is int and self.capacity >= 2
        require(whole, "capacity must be a whole number of at least 2", self.capacity)

    @property
    def copies(self) -> int:
        """The capacity."""
        return self.capacity

    @cached_property
    def blocks(self) -> Blocks:
        """Which iterates are in which block."""
        return Blocks(self.power, self.capacity)

    def begin(self, losses: Tensor) -> SuffixState:
        """Empty blocks."""
        require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
        blocks = self.blocks.init(losses)
        observed = torch.full(losses.shape, torch.inf, dtype=blocks.table.dtype, device=losses.device)
        means = observed.new_zeros((*losses.shape[:-1], 2 * losses.shape[-1], self.capacity))
        return SuffixState(blocks, means, observed, {})

    def plan(self, losses: Tensor, state: SuffixState, mask: Tensor | None = None) -> tuple[Plan, SuffixState]:
        """Add the iterate as the newest block and merge two neighbours, chosen independently of the losses."""
        single = self._plan_single(losses, state, mask)
        if single is not None:
            return single
        check_state(state.observed, losses)
        present = fit_mask(mask, losses)
        newest, valid, observed = observe(losses, state.observed, present)
        change = (newest - state.observed).square()
        if present is not None:
            valid = valid & newest.isfinite().any(-1)
            change = torch.where(present, change, state.means[..., losses.shape[-1] :, 0])
        # Infinite before the first observation: there is no difference yet.
        measured = torch.cat([newest, change], -1).nan_to_num(0.0, 0.0, 0.0)
        means = state.means
        first = state.observed.isinf() & newest.isfinite() & valid.unsqueeze(-1)
        if known(first.any()) is not False:  # blocks from before an objective's first observation count with that
            f, rest = means.chunk(2, -2)
            means = torch.cat([torch.where(first.unsqueeze(-1), newest.unsqueeze(-1), f), rest], -2)
        plan, c, blocks = self.blocks.advance(state.blocks, valid)
        rows = torch.cat([measured.unsqueeze(-1), means], -1)
        means = torch.lerp(rows[..., :-1], rows[..., 1:], c.unsqueeze(-2))
        return plan, SuffixState(blocks, means, observed, state.slots)

    def _plan_single(self, losses: Tensor, state: SuffixState, mask: Tensor | None) -> tuple[Plan, SuffixState] | None:
        """`plan` for one run on the host, in a third of the time of small tensors; None for anything else."""
        shape = losses.shape
        if (
            torch.compiler.is_compiling()
            or not (len(shape) == 1 and shape == state.observed.shape)
            or not (mask is None or mask.shape == shape)
            or isinstance(self.power, Tensor)
        ):
            return None
        try:
            f = (losses.detach() if losses.requires_grad else losses).numpy()
            observed, means = state.observed.numpy(), state.means.numpy()
            present = None if mask is None else mask.numpy().astype(np.bool_)
        except (RuntimeError, TypeError):  # under vmap, on another device, or in bfloat16
            return None
        with np.errstate(all="ignore"):
            newest = f.astype(observed.dtype)
            sound = newest if present is None else newest[present]
            if not (sound.dot(sound) < np.inf or np.isfinite(sound).all()):
                return _nothing(state), state
            if present is not None:
                newest = np.where(present, newest, observed)
                if not np.isfinite(newest).any():
                    return _nothing(state), state
            change = (newest - observed) ** 2
            if present is not None:
                change = np.where(present, change, means[len(newest) :, 0])
            value = newest
            if not newest.dot(newest) + change.dot(change) < np.inf:
                # An objective has no value and no difference before its first observation; older blocks get that one.
                first, m = np.isinf(observed) & np.isfinite(newest), len(newest)
                means = np.concatenate((np.where(first[:, None], newest[:, None], means[:m]), means[m:]))
                value = np.nan_to_num(newest, posinf=0.0)
                change[~np.isfinite(change)] = 0.0
        pair, part, plan, blocks = self.blocks.advance_single(state.blocks)
        moved, measured = means.copy(), np.concatenate((value, change))
        newer = means[:, pair - 1] if pair > 0 else measured
        moved[:, pair] = newer + part * (means[:, pair] - newer)
        if pair > 0:
            moved[:, 0] = measured
            moved[:, 1:pair] = means[:, : pair - 1]
        return plan, SuffixState(blocks, torch.from_numpy(moved), torch.from_numpy(newest), state.slots)

    def shares(self, state: SuffixState, preference: Tensor | None = None) -> Tensor:
        """The weights of the blocks of the chosen suffix, over their sum."""
        newest_first = self._chosen(state, preference)
        return torch.zeros_like(newest_first).scatter(-1, state.blocks.slot, newest_first)

    def used(self, state: SuffixState) -> Tensor:
        """The slots of blocks that are not empty."""
        weights = state.blocks.weights
        return torch.zeros_like(weights).scatter(-1, state.blocks.slot, weights) > 0

    def size(self, state: SuffixState) -> Tensor:
        """Blocks, shape (*B,)."""
        return (state.blocks.weights > 0).sum(-1)

    def _chosen(self, state: SuffixState, preference: Tensor | None) -> Tensor:
        """Shares of the blocks, newest first, (*B, K)."""
        weight, alone = store.shares(state.blocks.weights), state.blocks.noise
        f, change = state.means.chunk(2, -2)
        held = weight.cumsum(-1)
        suffix = (weight.unsqueeze(-2) * f).cumsum(-1) / held.unsqueeze(-2)
        noise = (weight.square() * alone).cumsum(-1) / held.square()
        variance = 0.5 * (weight.unsqueeze(-2) * change).sum(-1, keepdim=True)
        if preference is not None:
            w = fit("preference", preference, state.observed).to(suffix).unsqueeze(-1)
            bound = (w * (suffix + self.z * (variance * noise.unsqueeze(-2)).sqrt())).amax(-2)
            last = bound.argmin(-1, keepdim=True)
            inside = torch.arange(self.capacity, device=last.device) <= last
        else:
            # Compare a block with all newer ones.
            error = self.z * (variance * (alone[..., 1:] + noise[..., :-1]).unsqueeze(-2)).sqrt()
            worse = (f[..., 1:] - suffix[..., :-1] >= error).all(-2) | (weight[..., 1:] == 0)
            dropped = worse.flip(-1).to(torch.int64).cumprod(-1).flip(-1) > 0
            inside = ~torch.nn.functional.pad(dropped, (1, 0), value=False)
        return store.shares(weight * inside)


def _nothing(state: SuffixState) -> Plan:
    """A plan that changes nothing."""
    none, zero = torch.zeros((), dtype=torch.int64), state.observed.new_zeros(())
    return Plan(none, none, zero, none, zero)
