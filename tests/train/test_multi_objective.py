"""`MultiObjective` equals a loop written by hand, and commits steps when it says."""

import copy
import gc
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import state as states
from equipoise.weighting import Weighting

ADAPTIVE = eq.Adaptive(power=4, capacity=3)
WEIGHTINGS: dict[str, Weighting[Any]] = {
    "LS": eq.Linear(),
    "TCH": eq.Tchebycheff(),
    "STCH": eq.SmoothTchebycheff(0.1),
    "OMD": eq.OMD(),
    "OMD entropic": eq.OMD(0.5, eq.Entropic()),
    "GroupDRO": eq.OMD(0.5, eq.Entropic(), order="alternating"),
    "momentum": eq.Momentum(eq.SmoothTchebycheff(0.1)),
    "relative": eq.Relative(eq.OMD()),
    "MGDA": eq.MGDA(),
    "CR-MOGM": eq.Momentum(eq.MGDA()),
    "EPO": eq.EPO(),
    "FERERO": eq.FERERO(),
    "qFFL": eq.QFFL(1.0, 0.05),
    "MoCo": eq.MoCo(0.5),
    "MoCo tracking": eq.MoCo(0.5, tracking=0.3),
    "ExcessMTL": eq.ExcessRisk(),
    "AdaExcessMTL simultaneous": eq.ExcessRisk(order="simultaneous"),
}


def by_hand(run: Any, weighting: Weighting[Any], conversion: Any, w: Tensor, steps: int) -> tuple[Any, Any]:
    """The loop of the README, with the Jacobian written out and the step θ ← θ − η Σ c_i ∇f_i by the optimizer."""
    params = dict(run.model.named_parameters())
    record = conversion.init(params, torch.zeros(3))
    state = None
    for step in range(steps):
        losses = run.losses(step)
        rows = torch.stack(
            [
                torch.cat([g.flatten() for g in torch.autograd.grad(f, list(params.values()), retain_graph=True)])
                for f in losses
            ]
        )
        extra = {need: {"jacobian": rows, "gramian": rows @ rows.T}[need] for need in weighting.needs}
        state = weighting.init(torch.zeros(3), **extra) if state is None else state
        record = conversion.update(params, losses, record)
        c, state = weighting.update(losses, state, w, **extra)
        c = 3 * c if weighting.uses_duals else c  # uniform λ is the weighted sum
        run.optimizer.zero_grad()
        tracked = weighting.rows(state)
        if tracked is None:
            (c * losses).sum().backward()
        else:
            pieces = (c @ tracked).split([p.numel() for p in params.values()])
            for p, piece in zip(params.values(), pieces, strict=True):
                p.grad = piece.view_as(p).clone()
        run.optimizer.step()
    return state, record


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("attached", [True, False], ids=["with optimizer", "without"])
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_the_trajectory_is_that_of_the_loop_by_hand_bit_for_bit(weighting, attached, toy, preference):
    ours, theirs = toy(), toy()
    mol = eq.MultiObjective(ours.model, ours.optimizer if attached else None, preference, method=(weighting, ADAPTIVE))
    ours.run(mol, 12)
    _, record = by_hand(theirs, weighting, ADAPTIVE, preference, 12)
    assert_same(ours.params(), theirs.params())
    assert_same(mol.solution(), ADAPTIVE.output(record))


@pytest.mark.parametrize("conversion", [eq.Last(), eq.Average(power=2), ADAPTIVE], ids=str)
def test_every_conversion_gives_what_it_gives_by_hand(conversion, toy, preference):
    ours, theirs = toy(torch.optim.Adam), toy(torch.optim.Adam)
    mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(eq.OMD(), conversion))
    ours.run(mol, 20)
    _, record = by_hand(theirs, eq.OMD(), conversion, preference, 20)
    assert_same(mol.solution(), conversion.output(record))


def test_the_three_lines_meet_the_preference(toy):
    """The targets are about 0, 1 and 2: the first and the last compete, and the middle one comes for free."""
    w = torch.tensor([0.5, 0.3, 0.2])
    run = toy(lr=0.05 / 3)
    mol = eq.MultiObjective(run.model, run.optimizer, w, method=(eq.OMD(), eq.Adaptive(power=4, capacity=8)))
    run.run(mol, 800)
    run.model.load_state_dict(mol.solution())
    weighted = w * torch.stack([run.losses(step) for step in range(8)]).mean(0).detach()
    assert float(weighted[0]) == pytest.approx(float(weighted[2]), rel=0.05)
    assert float(weighted[1]) < float(weighted[0])
    assert mol.step == 800


