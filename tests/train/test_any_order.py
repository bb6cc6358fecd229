"""Random operations in any order: a run on an asynchronous device equals the run on the host, bit for bit.

A seed determines the settings of a run and its operations. Both runs are compared after every operation without
synchronising. Reading λ, the solution, a checkpoint or the metrics synchronises, so it is an operation of its own.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.conversion import Conversion, Plan

FEW, MANY = 60, 2000
"""Seeds of `make test`, and of `make test-slow`."""
LENGTH = 60
"""Operations of a run, at least."""


def dice(seed: int, purpose: object) -> Random:
    """For each purpose others: what is drawn for one does not depend on what was drawn before."""
    return Random(f"{seed}, {purpose}")  # noqa: S311


# What a run is made of ------------------------------------------------------------------------


class Two(NamedTuple):
    slots: dict[str, Tensor]
    least: Tensor


@dataclass(frozen=True)
class Own(Conversion[Two]):
    """A user's: the iterate of the least sum of losses, to which the last one moves over a step late."""

    copies = 2

    def begin(self, losses: Tensor) -> Two:
        return Two({}, losses.new_full((), torch.inf))

    def plan(self, losses: Tensor, state: Two, mask: Tensor | None = None) -> tuple[Plan, Two]:
        total = (losses if mask is None else torch.where(mask, losses, 0.0)).sum()
        better, zero = (total < state.least).to(losses), torch.tensor(0)
        return Plan(zero, zero + 1, better, zero + 1, torch.ones(())), state._replace(least=total.fmin(state.least))

    def shares(self, state: Two, preference: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return torch.tensor([0.75, 0.25]) if state.least < torch.inf else torch.tensor([1.0, 0.0])


class Setting(NamedTuple):
    weighting: Any
    conversion: Any
    preference: list[float]
    optimizer: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any]
    """Of the optimizer."""
    attached: bool
    """Whether the run follows the optimizer."""
    store: Any
    arguments: dict[str, Any]
    """Others of `MultiObjective`."""
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of the first layer and the last."""
    norm: bool
    stranger: bool
    """Whether a parameter is frozen from the beginning, and so not recorded."""
    punctual: bool
    """Whether the thread of a store has done its work early, or at the last moment."""


WEIGHTINGS = [
    eq.OMD(),
    eq.OMD(optimism=30.0, smoothing=3.0, horizon=4.0),
    eq.OMD(optimism=1.0),
    eq.OMD(0.5, eq.Entropic()),
    eq.OMD("adaptive", eq.Entropic()),
    eq.OMD(order="alternating"),
    eq.Linear(),
    eq.Tchebycheff(),
    eq.SmoothTchebycheff(0.1),
    eq.SmoothTchebycheff(0.5, "mean"),
    eq.Momentum(eq.OMD()),
    eq.Momentum(eq.SmoothTchebycheff(0.1), "constant", 0.5),
    eq.Relative(eq.OMD()),
    eq.Relative(eq.Tchebycheff()),
    eq.MGDA(),
    eq.PCGrad(),
    eq.MoCo(),
]
OPTIMIZERS: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.05}),
    (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.02}),
    (torch.optim.Adam, {"lr": 0.02, "fused": True}),
    (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 3, "history_size": 3}),
    (torch.optim.LBFGS, {"lr": 0.5, "max_iter": 2, "line_search_fn": "strong_wolfe"}),
]


def draw_conversion(random: Random) -> Any:
    adaptive = eq.Adaptive(random.choice([0.0, 2.0, 8.0]), random.randint(2, 5), random.choice(["stored", "keep"]))
    suffix = eq.Suffix(random.choice([0.0, 8.0]), random.randint(2, 5))
    average = eq.Average(random.choice([0.0, 8.0]))
    return random.choices([adaptive, suffix, average, eq.Last(), Own()], [4, 4, 2, 2, 1])[0]


def draw_setting(seed: int) -> Setting:
    random = dice(seed, "setting")
    conversion = draw_conversion(random)
    optimizer, options = random.choice(OPTIMIZERS)
    check, on_nonfinite = random.choice([("now", "raise"), ("deferred", "raise"), ("auto", "skip"), ("now", "raise")])
    arguments = {
        "every": random.choice([1, 1, 1, 1, 2, 3, None]),
        "check": check,
        "on_nonfinite": on_nonfinite,
        "names": random.choice([None, None, ("a", "b", "c")]),
        "parameters": random.choice([None, None, None, ["first.weight", "last.bias"]]),
        "units": random.choice([None, None, "start", "start", [0.5, 3.0, 20.0]]),
        "ideal": random.choice([0.0, 0.0, -1.5, [-1.0, 0.0, 0.25]]),
    }
    single, double, half = torch.float32, torch.float64, torch.bfloat16
    dtypes = [(single, single), (single, single), (half, half)]
    if optimizer is not torch.optim.LBFGS:  # which wants them alike
        dtypes += [(half, single), (single, double)]
    return Setting(
        weighting=random.choice(WEIGHTINGS),
        conversion=conversion,
        preference=random.choice([[0.2, 0.3, 0.5], [0.25, 0.25, 0.5], [0.5, 0.5, 0.0]]),
        optimizer=optimizer,
        options=options,
        attached=random.random() < 0.9,
        store=random.choice(["device", "host", "host", "folder"]),
        arguments=arguments,
        dtypes=random.choice(dtypes),
        norm=random.random() < 0.2,
        stranger=random.random() < 0.2,
        punctual=random.random() < 0.5,
    )


class Net(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, dtype=setting.dtypes[0])
        self.norm = nn.BatchNorm1d(8, dtype=setting.dtypes[0]) if setting.norm else nn.Identity()
        self.last = nn.Linear(8, 1, dtype=setting.dtypes[1])
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator))
        self.first.bias.requires_grad_(not setting.stranger)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x.to(self.first.weight.dtype))))
        answer: Tensor = self.last(hidden.to(self.last.weight.dtype))
        return answer


def make_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x, mixing = torch.randn(8, 16, 4, generator=generator), torch.randn(4, 3, generator=generator)
    return list(zip(x, torch.tanh(x @ mixing) + torch.arange(3.0), strict=True))


BATCHES = make_batches()


class User:
    """Somebody with a run, and what he has in hand.

    Args:
        setting: What the run is made of.
        folder: Where stores may be.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder, self.stores = setting, folder, 0
        self.random = dice(0, "nothing yet")
        """Others for each operation."""
        self.scalars: list[Tensor] = []
        """What calls gave, and was not differentiated yet."""
        self.saved: list[dict[str, Any]] = []
        self.begin()

    def begin(self) -> None:
        """Have a new model."""
        self.model = Net(self.setting)
        self.optimizer = self.setting.optimizer(self.model.parameters(), **self.setting.options)
        self.take_up()

    def take_up(self, *, elsewhere: bool = True) -> None:
        """Have a new run, with the model and the optimizer that there are, and another folder or the same."""
        self.stores += elsewhere
        self.mol = eq.MultiObjective(
            self.model,
            self.optimizer if self.setting.attached else None,
            self.setting.preference,
            method=(self.setting.weighting, self.setting.conversion),
            store=self.folder / str(self.stores) if self.setting.store == "folder" else self.setting.store,
            **self.setting.arguments,
        )

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def parameter(self) -> nn.Parameter:
        return self.random.choice(list(self.model.parameters()))

    def batch(self) -> tuple[Tensor, Tensor]:
        return self.random.choice(BATCHES)

    def losses(self, batch: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x, y = self.batch() if batch is None else batch
        loss: Tensor = (self.model(x) - y).square().mean(0)
        return loss

    def counts(self) -> Any:
        counts = self.random.choice([None, None, None, [1, 1, 1], [1, 1, 0], [0, 2, 1], [4, 0, 0], [0, 0, 0]])
        names = self.setting.arguments["names"]
        if counts is None or self.chance(0.5):
            return counts
        return torch.tensor(counts) if names is None else dict(zip(names, counts, strict=True))

    def call(self, losses: Tensor) -> Tensor:
        """In one of the forms that there are."""
        names, form = self.setting.arguments["names"], self.random.choice(["tensor", "several", "overwritten"])
        if form == "several":
            several = list(losses) if names is None else dict(zip(names, losses, strict=True))
            return self.mol(several, self.counts())
        scalar = self.mol(losses, self.counts())
        if form == "overwritten":
            losses.data.fill_(torch.nan)  # as a buffer is that is used again
        return scalar

    def searches(self) -> bool:
        """Whether the optimizer evaluates a closure again and again; it does not go on after a failure."""
        return isinstance(self.optimizer, torch.optim.LBFGS)

    def step(self) -> object:
        """As the optimizer wants it; a fused one may be told that it has to skip this one, as by a gradient scaler."""
        optimizer: Any = self.optimizer
        scaled = self.setting.options.get("fused") and self.chance(0.4)
        if scaled:
            optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(self.chance(0.6))), torch.tensor(1.0)
        try:
            result = self.evaluate() if self.searches() or self.chance(0.2) else optimizer.step()
        except Exception:
            if self.searches():
                optimizer.state.clear()
            raise
        finally:
            if scaled:
                del optimizer.found_inf, optimizer.grad_scale
        return result

    def evaluate(self) -> object:
        """A step with a closure, by name or not."""
        closure = self.closure()
        return self.optimizer.step(closure) if self.chance(0.5) else self.optimizer.step(closure=closure)

    def closure(self) -> Callable[[], Any]:
        """One that is a function of the parameters; it may fail, clear what was there, and call more than once."""
        batches = [self.batch() for _ in range(self.random.choice([1, 1, 2]))]
        counts = [self.counts() for _ in batches]
        clears, most = self.chance(0.7), self.random.randint(0, 2) if self.chance(0.05) else 100
        evaluations = iter(range(most))

        def closure() -> Tensor:
            if next(evaluations, None) is None:
                raise RuntimeError("the closure fails")
            if clears:
                self.optimizer.zero_grad()
            total = torch.zeros(())
            for batch, n in zip(batches, counts, strict=True):
                scalar = self.mol(self.losses(batch), n)
                scalar.backward()
                total = total + scalar.detach()
            return total

        return closure


