"""``dgl:FILE``: a graph that ``dgl.save_graphs`` of DGL 0.4.3 or later has written; DGL itself is not needed.

x, y          names of node values; by default feat or x, and label or y
weight        name of edge values; by default edge_weight, weight or w
type, attr    names of types and of features of edges; by default _TYPE, etype, edge_type, rel_type or type, and feat or edge_attr
split         column of the masks train_mask, val_mask, test_mask if they have several; the first by default
graph         number of the graph, from 0, if the file has several

    uint64 magic, version (2), kind (2), number of graphs                             padded to 4096 bytes
    uint64 place of the first graph; labels of graphs                                 skipped
    graphs; the list of their places, uint64; uint64 size of that list in bytes

A graph is a meta graph (the kinds of nodes and edges), a matrix for each kind of edges, the number of nodes of each kind, node
values, edge values, and names. Each list is preceded by its length as uint64. Nothing in a file is run: arrays are views of it.
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


class DglGraph(NamedTuple):
    """A graph with one kind of nodes and edges. edge_index: (2, E) whole numbers. Values: arrays by name, a row for each node or
    edge."""

    num_nodes: int
    edge_index: np.ndarray
    node_values: dict[str, np.ndarray]
    edge_values: dict[str, np.ndarray]


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
        """Graph ``number``, from 0 to ``num_graphs - 1``. Raises KindsError for a graph with several kinds of nodes or edges."""
        self._place = self._places()[number]
        self._magic(_GRAPH, "a graph")
        self._meta_graph()
        relations, counts = self._listed(self._relation), self._listed(self._number)
        node_values, edge_values = self._listed(self._values), self._listed(self._values)
        node_kinds, edge_kinds = self._listed(self._text), self._listed(self._text)
        if len(relations) != 1 or len(counts or node_kinds) != 1:
            nodes, edges = (", ".join(names) or "none" for names in (node_kinds, edge_kinds))
            raise KindsError(f"it has the kinds of nodes {nodes}, and of edges {edges}")
        num_nodes, edge_index = relations[0]
        if len(node_values) != 1 or len(edge_values) != 1:
            raise ValueError("it has values of kinds of nodes or edges that do not exist")
        num_edges = edge_index.shape[1]
        for values, rows, what in ((node_values[0], num_nodes, "nodes"), (edge_values[0], num_edges, "edges")):
            for name, array in values.items():
                if array.shape[:1] != (rows,):
                    raise ValueError(f"{name} has shape {array.shape} for {rows} {what}")
        return DglGraph(num_nodes, edge_index, node_values[0], edge_values[0])

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

    def _relation(self) -> tuple[int, np.ndarray]:
        """``(num_nodes, edge_index)`` of one kind of edges, from the first of the matrices in which they are stored."""
        self._magic(_UNIT, "a kind of edges")
        code, _ = self._number(), self._number()
        stored = code & 0xFFFFFFFF if code >> 32 else _OLD_LAYOUTS.get(code, 0)
        if not 0 < stored < 8:
            raise ValueError(f"it has edges in an unknown layout {code:#x}")
        found = [self._matrix(bit) for bit in (_PAIRS, _BY_SOURCE, _BY_DESTINATION) if stored & bit]
        layout, rows, columns, *arrays = found[0]
        if rows != columns:
            raise KindsError(f"its edges go from {rows} nodes to {columns} other nodes")
        if layout == _PAIRS:
            return rows, _by_id(*arrays)
        expanded = _expanded(rows, *arrays[:2])
        return rows, _by_id(*(expanded if layout == _BY_SOURCE else expanded[::-1]), arrays[2])

    def _matrix(self, layout: int) -> tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]:
        """``(layout, rows, columns, one, other, ids)``: arrays ``one`` and ``other`` are both ends of pairs, or the offsets and
        other ends of a CSR matrix; ``ids`` of edges may be empty."""
        self._meta_graph()
        self._magic(_COO if layout == _PAIRS else _CSR, "a matrix")
        columns, rows = self._number(), self._number()
        arrays = self._array(), self._array(), self._array()
        self._take(2 if layout == _PAIRS else 1)  # flags that tell whether it is sorted
        return layout, rows, columns, *arrays

    def _meta_graph(self) -> None:
        """Skip a meta graph, whose nodes are kinds of nodes."""
        self._magic(_META, "a graph of kinds")
        self._magic(_CSR, "a matrix")
        self._take(16)
        for _ in range(3):
            self._array()
        self._take(1)

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


class KindsError(ValueError):
    """The graph has several kinds of nodes or edges."""


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
    nodes, edges = graph.node_values, graph.edge_values
    x, y = _chosen(nodes, names["x"], _X, where), _chosen(nodes, names["y"], _Y, where)
    weight = _chosen(edges, names["weight"], _WEIGHT, where)
    types, attr = _chosen(edges, names["type"], _TYPE, where), _chosen(edges, names["attr"], _ATTR, where)
    masks, notes = read_masks(nodes.get, graph.num_nodes, split, where)
    others = {**nodes, **{f"{name} (of edges)": values for name, values in edges.items()}}
    taken = (x, y, weight, types, attr)
    unread = {name for name, each in others.items() if not any(each is one for one in taken)}
    if unread := unread - set(MASKS):
        notes.append(f"values that are not read: {', '.join(sorted(unread))}")
    x_rows = x[:, None] if x is not None and x.ndim == 1 else x
    source = ArraySource(
        where,
        graph.num_nodes,
        graph.edge_index,
        weight=weight,
        edge_type=types,
        edge_attr=attr,
        x=x_rows,
        y=y,
        masks=masks,
        notes=notes,
    )
    is_counted = x is None and y is None and not source.info.has_masks  # no array has a row for each node
    agreed_nodes(where, graph.num_nodes, source.info.num_edges if is_counted else None, spec.take_int("nodes", 0))
    return source


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
        try:
            return reader.graph(max(number, 0))
        except KindsError as error:
            raise HpcgnnError(
                f"{path} is not a plain graph ({error}): hpcgnn trains on graphs with one kind of nodes and edges"
            ) from error


def _chosen(
    values: Mapping[str, np.ndarray], name: str | None, usual: tuple[str, ...], where: str
) -> np.ndarray | None:
    """The values called ``name``, or, without a name, those with the first of the ``usual`` names that exists; else None."""
    if name is not None and name not in values:
        raise HpcgnnError(f"{where} has no values named {name!r}; it has {', '.join(sorted(values)) or 'none'}")
    return next((values[each] for each in ([name] if name else usual) if each in values), None)
