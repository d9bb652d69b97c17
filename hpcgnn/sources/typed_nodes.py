"""Graphs whose nodes have types, as one graph: ``HeteroData`` of PyG, or arrays by the names of types.

Types are put one after the other, in the order in which they are given: the nodes of a type are a range of the graph's ids, and
its features have columns of their own. So the graph's x is sparse, with one block for each type that has features, and all
layers that take sparse features take it; a type may have features of any width, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import MASKS, NO_TASK, REGRESSION, SINGLE_LABEL, EdgeType, NodeType
from hpcgnn.sources.base import ArraySource, check_edge_index
from hpcgnn.sources.node_values import feature_array, label_array, read_masks

Get = Callable[[str], Any]
_VALUES = ("edge_attr", "edge_weight")


class _Nodes(NamedTuple):
    """The values of one type of nodes, checked. unknown: (n,) bool, the nodes whose labels are NaN, or None."""

    type: NodeType
    x: Any
    y: np.ndarray | None
    task: str
    unknown: np.ndarray | None
    masks: dict[str, np.ndarray]
    notes: list[str]


def typed_source(
    where: str, nodes: Mapping[str, Get], edges: Mapping[tuple[str, str, str], Get], split: int | None = None
) -> ArraySource:
    """The source of a graph with types. Raises HpcgnnError for values of wrong shapes or types.

    nodes: for each type, a function of a name that returns the array ``x`` (n, F), dense or a SciPy matrix, ``y``, a mask, or
    ``num_nodes``; None for one that the type does not have. edges: for each (type of the sources, relation, type of the
    destinations), the same for ``edge_index`` (2, E), with ids from 0 in each type, ``edge_attr`` and ``edge_weight``. split: the
    number of the split of masks (N, splits).
    """
    if not nodes or not edges:
        raise HpcgnnError(
            f"{where} has {len(nodes)} types of nodes and {len(edges)} types of edges: it needs one of each"
        )
    read = [_nodes(name, get, split, f"{where}: {name}") for name, get in nodes.items()]
    offsets = np.cumsum([0, *(each.type.count for each in read)])
    names = {name: number for number, name in enumerate(nodes)}
    gathered = _edges(where, names, offsets, edges)
    masks = None
    if any(each.masks for each in read):
        masks = {name: np.concatenate([_filled(each.masks.get(name), each.type.count, False) for each in read])
                 for name in MASKS}  # fmt: skip
    return ArraySource(
        where, int(offsets[-1]), gathered.pop("edge_index"), x=_blocks([each.x for each in read], offsets),
        y=_labels(where, read), masks=masks, node_types=tuple(each.type for each in read),
        notes=[note for each in read for note in each.notes][:1], **gathered,
    )  # fmt: skip


def hetero_source(
    data: Any, where: str, array: Callable[[Any, str, str], Any], split: int | None = None
) -> ArraySource:
    """The source of a ``torch_geometric.data.HeteroData``. array: a tensor with its name, and the graph's, as an array."""

    def reader(store: Any, name: str) -> Get:
        def get(key: str) -> Any:
            value = store.num_nodes if key == "num_nodes" else store.get(key)
            return value if key == "num_nodes" or value is None else array(value, key, f"{where}: {name}")

        return get

    return typed_source(
        where,
        {name: reader(data[name], name) for name in data.node_types},
        {kind: reader(data[kind], "__".join(kind)) for kind in data.edge_types},
        split,
    )


def _nodes(name: str, get: Get, split: int | None, where: str) -> _Nodes:
    x, given = get("x"), get("num_nodes")
    if x is None and given is None:
        raise HpcgnnError(f"{where} has neither x nor num_nodes: say how many nodes it has")
    if given is not None and np.size(given) != 1:
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    count = int(x.shape[0] if given is None else np.reshape(given, -1)[0])
    x = None if x is None else feature_array(x, count, where)
    y, task, classes, unknown = label_array(get("y"), count, where)
    masks, notes = read_masks(get, count, split, where)
    known = NodeType(name, count, 0 if x is None else x.shape[1], classes)
    return _Nodes(known, x, y, task, unknown, masks if y is not None else {}, notes)