# What is done with it -------------------------------------------------------------------------


def train(user: User) -> object:
    """What nearly everyone does."""
    found = []
    for _ in range(user.random.randint(1, 3)):
        scalar = user.call(user.losses())
        scalar.backward()
        found.append((scalar, user.step()))
        user.optimizer.zero_grad()
    return found


def call(user: User) -> object:
    user.scalars.append(user.call(user.losses()))
    return user.scalars[-1]


def call_within_autocast(user: User) -> object:
    with torch.autocast("cpu", torch.bfloat16):
        user.scalars.append(user.call(user.losses()))
    return user.scalars[-1]


def call_with_what_is_not_finite(user: User) -> object:
    spoil = torch.ones(3)
    spoil[user.random.randrange(3)] = user.random.choice([torch.nan, torch.inf, -torch.inf])
    user.scalars.append(user.call(user.losses() * spoil))
    return user.scalars[-1]


def call_with_what_is_too_low(user: User) -> object:
    user.scalars.append(user.call(user.losses() - 5.0))
    return user.scalars[-1]


def call_wrongly(user: User) -> object:
    f = user.losses()
    return user.mol(*user.random.choice([(f[:2], None), (f.detach(), None), (f, [1.0, -1.0, 1.0])]))


def differentiate(user: User) -> None:
    """Any of the calls that wait, now or long after."""
    if user.scalars:
        scalar = user.scalars.pop(-1 if user.chance(0.6) else user.random.randrange(len(user.scalars)))
        again = user.chance(0.1)
        scalar.backward(retain_graph=again)
        if again:
            scalar.backward()


