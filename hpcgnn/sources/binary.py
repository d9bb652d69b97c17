"""Tables of edges in binary files, read in slabs.

``binedges:FILE[?dtype=int32|int64|uint32&nodes=N]``: pairs of little-endian integers, source and target, one after another. The
file is read twice if ``?nodes=N`` is not given.

``parquet:FILE[?source=COLUMN&target=COLUMN&weight=COLUMN&nodes=N]``: a table of edges, through ``pyarrow``. It is read batch by
batch, in the memory of the compressed columns of one row group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, Source, SourceInfo, Spec, agreed_nodes, existing_file
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk, EdgeForm
from hpcgnn.sources.slabs import FileBytes, SlabArray, one_line
from hpcgnn.sources.text import ROLES, USUAL_NAMES, WEIGHT, EdgeColumns, columns_by_name, roles_in_order

_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int32", "int64", "uint32")}


def _largest_id(chunks: Iterator[EdgeChunk]) -> int:
    return max(int(max(chunk.src.max(), chunk.dst.max())) for chunk in chunks if chunk.src.size)


@SOURCES.register("binedges")
class _BinaryEdges(Source):
    """Edges of a binary file, which is read again by each call of :meth:`edges`."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        path, name = existing_file(spec.name, "binedges"), spec.take("dtype", "int64")
        if name not in _TYPES:
            raise HpcgnnError(f"{spec.text}: dtype={name} should be one of {', '.join(_TYPES)}")
        dtype, num_nodes = _TYPES[name], spec.take_int("nodes", 0)
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
        if not num_nodes:
            # Errors name the type, because numbers of another type look like huge ids.
            where, num_nodes = f"{path}, read as {dtype.name},", _largest_id(self.edges(CHUNK_EDGES // 4)) + 1
            if num_nodes > MAX_NODES:
                raise HpcgnnError(
                    f"{where} has node id {num_nodes - 1:,}: name another type with ?dtype={'|'.join(_TYPES)}"
                )
            agreed_nodes(where, num_nodes, num_edges, 0)
        self.info = SourceInfo(num_nodes, num_edges)

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        num_edges = self._pairs.shape[0]
        for first in range(0, num_edges, chunk_edges):
            pairs = self._pairs.rows(first, min(first + chunk_edges, num_edges))
            yield EdgeChunk(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64))


@SOURCES.register("parquet")
class _ParquetEdges(Source):
    """Edges of a Parquet file, which is opened again by each call of :meth:`edges`."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise HpcgnnError(f"{spec.text} needs pyarrow ({error}): pip install 'hpcgnn[parquet]'") from error
        asked = {role: spec.take(role) for role in ROLES}
        self._path = path = existing_file(spec.name, "parquet")
        num_nodes = spec.take_int("nodes", 0)
        with self._reading("its footer"), self._open() as file:
            self._columns, note = _chosen(path, file.schema_arrow, asked)
            num_edges = file.metadata.num_rows
            if not num_nodes and not num_edges:
                raise HpcgnnError(f"{path} holds no edges: give the number of nodes with ?nodes=N")
            largest = None if num_nodes else _largest_in_statistics(file.metadata, self._columns[:2])
        self.info = SourceInfo(
            num_nodes, num_edges, form=EdgeForm(weighted=len(self._columns) == 3), notes=(f"{path}: {note}",)
        )
        if not num_nodes:
            largest = _largest_id(self.edges()) if largest is None else largest
            self.info = replace(self.info, num_nodes=agreed_nodes(str(path), largest + 1, num_edges, 0))

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 20)

    @contextlib.contextmanager
    def _reading(self, place: str) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except (OSError, ArrowException) as error:
            raise HpcgnnError(
                f"{self._path} cannot be read as Parquet at {place}, and may have been cut short: {one_line(error)}"
            ) from error

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        with self._reading("its footer"), self._open() as file:
            for group in range(file.metadata.num_row_groups):
                with self._reading(f"row group {group}"):
                    for batch in file.iter_batches(chunk_edges, row_groups=[group], columns=list(self._columns)):
                        yield self._chunk(batch, group)

    def _chunk(self, batch: Any, group: int) -> EdgeChunk:
        for name in self._columns:
            if batch.column(name).null_count:
                raise HpcgnnError(f"{self._path}: column {name} has empty values in row group {group}")
        src, dst, *weight = (batch.column(name).to_numpy(zero_copy_only=False) for name in self._columns)
        return EdgeChunk(src.astype(np.int64), dst.astype(np.int64), weight[0] if weight else None)


def _chosen(path: Path, schema: Any, asked: dict[str, str | None]) -> tuple[tuple[str, ...], str]:
    """The names of the columns of sources, targets and, if there are any, weights, and a phrase about all columns. Raises
    HpcgnnError."""
    from pyarrow import types

    found = columns_by_name(schema.names, asked, path)
    if WEIGHT in found and asked.get(WEIGHT) is None:
        kind = schema.field(found[WEIGHT]).type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
            del found[WEIGHT]  # words that a usual name was given to; the note lists them among what is not read
    for role, name in asked.items():
        if role not in found and (role != WEIGHT or name is not None):
            wanted = name or f"for the {role}, such as {USUAL_NAMES[role][0]}"
            had = ", ".join(schema.names) or "none"
            raise HpcgnnError(f"{path} has no column {wanted}; it has {had}: name it with ?{role}=COLUMN")
    for role, place in found.items():
        kind = schema.field(place).type
        if not (types.is_integer(kind) or (role == WEIGHT and types.is_floating(kind))):
            raise HpcgnnError(
                f"{path}: column {schema.names[place]} is of {kind}, but it should be of whole numbers"
                + " or of float32 or float64" * (role == WEIGHT)
            )
    roles = roles_in_order(found, len(schema.names))
    names = tuple(schema.names[found[role]] for role in ROLES if role in found)
    return names, EdgeColumns(roles, ",", tuple(schema.names)).note()


def _largest_in_statistics(metadata: Any, columns: tuple[str, ...]) -> int | None:
    """The largest id in the file's statistics, or None if some are missing. If they are wrong, larger ids are refused when edges
    are sorted."""
    largest = -1
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    for group in range(metadata.num_row_groups):
        for name in columns:
            told = metadata.row_group(group).column(places[name]).statistics if name in places else None
            if told is None or not told.has_min_max:
                return None
            largest = max(largest, int(told.max))
    return largest
