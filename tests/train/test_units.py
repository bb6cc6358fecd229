"""Losses in units: what the weighting, the conversion, the gradients and the metrics see."""

import io
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.errors import IdealPointWarning

DEFAULT, ADAPTIVE = eq.SelfTuned(), eq.Adaptive(power=2, capacity=3)
Z, U = [-0.5, 0.25, 0.0], [2.0, 0.5, 30.0]


def make(
    toy, preference, weighting=DEFAULT, conversion=ADAPTIVE, optimizer=torch.optim.SGD, **settings
) -> tuple[Any, Any]:
    run = toy(optimizer, dtype=torch.float64)
    w = preference.double()
    return run, eq.MultiObjective(run.model, run.optimizer, w, method=(weighting, conversion), **settings)


def train(run, mol, factor=1.0, zero=0.0, steps=12) -> dict[str, Tensor]:
    for step in range(steps):
        f = run.losses(step)
        mol(f * torch.as_tensor(factor, dtype=f.dtype) + torch.as_tensor(zero, dtype=f.dtype)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    solution: dict[str, Tensor] = mol.solution()
    found: dict[str, Tensor] = run.params() | {f"answer of {name}": x for name, x in solution.items()}
    return found


def close(left, right) -> None:
    torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


WEIGHTINGS = {
    "default": DEFAULT,
    "LS": eq.Linear(),
    "STCH": eq.SmoothTchebycheff(0.1),
    "alternating": eq.OMD(order="alternating"),
    "MGDA": eq.MGDA(),
    "tracking": eq.MoCo(0.5, tracking=0.3),
}


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_numbers_are_the_division_of_the_losses(weighting, toy, preference):
    stated = train(*make(toy, preference, weighting, units=U, ideal=Z), factor=U, zero=Z)
    close(stated, train(*make(toy, preference, weighting)))


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_start_is_the_division_by_the_first_losses(weighting, toy, preference):
    run = toy(dtype=torch.float64)
    first = run.losses(0).detach()
    begun = train(*make(toy, preference, weighting, units="start"))
    close(begun, train(*make(toy, preference, weighting), factor=1 / first))


@pytest.mark.parametrize("factor", [0.01, 100.0, [300.0, 1.0, 1.0]], ids=["0.01", "100", "300 of one"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_with_units_from_the_start_those_of_the_losses_do_not_matter(factor, optimizer, toy, preference):
    settings = {"optimizer": optimizer, "units": "start"}
    close(
        train(*make(toy, preference, **settings), factor, steps=60), train(*make(toy, preference, **settings), steps=60)
    )


@pytest.mark.parametrize("factor", [0.01, 100.0])
@pytest.mark.parametrize("weighting", [eq.OMD(optimism=30.0, smoothing=3.0), eq.Tchebycheff(), eq.MGDA()], ids=str)
def test_without_units_a_common_factor_is_one_of_the_learning_rate(weighting, factor, toy, preference):
    """λ of a weighting that is free of scale does not see it; the gradients do."""
    plain, scaled = (make(toy, preference, weighting, optimizer=torch.optim.SGD) for _ in range(2))
    scaled[0].optimizer.param_groups[0]["lr"] /= factor
    close(train(*scaled, factor), train(*plain))


def test_the_scalar_and_its_gradient(toy, preference):
    run, mol = make(toy, preference, units=U, ideal=Z)
    f = run.losses(0)
    (expected,) = torch.autograd.grad(
        (mol.coefficients / torch.tensor(U) * f).sum(), [run.model[0].weight], retain_graph=True
    )
    scalar = mol(f)
    value = (mol.preference * (f.detach() - torch.tensor(Z)) / torch.tensor(U)).sum()
    torch.testing.assert_close(scalar.detach(), value)
    (found,) = torch.autograd.grad(scalar, [run.model[0].weight])
    torch.testing.assert_close(found, expected)


def test_by_name(toy, preference):
    names = ("a", "b", "c")
    given = {"names": names, "units": dict(zip(names, U, strict=True)), "ideal": dict(zip(names, Z, strict=True))}
    close(train(*make(toy, preference, **given)), train(*make(toy, preference, units=U, ideal=torch.tensor(Z))))


def test_metrics(toy, preference):
    run, mol = make(toy, preference, units="start", ideal=-1.0)
    train(run, mol, steps=3)
    first, last = toy(dtype=torch.float64).losses(0).detach() + 1, mol.history.losses[-1]
    found = mol.metrics()
    assert [found[f"loss/{i}"] for i in range(3)] == pytest.approx(last.tolist())
    weighted = preference * (last + 1) / first
    assert [found[f"weighted/{i}"] for i in range(3)] == pytest.approx(weighted.tolist())
    assert found["tch"] == pytest.approx(float(weighted.max()))
    assert [found[f"slack/{i}"] for i in range(3)] == pytest.approx((1 - weighted / weighted.max()).tolist())


# When the unit is known ---------------------------------------------------------------------------


def scale(mol: eq.MultiObjective) -> list[float]:
    tensors = mol.state_dict()["tensors"]
    unit, known = tensors["scale.unit"], tensors["scale.known"]
    return [u if k else 0.0 for u, k in zip(unit.tolist(), known.tolist(), strict=True)]


def test_under_accumulation_it_is_the_mean_of_the_step(toy, preference):
    run, mol = make(toy, preference, units="start")
    assert scale(mol) == [0.0, 0.0, 0.0]
    counts = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    f = [run.losses(part).detach() for part in range(2)]
    for part in range(2):
        (mol(run.losses(part), counts[part]) / 2).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    expected = (f[0] * counts[0] + f[1] * counts[1]) / counts.sum(0).clamp_min(1)
    assert scale(mol) == pytest.approx([*expected[:2].tolist(), 0.0])
    third = run.losses(2).detach()
    mol(run.losses(2)).backward()  # the third appears
    run.optimizer.step()
    assert scale(mol) == pytest.approx([*expected[:2].tolist(), float(third[2])])


def test_within_its_first_step_all_calls_are_measured_alike(toy, preference):
    run, mol = make(toy, preference, eq.Linear(), units="start")
    first, second = (run.losses(part).detach() for part in range(2))
    mol(run.losses(0)).backward()
    scalar = mol(run.losses(1))
    torch.testing.assert_close(scalar.detach(), (preference * second / first).sum())


def test_a_step_that_is_not_taken_gives_no_unit(toy, preference):
    run, mol = make(toy, preference, units="start")
    mol(run.losses(0) * 7).backward()
    run.optimizer.zero_grad()
    assert scale(mol) == [0.0, 0.0, 0.0]
    f = run.losses(1)
    mol(f).backward()
    run.optimizer.step()
    assert scale(mol) == f.tolist()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_gives_no_unit(fused, toy, preference):
    run = toy(torch.optim.Adam, fused=fused)
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.SelfTuned(), ADAPTIVE), units="start")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    for number in range(2):
        losses = run.losses(number)
        if number == 0:
            losses.register_hook(lambda gradient: gradient * torch.inf)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler.scale(mol(losses)).backward()
            scaler.step(run.optimizer)
            scaler.update()
        run.optimizer.zero_grad()
        assert scale(mol) == (losses.tolist() if number else [0.0, 0.0, 0.0])


def test_a_closure_has_one_unit_throughout(toy, preference):
    run, mol = make(toy, preference, eq.Linear(), optimizer=torch.optim.LBFGS, units="start")
    first, scalars, losses = run.losses(0).detach(), [], []

    def closure() -> Tensor:
        run.optimizer.zero_grad()
        f = run.losses(0)
        scalar: Tensor = mol(f)
        scalar.backward()
        scalars.append(scalar.detach())
        losses.append(f.detach())
        return scalar

    run.optimizer.step(closure)
    assert len(scalars) > 2
    expected = torch.stack([(preference.double() * f / first).sum() for f in losses])
    torch.testing.assert_close(torch.stack(scalars), expected)
    assert scale(mol) == first.tolist()


def test_mixed_precision_losses_are_measured_in_single(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.SelfTuned(), ADAPTIVE), units="start")
    with torch.autocast("cpu", torch.bfloat16):
        x, y = run.batch(0)
        f = (run.model(x) - y.bfloat16()).square().mean(0)
        scalar = mol(f)
    assert scalar.dtype == torch.float32
    scalar.backward()
    run.optimizer.step()
    assert mol.state_dict()["tensors"]["scale.unit"].dtype == torch.float32
    assert scale(mol) == f.tolist()


