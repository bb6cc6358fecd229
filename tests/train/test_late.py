"""Runs on an asynchronous device: the same results, without waiting for the losses of the current step."""

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.host import Fetched
from equipoise.train.slots import Held, InMemory, copy_aside
from equipoise.weighting.omd import OMDState

OMD, ADAPTIVE = eq.OMD(), eq.Adaptive(power=2, capacity=3)
WEIGHTINGS = {
    "simultaneous": eq.OMD(),
    "default": eq.OMD(optimism=30.0, smoothing=3.0, horizon=4.0),
    "entropic": eq.OMD(0.5, eq.Entropic()),
    "linear": eq.Linear(),
    "alternating": eq.OMD(order="alternating"),
    "smooth": eq.SmoothTchebycheff(0.1),
    "relative": eq.Relative(eq.OMD()),
    "momentum": eq.Momentum(eq.OMD()),
    "gradients": eq.MGDA(),
}


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
    """With two calls, which have other objectives, in some of the evaluations."""
    for step in range(6):

        def closure(step: int = step) -> Tensor:
            run.optimizer.zero_grad()
            scalar: Tensor = mol(run.losses(step), counts=[1, 1, 0] if step % 2 else None)
            scalar.backward()
            if step % 2:
                mol(run.losses(step), counts=[0, 1, 1]).backward()
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
    """Reading commits the last step first."""
    for step in range(6):
        run.run(mol, 1, step)
        assert mol.metrics()["step"] == mol.recorded == step + 1
        mol.solution()


LOOPS: dict[str, Callable[[Any, eq.MultiObjective], None]] = {
    loop.__name__.replace("_", " "): loop
    for loop in (plain, accumulating, counting, by_closure, given, thrown_away, looked_at)
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_it_is_the_same_run(weighting, loop, toy, preference, as_accelerator):
    found = []
    for late in (True, False):
        run = toy()
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, ADAPTIVE))
        loop(run, mol)
        solution, metrics = mol.solution(), mol.metrics()
        tensors = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
        found.append((run.params(), tensors, solution, mol.coefficients, mol.duals, mol.recorded, metrics))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("conversion", [ADAPTIVE, eq.Average(), eq.Last(), eq.Suffix()], ids=str)
def test_without_an_optimizer_every_call_commits(conversion, toy, preference, as_accelerator):
    found = []
    for late in (True, False):
        run = toy()
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), conversion))
        run.run(mol, 7)
        found.append((run.params(), mol.state_dict()["tensors"], mol.solution()))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


