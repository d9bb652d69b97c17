"""The quantities that a partition balances: in-edges, training nodes, nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.slabs import Slab
from hpcgnn.world import World, raise_on_all_ranks

_COMBINED_UNITS_PER_NODE = 1000
_COMBINED_TOTAL = 1 << 30


@dataclass(frozen=True)
class Balance:
    """The C quantities to balance.

    names: of the quantities. totals: (C,) int64 their sums over the graph. notes: sentences about quantities that are left out.

    A node's ``edges`` are its in-edges plus one, for the work on its own row. With in-degrees alone, nodes without in-edges would
    have no weight, and could all be in one part.
    """

    names: tuple[str, ...]
    totals: np.ndarray
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, world: World, reader: SlabReader, slab: Slab, wanted: tuple[str, ...]) -> Balance:
        """The quantities among ``wanted`` that the graph has, or nodes if it has none of them. Collective."""
        with raise_on_all_ranks(world, "read the graph"):
            weights = node_weights(reader, wanted, slab.first, slab.indptr)
        totals = world.allreduce(weights.sum(axis=0, dtype=np.int64))
        notes = [
            f"{name} were not balanced, because the graph has none"
            for name, total in zip(wanted, totals, strict=True)
            if not total
        ]
        kept = [c for c in range(len(wanted)) if totals[c]]
        if not kept:
            return cls(("nodes",), np.array([reader.meta.num_nodes]), tuple(notes))
        return cls(tuple(wanted[c] for c in kept), totals[kept], tuple(notes))

    def weights(self, reader: SlabReader, first: int, indptr: np.ndarray) -> np.ndarray:
        """(n, C) int64 quantities of the n nodes from ``first`` on. indptr: (n+1,) int64 offsets of their in-edges."""
        return node_weights(reader, self.names, first, indptr)

    def first_of(self, *names: str) -> Balance:
        """A balance of one quantity: the first of ``names`` that is among those to balance."""
        column = next(self.names.index(name) for name in names if name in self.names)
        return Balance((self.names[column],), self.totals[column : column + 1], self.notes)

    def combined(self, weights: np.ndarray, num_nodes: int) -> np.ndarray:
        """(n, 1) int64: one weight for each node from ``weights`` (n, C), in which every quantity has the same total.

        It is for partitioners that take one weight a node. They balance the sum of the quantities, not each of them.
        """
        units = min(_COMBINED_UNITS_PER_NODE, _COMBINED_TOTAL // max(num_nodes, 1) + 1)
        shares = (weights / self.totals).mean(axis=1, keepdims=True) * num_nodes
        return np.maximum(np.rint(shares * units), 1).astype(np.int64)


def node_weights(reader: SlabReader, names: tuple[str, ...], first: int, indptr: np.ndarray) -> np.ndarray:
    """(n, len(names)) int64 quantities of the n nodes from ``first`` on. indptr: (n+1,) int64 offsets of their in-edges."""
    count = indptr.size - 1
    columns = []
    for name in names:
        if name == "edges":
            columns.append(np.diff(indptr) + 1)
        elif name == "train":
            mask = reader.mask("train_mask", first, first + count)
            columns.append(np.zeros(count, dtype=np.int64) if mask is None else mask.astype(np.int64))
        else:
            columns.append(np.ones(count, dtype=np.int64))
    return np.stack(columns, axis=1)
