"""Computation of the checksums and digests of a file that has been written (:mod:`hpcgnn.data.checksums`,
:mod:`hpcgnn.data.digests`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hpcgnn.base.arguments import check_path
from hpcgnn.data import checksums, h5, plan_store
from hpcgnn.data.digests import ATTRIBUTES, EDGES, FIRST_VERSION
from hpcgnn.data.graph_file import PartsFile, SlabReader, reader_of
from hpcgnn.data.random_kernels import column_keys, sum_of_edges, sum_of_rows, sum_of_sparse_rows
from hpcgnn.data.schema import EDGE_VALUES, MASKS, NO_TASK, SINGLE_LABEL

_BYTES_AT_A_TIME = 1 << 20


class Digests:
    """The digests of an open file, which grow slab by slab. Values are not checked: wrong ones give some digest, and no error.
    For the positions of a parts file all original ids are kept, 8 bytes a node; a graph file needs bounded memory."""

    def __init__(self, reader: SlabReader) -> None:
        self._reader = reader
        meta, name = reader.meta, "nodes/original_ids"
        self._ids = self._read(name, 0, meta.num_nodes) if name in reader.rules else None
        widest = max(meta.num_features, meta.num_classes, len(MASKS), 2 + meta.num_edge_features)
        self._keys = column_keys(widest)
        self._sums = dict.fromkeys(ATTRIBUTES, 0)

    def values(self) -> dict[str, int]:
        """The digests by the names of their attributes."""
        return {name: total % 2**64 for name, total in self._sums.items()}

    def add(self, slab: int) -> None:
        """Read a slab, and add its nodes and the edges into them."""
        first, last = (int(node) for node in self._reader.bounds[slab : slab + 2])
        meta = self._reader.meta
        edge_bytes = 16 + 16 * meta.num_edge_features
        self._in_pieces(first, last, edge_bytes * max(meta.num_edges // max(meta.num_nodes, 1), 1), self._edges)
        if meta.x_nnz is not None:
            self._in_pieces(first, last, 8 * max(meta.x_nnz // max(meta.num_nodes, 1), 1), self._sparse)
        elif meta.num_features:
            self._in_pieces(first, last, 8 * meta.num_features, self._dense)
        if meta.task != NO_TASK:
            self._in_pieces(first, last, 4 * max(meta.num_classes, 4), self._labels)
        if meta.has_masks:
            self._in_pieces(first, last, 16, self._masks)

    def _in_pieces(self, first: int, last: int, row_bytes: int, add: Callable[[int, int, np.ndarray], None]) -> None:
        step = max(_BYTES_AT_A_TIME // row_bytes, 1)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            add(begin, end, np.arange(begin, end) if self._ids is None else self._ids[begin:end])

    def _read(self, name: str, first: int, last: int) -> np.ndarray:
        array = self._reader.arrays[name]
        out = array.empty(last - first)
        for _ in array.pieces(first, last, out):
            pass
        return out

    def _csr(self, prefix: str, first: int, last: int, *names: str) -> list[np.ndarray]:
        """``indptr`` from 0 and the arrays ``names`` of some rows."""
        size = self._reader.rules[f"{prefix}{names[0]}"].shape[0]
        indptr = self._read(f"{prefix}indptr", first, last + 1).clip(0, size)
        begin, end = int(indptr[0]), max(int(indptr[0]), int(indptr[-1]))
        return [indptr.clip(begin, end) - begin, *(self._read(f"{prefix}{name}", begin, end) for name in names)]

    def _edges(self, first: int, last: int, ids: np.ndarray) -> None:
        names = [name.removeprefix("edges/") for name in EDGE_VALUES if name in self._reader.rules]
        indptr, sources, *arrays = self._csr("edges/", first, last, "indices", *names)
        if self._ids is not None:
            sources = self._ids.take(sources, mode="clip")
        bits = self._bits_of_edges(dict(zip(names, arrays, strict=True)))
        self._sums[EDGES] += int(sum_of_edges(ids, indptr, sources, bits))

    def _bits_of_edges(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """(m,) uint32 or uint64 that tells the weight, type, features and set of each edge; empty if edges have none."""
        bits = values["weight"].view(np.uint32) if "weight" in values else np.empty(0, np.uint32)
        columns = [values["type"].astype(np.uint64)] if "type" in values else []
        if "attr" in values:
            columns += [*values["attr"].astype(np.float32, copy=False).view(np.uint32).astype(np.uint64).T]
        columns += [values["split"].astype(np.uint64)] if "split" in values else []
        if not columns:
            return bits
        keys = self._keys if "type" in values else self._keys[1:]
        told = bits.astype(np.uint64) if bits.size else np.zeros(columns[0].size, np.uint64)
        for column, key in zip(columns, keys, strict=False):
            told += column * key
        return told

    def _sparse(self, first: int, last: int, ids: np.ndarray) -> None:
        meta = self._reader.meta
        if meta.x_by_type:
            indptr, values = self._csr("nodes/x_", first, last, "data")
            indptr = np.maximum.accumulate(indptr)  # a damaged one may fall
            begins = meta.column_offsets[meta.node_types_of(ids).clip(0, len(meta.node_types) - 1)] - indptr[:-1]
            columns = (np.repeat(begins, np.diff(indptr)) + np.arange(values.size)).clip(0, meta.num_features - 1)
            values = values.astype(np.float32, copy=False)
        else:
            indptr, columns, values = self._csr("nodes/x_", first, last, "indices", "data")
        keys = self._keys[: meta.num_features]
        self._sums["features_digest"] += int(sum_of_sparse_rows(ids, indptr, columns, values.view(np.uint32), keys))

    def _dense(self, first: int, last: int, ids: np.ndarray) -> None:
        rows = self._read("nodes/x", first, last).astype(np.float32, copy=False)
        self._add_rows("features_digest", ids, rows.view(np.uint32))

    def _labels(self, first: int, last: int, ids: np.ndarray) -> None:
        labels = self._read("nodes/y", first, last)
        labels = labels + 1 if self._reader.meta.task == SINGLE_LABEL else labels
        bits = labels.view(np.uint32) if labels.dtype == np.float32 else labels.astype(np.uint32)
        self._add_rows("labels_digest", ids, bits.reshape(len(ids), -1))

    def _masks(self, first: int, last: int, ids: np.ndarray) -> None:
        masks = [self._read(f"nodes/{name}", first, last) for name in MASKS]
        self._add_rows("splits_digest", ids, np.stack(masks, axis=1).astype(np.uint32))

    def _add_rows(self, name: str, ids: np.ndarray, rows: np.ndarray) -> None:
        self._sums[name] += int(sum_of_rows(ids, rows, self._keys[: rows.shape[1]]))


def store(reader: SlabReader, table: Mapping[str, np.ndarray]) -> None:
    """Write the checksums of :func:`hpcgnn.data.checksums.of_slabs` to the reader's file, which is open for writing."""
    with h5.writing(reader.path, "checksums"):
        checksums.store(reader.file, table, reader.attributes)


def seal(path: str | Path) -> None:
    """Write the checksums and digests of the present contents, plans included, to a ``graph.h5`` or ``parts.h5`` that a program
    has changed. A plan that was made of other edges is no longer used. It takes 8 bytes a node for a parts file. Raises
    HpcgnnError where the file cannot be read or written."""
    check_path("path", path)
    with reader_of(path)(path, "r+", sealed=False) as reader:
        has_digests = reader.attributes["version"] >= FIRST_VERSION
        digests = Digests(reader)
        then = digests.add if has_digests else lambda slab: None
        slabs = range(reader.num_slabs)
        table = checksums.of_slabs(reader.arrays, reader.slab_rows, reader.num_slabs, slabs, then)
        if has_digests:
            reader.attributes |= digests.values()
            with h5.writing(path, "digests"):
                reader.file.attrs.update({name: np.uint64(value) for name, value in digests.values().items()})
        store(reader, table)
        for strategy in plan_store.stored_strategies(reader) if isinstance(reader, PartsFile) else ():
            plan_store.seal_plan(reader, strategy)
