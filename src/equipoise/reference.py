"""Algorithms 1 and 2 of the paper in plain loops: read these first. The tests hold the library to them.

Line numbers in the comments are the paper's. `equipoise.solve` runs the same for many preferences and seeds at once.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["adaomd_tch", "adaptive_weights", "exponentiated_gradient", "omd_tch", "projected_gradient"]

Array = NDArray[np.float64]
Objectives = Callable[[Array], tuple[Array, Array]]
"""θ (d,) ↦ f (m,) and its gradients (m, d)."""
Update = Callable[[Array, Array, float], Array]
"""λ (m,), w∘f (m,), η ↦ the next λ."""


def projected_gradient(lam: Array, gains: Array, eta: float) -> Array:
    """PGD, eq:9 in the paper's source: λ ← Π(λ + η w∘f), with the Euclidean projection Π on the simplex."""
    point = lam + eta * gains
    descending = np.sort(point)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    threshold = excess[np.nonzero(descending > excess)[0][-1]]
    result: Array = np.maximum(point - threshold, 0.0)
    return result


def exponentiated_gradient(lam: Array, gains: Array, eta: float) -> Array:
    """EG, eq:10 in the paper's source: λ_i ← λ_i exp(η w_i f_i), normalised."""
    weights = lam * np.exp(eta * (gains - gains.max()))  # less the largest, so that nothing overflows
    result: Array = weights / weights.sum()
    return result


def omd_tch(
    objectives: Objectives, theta: Array, w: Array, T: int, eta_theta: float, eta_lambda: float, update: Update
) -> tuple[Array, Array, Array]:
    """Algorithm 1, OMD-TCH, for Θ = ℝᵈ.

    Returns:
        The uniform average of the iterates (d,), the iterates (T, d) and their objectives (T, m).

    Examples:
        >>> import numpy as np
        >>> from equipoise.reference import omd_tch, projected_gradient
        >>> def bowls(theta):  # f = ((θ₁ − 1)² + θ₂², θ₁² + (θ₂ − 1)²)
        ...     return ((theta - np.eye(2)) ** 2).sum(1), 2 * (theta - np.eye(2))
        >>> w = np.array([0.8, 0.2])
        >>> answer, _, _ = omd_tch(bowls, np.zeros(2), w, 2000, 0.05, 0.05, projected_gradient)
        >>> (w * bowls(answer)[0]).round(2)  # equal: the trade-off that w asks for
        array([0.18, 0.18])
    """
    m = len(w)
    lam = np.full(m, 1 / m)  # line 1
    iterates, losses = [], []
    for _ in range(T):  # line 2
        f, gradients = objectives(theta)  # line 3
        iterates.append(theta)
        losses.append(f)
        theta, lam = theta - eta_theta * (lam * w) @ gradients, update(lam, w * f, eta_lambda)  # lines 5, 4: both at t
    return np.mean(iterates, axis=0), np.array(iterates), np.array(losses)  # line 7


def adaptive_weights(losses: Array) -> dict[int, float]:
    """Lines 4 to 20 of Algorithm 2: the trajectory's non-dominated iterates and their weights γ.

    This version takes a whole trajectory, which is easy to read. The paper and `Adaptive` keep only the iterates of 𝒫.

    Args:
        losses: f(θ⁽ᵗ⁾) for t = 1..T, (T, m).

    Returns:
        γ by the index of the iterate, from 0; Σγ = T.

    Examples:
        >>> import numpy as np
        >>> from equipoise.reference import adaptive_weights
        >>> adaptive_weights(np.array([[2.0, 2.0], [2.6, 2.5], [1.4, 1.5], [2.2, 0.8]]))  # the paper's figure 1
        {2: 3.0, 3: 1}
    """

    def dominates(a: int, b: int) -> bool:
        return bool((losses[a] <= losses[b]).all() and (losses[a] < losses[b]).any())

    gamma: dict[int, float] = {}  # line 1: its keys are 𝒫
    for t in range(len(losses)):  # line 2
        A = [tau for tau in gamma if dominates(tau, t)]  # line 5
        if A:  # line 6
            for tau in A:  # lines 7 to 10
                gamma[tau] += 1 / len(A)
        else:
            B = [tau for tau in gamma if dominates(t, tau)]  # line 14
            gamma[t] = 1 + sum(gamma.pop(tau) for tau in B)  # lines 12, 13, 15 to 19
    return gamma


def adaomd_tch(
    objectives: Objectives, theta: Array, w: Array, T: int, eta_theta: float, eta_lambda: float, update: Update
) -> Array:
    """Algorithm 2, AdaOMD-TCH: the steps of Algorithm 1, then a weighted average of the non-dominated iterates."""
    _, iterates, losses = omd_tch(objectives, theta, w, T, eta_theta, eta_lambda, update)  # lines 2, 3, 21
    answer: Array = sum(weight * iterates[t] for t, weight in adaptive_weights(losses).items()) / T  # line 23
    return answer
