"""The volume that a set of points dominates."""

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.batch import floating
from equipoise.errors import require


def hypervolume(points: Tensor, reference: Sequence[float] | Tensor) -> Tensor:
    """Hypervolume of sets of points, for minimisation.

    A point that is not below the reference in every coordinate, or not finite, is ignored. For two
    objectives a batched sweep computes it, in the dtype of the points and differentiably; whole
    numbers are converted to floats. For more, moocore computes it on the CPU in float64, one set
    after another and without gradient. The time grows quickly with m: beyond eight objectives, use
    an approximation.

    Args:
        points: Sets of n points (*B, n, m), m ≥ 2.
        reference: The reference point: m numbers, or a tensor (m,) or (*B, m).

    Returns:
        The volumes (*B,), 0 for an empty set.

    Raises:
        ValueError: If the shapes do not fit.
        ImportError: If m > 2 and moocore is not installed.

    Examples:
        >>> points = torch.tensor([[1.0, 2.0], [2.0, 1.0], [4.0, 0.0]])
        >>> eq.metrics.hypervolume(points, (3.0, 3.0)).item()  # 2×1 + 1×1; the last is beyond the reference
        3.0
    """
    points = floating("points", points)
    fits = points.ndim >= 2 and points.shape[-1] >= 2
    require(fits, "points must have shape (*B, n, m) with m ≥ 2", [*points.shape])
    r = torch.as_tensor(reference, dtype=points.dtype, device=points.device)
    m = points.shape[-1]
    fits = r.ndim > 0 and r.shape[-1] == m
    require(fits, f"reference must have {m} coordinates, as the points have", f"shape {[*r.shape]}")
    r = r.unsqueeze(-2)
    counts = (points.isfinite() & (points < r)).all(-1, keepdim=True)
    inside = torch.where(counts, points, r)
    return _sweep(inside, r) if m == 2 else _by_moocore(inside, r)


def _sweep(points: Tensor, r: Tensor) -> Tensor:
    """From left to right, each point adds the strip between it and the lowest point so far."""
    f1, order = points[..., 0].sort(dim=-1)
    f2 = points[..., 1].gather(-1, order)
    top = r[..., 1].expand(*f2.shape[:-1], 1)
    lowest = torch.cat((top, f2), -1).cummin(-1).values
    return ((r[..., 0] - f1) * (lowest[..., :-1] - lowest[..., 1:])).sum(-1)


def _by_moocore(points: Tensor, r: Tensor) -> Tensor:
    try:
        import moocore  # noqa: PLC0415 - an extra, wanted only here
    except ImportError as error:
        raise ImportError("the hypervolume of more than two objectives needs moocore: pip install moocore") from error
    batch, (n, m) = points.shape[:-2], points.shape[-2:]
    sets = points.detach().cpu().to(torch.float64).reshape(batch.numel(), n, m)
    references = r.detach().cpu().to(torch.float64).expand(*batch, 1, m).reshape(-1, m)
    # Ignored points are replaced by the reference.
    kept = [s[(s < z).all(-1)].numpy() for s, z in zip(sets, references, strict=True)]
    volumes = [
        float(moocore.hypervolume(s, ref=z.numpy())) if len(s) else 0.0 for s, z in zip(kept, references, strict=True)
    ]
    return torch.tensor(volumes, dtype=points.dtype, device=points.device).reshape(batch)
