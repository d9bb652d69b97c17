"""Writing of the arrays of ``graph.h5`` in part order.

Nodes are ordered by (part, original id). So the nodes of a chunk that are in the same part stay consecutive in the new order:
each chunk of an array consists of one run for each part, and each run is one contiguous write. Rows need not pass through other
ranks, no rank holds more than a few chunks, and the file is the same for any number of ranks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.data.h5 import SlabWriter
from hpcgnn.data.schema import MASKS, NO_TASK
from hpcgnn.partition.problem import Advance, EdgeChunk, Problem, edge_chunks, in_step, sorted_rows
from hpcgnn.plan.plan import offsets_of, ranges
from hpcgnn.world import World, raise_on_all_ranks

CHUNK_BYTES = 32 << 20
_LARGEST_CHUNK_BYTES = 256 << 20
_RUN_BYTES = 64 << 10


def spread(world: World, parts: np.ndarray, amounts: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The first place of each node of this rank, (n,) int64, and the offsets of parts, (P+1,) int64, when the rows of all
    ranks' nodes are laid out by (part, node). amounts: (n,) number of rows of each node. Collective."""
    order = np.argsort(parts, kind="stable")
    before = offsets_of(amounts[order])
    part_starts = before[np.searchsorted(parts[order], np.arange(num_parts + 1))]
    mine = np.diff(part_starts)
    offsets = offsets_of(world.allreduce(mine))
    begin = offsets[:-1] + world.exscan(mine) - part_starts[:-1]
    starts = np.empty(parts.size, dtype=np.int64)
    starts[order] = before[:-1] + begin[parts[order]]
    return starts, offsets


