"""``edgelist:FILE``: an edge on each line, ``src dst`` or ``src dst weight``, separated by blanks or commas; ids count from 0.

Empty lines and lines that start with ``#`` or ``%`` are skipped. The number of nodes follows from the largest id, or is
``?nodes=N`` if the last nodes have no edges. ``?nodes=N`` is required where the largest id is above 65,535 and above 8 times the
number of edges: such ids are probably names, and each number up to the largest would take space.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.data.edges import EdgeChunk
from hpcgnn.data.sources.base import CHUNK_EDGES, SourceInfo, StructureSource, agreed_nodes, existing_file, reading
from hpcgnn.data.sources.lines import LONGEST_LINE, blocks, open_text
from hpcgnn.data.sources.spec import Spec
from hpcgnn.data.spool import Spool
from hpcgnn.errors import HpcgnnError


class EdgeListSource(StructureSource):
    """Edges of a text file, which is parsed once into spools, because its number of nodes is known only at its end."""

    def __init__(self, path: Path, num_nodes: int, folder: Path) -> None:
        self._src, self._dst, self._weight = (Spool(folder, kind) for kind in (np.int64, np.int64, np.float32))
        largest, columns = -1, 0
        with reading(path, "an edge list"), open_text(path) as file:
            line_number = 1
            for lines in blocks(file, LONGEST_LINE):
                data = [line for line in lines if line.strip() and not line.startswith(("#", "%"))]
                if data:
                    columns = columns or _columns(data[0], path)
                    delimiter = "," if "," in data[0] else None
                    src, dst, weight = parse_lines(data, columns, delimiter, lines, line_number, path)
                    largest = max(largest, int(src.max()), int(dst.max()))
                    self._src.append(src)
                    self._dst.append(dst)
                    self._weight.append(weight)
                line_number += len(lines)
        if not num_nodes and largest < 0:
            raise HpcgnnError(f"{path} holds no edges: give the number of nodes with ?nodes=N")
        num_nodes = num_nodes or agreed_nodes(str(path), largest + 1, self._src.size, 0)
        self.info = SourceInfo(num_nodes, self._src.size, weighted=columns == 3)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.data.sources.base.Source`."""
        for first in range(0, self._src.size, chunk_edges):
            last = min(first + chunk_edges, self._src.size)
            weight = self._weight.read(first, last) if self.info.weighted else None
            yield self._src.read(first, last), self._dst.read(first, last), weight


def open_edge_list(spec: Spec, folder: Path) -> EdgeListSource:
    """See the module's text."""
    return EdgeListSource(existing_file(spec.name, spec.kind), spec.take_int("nodes", 0), folder)


def _columns(line: str, path: Path) -> int:
    count = len(line.split("," if "," in line else None))
    if count not in (2, 3):
        raise HpcgnnError(
            f"{path}: {line.strip()[:60]!r} has {count} columns, but an edge list has 2 or 3: src dst [weight]"
        )
    return count


def parse_lines(
    data: list[str], columns: int, delimiter: str | None, lines: list[str], line_number: int, path: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(src, dst, weight)`` of the n lines ``data``: (n,) int64, int64, float32; weight is empty if there are 2 columns.

    ``data`` are those of ``lines`` that are not comments; the first of ``lines`` is line ``line_number`` of the file. With None
    for ``delimiter``, columns are separated by blanks. Raises HpcgnnError for the first line that cannot be read.
    """
    kinds = [("src", np.int64), ("dst", np.int64), ("weight", np.float32)][:columns]
    try:
        table = np.loadtxt(data, dtype=kinds, comments=None, delimiter=delimiter, ndmin=1)
    except ValueError as error:
        raise HpcgnnError(_complaint(columns, delimiter, lines, line_number, path) or f"{path}: {error}") from error
    return table["src"], table["dst"], table["weight"] if columns == 3 else np.empty(0, np.float32)


def _complaint(columns: int, delimiter: str | None, lines: list[str], line_number: int, path: Path) -> str | None:
    """A sentence about the line that numpy could not read, or None if none of ours fits; called only after numpy's error."""
    for number, line in enumerate(lines, line_number):
        fields = line.split(delimiter) if line.strip() else []
        if not fields or line.startswith(("#", "%")):
            continue
        where = f"{path}, line {number}: {line.strip()[:60]!r}"
        if len(fields) != columns:
            return f"{where} has {len(fields)} columns, but the lines before have {columns}"
        for field in fields[:2]:
            if not field.strip().lstrip("+-").isdecimal() or not -(2**63) <= int(field) < 2**63:
                advice = "" if any(map(_is_number, fields)) else ": begin the line with # if it names the columns"
                return f"{where}: node id {field.strip()!r} is not a whole number of at most 64 bits{advice}"
        if columns == 3 and not _is_number(fields[2]):
            return f"{where}: weight {fields[2].strip()!r} is not a number"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