@pytest.mark.parametrize("weighting", [eq.SelfTuned(), eq.Tchebycheff()], ids=["known", "measured"])
@pytest.mark.parametrize("settings", [{"units": "start"}, {"units": U, "ideal": Z}], ids=["start", "numbers"])
def test_a_run_that_is_committed_late_is_the_run_at_once(settings, weighting, toy, preference, as_accelerator):
    plain = train(*make(toy, preference, weighting, **settings))
    deferred = train(*make(toy, preference, weighting, check="deferred", **settings))
    with as_accelerator():
        late = train(*make(toy, preference, weighting, **settings))
    torch.testing.assert_close(deferred, plain, rtol=0, atol=0)
    torch.testing.assert_close(late, plain, rtol=0, atol=0)


def test_recorded_losses_give_units_too(toy, preference):
    _, mol = make(toy, preference, units="start")
    held_out = torch.tensor([4.0, 2.0, 8.0], dtype=torch.float64)
    mol.record(held_out)
    assert scale(mol) == [4.0, 2.0, 8.0]
    other, late = make(toy, preference, units="start", every=None)
    late(other.losses(0)).backward()
    late.record(held_out)
    other.optimizer.step()
    assert scale(late) == [4.0, 2.0, 8.0]


# Checkpoints --------------------------------------------------------------------------------------