@dataclass
class Reordering:
    """Copies this rank's slab of the graph of ``problem`` to its places in ``writer``. The rows that it writes are numbered
    through all arrays. begin: number of rows that an earlier run has already written. reach: called with the number of rows
    written so far. jobs: number of threads; 1 if there are several ranks. Numpy and the system release the interpreter's lock."""

    problem: Problem
    parts: np.ndarray
    writer: SlabWriter
    advance: Advance
    jobs: int = 1
    begin: int = 0
    reach: Callable[[int], None] = lambda rows: None
    positions: np.ndarray = field(init=False)
    pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.world, self.reader, self.slab = self.problem.world, self.problem.reader, self.problem.slab
        self.num_parts, self.owned = self.problem.options.num_parts, self.slab.num_nodes
        self._running: deque[tuple[Future[None], int, int]] = deque()

    def run(self) -> None:
        """Write all arrays. Collective. ``advance`` counts each node :meth:`steps` times."""
        ones = np.ones(self.owned, dtype=np.int64)
        self.positions, offsets = spread(self.world, self.parts, ones, self.num_parts)
        self.advance(self.begin)
        names = [*_dense_names(self.reader), "nodes/original_ids"]
        with ThreadPoolExecutor(self.jobs) as self.pool:
            with raise_on_all_ranks(self.world, "write the parts"):
                if self.world.rank == 0:
                    self.writer.write("parts/node_offsets", 0, offsets)
                for place, name in enumerate(names):
                    shape, dtype = self.writer.schema[name]
                    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
                    self._in_chunks(place, row_bytes, partial(self._write_rows, name))
                self._settle(0)
            self._edges(len(names))
            if self.reader.meta.x_nnz is not None:
                self._sparse_features(len(names) + 1)

    @staticmethod
    def steps(reader: SlabReader) -> int:
        """Number of times that each node is counted by ``advance``."""
        return len(_dense_names(reader)) + 2 + (reader.meta.x_nnz is not None)

    def _do(self, work: Callable[[], None], first: int, last: int) -> None:
        """Start ``work``, which writes the rows ``[first, last)``, in a thread; errors of earlier work are raised here."""
        if self.jobs == 1:  # no other thread may call MPI
            work()
            self._finished(first, last)
        else:
            self._settle(self.jobs - 1)
            self._running.append((self.pool.submit(work), first, last))

    def _settle(self, most: int) -> None:
        """Wait, in the order of the chunks, until ``most`` are still being written."""
        while len(self._running) > most:
            future, first, last = self._running.popleft()
            future.result()
            self._finished(first, last)

    def _finished(self, first: int, last: int) -> None:
        self.reach(last)
        self.advance(last - first)

    def _left(self, place: int) -> int:
        """The first row of array number ``place`` that is still to be written."""
        return min(max(self.begin - place * self.owned, 0), self.owned)

    def _in_chunks(self, place: int, row_bytes: int, write: Callable[[int, int], None]) -> None:
        """Write ranges of array number ``place``, so large that each run of a chunk is worth a write of its own."""
        chunk_bytes = min(max(CHUNK_BYTES, self.num_parts * _RUN_BYTES), _LARGEST_CHUNK_BYTES) // self.jobs
        step, before = max(chunk_bytes // max(row_bytes, 1), 1), place * self.owned
        for begin in range(self._left(place), self.owned, step):
            end = min(begin + step, self.owned)
            self._do(partial(write, begin, end), before + begin, before + end)

    def _write_rows(self, name: str, begin: int, end: int) -> None:
        nodes = self.slab.first + begin, self.slab.first + end
        rows = np.arange(*nodes) if name == "nodes/original_ids" else self.reader.read(name, *nodes)
        order, runs = _runs(self.parts[begin:end])
        for first, last in runs:
            self.writer.write(name, int(self.positions[begin + order[first]]), rows[order[first:last]])

    def _edges(self, place: int) -> None:
        starts, _ = spread(self.world, self.parts, np.diff(self.slab.indptr), self.num_parts)
        before = place * self.owned - self.slab.first
        chunks = edge_chunks(self.reader, self.slab.first + self._left(place), self.slab.last)
        for chunk in in_step(self.world, chunks, "read the edges"):
            sources = self.world.rows_of(self.slab.bounds, self.positions, chunk.sources)
            with raise_on_all_ranks(self.world, "write the parts"):
                if chunk.last > chunk.first:  # no edges are left here, but other ranks may have more
                    work = partial(self._write_edges, chunk, sources, starts)
                    self._do(work, before + chunk.first, before + chunk.last)
        with raise_on_all_ranks(self.world, "write the parts"):
            self._end_csr("edges/indptr")

    def _write_edges(self, chunk: EdgeChunk, sources: np.ndarray, starts: np.ndarray) -> None:
        begin = chunk.first - self.slab.first
        order, runs = _runs(self.parts[begin : begin + chunk.last - chunk.first])
        values = self.reader.edge_values(int(chunk.indptr[0]), int(chunk.indptr[-1]))
        if not values:
            indptr, moved = offsets_of(np.diff(chunk.indptr)[order]), np.empty_like(sources)
            sorted_rows(chunk.indptr, sources, order, indptr, moved)
            arrays = {"edges/indices": moved}
        else:
            indptr, entries = _gather_rows(chunk.indptr, order)
            moved = sources[entries]
            sort_rows(indptr, moved, entries)
            arrays = {"edges/indices": moved} | {name: each[entries] for name, each in values.items()}
        self._write_csr("edges/indptr", arrays, indptr, begin + order, runs, starts)

    def _sparse_features(self, place: int) -> None:
        with raise_on_all_ranks(self.world, "read the features"):
            whole = self.reader.indptr(self.slab.first, self.slab.last, "nodes/x_indptr")
        starts, _ = spread(self.world, self.parts, np.diff(whole), self.num_parts)
        # Rows of features by type are of very different lengths.
        largest = int(np.diff(whole).max(initial=0)) if self.reader.meta.x_by_type else 0
        row_bytes = 8 * max(int(whole[-1] - whole[0]) // max(self.owned, 1), largest, 1)
        with raise_on_all_ranks(self.world, "write the parts"):
            self._in_chunks(place, row_bytes, partial(self._write_features, whole, starts))
            self._end_csr("nodes/x_indptr")

    def _write_features(self, whole: np.ndarray, starts: np.ndarray, begin: int, end: int) -> None:
        order, runs = _runs(self.parts[begin:end])
        indptr, entries = _gather_rows(whole[begin : end + 1], order)
        bounds = int(whole[begin]), int(whole[end])
        arrays: dict[str, np.ndarray] = {
            name: self.reader.read(name, *bounds)[entries]
            for name in ("nodes/x_indices", "nodes/x_data")
            if name in self.reader.rules
        }
        self._write_csr("nodes/x_indptr", arrays, indptr, begin + order, runs, starts)

    def _write_csr(
        self, indptr_name: str, arrays: dict[str, np.ndarray], indptr: np.ndarray, nodes: np.ndarray,
        runs: list[tuple[int, int]], starts: np.ndarray,
    ) -> None:  # fmt: skip
        """Write reordered CSR rows. nodes: their indices in the slab. starts: first place of each row of the slab."""
        ends = starts[nodes] + np.diff(indptr)
        for first, last in runs:
            node = nodes[first]
            self.writer.write(indptr_name, int(self.positions[node]) + 1, ends[first:last])
            for name, values in arrays.items():
                self.writer.write(name, int(starts[node]), values[indptr[first] : indptr[last]])

    def _end_csr(self, indptr_name: str) -> None:
        self._settle(0)
        if self.world.rank == 0:
            self.writer.write(indptr_name, 0, np.zeros(1, dtype=np.int64))


def _dense_names(reader: SlabReader) -> list[str]:
    meta = reader.meta
    names = ["nodes/x"] if meta.x_nnz is None and meta.num_features else []
    names += [] if meta.task == NO_TASK else ["nodes/y"]
    return names + [f"nodes/{mask}" for mask in MASKS if meta.has_masks]


def _runs(parts: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The stable order by part, and its ranges of nodes that are in the same part."""
    order = np.argsort(parts, kind="stable")
    changes = np.flatnonzero(np.diff(parts[order])) + 1
    edges = [0, *changes.tolist(), parts.size] if parts.size else []
    return order, list(itertools.pairwise(edges))


def _gather_rows(indptr: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(indptr from 0, entries)`` of CSR rows gathered in ``order``; ``entries`` count from the first entry of these rows."""
    lengths = np.diff(indptr)[order]
    return offsets_of(lengths), ranges(indptr[:-1][order] - indptr[0], lengths)


def sort_rows(indptr: np.ndarray, keys: np.ndarray, order: np.ndarray) -> None:
    """Sort each CSR row by a stable sort: ``keys`` (nnz,) is sorted in place, and ``order`` (nnz,) is permuted with it."""
    lengths = np.diff(indptr)
    begins, longest = np.repeat(indptr[:-1], lengths), lengths.max(initial=1)
    combined = keys * longest + (np.arange(keys.size) - begins)  # equal keys stay in their order
    sorted_rows(indptr, combined, np.arange(lengths.size), indptr, combined)
    keys[:], order[:] = combined // longest, order[begins + combined % longest]
