"""A check of a whole ``graph.h5`` or ``parts.h5`` by one process, slab after slab, every value and every checksum, plans
included, and a summary for people. It takes the memory of the largest part's plan, O(parts), and for digests of parts 8 bytes a
node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from hpcgnn.data import h5, names, plan_store
from hpcgnn.data.graph_file import MADE_BY, PartsFile, SlabReader
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.data.schema import LINK_SETS, MASKS, MULTI_LABEL, NO_TASK, REGRESSION, GraphMeta
from hpcgnn.data.stored import sum_of_hashes
from hpcgnn.plan import AggregationPlan, SparseMatrix
from hpcgnn.plan.plan import describe, offsets_of

_IDS_AT_A_TIME, _EDGES_AT_A_TIME = 1 << 20, 1 << 22
_OF_ASKED = ("asked_links", "source_candidates", "target_candidates")


def count_steps(reader: SlabReader) -> int:
    """The number of times that :func:`verify` calls ``advance(1)``."""
    return reader.num_slabs * (1 + len(_plans(reader)))


def verify(reader: SlabReader, advance: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Check everything, and return a summary of the file. HpcgnnError names the file, the array and its part or block."""
    # It imports numba, and a wrong option of `hpcgnn check` is told before that.
    from hpcgnn.data.sealing import Digests

    ids, digests = 0, Digests(reader) if reader.digests else None
    for slab in range(reader.num_slabs):
        reader.verify([slab])
        if digests is not None:
            digests.add(slab)
        if isinstance(reader, PartsFile):
            ids += sum_of_hashes(reader.read("nodes/original_ids", *reader.part(slab)))
        advance(1)
    if isinstance(reader, PartsFile):
        _check_ids(reader, ids)
    if digests is not None and digests.values() != reader.digests:
        raise h5.damaged(reader.path, "its digests are not those of its data")
    if reader.meta.node_types:
        slabs = pairwise(reader.bounds.tolist())
        runs = np.concatenate([reader.meta.type_runs(reader.ids(*each), each[0]) for each in slabs])
        reader.check_types(0, reader.meta.num_nodes, runs)
    for _ in reader.links(0, reader.meta.num_asked_links):
        pass
    plans = {name: _verify_plan(reader, name, advance) for name in _plans(reader) if isinstance(reader, PartsFile)}
    rules = [*reader.rules.values(), *(array.rule for plan in plans.values() for array in plan.arrays.values())]
    return _identity(reader) | {
        f"{reader.SLAB}s": reader.num_slabs,
        "arrays": len(rules),
        "bytes": sum(rule.dtype.itemsize * rule.shape[0] * rule.row_size for rule in rules),
        "plans": list(plans),
        "plans_out_of_use": _unused_plans(reader),
        "checksums": reader.checksums is not None,
        "plans_without_checksums": [name for name, plan in plans.items() if plan.checksums is None],
    }


def _identity(reader: SlabReader) -> dict[str, Any]:
    meta = reader.meta
    found = {"kind": reader.KIND, "version": reader.attributes["version"], "uuid": reader.uuid}
    return found | {"nodes": meta.num_nodes, "edges": meta.num_edges}


def _plans(reader: SlabReader) -> list[str]:
    return plan_store.stored_strategies(reader) if isinstance(reader, PartsFile) else []


def _unused_plans(reader: SlabReader) -> list[str]:
    group = h5.child(reader.file, "plan")
    if not isinstance(group, h5py.Group):
        return []
    with h5.reading(reader.path, "plan"):
        return sorted(set(group) - set(_plans(reader)))


def _check_ids(parts: PartsFile, found: int) -> None:
    """Raise HpcgnnError unless ``found``, the sum of the hashes of all parts' ids, is that of 0 to N - 1."""
    nodes, wanted = parts.meta.num_nodes, 0
    for begin in range(0, nodes, _IDS_AT_A_TIME):
        wanted += sum_of_hashes(np.arange(begin, min(begin + _IDS_AT_A_TIME, nodes)))
    if (found - wanted) % 2**64:
        raise h5.damaged(parts.path, f"nodes/original_ids are not the numbers from 0 to {nodes - 1}")


def _verify_plan(parts: PartsFile, strategy: str, advance: Callable[[int], object]) -> StoredPlan:
    """Check every part's plan, that senders and receivers agree about rows, and that each part's edges are all in the plans."""
    stored = StoredPlan(parts, strategy)
    stored.pairs()
    counted = np.zeros(parts.num_parts, np.int64)
    for part in range(parts.num_parts):
        for receiver, edges in _edges_of(part, stored.part(part, edges=False)):
            counted[receiver] += edges
        advance(1)
    for part, edges in enumerate(counted.tolist()):
        first, last = parts.slab_rows("edges/indices", part)
        if edges != last - first:
            wrong = f"plan/{strategy} has {edges} edges, but part {part} has {last - first}"
            raise h5.damaged(parts.path, wrong)
    return stored


def _edges_of(part: int, plan: AggregationPlan[SparseMatrix]) -> Iterable[tuple[int, int]]:
    """``(receiver, edges)``: the edges to each receiver in the plan of ``part``. An entry that only moves a row is no edge."""
    yield part, plan.local.indices.size + plan.receive.indices.size - int(plan.receive_from.pre.sum())
    peers, post, pre = plan.send_to.peers, plan.send_to.post, plan.send_to.pre
    entries = np.diff(plan.send.indptr[offsets_of(post + pre)])
    yield from zip(peers.tolist(), (entries - post).tolist(), strict=True)


