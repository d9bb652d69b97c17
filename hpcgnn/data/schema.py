"""The declaration of all arrays of ``graph.h5`` and ``parts.h5``: dtype, shape in terms of the counts, and range of values.
Writers allocate arrays by it. Readers (:mod:`hpcgnn.data.graph_file`) check every value by it, so that no other code has to check
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

import numpy as np

from hpcgnn.data import h5

SINGLE_LABEL, MULTI_LABEL, REGRESSION, NO_TASK = "single-label", "multi-label", "regression", "none"
FULL, HALF = "float32", "float16"
MASKS = ("train_mask", "val_mask", "test_mask")

NODES, BORDERS, WHOLE = "a row for each node", "a row for each node and one more", "one for the file"
SHARES = "rows of no node"


@dataclass(frozen=True)
class Rule:
    """The declaration of one array.

    shape, dtype: as stored, contiguous. rows: the division of rows into slabs: :data:`NODES`, :data:`BORDERS` (offsets;
    neighbouring slabs share one), :data:`WHOLE`, :data:`SHARES` (each slab has as many), or the name of the array of offsets that
    divides this one. low, high: the smallest and largest integer; floating-point numbers must be finite, or, with
    ``may_be_nan``, NaN. below: in int64 arrays with ``low`` -1, numbers from 0 to ``below - 1`` are not allowed either. step: the
    least difference from each value to the next. within_slabs: ``step`` holds only inside each slab. ends: first and last value
    of the array.
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
    may_be_nan: bool = False

    @property
    def row_size(self) -> int:
        """Number of values in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


Rules = dict[str, Rule]


@dataclass(frozen=True)
class NodeType:
    """A type of nodes: ``count`` nodes, whose original ids follow those of the types before it. Its ``columns`` features are in
    columns of the graph's x of their own, which follow those of the types before it. classes: number of classes of its labels,
    or of targets of regression, 0 if its nodes have none."""

    name: str
    count: int
    columns: int = 0
    classes: int = 0


@dataclass(frozen=True)
class EdgeType:
    """A type of edges. source, destination: the numbers of the types of nodes at its ends. columns: number of its features, the
    first columns of the graph's ``edge_attr``, whose other columns are 0."""

    source: int
    name: str
    destination: int
    columns: int = 0


