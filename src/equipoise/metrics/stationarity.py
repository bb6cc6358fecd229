"""How far a point is from Pareto stationarity."""

from torch import Tensor

from equipoise.batch import apply, floating
from equipoise.minnorm import min_norm


def pareto_stationarity(gramian: Tensor) -> Tensor:
    """The norm of the shortest convex combination of the gradients, min ‖Jᵀα‖ over α in the simplex.

    It is 0 at a Pareto-stationary point, where no direction improves all objectives. Computed in float64. The Gramian
    limits the accuracy: for gradients of length one, values below 1e-8 in float64 and 3e-4 in float32 count as 0.

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
    gramian = floating("gramian", gramian)
    alpha = min_norm(gramian)
    pull = apply(gramian.detach().to(alpha.dtype), alpha)
    return (alpha * pull).sum(-1).clamp_min(0.0).sqrt().to(gramian.dtype)
