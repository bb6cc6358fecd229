"""Preference-guided multi-objective learning: name a trade-off, get the Pareto point that has it."""

from equipoise import preference, simplex, state, theory
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.errors import EquipoiseError, NonFiniteLossError, StateMismatchError
from equipoise.registry import Method, group_dro, methods
from equipoise.simplex import Box, Entropic, Euclidean, PNorm
from equipoise.solver import Run, Solution, solve, solve_many
from equipoise.weighting import (
    EPO,
    FERERO,
    MGDA,
    OMD,
    PMTL,
    ExcessRisk,
    Linear,
    MoCo,
    Momentum,
    Relative,
    SmoothTchebycheff,
    Tchebycheff,
    Weighting,
)

__version__ = "0.1.0"

__all__ = [
    "EPO",
    "FERERO",
    "MGDA",
    "OMD",
    "PMTL",
    "Adaptive",
    "Average",
    "Box",
    "Conversion",
    "Entropic",
    "EquipoiseError",
    "Euclidean",
    "ExcessRisk",
    "Last",
    "Linear",
    "Method",
    "MoCo",
    "Momentum",
    "NonFiniteLossError",
    "PNorm",
    "Relative",
    "Run",
    "SmoothTchebycheff",
    "Solution",
    "StateMismatchError",
    "Tchebycheff",
    "Weighting",
    "group_dro",
    "methods",
    "preference",
    "simplex",
    "solve",
    "solve_many",
    "state",
    "theory",
]
