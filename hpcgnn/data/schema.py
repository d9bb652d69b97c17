"""What ``graph.h5`` and ``parts.h5`` hold: every array with its dtype, its shape in terms of the counts, and its values.

This is the one declaration. Writers allocate by it, and every reader looks by it (:mod:`hpcgnn.data.graph_file`), once, when the
bytes come in, so that nothing behind it has to ask again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError

SINGLE_LABEL, MULTI_LABEL, NO_TASK = "single-label", "multi-label", "none"
FULL, HALF = "float32", "float16"
MASKS = ("train_mask", "val_mask", "test_mask")

NODES, BORDERS, WHOLE = "a row for each node", "a row for each node and one more", "one for the file"


@dataclass(frozen=True)
class Rule:
    """One array, and what its values are.

    shape, dtype: as stored, contiguous. rows: how the rows fall into slabs: :data:`NODES`, :data:`BORDERS` (offsets, of which
    neighbouring slabs share one), :data:`WHOLE`, or the name of the array of offsets that divides this one. low, high: of
    integers; floating-point numbers are finite. below: of int64, numbers from 0 to this one do not occur either.
    step: by how much a value is above the one before it, at least. within_slabs: ``step`` holds inside a slab alone.
    ends: first and last value of the array.
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
        """Values of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


Rules = dict[str, Rule]


@dataclass(frozen=True)
class GraphMeta:
    """What a graph holds; ``x_nnz`` is None for dense features, else the number of stored feature values.

    ``x_dtype``: of dense features on disk, ``float32`` or ``float16``; they are float32 wherever they are computed with.
    """

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
    provenance: dict[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """As HDF5 attributes."""
        stored_nnz = -1 if self.x_nnz is None else self.x_nnz
        return asdict(self) | {"provenance": json.dumps(self.provenance), "x_nnz": stored_nnz}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> GraphMeta:
        """The inverse of :meth:`attributes`, of attributes of the right types. Raises ValueError saying what is wrong.

        Before version 3 all features were float32, and no attribute said so.
        """
        values = {name: attributes[name] for name in ATTRIBUTES if name != "x_dtype" or name in attributes}
        for name in ("num_nodes", "num_edges", "num_features", "num_classes"):
            if values[name] < 0:
                raise ValueError(f"{name} is {values[name]}")
        if values["task"] not in (SINGLE_LABEL, MULTI_LABEL, NO_TASK):
            raise ValueError(f"task is {values['task']!r}")
        if values.get("x_dtype", FULL) not in (FULL, HALF):
            raise ValueError(f"x_dtype is {values['x_dtype']!r}")
        values["provenance"] = json.loads(values["provenance"])
        if not isinstance(values["provenance"], dict):
            raise ValueError("provenance is no JSON object")
        values["x_nnz"] = None if values["x_nnz"] < 0 else values["x_nnz"]
        return cls(**values)

    def schema(self) -> h5.Schema:
        """Dataset names with shapes and dtypes."""
        return layout(graph_rules(self))


_TYPES = {"int": int, "int | None": int, "bool": bool, "str": str, "dict[str, Any]": str}
ATTRIBUTES: dict[str, type] = {entry.name: _TYPES[str(entry.type)] for entry in fields(GraphMeta)}
"""The types of the attributes that :class:`GraphMeta` is stored as."""


def layout(rules: Mapping[str, Rule]) -> h5.Schema:
    """The shapes and dtypes to allocate."""
    return {name: (rule.shape, rule.dtype) for name, rule in rules.items()}


def graph_rules(meta: GraphMeta) -> Rules:
    """The arrays of a graph, in original ids or in part order."""
    nodes, edges = meta.num_nodes, meta.num_edges
    rules = {"edges/indptr": borders(nodes, edges), "edges/indices": integers(edges, nodes, "edges/indptr")}
    if meta.weighted:
        rules["edges/weight"] = numbers((edges,), "edges/indptr")
    if meta.x_nnz is not None:
        rules["nodes/x_indptr"] = borders(nodes, meta.x_nnz)
        rules["nodes/x_indices"] = integers(meta.x_nnz, meta.num_features, "nodes/x_indptr", np.int32)
        rules["nodes/x_data"] = numbers((meta.x_nnz,), "nodes/x_indptr")
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
    """The arrays of a graph in parts, plans apart."""
    nodes = meta.num_nodes
    return graph_rules(meta) | {
        "parts/node_offsets": tiles(num_parts, nodes),
        "nodes/original_ids": Rule((nodes,), np.dtype(np.int64), high=nodes - 1, step=1, within_slabs=True),
    }


def plan_offset_rules(num_parts: int) -> Rules:
    """The small arrays of a plan that say where each part's slabs begin; they begin with 0 and never fall."""
    pairs = Rule((num_parts + 1, 2), np.dtype(np.int64), WHOLE, high=2**62)
    flat = Rule((num_parts + 1,), np.dtype(np.int64), WHOLE, high=2**62)
    return {f"{matrix}_offsets": pairs for matrix in "LSR"} | {f"{way}_offsets": flat for way in ("send", "recv")}


def plan_rules(offsets: Mapping[str, np.ndarray]) -> Rules:
    """The other arrays of a plan, as long as its offsets say."""
    rules: Rules = {}
    for matrix in "LSR":
        rows, entries = offsets[f"{matrix}_offsets"][-1].tolist()
        for name, length, dtype in (
            ("indptr", rows, np.int64),
            ("indices", entries, np.int32),
            ("edges", entries, np.int64),
        ):
            rules[f"{matrix}_{name}"] = Rule((length,), np.dtype(dtype), f"{matrix}_offsets")
    for way in ("send", "recv"):
        pairs = int(offsets[f"{way}_offsets"][-1])
        rules |= {f"{way}_{name}": Rule((pairs,), np.dtype(np.int64), f"{way}_offsets") for name in PAIR_ARRAYS}
    return rules


PAIR_ARRAYS = ("peers", "post", "pre")


def borders(count: int, total: int) -> Rule:
    """Offsets (count + 1) that divide ``total`` entries among ``count`` rows."""
    return Rule((count + 1,), np.dtype(np.int64), BORDERS, high=total, step=0, ends=(0, total))


def tiles(count: int, total: int) -> Rule:
    """As :func:`borders`, of things that are fewer than nodes."""
    return Rule((count + 1,), np.dtype(np.int64), WHOLE, high=total, step=0, ends=(0, total))


def integers(length: int, below: int, rows: str, dtype: type = np.int64) -> Rule:
    """(length,) numbers from 0 to ``below - 1``."""
    return Rule((length,), np.dtype(dtype), rows, high=below - 1)


def numbers(shape: tuple[int, ...], rows: str) -> Rule:
    """Finite float32."""
    return Rule(shape, np.dtype(np.float32), rows)


_FEW_CLASSES = 1000  # a few nodes of a task with more classes than that are no damage


def check_counts(meta: GraphMeta, file_bytes: int) -> None:
    """Compare the counts that no array has as its length with what the file can hold: models are made as wide as they say.

    Raises:
        HpcgnnError: without the name of the file.
    """
    if meta.task == SINGLE_LABEL and meta.num_classes > max(meta.num_nodes, _FEW_CLASSES):
        raise HpcgnnError(f"num_classes is {meta.num_classes} for {meta.num_nodes} nodes")
    if meta.task == NO_TASK and meta.num_classes:
        raise HpcgnnError(f"num_classes is {meta.num_classes} without labels")
    if meta.num_features > file_bytes or meta.num_classes > file_bytes:
        raise HpcgnnError(f"it has {file_bytes} bytes for {meta.num_features} features and {meta.num_classes} classes")