class Slow:
    """The moment at which losses arrive on the host."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def query(self) -> bool:
        return self.gate.is_set()

    def synchronize(self) -> None:
        assert self.gate.wait(20)


def test_a_call_after_a_step_that_the_device_skips(toy, preference, as_accelerator):
    """It is thrown away, and must not touch what the run stands at."""
    found = []
    for late in (True, False):
        run = toy(optimizer=torch.optim.Adam, fused=True)
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
        run.run(mol, 3)
        for skipped in (1.0, 0.0):
            mol(run.losses(3)).backward()
            run.optimizer.found_inf, run.optimizer.grad_scale = torch.tensor(skipped), torch.tensor(1.0)
            run.optimizer.step()
            del run.optimizer.found_inf, run.optimizer.grad_scale
            run.optimizer.zero_grad()
            before = {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}
            mol(run.losses(4))
            mol(run.losses(5))
            torch.testing.assert_close(mol.state_dict()["tensors"], before, rtol=0, atol=0, equal_nan=True)
        found.append((before, mol.coefficients, mol.duals))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


def test_of_every_call_the_host_is_told(toy, preference, as_accelerator):
    """Also of one that is not differentiated, between others."""
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="deferred")
    run.run(mol, 2)
    mol(run.losses(2)).backward()
    mol(run.losses(3) * torch.tensor([1.0, torch.nan, 1.0]))
    run.optimizer.step()
    with pytest.raises(eq.NonFiniteLossError, match="for objective 1 in step 3"):
        mol(run.losses(4))


def test_a_step_is_over_before_its_plan_has_arrived(toy, preference, as_accelerator, monkeypatch):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), check="deferred")
    run.run(mol, 4)
    slow = Slow()

    def fetch(tensor: Tensor) -> Fetched[Tensor]:
        return Fetched(tensor.detach().clone(), slow)  # type: ignore[arg-type]

    monkeypatch.setattr("equipoise.train.run.fetch", fetch)
    run.run(mol, 1, 4)  # would wait for ever
    assert not slow.gate.is_set()
    threading.Timer(0.02, slow.gate.set).start()
    run.run(mol, 1, 5)  # waits for those of the step before
    assert slow.gate.is_set()
    other = toy()
    expected = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    other.run(expected, 6)
    torch.testing.assert_close(mol.solution(), expected.solution(), rtol=0, atol=0)


@pytest.mark.parametrize("store", ["device", "host"])
def test_an_error_of_a_plan_is_raised_once_and_the_run_can_go_on(store, toy, preference, as_accelerator, monkeypatch):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=store)
    run.run(mol, 3)
    mol.solution()
    saved = copy.deepcopy(mol.state_dict())

    def broken(*_: object, **__: object) -> None:
        assert (store == "host") == (threading.current_thread() is not threading.main_thread())
        raise RuntimeError("on the way")

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.train.archive.execute", broken)
        with pytest.raises(RuntimeError, match="on the way"):
            run.run(mol, 3, 3)
    run.optimizer.zero_grad()
    mol.load_state_dict(saved)
    run.run(mol, 2)
    assert (mol.step, mol.recorded) == (5, 5)


def both(
    toy, preference, as_accelerator, weighting: Any = OMD, conversion: Any = ADAPTIVE, **settings: Any
) -> Iterator[tuple[Any, Any]]:
    """A run on a device beside the host, then the same on the host; their checkpoints must agree in the end."""
    found = []
    for late in (True, False):
        run = toy()
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, conversion), **settings)
        yield run, mol
        found.append((run.params(), {name: x.clone() for name, x in mol.state_dict()["tensors"].items()}))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("store", ["device", "host"])
def test_a_parameter_that_is_replaced_before_the_step(store, toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator, store=store):
        run.run(mol, 2)
        mol(run.losses(3)).backward()
        layer = run.model[0]
        layer.weight = nn.Parameter(layer.weight.detach() * 0.5)
        run.optimizer.step()


def test_a_module_that_is_replaced_before_the_step(toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator, conversion=eq.Last(), store="host"):
        run.run(mol, 2)
        mol(run.losses(3)).backward()
        run.model[0] = copy.deepcopy(run.model[0])
        with torch.no_grad():
            run.model[0].weight.mul_(0.5)
        run.optimizer.step()


@pytest.mark.parametrize("store", ["device", "host"])
def test_recording_in_inference_mode(store, toy, preference, as_accelerator):
    """As evaluation loops are in: what is kept is no inference tensor, which could not be written to later."""
    for run, mol in both(toy, preference, as_accelerator, store=store, every=None):
        for step in range(6):
            with torch.inference_mode(mode=step % 2 == 0):
                mol.record(run.losses(0).detach())
            run.run(mol, 1, step)
        assert mol.recorded == 6


@pytest.mark.parametrize("weighting", [eq.OMD(), eq.Tchebycheff(), eq.MGDA()], ids=["omd", "tchebycheff", "mgda"])
def test_loading_and_moving_in_inference_mode(weighting, toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator, weighting):
        accumulating(run, mol)
        saved = copy.deepcopy(mol.state_dict())
        with torch.inference_mode():
            mol.load_state_dict(copy.deepcopy(saved))
        accumulating(run, mol)  # with the coefficients of the step before, which were loaded
        with torch.inference_mode():
            mol.to("cpu")
        run.run(mol, 3)
        assert mol.recorded == 19


def test_another_precision_on_the_way(toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator, store="host"):
        run.run(mol, 3)
        run.model.double()
        for step in range(3, 6):
            x, y = run.batch(step)
            mol((run.model(x.double()) - y).square().mean(0).float()).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()


def test_small_tensors_of_all_kinds(preference, as_accelerator):
    """Those that travel together arrive as they were."""
    found = []
    for late in (True, False):
        torch.manual_seed(0)
        model = nn.Module()
        model.a = nn.Parameter(torch.randn(4, 2, 3, 3).contiguous(memory_format=torch.channels_last))
        model.b = nn.Parameter(torch.randn(5, 3).T)
        model.c = nn.Parameter(torch.randn(()))
        model.d = nn.Parameter(torch.zeros(0, 3))
        model.e = nn.Parameter(torch.randn(3).bfloat16())
        model.f = nn.Parameter(torch.randn(3).double())
        model.g = nn.Parameter(torch.randn(200, 100))  # 80 kB: by itself
        model.h = nn.Parameter(torch.randn(200, 300)[:, :150].T)
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(model, None, preference, method=(eq.Linear(), eq.Last()), store="host", every=None)
        for step in range(3):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(step)
            mol.record(torch.ones(3))
        found.append(mol.solution())
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_failure_of_the_last_plan_is_told_even_if_the_call_is_thrown_away(
    toy, preference, as_accelerator, monkeypatch
):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store="host")
    run.run(mol, 2)
    mol.solution()

    def broken(*_: object) -> None:
        raise RuntimeError("on the way")

    def thrown() -> None:
        for step in range(3, 1000):
            time.sleep(0.1)  # the thread needs a moment, and eight passes without a step are warned of
            mol(run.losses(step)).backward()
            run.optimizer.zero_grad()

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.train.archive.execute", broken)
        run.run(mol, 1, 2)
        with pytest.raises(RuntimeError, match="on the way"):
            thrown()
    assert mol.recorded == 2
    run.run(mol, 2, 4)
    assert mol.recorded == 4


def test_a_call_that_is_differentiated_after_the_end(toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator):
        mol(run.losses(0)).backward()
        scalar = mol(run.losses(1))
        mol.close()
        scalar.backward()


def test_the_end_of_a_run_whose_store_fails_lets_go_of_it(toy, preference, as_accelerator, monkeypatch, tmp_path):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(
            run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path / "store"
        )
    run.run(mol, 2)
    mol.solution()

    def full(*_: object) -> None:
        raise eq.StoreError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.train.archive.execute", full)
        run.run(mol, 1, 2)
        with pytest.raises(eq.StoreError, match="no room"):
            mol.close()
    other = toy()
    again = eq.MultiObjective(
        other.model, other.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=tmp_path / "store"
    )
    again.load_state_dict(mol.state_dict())  # it is another's folder until then, but nobody's
    other.run(again, 1)
    assert again.recorded == 3


class Prefixed(nn.Module):
    """A wrapper whose parameters are called as those of what it wraps."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def named_parameters(self, *args: Any, **settings: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.inner.named_parameters(*args, **settings)


