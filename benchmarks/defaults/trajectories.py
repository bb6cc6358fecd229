"""All methods on one task: a stack of runs that share every forward and backward pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.defaults.columns import ready
from benchmarks.defaults.optimizers import Optimizer
from torch import Tensor

import equipoise as eq

Losses = Callable[[Tensor, int], Tensor]
"""θ (runs, *B, d) and the step t ≥ 1 to measured losses (runs, *B, m): differentiable, one draw for all runs."""


@dataclass
class _Run:
    """One weighting, and the conversions that read its trajectory."""

    weighting: eq.Weighting[Any]
    conversions: dict[str, eq.Conversion[Any]]
    state: Any = None
    records: dict[str, Any] = field(default_factory=dict)


def follow(
    losses: Losses,
    start: Tensor,
    methods: Mapping[str, eq.Method],
    preference: Tensor,
    optimizer: Optimizer,
    steps: Sequence[int],
    *,
    box: tuple[float, float] | None = None,
    average: bool = False,
) -> dict[int, dict[str, Tensor]]:
    """Train with every method, and take the answers at some steps.

    Methods with the same weighting share a trajectory. Nothing is read on the host unless a weighting or a conversion
    does so itself.

    Args:
        losses: What is measured in a step.
        start: θ⁽¹⁾ (*B, d), for all methods.
        methods: The methods by name.
        preference: w (*B, m) or broadcastable to it.
        optimizer: The rule for θ.
        steps: The numbers of iterates after which answers are taken; the largest ends the run.
        box: Bounds that θ is projected on.
        average: Whether coefficients λ∘w are multiplied by m, so that uniform λ is the weighted sum, as in
            `MultiObjective`; `solve` does not.

    Returns:
        By number of iterates, the answers (*B, d) by name.
    """
    runs = _runs(methods, optimizer)
    cheap = sum(not run.weighting.needs for run in runs)
    x = start.expand(len(runs), *start.shape).clone()
    state = optimizer.init(x)
    found: dict[int, dict[str, Tensor]] = {}
    for t in range(1, max(steps) + 1):
        measured, pull, jacobian = _evaluate(losses, x, t, cheap)
        if t == 1:
            m = measured.shape[-1]
            w = preference.expand(measured.shape[1:]).contiguous()
            factors = [m if average and run.weighting.uses_duals else 1 for run in runs]
            factor = torch.tensor(factors, dtype=x.dtype, device=x.device).reshape(-1, *[1] * start.ndim)
            scaled = any(value != 1 for value in factors)
        parts = []
        for i, run in enumerate(runs):
            parts.append(_weigh(run, x[i], measured[i], w, jacobian[i - cheap] if i >= cheap else None))
        if t in steps:
            found[t] = {name: _output(run, name, w) for run in runs for name in run.conversions}
        c = torch.stack(parts)
        x, state = optimizer.step(x, pull(c * factor if scaled else c), state)
        if box is not None:
            x = x.clamp(*box)
    return {t: {name: answers[name] for name in methods} for t, answers in found.items()}


def _runs(methods: Mapping[str, eq.Method], optimizer: Optimizer) -> list[_Run]:
    """Those that need the Jacobian come last."""
    runs: list[_Run] = []
    for name, method in methods.items():
        weighting = ready(method.weighting, optimizer)
        for run in runs:
            if _same(run.weighting, weighting):
                run.conversions[name] = method.conversion
                break
        else:
            runs.append(_Run(weighting, {name: method.conversion}))
    return sorted(runs, key=lambda run: bool(run.weighting.needs))


def _same(a: eq.Weighting[Any], b: eq.Weighting[Any]) -> bool:
    """Whether two weightings have equal settings; those that hold tensors are the same only if they are one object."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except RuntimeError:  # the truth of a comparison of tensors
        return False


def _evaluate(losses: Losses, x: Tensor, t: int, cheap: int) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
    """Losses (runs, *B, m), the function from coefficients to Σ c_i ∇f_i, and the Jacobian of the last runs."""
    theta = x.detach().requires_grad_()
    f = losses(theta, t)
    if cheap == len(x):
        return f.detach(), lambda c: torch.autograd.grad(f, theta, c)[0], x
    dear = x[cheap:].detach().requires_grad_()
    g = losses(dear, t)
    m = g.shape[-1]
    rows = [torch.autograd.grad(g[..., i].sum(), dear, retain_graph=i < m - 1)[0] for i in range(m)]
    jacobian = torch.stack(rows, -2)

    def pull(c: Tensor) -> Tensor:
        slow = (c[cheap:].unsqueeze(-2) @ jacobian).squeeze(-2)
        if cheap == 0:
            return slow
        fast = torch.autograd.grad(f[:cheap], theta, c[:cheap])[0][:cheap]
        return torch.cat((fast, slow))

    return f.detach(), pull, jacobian


def _weigh(run: _Run, x: Tensor, f: Tensor, w: Tensor, jacobian: Tensor | None) -> Tensor:
    """Record θ⁽ᵗ⁾ and give the coefficients (*B, m)."""
    extra: dict[str, Tensor] = {}
    if jacobian is not None:
        given = {"jacobian": lambda: jacobian, "gramian": lambda: jacobian @ jacobian.mT}
        extra = {need: given[need]() for need in run.weighting.needs}
    params = {"x": x}
    if run.state is None:
        run.state = run.weighting.init(f, **extra)
        for name, conversion in run.conversions.items():
            run.records[name] = conversion.init(params, f)
    for name, conversion in run.conversions.items():
        run.records[name] = conversion.update(params, f, run.records[name])
    c, run.state = run.weighting.update(f, run.state, w, **extra)
    return c


def _output(run: _Run, name: str, w: Tensor) -> Tensor:
    return run.conversions[name].output(run.records[name], w)["x"]
