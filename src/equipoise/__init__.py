"""Preference-guided multi-objective learning: name a trade-off, get the Pareto point that has it."""

from equipoise import preference, simplex, state, theory, train
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.errors import EquipoiseError, NonFiniteLossError, StateMismatchError
from equipoise.registry import Method, group_dro, methods
from equipoise.simplex import Box, Entropic, Euclidean, PNorm
from equipoise.solver import Run, Solution, solve, solve_many
from equipoise.train import GroupBalancedSampler, MultiObjective, group_losses
from equipoise.transform import PropFair
from equipoise.weighting import (
    EPO,
    FERERO,
    IMTLG,
    MGDA,
    OMD,
    PMTL,
    QFFL,
    AlignedMTL,
    CAGrad,
    ExcessRisk,
    FedFV,
    FedMGDAPlus,
    Linear,
    MoCo,
    Momentum,
    NashMTL,
    PCGrad,
    Relative,
    SmoothTchebycheff,
    Tchebycheff,
    UPGrad,
    Weighting,
)

__version__ = "0.1.0"

__all__ = [
    "EPO",
    "FERERO",
    "IMTLG",
    "MGDA",
    "OMD",
    "PMTL",
    "QFFL",
    "Adaptive",
    "AlignedMTL",
    "Average",
    "Box",
    "CAGrad",
    "Conversion",
    "Entropic",
    "EquipoiseError",
    "Euclidean",
    "ExcessRisk",
    "FedFV",
    "FedMGDAPlus",
    "GroupBalancedSampler",
    "Last",
    "Linear",
    "Method",
    "MoCo",
    "Momentum",
    "MultiObjective",
    "NashMTL",
    "NonFiniteLossError",
    "PCGrad",
    "PNorm",
    "PropFair",
    "Relative",
    "Run",
    "SmoothTchebycheff",
    "Solution",
    "StateMismatchError",
    "Tchebycheff",
    "UPGrad",
    "Weighting",
    "group_dro",
    "group_losses",
    "methods",
    "preference",
    "simplex",
    "solve",
    "solve_many",
    "state",
    "theory",
    "train",
]
