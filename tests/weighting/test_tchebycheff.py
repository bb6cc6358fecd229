"""TCH: all weight on the worst objective."""

import pytest
import torch

import equipoise as eq


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


TCH, UNIT = eq.Tchebycheff(), eq.Tchebycheff(scale="unit")


def step(weighting: eq.Tchebycheff, f: torch.Tensor, w: torch.Tensor, **given: torch.Tensor) -> list[float]:
    coefficients: list[float] = weighting.update(f, weighting.init(f), w, **given)[0].tolist()
    return coefficients


def test_by_hand():
    # w∘f = (.6, .8).
    f, w = vector(3.0, 1.0), vector(0.2, 0.8)
    assert step(TCH, f, w) == [0.0, 0.8]
    assert step(UNIT, f, w) == [0.0, 1.0]
    assert TCH.value(f, w).item() == pytest.approx(0.8)


def test_the_first_index_on_ties():
    assert step(TCH, vector(1.0, 2.0, 2.0), vector(0.5, 0.25, 0.25)) == [0.5, 0.0, 0.0]
    assert step(UNIT, vector(1.0, 3.0, 3.0), vector(0.5, 0.25, 0.25)) == [0.0, 1.0, 0.0]


def test_the_ideal_point():
    # w∘(f − z) = (.2·(3 − 1), .8·(1 − .9)).
    shifted = eq.Tchebycheff(ideal=(1.0, 0.9))
    assert step(shifted, vector(3.0, 1.0), vector(0.2, 0.8)) == [0.2, 0.0]
    assert shifted.value(vector(3.0, 1.0), vector(0.2, 0.8)).item() == pytest.approx(0.4)


def test_negative_losses():
    assert step(TCH, vector(-3.0, -1.0), vector(0.2, 0.8)) == [0.2, 0.0]


def test_an_absent_objective_is_not_the_worst_one_even_among_negative_losses():
    mask = torch.tensor([True, False, True])
    assert step(TCH, vector(-3.0, 9.0, -1.0), vector(0.3, 0.3, 0.4), mask=mask) == [0.0, 0.0, 0.4]


@pytest.mark.parametrize("weighting", [TCH, UNIT])
def test_inclusion_divides_gain_and_coefficient(weighting: eq.Tchebycheff):
    # gains (.6, .8)/(.5, 1): the first is worst now.
    c = step(weighting, vector(3.0, 1.0), vector(0.2, 0.8), inclusion=vector(0.5, 1.0))
    assert c == pytest.approx([0.4, 0.0] if weighting is TCH else [2.0, 0.0])


def test_batches_have_a_worst_one_each():
    f = torch.stack([vector(3.0, 1.0), vector(9.0, 1.0)])
    c, _ = TCH.update(f, TCH.init(f), vector(0.2, 0.8))
    assert c.tolist() == [[0.0, 0.8], [0.2, 0.0]]
    assert TCH.value(f, vector(0.2, 0.8)).tolist() == pytest.approx([0.8, 1.8])


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match=r'scale must be "preference" or "unit"; found none'):
        eq.Tchebycheff(scale="none")  # type: ignore[arg-type]
