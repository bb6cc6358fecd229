"""Objectives that batches do not have: one warning with the remedy, and none in an ordinary run."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.errors import BalanceWarning

Batches = Callable[[int], list[float]]


def run(counts: Batches, steps: int, values: tuple[float, ...] = (1.0, 1.0, 1.0)) -> eq.MultiObjective:
    model = nn.Linear(1, 1)
    names = ("a", "b", "c", *(f"d{i}" for i in range(len(values) - 3)))
    mol = eq.MultiObjective(model, None, [1 / len(values)] * len(values), names=names)
    for step in range(steps):
        mol(torch.tensor(values) + 0 * model.bias, counts(step))
    return mol


def test_an_objective_that_never_comes_is_named():
    with pytest.warns(BalanceWarning) as said:
        run(lambda _: [3, 0, 5], 300)
    text = "b had no samples in 100 steps: leave it out of the preference, or see that batches have it"
    assert [str(one.message) for one in said] == [f"{text}; this is said once"]
    assert said[0].filename == __file__


def test_several_are_counted():
    with pytest.warns(BalanceWarning, match=r"a had no samples in 100 steps \(nor had 1 more\): leave"):
        run(lambda _: [0, 0, 5], 100)


def test_where_batches_have_few_of_many_more_steps_are_waited_for():
    """One of thirty in a batch: after 100 steps an objective may well be missing by chance, after 600 not."""
    values = (1.0,) * 30
    run(lambda t: [float(t % 29 == i) for i in range(30)], 500, values)  # a warning is an error in tests
    with pytest.warns(BalanceWarning, match="^d26 had no samples in 600 steps"):
        run(lambda t: [float(t % 29 == i) for i in range(30)], 600, values)


def test_steps_without_gradient_are_named():
    """λ goes to the large loss, which is in one of five batches."""
    with pytest.warns(BalanceWarning) as said:
        run(lambda t: [1, 1, float(t % 5 == 0)], 900, (1.0, 1.0, 20.0))
    text = " of the last 100 steps had hardly any gradient: nearly all weight is on c, which was not in these batches"
    remedy = "Take balanced batches (eq.GroupBalancedSampler), or batches drawn by λ (eq.DomainSampler)"
    assert [str(one.message).lstrip("0123456789") for one in said] == [f"{text}. {remedy}; this is said once"]


@pytest.mark.parametrize(
    ("counts", "values"),
    [
        (lambda t: [1, 1, float(t % 2 == 0)], (1.0, 1.0, 1.0)),  # λ stays spread
        (lambda t: [1, 1, float(t % 10 < 6)], (1.0, 1.0, 20.0)),  # in more than half of the batches
        (lambda t: [1, 1, float(t == 50)], (1.0, 1.0, 0.5)),  # rare, and λ is elsewhere
    ],
    ids=["spread", "often", "rare"],
)
def test_nothing_is_said(counts, values):
    run(counts, 900, values)


def test_an_absent_objective_may_have_no_loss_by_name():
    model = nn.Linear(1, 1)
    mol = eq.MultiObjective(model, None, {"a": 0.5, "b": 0.5})
    loss = model(torch.ones(1, 1)).square().mean()
    for counts in ({"a": 3, "b": 0}, [3, 0], torch.tensor([3, 0])):
        scalar = mol({"a": loss}, counts=counts)
        assert torch.equal(scalar, mol({"a": loss, "b": loss * 0}, counts=counts))
    with pytest.raises(ValueError, match=r"losses must have the names \['a', 'b'\]; found \['a'\]"):
        mol({"a": loss}, counts={"a": 3, "b": 1})


def without_counts(groups: Callable[[int], list[int]], steps: int) -> eq.MultiObjective:
    model = nn.Linear(1, 1)
    mol = eq.MultiObjective(model, None, {"a": 0.5, "b": 0.5})
    for step in range(steps):
        values = (model(torch.ones(4, 1)) - 5).square().squeeze(1)
        mol(eq.group_losses(values, groups(step), m=2)[0])
    return mol


def test_counts_that_are_left_out_are_missed_where_a_group_is_absent():
    with pytest.warns(BalanceWarning) as said:
        without_counts(lambda step: [0, 0, 0, int(step < 3)], 20)
    text = "b has no samples in this batch, and without counts its loss is taken for 0: pass both values that "
    assert [str(one.message)[: len(text)] for one in said] == [text]
    assert said[0].filename == __file__
    logits = torch.zeros(1, 3, 5, requires_grad=True)
    mol = eq.MultiObjective(nn.Linear(1, 1), None, [0.5, 0.5])
    with pytest.warns(BalanceWarning, match="^objective 0 has no samples in this batch"):
        mol(eq.token_losses(logits, torch.ones(1, 3, dtype=torch.long), torch.tensor([1]), m=2)[0])


def test_balanced_batches_need_no_counts():
    assert without_counts(lambda _: [0, 0, 1, 1], 20).step == 20  # a warning is an error in tests


def test_where_a_device_must_not_be_waited_for_one_call_in_a_hundred_is_looked_at(as_accelerator):
    with as_accelerator():
        without_counts(lambda step: [0, 0, 0, int(step == 0)], 100)
        with pytest.warns(BalanceWarning, match="^b has no samples in this batch"):
            without_counts(lambda step: [0, 0, 0, int(step == 0)], 101)


def test_where_a_device_must_not_be_waited_for_it_is_said_a_call_later(as_accelerator):
    with as_accelerator():
        run(lambda _: [3, 0, 5], 100)  # the last step is not committed yet
        with pytest.warns(BalanceWarning, match="^b had no samples in 100 steps"):
            run(lambda _: [3, 0, 5], 101)
