"""Rounds: every method on digits, two of them in plain PyTorch, and error handling."""

import itertools
import json
import math
import random
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conversion.own import LastEpoch
from torch import Tensor, nn

import equipoise as eq
from equipoise.datasets import load
from equipoise.errors import NonFiniteLossError, StateMismatchError, UnknownNameError
from equipoise.experiments.federated.settings import EXACT_FERERO, METHODS, row, tasks
from equipoise.federated import (
    Dense,
    LocalWork,
    Model,
    PartialClass,
    Participation,
    Result,
    Rotation,
    Task,
    deal,
    simulate,
)
from equipoise.federated.checkpoint import Checkpoint
from equipoise.federated.local_work import draw_batches
from equipoise.federated.models import initial
from equipoise.federated.stacked import Stacked

LOSSES = ("trajectory", "received", "full", "full-updated", "validation", "validation-trajectory")
MODEL = Dense((9, 5, 3))
LINEAR = Dense((9, 3))
SUM_TO_ONE = set(METHODS) - {"qFFL", "FedFV"}  # the published FERERO normalises
OMDGD = eq.OMD(3.0, eq.Euclidean())
DIGITS = replace(tasks()["digits-rotation"], rounds=3)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def equal(a: Any, b: Any) -> None:
    """Bit for bit, NaN being NaN."""
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def same_course(a: Result, b: Result, match=equal) -> None:
    match(a.params, b.params)
    match(tuple(a.history), tuple(b.history))
    for name in a.test:
        match(tuple(a.test[name]), tuple(b.test[name]))


@cache
def on_digits(name: str) -> Result:
    return simulate(DIGITS, row(name, "digits-rotation").method, seeds=(0, 25))


# --- every method


@pytest.mark.parametrize("name", [*METHODS, EXACT_FERERO])
def test_every_method_runs_and_learns(name: str):
    found = on_digits(name)
    assert found.history.losses.shape == found.history.coefficients.shape == (3, 2, 10)
    assert bool(torch.isfinite(found.history.losses).all())
    assert bool(torch.isfinite(found.history.coefficients).all())
    first, _ = initial(DIGITS.model, (0, 25))
    for output in ("last", "average", "adaptive"):
        assert found.test[output].losses.shape == (2, 10)
        assert bool(torch.isfinite(found.test[output].losses).all())
    for name_, t in first.items():
        assert not torch.equal(found.params["last"][name_], t)
    assert bool((found.train["last"].losses.mean(-1) < found.untrained.losses.mean(-1)).all())
    assert bool((found.history.archive[-1] >= 1).all())
    assert bool((found.history.archive[-1] <= 3).all())


@pytest.mark.parametrize("name", METHODS)
def test_coefficients_sum_to_one_but_for_those_that_have_their_own_length(name: str):
    total = on_digits(name).history.coefficients.sum(-1)
    if name in SUM_TO_ONE:
        close(total, torch.ones(3, 2))
    elif name == "qFFL":
        assert bool((total < 1).all())


def test_what_the_first_coefficients_are():
    first = {name: on_digits(name).history.coefficients[0] for name in METHODS}
    losses = on_digits("LS").history.losses[0]
    for name in ("LS", "PropFair", "ExcessMTL", "AdaExcessMTL", *(n for n in METHODS if "OMD" in n)):
        close(first[name], torch.full((2, 10), 0.1))  # λ⁽¹⁾ is uniform
    close(first["TCH"], nn.functional.one_hot(losses.argmax(-1), 10).float())
    close(first["STCH"], torch.softmax(losses / (10 * 0.01), -1))
    assert bool((first["FedMGDA+"] <= 0.6 + 1e-6).all())
    for name in ("FERERO", "LS"):
        torch.testing.assert_close(first[name], first["LS"], rtol=0, atol=1e-3)  # it sits next to LS


def test_rows_of_one_step_size_share_a_trajectory():
    same_course(on_digits("OMDgd-TCH"), on_digits("AdaOMDgd-TCH"))


@pytest.mark.parametrize("name", [name for name in eq.methods() if name != "PMTL"])
def test_every_method_of_the_registry_moves_the_server_as_far_as_an_average_would(toy, name: str):
    """Coefficients of a convex combination sum to one: otherwise the server's step is m times too short."""
    own_length = {"qFFL", "FedMGDA+", "FedFV", "FERERO", "PCGrad", "CAGrad", "Nash-MTL", "UPGrad", "Aligned-MTL", "UW"}
    small = toy((6, 5, 7))
    found = simulate(Task("toy", small.split, LINEAR, LocalWork(2), 2), name, dataset=small.dataset)
    assert bool(torch.isfinite(found.history.coefficients).all())
    if name not in own_length:
        close(found.history.coefficients.sum(-1), torch.ones(2, 1))


# --- two methods written out


def local_work(
    theta: dict[str, Tensor], samples: tuple[Tensor, Tensor], model: Model, work: LocalWork
) -> tuple[dict[str, Tensor], float]:
    (x, y), module = samples, model.module()
    module.load_state_dict(theta)
    optimizer = torch.optim.SGD(module.parameters(), lr=work.step_size)
    losses = []
    for _ in range(work.epochs):
        loss = nn.functional.cross_entropy(module(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in module.named_parameters()}, sum(losses) / len(losses)


def project(v: list[float]) -> list[float]:
    """On the simplex, by bisection."""
    low, high = min(v) - 1.0, max(v)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, 0.0) for x in v) > 1 else (low, middle)
    return [max(x - low, 0.0) for x in v]


