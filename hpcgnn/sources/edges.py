"""Sorting of edges in any order into CSR by destination, in bounded memory, by an external bucket sort.

Chunks of edges are checked, sorted and appended to one spool. Each has a table of the places at which ranges of destinations
begin in it. Then neighbouring ranges are gathered from all chunks until a limit of edges and nodes is reached, sorted by
(destination, source), and appended to the result. An edge is stored as one int64 key, ``destination * num_nodes + source``.
Memory depends on the limit and on the node with the most in-edges only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import asymmetry
from hpcgnn.data.schema import FULL, LINK_SETS
from hpcgnn.sources.slabs import Spool


@dataclass(frozen=True)
class EdgeChunk:
    """Some edges of a source. src, dst: (n,) int64. weight: (n,) numbers, which become float32. type: (n,) whole numbers from 0.
    attr: (n, D) numbers. split: (n,) uint8, see :data:`hpcgnn.data.schema.LINK_SETS`. The last four are None in a graph without
    such values."""

    src: np.ndarray
    dst: np.ndarray
    weight: np.ndarray | None = None
    type: np.ndarray | None = None
    attr: np.ndarray | None = None
    split: np.ndarray | None = None

    def reversed(self) -> EdgeChunk:
        """The reverse edges; those of held-out links are no links of their own."""
        return replace(self, src=self.dst, dst=self.src, split=None if self.split is None else reverse_sets(self.split))


def reverse_sets(split: np.ndarray) -> np.ndarray:
    """(n,) uint8 sets of the reverses of links with the sets ``split``."""
    return np.where(split, np.uint8(REVERSE), split)


@dataclass(frozen=True)
class EdgeForm:
    """The values that each edge of a graph has. num_types: 0 without types. attr_columns: number of features D, of dtype
    ``attr_dtype``. split: whether edges have sets of links."""

    weighted: bool = False
    num_types: int = 0
    attr_columns: int = 0
    attr_dtype: str = FULL
    split: bool = False

    @property
    def dtype(self) -> np.dtype | None:
        """A structured dtype of an edge's values, with the fields ``weight``, ``type``, ``attr`` and ``split`` that the graph
        has; None if it has none."""
        fields: list[tuple[Any, ...]] = [("weight", np.float32)] if self.weighted else []
        fields += [("type", np.int32)] if self.num_types else []
        fields += [("attr", self.attr_dtype, (self.attr_columns,))] if self.attr_columns else []
        fields += [("split", np.uint8)] if self.split else []
        return np.dtype(fields) if fields else None

    def values(self, chunk: EdgeChunk) -> np.ndarray | None:
        """(n,) of :attr:`dtype`."""
        if (dtype := self.dtype) is None:
            return None
        found = np.empty(chunk.src.size, dtype)
        with np.errstate(over="ignore"):  # values that are too large become infinite, which is refused later
            for name in dtype.names or ():
                found[name] = getattr(chunk, name)
        return found


PLAIN = EdgeForm()
REVERSE = LINK_SETS.index("reverse")
MAX_NODES = 3_037_000_499  # the largest N whose N * N fits into an int64
GROUP_EDGES = 1 << 21
_RANGES = 4096
_EXACT_FLOAT32, _LARGEST_INT = 2**24, 2**63  # whole numbers up to the first are exact in float32


@dataclass(frozen=True)
class EdgeOptions:
    """Changes to the edges, made in this order. ``undirected``: add the reverse of every edge, of the same type and with the same
    features, then merge equal edges. ``drop_duplicates``: merge equal edges, which have the same ends and the same type. The
    weights of merged edges are added up, and so are their features; they are a training link if one of them is. ``self_loops``:
    add the edge (v, v), of weight 1, to each node that has none; not for edges with types or features."""

    undirected: bool = False
    self_loops: bool = False
    drop_duplicates: bool = False


@dataclass
class SortedEdges:
    """CSR by destination on disk. ``values``: of the form's dtype, None without such values. ``symmetric``: every edge has its
    reverse, as many times and with the same weights; types and features do not count. ``smallest``: the smallest id in the edges
    of the source, None without edges."""

    indptr: Spool
    indices: Spool
    values: Spool | None
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
        for spool in filter(None, (self.indptr, self.indices, self.values)):
            spool.close()


def sort_edges(
    chunks: Iterator[EdgeChunk],
    num_nodes: int,
    form: EdgeForm,
    options: EdgeOptions,
    folder: Path,
    where: str,
    advance: Callable[[int], None] = lambda count: None,
    group_edges: int = GROUP_EDGES,
) -> SortedEdges:
    """Sort ``chunks`` into CSR by destination, with ascending sources, and with ascending types of parallel edges, and apply
    ``options``. form: the values of an edge. folder: for temporary files. where: the source's name in errors. advance: called
    with the number of edges of each chunk. group_edges: the number of edges that are sorted at a time. Raises HpcgnnError for ids
    and types out of range, weights and features that are not finite, and whole numbers as weights that float32 cannot hold."""
    if not 0 < num_nodes <= MAX_NODES:
        raise HpcgnnError(f"{where} has {num_nodes:,} nodes: hpcgnn converts graphs of 1 to {MAX_NODES:,} nodes")
    if options.self_loops and (form.num_types or form.attr_columns):
        raise HpcgnnError(
            f"{where} has types or features of edges, which --self-loops cannot give to new edges: leave it out"
        )
    spill = _Spill(num_nodes, form, options.undirected, folder, where)
    values = None if form.dtype is None else Spool(folder, form.dtype)
    result = SortedEdges(Spool(folder, np.int64), Spool(folder, np.int64), values)
    try:
        for chunk in chunks:
            spill.add(chunk)
            advance(chunk.src.size)
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
    for first, last, keys, values in spill.groups(group_edges):
        if merge:
            keys, values = _merge_equal(keys, values)
            spill.check_sums(keys, values)
        if options.self_loops:
            keys, values = _add_loops(keys, values, first, last, spill.num_nodes)
        dst = keys // spill.num_nodes
        src = keys - dst * spill.num_nodes
        result.indptr.append(result.indices.size + np.cumsum(np.bincount(dst - first, minlength=last - first)))
        result.indices.append(src)
        if result.values is not None and values is not None:
            result.values.append(values)
        bits = np.empty(0, np.uint32)
        if values is not None and "weight" in (values.dtype.names or ()):
            bits = np.ascontiguousarray(values["weight"]).view(np.uint32)
        difference += int(asymmetry(src, dst, bits))
    result.symmetric = difference % 2**64 == 0


class _Spill:
    """Sorted chunks of keys on disk, and the places at which ranges of destinations begin in each of them."""

    def __init__(self, num_nodes: int, form: EdgeForm, both_ways: bool, folder: Path, where: str) -> None:
        self.num_nodes, self._form = num_nodes, form
        ranges = min(num_nodes, _RANGES)
        self._starts = np.arange(ranges + 1, dtype=np.int64) * num_nodes // ranges
        self._both_ways, self._where = both_ways, where
        self._keys = Spool(folder, np.int64)
        self._values = None if form.dtype is None else Spool(folder, form.dtype)
        self._bounds: list[np.ndarray] = []
        self._edges_seen = 0
        self.smallest: int | None = None

    def add(self, chunk: EdgeChunk) -> None:
        src, dst = chunk.src, chunk.dst
        self._check_ids(src, dst)
        self._check_types(chunk)
        values = self._form.values(chunk)
        self._check_finite(chunk, values)
        if chunk.weight is not None and values is not None:
            self._check_digits(chunk, chunk.weight, values["weight"])
        self._edges_seen += src.size
        keys = dst * self.num_nodes + src
        if self._both_ways:
            keys = np.concatenate([keys, src * self.num_nodes + dst])
            back = self._form.values(chunk.reversed())
            values = None if values is None or back is None else np.concatenate([values, back])
        keys, values = _sorted(keys, values)
        self._bounds.append(self._keys.size + np.searchsorted(keys, self._starts * self.num_nodes))
        self._keys.append(keys)
        if self._values is not None and values is not None:
            self._values.append(values)

    def groups(self, limit: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray | None]]:
        """``(first node, last node, sorted keys, values)`` of groups of ranges, with at most ``limit`` keys and nodes, or of one
        range."""
        sizes = np.diff(self._starts)
        for bounds in self._bounds:
            sizes += np.diff(bounds)
        for first, last in _pack(sizes, limit):
            keys = self._gather(self._keys, first, last)
            values = None if self._values is None else self._gather(self._values, first, last)
            yield int(self._starts[first]), int(self._starts[last]), *_sorted(keys, values)

    def check_sums(self, keys: np.ndarray, values: np.ndarray | None) -> None:
        """Refuse merged edges whose weights or features add up to more than their dtype can hold."""
        for word, bad, value in _not_finite(values):
            dst, src = divmod(int(keys[bad]), self.num_nodes)
            edges = f"{self._where}: the {word}s of the edges {src} -> {dst}"
            raise HpcgnnError(f"{edges} add up to more than {value.dtype.name} holds")

    def close(self) -> None:
        for spool in filter(None, (self._keys, self._values)):
            spool.close()

    def _gather(self, spool: Spool, first: int, last: int) -> np.ndarray:
        segments = [(int(bounds[first]), int(bounds[last])) for bounds in self._bounds]
        out = np.empty(sum(end - begin for begin, end in segments), spool.dtype)
        position = 0
        for begin, end in segments:
            spool.read_into(out[position : position + end - begin], begin)
            position += end - begin
        return out

    def _check_ids(self, src: np.ndarray, dst: np.ndarray) -> None:
        for ids in (src, dst) if src.size else ():
            smallest = int(ids.min())
            self.smallest = smallest if self.smallest is None else min(smallest, self.smallest)
            if smallest < 0 or ids.max() >= self.num_nodes:
                bad = int(np.flatnonzero((ids < 0) | (ids >= self.num_nodes))[0])
                raise HpcgnnError(
                    f"{self._where}: edge {self._edges_seen + bad:,} is {src[bad]} -> {dst[bad]}, "
                    f"but node ids run from 0 to {self.num_nodes - 1}"
                )

    def _check_types(self, chunk: EdgeChunk) -> None:
        if chunk.type is None or not chunk.type.size:
            return
        wrong = (chunk.type < 0) | (chunk.type >= self._form.num_types)
        if wrong.any():
            bad, last = int(wrong.argmax()), self._form.num_types - 1
            raise HpcgnnError(f"{self._edge(chunk, bad)} has type {chunk.type[bad]}, but types run from 0 to {last}")

    def _check_finite(self, chunk: EdgeChunk, values: np.ndarray | None) -> None:
        for word, bad, value in _not_finite(values):
            form = f"finite {value.dtype.name} numbers"
            raise HpcgnnError(f"{self._edge(chunk, bad)} has {word} {value}: {word}s must be {form}")

    def _edge(self, chunk: EdgeChunk, number: int) -> str:
        return f"{self._where}: edge {self._edges_seen + number:,} ({chunk.src[number]} -> {chunk.dst[number]})"

    def _check_digits(self, chunk: EdgeChunk, given: np.ndarray, weight: np.ndarray) -> None:
        """Refuse whole numbers whose last digits float32 does not hold: these are times or ids, and not weights."""
        if given.dtype == np.float32 or not np.any(is_large := np.abs(weight) >= _EXACT_FLOAT32):
            return
        large, stored = given[is_large].astype(np.float64), weight[is_large].astype(np.float64)
        lost = (large != stored) & (large == np.trunc(large)) & (np.abs(large) < _LARGEST_INT)
        if lost.any():
            bad = int(np.flatnonzero(is_large)[lost.argmax()])
            raise HpcgnnError(
                f"{self._edge(chunk, bad)} has weight {int(given[bad])}, of which float32 would keep {weight[bad]:.0f}: leave "
                "out a column of times or ids, or divide all weights"
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


def _not_finite(values: np.ndarray | None) -> Iterator[tuple[str, int, np.floating[Any]]]:
    """The first value that is not finite, of weights and of features: ``("weight" or "feature", its edge, the value)``."""
    for name, word in (("weight", "weight"), ("attr", "feature")):
        if values is not None and name in (values.dtype.names or ()):
            wrong = ~np.isfinite(values[name])
            if wrong.any():
                first = tuple(np.argwhere(wrong)[0])
                yield word, int(first[0]), values[name][first]


def _sorted(keys: np.ndarray, values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if values is None:
        keys.sort()
        return keys, None
    # The sort is stable, so that parallel edges of a type keep their order, and the result does not depend on the chunks.
    is_typed = "type" in (values.dtype.names or ())
    order = np.lexsort((values["type"], keys)) if is_typed else np.argsort(keys, kind="stable")
    return keys[order], values[order]


def _merge_equal(keys: np.ndarray, values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if not keys.size:
        return keys, values
    differs = keys[1:] != keys[:-1]
    names = () if values is None else values.dtype.names or ()
    if values is not None and "type" in names:
        differs |= values["type"][1:] != values["type"][:-1]
    first = np.flatnonzero(np.concatenate([[True], differs]))
    if values is None:
        return keys[first], None
    merged = values[first]
    with np.errstate(over="ignore"):  # the caller checks the sums
        for name in {*names} - {"type", "split"}:
            merged[name] = np.add.reduceat(values[name].astype(np.float64), first)
    if "split" in names:
        merged["split"] = np.minimum.reduceat(values["split"], first)
    return keys[first], merged


def _add_loops(
    keys: np.ndarray, values: np.ndarray | None, first: int, last: int, num_nodes: int
) -> tuple[np.ndarray, np.ndarray | None]:
    loops = np.arange(first, last, dtype=np.int64) * (num_nodes + 1)
    at = np.searchsorted(keys, loops)
    missing = np.ones(loops.size, bool)
    inside = at < keys.size
    missing[inside] = keys[at[inside]] != loops[inside]
    if values is not None:
        loop = np.zeros(1, values.dtype)
        if "weight" in (values.dtype.names or ()):
            loop["weight"] = 1
        values = np.insert(values, at[missing], loop)
    return np.insert(keys, at[missing], loops[missing]), values
