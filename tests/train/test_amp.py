"""Mixed precision: bfloat16, float16 with a gradient scaler, and steps that the scaler skips."""

import warnings

import pytest
import torch
from torch import Tensor

import equipoise as eq

ADAPTIVE = eq.Adaptive(capacity=3)


def tensors(mol: eq.MultiObjective) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("inside", [True, False], ids=["inside autocast", "outside"])
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.MGDA(), eq.MoCo(0.5, tracking=0.5)], ids=["OMD", "MGDA", "MoCo"])
def test_bfloat16_losses_are_weighted_in_single(weighting, inside, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, ADAPTIVE))
    for step in range(4):
        x, y = run.batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            losses = (run.model(x) - y.bfloat16()).square().mean(0)
            assert losses.dtype == torch.bfloat16
            if inside:
                scalar = mol(losses)
        if not inside:
            scalar = mol(losses)
        assert scalar.dtype == torch.float32
        scalar.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert all(x.dtype in {torch.float32, torch.float64, torch.bool} for x in tensors(mol).values())
    assert {x.dtype for x in mol.solution().values()} == {torch.float32}


def test_inside_or_outside_of_autocast_is_the_same(toy, preference):
    runs = [toy(), toy()]
    mols = [eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.MGDA(), ADAPTIVE)) for run in runs]
    for step in range(4):
        x, y = runs[0].batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            first = (runs[0].model(x) - y).square().mean(0)
            second = (runs[1].model(x) - y).square().mean(0)
            mols[0](first).backward()
        mols[1](second).backward()
        for run in runs:
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert_same(runs[0].params(), runs[1].params())


SCALED = {
    "SGD": (torch.optim.SGD, {}),
    "Adam": (torch.optim.Adam, {}),
    "fused Adam": (torch.optim.Adam, {"fused": True}),
}


@pytest.mark.parametrize(("optimizer", "settings"), SCALED.values(), ids=SCALED.keys())
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.SmoothTchebycheff(0.1)], ids=["OMD", "STCH"])
def test_a_step_that_the_scaler_skips_commits_nothing(weighting, optimizer, settings, toy, preference):
    """An overflow in the gradients, with finite losses: λ, archive and parameters are as if it had not been."""
    ours, clean = toy(optimizer, **settings), toy(optimizer, **settings)
    mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(weighting, ADAPTIVE))
    plain = eq.MultiObjective(clean.model, clean.optimizer, preference, method=(weighting, ADAPTIVE))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)

    def step(losses: Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler.scale(mol(losses)).backward()
            scaler.step(ours.optimizer)
            scaler.update()
        ours.optimizer.zero_grad()

    for number in range(6):
        if number in {0, 3}:
            before, scale = (tensors(mol), ours.params()), scaler.get_scale()
            losses = ours.losses(number)
            losses.register_hook(lambda gradient: gradient * torch.inf)
            step(losses)
            assert scaler.get_scale() == scale / 2
            assert_same(tensors(mol), before[0])
            assert_same(ours.params(), before[1])
        step(ours.losses(number))
        clean.run(plain, 1, number)
    assert_same(ours.params(), clean.params())  # a scale of a power of two changes no bit
    assert_same(tensors(mol), tensors(plain))
    assert not mol.state_dict()["accumulates"]


def test_float16_trains(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = float((preference * run.losses(0)).detach().max())
    for step in range(40):
        x, y = run.batch(step)
        with torch.autocast("cpu", torch.float16):
            losses = (run.model(x) - y).float().square().mean(0)
        scaler.scale(mol(losses)).backward()
        scaler.unscale_(run.optimizer)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
    assert mol.step == 40
    assert float((preference * run.losses(0)).detach().max()) < 0.8 * before
