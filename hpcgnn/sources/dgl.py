"""``dgl:FILE``: a graph that ``dgl.save_graphs`` of DGL 0.4.3 or later has written; DGL itself is not needed.

x, y          names of node values; by default feat or x, and label or y
weight        name of edge values; by default edge_weight, weight or w
type, attr    names of types and of features of edges; by default _TYPE, etype, edge_type, rel_type or type, and feat or edge_attr
split         column of the masks train_mask, val_mask, test_mask if they have several; the first by default
graph         number of the graph, from 0, if the file has several

    uint64 magic, version (2), kind (2), number of graphs                             padded to 4096 bytes
    uint64 place of the first graph; labels of graphs                                 skipped
    graphs; the list of their places, uint64; uint64 size of that list in bytes

A heterograph keeps its types; values of each type have the names above.

A graph is a meta graph (types of nodes as its nodes, types of edges as its edges), a matrix for each type of edges, the number of
nodes of each type, node values, edge values, and names of types. Each list is preceded by its length as uint64. Nothing in a file
is run: arrays are views of it.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.base import SOURCES, ArraySource, Source, Spec, agreed_nodes, existing_file, reading
from hpcgnn.sources.node_values import read_masks
from hpcgnn.sources.typed_nodes import Get, typed_source

T = TypeVar("T")
_FILE, _GRAPH, _META = 0xDD2E4FF046B4A13F, 0xDD589FBE35224ABF, 0xDD3C5FFE20046ABF
_UNIT, _CSR, _COO = 0xDD2E60F0F6B4A127, 0xDD6CD31205DFF127, 0xDD61FFD305DFF127
_ARRAY = 0xDD5E40F096B4A13F
_VERSION, _HEADER_BYTES = 2, 4096
_PAIRS, _BY_SOURCE, _BY_DESTINATION = 1, 2, 4
_OLD_LAYOUTS = {1: _PAIRS, 2: _BY_SOURCE, 3: _BY_DESTINATION}  # of DGL up to 0.5, whose codes have no upper half
_TYPES = {0: "i", 1: "u", 2: "f"}
_BFLOAT = 4
_MOST_DIMENSIONS = 32


class DglEdges(NamedTuple):
    """A type of edges. source, destination: the numbers of the types of nodes at its ends. edge_index: (2, E) whole numbers.
    values: arrays by name, a row for each edge."""

    source: int
    name: str
    destination: int
    edge_index: np.ndarray
    values: dict[str, np.ndarray]


class DglGraph(NamedTuple):
    """A graph with types of nodes, of which a plain graph has one. node_types, num_nodes, node_values: the name, the number of
    nodes and the values of each type."""

    node_types: list[str]
    num_nodes: list[int]
    node_values: list[dict[str, np.ndarray]]
    edges: list[DglEdges]


class DglReader:
    """Reads a file from a position on. Its arrays are views of the file's memory map. Every read is checked against the end of
    the file, so that no memory is allocated for a damaged length. All methods raise ValueError, or OSError, for a damaged
    file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._place = 0
        self._magic(_FILE, "a file of dgl.save_graphs")
        version, kind, self.num_graphs = (self._number() for _ in range(3))
        if (version, kind) != (_VERSION, 2):
            raise ValueError(
                f"it is of version {version} of DGL's files, before DGL 0.4.3: load and save it with a later DGL"
            )
        if self.num_graphs > len(self._content) // 8:
            raise ValueError(f"it says that it holds {self.num_graphs} graphs")

    def graph(self, number: int) -> DglGraph:
        """Graph ``number``, from 0 to ``num_graphs - 1``."""
        self._place = self._places()[number]
        self._magic(_GRAPH, "a graph")
        ends = self._meta_graph()
        relations, counts = self._listed(self._relation), self._listed(self._number)
        node_values, edge_values = self._listed(self._values), self._listed(self._values)
        names, edge_names = self._listed(self._text), self._listed(self._text)
        if not relations:
            raise ValueError("it has no types of edges")
        if not len(relations) == len(edge_values) == len(edge_names) == ends.shape[1]:
            raise ValueError("it has values of types of edges that do not exist")
        given = dict(enumerate(counts))  # older files have no list of them
        for (rows, columns, _), (first, last) in zip(relations, ends.T.tolist(), strict=True):
            if (given.setdefault(first, rows), given.setdefault(last, columns)) != (rows, columns):
                raise ValueError(
                    f"its edges go from {rows} to {columns} nodes, but there are {given[first]} and {given[last]}"
                )
        if len(names) != len(node_values) or [*range(len(names))] != sorted(given):
            raise ValueError("it has values of types of nodes that do not exist")
        for values, rows in zip(node_values, (given[kind] for kind in sorted(given)), strict=True):
            _check_rows(values, rows, "nodes")
        for values, (_, _, edge_index) in zip(edge_values, relations, strict=True):
            _check_rows(values, edge_index.shape[1], "edges")
        edges = [DglEdges(first, name, last, index, values) for (first, last), name, (_, _, index), values
                 in zip(ends.T.tolist(), edge_names, relations, edge_values, strict=True)]  # fmt: skip
        return DglGraph(names, [given[kind] for kind in sorted(given)], node_values, edges)

    def _places(self) -> list[int]:
        """The byte at which each graph begins, from the list at the end of the file, which is followed by its size in bytes."""
        self._place = len(self._content) - 8
        size = self._number()
        self._place = len(self._content) - 8 - size
        if self._place < _HEADER_BYTES:
            raise ValueError("the places of its graphs are missing")
        places = self._listed(self._number)
        if len(places) != self.num_graphs:
            raise ValueError(f"it has {self.num_graphs} graphs, and the places of {len(places)}")
        return places

    # -- parts of a graph ---------------------------------------------------------------------------------------------

    def _relation(self) -> tuple[int, int, np.ndarray]:
        """``(source nodes, destination nodes, edge_index)`` of one type of edges, the first two as numbers, from the first of the
        matrices in which they are stored."""
        self._magic(_UNIT, "a type of edges")
        code, _ = self._number(), self._number()
        stored = code & 0xFFFFFFFF if code >> 32 else _OLD_LAYOUTS.get(code, 0)
        if not 0 < stored < 8:
            raise ValueError(f"it has edges in an unknown layout {code:#x}")
        found = [self._matrix(bit) for bit in (_PAIRS, _BY_SOURCE, _BY_DESTINATION) if stored & bit]
        layout, rows, columns, *arrays = found[0]
        if layout == _PAIRS:
            return rows, columns, _by_id(*arrays)
        expanded = _expanded(rows, *arrays[:2])
        if layout == _BY_DESTINATION:  # its rows are the destinations
            return columns, rows, _by_id(*expanded[::-1], arrays[2])
        return rows, columns, _by_id(*expanded, arrays[2])

    def _matrix(self, layout: int) -> tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]:
        """``(layout, rows, columns, one, other, ids)``: arrays ``one`` and ``other`` are both ends of pairs, or the offsets and
        other ends of a CSR matrix; ``ids`` of edges may be empty."""
        self._meta_graph()
        self._magic(_COO if layout == _PAIRS else _CSR, "a matrix")
        columns, rows = self._number(), self._number()
        arrays = self._array(), self._array(), self._array()
        self._take(2 if layout == _PAIRS else 1)  # flags that tell whether it is sorted
        return layout, rows, columns, *arrays

    def _meta_graph(self) -> np.ndarray:
        """(2, R) the types of nodes at the ends of each type of edges."""
        self._magic(_META, "a graph of types")
        self._magic(_CSR, "a matrix")
        types, _ = self._number(), self._number()
        arrays = self._array(), self._array(), self._array()
        self._take(1)
        return _by_id(*_expanded(types, *arrays[:2]), arrays[2])

    def _values(self) -> dict[str, np.ndarray]:
        return dict(self._listed(lambda: (self._text(), self._array())))

    # -- plain values -------------------------------------------------------------------------------------------------

    def _take(self, num_bytes: int) -> memoryview:
        first, self._place = self._place, self._place + num_bytes
        if not 0 <= first <= self._place <= len(self._content):
            raise ValueError("it ends early")
        return self._content[first : self._place]

    def _number(self) -> int:
        return int(struct.unpack("<Q", self._take(8))[0])

    def _magic(self, expected: int, what: str) -> None:
        place = self._place
        if self._number() != expected:
            raise ValueError(f"there is no {what.removeprefix('a ')} at byte {place}")

    def _text(self) -> str:
        return bytes(self._take(self._number())).decode()

    def _listed(self, read: Callable[[], T]) -> list[T]:
        count = self._number()
        if count > len(self._content):
            raise ValueError("it ends early")
        return [read() for _ in range(count)]

    def _array(self) -> np.ndarray:
        """An array as a view of the file; bfloat16 becomes a new float32 array."""
        self._magic(_ARRAY, "an array")
        self._take(16)  # reserved bytes, and the device, which is the host
        dimensions, code, bits, lanes = struct.unpack("<iBBH", self._take(8))
        if not 0 <= dimensions <= _MOST_DIMENSIONS or lanes != 1:
            raise ValueError(f"an array has {dimensions} dimensions of {lanes} lanes")
        shape = tuple(self._number() for _ in range(dimensions))
        data = self._take(self._number())
        if code == _BFLOAT and bits == 16:
            wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16  # bfloat16 is the upper half of a float32
            return _shaped(wide.view(np.float32), shape)
        if code not in _TYPES or bits not in (8, 16, 32, 64) or (code == 2 and bits == 8):
            raise ValueError(f"an array has an unknown type {code} of {bits} bits")
        return _shaped(np.frombuffer(data, f"<{_TYPES[code]}{bits // 8}"), shape)


