"""Random loss weighting by its own numbers, in law, and against TorchJD."""

import math
from statistics import NormalDist

import pytest
import torch
from tests.weighting.gradients import vector
from torch import Tensor
from torchjd.scalarization import Random

import equipoise as eq
from equipoise.weighting.random_weights import RandomWeights, RandomWeightsState

HALF = vector(0.5, 0.5)


def run(weighting: RandomWeights, steps: int, w: Tensor = HALF) -> Tensor:
    """The coefficients of every step, (steps, m)."""
    state, found = weighting.init(w), []
    for _ in range(steps):
        c, state = weighting.update(torch.ones_like(w), state, w)
        found.append(c)
    return torch.stack(found)


def by_hand(seed: int, step: int, w: list[float]) -> Tensor:
    """The method with Python's own integers and normal distribution."""

    def mixed(x: int) -> int:
        x = (x + 0x1E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0x3F58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x14D049BB133111EB % 2**64
        return x ^ (x >> 31)

    start = mixed(mixed(seed) + step)
    shares = [((mixed(start + i) >> 11) + 0.5) / 2**53 for i in range(len(w))]
    powers = [math.exp(NormalDist().inv_cdf(u)) for u in shares]
    return vector(*(len(w) * p / sum(powers) * x for p, x in zip(powers, w, strict=True)))


@pytest.mark.parametrize("seed", [0, 7, 2**62 + 1])
def test_two_steps_by_hand(seed: int):
    w = [0.2, 0.3, 0.5]
    found = run(RandomWeights(seed), 2, vector(*w))
    for step in range(2):
        torch.testing.assert_close(found[step], by_hand(seed, step, w), rtol=1e-9, atol=0)


def test_the_numbers_stay_what_they_are():
    """A run that was saved must go on with the same draws in every later version."""
    first = vector(0.4552425481102377, 0.17703488419238717, 0.24994952266534617)
    torch.testing.assert_close(run(RandomWeights(), 3)[:, 0], first, rtol=1e-9, atol=0)


def test_uniform_w_sums_to_one_and_the_mean_is_the_preference():
    w = vector(0.1, 0.2, 0.7)
    uniform = run(RandomWeights(), 50, torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(uniform.sum(-1), torch.ones(50, dtype=torch.float64))
    drawn = run(RandomWeights(2), 20_000, w) / w
    torch.testing.assert_close(drawn.mean(0), torch.ones(3, dtype=torch.float64), rtol=0, atol=0.02)


def test_it_has_the_law_of_torchjd_s():
    """Mean and variance of softmax weights, over 20,000 draws of each."""
    torch.manual_seed(0)
    theirs = []
    for _ in range(20_000):
        f = torch.ones(2, requires_grad=True)
        Random()(f).backward()
        theirs.append(f.grad)
    a, b = run(RandomWeights(1), 20_000)[:, 0], torch.stack(theirs)[:, 0].double()  # type: ignore[arg-type]
    assert a.mean().item() == pytest.approx(b.mean().item(), abs=0.01)
    assert a.std().item() == pytest.approx(b.std().item(), abs=0.01)
    quantiles = vector(0.05, 0.25, 0.75, 0.95)
    torch.testing.assert_close(a.quantile(quantiles), b.quantile(quantiles), rtol=0, atol=0.02)


def test_steps_and_seeds_draw_anew():
    first, second = run(RandomWeights(0), 2000)[:, 0], run(RandomWeights(1), 2000)[:, 0]
    for a, b in ((first, second), (first[1:], first[:-1])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 4 / math.sqrt(2000)


def test_a_run_goes_on_where_it_stopped():
    whole = run(RandomWeights(3), 5)
    c, state = RandomWeights(3).update(HALF, RandomWeightsState(torch.tensor([4])), HALF)
    assert torch.equal(c, whole[4])
    assert state.step.tolist() == [5]


def test_seeds_of_a_batch():
    seeds = torch.tensor([[0], [5]])
    weighting, losses = RandomWeights(seeds), torch.ones(2, 3, 2, dtype=torch.float64)
    c, _ = weighting.update(losses, weighting.init(losses), HALF)
    for row, seed in enumerate((0, 5)):
        assert torch.equal(c[row], run(RandomWeights(seed), 1).expand(3, 2))
    with pytest.raises(ValueError, match=r"seed must broadcast to the batch shape \(2, 3\); found \(2,\)"):
        RandomWeights(torch.tensor([0, 5])).update(losses, weighting.init(losses), HALF)


def test_a_step_that_is_not_finite_is_not_counted():
    losses = torch.ones(3, 2, dtype=torch.float64)
    losses[1, 0] = math.nan
    _, state = RandomWeights().update(losses, RandomWeights().init(losses), HALF)
    assert state.step.flatten().tolist() == [1, 0, 1]


def test_a_training_loop_can_be_repeated():
    found = []
    for _ in range(2):
        model = torch.nn.Linear(1, 2, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method="RLW")
        for _ in range(5):
            mol(model(torch.ones(1)).square()).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(mol.history.coefficients)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), run(RandomWeights(), 5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", [-1, 0.5, 2**63, torch.tensor([0.0]), torch.tensor([1, -1])])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed must be a whole number in \[0, 2\^63\); found"):
        RandomWeights(seed)
