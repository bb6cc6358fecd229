"""λ that follows losses measured on other data."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq

ADAPTIVE = eq.Adaptive(power=2, capacity=3)
OMD = eq.OMD(0.5)
WEIGHTINGS = {"OMD": OMD, "default": eq.SelfTuned(), "LS": eq.Linear()}


def held_out(run: Any, step: int) -> Tensor:
    """Of another batch."""
    with torch.no_grad():
        losses: Tensor = run.losses(step + 3)
        return losses


def train(run: Any, mol: eq.MultiObjective, steps: int, start: int = 0, every: int = 2) -> None:
    for step in range(start, start + steps):
        if step % every == 0:
            mol.steer(held_out(run, step))
        run.run(mol, 1, step)


def make(toy, preference, weighting=OMD, conversion=ADAPTIVE, **settings) -> tuple[Any, Any]:
    run = toy(dtype=torch.float64)
    return run, eq.MultiObjective(
        run.model, run.optimizer, preference.double(), method=(weighting, conversion), **settings
    )


@pytest.mark.parametrize("settings", [{}, {"units": "start"}, {"units": [2.0, 0.5, 30.0], "ideal": -1.0}], ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_against_a_plain_loop(weighting, settings, toy, preference):
    """λ from steered losses alone, gradients from the training batches, records with the latest steered losses."""
    ours, mol = make(toy, preference, weighting, **settings)
    train(ours, mol, 9)

    plain, w = toy(dtype=torch.float64), preference.double()
    z = torch.tensor(settings.get("ideal", 0.0))
    u = torch.ones(3)
    state, record, f = weighting.init(w), ADAPTIVE.init(plain.params(), w), w
    for step in range(9):
        if step % 2 == 0:
            f = held_out(plain, step)
            if step == 0 and "units" in settings:
                u = f - z if settings["units"] == "start" else torch.tensor(settings["units"])
            f = (f - z) / u
            _, state = weighting.update(f, state, w)
        c = weighting.foreseen(state, w)
        record = ADAPTIVE.update(plain.params(), f, record)
        c = 3 * c if weighting.uses_duals else c  # uniform λ is the weighted sum
        (c * plain.losses(step) / u).sum().backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    torch.testing.assert_close(ours.params(), plain.params(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(mol.solution(), ADAPTIVE.output(record), rtol=1e-9, atol=1e-11)


def test_training_losses_no_longer_move_the_weights(toy, preference):
    run, mol = make(toy, preference)
    mol.steer(torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64))
    before = mol.duals
    assert before.argmax() == 0
    run.run(mol, 5)
    assert torch.equal(mol.duals, before)
    torch.testing.assert_close(mol.coefficients, 3 * before * preference)


def test_under_accumulation_and_in_closures_it_is_the_same_run(toy, preference):
    runs = [make(toy, preference) for _ in range(3)]
    for step in range(6):
        for run, mol in runs:
            mol.steer(held_out(run, step))
        runs[0][0].run(runs[0][1], 1, step)
        run, mol = runs[1]
        x, y = run.batch(step)
        for part in (slice(0, 8), slice(8, 16)):
            (mol((run.model(x[part]) - y[part]).square().mean(0)) / 2).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run, mol = runs[2]

        def closure(run: Any = run, mol: Any = mol, step: int = step) -> Tensor:
            run.optimizer.zero_grad()
            scalar: Tensor = mol(run.losses(step))
            scalar.backward()
            return scalar

        run.optimizer.step(closure)
    for run, mol in runs[1:]:
        torch.testing.assert_close(run.params(), runs[0][0].params())
        torch.testing.assert_close(mol.solution(), runs[0][1].solution())


def test_an_objective_without_samples_keeps_its_last_steered_loss(toy, preference):
    run, mol = make(toy, preference)
    mol.steer(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))
    mol.steer(torch.tensor([0.0, 5.0, 4.0], dtype=torch.float64), counts=[0, 2, 2])
    run.run(mol, 1)
    found = mol.metrics()
    assert [found[f"steered/{i}"] for i in range(3)] == [3.0, 5.0, 4.0]
    assert found["weighted/1"] == pytest.approx(1.5)
    assert found["loss/0"] == pytest.approx(float(toy(dtype=torch.float64).losses(0)[0].detach()))


def test_one_that_was_never_steered_is_not_compared(toy, preference):
    run, mol = make(toy, preference)
    mol.steer(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), counts=[1, 1, 0])
    run.run(mol, 2)
    assert torch.isfinite(torch.cat([x.flatten() for x in mol.solution().values()])).all()
    assert mol.recorded == 2


@pytest.mark.parametrize("weighting", [OMD, eq.SelfTuned()], ids=["OMD", "default"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(weighting, toy, preference):
    whole, first, second = (make(toy, preference, weighting, units="start") for _ in range(3))
    train(*whole, 9)
    train(*first, 5)
    second[0].run(second[1], 2)  # not steered, and with other units
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (first[1], first[0].model, first[0].optimizer)], file)
    file.seek(0)
    for part, state in zip(
        (second[1], second[0].model, second[0].optimizer), torch.load(file, weights_only=True), strict=True
    ):
        part.load_state_dict(state)
    train(*second, 4, 5)
    torch.testing.assert_close(second[0].params(), whole[0].params(), rtol=0, atol=0)
    torch.testing.assert_close(*(m.state_dict()["tensors"] for _, m in (second, whole)), rtol=0, atol=0)
    torch.testing.assert_close(second[1].solution(), whole[1].solution(), rtol=0, atol=0)


def test_a_run_that_is_not_steered_may_be_loaded_over_one_that_is(toy, preference):
    plain, steered = make(toy, preference), make(toy, preference)
    plain[0].run(plain[1], 3)
    train(*steered, 2)
    steered[1].load_state_dict(plain[1].state_dict())
    steered[0].model.load_state_dict(plain[0].model.state_dict())
    for run, mol in (plain, steered):
        run.run(mol, 3, 3)
    torch.testing.assert_close(
        steered[1].state_dict()["tensors"], plain[1].state_dict()["tensors"], rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("settings", [{}, {"units": "start"}], ids=str)
def test_a_run_that_is_committed_late_is_the_run_at_once(settings, toy, preference, as_accelerator):
    plain = make(toy, preference, **settings)
    train(*plain, 9)
    with as_accelerator():
        late = make(toy, preference, **settings)
        train(*late, 9)
        torch.testing.assert_close(late[1].solution(), plain[1].solution(), rtol=0, atol=0)
    torch.testing.assert_close(late[0].params(), plain[0].params(), rtol=0, atol=0)


def test_within_a_step_the_calls_keep_their_coefficients(toy, preference):
    run, mol = make(toy, preference)
    mol.steer(held_out(run, 0))
    before = mol.duals
    scalar = mol(run.losses(0))
    mol.steer(torch.tensor([9.0, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(scalar.detach(), (3 * before * preference * run.losses(0).detach()).sum())
    scalar.backward()
    run.optimizer.step()
    assert not torch.equal(mol.duals, before)


def test_a_skipped_call_leaves_all_as_it_was(toy, preference):
    _, mol = make(toy, preference, on_nonfinite="skip")
    before = mol.duals
    mol.steer(torch.tensor([torch.nan, 1.0, 1.0], dtype=torch.float64))
    assert torch.equal(mol.duals, before)
    assert not mol.state_dict()["steers"]


@pytest.mark.parametrize("check", ["now", "deferred"])
def test_losses_that_are_not_finite_are_refused_at_once(check, toy, preference):
    _, mol = make(toy, preference, check=check)
    with pytest.raises(eq.NonFiniteLossError, match="nan for objective 0 in step 1"):
        mol.steer(torch.tensor([torch.nan, 1.0, 1.0], dtype=torch.float64))
    assert not mol.state_dict()["steers"]
    mol.steer(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64))
    before = mol.duals
    with pytest.raises(eq.NonFiniteLossError, match="nan for objective 0 in step 1"):
        mol.steer(torch.tensor([torch.nan, 1.0, 1.0], dtype=torch.float64))
    assert torch.equal(mol.duals, before)
    mol.solution()


@pytest.mark.parametrize(
    "weighting",
    [eq.Tchebycheff(), eq.OMD(order="alternating"), eq.MGDA(), eq.Relative(eq.OMD()), eq.SmoothTchebycheff(0.1)],
    ids=lambda one: type(one).__name__,
)
def test_a_weighting_that_needs_the_losses_of_the_step_is_refused(weighting, toy, preference):
    run, mol = make(toy, preference, weighting)
    with pytest.raises(ValueError, match="weighting must know its coefficients before the losses to be steered"):
        mol.steer(held_out(run, 0))


def test_it_must_come_before_anything_is_recorded_with_training_losses(toy, preference):
    run, mol = make(toy, preference)
    run.run(mol, 2)
    with pytest.raises(
        ValueError, match=r"steer must be called before the first step.*found 2 iterates compared by tr"
    ):
        mol.steer(held_out(run, 0))
    run, mol = make(toy, preference, every=None)
    run.run(mol, 2)
    mol.steer(held_out(run, 0))
    mol.record(held_out(run, 0))


def test_records_are_of_one_kind(toy, preference):
    run, mol = make(toy, preference)
    train(run, mol, 2)
    with pytest.raises(ValueError, match="found 2 iterates compared by steered losses"):
        mol.record(held_out(run, 0))


def test_after_close_it_is_refused(toy, preference):
    run, mol = make(toy, preference)
    mol.close()
    with pytest.raises(ValueError, match="mol must be open"):
        mol.steer(held_out(run, 0))
