"""What a training loop hands over: losses and counts, as tensors or by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["Counts", "Losses", "check_graph", "stack_counts", "stack_losses"]

Losses = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""One loss per objective: a tensor (m,), or numbers in their order or by name."""
Counts = Tensor | Sequence[float] | Mapping[str, float]
"""How many samples each loss is the mean of, 0 for an absent objective."""


def stack_losses(losses: Losses, names: tuple[str, ...] | None, m: int, device: torch.device) -> Tensor:
    """The losses as a tensor (m,), with their graph.

    Raises:
        ValueError: For other names or another shape than the preference has, for what is not
            floating-point, and for another device than the weights'.
    """
    if isinstance(losses, Tensor) and losses.shape == (m,) and losses.is_floating_point() and losses.device == device:
        return losses  # as it should be in every step
    if isinstance(losses, Mapping):
        rule = "losses must be a tensor (m,) or a list unless MultiObjective was given their names="
        require(names is not None, rule, lambda: sorted(losses))
        assert names is not None  # noqa: S101
        require(losses.keys() == set(names), f"losses must have the names {list(names)}", list(losses))
        losses = _stacked({name: losses[name] for name in names})
    elif isinstance(losses, list | tuple):
        require(len(losses) == m, f"losses must have {m} entries, as the preference has", len(losses))
        losses = _stacked(dict(enumerate(losses)))
    rule = "losses must be a tensor (m,), numbers in a list, or a mapping by name"
    require(isinstance(losses, Tensor), rule, lambda: type(losses))
    assert isinstance(losses, Tensor)  # noqa: S101
    require(losses.shape == (m,), f"losses must have shape ({m},), as the preference has", tuple(losses.shape))
    require(losses.is_floating_point(), "losses must be floating-point numbers", losses.dtype)
    require(
        losses.device == device,
        f"losses must be on the device {device} of this MultiObjective, which .to() changes",
        losses.device,
    )
    return losses


def _stacked(losses: Mapping[Any, Any]) -> Tensor:
    """Numbers as one tensor (m,)."""
    for key, loss in losses.items():
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        rule = f"losses[{key!r}] must be a tensor of shape () with its graph, not what .item() gives of it"
        require(found == (), rule, found)
    return torch.stack(list(losses.values()))


def check_graph(losses: Losses, stacked: Tensor, *, counted: bool) -> None:
    """Raise ValueError unless every loss can be differentiated; of counted ones some may be absent."""
    require(torch.is_grad_enabled(), "losses must be measured and handed over with gradients", "torch.no_grad()")
    require(stacked.requires_grad, "losses must require grad", "losses without a graph")
    if not isinstance(losses, Tensor) and not counted:
        single: Iterable[tuple[Any, Tensor]] = losses.items() if isinstance(losses, Mapping) else enumerate(losses)
        constant = [key for key, loss in single if not loss.requires_grad]
        require(not constant, "every loss must require grad", f"{constant} without a graph")


def stack_counts(counts: Counts | None, names: tuple[str, ...] | None, like: Tensor) -> Tensor | None:
    """The counts as a tensor (m,) in dtype and on device of the losses' values; None stays None."""
    if counts is None:
        return None
    if isinstance(counts, Mapping):
        known, found = names or (), list(counts)
        require(set(found) == set(known), f"counts must have the names {list(known)}", found)
        counts = [float(counts[name]) for name in known]
    n = torch.as_tensor(counts).detach().to(like, non_blocking=True)
    require(n.shape == like.shape, f"counts must have shape {tuple(like.shape)}, as the losses have", tuple(n.shape))
    if n.device.type == "cpu":
        sound = bool((n >= 0).all()) and bool(torch.isfinite(n).all())
        require(sound, "counts must be non-negative and finite", lambda: [*n.tolist()])
    return n
