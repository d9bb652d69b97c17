"""The input of a partitioning method: a graph in slabs, the options, and the quantities that its parts are to share evenly.

A slab is a range of original node ids with their in-edges, which a rank reads in chunks of bounded size.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.compiled import njit
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.plan.plan import offsets_of, owners_of
from hpcgnn.world import World, raise_on_all_ranks

TOLERANCE = 1.05  # the largest load of a part, divided by the mean
CHUNK_EDGES = 1 << 21
CHUNK_NODES = 1 << 20
_TYPE = "type "  # begins the name of a quantity
_FEWEST_OF_TYPE = 20  # nodes for each part, below which a type is not balanced
_OF_HUBS = 0.07
_COMBINED_UNITS_PER_NODE = 1000
_COMBINED_TOTAL = 1 << 30
Advance = Callable[[int], None]


def ignore(_: int) -> None:
    """Progress that nothing displays."""


@dataclass(frozen=True)
class EdgeChunk:
    """In-edges of the nodes ``[first, last)``. indptr: (n+1) int64, not rebased to 0. sources: (m,) int64."""

    first: int
    last: int
    indptr: np.ndarray
    sources: np.ndarray

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations of the edges that are no self-loops, (m,) int64 each."""
        destinations = self.destinations()
        straight = self.sources != destinations
        return self.sources[straight], destinations[straight]

    def destinations(self) -> np.ndarray:
        """The destination of each edge, (m,) int64."""
        return np.repeat(np.arange(self.first, self.last, dtype=np.int64), np.diff(self.indptr))


def edge_chunks(reader: SlabReader, first: int, last: int) -> Iterator[EdgeChunk]:
    """The in-edges of the nodes ``[first, last)``, about ``CHUNK_EDGES`` at a time; a row is never split."""
    for block in range(first, last, CHUNK_NODES):
        block_end = min(block + CHUNK_NODES, last)
        indptr = reader.indptr(block, block_end)
        begin = 0
        while begin < block_end - block:
            end = int(np.searchsorted(indptr, indptr[begin] + CHUNK_EDGES, side="right")) - 1
            end = min(max(end, begin + 1), block_end - block)
            sources = reader.read("edges/indices", int(indptr[begin]), int(indptr[end]))
            yield EdgeChunk(block + begin, block + end, indptr[begin : end + 1], sources)
            begin = end


