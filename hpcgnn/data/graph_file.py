"""``graph.h5``, one whole graph by original ids, and ``parts.h5``, the same graph in part order; both are read in slabs of nodes.

``docs/reference/files.md`` describes their arrays and attributes, and :mod:`hpcgnn.data.schema` declares them with the values
that they may have. In ``parts.h5`` each part is contiguous, with its nodes in the order of their original ids; a node's number
there is its position, and edges are stored by positions. Plans are described in :mod:`hpcgnn.data.plan_store`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

from hpcgnn.data import checksums, digests, h5, schema
from hpcgnn.data.schema import GraphMeta, Rules
from hpcgnn.data.stored import ByteSource, RowsOnDisk, StoredArray, look

if TYPE_CHECKING:
    import scipy.sparse as sp


GRAPH_KIND, GRAPH_VERSION = "hpcgnn-graph", 8


class TypeRows(NamedTuple):
    """The features of some nodes of one type. rows: (n_t,) int64 places of these nodes among all that were read. x: (n_t, F_t)
    float32."""

    rows: np.ndarray
    x: np.ndarray


class SlabReader(ABC):
    """Reads rows ``[first, last)`` of the arrays of a graph file or a parts file, and checks every value that it reads.

    A slab is the unit that has a checksum: a part of a parts file, or a block of nodes of a graph file. Methods that get the
    number of the ``slab`` that the rows are compare its checksum as well. With ``sealed=False`` the file need not have checksums
    yet. All methods raise HpcgnnError for a damaged file; the sentence names the file and the dataset.
    """

    KIND: str
    VERSIONS: tuple[int, ...]
    SLAB: str  # the word for a slab in messages

    def __init__(
        self, path: str | Path, mode: str = "r", *, sealed: bool = True, advised_parts: int = h5.USUAL_PARTS
    ) -> None:
        """``advised_parts``: see :func:`hpcgnn.data.h5.open_checked`."""
        self.path, self._is_written = path, mode != "r"
        self.file: h5py.File = h5.open_checked(path, self.KIND, self.VERSIONS, mode, advised_parts)
        self.source: ByteSource | None = None
        try:
            self._look_at_header(sealed)
        except BaseException:
            self.close()
            raise

    def _look_at_header(self, sealed: bool) -> None:
        self.attributes = {name: h5.attribute(self.file, name, kind) for name, kind in self._attribute_types().items()}
        try:
            self.meta = GraphMeta.from_attributes(self.attributes)
        except (KeyError, ValueError, TypeError, RecursionError) as error:  # of JSON of another kind, too
            raise h5.damaged(self.path, f"an attribute is missing or wrong: {error}") from error
        self.uuid: str = self.attributes["uuid"]
        self.source = ByteSource(self.path)
        if problem := schema.counts_problem(self.meta, self.source.size):
            raise h5.damaged(self.path, problem)
        self.rules = self._rules()
        for name in schema.OPTIONAL if self.attributes["version"] > 5 else ():
            if name not in self.rules and h5.child(self.file, name) is not None:
                raise h5.damaged(self.path, f"its attributes say that it has no {name}, which it has")
        self.arrays = {name: StoredArray(self.file, self.source, name, rule) for name, rule in self.rules.items()}
        self.bounds = self._bounds()
        self.checksums: Mapping[str, np.ndarray] | None = None
        if not sealed:
            return
        if self.attributes["version"] > 1:
            whole = [name for name, rule in self.rules.items() if rule.rows == schema.WHOLE]
            self.checksums = checksums.stored(
                self.file, self.source, self.rules, self.num_slabs, self.attributes, whole=whole
            )
            for name in whole:
                self.scan(name, 0)
        elif checksums.NAME in self.file:
            raise h5.damaged(self.path, "it says that it is of version 1, which had no checksums, and has some")

    def _attribute_types(self) -> dict[str, type]:
        types = {"format": str, "version": int, "uuid": str} | schema.ATTRIBUTES
        version = h5.attribute(self.file, "version", int)
        for name, first in schema.ADDED.items():
            if version < first:
                del types[name]
        with h5.reading(self.path, "its attributes"):  # parts that were made of an older graph file have no digests
            return types | {name: int for name in digests.ATTRIBUTES if name in self.file.attrs}

    @abstractmethod
    def _rules(self) -> Rules:
        """The rules of the arrays that the file must have."""

    @abstractmethod
    def _bounds(self) -> np.ndarray:
        """(slabs + 1,) first node of each slab."""

    def close(self) -> None:
        """Close the file."""
        if self.source is not None:
            self.source.close()
            self.source = None
        try:
            with h5.telling_refusals(self.path):
                self.file.close()
        except OSError:
            if self._is_written:  # after reading only, a failure to close loses nothing
                raise

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fingerprint(self) -> int:
        """A hash of the file's attributes, slabs and checksums, by which ranks see that they read the same file."""
        tables = {} if self.checksums is None else self.checksums
        arrays = [self.bounds, *(tables[name] for name in sorted(tables))]
        return checksums.of_attributes(self.attributes) ^ checksums.of_arrays(arrays)

    @property
    def digests(self) -> dict[str, int]:
        """The digests of the graph's data by the names of their attributes; empty in older files (:mod:`hpcgnn.data.digests`)."""
        return {name: self.attributes[name] for name in digests.ATTRIBUTES if name in self.attributes}

    @property
    def data(self) -> dict[str, str]:
        """The identity of the graph's data: the result of :func:`hpcgnn.data.digests.in_text`."""
        return digests.in_text(self.meta.num_nodes, self.digests)

    @property
    def num_slabs(self) -> int:
        """Number of parts of a parts file, or of blocks of nodes of a graph file."""
        return self.bounds.size - 1

    def slab_rows(self, name: str, slab: int) -> tuple[int, int]:
        """The rows ``[first, last)`` of dataset ``name`` that belong to ``slab``."""
        rows, total = self.rules[name].rows, self.rules[name].shape[0]
        if rows == schema.WHOLE:
            return 0, total
        if rows == schema.SHARES:
            return total * slab // self.num_slabs, total * (slab + 1) // self.num_slabs
        first, last = (int(node) for node in self.bounds[slab : slab + 2])
        if rows == schema.NODES:
            return first, last
        if rows == schema.BORDERS:
            return first, last + 1
        return self._border(rows, first), self._border(rows, last)

    def _border(self, name: str, node: int) -> int:
        return int(self.read(name, node, node + 1)[0])

    def verify(self, slabs: Iterable[int]) -> None:
        """Read some slabs, and check every value and every checksum, in bounded memory."""
        for slab in slabs:
            for name, rule in self.rules.items():
                if rule.rows != schema.WHOLE:
                    self.scan(name, slab)

    def scan(self, name: str, slab: int) -> None:
        """Like :meth:`verify`, for one array of one slab."""
        self._look(name, self.slab_rows(name, slab), None, slab)

    def _look(self, name: str, rows: tuple[int, int], out: np.ndarray | None, slab: int | None) -> None:
        """Read ``rows`` into ``out``, if given, and check them; slab: its number, if they are all rows of one slab."""
        called, expected = "", None
        if slab is not None:
            called = "all parts" if self.rules[name].rows == schema.WHOLE else f"{self.SLAB} {slab}"
            expected = None if self.checksums is None else int(self.checksums[name][slab])
        look(self.arrays[name], rows, out, self.rules[name], called, expected)

    def check_types(self, first: int, last: int, runs: np.ndarray) -> None:
        """Raise HpcgnnError unless labels and features of nodes ``[first, last)``, and edges into them, are those of their types.
        Takes bounded memory. runs: (r, 2) int64 :meth:`GraphMeta.type_runs` of all nodes."""
        meta = self.meta
        classes = np.array([each.classes for each in meta.node_types])
        columns = np.array([each.columns for each in meta.edge_types])
        pairs = np.array([len(classes), 1]) @ meta.edge_type_ends  # a number for each pair of types of nodes
        for begin in range(first, last, _NODES_AT_A_TIME):
            end = min(begin + _NODES_AT_A_TIME, last)
            kinds = meta.node_types_of(self.ids(begin, end))
            if (y := self.labels(begin, end)) is not None:
                known = (~np.isnan(y) if y.dtype.kind == "f" else y > 0).reshape(len(y), -1)
                needed = y + 1 if y.dtype.kind == "i" else (known * np.arange(1, known.shape[1] + 1)).max(1, initial=0)
                if (needed > classes[kinds]).any():
                    raise h5.damaged(self.path, "nodes/y has labels that the type of their node has not")
            if meta.x_by_type:
                self.type_rows(begin, end)
            elif meta.x_nnz is not None:
                values = self.indptr(begin, end, "nodes/x_indptr")
                used, own = self.read("nodes/x_indices", *map(int, values[[0, -1]])), np.repeat(kinds, np.diff(values))
                if (np.searchsorted(meta.column_offsets, used, side="right") - 1 != own).any():
                    raise h5.damaged(self.path, "nodes/x_indices has columns of another type than the node's")
            borders = self.indptr(begin, end)
            for edge in range(int(borders[0]), int(borders[-1]), _EDGES_AT_A_TIME):
                edges = edge, min(edge + _EDGES_AT_A_TIME, int(borders[-1]))
                types, sources = (self.read(f"edges/{name}", *edges) for name in ("type", "indices"))
                found = len(classes) * runs[:, 1].take(np.searchsorted(runs[:, 0], sources, side="right") - 1)
                if (found + np.repeat(kinds, np.diff(borders.clip(*edges))) != pairs.take(types)).any():
                    raise h5.damaged(self.path, "edges/type are not the types of edges between the types of their ends")
                attr = self.of_edges("attr", *edges)
                if attr is not None and (attr * (np.arange(attr.shape[1]) >= columns.take(types)[:, None])).any():
                    raise h5.damaged(self.path, "edges/attr has more features of an edge than edge_types says")

    def links(self, first: int, last: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The first row, and the arrays of :func:`hpcgnn.data.schema.link_rules`, of some rows of ``[first, last)`` at a time, in
        bounded memory. Raises HpcgnnError where a node has another type than the end of its link."""
        rules = schema.link_rules(self.meta)
        step = max(1, _LINK_BYTES // sum((rule.dtype.itemsize * rule.row_size for rule in rules.values()), 1))
        for begin in range(first, last, step):
            found = {name: self.read(name, begin, min(begin + step, last)) for name in rules}
            if problem := self.meta.wrong_end(found):
                raise h5.damaged(self.path, problem)
            yield begin, found

    def read(self, name: str, first: int, last: int, slab: int | None = None) -> np.ndarray:
        """Rows ``[first, last)`` of dataset ``name``. slab: its number, if the rows are all rows of one slab."""
        out = self.arrays[name].empty(last - first)
        self._look(name, (first, last), out, slab)
        return out

    def on_disk(self, name: str, first: int, last: int, slab: int | None = None) -> RowsOnDisk:
        """Rows ``[first, last)`` of dataset ``name``, which are checked here in bounded memory, for later reading."""
        self._look(name, (first, last), None, slab)
        return RowsOnDisk(self.arrays[name], first, last)

    def indptr(self, first: int, last: int, name: str = "edges/indptr", slab: int | None = None) -> np.ndarray:
        """Offsets ``[first, last]`` (n+1,) int64 of ``edges/indptr`` or ``nodes/x_indptr``, as stored, so not from 0."""
        return self.read(name, first, last + 1, slab)

    def edges(self, first: int, last: int, slab: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``(indptr, indices)`` of the in-edges of nodes ``[first, last)``: offsets as of :meth:`indptr`, (m,) int64 sources."""
        indptr = self.indptr(first, last, slab=slab)
        return indptr, self.read("edges/indices", int(indptr[0]), int(indptr[-1]), slab)

    def of_edges(self, name: str, first_edge: int, last_edge: int, slab: int | None = None) -> np.ndarray | None:
        """``weight`` (m,) float32, ``type`` (m,) int32, ``attr`` (m, D) float32 or ``split`` (m,) uint8, of
        :data:`hpcgnn.data.schema.LINK_SETS`, of edges ``[first_edge, last_edge)``; None for a graph without it."""
        name = f"edges/{name}"
        if name not in self.rules:
            return None
        return (self._widened if self.rules[name].dtype == np.float16 else self.read)(name, first_edge, last_edge, slab)

    def edge_values(self, first_edge: int, last_edge: int) -> dict[str, np.ndarray]:
        """The arrays of :data:`hpcgnn.data.schema.EDGE_VALUES` that the file has, of these edges, as stored."""
        return {name: self.read(name, first_edge, last_edge) for name in schema.EDGE_VALUES if name in self.rules}

    def ids(self, first: int, last: int, slab: int | None = None) -> np.ndarray:
        """(n,) int64 original ids of nodes ``[first, last)``."""
        return np.arange(first, last)

    def features(
        self, first: int, last: int, slab: int | None = None
    ) -> np.ndarray | sp.csr_matrix | list[TypeRows] | None:
        """Features of nodes ``[first, last)``: (n, F) float32, dense or CSR as stored; None if there are none. With
        ``x_by_type``, those of each type of nodes."""
        if self.meta.x_by_type:
            return self._features_by_type(first, last, slab)
        if self.meta.x_nnz is not None:
            import scipy.sparse as sp  # imported here, because graphs with dense features do not need it

            indptr = self.indptr(first, last, "nodes/x_indptr", slab)
            begin, end = int(indptr[0]), int(indptr[-1])
            columns, data = (self.read(f"nodes/x_{name}", begin, end, slab) for name in ("indices", "data"))
            return sp.csr_matrix((data, columns, indptr - begin), shape=(last - first, self.meta.num_features))
        if not self.meta.num_features:
            return None
        return (self._widened if self.meta.x_dtype == schema.HALF else self.read)("nodes/x", first, last, slab)

    def _features_by_type(self, first: int, last: int, slab: int | None) -> list[TypeRows]:
        kinds, indptr = self.type_rows(first, last, slab)
        name, begin, end = "nodes/x_data", int(indptr[0]), int(indptr[-1])
        data = (self._widened if self.meta.x_dtype == schema.HALF else self.read)(name, begin, end, slab)
        borders = np.concatenate(([0], np.flatnonzero(np.diff(kinds)) + 1, [kinds.size]))
        found = []
        for kind, each in enumerate(self.meta.node_types):  # in a part, the nodes of a type are one run
            runs = [(a, b) for a, b in pairwise(borders.tolist()) if a < b and kinds[a] == kind]
            values = [data[indptr[a] - begin : indptr[b] - begin] for a, b in runs] or [data[:0]]
            x = values[0] if len(values) == 1 else np.concatenate(values)
            rows = np.flatnonzero(kinds == kind)
            found.append(TypeRows(rows, x.reshape(rows.size, each.columns)))
        return found

    def type_rows(self, first: int, last: int, slab: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``(types, indptr)`` of nodes ``[first, last)`` of a file with ``x_by_type``: (n,) int64 types, and offsets of features
        as of :meth:`indptr`."""
        kinds = self.meta.node_types_of(self.ids(first, last, slab))
        indptr = self.indptr(first, last, "nodes/x_indptr", slab)
        if not np.array_equal(np.diff(indptr), np.diff(self.meta.column_offsets)[kinds]):
            raise h5.damaged(self.path, "nodes/x_indptr does not give each node the features of its type")
        return kinds, indptr

    def _widened(self, name: str, first: int, last: int, slab: int | None) -> np.ndarray:
        """Rows of a float16 dataset as float32, in no more memory than the result takes: they are read into its second half, and
        widened from the front, so that a wide row overwrites only narrow rows that have been widened already."""
        rule = self.rules[name]
        wide = np.empty((last - first, *rule.shape[1:]), np.float32)
        narrow = wide.reshape(-1).view(np.float16)[wide.size :].reshape(wide.shape)
        self._look(name, (first, last), narrow, slab)
        step = max(1, _WIDENED_BYTES // (4 * rule.row_size))
        for begin in range(0, last - first, step):
            wide[begin : begin + step] = narrow[begin : begin + step]  # numpy makes a copy first where the two overlap
        return wide

    def labels(self, first: int, last: int, slab: int | None = None) -> np.ndarray | None:
        """Labels of nodes ``[first, last)``: (n,) int64, (n, C) uint8, or float32 targets of regression; None without labels."""
        return None if self.meta.task == schema.NO_TASK else self.read("nodes/y", first, last, slab)

    def mask(self, name: str, first: int, last: int, slab: int | None = None) -> np.ndarray | None:
        """``train_mask``, ``val_mask`` or ``test_mask`` of nodes ``[first, last)``, (n,) bool, or None without masks."""
        return self.read(f"nodes/{name}", first, last, slab) if self.meta.has_masks else None


class GraphFile(SlabReader):
    """An open ``graph.h5``."""

    KIND, VERSIONS, SLAB = GRAPH_KIND, tuple(range(1, GRAPH_VERSION + 1)), "block"

    def _rules(self) -> Rules:
        return schema.graph_rules(self.meta)

    def _bounds(self) -> np.ndarray:
        nodes = self.meta.num_nodes
        blocks = -(-nodes // _BLOCK_NODES) or 1
        return np.arange(blocks + 1) * nodes // blocks


_BLOCK_NODES = 1 << 18
_WIDENED_BYTES = 1 << 20
_NODES_AT_A_TIME, _EDGES_AT_A_TIME, _LINK_BYTES = 1 << 14, 1 << 20, 8 << 20


PARTS_KIND, PARTS_VERSION = "hpcgnn-parts", 8
MADE_BY = {"method": str, "objective": str, "balance": str, "seed": int, "ranks_per_node": int, "graph_uuid": str}
"""Attributes that describe the partition, with their types. Older files have no ``ranks_per_node``."""


class PartsFile(SlabReader):
    """An open ``parts.h5``; its slabs are the parts."""

    KIND, VERSIONS, SLAB = PARTS_KIND, tuple(range(1, PARTS_VERSION + 1)), "part"

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.num_slabs

    @property
    def ranks_per_node(self) -> int:
        """The number of consecutive ranks on each node for which the parts were made; 1 if nobody asked for another."""
        return int(self.attributes.get("ranks_per_node", 1))

    @property
    def node_offsets(self) -> np.ndarray:
        """(P + 1,) int64 first position of each part."""
        return self.bounds

    def part(self, part: int) -> tuple[int, int]:
        """The positions ``[first, last)`` that ``part`` owns."""
        return int(self.node_offsets[part]), int(self.node_offsets[part + 1])

    def ids(self, first: int, last: int, slab: int | None = None) -> np.ndarray:
        """(n,) int64 original ids of positions ``[first, last)``."""
        return self.read("nodes/original_ids", first, last, slab)

    def _attribute_types(self) -> dict[str, type]:
        with h5.reading(self.path, "its attributes"):
            # These attributes are optional: no array is read with the help of them.
            told = {name: kind for name, kind in MADE_BY.items() if name in self.file.attrs}
        return super()._attribute_types() | {"num_parts": int} | told

    def _rules(self) -> Rules:
        num_parts = self.attributes["num_parts"]
        if num_parts < 1:
            raise h5.damaged(self.path, f"attribute num_parts is {num_parts}")
        if not 1 <= self.ranks_per_node <= num_parts:
            raise h5.damaged(self.path, f"attribute ranks_per_node is {self.ranks_per_node} for {num_parts} parts")
        return schema.parts_rules(self.meta, num_parts)

    def _bounds(self) -> np.ndarray:
        return self.arrays["parts/node_offsets"].read()


def reader_of(path: str | Path) -> type[SlabReader]:
    """The class that reads ``path``: :class:`PartsFile` for ``parts.h5``, and else :class:`GraphFile`."""
    return PartsFile if h5.kind_of(path) == PARTS_KIND else GraphFile
