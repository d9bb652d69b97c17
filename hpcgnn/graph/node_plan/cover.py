"""The choice of the edges between nodes that are aggregated before rows travel, and after: SuperGCN's choice (§3.3.1), made for
nodes in place of ranks.

The edges from one node's ranks to another node's ranks form a bipartite graph of sources and destinations. A minimum vertex
cover is the smallest set of rows that serves them. A source in the cover travels once, for all ranks of the other node (*post*).
The edges of a destination in the cover are summed on the sending node, whichever ranks own their sources, and the sum travels
once (*pre*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.plan.cover import sources_in_cover
from hpcgnn.world.placement import Carriers, Placement


class NodeEdges(NamedTuple):
    """Edges that end on one node and begin on others. sources, destinations: (m,) int64 positions. senders: (m,) int64 nodes
    on which the edges begin."""

    sources: np.ndarray
    destinations: np.ndarray
    senders: np.ndarray


@dataclass(frozen=True)
class RowsOfNodes:
    """The rows that carry edges to one node.

    is_post: (m,) bool, whether each edge is aggregated after it has travelled. row: (m,) int64 the row that carries each edge.
    Rows are ordered by sending node, *post* before *pre*, then by source or destination. senders: (rows,) int64 sending nodes;
    posts: (rows,) bool, whether a row is a *post* row; ids: (rows,) int64 position of the source of a *post* row, or of the
    destination of a *pre* row.
    """

    is_post: np.ndarray
    row: np.ndarray
    senders: np.ndarray
    posts: np.ndarray
    ids: np.ndarray

    def carriers(self, placement: Placement, node: int) -> Carriers:
        """The sending and receiving rank of each row to ``node``, and the row's index among those from one to the other."""
        begins = np.searchsorted(self.senders, np.arange(placement.num_nodes + 1))
        number = np.arange(self.senders.size) - begins[self.senders]
        there = np.full(self.senders.size, node, np.int64)
        return placement.carriers(self.senders, there, number, np.diff(begins)[self.senders])


def rows_between(edges: NodeEdges, strategy: str, num_nodes: int) -> RowsOfNodes:
    """Choose the rows that carry ``edges`` by ``pre``, ``post`` or ``hybrid``, the last with one matching for all senders.

    num_nodes: nodes of the graph. Time O(edges log edges) plus the matching, memory O(edges).
    """
    is_post = _post_edges(edges, strategy, num_nodes)
    ids = np.where(is_post, edges.sources, edges.destinations)
    keys, row = np.unique((edges.senders * 2 + ~is_post) * max(num_nodes, 1) + ids, return_inverse=True)
    kinds, of_row = np.divmod(keys, max(num_nodes, 1))
    return RowsOfNodes(is_post, row, kinds // 2, kinds % 2 == 0, of_row)


def count_rows(edges: NodeEdges, strategy: str, num_nodes: int) -> int:
    """The number of rows that carry ``edges``."""
    return rows_between(edges, strategy, num_nodes).ids.size


def _post_edges(edges: NodeEdges, strategy: str, num_nodes: int) -> np.ndarray:
    if strategy != "hybrid":
        return np.full(edges.sources.size, strategy == "post")
    sources, left = np.unique(edges.sources, return_inverse=True)
    pairs, right = np.unique(edges.senders * max(num_nodes, 1) + edges.destinations, return_inverse=True)
    return sources_in_cover(left, right, (sources.size, pairs.size))[left]