@dataclass(frozen=True)
class GraphMeta:
    """Counts and properties of a graph. num_classes: number of classes, or of targets of regression. x_nnz: number of stored
    feature values of sparse features, None for dense ones. x_dtype, edge_attr_dtype: dtype of dense features of nodes and of
    edges on disk; computations use float32. num_edge_types: 0 for a graph whose edges have no types. has_link_split: whether
    each edge has a set of :data:`LINK_SETS`. provenance: the source, options and seeds of its conversion. node_types, edge_types:
    those of a graph whose nodes have types, else empty. x_by_type: a row of features has the columns of its node's type only, all
    of them, so that no index is stored; x_nnz is the number of these values. num_asked_links: number of held-out links that come
    with candidates for their ends. num_source_candidates, num_target_candidates: number of those of each source and target, 0 for
    an end that is not asked for."""

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
    node_types: tuple[NodeType, ...] = ()
    edge_types: tuple[EdgeType, ...] = ()
    has_link_split: bool = False
    x_by_type: bool = False
    num_asked_links: int = 0
    num_source_candidates: int = 0
    num_target_candidates: int = 0

    @property
    def node_type_offsets(self) -> np.ndarray:
        """(T + 1,) int64, the first original id of each type of nodes; all nodes are of one type in a graph without."""
        return np.cumsum([0, *([each.count for each in self.node_types] or [self.num_nodes])])

    @property
    def column_offsets(self) -> np.ndarray:
        """(T + 1,) int64, the first column of each type's features."""
        return np.cumsum([0, *(each.columns for each in self.node_types)])

    @property
    def edge_type_ends(self) -> np.ndarray:
        """(2, R) int64, the types of nodes at which the edges of each type begin, and end; zeros if nodes have no types, also for
        a graph without types of edges, which counts as having one."""
        ends = [(each.source, each.destination) for each in self.edge_types]
        return np.array(ends or [(0, 0)] * max(self.num_edge_types, 1), np.int64).T

    @property
    def edge_type_names(self) -> list[tuple[str, str, str]]:
        """The types of edges as PyG names them: (type of the sources, relation, type of the destinations)."""
        names = [each.name for each in self.node_types]
        return [(names[each.source], each.name, names[each.destination]) for each in self.edge_types]

    def node_types_of(self, ids: np.ndarray) -> np.ndarray:
        """(n,) int64 numbers of the types of nodes, by their original ids."""
        return np.searchsorted(self.node_type_offsets, ids, side="right") - 1

    def type_runs(self, ids: np.ndarray, first: int) -> np.ndarray:
        """(r, 2) int64 ``(begin, type)`` of runs of nodes of one type, from original ids (n,), counted from ``first``."""
        kinds = self.node_types_of(ids)
        begins = np.flatnonzero(np.diff(kinds, prepend=-1))
        return np.stack((first + begins, kinds[begins]), axis=1)

    def wrong_end(self, links: Mapping[str, np.ndarray]) -> str:
        """A phrase about the first node in rows of the arrays of :func:`link_rules` that has another type than the end of its
        link; "" if there is none."""
        types, offsets = links.get("links/type", np.zeros(len(links["links/set"]), np.int64)), self.node_type_offsets
        for end, kinds in zip(("source", "target"), self.edge_type_ends, strict=True):
            low, high = offsets[kinds[types]][:, np.newaxis], offsets[kinds[types] + 1][:, np.newaxis]
            for name in (f"links/{end}", f"links/{end}_candidates"):
                ids = links[name].reshape(len(types), -1) if name in links else np.empty((len(types), 0))
                if (wrong := (ids < low) | (ids >= high)).any():
                    row, column = np.argwhere(wrong)[0]
                    its = f"the {end}s of edges of type {types[row]} are {low[row, 0]} to {high[row, 0] - 1}"
                    return f"{name} holds node {ids[row, column]}, but {its}"
        return ""

    def attributes(self) -> dict[str, Any]:
        """The values as HDF5 attributes."""
        stored_nnz = -1 if self.x_nnz is None else self.x_nnz
        texts = {name: json.dumps([astuple(each) for each in getattr(self, name)]) for name in _TYPE_RECORDS}
        return asdict(self) | texts | {"provenance": json.dumps(self.provenance), "x_nnz": stored_nnz}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> GraphMeta:
        """The inverse of :meth:`attributes`, for attributes of the right types. Raises ValueError for values that are wrong.
        Files of older versions lack those of :data:`ADDED`."""
        values = {name: attributes[name] for name in ATTRIBUTES if name not in ADDED or name in attributes}
        for name, value in values.items():
            if name.startswith("num_") and value < 0:
                raise ValueError(f"{name} is {value}")
        if values["task"] not in (SINGLE_LABEL, MULTI_LABEL, REGRESSION, NO_TASK):
            raise ValueError(f"task is {values['task']!r}")
        for name in ("x_dtype", "edge_attr_dtype"):
            if values.get(name, FULL) not in (FULL, HALF):
                raise ValueError(f"{name} is {values[name]!r}")
        values["provenance"] = json.loads(values["provenance"])
        if not isinstance(values["provenance"], dict):
            raise ValueError("provenance is not a JSON object")
        for name, record in _TYPE_RECORDS.items():
            values[name] = tuple(_of_text(record, each) for each in json.loads(values.get(name, "[]")))
        values["x_nnz"] = None if values["x_nnz"] < 0 else values["x_nnz"]
        meta = cls(**values)
        meta._check_types()
        links, candidates = meta.num_asked_links, meta.num_source_candidates + meta.num_target_candidates
        if bool(links) != bool(candidates) or (links and not meta.has_link_split):
            raise ValueError(
                f"num_asked_links is {links}, with {candidates} candidates, has_link_split {meta.has_link_split}"
            )
        return meta

    def _check_types(self) -> None:
        """Raise ValueError unless the types of nodes and edges have different names, and agree with the counts."""
        nodes, edges = self.node_types, self.edge_types
        if not (nodes or edges or self.x_by_type):
            return
        if not edges or max(end for each in edges for end in (each.source, each.destination)) >= len(nodes):
            raise ValueError("edge_types are not types of edges between node_types")
        counts = {
            "num_nodes": sum(each.count for each in nodes),
            "num_features": sum(each.columns for each in nodes),
            "num_classes": max(each.classes for each in nodes),
            "num_edge_types": len(edges),
            "num_edge_features": max(each.columns for each in edges),
            "x_nnz": sum(each.count * each.columns for each in nodes) if self.x_by_type else self.x_nnz,
        }
        for name, count in counts.items():
            if getattr(self, name) != count:
                raise ValueError(f"{name} is {getattr(self, name)}, but node_types and edge_types have {count}")
        if len({each.name for each in nodes} | {*self.edge_type_names}) < len(nodes) + len(edges):
            raise ValueError("two types have the same name")


_TYPE_RECORDS: dict[str, type] = {"node_types": NodeType, "edge_types": EdgeType}


def _of_text(record: type, values: Any) -> Any:
    """A record of parsed JSON, the list of its values. Raises ValueError for a list of others."""
    kinds = [_TYPES[str(entry.type)] for entry in fields(record)]
    if not isinstance(values, list) or [type(value) for value in values] != kinds:
        raise ValueError(f"{values!r} is no {record.__name__}")
    if any(value < 0 for value in values if not isinstance(value, str)):
        raise ValueError(f"{values!r} has a negative number")
    return record(*values)


