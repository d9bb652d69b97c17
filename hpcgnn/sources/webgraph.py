"""``bvgraph:FILE``: a graph in WebGraph's BV format, in which the Laboratory for Web Algorithmics publishes graphs.

FILE is ``NAME.graph``, ``NAME.properties`` or ``NAME``; these two files are needed, and no others. Arcs go from a page to the
pages that it links to. The format (Boldi and Vigna, The WebGraph framework I, 2004) is to be read from its start, so it is
decoded in slabs of the file, by compiled loops, in the memory of a window of nodes. WebGraph's own Python package is not used: it
returns the successors of one node at a time, and needs an index of offsets that is not published with the graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.h5 import UTF8_MARK
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, Source, SourceInfo, Spec, is_file, reading
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk
from hpcgnn.sources.slabs import FileBytes

_CODES = {"UNARY": 0, "GAMMA": 1, "DELTA": 2, "ZETA": 3}
# Usual codes of the fields, in the order of bv_loops.decode.
_USUAL = {"OUTDEGREES": 1, "BLOCKS": 1, "RESIDUALS": 3, "BLOCK_COUNT": 1, "REFERENCES": 0}
_SLAB_BYTES = 8 << 20
_LONGEST_PROPERTIES = 1 << 16
_MARK = UTF8_MARK.decode("latin-1")
_LARGEST_WINDOW, _LARGEST_K = 1 << 12, 30


@SOURCES.register("bvgraph")
class BvGraph(Source):
    """Edges of a BV graph, which is decoded from its start by each call of :meth:`edges`."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        base = Path(spec.name.removesuffix(".graph").removesuffix(".properties")).expanduser()
        self._path, self._properties = (base.with_name(base.name + suffix) for suffix in (".graph", ".properties"))
        for path in (self._path, self._properties):
            if not is_file(path):
                raise HpcgnnError(
                    f"bvgraph: {path} does not exist or is not a file; NAME.graph and NAME.properties are needed"
                )
        values = _read_properties(self._properties)
        self._codes = _codes(values, self._properties)

        def number(name: str, usual: int | None = None) -> int:
            text = values.get(name)
            if text is None and usual is not None:
                return usual
            if text is None or not text.isdecimal() or len(text) > 18:
                raise HpcgnnError(f"{self._properties}: {name}={text or ''} should be a whole number")
            return int(text)

        self._sizes = np.array([number("zetak", 3), number("minintervallength", 4)])
        if not 1 <= self._sizes[0] <= _LARGEST_K:
            raise HpcgnnError(f"{self._properties}: zetak={self._sizes[0]} should be from 1 to {_LARGEST_K}")
        self._window = number("windowsize", 7)
        if self._window > _LARGEST_WINDOW:
            raise HpcgnnError(f"{self._properties}: windowsize={self._window} should be at most {_LARGEST_WINDOW}")
        nodes, arcs = number("nodes"), number("arcs")
        self._file_bytes = self._path.stat().st_size
        bits = 8 * self._file_bytes
        if nodes > min(bits, MAX_NODES):  # the degree of each node takes one bit at least
            raise HpcgnnError(
                f"{self._path} was cut short, or does not belong to {self._properties}: it has {bits:,} bits for {nodes:,} nodes"
            )
        self.info = SourceInfo(nodes, arcs, fixed_ids=True)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """All arcs, at most ``chunk_edges`` at a time, or those of one node that has more."""
        from hpcgnn.sources import bv_loops

        nodes, num_arcs, capacity = self.info.num_nodes, self.info.num_edges or 0, chunk_edges
        window, degrees = np.zeros((self._window + 1, 64), np.int64), np.zeros(self._window + 1, np.int64)
        slab, content = 0, np.empty(0, np.uint8)  # the slab's first byte in the file, and its bytes
        node, at, found = 0, 0, 0  # ``at`` is a bit of the file
        while node < nodes:
            src, dst = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
            after, node, count, reason, degree = bv_loops.decode(
                content, at - 8 * slab, 8 * content.size, node, nodes,
                self._codes, self._sizes, window, degrees, src, dst,
            )  # fmt: skip
            at, found = after + 8 * slab, found + count
            if count:
                yield EdgeChunk(src[:count], dst[:count])
            if reason == bv_loops.WRONG:
                raise HpcgnnError(
                    f"{self._path} is damaged at byte {at // 8:,}, node {node:,}: create or download it again"
                )
            if reason == bv_loops.SHORT:
                if slab + content.size == self._file_bytes:
                    raise HpcgnnError(
                        f"{self._path} was cut short: it ends at byte {self._file_bytes:,}, in node {node:,} of {nodes:,}"
                    )
                # A slab in which not even one node could be decoded is read again, twice as long.
                slab, content = at // 8, self._slab(at // 8, 0 if count else 2 * content.size)
            elif reason == bv_loops.NARROW:
                # A damaged file may have any degree, so it is checked before memory is allocated.
                if degree > num_arcs:
                    raise HpcgnnError(f"{self._path} is damaged at byte {at // 8:,}: node {node:,} has {degree:,} arcs")
                window = np.pad(window, ((0, 0), (0, degree - window.shape[1])))
            capacity = max(capacity, degree)
        if found != num_arcs:
            raise HpcgnnError(
                f"{self._path} has {found:,} arcs, but {self._properties} has {num_arcs:,}: one of the two files belongs to "
                "another graph"
            )

    def _slab(self, first: int, least: int) -> np.ndarray:
        """The bytes of the file from ``first`` on, at least ``least`` of them where it has as many."""
        out = np.empty(min(max(least, _SLAB_BYTES), self._file_bytes - first), np.uint8)
        FileBytes(self._path).fill(out, first)
        return out


def _read_properties(path: Path) -> dict[str, str]:
    """The values of a Java properties file."""
    values = {}
    with reading(path, "properties"), path.open(encoding="latin-1") as file:
        for line in file.read(_LONGEST_PROPERTIES).removeprefix(_MARK).splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith(("#", "!")):
                values[name.strip()] = value.strip()
    return values


def _codes(values: dict[str, str], path: Path) -> np.ndarray:
    """(5,) the codes of the fields."""
    form = values.get("graphclass", "BVGraph")
    if values.get("endianness", "big") != "big" or not form.endswith("BVGraph"):
        raise HpcgnnError(
            f"{path} does not describe a big-endian BVGraph, the form that is published: no other form can be read"
        )
    chosen = dict(_USUAL)
    for flag in filter(None, (word.strip() for word in values.get("compressionflags", "").split("|"))):
        field, _, code = flag.rpartition("_")
        if field == "OFFSETS":
            continue
        if field not in chosen or code not in _CODES:
            raise HpcgnnError(f"{path}: code {flag} in compressionflags is not known here")
        chosen[field] = _CODES[code]
    return np.array(list(chosen.values()))
