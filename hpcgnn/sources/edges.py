"""Sorting of edges in any order into CSR by destination, in bounded memory, by an external bucket sort.

Chunks of edges are checked, sorted and appended to one spool. Each has a table of the places at which ranges of destinations
begin in it. Then neighbouring ranges are gathered from all chunks until a limit of edges and nodes is reached, sorted by
(destination, source), and appended to the result. An edge is stored as one int64 key, ``destination * num_nodes + source``.
Memory depends on the limit and on the node with the most in-edges only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import asymmetry
from hpcgnn.sources.node_values import as_float32
from hpcgnn.sources.slabs import Spool

EdgeChunk = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""``(src, dst, weight)``: (n,) int64, (n,) int64, (n,) numbers or None; the weights become float32."""

MAX_NODES = 3_037_000_499  # the largest N whose N * N fits into an int64
GROUP_EDGES = 1 << 21
_RANGES = 4096
_EXACT_FLOAT32, _LARGEST_INT = 2**24, 2**63  # whole numbers up to the first are exact in float32


@dataclass(frozen=True)
class EdgeOptions:
    """Changes to the edges, made in this order. ``undirected``: add the reverse of every edge, then merge equal edges.
    ``drop_duplicates``: merge equal edges. The weights of merged edges are added up. ``self_loops``: add the edge (v, v), of
    weight 1, to each node that has none."""

    undirected: bool = False
    self_loops: bool = False
    drop_duplicates: bool = False


@dataclass
class SortedEdges:
    """CSR by destination on disk. ``symmetric``: every edge has its reverse, as many times and with the same weights.
    ``smallest``: the smallest id in the edges of the source, None without edges."""

    indptr: Spool
    indices: Spool
    weights: Spool | None
    symmetric: bool = False
    smallest: int | None = None

    @property
    def num_edges(self) -> int:
        """Number of stored edges, after merging."""
        return self.indices.size

    def in_degrees(self, first: int, last: int) -> np.ndarray:
        """(last - first,) int64 number of stored edges into each node, including parallel edges and self-loops."""
        return np.diff(self.indptr.read(first, last + 1))

    def close(self) -> None:
        """Free the disk space."""
        for spool in filter(None, (self.indptr, self.indices, self.weights)):
            spool.close()


def sort_edges(
    chunks: Iterator[EdgeChunk],
    num_nodes: int,
    weighted: bool,
    options: EdgeOptions,
    folder: Path,
    where: str,
    advance: Callable[[int], None] = lambda count: None,
    group_edges: int = GROUP_EDGES,
) -> SortedEdges:
    """Sort ``chunks`` into CSR by destination, with ascending sources, and apply ``options``. folder: for temporary files. where:
    the source's name in errors. advance: called with the number of edges of each chunk. group_edges: the number of edges that are
    sorted at a time. Raises HpcgnnError for ids out of range, weights that are not finite, and whole numbers as weights that
    float32 cannot hold."""
    if not 0 < num_nodes <= MAX_NODES:
        raise HpcgnnError(f"{where} has {num_nodes:,} nodes: hpcgnn converts graphs of 1 to {MAX_NODES:,} nodes")
    spill = _Spill(num_nodes, weighted, options.undirected, folder, where)
    result = SortedEdges(
        Spool(folder, np.int64), Spool(folder, np.int64), Spool(folder, np.float32) if weighted else None
    )
    try:
        for src, dst, weight in chunks:
            spill.add(src, dst, weight)
            advance(src.size)
        _drain(spill, result, options, group_edges)
        result.smallest = spill.smallest
    except BaseException:
        result.close()
        raise
    finally:
        spill.close()
    return result


def _drain(spill: _Spill, result: SortedEdges, options: EdgeOptions, group_edges: int) -> None:
    merge = options.undirected or options.drop_duplicates
    difference = 0
    result.indptr.append(np.zeros(1, np.int64))
    for first, last, keys, weight in spill.groups(group_edges):
        if merge:
            keys, weight = _merge_equal(keys, weight)
            spill.check_sums(keys, weight)
        if options.self_loops:
            keys, weight = _add_loops(keys, weight, first, last, spill.num_nodes)
        dst = keys // spill.num_nodes
        src = keys - dst * spill.num_nodes
        result.indptr.append(result.indices.size + np.cumsum(np.bincount(dst - first, minlength=last - first)))
        result.indices.append(src)
        if result.weights is not None and weight is not None:
            result.weights.append(weight)
        bits = np.empty(0, np.uint32) if weight is None else weight.view(np.uint32)
        difference += int(asymmetry(src, dst, bits))
    result.symmetric = difference % 2**64 == 0


