"""``bvgraph:FILE``: a graph in WebGraph's BV format, in which the Laboratory for Web Algorithmics publishes graphs.

FILE is ``NAME.graph``, ``NAME.properties`` or ``NAME``; these two files are needed, and no others. Arcs go from a page to the
pages that it links to. The format (Boldi and Vigna, The WebGraph framework I, 2004) is to be read from its start: the successors
of a node are copied in blocks from one of the few nodes before it, or are intervals, or gaps in a code of variable length. So it
is decoded here in slabs of the file, by compiled loops, in the memory of a window of nodes. WebGraph's own Python package is not
used: it returns the successors of one node at a time, as Python numbers, and needs an index of offsets, which is not published
with the graphs, and which no Python package makes.
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


class BvGraph(Source):
    """Edges of a BV graph, which is decoded from its start by each call of :meth:`edges`."""

    def __init__(self, base: Path) -> None:
        self._path, self._properties = _beside(base, ".graph"), _beside(base, ".properties")
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
        bits = 8 * self._path.stat().st_size
        if nodes > min(bits, MAX_NODES):  # the degree of each node takes one bit at least
            raise HpcgnnError(
                f"{self._path} was cut short, or does not belong to {self._properties}: it has {bits:,} bits for {nodes:,} nodes"
            )
        self.info = SourceInfo(nodes, arcs, fixed_ids=True)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        found = 0
        for src, dst in _Decoder(self._path, self.info, self._codes, self._sizes, self._window).arcs(chunk_edges):
            found += src.size
            yield src, dst, None
        if found != self.info.num_edges:
            raise HpcgnnError(
                f"{self._path} has {found:,} arcs, but {self._properties} has {self.info.num_edges:,}: one of the two files "
                "belongs to another graph"
            )


class _Decoder:
    """One pass through a file."""

    def __init__(self, path: Path, info: SourceInfo, codes: np.ndarray, sizes: np.ndarray, window: int) -> None:
        self._path, self._codes, self._sizes = path, codes, sizes
        self._nodes, self._arcs = info.num_nodes, info.num_edges or 0
        self._file_bytes, self._bytes = path.stat().st_size, FileBytes(path)
        self._begin, self._data = 0, np.empty(0, np.uint8)  # the first byte of the slab in the file, and the slab
        self._ring = np.zeros((window + 1, 64), np.int64)
        self._degrees = np.zeros(window + 1, np.int64)

    def arcs(self, capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """``(sources, targets)``, (m,) int64 each, of about ``capacity`` arcs at a time, or of one node that has more."""
        from hpcgnn.sources import bv_loops

        at, node = 0, 0  # ``at`` is a bit of the file
        while node < self._nodes:
            src, dst = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
            after, node, count, reason, degree = bv_loops.decode(
                self._data, at - 8 * self._begin, 8 * self._data.size, node, self._nodes,
                self._codes, self._sizes, self._ring, self._degrees, src, dst,
            )  # fmt: skip
            at = after + 8 * self._begin
            if count:
                yield src[:count], dst[:count]
            if reason == bv_loops.WRONG:
                raise HpcgnnError(
                    f"{self._path} is damaged at byte {at // 8:,}, node {node:,}: create or download it again"
                )
            if reason == bv_loops.SHORT:
                self._read_on(at, node, moved=count > 0)
            elif reason == bv_loops.NARROW:
                # A damaged file may have any degree, so it is checked before memory is allocated.
                if degree > self._arcs:
                    raise HpcgnnError(f"{self._path} is damaged at byte {at // 8:,}: node {node:,} has {degree:,} arcs")
                wider = np.zeros((self._ring.shape[0], degree), np.int64)
                wider[:, : self._ring.shape[1]] = self._ring
                self._ring = wider
            capacity = max(capacity, degree)

    def _read_on(self, at: int, node: int, *, moved: bool) -> None:
        """Read the next slab, from bit ``at`` on. If no node could be decoded (``moved`` is False), it is twice as long."""
        begin = at // 8
        if self._begin + self._data.size == self._file_bytes:
            raise HpcgnnError(
                f"{self._path} was cut short: it ends at byte {self._file_bytes:,}, in node {node:,} of {self._nodes:,}"
            )
        size = _SLAB_BYTES if moved else max(2 * self._data.size, _SLAB_BYTES)
        self._data = np.empty(min(size, self._file_bytes - begin), np.uint8)
        self._begin = begin
        self._bytes.fill(self._data, begin)


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
    """(5,) the codes of the fields. Raises HpcgnnError for a format that cannot be read here."""
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


def _beside(base: Path, suffix: str) -> Path:
    path = base.with_name(base.name + suffix)
    if not is_file(path):
        raise HpcgnnError(f"bvgraph: {path} does not exist or is not a file; NAME.graph and NAME.properties are needed")
    return path


@SOURCES.register("bvgraph")
def _open_bvgraph(spec: Spec, folder: Path) -> Source:
    name = spec.name
    for suffix in (".graph", ".properties"):
        name = name.removesuffix(suffix)
    return BvGraph(Path(name).expanduser())
