"""The metrics of a step."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq

LAST = eq.Last()


def after_one_step(toy, weighting, value, conversion=LAST, **settings):
    run = toy()
    w = torch.tensor([0.25, 0.25, 0.5])
    mol = eq.MultiObjective(run.model, run.optimizer, w, method=(weighting, conversion), **settings)
    mol(run.losses(0) * 0 + torch.tensor(value)).backward()
    run.optimizer.step()
    return mol.metrics()


def test_a_step_by_hand(toy):
    weighting = eq.OMD(0.3, eq.Euclidean())
    found = after_one_step(toy, weighting, [4.0, 2.0, 1.0], eq.Adaptive(capacity=2), names=("a", "b", "c"))
    # w∘f = (1, ½, ½); λ ← Π(1/3 + 0.3·w∘f), whose mean excess is 0.3·2/3.
    expected = {
        "step": 1,
        "loss/a": 4.0,
        "loss/b": 2.0,
        "loss/c": 1.0,
        "weighted/a": 1.0,
        "weighted/b": 0.5,
        "weighted/c": 0.5,
        "slack/a": 0.0,
        "slack/b": 0.5,
        "slack/c": 0.5,
        "coefficient/a": 0.25,
        "coefficient/b": 0.25,
        "coefficient/c": 0.5,
        "lambda/a": 1 / 3 + 0.1,
        "lambda/b": 1 / 3 - 0.05,
        "lambda/c": 1 / 3 - 0.05,
        "tch": 1.0,
        "imbalance": 1.0,
        "archive": 1,
    }
    # The ray is f ∝ (2, 2, 1); f = (4, 2, 1).
    expected["angle"] = math.acos((4 * 2 + 2 * 2 + 1) / math.sqrt(21 * 9))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_ideal_point_and_first_losses_are_taken_into_account(toy):
    found = after_one_step(toy, eq.Tchebycheff(ideal=1.0), [5.0, 5.0, 3.0])
    assert found["weighted/0"] == pytest.approx(1.0)
    assert found["imbalance"] == pytest.approx(0.0, abs=1e-6)
    assert "lambda/0" not in found
    assert "archive" not in found
    relative = after_one_step(toy, eq.Relative(eq.OMD()), [5.0, 2.0, 3.0])
    assert [relative[f"weighted/{i}"] for i in range(3)] == pytest.approx([0.25, 0.25, 0.5])
    assert relative["lambda/2"] > relative["lambda/0"]


def test_before_the_first_step_losses_are_unknown(toy, preference):
    run = toy()
    found = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Last())).metrics()
    assert math.isnan(found["loss/0"])
    assert found["step"] == 0
    assert found["lambda/0"] == pytest.approx(1 / 3)


def test_an_objective_of_weight_zero_does_not_count_for_the_balance(toy):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, torch.tensor([0.25, 0.75, 0.0]), method=(eq.OMD(), eq.Last()))
    mol(run.losses(0) * 0 + torch.tensor([3.0, 1.0, 7.0])).backward()
    run.optimizer.step()
    found = mol.metrics()
    assert found["tch"] == 0.75
    assert found["imbalance"] == 0.0
    assert found["angle"] == pytest.approx(0.0, abs=1e-6)


def test_held_out_losses_are_weighted_as_in_the_run():
    model = torch.nn.Linear(1, 2, bias=False)
    mol = eq.MultiObjective(model, None, {"a": 0.3, "b": 0.7}, units="start", ideal={"a": 0.5})
    first = model.weight.squeeze().square() + torch.tensor([2.5, 4.0])
    mol({"a": first[0], "b": first[1]})
    mol({"a": first[0], "b": first[1]})
    before = mol.metrics()
    a, b = (first.detach() - torch.tensor([0.5, 0.0])).tolist()
    found = mol.weighted({"b": torch.tensor(3.0), "a": torch.tensor(1.5)})
    torch.testing.assert_close(
        found, torch.tensor([0.3 * 1.0 / a, 0.7 * 3.0 / b], dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert mol.metrics() == before
    with pytest.raises(ValueError, match=r"losses must have the names \['a', 'b'\]; found \['a'\]"):
        mol.weighted({"a": torch.tensor(1.0)})


KINDS = {
    "floats by name": {"b": 0.5, "a": 0.25},
    "a number of numpy and a tensor": {"b": np.float32(0.5), "a": torch.tensor(0.25)},
    "an array": np.array([0.25, 0.5]),
    "a tensor": torch.tensor([0.25, 0.5]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_graph_is_needed_losses_may_be_numbers(kind):
    losses: Any = KINDS[kind]
    mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, {"a": 0.4, "b": 0.6})
    assert mol.weighted(losses).tolist() == pytest.approx([0.1, 0.3])
    mol.steer(losses)
    assert mol.metrics()["steered/b"] == 0.5
    mol.record(losses)
    assert mol.recorded == 1


def test_numbers_may_be_a_list_where_objectives_have_no_names():
    mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.4, 0.6])
    assert mol.weighted([0.25, 1]).tolist() == pytest.approx([0.1, 0.6])
    mol.steer([0.25, 0.5], counts=[1, 0])
    assert mol.metrics()["steered/0"] == 0.25


def test_what_is_no_number_is_named():
    mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, {"a": 0.4, "b": 0.6})
    rule = "must be one number, as a tensor or a float; found"
    with pytest.raises(ValueError, match=rf"losses\['b'\] {rule} str"):
        mol.weighted({"a": 0.1, "b": "0.2"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"losses\['a'\] {rule} \(2,\)"):
        mol.steer({"a": torch.ones(2), "b": torch.ones(())})
    with pytest.raises(ValueError, match=r"losses must have shape \(2,\), as the preference has; found \(3,\)"):
        mol.record(np.ones(3))
