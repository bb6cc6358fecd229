"""A run split into K consecutive time blocks; which ones are merged depends only on the number of iterates."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.batch import Number, constant, wide_dtype
from equipoise.conversion.iterate_weight import weigh
from equipoise.conversion.plan import Plan

__all__ = ["Blocks", "BlocksState"]


class BlocksState(NamedTuple):
    """The blocks, newest first; those that are still empty come last."""

    table: Tensor
    """For every block, its weight W = Σω, its noise Σω²/W² and the slot of its copy, (*B, 3, K).

    ω is in units of unitᵖ; W is 0 for an empty block. Noise is the variance of the mean divided by that of one iterate.
    """
    clock: Tensor
    """The iterates recorded, and the step whose weight is the unit of the weights, (*B, 2)."""

    @property
    def weights(self) -> Tensor:
        """W of every block, (*B, K)."""
        return self.table[..., 0, :]

    @property
    def noise(self) -> Tensor:
        """Σω²/W² of every block, (*B, K)."""
        return self.table[..., 1, :]

    @property
    def slot(self) -> Tensor:
        """The slot that holds the mean parameters of a block, (*B, K)."""
        return self.table[..., 2, :].to(torch.int64)


@dataclass(frozen=True)
class Blocks:
    """K time blocks of iterates with weights ω = tᵖ.

    A new iterate is a block. If there are more than K, two neighbours are merged: the pair with the least joint weight
    relative to ω plus the weight that is newer than the pair. So the newest blocks are the shortest. Among equal pairs,
    the newest is merged.

    Attributes:
        power: p.
        number: K.
    """

    power: Number
    number: int

    def init(self, losses: Tensor) -> BlocksState:
        """Empty blocks; only the batch shape and device of `losses` (*B, m) are used."""
        like = torch.zeros(losses.shape[:-1], dtype=wide_dtype(losses.device), device=losses.device).unsqueeze(-1)
        slot = constant(range(self.number), like).expand(*like.shape[:-1], self.number)
        return BlocksState(torch.stack([0 * slot, 0 * slot, slot], -2), torch.cat([like, like + 1], -1))

    def advance(self, state: BlocksState, valid: Tensor) -> tuple[Plan, Tensor, BlocksState]:
        """Add one iterate where `valid`, (*B,).

        Returns:
            The plan for the slots. A vector c (*B, K) that updates any quantity averaged over the blocks:
            new_j = lerp(old_{j−1}, old_j, c_j), with the iterate's own value for old_{−1}. The new state.
        """
        came = valid.unsqueeze(-1)
        recorded, unit = torch.split(state.clock, 1, -1)
        count = recorded + came
        power = self.power.unsqueeze(-1) if isinstance(self.power, Tensor) else self.power
        omega, fade, unit = weigh(count, unit, power)
        weights, noise, slot = state.table.unbind(-2)
        rows = torch.cat([omega, weights if fade is None else weights * fade], -1)
        newer, older = rows[..., :-1], rows[..., 1:]
        joint = newer + older
        reach = torch.cat([omega, newer[..., :-1]], -1).cumsum(-1)
        cost = joint / reach * (older > 0)  # an empty block costs nothing
        # Where no iterate is added, every block is older than the pair and stays.
        pair = torch.where(came, cost.argmin(-1, keepdim=True), -1)
        place = constant(range(self.number), pair)
        later, here = place > pair, place == pair
        c = torch.where(here, older / joint, later.to(joint))

        at = pair.clamp_min(0)
        write = slot.gather(-1, at)
        into = slot.gather(-1, (pair - 1).clamp_min(0))
        part = torch.where(came, c.gather(-1, at), 0.0)
        mix = part * (pair > 0)  # else the iterate itself is merged with the newest block
        gain = (1 - part + mix) * came
        into, write_to = into.squeeze(-1).to(torch.int64), write.squeeze(-1).to(torch.int64)
        plan = Plan(into, write_to, mix.squeeze(-1), write_to, gain.squeeze(-1))

        weights = torch.where(later, older, torch.where(here, joint, newer))
        noise = (1 - c).square() * torch.cat([torch.ones_like(omega), noise[..., :-1]], -1) + c.square() * noise
        slot = torch.where(later, slot, torch.cat([write, slot[..., :-1]], -1))
        return plan, c, BlocksState(torch.stack([weights, noise, slot], -2), torch.cat([count, unit], -1))

    def advance_single(self, state: BlocksState) -> tuple[int, float, Plan, BlocksState]:
        """`advance` for one run on the host, with a valid iterate: Python numbers are faster than small tensors.

        Returns:
            The position where c changes from 0 to 1, and c there. The plan. The new state.
        """
        (weights, noise, slot), (count, unit), k = state.table.tolist(), state.clock.tolist(), self.number
        count += 1
        if self.power > 0 and count >= 2 * unit:  # as `weigh` does
            fade, unit = (unit / count) ** self.power, count
            weights = [weight * fade for weight in weights]
        omega = (count / unit) ** self.power
        pair, least, newer, reach = 0, float("inf"), omega, omega
        for j, older in enumerate(weights):
            if older == 0:
                pair = j
                break
            cost = (newer + older) / reach
            if cost < least:
                pair, least = j, cost
            reach += newer
            newer = older
        rows, spread = [omega, *weights], [1.0, *noise]
        joint = rows[pair] + rows[pair + 1]
        part = rows[pair + 1] / joint
        joined = (1 - part) ** 2 * spread[pair] + part**2 * spread[pair + 1]
        write, into = int(slot[pair]), int(slot[max(pair - 1, 0)])
        # At pair 0 the iterate itself is merged with the newest block.
        mix, gain = (part, 1.0) if pair > 0 else (0.0, 1 - part)
        rows[pair : pair + 2] = [joint]
        spread[pair : pair + 2] = [joined]
        slot.insert(0, slot.pop(pair))
        # Views of one array: creating the tensors one by one would dominate the cost.
        numbers = np.array([*rows, *spread, *slot, count, unit, mix, gain], dtype=state.table.numpy().dtype)
        tensor = torch.from_numpy
        table, clock = tensor(numbers[: 3 * k].reshape(3, k)), tensor(numbers[3 * k : 3 * k + 2])
        into_, write_ = tensor(np.array(into)), tensor(np.array(write))
        mix_, gain_ = tensor(numbers[-2:-1].reshape(())), tensor(numbers[-1:].reshape(()))
        return pair, part, Plan(into_, write_, mix_, write_, gain_), BlocksState(table, clock)
