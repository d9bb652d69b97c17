"""How many rows travel between nodes, from a parts file and without ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.placement import Placement
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.node_plan.cover import NodeEdges, count_rows


@dataclass(frozen=True)
class NodeRows:
    """Rows of one aggregation in one direction. between: from node to node, where ranks share them. within: from rank to
    rank of a node. between_ranks: from node to node where each pair of ranks has messages of its own."""

    between: int
    within: int
    between_ranks: int

    def as_dict(self, bytes_per_row: int) -> dict[str, int]:
        """Rows and bytes."""
        return {
            "rows_between_nodes": self.between,
            "rows_within_nodes": self.within,
            "rows_between_nodes_by_pairs_of_ranks": self.between_ranks,
            "bytes_between_nodes": self.between * bytes_per_row,
            "bytes_within_nodes": self.within * bytes_per_row,
        }


def count_between(
    parts: PartsFile, strategy: str, placement: Placement, advance: Callable[[int], object] = lambda _: None
) -> int:
    """Rows from node to node of ranks placed like this, one part a rank. Memory O(edges of a node); ``advance`` counts parts."""
    total = 0
    for node in range(placement.num_nodes):
        total += count_rows(edges_into(parts, placement, node), strategy, int(parts.node_offsets[-1]))
        advance(placement.ranks_of(node).size)
    return total


def edges_into(parts: PartsFile, placement: Placement, node: int) -> NodeEdges:
    """The edges that end in the parts of a node and begin on other nodes."""
    cut = [_cut_edges(parts, int(rank), placement, node) for rank in placement.ranks_of(node)]
    return NodeEdges(*(np.concatenate(arrays) for arrays in zip(*cut, strict=True)))


def count_pairs(sender: np.ndarray, receiver: np.ndarray, rows: np.ndarray, placement: Placement) -> tuple[int, int]:
    """Of (pairs,) rows between ranks, those within nodes and those between them."""
    within = placement.node_of[sender] == placement.node_of[receiver]
    return int(rows[within].sum()), int(rows[~within].sum())


def _cut_edges(parts: PartsFile, rank: int, placement: Placement, node: int) -> NodeEdges:
    """The edges that end in a part and begin on other nodes."""
    first, last = parts.part(rank)
    indptr, sources = parts.edges(first, last, rank)
    senders = placement.node_of[np.searchsorted(parts.node_offsets, sources, side="right") - 1]
    away = senders != node
    destinations = np.repeat(np.arange(first, last), np.diff(indptr))
    return NodeEdges(sources[away], destinations[away], senders[away])