@pytest.mark.parametrize("seed", [0, 42])
def test_rounds_of_fedavg_and_of_omd_in_plain_pytorch(seed: int):
    """The published settings: mean loss along the local steps, λ and θ at once, θ ← Σ λ_i θ_i."""
    data = load("digits")
    parts = deal(data, Rotation(), (seed,))
    images = parts.train.inputs[0].float() / 16
    torch.manual_seed(seed)
    module = DIGITS.model.module()
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    s = 0.5
    for kind in ("LS", "gd", "eg"):
        theta, lam, kept, weights = start, [0.1] * 10, [], []
        for _ in range(3):
            weights.append(lam)
            sent = [
                local_work(theta, (images[i], parts.train.labels[0, i]), DIGITS.model, DIGITS.work) for i in range(10)
            ]
            losses = [loss for _, loss in sent]
            theta = {name: sum(lam[i] * sent[i][0][name] for i in range(10)) for name in theta}  # type: ignore[misc]
            kept.append(theta)
            if kind == "gd":
                lam = project([lam[i] + s * losses[i] for i in range(10)])
            elif kind == "eg":
                grown = [lam[i] * math.exp(s * losses[i]) for i in range(10)]
                lam = [x / sum(grown) for x in grown]
        weighting: Any = {"LS": eq.Linear(), "gd": eq.OMD(10 * s, eq.Euclidean()), "eg": eq.OMD(10 * s, eq.Entropic())}[
            kind
        ]
        found = simulate(DIGITS, weighting, seeds=(seed,))
        close({n: t[0] for n, t in found.params["last"].items()}, theta)
        close(found.history.coefficients[:, 0], torch.tensor(weights, dtype=torch.float32))
        average = {n: sum(k[n] for k in kept) / 3 for n in theta}  # θ⁽²⁾..θ⁽ᵀ⁺¹⁾
        close({n: t[0] for n, t in found.params["average"].items()}, average)


def test_a_round_of_qffl(toy):
    """θ ← θ − Σ D_i / Σ h_i with D_i = L_i^q g_i and h_i = q L_i^(q−1) ‖g_i‖² + L_i^q/η."""
    small, q, eta = toy((6, 9, 4)), 0.7, 0.3
    task = Task("toy", small.split, LINEAR, LocalWork(3, None, eta), 1, "trajectory")
    params, _ = initial(LINEAR, (0,))
    theta = {n: t[0] for n, t in params.items()}
    sent = [local_work(theta, small.train(i), LINEAR, task.work) for i in range(3)]
    g = [torch.cat([((theta[n] - local[n]) / eta).flatten() for n in theta]) for local, _ in sent]
    L = [loss for _, loss in sent]
    h = sum(q * L[i] ** (q - 1) * g[i].square().sum() + L[i] ** q / eta for i in range(3))
    flat = torch.cat([t.flatten() for t in theta.values()]) - sum(L[i] ** q * g[i] for i in range(3)) / h
    found = simulate(task, eq.QFFL(q, eta), dataset=small.dataset)
    close(torch.cat([t[0].flatten() for t in found.params["last"].values()]), flat)


def test_a_preference(toy):
    """λ-gain s·w_i·f_i and θ ← θ − Σ λ_i w_i (θ − θ_i), with w scaled to sum to m."""
    small, w, s = toy((6, 9, 4)), (0.5, 0.3, 0.2), 0.4
    task = Task("toy", small.split, LINEAR, LocalWork(2), 2, "trajectory")
    params, _ = initial(LINEAR, (0,))
    theta, lam, scaled = {n: t[0] for n, t in params.items()}, torch.full((3,), 1 / 3), 3 * torch.tensor(w)
    for _ in range(2):
        sent = [local_work(theta, small.train(i), LINEAR, task.work) for i in range(3)]
        f = torch.tensor([loss for _, loss in sent])
        c = lam * scaled
        theta = {n: t - sum(c[i] * (t - sent[i][0][n]) for i in range(3)) for n, t in theta.items()}
        lam = torch.softmax(lam.log() + s * scaled * f, -1)
    found = simulate(task, eq.OMD(3 * s, eq.Entropic()), preference=w, dataset=small.dataset)
    close({n: t[0] for n, t in found.params["last"].items()}, theta)
    linear = simulate(task, "LS", preference=torch.tensor(w), dataset=small.dataset)
    close(linear.history.coefficients[0, 0], torch.tensor(w))
    tch = simulate(task, "TCH", preference=(0.9, 0.05, 0.05), dataset=small.dataset)
    close(tch.history.coefficients[0, 0], torch.tensor([2.7, 0.0, 0.0]))


@pytest.mark.parametrize("name", ["LS", "TCH", "EPO", "FERERO", "equipoise"])
def test_every_seed_may_have_its_own_preference(name: str, toy):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    w = [(0.2, 0.3, 0.5), (0.6, 0.3, 0.1)]
    together = simulate(task, name, seeds=(5, 5), preference=w, dataset=small.dataset)
    assert not torch.equal(together.params["last"]["1.weight"][0], together.params["last"]["1.weight"][1])
    for k, own in enumerate(w):
        alone = simulate(task, name, seeds=(5,), preference=own, dataset=small.dataset)
        close(together.history.coefficients[:, k], alone.history.coefficients[:, 0])
        for output, params in alone.params.items():
            close({n: t[k] for n, t in together.params[output].items()}, {n: t[0] for n, t in params.items()})


# --- which models, which losses


@dataclass(frozen=True)
class Noted(eq.Last):
    """Keeps a list of what it was shown."""

    seen: list[tuple[dict[str, Tensor], Tensor]]

    def update(self, params, losses, state, *, mask=None):
        self.seen.append(({n: t.clone() for n, t in params.items()}, losses.clone()))
        return super().update(params, losses, state, mask=mask)


