"""The archive of a training run: the plans of `Adaptive`, carried out by their numbers.

One model at a time, the host can know which slots a plan speaks of. Nothing but these is touched then, in place: a
step costs one copy of the model, not one of several. On the CPU the plan is read at once; on an accelerator, where
that would make the host wait, θ is put aside and the plan read when the next one comes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.conversion import Adaptive, AdaptiveState, Plan
from equipoise.conversion.protocol import Params, check, check_record, record_dtype

__all__ = ["Archive", "Numbers", "carry_out"]


class Numbers(NamedTuple):
    """A plan for one model, as numbers on the host."""

    into: int
    other: int
    mix: float
    write: int
    gain: float


class _Queued(NamedTuple):
    """A plan on its way to the host; its θ is put aside."""

    plan: Tensor
    arrived: torch.Event | None


class Archive:
    """What `Adaptive.update` does, to the same state, for one model.

    Args:
        conversion: The conversion.
        late: Whether a plan is read when the next one comes; `settle` reads it before.
    """

    def __init__(self, conversion: Adaptive, *, late: bool) -> None:
        self.conversion, self.late = conversion, late
        self._aside: dict[str, Tensor] = {}
        self._queued: _Queued | None = None

    def update(
        self, params: Params, losses: Tensor, state: AdaptiveState, *, mask: Tensor | None = None
    ) -> AdaptiveState:
        """Enter one iterate; the copies in `state` are changed in place, now or later."""
        check(params, losses)
        check_record(params, state.slots, 0, slots=True)
        plan, ledger = self.conversion.ledger.update(losses, state.ledger, mask)
        self.settle(state)
        if self.late:
            self._queue(plan, params)
        else:
            carry_out(Numbers(*(number.item() for number in plan)), params, state.slots)  # type: ignore[arg-type]
        return AdaptiveState(ledger, state.slots)

    def settle(self, state: AdaptiveState) -> None:
        """Carry out what is queued."""
        queued, self._queued = self._queued, None
        if queued is None:
            return
        if queued.arrived is not None:
            queued.arrived.synchronize()
        into, other, mix, write, gain = queued.plan.tolist()
        carry_out(Numbers(int(into), int(other), mix, int(write), gain), self._aside, state.slots)

    def _queue(self, plan: Plan, params: Params) -> None:
        if not self._aside:
            self._aside = {name: torch.empty_like(p, dtype=record_dtype(p)) for name, p in params.items()}
        torch._foreach_copy_([self._aside[name] for name in params], [p.detach() for p in params.values()])
        numbers = torch.stack([number.to(plan.gain) for number in plan])
        if numbers.device.type == "cpu":
            self._queued = _Queued(numbers, None)
            return
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.device.type == "cuda")
        host.copy_(numbers, non_blocking=True)
        arrived = torch.Event(numbers.device)
        arrived.record()
        self._queued = _Queued(host, arrived)


def carry_out(plan: Numbers, params: Params, slots: Mapping[str, Tensor]) -> None:
    """Carry a plan out, in place: slots (K, ...) by name."""
    if plan.mix > 0:
        _blend(_at(slots, plan.into), _at(slots, plan.other), plan.mix)
    if plan.gain > 0:
        _blend(_at(slots, plan.write), params, plan.gain)


def _at(slots: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: held[index] for name, held in slots.items()}


def _blend(old: Mapping[str, Tensor], new: Mapping[str, Tensor], mix: float) -> None:
    """In place old + mix (new − old); what cannot be averaged becomes the new."""
    averaged = [name for name, tensor in old.items() if tensor.is_floating_point() and mix < 1]
    replaced = [name for name in old if name not in set(averaged)]
    if averaged:
        ends = [new[name].detach().to(old[name].dtype) for name in averaged]
        torch._foreach_lerp_([old[name] for name in averaged], ends, mix)
    if replaced:
        torch._foreach_copy_([old[name] for name in replaced], [new[name].detach() for name in replaced])
