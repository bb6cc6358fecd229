"""Runs on a device that works beside the host: the same runs, and nobody waits for the losses of his own step."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.host import Fetched

ADAPTIVE = eq.Adaptive(power=2, capacity=3)
EARLY = {
    "adaptive": eq.OMD(),
    "default": eq.OMD(optimism=30.0, smoothing=3.0, horizon=4.0),
    "entropic": eq.OMD(0.5, eq.Entropic()),
    "linear": eq.Linear(),
}
OTHERS = {
    "alternating": eq.OMD(order="alternating"),
    "smooth": eq.SmoothTchebycheff(0.1),
    "relative": eq.Relative(eq.OMD()),
    "momentum": eq.Momentum(eq.OMD()),
    "gradients": eq.MGDA(),
}
WEIGHTINGS = EARLY | OTHERS


def plain(run: Any, mol: eq.MultiObjective) -> None:
    run.run(mol, 10)


def accumulating(run: Any, mol: eq.MultiObjective) -> None:
    for step in range(8):
        for part in range(1 + step % 3):
            (mol(run.losses(step + part)) / (1 + step % 3)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


def counting(run: Any, mol: eq.MultiObjective) -> None:
    for step in range(8):
        mol(run.losses(step), counts=torch.tensor([4.0, step % 2, 3.0])).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


def by_closure(run: Any, mol: eq.MultiObjective) -> None:
    for step in range(6):

        def closure(step: int = step) -> Tensor:
            run.optimizer.zero_grad()
            scalar: Tensor = mol(run.losses(step))
            scalar.backward()
            return scalar

        run.optimizer.step(closure)


def given(run: Any, mol: eq.MultiObjective) -> None:
    for step in range(8):
        if step % 2 == 0:
            mol.record(run.losses(0).detach())
        run.run(mol, 1, step)


def thrown_away(run: Any, mol: eq.MultiObjective) -> None:
    """Backward passes without a step, and a model that is changed before one."""
    for step in range(8):
        if step % 3 == 1:
            mol(run.losses(step + 1)).backward()
            run.optimizer.zero_grad()
        mol(run.losses(step)).backward()
        if step % 3 == 2:
            with torch.no_grad():
                next(iter(run.model.parameters())).mul_(0.5)
        if step % 4 == 3:
            mol.state_dict()
            mol.solution()
        run.optimizer.step()
        run.optimizer.zero_grad()


def looked_at(run: Any, mol: eq.MultiObjective) -> None:
    """Whoever looks sees the last step."""
    for step in range(6):
        run.run(mol, 1, step)
        assert mol.metrics()["step"] == step + 1
        expected = mol.weighting.foreseen(mol._state.weighting, mol.preference)
        assert (expected is None) == (mol.weighting not in EARLY.values())


LOOPS: dict[str, Callable[[Any, eq.MultiObjective], None]] = {
    loop.__name__.replace("_", " "): loop
    for loop in (plain, accumulating, counting, by_closure, given, thrown_away, looked_at)
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_it_is_the_same_run(weighting, loop, toy, preference, beside_the_host):
    found = []
    for late in (True, False):
        run = toy()
        with beside_the_host() if late else nullcontext():
            mol = eq.MultiObjective(run.model, weighting, preference, ADAPTIVE, run.optimizer)
        assert mol._early == (late and weighting in EARLY.values())
        loop(run, mol)
        solution, metrics = mol.solution(), mol.metrics()
        tensors = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
        found.append((run.params(), tensors, solution, mol.coefficients, mol.duals, mol.recorded, metrics))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("conversion", [ADAPTIVE, eq.Average(), eq.Last()], ids=["adaptive", "average", "last"])
def test_without_an_optimizer_every_call_commits(conversion, toy, preference, beside_the_host):
    found = []
    for late in (True, False):
        run = toy()
        with beside_the_host() if late else nullcontext():
            mol = eq.MultiObjective(run.model, eq.OMD(), preference, conversion)
        run.run(mol, 7)
        found.append((run.params(), mol.state_dict()["tensors"], mol.solution()))
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Slow:
    """The moment at which losses arrive on the host."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def synchronize(self) -> None:
        assert self.gate.wait(20)


def test_a_step_is_over_before_its_losses_have_arrived(toy, preference, beside_the_host, monkeypatch):
    run = toy()
    with beside_the_host():
        mol = eq.MultiObjective(run.model, eq.OMD(), preference, ADAPTIVE, run.optimizer, check="deferred")
    run.run(mol, 4)
    slow = Slow()

    def fetch(tensor: Tensor) -> Fetched:
        return Fetched(tensor.detach().clone(), slow)  # type: ignore[arg-type]

    monkeypatch.setattr("equipoise.train.later.fetch", fetch)
    run.run(mol, 1, 4)  # would wait for ever
    assert not slow.gate.is_set()
    threading.Timer(0.02, slow.gate.set).start()
    run.run(mol, 1, 5)  # waits for those of the step before
    assert slow.gate.is_set()
    other = toy()
    expected = eq.MultiObjective(other.model, eq.OMD(), preference, ADAPTIVE, other.optimizer)
    other.run(expected, 6)
    torch.testing.assert_close(mol.solution(), expected.solution(), rtol=0, atol=0)


@pytest.mark.parametrize("part", ["ledger", "weighting", "copy"])
def test_an_error_of_the_thread_is_raised_by_the_training(part, toy, preference, beside_the_host, monkeypatch):
    run = toy()
    with beside_the_host():
        mol = eq.MultiObjective(run.model, eq.OMD(), preference, ADAPTIVE, run.optimizer)
    run.run(mol, 3)
    mol.solution()

    def broken(*_: object, **__: object) -> None:
        assert threading.current_thread() is not threading.main_thread()
        raise RuntimeError("in the thread")

    names = {
        "ledger": "equipoise.conversion.Adaptive.plan",
        "weighting": "equipoise.weighting.OMD.update",
        "copy": "equipoise.train.courier.Aside.hold",
    }
    monkeypatch.setattr(names[part], broken)
    with pytest.raises(RuntimeError, match="in the thread"):
        run.run(mol, 2, 3)


def test_loading_forgets_what_was_begun(toy, preference, beside_the_host):
    source, other = toy(), toy()
    with beside_the_host():
        first = eq.MultiObjective(source.model, eq.OMD(), preference, ADAPTIVE, source.optimizer, store="host")
        second = eq.MultiObjective(other.model, eq.OMD(), preference, ADAPTIVE, other.optimizer, store="host")
    source.run(first, 5)
    saved = first.state_dict()
    other.run(second, 3)
    second(other.losses(3)).backward()
    second.load_state_dict(saved)
    other.model.load_state_dict(source.model.state_dict())
    other.optimizer.zero_grad()
    source.run(first, 3, 5)
    other.run(second, 3, 5)
    torch.testing.assert_close(second.solution(), first.solution(), rtol=0, atol=0)
    assert second.metrics() == first.metrics()
