"""``binedges:FILE[?dtype=int32|int64|uint32&nodes=N]``: pairs of little-endian integers, source and target, one after another.

The default type is int64. The number of nodes is ``?nodes=N``, or follows from the largest id, as for a text edge list; then the
file is read twice. It is read in slabs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, Spec, StructureSource, agreed_nodes, existing_file
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk
from hpcgnn.sources.slabs import FileBytes, SlabArray
from hpcgnn.sources.text import ROLES, USUAL_NAMES, WEIGHT, EdgeColumns, columns_by_name, roles_in_order

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


class ParquetEdges(StructureSource):
    """Edges of a Parquet file, which is opened again by each call of :meth:`edges`."""

    def __init__(self, path: Path, asked: dict[str, str | None], num_nodes: int) -> None:
        self._path = path
        with self._open() as file:
            self._columns, note = _chosen(path, file.schema_arrow, asked)
            num_edges = file.metadata.num_rows
            if not num_nodes and not num_edges:
                raise HpcgnnError(f"{path} holds no edges: give the number of nodes with ?nodes=N")
            largest = None if num_nodes else _largest_told(file.metadata, self._columns[:2])
        self.info = SourceInfo(num_nodes, num_edges, weighted=len(self._columns) == 3, notes=(f"{path}: {note}",))
        if not num_nodes:
            if largest is None:
                largest = max(int(max(src.max(), dst.max())) for src, dst, _ in self.edges() if src.size)
            num_nodes = agreed_nodes(str(path), largest + 1, num_edges, 0)
            self.info = replace(self.info, num_nodes=num_nodes)

    @contextlib.contextmanager
    def _open(self, place: str = "its footer") -> Iterator[Any]:
        from pyarrow import ArrowException, parquet

        try:
            with parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 20) as file:
                yield file
        except (OSError, ArrowException) as error:
            raise self._unreadable(place, error) from error

    def _unreadable(self, place: str, error: Exception) -> HpcgnnError:
        detail = " ".join(str(error).split()) or type(error).__name__
        return HpcgnnError(f"{self._path} cannot be read as Parquet at {place}, and may have been cut short: {detail}")

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        from pyarrow import ArrowException

        with self._open() as file:
            for group in range(file.metadata.num_row_groups):
                try:
                    for batch in file.iter_batches(chunk_edges, row_groups=[group], columns=list(self._columns)):
                        yield self._chunk(batch, group)
                except (OSError, ArrowException) as error:
                    raise self._unreadable(f"row group {group}", error) from error

    def _chunk(self, batch: Any, group: int) -> EdgeChunk:
        arrays = []
        for name in self._columns:
            column = batch.column(name)
            if column.null_count:
                raise HpcgnnError(f"{self._path}: column {name} has empty values in row group {group}")
            arrays.append(column.to_numpy(zero_copy_only=False))
        src, dst, *weight = arrays
        return src.astype(np.int64), dst.astype(np.int64), weight[0] if weight else None


@SOURCES.register("parquet")
def open_parquet(spec: Spec, folder: Path) -> ParquetEdges:
    """See the module's text; needs ``pyarrow``."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise HpcgnnError(f"{spec.text} needs pyarrow ({error}): pip install 'hpcgnn[parquet]'") from error
    asked = {role: spec.take(role) for role in ROLES}
    return ParquetEdges(existing_file(spec.name, "parquet"), asked, spec.take_int("nodes", 0))


def _chosen(path: Path, schema: Any, asked: dict[str, str | None]) -> tuple[tuple[str, ...], str]:
    """The names of the columns of sources, targets and, if there are any, weights, and a phrase about all columns. Raises
    HpcgnnError for columns of wrong types."""
    from pyarrow import types

    found = columns_by_name(schema.names, asked, path)
    if WEIGHT in found and asked.get(WEIGHT) is None and _is_text(schema.field(found[WEIGHT]).type):
        del found[WEIGHT]  # words that a usual name was given to; the note lists them among what is not read
    for role, name in asked.items():
        if role not in found and (role != WEIGHT or name is not None):
            wanted = (
                f"no column {name}" if name is not None else f"no column for the {role}, such as {USUAL_NAMES[role][0]}"
            )
            raise HpcgnnError(
                f"{path} has {wanted}; it has {', '.join(schema.names) or 'none'}: name it with ?{role}=COLUMN"
            )
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


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind))


def _largest_told(metadata: Any, columns: tuple[str, ...]) -> int | None:
    """The largest id in the statistics of all row groups, or None if one has none. If the statistics are wrong, larger ids are
    refused when edges are sorted."""
    largest = -1
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    for group in range(metadata.num_row_groups):
        for name in columns:
            told = metadata.row_group(group).column(places[name]).statistics if name in places else None
            if told is None or not told.has_min_max:
                return None
            largest = max(largest, int(told.max))
    return largest
