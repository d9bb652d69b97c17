"""``npz:FILE``: a graph as plain numpy arrays.

num_nodes () int    edge_index (2, E) int    [edge_weight (E,)]
x (N, F)  or  x_data (nnz,), x_indices (nnz,), x_indptr (N+1,), x_shape (2,)
y (N,) class, -1 = none, or (N, C) 0/1
train_mask, val_mask, test_mask (N,) bool, and train_masks.. (K, N) bool for K splits (``?split=K`` picks one); also the other
forms of :mod:`hpcgnn.sources.node_values`

Arrays with other names are not read, and a note names them. ``?nodes=N`` confirms the number of nodes of a graph that has only
edges, and most of whose nodes have none.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.h5 import ZIP, begins_with
from hpcgnn.sources.base import SOURCES, ArraySource, Spec, agreed_nodes, existing_file
from hpcgnn.sources.node_values import read_masks, sparse_features

_MOST_DEFLATED = 1032  # the largest ratio of sizes that deflate can reach
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SUFFIX = ".npy"


class Archive:
    """An open ``.npz`` file. All methods raise :class:`HpcgnnError`, which names the file and the array, if one is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # on a damaged file, zipfile raises errors of many types
            if isinstance(error, zipfile.BadZipFile) and not begins_with(path, ZIP):
                raise HpcgnnError(f"{path} is not an npz file: write it with numpy.savez") from error
            raise HpcgnnError(f"{path} cannot be read as npz: {_told(error)}") from error
        self._members = {info.filename.removesuffix(_SUFFIX): info for info in self._zip.infolist()}
        self._file_bytes = path.stat().st_size
        self._read: set[str] = set()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """The names of all arrays, in alphabetical order."""
        return sorted(self._members)

    @property
    def unread(self) -> list[str]:
        """The names of the arrays that nobody has asked for, in alphabetical order."""
        return sorted(set(self._members) - self._read)

    def read(self, name: str) -> np.ndarray | None:
        """Array ``name``, with its checksum compared, or None if the file has no such array."""
        if name not in self._members:
            return None
        self._read.add(name)
        try:
            self._check_member(self._members[name])
            with self._zip.open(self._members[name]) as file:
                self._check_header(file, self._members[name])
            with self._zip.open(self._members[name]) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):
                    raise ValueError("it has more bytes than its header says")
                return array
        except Exception as error:  # as above, and errors of zlib, numpy and its parser of headers
            raise HpcgnnError(f"{self._path} cannot be read as npz: array {name}: {_told(error)}") from error

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        """Raise ValueError unless the sizes of a member in the archive's directory fit into the file."""
        most = _MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else 1
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed by another method than numpy's")
        if not 0 <= info.file_size <= most * info.compress_size or info.compress_size > self._file_bytes:
            raise ValueError(f"its directory claims {info.file_size:,} bytes, but the file has {self._file_bytes:,}")

    def _check_header(self, file: IO[bytes], info: zipfile.ZipInfo) -> None:
        """Raise ValueError unless the array's shape and dtype fit the size of the member."""
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"its format {version} is none that holds numbers")
        shape, _, dtype = _HEADERS[version](file)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {shape}")
        values = math.prod(shape) * dtype.itemsize
        if values + file.tell() != info.file_size and not dtype.hasobject:  # numpy refuses objects in its own words
            raise ValueError(
                f"{dtype} of shape {shape} take {values:,} bytes, but there are {info.file_size - file.tell():,}"
            )


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


@SOURCES.register("npz")
def open_npz(spec: Spec, folder: Path) -> ArraySource:
    """See the module's text."""
    path = existing_file(spec.name, "npz")
    split, nodes = spec.take_split(), spec.take_int("nodes", 0)
    with Archive(path) as arrays:
        return _from_arrays(arrays, str(path), split, nodes)


def _from_arrays(arrays: Archive, where: str, split: int | None, nodes: int) -> ArraySource:
    count, edge_index = arrays.read("num_nodes"), arrays.read("edge_index")
    for name, array in (("num_nodes", count), ("edge_index", edge_index)):
        if array is None:
            raise HpcgnnError(f"{where} has no array {name!r}; it has {', '.join(arrays.names) or 'none'}")
    assert count is not None
    if count.size != 1 or count.dtype.kind not in "iu":
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    num_nodes = int(count.reshape(-1)[0])
    x = _sparse(arrays, where) if set(_SPARSE) & set(arrays.names) else arrays.read("x")
    y, weight = arrays.read("y"), arrays.read("edge_weight")
    masks, notes = read_masks(arrays.read, num_nodes, split, where)
    if arrays.unread:
        notes.append(f"arrays that are not read: {', '.join(arrays.unread)}")
    source = ArraySource(where, num_nodes, edge_index, weight=weight, x=x, y=y, masks=masks, notes=notes)
    is_counted = x is None and y is None and not masks  # no array has a row for each node
    agreed_nodes(where, num_nodes, source.info.num_edges if is_counted else None, nodes)
    return source


def _sparse(arrays: Archive, where: str) -> Any:
    data, indices, indptr, shape = (arrays.read(name) for name in _SPARSE)
    if any(part is None for part in (data, indices, indptr, shape)):
        raise HpcgnnError(f"{where}: sparse features need x_data, x_indices, x_indptr and x_shape (two numbers)")
    return sparse_features(data, indices, indptr, shape, where)