@pytest.mark.parametrize("average", ["before", "after"])
def test_index_conventions(toy, average):
    """Adaptive sees θ⁽¹⁾..θ⁽ᵀ⁾ with their losses; the average has these or θ⁽²⁾..θ⁽ᵀ⁺¹⁾; the last is θ⁽ᵀ⁺¹⁾."""
    small, T = toy((6, 9, 4)), 4
    task = Task("toy", small.split, LINEAR, LocalWork(2), T, "received", average)
    seen: list[tuple[dict[str, Tensor], Tensor]] = []
    adaptive = eq.Adaptive()
    found = simulate(task, OMDGD, dataset=small.dataset, conversions={"noted": Noted(seen), **_three(adaptive)})
    first, _ = initial(LINEAR, (0,))
    path = [first, *(params for params, _ in seen)]  # θ⁽¹⁾..θ⁽ᵀ⁺¹⁾
    assert len(path) == T + 1
    equal(found.params["last"], path[T])
    begin = 0 if average == "before" else 1
    for name in first:
        close(found.params["average"][name], sum(path[begin + t][name] for t in range(T)) / T)
    state = adaptive.init(first, torch.zeros(1, 3))
    for t in range(T):
        state = adaptive.update(path[t], found.history.losses[t], state)
    equal(found.params["adaptive"], adaptive.output(state))
    assert found.history.archive.tolist()[-1] == adaptive.size(state).tolist()


def test_limits_of_clients(toy):
    """The first client's loss as small as it can be, the second one's below what it has without a limit."""
    small = toy((40, 40))
    task = Task("toy", small.split, LINEAR, LocalWork(2), 150, "received")

    def losses(*limits: float | None) -> Tensor:
        method = eq.Method(eq.Limits(limits), eq.Average(power=8))
        found = simulate(task, method, seeds=(0, 3), preference=[1.0, 0.0], dataset=small.dataset)
        return found.history.losses[-20:].mean(0)

    loose = losses(None, 1e3)
    limit = 0.7 * float(loose[:, 1].max())
    tight = losses(None, limit)
    assert (loose[:, 1] > 1.3 * limit).all()
    assert (tight[:, 1] < 1.1 * limit).all()


def test_a_conversion_of_the_users_own(toy):
    """The mean of the second of two epochs and a half, of two rounds each; every seed has its own."""
    small, seen = toy((6, 9, 4)), list[tuple[dict[str, Tensor], Tensor]]()
    task = Task("toy", small.split, LINEAR, LocalWork(2), 5, "received")
    conversions: dict[str, eq.Conversion[Any]] = {"noted": Noted(seen), "epoch": LastEpoch(2)}
    found = simulate(task, OMDGD, seeds=(0, 3), dataset=small.dataset, conversions=conversions)
    for name, x in found.params["epoch"].items():
        close(x, (seen[2][0][name] + seen[3][0][name]) / 2)


def _three(adaptive: eq.Adaptive) -> dict[str, Any]:
    return {"last": eq.Last(), "average": eq.Average(), "adaptive": adaptive}


def test_the_archive_holds_copies(toy):
    """Where iterates do not dominate each other the adaptive output is neither the last nor the average one."""
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(4, None, 1.0), 12, "received")
    found = simulate(task, eq.OMD(30.0, eq.Euclidean()), dataset=small.dataset)
    assert found.history.archive[-1].item() > 1
    for other in ("last", "average"):
        assert not torch.equal(found.params["adaptive"]["1.weight"], found.params[other]["1.weight"])
    equal(found.history.archive[0], torch.tensor([1]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [None, 3])
def test_loss_sources(loss, size: int | None):
    """Each against its description, in the first round and one that follows."""
    data, split = load("digits"), PartialClass(3, 4)
    work = LocalWork(2, size if size is None else 100, 0.2)
    task = Task("digits", split, Dense((64, 10)), work, 2, loss)
    found = simulate(task, "LS", seeds=(5,))
    parts = deal(data, split, (5,), validation=loss.startswith("validation"))
    params, _ = initial(task.model, (5,))
    theta = {n: t[0] for n, t in params.items()}
    module = task.model.module()

    def at(theta: dict[str, Tensor], samples, i: int) -> float:
        module.load_state_dict(theta)
        n = samples.counts[0, i]
        x, y = samples.inputs[0, i, :n].float() / 16, samples.labels[0, i, :n]
        return nn.functional.cross_entropy(module(x), y).item()

    for t in (1, 2):
        batches = draw_batches(work, parts.train.counts, None, (5,), t)
        values, sent = [], []
        for i in range(4):
            n, here = int(parts.train.counts[0, i]), theta
            x, y = parts.train.inputs[0, i].float() / 16, parts.train.labels[0, i]
            steps = [torch.arange(n)] * 2 if batches is None else [row[row >= 0] for row in batches[0, i]]
            before, held = [], []
            for k in (step for step in steps if len(step)):
                if parts.validation is not None:
                    held.append(at(here, parts.validation, i))
                here, value = local_work(here, (x[k], y[k]), Dense((64, 10)), LocalWork(1, None, 0.2))
                before.append(value)
            sent.append(here)
            if loss in {"trajectory", "received"}:
                values.append(sum(before) / len(before) if loss == "trajectory" else before[0])
            elif loss in {"full", "full-updated"}:
                values.append(at(theta if loss == "full" else here, parts.train, i))
            else:
                values.append(at(theta, parts.validation, i) if loss == "validation" else sum(held) / len(held))
        close(found.history.losses[t - 1, 0], torch.tensor(values))
        theta = {n: sum(s[n] for s in sent) / 4 for n in theta}  # type: ignore[misc]
    close({n: t[0] for n, t in found.params["last"].items()}, theta)


@pytest.mark.parametrize("dominance", [loss for loss in LOSSES if loss != "received"])
def test_the_dominance_test_may_have_other_losses(dominance):
    """λ has its own: the run goes as without them, and the archive as in a run that has them for both."""
    task = Task("digits", PartialClass(3, 4), Dense((64, 10)), LocalWork(4, None, 1.0), 12, "received")
    compared = replace(task, dominance=dominance)
    plain, split = simulate(task, OMDGD), simulate(compared, OMDGD)
    equal(tuple(split.history)[:2], tuple(plain.history)[:2])
    equal(split.params["last"], plain.params["last"])
    # Coefficients of LS depend on no losses.
    split, whole = simulate(compared, "LS"), simulate(replace(task, loss=dominance), "LS")
    equal(split.history.archive, whole.history.archive)
    equal(split.params, whole.params)
    assert not torch.equal(split.history.losses, whole.history.losses)


def test_a_task_is_named_as_before_where_dominance_is_not_given():
    assert "dominance" not in repr(DIGITS)
    assert repr(replace(DIGITS, dominance="full")).endswith(", dominance='full')")
    with pytest.raises(ValueError, match=r"dominance must be None or one of trajectory, .*; found test"):
        replace(DIGITS, dominance="test")  # type: ignore[arg-type]


def test_what_is_held_out_is_not_tested_on():
    task = Task("digits", Rotation((0, 0)), Dense((64, 10)), rounds=1)
    plain, held = (simulate(replace(task, loss=loss), "LS") for loss in ("received", "validation"))
    assert held.test["last"].counts.sum() < 0.55 * plain.test["last"].counts.sum()
    equal(held.params["last"], plain.params["last"])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("participation", [Participation(), Participation(0.6, 0.3)], ids=["all", "some"])
def test_engines_agree(toy, loss, participation: Participation):
    small = toy((8, 5, 13, 6), (8, 6, 9, 9))
    task = Task("toy", small.split, MODEL, LocalWork(2, 4), 3, loss, participation=participation)
    fast, plain = (
        simulate(task, OMDGD, seeds=(0, 3), dataset=small.dataset, engine=engine) for engine in ("auto", "sequential")
    )
    torch.testing.assert_close(tuple(fast.history), tuple(plain.history), rtol=1e-4, atol=1e-5, equal_nan=True)
    close(fast.params, plain.params)


def test_propfair_reaches_the_clients(toy):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(2), 2)
    fair = simulate(task, "PropFair", dataset=small.dataset)
    plain = simulate(task, "LS", dataset=small.dataset)
    equal(fair.history.losses[0], plain.history.losses[0])  # what clients report is their plain loss
    assert not torch.equal(fair.params["last"]["1.weight"], plain.params["last"]["1.weight"])
    same_course(fair, simulate(task, "PropFair", dataset=small.dataset, engine="sequential"), close)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_tracked_rows_are_what_moco_moves_by(toy, decay: float):
    """θ ← θ − η Σ c_i Y_i with Y ← Y + β (G − Y), as long as it is as an average of models."""
    small, beta, eta = toy((6, 9, 4)), 0.3, 0.2
    task = Task("toy", small.split, LINEAR, LocalWork(2, None, eta), 3)
    moco = eq.MoCo(0.01, beta, tracking_decay=decay)
    found = simulate(task, moco, dataset=small.dataset)
    params, _ = initial(LINEAR, (0,))
    theta, Y = {n: t[0] for n, t in params.items()}, torch.zeros(3, 30)
    for k in range(3):
        sent = [local_work(theta, small.train(i), LINEAR, task.work)[0] for i in range(3)]
        G = torch.stack([torch.cat([((theta[n] - local[n]) / eta).flatten() for n in theta]) for local in sent])
        Y = Y + beta / (k + 1) ** decay * (G - Y)
        move = eta * found.history.coefficients[k, 0] @ Y
        weight, bias = move.split([27, 3])
        theta = {"1.weight": theta["1.weight"] - weight.reshape(3, 9), "1.bias": theta["1.bias"] - bias}
    close({n: t[0] for n, t in found.params["last"].items()}, theta)


