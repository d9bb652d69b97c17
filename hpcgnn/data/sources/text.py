"""``edgelist:FILE``: a line an edge, ``src dst`` or ``src dst weight``, between blanks or commas, ids from 0.

Empty lines and lines that start with ``#`` or ``%`` are skipped. The largest id gives the number of nodes, or
``?nodes=N`` does, where the last ones have no edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.data.edges import EdgeChunk
from hpcgnn.data.sources.base import CHUNK_EDGES, SourceInfo, StructureSource, existing_file, reading
from hpcgnn.data.sources.lines import blocks, open_text
from hpcgnn.data.sources.spec import Spec
from hpcgnn.data.spool import Spool
from hpcgnn.errors import HpcgnnError


class EdgeListSource(StructureSource):
    """Parsed once into spools, because the number of nodes is known only at the end of the file."""

    def __init__(self, path: Path, num_nodes: int, folder: Path) -> None:
        self._src, self._dst, self._weight = (Spool(folder, kind) for kind in (np.int64, np.int64, np.float32))
        largest, columns = -1, 0
        with reading(path, "an edge list"), open_text(path) as file:
            line_number = 1
            for lines in blocks(file):
                data = [line for line in lines if not line.startswith(("#", "%")) and not line.isspace()]
                if data:
                    columns = columns or _columns(data[0], path)
                    src, dst, weight = _parse(data, columns, lines, line_number, path)
                    largest = max(largest, int(src.max()), int(dst.max()))
                    self._src.append(src)
                    self._dst.append(dst)
                    self._weight.append(weight)
                line_number += len(lines)
        if not num_nodes and largest < 0:
            raise HpcgnnError(f"{path} holds no edges: say how many nodes there are with ?nodes=N")
        self.info = SourceInfo(num_nodes or largest + 1, self._src.size, weighted=columns == 3)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.data.sources.base.Source`."""
        for first in range(0, self._src.size, chunk_edges):
            last = min(first + chunk_edges, self._src.size)
            weight = self._weight.read(first, last) if self.info.weighted else None
            yield self._src.read(first, last), self._dst.read(first, last), weight


def open_edge_list(spec: Spec, folder: Path) -> EdgeListSource:
    """See the module's text."""
    return EdgeListSource(existing_file(spec.name, "edgelist"), spec.take_int("nodes", 0), folder)


def _fields(line: str) -> list[str]:
    return (line.split(",") if "," in line else line.split()) if line.strip() else []


def _columns(line: str, path: Path) -> int:
    count = len(_fields(line))
    if count not in (2, 3):
        raise HpcgnnError(
            f"{path}: {line.strip()[:60]!r} has {count} columns, an edge list has 2 or 3: src dst [weight]"
        )
    return count


def _parse(
    data: list[str], columns: int, lines: list[str], line_number: int, path: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kinds = [("src", np.int64), ("dst", np.int64), ("weight", np.float32)][:columns]
    try:
        table = np.loadtxt(data, dtype=kinds, comments=None, delimiter="," if "," in data[0] else None, ndmin=1)
    except ValueError as error:
        raise HpcgnnError(_complaint(columns, lines, line_number, path) or f"{path}: {error}") from error
    return table["src"], table["dst"], table["weight"] if columns == 3 else np.empty(0, np.float32)


def _complaint(columns: int, lines: list[str], line_number: int, path: Path) -> str | None:
    """Which line numpy could not read, and why; only called once there is one."""
    for number, line in enumerate(lines, line_number):
        fields = _fields(line)
        if not fields or line.startswith(("#", "%")):
            continue
        where = f"{path}, line {number}: {line.strip()[:60]!r}"
        if len(fields) != columns:
            return f"{where} has {len(fields)} columns, the lines before have {columns}"
        for field in fields[:2]:
            if not field.strip().lstrip("+-").isdigit():
                return f"{where}: node id {field.strip()!r} is not a whole number"
    return None
