"""Writing the arrays of ``graph.h5`` in part order.

Nodes are ordered by (part, original id). So the nodes that a chunk of a rank's slab has in one part are neighbours in the
new order as well: each chunk of any array falls into one run a part, and every run is one contiguous write. Rows need
not pass through other ranks, no rank holds more than a chunk, and the file is the same for any number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import World, together
from hpcgnn.data.graph_file import MASKS, NO_TASK, SlabReader
from hpcgnn.data.h5 import SlabWriter
from hpcgnn.partition import loops
from hpcgnn.partition.slabs import Advance, Directory, EdgeChunk, Slab, edge_chunks, in_step

CHUNK_BYTES = 32 << 20
_LARGEST_CHUNK_BYTES = 256 << 20
_RUN_BYTES = 64 << 10


def spread(world: World, parts: np.ndarray, amounts: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the ``amounts`` (n,) of this rank's nodes begin when all are laid out by (part, node). Collective.

    Returns the starts (n,) int64 and the parts' offsets (P+1,) int64.
    """
    order = np.argsort(parts, kind="stable")
    before = np.concatenate(([0], np.cumsum(amounts[order])))
    edges_of_parts = np.searchsorted(parts[order], np.arange(num_parts + 1))
    part_starts = before[edges_of_parts]
    mine = np.diff(part_starts)
    offsets = np.concatenate(([0], np.cumsum(world.allreduce(mine))))
    begin = offsets[:-1] + world.exscan(mine) - part_starts[:-1]
    starts = np.empty(parts.size, dtype=np.int64)
    starts[order] = before[:-1] + begin[parts[order]]
    return starts, offsets


