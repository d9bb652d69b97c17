"""Graphs whose nodes have types, as one graph: ``HeteroData`` of PyG, or arrays by the names of types.

Types are put one after the other, in the order in which they are given: the nodes of a type are a range of the graph's ids, and
its features have columns of their own; a type may have features of any width, or none. Edges and dense features may be read in
slabs, so that no array is ever in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import FULL, HALF, MASKS, NO_TASK, REGRESSION, SINGLE_LABEL, EdgeType, NodeType
from hpcgnn.sources.base import CHUNK_EDGES, ArraySource, check_edge_index, edge_features, edge_sets, edge_weights
from hpcgnn.sources.edges import EdgeChunk, EdgeForm, reverse_sets
from hpcgnn.sources.node_values import Rows, as_float32, feature_array, kind_note, label_array, mask_array, read_masks
from hpcgnn.sources.slabs import SlabArray

Get = Callable[[str], Any]
REVERSE_PREFIX = "rev_"  # PyG's T.ToUndirected names the reverse of a type of edges so


class _Nodes(NamedTuple):
    """The values of one type of nodes, checked. x: an array, a CSR matrix, or one that is read in slabs. unknown: (n,) bool, the
    nodes whose labels are NaN, or None."""

    type: NodeType
    x: Any
    y: np.ndarray | None
    task: str
    unknown: np.ndarray | None
    masks: dict[str, np.ndarray]
    notes: list[str]


class _Edges(NamedTuple):
    """The edges of one type. index: (2, E) ids from 0 in each type, an array or one that is read in slabs. attr: (E, D). weight:
    (E,). split: (E,) sets of links. reverse: take the destinations as the sources, and the sets of reverses."""

    type: EdgeType
    where: str
    index: Any
    attr: np.ndarray | None
    weight: np.ndarray | None
    split: np.ndarray | None
    reverse: bool = False

    @property
    def reversed(self) -> _Edges:
        """The reverse edges, as a type of their own."""
        source, name, destination, columns = self.type.source, self.type.name, self.type.destination, self.type.columns
        return self._replace(type=EdgeType(destination, REVERSE_PREFIX + name, source, columns), reverse=True)


class TypedSource(ArraySource):
    """A graph whose nodes have types. Ids are checked as edges are read."""

    def __init__(self, where: str, nodes: list[_Nodes], edges: list[_Edges], notes: list[str]) -> None:
        self._firsts = np.cumsum([0, *(each.type.count for each in nodes)])
        self._nodes, self._edges, self._task = nodes, edges, _task(where, nodes)
        super().__init__(
            where, int(self._firsts[-1]), np.empty((2, 0), np.int64), node_types=tuple(each.type for each in nodes),
            notes=[*notes, *dict.fromkeys(note for each in nodes for note in each.notes)],
        )  # fmt: skip
        features = [each.x for each in nodes if each.x is not None]
        attr = [each.attr for each in edges if each.attr is not None]
        self.info = replace(
            self.info, task=self._task, num_classes=max(each.type.classes for each in nodes),
            has_masks=any(each.masks for each in nodes), num_edges=sum(each.index.shape[1] for each in edges),
            edge_types=tuple(each.type for each in edges),
            num_features=sum(each.type.columns for each in nodes),
            x_by_type=bool(features) and not any(sp.issparse(x) for x in features),
            x_dtype=HALF if features and all(x.dtype == np.float16 for x in features) else FULL,
            x_nnz=sum(x.nnz if sp.issparse(x) else x.shape[0] * x.shape[1] for x in features) if features else None,
            form=EdgeForm(
                any(each.weight is not None for each in edges), len(edges), max((each.shape[1] for each in attr), default=0),
                HALF if attr and all(each.dtype == np.float16 for each in attr) else FULL,
                any(each.split is not None for each in edges),
            ),
        )  # fmt: skip

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        for number, each in enumerate(self._edges):
            size = each.index.shape[1]
            for first in range(0, size, chunk_edges):
                yield self._chunk(number, each, first, min(first + chunk_edges, size))

    def _chunk(self, number: int, edges: _Edges, first: int, last: int) -> EdgeChunk:
        index, kinds = edges.index, [edges.type.source, edges.type.destination]
        ends = index.columns(first, last) if isinstance(index, SlabArray) else list(index[:, first:last])
        moved = []
        for ids, kind in zip(ends[::-1] if edges.reverse else ends, kinds, strict=True):
            count = self._nodes[kind].type.count
            if (outside := (ids < 0) | (ids >= count)).any():
                raise HpcgnnError(f"{edges.where}: edge_index has node {ids[outside][0]}, but the ids of "
                                  f"{self._nodes[kind].type.name} run from 0 to {count - 1}")  # fmt: skip
            moved.append(ids.astype(np.int64) + self._firsts[kind])
        form, size = self.info.form, last - first
        weight = attr = split = None
        if form.weighted:
            weight = np.ones(size, np.float32) if edges.weight is None else edges.weight[first:last]
        if form.attr_columns:
            attr = np.zeros((size, form.attr_columns), form.attr_dtype if edges.attr is None else edges.attr.dtype)
            if edges.attr is not None:
                attr[:, : edges.attr.shape[1]] = edges.attr[first:last]
        if form.split:
            split = np.zeros(size, np.uint8) if edges.split is None else edges.split[first:last]
            split = reverse_sets(split) if edges.reverse else split
        return EdgeChunk(moved[0], moved[1], weight, np.full(size, number), attr, split)

    def features(self, first: int, last: int) -> Rows | None:
        if not self.info.num_features:
            return None
        if self.info.x_by_type:
            kind = int(np.searchsorted(self._firsts, first, side="right")) - 1
            begin = int(self._firsts[kind])
            return _features(self._nodes[kind], first - begin, last - begin)
        return sp.block_diag(
            [_sparse(_features(*part)) for part in self._parts(first, last)], format="csr", dtype=np.float32
        )

    def labels(self, first: int, last: int) -> np.ndarray | None:
        if self._task == NO_TASK:
            return None
        return np.concatenate([self._labels(*part) for part in self._parts(first, last)])

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        if not self.info.has_masks:
            return None
        found = {name: [] for name in MASKS}  # type: ignore[var-annotated]
        for each, begin, end in self._parts(first, last):
            for name, masks in found.items():
                chosen = each.masks[name][begin:end] if name in each.masks else np.zeros(end - begin, np.bool_)
                if each.unknown is not None and (without := chosen & each.unknown[begin:end]).any():
                    node = begin + int(np.argmax(without))
                    raise HpcgnnError(f"{self._where}: node {node} of {each.type.name} is in {name} but has no label: its row of "
                                      "y is NaN")  # fmt: skip
                masks.append(chosen)
        return {name: np.concatenate(masks) for name, masks in found.items()}

    def _parts(self, first: int, last: int) -> Iterator[tuple[_Nodes, int, int]]:
        """Each type, and the range of its nodes, from 0, that is in ``[first, last)``."""
        for each, begin in zip(self._nodes, self._firsts.tolist(), strict=False):
            rows = [min(max(node - begin, 0), each.type.count) for node in (first, last)]
            yield each, rows[0], rows[1]

    def _labels(self, each: _Nodes, first: int, last: int) -> np.ndarray:
        """(n,) int64 with -1, (n, C) uint8 with 0, or float32 targets with NaN, where a node has no label and where only other
        types have a column; the types' classes each count from 0."""
        if self._task == SINGLE_LABEL:
            return np.full(last - first, -1) if each.y is None else each.y[first:last]
        size = last - first, self.info.num_classes
        y = np.full(size, np.nan, np.float32) if self._task == REGRESSION else np.zeros(size, np.uint8)
        if each.y is not None:
            y[:, : each.type.classes] = each.y[first:last].reshape(last - first, each.type.classes)
        return y[:, 0] if self._task == REGRESSION and size[1] == 1 else y


