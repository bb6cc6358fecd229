"""Weightings: from losses to the coefficients of the gradient step. One method, one file."""

from equipoise.weighting.epo import EPO
from equipoise.weighting.excess_risk import ExcessRisk
from equipoise.weighting.fedfv import FedFV
from equipoise.weighting.fedmgda import FedMGDAPlus
from equipoise.weighting.ferero import FERERO, DualDescent, ExactDual
from equipoise.weighting.linear import Linear
from equipoise.weighting.mgda import MGDA
from equipoise.weighting.moco import MoCo
from equipoise.weighting.momentum import Momentum
from equipoise.weighting.omd import OMD
from equipoise.weighting.pmtl import PMTL
from equipoise.weighting.protocol import Stateless, Weighting
from equipoise.weighting.qffl import QFFL
from equipoise.weighting.relative import Relative
from equipoise.weighting.reweighted import Reweighted
from equipoise.weighting.smooth_tchebycheff import SmoothTchebycheff
from equipoise.weighting.tchebycheff import Tchebycheff

__all__ = [
    "EPO",
    "FERERO",
    "MGDA",
    "OMD",
    "PMTL",
    "QFFL",
    "DualDescent",
    "ExactDual",
    "ExcessRisk",
    "FedFV",
    "FedMGDAPlus",
    "Linear",
    "MoCo",
    "Momentum",
    "Relative",
    "Reweighted",
    "SmoothTchebycheff",
    "Stateless",
    "Tchebycheff",
    "Weighting",
]