def test_a_resumed_run_has_its_units(toy, preference):
    whole, first, second = (make(toy, preference, optimizer=torch.optim.Adam, units="start", ideal=Z) for _ in range(3))
    whole[0].run(whole[1], 9)
    first[0].run(first[1], 4)
    second[0].run(second[1], 2, 5)  # what it did before must not matter
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (first[1], first[0].model, first[0].optimizer)], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for part, state in zip((second[1], second[0].model, second[0].optimizer), saved, strict=True):
        part.load_state_dict(state)
    second[0].run(second[1], 5, 4)
    torch.testing.assert_close(second[0].params(), whole[0].params(), rtol=0, atol=0)
    tensors = (mol.state_dict()["tensors"] for _, mol in (second, whole))
    torch.testing.assert_close(*tensors, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": "start"}, "units must be 'start'; found None"),
        ({"units": U}, "units must be (2.0, 0.5, 30.0); found None"),
        ({"ideal": 0.5}, "ideal must be 0.5; found 0.0"),
    ],
    ids=str,
)
def test_a_checkpoint_with_other_units_is_refused(change, message, toy, preference):
    saved = make(toy, preference)[1].state_dict()
    with pytest.raises(eq.StateMismatchError, match=re.escape(message)):
        make(toy, preference, **change)[1].load_state_dict(saved)


# What is refused, and said ------------------------------------------------------------------------


def losses(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def shell(**settings: Any) -> eq.MultiObjective:
    return eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.2, 0.8], names=("height", "width"), **settings)


@pytest.mark.parametrize("low", [1.0, 0.0])
@pytest.mark.filterwarnings("ignore::equipoise.errors.IdealPointWarning")
def test_an_objective_that_starts_at_or_below_its_ideal_point_is_refused(low):
    mol = shell(units="start", ideal=(0.0, 1.0))
    before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
    text = 'must start above the ideal point with units="start"; give units= as numbers, or a lower ideal=; found '
    with pytest.raises(ValueError, match=re.escape(f"{text}{low:.4g} for width in step 1")):
        mol(losses(1.0, low))
    torch.testing.assert_close(mol.state_dict()["tensors"], before, rtol=0, atol=0, equal_nan=True)


def test_later_a_loss_may_lie_there():
    mol = shell(units="start", ideal=(0.0, 1.0))
    mol(losses(1.0, 2.0))
    mol(losses(1.0, 1.0))
    with pytest.warns(IdealPointWarning, match="point, 1; found 0.5 for objective width in step 3"):
        mol(losses(1.0, 0.5))


def test_units_are_never_put_off():
    """The first losses decide what the first gradients are measured in: they are waited for, on a device too."""
    mol = shell(units="start", check="deferred")
    before = mol.duals
    assert before is not None
    with pytest.raises(ValueError, match="found 0 for width in step 1"):
        mol(losses(1.0, 0.0))
    after = mol.duals
    assert after is not None
    assert torch.equal(after, before)
    assert (mol.step, mol.recorded) == (0, 0)
    mol(losses(1.0, 0.5))
    assert scale(mol) == [1.0, 0.5]


def test_an_absent_objective_starts_when_it_appears():
    mol = shell(units="start")
    mol(losses(1.0, 0.0), [3, 0])
    with pytest.raises(ValueError, match="found 0 for width in step 2"):
        mol(losses(1.0, 0.0), [3, 1])


BAD = {
    "a word": ({"units": "begin"}, 'units must be None, "start" or numbers'),
    "not positive": ({"units": [1.0, -1.0]}, "units must be positive and finite"),
    "another number": ({"units": [1.0, 2.0, 3.0]}, "units must have 2 entries; found 3"),
    "other names": ({"ideal": {"depth": 0.0}}, "ideal must have names among"),
    "a batch": ({"ideal": torch.zeros(3, 2)}, r"ideal must have shape \(2,\); found \(3, 2\)"),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        shell(**settings)


def test_the_floor_is_in_the_units_of_the_losses():
    with pytest.warns(IdealPointWarning, match="point, 3; found 2.5 for objective height"):
        shell(ideal=3.0, units=(2.0, 5.0))(losses(2.5, 4.0))
    mol = eq.MultiObjective(
        torch.nn.Linear(1, 1), None, [0.2, 0.8], method=(eq.OMD(ideal=-1.0), eq.Last()), units=2.0, ideal=3.0
    )
    mol(losses(1.5, 4.0))  # f̃ = −0.75
    with pytest.warns(IdealPointWarning, match="point, 1; found 0.5 for objective 0"):
        mol(losses(0.5, 4.0))


def test_an_ideal_value_that_is_not_named_is_zero(toy):
    run = toy()
    names = {"a": 0.2, "b": 0.3, "c": 0.5}
    mol = eq.MultiObjective(run.model, run.optimizer, names, ideal={"b": 0.25})
    assert mol._run.units.ideal == (0.0, 0.25, 0.0)
