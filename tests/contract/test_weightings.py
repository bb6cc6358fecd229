"""The contract of every weighting.

A weighting joins by its line in the registry, or from outside by the environment variable `EQUIPOISE_CONTRACT`, as
`module:name`; settings that no method of the registry has are in `SETTINGS`.
Those that need a Gramian or a Jacobian are given one with every step.
"""

import dataclasses
import io
import itertools
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from tests.torch_versions import compiles, maps_states
from torch import Tensor

import equipoise as eq
from equipoise.simplex import Mirror
from equipoise.weighting import Weighting
from equipoise.weighting.omd import OMDState

M, D = 4, 6
BATCHES = [(), (3,), (2, 3)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DEVICES = ["meta", *(["cuda"] if torch.cuda.is_available() else [])]

MIRRORS: dict[str, Mirror] = {
    "pgd": eq.Euclidean(),
    "eg": eq.Entropic(),
    "eg floor": eq.Entropic(floor=0.2),
    "pnorm": eq.PNorm(),
    "pnorm 1.3": eq.PNorm(1.3),
}
STCH = eq.SmoothTchebycheff(mu=0.25)
EG = eq.OMD(0.7, eq.Entropic())
BUSY = eq.OMD("adaptive", eq.Entropic(), optimism=1.5)
SETTINGS: dict[str, Weighting[Any]] = {
    "tch unit": eq.Tchebycheff(scale="unit"),
    "tch ideal": eq.Tchebycheff(ideal=-0.5),
    "stch": STCH,
    "stch ideal": eq.SmoothTchebycheff(mu=0.25, ideal=0.3),
    **{f"{name} fixed": eq.OMD(0.3, mirror) for name, mirror in MIRRORS.items()},
    **{f"{name} adaptive": eq.OMD("adaptive", MIRRORS[name]) for name in ("pgd", "eg", "eg floor", "pnorm")},
    **{
        f"{name} optimistic alternating": eq.OMD(0.3, MIRRORS[name], optimism=2.0, order="alternating")
        for name in ("pgd", "eg", "eg floor", "pnorm")
    },
    "eg adaptive optimistic ideal": dataclasses.replace(BUSY, order="alternating", ideal=0.2),
    "pgd adaptive optimistic": eq.OMD("adaptive", eq.Euclidean(), optimism=0.5, ideal=0.2),
    "pgd box": eq.OMD(0.8, eq.Euclidean(), dual_set=eq.Box(0.05, 0.4)),
    "eg box": eq.OMD(0.8, eq.Entropic(), dual_set=eq.Box(0.05, 0.4)),
    "eg floor cvar": eq.OMD(0.8, eq.Entropic(floor=0.1), dual_set=eq.Box.cvar(0.5, M)),
    "eg adaptive box": eq.OMD("adaptive", eq.Entropic(), optimism=1.0, dual_set=eq.Box(upper=0.45)),
    "self-tuned without floor": eq.SelfTuned(youth=0.0),
    "self-tuned ideal": eq.SelfTuned(youth=0.0, ideal=0.2),
    "dwa by step": eq.DWA(1),
    "dwa by two": eq.DWA(2, temperature=0.1),
    "famo ideal": eq.FAMO(0.1, 0.1, ideal=-0.5),
    "relative linear": eq.Relative(eq.Linear()),
    "relative tch": eq.Relative(eq.Tchebycheff()),
    "relative omd": eq.Relative(BUSY),
    "relative first omd": eq.Relative(BUSY, "first"),
    "relative momentum": eq.Relative(eq.Momentum(STCH)),
    "momentum drift": eq.Momentum(STCH, rule="bounded_drift", rate=0.3),
    "momentum constant": eq.Momentum(STCH, rule="constant", rate=0.6),
    "momentum released": eq.Momentum(STCH, rule="released"),
    "momentum omd": eq.Momentum(EG, rate=0.2),
    "momentum relative omd": eq.Momentum(eq.Relative(BUSY), rule="constant", rate=0.5),
}
# Settings that tell the objectives apart: permuting them permutes nothing.
NAMED: dict[str, Weighting[Any]] = {
    "linear ideal": eq.Linear(ideal=(0.1, 0.0, -0.2, 0.0)),
    "tch ideal per objective": eq.Tchebycheff(ideal=(0.1, 0.0, -0.2, 0.5)),
    "groupdro adjusted": eq.OMD(0.5, eq.Entropic(), order="alternating", ideal=(-0.1, -0.5, -0.2, -0.3)),
    "omd tensor ideal": eq.OMD(0.5, ideal=torch.tensor([0.1, 0.0, -0.2, 0.3])),
    "limits": eq.Limits((None, 0.5, 0.4, 0.0)),
    "limits among two": eq.Limits((None, 0.5, None, 0.6), eq.SelfTuned(youth=0.0)),
    "pgd ball": eq.OMD(1.5, dual_set=eq.Box.ball((0.1, 0.2, 0.3, 0.4), 0.15)),
    "eg ball": eq.OMD(1.5, eq.Entropic(), dual_set=eq.Box.ball((0.1, 0.2, 0.3, 0.4), 0.15)),
}


def fitted(weighting: Any) -> Weighting[Any]:
    """PMTL's references are those of two objectives in the registry."""
    if hasattr(weighting, "references"):
        grid = tuple(map(tuple, eq.preference.grid(3, M, margin=0.05).tolist()))
        weighting = dataclasses.replace(weighting, references=grid)
    found: Weighting[Any] = weighting
    return found


# Methods that share a weighting (AFL, ALMO, ...) are tested once.
REGISTRY = {fitted(method.weighting): name for name, method in reversed(eq.methods().items())}
SYMMETRIC = {**{name: w for w, name in reversed(REGISTRY.items())}, **SETTINGS}
_OUTSIDE = filter(None, os.environ.get("EQUIPOISE_CONTRACT", "").split(","))
OUTSIDE = {given: fitted(eq.plugins.find(given)[1].weighting) for given in _OUTSIDE}  # so `-k module:name` selects it
SYMMETRIC |= OUTSIDE
ALL = {**SYMMETRIC, **NAMED}


def over(cases: Mapping[str, Weighting[Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("weighting", cases.values(), ids=cases.keys())


every = over(ALL)
traceable = over({name: w for name, w in ALL.items() if w.traceable})
duals = over({name: w for name, w in ALL.items() if isinstance(w, eq.OMD)})


def draw(*shape: int, seed: int = 0, low: float = 0.1, high: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def prefer(*batch: int, seed: int = 1) -> Tensor:
    w = draw(*batch, M, seed=seed, low=0.2)
    return w / w.sum(-1, keepdim=True)


def statistics(weighting: Weighting[Any], *shape: int, seed: int = 10) -> dict[str, Tensor]:
    """What the weighting needs besides losses, each with the leading dimensions given."""
    rows = draw(*shape, M, D, seed=seed, low=-1.0, high=1.0)
    known = {"jacobian": rows, "gramian": rows @ rows.mT}
    return {name: known[name] for name in weighting.needs}


def begin(weighting: Weighting[Any], *batch: int, dtype: torch.dtype = torch.float64) -> Any:
    return weighting.init(torch.ones(*batch, M, dtype=dtype), **statistics(weighting, *batch))


def run(weighting: Weighting[Any], losses: Tensor, preference: Tensor, state: Any = None, **given: Any) -> Any:
    """Feed losses (T, *B, m), everything else by step too; the coefficients (T, *B, m) and the last state."""
    if not weighting.needs <= given.keys():
        given = {**given, **statistics(weighting, *losses.shape[:-1])}
    if state is None:
        state = weighting.init(losses[0], **{name: given[name][0] for name in weighting.needs})
    steps = []
    for t, f in enumerate(losses):
        c, state = weighting.update(f, state, preference, **{name: value[t] for name, value in given.items()})
        steps.append(c)
    return torch.stack(steps), state


stateful = over({name: w for name, w in ALL.items() if len(begin(w)) > 0})


def flat(state: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in eq.state.flatten(state).items()}


def shapes(state: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in eq.state.flatten(state).values()]


def assert_same(left: Any, right: Any) -> None:
    """Bit for bit."""
    a, b = flat(left), flat(right)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


def assert_close(left: Any, right: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(flat(left), flat(right), rtol=tolerance, atol=tolerance)


# A description with pure functions ------------------------------------------------------------


@every
def test_it_is_a_frozen_description(weighting: Any):
    field = next((field.name for field in dataclasses.fields(weighting)), "needs")  # some have no settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(weighting, field, None)
    assert dataclasses.replace(weighting) == weighting
    assert repr(weighting).startswith(type(weighting).__name__)
    assert weighting.needs <= {"gramian", "jacobian"}
    assert isinstance(weighting.traceable, bool)
    rows = weighting.rows(begin(weighting, 3))
    assert rows is None or rows.shape == (3, M, D)


@every
def test_init_looks_at_shape_dtype_and_device_only(weighting: Weighting[Any]):
    for batch in BATCHES:
        losses, extra = draw(*batch, M), statistics(weighting, *batch)
        state = weighting.init(losses, **extra)
        assert isinstance(state, tuple)
        blank = {name: torch.full_like(tensor, math.nan) for name, tensor in extra.items()}
        assert_same(state, weighting.init(torch.full_like(losses, math.nan), **blank))
        for tensor in flat(state).values():
            assert tensor.shape[: len(batch)] == batch
        memory = [tensor.data_ptr() for tensor in eq.state.flatten(state).values() if tensor.numel() > 0]
        assert len(set(memory)) == len(memory)


@every
def test_update_changes_nothing_it_is_given(weighting: Weighting[Any]):
    losses, w, extra = draw(3, M), prefer(3), statistics(weighting, 3)
    extra |= {"mask": draw(3, M, seed=3) > 0.5, "inclusion": draw(3, M, seed=4, low=0.3, high=1.0)}
    _, state = run(weighting, draw(2, 3, M, seed=9), w)
    given = [losses, w, *extra.values(), *eq.state.flatten(state).values()]
    before = [tensor.clone() for tensor in given]
    first = weighting.update(losses, state, w, **extra)
    again = weighting.update(losses, state, w, **extra)
    assert all(torch.equal(old, new) for old, new in zip(before, given, strict=True))
    assert torch.equal(first[0], again[0])
    assert_same(first[1], again[1])


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_and_dtype_are_kept(weighting: Weighting[Any], dtype: torch.dtype):
    for batch in BATCHES:
        losses = draw(2, *batch, M).to(dtype)
        before = flat(begin(weighting, *batch, dtype=dtype))
        c, state = run(weighting, losses, torch.full((M,), 0.25, dtype=dtype))
        assert c.shape == losses.shape
        assert c.dtype == dtype
        assert torch.isfinite(c).all()
        for name, tensor in flat(state).items():
            assert tensor.shape == before[name].shape
            assert tensor.dtype == before[name].dtype
            assert tensor.dtype not in {torch.float16, torch.bfloat16}
            assert weighting.needs or tensor.dtype in {torch.float64, torch.int64, torch.bool}


@traceable
@pytest.mark.parametrize("device", DEVICES)
def test_the_device_is_kept_and_no_value_is_read_on_the_host(weighting: Weighting[Any], device: str):
    # The meta device has no values: whatever reads one raises.
    losses, w = draw(3, M).to(device), prefer(3).to(device)
    extra = {name: tensor.to(device) for name, tensor in statistics(weighting, 3).items()}
    masked = {"mask": torch.ones(M, dtype=torch.bool, device=device), "inclusion": w}
    state = weighting.init(losses, **extra)
    for given in ({}, masked):
        c, state = weighting.update(losses, state, w, **extra, **given)
        assert c.device.type == device
        assert c.shape == (3, M)
        assert all(tensor.device.type == device for tensor in eq.state.flatten(state).values())


@traceable
def test_arguments_on_the_host_follow_the_losses(weighting: Weighting[Any]):
    losses = draw(3, M).to("meta")
    extra = {name: tensor.to("meta") for name, tensor in statistics(weighting, 3).items()}
    mask = torch.ones(M, dtype=torch.bool)
    state = weighting.init(losses, **extra)
    c, _ = weighting.update(losses, state, prefer(3), mask=mask, inclusion=prefer(3), **extra)
    assert c.device.type == "meta"


@over({name: w for name, w in ALL.items() if not w.needs})
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_low_precision_rounds_the_coefficients_and_nothing_else(weighting: Weighting[Any], dtype: torch.dtype):
    """At least float32 inside, whatever the losses have."""
    losses = draw(4, 3, M).to(dtype)
    c, state = run(weighting, losses, prefer(3))
    exact, expected = run(weighting, losses.double(), prefer(3))
    assert_close(state, expected, 1e-6)
    half_ulp = 0.5 * torch.finfo(dtype).eps + 1e-6
    assert ((c.double() - exact).abs() <= half_ulp * exact.abs()).all()


@every
def test_coefficients_are_detached(weighting: Weighting[Any]):
    state = begin(weighting, 3)
    for seed in range(3):
        losses, w = draw(3, M, seed=seed).requires_grad_(), prefer(3).requires_grad_()
        extra = {"inclusion": draw(3, M, seed=4, low=0.3, high=1.0), **statistics(weighting, 3)}
        c, state = weighting.update(losses, state, w, **{name: x.requires_grad_() for name, x in extra.items()})
        assert not c.requires_grad
        assert not any(tensor.requires_grad for tensor in eq.state.flatten(state).values())
        (c * losses).sum().backward()
        assert losses.grad is not None
        assert torch.equal(losses.grad, c)


@pytest.mark.parametrize("kind", [eq.Tchebycheff, eq.SmoothTchebycheff, eq.OMD])
def test_coefficients_are_detached_from_the_ideal_point(kind: Any):
    weighting = kind(ideal=torch.full((M,), 0.1, requires_grad=True))
    c, state = run(weighting, draw(2, M), prefer())
    assert not c.requires_grad
    assert not any(tensor.requires_grad for tensor in eq.state.flatten(state).values())


# The batch is a law ---------------------------------------------------------------------------


def several_steps(weighting: Weighting[Any], *batch: int) -> dict[str, Tensor]:
    return {
        "losses": draw(3, *batch, M),
        "mask": draw(3, *batch, M, seed=3) > 0.6,
        "inclusion": draw(3, *batch, M, seed=4, low=0.4, high=1.0),
        **statistics(weighting, 3, *batch),
    }


@every
def test_what_is_foreseen_comes_whatever_the_losses(weighting: Weighting[Any]):
    """By default nothing is; the paper's order of the steps and the weighted sum know."""
    knows = isinstance(weighting, eq.Linear | eq.SelfTuned | eq.Limits | eq.Uncertainty | eq.DWA | eq.RandomWeights)
    knows = knows or (isinstance(weighting, eq.OMD) and weighting.order == "simultaneous")
    state, w = begin(weighting, 3), prefer(3)
    for step in range(4):
        extra = statistics(weighting, 3, seed=step)
        found = weighting.foreseen(state, w)
        assert (found is not None) == knows or weighting in OUTSIDE.values()
        if found is not None:
            other, _ = weighting.update(draw(3, M, seed=100 + step), state, w, **extra)
            assert torch.equal(other, found)
        c, state = weighting.update(draw(3, M, seed=step), state, w, **extra)
        assert found is None or torch.equal(c, found)


@every
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "masked"])
def test_batched_is_looped(weighting: Weighting[Any], batch: tuple[int, ...], plain: bool):
    steps, w = several_steps(weighting, *batch), prefer(*batch)
    if plain:
        del steps["mask"], steps["inclusion"]
    c, state = run(weighting, preference=w, **steps)
    for at in itertools.product(*(range(n) for n in batch)):
        alone = {name: torch.stack([row[at] for row in tensor]) for name, tensor in steps.items()}
        c_one, state_one = run(weighting, preference=w[at], **alone)
        torch.testing.assert_close(c[:, *at], c_one, rtol=1e-12, atol=1e-14)
        for name, tensor in flat(state_one).items():
            torch.testing.assert_close(flat(state)[name][at], tensor, rtol=1e-12, atol=1e-14)


@maps_states
@traceable
def test_batched_is_vmapped(weighting: Weighting[Any]):
    steps, w = several_steps(weighting, 3), prefer(3)

    def update(state: Any, preference: Tensor, step: dict[str, Tensor]) -> Any:
        return weighting.update(step["losses"], state, preference, **{k: x for k, x in step.items() if k != "losses"})

    state = mapped = begin(weighting, 3)
    for t in range(3):
        step = {name: tensor[t] for name, tensor in steps.items()}
        c, state = update(state, w, step)
        c_mapped, mapped = torch.func.vmap(update)(mapped, w, step)
        torch.testing.assert_close(c_mapped, c, rtol=1e-12, atol=1e-14)
        assert_close(mapped, state)


@every
def test_what_is_shared_by_the_batch_may_be_given_once(weighting: Weighting[Any]):
    losses, w, mask, pi = draw(2, 3, M), prefer(), torch.tensor([True, False, True, True]), torch.tensor(0.5)
    state, extra, full = begin(weighting, 2, 3), statistics(weighting, 2, 3), losses.shape
    once = weighting.update(losses, state, w, mask=mask, inclusion=pi, **extra)
    every_one = {"mask": mask.expand(full), "inclusion": pi.expand(full)}
    each = weighting.update(losses, state, w.expand(full), **every_one, **extra)
    assert torch.equal(once[0], each[0])
    assert_same(once[1], each[1])


# What is drawn belongs to the places of the objectives: permuting them permutes such coefficients in law only.
@over({name: w for name, w in SYMMETRIC.items() if not isinstance(w, eq.PCGrad | eq.RandomWeights)})
def test_permuting_the_objectives_permutes_the_coefficients(weighting: Weighting[Any]):
    order = torch.tensor([2, 0, 3, 1])

    def permuted(tensor: Tensor) -> Tensor:
        """Along every dimension that counts objectives."""
        for dim in range(1, tensor.ndim):
            if tensor.shape[dim] == M:
                tensor = tensor.index_select(dim, order)
        return tensor

    steps, w = several_steps(weighting, 3), prefer(3)
    c, state = run(weighting, preference=w, **steps)
    turned = {name: permuted(tensor) for name, tensor in steps.items()}
    c_turned, state_turned = run(weighting, preference=w[..., order], **turned)
    torch.testing.assert_close(c_turned, c[..., order], rtol=1e-11, atol=1e-13)
    for name, tensor in flat(state).items():
        torch.testing.assert_close(flat(state_turned)[name], permuted(tensor), rtol=1e-11, atol=1e-13)


@every
def test_the_input_matters_or_it_is_said_not_to(weighting: Weighting[Any]):
    """Without this a weighting that ignores its input would pass most of the contract."""
    c, other = (
        run(weighting, draw(3, M, seed=seed), prefer(), **statistics(weighting, 3, seed=seed))[0] for seed in (0, 7)
    )
    young = {eq.SelfTuned(), eq.DWA(100), eq.DWA(2, 0.1)}
    blind = isinstance(weighting, eq.Linear | eq.RandomWeights) or weighting in {eq.Relative(eq.Linear()), *young}
    assert torch.equal(c, other) == blind


@every
def test_coefficients_of_duals_are_said_to_be(weighting: Weighting[Any]):
    """Else a `MultiObjective` takes steps 1/m, or m times, as long."""
    c, _ = run(weighting, draw(5, M), torch.full((M,), 1 / M, dtype=torch.float64))
    assert torch.allclose(c.sum(-1), torch.full((5,), 1 / M, dtype=torch.float64)) == weighting.uses_duals


# Masks ----------------------------------------------------------------------------------------


@every
def test_an_absent_objective_has_coefficient_zero_and_its_loss_is_not_seen(weighting: Weighting[Any]):
    w, mask = prefer(3), torch.tensor([True, False, True, True])
    _, state = run(weighting, draw(2, 3, M, seed=5), w)
    seen = []
    for value in (0.7, 1e30, -5.0, math.nan, math.inf, -math.inf):
        losses, extra = draw(3, M, seed=6), statistics(weighting, 3)
        losses[:, 1] = value
        for name, tensor in extra.items():
            tensor[:, 1] = value
            if name == "gramian":
                tensor[:, :, 1] = value
        c, new = weighting.update(losses, state, w, mask=mask, **extra)
        assert torch.equal(c[:, 1], torch.zeros(3, dtype=torch.float64))
        assert (c != 0).any(-1).all()
        seen.append((c, new))
    for c, new in seen[1:]:
        assert torch.equal(c, seen[0][0])
        assert_same(new, seen[0][1])


@every
def test_an_objective_absent_from_the_start_was_never_observed(weighting: Weighting[Any]):
    mask, losses = torch.tensor([[True, False, True, True]]), draw(1, M)
    start = flat(begin(weighting))
    _, absent = run(weighting, losses, prefer(), mask=mask)
    for name, tensor in flat(absent).items():
        if name.endswith(("first", "seen", "previous")):
            assert torch.equal(tensor[1], start[name][1]), name


# Weights of the objectives relative to each other, and the moments of FAMO's, which move with them.
RELATIVE = ("dual", "log_weights", "logits", "mean", "square")


# SelfTuned and Limits hold more that compares objectives: their own tests say what an absent one does to it.
@over({name: w for name, w in ALL.items() if not isinstance(w, eq.SelfTuned | eq.Limits)})
def test_an_absent_objective_keeps_its_part_of_the_state(weighting: Weighting[Any]):
    names = RELATIVE if isinstance(weighting, eq.FAMO) else RELATIVE[:3]
    mask = torch.tensor([True, False, True, True])
    _, state = run(weighting, draw(3, M, seed=5), prefer())
    _, new = run(weighting, draw(3, M, seed=6), prefer(), state, mask=mask.expand(3, M))
    for name, tensor in flat(new).items():
        if tensor.shape[:1] == (M,) and name.rsplit(".")[-1] not in names:
            assert torch.equal(tensor[1], flat(state)[name][1]), name


@every
def test_a_mask_of_numbers_is_a_mask(weighting: Weighting[Any]):
    losses, mask = draw(1, 3, M), torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    c, new = run(weighting, losses, prefer(), mask=mask)
    expected, new_expected = run(weighting, losses, prefer(), mask=mask.bool())
    assert torch.equal(c, expected)
    assert_same(new, new_expected)


@every
def test_a_full_mask_is_no_mask(weighting: Weighting[Any]):
    losses = draw(3, 3, M)
    c, state = run(weighting, losses, prefer(3))
    masked, state_masked = run(weighting, losses, prefer(3), mask=torch.ones(3, M, dtype=torch.bool))
    assert torch.equal(masked, c)
    assert_same(state_masked, state)


@every
def test_with_everything_absent_nothing_moves(weighting: Weighting[Any]):
    _, state = run(weighting, draw(3, M), prefer())
    nobody = torch.zeros(1, M, dtype=torch.bool)
    c, new = run(weighting, torch.full((1, M), math.nan, dtype=torch.float64), prefer(), state, mask=nobody)
    assert torch.equal(c, torch.zeros(1, M, dtype=torch.float64))
    for name, tensor in flat(new).items():
        if name.rsplit(".")[-1] != "step":  # a step is counted
            torch.testing.assert_close(tensor, flat(state)[name], rtol=1e-12, atol=1e-14)


@duals
def test_absent_is_gain_zero(weighting: eq.OMD):
    """The dual moves as if the objective stood at the ideal point, where its gain w∘(f − z) is 0."""
    paper = dataclasses.replace(weighting, optimism=0.0)
    w, losses, mask = prefer(3), draw(3, M), torch.tensor([True, False, True, True])
    _, state = run(paper, draw(2, 3, M, seed=5), w)
    _, absent = paper.update(losses, state, w, mask=mask)
    losses[:, 1] = torch.as_tensor(paper.ideal, dtype=torch.float64).expand(M)[1]
    _, at_ideal = paper.update(losses, state, w)
    assert_close(absent, at_ideal, 1e-13)


@duals
def test_nothing_else_is_rescaled(weighting: eq.OMD):
    weighting = dataclasses.replace(weighting, order="simultaneous")
    w, losses, mask = prefer(3), draw(3, M), torch.tensor([True, False, True, True])
    _, state = run(weighting, draw(2, 3, M, seed=5), w)
    full, _ = weighting.update(losses, state, w)
    masked, _ = weighting.update(losses, state, w, mask=mask)
    assert torch.equal(masked, torch.where(mask, full, 0.0))


# Inclusion probabilities ----------------------------------------------------------------------


@every
def test_an_inclusion_of_one_changes_nothing(weighting: Weighting[Any]):
    losses = draw(3, 3, M)
    c, state = run(weighting, losses, prefer(3))
    sure, state_sure = run(weighting, losses, prefer(3), inclusion=torch.ones(3))
    assert torch.equal(sure, c)
    assert_same(state_sure, state)


UNBIASED: dict[str, Weighting[Any]] = {
    "linear": eq.Linear(),
    "self-tuned without floor": eq.SelfTuned(youth=0.0),
    "self-tuned ideal": eq.SelfTuned(youth=0.0, ideal=0.2),
    "limits": eq.Limits((None, 0.5, 0.4, 0.0)),
    "relative linear": eq.Relative(eq.Linear()),
    "uncertainty": eq.Uncertainty(0.1),
    "dwa": eq.DWA(1),
    "random weights": eq.RandomWeights(),
    **{name: eq.OMD(1e-3, mirror) for name, mirror in MIRRORS.items()},
    "adaptive": eq.OMD("adaptive"),
    "optimistic": eq.OMD(0.3, optimism=2.0),
}


@over(UNBIASED)
def test_coefficients_of_single_objective_sampling_are_unbiased(weighting: Weighting[Any]):
    w, losses = prefer(), draw(M)
    _, state = run(weighting, draw(3, M, seed=5), w)
    full, _ = weighting.update(losses, state, w)
    single = torch.eye(M, dtype=torch.bool)
    pi = torch.full((M,), 1 / M, dtype=torch.float64)
    sampled = torch.stack([weighting.update(losses, state, w, mask=row, inclusion=pi)[0] for row in single])
    torch.testing.assert_close(sampled.mean(0), full, rtol=1e-13, atol=0)
    assert torch.equal(sampled != 0, single)


@pytest.mark.parametrize("mirror", [eq.Euclidean(), eq.Entropic()], ids=repr)
def test_gains_of_random_presence_are_unbiased(mirror: Mirror):
    """With small steps λ stays inside, where the (mirrored) dual is linear in the gain up to a shift."""
    weighting, w, losses = eq.OMD(1e-2, mirror, ideal=0.05), prefer(), draw(M)
    pi = torch.tensor([0.3, 0.5, 0.8, 1.0], dtype=torch.float64)
    state = weighting.init(losses)
    mean = torch.zeros(M, dtype=torch.float64)
    for present in torch.cartesian_prod(*[torch.tensor([False, True])] * M):
        chance = torch.where(present, pi, 1 - pi).prod()
        _, new = weighting.update(losses, state, w, mask=present, inclusion=pi)
        mean += chance * (new.dual - new.dual.mean())
    _, full = weighting.update(losses, state, w)
    torch.testing.assert_close(mean, full.dual - full.dual.mean(), rtol=0, atol=1e-14)


# Extreme and non-finite losses ----------------------------------------------------------------


@every
def test_extreme_losses_do_not_overflow(weighting: Weighting[Any]):
    extremes = [[1e30, 1e-30, 1.0, 0.0], [1e-30] * 4, [1e30] * 4, [1e-30, 1e30, 0.5, 2.0], [3.0, 2.0, 1.0, 0.5]]
    losses = torch.tensor([extremes, extremes[::-1]], dtype=torch.float32).movedim(1, 0)
    state = begin(weighting, 2, dtype=torch.float32)
    for f in losses:
        c, state = weighting.update(f, state, prefer(), **statistics(weighting, 2))
        assert torch.isfinite(c).all()
        assert weighting.needs or (c >= 0).all()
        for name, tensor in flat(state).items():
            assert torch.isfinite(tensor).all(), name
        if isinstance(weighting, eq.OMD):
            assert_feasible(weighting, state)


@every
def test_small_probabilities_do_not_overflow_half_precision(weighting: Weighting[Any]):
    losses = draw(2, 3, M).to(torch.float16)
    c, _ = run(weighting, losses, prefer(3), inclusion=torch.full((2, 1), 1e-7))
    assert torch.isfinite(c).all()


@every
@pytest.mark.parametrize("warm", [0, 3], ids=["first step", "later step"])
def test_a_non_finite_loss_leaves_the_state_as_it_was(weighting: Weighting[Any], warm: int):
    w, losses, extra = prefer(2, 3), draw(2, 3, M, seed=6), statistics(weighting, 2, 3)
    state = begin(weighting, 2, 3)
    for seed in range(warm):
        _, state = weighting.update(draw(2, 3, M, seed=seed), state, w, **extra)
    before, clean = flat(state), flat(weighting.update(losses, state, w, **extra)[1])
    others = torch.ones(2, 3, dtype=torch.bool)
    others[0, 1] = False
    for bad in (math.nan, math.inf, -math.inf):
        hurt = losses.clone()
        hurt[0, 1, 2] = bad
        c, new = weighting.update(hurt, state, w, **extra)
        assert torch.isfinite(c).all()
        for name, tensor in flat(new).items():
            assert torch.equal(tensor[0, 1], before[name][0, 1]), name
            assert torch.equal(tensor[others], clean[name][others]), name


@stateful
def test_the_step_after_a_non_finite_loss_is_as_if_it_had_not_been(weighting: Weighting[Any]):
    losses, w, extra = draw(4, M), prefer(), statistics(weighting)
    states = []
    for path in (losses, torch.cat([losses[:2], torch.full((1, M), math.nan, dtype=torch.float64), losses[2:]])):
        state = begin(weighting)
        for f in path:
            _, state = weighting.update(f, state, w, **extra)
        states.append(state)
    assert_same(*states)


# The dual's set -------------------------------------------------------------------------------


def assert_feasible(weighting: eq.OMD, state: OMDState, slack: float = 1e-12) -> None:
    weights = weighting.weights(state)
    low, high = (weighting.dual_set or eq.Box()).bounds(weights)
    if isinstance(weighting.mirror, eq.Entropic):
        low = low.clamp_min(weighting.mirror.floor / M)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=slack)
    assert (weights >= low - slack).all()
    assert (weights <= high + slack).all()


@duals
def test_the_dual_stays_in_its_set(weighting: eq.OMD):
    w, scale = prefer(2, 3), draw(2, 3, 1, seed=2, low=-2.0, high=3.0)
    losses = draw(60, 2, 3, M, low=-1.0) * 10**scale
    state = weighting.init(losses[0])
    assert_feasible(weighting, state)
    for t, f in enumerate(losses):
        _, state = weighting.update(f, state, w, mask=draw(M, seed=t) > 0.5)
        assert torch.isfinite(state.dual).all()  # a weight of log 0 could never return
        assert_feasible(weighting, state)


# Compiled, saved, swept -----------------------------------------------------------------------


@compiles
@traceable
def test_update_compiles_to_one_graph(weighting: Weighting[Any]):
    torch.compiler.reset()
    w, losses, extra = prefer(3), draw(3, 3, M), statistics(weighting, 3)

    def update(f: Tensor, state: Any, preference: Tensor, mask: Tensor) -> Any:
        return weighting.update(f, state, preference, mask=mask, **extra)

    compiled = torch.compile(update, fullgraph=True, backend="eager")
    state = traced = begin(weighting, 3)
    for t, f in enumerate(losses):
        mask = draw(3, M, seed=t) > 0.5
        c, state = update(f, state, w, mask)
        c_traced, traced = compiled(f, traced, w, mask)
        assert torch.equal(c_traced, c)
        assert_same(traced, state)


@every
def test_a_saved_state_continues_bit_for_bit(weighting: Weighting[Any]):
    losses, w, extra = draw(6, 3, M), prefer(3), statistics(weighting, 6, 3)
    first, rest = ({name: tensor[part] for name, tensor in extra.items()} for part in (slice(3), slice(3, 6)))
    c, state = run(weighting, losses, w, **extra)
    _, half = run(weighting, losses[:3], w, **first)
    file = io.BytesIO()
    torch.save(eq.state.flatten(half), file)
    file.seek(0)
    loaded = eq.state.unflatten(torch.load(file, weights_only=True), begin(weighting, 3))
    assert type(loaded) is type(half)
    c_rest, state_rest = run(weighting, losses[3:], w, loaded, **rest)
    assert torch.equal(c_rest, c[3:])
    assert_same(state_rest, state)


def hopeful(mirror: Mirror, c: Any) -> eq.OMD:
    return eq.OMD(0.1, mirror, optimism=c)


Sweep = tuple[Callable[[Any], Weighting[Any]], list[float]]
SWEEPS: dict[str, Sweep] = {
    "stch mu": (lambda mu: eq.SmoothTchebycheff(mu=mu), [0.01, 0.5, 3.0]),
    "term mu": (lambda mu: eq.SmoothTchebycheff(mu=mu, normalize="mean"), [0.01, 0.5, 3.0]),
    **{f"{name} step_size": (partial(eq.OMD, mirror=mirror), [0.0, 0.3, 2.0]) for name, mirror in MIRRORS.items()},
    **{f"{name} optimism": (partial(hopeful, mirror), [0.0, 1.0, 7.0]) for name, mirror in MIRRORS.items()},
    "adaptive optimism": (lambda c: eq.OMD("adaptive", eq.Entropic(), optimism=c), [0.0, 1.0, 7.0]),
    "boxed step_size": (lambda eta: eq.OMD(eta, eq.Entropic(), dual_set=eq.Box(0.1, 0.5)), [0.0, 0.3, 2.0]),
    "floor": (lambda g: eq.OMD(0.8, eq.Entropic(floor=g)), [0.0, 0.3, 1.0]),
    "adaptive floor": (lambda g: eq.OMD("adaptive", eq.Entropic(floor=g)), [0.0, 0.3, 1.0]),
    "p": (lambda p: eq.OMD(0.8, eq.PNorm(p)), [1.1, 1.5, 2.0]),
    "adaptive p": (lambda p: eq.OMD("adaptive", eq.PNorm(p)), [1.1, 1.5, 2.0]),
    "relative step_size": (lambda eta: eq.Relative(eq.OMD(eta)), [0.0, 0.3, 2.0]),
    "momentum drift rate": (lambda rate: eq.Momentum(STCH, rate=rate), [0.0, 0.3, 2.0]),
    "momentum constant rate": (lambda rate: eq.Momentum(STCH, rule="constant", rate=rate), [0.0, 0.3, 0.9]),
    "uncertainty step_size": (eq.Uncertainty, [0.0, 0.3, 2.0]),
    "dwa temperature": (lambda temperature: eq.DWA(1, temperature), [0.1, 2.0, 50.0]),
    "famo step_size": (eq.FAMO, [0.0, 0.1, 2.0]),
    "famo decay": (lambda decay: eq.FAMO(0.1, decay), [0.0, 0.1, 2.0]),
    "momentum mu": (lambda mu: eq.Momentum(eq.SmoothTchebycheff(mu=mu)), [0.01, 0.5, 3.0]),
}
sweep = pytest.mark.parametrize(("build", "values"), SWEEPS.values(), ids=SWEEPS.keys())


@sweep
@pytest.mark.parametrize("across", [0, 1], ids=["all axes", "first axis"])
def test_a_sweep_is_looped_numbers(build: Any, values: list[float], across: int):
    """A setting (*B,), or any shape that broadcasts to it, is one number for each problem of the batch."""
    batch, w, losses = (3, 2), prefer(3, 2), draw(3, 3, 2, M)
    swept = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    swept = swept if across else swept.expand(batch)
    mask = draw(3, *batch, M, seed=3) > 0.4
    c, state = run(build(swept), losses, w, mask=mask)
    for row, value in enumerate(values):
        c_row, state_row = run(build(value), losses[:, row], w[row], mask=mask[:, row])
        torch.testing.assert_close(c[:, row], c_row, rtol=1e-12, atol=1e-14)
        if isinstance(state, OMDState):
            torch.testing.assert_close(state.dual[row], state_row.dual, rtol=1e-12, atol=1e-13)
    assert not torch.equal(c[:, 0], c[:, 2])


@pytest.mark.parametrize(("shape", "batch"), [((5,), (3,)), ((5,), ()), ((2, 3), (3,))])
@pytest.mark.parametrize("build", [eq.OMD, eq.SmoothTchebycheff, lambda c: eq.OMD(1.0, optimism=c)])
def test_a_sweep_that_does_not_broadcast_is_refused(build: Any, shape: tuple[int, ...], batch: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"(step_size|mu|optimism) must broadcast to .*; found \([25]"):
        run(build(torch.ones(shape)), draw(1, *batch, M), prefer(*batch))


def test_an_ideal_point_may_differ_across_the_batch():
    ideal = draw(3, M, seed=8, high=0.5)
    losses, w = draw(4, 3, M), prefer(3)
    for kind in (eq.Tchebycheff, eq.SmoothTchebycheff, eq.OMD):
        c, _ = run(kind(ideal=ideal), losses, w)
        for row in range(3):
            alone, _ = run(kind(ideal=tuple(ideal[row].tolist())), losses[:, row], w[row])
            torch.testing.assert_close(c[:, row], alone, rtol=1e-13, atol=0)


# Bad input ------------------------------------------------------------------------------------

BAD_PREFERENCES = [
    ([0.5, -0.25, 0.5, 0.25], r"preference must be non-negative and sum to 1; found entry -0\.25"),
    ([0.5, math.nan, 0.25, 0.25], r"preference must be non-negative and sum to 1; found entry nan"),
    ([0.5, 0.3, 0.25, 0.25], r"preference must be non-negative and sum to 1; found sum 1\.3"),
    ([0.1, 0.1, 0.1, 0.1], r"preference must be non-negative and sum to 1; found sum 0\.4"),
    ([math.inf, 0.0, 0.0, 0.0], r"preference must be non-negative and sum to 1; found sum inf"),
    ([0.5, 0.25, 0.25], r"preference must have 4 entries, one per objective; found \(3,\)"),
    ([1.0], r"preference must have 4 entries, one per objective; found \(1,\)"),
]


@every
def test_a_bad_preference_is_refused(weighting: Weighting[Any]):
    for values, message in BAD_PREFERENCES:
        with pytest.raises(ValueError, match=message):
            run(weighting, draw(1, 2, M), torch.tensor(values))


@every
def test_one_bad_preference_of_a_batch_is_found(weighting: Weighting[Any]):
    w = torch.full((3, M), 0.25)
    w[1] = torch.tensor([0.5, 0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"preference must be non-negative and sum to 1; found sum 2"):
        run(weighting, draw(1, 3, M), w)


@every
def test_a_preference_that_does_not_broadcast_is_refused(weighting: Weighting[Any]):
    for batch in ((2,), (2, 3)):
        with pytest.raises(ValueError, match=r"preference must broadcast to the losses' shape \(3, 4\); found \(2, "):
            run(weighting, draw(1, 3, M), torch.full((*batch, M), 0.25))


@every
def test_a_misspelt_keyword_is_refused(weighting: Weighting[Any]):
    state, extra = begin(weighting, 3), statistics(weighting, 3)
    with pytest.raises(TypeError, match="msk"):
        weighting.update(draw(3, M), state, prefer(3), msk=torch.ones(M), **extra)  # type: ignore[call-arg]


@every
def test_a_mask_that_does_not_broadcast_is_refused(weighting: Weighting[Any]):
    for shape in ((3,), (2, M), (2, 3, M)):
        mask = torch.ones(1, *shape, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"mask must broadcast to the losses' shape \(3, 4\); found \([23]"):
            run(weighting, draw(1, 3, M), prefer(), mask=mask)


@every
def test_an_inclusion_that_does_not_broadcast_is_refused(weighting: Weighting[Any]):
    with pytest.raises(ValueError, match=r"inclusion must broadcast to the losses' shape \(3, 4\); found \(2, 4\)"):
        run(weighting, draw(1, 3, M), prefer(), inclusion=torch.ones(1, 2, M))


@stateful
def test_a_state_of_other_losses_is_refused(weighting: Any):
    if isinstance(weighting, eq.OMD):  # a dual_set would refuse the other m before
        weighting = dataclasses.replace(weighting, dual_set=None)
    for shape in ((2, M + 1), (2, 1), (3, M), (M,)):
        if isinstance(weighting, eq.Limits) and shape[-1] != M:
            continue  # it has M limits, and refuses the other losses itself
        rows = draw(*shape, D)
        known = {"jacobian": rows, "gramian": rows @ rows.mT}
        state = weighting.init(torch.ones(shape), **{name: known[name] for name in weighting.needs})
        if shapes(state) == shapes(begin(weighting, 2)):
            continue  # it remembers nothing of single objectives
        with pytest.raises(ValueError, match=r"state must be of losses of shape \(2, 4\).*; found \("):
            weighting.update(draw(2, M), state, prefer(), **statistics(weighting, 2))


@pytest.mark.parametrize("kind", [eq.Tchebycheff, eq.SmoothTchebycheff, eq.OMD])
@pytest.mark.parametrize("ideal", [(0.1, 0.2, 0.3), torch.zeros(5, 1), torch.zeros(3, 4)], ids=["3", "5x1", "3x4"])
def test_an_ideal_point_that_does_not_broadcast_is_refused(kind: Any, ideal: Any):
    message = r"ideal must broadcast to the losses' shape \(4,\); found \("
    if isinstance(ideal, tuple):
        message = "ideal, or the counts of group_dro, must have 4 entries, one per objective; found 3"
    with pytest.raises(ValueError, match=message):
        run(kind(ideal=ideal), draw(1, M), prefer())


@over({name: w for name, w in ALL.items() if w.needs})
def test_a_missing_statistic_is_an_error(weighting: Weighting[Any]):
    (name,) = weighting.needs
    with pytest.raises(TypeError, match=name):
        weighting.update(draw(M), begin(weighting), prefer())
