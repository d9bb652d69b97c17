"""A summary of a ``graph.h5`` or a ``parts.h5`` for people: counts, degrees, labels, splits, parts, rows of plans.

One process reads slab after slab, in O(nodes of a slab + parts) memory, and O(pairs) for a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import MASKS, SlabReader
from hpcgnn.data.parts_file import MADE_BY, PartsFile
from hpcgnn.data.schema import MULTI_LABEL, NO_TASK
from hpcgnn.plan.volume import PairRows, describe

_EDGES_AT_A_TIME = 1 << 22


def contents(reader: SlabReader, advance: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """The summary as plain values, for JSON. ``advance(1)`` is called after each slab.

    Not all arrays are read (:mod:`hpcgnn.data.whole_check` reads all).

    Raises:
        HpcgnnError: where an array that is read is damaged; the sentence names the file and the array.
    """
    meta = reader.meta
    counts = _Counts(reader)
    for slab in range(reader.num_slabs):
        counts.add(slab)
        advance(1)
    found: dict[str, Any] = {
        "kind": reader.KIND,
        "version": reader.attributes["version"],
        "uuid": reader.uuid,
        "nodes": meta.num_nodes,
        "edges": meta.num_edges,
        "directed": meta.directed,
        "weighted": meta.weighted,
        "degrees": counts.degrees(),
        "features": _features(reader),
        "task": meta.task,
        "classes": meta.num_classes,
        "labels": counts.labels(),
        "splits": {name.removesuffix("_mask"): int(counts.masks[name].sum()) for name in MASKS if meta.has_masks},
        "provenance": meta.provenance,
        "data": reader.data,
        "checksums": reader.checksums is not None,
    }
    return found | (_parts(reader, counts) if isinstance(reader, PartsFile) else {})


def _features(reader: SlabReader) -> dict[str, Any]:
    meta = reader.meta
    if not meta.num_features:
        return {"number": 0}
    stored = f"dense {meta.x_dtype}" if meta.x_nnz is None else "sparse float32 (CSR)"
    values = meta.num_nodes * meta.num_features if meta.x_nnz is None else meta.x_nnz
    return {"number": meta.num_features, "stored": stored, "values": values}


class _Counts:
    """Counts that grow slab by slab. nodes, edges, cut, masks: (slabs,) int64; ``cut`` counts in-edges from other parts."""

    def __init__(self, reader: SlabReader) -> None:
        self.reader, self.meta = reader, reader.meta
        slabs = reader.num_slabs
        self.nodes = np.diff(reader.bounds)
        self.edges, self.cut = np.zeros(slabs, np.int64), np.zeros(slabs, np.int64)
        self.masks = {name: np.zeros(slabs, np.int64) for name in MASKS}
        self.without_in_edges, self.largest = 0, 0
        self.smallest: int | None = None
        self.by_degree = np.zeros(64, np.int64)
        self.by_class = np.zeros(self.meta.num_classes, np.int64)
        self.labelled = 0

    def add(self, slab: int) -> None:
        """Read a slab, and add its counts."""
        first, last = self.reader.bounds[slab : slab + 2].tolist()
        offsets = self.reader.indptr(first, last, slab=slab)
        degrees = np.diff(offsets)
        if degrees.size:
            least = int(degrees.min())
            self.smallest = least if self.smallest is None else min(least, self.smallest)
            self.largest = max(int(degrees.max()), self.largest)
            self.without_in_edges += int((degrees == 0).sum())
            bits = np.frexp(degrees)[1]  # binary digits: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7
            self.by_degree += np.bincount(bits, minlength=self.by_degree.size)
        self.edges[slab] = int(offsets[-1] - offsets[0])
        if isinstance(self.reader, PartsFile):
            self.cut[slab] = self._edges_from_elsewhere(int(offsets[0]), int(offsets[-1]), first, last)
        for name in MASKS if self.meta.has_masks else ():
            self.masks[name][slab] = int(self.reader.read(f"nodes/{name}", first, last, slab).sum())
        self._add_labels(self.reader.labels(first, last, slab))

    def _edges_from_elsewhere(self, begin: int, end: int, first: int, last: int) -> int:
        found = 0
        for start in range(begin, end, _EDGES_AT_A_TIME):
            sources = self.reader.sources(start, min(start + _EDGES_AT_A_TIME, end))
            found += int(((sources < first) | (sources >= last)).sum())
        return found

    def _add_labels(self, labels: np.ndarray | None) -> None:
        if labels is None:
            return
        if self.meta.task == MULTI_LABEL:
            self.by_class += labels.sum(axis=0, dtype=np.int64)
            self.labelled += int(labels.any(axis=1).sum())
        else:
            known = labels[labels >= 0]
            self.by_class += np.bincount(known, minlength=self.by_class.size)
            self.labelled += known.size

    def degrees(self) -> dict[str, Any]:
        """A summary of the in-degrees of all nodes."""
        nodes = self.meta.num_nodes
        histogram = {_span(bits): int(count) for bits, count in enumerate(self.by_degree) if count}
        return {
            "smallest": self.smallest,
            "mean": self.meta.num_edges / nodes if nodes else None,
            "largest": self.largest,
            "without_in_edges": self.without_in_edges,
            "histogram": histogram,
        }

    def labels(self) -> dict[str, Any]:
        """The number of nodes with a label, and nodes by class; empty for a graph without labels."""
        return {} if self.meta.task == NO_TASK else {"nodes": self.labelled, "by_class": self.by_class.tolist()}


def _span(bits: int) -> str:
    """The range of degrees with this many binary digits: ``_span(3) == '4-7'``."""
    low, high = (1 << bits) >> 1, (1 << bits) - 1
    return f"{low}" if low >= high else f"{low}-{high}"


def _parts(parts: PartsFile, counts: _Counts) -> dict[str, Any]:
    weighed = {"nodes": counts.nodes, "edges": counts.edges, "training_nodes": counts.masks["train_mask"]}
    return {
        "parts": parts.num_parts,
        "made_by": {name: parts.attributes[name] for name in MADE_BY if name in parts.attributes},
        "balance": {name: float(each.max() / each.mean()) for name, each in weighed.items() if each.any()},
        "cut_edges": int(counts.cut.sum()),
        "plans": {name: _rows(parts, name) for name in plan_store.stored_strategies(parts)},
    }


def _rows(parts: PartsFile, strategy: str) -> dict[str, int]:
    """Numbers of rows that one exchange of the plan sends in one direction."""
    told = describe(PairRows(*plan_store.read_all_pairs(parts, strategy)), parts.num_parts, bytes_per_row=0)
    return {
        "pairs_of_parts": told["pairs"],
        "rows": told["rows"],
        "rows_summed_before_sending": told["pre_rows"],
        "rows_of_the_busiest_part": max(told["max_rows_sent"], told["max_rows_received"]),
    }