def test_the_scalar_is_the_weighted_sum(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), eq.Last()))
    losses = run.losses(0)
    # λ begins uniform, and uniform λ is the weighted sum.
    torch.testing.assert_close(mol(losses), (preference * losses).sum())


# One scale for all methods ------------------------------------------------------------------------


class Parabolas(nn.Module):
    """f_i = (x − i)² for i = 0, …, 9, at x = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        return (self.x - torch.arange(10.0)).square()


FIRST_STEP = {
    "LS": 0.9,  # 0.1 · the mean of 2i
    "equipoise": 0.9,
    "OMDgd-TCH": 0.9,
    "OMDeg-TCH": 0.9,
    "TCH": 1.8,  # 0.1 · 2 · 9: all for the largest, as strongly as the sum is for all
    "UPGrad": 0.9,  # no two gradients conflict
}


@pytest.mark.parametrize(("method", "moved"), FIRST_STEP.items(), ids=FIRST_STEP.keys())
def test_one_learning_rate_serves_all_methods(method, moved):
    model = Parabolas()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, optimizer, [0.1] * 10, method=method)
    mol(model()).backward()
    optimizer.step()
    assert model.x.item() == pytest.approx(moved, rel=1e-5)


OF_ANOTHER_SUM = {"CAGrad", "Nash-MTL", "Aligned-MTL", "qFFL", "FedMGDA+", "UW"}
"""Whose step has a length of its own."""
ELSEWHERE = {"PMTL", "PropFair"}
"""Not for ten objectives, and not for a training loop."""


@pytest.mark.parametrize("method", sorted(eq.methods().keys() - OF_ANOTHER_SUM - ELSEWHERE))
def test_coefficients_sum_to_one_where_the_preference_is_uniform(method):
    torch.manual_seed(0)
    model, x = nn.Linear(4, 10), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, optimizer, [0.1] * 10, method=method)
    for _ in range(4):
        mol((model(x) - 1).square().mean(0) + torch.arange(10.0) / 10).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(mol.history.coefficients.sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("method", ["equipoise", "OMDgd-TCH", "OMDeg-TCH", "LS"])
def test_before_the_first_step_coefficients_are_the_preference(method, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=method)
    assert torch.equal(mol.coefficients, preference)
    losses = run.losses(0)
    torch.testing.assert_close(mol(losses), (preference * losses).sum())


def test_without_an_optimizer_lambda_waits_for_the_record(toy, preference, monkeypatch):
    """A record that fails leaves the step untaken."""
    run = toy()
    mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), eq.Suffix()))
    mol(run.losses(0))
    before = mol.state_dict()

    def fails(*_: Any) -> None:
        raise eq.StoreError("no space left")

    monkeypatch.setattr("equipoise.train.archive.execute", fails)
    with pytest.raises(eq.StoreError, match="no space left"):
        mol(run.losses(1))
    after = mol.state_dict()
    assert (after["step"], after["recorded"]) == (1, 1)
    torch.testing.assert_close(after["tensors"], before["tensors"], rtol=0, atol=0, equal_nan=True)


def test_second_derivatives_of_tracked_gradients_are_an_error(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.MoCo(0.5, tracking=0.3), eq.Last()))
    with pytest.raises(ValueError, match="such as MoCo, must be differentiated once; found create_graph=True"):
        mol(run.losses(0)).backward(create_graph=True)


# What a step costs --------------------------------------------------------------------------------

COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
"""Frames of their own before Python 3.12."""


def test_a_step_takes_few_calls_into_the_library(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 50)
    library, calls = str(Path(eq.__file__).parent), 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        code = frame.f_code
        calls += event == "call" and code.co_filename.startswith(library) and code.co_name not in COMPREHENSIONS

    sys.setprofile(count)
    try:
        run.run(mol, 10, 50)
    finally:
        sys.setprofile(None)
    assert calls / 10 <= 60


# Losses in every form -----------------------------------------------------------------------------


def test_losses_come_by_name_too(toy, preference):
    by_name, plain = toy(), toy()
    names = ("a", "b", "c")
    left = eq.MultiObjective(by_name.model, by_name.optimizer, preference, method=(eq.OMD(), ADAPTIVE), names=names)
    right = eq.MultiObjective(plain.model, plain.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    for step in range(5):
        f = by_name.losses(step)
        left({"c": f[2], "a": f[0], "b": f[1]}).backward()
        by_name.optimizer.step()
        by_name.optimizer.zero_grad()
    plain.run(right, 5)
    assert_same(by_name.params(), plain.params())


def test_losses_come_in_a_list_too(toy, preference):
    whole, single = toy(), toy()
    for run, form in ((whole, lambda f: f), (single, list)):
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
        for step in range(4):
            mol(form(run.losses(step))).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert all(torch.equal(p, single.params()[name]) for name, p in whole.params().items())


def test_a_loop_that_never_steps_is_told_so(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    mol.solution()  # fresh: nothing to say
    for step in range(3):
        run.optimizer.zero_grad()
        mol(run.losses(step)).backward()
    with pytest.warns(UserWarning, match=r"nothing was recorded: no optimizer\.step\(\) followed a call of mol"):
        mol.solution()
    run.optimizer.step()
    mol.solution()
    mol(run.losses(3)).backward()
    mol.solution()


@pytest.mark.parametrize(
    ("every", "why"),
    [
        (9, r"of 3 steps none was due for every=9, and record\(\) was not called"),
        (None, r"of 3 steps none was due for every=None, and record\(\) was not called"),
    ],
)
def test_a_run_that_records_nothing_is_told_so(every, why, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, every=every)
    start = run.params()
    run.run(mol, 3)
    with pytest.warns(UserWarning, match=rf"nothing was recorded: {why}\. The solution is where the run began") as said:
        found = mol.solution()
    assert said[0].filename == __file__
    assert_same(found, start)
    with pytest.warns(UserWarning, match="nothing was recorded"), mol.solution_weights():
        pass


@pytest.mark.parametrize("to_none", [True, False])
def test_eight_backward_passes_without_a_step_are_said_once(to_none, toy, preference):
    """As when a second phase of the training steps another optimizer."""
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 3)
    second = torch.optim.Adam(run.model.parameters())

    def phase(steps: int) -> None:
        for step in range(steps):
            mol(run.losses(step)).backward()
            second.step()
            second.zero_grad(set_to_none=to_none)

    phase(8)
    text = (
        r"8 backward passes of mol in a row were not followed by a step of its optimizer.*"
        r"If another optimizer is stepped, make a new MultiObjective"
    )
    with pytest.warns(UserWarning, match=text) as said:
        phase(1)
    assert said[0].filename == __file__
    phase(20)
    assert (mol.step, mol.recorded) == (3, 3)
    run.run(mol, 1)
    phase(8)  # a gradient scaler may skip some now and then
    with pytest.warns(UserWarning, match=text):
        phase(1)


def test_a_penalty_in_some_steps_is_added_to_the_scalar(toy, preference):
    run, plain = toy(), toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method="LS")
    for step in range(4):
        for one, scalar in ((run, mol(run.losses(step))), (plain, (preference * plain.losses(step)).sum())):
            penalty = sum(p.square().sum() for p in one.model.parameters())
            (scalar + 0.1 * penalty if step % 2 else scalar).backward()
            one.optimizer.step()
            one.optimizer.zero_grad()
    torch.testing.assert_close(run.params(), plain.params())


def test_a_second_shell_takes_the_optimizer_over(toy, preference):
    run = toy()
    settings: Any = {"optimizer": run.optimizer, "preference": preference, "method": (eq.OMD(), ADAPTIVE)}
    first = eq.MultiObjective(run.model, **settings)
    run.run(first, 2)
    answer = first.solution()
    with pytest.warns(UserWarning, match="an earlier MultiObjective on this optimizer was closed"):
        second = eq.MultiObjective(run.model, **settings)
    run.run(second, 3)
    assert (first.step, second.step) == (2, 3)
    for use in (first, first.record):
        with pytest.raises(ValueError, match=r"mol must be open: close\(\) ends its run, and so does a newer"):
            use(run.losses(0))
    assert all(torch.equal(x, answer[name]) for name, x in first.solution().items())
    second.close()
    third = eq.MultiObjective(run.model, **settings)  # no warning: the second had let go
    run.run(third, 1)
    assert third.recorded == 1


def test_a_preference_in_double_does_not_make_a_run_double(toy):
    w: Any = np.array([0.2, 0.3, 0.5])
    for dtype in (torch.float32, torch.float64):
        run = toy(dtype=dtype)
        mol = eq.MultiObjective(run.model, run.optimizer, w, method=(eq.OMD(), ADAPTIVE))
        run.run(mol, 2)
        assert {mol.preference.dtype, mol.coefficients.dtype, *(x.dtype for x in mol.solution().values())} == {dtype}


def test_it_is_shown_in_a_line(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 2)
    assert repr(mol) == "MultiObjective(Sequential, OMD, Adaptive, preference=[0.2, 0.3, 0.5], step=2, recorded=2)"


def test_what_is_recorded_is_the_iterate_that_the_losses_were_measured_at(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()))
    before = run.params()
    run.run(mol, 1)
    assert_same(mol.solution(), before)
    assert not torch.equal(run.params()["0.weight"], before["0.weight"])


def test_nothing_is_committed_before_the_optimizer_steps(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
    mol(run.losses(0)).backward()
    after = mol.state_dict()
    assert after["step"] == 0
    assert_same(after["tensors"], before)
    run.optimizer.step()
    assert mol.step == 1
    assert not torch.equal(mol.state_dict()["tensors"]["weighting.dual"], before["weighting.dual"])


def test_snapshots_do_not_follow_the_model(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 4)
    before = mol.solution()
    with torch.no_grad():
        for p in run.model.parameters():
            p.fill_(torch.nan)
    assert_same({name: x for name, x in mol.solution().items() if name in before}, before)


def test_the_model_is_referred_to_and_not_owned(toy, preference):
    run = toy()
    keys = set(run.model.state_dict())
    mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), ADAPTIVE))
    assert not isinstance(mol, nn.Module)

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.mol = run.model, mol

    assert {f"model.{key}" for key in keys} == set(Trainer().state_dict())


def test_an_optimizer_outlives_its_shell(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 2)
    del mol
    gc.collect()
    run.losses(0).sum().backward()
    run.optimizer.step()
    again = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.optimizer.zero_grad()
    run.run(again, 2)
    again.close()
    run.losses(0).sum().backward()
    run.optimizer.step()
    assert again.step == 2


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("weighting", [eq.SelfTuned(), eq.MoCo(0.5, tracking=0.3)], ids=["known", "measured"])
def test_a_deep_copy_goes_on_by_itself(weighting, deferred, toy, preference):
    run, alone = toy(torch.optim.Adam), toy(torch.optim.Adam)
    check: Any = "deferred" if deferred else "now"
    settings: Any = {"preference": preference, "method": (weighting, ADAPTIVE), "check": check}
    mol = eq.MultiObjective(run.model, run.optimizer, **settings)
    plain = eq.MultiObjective(alone.model, alone.optimizer, **settings)
    run.run(mol, 4)
    alone.run(plain, 4)
    model, optimizer, other = copy.deepcopy((run.model, run.optimizer, mol))
    twin = run._replace(model=model, optimizer=optimizer)
    assert other.model is model
    twin.run(other, 3, 4)
    assert (mol.step, mol.recorded, other.step, other.recorded) == (4, 4, 7, 7)
    assert_same(run.params(), alone.params())
    assert_same(mol.solution(), plain.solution())
    for one, shell in ((run, mol), (alone, plain)):
        one.run(shell, 3, 4)
    for one, shell in ((run, mol), (twin, other)):
        assert_same(one.params(), alone.params())
        assert_same(shell.solution(), plain.solution())
        assert_same(shell.state_dict()["tensors"], plain.state_dict()["tensors"])
    other.close()
    run.run(mol, 1, 7)
    assert (mol.step, other.step) == (8, 7)


def test_a_copy_has_a_thread_of_its_own(toy, preference, as_accelerator):
    run, alone = toy(), toy()
    plain = eq.MultiObjective(alone.model, alone.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store="host")
        run.run(mol, 3)
        model, optimizer, other = copy.deepcopy((run.model, run.optimizer, mol))
        mol.close()
        run._replace(model=model, optimizer=optimizer).run(other, 3, 3)
    alone.run(plain, 6)
    assert_same(other.solution(), plain.solution())
    assert (mol.recorded, other.recorded) == (3, 6)
    other.close()


def test_a_run_with_its_copies_in_a_folder_is_not_copied(toy, preference, tmp_path):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, store=tmp_path)
    with pytest.raises(eq.StoreError, match="a run with its store in a folder cannot be copied: load its state_dict"):
        copy.deepcopy(mol)
    run.run(mol, 2)
    mol.close()


def test_a_copy_of_the_optimizer_alone_tells_nothing(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    run.run(mol, 2)
    model, optimizer = copy.deepcopy((run.model, run.optimizer))
    model(run.batch(0)[0]).sum().backward()
    optimizer.step()
    assert mol.step == 2
    run.run(mol, 1)
    assert mol.step == 3


class Averaging(torch.optim.SGD):
    """Calls the step of its parent, as optimizers that add something to another one do."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("closure", [False, True], ids=["without closure", "with closure"])