@pytest.mark.parametrize("loss", ["trajectory", "received", "full-updated"])
@pytest.mark.parametrize("name", ["LS", "OMDgd-TCH", "relative", "momentum", "ExcessMTL", "MoCo", "FedFV"])
def test_an_engine_may_overwrite_what_it_returned(toy, monkeypatch, name: str, loss):
    """A captured graph writes every round to the same memory: nothing of it may be kept without a copy."""
    own: dict[str, Any] = {
        "relative": eq.Relative(eq.OMD(3.0, eq.Entropic(), optimism=1.0)),
        "momentum": eq.Momentum(eq.SmoothTchebycheff(0.1)),
        "MoCo": eq.MoCo(0.01, 0.3),
    }
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(2), 4, loss)
    expected = simulate(task, own.get(name, name), dataset=small.dataset)
    train = Stacked.train
    memory: list[Any] = []

    def reuse(self, *arguments, **more):
        sent = train(self, *arguments, **more)
        if not memory:
            memory.append(sent)
        held = memory[0]
        for key, t in sent.params.items():
            held.params[key].copy_(t)
        held.mean.copy_(sent.mean)
        held.first.copy_(sent.first)
        return held

    monkeypatch.setattr(Stacked, "train", reuse)
    same_course(simulate(task, own.get(name, name), dataset=small.dataset), expected)


# --- who takes part


def test_a_draw_is_of_the_size_asked_for_and_says_how_likely_it_was():
    drawn, answers, probability = Participation(0.3, 0.5).draw((0, 1, 2), 10, 4)
    assert drawn.shape == answers.shape == (3, 3)
    assert probability == pytest.approx(0.15)
    assert all(len(set(r)) == 3 for r in drawn.tolist())
    again = Participation(0.3, 0.5).draw((1,), 10, 4)
    assert torch.equal(again[0][0], drawn[1])
    assert torch.equal(again[1][0], answers[1])
    one, _, probability = Participation(0.01).draw((0,), 10, 1)
    assert one.shape == (1, 1)
    assert probability == pytest.approx(0.1)


def test_every_client_takes_part_as_often_as_is_said():
    how = Participation(0.4, 0.25)
    seen = torch.zeros(5)
    for t in range(2000):
        drawn, answers, probability = how.draw((7,), 5, t)
        seen[drawn[0][answers[0]]] += 1
    assert probability == pytest.approx(0.3)
    assert bool(((seen / 2000 - 0.3).abs() < 4 * (0.3 * 0.7 / 2000) ** 0.5).all())


