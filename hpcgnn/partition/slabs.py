"""Each rank's slab of ``graph.h5``, read in chunks of bounded size, and the symmetric graph for partitioners.

A slab is a range of original node ids with their in-edges. No rank reads or holds more than its slab.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.world import World, raise_on_all_ranks

CHUNK_EDGES = 1 << 21
CHUNK_NODES = 1 << 20
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
            sources = reader.sources(int(indptr[begin]), int(indptr[end]))
            yield EdgeChunk(block + begin, block + end, indptr[begin : end + 1], sources)
            begin = end


def in_step(world: World, chunks: Iterator[EdgeChunk], doing: str) -> Iterator[EdgeChunk]:
    """The same number of chunks on every rank, with empty chunks on ranks that have no more; errors of reading are raised on
    all ranks. Collective."""
    nothing = EdgeChunk(0, 0, np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    while True:
        with raise_on_all_ranks(world, doing):
            chunk = next(chunks, None)
        if not world.allreduce(np.array([chunk is not None], dtype=np.int64), "max")[0]:
            return
        yield nothing if chunk is None else chunk


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
    bounds = np.zeros(size + 1, dtype=np.int64)

    def edges_and_nodes_before(node: int) -> int:
        return int(reader.read("edges/indptr", node, node + 1)[0]) + node

    for rank in range(1, size):
        wanted = (nodes + edges) * rank // size
        bounds[rank] = bisect.bisect_left(range(nodes), wanted, int(bounds[rank - 1]), key=edges_and_nodes_before)
    if nodes < size:
        return np.minimum(np.arange(size + 1), nodes)
    for rank in range(1, size):
        bounds[rank] = min(max(bounds[rank], bounds[rank - 1] + 1), nodes - (size - rank))
    bounds[size] = nodes
    return bounds


def looked_up(world: World, slab: Slab, values: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """From ``values`` (n,) of each rank's slab, those of ``nodes`` (m,), whichever ranks hold them. Collective; ``m`` may
    differ between ranks."""
    if world.size == 1:
        return values[nodes]
    wanted, inverse = np.unique(nodes, return_inverse=True)
    asked, counts = world.alltoallv(wanted, np.diff(np.searchsorted(wanted, slab.bounds)))
    answers, _ = world.alltoallv(values[asked - slab.first], counts)
    return answers[inverse]


def symmetric_neighbours(
    world: World, reader: SlabReader, slab: Slab, dtype: np.dtype, advance: Advance
) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows of the union of the graph and its transpose, without self-loops and parallel edges: ``indptr`` (n+1)
    int64 from 0, and sorted global ``indices`` of ``dtype``. Collective. The edges are read twice, so that only the result
    and one chunk are in memory. ``advance`` counts each node twice."""
    degrees = np.zeros(slab.num_nodes, dtype=np.int64)
    for nodes, rows, _ in _both_directions(world, reader, slab):
        degrees += np.bincount(rows, minlength=slab.num_nodes)
        advance(nodes)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.empty(int(indptr[-1]), dtype=dtype)
    cursor = indptr[:-1].copy()
    for nodes, rows, columns in _both_directions(world, reader, slab):
        place(rows, columns, cursor, indices)
        advance(nodes)
    sort_unique_rows(indptr, indices)
    indices.resize(int(indptr[-1]), refcheck=False)  # returns the remaining memory to the system
    return indptr, indices


def _both_directions(world: World, reader: SlabReader, slab: Slab) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """``(nodes read, rows from 0, global columns)`` of both directions of every edge with an end in this slab. Collective."""
    for chunk in in_step(world, edge_chunks(reader, slab.first, slab.last), "read the edges"):
        pairs = np.stack(chunk.ends(), axis=1)
        yield chunk.last - chunk.first, pairs[:, 1] - slab.first, pairs[:, 0]
        if world.size > 1:
            owners = np.searchsorted(slab.bounds, pairs[:, 0], side="right") - 1
            order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=world.size)
            pairs, _ = world.alltoallv(pairs[order], counts)
        yield 0, pairs[:, 0] - slab.first, pairs[:, 1]


@njit(cache=True)
def place(rows: np.ndarray, columns: np.ndarray, cursor: np.ndarray, indices: np.ndarray) -> None:
    """Store ``columns[i]`` at ``indices[cursor[rows[i]]]`` for all m entries, and advance that row's cursor each time. Modifies
    ``cursor`` and ``indices``."""
    for i in range(rows.size):
        row = rows[i]
        indices[cursor[row]] = columns[i]
        cursor[row] += 1


@njit(cache=True)
def sort_unique_rows(indptr: np.ndarray, indices: np.ndarray) -> None:
    """Sort each CSR row, remove its duplicates and close the gaps. Modifies both arrays; the result ends at ``indptr[-1]``."""
    written = 0
    begin = indptr[0]
    for row in range(indptr.size - 1):
        end = indptr[row + 1]
        indices[begin:end].sort()
        first_written = written
        for i in range(begin, end):
            if written == first_written or indices[i] != indices[written - 1]:
                indices[written] = indices[i]
                written += 1
        begin = end
        indptr[row + 1] = written


@njit(cache=True, nogil=True)
def add_up(index: np.ndarray, amounts: np.ndarray, sums: np.ndarray) -> None:
    """Add each row of ``amounts`` (n, C) to the row of ``sums`` that ``index`` (n,) names."""
    for row in range(amounts.shape[0]):
        for c in range(amounts.shape[1]):
            sums[index[row], c] += amounts[row, c]
