"""Weightings: from losses to the coefficients of the gradient step. One method, one file."""

from equipoise.weighting.linear import Linear
from equipoise.weighting.momentum import Momentum, MomentumState
from equipoise.weighting.omd import OMD, OMDState
from equipoise.weighting.protocol import Stateless, Weighting
from equipoise.weighting.relative import Relative, RelativeState
from equipoise.weighting.smooth_tchebycheff import SmoothTchebycheff
from equipoise.weighting.tchebycheff import Tchebycheff

__all__ = [
    "OMD",
    "Linear",
    "Momentum",
    "MomentumState",
    "OMDState",
    "Relative",
    "RelativeState",
    "SmoothTchebycheff",
    "Stateless",
    "Tchebycheff",
    "Weighting",
]