@pytest.mark.parametrize("name", ["LS", "TCH", "STCH", "OMDgd-TCH", "OMDeg-TCH", "ExcessMTL", "FedFV", "EPO", "FERERO"])
def test_an_absent_client_has_coefficient_zero(toy, name: str):
    small = toy((6, 9, 4, 5))
    task = Task("toy", small.split, LINEAR, LocalWork(2), 8, participation=Participation(0.5, 0.4))
    found = simulate(task, name, dataset=small.dataset, seeds=(0, 1))
    absent = torch.isnan(found.history.losses)
    for t in range(8):
        drawn, answers, _ = task.participation.draw((0, 1), 4, t + 1)
        present = torch.zeros(2, 4, dtype=torch.bool).scatter_(1, drawn, answers)
        assert torch.equal(absent[t], ~present)
    assert bool((found.history.coefficients[absent] == 0).all())
    assert 0 < absent.sum() < absent.numel()
    assert all(bool(torch.isfinite(t).all()) for t in found.params["last"].values())


def test_gains_and_coefficients_are_divided_by_the_probability_of_being_there(toy):
    """An absent client gains nothing: λ moves by s·w_i·f_i/π for those present."""
    small, s = toy((6, 9, 4)), 0.2
    how = Participation(2 / 3)
    task = Task("toy", small.split, LINEAR, LocalWork(2), 4, "trajectory", participation=how)
    found = simulate(task, eq.OMD(3 * s, eq.Entropic()), dataset=small.dataset)
    params, _ = initial(LINEAR, (0,))
    theta, lam = {n: t[0] for n, t in params.items()}, torch.full((3,), 1 / 3)
    for t in range(4):
        present = sorted(how.draw((0,), 3, t + 1)[0][0].tolist())
        gain, c = torch.zeros(3), torch.zeros(3)
        sent = {i: local_work(theta, small.train(i), LINEAR, task.work) for i in present}
        for i in present:
            gain[i], c[i] = sent[i][1] / (2 / 3), lam[i] / (2 / 3)
        close(found.history.coefficients[t, 0], c)
        theta = {n: v - sum(c[i] * (v - sent[i][0][n]) for i in present) for n, v in theta.items()}
        lam = torch.softmax(lam.log() + s * gain, -1)
    close({n: t[0] for n, t in found.params["last"].items()}, theta)


@pytest.mark.parametrize("name", ["LS", "TCH", "OMDgd-TCH", "qFFL", "FedMGDA+", "FedFV", "EPO", "ExcessMTL", "Moco"])
def test_if_nobody_answers_the_model_stays(toy, monkeypatch, name: str):
    small = toy((6, 9, 4))

    def nobody(self, seeds, m, round_):  # noqa: ARG001
        drawn = torch.arange(m).expand(len(seeds), m)
        return drawn, torch.full(drawn.shape, round_ == 2), 0.5

    monkeypatch.setattr(Participation, "draw", nobody)
    task = Task("toy", small.split, LINEAR, LocalWork(2), 1, participation=Participation(1.0, 0.5))
    first, _ = initial(LINEAR, (0, 1))
    found = simulate(task, name, dataset=small.dataset, seeds=(0, 1))
    equal(found.params["last"], first)
    equal(found.params["adaptive"], first)
    assert bool(found.history.losses.isnan().all())
    later = simulate(replace(task, rounds=3), name, dataset=small.dataset, seeds=(0, 1))
    assert bool(torch.isfinite(later.history.losses[1]).all())
    assert not torch.equal(later.params["last"]["1.weight"], first["1.weight"])


def test_what_a_silent_client_would_have_sent_does_not_matter(toy, monkeypatch):
    """It may have diverged: 0 times what it sends is still nothing."""
    small = toy((6, 9, 4))
    data = replace(small.dataset, train_inputs=small.dataset.train_inputs.float() / 255, scale=1)
    data.train_inputs[6 + 2] = float("nan")  # of client 1

    def without_client_1(self, seeds, m, round_):  # noqa: ARG001
        return torch.tensor([[0, 1, 2]]), torch.tensor([[True, False, True]]), 1.0

    monkeypatch.setattr(Participation, "draw", without_client_1)
    for name in ("LS", "OMDgd-TCH", "FedFV", "ExcessMTL"):
        task = Task("toy", small.split, LINEAR, LocalWork(2), 2, participation=Participation(1.0, 0.5))
        found = simulate(task, name, dataset=data)
        assert all(bool(torch.isfinite(t).all()) for t in found.params["last"].values()), name


@dataclass(frozen=True)
class Normalized:
    def module(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
        )


@pytest.mark.parametrize("present", [(0, 1, 2), (0, 2)], ids=["all", "some"])
def test_running_statistics_are_averaged_over_those_who_answer(toy, monkeypatch, present: tuple[int, ...]):
    small = toy((6, 9, 4))
    heard = torch.tensor([[i in present for i in range(3)]])
    monkeypatch.setattr(Participation, "draw", lambda *_: (torch.tensor([[0, 1, 2]]), heard, len(present) / 3))
    some = Participation() if len(present) == 3 else Participation(1.0, 0.5)
    task = Task("toy", small.split, Normalized(), LocalWork(2), 1, batch_norm="running", participation=some)
    found = simulate(task, "LS", dataset=small.dataset)
    torch.manual_seed(0)
    modules = []
    start = Normalized().module()
    for i in present:
        module = Normalized().module()
        module.load_state_dict(start.state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        x, y = small.train(i)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        modules.append(module.state_dict())
    mean = {n: sum(m[n] for m in modules) / len(modules) for n in modules[0] if "tracked" not in n}
    start.load_state_dict(mean, strict=False)
    start.eval()
    for i in range(3):
        x, y = small.test(i)
        close(found.test["last"].losses[0, i], nn.functional.cross_entropy(start(x), y).detach())


# --- determinism and checkpoints


def test_a_run_is_repeatable_and_a_seed_does_not_depend_on_the_others(toy):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, MODEL, LocalWork(2, 4), 3, participation=Participation(0.7, 0.2))
    first, again = (simulate(task, OMDGD, dataset=small.dataset, seeds=(0, 9)) for _ in range(2))
    same_course(first, again)
    alone = simulate(task, OMDGD, dataset=small.dataset, seeds=(9,))
    close({n: t[1] for n, t in first.params["last"].items()}, {n: t[0] for n, t in alone.params["last"].items()})


