"""``binedges:FILE[?dtype=int32|int64|uint32&nodes=N]``: pairs of little-endian integers, source and target, one after another.

The default type is int64. The number of nodes is ``?nodes=N``, or follows from the largest id, as for a text edge list; then the
file is read twice. It is read in slabs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, StructureSource, agreed_nodes, existing_file
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk
from hpcgnn.sources.slabs import FileBytes, SlabArray
from hpcgnn.sources.spec import Spec

_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int32", "int64", "uint32")}


class BinaryEdges(StructureSource):
    """Edges of a binary file, which is read again by each call of :meth:`edges`."""

    def __init__(self, path: Path, dtype: np.dtype, num_nodes: int) -> None:
        num_bytes, pair_bytes = path.stat().st_size, 2 * dtype.itemsize
        num_edges, left = divmod(num_bytes, pair_bytes)
        if left:
            raise HpcgnnError(
                f"{path} was cut short, or does not hold pairs of {dtype.name}: it ends at byte {num_bytes:,}, "
                f"{left} bytes into edge {num_edges:,}"
            )
        self._pairs = SlabArray(str(path), (num_edges, 2), dtype, [FileBytes(path)])
        if not num_nodes and not num_edges:
            raise HpcgnnError(f"{path} holds no edges: give the number of nodes with ?nodes=N")
        self.info = SourceInfo(num_nodes or self._count(path), num_edges)

    def _count(self, path: Path) -> int:
        """The number of nodes, from the largest id. Errors name the type, because numbers of another type look like huge ids."""
        where, nodes = f"{path}, read as {self._pairs.dtype.name},", self._largest() + 1
        if nodes > MAX_NODES:
            raise HpcgnnError(f"{where} has node id {nodes - 1:,}: name another type with ?dtype={'|'.join(_TYPES)}")
        return agreed_nodes(where, nodes, self._pairs.shape[0], 0)

    def _largest(self) -> int:
        return max(int(max(src.max(), dst.max())) for src, dst, _ in self._chunks(CHUNK_EDGES // 4))

    def _chunks(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        num_edges = self._pairs.shape[0]
        for first in range(0, num_edges, chunk_edges):
            pairs = self._pairs.rows(first, min(first + chunk_edges, num_edges))
            yield pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), None

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        return self._chunks(chunk_edges)


@SOURCES.register("binedges")
def open_binary_edges(spec: Spec, folder: Path) -> BinaryEdges:
    """See the module's text."""
    path, name = existing_file(spec.name, "binedges"), spec.take("dtype", "int64")
    if name not in _TYPES:
        raise HpcgnnError(f"{spec.text}: dtype={name} should be one of {', '.join(_TYPES)}")
    return BinaryEdges(path, _TYPES[name], spec.take_int("nodes", 0))
