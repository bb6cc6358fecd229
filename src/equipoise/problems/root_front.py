"""The front f2 = 1 - √f1, which F1 to F6, ZDT1 and ZDT4 share."""

import torch
from torch import Tensor

from equipoise.preference import validate


def solution(preference: Tensor) -> Tensor:
    """Exact TCH solution: preference (*B, 2) to objective values (*B, 2), in float64.

    √f1 is the positive root s of w1 s² = w2 (1 - s), that is s = 2√w2/q with
    q = √w2 + √(w2 + 4w1); then f1 = s² = 4w2/q² and f2 = 1 - s = 4w1/q².
    """
    w = validate(preference, 2).to(torch.float64)
    w1, w2 = w[..., :1], w[..., 1:]
    q = w2.sqrt() + (w2 + 4 * w1).sqrt()
    return 4 * w.flip(-1) / q.square()
