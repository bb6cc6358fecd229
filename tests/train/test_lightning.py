"""A Lightning Trainer with the callback equals a plain loop, and evaluates and saves the solution."""

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

pytest.importorskip("lightning", reason="needs the extra lightning")
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

from equipoise.train.lightning import MultiObjectiveCallback

pytestmark = [
    # Advice of Lightning for large data; eight batches in memory need no workers.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # One module serves the runs with validation and those without.
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    # Lightning's own use of torch, wherever it asks for the leaves of a batch.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
]
BATCHES, EPOCHS = 5, 2
PREFERENCE = [0.2, 0.3, 0.5]
ADAPTIVE = eq.Adaptive(power=2, capacity=3)
WEIGHTINGS = {"OMD": eq.OMD(), "STCH": eq.SmoothTchebycheff(0.1), "MGDA": eq.MGDA()}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Without Lightning's notes on devices and models."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCHES, 8, 4, generator=generator)
    return x, torch.tanh(x @ torch.randn(4, 3, generator=generator)) + torch.arange(3.0)


class Net(LightningModule):
    """Three targets for one output."""

    mol: eq.MultiObjective

    def __init__(self, make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        self.make, self.settings = make, settings
        self.skipped: set[int] = set()
        self.seen: list[Tensor] = []
        """Losses of each validation."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y

    def losses(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        losses: Tensor = (self(x) - y).square().mean(0)
        return losses

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        return None if batch_idx in self.skipped else self.mol(self.losses(batch))

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        if batch_idx == 0:
            self.seen.append(self.losses(batch).detach().clone())

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters(), **{"lr": 0.05, **self.settings})


class Manual(Net):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward(self.mol(self.losses(batch)) / 2)
        if batch_idx % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


class Duals(Callback):
    """λ, or the coefficients, after each batch."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def on_train_batch_end(self, _trainer: Any, pl_module: Any, *_: Any) -> None:
        self.found.append(now(pl_module.mol))


def now(mol: eq.MultiObjective) -> Tensor:
    return (mol.coefficients if mol.duals is None else mol.duals).clone()


def loader() -> DataLoader[Any]:
    x, y = draw()
    return DataLoader(TensorDataset(x.flatten(0, 1), y.flatten(0, 1)), batch_size=8)


def trainer(folder: Path, *callbacks: Callback, **settings: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    where: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "default_root_dir": folder, "logger": False}
    return Trainer(**{"max_epochs": EPOCHS, "callbacks": [*callbacks], **quiet, **where, **settings})


def method(weighting: Any = None, conversion: Any = ADAPTIVE, **settings: Any) -> MultiObjectiveCallback:
    chosen = (weighting or eq.OMD(), conversion)
    return MultiObjectiveCallback(PREFERENCE, method=chosen, **{"log_every": None, **settings})


def loop(net: Net, weighting: Any, accumulate: int = 1, clip: float | None = None, **settings: Any) -> Any:
    """The same in one's own loop: the shell, and λ after every batch."""
    scaler, autocast = settings.pop("scaler", None), settings.pop("autocast", nullcontext)
    optimizer, x, y = net.configure_optimizers(), *draw()
    mol = eq.MultiObjective(net, optimizer, PREFERENCE, method=(weighting, ADAPTIVE), **settings)
    found = []
    for epoch in range(EPOCHS):  # noqa: B007
        for number in range(BATCHES):
            with autocast():
                losses = (net(x[number]) - y[number]).square().mean(0)
            scalar = mol(losses) / accumulate
            (scalar if scaler is None else scaler.scale(scalar)).backward()
            if (number + 1) % accumulate == 0 or number + 1 == BATCHES:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                if clip is not None:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update())
                optimizer.zero_grad()
            found.append(now(mol))
    return mol, found


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)  # NaN: what was not steered yet


def assert_same_run(callback: MultiObjectiveCallback, net: Net, duals: Duals, mol: Any, found: list[Tensor]) -> None:
    """λ of every step, the method's whole state, the solution."""
    assert len(duals.found) == len(found)
    for ours, theirs in zip(duals.found, found, strict=True):
        assert torch.equal(ours, theirs)
    assert callback.mol.step == mol.step > 0
    assert_same(callback.mol.state_dict()["tensors"], mol.state_dict()["tensors"])
    assert_same(callback.mol.solution(), mol.solution())
    assert_same(net.state_dict(), mol.solution())  # the module holds it when training ends


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_automatic_optimization_is_the_plain_loop(weighting, accumulate: int, tmp_path):
    """With five batches an epoch the last step of each has one micro-batch."""
    net, callback, duals = Net(momentum=0.5), method(weighting), Duals()
    trainer(tmp_path, callback, duals, accumulate_grad_batches=accumulate).fit(net, loader())
    assert_same_run(callback, net, duals, *loop(Net(momentum=0.5), weighting, accumulate))
    assert callback.mol.step == EPOCHS * (5 if accumulate == 1 else 3)


