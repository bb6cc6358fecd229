"""Federated learning on many machines: a strategy for Flower. Needs the extra `flower`."""

from equipoise.flower.client import evaluate_function, reply, train_function
from equipoise.flower.client_limits import LossCap
from equipoise.flower.local_grid import LocalGrid
from equipoise.flower.replies import Rejected
from equipoise.flower.strategy import PreferenceStrategy

__all__ = [
    "LocalGrid",
    "LossCap",
    "PreferenceStrategy",
    "Rejected",
    "evaluate_function",
    "reply",
    "train_function",
]
