"""HDF5 files that every rank can read and write by byte offset.

All arrays are contiguous datasets allocated when the file is created, so that each has a byte offset at which slabs can
be written with plain ``pwrite`` or MPI-IO: no parallel HDF5 is needed. A file appears under its final name only when it
is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.byte_sink import ByteSink
from hpcgnn.errors import HpcgnnError

_MADE_BY = {
    "hpcgnn-graph": "a graph file, made by `hpcgnn convert`,",
    "hpcgnn-parts": "a parts file, made by `hpcgnn partition`,",
}
Schema = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class SlabWriter:
    """Writes rows of the arrays that :func:`create` laid out."""

    def __init__(self, sink: ByteSink, offsets: Mapping[str, int], schema: Schema) -> None:
        self._sink, self._offsets, self._schema = sink, offsets, schema

    def write(self, name: str, first_row: int, rows: np.ndarray) -> None:
        """Write ``rows`` (cast to the stored dtype) to dataset ``name`` from row ``first_row`` on."""
        shape, dtype = self._schema[name]
        if rows.size == 0:
            return
        if first_row + rows.shape[0] > shape[0] or rows.shape[1:] != shape[1:]:
            raise ValueError(f"{name}: rows {first_row}+{rows.shape} do not fit into {shape}")
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self._sink.write(self._offsets[name] + first_row * row_bytes, rows.astype(dtype, copy=False))


def create(path: str | Path, schema: Schema, attributes: Mapping[str, Any]) -> dict[str, int]:
    """Create ``path`` with every dataset of ``schema`` allocated; return each one's byte offset in the file."""
    total = sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in schema.values())
    folder = Path(path).resolve().parent
    free = shutil.disk_usage(folder).free
    if total > free:
        raise HpcgnnError(f"disk full: {folder} has {free:,} bytes left, and the file to write needs {total:,}")
    with h5py.File(path, "w", locking=False) as file:
        file.attrs.update(attributes)
        return add_datasets(file, schema)


def add_datasets(group: h5py.Group, schema: Schema) -> dict[str, int]:
    """Add contiguous, early-allocated datasets to an open file or group; return their byte offsets."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = {}
    for name, (shape, dtype) in schema.items():
        parent = group.require_group(os.path.dirname(name) or "/") if "/" in name else group
        space = h5py.h5s.create_simple(shape)
        kind = h5py.h5t.py_create(dtype, logical=True)
        dataset = h5py.h5d.create(parent.id, os.path.basename(name).encode(), kind, space, plist)
        if np.prod(shape, dtype=np.int64) > 0:
            offsets[name] = dataset.get_offset()
    return offsets


def new_header(kind: str, version: int) -> dict[str, Any]:
    """The attributes that every file starts with."""
    return {"format": kind, "version": version, "uuid": uuid.uuid4().hex}


@contextlib.contextmanager
def replacing(path: str | Path, *, force: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; rename it to ``path`` on success, delete it on any failure."""
    path = Path(path)
    if not path.parent.is_dir():
        raise HpcgnnError(f"cannot write {path}: folder {path.parent} does not exist")
    if path.exists() and not force:
        raise HpcgnnError(f"{path} exists: choose another name or pass --force to overwrite it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_checked(path: str | Path, kind: str, version: int, mode: str = "r") -> h5py.File:
    """Open an hpcgnn file after checking that it exists, is whole, and has the expected ``kind`` and ``version``."""
    path = Path(path)
    if not path.is_file():
        raise HpcgnnError(f"{path} does not exist or is not a file")
    try:
        # Locks fail on many parallel file systems, and readers here never race with a writer: files are renamed in whole.
        file = h5py.File(path, mode, locking=False)
    except OSError as error:
        raise HpcgnnError(f"{path} is not a whole HDF5 file (truncated, or another format): {error}") from error
    found = file.attrs.get("format")
    problem = None
    if found != kind:
        problem = f"{path} is HDF5, but no {kind} file"
        if found:
            problem = f"{path} is a {found} file where {_MADE_BY.get(kind, kind)} is wanted"
    elif int(file.attrs.get("version", -1)) != version:
        problem = (
            f"{path} has {kind} version {file.attrs.get('version')}, this hpcgnn reads version {version}: make it anew"
        )
    elif "uuid" not in file.attrs:
        problem = f"{path} has no uuid: it was not written by hpcgnn"
    if problem:
        file.close()
        raise HpcgnnError(problem)
    return file


def read_rows(file: h5py.File, name: str, first: int, last: int) -> np.ndarray:
    """Rows ``[first, last)`` of a dataset as a new array; damage on disk becomes an :class:`HpcgnnError`."""
    try:
        return file[name][first:last]
    except (KeyError, OSError) as error:
        raise HpcgnnError(
            f"{file.filename}: cannot read {name} ({error}): the file is damaged, make it anew"
        ) from error
