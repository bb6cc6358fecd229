"""Preference-guided multi-objective learning: name a trade-off, get the Pareto point that has it."""

from equipoise import preference, simplex, state, theory
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.errors import EquipoiseError, NonFiniteLossError, StateMismatchError
from equipoise.registry import Method, methods
from equipoise.simplex import Box, Entropic, Euclidean, PNorm
from equipoise.weighting import (
    OMD,
    Linear,
    Momentum,
    Relative,
    SmoothTchebycheff,
    Tchebycheff,
    Weighting,
)

__version__ = "0.1.0"

__all__ = [
    "OMD",
    "Adaptive",
    "Average",
    "Box",
    "Conversion",
    "Entropic",
    "EquipoiseError",
    "Euclidean",
    "Last",
    "Linear",
    "Method",
    "Momentum",
    "NonFiniteLossError",
    "PNorm",
    "Relative",
    "SmoothTchebycheff",
    "StateMismatchError",
    "Tchebycheff",
    "Weighting",
    "methods",
    "preference",
    "simplex",
    "state",
    "theory",
]
