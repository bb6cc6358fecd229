"""The table of the paper's names."""

from dataclasses import FrozenInstanceError

import pytest
import torch

import equipoise as eq
from equipoise.weighting import Reweighted

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


# --- what a server multiplies by m

OWN_LENGTH = {
    "qFFL", "FedMGDA+", "FedFV", "FERERO", "PMTL", "PCGrad", "CAGrad", "Nash-MTL", "UPGrad", "Aligned-MTL", "UW",
}  # fmt: skip
"""Their coefficients do not sum to one, nor to 1/m."""


def after_two_steps(name: str, m: int) -> tuple[float, bool]:
    """The sum of the coefficients for uniform w, and whether they are said to be λ∘w."""
    draws = torch.Generator().manual_seed(m)
    weighting = eq.methods()[name].weighting
    state, total = None, 0.0
    for _ in range(2):
        losses = torch.rand(m, generator=draws) + 0.5
        jacobian = torch.randn(m, 7, generator=draws) + 0.5
        extra = {"gramian": jacobian @ jacobian.mT, "jacobian": jacobian}
        extra = {need: extra[need] for need in weighting.needs}
        state = weighting.init(losses, **extra) if state is None else state
        c, state = weighting.update(losses, state, torch.full((m,), 1 / m), **extra)
        total = c.sum().item()
    return total, weighting.uses_duals


@pytest.mark.parametrize("m", [2, 5])
@pytest.mark.parametrize("name", [name for name in eq.methods() if name not in OWN_LENGTH])
def test_coefficients_sum_to_one_after_times_m_for_duals(name: str, m: int):
    total, uses_duals = after_two_steps(name, m)
    assert total * (m if uses_duals else 1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("weighting", "uses_duals"),
    [
        (eq.OMD(1.0), True),
        (eq.ExcessRisk(1.0), True),
        (eq.Tchebycheff(), True),
        (eq.Tchebycheff(scale="unit"), False),
        (eq.SmoothTchebycheff(0.1), True),
        (eq.SmoothTchebycheff(0.1, normalize="mean"), False),
        (eq.Momentum(eq.SmoothTchebycheff(0.1)), True),
        (eq.Momentum(eq.Linear()), False),
        (eq.Relative(eq.OMD(1.0)), True),
        (Reweighted(eq.EPO()), True),
        (Reweighted(eq.EPO(), coefficients=False), False),
        (eq.Linear(), False),
        (eq.QFFL(0.1, 0.1), False),
        (eq.FedMGDAPlus(0.1), False),
        (eq.FedFV(0.1), False),
        (eq.EPO(), False),
        (eq.FERERO(), False),
        (eq.PCGrad(), False),
        (eq.CAGrad(), False),
        (eq.IMTLG(), False),
        (eq.NashMTL(), False),
        (eq.UPGrad(), False),
        (eq.AlignedMTL(), False),
        (eq.Uncertainty(), False),
        (eq.DWA(1), False),
        (eq.FAMO(), False),
        (eq.GradNorm(), False),
        (eq.RandomWeights(), False),
    ],
    ids=repr,
)
def test_which_coefficients_are_duals_times_preference(weighting, uses_duals: bool):
    assert weighting.uses_duals is uses_duals


def test_a_weighting_with_the_former_name_dual_is_refused():
    with pytest.raises(TypeError, match=r"^Old must define uses_duals; found its former name, dual$"):
        type("Old", (eq.Linear,), {"dual": True})


def test_propfair_is_averaging_of_another_loss():
    found = eq.methods()["PropFair"]
    assert (found.weighting, found.conversion, found.transform) == (eq.Linear(), eq.Last(), eq.PropFair())
    assert {name for name, method in eq.methods().items() if method.transform is not None} == {"PropFair"}
