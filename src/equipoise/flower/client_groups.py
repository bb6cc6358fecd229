"""The clients of every objective, and the probability that at least one of them replies."""

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from equipoise.errors import require

__all__ = ["Groups", "Objectives", "inclusion"]

Objectives = int | Sequence[Collection[int]]
"""m: client i is objective i; or the clients (partition ids) of every objective, disjoint."""


class Groups:
    """The clients of every objective.

    Args:
        objectives: Their number, if each is one client, or the clients of each.
    """

    def __init__(self, objectives: Objectives) -> None:
        if isinstance(objectives, int):
            require(objectives >= 1, "objectives must be at least 1, or the clients of each", objectives)
            self.count = objectives
            self.sizes = torch.ones(objectives, dtype=torch.int64)
            self._objective: dict[int, int] | None = None
            return
        listed: object = objectives
        sound = isinstance(listed, Collection) and all(isinstance(clients, Collection) for clients in listed)
        rule = "objectives must be their number, or the clients (partition ids) of each, such as [[0, 1], [2, 3, 4]]"
        require(sound, rule, objectives)
        groups = [tuple(clients) for clients in objectives]
        require(len(groups) >= 1 and all(groups), "objectives must have a client each", groups[:8])
        self.count = len(groups)
        self.sizes = torch.tensor([len(clients) for clients in groups])
        self._objective = {client: j for j, clients in enumerate(groups) for client in clients}
        total = int(self.sizes.sum())
        require(len(self._objective) == total, "objectives must not share a client", lambda: f"{total} entries")

    def objective(self, client: int) -> int | None:
        """The objective of a client; None if the client is unknown."""
        if self._objective is not None:
            return self._objective.get(client)
        return client if 0 <= client < self.count else None

    def __repr__(self) -> str:
        if self._objective is None:
            return str(self.count)
        clients: list[list[int]] = [[] for _ in range(self.count)]
        for client, objective in sorted(self._objective.items()):
            clients[objective].append(client)
        return str(clients)


def inclusion(sizes: Tensor, drawn: int, nodes: int, dropout: float) -> Tensor:
    """The probability that at least one client of a group is drawn and replies.

    k of n nodes are drawn without replacement, and each fails to reply with probability d. The number J of drawn
    clients in a group of p is hypergeometric, so π = 1 − E[dᴶ]; for p = 1, π = (1 − d) k/n.

    Args:
        sizes: p of every group, (m,).
        drawn: k.
        nodes: n.
        dropout: d.

    Returns:
        π, (m,) float64.
    """
    own, place = torch.unique(sizes.clamp_max(nodes), return_inverse=True)
    most = 0 if dropout == 0 else drawn
    silent = [sum(_drawn(j, p, drawn, nodes) * dropout**j for j in range(min(p, most) + 1)) for p in own.tolist()]
    return 1.0 - torch.tensor(silent, dtype=torch.float64)[place]


def _drawn(j: int, group: int, drawn: int, nodes: int) -> float:
    """The probability that j of a group are among those drawn."""
    if drawn - j > nodes - group:
        return 0.0
    return math.exp(_choices(group, j) + _choices(nodes - group, drawn - j) - _choices(nodes, drawn))


def _choices(n: int, k: int) -> float:
    """The logarithm of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
