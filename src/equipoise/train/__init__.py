"""In one's own PyTorch training loop: the shell around a weighting and a conversion."""

from equipoise.train.checkpoint import load, save
from equipoise.train.groups import GroupBalancedSampler, group_losses
from equipoise.train.multi_objective import MultiObjective

__all__ = ["GroupBalancedSampler", "MultiObjective", "group_losses", "load", "save"]