def differentiate_together(user: User) -> None:
    scalars, user.scalars = user.scalars, []
    if scalars:
        torch.stack(scalars).mean().backward()


def forget(user: User) -> None:
    """Calls that are never differentiated."""
    user.scalars = []


def step(user: User) -> object:
    return user.step()


def clear(user: User) -> None:
    user.optimizer.zero_grad(set_to_none=user.chance(0.8))


def change_the_rate(user: User) -> None:
    for group in user.optimizer.param_groups:
        group["lr"] = user.random.choice([0.0, 0.01, 0.05, 0.1])


def record(user: User) -> None:
    losses = user.losses()
    with torch.inference_mode(mode=user.chance(0.3)):
        user.mol.record(losses, user.counts())


def steer(user: User) -> None:
    losses = user.losses()
    with torch.inference_mode(mode=user.chance(0.3)):
        user.mol.steer(losses * (torch.nan if user.chance(0.05) else 1.0), user.counts())


def look_at_the_solution(user: User) -> object:
    return user.mol.solution()


def look_at_the_weights(user: User) -> object:
    return user.mol.recorded, user.mol.step, user.mol.coefficients, user.mol.duals


def look_at_the_history(user: User) -> object:
    return user.mol.history.table()


def look_at_the_metrics(user: User) -> object:
    return user.mol.metrics(), repr(user.mol)


