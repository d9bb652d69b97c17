"""The declaration of all arrays of ``graph.h5`` and ``parts.h5``: dtype, shape in terms of the counts, and range of values.
Writers allocate arrays by it. Readers (:mod:`hpcgnn.data.graph_file`) check every value by it, so that no other code has to check
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from hpcgnn.data import h5

SINGLE_LABEL, MULTI_LABEL, NO_TASK = "single-label", "multi-label", "none"
FULL, HALF = "float32", "float16"
MASKS = ("train_mask", "val_mask", "test_mask")

NODES, BORDERS, WHOLE = "a row for each node", "a row for each node and one more", "one for the file"


@dataclass(frozen=True)
class Rule:
    """The declaration of one array.

    shape, dtype: as stored, contiguous. rows: the division of rows into slabs: :data:`NODES`, :data:`BORDERS` (offsets;
    neighbouring slabs share one), :data:`WHOLE`, or the name of the array of offsets that divides this one. low, high: the
    smallest and largest integer; floating-point numbers must be finite. below: in int64 arrays with ``low`` -1, numbers from 0
    to ``below - 1`` are not allowed either. step: the least difference from each value to the next. within_slabs: ``step``
    holds only inside each slab. ends: first and last value of the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: str = NODES
    low: int = 0
    high: int = 0
    below: int = 0
    step: int | None = None
    within_slabs: bool = False
    ends: tuple[int, int] | None = None

    @property
    def row_size(self) -> int:
        """Number of values in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


Rules = dict[str, Rule]


@dataclass(frozen=True)
class GraphMeta:
    """Counts and properties of a graph. x_nnz: number of stored feature values of sparse features, None for dense ones. x_dtype,
    edge_attr_dtype: dtype of dense features of nodes and of edges on disk; computations use float32. num_edge_types: 0 for a
    graph whose edges have no types. provenance: the source, options and seeds of its conversion."""

    num_nodes: int
    num_edges: int
    num_features: int = 0
    num_classes: int = 0
    task: str = NO_TASK
    directed: bool = True
    weighted: bool = False
    x_nnz: int | None = None
    x_dtype: str = FULL
    has_masks: bool = False
    num_edge_types: int = 0
    num_edge_features: int = 0
    edge_attr_dtype: str = FULL
    provenance: dict[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """The values as HDF5 attributes."""
        stored_nnz = -1 if self.x_nnz is None else self.x_nnz
        return asdict(self) | {"provenance": json.dumps(self.provenance), "x_nnz": stored_nnz}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> GraphMeta:
        """The inverse of :meth:`attributes`, for attributes of the right types. Raises ValueError for values that are wrong.
        Files of older versions lack those of :data:`ADDED`."""
        values = {name: attributes[name] for name in ATTRIBUTES if name not in ADDED or name in attributes}
        for name, value in values.items():
            if name.startswith("num_") and value < 0:
                raise ValueError(f"{name} is {value}")
        if values["task"] not in (SINGLE_LABEL, MULTI_LABEL, NO_TASK):
            raise ValueError(f"task is {values['task']!r}")
        for name in ("x_dtype", "edge_attr_dtype"):
            if values.get(name, FULL) not in (FULL, HALF):
                raise ValueError(f"{name} is {values[name]!r}")
        values["provenance"] = json.loads(values["provenance"])
        if not isinstance(values["provenance"], dict):
            raise ValueError("provenance is not a JSON object")
        values["x_nnz"] = None if values["x_nnz"] < 0 else values["x_nnz"]
        return cls(**values)


_TYPES = {"int": int, "int | None": int, "bool": bool, "str": str, "dict[str, Any]": str}
ATTRIBUTES: dict[str, type] = {entry.name: _TYPES[str(entry.type)] for entry in fields(GraphMeta)}
"""The types of the attributes in which :class:`GraphMeta` is stored."""
ADDED = {"x_dtype": 3} | dict.fromkeys(("num_edge_types", "num_edge_features", "edge_attr_dtype"), 5)
"""The first version, both of graph files and of parts files, with an attribute that version 1 has not."""
EDGE_VALUES = ("edges/weight", "edges/type", "edges/attr")
"""The arrays with a row for each edge beside its source; a graph has any of them or none."""


def layout(rules: Mapping[str, Rule]) -> h5.Schema:
    """The shapes and dtypes of datasets to allocate, by name."""
    return {name: (rule.shape, rule.dtype) for name, rule in rules.items()}


def graph_rules(meta: GraphMeta) -> Rules:
    """The rules of a graph's arrays, by original ids or in part order."""
    nodes, edges = meta.num_nodes, meta.num_edges
    rules = {
        "edges/indptr": _offsets(nodes, edges, BORDERS),
        "edges/indices": Rule((edges,), np.dtype(np.int64), "edges/indptr", high=nodes - 1),
    }
    if meta.weighted:
        rules["edges/weight"] = Rule((edges,), np.dtype(np.float32), "edges/indptr")
    if meta.num_edge_types:
        rules["edges/type"] = Rule((edges,), np.dtype(np.int32), "edges/indptr", high=meta.num_edge_types - 1)
    if meta.num_edge_features:
        shape = (edges, meta.num_edge_features)
        rules["edges/attr"] = Rule(shape, np.dtype(meta.edge_attr_dtype), "edges/indptr")
    if meta.x_nnz is not None:
        rules["nodes/x_indptr"] = _offsets(nodes, meta.x_nnz, BORDERS)
        rows, stored = "nodes/x_indptr", (meta.x_nnz,)
        rules["nodes/x_indices"] = Rule(stored, np.dtype(np.int32), rows, high=meta.num_features - 1)
        rules["nodes/x_data"] = Rule(stored, np.dtype(np.float32), rows)
    elif meta.num_features:
        rules["nodes/x"] = Rule((nodes, meta.num_features), np.dtype(meta.x_dtype), NODES)
    if meta.task == SINGLE_LABEL:
        rules["nodes/y"] = Rule((nodes,), np.dtype(np.int64), low=-1, high=meta.num_classes - 1)
    elif meta.task == MULTI_LABEL:
        rules["nodes/y"] = Rule((nodes, meta.num_classes), np.dtype(np.uint8), high=1)
    if meta.has_masks:
        rules |= {f"nodes/{mask}": Rule((nodes,), np.dtype(np.bool_), high=1) for mask in MASKS}
    return rules


