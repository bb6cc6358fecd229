"""What bad input gets: the argument, the rule and the value found."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq

NAMES = ("a", "b", "c")


def make(toy: Any, **settings: Any) -> tuple[Any, eq.MultiObjective]:
    run = toy()
    given = {"conversion": eq.Adaptive(capacity=2), "optimizer": run.optimizer, "preference": [0.2, 0.3, 0.5]}
    return run, eq.MultiObjective(run.model, eq.OMD(), **{**given, **settings})


SETUP = {
    "a preference off the simplex": (
        {"preference": [0.5, 0.5, 0.3]},
        "preference must be non-negative and sum to 1; found sum 1.30",
    ),
    "a preference as text": (
        {"preference": "0.2,0.3,0.5"},
        "preference must be numbers, one per objective, such as [0.3, 0.7]; found '0.2,0.3,0.5'",
    ),
    "one number": ({"preference": 0.5}, "preference must have shape (*B, m) with m ≥ 1; found (), the one number 0.5"),
    "several preferences": ({"preference": torch.eye(3)}, "preference must have shape (m,); found (3, 3)"),
    "too few names": ({"names": ("a", "b")}, "names must have 3 entries, as the preference has; found 2"),
    "a name twice": ({"names": ("a", "b", "a")}, "names must differ from one another; found ('a', 'b', 'a')"),
    "every": ({"every": 0}, "every must be None or at least 1; found 0"),
    "check": ({"check": "never"}, 'check must be "auto", "now" or "deferred"; found never'),
    "on_nonfinite": ({"on_nonfinite": "keep"}, 'on_nonfinite must be "raise" or "skip"; found keep'),
    "skipping late": (
        {"on_nonfinite": "skip", "check": "deferred"},
        'check must not be "deferred" with on_nonfinite="skip"; found deferred',
    ),
    "one name for parameters": ({"parameters": "0.weight"}, "parameters must be several names; found 0.weight"),
    "no parameters": ({"parameters": []}, "parameters must name at least one parameter; found ()"),
    "unknown parameters": ({"parameters": ["9.weight"]}, "parameters must be names of model.named_parameters()"),
    "an optimizer of something else": (
        {"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)])},
        "optimizer must hold parameters of the model; found none of those that are recorded",
    ),
    "no optimizer at all": ({"optimizer": "adam"}, "optimizer must be a torch optimizer; found <class 'str'>"),
}


@pytest.mark.parametrize(("settings", "message"), SETUP.values(), ids=SETUP.keys())
def test_settings(settings, message, toy):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(toy, **settings)


def test_arguments_in_each_others_places(toy):
    run = toy()
    with pytest.raises(ValueError, match=re.escape("did you mean optimizer=?; found the optimizer SGD")):
        eq.MultiObjective(run.model, run.optimizer, [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match=re.escape("did you mean preference=?; found [0.2, 0.3, 0.5]")):
        eq.MultiObjective(run.model, [0.2, 0.3, 0.5])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, .*; found a list"):
        eq.MultiObjective(list(run.model.parameters()), eq.OMD(), [0.2, 0.3, 0.5])  # type: ignore[arg-type]


def test_an_archive_without_a_capacity_is_refused_with_the_reason(toy):
    message = (
        "conversion must have a capacity in a training loop: without one every iterate that no other dominates is "
        "kept, each a copy of the model, and with mini-batch losses their number grows with the run; "
        "take Adaptive(capacity=8); found Adaptive(power=0.0, capacity=None, ties='stored')"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make(toy, conversion=eq.Adaptive())


def test_a_model_with_nothing_to_train(preference):
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="model must have a parameter that requires grad; found none"):
        eq.MultiObjective(model, eq.OMD(), preference)


LOSSES = {
    "another length": (lambda f: f[:2], "losses must have shape (3,), as the preference has; found (2,)"),
    "a batch": (lambda f: f.expand(2, 3), "losses must have shape (3,), as the preference has; found (2, 3)"),
    "another name": (
        lambda f: {"a": f[0], "b": f[1], "d": f[2]},
        "losses must have the names ['a', 'b', 'c']; found ['a', 'b', 'd']",
    ),
    "a missing name": (
        lambda f: {"a": f[0], "b": f[1]},
        "losses must have the names ['a', 'b', 'c']; found ['a', 'b']",
    ),
    "a vector by name": (
        lambda f: {"a": f, "b": f[1], "c": f[2]},
        "losses['a'] must be a tensor of shape () with its graph, not what .item() gives of it; found (3,)",
    ),
    "no tensor": (
        lambda f: f.sum().item(),
        "losses must be a tensor (m,), numbers in a list, or a mapping by name; found <class 'float'>",
    ),
    "numbers without a graph": (
        lambda f: f.tolist(),
        "losses[0] must be a tensor of shape () with its graph, not what .item() gives of it; found float",
    ),
    "too few in a list": (lambda f: [*f[:2]], "losses must have 3 entries, as the preference has; found 2"),
    "no graph in a list": (
        lambda f: [f[0], f[1].detach(), f[2]],
        "every loss must require grad; found [1] without a graph",
    ),
    "integers": (lambda f: f.long(), "losses must be floating-point numbers; found torch.int64"),
    "no graph": (lambda f: f.detach(), "losses must require grad; found losses without a graph"),
    "no graph by name": (
        lambda f: {"a": f[0], "b": f[1].detach(), "c": f[2]},
        "every loss must require grad; found ['b'] without a graph",
    ),
    "another device": (lambda f: f.to("meta"), "losses must be on the device cpu of this MultiObjective"),
}


@pytest.mark.parametrize(("change", "message"), LOSSES.values(), ids=LOSSES.keys())
def test_losses(change, message, toy):
    run, mol = make(toy, names=NAMES)
    with pytest.raises(ValueError, match=re.escape(message)):
        mol(change(run.losses(0)))
    assert mol.step == 0


def test_losses_by_name_need_names(toy):
    run, mol = make(toy)
    f = run.losses(0)
    rule = r"losses must be a tensor \(m,\) or a list unless MultiObjective was given their names="
    with pytest.raises(ValueError, match=rf"{rule}; found \['a', 'b', 'c'\]"):
        mol(dict(zip(NAMES, f, strict=True)))


def test_no_grad(toy):
    run, mol = make(toy)
    losses = run.losses(0)
    message = re.escape("losses must be measured and handed over with gradients; found torch.no_grad()")
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        mol(losses)
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        mol(run.losses(0))


COUNTS: dict[str, tuple[Any, str]] = {
    "another length": ([1, 2], "counts must have shape (3,), as the losses have; found (2,)"),
    "negative": ([1, 2, -1], "counts must be non-negative and finite; found [1.0, 2.0, -1.0]"),
    "infinite": ([1, 2, float("inf")], "counts must be non-negative and finite; found [1.0, 2.0, inf]"),
    "another name": ({"a": 1, "b": 2, "d": 3}, "counts must have the names ['a', 'b', 'c']; found ['a', 'b', 'd']"),
}


@pytest.mark.parametrize(("counts", "message"), COUNTS.values(), ids=COUNTS.keys())
def test_counts(counts, message, toy):
    run, mol = make(toy, names=NAMES)
    with pytest.raises(ValueError, match=re.escape(message)):
        mol(run.losses(0), counts)


def test_counts_may_come_by_name_with_constants_for_what_is_absent(toy):
    run, mol = make(toy, names=NAMES)
    f = run.losses(0)
    scalar = mol({"a": f[0], "b": torch.tensor(0.0), "c": f[2]}, {"a": 4, "b": 0, "c": 2})
    torch.testing.assert_close(scalar, 0.2 / 3 * f[0] + 0.5 / 3 * f[2])


def test_a_step_without_a_call(toy):
    run, mol = make(toy)
    message = re.escape(
        "optimizer.step() must follow a call of mol and its backward pass, or mol.close(); "
        "found none since the last step"
    )
    run.losses(0).sum().backward()
    before = run.params()
    with pytest.raises(ValueError, match=message):
        run.optimizer.step()
    torch.testing.assert_close(run.params(), before, rtol=0, atol=0)
    run.optimizer.zero_grad()
    run.run(mol, 1)
    with pytest.raises(ValueError, match=message):
        run.optimizer.step()


def test_a_closure_without_a_call(toy):
    run, _ = make(toy)
    message = re.escape("optimizer.step() must follow a call of mol and its backward pass")
    before = run.params()
    with pytest.raises(ValueError, match=message):
        run.optimizer.step(lambda: 0.0)
    torch.testing.assert_close(run.params(), before, rtol=0, atol=0)


def test_gradients_that_were_cleared_before_the_step(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, eq.OMD(), preference, eq.Last(), run.optimizer)
    mol(run.losses(0)).backward()
    run.optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"optimizer\.step\(\) must follow .*; found that its gradients were cleared"):
        run.optimizer.step()
    assert (mol.step, mol.recorded) == (0, 0)


def test_a_conversion_by_name_is_no_conversion(toy, preference):
    run = toy()
    first = eq.MultiObjective(run.model, eq.OMD(), preference, eq.Last(), run.optimizer)
    with pytest.raises(ValueError, match=r"conversion must be one such as .*; found Average"):
        eq.MultiObjective(run.model, eq.OMD(), preference, "Average", run.optimizer)  # type: ignore[arg-type]
    assert first._optimizer is not None  # a new one that fails leaves it attached
