"""Metrics of solutions: hypervolume, distance from the front, preference accuracy, fairness."""

from equipoise.metrics.fairness import accuracy_parity, agnostic_loss, average_accuracy, ratio_parity
from equipoise.metrics.front_distance import igd, igd_plus, non_dominated
from equipoise.metrics.hypervolume import hypervolume
from equipoise.metrics.preference import angle, imbalance, tch
from equipoise.metrics.stationarity import pareto_stationarity

__all__ = [
    "accuracy_parity",
    "agnostic_loss",
    "angle",
    "average_accuracy",
    "hypervolume",
    "igd",
    "igd_plus",
    "imbalance",
    "non_dominated",
    "pareto_stationarity",
    "ratio_parity",
    "tch",
]