def borrow_the_solution(user: User) -> object:
    with user.mol.solution_weights():
        losses = user.losses()
        if user.chance(0.2):
            user.mol.record(losses)
        if user.chance(0.1):
            user.scalars.append(user.call(losses))
        return losses


def load_the_solution(user: User) -> None:
    user.model.load_state_dict(user.mol.solution())


def find_statistics(user: User) -> object:
    user.mol.update_bn([x for x, _ in BATCHES[:2]])
    return dict(user.model.named_buffers())


def save(user: User) -> object:
    parts: dict[str, Any] = {"model": user.model, "optimizer": user.optimizer, "mol": user.mol}
    user.saved.append(copy.deepcopy({name: part.state_dict() for name, part in parts.items()}))
    return user.saved[-1]["mol"]


def load(user: User) -> None:
    """An earlier state: all of it, or what the run had recorded and weighed alone."""
    if user.saved:
        saved = copy.deepcopy(user.saved[-1] if user.chance(0.8) else user.random.choice(user.saved))
        with torch.inference_mode(mode=user.chance(0.1)):
            user.mol.load_state_dict(saved["mol"])
        if user.chance(0.7):
            user.model.load_state_dict(saved["model"])
            user.optimizer.load_state_dict(saved["optimizer"])


def resume(user: User) -> None:
    """As another process does."""
    if user.saved:
        saved, user.scalars = copy.deepcopy(user.saved[-1]), []
        user.begin()
        user.model.load_state_dict(saved["model"])
        user.optimizer.load_state_dict(saved["optimizer"])
        user.mol.load_state_dict(saved["mol"])


def begin_anew(user: User) -> None:
    user.begin()


def take_the_optimizer(user: User) -> None:
    """The run that had it is closed."""
    state = user.mol.state_dict()
    user.take_up(elsewhere=user.chance(0.5))
    if user.chance(0.7):
        user.mol.load_state_dict(state)


def discard(user: User) -> None:
    user.mol.discard()


def close(user: User) -> None:
    user.mol.close()


def move(user: User) -> None:
    user.mol.to("cpu")


def write(user: User) -> None:
    with torch.no_grad():
        user.parameter().mul_(0.9)


def write_unseen(user: User) -> None:
    """Through `.data`, which nobody can see."""
    user.parameter().data.mul_(0.9)


def put_elsewhere(user: User) -> None:
    p = user.parameter()
    p.data = p.detach() * 0.9


def turn(user: User) -> None:
    """With gaps, or the other way round in memory."""
    if user.searches():  # it wants gradients in one piece
        return
    p = user.model.first.weight
    x = p.detach()
    p.data = x.t().contiguous().t() if user.chance(0.5) else torch.stack([x, x], -1)[..., 0]


