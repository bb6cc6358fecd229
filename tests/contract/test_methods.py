"""The table of the paper's names."""

from dataclasses import FrozenInstanceError

import pytest
import torch

import equipoise as eq

# The README's table, as far as it is a matter of loss values.
TABLE = {
    "LS": (eq.Linear, eq.Last),
    "FedAvg": (eq.Linear, eq.Last),
    "TCH": (eq.Tchebycheff, eq.Last),
    "STCH": (eq.SmoothTchebycheff, eq.Last),
    "TERM": (eq.SmoothTchebycheff, eq.Last),
    "STCH w/ momentum": (eq.Momentum, eq.Last),
    "OMDgd-TCH": (eq.OMD, eq.Average),
    "OMDeg-TCH": (eq.OMD, eq.Average),
    "AFL": (eq.OMD, eq.Average),
    "ALMO": (eq.OMD, eq.Average),
    "GroupDRO": (eq.OMD, eq.Last),
    "AdaOMDgd-TCH": (eq.OMD, eq.Adaptive),
    "AdaOMDeg-TCH": (eq.OMD, eq.Adaptive),
    "AdaLS": (eq.Linear, eq.Adaptive),
    "AdaTCH": (eq.Tchebycheff, eq.Adaptive),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_name_is_a_weighting_with_a_conversion(name: str):
    method = eq.methods()[name]
    assert (type(method.weighting), type(method.conversion)) == TABLE[name]


def test_what_tells_them_apart():
    methods = eq.methods()
    for name in ("OMDgd-TCH", "AdaOMDgd-TCH", "AFL", "ALMO"):
        assert methods[name].weighting.mirror == eq.Euclidean()  # type: ignore[attr-defined]
    for name in ("OMDeg-TCH", "AdaOMDeg-TCH", "GroupDRO"):
        assert methods[name].weighting.mirror == eq.Entropic()  # type: ignore[attr-defined]
    alternating = {name for name, method in methods.items() if getattr(method.weighting, "order", "") == "alternating"}
    assert alternating >= {"GroupDRO"}
    assert "OMDeg-TCH" not in alternating
    for name in ("AdaOMDgd-TCH", "AdaOMDeg-TCH", "AdaLS", "AdaTCH"):  # Algorithm 2 itself
        assert methods[name].conversion == eq.Adaptive(power=0.0, capacity=None, ties="stored")


def test_term_is_a_tilted_softmax():
    term, losses = eq.methods()["TERM"].weighting, torch.tensor([1.0, 2.0, 4.0])
    c, _ = term.update(losses, term.init(losses), torch.full((3,), 1 / 3))
    torch.testing.assert_close(c, torch.softmax(losses, -1))


def test_the_table_is_the_caller_s_own():
    methods = eq.methods()
    methods.clear()
    assert len(eq.methods()) >= len(TABLE)
    with pytest.raises(FrozenInstanceError):
        eq.methods()["LS"].weighting = eq.Tchebycheff()  # type: ignore[misc]