_TYPES = {"int": int, "int | None": int, "bool": bool, "str": str, "dict[str, Any]": str,
          "tuple[NodeType, ...]": str, "tuple[EdgeType, ...]": str}  # fmt: skip
ATTRIBUTES: dict[str, type] = {entry.name: _TYPES[str(entry.type)] for entry in fields(GraphMeta)}
"""The types of the attributes in which :class:`GraphMeta` is stored."""
ADDED = {"x_dtype": 3} | dict.fromkeys(("num_edge_types", "num_edge_features", "edge_attr_dtype"), 5)
ADDED |= dict.fromkeys(("node_types", "edge_types"), 6) | dict.fromkeys(("has_link_split", "x_by_type"), 7)
ADDED |= dict.fromkeys(("num_asked_links", "num_source_candidates", "num_target_candidates"), 8)
"""The first version, both of graph files and of parts files, with an attribute that version 1 has not."""
LINK_SETS = ("training", "validation", "test", "reverse")
"""The sets of links by the values of ``edges/split``, from 0. ``reverse`` is the reverse of a held-out link: with ``--task link``
it carries no messages, and is no link of its own. Other tasks, and predictions, know no sets."""
EDGE_VALUES = ("edges/weight", "edges/type", "edges/attr", "edges/split")
"""The arrays with a row for each edge beside its source; a graph has any of them or none."""
NODE_VALUES = tuple(f"nodes/{name}" for name in ("x", "x_indptr", "x_indices", "x_data", "y", *MASKS))
"""The arrays with values of nodes, for which the same holds."""
LINK_VALUES = tuple(
    f"links/{of}" for of in ("source", "type", "target", "set", "source_candidates", "target_candidates")
)
"""The arrays with a row for each held-out link that comes with candidates."""
OPTIONAL = (*NODE_VALUES, *EDGE_VALUES, *LINK_VALUES)


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
    if meta.has_link_split:
        rules["edges/split"] = Rule((edges,), np.dtype(np.uint8), "edges/indptr", high=len(LINK_SETS) - 1)
    if meta.x_nnz is not None:
        rules["nodes/x_indptr"] = _offsets(nodes, meta.x_nnz, BORDERS)
        rows, stored = "nodes/x_indptr", (meta.x_nnz,)
        if not meta.x_by_type:
            rules["nodes/x_indices"] = Rule(stored, np.dtype(np.int32), rows, high=meta.num_features - 1)
        rules["nodes/x_data"] = Rule(stored, np.dtype(meta.x_dtype if meta.x_by_type else np.float32), rows)
    elif meta.num_features:
        rules["nodes/x"] = Rule((nodes, meta.num_features), np.dtype(meta.x_dtype), NODES)
    if meta.task == SINGLE_LABEL:
        rules["nodes/y"] = Rule((nodes,), np.dtype(np.int64), low=-1, high=meta.num_classes - 1)
    elif meta.task == MULTI_LABEL:
        rules["nodes/y"] = Rule((nodes, meta.num_classes), np.dtype(np.uint8), high=1)
    elif meta.task == REGRESSION:
        columns = () if meta.num_classes == 1 else (meta.num_classes,)
        rules["nodes/y"] = Rule((nodes, *columns), np.dtype(np.float32), may_be_nan=True)
    if meta.has_masks:
        rules |= {f"nodes/{mask}": Rule((nodes,), np.dtype(np.bool_), high=1) for mask in MASKS}
    return rules | link_rules(meta)


def link_rules(meta: GraphMeta) -> Rules:
    """The rules of the arrays of links that come with candidates, in any order; nodes are by original ids in all files."""
    links, ids = meta.num_asked_links, np.dtype(np.int64)
    if not links:
        return {}
    rules = {f"links/{end}": Rule((links,), ids, SHARES, high=meta.num_nodes - 1) for end in ("source", "target")}
    if meta.num_edge_types:
        rules["links/type"] = Rule((links,), np.dtype(np.int32), SHARES, high=meta.num_edge_types - 1)
    rules["links/set"] = Rule((links,), np.dtype(np.uint8), SHARES, low=1, high=2)  # of LINK_SETS
    for end, count in (("source", meta.num_source_candidates), ("target", meta.num_target_candidates)):
        if count:
            rules[f"links/{end}_candidates"] = Rule((links, count), ids, SHARES, high=meta.num_nodes - 1)
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


FEW_CLASSES = 1000  # up to this number, a graph may have more classes than nodes


def counts_problem(meta: GraphMeta, file_bytes: int) -> str:
    """A phrase if a count that is no length of an array is too large for the file, as models allocate as many columns; else
    ""."""
    if meta.task == SINGLE_LABEL and meta.num_classes > max(meta.num_nodes, FEW_CLASSES):
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