def replace_a_parameter(user: User) -> None:
    layer: Any = user.random.choice([user.model.first, user.model.last])
    old = layer.weight
    layer.weight = nn.Parameter(old.detach() * 0.9)
    if user.chance(0.8):
        tell(user.optimizer, old, layer.weight)


def replace_a_module(user: User) -> None:
    old = user.model.last
    user.model.last = copy.deepcopy(old)
    write(user)
    for before, after in zip(old.parameters(), user.model.last.parameters(), strict=True):
        tell(user.optimizer, before, after)


def tell(optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    for group in optimizer.param_groups:
        group["params"][:] = [new if p is old else p for p in group["params"]]
    if old in optimizer.state:
        optimizer.state[new] = optimizer.state.pop(old)


def freeze(user: User) -> None:
    user.parameter().requires_grad_(False)


def thaw(user: User) -> None:
    """All but the one that was frozen from the beginning."""
    for p in user.model.parameters():
        p.requires_grad_(p is not user.model.first.bias or not user.setting.stranger)


def thaw_a_stranger(user: User) -> None:
    user.model.first.bias.requires_grad_(True)


def change_the_precision(user: User) -> None:
    if not user.searches():
        user.random.choice([user.model.double, user.model.float])()
        user.optimizer.state.clear()  # it is in the old one
        user.scalars = []  # they would leave gradients in the old one, which optimizers refuse


OPERATIONS: dict[Callable[[User], object], float] = {
    train: 10,
    call: 5,
    call_within_autocast: 1,
    call_with_what_is_not_finite: 0.5,
    call_with_what_is_too_low: 0.5,
    call_wrongly: 0.5,
    differentiate: 3,
    differentiate_together: 1,
    forget: 1,
    step: 3,
    clear: 2,
    change_the_rate: 0.7,
    record: 2.5,
    steer: 1.5,
    look_at_the_solution: 1.5,
    look_at_the_weights: 3,
    look_at_the_history: 0.3,
    look_at_the_metrics: 0.7,
    borrow_the_solution: 2,
    load_the_solution: 0.5,
    find_statistics: 0.5,
    save: 2,
    load: 2,
    resume: 1,
    begin_anew: 0.2,
    take_the_optimizer: 0.5,
    discard: 1,
    close: 0.1,
    move: 1,
    write: 3,
    write_unseen: 1.5,
    put_elsewhere: 2,
    turn: 1,
    replace_a_parameter: 1.5,
    replace_a_module: 1,
    freeze: 1,
    thaw: 1.5,
    thaw_a_stranger: 0.5,
    change_the_precision: 0.5,
}
"""And how often they are done."""
STEPS: list[list[Callable[[User], object]]] = [
    [call, differentiate, step, clear],
    [call, differentiate, call, differentiate, step, clear],
    [call, call, differentiate_together, step, clear],
    [call, differentiate, clear],
]
"""What most users do nearly always; others do something in between."""


def draw_operations(seed: int) -> list[Callable[[User], object]]:
    random = dice(seed, "operations")
    operations: list[Callable[[User], object]] = [save]
    while len(operations) < LENGTH:
        several = list(random.choices(STEPS, [6, 2, 1, 1])[0])
        for other in random.choices(list(OPERATIONS), list(OPERATIONS.values()), k=random.randint(0, 3)):
            several.insert(random.randint(0, len(several)), other)
        operations += several
    operations += [close] if random.random() < 0.2 else []
    return [*operations, look_at_the_metrics, look_at_the_solution, save]


# What is seen of it ---------------------------------------------------------------------------


def text(x: object) -> str:
    """To the last bit: −0 is not 0; of NaN there is one."""
    if isinstance(x, Tensor):
        return f"{x.dtype} {tuple(x.shape)} {x.tolist()}"
    if isinstance(x, Mapping):
        return f"{{{', '.join(f'{key}: {text(value)}' for key, value in x.items())}}}"
    if isinstance(x, list | tuple):
        return f"[{', '.join(map(text, x))}]"
    return repr(x)


def see(user: User) -> dict[str, str]:
    """What can be seen without waiting for the losses of a step."""
    params = dict(user.model.named_parameters())
    return {"parameters": text(params), "gradients": text({name: p.grad for name, p in params.items()})}


def perform(operation: Callable[[User], object], user: User) -> dict[str, str]:
    """What an operation gave, raised and warned of, and what is seen after it."""
    returned, raised = "", ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            returned = text(operation(user))
        except (ValueError, RuntimeError, TypeError, ZeroDivisionError) as error:  # others are not meant for anyone
            raised = f"{type(error).__name__}: {error}"
    said = [f"{w.category.__name__}: {w.message}" for w in warned]
    heard = {"returned": returned, "raised": raised, "warned": text(said)}
    return {key: value.replace(str(user.folder), "") for key, value in heard.items()} | see(user)


def trace(seed: int, folder: Path, chosen: Sequence[int] | None = None) -> list[dict[str, str]]:
    """A run as it is seen after each of its operations, or of those that are chosen, by their numbers."""
    user, operations, seen = User(draw_setting(seed), folder), draw_operations(seed), []
    for k in range(len(operations)) if chosen is None else chosen:
        user.random = dice(seed, k)
        try:
            seen.append({"operation": f"{k} {operations[k].__name__}"} | perform(operations[k], user))
        except BaseException as error:
            error.add_note(told(seed, [*(one["operation"] for one in seen), f"{k} {operations[k].__name__}"]))
            raise
    return seen


def told(seed: int, operations: Sequence[str]) -> str:
    return f"seed {seed}, {draw_setting(seed)}\noperations: {', '.join(operations)}"


def compare(seed: int, late: Sequence[dict[str, str]], plain: Sequence[dict[str, str]]) -> None:
    for k, (one, other) in enumerate(zip(late, plain, strict=True)):
        names = [name for name in one if one[name] != other[name]]
        if names:
            found = [f"{name}\n  beside the host {one[name]}\n  on the host     {other[name]}" for name in names]
            pytest.fail("\n".join([told(seed, [entry["operation"] for entry in late[: k + 1]]), *found]))


class WhenAsked(Future[Any]):
    """Work that is done when somebody waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            try:
                self.set_result(self.work())
            except Exception as error:
                self.set_exception(error)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with suppress(Exception):
            self.result(timeout)
        return super().exception(timeout)


class Unpunctual:
    """A thread that has not begun by the time anyone looks."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: object) -> WhenAsked:
        return WhenAsked(partial(work, *arguments))

    def shutdown(self, **_: object) -> None:
        pass


@pytest.fixture
def play(as_accelerator, monkeypatch, tmp_path) -> Iterator[Callable[..., None]]:
    """Have both runs of a seed, and compare them."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # whether files outlive the machine is not asked here
    once = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else a warning of torch itself is for the first run alone

    def play(seed: int, chosen: Sequence[int] | None = None) -> None:
        with as_accelerator(), monkeypatch.context() as patched:
            if not draw_setting(seed).punctual:
                patched.setattr("equipoise.train.archive.ThreadPoolExecutor", Unpunctual)
            late = trace(seed, tmp_path / "late", chosen)
        with monkeypatch.context() as patched:  # without the short cut that both would take
            patched.setattr("equipoise.train.parameters.Parameters._objects", lambda _: [])
            plain = trace(seed, tmp_path / "plain", chosen)
        compare(seed, late, plain)

    yield play
    torch.set_warn_always(once)


@pytest.mark.filterwarnings("ignore:LBFGS without a line search")
@pytest.mark.parametrize("seed", [*range(FEW), *(pytest.param(s, marks=pytest.mark.slow) for s in range(FEW, MANY))])
def test_it_is_the_same_run_in_any_order(seed, play):
    play(seed)