def test_the_caller_s_random_numbers_are_left_alone(toy):
    small = toy((6, 9, 4))
    for engine in ("auto", "sequential"):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), "LS", dataset=small.dataset, engine=engine)
        assert torch.equal(torch.rand(2), expected), engine


class StoppedError(Exception):
    pass


def stop_at(last: int):
    def progress(done: int) -> None:
        if done == last:
            raise StoppedError

    return progress


CHECKPOINTED: dict[str, Any] = {
    "LS": eq.Linear(),
    "OMDgd": OMDGD,
    "OMDeg, adaptive": eq.OMD("adaptive", eq.Entropic(), optimism=1.0),
    "ExcessMTL": eq.ExcessRisk(1.0),
    "MoCo": eq.MoCo(0.01, 0.3),
    "momentum": eq.Momentum(eq.SmoothTchebycheff(0.1)),
    "FedFV": eq.FedFV(0.1, 2),
    "EPO": eq.EPO(),
    "FERERO": eq.FERERO(),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_an_interrupted_run_goes_on_bit_for_bit(toy, tmp_path: Path, name: str):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(2, 4, 1.0), 6, participation=Participation(1.0, 0.2))
    options: dict[str, Any] = {"dataset": small.dataset, "seeds": (0, 4), "evaluate_every": 2}
    whole = simulate(task, CHECKPOINTED[name], **options)
    file = tmp_path / "deep" / "run.npz"
    with pytest.raises(StoppedError):
        simulate(task, CHECKPOINTED[name], **options, checkpoint=file, checkpoint_seconds=0, progress=stop_at(3))
    done: list[int] = []
    rest = simulate(task, CHECKPOINTED[name], **options, checkpoint=file, progress=done.append)
    assert done == [4, 5, 6]
    same_course(rest, whole)
    assert [p.name for p in file.parent.iterdir()] == ["run.npz"]


def test_a_resumed_run_has_all_of_its_curves(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(2), 6)
    options: dict[str, Any] = {"dataset": small.dataset, "evaluate_every": 2}
    whole = simulate(task, OMDGD, **options)
    file = tmp_path / "run.npz"
    with pytest.raises(StoppedError):
        simulate(task, OMDGD, **options, checkpoint=file, checkpoint_seconds=0, progress=stop_at(5))
    rest = simulate(task, OMDGD, **options, checkpoint=file)
    for name, points in whole.curves.items():
        assert [done for done, _, _ in rest.curves[name]] == [done for done, _, _ in points] == [2, 4, 6]
        for (_, *a), (_, *b) in zip(rest.curves[name], points, strict=True):
            equal(a, b)


def test_a_resumed_run_counts_the_time_of_all_its_rounds(toy, tmp_path: Path, monkeypatch):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 4)
    clock = iter(range(1000))
    monkeypatch.setattr("equipoise.federated.rounds.time.perf_counter", lambda: float(next(clock)))
    file = tmp_path / "run.npz"
    with pytest.raises(StoppedError):
        simulate(task, "LS", dataset=small.dataset, checkpoint=file, checkpoint_seconds=0, progress=stop_at(3))
    rest = simulate(task, "LS", dataset=small.dataset, checkpoint=file)
    assert rest.seconds == [1.0] * 4