def test_clipped_gradients(tmp_path):
    net, callback, duals = Net(torch.optim.AdamW), method(), Duals()
    trainer(tmp_path, callback, duals, gradient_clip_val=0.1).fit(net, loader())
    assert_same_run(callback, net, duals, *loop(Net(torch.optim.AdamW), eq.OMD(), clip=0.1))


def test_bfloat16(tmp_path):
    net, callback, duals = Net(), method(), Duals()
    trainer(tmp_path, callback, duals, precision="bf16-mixed").fit(net, loader())
    assert_same_run(
        callback, net, duals, *loop(Net(), eq.OMD(), autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_steps_that_a_gradient_scaler_skips_commit_nothing(weighting, tmp_path):
    """The first scale is too large for float16."""

    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**20)

    net, callback, duals = Net(), method(weighting), Duals()
    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler())
    trainer(tmp_path, callback, duals, plugins=[precision]).fit(net, loader())
    mol, found = loop(Net(), weighting, scaler=scaler(), autocast=lambda: torch.autocast("cpu", torch.float16))
    assert_same_run(callback, net, duals, mol, found)
    assert 0 < mol.step < EPOCHS * BATCHES


def test_manual_optimization(tmp_path):
    net, callback, duals = Manual(), method(), Duals()
    trainer(tmp_path, callback, duals, limit_train_batches=4).fit(net, loader())
    plain, x, y = Net(), *draw()
    optimizer = plain.configure_optimizers()
    mol = eq.MultiObjective(plain, optimizer, PREFERENCE, method=(eq.OMD(), ADAPTIVE))
    found = []
    for number in [0, 1, 2, 3] * EPOCHS:
        (mol(plain.losses([x[number], y[number]])) / 2).backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        found.append(now(mol))
    assert_same_run(callback, net, duals, mol, found)