def test_names_of_the_model_s_own_making(toy, preference, as_accelerator):
    found = []
    for late in (True, False):
        run = toy()
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(Prefixed(run.model), run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
        run.run(mol, 4)
        found.append(mol.state_dict()["tensors"])
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


class Twice(eq.OMD):
    """Updates otherwise than the class it has `foreseen` from."""

    def update(self, *args: Any, **extra: Any) -> tuple[Tensor, OMDState]:
        c, state = super().update(*args, **extra)
        return 2 * c, state


class Own(eq.Weighting[OMDState]):
    """Foresees in its own way."""

    def init(self, losses: Tensor, **extra: Tensor) -> OMDState:
        return eq.OMD().init(losses, **extra)

    def update(self, *args: Any, **extra: Any) -> tuple[Tensor, OMDState]:
        return eq.OMD().update(*args, **extra)

    def foreseen(self, state: OMDState, preference: Tensor) -> Tensor | None:
        return eq.OMD().foreseen(state, preference)


class Odd(eq.Weighting[dict[str, Any]]):
    """What it gives is not always what `init` made: a tensor grows, has another dtype or comes later; or c is wider."""

    def __init__(self, what: str) -> None:
        self.what = what

    def init(self, losses: Tensor, **_: Tensor) -> dict[str, Any]:
        start = losses.new_zeros(0, len(losses)) if self.what == "grows" else losses.new_zeros(1, len(losses))
        return {"seen": None if self.what == "later" else start}

    def update(self, losses: Tensor, state: dict[str, Any], preference: Tensor, **_: Any) -> Any:
        old = losses.new_zeros(1, len(losses)) if state["seen"] is None else state["seen"]
        new = losses.detach()[None]
        seen = torch.cat([old, new]) if self.what == "grows" else old.double() + new
        c = preference * (1 + seen.mean(0).softmax(0))
        seen = seen if self.what in {"grows", "dtype"} else seen.to(losses.dtype)
        return c if self.what == "wide" else c.to(losses.dtype), {"seen": seen}


class Duck:
    """A weighting by what it has, as older ones have it."""

    needs: frozenset[str] = frozenset()
    traceable, uses_duals, origin = True, False, None
    init, update, rows = eq.Linear().init, eq.Linear().update, eq.Linear().rows


@pytest.mark.parametrize(
    ("weighting", "foresees"), [(Twice(), False), (Own(), True), (Duck(), False)], ids=["Twice", "Own", "Duck"]
)
def test_weightings_of_others(weighting, foresees, toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator, weighting):
        assert mol._run.weights.known == foresees
        plain(run, mol)
        accumulating(run, mol)


def more(model: nn.Module) -> None:
    model.get_submodule("0").register_parameter("more", nn.Parameter(torch.zeros(1)))


def first(model: nn.Module) -> None:
    model.get_submodule("1").register_parameter("slope", nn.Parameter(torch.ones(())))


def thawed(model: nn.Module) -> None:
    model.get_parameter("0.bias").requires_grad_(True)


def renamed(model: nn.Module) -> None:
    table = model.get_submodule("2")._parameters
    table["offset"] = table.pop("bias")


NEW = "parameters that require grad must be those there were at the start, or be named by parameters=; found "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (more, NEW + r"\['0.more'\] new"),
        (first, NEW + r"\['1.slope'\] new"),
        (thawed, NEW + r"\['0.bias'\] new"),
        (renamed, r"recorded parameters must stay in the model; found \['2.bias'\] gone"),
    ],
)
def test_parameters_that_change_before_a_step_are_refused_there(change, message, toy, preference, as_accelerator):
    run = toy()
    run.model[0].bias.requires_grad_(False)
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 2)
    mol(run.losses(3)).backward()
    change(run.model)
    with pytest.raises(ValueError, match=message):
        run.optimizer.step()