def test_a_checkpoint_is_not_written_more_often_than_asked(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    simulate(task, "LS", dataset=small.dataset, checkpoint=tmp_path / "run.npz", checkpoint_seconds=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_checkpoint_gives_the_result_again(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    options: dict[str, Any] = {"dataset": small.dataset, "checkpoint": tmp_path / "run.npz", "checkpoint_seconds": 0}
    same_course(simulate(task, OMDGD, **options), simulate(task, OMDGD, **options))


def test_a_checkpoint_of_another_run_is_refused(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    file = tmp_path / "run.npz"

    def run(task: Task = task, method: Any = OMDGD, **changes: Any) -> Result:
        options = {"dataset": small.dataset, "seeds": (0, 1), "checkpoint": file, "checkpoint_seconds": 0, **changes}
        return simulate(task, method, **options)

    run()
    before = file.read_bytes()
    others: dict[str, Any] = {
        "task": {"task": replace(task, rounds=4)},
        "weighting": {"method": eq.OMD(3.5, eq.Euclidean())},
        "transform": {"method": eq.Method(OMDGD, eq.Last(), eq.PropFair())},
        "conversions": {"conversions": {"last": eq.Last()}},
        "preference": {"preference": (0.2, 0.3, 0.5)},
        "seeds": {"seeds": (0, 2)},
    }
    for field, changes in others.items():
        with pytest.raises(StateMismatchError, match=f"run.npz belongs to another run: {field} must be") as error:
            run(**changes)
        assert "; found" in str(error.value)
    assert file.read_bytes() == before
    run()


def test_a_checkpoint_of_other_data_is_refused(toy, tmp_path: Path):
    small, other = toy((6, 9, 4)), toy((6, 9, 4), seed=1)
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    file = tmp_path / "run.npz"
    simulate(task, "LS", dataset=small.dataset, checkpoint=file, checkpoint_seconds=0)
    with pytest.raises(StateMismatchError, match="data"):
        simulate(task, "LS", dataset=other.dataset, checkpoint=file)


@pytest.mark.parametrize("flips", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_flip_in_a_checkpoint_is_noticed(flips, toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    file, rng = tmp_path / "run.npz", random.Random(flips)  # noqa: S311
    simulate(task, OMDGD, dataset=small.dataset, checkpoint=file, checkpoint_seconds=0)
    data = file.read_bytes()
    server: Any = None  # a damaged file is refused before anything is compared with it
    for _ in range(flips):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(eq.DamagedFileError, match=f"{file} is damaged"):
            Checkpoint(file, {}, 0.0).load(server)
    with pytest.raises(eq.DamagedFileError, match=f"{file} is damaged"):
        simulate(task, OMDGD, dataset=small.dataset, checkpoint=file)


def test_a_checkpoint_holds_arrays_and_no_pickle(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    file = tmp_path / "run.npz"
    task = Task("toy", small.split, LINEAR, LocalWork(1), 2)
    simulate(task, OMDGD, dataset=small.dataset, checkpoint=file, checkpoint_seconds=0)
    with np.load(file, allow_pickle=False) as held:
        assert int(held["round"]) == 2
        assert json.loads(str(held["settings"]))["seeds"] == "(0,)"
        assert all(held[name].dtype != object for name in held.files)


# --- evaluation along the way


def test_curves(toy):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 5)
    found = simulate(task, OMDGD, dataset=small.dataset, evaluate_every=2)
    shorter = simulate(replace(task, rounds=2), OMDGD, dataset=small.dataset)
    for name, points in found.curves.items():
        assert [done for done, _, _ in points] == [2, 4, 5]
        equal((points[0].train, points[0].test), (shorter.train[name], shorter.test[name]))
        equal(points[-1].test, found.test[name])
    assert simulate(task, OMDGD, dataset=small.dataset).curves == {"last": [], "average": [], "adaptive": []}
    assert len(found.seconds) == 5
    assert min(found.seconds) > 0


def test_curves_on_test_samples_alone_and_after_the_first_round(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 5)
    options: dict[str, Any] = {
        "dataset": small.dataset, "evaluate_every": 4, "evaluate_parts": ("test",), "evaluate_first": True,
    }  # fmt: skip
    found = simulate(task, OMDGD, **options)
    once = simulate(replace(task, rounds=1), OMDGD, dataset=small.dataset)
    for name, points in found.curves.items():
        assert [point.round for point in points] == [1, 4, 5]
        assert all(point.train is None for point in points)
        equal(points[0].test, once.test[name])
        equal(points[-1].test, found.test[name])
        assert found.train[name].losses.shape == (1, 3)
    file = tmp_path / "run.npz"
    with pytest.raises(StoppedError):
        simulate(task, OMDGD, **options, checkpoint=file, checkpoint_seconds=0, progress=stop_at(2))
    rest = simulate(task, OMDGD, **options, checkpoint=file)
    for name, points in found.curves.items():
        equal(rest.curves[name], points)
    with pytest.raises(StateMismatchError, match="evaluate_every"):
        simulate(task, OMDGD, dataset=small.dataset, evaluate_every=4, checkpoint=file)
    last = simulate(task, OMDGD, dataset=small.dataset, evaluate_parts=("train",), evaluate_first=True)
    assert [(point.round, point.test) for point in last.curves["last"]] == [(1, None)]


def test_a_deadline_stops_after_a_round_and_keeps_it(toy, tmp_path: Path):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    file = tmp_path / "run.npz"
    options: dict[str, Any] = {"dataset": small.dataset, "checkpoint": file}
    for done in (1, 2):
        with pytest.raises(TimeoutError, match=f"time is up after round {done} of 3"):
            simulate(task, OMDGD, **options, deadline=time.monotonic())
    # The last round is not cut off.
    rest = simulate(task, OMDGD, **options, deadline=time.monotonic())
    same_course(rest, simulate(task, OMDGD, dataset=small.dataset))
    simulate(task, OMDGD, dataset=small.dataset, deadline=time.monotonic() + 1000)


def test_the_untrained_model(toy):
    small = toy((6, 9, 4))
    found = simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), "LS", dataset=small.dataset, seeds=(3,))
    torch.manual_seed(3)
    module = LINEAR.module()
    for i in range(3):
        x, y = small.test(i)
        close(found.untrained.losses[0, i], nn.functional.cross_entropy(module(x), y).detach())


# --- a loss that is not a number


def broken(toy, client: int, sample: int):
    small = toy((6, 9, 4))
    data = replace(small.dataset, train_inputs=small.dataset.train_inputs.float() / 255, scale=1)
    data.train_inputs[sum((6, 9, 4)[:client]) + sample] = float("nan")
    return small, data


@pytest.mark.parametrize("engine", ["auto", "sequential"])
@pytest.mark.parametrize("loss", ["trajectory", "received", "full", "full-updated"])
def test_a_loss_that_is_not_a_number_is_named(toy, loss, engine):
    small, data = broken(toy, 1, 0)
    task = Task("toy", small.split, LINEAR, LocalWork(2), 4, loss)
    with pytest.raises(NonFiniteLossError, match="loss must be finite; found nan for client 1, seed 5, round 1"):
        simulate(task, "LS", dataset=data, seeds=(5, 6), engine=engine)


@pytest.mark.parametrize("loss", ["trajectory", "received", "full", "full-updated"])
def test_the_client_that_diverged_is_named_not_everyone_after_it(toy, loss):
    """Also if the loss that is reported was taken before its model was lost."""
    small, data = broken(toy, 1, 0)
    work = LocalWork(1, 1)
    task = Task("toy", small.split, LINEAR, work, 4, loss)
    with pytest.raises(NonFiniteLossError, match=r"client 1, seed 5, round 1$"):
        simulate(task, "LS", dataset=data, seeds=(5,))


def spoiled(monkeypatch, round_: int, seed: int, client: int) -> None:
    """From this round on a client's losses are infinite."""
    train, calls = Stacked.train, itertools.count(1)

    def spoil(self, *arguments, **more):
        sent = train(self, *arguments, **more)
        if next(calls) >= round_:
            sent.first[seed, client] = sent.mean[seed, client] = float("inf")
        return sent

    monkeypatch.setattr(Stacked, "train", spoil)


def test_the_seed_and_the_round_are_named(toy, monkeypatch):
    small = toy((6, 9, 4))
    spoiled(monkeypatch, 2, 1, 2)
    with pytest.raises(NonFiniteLossError, match="found inf for client 2, seed 9, round 2"):
        simulate(Task("toy", small.split, LINEAR, LocalWork(2), 4), "LS", dataset=small.dataset, seeds=(8, 9))


def test_what_was_finished_is_kept(toy, tmp_path: Path, monkeypatch):
    small = toy((6, 9, 4))
    file = tmp_path / "run.npz"
    task = Task("toy", small.split, LINEAR, LocalWork(2), 5)
    whole = simulate(task, OMDGD, dataset=small.dataset)
    with monkeypatch.context() as broken_client:
        spoiled(broken_client, 4, 0, 1)
        with pytest.raises(NonFiniteLossError, match="client 1, seed 0, round 4"):
            simulate(task, OMDGD, dataset=small.dataset, checkpoint=file, checkpoint_seconds=0)
    with np.load(file, allow_pickle=False) as held:
        assert int(held["round"]) == 3
        assert np.array_equal(held["losses"], whole.history.losses[:3].numpy())
    same_course(simulate(task, OMDGD, dataset=small.dataset, checkpoint=file), whole)


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1; found 0"),
        ({"loss": "test"}, "loss must be one of trajectory, received, full, .*; found test"),
        ({"average": "never"}, 'average must be "before" or "after"; found never'),
        ({"batch_norm": "none"}, "batch_norm must be one of batch, running, recalibrated; found none"),
    ],
)
def test_a_task(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Task(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\]; found 0.0"),
        ({"fraction": 1.1}, r"fraction must lie in \(0, 1\]; found 1.1"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\); found 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\); found -0.1"),
    ],
)
def test_participation(settings: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        Participation(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "fast"}, 'engine must be "auto" or "sequential"; found fast'),
        ({"precision": "float16"}, "precision must be one of float32, tf32, bfloat16; found float16"),
        ({"seeds": 0}, r"seeds must be a sequence, such as \(0,\) or range\(3\); found 0"),
        ({"seeds": ()}, r"seeds must hold at least one seed; found \(\)"),
        ({"preference": (0.5, 0.5)}, "preference must have 3 entries, one per objective; found 2"),
        ({"preference": (0.5, 0.5, 0.5)}, "preference must be non-negative and sum to 1; found sum 1.5"),
        (
            {"preference": torch.full((3, 3), 1 / 3), "seeds": (0, 1)},
            r"preference must have shape \(3,\), or \(2, 3\) by seed; found \(3, 3\)",
        ),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1; found 0"),
        ({"evaluate_parts": ()}, r'evaluate_parts must be "train", "test" or both; found \(\)'),
        ({"evaluate_parts": ("validation",)}, 'evaluate_parts must be "train", "test" or both'),
    ],
)
def test_a_simulation(toy, settings: dict[str, Any], message: str):
    small = toy((6, 9, 4))
    with pytest.raises(ValueError, match=message):
        simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), "LS", dataset=small.dataset, **settings)


