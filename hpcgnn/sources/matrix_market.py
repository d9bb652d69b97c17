"""``mtx:FILE[?nodes=N]``: a square MatrixMarket matrix; entry (i, j) is the edge i -> j, its value the weight.

Only coordinate matrices are read, also gzipped ones. A pattern has no weights, and an entry of a symmetric matrix gives edges in
both directions. ``?nodes=N`` is as for an edge list. SciPy's parser is not used, because it allocates memory for as many entries
as the header announces, cannot open names that are not UTF-8, and ends the process where it gets a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, StructureSource, agreed_nodes, existing_file, reading
from hpcgnn.sources.edge_columns import ROLES, EdgeColumns
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.lines import LONGEST_LINE, blocks, open_text
from hpcgnn.sources.spec import Spec
from hpcgnn.sources.text import parse_lines

_CHARACTERS_PER_ENTRY = 8
_DIGITS = 19  # the number of digits of the largest int64
_FIELDS = ("pattern", "real", "double", "integer", "unsigned-integer")
_MIRRORED = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}  # factor of the reverse edge's weight


class MatrixMarketSource(StructureSource):
    """Edges of a MatrixMarket file, which is read again by each call of :meth:`edges`."""

    def __init__(self, path: Path, nodes: int) -> None:
        self._path = path
        with reading(path, "MatrixMarket"), open_text(path) as file:
            field, symmetry = _banner(file.readline(LONGEST_LINE), path)
            rows, columns, self._entries = _sizes(_after_comments(file)[0])
        if rows != columns:
            raise HpcgnnError(f"{path} has {rows} rows and {columns} columns: a graph needs a square matrix")
        self._mirrored = _MIRRORED[symmetry]
        self.info = SourceInfo(
            num_nodes=agreed_nodes(str(path), rows, self._entries, nodes),
            num_edges=None if self._mirrored else self._entries,
            weighted=field != "pattern",
            fixed_ids=True,
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        found, columns = 0, EdgeColumns(ROLES if self.info.weighted else ROLES[:2], None)
        with reading(self._path, "MatrixMarket"), open_text(self._path) as file:
            file.readline(LONGEST_LINE)
            line_number = 2 + _after_comments(file)[1]
            for lines in blocks(file, LONGEST_LINE, chunk_edges * _CHARACTERS_PER_ENTRY):
                data = [line for line in lines if line.strip() and not line.startswith("%")]
                if data:
                    row, column, value = parse_lines(data, columns, lines, line_number, self._path)
                    yield self._mirror(row - 1, column - 1, value if columns.weighted else None)
                found, line_number = found + len(data), line_number + len(lines)
        if found != self._entries:
            raise HpcgnnError(f"{self._path} has {found:,} entries, but its second line announces {self._entries:,}")

    def _mirror(self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> EdgeChunk:
        """All edges of some entries. Ids are checked here, because in the file they count from 1."""
        outside = (src < 0) | (dst < 0) | (src >= self.info.num_nodes) | (dst >= self.info.num_nodes)
        if outside.any():
            bad = int(outside.argmax())
            raise HpcgnnError(
                f"{self._path} has an entry in row {src[bad] + 1}, column {dst[bad] + 1}: these run from 1 "
                f"to {self.info.num_nodes}"
            )
        if not self._mirrored:
            return src, dst, weight
        aside = src != dst
        both = np.concatenate([src, dst[aside]]), np.concatenate([dst, src[aside]])
        return *both, None if weight is None else np.concatenate([weight, self._mirrored * weight[aside]])


@SOURCES.register("mtx")
def open_matrix_market(spec: Spec, folder: Path) -> MatrixMarketSource:
    """See the module's text."""
    return MatrixMarketSource(existing_file(spec.name, "mtx"), spec.take_int("nodes", 0))


def _banner(line: str, path: Path) -> tuple[str, str]:
    """The field and the symmetry from the first line. Raises ValueError or HpcgnnError for other lines."""
    words = line.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[4] not in _MIRRORED:
        raise ValueError(
            f"the first line should be '%%MatrixMarket matrix coordinate real general', but it is {line[:60].strip()!r}"
        )
    _, _, layout, field, symmetry = words
    if layout != "coordinate" or field not in _FIELDS:
        raise HpcgnnError(f"{path} is a {field} {layout} matrix: edges need a coordinate one of real numbers")
    return field, symmetry


def _after_comments(file: TextIO) -> tuple[str, int]:
    """The first line that is neither a comment nor empty, and the number of lines up to it."""
    count = 0
    while line := file.readline(LONGEST_LINE):
        count += 1
        if line.strip() and not line.startswith("%"):
            return line, count
    return "", count


def _sizes(line: str) -> tuple[int, int, int]:
    words = line.split()
    if len(words) != 3 or not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
        raise ValueError(f"the line of sizes should be 'rows columns entries', but it is {line[:60].strip()!r}")
    rows, columns, entries = map(int, words)
    return rows, columns, entries