@dataclass(frozen=True)
class Reordering:
    """Copies this rank's slab of ``reader`` to its places in ``writer``."""

    world: World
    reader: SlabReader
    slab: Slab
    parts: np.ndarray
    num_parts: int
    writer: SlabWriter
    advance: Advance

    def run(self) -> None:
        """Write everything. Collective; ``advance`` counts nodes, :meth:`steps` times."""
        positions, offsets = spread(
            self.world, self.parts, np.ones(self.slab.num_nodes, dtype=np.int64), self.num_parts
        )
        with together(self.world, "write the parts"):
            if self.world.rank == 0:
                self.writer.write("parts/node_offsets", 0, offsets)
            self._node_arrays(positions)
        self._edges(positions)
        if self.reader.meta.x_nnz is not None:
            self._sparse_features(positions)

    @staticmethod
    def steps(reader: SlabReader) -> int:
        """How many times each node is counted."""
        return len(_dense_names(reader)) + 2 + (reader.meta.x_nnz is not None)

    def _node_arrays(self, positions: np.ndarray) -> None:
        schema = self.reader.meta.schema()
        for name in _dense_names(self.reader):
            shape, dtype = schema[name]
            for begin, end in self._chunks(dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))):
                rows = self.reader.read(name, self.slab.first + begin, self.slab.first + end)
                self._write_rows(name, positions, begin, rows)
        for begin, end in self._chunks(8):
            self._write_rows("nodes/original_ids", positions, begin, np.arange(begin, end) + self.slab.first)

    def _chunks(self, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges of the slab, large enough that the runs of a chunk are worth a write each."""
        chunk_bytes = min(max(CHUNK_BYTES, self.num_parts * _RUN_BYTES), _LARGEST_CHUNK_BYTES)
        step = max(chunk_bytes // max(row_bytes, 1), 1)
        for begin in range(0, self.slab.num_nodes, step):
            yield begin, min(begin + step, self.slab.num_nodes)

    def _write_rows(self, name: str, positions: np.ndarray, begin: int, rows: np.ndarray) -> None:
        order, runs = _runs(self.parts[begin : begin + rows.shape[0]])
        rows = rows[order]
        for first, last in runs:
            self.writer.write(name, int(positions[begin + order[first]]), rows[first:last])
        self.advance(rows.shape[0])

    def _edges(self, positions: np.ndarray) -> None:
        starts, _ = spread(self.world, self.parts, np.diff(self.slab.indptr), self.num_parts)
        directory = Directory(self.world, self.slab, positions)
        chunks = edge_chunks(self.reader, self.slab.first, self.slab.last)
        for chunk in in_step(self.world, chunks, "read the edges"):
            sources = directory.lookup(chunk.sources)
            with together(self.world, "write the parts"):
                self._write_edges(chunk, sources, positions, starts)
            self.advance(chunk.last - chunk.first)
        with together(self.world, "write the parts"):
            if self.world.rank == 0:
                self.writer.write("edges/indptr", 0, np.zeros(1, dtype=np.int64))

    def _write_edges(self, chunk: EdgeChunk, sources: np.ndarray, positions: np.ndarray, starts: np.ndarray) -> None:
        begin = chunk.first - self.slab.first
        order, runs = _runs(self.parts[begin : begin + chunk.last - chunk.first])
        indptr, entries = _gather_rows(chunk.indptr, order)
        sources = sources[entries]
        loops.sort_rows(indptr, sources, entries)
        arrays = {"edges/indices": sources}
        weights = self.reader.weights(int(chunk.indptr[0]), int(chunk.indptr[-1]))
        if weights is not None:
            arrays["edges/weight"] = weights[entries]
        self._write_csr("edges/indptr", arrays, indptr, begin + order, runs, (positions, starts))

    def _sparse_features(self, positions: np.ndarray) -> None:
        first = self.slab.first
        with together(self.world, "read the features"):
            whole = self.reader.indptr(first, self.slab.last, "nodes/x_indptr")
        starts, _ = spread(self.world, self.parts, np.diff(whole), self.num_parts)
        step_bytes = 8 * max(int(whole[-1] - whole[0]) // max(self.slab.num_nodes, 1), 1)
        with together(self.world, "write the parts"):
            for begin, end in self._chunks(step_bytes):
                order, runs = _runs(self.parts[begin:end])
                indptr, entries = _gather_rows(whole[begin : end + 1], order)
                bounds = int(whole[begin]), int(whole[end])
                arrays = {
                    name: self.reader.read(name, *bounds)[entries] for name in ("nodes/x_indices", "nodes/x_data")
                }
                self._write_csr("nodes/x_indptr", arrays, indptr, begin + order, runs, (positions, starts))
                self.advance(end - begin)
            if self.world.rank == 0:
                self.writer.write("nodes/x_indptr", 0, np.zeros(1, dtype=np.int64))

    def _write_csr(
        self,
        indptr_name: str,
        arrays: dict[str, np.ndarray],
        indptr: np.ndarray,
        nodes: np.ndarray,
        runs: list[tuple[int, int]],
        places: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Write reordered CSR rows: ``nodes`` are their indices in the slab, ``places`` the slab's (positions, starts)."""
        positions, starts = places
        ends = starts[nodes] + np.diff(indptr)
        for first, last in runs:
            node = nodes[first]
            self.writer.write(indptr_name, int(positions[node]) + 1, ends[first:last])
            for name, values in arrays.items():
                self.writer.write(name, int(starts[node]), values[indptr[first] : indptr[last]])


def _dense_names(reader: SlabReader) -> list[str]:
    """Arrays with one row a node."""
    meta = reader.meta
    names = ["nodes/x"] if meta.x_nnz is None and meta.num_features else []
    names += [] if meta.task == NO_TASK else ["nodes/y"]
    return names + [f"nodes/{mask}" for mask in MASKS if meta.has_masks]


def _runs(parts: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The stable order by part, and the ranges of it that are in one part."""
    order = np.argsort(parts, kind="stable")
    changes = np.flatnonzero(np.diff(parts[order])) + 1
    edges = [0, *changes.tolist(), parts.size] if parts.size else []
    return order, list(itertools.pairwise(edges))


def _gather_rows(indptr: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(indptr from 0, entries)`` of CSR rows taken in ``order``; ``entries`` count from the first of these rows."""
    lengths = np.diff(indptr)[order]
    gathered = np.concatenate(([0], np.cumsum(lengths)))
    shift = indptr[:-1][order] - indptr[0] - gathered[:-1]
    return gathered, np.arange(gathered[-1]) + np.repeat(shift, lengths)
