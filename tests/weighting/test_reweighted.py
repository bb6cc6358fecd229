"""A gradient-based weighting on gradients scaled by the preference."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from equipoise.weighting.linear import Linear
from equipoise.weighting.mgda import MGDA
from equipoise.weighting.moco import MoCo
from equipoise.weighting.protocol import Seen, Weighting
from equipoise.weighting.reweighted import Reweighted


class Given(NamedTuple):
    losses: Tensor
    preference: Tensor
    gramian: Tensor
    jacobian: Tensor


@dataclass(frozen=True)
class Recorder(Weighting[Given]):
    """Keeps what it was given; its coefficients are (2, 3)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gramian", "jacobian"})
    traceable: ClassVar[bool] = False

    def init(self, losses: Tensor, **extra: Tensor) -> Given:
        return Given(losses, losses, extra["gramian"], extra["jacobian"])

    def step(self, seen: Seen, state: Given) -> tuple[Tensor, Given]:  # noqa: ARG002
        c = torch.tensor([2.0, 3.0]).expand_as(seen.losses)
        return c, Given(seen.losses, seen.preference, seen.gramian, seen.jacobian)

    def rows(self, state: Given) -> Tensor | None:
        return state.jacobian


W = torch.tensor([0.25, 0.75])
LOSSES = torch.tensor([[5.0, 7.0], [1.0, 2.0], [3.0, 4.0]])
J = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


def test_the_inner_weighting_sees_the_weighted_gradients_and_the_plain_losses():
    method = Reweighted(Recorder())
    weighted, both = W.unsqueeze(-1) * J, {"gramian": J @ J.mT, "jacobian": J}
    c, state = method.update(LOSSES, method.init(LOSSES, **both), W, **both)
    assert torch.equal(state.losses, LOSSES.double())
    assert torch.equal(state.preference, W)
    torch.testing.assert_close(state.gramian.to(J), weighted @ weighted.mT)
    torch.testing.assert_close(state.jacobian.to(J), weighted)
    assert c.dtype == torch.float32
    torch.testing.assert_close(c, torch.tensor([0.5, 2.25]).expand(3, 2))


def test_coefficients_can_be_left_as_they_are():
    method = Reweighted(Recorder(), coefficients=False)
    both = {"gramian": J @ J.mT, "jacobian": J}
    c, _ = method.update(LOSSES, method.init(LOSSES, **both), W, **both)
    assert torch.equal(c, torch.tensor([2.0, 3.0]).expand(3, 2))


def test_absent_objectives_have_no_rows():
    method = Reweighted(Recorder())
    broken = J.clone()
    broken[:, 1] = math.nan
    mask, both = torch.tensor([True, False]), {"gramian": broken @ broken.mT, "jacobian": broken}
    c, state = method.update(LOSSES, method.init(LOSSES, **both), W, mask=mask, **both)
    assert (c[:, 1] == 0).all()
    assert (state.jacobian[:, 1] == 0).all()
    assert torch.equal(state.jacobian[:, 0], 0.25 * J[:, 0])
    assert (state.gramian[:, 1] == 0).all()
    assert (state.gramian[:, :, 1] == 0).all()


def test_what_the_inner_weighting_says_of_itself_passes_through():
    method = Reweighted(Recorder())
    assert method.needs == {"gramian", "jacobian"}
    assert not method.traceable
    state = method.init(LOSSES, gramian=J @ J.mT, jacobian=J)
    assert torch.equal(method.rows(state), J)  # type: ignore[arg-type]
    assert Reweighted(Linear()).needs == frozenset()
    assert Reweighted(Linear()).traceable
    assert Reweighted(MoCo(tracking=0.5)).needs == {"jacobian"}


def test_around_mgda():
    # MGDA of its own accord works on w∘f: wrapped, on w²∘f, with all of w² in the step.
    w = torch.tensor([0.2, 0.8], dtype=torch.float64)
    squared = w**2 / (w**2).sum()
    losses, K = LOSSES[0].double(), (J @ J.mT).double()[0]
    wrapped = Reweighted(MGDA())
    c, _ = wrapped.update(losses, wrapped.init(losses), w, gramian=K)
    plain, _ = MGDA().update(losses, MGDA().init(losses), squared, gramian=K)
    torch.testing.assert_close(c, plain * (w**2).sum())


def test_bad_shapes_are_named():
    method = Reweighted(MGDA())
    with pytest.raises(ValueError, match=r"gramian must have shape \(\*B, m, m\) = \(3, 2, 2\); found \(3, 2, 3\)"):
        method.update(LOSSES, method.init(LOSSES), W, gramian=torch.ones(3, 2, 3))
    with pytest.raises(TypeError, match="gramian"):
        method.update(LOSSES, method.init(LOSSES), W)
