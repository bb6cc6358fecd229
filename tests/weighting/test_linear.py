"""The weighted sum."""

import pytest
import torch

import equipoise as eq


def vector(*entries: float) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.float64)


LS = eq.Linear()


def test_the_coefficients_are_the_preference():
    for losses in (vector(3.0, 1.0), vector(-3.0, 1e30)):
        c, state = LS.update(losses, LS.init(losses), vector(0.2, 0.8))
        assert c.tolist() == [0.2, 0.8]
        assert state == LS.init(losses)


def test_the_ideal_point_moves_the_value_only():
    shifted = eq.Linear(ideal=(1.0, 0.5))
    f, w = vector(3.0, 1.0), vector(0.2, 0.8)
    assert torch.equal(shifted.update(f, shifted.init(f), w)[0], w)
    assert LS.value(f, w).item() == pytest.approx(1.4)
    assert shifted.value(f, w).item() == pytest.approx(0.2 * 2.0 + 0.8 * 0.5)
    assert LS.value(torch.stack([f, 2 * f]), w).tolist() == pytest.approx([1.4, 2.8])


def test_masks_and_inclusion():
    f, w = vector(3.0, 1.0, 2.0), vector(0.2, 0.5, 0.3)
    c, _ = LS.update(f, LS.init(f), w, mask=torch.tensor([True, False, True]), inclusion=vector(0.5, 0.1, 1.0))
    assert c.tolist() == pytest.approx([0.4, 0.0, 0.3])


def test_a_bad_preference_of_the_value_is_refused():
    with pytest.raises(ValueError, match=r"preference must be non-negative and sum to 1; found sum 1\.6"):
        LS.value(vector(1.0, 2.0), vector(0.8, 0.8))
