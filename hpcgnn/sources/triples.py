"""Edges that are read once, with names in place of numbers: tables of names, and spools that keep what they have numbered.

A name gets the next number when it is first seen, so that one pass is enough. The table takes O(distinct names) memory in the one
process that converts, about 200 bytes and the name for each (:class:`NameTable`); edges are on disk. Names of types are sorted
in the end, so that the numbers of types do not depend on the order of the edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.data.names import EDGE_TYPES, NODES, Names
from hpcgnn.sources.base import CHUNK_EDGES, Source, SourceInfo, Spec, agreed_nodes, check_types
from hpcgnn.sources.edges import EdgeChunk, EdgeForm
from hpcgnn.sources.slabs import Spool

INVERSE = "inverse of "
_TOLD = 8  # the number of names of types in a note


class NameTable(dict[str, int]):
    """The numbers of names, from 0, in the order in which they were first seen."""

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """(n,) int64 numbers of n names; new ones are added."""
        return np.fromiter((self.setdefault(name, len(self)) for name in names), np.int64, len(names))


def take_yes(spec: Spec, key: str) -> bool:
    """Option ``key``, yes or no; no without it."""
    value = spec.take(key, "no")
    if value not in ("yes", "no"):
        raise HpcgnnError(f"{spec.text}: {key}={value} should be yes or no")
    return value == "yes"


def _told(where: str, types: Sequence[str]) -> list[str]:
    """A note with the first names of types."""
    told = ", ".join(f"{number} is {quoted(name)}" for number, name in enumerate(types[:_TOLD]))
    return [f"{where}: type {told}" + f", and {len(types) - _TOLD} more" * (len(types) > _TOLD)] if types else []


class SpooledEdges(Source):
    """A graph with only edges, which are appended once, and then read as often as needed.

    nodes, types: the tables of names; None where ids, or types, are numbers. inverse: add the reverse of each edge of type r, as
    an edge of type 2r + 1, and give the edge itself type 2r, as R-GCN's data sets do (Schlichtkrull et al., 2018).
    """

    def __init__(self, folder: Path, *, inverse: bool = False) -> None:
        self.nodes: NameTable | None = None
        self.types: NameTable | None = None
        self._inverse, self._largest, self._largest_type = inverse, -1, -1
        self._src, self._dst = Spool(folder, np.int64), Spool(folder, np.int64)
        self._weight, self._type, self._attr, self._split = (
            Spool(folder, kind) for kind in (np.float64, np.int32, np.float32, np.uint8)
        )
        self._order = np.empty(0, np.int64)

    @property
    def num_read(self) -> int:
        """Number of edges so far, without the reverse ones."""
        return self._src.size

    def append(self, chunk: EdgeChunk) -> None:
        """Add edges, all with the same kinds of values."""
        if not chunk.src.size:
            return
        self._largest = max(self._largest, int(chunk.src.max()), int(chunk.dst.max()))
        self._src.append(chunk.src)
        self._dst.append(chunk.dst)
        if chunk.weight is not None:
            self._weight.append(chunk.weight)
        if chunk.type is not None:
            self._largest_type = max(self._largest_type, int(chunk.type.max()))
            self._type.append(chunk.type.clip(-1, np.iinfo(np.int32).max))
        if chunk.attr is not None:
            with np.errstate(over="ignore"):  # values that are too large become infinite, which is refused later
                self._attr.append(chunk.attr.astype(np.float32).reshape(-1))
        if chunk.split is not None:
            self._split.append(chunk.split)

    def finish(self, where: str, asked_nodes: int, notes: Sequence[str] = ()) -> None:
        """Set ``info`` and ``names`` after the last edge. where: the file's name in errors. asked_nodes: the user's
        ``?nodes=N``, 0 without one."""
        edges = self.num_read
        if "" in (self.nodes or ()) or "" in (self.types or ()):
            raise HpcgnnError(f"{where} has an edge with an empty name at one of its ends, or as its type")
        if not edges and (self.nodes is not None or not asked_nodes):
            raise HpcgnnError(f"{where} holds no edges: give the number of nodes with ?nodes=N")
        if self.nodes is None:
            num_nodes = asked_nodes or agreed_nodes(where, self._largest + 1, edges, 0)
        else:
            num_nodes = agreed_nodes(where, len(self.nodes), None, asked_nodes)
        check_types(f"{where}: an edge", self._largest_type, edges)
        types = self._largest_type + 1
        names: tuple[str, ...] = ()
        if self.types is not None:
            names = tuple(sorted(self.types))
            self._order = np.empty(types, np.int64)
            self._order[[self.types[name] for name in names]] = np.arange(types)
        if self._inverse:
            if not types:
                raise HpcgnnError(f"{where} has no types of edges, so leave inverse=yes out, or name their column")
            types, names = 2 * types, tuple(name for each in names for name in (each, INVERSE + each))
        self.names: Names = ({} if self.nodes is None else {NODES: self.nodes}) | ({EDGE_TYPES: names} if names else {})
        self.info = SourceInfo(
            num_nodes,
            edges * (1 + self._inverse),
            EdgeForm(bool(self._weight.size), types, self._attr.size // max(edges, 1), split=bool(self._split.size)),
            fixed_ids=self.nodes is not None,
            notes=(*notes, *_told(where, names)),
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        for first in range(0, self._src.size, chunk_edges):
            chunk = self._chunk(first, min(first + chunk_edges, self._src.size))
            yield chunk
            if self._inverse and chunk.type is not None:
                yield replace(chunk.reversed(), type=chunk.type + 1)

    def _chunk(self, first: int, last: int) -> EdgeChunk:
        form = self.info.form
        weight = self._weight.read(first, last) if form.weighted else None
        attr = types = None
        if form.attr_columns:
            columns = form.attr_columns
            attr = self._attr.read(first * columns, last * columns).reshape(-1, columns)
        if form.num_types:
            types = self._type.read(first, last)
            types = (types if self.types is None else self._order[types]) * (1 + self._inverse)
        split = self._split.read(first, last) if form.split else None
        return EdgeChunk(self._src.read(first, last), self._dst.read(first, last), weight, types, attr, split)
