"""One model for every trade-off: Pareto set learning, with λ as a function of the preference."""

from equipoise.pareto.conditioning import Conditioned, conditioned
from equipoise.pareto.draws import spread_uniform
from equipoise.pareto.duals import Mesh, NodeDuals, NodeState, node_means
from equipoise.pareto.front import Front
from equipoise.pareto.pareto_set import ParetoSet
from equipoise.pareto.preference_network import PreferenceNetwork, SetSolution, solve_set

__all__ = [
    "Conditioned",
    "Front",
    "Mesh",
    "NodeDuals",
    "NodeState",
    "ParetoSet",
    "PreferenceNetwork",
    "SetSolution",
    "conditioned",
    "node_means",
    "solve_set",
    "spread_uniform",
]
