"""``metis:FILE``: a METIS ``.graph``, an undirected graph that lists every edge at both of its ends; ids count from 1.

The first line is ``nodes edges [fmt [ncon]]``; each node has one of the next lines. ``fmt`` has three digits: whether there are
node sizes, node weights (``ncon`` of them) and edge weights. The first two are skipped, because our partitioners compute weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, StructureSource, existing_file, reading
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.lines import blocks, open_text
from hpcgnn.sources.spec import Spec

_CHARACTERS_PER_EDGE = 8
_DIGITS = 18
_LONGEST_HEADER, _LONGEST_LINE = 1 << 10, 1 << 30


class MetisSource(StructureSource):
    """Edges of a METIS file, which is read again by each call of :meth:`edges`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, "METIS"), open_text(path) as file:
            header = _header(file)
        if not 2 <= len(header) <= 4 or not all(word.isdecimal() and len(word) < _DIGITS for word in header):
            raise HpcgnnError(
                f"{path}: the first line should be 'nodes edges [fmt [ncon]]', but it is {' '.join(header)[:60]!r}"
            )
        digits = (header[2] if len(header) > 2 else "0").zfill(3)
        if len(digits) != 3 or set(digits) - {"0", "1"}:
            raise HpcgnnError(f"{path}: fmt {header[2]!r} in the first line should be up to three digits 0 or 1")
        constraints = int(header[3]) if len(header) > 3 else 1
        self._skip = int(digits[0]) + constraints * int(digits[1])
        # Each node has a line in the file, even if it is empty, and each neighbour a number, so the announced counts are compared
        # with the file before memory is allocated for them.
        self.info = SourceInfo(
            int(header[0]), 2 * int(header[1]), weighted=digits[2] == "1", both_ways=True, fixed_ids=True
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        node, found = 0, 0
        with reading(self._path, "METIS"), open_text(self._path) as file:
            _header(file)
            for lines in blocks(file, _LONGEST_LINE, chunk_edges * _CHARACTERS_PER_EDGE):
                rows = [line.split() for line in lines if not line.lstrip().startswith("%")]
                while rows and node + len(rows) > self.info.num_nodes and not rows[-1]:
                    rows.pop()
                src, dst, weight = self._parse(rows, node)
                node, found = node + len(rows), found + src.size
                yield src, dst, weight
        if node != self.info.num_nodes or found != self.info.num_edges:
            raise HpcgnnError(
                f"{self._path} has {node:,} node lines with {found:,} neighbours, but its first line announces "
                f"{self.info.num_nodes:,} nodes and {self.info.num_edges:,} neighbours (each edge at both ends)"
            )

    def _parse(self, rows: list[list[str]], first: int) -> EdgeChunk:
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        stride = 2 if self.info.weighted else 1
        short = (counts < self._skip) | ((counts - self._skip) % stride != 0)
        if short.any():
            raise HpcgnnError(
                f"{self._path}: the line of node {first + int(short.argmax()) + 1} does not fit fmt and ncon"
            )
        # Python's int refuses '1.5' and '1e3', and the message of reading() then quotes the wrong word.
        numbers = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
        place = np.arange(numbers.size) - np.repeat(np.cumsum(counts) - counts, counts) - self._skip
        is_neighbour = (place >= 0) & (place % stride == 0)
        src = np.repeat(np.arange(first, first + len(rows)), (counts - self._skip) // stride)
        weight = numbers[(place >= 0) & (place % stride == 1)] if stride == 2 else None
        dst = numbers[is_neighbour] - 1
        outside = (dst < 0) | (dst >= self.info.num_nodes)
        if outside.any():
            bad = int(outside.argmax())
            raise HpcgnnError(
                f"{self._path}: node {src[bad] + 1} has neighbour {dst[bad] + 1}, but ids run from 1 to {self.info.num_nodes}"
            )
        return src, dst, weight


@SOURCES.register("metis")
def open_metis(spec: Spec, folder: Path) -> MetisSource:
    """See the module's text."""
    return MetisSource(existing_file(spec.name, "metis"))


def _header(file: TextIO) -> list[str]:
    while line := file.readline(_LONGEST_HEADER):
        if not line.lstrip().startswith("%"):
            return line.split()
        while line and not line.endswith("\n"):  # a long comment
            line = file.readline(_LONGEST_HEADER)
    return []