@pytest.mark.parametrize("what", ["grows", "dtype", "later", "wide", "stays"])
def test_a_state_that_does_not_stay_as_it_was_made(what, toy, preference, as_accelerator):
    found = []
    for late in (True, False):
        run = toy()
        with as_accelerator() if late else nullcontext():
            mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(Odd(what), ADAPTIVE))
        run.run(mol, 4)
        assert mol.recorded == 4
        seen = mol._run.weights.state["seen"]
        assert seen.shape == ((4, 3) if what == "grows" else (1, 3))
        assert seen.dtype == (torch.float64 if what == "dtype" else torch.float32)
        found.append((run.params(), seen.clone(), mol.coefficients, mol.solution()))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def replaced(layer: nn.Module) -> None:
    layer._parameters = {name: nn.Parameter(p.detach() + 1) for name, p in layer._parameters.items() if p is not None}


def transposed(layer: nn.Module) -> None:
    assert isinstance(layer, nn.Linear)
    layer.weight = nn.Parameter(layer.weight.detach().t())


def given_other_values(layer: nn.Module) -> None:
    assert isinstance(layer, nn.Linear)
    layer.weight = nn.Parameter(layer.weight.detach() + 1)
    layer.weight.detach().mul_(1)  # the version that the other one had


@pytest.mark.parametrize("store", ["device", "host"])
@pytest.mark.parametrize("change", [replaced, transposed, given_other_values])
def test_what_a_module_has_is_replaced_between_two_steps(change, store, preference, as_accelerator):
    """The second time by what has the memory of the first, or its version."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 4)
    with as_accelerator():
        mol = eq.MultiObjective(model, optimizer, preference, method=(eq.OMD(), eq.Last()), store=store)
    for step in range(6):
        if step == 3:
            change(model[0])
            optimizer.param_groups[0]["params"] = list(model.parameters())
        theta = {name: p.detach().clone() for name, p in model.named_parameters()}
        mol(model(x).square().mean(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in {2, 3, 5}:
            torch.testing.assert_close(mol.solution(), theta, rtol=0, atol=0)


@pytest.mark.parametrize("store", ["device", "host"])
def test_a_parameter_that_is_put_elsewhere_before_its_step(store, toy, preference, as_accelerator):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Last()), store=store)
    run.run(mol, 2)
    mol(run.losses(2)).backward()
    weight = run.model[0].weight
    version = weight._version
    weight.data = weight.detach() + 1
    assert weight._version == version
    theta = weight.detach().clone()
    run.optimizer.step()
    torch.testing.assert_close(mol.solution()["0.weight"], theta, rtol=0, atol=0)


def test_memory_that_is_freed_before_a_step_and_used_again(preference, as_accelerator):
    """Where θ was when it was sent, there is something else by then: an address alone does not tell."""
    for _ in range(20):  # an allocator gives the same address again, or not
        model = nn.Linear(4, 300_000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with as_accelerator():
            mol = eq.MultiObjective(model, optimizer, preference, method=(eq.OMD(), eq.Last()), store="host")
        for _ in range(2):
            mol((model(torch.ones(1, 4)).mean() - torch.arange(3.0)).square()).backward()
            bias = model.bias
            for _ in range(2):
                bias.data = bias.detach() + 1
            theta = bias.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            torch.testing.assert_close(mol.solution()["bias"], theta, rtol=0, atol=0)


def test_what_a_module_has_is_replaced_between_two_records(preference):
    model = nn.Linear(4, 3)
    mol = eq.MultiObjective(model, None, preference, method=(eq.OMD(), eq.Last()), every=None)
    mol.record(torch.ones(3))
    replaced(model)
    mol.record(torch.ones(3))
    torch.testing.assert_close(mol.solution()["weight"], model.weight.detach(), rtol=0, atol=0)


def test_what_is_put_aside_has_the_dtype_it_is_recorded_in():
    free: list[dict[str, Tensor]] = []
    for x in (torch.arange(4.0).half(), torch.arange(4.0).bfloat16(), torch.arange(4)):
        held = copy_aside({"x": x}, [], on_host=True)
        found = held.wait()["x"]
        assert found.dtype == (x.dtype if x.dtype == torch.int64 else torch.float32)
        assert torch.equal(found, x.to(found.dtype))
        free = [dict(held.value)]
    again = copy_aside({"x": torch.arange(4) + 1}, free, on_host=True)
    assert again.value["x"].tolist() == [1, 2, 3, 4]
    assert again.value["x"] is found  # the same memory
    assert not free


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kind", [Fetched, Held])
def test_what_is_on_its_way_is_waited_for(kind, there):
    slow = Slow()
    if there:
        slow.gate.set()
    threading.Timer(0.02, slow.gate.set).start()
    what = torch.ones(1)
    assert kind(what, slow).wait() is what
    assert slow.gate.is_set()


def test_a_run_that_is_made_in_inference_mode(toy, preference, as_accelerator):
    found = []
    for inside in (True, False):
        run = toy()
        with as_accelerator(), torch.inference_mode(mode=inside):
            mol = eq.MultiObjective(run.model, run.optimizer, preference.clone(), method=(eq.OMD(), ADAPTIVE))
        run.run(mol, 4)
        found.append((run.params(), mol.solution(), mol.coefficients))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_module_that_gets_another_table_of_parameters(toy, preference, as_accelerator):
    for run, mol in both(toy, preference, as_accelerator):
        run.run(mol, 2)
        layer = run.model[0]
        layer._parameters = dict(layer._parameters)
        run.run(mol, 1, 2)
        layer.weight = nn.Parameter(layer.weight.detach() * 0.5)
        run.run(mol, 1, 3)
        assert mol._run.params()["0.weight"] is layer.weight


def test_threads_end_with_their_runs(toy, preference, as_accelerator):
    before = set(threading.enumerate())
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store="host")
    run.run(mol, 3)
    threads = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in threads) == ["equipoise-store_0"]
    mol.close()
    del run, mol
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_run_on_the_host_can_be_copied(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, None, preference, method=(eq.OMD(), ADAPTIVE))
    run.run(mol, 3)
    other = copy.deepcopy(mol)
    torch.testing.assert_close(other.solution(), mol.solution(), rtol=0, atol=0)


def test_loading_forgets_what_was_begun(toy, preference, as_accelerator):
    source, other = toy(), toy()
    with as_accelerator():
        first = eq.MultiObjective(source.model, source.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store="host")
        second = eq.MultiObjective(other.model, other.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store="host")
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


@pytest.mark.parametrize("conversion", [ADAPTIVE, eq.Average(), eq.Last(), eq.Suffix()], ids=str)
@pytest.mark.parametrize("late", [False, True])
def test_copies_go_with_their_run(late, conversion, toy, preference, as_accelerator):
    """At once: a collector does not see how much memory of a device waits for it."""
    run = toy()
    with as_accelerator() if late else nullcontext():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), conversion))
    run.run(mol, 4)
    mol.solution()
    slots = mol._run.archive.slots
    assert isinstance(slots, InMemory)
    copies = [weakref.ref(x) for copy in slots.copies for x in copy.values()]
    del slots
    gc.collect()
    gc.disable()
    try:
        mol.close()
        del mol
        assert all(copy() is None for copy in copies)
    finally:
        gc.enable()


@pytest.mark.parametrize("store", ["device", "host"])
def test_memory_for_copies_on_their_way_goes_at_the_end(store, toy, preference, as_accelerator):
    run = toy()
    with as_accelerator():
        mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), ADAPTIVE), store=store)
    run.run(mol, 4)
    held = mol._run.archive.held
    assert held is not None
    copies = [weakref.ref(x) for x in held.value.values()]
    del held
    mol.close()
    slots = mol._run.archive.slots
    assert isinstance(slots, InMemory)
    kept = {id(x) for copy in slots.copies for x in copy.values()}
    assert all(copy() is None or id(copy()) in kept for copy in copies)
    assert len(kept) == 3 * len(copies)
    assert mol.solution()


def test_losses_that_are_overwritten_after_the_call(toy, preference, as_accelerator):
    """As a buffer is that somebody uses again: what was handed over counts."""
    for run, mol in both(toy, preference, as_accelerator):
        for step in range(4):
            f = run.losses(step)
            scalar = mol(f)
            expected = f.detach().clone()
            f.data.fill_(torch.nan)
            scalar.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            assert mol.recorded == step + 1
            torch.testing.assert_close(mol._run.losses, expected, rtol=0, atol=0)


class Evaluating(torch.optim.SGD):
    """Has its closure evaluated twice."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        closure()
        super().step()


def test_evaluations_of_a_closure_with_other_objectives_have_the_weights_of_their_step(toy, preference):
    """Those that were absent in the first have no older ones."""
    run = toy(optimizer=Evaluating)
    weighting = eq.OMD(1.0)
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, ADAPTIVE))
    for step in range(3):
        run.optimizer.step(lambda step=step: mol(run.losses(step)).backward())
        run.optimizer.zero_grad()
    expected = weighting.foreseen(mol._run.weights.state, preference)
    assert expected is not None
    assert not torch.allclose(expected.to(mol.coefficients), mol.coefficients)
    counts, found = iter(([1.0, 1.0, 0.0], [0.0, 1.0, 1.0])), []

    def closure() -> None:
        f = run.losses(3)
        f.retain_grad()
        mol(f, counts=next(counts)).backward()
        found.append(f.grad)

    run.optimizer.step(closure)
    present = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    torch.testing.assert_close(torch.stack(found), (present * 3 * expected).float())
