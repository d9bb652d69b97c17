"""The symmetric graph in a file that KaMinPar maps into its memory; the file is made in bounded memory.

It has ParHIP's binary format: a header, the place at which each row begins, the neighbours row after row, the nodes' weights. A
row joins the in-edges, which ``graph.h5`` stores, with the out-edges, which are first sorted by ranges of nodes into spools.
:func:`sampled` leaves out edges, and :func:`divide_twice` makes parts on two levels, for nodes and then for their ranks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.problem import EdgeChunk, Problem, edge_chunks, place, sort_unique_rows
from hpcgnn.plan.plan import offsets_of, owners_of
from hpcgnn.sources.slabs import Spool

RANGE_ENTRIES = 1 << 22
NEIGHBOURS = 32  # of a node with many, after sampling
_MOST_RANGES = 256
_ROWS_AT_A_TIME = 1 << 20
_HEADER_BYTES = 24
# ParHIP's version word has a bit for each array that is absent or has 32 bits.
_NO_EDGE_WEIGHTS, _NARROW_NODES = 1, 8


class SymmetricFile:
    """The graph joined with its transpose, without self-loops and duplicates, in an unnamed file in ``folder``. num_entries:
    the number of neighbours of all nodes, so that each edge counts twice."""

    def __init__(self, num_nodes: int, folder: Path | None) -> None:
        self.num_nodes, self.num_entries, self.folder = num_nodes, 0, folder
        self.dtype = np.dtype(np.int32 if num_nodes < 1 << 31 else np.int64)
        self.file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open for its life
        self._first_entry = _HEADER_BYTES + 8 * (num_nodes + 1)

    def append(self, indices: np.ndarray) -> None:
        """Add neighbours (m,) of the next rows."""
        self._write(indices.astype(self.dtype, copy=False), self._position(self.num_entries))
        self.num_entries += indices.size

    def finish(self, degrees: np.ndarray) -> None:
        """Write the header and the places at which rows begin, from ``degrees`` (N,) int64, in front of the neighbours."""
        version = _NO_EDGE_WEIGHTS | (_NARROW_NODES if self.dtype.itemsize == 4 else 0)
        self._write(np.array([version, self.num_nodes, self.num_entries, self._first_entry], np.uint64), 0)
        begin = self._first_entry
        for first in range(0, self.num_nodes, _ROWS_AT_A_TIME):
            ends = begin + self.dtype.itemsize * np.cumsum(degrees[first : first + _ROWS_AT_A_TIME], dtype=np.int64)
            self._write(ends, _HEADER_BYTES + 8 * (first + 1))
            begin = int(ends[-1])

    def write_weights(self, first: int, weights: np.ndarray) -> None:
        """Write the weights (n,) int64 of the n nodes from ``first`` on. Call it after :meth:`finish`."""
        self._write(weights, self._position(self.num_entries) + 8 * first)

    def rows(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """``(first node, indptr (n+1,) int64 from 0, neighbours)`` of all rows in order, some million neighbours at a time."""
        first = 0
        while first < self.num_nodes:
            last = min(first + _ROWS_AT_A_TIME, self.num_nodes)
            indptr = self._read(np.dtype(np.int64), last - first + 1, _HEADER_BYTES + 8 * first)
            indptr = (indptr - self._first_entry) // self.dtype.itemsize
            count = max(int(np.searchsorted(indptr, indptr[0] + RANGE_ENTRIES, side="right")) - 1, 1)
            begin, end = int(indptr[0]), int(indptr[count])
            yield first, indptr[: count + 1] - begin, self._read(self.dtype, end - begin, self._position(begin))
            first += count

    def close(self) -> None:
        """Free the disk space."""
        self.file.close()

    def _position(self, entry: int) -> int:
        return self._first_entry + self.dtype.itemsize * entry

    def _read(self, dtype: np.dtype, count: int, position: int) -> np.ndarray:
        array = np.empty(count, dtype)
        self.file.seek(position)
        self.file.readinto(array.data)
        return array

    def _write(self, array: np.ndarray, position: int) -> None:
        self.file.seek(position)
        self.file.write(np.ascontiguousarray(array).data)
        self.file.flush()


def write_symmetric(problem: Problem) -> SymmetricFile:
    """Write the symmetric graph with one weight a node (:meth:`hpcgnn.partition.problem.Balance.one_of`). Memory is 8 bytes
    a node and that of ``RANGE_ENTRIES`` neighbours. Disk space is 4 bytes a neighbour, and 8 bytes an edge while the file is
    made. ``problem.advance`` counts all nodes twice. A full disk raises ``OSError``."""
    reader, folder, nodes = problem.reader, problem.folder, problem.reader.meta.num_nodes
    degrees = np.zeros(nodes, dtype=np.int64)
    for chunk in edge_chunks(reader, 0, nodes):
        for ends in chunk.ends():
            np.add.at(degrees, ends, 1)
    bounds = _ranges(degrees)
    file = SymmetricFile(nodes, folder)
    spools = [Spool(folder or Path(tempfile.gettempdir()), file.dtype) for _ in bounds[1:]]
    try:
        for chunk in edge_chunks(reader, 0, nodes):
            _spool(chunk, bounds, spools)
            problem.advance(chunk.last - chunk.first)
        for spool, first, last in zip(spools, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            _join_rows(reader, first, last, spool, degrees, file)
            spool.close()
            problem.advance(last - first)
        file.finish(degrees)
        for first in range(0, nodes, _ROWS_AT_A_TIME):
            indptr = reader.indptr(first, min(first + _ROWS_AT_A_TIME, nodes))
            weights = problem.balance.weights(reader, first, indptr)
            file.write_weights(first, problem.balance.one_of(weights, nodes))
    except BaseException:
        file.close()
        raise
    finally:
        for spool in spools:
            spool.close()
    return file


def _ranges(degrees: np.ndarray) -> np.ndarray:
    """Bounds of at most 256 consecutive ranges of nodes with about ``RANGE_ENTRIES`` neighbours each, or more."""
    ends = np.cumsum(degrees)
    total = int(ends[-1]) if ends.size else 0
    step = max(RANGE_ENTRIES, -(-total // _MOST_RANGES), 1)
    inner = np.searchsorted(ends, np.arange(step, total, step), side="left") + 1
    return np.unique(np.concatenate(([0], inner, [degrees.size])))


def _spool(chunk: EdgeChunk, bounds: np.ndarray, spools: list[Spool]) -> None:
    sources, destinations = chunk.ends()
    owners = owners_of(sources, bounds).astype(np.int16)
    order = np.argsort(owners, kind="stable")
    pairs = np.stack((sources[order], destinations[order]), axis=1, dtype=spools[0].dtype, casting="unsafe")
    ends = offsets_of(np.bincount(owners, minlength=len(spools))).tolist()
    for spool, begin, end in zip(spools, ends[:-1], ends[1:], strict=True):
        if end > begin:
            spool.append(pairs[begin:end].reshape(-1))


def _join_rows(
    reader: SlabReader, first: int, last: int, spool: Spool, degrees: np.ndarray, file: SymmetricFile
) -> None:
    """Append the rows of nodes ``[first, last)`` to ``file``, and correct their ``degrees``, which have counted duplicates."""
    indptr = offsets_of(degrees[first:last])
    indices, cursor = np.empty(int(indptr[-1]), file.dtype), indptr[:-1].copy()
    for chunk in edge_chunks(reader, first, last):
        sources, destinations = chunk.ends()
        place(destinations - first, sources, cursor, indices)
    for _, piece in spool.pieces():
        pairs = piece.reshape(-1, 2)
        place(pairs[:, 0] - first, pairs[:, 1], cursor, indices)
    sort_unique_rows(indptr, indices)
    degrees[first:last] = np.diff(indptr)
    file.append(indices[: indptr[-1]])


def sampled(graph: SymmetricFile, weights: np.ndarray, seed: int) -> SymmetricFile:
    """``graph`` with a sample of its edges, for half of the memory or less, and a slightly larger cut; ``weights`` (N,)
    int64 are its nodes'. An edge between two nodes with many neighbours tells little about their right parts. It is kept if
    ``NEIGHBOURS`` divided by the smaller degree of its ends is above a random number from 0 to 1, which depends only on
    ``seed`` and its ends."""
    degrees = np.concatenate([np.zeros(0, np.int64), *(np.diff(indptr) for _, indptr, _ in graph.rows())])
    kept = np.zeros(degrees.size, dtype=np.int64)
    fewer = SymmetricFile(graph.num_nodes, graph.folder)
    try:
        for first, indptr, neighbours in graph.rows():
            count = _keep(first, indptr, neighbours, degrees, np.uint64(seed), kept)
            fewer.append(neighbours[:count])
        fewer.finish(kept)
        fewer.write_weights(0, weights)
    except BaseException:
        fewer.close()
        raise
    return fewer


@njit(cache=True)
def _keep(
    first: int, indptr: np.ndarray, neighbours: np.ndarray, degrees: np.ndarray, seed: np.uint64, kept: np.ndarray
) -> int:
    """Move the ``neighbours`` that are kept to the front, count those of each row in ``kept`` (N,), and return their number."""
    count = 0
    for row in range(indptr.size - 1):
        node = first + row
        for i in range(indptr[row], indptr[row + 1]):
            other = neighbours[i]
            fewest = min(degrees[node], degrees[other])
            if fewest <= NEIGHBOURS or _draw(min(node, other), max(node, other), seed) * fewest < NEIGHBOURS:
                neighbours[count] = other
                count += 1
                kept[node] += 1
    return count


@njit(cache=True)
def _draw(low: int, high: int, seed: np.uint64) -> float:
    """A random number in [0, 1) that is the same for both directions of an edge."""
    bits = np.uint64(low) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(high) * np.uint64(0xC2B2AE3D27D4EB4F)
    bits ^= (seed + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
    for _ in range(2):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)) / 9007199254740992.0


# Each group has an open file.
MOST_GROUPS = 256


def divide_twice(
    graph: SymmetricFile,
    weights: np.ndarray,
    num_parts: int,
    size: int,
    divide: Callable[[SymmetricFile, int], np.ndarray],
) -> np.ndarray:
    """Parts (N,) int32: ``divide(graph, P / size)`` makes groups, and ``divide`` then makes ``size`` parts of each group's
    graph. Parts ``k * size`` to ``(k + 1) * size - 1`` are group k. weights: (N,) int64 weight of each node."""
    groups = divide(graph, num_parts // size)
    order = np.argsort(groups, kind="stable")
    bounds = offsets_of(np.bincount(groups, minlength=num_parts // size))
    parts = groups * np.int32(size)
    files = _induced(graph, weights, groups, order, bounds)
    try:
        for file, first, last in zip(files, bounds[:-1], bounds[1:], strict=True):
            members = order[first:last]
            few = file.num_nodes < 2 * size
            parts[members] += np.arange(members.size, dtype=np.int32) % size if few else divide(file, size)
            file.close()
    finally:
        for file in files:
            file.close()
    return parts


def _induced(
    graph: SymmetricFile, weights: np.ndarray, groups: np.ndarray, order: np.ndarray, bounds: np.ndarray
) -> list[SymmetricFile]:
    """The graph inside each group. Node k of group g is node ``order[bounds[g] + k]``, so that nodes keep their order."""
    local = np.empty(groups.size, dtype=graph.dtype)
    local[order] = np.arange(groups.size) - np.repeat(bounds[:-1], np.diff(bounds))
    degrees = np.zeros(groups.size, dtype=np.int64)
    files = [SymmetricFile(int(count), graph.folder) for count in np.diff(bounds)]
    for first, indptr, neighbours in graph.rows():
        here = groups[first : first + indptr.size - 1]
        owners = np.repeat(here, np.diff(indptr))
        inside = owners == groups[neighbours]
        totals = offsets_of(inside)
        degrees[first : first + here.size] = totals[indptr[1:]] - totals[indptr[:-1]]
        owners, columns = owners[inside], local[neighbours[inside]]
        columns = columns[np.argsort(owners, kind="stable")]
        ends = np.cumsum(np.bincount(owners, minlength=len(files))).tolist()
        for file, begin, end in zip(files, [0, *ends[:-1]], ends, strict=True):
            file.append(columns[begin:end])
    for file, first, last in zip(files, bounds[:-1], bounds[1:], strict=True):
        members = order[first:last]
        file.finish(degrees[members])
        file.write_weights(0, weights[members])
    return files
