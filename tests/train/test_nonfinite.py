"""Non-finite losses: detected before the backward pass, one step late, or skipped."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.train.nonfinite import check_gradients

ADAPTIVE = eq.Adaptive(capacity=3)


def spoiled(losses: Tensor, value: float = math.nan) -> Tensor:
    return torch.cat([losses[:1], losses[1:2] * value, losses[2:]])


def frozen(mol: eq.MultiObjective) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("attached", [True, False], ids=["with optimizer", "without"])
def test_on_the_cpu_nothing_has_changed_when_it_is_raised(value, attached, toy, preference):
    run = toy()
    names = ("a", "b", "c")
    optimizer = run.optimizer if attached else None
    mol = eq.MultiObjective(run.model, optimizer, preference, method=(eq.OMD(), ADAPTIVE), names=names)
    run.run(mol, 3)
    before, params = frozen(mol), run.params()
    with pytest.raises(eq.NonFiniteLossError, match=f"losses must be finite; found {value} for b in step 4"):
        mol(spoiled(run.losses(3), value))
    assert_same(frozen(mol), before)
    assert_same(run.params(), params)
    assert mol.step == 3
    # The run goes on as if nothing had been.
    other = toy()
    right = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 3, 3)
    other.run(right, 6)
    assert_same(run.params(), other.params())


def test_calls_that_were_fine_still_count(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()))
    losses = run.losses(0)
    mol(losses).backward()
    with pytest.raises(eq.NonFiniteLossError):
        mol(spoiled(run.losses(1)))
    run.optimizer.step()
    assert [mol.metrics()[f"loss/{i}"] for i in range(3)] == losses.tolist()


def test_large_losses_are_no_reason(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    assert torch.isfinite(mol(run.losses(0) * 0 + 3e38))  # their sum is not a float32


def test_absent_losses_may_be_anything(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    scalar = mol(spoiled(run.losses(0)), counts=[1, 0, 1])
    assert torch.isfinite(scalar)


def with_an_infinite_derivative(losses: Tensor) -> Tensor:
    """The second loss is 0, as an empty sum is, and its root has no finite derivative there."""
    return torch.stack([losses[0], (0 * losses[1]).sqrt(), losses[2]])


def test_an_absent_loss_with_an_infinite_derivative_is_noticed_before_anything_moves(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 3)
    params, state = run.params(), frozen(mol)
    mol(with_an_infinite_derivative(run.losses(3)), counts=[1, 0, 1]).backward()
    with pytest.raises(eq.NonFiniteLossError, match=r"gradients must be finite; found nan in step 4.*clamp_min\(1\)"):
        run.optimizer.step()
    assert_same(run.params(), params)
    run.optimizer.zero_grad()
    assert_same(frozen(mol), state)
    run.run(mol, 2, 4)
    assert mol.step == mol.recorded == 5


def test_derivatives_that_are_infinite_are_noticed_too():
    check_gradients(1e38, 4)
    with pytest.raises(eq.NonFiniteLossError, match="gradients must be finite; found inf in step 4"):
        check_gradients(math.inf, 4)


def test_deferred_such_a_step_is_not_recorded(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, check="deferred")
    run.run(mol, 3)
    state = frozen(mol)
    mol(with_an_infinite_derivative(run.losses(3)), counts=[1, 0, 1]).backward()
    run.optimizer.step()
    with pytest.raises(eq.NonFiniteLossError, match="found nan in step 4"):
        mol.metrics()
    assert_same(frozen(mol), state)
    assert mol.step == 3


def test_gradients_that_a_scaler_finds_infinite_are_left_to_it(toy, preference):
    run = toy(torch.optim.Adam, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    scaler.scale(mol(with_an_infinite_derivative(run.losses(0)), counts=[1, 0, 1])).backward()
    scaler.step(run.optimizer)
    scaler.update()
    assert all(torch.isfinite(p).all() for p in run.params().values())
    assert mol.step == 0


def test_deferred_it_is_raised_by_the_next_call(toy, preference):
    """λ and the archive are as they were; the parameters are not."""
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="deferred")
    run.run(mol, 3)
    before = frozen(mol)
    mol(spoiled(run.losses(3))).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    after = eq.state.flatten(mol._run.saved(mol._run.archive.state()))
    for name, tensor in before.items():
        if name.startswith(("weighting.", "conversion.")):
            assert torch.equal(after[name], tensor), name
    assert not torch.isfinite(run.params()["0.weight"]).all()
    with pytest.raises(eq.NonFiniteLossError, match="found nan for objective 1 in step 4"):
        mol(run.losses(4))
    assert (mol.step, mol.recorded) == (3, 3)  # the step does not count


@pytest.mark.parametrize("reader", ["solution", "state_dict", "metrics"])
def test_deferred_it_is_raised_by_whoever_reads_the_result(reader, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="deferred")
    mol(spoiled(run.losses(0))).backward()
    run.optimizer.step()
    with pytest.raises(eq.NonFiniteLossError, match="step 1"):
        getattr(mol, reader)()


def test_deferring_changes_nothing_else(toy, preference):
    late, now = toy(), toy()
    left = eq.MultiObjective(late.model, late.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="deferred")
    right = eq.MultiObjective(now.model, now.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="now")
    late.run(left, 5)
    now.run(right, 5)
    assert_same(frozen(left), frozen(right))


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True}),
    ],
    ids=["SGD", "AdamW", "fused AdamW"],
)
def test_a_skipped_step_moves_nothing(optimizer, settings, toy, preference):
    ours, clean = toy(optimizer, **settings), toy(optimizer, **settings)
    mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(eq.OMD(), ADAPTIVE), on_nonfinite="skip")
    plain = eq.MultiObjective(clean.model, clean.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    for step in range(6):
        if step == 3:
            scalar = mol(spoiled(ours.losses(7)))
            assert float(scalar.detach()) == 0.0
            scalar.backward()
            torch.nn.utils.clip_grad_norm_(ours.model.parameters(), 1.0)
            ours.optimizer.step()
            ours.optimizer.zero_grad()
        ours.run(mol, 1, step)
    clean.run(plain, 6)
    assert_same(ours.params(), clean.params())
    assert_same(frozen(mol), frozen(plain))
    assert mol.step == 6


def test_a_skipped_step_moves_no_parameter_of_another_optimizer(toy, preference):
    run = toy()
    first, last = run.model[0], run.model[2]
    optimizer, other = (torch.optim.SGD(part.parameters(), lr=0.1, weight_decay=0.1) for part in (first, last))
    mol = eq.MultiObjective(run.model, optimizer, preference, on_nonfinite="skip")
    before = run.params()
    for losses in (spoiled(run.losses(0)), run.losses(1)):
        mol(losses).backward()
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        other.zero_grad()
        if losses.isnan().any():
            assert_same(run.params(), before)
    assert all(not torch.equal(p, before[name]) for name, p in run.params().items())


def test_a_skipped_call_of_several_leaves_the_others(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()), on_nonfinite="skip")
    first, last = run.losses(0), run.losses(2)
    for losses in (first, spoiled(run.losses(1)), last):
        mol(losses).backward()
    expected = {name: p.grad.clone() for name, p in run.model.named_parameters() if p.grad is not None}
    run.optimizer.zero_grad()
    (preference * (run.losses(0) + run.losses(2))).sum().backward()
    torch.testing.assert_close(expected, {n: p.grad for n, p in run.model.named_parameters() if p.grad is not None})
    run.optimizer.step()
    mean = (first + last) / 2
    assert [mol.metrics()[f"loss/{i}"] for i in range(3)] == pytest.approx(mean.tolist())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.OMD(0.1, eq.Entropic())], ids=["Euclidean", "Entropic"])
def test_on_an_accelerator_no_step_waits_for_the_device(weighting: Any, toy, preference):
    run = toy()
    run.model.cuda()
    x, y = (tensor.cuda() for tensor in run.batch(0))
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, eq.Adaptive(power=4, capacity=3)))

    def step() -> None:
        mol((run.model(x) - y).square().mean(0)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()

    step()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(8):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    mol(spoiled((run.model(x) - y).square().mean(0)))
    with pytest.raises(eq.NonFiniteLossError, match="found nan for objective 1 in step 10"):
        step()


@pytest.mark.parametrize("attached", [True, False], ids=["with optimizer", "without"])
def test_skipping_for_ever_is_said_once(attached, toy, preference):
    run = toy()
    optimizer = run.optimizer if attached else None
    mol = eq.MultiObjective(run.model, optimizer, preference, on_nonfinite="skip", names=("a", "b", "c"))

    def skip(steps: int) -> None:
        for _ in range(steps):
            mol(spoiled(run.losses(0))).backward()
            run.optimizer.step()

    skip(19)
    run.run(mol, 1)  # not in a row: a warning is an error in tests
    skip(19)
    assert mol.metrics()["skipped"] == 38
    text = r'^20 steps in a row were left out by on_nonfinite="skip", so the parameters do not move: nan for b\. Find'
    with pytest.warns(UserWarning, match=text) as said:
        skip(30)
    assert len(said) == 1
    assert mol.metrics()["skipped"] == 68
    assert mol.step == 1


def test_a_step_with_one_good_call_is_not_counted_as_skipped(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, on_nonfinite="skip")
    for _ in range(25):
        mol(run.losses(0)).backward()
        mol(spoiled(run.losses(0))).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert mol.metrics()["skipped"] == 0
    assert mol.step == 25