def in_step(world: World, chunks: Iterator[EdgeChunk], doing: str) -> Iterator[EdgeChunk]:
    """The same number of chunks on every rank, with empty chunks on ranks that have no more; errors of reading are raised on
    all ranks. Collective."""
    nothing = EdgeChunk(0, 0, np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    while True:
        with raise_on_all_ranks(world, doing):
            chunk = next(chunks, nothing)
        if not world.allreduce(np.array([chunk is not nothing], dtype=np.int64), "max")[0]:
            return
        yield chunk


@dataclass(frozen=True)
class Slab:
    """The nodes ``[first, last)`` of this rank. bounds: (size+1) int64 first node of every rank. indptr: not rebased to 0."""

    bounds: np.ndarray
    first: int
    last: int
    indptr: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes of this slab."""
        return self.last - self.first

    def by_owner(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The order of ``nodes`` (m,) by the ranks in whose slabs they are, and their number for each rank."""
        owners = owners_of(nodes, self.bounds)
        return np.argsort(owners, kind="stable"), np.bincount(owners, minlength=self.bounds.size - 1)

    @classmethod
    def of(cls, world: World, reader: SlabReader) -> Slab:
        """This rank's slab, with about an equal share of nodes plus in-edges, and at least one node if there are enough.
        Collective."""
        with raise_on_all_ranks(world, "read the graph"):
            bounds = _balanced_bounds(reader, world.size)
            first, last = int(bounds[world.rank]), int(bounds[world.rank + 1])
            indptr = reader.indptr(first, last)
        return cls(bounds, first, last, indptr)


def _balanced_bounds(reader: SlabReader, size: int) -> np.ndarray:
    """The first node of each slab, found by bisection of ``indptr`` in the file."""
    nodes, edges = reader.meta.num_nodes, reader.meta.num_edges
    if nodes < size:
        return np.minimum(np.arange(size + 1), nodes)
    bounds = np.zeros(size + 1, dtype=np.int64)
    before = lambda node: int(reader.read("edges/indptr", node, node + 1)[0]) + node  # noqa: E731 - edges and nodes
    for rank in range(1, size):
        wanted = (nodes + edges) * rank // size
        bounds[rank] = bisect.bisect_left(range(nodes), wanted, int(bounds[rank - 1]), key=before)
    for rank in range(1, size):
        bounds[rank] = min(max(bounds[rank], bounds[rank - 1] + 1), nodes - (size - rank))
    bounds[size] = nodes
    return bounds


@njit(cache=True)
def place(rows: np.ndarray, columns: np.ndarray, cursor: np.ndarray, indices: np.ndarray) -> None:
    """Store ``columns[i]`` at ``indices[cursor[rows[i]]]`` for all m entries, and advance that row's cursor each time. Modifies
    ``cursor`` and ``indices``."""
    for i in range(rows.size):
        row = rows[i]
        indices[cursor[row]] = columns[i]
        cursor[row] += 1


@njit(cache=True, nogil=True)
def _sort(row: np.ndarray) -> None:
    """Sort by Shell's method, of which numba compiles the loops in a tenth of the time of its own ``sort``."""
    gap = 1
    while gap < row.size // 9:
        gap = 3 * gap + 1
    while gap:
        for i in range(gap, row.size):
            key, j = row[i], i
            while j >= gap and row[j - gap] > key:
                row[j] = row[j - gap]
                j -= gap
            row[j] = key
        gap //= 3


@njit(cache=True, nogil=True)
def sorted_rows(
    indptr: np.ndarray, sources: np.ndarray, order: np.ndarray, gathered: np.ndarray, out: np.ndarray
) -> None:
    """Copy the rows of a CSR matrix in ``order`` to ``out`` (nnz,), each row sorted; row k begins at ``gathered[k]`` there.
    ``indptr`` may start with any number."""
    for k in range(order.size):
        begin, end = indptr[order[k]] - indptr[0], indptr[order[k] + 1] - indptr[0]
        row = out[gathered[k] : gathered[k] + end - begin]
        for i in range(row.size):  # numba takes seconds to compile the copying of a slice
            row[i] = sources[begin + i]
        _sort(row)


@njit(cache=True)
def sort_unique_rows(indptr: np.ndarray, indices: np.ndarray) -> None:
    """Sort each CSR row, remove its duplicates and close the gaps. Modifies both arrays; the result ends at ``indptr[-1]``."""
    written = 0
    begin = indptr[0]
    for row in range(indptr.size - 1):
        end = indptr[row + 1]
        _sort(indices[begin:end])
        first_written = written
        for i in range(begin, end):
            if written == first_written or indices[i] != indices[written - 1]:
                indices[written] = indices[i]
                written += 1
        begin = end
        indptr[row + 1] = written


def simple_graph(indptr: np.ndarray, indices: np.ndarray) -> sp.csr_matrix:
    """(N, N) bool matrix of a graph, without self-loops and parallel edges."""
    nodes = indptr.size - 1
    kept = indices != np.repeat(np.arange(nodes, dtype=indices.dtype), np.diff(indptr))
    begin = offsets_of(kept)[indptr]
    graph = sp.csr_matrix((np.ones(begin[-1], dtype=bool), indices[kept], begin), shape=(nodes, nodes))
    graph.sum_duplicates()
    return graph


@njit(cache=True, nogil=True)
def add_up(index: np.ndarray, amounts: np.ndarray, sums: np.ndarray) -> None:
    """Add each row of ``amounts`` (n, C) to the row of ``sums`` that ``index`` (n,) names."""
    for row in range(amounts.shape[0]):
        for c in range(amounts.shape[1]):
            sums[index[row], c] += amounts[row, c]


@dataclass(frozen=True)
class Balance:
    """The C quantities to balance. totals: (C,) int64 their sums over the graph. notes: sentences about those that are left out.

    A node's ``edges`` are its in-edges plus one, for the work on its own row. With in-degrees alone, nodes without in-edges
    would have no weight, and could all be in one part. ``types`` stands for the nodes of each type, ``type NAME``, as far as
    the type has enough nodes to be divided, and ``auto`` for ``work`` or ``edges``. ``work`` is None where it is not balanced.
    """

    names: tuple[str, ...]
    totals: np.ndarray
    notes: tuple[str, ...] = ()
    work: NodeWork | None = None

    @classmethod
    def of(cls, world: World, reader: SlabReader, slab: Slab, options: PartitionOptions) -> Balance:
        """The quantities of the options that the graph has, or nodes if it has none of them. Collective."""
        fewest = _FEWEST_OF_TYPE * options.num_parts
        types = [f"{_TYPE}{each.name}" for each in reader.meta.node_types if each.count >= fewest]
        means = {"types": types}
        if "auto" in options.balance:
            means["auto"] = [work_or_edges(world, reader, slab, options)]
        names = (name for each in options.balance for name in means.get(each, [each]))
        wanted, work = tuple(dict.fromkeys(names)) or ("nodes",), None
        if "work" in wanted:
            work = NodeWork(slab.first, work_of_nodes(world, reader, slab, options.num_parts))
        with raise_on_all_ranks(world, "read the graph"):
            weights = _weights(reader, wanted, slab.first, slab.indptr, work)
        totals = world.allreduce(weights.sum(axis=0, dtype=np.int64))
        lacking = [name for name, total in zip(wanted, totals, strict=True) if not total]
        notes = tuple(f"{name} were not balanced, because the graph has none" for name in lacking)
        if len(lacking) == len(wanted):
            return cls(("nodes",), np.array([reader.meta.num_nodes]), notes)
        return cls(tuple(name for name in wanted if name not in lacking), totals[totals > 0], notes, work)

    def weights(self, reader: SlabReader, first: int, indptr: np.ndarray) -> np.ndarray:
        """(n, C) int64 quantities of the n nodes from ``first`` on. indptr: (n+1,) int64 offsets of their in-edges."""
        return _weights(reader, self.names, first, indptr, self.work)

    def combined(self, weights: np.ndarray, num_nodes: int) -> np.ndarray:
        """(n, 1) int64: one weight for each node from ``weights`` (n, C), in which every quantity has the same total, for
        partitioners that take one weight a node. They balance the sum of the quantities, not each of them."""
        units = min(_COMBINED_UNITS_PER_NODE, _COMBINED_TOTAL // max(num_nodes, 1) + 1)
        shares = (weights / self.totals).mean(axis=1, keepdims=True) * num_nodes
        return np.maximum(np.rint(shares * units), 1).astype(np.int64)

    def one_of(self, weights: np.ndarray, num_nodes: int) -> np.ndarray:
        """(n,) int64, at least 1: from ``weights`` (n, C) the work, else the in-edges, nodes or training nodes. From parts
        with equal sums of several quantities, it would cost many cut edges to balance each of these; from one balanced
        quantity, it costs few."""
        one = next((name for name in ("work", "edges", "nodes") if name in self.names), None)
        if one is None:  # most nodes are not in training, or of another type, and no weight may be 0
            return self.combined(weights, num_nodes)[:, 0]
        return weights[:, self.names.index(one)]


@dataclass(eq=False)
class NodeWork:
    """The :func:`work_of_nodes` (n,) uint32 of this rank's nodes, which begin at ``first``; on rank 0, after :meth:`gather`, of
    all nodes of the graph, 4 bytes each."""

    first: int
    values: np.ndarray
    is_gathered: bool = False

    def of(self, first: int, count: int) -> np.ndarray:
        """(count,) int64: the work of the nodes from ``first`` on."""
        assert self.first <= first, "these nodes are another rank's"
        return self.values[first - self.first :][:count].astype(np.int64)

    def gather(self, world: World) -> None:
        """Bring the work of all nodes to rank 0, once. Collective."""
        if world.size > 1 and not self.is_gathered:
            found = world.to_rank_0(self.values)
            self.values = found if world.rank == 0 else self.values
            self.is_gathered = True


def work_of_nodes(world: World, reader: SlabReader, slab: Slab, num_parts: int) -> np.ndarray:
    """(n,) uint32 for this rank's nodes: an estimate of each node's entries in L, S and R of the hybrid plan, plus one for its
    own row. Collective.

    An edge is work at its destination if the source's row travels, and at its source if a sum travels. The minimum vertex cover
    mostly takes the end of more edges, and a source with half as many out-edges as there are parts travels to most of them
    anyway. So hubs have little more work than the rows that they send and receive: those for d edges to parts at random. The
    edges are read twice. A rank holds about 65 bytes for each of its nodes, and the edges of all ranks' present chunks that begin
    at its nodes: of P ranks, P chunks at worst.
    """

    def to_sources(chunk: EdgeChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The chunk's edges in the order of their sources' ranks, and their number for each rank; the nodes of this rank from
        which edges of all ranks' chunks begin, and their number from each rank."""
        order, counts = slab.by_owner(chunk.sources)
        mine, came = world.alltoallv(chunk.sources[order], counts)
        return order, counts, mine - slab.first, came

    def chunks() -> Iterator[EdgeChunk]:
        return in_step(world, edge_chunks(reader, slab.first, slab.last), "read the edges")

    in_degrees, (out, work, posts, sums) = np.diff(slab.indptr), np.zeros((4, slab.num_nodes), np.int64)
    for chunk in chunks():
        np.add.at(out, to_sources(chunk)[2], 1)
    for chunk in chunks():
        order, counts, sources, came = to_sources(chunk)
        targets = (chunk.destinations() - slab.first)[order]
        degrees, _ = world.alltoallv(out[sources], came)
        is_sum = (in_degrees[targets] > degrees) & (2 * degrees < num_parts)
        sends_sum, _ = world.alltoallv(is_sum, counts)
        np.add.at(work, targets[~is_sum], 1)
        np.add.at(sums, targets[is_sum], 1)
        np.add.at(work, sources[sends_sum], 1)
        np.add.at(posts, sources[~sends_sum], 1)
    rows = sum(num_parts * (1 - (1 - 1 / num_parts) ** edges) for edges in (posts, sums))
    return np.minimum(1 + work + np.rint(rows), np.iinfo(np.uint32).max).astype(np.uint32)


def work_or_edges(world: World, reader: SlabReader, slab: Slab, options: PartitionOptions) -> str:
    """The quantity that ``auto`` stands for. Collective.

    A part has N / P nodes, and the edges of the hybrid plan bring a sum from each of P parts. So a node adds up at most
    N / P + P rows itself, if edges are not repeated, and senders add up the others. Where these are more than ``_OF_HUBS`` of
    all edges, parts with equal in-edges would have unequal work; elsewhere, in-edges tell the work better than the estimate,
    which does not know the edges within parts.
    """
    if options.method in ("block", "random"):  # which look at no edge
        return "edges"
    num_parts = options.num_parts
    most = reader.meta.num_nodes // num_parts + num_parts
    excess = np.maximum(np.diff(slab.indptr) - most, 0).sum()
    share = world.allreduce(np.array([float(excess)]))[0] / max(reader.meta.num_edges, 1)
    return "work" if share > _OF_HUBS else "edges"


def _weights(
    reader: SlabReader, names: tuple[str, ...], first: int, indptr: np.ndarray, work: NodeWork | None
) -> np.ndarray:
    count = indptr.size - 1
    columns = {"nodes": np.ones(count, dtype=np.int64), "edges": np.diff(indptr) + 1}
    if work is not None:
        columns["work"] = work.of(first, count)
    if "train" in names:
        mask = reader.mask("train_mask", first, first + count)
        columns["train"] = np.zeros(count, dtype=np.int64) if mask is None else mask.astype(np.int64)
    if any(name.startswith(_TYPE) for name in names):
        kinds = reader.meta.node_types_of(np.arange(first, first + count))  # positions in a graph file are original ids
        for number, each in enumerate(reader.meta.node_types):
            columns[f"{_TYPE}{each.name}"] = (kinds == number).astype(np.int64)
    return np.stack([columns[name] for name in names], axis=1)


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
        """This rank's rows of the union of the graph and its transpose, without self-loops and parallel edges: ``indptr`` (n+1)
        int64 from 0, and sorted global ``indices`` of ``dtype``. Collective. The edges are read twice, so that only the result
        and one chunk are in memory. ``advance`` counts each node twice."""
        degrees = np.zeros(self.slab.num_nodes, dtype=np.int64)
        for nodes, rows, _ in self._both_directions():
            degrees += np.bincount(rows, minlength=degrees.size)
            self.advance(nodes)
        indptr = offsets_of(degrees)
        indices, cursor = np.empty(int(indptr[-1]), dtype=dtype), indptr[:-1].copy()
        for nodes, rows, columns in self._both_directions():
            place(rows, columns, cursor, indices)
            self.advance(nodes)
        sort_unique_rows(indptr, indices)
        indices.resize(int(indptr[-1]), refcheck=False)  # returns the remaining memory to the system
        return indptr, indices

    def _both_directions(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """``(nodes read, rows from 0, global columns)`` of both directions of every edge with an end in this slab. Collective."""
        world, slab = self.world, self.slab
        for chunk in in_step(world, edge_chunks(self.reader, slab.first, slab.last), "read the edges"):
            pairs = np.stack(chunk.ends(), axis=1)
            yield chunk.last - chunk.first, pairs[:, 1] - slab.first, pairs[:, 0]
            if world.size > 1:
                order, counts = slab.by_owner(pairs[:, 0])
                pairs, _ = world.alltoallv(pairs[order], counts)
            yield 0, pairs[:, 0] - slab.first, pairs[:, 1]

    def weights(self) -> np.ndarray:
        """(n, C) int64 quantities of this rank's nodes that are to be balanced. Collective."""
        with raise_on_all_ranks(self.world, "read the graph"):
            return self.balance.weights(self.reader, self.slab.first, self.slab.indptr)

    def all_weights(self) -> np.ndarray:
        """(N, C) int64: :meth:`weights` of all nodes. Not collective."""
        return self.balance.weights(self.reader, 0, self.reader.indptr(0, self.reader.meta.num_nodes))

    def all_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """``(indptr (N+1,), sources (E,))`` of the in-edges of all nodes. Not collective. ``advance`` counts each node once."""
        nodes, dtype = self.reader.meta.num_nodes, np.int32 if self.reader.meta.num_nodes < 1 << 31 else np.int64
        sources = np.empty(self.reader.meta.num_edges, dtype=dtype)
        for chunk in edge_chunks(self.reader, 0, nodes):
            sources[chunk.indptr[0] : chunk.indptr[-1]] = chunk.sources
            self.advance(chunk.last - chunk.first)
        return self.reader.indptr(0, nodes), sources

    def on_rank_0(self, doing: str, assign: Callable[[], np.ndarray]) -> np.ndarray:
        """The parts (n,) of this rank's nodes, from those of all nodes that ``assign`` finds on rank 0, while the other ranks
        wait. Collective."""
        world = self.world
        if self.balance.work is not None:
            self.balance.work.gather(world)
        parts, counts = np.zeros(0, dtype=np.int32), np.zeros(world.size, dtype=np.int64)
        with raise_on_all_ranks(world, doing):
            if world.rank == 0:
                parts, counts = assign(), np.diff(self.slab.bounds)
        return world.alltoallv(parts, counts)[0]
