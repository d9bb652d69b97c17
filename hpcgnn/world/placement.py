"""The placement of ranks on nodes, and the choice of the rank that carries a row to another node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcgnn.base.errors import HpcgnnError

RANKS_PER_NODE = "HPCGNN_RANKS_PER_NODE"


def block_on_host(rank: int) -> int:
    """The number of the node, within its host, that holds the host's rank number ``rank``: 0, unless ``HPCGNN_RANKS_PER_NODE``
    divides hosts into several nodes."""
    asked = os.environ.get(RANKS_PER_NODE)
    if asked is None:
        return 0
    if not asked.isascii() or not asked.isdigit() or int(asked) < 1:
        raise HpcgnnError(f"{RANKS_PER_NODE} must be a whole number from 1 on, not {asked!r}")
    return rank // int(asked)


class Carriers(NamedTuple):
    """For each row between nodes, the rank that sends it, the rank that receives it, and its place among the rows of these two
    ranks; (rows,) int64 each."""

    sender: np.ndarray
    receiver: np.ndarray
    place: np.ndarray


@dataclass(frozen=True, eq=False)
class Placement:
    """The nodes of P ranks. node_of: (P,) int64, nodes numbered from 0."""

    node_of: np.ndarray

    @classmethod
    def of(cls, names: np.ndarray) -> Placement:
        """The placement from (P,) int64 names of nodes, such as their lowest ranks (:meth:`hpcgnn.world.world.World.hosts`)."""
        return cls(np.unique(names, return_inverse=True)[1].astype(np.int64))

    @classmethod
    def in_blocks(cls, num_ranks: int, ranks_per_node: int) -> Placement:
        """Ranks 0 to K - 1 on node 0, the next K on node 1, and so on."""
        return cls(np.arange(num_ranks, dtype=np.int64) // ranks_per_node)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.node_of.max()) + 1

    @property
    def is_shared(self) -> bool:
        """Return whether there are several nodes, and some ranks share one: fewer rows pass between nodes than between ranks."""
        return 1 < self.num_nodes < self.node_of.size

    @cached_property
    def by_node(self) -> np.ndarray:
        """(P,) int64 ranks, node after node, ascending in each node."""
        return np.argsort(self.node_of, kind="stable")

    @cached_property
    def first(self) -> np.ndarray:
        """(nodes + 1,) int64 index in :attr:`by_node` at which each node's ranks begin."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.node_of, minlength=self.num_nodes))))

    def ranks_of(self, node: int) -> np.ndarray:
        """(k,) int64 ranks of a node, ascending."""
        return self.by_node[self.first[node] : self.first[node + 1]]

    def carriers(self, sender: np.ndarray, receiver: np.ndarray, row: np.ndarray, rows: np.ndarray) -> Carriers:
        """The ranks that carry row number ``row`` of the ``rows`` from node ``sender`` to node ``receiver``; (m,) int64 each.

        The rows from one node to another are cut into runs of equal length, as many as the larger node has ranks. One rank of
        either node carries each run. So all ranks of a node send and receive equal shares, and a rank has messages for one or a
        few ranks of each other node. The assignment of runs to ranks is rotated by the numbers of the two nodes, so that short
        lists do not always begin at a node's first rank.
        """
        here, there = np.diff(self.first)[sender], np.diff(self.first)[receiver]
        runs = np.maximum(here, there)
        run = row * runs // rows
        place = row - -(-run * rows // runs)
        turned = (run + sender + receiver) % runs
        return Carriers(
            self.by_node[self.first[sender] + turned * here // runs],
            self.by_node[self.first[receiver] + turned * there // runs],
            place,
        )
