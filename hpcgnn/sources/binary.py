"""Tables of edges in binary files, read in slabs.

``binedges:FILE[?dtype=int32|int64|uint32&nodes=N]``: pairs of little-endian integers, source and target, one after another. The
file is read twice if ``?nodes=N`` is not given.

``parquet:FILE[?source=COLUMN&target=COLUMN&weight=COLUMN&type=COLUMN&attr=COLUMN,COLUMN&inverse=yes&nodes=N]``: a table of edges,
through ``pyarrow``. It is read once, batch by batch, in the memory of the compressed columns of one row group, and of the table
of names if ends or types are text (:mod:`hpcgnn.sources.triples`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, Source, SourceInfo, Spec, agreed_nodes, existing_file
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk
from hpcgnn.sources.slabs import FileBytes, SlabArray, one_line
from hpcgnn.sources.text import (
    ATTR,
    ROLES,
    SOURCE,
    TARGET,
    TYPE,
    USUAL_NAMES,
    WEIGHT,
    EdgeColumns,
    columns_by_name,
    feature_columns,
    roles_in_order,
)
from hpcgnn.sources.triples import NameTable, SpooledEdges, take_yes

_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int32", "int64", "uint32")}


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
            where, chunks = f"{path}, read as {dtype.name},", self.edges(CHUNK_EDGES // 4)
            num_nodes = 1 + max(int(max(chunk.src.max(), chunk.dst.max())) for chunk in chunks if chunk.src.size)
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
class _ParquetEdges(SpooledEdges):
    """Edges of a Parquet file, which is read once, because its number of nodes is known only at its end."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise HpcgnnError(f"{spec.text} needs pyarrow ({error}): pip install 'hpcgnn[parquet]'") from error
        asked = {role: spec.take(role) for role in (*ROLES, ATTR)}
        self._path = path = existing_file(spec.name, "parquet")
        num_nodes = spec.take_int("nodes", 0)
        super().__init__(folder, inverse=take_yes(spec, "inverse"))
        with self._reading("its footer"), parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            roles = _chosen(path, file.schema_arrow, asked)
            names = file.schema_arrow.names
            named = {role for role, name in zip(roles, names, strict=True) if _is_text(file.schema_arrow, name)}
            self.nodes = NameTable() if SOURCE in named else None
            self.types = NameTable() if TYPE in named else None
            self._fill(file, {name: role for name, role in zip(names, roles, strict=True) if role})
        self.finish(str(path), num_nodes, (f"{path}: {EdgeColumns(roles, ',', tuple(names)).note()}",))

    @contextlib.contextmanager
    def _reading(self, place: str) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except (OSError, ArrowException) as error:
            raise HpcgnnError(
                f"{self._path} cannot be read as Parquet at {place}, and may have been cut short: {one_line(error)}"
            ) from error

    def _fill(self, file: Any, roles: dict[str, str]) -> None:
        for group in range(file.metadata.num_row_groups):
            with self._reading(f"row group {group}"):
                for batch in file.iter_batches(CHUNK_EDGES, row_groups=[group], columns=list(roles)):
                    self.append(self._chunk_of(batch, roles, group))

    def _chunk_of(self, batch: Any, roles: dict[str, str], group: int) -> EdgeChunk:
        found: dict[str, list[np.ndarray]] = {}
        for name, role in roles.items():
            column = batch.column(name)
            if column.null_count:
                raise HpcgnnError(f"{self._path}: column {name} has empty values in row group {group}")
            table = {SOURCE: self.nodes, TARGET: self.nodes, TYPE: self.types}.get(role)
            found.setdefault(role, []).append(
                column.to_numpy(zero_copy_only=False) if table is None else _numbered(column, table)
            )
        src, dst = (found[role][0].astype(np.int64) for role in (SOURCE, TARGET))
        weight, types = (found.get(role, [None])[0] for role in (WEIGHT, TYPE))
        attr = np.stack(found[ATTR], axis=1) if ATTR in found else None
        return EdgeChunk(src, dst, weight, None if types is None else types.astype(np.int64), attr)


def _numbered(column: Any, table: NameTable) -> np.ndarray:
    """(n,) numbers of the n names of a column; each name is looked up once."""
    from pyarrow import DictionaryArray

    codes = column if isinstance(column, DictionaryArray) else column.dictionary_encode()
    used, places = np.unique(codes.indices.to_numpy(zero_copy_only=False), return_index=True)
    words = codes.dictionary.to_pylist()
    numbers = np.empty(len(words), np.int64)
    in_order = used[np.argsort(places)]  # as in other sources, names count in the order in which they are first seen
    numbers[in_order] = table.numbers([words[code] for code in in_order.tolist()])
    return numbers[codes.indices.to_numpy(zero_copy_only=False)]


def _is_text(schema: Any, name: str) -> bool:
    from pyarrow import types

    kind = schema.field(name).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _chosen(path: Path, schema: Any, asked: dict[str, str | None]) -> tuple[str, ...]:
    """The role of each column. Raises HpcgnnError."""
    from pyarrow import types

    names = schema.names
    found = columns_by_name(names, asked, path)
    if WEIGHT in found and asked.get(WEIGHT) is None and _is_text(schema, names[found[WEIGHT]]):
        del found[WEIGHT]  # words that a usual name was given to; the note lists them among what is not read
    for role, name in asked.items():
        if role not in found and role != ATTR and (role in (SOURCE, TARGET) or name is not None):
            wanted = name or f"for the {role}, such as {USUAL_NAMES[role][0]}"
            had = ", ".join(names) or "none"
            raise HpcgnnError(f"{path} has no column {wanted}; it has {had}: name it with ?{role}=COLUMN")
    features = feature_columns(names, asked.get(ATTR), found.values(), path)
    for role, place in [*found.items(), *((ATTR, place) for place in features)]:
        kind = schema.field(place).type
        real, may_be_names = role in (WEIGHT, ATTR), role in (SOURCE, TARGET, TYPE)
        if (
            types.is_integer(kind)
            or (real and types.is_floating(kind))
            or (may_be_names and _is_text(schema, names[place]))
        ):
            continue
        also = " or of float32 or float64" * real + ", or of text for names" * may_be_names
        raise HpcgnnError(f"{path}: column {names[place]} is of {kind}, but it should be of whole numbers{also}")
    if len({_is_text(schema, names[found[role]]) for role in (SOURCE, TARGET)}) > 1:
        raise HpcgnnError(
            f"{path}: of the source and the target of edges, one is text and one is numbers: make both the same"
        )
    return roles_in_order(found, features, len(names))
