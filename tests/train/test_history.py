"""The history of a run in bounded memory, and its figure."""

import io
import math
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.train.history import History

ONE = ("a",)


def number(value: float) -> torch.Tensor:
    return torch.tensor([value])


def filled(steps: int, names: tuple[str, ...] = ONE) -> History:
    history, zeros = History(names), torch.zeros(len(names))
    for step in range(1, steps + 1):
        history.add(step, zeros + step, zeros + 2 * step, None)
    return history


def test_three_steps_by_hand():
    """x² and (x − 2)² at x = 0, w = (½, ½), SGD with rate ¼: λ ← Π(λ + ½ w∘f)."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    mol = eq.MultiObjective(model, optimizer, {"left": 0.5, "right": 0.5}, method=(eq.OMD(0.5), eq.Last()))
    assert len(mol.history) == 0
    for _ in range(3):
        x = model.weight.squeeze()
        mol(torch.stack([x**2, (x - 2) ** 2])).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = mol.history
    assert found.names == ("left", "right")
    assert found.steps.tolist() == [1, 2, 3]
    # x: 0, ½ (half of each gradient: 0 and −4), then λ = (0, 1): ½ + ¼·3, then λ = (0, 1) still.
    assert found.losses.tolist() == [[0.0, 4.0], [0.25, 2.25], [1.5625, 0.5625]]
    assert found.coefficients.tolist() == [[0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]
    assert found.duals.tolist() == [[0.0, 1.0], [0.0, 1.0], [0.125, 0.875]]
    # Largest over smallest weighted loss, less 1; infinite where one is 0.
    torch.testing.assert_close(found.imbalance, torch.tensor([math.inf, 8.0, 16 / 9], dtype=torch.float64))


def test_without_lambda_there_is_none(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method="LS")
    run.run(mol, 2)
    assert bool(mol.history.duals.isnan().all())
    torch.testing.assert_close(mol.history.coefficients, preference.double().expand(2, 3))


def test_calls_of_a_step_are_one_row_and_what_is_absent_keeps_its_last_loss(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Last()))
    for values, counts in [([1.0, 2.0, 0.0], [3, 1, 0]), ([5.0, 2.0, 0.0], [1, 1, 0])]:
        mol(run.losses(0) * 0 + torch.tensor(values), counts).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    mol(run.losses(0) * 0 + torch.tensor([0.0, 3.0, 4.0]), [0, 1, 1]).backward()
    run.optimizer.step()
    assert mol.history.steps.tolist() == [1, 2]
    first, second = mol.history.losses.tolist()
    assert first[:2] == [2.0, 2.0]  # (3·1 + 1·5)/4
    assert math.isnan(first[2])  # not seen yet
    assert second == [2.0, 3.0, 4.0]
    assert mol.history.coefficients[1, 0] == mol.history.coefficients[0, 0]


def test_steps_that_are_not_taken_are_not_in_it(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, on_nonfinite="skip")
    run.run(mol, 2)
    mol(run.losses(0) * torch.nan).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    mol(run.losses(1)).backward()
    run.optimizer.zero_grad()
    run.run(mol, 1)
    assert mol.history.steps.tolist() == [1, 2, 3]


def test_where_steps_are_committed_late_reading_commits(toy, preference, as_accelerator):
    now, late = toy(), toy()
    right = eq.MultiObjective(now.model, now.optimizer, preference)
    with as_accelerator():
        left = eq.MultiObjective(late.model, late.optimizer, preference)
        late.run(left, 4)
        found = left.history.table()
    now.run(right, 4)
    torch.testing.assert_close(found, right.history.table(), rtol=0, atol=0)


# Bounded memory -----------------------------------------------------------------------------------


def test_all_steps_are_kept_up_to_the_limit():
    assert filled(2048).steps.tolist() == list(range(1, 2049))


@pytest.mark.parametrize(
    ("steps", "stride"), [(2049, 2), (4096, 2), (4098, 4), (10_000, 8), (100_000, 64)], ids=lambda n: f"{n:,}"
)
def test_then_every_second_one_is_dropped(steps, stride):
    history = filled(steps)
    assert history.steps.tolist() == list(range(stride, steps + 1, stride))
    assert 1024 <= len(history) <= 2048
    assert history.losses[-1].item() == history.steps[-1].item()
    assert history.coefficients[0].item() == 2 * stride


def test_a_run_of_more_steps_than_the_limit():
    model = torch.nn.Linear(1, 1, bias=False)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method="LS")
    for step in range(1, 2201):
        mol(model.weight.flatten() * 0 + torch.tensor([1.0, float(step)]))
    assert mol.history.steps.tolist() == list(range(2, 2201, 2))
    assert mol.history.losses[:, 1].tolist() == list(range(2, 2201, 2))


def test_with_many_objectives_fewer_steps_are_kept():
    history = filled(100, tuple(str(i) for i in range(10_000)))
    assert history.table().numel() <= 2**18 + 8
    assert len(history) >= 4
    assert history.steps.diff().unique().numel() == 1


@pytest.mark.parametrize("steps", [0, 1, 3, 2048, 2049, 2050, 4097, 5000])
def test_what_is_loaded_goes_on_like_what_was_saved(steps):
    whole, history, other = filled(steps), filled(steps), filled(7)
    other.load(history.rows())
    for step in range(steps + 1, steps + 2500):
        for one in (whole, other):
            one.add(step, number(1.0), number(1.0), None)
    torch.testing.assert_close(other.table(), whole.table(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(history.table(), filled(steps).table(), rtol=0, atol=0, equal_nan=True)


def test_a_resumed_run_has_the_history_of_the_run_that_was_not_interrupted(toy, preference):
    def make() -> tuple[Any, eq.MultiObjective]:
        run = toy()
        return run, eq.MultiObjective(run.model, run.optimizer, preference)

    whole, first, second = make(), make(), make()
    whole[0].run(whole[1], 7)
    first[0].run(first[1], 4)
    second[0].run(second[1], 6, 3)  # what it did before must not matter
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (first[1], first[0].model, first[0].optimizer)], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for part, state in zip((second[1], second[0].model, second[0].optimizer), saved, strict=True):
        part.load_state_dict(state)
    second[0].run(second[1], 3, 4)
    torch.testing.assert_close(second[1].history.table(), whole[1].history.table(), rtol=0, atol=0)


# The picture --------------------------------------------------------------------------------------


def lines(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): [float(y) for y in line.get_ydata()] for line in axes.get_lines()}


def test_the_picture_has_losses_weighted_losses_and_lambda(toy):
    matplotlib = pytest.importorskip("matplotlib.figure")
    run, w = toy(), {"a": 0.2, "b": 0.3, "c": 0.5}
    mol = eq.MultiObjective(run.model, run.optimizer, w, units=[2.0, 1.0, 1.0], ideal=-1.0)
    run.run(mol, 5)
    figure = mol.plot()
    assert isinstance(figure, matplotlib.Figure)
    assert [axes.get_title() for axes in figure.axes] == ["loss", "weighted loss", "λ"]
    history = mol.history
    loss, weighted, weights = (lines(axes) for axes in figure.axes)
    assert loss["b"] == history.losses[:, 1].tolist()
    assert weighted["a"] == pytest.approx((0.2 * (history.losses[:, 0] + 1) / 2).tolist(), rel=1e-6)
    assert weights["c"] == history.duals[:, 2].tolist()
    assert list(figure.axes[0].get_lines()[0].get_xdata()) == [1, 2, 3, 4, 5]
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")


def test_without_lambda_it_has_the_coefficients(toy, preference):
    pytest.importorskip("matplotlib")
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method="EPO")
    assert len(mol.plot().axes) == 3  # before the first step too
    run.run(mol, 3)
    axes = mol.plot().axes[2]
    assert axes.get_title() == "coefficient"
    assert lines(axes)["1"] == mol.history.coefficients[:, 1].tolist()