@pytest.mark.parametrize("weighting", [eq.OMD(), eq.Tchebycheff()], ids=["known", "measured"])
def test_a_step_that_calls_the_step_of_its_parent_is_one_step(weighting, closure, toy, preference):
    """The step of the parent has hooks of its own once a plain parent was made."""
    plain, derived = toy(torch.optim.SGD), toy(Averaging)
    assert hasattr(torch.optim.SGD.step, "hooked")
    mols = [
        eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, eq.Average()))
        for run in (plain, derived)
    ]
    for step in range(5):
        plain.run(mols[0], 1, step)
        if closure:

            def evaluate(step: int = step) -> Tensor:
                derived.optimizer.zero_grad()
                scalar = mols[1](derived.losses(step))
                scalar.backward()
                return scalar

            derived.optimizer.step(evaluate)
        else:
            derived.run(mols[1], 1, step)
    assert [(mol.step, mol.recorded) for mol in mols] == [(5, 5), (5, 5)]
    assert_same(derived.params(), plain.params())
    assert_same(mols[1].state_dict()["tensors"], mols[0].state_dict()["tensors"])


def test_gradient_clipping_and_schedulers_are_as_ever(toy, preference):
    ours, theirs = toy(torch.optim.AdamW), toy(torch.optim.AdamW)
    mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    state = eq.OMD().init(torch.zeros(3))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, 6) for run in (ours, theirs)]
    for step in range(6):
        mol(ours.losses(step)).backward()
        losses = theirs.losses(step)
        c, state = eq.OMD().update(losses, state, preference)
        (3 * c * losses).sum().backward()
        for run, schedule in zip((ours, theirs), schedules, strict=True):
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
            run.optimizer.step()
            schedule.step()
            run.optimizer.zero_grad()
    assert_same(ours.params(), theirs.params())
    assert mol.step == 6


