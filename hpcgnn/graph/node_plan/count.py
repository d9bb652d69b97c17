"""Numbers of rows that would travel between nodes, counted from a parts file by one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.data.parts_file import PartsFile
from hpcgnn.graph.node_plan.cover import NodeEdges, count_rows
from hpcgnn.world.placement import Placement


@dataclass(frozen=True)
class NodeRows:
    """Numbers of rows of one aggregation in one direction.

    between: from node to node, where the ranks of a node share them. within: from rank to rank of one node. between_ranks: from
    node to node, where each pair of ranks exchanges its own messages.
    """

    between: int
    within: int
    between_ranks: int

    def as_dict(self, bytes_per_row: int) -> dict[str, int]:
        """Numbers of rows and bytes, by their names in the JSON of ``hpcgnn plan``."""
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
    """Number of rows from node to node with this placement, where each rank has one part.

    ``advance`` is called with the number of parts done. Memory is O(edges that end on a node).
    """
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
    """Sum (pairs,) rows between pairs of ranks: those within nodes, and those between nodes."""
    within = placement.node_of[sender] == placement.node_of[receiver]
    return int(rows[within].sum()), int(rows[~within].sum())


def _cut_edges(parts: PartsFile, rank: int, placement: Placement, node: int) -> NodeEdges:
    """The edges that end in one part of ``node`` and begin on other nodes."""
    first, last = parts.part(rank)
    indptr, sources = parts.edges(first, last, rank)
    senders = placement.node_of[np.searchsorted(parts.node_offsets, sources, side="right") - 1]
    away = senders != node
    destinations = np.repeat(np.arange(first, last), np.diff(indptr))
    return NodeEdges(sources[away], destinations[away], senders[away])
