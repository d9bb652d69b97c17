"""``parquet:FILE[?source=COLUMN&target=COLUMN&weight=COLUMN&nodes=N]``: a table of edges, through ``pyarrow``.

The default columns are ``source`` and ``target``, or others of :data:`hpcgnn.sources.edge_columns.USUAL_NAMES`, of whole
numbers, and ``weight``, if there is one. The table is read batch by batch, in the memory of the compressed columns of one row
group. The number of nodes is ``?nodes=N``, or follows from the largest id, which is taken from the file's statistics if it has
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, SourceInfo, StructureSource, agreed_nodes, existing_file
from hpcgnn.sources.edge_columns import ROLES, USUAL_NAMES, WEIGHT, EdgeColumns, columns_by_name, roles_in_order
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.spec import Spec


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