def test_an_optimizer_that_evaluates_several_times(tmp_path):
    net, callback = Net(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"), method()
    trainer(tmp_path, callback).fit(net, loader())
    assert callback.mol.step == EPOCHS * BATCHES


# Lightning says once in a process that a training step returned None.
@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_left_out_is_not_counted(accumulate: int, tmp_path):
    net, callback = Net(momentum=0.5), method()
    net.skipped = {1, 4}
    trainer(tmp_path, callback, accumulate_grad_batches=accumulate).fit(net, loader())
    plain, x, y = Net(momentum=0.5), *draw()
    optimizer = plain.configure_optimizers()
    mol = eq.MultiObjective(plain, optimizer, PREFERENCE, method=(eq.OMD(), ADAPTIVE))
    for _ in range(EPOCHS):
        for group in [(0,), (2,), (3,)] if accumulate == 1 else [(0,), (2, 3)]:
            for number in group:
                (mol(plain.losses([x[number], y[number]])) / accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert callback.mol.step == mol.step
    assert_same(callback.mol.state_dict()["tensors"], mol.state_dict()["tensors"])


# Validation -----------------------------------------------------------------------------------


class Weights(Callback):
    """What the module holds at certain moments."""

    def __init__(self) -> None:
        self.held: dict[str, list[dict[str, Tensor]]] = {"sanity": [], "validation": [], "solution": [], "training": []}

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.held["sanity" if trainer.sanity_checking else "validation"].append(copies(pl_module))
        if not trainer.sanity_checking:
            self.held["solution"].append(pl_module.mol.solution())

    def on_train_batch_end(self, _trainer: Any, pl_module: Any, *_: Any) -> None:
        self.held["training"].append(copies(pl_module))


def copies(module: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in module.state_dict().items()}


def test_validation_sees_the_solution_and_the_sanity_check_does_not(tmp_path):
    net, start, weights = Net(), copies(Net()), Weights()
    trainer(tmp_path, method(), weights, limit_val_batches=1).fit(net, loader(), loader())
    held = weights.held
    assert len(held["sanity"]) == 1
    assert_same(held["sanity"][0], start)
    assert len(held["validation"]) == EPOCHS
    for seen, solution, training in zip(held["validation"], held["solution"], held["training"][4::5], strict=True):
        assert_same(seen, solution)
        assert not torch.equal(seen["body.0.weight"], training["body.0.weight"])
    plain = Weights()
    trainer(tmp_path, method(), plain).fit(Net(), loader())
    for ours, theirs in zip(held["training"], plain.held["training"], strict=True):
        assert_same(ours, theirs)  # validation leaves no trace


@pytest.mark.filterwarnings("ignore:nothing was recorded")  # by whoever asks for the solution
def test_nothing_recorded_means_the_plain_weights(tmp_path):
    net, weights, callback = Net(), Weights(), method(every=None)
    trainer(tmp_path, callback, weights, limit_val_batches=1).fit(net, loader(), loader())
    assert callback.mol.recorded == 0
    for seen, training in zip(weights.held["validation"], weights.held["training"][4::5], strict=True):
        assert_same(seen, training)
    assert_same(copies(net), weights.held["training"][-1])


def test_a_validation_that_breaks_off_gives_the_weights_back(tmp_path):
    class Breaks(Net):
        def validation_step(self, *_: Any) -> None:
            raise RuntimeError("broken")

    net, weights = Breaks(), Weights()
    run = trainer(tmp_path, method(), weights, num_sanity_val_steps=0)
    with pytest.raises(RuntimeError, match="broken"):
        run.fit(net, loader(), loader())
    assert_same(copies(net), weights.held["training"][-1])


def test_after_training_tests_see_the_solution(tmp_path):
    net, callback = Net(), method()
    run = trainer(tmp_path, callback)
    run.fit(net, loader())
    solution = callback.mol.solution()
    run.test(net, loader(), verbose=False)
    plain = Net()
    plain.load_state_dict(solution)
    x, y = draw()
    torch.testing.assert_close(net.seen[-1], plain.losses([x[0], y[0]]).detach(), rtol=0, atol=0)


# Checkpoints ----------------------------------------------------------------------------------


def saving(folder: Path, **settings: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **settings)


class Indexed(Net):
    """Takes its batches by their number: Lightning begins a loader anew in the middle of an epoch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        x, y = draw()
        return self.mol(self.losses([x[batch_idx], y[batch_idx]]))


# As the module takes batches by number, it does not matter here.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(("steps", "accumulate"), [(3, 1), (5, 1), (2, 2)])
@pytest.mark.parametrize("validated", [False, True])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(steps: int, accumulate: int, validated: bool, tmp_path):
    path = tmp_path / "run.ckpt"

    class Saves(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == steps and not path.exists():
                trainer.save_checkpoint(path)

    settings = {"accumulate_grad_batches": accumulate, "num_sanity_val_steps": 0}
    loaders: dict[str, Any] = {"train_dataloaders": loader(), "val_dataloaders": loader() if validated else None}
    whole, callback = Indexed(torch.optim.Adam), method()
    trainer(tmp_path, callback, Saves(), **settings).fit(whole, **loaders)
    resumed, second = Indexed(torch.optim.Adam), method()
    with torch.no_grad():
        next(resumed.parameters()).fill_(9.0)
    trainer(tmp_path, second, **settings).fit(resumed, **loaders, ckpt_path=path, weights_only=True)
    assert second.mol.step == callback.mol.step == EPOCHS * (5 if accumulate == 1 else 3)
    assert_same(second.mol.state_dict()["tensors"], callback.mol.state_dict()["tensors"])
    assert_same(copies(resumed), copies(whole))
    assert second._training is not None
    assert callback._training is not None
    assert_same(second._training, callback._training)
    seen = len(resumed.seen)  # after the last batch of an epoch Lightning does not validate it again
    assert seen == (0 if not validated else EPOCHS if steps < BATCHES else EPOCHS - 1)
    for ours, theirs in zip(resumed.seen, whole.seen[len(whole.seen) - seen :], strict=True):
        assert torch.equal(ours, theirs)


class Drawn(Net):
    """Losses by domain of drawn batches; which samples they had."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        (x, y, numbers), draw = batch
        self.drawn.append(numbers.tolist())
        values = (self(x).squeeze(1) - y).square()
        return self.mol(*eq.group_losses(values, draw.domain, 3, weights=draw.weight))


# The sampler goes on where it was, though the loader says nothing of it.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_drawn_by_lambda_resume_within_an_epoch(accumulate: int, tmp_path):
    domains = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))

    path = tmp_path / "run.ckpt"

    class Saves(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 7 and not path.exists():
                trainer.save_checkpoint(path)

    def fit(start: Path | None = None) -> tuple[Drawn, MultiObjectiveCallback]:
        sampler = eq.DomainSampler(domains, 6, steps=5, accumulate=accumulate)
        data = sampler.with_draws(TensorDataset(x, x[:, 0] * domains, torch.arange(60)))
        net, callback = Drawn(), method(eq.OMD(0.5), sampler=sampler)
        fitter = trainer(tmp_path, callback, Saves(), accumulate_grad_batches=accumulate)
        fitter.fit(net, DataLoader(data, batch_sampler=sampler), ckpt_path=start, weights_only=True)
        return net, callback

    whole, method_of_whole = fit()
    resumed, method_of_resumed = fit(path)
    assert whole.drawn[7 * accumulate :] == resumed.drawn
    assert len(whole.drawn) == 10 * accumulate
    assert_same(dict(whole.named_parameters()), dict(resumed.named_parameters()))
    left, right = (callback.mol.state_dict()["tensors"] for callback in (method_of_whole, method_of_resumed))
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


class Solutions(Callback):
    """After each step, keyed by its number."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def on_train_batch_end(self, _trainer: Any, pl_module: Any, *_: Any) -> None:
        self.found[pl_module.mol.step] = pl_module.mol.solution(), copies(pl_module)


def test_a_checkpoint_holds_the_solution_where_weights_are_looked_for(tmp_path):
    solutions = Solutions()
    run = trainer(tmp_path, method(), solutions, saving(tmp_path, every_n_train_steps=4), enable_checkpointing=True)
    net = Net()
    run.fit(net, loader())
    solution, training = solutions.found[4]
    path = tmp_path / "step=4.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert_same(checkpoint["state_dict"], solution)
    assert_same(checkpoint["current_model_state"], training)
    assert checkpoint["callbacks"]["MultiObjectiveCallback"]["mol"]["step"] == 4
    assert_same(copies(Net.load_from_checkpoint(path, weights_only=True)), solution)
    run.test(net, loader(), ckpt_path=path, verbose=False, weights_only=True)
    assert_same(copies(net), solution)
    run.save_checkpoint(tmp_path / "plain.ckpt")  # of other weights than those that training ended with
    plain = torch.load(tmp_path / "plain.ckpt", weights_only=True)
    assert_same(plain["state_dict"], solution)
    assert "current_model_state" not in plain


def test_a_checkpoint_saved_when_training_is_over_can_be_resumed(tmp_path):
    longer, callback = Net(), method()
    trainer(tmp_path, callback, max_epochs=3).fit(longer, loader())
    net, first, second = Net(), method(), method()
    run = trainer(tmp_path, first)
    run.fit(net, loader())
    run.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert_same(checkpoint["state_dict"], first.mol.solution())
    trainer(tmp_path, second, max_epochs=3).fit(net, loader(), ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert_same(second.mol.state_dict()["tensors"], callback.mol.state_dict()["tensors"])
    assert_same(copies(net), copies(longer))


def test_a_checkpoint_saved_within_validation(tmp_path):
    class Saves(Callback):
        def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            before = copies(pl_module)
            trainer.save_checkpoint(tmp_path / "within.ckpt")
            assert_same(copies(pl_module), before)

    weights = Weights()
    run = trainer(tmp_path, method(), weights, Saves(), limit_val_batches=1, num_sanity_val_steps=0)
    run.fit(Net(), loader(), loader())
    checkpoint = torch.load(tmp_path / "within.ckpt", weights_only=True)
    assert_same(checkpoint["state_dict"], weights.held["solution"][-1])
    assert_same(checkpoint["current_model_state"], weights.held["training"][-1])


def test_the_default_knows_the_length_of_the_fit(tmp_path):
    """A third of it; a resumed fit keeps the number of steps that it began with."""

    def go(resume: Path | None = None, chosen: Any = None, **settings: Any) -> tuple[Any, Trainer]:
        callback = MultiObjectiveCallback(PREFERENCE, method=chosen)
        run = trainer(tmp_path, callback, **settings)
        run.fit(Net(), loader(), ckpt_path=resume, weights_only=True)
        return callback.mol, run

    mol, run = go(accumulate_grad_batches=2)  # two epochs of five batches
    assert mol.weighting.youth == mol.step / 3 == 2.0
    run.save_checkpoint(tmp_path / "end.ckpt")
    mol, _ = go(tmp_path / "end.ckpt", max_epochs=6, accumulate_grad_batches=2)
    assert (mol.weighting.youth, mol.step) == (2.0, 18)
    assert go(max_epochs=-1, max_steps=4)[0].weighting.youth == pytest.approx(4 / 3)
    assert go(max_epochs=-1, limit_train_batches=3, max_time={"seconds": 1})[0].weighting == eq.default().weighting
    assert go(chosen="equipoise")[0].weighting == eq.default().weighting


def test_a_checkpoint_without_the_callback_starts_the_method_afresh(tmp_path):
    class Plain(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
            return self.losses(batch).sum()

    run = trainer(tmp_path, max_epochs=1)
    run.fit(Plain(), loader())
    run.save_checkpoint(tmp_path / "plain.ckpt")
    callback = method()
    message = r"plain.ckpt has no state of MultiObjectiveCallback: the method starts afresh"
    with pytest.warns(UserWarning, match=message):
        trainer(tmp_path, callback).fit(Net(), loader(), ckpt_path=tmp_path / "plain.ckpt", weights_only=True)
    assert callback.mol.step == BATCHES


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    run = trainer(tmp_path, method(), max_epochs=1)
    run.fit(Net(), loader())
    run.save_checkpoint(tmp_path / "one.ckpt")
    other = trainer(tmp_path, method(eq.OMD(0.1)))
    with pytest.raises(eq.StateMismatchError, match=re.escape("weighting.step_size must be 0.1; found 'adaptive'")):
        other.fit(Net(), loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)


# BatchNorm, logs ------------------------------------------------------------------------------


def test_batch_norm_is_recalibrated_when_training_ends(tmp_path):
    """By hand: the mean of the layer's inputs over the data, at the averaged weights."""

    class Normed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))

    net, callback = Normed(), method(conversion=eq.Average(), recalibrate=loader())
    run = trainer(tmp_path, callback)
    run.fit(net, loader())
    x = draw()[0].flatten(0, 1)
    state = copies(net)
    inputs = x @ state["body.0.weight"].T + state["body.0.bias"]
    torch.testing.assert_close(state["body.1.running_mean"], inputs.mean(0))
    run.save_checkpoint(tmp_path / "end.ckpt")
    assert_same(torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"], state)


class Logged(Callback):
    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.found.append({name: float(x) for name, x in trainer.callback_metrics.items()})


def test_recalibration_needs_a_forward(tmp_path):
    class Headless(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 1)

        def training_step(self, *_: Any) -> Any:
            raise AssertionError("the fit must not begin")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rule = r"the module must define forward\(inputs\) for recalibrate=, which calls it; found no forward in Headless"
    with pytest.raises(ValueError, match=rule):
        trainer(tmp_path, method(recalibrate=loader())).fit(Headless(), loader())


def test_metrics_are_logged_every_so_many_steps(tmp_path):
    logged, callback = Logged(), method(log_every=3, names=("a", "b", "c"))
    named = Net()
    run = trainer(tmp_path, callback, logged, max_epochs=1)
    run.fit(named, loader())
    changes = [x.get("mol/tch") for x in logged.found]
    assert changes[0] is changes[1] is None
    assert changes[2] == changes[3] == changes[4] is not None
    assert {"mol/loss/a", "mol/weighted/b", "mol/lambda/c", "mol/imbalance", "mol/archive"} <= logged.found[-1].keys()
    assert "mol/step" not in logged.found[-1]
    never = Logged()
    trainer(tmp_path, method(), never, max_epochs=1).fit(Net(), loader())
    assert never.found[-1] == {}


# Bad input ------------------------------------------------------------------------------------


def refused(message: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(message))


def test_bad_settings_are_refused_when_the_callback_is_made():
    with refused("preference must have one number per objective: MultiObjective(model, optimizer, preference"):
        MultiObjectiveCallback(eq.OMD())  # type: ignore[arg-type]
    with refused("sum to 1; found"):
        MultiObjectiveCallback([0.5, 0.6])
    with refused("conversion must have a capacity in a training loop"):
        MultiObjectiveCallback(PREFERENCE, method=(eq.OMD(), eq.Adaptive()))
    with refused("method must be a name, a Method, or a weighting with its conversion"):
        MultiObjectiveCallback(PREFERENCE, method=eq.OMD())  # type: ignore[arg-type]
    with refused("log_every must be None or at least 1; found 0"):
        method(log_every=0)
    with refused("settings must leave model and optimizer to the Trainer; found ['optimizer']"):
        method(optimizer=None)
    with pytest.raises(TypeError, match="evry"):
        method(evry=2)
    with refused("mol must be asked for after fit has begun; found no fit yet"):
        _ = method().mol


def test_two_optimizers_are_refused(tmp_path):
    class Two(Manual):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body[0], self.body[2])]

    with refused("configure_optimizers must give one optimizer; found 2"):
        trainer(tmp_path, method()).fit(Two(), loader())