@pytest.mark.parametrize("weighting", [eq.OMD(), eq.MGDA(), eq.MoCo(0.5, tracking=0.3)], ids=["OMD", "MGDA", "MoCo"])
def test_an_optimizer_that_evaluates_a_closure_commits_once_a_step(weighting, toy, preference):
    run = toy(torch.optim.LBFGS, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, eq.Last()))
    evaluations, scalars = 0, []

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        run.optimizer.zero_grad()
        scalar = mol(run.losses(0))
        scalar.backward()
        return scalar.detach()

    for _ in range(3):
        before = run.params()
        scalars.append(float(run.optimizer.step(closure)))
        assert_same(mol.solution(), before)
    assert mol.step == 3
    assert evaluations > 3
    assert scalars[2] < scalars[0]


def test_lbfgs_needs_a_line_search_where_coefficients_change(toy, preference):
    run = toy(torch.optim.LBFGS)
    with pytest.warns(UserWarning, match=r'^LBFGS without a line search may diverge.*line_search_fn="strong_wolfe"'):
        eq.MultiObjective(run.model, run.optimizer, preference).close()
    eq.MultiObjective(run.model, run.optimizer, preference, method="LS").close()
    searching = toy(torch.optim.LBFGS, line_search_fn="strong_wolfe")
    eq.MultiObjective(searching.model, searching.optimizer, preference)


