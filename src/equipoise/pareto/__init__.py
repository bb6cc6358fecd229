"""One model for every trade-off: a model that takes the preference as an input."""

from equipoise.pareto.conditioning import Conditioned, conditioned

__all__ = ["Conditioned", "conditioned"]
