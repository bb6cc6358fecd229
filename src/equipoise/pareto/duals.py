"""λ as a function of the preference: a dual state at every node of a mesh, interpolated between the nodes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.batch import whole
from equipoise.errors import require
from equipoise.weighting.protocol import Seen, Weighting, duals

__all__ = ["Mesh", "NodeDuals", "NodeState", "node_means"]

NODES = {2: 32, 3: 66}
"""The default number of nodes, by the number of objectives; for more objectives, the same as for three."""


@dataclass(frozen=True)
class Mesh:
    r"""A triangulated grid on the preferences {w : w_i ≥ margin, Σ w_i = 1}, with linear interpolation on each piece.

    The nodes are those of `preference.grid`. Freudenthal's triangulation splits the simplex into pieces with m corners
    each, for every m: intervals for two objectives, triangles for three. A preference has the barycentric coordinates
    a_k(w) of its piece, so that Σ_k a_k = 1, a_k(w_k) = 1 and Σ_k a_k(w) w_k = w. At most m of them are positive.

    Attributes:
        m: Objectives, at least 2.
        divisions: Divisions of each edge, at least 1. There are C(divisions + m − 1, m − 1) nodes.
        margin: The smallest entry of a node. A preference beyond it is moved to the mesh first.

    Examples:
        >>> mesh = eq.pareto.Mesh(m=2, divisions=2)
        >>> mesh.nodes.tolist()
        [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
        >>> mesh.interpolate(torch.tensor([[0.125, 0.875], [0.5, 0.5]])).tolist()
        [[0.75, 0.25, 0.0], [0.0, 1.0, 0.0]]
    """

    m: int
    divisions: int
    margin: float = 0.0

    def __post_init__(self) -> None:
        require(self.m >= 2, "objectives must be at least 2", self.m)
        require(self.divisions >= 1, "divisions must be at least 1", self.divisions)
        most = 1 / self.m
        require(0 <= self.margin < most, f"margin must lie in [0, 1/m) = [0, {most:.4g})", self.margin)

    @classmethod
    def of(cls, m: int, nodes: int | None, margin: float) -> "Mesh":
        """The finest mesh with at most this many nodes.

        Args:
            m: Objectives.
            nodes: The most nodes; None: 32 for two objectives, else 66.
            margin: See `Mesh`.

        Examples:
            >>> eq.pareto.Mesh.of(3, nodes=20, margin=0.1).divisions  # 15 nodes; 5 divisions would have 21
            4
        """
        require(m >= 2, "objectives must be at least 2", m)
        most = NODES.get(m, NODES[3]) if nodes is None else whole("nodes", nodes)
        fewest = m if nodes is not None else 1
        require(most >= fewest, f"nodes must be at least {m}, one for each corner of the preferences", most)
        divisions = 1
        while math.comb(divisions + m, m - 1) <= most:
            divisions += 1
        return cls(m, divisions, margin)

    @property
    def size(self) -> int:
        """K, the number of nodes."""
        return math.comb(self.divisions + self.m - 1, self.m - 1)

    @cached_property
    def nodes(self) -> Tensor:
        """The preferences w_k, (K, m), float64, in lexicographic order."""
        return preferences.grid(self.divisions, self.m, self.margin)

    @cached_property
    def _counts(self) -> Tensor:
        """Points of a grid with R divisions and q + 1 parts, C(R + q, q), by R and q."""
        rows = [[math.comb(r + q, q) for q in range(self.m)] for r in range(self.divisions + 1)]
        return torch.tensor(rows)

    def interpolate(self, preference: Tensor) -> Tensor:
        """The barycentric coordinates a(w): the share of each node in a preference.

        Args:
            preference: w in the simplex, (n, m).

        Returns:
            Shape (n, K): non-negative, rows that sum to 1, with the dtype and device of the preference.
        """
        w = preference.detach().to("cpu", torch.float64)
        inside = ((w - self.margin) / (1.0 - self.m * self.margin)).clamp_min(0.0)
        # Cumulative sums are ordered, and Freudenthal's triangulation of the cube has ordered corners for such points.
        total = inside.cumsum(-1)
        place = self.divisions * (total / total[..., -1:])[..., :-1]
        corner = place.floor().clamp(0, self.divisions - 1)
        rest, order = (place - corner).clamp(0.0, 1.0).sort(-1, descending=True)
        edge = torch.ones_like(rest[..., :1])
        share = -torch.cat([edge, rest, 0.0 * edge], -1).diff(dim=-1)
        # The corners of the piece: start at the lower one and raise one coordinate after the other.
        up = torch.nn.functional.one_hot(order, self.m - 1).cumsum(-2)
        corners = corner.to(torch.int64).unsqueeze(-2) + torch.cat([torch.zeros_like(up[..., :1, :]), up], -2)
        found = torch.zeros(*w.shape[:-1], self.size, dtype=w.dtype)
        return found.scatter_add_(-1, self._rank(corners), share).to(preference)

    def _rank(self, cumulative: Tensor) -> Tensor:
        """The node numbers of grid points, from their cumulative sums (..., m − 1)."""
        # A corner with share 0 may lie outside: ties between coordinates are broken in any order.
        ordered = cumulative.cummax(-1).values.clamp(0, self.divisions)
        left = self.divisions - torch.cat([torch.zeros_like(ordered[..., :1]), ordered], -1)
        parts = torch.arange(self.m - 1, 0, -1)
        return (self._counts[left[..., :-1], parts] - self._counts[left[..., 1:], parts]).sum(-1)


class NodeState(NamedTuple):
    """The state of the dual player at every node.

    Examples:
        >>> state = eq.pareto.NodeDuals(eq.SelfTuned(), nodes=2).init(torch.ones(4))
        >>> state.dual.tolist(), tuple(state.inner.dual.shape)
        ([0.25, 0.25, 0.25, 0.25], (2, 2))
    """

    dual: Tensor
    """λ of all nodes, concatenated and divided by K, so that the sum is 1, (K·m,)."""
    inner: Any
    """The state of the inner weighting, with batch shape (K,)."""


@dataclass(frozen=True)
class NodeDuals(Weighting[NodeState]):
    """A weighting with a separate state at each of K nodes, as one weighting of K·m objectives.

    Its losses are the gains w_i (f_i − z_i) at the nodes, averaged by `node_means`, node after node. A node is absent
    in a step, and keeps its state, if none of the step's preferences is close to it.

    Attributes:
        inner: How the gains of a node move its λ: a weighting with coefficients λ∘w that are known before the losses,
            such as `SelfTuned()` or `OMD()`, with the ideal point 0.
        nodes: K.

    Examples:
        >>> weighting = eq.pareto.NodeDuals(eq.OMD(step_size=0.5, mirror=eq.Entropic()), nodes=2)
        >>> gains = torch.tensor([3.0, 1.0, 1.0, 1.0])  # of the first node, then of the second
        >>> state = weighting.init(gains)
        >>> _, state = weighting.update(gains, state, torch.full((4,), 0.25))
        >>> [[round(x, 3) for x in row] for row in weighting.at_nodes(state).tolist()]  # the first has moved
        [[0.731, 0.269], [0.5, 0.5]]
    """

    inner: Weighting[Any]
    nodes: int

    def __post_init__(self) -> None:
        require(self.nodes >= 1, "nodes must be at least 1", self.nodes)
        example = torch.ones(self.nodes, 2)
        ahead = not self.inner.needs and self.inner.uses_duals
        if ahead:
            state = self.inner.init(example)
            ahead = self.inner.foreseen(state, example / 2) is not None and duals(self.inner, state) is not None
        rule = "method must have λ that is known before the losses of a step, such as SelfTuned() or OMD()"
        require(ahead, rule, lambda: self.inner)
        origin = self.inner.origin
        plain = isinstance(origin, int | float) and origin == 0
        require(plain, "method must have the ideal point 0; give ideal= to ParetoSet instead", lambda: origin)

    def init(self, losses: Tensor, **extra: Tensor) -> NodeState:  # noqa: ARG002
        """The initial λ of the inner weighting, at every node."""
        return self._state(self.inner.init(self._by_node(losses)))

    def step(self, seen: Seen, state: NodeState) -> tuple[Tensor, NodeState]:
        """The coefficients m λ, (K·m,), and the state with the next λ."""
        gains = self._by_node(seen.losses)
        m = gains.shape[-1]
        mask = None if seen.present is None else self._by_node(seen.present)
        # The inner weighting sees the preference 1/m and m times our gains: the factors cancel.
        w = torch.full_like(gains[0], 1.0 / m)
        inner = self.inner.update(gains * m, state.inner, w, mask=mask)[1]
        return self._coefficients(state), self._state(inner)

    def foreseen(self, state: NodeState, preference: Tensor) -> Tensor:  # noqa: ARG002
        """The coefficients m λ of every node, (K·m,): uniform λ gives the weighted sum."""
        return self._coefficients(state)

    def weights(self, state: NodeState) -> Tensor:
        """λ of all nodes, divided by K, (K·m,)."""
        return state.dual

    def at_nodes(self, state: NodeState) -> Tensor:
        """λ of each node, (K, m)."""
        return self._by_node(state.dual) * self.nodes

    def _coefficients(self, state: NodeState) -> Tensor:
        found = self.inner.foreseen(state.inner, torch.ones(1))
        assert found is not None  # noqa: S101
        return found.flatten() * found.shape[-1]

    def _state(self, inner: Any) -> NodeState:  # noqa: ANN401
        found = duals(self.inner, inner)
        assert found is not None  # noqa: S101
        return NodeState(found.flatten() / self.nodes, inner)

    def _by_node(self, values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:-1], self.nodes, -1)


def node_means(shares: Tensor, gains: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gain of every node: the mean over the rows of a step, weighted by each row's share of the node.

    It averages the gains w_i (f_i − z_i), not the losses: within a cell w varies too, and λ must equalise the weighted
    losses at the preferences that were drawn.

    Args:
        shares: a(w) from `Mesh.interpolate`, (n, K).
        gains: w∘(f − z), differentiable, (n, m).
        counts: The weight of each loss of a row, 0 where it is absent, (n, m); None: 1.

    Returns:
        The means (K, m), differentiable, 0 where a node has no row; their weights (K, m).

    Examples:
        >>> shares, gains = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[1.0, 2.0], [4.0, 2.0]])
        >>> means, mass = eq.pareto.node_means(shares, gains)
        >>> means.tolist(), mass.tolist()  # (1·1 + ½·4)/1.5 and (½·4)/½
        ([[2.0, 2.0], [4.0, 2.0]], [[1.5, 1.5], [0.5, 0.5]])
    """
    if counts is None:
        mass = shares.sum(0).unsqueeze(-1).expand(-1, gains.shape[-1])
        total = shares.mT @ gains
    else:
        mass = shares.mT @ counts
        total = shares.mT @ torch.where(counts > 0, gains * counts, 0.0)
    return total / torch.where(mass > 0, mass, 1.0), mass