@pytest.mark.parametrize("units", [None, "start"])
def test_coefficients_of_losses_alone_are_those_of_every_evaluation(units, toy, preference):
    run = toy(torch.optim.LBFGS, lr=1.0, max_iter=8, line_search_fn="strong_wolfe")
    weighting = eq.SmoothTchebycheff(0.01)
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, eq.Last()), units=units)
    first, found, wanted = run.losses(0).detach(), [], []

    def closure() -> Tensor:
        run.optimizer.zero_grad()
        losses = run.losses(0)
        scalar = mol(losses)
        scalar.backward()
        f = losses.detach() / (first if units else 1.0)
        found.append(scalar.item())
        wanted.append(float(3 * (weighting.update(f, weighting.init(f), preference)[0] * f).sum()))
        return scalar

    run.optimizer.step(closure)
    assert len(found) > 4
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_trained_parameters_outside_the_model_are_counted(inside):
    trunk, head = nn.Linear(2, 2), nn.Linear(2, 1)
    both = nn.ModuleList([trunk, head])
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    if inside:
        eq.MultiObjective(both, optimizer, [0.5, 0.5])  # a warning is an error in tests
        return
    eq.MultiObjective(trunk, optimizer, [0.5, 0.5], parameters=["weight", "bias"]).close()
    text = (
        "^2 of the 4 parameters of the optimizer are not in the model, so the solution and checkpoints of mol lack them"
    )
    with pytest.warns(UserWarning, match=text) as said:
        eq.MultiObjective(trunk, optimizer, [0.5, 0.5])
    assert len(said) == 1
    assert said[0].filename == __file__


