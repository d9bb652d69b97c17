"""Each rank's slab of ``graph.h5``, read in chunks of bounded size, and the symmetric graph that partitioners take.

A slab is a range of original node ids with their in-edges. No rank reads, or holds, more than its slab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import World, together
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import loops

CHUNK_EDGES = 1 << 21
CHUNK_NODES = 1 << 20
Advance = Callable[[int], None]


@dataclass(frozen=True)
class EdgeChunk:
    """In-edges of nodes ``[first, last)``: ``indptr`` (n+1) int64 not rebased to 0, ``sources`` (m,) int64."""

    first: int
    last: int
    indptr: np.ndarray
    sources: np.ndarray

    def destinations(self) -> np.ndarray:
        """The destination of each edge, (m,) int64."""
        return np.repeat(np.arange(self.first, self.last, dtype=np.int64), np.diff(self.indptr))


def edge_chunks(reader: SlabReader, first: int, last: int) -> Iterator[EdgeChunk]:
    """The in-edges of nodes ``[first, last)``, about ``CHUNK_EDGES`` at a time (a row is never split)."""
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
    """The same number of chunks on every rank, empty ones where a rank has no more; reading errors are agreed. Collective."""
    nothing = EdgeChunk(0, 0, np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    while True:
        with together(world, doing):
            chunk = next(chunks, None)
        if not world.allreduce(np.array([chunk is not None], dtype=np.int64), "max")[0]:
            return
        yield nothing if chunk is None else chunk


@dataclass(frozen=True)
class Slab:
    """Nodes ``[first, last)`` of this rank; ``bounds`` (size+1) int64 holds every rank's, ``indptr`` is not rebased to 0."""

    bounds: np.ndarray
    first: int
    last: int
    indptr: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Nodes of this slab."""
        return self.last - self.first

    @classmethod
    def of(cls, world: World, reader: SlabReader) -> Slab:
        """This rank's slab: about an equal share of nodes plus in-edges, and a node at least if there are enough. Collective."""
        with together(world, "read the graph"):
            bounds = _balanced_bounds(reader, world.size)
            first, last = int(bounds[world.rank]), int(bounds[world.rank + 1])
            indptr = reader.indptr(first, last)
        return cls(bounds, first, last, indptr)

    def owners(self, nodes: np.ndarray) -> np.ndarray:
        """The rank whose slab holds each node."""
        return np.searchsorted(self.bounds, nodes, side="right") - 1


def _balanced_bounds(reader: SlabReader, size: int) -> np.ndarray:
    """First node of each slab, found by bisecting ``indptr`` in the file."""
    nodes, edges = reader.meta.num_nodes, reader.meta.num_edges
    bounds = np.zeros(size + 1, dtype=np.int64)
    for rank in range(1, size):
        low, high, wanted = int(bounds[rank - 1]), nodes, (nodes + edges) * rank // size
        while low < high:
            middle = (low + high) // 2
            if int(reader.read("edges/indptr", middle, middle + 1)[0]) + middle < wanted:
                low = middle + 1
            else:
                high = middle
        bounds[rank] = low
    if nodes < size:
        return np.minimum(np.arange(size + 1), nodes)
    for rank in range(1, size):
        bounds[rank] = min(max(bounds[rank], bounds[rank - 1] + 1), nodes - (size - rank))
    bounds[size] = nodes
    return bounds


class Directory:
    """One int64 value for every node, held by the rank whose slab it is in."""

    def __init__(self, world: World, slab: Slab, values: np.ndarray) -> None:
        self._world, self._slab, self._values = world, slab, values

    def lookup(self, nodes: np.ndarray) -> np.ndarray:
        """The values of ``nodes`` (m,), wherever they are held. Collective; ``m`` may differ between ranks."""
        if self._world.size == 1:
            return self._values[nodes]
        wanted, inverse = np.unique(nodes, return_inverse=True)
        asked, counts = self._world.alltoallv(wanted, np.diff(np.searchsorted(wanted, self._slab.bounds)))
        answers, _ = self._world.alltoallv(self._values[asked - self._slab.first], counts)
        return answers[inverse]


def symmetric_neighbours(
    world: World, reader: SlabReader, slab: Slab, dtype: np.dtype, advance: Advance
) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows of the graph joined with its transpose, without self-loops and duplicates. Collective.

    Returns ``indptr`` (n+1) int64 from 0 and sorted global ``indices`` of ``dtype``. The edges are read twice, first to
    count and then to fill, so that nothing but the result and one chunk is in memory. ``advance`` counts nodes, twice.
    """
    degrees = np.zeros(slab.num_nodes, dtype=np.int64)
    for chunk, rows, _ in _both_directions(world, reader, slab):
        degrees += np.bincount(rows, minlength=slab.num_nodes)
        advance(chunk.last - chunk.first)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.empty(int(indptr[-1]), dtype=dtype)
    cursor = indptr[:-1].copy()
    for chunk, rows, columns in _both_directions(world, reader, slab):
        loops.place(rows, columns, cursor, indices)
        advance(chunk.last - chunk.first)
    loops.sort_unique_rows(indptr, indices)
    indices.resize(int(indptr[-1]), refcheck=False)  # gives the rest back to the system
    return indptr, indices


def _both_directions(
    world: World, reader: SlabReader, slab: Slab
) -> Iterator[tuple[EdgeChunk, np.ndarray, np.ndarray]]:
    """``(chunk, rows from 0, global columns)`` of both directions of every edge with an end in this slab. Collective."""
    for chunk in in_step(world, edge_chunks(reader, slab.first, slab.last), "read the edges"):
        destinations = chunk.destinations()
        straight = chunk.sources != destinations
        pairs = np.stack([chunk.sources[straight], destinations[straight]], axis=1)
        yield chunk, pairs[:, 1] - slab.first, pairs[:, 0]
        if world.size > 1:
            owners = slab.owners(pairs[:, 0])
            pairs, _ = world.alltoallv(
                pairs[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=world.size)
            )
        yield _no_nodes(chunk), pairs[:, 0] - slab.first, pairs[:, 1]


def _no_nodes(chunk: EdgeChunk) -> EdgeChunk:
    """An empty chunk: what arrives from other ranks is not this rank's progress."""
    return EdgeChunk(chunk.last, chunk.last, chunk.indptr[-1:], chunk.sources[:0])