def test_a_task_by_name_is_refused_with_where_named_ones_are():
    with pytest.raises(ValueError, match=r"those with names are in .*federated\.tasks\(\); found 'digits-rotation'"):
        simulate("digits-rotation", "LS")  # type: ignore[arg-type]


def test_without_a_method_it_is_the_default_with_its_own_conversion(toy):
    small = toy((6, 9, 4))
    task = Task("toy", small.split, LINEAR, LocalWork(1), 3)
    found = simulate(task, dataset=small.dataset)
    wanted = {"answer": eq.registry.default().conversion}
    named = simulate(task, "equipoise", dataset=small.dataset, conversions=wanted)
    assert list(found.test) == ["last", "average", "adaptive", "own"]
    assert all(torch.equal(x, named.params["answer"][name]) for name, x in found.params["own"].items())


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("equipoise", eq.Suffix()),
        (eq.Method(eq.Linear(), eq.Average(8.0)), eq.Average(8.0)),
        ("OMDgd-TCH", None),  # the average
        ("AdaTCH", None),  # the adaptive output
        (eq.Linear(), None),  # a weighting alone: the last model
    ],
    ids=repr,
)
def test_the_conversion_of_a_method_is_an_output(method, own, toy):
    small = toy((6, 9, 4))
    found = simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), method, dataset=small.dataset)
    assert list(found.test) == ["last", "average", "adaptive", *(["own"] if own else [])]
    assert eq.federated.outputs(eq.registry.resolve(method)).get("own") == own


def test_a_method_that_is_not_known(toy):
    small = toy((6, 9, 4))
    with pytest.raises(UnknownNameError, match=r"found 'OMDgd'; nearest: .*OMDgd-TCH"):
        simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), "OMDgd", dataset=small.dataset)


def test_a_gpu_that_is_not_there(toy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = toy((6, 9, 4))
    with pytest.raises(ValueError, match=r"device must exist: torch\.cuda finds no GPU, .* found cuda:1"):
        simulate(Task("toy", small.split, LINEAR, LocalWork(1), 1), "LS", dataset=small.dataset, device="cuda:1")


def test_more_clients_than_samples_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="clients must be at most the number of training samples, 1347; found 2000"):
        simulate(Task("digits", PartialClass(2, 2000)), "LS")
    with pytest.raises(ValueError, match="classes must be at most 10"):
        simulate(Task("digits", PartialClass(11)), "LS")


def test_a_model_that_does_not_fit_the_data_is_refused(toy):
    small = toy((6, 5, 7))
    wide = tuple(small.dataset.train_inputs.shape[1:])
    inside = int(np.prod(wide))
    with pytest.raises(
        ValueError, match=r"model must take inputs of shape .*; found Dense\(sizes=\(99, 3\)\), which says"
    ):
        simulate(Task("toy", small.split, Dense((99, 3))), "LS", dataset=small.dataset)
    with pytest.raises(ValueError, match=r"model must give logits \(n, \d+\) or more, one per class; found \(2, 1\)"):
        simulate(Task("toy", small.split, Dense((inside, 1))), "LS", dataset=small.dataset)