def typed_source(
    where: str, nodes: Mapping[str, Get], edges: Mapping[tuple[str, str, str], Get], split: int | None = None,
    *, inverse: bool = False, notes: tuple[str, ...] = (),
) -> TypedSource:  # fmt: skip
    """The source of a graph with types. Raises HpcgnnError for values of wrong shapes or types.

    nodes: for each type, a function of a name that returns the array ``x`` (n, F), dense, a SciPy matrix or a ``SlabArray``,
    ``y``, a mask, or ``num_nodes``; None for one that the type does not have. edges: for each (type of the sources, relation,
    type of the destinations), the same for ``edge_index`` (2, E), also a ``SlabArray``, with ids from 0 in each type,
    ``edge_attr`` and ``edge_weight``. split: the number of the split of masks (N, splits). inverse: after each type of edges, add
    their reverses as a type of its own. notes: phrases about what was read.
    """
    if not nodes or not edges:
        raise HpcgnnError(
            f"{where} has {len(nodes)} types of nodes and {len(edges)} types of edges: it needs one of each"
        )
    read = [_nodes(name, get, split, f"{where}: {name}") for name, get in nodes.items()]
    if split and not any(each.masks for each in read):
        raise HpcgnnError(f"{where}: split={split} was given, but no type of nodes has masks")
    found = [_edges(where, [*nodes], key, get) for key, get in edges.items()]
    both = [way for each in found for way in ((each, each.reversed) if inverse else (each,))]
    if len({(each.type.source, each.type.name, each.type.destination) for each in both}) < len(both):
        raise HpcgnnError(f"{where} has reverse types of edges of its own: leave out inverse=yes")
    return TypedSource(where, read, both, [*notes])