def test_a_preference_of_another_length_is_refused(tmp_path):
    callback = MultiObjectiveCallback([0.5, 0.5], method=(eq.OMD(), ADAPTIVE))
    with refused("losses must have shape (2,), as the preference has; found (3,)"):
        trainer(tmp_path, callback).fit(Net(), loader())


def test_mol_is_for_training_steps(tmp_path):
    class Asks(Net):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:  # noqa: ARG002
            self.mol(self.losses(batch))

        def test_step(self, batch: list[Tensor], batch_idx: int) -> None:  # noqa: ARG002
            self.mol(self.losses(batch))

    net = Asks()
    run = trainer(tmp_path, method())
    with refused("losses must be computed and passed in with gradients enabled; found torch.no_grad()"):
        run.fit(net, loader(), loader())
    with refused("mol must be called in training_step while fit runs; found no fit running"):
        run.test(net, loader())
    net = Asks()
    trainer(tmp_path, method(), max_epochs=1).fit(net, loader())
    with refused("mol must be called in training_step while fit runs; found no fit running"):
        net.mol(torch.ones(3))


def test_a_module_with_a_mol_of_its_own_is_refused(tmp_path):
    net = Net()
    object.__setattr__(net, "mol", eq.MultiObjective(net, None, PREFERENCE, method=(eq.OMD(), eq.Last())))
    with refused("the module must leave its attribute mol to MultiObjectiveCallback; found"):
        trainer(tmp_path, method()).fit(net, loader())