def _check_rows(values: dict[str, np.ndarray], rows: int, what: str) -> None:
    for name, array in values.items():
        if array.shape[:1] != (rows,):
            raise ValueError(f"{name} has shape {array.shape} for {rows} {what}")


def _shaped(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if math.prod(shape) != values.size:
        raise ValueError(f"an array of {values.size} values is said to have shape {shape}")
    return values.reshape(shape)


def _expanded(rows: int, indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row and the column of each entry of a CSR matrix."""
    if indptr.shape != (rows + 1,) or indices.ndim != 1 or indptr.dtype.kind not in "iu":
        raise ValueError(f"its edges' offsets have shape {indptr.shape} for {rows} nodes")
    lengths: np.ndarray = np.diff(indptr.astype(np.int64))
    if indptr[0] != 0 or indptr[-1] != indices.size or (lengths < 0).any():
        raise ValueError(f"its edges' offsets do not rise from 0 to {indices.size}")
    return np.repeat(np.arange(rows, dtype=indices.dtype), lengths), indices


def _by_id(sources: np.ndarray, destinations: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(2, E) both ends of the edges in the order of their ids; with empty ``ids`` they are in that order already."""
    edges = sources.size
    if sources.ndim != 1 or sources.shape != destinations.shape or sources.dtype != destinations.dtype:
        raise ValueError(f"its edges have {sources.shape} sources and {destinations.shape} destinations")
    if not ids.size:
        return np.stack((sources, destinations))
    in_range = ids.shape == (edges,) and ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() == edges - 1
    if not in_range or np.bincount(ids.astype(np.int64)).min() != 1:
        raise ValueError(f"the ids of its edges are not the numbers from 0 to {edges - 1}")
    placed = np.empty((2, edges), sources.dtype)
    placed[0, ids], placed[1, ids] = sources, destinations
    return placed


_X, _Y, _WEIGHT = ("feat", "x"), ("label", "y"), ("edge_weight", "weight", "w")
_TYPE, _ATTR = ("_TYPE", "etype", "edge_type", "rel_type", "type"), ("feat", "edge_attr")


@SOURCES.register("dgl")
def _open_dgl(spec: Spec, folder: Path) -> Source:
    path = existing_file(spec.name, "dgl")
    number, split = spec.take_int("graph", -1, least=-1), spec.take_split()
    names = {key: spec.take(key) for key in ("x", "y", "weight", "type", "attr")}
    where = str(path)
    graph = _read(path, number)
    if len(graph.node_types) > 1 or len(graph.edges) > 1:
        return _with_types(graph, names, split, where)
    (nodes,), (num_nodes,), edges = graph.node_values, graph.num_nodes, graph.edges[0].values
    x, y = _chosen(nodes, names["x"], _X, where), _chosen(nodes, names["y"], _Y, where)
    weight = _chosen(edges, names["weight"], _WEIGHT, where)
    types, attr = _chosen(edges, names["type"], _TYPE, where), _chosen(edges, names["attr"], _ATTR, where)
    masks, notes = read_masks(nodes.get, num_nodes, split, where)
    others = {**nodes, **{f"{name} (of edges)": values for name, values in edges.items()}}
    taken = (x, y, weight, types, attr)
    unread = {name for name, each in others.items() if not any(each is one for one in taken)}
    if unread := unread - set(MASKS):
        notes.append(f"values that are not read: {', '.join(sorted(unread))}")
    source = ArraySource(
        where, num_nodes, graph.edges[0].edge_index, weight=weight, edge_type=types, edge_attr=attr, x=_rows(x), y=y,
        masks=masks, notes=notes,
    )  # fmt: skip
    is_counted = x is None and y is None and not source.info.has_masks  # no array has a row for each node
    agreed_nodes(where, num_nodes, source.info.num_edges if is_counted else None, spec.take_int("nodes", 0))
    return source


def _with_types(graph: DglGraph, names: Mapping[str, str | None], split: int | None, where: str) -> Source:
    """The source of a graph with types of nodes; each type has those of the values that it has."""
    keys = [(graph.node_types[each.source], each.name, graph.node_types[each.destination]) for each in graph.edges]
    has = {name for values in (*graph.node_values, *(each.values for each in graph.edges)) for name in values}
    if names["type"] is not None:
        raise HpcgnnError(f"{where} has types of edges of its own: leave type={names['type']} out")
    if wrong := [name for name in names.values() if name is not None and name not in has]:
        raise HpcgnnError(f"{where} has no values named {wrong[0]!r}; it has {', '.join(sorted(has)) or 'none'}")

    def reader(
        values: Mapping[str, np.ndarray], own: Mapping[str, object], usual: Mapping[str, tuple[str, ...]]
    ) -> Get:
        def get(key: str) -> object:
            if key not in usual:
                return own.get(key, values.get(key))
            name = names[key.removeprefix("edge_")]
            return _rows(_chosen(values, name if name in values else None, usual[key] if name is None else (), where))

        return get

    counts = [{"num_nodes": np.array(count)} for count in graph.num_nodes]
    nodes = [reader(*each, {"x": _X, "y": _Y}) for each in zip(graph.node_values, counts, strict=True)]
    edges = [reader(each.values, {"edge_index": each.edge_index}, {"edge_attr": _ATTR, "edge_weight": _WEIGHT})
             for each in graph.edges]  # fmt: skip
    unread = has - {*MASKS, *_X, *_Y, *_WEIGHT, *_ATTR, *names.values()}
    notes = (f"values that are not read: {', '.join(sorted(unread))}",) * bool(unread)
    return typed_source(
        where, dict(zip(graph.node_types, nodes, strict=True)), dict(zip(keys, edges, strict=True)), split, notes=notes
    )


def _rows(x: np.ndarray | None) -> np.ndarray | None:
    return x[:, None] if x is not None and x.ndim == 1 else x


def _read(path: Path, number: int) -> DglGraph:
    """Read graph ``number``; -1 means the only one of the file."""
    with reading(path, "a file of dgl.save_graphs"):
        reader = DglReader(path)
        if number < 0 and reader.num_graphs != 1:
            raise HpcgnnError(
                f"{path} holds {reader.num_graphs} graphs, but hpcgnn trains on one: choose it with ?graph=K, counted from 0"
            )
        if number >= reader.num_graphs:
            raise HpcgnnError(f"{path}: graph={number} was given, but there are {reader.num_graphs}, counted from 0")
        return reader.graph(max(number, 0))


def _chosen(
    values: Mapping[str, np.ndarray], name: str | None, usual: tuple[str, ...], where: str
) -> np.ndarray | None:
    """The values called ``name``, or, without a name, those with the first of the ``usual`` names that exists; else None."""
    if name is not None and name not in values:
        raise HpcgnnError(f"{where} has no values named {name!r}; it has {', '.join(sorted(values)) or 'none'}")
    return next((values[each] for each in ([name] if name else usual) if each in values), None)
