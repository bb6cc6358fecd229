"""How evenly a model serves its clients or groups."""

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["accuracy_parity", "agnostic_loss", "average_accuracy", "ratio_parity"]


def average_accuracy(correct: Tensor, counts: Tensor) -> Tensor:
    """Correctly classified samples over all samples, in percent: large clients count more (micro average).

    Args:
        correct: Correctly classified samples per client, (*B, m).
        counts: Samples per client, (*B, m).

    Returns:
        Shape (*B,), float64.

    Examples:
        >>> eq.metrics.average_accuracy(torch.tensor([9, 7]), torch.tensor([10, 30])).item()  # 16 of 40
        40.0
    """
    _check(correct, counts)
    return 100.0 * correct.sum(-1).to(torch.float64) / counts.sum(-1)


def agnostic_loss(losses: Tensor) -> Tensor:
    """The largest loss of a client, (*B, m) → (*B,): the loss on the worst mixture of the clients.

    Applied to losses divided by each client's first loss, this is the agnostic ratio.

    Examples:
        >>> eq.metrics.agnostic_loss(torch.tensor([0.5, 2.0, 1.0])).item()
        2.0
    """
    return losses.amax(-1)


def accuracy_parity(correct: Tensor, counts: Tensor) -> Tensor:
    """The population standard deviation of the clients' accuracies, in percentage points.

    Args:
        correct: Correctly classified samples per client, (*B, m).
        counts: Samples per client, (*B, m).

    Returns:
        Shape (*B,), float64.

    Examples:
        >>> eq.metrics.accuracy_parity(torch.tensor([9, 7]), torch.tensor([10, 10])).item()  # 90 % and 70 %
        10.0
    """
    _check(correct, counts)
    return (100.0 * correct.to(torch.float64) / counts).std(-1, correction=0)


def ratio_parity(losses: Tensor, first: Tensor) -> Tensor:
    """The population standard deviation of the clients' losses divided by their first losses, (*B, m) → (*B,).

    Examples:
        >>> first, last = torch.tensor([2.0, 8.0]), torch.tensor([1.0, 2.0])
        >>> eq.metrics.ratio_parity(last, first).item()  # of the ratios ½ and ¼
        0.125
    """
    return (losses.to(torch.float64) / first).std(-1, correction=0)


def _check(correct: Tensor, counts: Tensor) -> None:
    require(correct.shape == counts.shape, f"counts must have the shape {tuple(correct.shape)}", tuple(counts.shape))