def hetero_source(
    data: Any, where: str, array: Callable[[Any, str, str], Any], split: int | None = None
) -> TypedSource:
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
    if isinstance(x, SlabArray) and (len(x.shape) != 2 or x.shape[0] != count):
        raise HpcgnnError(f"{x.where} has shape {x.shape}, but it should have a row for each of {count:,} nodes")
    x = x if x is None or isinstance(x, SlabArray) else feature_array(x, count, where)
    y, task, classes, unknown = label_array(get("y"), count, where)
    given, notes = read_masks(get, count, split, where, of_type=True)
    if given and y is None:
        raise HpcgnnError(f"{where} has masks but no labels: masks say which labels are for training")
    masks = {name: mask_array(mask, name, count, where) for name, mask in given.items()}
    known = NodeType(name, count, 0 if x is None else x.shape[1], classes)
    return _Nodes(known, x, y, task, unknown, masks, notes + kind_note(y))


def _task(where: str, read: list[_Nodes]) -> str:
    """The kind of the labels, which must be the same for all types that have any."""
    tasks = {each.task: each.type.name for each in read if each.task != NO_TASK}
    if len(tasks) > 1:
        raise HpcgnnError(
            f"{where}: the labels of {' and '.join(tasks.values())} are of different kinds: keep those of one"
        )
    return next(iter(tasks), NO_TASK)


def _edges(where: str, names: list[str], key: tuple[str, str, str], get: Get) -> _Edges:
    source, relation, destination = key
    kind = f"{where}: {source}__{relation}__{destination}"
    if unknown := {source, destination} - {*names}:
        raise HpcgnnError(f"{kind} has the type of nodes {min(unknown)!r}, which the graph does not have")
    index, attr, weight, split = (get(f"edge_{name}") for name in ("index", "attr", "weight", "split"))
    if index is None:
        raise HpcgnnError(f"{kind} has no edge_index")
    check_edge_index(index, f"{kind}: edge_index")
    attr = None if attr is None else edge_features(attr, index.shape[1], kind)
    weight = None if weight is None else edge_weights(weight, index.shape[1], kind)
    split = None if split is None else edge_sets(split, index.shape[1], kind)
    known = EdgeType(names.index(source), relation, names.index(destination), 0 if attr is None else attr.shape[1])
    return _Edges(known, kind, index, attr, weight, split)


def _features(each: _Nodes, first: int, last: int) -> Any:
    """Features of a range of one type's nodes, (n, F) of its own F, as they are stored."""
    if each.x is None:
        return np.empty((last - first, 0), np.float32)
    x = each.x.rows(first, last) if isinstance(each.x, SlabArray) else each.x[first:last]
    return x if sp.issparse(x) or x.dtype == np.float16 else as_float32(x)


def _sparse(x: Any) -> sp.csr_matrix:
    """x as a CSR matrix; one of a dense x has all its values, also zeros."""
    if sp.issparse(x):
        return x
    rows, columns = x.shape
    indices, indptr = np.tile(np.arange(columns, dtype=np.int32), rows), np.arange(rows + 1) * columns
    return sp.csr_matrix((x.astype(np.float32).reshape(-1), indices, indptr), shape=x.shape)
