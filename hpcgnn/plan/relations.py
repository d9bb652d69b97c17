"""The rows of the sums of a graph with types of edges (relations).

Without types, the sums z of ``z = L x + R · exchange(S x)`` have a row for each owned node. With types, they have a row for each
*pair* of a relation and a node at which an edge of this relation ends on this rank. Pairs are ordered by (relation, node), so the
rows of a relation are contiguous, and a layer multiplies them by the relation's weights. Only the rows of L and R differ: a
source that is in the vertex cover (:mod:`hpcgnn.plan.build`) serves the pairs of all relations, and a partial sum belongs to one
pair. So a plan of all relations together sends at most as many rows as a plan of each relation by itself, and often fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.plan.plan import offsets_of

BY_TYPE = "-by-type"  # ends the name of a plan with such rows, after that of its strategy


@dataclass(frozen=True)
class ResultRows:
    """The rows of z on one rank, which has e in-edges. of_edge: (e,) integers, the row to which each edge is added. count: number
    of rows."""

    of_edge: np.ndarray
    count: int


@dataclass(frozen=True)
class RelationRows:
    """The p pairs of one rank. rows: the pair of each edge. node: (p,) int64 local id of each pair's node, in the file's order.
    offsets: (R + 1,) int64 first pair of each of the R relations. edges: (p,) int64 number of edges of each pair."""

    rows: ResultRows
    node: np.ndarray
    offsets: np.ndarray
    edges: np.ndarray

    @property
    def relation(self) -> np.ndarray:
        """(p,) int64 relation of each pair."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))

    @classmethod
    def of(cls, types: np.ndarray, destinations: np.ndarray, num_nodes: int, num_types: int) -> RelationRows:
        """The pairs of edges with these types and destinations, (e,) each, numbers below ``num_types`` and ``num_nodes``. Takes
        O(e log e) time."""
        keys, of_edge, edges = np.unique(
            types.astype(np.int64) * num_nodes + destinations, return_inverse=True, return_counts=True
        )
        relation, node = np.divmod(keys, max(num_nodes, 1))
        offsets = offsets_of(np.bincount(relation, minlength=num_types))
        return cls(ResultRows(of_edge, keys.size), node, offsets, edges)