class _Spill:
    """Sorted chunks of keys on disk, and the places at which ranges of destinations begin in each of them."""

    def __init__(self, num_nodes: int, weighted: bool, both_ways: bool, folder: Path, where: str) -> None:
        self.num_nodes = num_nodes
        ranges = min(num_nodes, _RANGES)
        self._starts = np.arange(ranges + 1, dtype=np.int64) * num_nodes // ranges
        self._both_ways, self._where = both_ways, where
        self._keys = Spool(folder, np.int64)
        self._weights = Spool(folder, np.float32) if weighted else None
        self._bounds: list[np.ndarray] = []
        self._edges_seen = 0
        self.smallest: int | None = None

    def add(self, src: np.ndarray, dst: np.ndarray, given: np.ndarray | None) -> None:
        weight = None if given is None else as_float32(given)
        self._check(src, dst, weight)
        if given is not None and weight is not None:
            self._check_digits(src, dst, given, weight)
        self._edges_seen += src.size
        keys = dst * self.num_nodes + src
        if self._both_ways:
            keys = np.concatenate([keys, src * self.num_nodes + dst])
            weight = None if weight is None else np.concatenate([weight, weight])
        keys, weight = _sorted(keys, weight)
        self._bounds.append(self._keys.size + np.searchsorted(keys, self._starts * self.num_nodes))
        self._keys.append(keys)
        if self._weights is not None and weight is not None:
            self._weights.append(weight)

    def groups(self, limit: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray | None]]:
        """``(first node, last node, sorted keys, weights)`` of groups of ranges, with at most ``limit`` keys and nodes, or of one
        range."""
        sizes = np.diff(self._starts)
        for bounds in self._bounds:
            sizes += np.diff(bounds)
        for first, last in _pack(sizes, limit):
            keys = self._gather(self._keys, first, last)
            weight = None if self._weights is None else self._gather(self._weights, first, last)
            yield int(self._starts[first]), int(self._starts[last]), *_sorted(keys, weight)

    def check_sums(self, keys: np.ndarray, weight: np.ndarray | None) -> None:
        """Refuse merged edges whose weights add up to more than float32 can hold."""
        if weight is not None and not np.isfinite(weight).all():
            dst, src = divmod(int(keys[~np.isfinite(weight)][0]), self.num_nodes)
            raise HpcgnnError(
                f"{self._where}: the weights of the edges {src} -> {dst} add up to more than float32 holds"
            )

    def close(self) -> None:
        for spool in filter(None, (self._keys, self._weights)):
            spool.close()

    def _gather(self, spool: Spool, first: int, last: int) -> np.ndarray:
        segments = [(int(bounds[first]), int(bounds[last])) for bounds in self._bounds]
        out = np.empty(sum(end - begin for begin, end in segments), spool.dtype)
        position = 0
        for begin, end in segments:
            spool.read_into(out[position : position + end - begin], begin)
            position += end - begin
        return out

    def _check(self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> None:
        for ids in (src, dst) if src.size else ():
            smallest = int(ids.min())
            self.smallest = smallest if self.smallest is None else min(smallest, self.smallest)
            if smallest < 0 or ids.max() >= self.num_nodes:
                bad = int(np.flatnonzero((ids < 0) | (ids >= self.num_nodes))[0])
                raise HpcgnnError(
                    f"{self._where}: edge {self._edges_seen + bad:,} is {src[bad]} -> {dst[bad]}, "
                    f"but node ids run from 0 to {self.num_nodes - 1}"
                )
        if weight is not None and not np.isfinite(weight).all():
            bad = int(np.flatnonzero(~np.isfinite(weight))[0])
            raise HpcgnnError(
                f"{self._where}: edge {self._edges_seen + bad:,} ({src[bad]} -> {dst[bad]}) has weight {weight[bad]}: "
                "weights must be finite float32 numbers"
            )

    def _check_digits(self, src: np.ndarray, dst: np.ndarray, given: np.ndarray, weight: np.ndarray) -> None:
        """Refuse whole numbers whose last digits float32 does not hold: these are times or ids, and not weights."""
        if given.dtype == np.float32 or not np.any(is_large := np.abs(weight) >= _EXACT_FLOAT32):
            return
        large, stored = given[is_large].astype(np.float64), weight[is_large].astype(np.float64)
        lost = (large != stored) & (large == np.trunc(large)) & (np.abs(large) < _LARGEST_INT)
        if lost.any():
            bad = int(np.flatnonzero(is_large)[lost.argmax()])
            raise HpcgnnError(
                f"{self._where}: edge {self._edges_seen + bad:,} ({src[bad]} -> {dst[bad]}) has weight {int(given[bad])}, "
                f"of which float32 would keep {weight[bad]:.0f}: leave out a column of times or ids, or divide all weights"
            )


def _pack(sizes: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Divide neighbouring ranges into groups whose sizes add up to ``limit`` at most; a larger range is a group of its own."""
    first, total = 0, 0
    for index, size in enumerate(sizes.tolist()):
        if index > first and total + size > limit:
            yield first, index
            first, total = index, 0
        total += size
    yield first, sizes.size


def _sorted(keys: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if weight is None:
        keys.sort()
        return keys, None
    # The sort is stable, so that parallel edges keep their order, and the result does not depend on the chunks.
    order = np.argsort(keys, kind="stable")
    return keys[order], weight[order]


def _merge_equal(keys: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if not keys.size:
        return keys, weight
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if weight is not None:
        with np.errstate(over="ignore"):  # the caller checks the sums
            weight = np.add.reduceat(weight.astype(np.float64), first).astype(np.float32)
    return keys[first], weight


def _add_loops(
    keys: np.ndarray, weight: np.ndarray | None, first: int, last: int, num_nodes: int
) -> tuple[np.ndarray, np.ndarray | None]:
    loops = np.arange(first, last, dtype=np.int64) * (num_nodes + 1)
    at = np.searchsorted(keys, loops)
    missing = np.ones(loops.size, bool)
    inside = at < keys.size
    missing[inside] = keys[at[inside]] != loops[inside]
    if weight is not None:
        weight = np.insert(weight, at[missing], np.float32(1))
    return np.insert(keys, at[missing], loops[missing]), weight
