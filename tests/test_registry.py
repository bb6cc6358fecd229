"""The methods by name, and GroupDRO with its adjustment."""

import dataclasses
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.registry import Method, resolve

PAPER = [
    "LS", "TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH", "ExcessMTL", "EPO", "FERERO",
    "MGDA", "CR-MOGM", "Moco", "PMTL", "AdaExcessMTL", "STCH w/ momentum", "AdaLS", "AdaTCH",
]  # fmt: skip
LITERATURE = ["qFFL", "FedMGDA+", "FedFV", "FedAvg", "TERM", "AFL", "ALMO", "GroupDRO"]


def test_every_name_of_the_literature_is_there():
    assert set(PAPER + LITERATURE) <= eq.methods().keys()


def test_a_method_can_be_printed_compared_and_changed():
    method: Any = eq.methods()["OMDgd-TCH"]
    assert repr(method) == repr(eq.methods()["AFL"])
    assert method == eq.methods()["AFL"]
    changed = dataclasses.replace(method, weighting=dataclasses.replace(method.weighting, step_size=0.5))
    assert changed != method
    assert eq.methods()["OMDgd-TCH"] == method


def test_nothing_is_near_some_names():
    with pytest.raises(KeyError) as error:
        eq.methods()["zzzz"]
    assert str(error.value) == "method must be a known name; found 'zzzz'"


def test_counts_of_another_number_of_groups_are_named():
    weighting = eq.group_dro([10, 20], adjustment=1.0).weighting
    losses = torch.ones(3)
    with pytest.raises(ValueError, match="the counts of group_dro, must have 3 entries, one per objective; found 2"):
        weighting.update(losses, weighting.init(losses), losses / 3)


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(KeyError, match=r"method must be a known name; found 'AdaOMD'; nearest: AdaOMD\w+-TCH"):
        eq.methods()["AdaOMD"]


def test_group_dro_by_hand():
    # q = (.5, .5), L = (1, 2), C = 1, n = (100, 4): exponents .01 · (1.1, 2.5).
    losses, half = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    weighting = eq.group_dro([100, 4], adjustment=1.0).weighting
    coefficients, _ = weighting.update(losses, weighting.init(losses), half)
    assert (2 * coefficients).tolist() == pytest.approx([0.49650006, 0.50349994], abs=1e-8)
    plain: Any = eq.group_dro([100, 4]).weighting
    coefficients, _ = plain.update(losses, plain.init(losses), half)
    assert (2 * coefficients).tolist() == pytest.approx([0.49750002, 0.50249998], abs=1e-8)
    assert eq.methods()["GroupDRO"].weighting == dataclasses.replace(plain, ideal=0.0)


@pytest.mark.parametrize("m", [2, 5, 40])
def test_the_step_of_group_dro_is_the_literatures_for_any_number_of_groups(m):
    """q_g ← q_g exp(η f_g), normalised, with the default η = 0.01."""
    losses = torch.linspace(0.0, 3.0, m, dtype=torch.float64)
    uniform, q = torch.full_like(losses, 1 / m), torch.full_like(losses, 1 / m)
    weighting: Any = eq.group_dro([10] * m).weighting
    state = weighting.init(losses)
    for _ in range(100):
        _, state = weighting.update(losses, state, uniform)
        q = q * torch.exp(0.01 * losses)
        q = q / q.sum()
    torch.testing.assert_close(weighting.weights(state), q)


def test_afl_by_hand():
    # λ = (.5, .5), f = (1, 2), η = .1 for f, that is .2 for w∘f.
    losses, half = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    afl: Any = eq.methods()["AFL"].weighting
    weighting = dataclasses.replace(afl, step_size=0.2)
    _, state = weighting.update(losses, weighting.init(losses), half)
    assert weighting.weights(state).tolist() == pytest.approx([0.45, 0.55])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": [10, 0]}, r"counts must be at least 1 for every group; found \[10, 0\]"),
        ({"counts": []}, r"counts must be at least 1 for every group; found \[\]"),
        ({"counts": [10], "adjustment": -1.0}, r"adjustment must be non-negative; found -1\.0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        eq.group_dro(**arguments)


def test_what_can_stand_for_a_method():
    assert resolve(None) == eq.methods()["equipoise"]
    assert resolve("TCH") == eq.methods()["TCH"]
    assert resolve(eq.OMD(0.5)) == Method(eq.OMD(0.5), eq.Last())
    assert resolve(eq.methods()["LS"]) == eq.methods()["LS"]


@pytest.mark.parametrize("wrong", [eq.OMD, [0.5, 0.5], eq.Last()])
def test_what_cannot(wrong):
    with pytest.raises(
        ValueError, match=r"a method must be a name such as \"TCH\", a Method, or a weighting such as OMD"
    ):
        resolve(wrong)


def test_a_training_loop_takes_a_method_or_its_name():
    model = torch.nn.Linear(2, 1)
    named = eq.MultiObjective(model, None, [0.5, 0.5], method="OMDgd-TCH")
    assert isinstance(named.conversion, eq.Average)
    assert isinstance(eq.MultiObjective(model, None, [0.5, 0.5], method=eq.group_dro([10, 20])).weighting, eq.OMD)
    paper = eq.MultiObjective(model, None, [0.5, 0.5], method="AdaOMDgd-TCH")
    assert (paper.weighting, paper.conversion) == (eq.methods()["AdaOMDgd-TCH"].weighting, eq.Adaptive(capacity=8))
    with pytest.raises(ValueError, match="conversion must have a capacity in a training loop"):
        eq.MultiObjective(model, None, [0.5, 0.5], method=eq.methods()["AdaOMDgd-TCH"])
    with pytest.raises(ValueError, match="method must not be one whose clients transform losses; found PropFair"):
        eq.MultiObjective(model, None, [0.5, 0.5], method="PropFair")
