"""Bad input: the message names the argument, the rule and the value found."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq

NAMES = ("a", "b", "c")
W = [0.2, 0.3, 0.5]
CALL = "MultiObjective(model, optimizer, preference, method=...)"


def make(toy: Any, **settings: Any) -> tuple[Any, eq.MultiObjective]:
    run = toy()
    given: dict[str, Any] = {"optimizer": run.optimizer, "preference": W, "method": (eq.OMD(), eq.Adaptive(capacity=2))}
    return run, eq.MultiObjective(run.model, **{**given, **settings})


SETUP = {
    "a preference off the simplex": (
        {"preference": [0.5, 0.5, 0.3]},
        "preference must be non-negative and sum to 1; found sum 1.30",
    ),
    "a preference by name off the simplex": (
        {"preference": {"a": 1, "b": 1}},
        "preference must be non-negative and sum to 1; found sum 2.00 (divide the entries by it)",
    ),
    "a preference as text": (
        {"preference": "0.2,0.3,0.5"},
        f"preference must have one number per objective: {CALL}; found '0.2,0.3,0.5'",
    ),
    "no preference": ({"preference": None}, f"preference must have one number per objective: {CALL}; found None"),
    "one number": ({"preference": 0.5}, f"preference must have one number per objective: {CALL}; found 0.5"),
    "several preferences": ({"preference": torch.eye(3)}, "preference must have shape (m,); found (3, 3)"),
    "too few names": ({"names": ("a", "b")}, "names must have 3 entries, as the preference has; found 2"),
    "a name twice": ({"names": ("a", "b", "a")}, "names must differ from one another; found ('a', 'b', 'a')"),
    "every": ({"every": 0}, "every must be None or at least 1; found 0"),
    "every as text": ({"every": "2"}, "every must be None or at least 1; found '2'"),
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
    "an optimizer by name": (
        {"optimizer": "adam"},
        f"optimizer must be a torch optimizer, or None if every call of mol is a step: {CALL}; found 'adam'",
    ),
    "no folder but text": (
        {"store": "cpu"},
        "store must be \"device\", \"host\" or a pathlib.Path; a folder is Path('cpu'); found 'cpu'",
    ),
    "no place": ({"store": ["host"]}, 'store must be "device", "host" or a pathlib.Path; found [\'host\']'),
    "on_store_error": ({"on_store_error": "warn"}, 'on_store_error must be "raise" or "keep"; found warn'),
}


@pytest.mark.parametrize(("settings", "message"), SETUP.values(), ids=SETUP.keys())
def test_settings(settings, message, toy):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(toy, **settings)


# The order of the arguments ---------------------------------------------------------------------


def test_a_weighting_in_the_place_of_the_optimizer(toy):
    rule = f"optimizer must be a torch optimizer, or None if every call of mol is a step: {CALL}; found OMD(step_size="
    with pytest.raises(ValueError, match=re.escape(rule)):
        eq.MultiObjective(toy().model, eq.OMD(), W)  # type: ignore[arg-type]


def test_a_preference_in_the_place_of_the_optimizer(toy):
    run = toy()
    rule = f"optimizer must be a torch optimizer, or None if every call of mol is a step: {CALL}; found [0.2, 0.3, 0.5]"
    with pytest.raises(ValueError, match=re.escape(rule)):
        eq.MultiObjective(run.model, W, run.optimizer)  # type: ignore[arg-type]


def test_parameters_in_the_place_of_the_model(toy):
    run = toy()
    with pytest.raises(ValueError, match=re.escape(f"model must be a torch.nn.Module: {CALL}; found a list")):
        eq.MultiObjective(list(run.model.parameters()), run.optimizer, W)  # type: ignore[arg-type]


PLACES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no optimizer": ((W,), {}, "missing a required argument: 'preference'"),
    "no optimizer by name": ((), {"preference": W}, "missing a required argument: 'optimizer'"),
    "no preference": ((None,), {}, "missing a required argument: 'preference'"),
    "all in the old order": ((eq.OMD(), W, eq.Last(), None), {}, "too many positional arguments"),
    "the optimizer twice": ((eq.OMD(), W), {"optimizer": None}, "multiple values for argument 'optimizer'"),
    "a method by position": ((None, W, "TCH"), {}, "too many positional arguments"),
    "an old name": ((None, W), {"weighting": eq.OMD()}, "got an unexpected keyword argument 'weighting'"),
}


@pytest.mark.parametrize(("places", "names", "message"), PLACES.values(), ids=PLACES.keys())
def test_what_python_refuses_shows_the_right_call(places, names, message, toy):
    text = f"{message}: the call is {CALL}, with method a name, a Method or a pair such as (OMD(), Suffix())"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        eq.MultiObjective(toy().model, *places, **names)


# Methods ------------------------------------------------------------------------------------------

METHOD = "method must be a name, a Method, or a weighting with its conversion, such as (OMD(), Suffix())"
CONVERSION = "method must have a conversion such as Suffix(), Average() or Last()"
CAPACITY = (
    "conversion must have a capacity in a training loop: without one every iterate that no other dominates is "
    "kept, each a copy of the model; take Adaptive(capacity=8), or give the method by name; "
    "found Adaptive(power=0.0, capacity=None, ties='stored')"
)
METHODS: dict[str, tuple[Any, str]] = {
    "a weighting alone": (
        eq.OMD(),
        f"{METHOD}; found OMD alone: add its conversion, Suffix() or, for the last iterate, Last()",
    ),
    "a conversion alone": (eq.Last(), f"{METHOD}; found Last()"),
    "a class": (eq.OMD, f"{METHOD}; found <class"),
    "three parts": ((eq.OMD(), eq.Last(), 1), f"{METHOD}; found (OMD("),
    "a conversion by name": ((eq.OMD(), "Average"), f"{CONVERSION}; found Average"),
    "a conversion's class": ((eq.OMD(), eq.Last), f"{CONVERSION}; found <class"),
    "no conversion": ((eq.OMD(), None), f"{CONVERSION}; found None"),
    "no weighting": ((None, eq.Last()), "method must have a weighting such as OMD(); found None"),
    "a weighting's class": ((eq.OMD, eq.Last()), "method must have a weighting such as OMD(); found <class"),
    "the parts in the wrong order": ((eq.Last(), eq.OMD()), "method must have a weighting such as OMD(); found Last()"),
    "the former name of uses_duals": (
        (SimpleNamespace(init=None, update=None, needs=(), dual=True), eq.Last()),
        "weighting must have uses_duals, and not its former name dual; found dual in SimpleNamespace",
    ),
    "two conversions": ((eq.Last(), eq.Last()), "method must have a weighting such as OMD(); found Last()"),
    "a part of a Method": (eq.Method(eq.OMD(), "Average"), f"{CONVERSION}; found Average"),  # type: ignore[arg-type]
    "no capacity": ((eq.OMD(), eq.Adaptive()), CAPACITY),
    "a Method without a capacity": (eq.methods()["AdaOMDgd-TCH"], CAPACITY),
    "losses transformed by clients": (
        "PropFair",
        "method must not be one whose clients transform losses; found PropFair",
    ),
    "an unknown name": ("AdaOMD", "method must be a known name; found 'AdaOMD'; nearest: AdaOMD"),
}


@pytest.mark.parametrize(("method", "message"), METHODS.values(), ids=METHODS.keys())
def test_methods(method, message, toy):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(toy, method=method)


@pytest.mark.parametrize("name", [name for name, method in eq.methods().items() if method.conversion.copies is None])
def test_the_papers_methods_by_name_have_eight_copies(name, toy):
    run, mol = make(toy, method=name)
    method = eq.methods()[name]
    assert (mol.weighting, mol.conversion) == (method.weighting, eq.Adaptive(capacity=8))
    run.run(mol, 3)
    assert mol.recorded == 3
    slots = {key.split(".")[2] for key in mol.state_dict()["tensors"] if key.startswith("conversion.slots.")}
    assert slots == {str(j) for j in range(8)}


# A preference that names the objectives -------------------------------------------------------------


def test_a_mapping_names_the_objectives(toy):
    named, plain = toy(), toy()
    mol = eq.MultiObjective(named.model, named.optimizer, {"b": 0.2, "a": 0.3, "c": 0.5}, method="LS")
    assert mol.names == ("b", "a", "c")
    assert mol.preference.tolist() == pytest.approx(W)
    f = named.losses(0)
    scalar = mol({"a": f[1], "b": f[0], "c": f[2]})
    torch.testing.assert_close(scalar, (torch.tensor(W) * f).sum())
    scalar.backward()
    named.optimizer.step()
    plain.run(eq.MultiObjective(plain.model, plain.optimizer, W, method="LS"), 1)
    torch.testing.assert_close(named.params(), plain.params(), rtol=0, atol=0)
    assert mol.metrics()["loss/a"] == f[1].item()


def test_names_give_a_mapping_its_order(toy):
    _, mol = make(toy, preference={"c": 0.5, "b": 0.3, "a": 0.2}, names=NAMES)
    assert mol.names == NAMES
    assert mol.preference.tolist() == pytest.approx(W)


MAPPINGS: dict[str, tuple[dict[str, Any], str]] = {
    "other names": (
        {"preference": {"a": 0.5, "b": 0.5}, "names": ("a", "c")},
        "names must be those of the preference, ['a', 'b']; found ('a', 'c')",
    ),
    "fewer names": (
        {"preference": {"a": 0.5, "b": 0.5}, "names": ("a",)},
        "names must be those of the preference, ['a', 'b']; found ('a',)",
    ),
    "a name twice": (
        {"preference": {"a": 0.5, "b": 0.5}, "names": ("a", "b", "a")},
        "names must be those of the preference, ['a', 'b']; found ('a', 'b', 'a')",
    ),
    "numbers for names": ({"preference": {0: 0.5, 1: 0.5}}, "preference must have text for names; found [0, 1]"),
    "off the simplex": ({"preference": {"a": 0.5, "b": 0.8}}, "preference must be non-negative and sum to 1; found"),
    "no objective": ({"preference": {}}, "preference must have"),
}


@pytest.mark.parametrize(("settings", "message"), MAPPINGS.values(), ids=MAPPINGS.keys())
def test_mappings(settings, message, toy):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(toy, **settings)


def test_a_model_with_nothing_to_train(preference):
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="model must have a parameter that requires grad; found none"):
        eq.MultiObjective(model, None, preference, method=(eq.OMD(), eq.Last()))


def test_a_lazy_model_must_be_called_first():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    rule = "model must have initialised parameters: call a lazy one with a batch first; found ['0.weight', '0.bias']"
    with pytest.raises(ValueError, match=re.escape(rule)):
        eq.MultiObjective(model, None, [0.5, 0.5])
    model(torch.ones(1, 2))
    assert eq.MultiObjective(model, None, [0.5, 0.5]).step == 0


def test_a_preference_may_be_a_series_of_pandas():
    pandas = pytest.importorskip("pandas")
    named = eq.MultiObjective(nn.Linear(1, 1), None, pandas.Series({"b": 0.25, "a": 0.75}))
    assert named.names == ("b", "a")
    named.set_preference(pandas.Series({"a": 0.25, "b": 0.75}))
    assert named.preference.tolist() == [0.75, 0.25]
    plain = eq.MultiObjective(nn.Linear(1, 1), None, pandas.Series([0.25, 0.75], index=[7, 3]))
    assert (plain.names, plain.preference.tolist()) == (None, [0.25, 0.75])


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
        "losses['a'] must be a tensor of shape () with its graph: a mean over the batch, not .item(); found (3,)",
    ),
    "no tensor": (
        lambda f: f.sum().item(),
        "losses must be a tensor (m,), numbers in a list, or a mapping by name; found <class 'float'>",
    ),
    "numbers without a graph": (
        lambda f: f.tolist(),
        "losses[0] must be a tensor of shape () with its graph: a mean over the batch, not .item(); found float",
    ),
    "too few in a list": (lambda f: [*f[:2]], "losses must have 3 entries, as the preference has; found 2"),
    "no graph in a list": (
        lambda f: [f[0], f[1].detach(), f[2]],
        "every loss must require grad; found [1] without a graph: detached, or a rate, which gets one by eq.proxy",
    ),
    "integers": (lambda f: f.long(), "losses must be floating-point numbers; found torch.int64"),
    "no graph": (
        lambda f: f.detach(),
        "losses must require grad; found losses without a graph: detached, or computed under torch.no_grad() or inside",
    ),
    "no graph by name": (
        lambda f: {"a": f[0], "b": f[1].detach(), "c": f[2]},
        "every loss must require grad; found ['b'] without a graph",
    ),
    "another device by name": (
        lambda f: {"a": f[0], "b": f[1].to("meta"), "c": f[2]},
        "losses['b'] must be on the device cpu of this MultiObjective, which .to() changes; found meta",
    ),
    "another device": (lambda f: f.to("meta"), "losses must be on the device cpu of this MultiObjective"),
}


@pytest.mark.parametrize(("change", "message"), LOSSES.values(), ids=LOSSES.keys())
def test_losses(change, message, toy):
    run, mol = make(toy, names=NAMES)
    losses = change(run.losses(0))
    if isinstance(losses, list):
        rule = "losses must be by name, {'a': …, 'b': …, 'c': …}, or one tensor in their order, as the objectives"
        with pytest.raises(ValueError, match=re.escape(f"{rule} have names; found a list")):
            mol(losses)
        _, mol = make(toy)
    with pytest.raises(ValueError, match=re.escape(message)):
        mol(losses)
    assert mol.step == 0


def test_losses_by_name_need_names(toy):
    run, mol = make(toy)
    f = run.losses(0)
    rule = r"losses must be a tensor \(m,\) or a list unless the preference names the objectives"
    with pytest.raises(ValueError, match=rf"{rule}; found \['a', 'b', 'c'\]"):
        mol(dict(zip(NAMES, f, strict=True)))


def test_no_grad(toy):
    run, mol = make(toy)
    losses = run.losses(0)
    message = re.escape("losses must be computed and passed in with gradients enabled; found torch.no_grad()")
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
    torch.testing.assert_close(scalar, 0.2 * f[0] + 0.5 * f[2])


@pytest.mark.parametrize("counts", [{"a": 4, "b": 1, "c": 2}, [4, 1, 2], torch.tensor([4, 1, 2])])
def test_a_loss_without_a_graph_must_have_the_count_0(counts, toy):
    run, mol = make(toy, names=NAMES)
    f = run.losses(0)
    rule = "every loss must require grad where its count is not 0; found ['b'] without a graph: detached, or a rate"
    with pytest.raises(ValueError, match=re.escape(rule)):
        mol({"a": f[0], "b": (f[1] < 1).float(), "c": f[2]}, counts)
    assert mol.step == 0


def test_a_step_without_a_call(toy):
    run, mol = make(toy)
    message = re.escape(
        "optimizer.step() must follow a call of mol and its backward pass, or mol.close(); "
        "found none since the last step; a penalty is added to the scalar, (mol(losses) + penalty).backward()"
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
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Last()))
    mol(run.losses(0)).backward()
    run.optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"optimizer\.step\(\) must follow .*; found that its gradients were cleared"):
        run.optimizer.step()
    assert (mol.step, mol.recorded) == (0, 0)


def test_one_that_is_refused_leaves_the_earlier_one_attached(toy, preference):
    run = toy()
    first = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Last()))
    with pytest.raises(ValueError, match="method must have a conversion"):
        eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), "Average"))  # type: ignore[arg-type]
    run.run(first, 1)
    assert first.step == 1