def test_two_callbacks_are_refused_by_lightning(tmp_path):
    with pytest.raises(RuntimeError, match="Found more than one stateful callback of type `MultiObjectiveCallback`"):
        trainer(tmp_path, method(), method())


def test_checkpoints_of_weights_alone_are_refused(tmp_path):
    checkpoint = saving(tmp_path, save_weights_only=True)
    with refused("ModelCheckpoint must have save_weights_only=False"):
        trainer(tmp_path, method(), checkpoint, enable_checkpointing=True).fit(Net(), loader())


def test_one_callback_serves_several_fits(tmp_path):
    net, callback = Net(), method()
    run = trainer(tmp_path, callback, max_epochs=1)
    run.fit(net, loader())
    first = callback.mol
    again = trainer(tmp_path, callback, max_epochs=1)
    again.fit(net, loader())
    assert callback.mol is not first
    assert callback.mol.step == BATCHES
    assert first.step == BATCHES


RANK = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.train.test_lightning import Net, draw, method, trainer
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
halves = [(x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4]) for x, y in zip(*draw())]
data = torch.utils.data.DataLoader(halves, batch_size=None)
net, callback = Net(momentum=0.5), method()
run = trainer(folder, callback, devices=2, strategy="ddp", use_distributed_sampler=False)
run.fit(net, data, data)
run.save_checkpoint(folder / "end.ckpt")
torch.save({"duals": callback.mol.duals, "solution": net.state_dict()}, folder / f"{rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_are_one_with_all_samples(tmp_path):
    """Each with half of every batch; the checkpoint is that of both."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    root = str(Path(__file__).parents[2])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path), root],
            env={**os.environ, **common, "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    mol, _ = loop(Net(momentum=0.5), eq.OMD())
    assert torch.equal(first["duals"], second["duals"])
    assert_same(first["solution"], second["solution"])
    torch.testing.assert_close(first["duals"], mol.duals, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first["solution"], mol.solution(), rtol=1e-4, atol=1e-6)
    assert_same(torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"], first["solution"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
