"""Random loss weighting: new random weights in every step (RLW)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.batch import per_instance
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting
from equipoise.weighting.random_bits import mix, normals


class RandomWeightsState(NamedTuple):
    """The number of steps so far."""

    step: Tensor
    """t, counted from 0, (*B, 1)."""


@dataclass(frozen=True)
class RandomWeights(Weighting[RandomWeightsState]):
    r"""Random loss weighting (Lin et al. 2022): a weighted sum with new random weights in every step.

        c = m · softmax(ξ)∘w,   ξ_i standard normal,

    so that the mean of c over the draws is w, and for uniform w, Σ c_i = 1 as in the publication. The losses are
    ignored. It is a control: a method should gain more than weights that merely change.

    The preference weights the losses, as in a weighted sum; there is no target f ∝ 1/w.

    The draws depend only on `seed` and the step number, up to rounding on every device, so a run can be repeated,
    batched and resumed. With one seed they are the same for all problems of a batch. They go by the positions of the
    objectives: listing them in another order gives another draw.

    Attributes:
        seed: The seed of the draws. A tensor of whole numbers that broadcasts to *B gives each problem of a batch its
            own draws.

    Examples:
        >>> losses, w, weighting = torch.ones(2), torch.tensor([0.5, 0.5]), eq.RandomWeights()
        >>> state = weighting.init(losses)
        >>> for _ in range(2):
        ...     c, state = weighting.update(losses, state, w)
        ...     print([round(value, 3) for value in c.tolist()])
        [0.455, 0.545]
        [0.177, 0.823]
    """

    seed: int | Tensor = 0

    def __post_init__(self) -> None:
        seed = self.seed
        if isinstance(seed, Tensor):
            whole = not seed.is_floating_point() and bool((seed >= 0).all())
        else:
            whole = 0 <= seed < 2**63 and seed == int(seed)
        require(whole, "seed must be a whole number in [0, 2^63)", seed)

    def init(self, losses: Tensor, **extra: Tensor) -> RandomWeightsState:
        """Step 0."""
        return RandomWeightsState(torch.zeros_like(losses[..., :1], dtype=torch.int64))

    def step(self, seen: Seen, state: RandomWeightsState) -> tuple[Tensor, RandomWeightsState]:
        """Coefficients m·softmax(ξ)∘w, shape (*B, m)."""
        return self._weights(state, seen.weight) * seen.weight, RandomWeightsState(state.step + 1)

    def foreseen(self, state: RandomWeightsState, preference: Tensor) -> Tensor | None:
        """The coefficients m·softmax(ξ)∘w."""
        weights = self._weights(state, preference)
        return weights * preference.to(weights)

    def _weights(self, state: RandomWeightsState, like: Tensor) -> Tensor:
        """The factors m·softmax(ξ) of the next step, (*B, m), for as many objectives as `like` has."""
        m = like.shape[-1]
        seed = torch.zeros_like(state.step) + per_instance("seed", self.seed, state.step)
        drawn = mix(mix(mix(seed) + state.step) + torch.arange(m, device=state.step.device))
        return m * torch.softmax(normals(drawn), -1)
