"""``edgelist:FILE``: an edge on each line, ``src dst`` or ``src dst weight``, separated by blanks or commas; ids count from 0.

A line that names the columns may come first; :mod:`hpcgnn.sources.edge_columns` has the names. ``?source=COLUMN``,
``?target=COLUMN`` and ``?weight=COLUMN`` choose columns by their names. Empty lines and lines that start with ``#`` or ``%`` are
skipped. The number of nodes follows from the largest id, or is ``?nodes=N`` if the last nodes have no edges. ``?nodes=N`` is
required where the largest id is above 65,535 and above 8 times the number of edges: such ids are probably names, and each number
up to the largest would take space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, StructureSource, agreed_nodes, existing_file, reading
from hpcgnn.sources.edge_columns import (
    ROLES,
    SOURCE,
    TARGET,
    WEIGHT,
    EdgeColumns,
    find_columns,
    is_number,
    split_fields,
)
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.lines import LONGEST_LINE, blocks, open_text
from hpcgnn.sources.spec import Spec
from hpcgnn.sources.spool import Spool


class EdgeListSource(StructureSource):
    """Edges of a text file, which is parsed once into spools, because its number of nodes is known only at its end."""

    def __init__(self, path: Path, asked: Mapping[str, str | None], num_nodes: int, folder: Path) -> None:
        self._src, self._dst, self._weight = (Spool(folder, kind) for kind in (np.int64, np.int64, np.float64))
        self._largest = -1
        columns = self._read(path, asked)
        if not num_nodes and self._largest < 0:
            raise HpcgnnError(f"{path} holds no edges: give the number of nodes with ?nodes=N")
        num_nodes = num_nodes or agreed_nodes(str(path), self._largest + 1, self._src.size, 0)
        weighted = columns is not None and columns.weighted
        notes = () if columns is None else (f"{path}: {columns.note()}",)
        self.info = SourceInfo(num_nodes, self._src.size, weighted=weighted, notes=notes)

    def _read(self, path: Path, asked: Mapping[str, str | None]) -> EdgeColumns | None:
        """Parse the file; None if it has comments only."""
        columns, comment, line_number = None, "", 1
        with reading(path, "an edge list"), open_text(path) as file:
            for lines in blocks(file, LONGEST_LINE):
                data = [line for line in lines if line.strip() and not line.startswith(("#", "%"))]
                if columns is None:
                    before = lines[: lines.index(data[0])] if data else lines
                    comment = next((line for line in reversed(before) if line.strip()), comment)
                    columns = find_columns(data[0], comment, asked, path) if data else None
                    data = data[columns is not None and columns.has_header :]
                if data and columns:
                    self._add(*parse_lines(data, columns, lines, line_number, path))
                line_number += len(lines)
        return columns

    def _add(self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray) -> None:
        self._largest = max(self._largest, int(src.max()), int(dst.max()))
        self._src.append(src)
        self._dst.append(dst)
        self._weight.append(weight)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        for first in range(0, self._src.size, chunk_edges):
            last = min(first + chunk_edges, self._src.size)
            weight = self._weight.read(first, last) if self.info.weighted else None
            yield self._src.read(first, last), self._dst.read(first, last), weight


@SOURCES.register("edgelist")
@SOURCES.register("arclist")
def open_edge_list(spec: Spec, folder: Path) -> EdgeListSource:
    """See the module's text."""
    asked = {role: spec.take(role) for role in ROLES}
    return EdgeListSource(existing_file(spec.name, spec.kind), asked, spec.take_int("nodes", 0), folder)


def parse_lines(
    data: Sequence[str], columns: EdgeColumns, lines: Sequence[str], line_number: int, path: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(src, dst, weight)`` of the n lines ``data``: (n,) int64, int64, float64; weight is empty without a column of weights.

    ``data`` are those of ``lines`` that are neither comments nor names of columns; the first of ``lines`` is line
    ``line_number`` of the file. Raises HpcgnnError for the first line that cannot be read.
    """
    kinds = [(role or f"left out {at}", _KINDS.get(role, "U1")) for at, role in enumerate(columns.roles)]
    quote = None if columns.delimiter is None else '"'
    try:
        table = np.loadtxt(data, dtype=kinds, comments=None, delimiter=columns.delimiter, quotechar=quote, ndmin=1)
    except ValueError as error:
        raise HpcgnnError(_complaint(columns, data[0], lines, line_number, path) or f"{path}: {error}") from error
    weight = table[WEIGHT] if columns.weighted else np.empty(0)
    return table[SOURCE], table[TARGET], weight


_KINDS = {SOURCE: np.int64, TARGET: np.int64, WEIGHT: np.float64}


def _complaint(columns: EdgeColumns, begin: str, lines: Sequence[str], line_number: int, path: Path) -> str | None:
    """A sentence about the line that numpy could not read, or None if none of ours fits; called only after numpy's error.
    begin: the first line of the data."""
    for number, line in enumerate(lines[lines.index(begin) :], line_number + lines.index(begin)):
        if not line.strip() or line.startswith(("#", "%")):
            continue
        fields, where = split_fields(line, columns.delimiter), f"{path}, line {number}: {line.strip()[:60]!r}"
        if len(fields) != len(columns.roles):
            return f"{where} has {len(fields)} columns, but the lines before have {len(columns.roles)}"
        for role, field in zip(columns.roles, fields, strict=True):
            if role in (SOURCE, TARGET) and not _is_id(field):
                return f"{where}: node id {field!r} is not a whole number of at most 64 bits"
            if role == WEIGHT and not is_number(field):
                return f"{where}: weight {field!r} is not a number"
    return None


def _is_id(text: str) -> bool:
    return text.lstrip("+-").isdecimal() and -(2**63) <= int(text) < 2**63