def parts_rules(meta: GraphMeta, num_parts: int) -> Rules:
    """The rules of the arrays of a graph in parts, without its plans."""
    nodes = meta.num_nodes
    return graph_rules(meta) | {
        "parts/node_offsets": _offsets(num_parts, nodes, WHOLE),
        "nodes/original_ids": Rule((nodes,), np.dtype(np.int64), high=nodes - 1, step=1, within_slabs=True),
    }


def plan_offset_rules(num_parts: int) -> Rules:
    """The rules of a plan's small arrays with the places at which each part's slabs begin."""
    pairs = Rule((num_parts + 1, 2), np.dtype(np.int64), WHOLE, high=2**62)
    flat = Rule((num_parts + 1,), np.dtype(np.int64), WHOLE, high=2**62)
    return {f"{matrix}_offsets": pairs for matrix in "LSR"} | {f"{way}_offsets": flat for way in ("send", "recv")}


def plan_rules(offsets: Mapping[str, np.ndarray]) -> Rules:
    """The rules of the other arrays of a plan, whose lengths follow from its offsets."""
    rules: Rules = {}
    for matrix in "LSR":
        rows, entries = offsets[f"{matrix}_offsets"][-1].tolist()
        arrays = (("indptr", rows, np.int64), ("indices", entries, np.int32), ("edges", entries, np.int64))
        for name, length, dtype in arrays:
            rules[f"{matrix}_{name}"] = Rule((length,), np.dtype(dtype), f"{matrix}_offsets")
    for way in ("send", "recv"):
        pairs = int(offsets[f"{way}_offsets"][-1])
        rules |= {f"{way}_{name}": Rule((pairs,), np.dtype(np.int64), f"{way}_offsets") for name in PAIR_ARRAYS}
    return rules


PAIR_ARRAYS = ("peers", "post", "pre")


def _offsets(count: int, total: int, rows: str) -> Rule:
    """The rule of offsets (count + 1,) that divide ``total`` entries among ``count`` nodes or parts."""
    return Rule((count + 1,), np.dtype(np.int64), rows, high=total, step=0, ends=(0, total))


_FEW_CLASSES = 1000  # up to this number, a graph may have more classes than nodes


def counts_problem(meta: GraphMeta, file_bytes: int) -> str:
    """A phrase if a count that is no length of an array is too large for the file, as models allocate as many columns; else
    ""."""
    if meta.task == SINGLE_LABEL and meta.num_classes > max(meta.num_nodes, _FEW_CLASSES):
        return f"num_classes is {meta.num_classes} for {meta.num_nodes} nodes"
    if meta.task == NO_TASK and meta.num_classes:
        return f"num_classes is {meta.num_classes} without labels"
    counts = {
        "features": meta.num_features, "classes": meta.num_classes,
        "types of edges": meta.num_edge_types, "features of edges": meta.num_edge_features,
    }  # fmt: skip
    if max(counts.values()) > file_bytes:
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"it has {file_bytes} bytes for {told}"
    return ""