def test_a_run_is_saved_by_its_state_and_not_pickled(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference)
    with pytest.raises(TypeError, match=r"cannot be pickled.*save its state_dict\(\) with torch.save or eq.train.save"):
        pickle.dumps(mol)


def test_a_closure_of_a_plain_optimizer_is_a_call_before_it(toy, preference):
    inside, before = toy(), toy()
    left = eq.MultiObjective(inside.model, inside.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    right = eq.MultiObjective(before.model, before.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    for step in range(5):

        def closure(step: int = step) -> Tensor:
            inside.optimizer.zero_grad()
            scalar = left(inside.losses(step))
            scalar.backward()
            return scalar

        inside.optimizer.step(closure)
    before.run(right, 5)
    assert_same(inside.params(), before.params())
    assert_same(left.state_dict()["tensors"], right.state_dict()["tensors"])


def test_every_nth_step_is_recorded(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Average()), every=3)
    iterates = []
    for step in range(8):
        iterates.append(run.params())
        run.run(mol, 1, step)
    expected = {name: (iterates[2][name] + iterates[5][name]) / 2 for name in iterates[0]}
    torch.testing.assert_close(mol.solution(), expected)


def test_other_losses_can_decide_what_is_kept(toy, preference):
    run = toy()
    mol = eq.MultiObjective(
        run.model, run.optimizer, preference, method=(eq.Linear(), eq.Adaptive(capacity=4)), every=None
    )
    kept: dict[str, Tensor] = {}
    for step, held_out in enumerate([3.0, 1.0, 2.0]):
        if held_out == 1.0:
            kept = run.params()
        mol(run.losses(step)).backward()
        mol.record(torch.full((3,), held_out))
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert_same(mol.solution(), kept)
    assert mol.metrics()["archive"] == 1


def test_record_takes_the_place_of_the_training_losses(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Average()))
    iterates = []
    for step in range(4):
        iterates.append(run.params())
        mol(run.losses(step)).backward()
        if step in {0, 3}:
            mol.record(run.losses(0))
        run.optimizer.step()
        run.optimizer.zero_grad()
    expected = {name: (iterates[0][name] + iterates[3][name]) / 2 for name in iterates[0]}
    torch.testing.assert_close(mol.solution(), expected)


def test_iterates_are_not_compared_by_two_kinds_of_losses(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), ADAPTIVE))
    run.run(mol, 2)
    with pytest.raises(
        ValueError, match="give every=None, or call it before mol; found 2 iterates compared by training"
    ):
        mol.record(run.losses(0))


