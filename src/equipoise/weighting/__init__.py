"""Weightings: from losses to the coefficients of the gradient step. One method, one file."""

from equipoise.weighting.aligned_mtl import AlignedMTL
from equipoise.weighting.cagrad import CAGrad
from equipoise.weighting.dwa import DWA
from equipoise.weighting.epo import EPO
from equipoise.weighting.excess_risk import ExcessRisk
from equipoise.weighting.famo import FAMO
from equipoise.weighting.fedfv import FedFV
from equipoise.weighting.fedmgda import FedMGDAPlus
from equipoise.weighting.ferero import FERERO, DualDescent, ExactDual
from equipoise.weighting.gradnorm import GradNorm
from equipoise.weighting.imtl_g import IMTLG
from equipoise.weighting.limits import Limits, proxy
from equipoise.weighting.linear import Linear
from equipoise.weighting.mgda import MGDA
from equipoise.weighting.moco import MoCo
from equipoise.weighting.momentum import Momentum
from equipoise.weighting.nash_mtl import NashMTL
from equipoise.weighting.omd import OMD
from equipoise.weighting.pcgrad import PCGrad
from equipoise.weighting.pmtl import PMTL
from equipoise.weighting.protocol import Seen, Stateless, Weighting
from equipoise.weighting.qffl import QFFL
from equipoise.weighting.random_weights import RandomWeights
from equipoise.weighting.relative import Relative
from equipoise.weighting.reweighted import Reweighted
from equipoise.weighting.self_tuned import SelfTuned
from equipoise.weighting.smooth_tchebycheff import SmoothTchebycheff
from equipoise.weighting.tchebycheff import Tchebycheff
from equipoise.weighting.uncertainty import Uncertainty
from equipoise.weighting.upgrad import UPGrad

__all__ = [
    "DWA",
    "EPO",
    "FAMO",
    "FERERO",
    "IMTLG",
    "MGDA",
    "OMD",
    "PMTL",
    "QFFL",
    "AlignedMTL",
    "CAGrad",
    "DualDescent",
    "ExactDual",
    "ExcessRisk",
    "FedFV",
    "FedMGDAPlus",
    "GradNorm",
    "Limits",
    "Linear",
    "MoCo",
    "Momentum",
    "NashMTL",
    "PCGrad",
    "RandomWeights",
    "Relative",
    "Reweighted",
    "Seen",
    "SelfTuned",
    "SmoothTchebycheff",
    "Stateless",
    "Tchebycheff",
    "UPGrad",
    "Uncertainty",
    "Weighting",
    "proxy",
]
