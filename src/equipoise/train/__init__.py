"""Multi-objective training in your own PyTorch loop: `MultiObjective` and what it is built from."""

from equipoise.train.checkpoint import load, save
from equipoise.train.domains import DomainSampler, DomainStreams, Draw
from equipoise.train.groups import GroupBalancedSampler, group_losses
from equipoise.train.language import count_tokens, step_shares, token_losses
from equipoise.train.multi_objective import MultiObjective
from equipoise.train.steering import steered
from equipoise.train.sweep import Swept, sweep

__all__ = [
    "DomainSampler",
    "DomainStreams",
    "Draw",
    "GroupBalancedSampler",
    "MultiObjective",
    "Swept",
    "count_tokens",
    "group_losses",
    "load",
    "save",
    "steered",
    "step_shares",
    "sweep",
    "token_losses",
]
