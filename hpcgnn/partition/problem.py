"""The input of a partitioning method: a graph in slabs, the options, and the quantities that its parts are to share evenly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.slabs import Advance, Slab, symmetric_neighbours
from hpcgnn.world import World, raise_on_all_ranks

# The largest load of a part, divided by the mean.
TOLERANCE = 1.05
_COMBINED_UNITS_PER_NODE = 1000
_COMBINED_TOTAL = 1 << 30


@dataclass(frozen=True)
class Balance:
    """The C quantities to balance.

    names: of the quantities. totals: (C,) int64 their sums over the graph. notes: sentences about quantities that are left out.

    A node's ``edges`` are its in-edges plus one, for the work on its own row. With in-degrees alone, nodes without in-edges
    would have no weight, and could all be in one part.
    """

    names: tuple[str, ...]
    totals: np.ndarray
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, world: World, reader: SlabReader, slab: Slab, wanted: tuple[str, ...]) -> Balance:
        """The quantities among ``wanted`` that the graph has, or nodes if it has none of them. Collective."""
        with raise_on_all_ranks(world, "read the graph"):
            weights = _weights(reader, wanted, slab.first, slab.indptr)
        totals = world.allreduce(weights.sum(axis=0, dtype=np.int64))
        lacking = [name for name, total in zip(wanted, totals, strict=True) if not total]
        notes = tuple(f"{name} were not balanced, because the graph has none" for name in lacking)
        if len(lacking) == len(wanted):
            return cls(("nodes",), np.array([reader.meta.num_nodes]), notes)
        return cls(tuple(name for name in wanted if name not in lacking), totals[totals > 0], notes)

    def weights(self, reader: SlabReader, first: int, indptr: np.ndarray) -> np.ndarray:
        """(n, C) int64 quantities of the n nodes from ``first`` on. indptr: (n+1,) int64 offsets of their in-edges."""
        return _weights(reader, self.names, first, indptr)

    def combined(self, weights: np.ndarray, num_nodes: int) -> np.ndarray:
        """(n, 1) int64: one weight for each node from ``weights`` (n, C), in which every quantity has the same total, for
        partitioners that take one weight a node. They balance the sum of the quantities, not each of them."""
        units = min(_COMBINED_UNITS_PER_NODE, _COMBINED_TOTAL // max(num_nodes, 1) + 1)
        shares = (weights / self.totals).mean(axis=1, keepdims=True) * num_nodes
        return np.maximum(np.rint(shares * units), 1).astype(np.int64)

    def one_of(self, weights: np.ndarray, num_nodes: int) -> np.ndarray:
        """(n,) int64, at least 1: from ``weights`` (n, C) the in-edges, else the nodes, else the training nodes. From parts
        with equal sums of several quantities, it would cost many cut edges to balance each of these; from one balanced
        quantity, it costs few."""
        if self.names == ("train",):  # most nodes are not in training, and no weight may be 0
            return self.combined(weights, num_nodes)[:, 0]
        return weights[:, self.names.index("edges" if "edges" in self.names else "nodes")]


def _weights(reader: SlabReader, names: tuple[str, ...], first: int, indptr: np.ndarray) -> np.ndarray:
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


@dataclass(frozen=True)
class Problem:
    """The input of a method: this rank's ``slab`` of the graph of ``reader``, and the options. Temporary files are in
    ``folder``, or in the system's folder for them if it is None."""

    world: World
    reader: SlabReader
    slab: Slab
    balance: Balance
    options: PartitionOptions
    advance: Advance
    folder: Path | None = None

    def largest_count(self) -> int:
        """The largest number that a partitioner's integers must hold; both directions of an edge are stored."""
        meta = self.reader.meta
        return max(meta.num_nodes, meta.num_edges * (2 if meta.directed else 1), int(self.balance.totals.max()))

    def neighbours(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """This rank's rows of the symmetric graph, as (indptr, indices) of ``dtype``. Collective."""
        return symmetric_neighbours(self.world, self.reader, self.slab, dtype, self.advance)

    def weights(self) -> np.ndarray:
        """(n, C) int64 quantities of this rank's nodes that are to be balanced. Collective."""
        with raise_on_all_ranks(self.world, "read the graph"):
            return self.balance.weights(self.reader, self.slab.first, self.slab.indptr)

    def all_weights(self) -> np.ndarray:
        """(N, C) int64: :meth:`weights` of all nodes. Not collective."""
        return self.balance.weights(self.reader, 0, self.reader.indptr(0, self.reader.meta.num_nodes))
