"""What solutions are judged by: hypervolume, distance from the front, preference accuracy."""

from equipoise.metrics.front import igd, igd_plus, non_dominated
from equipoise.metrics.hypervolume import hypervolume
from equipoise.metrics.preference import angle, imbalance, tch
from equipoise.metrics.stationarity import pareto_stationarity

__all__ = [
    "angle",
    "hypervolume",
    "igd",
    "igd_plus",
    "imbalance",
    "non_dominated",
    "pareto_stationarity",
    "tch",
]
