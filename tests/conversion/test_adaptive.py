"""`Adaptive`: the paper's figure 1 step by step, weights of later iterates, bounded memory."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.conversion import Conversion


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The paper's figure 1 -------------------------------------------------------------------------

# θ⁽²⁾ is dominated by θ⁽¹⁾; θ⁽³⁾ dominates θ⁽¹⁾; θ⁽⁴⁾ is incomparable.
FIG_1 = torch.tensor([[2.0, 2.0], [3.0, 2.5], [1.5, 1.5], [1.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize("capacity", [None, 2, 8])
@pytest.mark.parametrize("ties", ["stored", "keep"])
def test_figure_1(capacity: int | None, ties: str):
    conversion = eq.Adaptive(capacity=capacity, ties=ties)  # type: ignore[arg-type]
    theta = draw(4, 3)
    state = conversion.init({"x": theta[0]}, FIG_1[0])
    gammas = []
    for t in range(4):
        state = conversion.update({"x": theta[t]}, FIG_1[t], state)
        gammas.append(state.ledger.weights[state.ledger.weights > 0].tolist())
    assert gammas == [[1.0], [2.0], [3.0], [3.0, 1.0]]
    assert conversion.size(state).item() == 2
    expected = (3 * theta[2] + theta[3]) / 4
    torch.testing.assert_close(conversion.output(state)["x"], expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("ties", "size", "answer"), [("stored", 2, 2.0), ("keep", 3, 7 / 3)])
def test_equal_objectives_share_a_copy_unless_kept(ties: str, size: int, answer: float):
    conversion = eq.Adaptive(ties=ties)  # type: ignore[arg-type]
    state = conversion.init({"x": torch.zeros(1)}, torch.ones(2))
    for value, losses in ((1.0, [1.0, 2.0]), (2.0, [1.0, 2.0]), (4.0, [0.5, 2.5])):
        state = conversion.update({"x": torch.tensor([value])}, torch.tensor(losses), state)
    assert conversion.size(state).item() == size
    assert conversion.output(state)["x"].item() == pytest.approx(answer)  # (2·1 + 4)/3, and (1 + 2 + 4)/3


def test_figure_1_with_later_iterates_counting_more():
    conversion, theta = eq.Adaptive(power=1.0), draw(4, 3)
    state = conversion.init({"x": theta[0]}, FIG_1[0])
    for t in range(4):
        state = conversion.update({"x": theta[t]}, FIG_1[t], state)
    # 1 + 2 + 3 and 4, in units of the fourth weight.
    assert state.ledger.weights[:2].tolist() == [1.5, 1.0]
    torch.testing.assert_close(conversion.output(state)["x"], (6 * theta[2] + 4 * theta[3]) / 10)


def test_figure_1_with_room_for_one():
    conversion, theta = eq.Adaptive(capacity=1), draw(4, 3)
    state = conversion.init({"x": theta[0]}, FIG_1[0])
    for t in range(4):
        state = conversion.update({"x": theta[t]}, FIG_1[t], state)
    assert state.ledger.weights.tolist() == [4.0]
    torch.testing.assert_close(state.ledger.values[:, 0], (3 * FIG_1[2] + FIG_1[3]) / 4)
    torch.testing.assert_close(conversion.output(state)["x"], (3 * theta[2] + theta[3]) / 4)


# The lemma ------------------------------------------------------------------------------------


class Quadratics:
    """f_i(θ) = ½ (θ − a_i)ᵀ Q_i (θ − a_i) + b_i with Q_i positive semi-definite, for a batch of problems."""

    def __init__(self, batch: int, m: int, d: int, seed: int) -> None:
        root = draw(batch, m, d, d - 1, seed=seed)  # flat in one direction
        self.Q, self.a = root @ root.mT, draw(batch, m, d, seed=seed + 1)
        self.b = draw(batch, m, seed=seed + 2)

    def __call__(self, theta: Tensor) -> Tensor:
        shift = theta.unsqueeze(-2) - self.a
        values: Tensor = 0.5 * torch.einsum("bmi,bmij,bmj->bm", shift, self.Q, shift) + self.b
        return values


def trajectory(f: Quadratics, kind: str, T: int) -> list[Tensor]:
    batch, d = f.a.shape[0], f.a.shape[-1]
    if kind == "noise":
        return [draw(batch, d, seed=1000 + t) for t in range(T)]
    theta, path = draw(batch, d, seed=99), []
    for t in range(T):  # descends one objective after another, as TCH does
        path.append(theta)
        i = t % f.a.shape[1]
        theta = theta - 0.05 * torch.einsum("bij,bj->bi", f.Q[:, i], theta - f.a[:, i])
    return path


@pytest.mark.parametrize("capacity", [None, 1, 2, 4, 8])
@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("kind", ["noise", "descent"])
def test_the_lemma(capacity: int | None, power: float, kind: str):
    """L(θ̃, λ; w) ≤ Σ ω_t L(θ⁽ᵗ⁾, λ; w)/Σ ω for every λ and w: so in every single objective, and for random λ."""
    T, conversion = 60, eq.Adaptive(power, capacity)
    for m in (1, 2, 5):
        f = Quadratics(4, m, 3, seed=10 * m)
        path = trajectory(f, kind, T)
        state = conversion.init({"x": path[0]}, f(path[0]))
        losses = []
        for t, theta in enumerate(path, 1):
            losses.append(f(theta))
            state = conversion.update({"x": theta}, losses[-1], state)
            omega = torch.arange(1, t + 1, dtype=torch.float64) ** power
            mean = torch.einsum("t,tbm->bm", omega / omega.sum(), torch.stack(losses))
            found = f(conversion.output(state)["x"])
            assert (found <= mean + 1e-9).all()
        weights = torch.softmax(3 * draw(100, 1, m), -1) * torch.softmax(draw(100, 1, m, seed=1), -1)
        assert ((weights * found).sum(-1) <= (weights * mean).sum(-1) + 1e-9).all()
        assert (found < mean - 1e-3).any()  # and it is worth having


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_copies_are_at_least_as_good_as_their_entry(capacity: int):
    """Jensen: f(θ) ≤ f̂ for every member, merged or not."""
    f = Quadratics(4, 3, 3, seed=5)
    conversion, path = eq.Adaptive(capacity=capacity), trajectory(f, "noise", 60)
    state = conversion.init({"x": path[0]}, f(path[0]))
    for theta in path:
        state = conversion.update({"x": theta}, f(theta), state)
        for slot in range(capacity):
            values = state.ledger.values[..., slot].movedim(0, -1)
            used = state.ledger.weights[:, slot] > 0
            assert (f(state.slots["x"][:, slot])[used] <= values[used] + 1e-9).all()


def test_the_answer_is_a_convex_combination_of_iterates():
    conversion = eq.Adaptive(power=2.0, capacity=3)
    path = [torch.nn.functional.one_hot(torch.tensor(t), 50).double() for t in range(50)]
    state = conversion.init({"x": path[0]}, torch.ones(4))
    for t, theta in enumerate(path):
        state = conversion.update({"x": theta}, draw(4, seed=t), state)
    share = conversion.output(state)["x"]
    assert (share >= 0).all()
    assert share.sum().item() == pytest.approx(1, abs=1e-12)


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_there_are_exactly_as_many_slots_as_the_capacity(capacity: int):
    conversion = eq.Adaptive(capacity=capacity)
    params = {"a": draw(2, 3, 4), "b": draw(2, 5)}
    state = conversion.init(params, draw(2, 6))
    sizes = []
    for t in range(40):
        state = conversion.update(params, draw(2, 6, seed=t), state)
        assert state.slots["a"].shape == (2, capacity, 3, 4)
        assert state.slots["b"].shape == (2, capacity, 5)
        sizes.append(conversion.size(state))
    assert torch.stack(sizes).max().item() == capacity


def test_copies_are_changed_in_place():
    """A step costs no second copy of the model."""
    conversion = eq.Adaptive(capacity=2)
    params = {"x": draw(3)}
    state = conversion.init(params, draw(2))
    memory = state.slots["x"].data_ptr()
    for t in range(10):
        state = conversion.update(params, draw(2, seed=t), state)
        assert state.slots["x"].data_ptr() == memory


def test_integers_come_from_the_heaviest_copy():
    conversion = eq.Adaptive()
    state = conversion.init({"n": torch.tensor([0])}, FIG_1[0])
    for t in range(4):
        state = conversion.update({"n": torch.tensor([t + 1])}, FIG_1[t], state)
    assert conversion.output(state)["n"].tolist() == [3]


# Against its neighbours -----------------------------------------------------------------------


def answer(conversion: Conversion[Any], losses: Tensor, theta: Tensor) -> Tensor:
    state = conversion.init({"x": theta[0]}, losses[0])
    for f, x in zip(losses, theta, strict=True):
        state = conversion.update({"x": x}, f, state)
    return conversion.output(state)["x"]


@pytest.mark.parametrize("power", [0.0, 2.0])
@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_without_dominance_it_is_the_average(power: float, capacity: int | None):
    losses = torch.stack([torch.arange(30.0), -torch.arange(30.0)], -1)
    theta = draw(30, 4)
    expected = answer(eq.Average(power), losses, theta)
    torch.testing.assert_close(answer(eq.Adaptive(power, capacity), losses, theta), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_if_each_dominates_the_one_before_it_is_the_last(capacity: int | None):
    losses = -torch.arange(30.0).unsqueeze(-1).expand(30, 3)
    theta = draw(30, 4)
    assert torch.equal(answer(eq.Adaptive(1.0, capacity), losses, theta), theta[-1])


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_if_the_first_dominates_all_it_is_the_first(capacity: int | None):
    losses = torch.arange(30.0).unsqueeze(-1).expand(30, 3)
    theta = draw(30, 4)
    assert torch.equal(answer(eq.Adaptive(1.0, capacity), losses, theta), theta[0])


def test_a_capacity_never_reached_changes_nothing():
    losses, theta = draw(40, 3), draw(40, 4)
    assert torch.equal(answer(eq.Adaptive(capacity=40), losses, theta), answer(eq.Adaptive(), losses, theta))


def test_one_objective_keeps_the_best_iterate():
    losses, theta = draw(40, 1), draw(40, 4)
    best = losses.squeeze(-1).argmin()
    for conversion in (eq.Adaptive(), eq.Adaptive(3.0, 1), eq.Adaptive(capacity=4, ties="keep")):
        assert torch.equal(answer(conversion, losses, theta), theta[best])


def test_negative_and_tiny_and_huge_losses_are_only_compared():
    losses, theta = draw(40, 3), draw(40, 4)
    expected = answer(eq.Adaptive(), losses, theta)
    for scale in (1e-30, 1e30):
        assert torch.equal(answer(eq.Adaptive(), scale * losses - (5.0 if scale > 1 else 0.0), theta), expected)


def test_losses_of_float32_are_compared_in_float32_and_half_too():
    conversion = eq.Adaptive()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        state = conversion.init({"x": draw(2)}, torch.ones(2, dtype=dtype))
        assert state.ledger.values.dtype == torch.float32
        state = conversion.update({"x": draw(2)}, torch.tensor([1.0, math.pi]).to(dtype), state)
        assert state.ledger.values[1, 0].item() == torch.tensor(math.pi).to(dtype).item()