def _blocks(features: list[Any], offsets: np.ndarray) -> sp.csr_matrix | None:
    """(N, sum of F) CSR with the features of each type in rows and columns of their own; None without features."""
    if all(x is None for x in features):
        return None
    counts = np.diff(offsets).tolist()
    blocks = [sp.csr_matrix((count, 0) if x is None else x, dtype=np.float32)
              for x, count in zip(features, counts, strict=True)]  # fmt: skip
    return sp.block_diag(blocks, format="csr", dtype=np.float32)


def _labels(where: str, read: list[_Nodes]) -> np.ndarray | None:
    """(N,) int64 with -1, or (N, C) or (N, K) with NaN, for nodes without a label; the types' classes each count from 0."""
    tasks = {each.task: each.type.name for each in read if each.task != NO_TASK}
    if len(tasks) > 1:
        raise HpcgnnError(
            f"{where}: the labels of {' and '.join(tasks.values())} are of different kinds: keep those of one"
        )
    if not tasks:
        return None
    if SINGLE_LABEL in tasks:
        return np.concatenate([_filled(each.y, each.type.count, -1) for each in read])
    classes = max(each.type.classes for each in read)
    found = np.full((sum(each.type.count for each in read), classes), np.nan, np.float32)
    first = 0
    for each in read:
        if each.y is not None:
            rows = found[first : first + each.type.count]
            rows[:] = np.nan if REGRESSION in tasks else 0  # of columns that only other types have
            rows[:, : each.type.classes] = each.y.reshape(len(rows), -1)
            rows[each.unknown if each.unknown is not None else slice(0)] = np.nan
        first += each.type.count
    return found


def _edges(
    where: str, names: dict[str, int], offsets: np.ndarray, edges: Mapping[tuple[str, str, str], Get]
) -> dict[str, Any]:
    """The edges of all types, one type after the other, as arguments of :class:`ArraySource`."""
    indices, found, types = [], {name: [] for name in _VALUES}, []  # type: ignore[var-annotated]
    for (source, relation, destination), get in edges.items():
        kind = f"{where}: {source}__{relation}__{destination}"
        if unknown := {source, destination} - names.keys():
            raise HpcgnnError(f"{kind} has the type of nodes {min(unknown)!r}, which the graph does not have")
        index, (first, last) = get("edge_index"), (names[source], names[destination])
        if index is None:
            raise HpcgnnError(f"{kind} has no edge_index")
        check_edge_index(index, f"{kind}: edge_index")
        counts = np.diff(offsets)[[first, last]]
        if index.size and (index.min() < 0 or (index.max(axis=1) >= counts).any()):
            raise HpcgnnError(f"{kind}: edge_index has node {_outside(index, counts)}, but ids run from 0 to "
                              f"{counts[0] - 1} for sources and {counts[1] - 1} for destinations")  # fmt: skip
        indices.append(index.astype(np.int64) + offsets[[first, last], np.newaxis])
        for name in _VALUES:
            found[name].append(None if (value := get(name)) is None else value.reshape(index.shape[1], -1))
        columns = found["edge_attr"][-1]
        types.append(EdgeType(first, relation, last, 0 if columns is None else columns.shape[1]))
    sizes = [index.shape[1] for index in indices]
    attr, weight = (_padded(found[name], sizes, fill) for name, fill in zip(_VALUES, (0, 1), strict=True))
    return {
        "edge_index": np.concatenate(indices, axis=1), "edge_types": tuple(types),
        "edge_type": np.repeat(np.arange(len(sizes)), sizes), "edge_attr": attr, "weight": weight,
    }  # fmt: skip


def _outside(index: np.ndarray, counts: np.ndarray) -> int:
    return int(index[(index < 0) | (index >= counts[:, np.newaxis])][0])


def _padded(values: list[Any], sizes: list[int], fill: int) -> np.ndarray | None:
    """(E, D) values of the edges of all types, filled up to the widest; None if no type has any."""
    given = [value for value in values if value is not None]
    if not given:
        return None
    padded = np.full((sum(sizes), max(value.shape[1] for value in given)), fill, np.result_type(*given))
    first = 0
    for value, size in zip(values, sizes, strict=True):
        if value is not None:
            padded[first : first + size, : value.shape[1]] = value
        first += size
    return padded


def _filled(values: Any, count: int, fill: int | bool) -> np.ndarray:
    return np.full(count, fill) if values is None else np.asarray(values)