def test_absent_objectives_are_masked(toy, preference):
    run = toy(dtype=torch.float64)
    weighting = eq.OMD(0.5, eq.Entropic())
    w = preference.double()
    mol = eq.MultiObjective(run.model, run.optimizer, w, method=(weighting, ADAPTIVE))
    state = weighting.init(torch.zeros(3, dtype=torch.float64))
    for step, counts in enumerate([[4, 4, 8], [4, 0, 8], [0, 0, 2], [1, 1, 1]]):
        losses = run.losses(step)
        c, state = weighting.update(losses, state, w, mask=torch.tensor(counts) > 0)
        holed = torch.where(torch.tensor(counts) > 0, losses, torch.nan)
        scalar = mol(holed, counts)
        torch.testing.assert_close(scalar, (3 * c * losses).sum())
        scalar.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert_same(states.flatten(state), states.flatten(mol._run.weights.state))


def test_half_precision_parameters_are_recorded_in_single(toy, preference):
    run = toy(dtype=torch.bfloat16)
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Average()))
    run.run(mol, 3)
    solution = mol.solution()
    assert {x.dtype for x in solution.values()} == {torch.float32}
    run.model.load_state_dict(solution)
    assert run.model[0].weight.dtype == torch.bfloat16


def test_double_stays_double(toy, preference):
    run = toy(dtype=torch.float64)
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 3)
    assert {x.dtype for x in mol.solution().values()} == {torch.float64}


def test_memory_is_the_capacity(toy, preference):
    """However long the run: the copies are allocated once, and stay where they are."""
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))

    def addresses() -> list[int]:
        return [x.data_ptr() for j in range(3) for x in mol._run.archive.slots.read(j).values()]

    before = addresses()
    run.run(mol, 30)
    assert addresses() == before
    assert len(set(before)) == 3 * len(run.params())


def live_bytes() -> int:
    """Of all tensors that are reachable and take memory, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in {Tensor, nn.Parameter} and thing.device.type != "meta":
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.slow
def test_ten_thousand_noisy_steps_stay_at_eight_copies():
    torch.manual_seed(0)
    m, model = 10, nn.Linear(100, 100)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    start = live_bytes()
    mol = eq.MultiObjective(model, optimizer, torch.full((m,), 1 / m), method=(eq.OMD(), eq.Adaptive(capacity=8)))
    for step in range(10_000):
        mol(model.weight.square().mean() + torch.rand(m)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in {100, 1000, 9999}:
            assert live_bytes() - start < 8 * size + 16_384
    assert mol.metrics()["archive"] == 8


@pytest.mark.parametrize(
    ("weighting", "place"), [(eq.OMD(), "cpu"), (eq.Momentum(eq.Tchebycheff()), "meta")], ids=["known", "measured"]
)
def test_moving_is_a_matter_of_one_call(weighting, place, toy, preference):
    """Copies go where the model is; λ that is known before the losses stays on the host."""
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, ADAPTIVE))
    run.run(mol, 3)
    before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
    assert mol.to("cpu") is mol
    assert_same(mol.state_dict()["tensors"], before)
    run.model.to("meta")
    mol.to("meta")
    assert {x.device.type for x in states.flatten(mol._run.weights.state).values()} == {place}
    assert {x.device.type for j in range(3) for x in mol._run.archive.slots.read(j).values()} == {"meta"}
    assert mol.solution()["0.weight"].device.type == "meta"


@pytest.mark.parametrize("name", ["weighting", "conversion", "preference"])
def test_what_a_run_was_made_with_cannot_be_replaced(name, toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    with pytest.raises(AttributeError):
        setattr(mol, name, None)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_scripted_model(preference):
    torch.manual_seed(0)
    model = torch.jit.script(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mol = eq.MultiObjective(model, optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    for _ in range(3):
        mol(model(torch.ones(2, 4)).square().mean(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert mol.solution()["weight"].shape == (3, 4)


def test_without_an_optimizer_a_step_that_failed_is_forgotten(preference, monkeypatch):
    model = torch.nn.Linear(2, 3)
    mol, same = (eq.MultiObjective(model, None, preference) for _ in range(2))
    x = torch.ones(2)
    with monkeypatch.context() as patched:
        patched.setattr(mol._run, "_begin_step", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            mol(model(x).square())
    for _ in range(2):
        mol(model(x).square())
        same(model(x).square())
    assert mol.step == same.step == 2
    assert torch.equal(mol.coefficients, same.coefficients)