def contents(reader: SlabReader, advance: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """The summary as plain values, for JSON. ``advance(1)`` is called after each slab. Takes O(nodes of a slab + parts) memory,
    and O(pairs) for a plan. Not all arrays are read; HpcgnnError names one that is damaged."""
    meta = reader.meta
    counts = _Counts(reader)
    for slab in range(reader.num_slabs):
        counts.add(slab)
        advance(1)
    found = _identity(reader) | {
        "directed": meta.directed,
        "weighted": meta.weighted,
        "node_types": [asdict(each) for each in meta.node_types],
        "edge_types": counts.by_edge_type.tolist(),
        "edge_type_names": ["__".join(each) for each in meta.edge_type_names] or names.read(reader, names.EDGE_TYPES),
        "edge_features": {"number": meta.num_edge_features, "stored": f"dense {meta.edge_attr_dtype}"},
        "link_split": dict(zip(LINK_SETS, counts.by_link_set.tolist(), strict=True)) if meta.has_link_split else {},
        "asked_links": {name: getattr(meta, f"num_{name}") for name in _OF_ASKED if meta.num_asked_links},
        "degrees": counts.degrees(),
        "features": _features(meta),
        "task": meta.task,
        "classes": meta.num_classes,
        "labels": {} if meta.task == NO_TASK else {"nodes": counts.labelled, "by_class": counts.by_class.tolist()},
        "splits": {name.removesuffix("_mask"): int(counts.masks[name].sum()) for name in MASKS if meta.has_masks},
        "provenance": meta.provenance,
        "data": reader.data,
        "checksums": reader.checksums is not None,
    }
    return found | (_parts(reader, counts) if isinstance(reader, PartsFile) else {})


def _features(meta: GraphMeta) -> dict[str, Any]:
    if not meta.num_features:
        return {"number": 0}
    stored = f"dense {meta.x_dtype}" if meta.x_nnz is None else "sparse float32 (CSR)"
    stored = f"dense {meta.x_dtype} of each type" if meta.x_by_type else stored
    values = meta.num_nodes * meta.num_features if meta.x_nnz is None else meta.x_nnz
    return {"number": meta.num_features, "stored": stored, "values": values}


class _Counts:
    """Counts that grow slab by slab. nodes, edges, cut, masks: (slabs,) int64; ``cut`` counts in-edges from other parts."""

    def __init__(self, reader: SlabReader) -> None:
        slabs = reader.num_slabs
        self.reader, self.meta, self.nodes = reader, reader.meta, np.diff(reader.bounds)
        self.edges, self.cut = np.zeros(slabs, np.int64), np.zeros(slabs, np.int64)
        self.masks = {name: np.zeros(slabs, np.int64) for name in MASKS}
        self.extremes: list[int] = []  # smallest and largest degree of each slab with nodes
        self.by_degree = np.zeros(64, np.int64)  # by binary digits: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7
        self.by_class = np.zeros(self.meta.num_classes, np.int64)
        self.by_edge_type = np.zeros(self.meta.num_edge_types, np.int64)
        self.by_link_set = np.zeros(len(LINK_SETS), np.int64)
        self.labelled = 0

    def add(self, slab: int) -> None:
        """Read a slab, and add its counts."""
        first, last = self.reader.bounds[slab : slab + 2].tolist()
        offsets = self.reader.indptr(first, last, slab=slab)
        degrees = np.diff(offsets)
        if degrees.size:
            self.extremes += [int(degrees.min()), int(degrees.max())]
            self.by_degree += np.bincount(np.frexp(degrees)[1], minlength=self.by_degree.size)
        begin, end = int(offsets[0]), int(offsets[-1])
        self.edges[slab] = end - begin
        for start in range(begin, end if isinstance(self.reader, PartsFile) else begin, _EDGES_AT_A_TIME):
            sources = self.reader.read("edges/indices", start, min(start + _EDGES_AT_A_TIME, end))
            self.cut[slab] += int(((sources < first) | (sources >= last)).sum())
        for start in range(begin, end, _EDGES_AT_A_TIME):
            edges = start, min(start + _EDGES_AT_A_TIME, end)
            of_edges = (
                (self.reader.of_edges("type", *edges), self.by_edge_type),
                (self.reader.of_edges("split", *edges), self.by_link_set),
            )
            for values, totals in of_edges:
                totals += 0 if values is None else np.bincount(values, minlength=totals.size)
        for name in MASKS if self.meta.has_masks else ():
            self.masks[name][slab] = int(self.reader.read(f"nodes/{name}", first, last, slab).sum())
        labels = self.reader.labels(first, last, slab)
        if labels is not None and self.meta.task == MULTI_LABEL:
            self.by_class += labels.sum(axis=0, dtype=np.int64)
            self.labelled += int(labels.any(axis=1).sum())
        elif labels is not None and self.meta.task == REGRESSION:
            there = ~np.isnan(labels)
            self.by_class += there.sum(axis=0)
            self.labelled += int((there if there.ndim == 1 else there.any(axis=1)).sum())
        elif labels is not None:
            known = labels[labels >= 0]
            self.by_class += np.bincount(known, minlength=self.by_class.size)
            self.labelled += known.size

    def degrees(self) -> dict[str, Any]:
        """A summary of the in-degrees of all nodes."""
        nodes = self.meta.num_nodes
        return {
            "smallest": min(self.extremes, default=None),
            "mean": self.meta.num_edges / nodes if nodes else None,
            "largest": max(self.extremes, default=0),
            "without_in_edges": int(self.by_degree[0]),
            "histogram": {_span(bits): int(count) for bits, count in enumerate(self.by_degree) if count},
        }


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
    told = describe(StoredPlan(parts, strategy).pairs(), parts.num_parts, bytes_per_row=0)
    return {
        "pairs_of_parts": told["pairs"],
        "rows": told["rows"],
        "rows_summed_before_sending": told["pre_rows"],
        "rows_of_the_busiest_part": max(told["max_rows_sent"], told["max_rows_received"]),
    }
