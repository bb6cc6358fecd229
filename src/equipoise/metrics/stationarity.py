"""How far a point is from Pareto stationarity."""

from torch import Tensor

from equipoise.batch import apply
from equipoise.minnorm import min_norm


def pareto_stationarity(gramian: Tensor) -> Tensor:
    """The shortest convex combination of the gradients, min ‖Jᵀα‖ over the simplex: 0 where none can improve all.

    Computed in float64. A Gramian tells squared lengths apart only to its rounding: of gradients of
    length one, values below 1e-8 in float64 and 3e-4 in float32 are 0 as far as it can tell.

    Args:
        gramian: J Jᵀ of the losses (*B, m, m).

    Returns:
        The norms (*B,), without gradient, in the dtype of the Gramian; NaN where it is not finite.

    Examples:
        >>> J = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        >>> round(eq.metrics.pareto_stationarity(J @ J.mT).item(), 6)  # 12/5, the height of the triangle 3-4-5
        2.4
        >>> J = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
        >>> eq.metrics.pareto_stationarity(J @ J.mT).item()
        0.0
    """
    alpha = min_norm(gramian)
    pull = apply(gramian.detach().to(alpha.dtype), alpha)
    return (alpha * pull).sum(-1).clamp_min(0.0).sqrt().to(gramian.dtype)
